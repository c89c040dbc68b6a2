/* Norms of gradients over all handles that hold parts of the tensors, and clipping by them. */
#include "core/optim/norm.h"
#include "kernels/optim_scale.h"

#include <stdlib.h>
#include <string.h>

struct optim_partial partials_total(const struct meopt *opt, const struct tensor *t)
{
    struct optim_partial total = {0};
    for (int64_t c = 0; c < chunks_of(t); c++) {
        const struct optim_partial *p = &opt->partials[t->first_partial + (size_t)c];
        total.gradient_squares += p->gradient_squares;
        total.weight_squares += p->weight_squares;
        total.update_squares += p->update_squares;
        total.bad_groups += p->bad_groups;
        total.wide_groups += p->wide_groups;
    }
    return total;
}

int partials_check(const struct meopt *opt, const struct tensor *t, struct meopt_error *err)
{
    for (int64_t c = 0; c < chunks_of(t); c++) {
        const struct optim_partial *p = &opt->partials[t->first_partial + (size_t)c];
        if (p->bad_groups < 0 || p->bad_groups > OPTIM_CHUNK || p->wide_groups < 0 ||
            p->wide_groups > OPTIM_CHUNK)
            return optim_fail(err, MEOPT_DEVICE_FAILED,
                              "wrong result of %s for %.100s: %lld bad and %lld saturated of %d groups",
                              opt->device->name, t->name, (long long)p->bad_groups, (long long)p->wide_groups,
                              OPTIM_CHUNK);
    }
    return MEOPT_OK;
}

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

void slots_add(const struct meopt *opt, const struct tensor *t, size_t value, double *slots)
{
    size_t at = t->whole ? (size_t)(t->first / (OPTIM_CHUNK * OPTIM_GROUP)) : 0;
    for (int64_t c = 0; c < chunks_of(t); c++) {
        const char *p = (const char *)&opt->partials[t->first_partial + (size_t)c];
        double found;
        memcpy(&found, p + value, sizeof found);
        slots[t->whole || !opt->options.reduce ? at + (size_t)c : 0] += found;
    }
}

double slots_sum(const struct meopt *opt, const struct tensor *t, double sum, const double *slots)
{
    for (size_t i = 0; i < optim_slots(opt, t); i++) sum += slots[i];
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
    size_t slots = 0;
    for (size_t i = 0; i < opt->count; i++)
        slots += of(opt, i, context) ? optim_slots(opt, &opt->tensors[i]) : 0;
    double *values = opt->sums;
    memset(values, 0, (slots + 2) * sizeof *values);
    size_t at = 0;
    int wrong = MEOPT_OK; /* reported after the sum over shards, for which the others wait */
    for (size_t i = 0; i < opt->count; i++) {
        if (!of(opt, i, context)) continue;
        if (!wrong) wrong = partials_check(opt, &opt->tensors[i], err);
        struct optim_partial total =
            wrong ? (struct optim_partial){0} : partials_total(opt, &opt->tensors[i]);
        values[slots] += (double)total.bad_groups;
        values[slots + 1] += (double)total.wide_groups;
        slots_add(opt, &opt->tensors[i], OPTIM_VALUE(gradient_squares), values + at);
        at += optim_slots(opt, &opt->tensors[i]);
    }
    int status = optim_reduce(opt, values, slots + 2, wrong ? NULL : err);
    *squares = 0;
    at = 0;
    for (size_t i = 0; i < opt->count; i++) {
        if (!of(opt, i, context)) continue;
        *squares = by_tensor ? *squares + slots_sum(opt, &opt->tensors[i], 0, values + at)
                             : slots_sum(opt, &opt->tensors[i], *squares, values + at);
        at += optim_slots(opt, &opt->tensors[i]);
    }
    *bad = (int64_t)values[slots];
    *wide = (int64_t)values[slots + 1];
    return wrong ? wrong : status;
}

static bool has_task(const struct meopt *opt, size_t tensor, const void *tasks)
{
    (void)opt;
    return ((const struct optim_task *)tasks)[tensor].gradient != NULL;
}

/* Prepares the task that sums the squares of a tensor's gradient, or of its accumulated gradient. */
static int squares_task(const struct meopt *opt, const struct tensor *t, struct meopt_gradient gradient,
                        struct optim_task *task, struct meopt_error *err)
{
    if (!gradient.data && !(t->accumulator && t->accumulated)) return MEOPT_OK;
    *task = task_of(opt, t);
    return gradient_prepare(t, gradient.data, gradient.dtype, task, err);
}

/* Sums the squares of all gradients, given or accumulated. A card stores the total in *found, or without
 * `found` the result of each chunk in its own memory; `wait` copies these to the host. */
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
    bool wait = opt->measured || !opt->device->optim->asynchronous;
    int status = squares_sweep(opt, gradients, tasks, wait, NULL, err);
    for (size_t i = 0; i < opt->count && opt->measured && !status; i++) {
        const struct tensor *t = &opt->tensors[i];
        if (tasks[i].gradient)
            memcpy(opt->measured + t->first_partial, opt->partials + t->first_partial,
                   (size_t)chunks_of(t) * sizeof *opt->measured);
    }
    free(tasks);
    return status;
}

