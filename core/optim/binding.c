/* Functions for framework bindings (core/meopt.h): options per tensor, moved memory, weights written by the
 * caller, planning without memory, moments as fp32. */
#include "core/optim/optim.h"
#include "kernels/f16.h"

#include <math.h>
#include <string.h>

static int tensor_named(const struct meopt *opt, size_t tensor, const void *given, struct meopt_error *err)
{
    if (opt && tensor < opt->count && given) return MEOPT_OK;
    return optim_fail(err, MEOPT_BAD_ARGUMENT, "no optimizer, no tensor %zu in it, or nothing given", tensor);
}

static int group_given(const struct meopt *opt, size_t tensor, const struct meopt_group *group,
                       struct meopt_error *err)
{
    int status = tensor_named(opt, tensor, group, err);
    if (status ||
        (group->size >= offsetof(struct meopt_group, maximize) + sizeof(int) && group->size <= 65536))
        return status;
    return optim_fail(err, MEOPT_BAD_ARGUMENT,
                      "a group of %zu bytes, expected %zu: set its field size to sizeof(struct meopt_group)",
                      group->size, sizeof *group);
}

const char *meopt_version(void) { return MEOPT_VERSION; }
const char *meopt_instruction_set(void) { return optim_kernels_find(NULL)->name; }

int meopt_set_group(struct meopt *opt, size_t tensor, const struct meopt_group *group,
                    struct meopt_error *err)
{
    int status = group_given(opt, tensor, group, err);
    if (!status) status = optim_between_steps(opt, err);
    if (status) return status;
    struct tensor changed = opt->tensors[tensor];
    changed.lr_scale = group->lr_scale;
    changed.decay = true;
    changed.grouped = true;
    if (!struct_copy_in(&changed.group, sizeof changed.group, group, group->size))
        return optim_fail(
            err, MEOPT_BAD_ARGUMENT,
            "the group has a field that this library does not know: it is older than the header");
    struct meopt_options own;
    status = options_check(tensor_options(opt, &changed, &own), err);
    if (status) return status;
    if (!isfinite(group->lr_scale) || group->lr_scale < 0)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "tensor %.100s: lr_scale is %g", changed.name,
                          group->lr_scale);
    if (RULE_HAS(changed.rule, WITH_MOMENTUM) && group->momentum != 0 && changed.layout.m == STATE_NONE)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "tensor %.100s was created without momentum",
                          changed.name);
    if (RULE_HAS(changed.rule, WITH_FACTORS) && group->beta1 != 0 && changed.layout.m == STATE_NONE)
        return optim_fail(err, MEOPT_BAD_ARGUMENT,
                          "tensor %.100s was created without a first moment (beta1 0)", changed.name);
    opt->tensors[tensor] = changed;
    return MEOPT_OK;
}

int meopt_rebind(struct meopt *opt, size_t tensor, void *weights, void *copy, struct meopt_error *err)
{
    int status = tensor_named(opt, tensor, weights ? weights : copy, err);
    if (!status) status = optim_between_steps(opt, err);
    if (status) return status;
    struct tensor *t = &opt->tensors[tensor];
    if ((weights && t->own_weights) || (copy && (!t->copy || t->own_copy)))
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "tensor %.100s: this memory is not the caller's", t->name);
    if ((uintptr_t)weights % (t->layout.weights <= WEIGHTS_F32_COPY ? 4 : 2) || (uintptr_t)copy % 2)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "tensor %.100s: weights at %p are misaligned", t->name,
                          weights);
    if (weights) t->weights = weights;
    if (copy) t->copy = copy;
    return MEOPT_OK;
}

void weights_accept(struct tensor *host)
{
    if (host->correction) memset(host->correction, 0, host->layout.residual_bytes);
    for (int64_t i = 0; host->copy && i < host->layout.count; i++) {
        uint16_t half = ((const uint16_t *)host->copy)[i];
        uint32_t bits = host->layout.copy_f16 ? f16_bits_of(half) : (uint32_t)half << 16;
        memcpy((char *)host->weights + i * 4, &bits, 4);
    }
}

