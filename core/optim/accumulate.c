/* Adds gradients to accumulators, which are stored like first moments; their rule is RULE_ACCUMULATE. Sets of
 * tensors may share the memory of their accumulators. */
#include "core/optim/norm.h"

#include <math.h>
#include <stdlib.h>

static int task_prepare(const struct meopt *opt, const struct tensor *t, struct meopt_gradient gradient,
                        double scale, struct optim_task *task, struct meopt_error *err)
{
    if (!t->accumulator || opt->options.dry)
        return optim_fail(err, MEOPT_BAD_ORDER, "tensor %.100s has no accumulator (option accumulator)",
                          t->name);
    if (!gradient.data || !gradient_valid(gradient.data, gradient.dtype) || !isfinite(scale))
        return optim_fail(err, MEOPT_BAD_ARGUMENT,
                          "tensor %.100s: no gradient, dtype %d, misaligned, or scale %g", t->name,
                          gradient.dtype, scale);
    if (optim_at_training(opt, err)) return MEOPT_BAD_ORDER;
    int64_t step = t->updates + 1;
    *task = task_of(opt, t);
    task->rule = RULE_ACCUMULATE;
    task->gradient = gradient.data;
    task->gradient_format = gradient.dtype;
    task->m = t->accumulator;
    task->m_format = t->layout.accumulator;
    task->v_format = STATE_NONE;
    task->scales = (uint8_t *)t->accumulator + t->layout.accumulator_scales_at;
    task->s.gradient_scale = (float)scale;
    task->step[0] = (uint32_t)step;
    task->step[1] = ((uint32_t)t->accumulated & 0xffffffu) | (uint32_t)RANDOM_ACCUMULATE << 24;
    return MEOPT_OK;
}

/* Refuses tensors of two sets that share memory, and those of a set while another one is accumulated. */
static int sets_check(const struct meopt *opt, const size_t *tensors, size_t count, struct meopt_error *err)
{
    if (!opt->accumulators) return MEOPT_OK;
    const struct tensor *first = &opt->tensors[tensors[0]], *other = NULL;
    for (size_t i = 1; i < count; i++)
        if (opt->tensors[tensors[i]].set != first->set) other = &opt->tensors[tensors[i]];
    for (size_t i = 0; i < opt->count; i++)
        if (opt->tensors[i].accumulated && opt->tensors[i].set != first->set) other = &opt->tensors[i];
    if (!other) return MEOPT_OK;
    return optim_fail(err, MEOPT_BAD_ORDER,
                      "tensors %.100s and %.100s share the memory of their accumulators: step one first",
                      first->name, other->name);
}

static int accumulate(struct meopt *opt, const size_t *tensors, const struct meopt_gradient *gradients,
                      size_t count, double scale, struct optim_task *tasks, struct meopt_error *err)
{
    bool wait = !opt->device->optim->asynchronous;
    int status = sets_check(opt, tensors, count, err);
    for (size_t i = 0; i < count && !status; i++) {
        for (size_t k = 0; k < i && !status; k++)
            if (tensors[k] == tensors[i])
                status = optim_fail(err, MEOPT_BAD_ARGUMENT, "tensor %.100s is listed twice",
                                    opt->tensors[tensors[i]].name);
        if (!status)
            status = task_prepare(opt, &opt->tensors[tensors[i]], gradients[i], scale, &tasks[i], err);
    }
    if (status) return status;
    opt->device->optim->step(opt->device, opt->work,
                             &(struct optim_sweep){.tasks = tasks,
                                                   .count = count,
                                                   .partials = opt->partials,
                                                   .kernels = opt->kernels,
                                                   .threads = opt->options.threads,
                                                   .wait = wait,
                                                   .bad = -1});
    if ((status = optim_device_status(opt, err)) != 0) return status;
    for (size_t i = 0; i < count; i++) {
        struct tensor *t = &opt->tensors[tensors[i]];
        t->accumulated++;
        if (wait && !status && partials_total(opt, t).bad_groups)
            status = optim_fail(err, MEOPT_NOT_FINITE, "the gradient of %.100s holds a NaN or an infinity",
                                t->name);
    }
    return status;
}