/* Which set a tensor is in; -1: none. stepped: only tensors of the last step are in sets. */
struct sets {
    size_t count;
    const int *of;
    bool stepped;
};

static int set_of_tensor(const struct meopt *opt, const struct sets *sets, size_t i)
{
    return sets->stepped && !opt->tensors[i].stepped ? -1 : sets->of[i];
}

/* Computes norms and `finite` of all sets, and saturated groups (wide NULL: not). One array holds the slots
 * of all tensors, then each set's number of bad groups, then of saturated ones, so that one call of
 * options.reduce is enough. */
static int sets_sums(const struct meopt *opt, const struct sets *sets, double *norms, int *finite,
                     int64_t *wide, struct meopt_error *err)
{
    size_t slots = 0, at = 0, more = wide ? 2 * sets->count : sets->count;
    for (size_t i = 0; i < opt->count; i++)
        slots += set_of_tensor(opt, sets, i) >= 0 ? optim_slots(opt, &opt->tensors[i]) : 0;
    double *values = calloc(slots + more + 1, sizeof *values), *bad = values + slots;
    if (!values) return optim_fail(err, MEOPT_NO_MEMORY, "no memory for %zu norms", slots);
    for (size_t i = 0; i < opt->count; i++) {
        const struct tensor *t = &opt->tensors[i];
        int set = set_of_tensor(opt, sets, i);
        if (set < 0) continue;
        struct optim_partial total = partials_total(opt, t);
        bad[set] += (double)total.bad_groups;
        if (wide) bad[sets->count + (size_t)set] += (double)total.wide_groups;
        slots_add(opt, t, OPTIM_VALUE(gradient_squares), values + at);
        at += optim_slots(opt, t);
    }
    int status = optim_reduce(opt, values, slots + more, err);
    for (size_t s = 0; s < sets->count; s++) {
        norms[s] = 0;
        finite[s] = bad[s] == 0;
        if (wide) wide[s] = (int64_t)bad[sets->count + s];
    }
    at = 0;
    for (size_t i = 0; i < opt->count; i++) {
        int set = set_of_tensor(opt, sets, i);
        if (set < 0) continue;
        norms[set] = slots_sum(opt, &opt->tensors[i], norms[set], values + at);
        at += optim_slots(opt, &opt->tensors[i]);
    }
    for (size_t s = 0; s < sets->count; s++) norms[s] = sqrt(norms[s]);
    free(values);
    return status;
}

static int check_sets(const struct meopt *opt, const struct sets *sets, struct meopt_error *err)
{
    for (size_t i = 0; i < opt->count; i++)
        if (sets->of[i] >= 0 && (size_t)sets->of[i] >= sets->count)
            return optim_fail(err, MEOPT_BAD_ARGUMENT, "tensor %zu is in set %d of %zu", i, sets->of[i],
                              sets->count);
    return MEOPT_OK;
}

int meopt_norms_end(struct meopt *opt, size_t sets, const int *set_of, double *norms, int *finite,
                    struct meopt_error *err)
{
    struct sets all = {sets, set_of, false};
    if (!opt || !set_of || !norms || !finite) return optim_fail(err, MEOPT_BAD_ARGUMENT, "a null argument");
    OPTIM_ENTER(opt);
    int status = check_sets(opt, &all, err);
    if (status) return status;
    struct meopt found = *opt;
    if (opt->measured) found.partials = opt->measured;
    status = opt->count && !opt->measured ? optim_results(opt, err) : MEOPT_OK;
    return status ? status : sets_sums(&found, &all, norms, finite, NULL, err);
}

int meopt_step_sets(struct meopt *opt, size_t sets, const int *set_of, double *norms, int *finite,
                    int64_t *wide, struct meopt_error *err)
{
    struct sets all = {sets, set_of, true};
    if (!opt || !set_of || !norms || !finite || !wide)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "a null argument");
    if (opt->stepping) return optim_fail(err, MEOPT_BAD_ORDER, "the step has not ended");
    OPTIM_ENTER(opt);
    int status = check_sets(opt, &all, err);
    return status ? status : sets_sums(opt, &all, norms, finite, wide, err);
}

int meopt_gradient_found(struct meopt *opt, const struct meopt_gradient *gradients,
                         struct meopt_grad_stats *found, struct meopt_error *err)
{
    _Static_assert(sizeof(struct meopt_grad_stats) == sizeof(struct optim_grad_stats),
                   "one thing by two names");
    if (!opt || !gradients || !found) return optim_fail(err, MEOPT_BAD_ARGUMENT, "a null argument");
    if (opt->options.reduce && !opt->options.combine)
        return optim_fail(err, MEOPT_BAD_ORDER,
                          "options.reduce without options.combine: call meopt_gradient_norm");
    OPTIM_ENTER(opt);
    struct optim_task *tasks = tasks_new(opt, err);
    if (!tasks) return MEOPT_NO_MEMORY;
    bool asynchronous = opt->device->optim->asynchronous;
    double squares = 0;
    int64_t bad = 0, wide;
    int status =
        squares_sweep(opt, gradients, tasks, !asynchronous, asynchronous ? (void *)found : NULL, err);
    if (!status && !asynchronous) {
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
