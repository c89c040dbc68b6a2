/* Norms: of gradients over all who hold parts of them, and what is scaled by them. */
#include "core/optim/norm.h"
#include "kernels/optim_scale.h"

#include <stdlib.h>
#include <string.h>

int optim_reduce(const struct meopt *opt, double *values, size_t count, struct meopt_error *err)
{
    if (!opt->options.reduce || opt->options.reduce(opt->options.context, values, count) == 0)
        return MEOPT_OK;
    return optim_reduce_failed(opt, err);
}

int optim_reduce_failed(const struct meopt *opt, struct meopt_error *err)
{
    return optim_fail(err, MEOPT_IO, "step %lld: the sum over shards failed", (long long)opt->step);
}

void places_fill(const struct meopt *opt, const struct tensor *t, size_t value, double *places)
{
    size_t at = t->whole ? (size_t)(t->first / (OPTIM_CHUNK * OPTIM_GROUP)) : 0;
    for (int64_t c = 0; c < chunks_of(t); c++) {
        const char *p = (const char *)&opt->partials[t->first_partial + (size_t)c];
        double found;
        memcpy(&found, p + value, sizeof found);
        places[t->whole || !opt->options.reduce ? at + (size_t)c : 0] += found;
    }
}

double places_sum(const struct meopt *opt, const struct tensor *t, double sum, const double *places)
{
    for (size_t i = 0; i < optim_places(opt, t); i++) sum += places[i];
    return sum;
}
int gradient_prepare(const struct tensor *t, const void *gradient, int dtype, struct optim_task *task,
                     struct meopt_error *err)
{
    if (!gradient && t->layout.count) {
        if (!t->accumulator || !t->accumulated)
            return optim_fail(err, MEOPT_BAD_ARGUMENT, "tensor %.100s: no gradient, and none accumulated",
                              t->name);
        task->gradient_format = GRADIENT_ACCUMULATOR;
        task->accumulator_format = t->layout.accumulator;
        task->gradient = t->accumulator;
        task->gradient_scales = (uint8_t *)t->accumulator + t->layout.accumulator_scales_at;
        return MEOPT_OK;
    }
    if (!gradient_valid(gradient, dtype))
        return optim_fail(err, MEOPT_BAD_ARGUMENT,
                          "tensor %.100s: gradient at %p has dtype %d or is misaligned", t->name, gradient,
                          dtype);
    task->gradient_format = dtype; /* the same numbers: optim_options.c */
    task->gradient = gradient;
    return MEOPT_OK;
}

int optim_results(struct meopt *opt, struct meopt_error *err)
{
    const struct tensor *last = &opt->tensors[opt->count - 1];
    opt->device->optim->results(opt->device, opt->work, opt->partials,
                                last->first_partial + (size_t)chunks_of(last));
    return optim_device_status(opt, err);
}

int gradient_sums(const struct meopt *opt, bool (*of)(const struct meopt *, size_t, const void *),
                  const void *context, bool by_tensor, double *squares, int64_t *bad, int64_t *wide,
                  struct meopt_error *err)
{
    size_t places = 0;
    for (size_t i = 0; i < opt->count; i++)
        places += of(opt, i, context) ? optim_places(opt, &opt->tensors[i]) : 0;
    double *values = opt->sums;
    memset(values, 0, (places + 2) * sizeof *values);
    size_t at = 0;
    for (size_t i = 0; i < opt->count; i++) {
        if (!of(opt, i, context)) continue;
        struct optim_partial total = partials_total(opt, &opt->tensors[i]);
        values[places] += (double)total.bad_groups;
        values[places + 1] += (double)total.wide_groups;
        places_fill(opt, &opt->tensors[i], OPTIM_VALUE(gradient_squares), values + at);
        at += optim_places(opt, &opt->tensors[i]);
    }
    int status = optim_reduce(opt, values, places + 2, err);
    *squares = 0;
    at = 0;
    for (size_t i = 0; i < opt->count; i++) {
        if (!of(opt, i, context)) continue;
        *squares = by_tensor ? *squares + places_sum(opt, &opt->tensors[i], 0, values + at)
                             : places_sum(opt, &opt->tensors[i], *squares, values + at);
        at += optim_places(opt, &opt->tensors[i]);
    }
    *bad = (int64_t)values[places];
    *wide = (int64_t)values[places + 1];
    return status;
}

