/* The handle: creation from a table of tensors, memory, weights in and out. */
#include "core/optim/muon.h"
#include "core/optim/offload.h"
#include "core/base/hash.h"
#include "core/device/threads.h"
#include "kernels/cpu/select.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
struct optim_task task_of(const struct meopt *opt, const struct tensor *t)
{
    const struct layout *l = &t->layout;
    uint64_t seed = opt->options.seed;
    float *columns = t->factors ? t->factors + l->matrices * l->rows : NULL;
    return (struct optim_task){
        .count = l->count,
        .whole = t->whole,
        .first_group = t->first / OPTIM_GROUP,
        .first_element = t->whole ? t->first : 0, /* else the shape is that of the memory here */
        .first_partial = (int64_t)t->first_partial,
        .rule = t->rule,
        .weight_format = l->weights,
        .copy_f16 = l->copy_f16,
        .m_format = l->m,
        .v_format = l->v,
        .accumulator_format = STATE_NONE,
        .m_range = l->m == STATE_4BIT ? opt->m_range4 : opt->m_range8,
        .weights = t->weights,
        .copy = t->copy,
        .correction = t->correction,
        .m = t->state,
        .v = t->state ? t->state + l->v_at : NULL,
        .scales = t->state ? t->state + l->scales_at : NULL,
        .key = {(uint32_t)seed, (uint32_t)(seed >> 32) ^ t->key},
        .factors = {l->matrices, l->rows, l->columns, t->factors, columns,
                    t->factors ? t->factors + factor_count(l) : NULL},
    };
}

/* Sets a block to zero, in chunks, by the threads that will step them. */
static void clear_block(const struct meopt *opt, const struct tensor *t, void *block, size_t bytes)
{
    if (block && !opt->options.dry)
        opt->device->optim->clear(opt->device, block, bytes, chunks_of(t), opt->options.threads);
}

/* Sets a state to zero, by the threads that will step it. */
static void state_clear(const struct meopt *opt, struct tensor *t)
{
    const struct layout *l = &t->layout;
    if (t->factors && !opt->options.dry) /* also of a part without elements */
        opt->device->optim->clear(opt->device, t->factors, l->factor_bytes, 1, 1);
    if (!t->state) return;
    clear_block(opt, t, t->state, l->v_at);
    clear_block(opt, t, t->state + l->v_at, l->scales_at - l->v_at);
    clear_block(opt, t, t->state + l->scales_at, l->average_at - l->scales_at);
    clear_block(opt, t, t->state + l->average_at, l->state_bytes - l->average_at);
}

static int tensor_get(const struct meopt *opt, struct tensor *t, int kind, size_t bytes, void **p,
                      struct meopt_error *err)
{
    if (!bytes || *p) return MEOPT_OK;
    *p = memory_allocate(&opt->options, kind, bytes, t->name);
    if (!*p)
        return optim_fail(err, MEOPT_NO_MEMORY, "no memory for %zu bytes of tensor %.100s", bytes, t->name);
    return MEOPT_OK;
}