int meopt_accumulate_tensors(struct meopt *opt, const size_t *tensors, const struct meopt_gradient *gradients,
                             size_t count, double scale, struct meopt_error *err)
{
    if (!opt || (count && (!tensors || !gradients)))
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "no optimizer, or no tensors or gradients named");
    for (size_t i = 0; i < count; i++)
        if (tensors[i] >= opt->count)
            return optim_fail(err, MEOPT_BAD_ARGUMENT, "no tensor %zu in the optimizer", tensors[i]);
    if (!count) return MEOPT_OK;
    OPTIM_ENTER(opt);
    struct optim_task one = {0}, *tasks = count == 1 ? &one : calloc(count, sizeof *tasks);
    int status = tasks ? accumulate(opt, tensors, gradients, count, scale, tasks, err)
                       : optim_fail(err, MEOPT_NO_MEMORY, "no memory for %zu tasks", count);
    if (count > 1) free(tasks);
    return status;
}

void accumulator_clear(const struct meopt *opt, struct tensor *t)
{
    t->accumulated = 0;
    opt->device->optim->clear(opt->device, t->accumulator, t->layout.accumulator_bytes, chunks_of(t),
                              opt->options.threads);
}

int meopt_accumulators_clear(struct meopt *opt, struct meopt_error *err)
{
    if (!opt) return optim_fail(err, MEOPT_BAD_ARGUMENT, "no optimizer given");
    OPTIM_ENTER(opt);
    for (size_t i = 0; i < opt->count; i++)
        if (opt->tensors[i].accumulated) accumulator_clear(opt, &opt->tensors[i]);
    return optim_device_status(opt, err);
}

int accumulators_share(struct meopt *opt, struct meopt_error *err)
{
    size_t *at = calloc(opt->count + 1, sizeof *at), chunks = 0;
    for (size_t i = 0; i < opt->count; i++) chunks += (size_t)chunks_of(&opt->tensors[i]);
    opt->measured = calloc(chunks + 1, sizeof *opt->measured);
    if (!at || !opt->measured) {
        free(at);
        return optim_fail(err, MEOPT_NO_MEMORY, "no memory for %zu tensors", opt->count);
    }
    for (size_t i = 0; i < opt->count; i++) {
        struct tensor *t = &opt->tensors[i];
        t->set = opt->options.accumulator_sets[i];
        for (size_t k = 0; k < i; k++)
            if (opt->tensors[k].set == t->set) at[i] += opt->tensors[k].layout.accumulator_bytes;
        if (at[i] + t->layout.accumulator_bytes > opt->accumulator_bytes)
            opt->accumulator_bytes = at[i] + t->layout.accumulator_bytes;
    }
    char *p = NULL;
    if (opt->accumulator_bytes)
        p = memory_allocate(&opt->options, MEOPT_MEMORY_ACCUMULATOR, opt->accumulator_bytes, "accumulators");
    opt->accumulators = p;
    for (size_t i = 0; i < opt->count && p; i++) {
        opt->tensors[i].accumulator = p + at[i];
        if (!opt->options.dry) accumulator_clear(opt, &opt->tensors[i]);
    }
    free(at);
    opt->options.accumulator_sets = NULL;
    if (!p && opt->accumulator_bytes)
        return optim_fail(err, MEOPT_NO_MEMORY, "no memory for %zu bytes of accumulators",
                          opt->accumulator_bytes);
    return MEOPT_OK;
}

int meopt_accumulate(struct meopt *opt, size_t tensor, const void *gradient, enum meopt_dtype dtype,
                     double scale, struct meopt_error *err)
{
    return meopt_accumulate_tensors(opt, &tensor, &(struct meopt_gradient){gradient, (int)dtype}, 1, scale,
                                    err);
}