static bool has_task(const struct meopt *opt, size_t tensor, const void *tasks)
{
    (void)opt;
    return ((const struct optim_task *)tasks)[tensor].gradient != NULL;
}

/* A task to add up the squares of what was given, or accumulated, for a tensor. */
static int squares_task(const struct meopt *opt, const struct tensor *t, struct meopt_gradient gradient,
                        struct optim_task *task, struct meopt_error *err)
{
    if (!gradient.data && !(t->accumulator && t->accumulated)) return MEOPT_OK;
    *task = task_of(opt, t);
    return gradient_prepare(t, gradient.data, gradient.dtype, task, err);
}

/* The squares of what has a gradient, or of what was accumulated. found: to there, on a card; else, without
 * `wait`, they stay where they are. */
static int squares_sweep(struct meopt *opt, const struct meopt_gradient *gradients, struct optim_task *tasks,
                         bool wait, struct optim_grad_stats *found, struct meopt_error *err)
{
    int status = MEOPT_OK;
    for (size_t i = 0; i < opt->count && !status; i++)
        status = squares_task(opt, &opt->tensors[i], gradients ? gradients[i] : (struct meopt_gradient){0},
                              &tasks[i], err);
    if (status) return status;
    struct optim_sweep sweep = {.tasks = tasks,
                                .count = opt->count,
                                .partials = opt->partials,
                                .kernels = opt->kernels,
                                .threads = opt->options.threads,
                                .wait = wait,
                                .found = found,
                                .combine = found ? opt->options.combine : NULL,
                                .context = opt->options.context,
                                .bad = -1};
    opt->device->optim->squares(opt->device, opt->work, &sweep);
    return sweep.reduce_failed ? optim_reduce_failed(opt, err) : optim_device_status(opt, err);
}

static struct optim_task *tasks_new(const struct meopt *opt, struct meopt_error *err)
{
    struct optim_task *tasks = calloc(opt->count + 1, sizeof *tasks);
    if (!tasks) optim_fail(err, MEOPT_NO_MEMORY, "no memory for %zu tasks", opt->count);
    return tasks;
}

int meopt_gradient_norm(struct meopt *opt, const struct meopt_gradient *gradients, double *norm, int *finite,
                        struct meopt_error *err)
{
    if (!opt || !norm || !finite) return optim_fail(err, MEOPT_BAD_ARGUMENT, "a null argument");
    OPTIM_ENTER(opt);
    struct optim_task *tasks = tasks_new(opt, err);
    if (!tasks) return MEOPT_NO_MEMORY;
    double squares = 0;
    int64_t bad = 0, wide;
    int status = squares_sweep(opt, gradients, tasks, true, NULL, err);
    if (!status) status = gradient_sums(opt, has_task, tasks, false, &squares, &bad, &wide, err);
    free(tasks);
    if (status) return status;
    *norm = sqrt(squares);
    *finite = bad == 0;
    return MEOPT_OK;
}

int meopt_norms_begin(struct meopt *opt, const struct meopt_gradient *gradients, struct meopt_error *err)
{
    if (!opt || !gradients) return optim_fail(err, MEOPT_BAD_ARGUMENT, "a null argument");
    OPTIM_ENTER(opt);
    struct optim_task *tasks = tasks_new(opt, err);
    if (!tasks) return MEOPT_NO_MEMORY;
    int status = squares_sweep(opt, gradients, tasks, !opt->device->optim->later, NULL, err);
    free(tasks);
    return status;
}