static int tensor_create(struct meopt *opt, struct tensor *t, const struct meopt_tensor *from,
                         struct meopt_error *err)
{
    struct layout *l = &t->layout;
    layout_plan(l, &opt->options, from);
    t->offloaded = offload_select(opt, l);
    t->name = strdup(from->name);
    if (!t->name) return optim_fail(err, MEOPT_NO_MEMORY, "no memory");
    t->ndim = from->ndim;
    memcpy(t->shape, from->shape, sizeof t->shape);
    t->first = from->first;
    t->whole = from->flags & MEOPT_PART ? 1 : 0;
    for (int d = 0; d < t->ndim; d++) t->whole *= t->shape[d];
    t->decay = !(from->flags & MEOPT_NO_DECAY);
    t->shares = from->flags & MEOPT_SHARED_MEMORY;
    muon_describe(t, from);
    t->lr_scale = from->lr_scale;
    t->key = fnv1a(t->name); /* independent of its index in the table */
    if ((uintptr_t)from->weights % (l->weights <= WEIGHTS_F32_COPY ? 4 : 2) || (uintptr_t)from->copy % 2)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "tensor %.100s: weights at %p are misaligned", t->name,
                          from->weights);
    t->own_weights = !from->weights;
    t->own_copy = !from->copy;
    t->weights = from->weights;
    t->copy = l->weights == WEIGHTS_F32_COPY ? from->copy : NULL;
    int status = tensor_get(opt, t, MEOPT_MEMORY_WEIGHTS, l->weight_bytes, &t->weights, err);
    if (!status) status = tensor_get(opt, t, MEOPT_MEMORY_COPY, l->copy_bytes, &t->copy, err);
    if (!status && !t->offloaded)
        status = tensor_get(opt, t, MEOPT_MEMORY_CORRECTION, l->residual_bytes, &t->correction, err);
    void *state = NULL, *factors = NULL;
    if (!status && !t->offloaded)
        status = tensor_get(opt, t, MEOPT_MEMORY_MOMENTS, l->state_bytes, &state, err);
    t->state = state;
    if (!status) status = tensor_get(opt, t, MEOPT_MEMORY_MOMENTS, l->factor_bytes, &factors, err);
    t->factors = factors;
    if (!status && !opt->options.accumulator_sets)
        status = tensor_get(opt, t, MEOPT_MEMORY_ACCUMULATOR, l->accumulator_bytes, &t->accumulator, err);
    if (status) return status;
    if (t->own_weights) clear_block(opt, t, t->weights, l->weight_bytes);
    if (t->own_copy) clear_block(opt, t, t->copy, l->copy_bytes);
    clear_block(opt, t, t->correction, l->residual_bytes);
    clear_block(opt, t, t->accumulator, l->accumulator_bytes);
    state_clear(opt, t);
    return MEOPT_OK;
}

/* Memory of the caller: a tensor's weights or copy. */
struct extent {
    uintptr_t begin, end;
    const struct tensor *tensor;
};

