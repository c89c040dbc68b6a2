/* Formats and sizes of each tensor's blocks, for meopt_query and meopt_create. */
#include "core/optim/muon.h"

#include <string.h>

/* Returns the bytes of an array, padded to whole groups; 0 for STATE_NONE. */
static size_t state_array_bytes(int format, int64_t groups)
{
    return (size_t)groups * optim_state_bytes(format);
}

void layout_state(struct layout *l)
{
    l->v_at = rounded(state_array_bytes(l->m, l->groups));
    l->scales_at = l->v_at + rounded(state_array_bytes(l->v, l->groups));
    l->scale_bytes = (size_t)l->groups * optim_scale_bytes(l->m, l->v);
    l->average_at = l->scales_at + rounded(l->scale_bytes);
    l->average_bytes = l->average ? state_array_bytes(STATE_BF16, l->groups) : 0;
    l->state_bytes = l->average_at + rounded(l->average_bytes);
}

/* The factored second moment: of matrices of the last two dimensions, as in torch.optim and transformers. A
 * vector has v instead. */
static void layout_factors(struct layout *l, const struct meopt_options *o, const struct meopt_tensor *tensor)
{
    if (o->beta1 == 0) l->m = STATE_NONE;
    l->v = tensor->ndim < 2 ? STATE_F32 : STATE_NONE;
    if (tensor->ndim < 2) return;
    l->rows = tensor->shape[tensor->ndim - 2];
    l->columns = tensor->shape[tensor->ndim - 1];
    l->matrices = l->rows > 0 && l->columns > 0;
    for (int d = 0; d < tensor->ndim - 2; d++) l->matrices *= tensor->shape[d];
    l->factor_bytes = rounded((factor_count(l) + (size_t)(l->matrices * l->rows)) * sizeof(float));
}

void layout_plan(struct layout *l, const struct meopt_options *o, const struct meopt_tensor *tensor)
{
    memset(l, 0, sizeof *l);
    int wide_dims = 0;
    l->count = 1;
    for (int d = 0; d < tensor->ndim; d++) {
        l->count *= tensor->shape[d];
        wide_dims += tensor->shape[d] > 1;
    }
    bool keep = (tensor->flags & MEOPT_KEEP_F32) || wide_dims < 2 || l->count < o->small_count;
    if (tensor->flags & MEOPT_PART) l->count = tensor->count;
    l->groups = optim_groups(l->count);
    l->weights = keep ? WEIGHTS_F32 : o->weights;
    if ((tensor->flags & MEOPT_KEEP_BF16) && l->weights <= WEIGHTS_F32_COPY) l->weights = WEIGHTS_32;
    l->average = o->average_decay > 0;
    l->copy_f16 = tensor->flags & MEOPT_COPY_F16;
    if (l->copy_f16) l->weights = WEIGHTS_F32_COPY;
    l->m = keep ? STATE_F32 : o->first_moment;
    l->v = keep ? STATE_F32 : o->second_moment;
    if (!RULE_HAS(tensor->rule, WITH_V)) l->v = STATE_NONE;
    if (RULE_HAS(tensor->rule, WITH_MOMENTUM) && o->momentum == 0) l->m = STATE_NONE;
    if (RULE_HAS(tensor->rule, WITH_FACTORS)) layout_factors(l, o, tensor);
    l->accumulator = o->accumulator < 0 ? STATE_NONE : keep ? STATE_F32 : o->accumulator;

    size_t count = (size_t)l->count, groups = (size_t)l->groups;
    l->weight_bytes = rounded(count * optim_weight_bytes(l->weights));
    l->copy_bytes = l->weights == WEIGHTS_F32_COPY ? rounded(count * 2) : 0;
    l->residual_bytes = rounded(groups * optim_residual_bytes(l->weights));
    layout_state(l);
    if (l->accumulator != STATE_NONE) {
        l->accumulator_scales_at = rounded(state_array_bytes(l->accumulator, l->groups));
        l->accumulator_bytes =
            l->accumulator_scales_at + (OPTIM_LOW_BIT(l->accumulator) ? rounded(groups) : 0);
    }
}

void layout_add(struct meopt_bytes *bytes, const struct layout *l, bool callers_weights, bool callers_copy)
{
    bytes->parameters += l->count;
    bytes->weights += l->weight_bytes;
    bytes->copy += l->copy_bytes;
    bytes->correction += l->residual_bytes;
    bytes->moments += l->state_bytes + l->factor_bytes;
    bytes->scales += l->scale_bytes;
    bytes->accumulators += l->accumulator_bytes;
    bytes->total += l->weight_bytes + l->copy_bytes + l->residual_bytes + l->state_bytes + l->factor_bytes +
                    l->accumulator_bytes;
    bytes->callers += (callers_weights ? l->weight_bytes : 0) + (callers_copy ? l->copy_bytes : 0);
}

int meopt_query_sized(size_t size, const struct meopt_options *options, const struct meopt_tensor *tensors,
                      size_t count, struct meopt_bytes *bytes, struct meopt_error *err)
{
    struct meopt_options o;
    struct meopt_bytes all = {0};
    struct muon_space space = {0};
    if (!bytes || (count && !tensors)) return optim_fail(err, MEOPT_BAD_ARGUMENT, "tensors or bytes is NULL");
    int status = options_read(&o, options, err);
    if (status) return status;
    for (size_t i = 0; i < count; i++) {
        struct meopt_tensor tensor;
        struct layout layout;
        if ((status = tensor_read(&tensor, &o, tensors, i, err))) return status;
        layout_plan(&layout, &o, &tensor);
        layout_add(&all, &layout, tensor.weights != NULL, tensor.copy != NULL);
        struct tensor t = {.layout = layout, .first = tensor.first};
        t.whole = tensor.flags & MEOPT_PART ? 1 : 0;
        for (int d = 0; d < tensor.ndim; d++) t.whole *= tensor.shape[d];
        muon_describe(&t, &tensor);
        muon_space_add(&space, &o, &t);
        size_t sums = factors_bytes(&o, &t);
        if (sums > all.workspace) all.workspace = sums;
    }
    all.workspace += rounded(muon_space_bytes(&space));
    all.total += all.workspace;
    struct_copy_out(bytes, size, &all, sizeof all);
    return MEOPT_OK;
}