int meopt_sync(struct meopt *opt, size_t tensor, struct meopt_error *err)
{
    OPTIM_ENTER(opt);
    int status = tensor_named(opt, tensor, opt, err);
    if (status) return status;
    struct tensor *t = &opt->tensors[tensor], host;
    if (opt->options.dry) return optim_fail(err, MEOPT_BAD_ARGUMENT, "a dry optimizer has no weights");
    if ((status = tensor_hold(opt, t, PART_WEIGHTS, &host, err))) return status;
    bool f16 = t->layout.copy_f16;
    if (host.copy && !optim_all_finite(host.copy, f16 ? GRADIENT_F16 : GRADIENT_BF16, t->layout.count)) {
        tensor_release(opt, t, &host, false, NULL);
        return optim_fail(err, MEOPT_NOT_FINITE, "the copy of %.100s holds a NaN or an infinity", t->name);
    }
    t->last_step = 0;
    weights_accept(&host);
    return tensor_release(opt, t, &host, true, err);
}

int meopt_state_view(const struct meopt *opt, size_t tensor, enum meopt_view which, void **p, size_t *bytes,
                     int *format, struct meopt_error *err)
{
    int status = tensor_named(opt, tensor, p && bytes && format ? p : NULL, err);
    if (status) return status;
    const struct tensor *t = &opt->tensors[tensor];
    const struct layout *l = &t->layout;
    bool pair = OPTIM_JOINT(l->m, l->v), residual = optim_residual_bytes(l->weights) > 0;
    uint8_t *accumulator = t->accumulator;
    const struct {
        uint8_t *p;
        size_t each; /* bytes of a group; 0: none */
        int format;
    } views[MEOPT_VIEW_COUNT] = {
        [MEOPT_VIEW_M] = {t->state, optim_state_bytes(l->m) * (pair ? 2 : 1), l->m},
        [MEOPT_VIEW_V] = {t->state + l->v_at, pair ? 0 : optim_state_bytes(l->v), l->v},
        [MEOPT_VIEW_SCALES] = {t->state + l->scales_at, optim_scale_bytes(l->m, l->v),
                               OPTIM_LOW_BIT(l->v) ? l->v : l->m},
        [MEOPT_VIEW_RESIDUAL] = {t->correction, optim_residual_bytes(l->weights), l->weights},
        [MEOPT_VIEW_ACCUMULATOR] = {accumulator, optim_state_bytes(l->accumulator), l->accumulator},
        [MEOPT_VIEW_ACCUMULATOR_SCALES] = {accumulator + l->accumulator_scales_at,
                                           OPTIM_LOW_BIT(l->accumulator) ? 1 : 0, l->accumulator}};
    if ((int)which < 0 || which >= MEOPT_VIEW_COUNT)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "no view %d, enum meopt_view has %d", (int)which,
                          (int)MEOPT_VIEW_COUNT);
    if (t->offloaded && (which <= MEOPT_VIEW_SCALES || (which == MEOPT_VIEW_RESIDUAL && residual)))
        return optim_fail(err, MEOPT_BAD_ARGUMENT,
                          "tensor %.100s is offloaded: its state has no address; use meopt_state_save",
                          t->name);
    if (which == MEOPT_VIEW_ROWS || which == MEOPT_VIEW_COLUMNS) {
        size_t rows = (size_t)(l->matrices * l->rows), columns = (size_t)(l->matrices * l->columns);
        bool row = which == MEOPT_VIEW_ROWS;
        *p = t->factors ? t->factors + (row ? 0 : rows) : NULL;
        *bytes = (row ? rows : columns) * sizeof(float);
        *format = t->factors ? STATE_F32 : -1;
        return MEOPT_OK;
    }
    bool any = views[which].each && l->groups;
    *p = any ? views[which].p : NULL;
    *bytes = any ? views[which].each * (size_t)l->groups : 0;
    *format = any ? views[which].format : -1;
    return MEOPT_OK;
}

int meopt_plan_tensor_sized(size_t size, const struct meopt_options *options,
                            const struct meopt_tensor *tensor, struct meopt_tensor_info *info,
                            struct meopt_error *err)
{
    struct meopt_options o;
    struct meopt_tensor row;
    struct layout layout;
    if (!tensor || !info) return optim_fail(err, MEOPT_BAD_ARGUMENT, "tensor or info is NULL");
    int status = options_read(&o, options, err);
    if (!status) status = tensor_read(&row, &o, tensor, 0, err);
    if (status) return status;
    layout_plan(&layout, &o, &row);
    struct meopt_tensor_info found = {.name = row.name,
                                      .count = layout.count,
                                      .weights = layout.weights,
                                      .first_moment = layout.m,
                                      .second_moment = layout.v};
    layout_add(&found.bytes, &layout, row.weights != NULL, row.copy != NULL);
    struct_copy_out(info, size, &found, sizeof found);
    return MEOPT_OK;
}