static int by_begin(const void *a, const void *b)
{
    const struct extent *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Refuses tensors that share memory, because they would undo each other's steps. */
static int refuse_overlap(const struct meopt *opt, struct meopt_error *err)
{
    struct extent *extents = calloc(2 * opt->count + 1, sizeof *extents);
    size_t n = 0;
    int status = MEOPT_OK;
    if (!extents) return optim_fail(err, MEOPT_NO_MEMORY, "no memory for %zu tensors", opt->count);
    for (size_t i = 0; i < opt->count; i++) {
        const struct tensor *t = &opt->tensors[i];
        size_t count = (size_t)t->layout.count;
        uintptr_t weights = (uintptr_t)t->weights, copy = (uintptr_t)t->copy;
        if (t->shares || !count) continue;
        if (!t->own_weights)
            extents[n++] =
                (struct extent){weights, weights + count * optim_weight_bytes(t->layout.weights), t};
        if (copy && !t->own_copy) extents[n++] = (struct extent){copy, copy + count * 2, t};
    }
    qsort(extents, n, sizeof *extents, by_begin);
    for (size_t i = 1; i < n && !status; i++)
        if (extents[i].begin < extents[i - 1].end)
            status = optim_fail(
                err, MEOPT_BAD_ARGUMENT,
                "tensors %.100s and %.100s share memory at %p: without MEOPT_SHARED_MEMORY each has its "
                "own",
                extents[i - 1].tensor->name, extents[i].tensor->name, (void *)extents[i].begin);
    free(extents);
    return status;
}

static void tensor_destroy(const struct meopt *opt, struct tensor *t)
{
    const struct layout *l = &t->layout;
    point_forget(opt, t);
    if (!opt->accumulators)
        memory_release(&opt->options, MEOPT_MEMORY_ACCUMULATOR, t->accumulator, l->accumulator_bytes);
    memory_release(&opt->options, MEOPT_MEMORY_MOMENTS, t->factors, l->factor_bytes);
    memory_release(&opt->options, MEOPT_MEMORY_MOMENTS, t->state, l->state_bytes);
    memory_release(&opt->options, MEOPT_MEMORY_CORRECTION, t->correction, l->residual_bytes);
    if (t->own_copy) memory_release(&opt->options, MEOPT_MEMORY_COPY, t->copy, l->copy_bytes);
    if (t->own_weights) memory_release(&opt->options, MEOPT_MEMORY_WEIGHTS, t->weights, l->weight_bytes);
    free(t->name);
    *t = (struct tensor){0};
}

/* Allocates the results of all chunks. */
static int results_create(struct meopt *opt, struct meopt_error *err)
{
    const struct device_optim *optim = opt->device->optim;
    size_t chunks = 0, slots = 0, most = 0;
    for (size_t i = 0; i < opt->count; i++) {
        size_t values = factor_values(&opt->tensors[i].layout);
        most = values > most ? values : most;
        opt->tensors[i].first_partial = chunks;
        chunks += (size_t)chunks_of(&opt->tensors[i]);
        slots += optim_slots(opt, &opt->tensors[i]);
    }
    opt->partials = calloc(chunks + 1, sizeof *opt->partials);
    if (!opt->partials) return optim_fail(err, MEOPT_NO_MEMORY, "no memory for %zu chunks", chunks);
    opt->sums = malloc((slots + 2) * sizeof *opt->sums);
    if (!opt->sums) return optim_fail(err, MEOPT_NO_MEMORY, "no memory for %zu sums", slots);
    struct error why = {0};
    if (optim->create(opt->device, opt->count, chunks + muon_chunks(opt), opt->options.combine ? slots : 0,
                      most, &opt->work, &why))
        return optim_fail(err, MEOPT_NO_MEMORY, "%.200s", why.what);
    return optim_device_status(opt, err);
}

static int tensors_create(struct meopt *opt, const struct meopt_tensor *tensors, size_t count,
                          struct meopt_error *err)
{
    int status = MEOPT_OK;
    opt->tensors = calloc(count + 1, sizeof *opt->tensors);
    if (!opt->tensors) return optim_fail(err, MEOPT_NO_MEMORY, "no memory for %zu tensors", count);
    for (size_t i = 0; !status && i < count; i++) {
        struct meopt_tensor from;
        opt->count = i + 1;
        status = tensor_read(&from, &opt->options, tensors, i, err);
        if (!status) status = tensor_create(opt, &opt->tensors[i], &from, err);
    }
    for (size_t i = 0; !status && i < count; i++)
        if (meopt_find(opt, opt->tensors[i].name) != (int64_t)i)
            status =
                optim_fail(err, MEOPT_BAD_ARGUMENT, "two tensors are called %.100s", opt->tensors[i].name);
    if (!status && opt->options.accumulator_sets) status = accumulators_share(opt, err);
    if (!status && !opt->options.dry) status = refuse_overlap(opt, err);
    if (!status) status = results_create(opt, err);
    if (!status) status = factors_reserve(opt, err);
    return status ? status : muon_reserve(opt, err);
}

int meopt_create(struct meopt **out, const struct meopt_options *options, const struct meopt_tensor *tensors,
                 size_t count, struct meopt_error *err)
{
    if (!out) return optim_fail(err, MEOPT_BAD_ARGUMENT, "opt is NULL");
    *out = NULL;
    if (count && !tensors) return optim_fail(err, MEOPT_BAD_ARGUMENT, "no table of tensors");
    struct meopt_options o;
    int status = options_read(&o, options, err);
    if (status) return status;
    struct cpu_refusal refusal;
    if (cpu_isa_refused(true, &refusal))
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "%s: %s", refusal.why, refusal.hint);
    struct meopt *opt = calloc(1, sizeof *opt);
    if (!opt) return optim_fail(err, MEOPT_NO_MEMORY, "no memory");
    opt->options = o;
    opt->options.threads = threads_lasting(o.threads);
    opt->device = optim_device_of(&o);
    pthread_mutex_init(&opt->workspace_lock, NULL);
    OPTIM_ENTER(opt);
    opt->kernels = optim_kernels_find(NULL);
    opt->m_range8 = m_range(&o, STATE_8BIT);
    opt->m_range4 = m_range(&o, STATE_4BIT);
    status = tensors_create(opt, tensors, count, err);
    if (!status) status = offload_create(opt, err);
    opt->options.offload_dir = NULL; /* belongs to the caller */
    if (!status) status = optim_device_status(opt, err);
    if (status) {
        meopt_destroy(opt);
        return status;
    }
    *out = opt;
    return MEOPT_OK;
}