/* Sums of all sets in one array: the tensors' slots, one after another, and whether each has a bad group. */
static int sets_sums(const struct meopt *opt, size_t sets, const int *set_of, double *norms, int *finite,
                     struct meopt_error *err)
{
    size_t places = 0, at = 0;
    for (size_t i = 0; i < opt->count; i++)
        places += set_of[i] >= 0 ? optim_places(opt, &opt->tensors[i]) : 0;
    double *values = calloc(places + sets + 1, sizeof *values);
    if (!values) return optim_fail(err, MEOPT_NO_MEMORY, "no memory for %zu norms", places);
    for (size_t i = 0; i < opt->count; i++) {
        const struct tensor *t = &opt->tensors[i];
        if (set_of[i] < 0) continue;
        values[places + (size_t)set_of[i]] += (double)partials_total(opt, t).bad_groups;
        places_fill(opt, t, OPTIM_VALUE(gradient_squares), values + at);
        at += optim_places(opt, t);
    }
    int status = optim_reduce(opt, values, places + sets, err);
    for (size_t s = 0; s < sets; s++) {
        norms[s] = 0;
        finite[s] = values[places + s] == 0;
    }
    at = 0;
    for (size_t i = 0; i < opt->count; i++) {
        if (set_of[i] < 0) continue;
        norms[set_of[i]] = places_sum(opt, &opt->tensors[i], norms[set_of[i]], values + at);
        at += optim_places(opt, &opt->tensors[i]);
    }
    for (size_t s = 0; s < sets; s++) norms[s] = sqrt(norms[s]);
    free(values);
    return status;
}

int meopt_norms_end(struct meopt *opt, size_t sets, const int *set_of, double *norms, int *finite,
                    struct meopt_error *err)
{
    if (!opt || !set_of || !norms || !finite) return optim_fail(err, MEOPT_BAD_ARGUMENT, "a null argument");
    OPTIM_ENTER(opt);
    for (size_t i = 0; i < opt->count; i++)
        if (set_of[i] >= 0 && (size_t)set_of[i] >= sets)
            return optim_fail(err, MEOPT_BAD_ARGUMENT, "tensor %zu is in set %d of %zu", i, set_of[i], sets);
    int status = opt->count ? optim_results(opt, err) : MEOPT_OK;
    return status ? status : sets_sums(opt, sets, set_of, norms, finite, err);
}

int meopt_gradient_found(struct meopt *opt, const struct meopt_gradient *gradients,
                         struct meopt_grad_stats *found, struct meopt_error *err)
{
    _Static_assert(sizeof(struct meopt_grad_stats) == sizeof(struct optim_grad_stats),
                   "one thing by two names");
    if (!opt || !gradients || !found) return optim_fail(err, MEOPT_BAD_ARGUMENT, "a null argument");
    if (opt->options.reduce && !opt->options.combine)
        return optim_fail(err, MEOPT_BAD_ORDER, "others hold parts: their norm is meopt_gradient_norm's");
    OPTIM_ENTER(opt);
    struct optim_task *tasks = tasks_new(opt, err);
    if (!tasks) return MEOPT_NO_MEMORY;
    bool later = opt->device->optim->later;
    double squares = 0;
    int64_t bad = 0, wide;
    int status = squares_sweep(opt, gradients, tasks, !later, later ? (void *)found : NULL, err);
    if (!status && !later) {
        status = gradient_sums(opt, has_task, tasks, false, &squares, &bad, &wide, err);
        *found = (struct meopt_grad_stats){squares, bad == 0, 0};
    }
    free(tasks);
    return status;
}

double meopt_clip_scale(double norm, double max_norm)
{
    double scale = max_norm / (norm + 1e-6);
    return scale < 1 ? scale : 1;
}

double meopt_clip_by(const struct meopt_clip *clip, double norm)
{
    return scale_clipped(norm, clip->divide_norm, clip->max_norm);
}