/* Checks the arguments of an import or export: v must be given exactly if the tensor has one, and m always.
 * Without moments, no elements set the number of updates. */
static int moments_check(const struct meopt *opt, size_t tensor, int64_t first, int64_t count, const void *m,
                         const void *v, struct meopt_error *err)
{
    int status = optim_range_check(opt, tensor, first, count, m, err);
    if (status) return status;
    const struct tensor *t = &opt->tensors[tensor];
    if (t->layout.m == STATE_NONE && t->layout.v == STATE_NONE && (count || !t->layout.matrices))
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "tensor %.100s has no moments", t->name);
    if ((v != NULL) != (t->layout.v != STATE_NONE) && count)
        return optim_fail(err, MEOPT_BAD_ARGUMENT,
                          v ? "tensor %.100s has no second moment, one was given"
                            : N_("tensor %.100s has a second moment, none was given"),
                          t->name);
    return optim_between_steps(opt, err);
}

int meopt_moments_import(struct meopt *opt, size_t tensor, int64_t first, int64_t count, const float *m,
                         const float *v, int64_t updates, struct meopt_error *err)
{
    OPTIM_ENTER(opt);
    int status = moments_check(opt, tensor, first, count, m, v, err);
    if (!status) status = optim_at_training(opt, err);
    if (status) return status;
    struct tensor *t = &opt->tensors[tensor], host;
    if (updates < -1)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "tensor %.100s: %lld updates", t->name,
                          (long long)updates);
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(m[i]) || (v && !(v[i] >= 0 && isfinite(v[i]))))
            return optim_fail(err, MEOPT_NOT_FINITE,
                              "moments for %.100s hold a NaN, an infinity or a negative second moment",
                              t->name);
    bool exact = (t->layout.m == STATE_F32 || t->layout.m == STATE_NONE) &&
                 (t->layout.v == STATE_F32 || t->layout.v == STATE_NONE);
    for (int64_t i = 0; i < count && !exact; i++)
        if (fabsf(m[i]) > 0x1p126f || (v && v[i] > 0x1p126f))
            return optim_fail(
                err, MEOPT_NOT_FINITE,
                "moments for %.100s hold a value above 2^126: no gradient that is stepped makes it, and "
                "only fp32 can hold it",
                t->name);
    if ((status = tensor_hold(opt, t, PART_STATE, &host, err))) return status;
    struct optim_task task = task_of(opt, &host);
    int64_t group = first / OPTIM_GROUP, whole = group + count / OPTIM_GROUP, tail = count % OPTIM_GROUP;
    if (whole > group) opt->kernels->state_in(&task, group, whole, m, v);
    if (tail) {
        float last_m[OPTIM_GROUP] = {0}, last_v[OPTIM_GROUP] = {0};
        memcpy(last_m, m + count - tail, (size_t)tail * 4);
        if (v) memcpy(last_v, v + count - tail, (size_t)tail * 4);
        opt->kernels->state_in(&task, whole, whole + 1, last_m, v ? last_v : NULL);
    }
    status = tensor_release(opt, t, &host, true, err);
    t->last_step = 0;
    if (!status && updates >= 0) t->updates = updates;
    return status;
}

int meopt_moments_export(const struct meopt *opt, size_t tensor, int64_t first, int64_t count, float *m,
                         float *v, struct meopt_error *err)
{
    OPTIM_ENTER(opt);
    int status = moments_check(opt, tensor, first, count, m, v, err);
    if (status) return status;
    const struct tensor *t = &opt->tensors[tensor];
    struct tensor host;
    if ((status = tensor_hold(opt, t, PART_STATE, &host, err))) return status;
    struct optim_task task = task_of(opt, &host);
    int64_t group = first / OPTIM_GROUP, whole = group + count / OPTIM_GROUP, tail = count % OPTIM_GROUP;
    if (whole > group) opt->kernels->state_out(&task, group, whole, m, v);
    if (tail) {
        float last_m[OPTIM_GROUP], last_v[OPTIM_GROUP];
        opt->kernels->state_out(&task, whole, whole + 1, last_m, v ? last_v : NULL);
        memcpy(m + count - tail, last_m, (size_t)tail * 4);
        if (v) memcpy(v + count - tail, last_v, (size_t)tail * 4);
    }
    return tensor_release(opt, t, &host, false, err);
}