void meopt_destroy(struct meopt *opt)
{
    if (!opt) return;
    OPTIM_ENTER(opt);
    offload_destroy(opt);
    for (size_t i = opt->count; i-- > 0;) tensor_destroy(opt, &opt->tensors[i]);
    memory_release(&opt->options, MEOPT_MEMORY_ACCUMULATOR, opt->accumulators, opt->accumulator_bytes);
    memory_release(&opt->options, MEOPT_MEMORY_WORKSPACE, opt->workspace, opt->workspace_bytes);
    host_release(opt, MEOPT_MEMORY_WORKSPACE, opt->factor_sums, opt->factor_sums_bytes);
    pthread_mutex_destroy(&opt->workspace_lock);
    opt->device->optim->destroy(opt->device, opt->work);
    free(opt->tensors);
    free(opt->partials);
    free(opt->measured);
    free(opt->sums);
    free(opt);
}

int meopt_held_sized(size_t size, const struct meopt *opt, struct meopt_bytes *bytes)
{
    struct meopt_bytes held = {0};
    if (!opt || !bytes) return MEOPT_BAD_ARGUMENT;
    for (size_t i = 0; i < opt->count; i++) {
        const struct tensor *t = &opt->tensors[i];
        layout_add(&held, &t->layout, !t->own_weights, !t->own_copy);
        if (t->trained) held.point += point_bytes(&t->layout);
    }
    held.total += held.point;
    if (opt->accumulators) {
        held.total -= held.accumulators - opt->accumulator_bytes;
        held.accumulators = opt->accumulator_bytes;
    }
    held.workspace = rounded(opt->workspace_bytes) + opt->factor_sums_bytes;
    held.total += held.workspace;
    struct_copy_out(bytes, size, &held, sizeof held);
    return MEOPT_OK;
}

int meopt_info_sized(size_t size, const struct meopt *opt, size_t tensor, struct meopt_tensor_info *info)
{
    if (!opt || !info || tensor >= opt->count) return MEOPT_BAD_ARGUMENT;
    const struct tensor *t = &opt->tensors[tensor];
    struct meopt_tensor_info found = {.name = t->name,
                                      .count = t->layout.count,
                                      .weights = t->layout.weights,
                                      .first_moment = t->layout.m,
                                      .second_moment = t->layout.v,
                                      .updates = t->updates};
    layout_add(&found.bytes, &t->layout, !t->own_weights, !t->own_copy);
    struct_copy_out(info, size, &found, sizeof found);
    return MEOPT_OK;
}

/* A linear search is enough: tables have hundreds of rows, and each is looked up once. */
int64_t meopt_find(const struct meopt *opt, const char *name)
{
    for (size_t i = 0; opt && name && i < opt->count; i++)
        if (strcmp(opt->tensors[i].name, name) == 0) return (int64_t)i;
    return -1;
}

int meopt_tensor_rule(const struct meopt *opt, size_t tensor)
{
    return opt && tensor < opt->count ? opt->tensors[tensor].rule : -1;
}

int meopt_weights(const struct meopt *opt, size_t tensor, void **p, enum meopt_dtype *dtype)
{
    if (!opt || tensor >= opt->count || !p || !dtype) return MEOPT_BAD_ARGUMENT;
    const struct tensor *t = &opt->tensors[tensor];
    *p = t->copy ? t->copy : t->weights;
    *dtype = t->layout.weights == WEIGHTS_F32 ? MEOPT_F32 : t->layout.copy_f16 ? MEOPT_F16 : MEOPT_BF16;
    return MEOPT_OK;
}

int optim_between_steps(const struct meopt *opt, struct meopt_error *err)
{
    if (!opt->stepping) return MEOPT_OK;
    return optim_fail(err, MEOPT_BAD_ORDER, "step %lld was begun and not ended", (long long)opt->step);
}

int optim_range_check(const struct meopt *opt, size_t tensor, int64_t first, int64_t count,
                      const void *values, struct meopt_error *err)
{
    if (!opt || tensor >= opt->count)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "no optimizer, or no tensor %zu in it", tensor);
    const struct tensor *t = &opt->tensors[tensor];
    if (opt->options.dry) return optim_fail(err, MEOPT_BAD_ARGUMENT, "a dry optimizer has no weights");
    if (first < 0 || first % OPTIM_GROUP || count < 0 || first > t->layout.count ||
        count > t->layout.count - first || (count % OPTIM_GROUP && first + count != t->layout.count) ||
        (count && !values))
        return optim_fail(
            err, MEOPT_BAD_ARGUMENT,
            "tensor %.100s has %lld elements; %lld from %lld are not a range of it in groups of 64", t->name,
            (long long)t->layout.count, (long long)count, (long long)first);
    return MEOPT_OK;
}

/* Returns whether a value would be infinite in bf16. */
static bool overflows_bf16(const float *values, int64_t count)
{
    float largest = 0;
    for (int64_t i = 0; i < count; i++) largest = fmaxf(largest, fabsf(values[i]));
    return largest > 0x1.fep127f;
}

int meopt_import(struct meopt *opt, size_t tensor, int64_t first, int64_t count, const float *values,
                 struct meopt_error *err)
{
    OPTIM_ENTER(opt);
    int status = optim_range_check(opt, tensor, first, count, values, err), finite = 1;
    if (!status) status = optim_between_steps(opt, err);
    if (status || !count) return status;
    double squares = 0;
    optim_sum_squares(values, GRADIENT_F32, count, &squares, &finite);
    if (!finite)
        return optim_fail(err, MEOPT_NOT_FINITE, "weights for %.100s hold a NaN or an infinity",
                          opt->tensors[tensor].name);
    const struct layout *l = &opt->tensors[tensor].layout;
    if (l->weights != WEIGHTS_F32 && !l->copy_f16 && overflows_bf16(values, count))
        return optim_fail(err, MEOPT_NOT_FINITE,
                          "weights for %.100s hold a value above 3.3895e38, bf16's largest",
                          opt->tensors[tensor].name);
    struct tensor host;
    if ((status = tensor_hold(opt, &opt->tensors[tensor], PART_WEIGHTS, &host, err))) return status;
    opt->tensors[tensor].last_step = 0;
    struct optim_task task = task_of(opt, &host);
    int64_t group = first / OPTIM_GROUP, whole = group + count / OPTIM_GROUP;
    opt->kernels->weights_in(&task, group, whole, values);
    if (count % OPTIM_GROUP) {
        float last[OPTIM_GROUP] = {0};
        memcpy(last, values + (whole - group) * OPTIM_GROUP, (size_t)(count % OPTIM_GROUP) * 4);
        opt->kernels->weights_in(&task, whole, whole + 1, last);
    }
    return tensor_release(opt, &opt->tensors[tensor], &host, true, err);
}

int meopt_export(const struct meopt *opt, size_t tensor, int64_t first, int64_t count, float *values,
                 struct meopt_error *err)
{
    OPTIM_ENTER(opt);
    int status = optim_range_check(opt, tensor, first, count, values, err);
    if (status || !count) return status;
    struct tensor host;
    if ((status = tensor_hold(opt, &opt->tensors[tensor], PART_WEIGHTS, &host, err))) return status;
    struct optim_task task = task_of(opt, &host);
    int64_t group = first / OPTIM_GROUP, whole = group + count / OPTIM_GROUP;
    opt->kernels->weights_out(&task, group, whole, values);
    if (count % OPTIM_GROUP) {
        float last[OPTIM_GROUP];
        opt->kernels->weights_out(&task, whole, whole + 1, last);
        memcpy(values + (whole - group) * OPTIM_GROUP, last, (size_t)(count % OPTIM_GROUP) * 4);
    }
    return tensor_release(opt, &opt->tensors[tensor], &host, false, err);
}
