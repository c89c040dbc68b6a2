/* The optimizer step: scalars of each tensor, sweeps over groups, LAMB's trust ratios, clipping. */
#include "core/optim/muon.h"
#include "core/optim/norm.h"
#include "core/optim/offload.h"
#include "kernels/optim_scale.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Prepares a learning rate that depends on norms. LAMB without weight decay has no trust ratio. */
static void trust_prepare(const struct meopt *opt, const struct tensor *t, struct optim_task *task)
{
    struct meopt_options own;
    const struct meopt_options *o = tensor_options(opt, t, &own);
    task->lr = opt->lr * t->lr_scale;
    task->trust = (t->decay && o->weight_decay != 0) || o->always_adapt;
    task->trust_at_most_1 = o->trust_clip;
    if (!RULE_HAS(t->rule, WITH_FACTORS)) return;
    int64_t whole = t->whole ? t->whole : t->layout.count;
    double step_lr = task->lr;
    task->lr = factored_rate(opt, t);
    task->clipping = (struct optim_clipping){.count = whole > 0 ? (double)whole : 1,
                                             .threshold = o->clip_threshold,
                                             .eps2 = o->scale_parameter ? o->eps2 : 0,
                                             .decay = t->decay ? o->weight_decay : 0,
                                             .decay_lr = o->torch_form ? step_lr : -1};
}

/* Sets the learning rate of a task from the sums of squares of weight and update. */
static void rate_set(struct optim_task *task, double weights, double updates)
{
    if (RULE_HAS(task->rule, WITH_FACTORS))
        task->s.lr = scale_factored(task->lr, weights, updates, &task->clipping, &task->s.decay);
    else task->s.lr = scale_trusted(task->lr, weights, updates, task->trust, task->trust_at_most_1);
}

/* Checks all gradients before the first update, where a later pass would be the first to see them. */
static void check_first(struct meopt *opt, struct optim_sweep *sweep)
{
    sweep->check_only = true;
    opt->device->optim->step(opt->device, opt->work, sweep);
    sweep->check_only = false;
}

/* Runs a sweep over tensors: first those with resident states, then the offloaded ones. */
static int sweep_all(struct meopt *opt, const size_t *tensors, struct optim_task *tasks,
                     struct optim_sweep *sweep, bool wait, struct meopt_error *err)
{
    const struct device_optim *optim = opt->device->optim;
    bool asked = sweep->wait;
    sweep->wait = wait;
    if (opt->offload && sweep->check) check_first(opt, sweep);
    if (opt->offload && sweep->bad >= 0) return MEOPT_OK;
    for (size_t i = 0; i < sweep->count; i++)
        if (opt->tensors[tensors[i]].offloaded) tasks[i].count = 0;
    optim->step(opt->device, opt->work, sweep);
    for (size_t i = 0; i < sweep->count; i++) tasks[i].count = opt->tensors[tensors[i]].layout.count;
    int status = opt->offload ? offload_sweep(opt, tensors, sweep, err) : MEOPT_OK;
    sweep->wait = asked;
    return status ? status : optim_device_status(opt, err);
}

/* Runs a sweep of some of the tensors: those without matrices, which step together. */
static int sweep_others(struct meopt *opt, const size_t *tensors, struct optim_sweep *sweep, size_t count,
                        bool wait, struct meopt_error *err)
{
    struct optim_sweep others = *sweep;
    struct optim_task *tasks = calloc(count, sizeof *tasks);
    size_t *named = calloc(count, sizeof *named);
    int status =
        tasks && named ? MEOPT_OK : optim_fail(err, MEOPT_NO_MEMORY, "no memory for %zu tasks", count);
    others.tasks = tasks;
    others.count = 0;
    for (size_t i = 0; i < sweep->count && !status; i++) {
        if (RULE_HAS(sweep->tasks[i].rule, WITH_MATRICES)) continue;
        named[others.count] = tensors[i];
        tasks[others.count++] = sweep->tasks[i];
    }
    if (!status) status = sweep_all(opt, named, tasks, &others, wait, err);
    free(tasks);
    free(named);
    return status;
}

/* Runs a sweep whose tensors of muon step after the others. */
static int sweep_rules(struct meopt *opt, const size_t *tensors, struct optim_task *tasks,
                       struct optim_sweep *sweep, bool wait, struct meopt_error *err)
{
    size_t matrices = 0;
    bool check = sweep->check, gathers = false;
    int status = MEOPT_OK;
    for (size_t i = 0; i < sweep->count; i++) {
        matrices += RULE_HAS(tasks[i].rule, WITH_MATRICES);
        gathers = gathers || opt->tensors[tensors[i]].gathers;
    }
    if (!matrices) return sweep_all(opt, tensors, tasks, sweep, wait, err);
    if (check) check_first(opt, sweep);
    if (check && gathers) status = refuse_together(opt, sweep, err);
    if (status || sweep->bad >= 0) return status;
    if (matrices < sweep->count)
        status = sweep_others(opt, tensors, sweep, sweep->count - matrices, wait, err);
    sweep->wait = wait;
    return status ? status : muon_steps(opt, tensors, sweep, err);
}

/* Runs the first pass, which computes each tensor's learning rate from the norms of weight and update. */
static int trust_ratios(struct meopt *opt, const size_t *tensors, struct optim_task *tasks,
                        struct optim_sweep *sweep, struct meopt_error *err)
{
    size_t slots = 0;
    for (size_t i = 0; i < sweep->count; i++) slots += optim_slots(opt, &opt->tensors[tensors[i]]);
    double *squares = calloc(2 * slots + 1, sizeof *squares); /* threads may step tensors of one handle */
    if (!squares) return optim_fail(err, MEOPT_NO_MEMORY, "no memory for %zu norms", 2 * slots);
    double *updates = squares + slots;
    int status = RULE_HAS(tasks->rule, WITH_FACTORS) ? factors_update(opt, tensors, sweep, err) : MEOPT_OK;
    if (sweep->bad >= 0) {
        free(squares);
        return status;
    }
    for (size_t i = 0; i < sweep->count; i++) tasks[i].norms_only = 1;
    if (!status) status = sweep_all(opt, tensors, tasks, sweep, true, err);
    for (size_t i = 0, at = 0; i < sweep->count; at += optim_slots(opt, &opt->tensors[tensors[i++]])) {
        slots_add(opt, &opt->tensors[tensors[i]], OPTIM_VALUE(weight_squares), squares + at);
        slots_add(opt, &opt->tensors[tensors[i]], OPTIM_VALUE(update_squares), updates + at);
        tasks[i].norms_only = 0;
    }
    if (!status) status = optim_reduce(opt, squares, 2 * slots, err);
    for (size_t i = 0, at = 0; i < sweep->count; at += optim_slots(opt, &opt->tensors[tensors[i++]])) {
        const struct tensor *t = &opt->tensors[tensors[i]];
        rate_set(&tasks[i], slots_sum(opt, t, 0, squares + at), slots_sum(opt, t, 0, updates + at));
    }
    free(squares);
    return status;
}

/* Steps tensors whose rules all have a first pass for norms, or none of them. */
static int sweep_kind(struct meopt *opt, const size_t *tensors, struct optim_task *tasks,
                      struct optim_sweep *sweep, struct meopt_error *err)
{
    bool wait = sweep->wait, trust = RULE_HAS_NORMS(tasks->rule),
         factored = RULE_HAS(tasks->rule, WITH_FACTORS);
    sweep->trust = trust && opt->device->optim->asynchronous && !opt->offload &&
                   (!opt->options.reduce || opt->options.combine);
    if (sweep->trust) sweep->combine = opt->options.combine;
    sweep->context = opt->options.context;
    for (size_t i = 0; i < sweep->count && trust; i++) {
        trust_prepare(opt, &opt->tensors[tensors[i]], &tasks[i]);
        tasks[i].norms_only = sweep->trust;
    }
    if (factored && sweep->check) check_first(opt, sweep);
    int status = MEOPT_OK;
    if (trust && !sweep->trust) status = trust_ratios(opt, tensors, tasks, sweep, err);
    else if (factored) status = factors_update(opt, tensors, sweep, err);
    if (!status && (!factored || sweep->bad < 0)) status = sweep_rules(opt, tensors, tasks, sweep, wait, err);
    return !status && sweep->reduce_failed ? optim_reduce_failed(opt, err) : status;
}

/* Steps tensors of both kinds. Those with norms are the first: other handles may still refuse their means. */
static int sweep_mixed(struct meopt *opt, const size_t *tensors, struct optim_sweep *sweep,
                       struct meopt_error *err)
{
    struct optim_task *tasks = calloc(sweep->count, sizeof *tasks);
    size_t *named = calloc(sweep->count, sizeof *named);
    int status =
        tasks && named ? MEOPT_OK : optim_fail(err, MEOPT_NO_MEMORY, "no memory for %zu tasks", sweep->count);
    if (!status && sweep->check) check_first(opt, sweep);
    for (int norms = 1; norms >= 0 && !status && (norms || sweep->bad < 0); norms--) {
        struct optim_sweep some = *sweep;
        some.tasks = tasks;
        some.count = 0;
        for (size_t i = 0; i < sweep->count; i++) {
            if ((int)RULE_HAS_NORMS(sweep->tasks[i].rule) != norms) continue;
            named[some.count] = tensors[i];
            tasks[some.count++] = sweep->tasks[i];
        }
        status = sweep_kind(opt, named, tasks, &some, err);
        if (some.bad >= 0) opt->device->optim->refused(opt->device, opt->work, sweep, true);
    }
    free(tasks);
    free(named);
    return status;
}

/* Steps the named tensors. If it sets sweep->bad, no tensor has changed. */
static int sweep_steps(struct meopt *opt, const size_t *tensors, struct optim_task *tasks,
                       struct optim_sweep *sweep, struct meopt_error *err)
{
    bool wait = sweep->wait;
    size_t norms = 0;
    for (size_t i = 0; i < sweep->count; i++) norms += RULE_HAS_NORMS(tasks[i].rule);
    int status = norms && norms < sweep->count ? sweep_mixed(opt, tensors, sweep, err)
                                               : sweep_kind(opt, tensors, tasks, sweep, err);
    for (size_t i = 0; i < sweep->count; i++) {
        struct tensor *t = &opt->tensors[tensors[i]];
        if (!status && wait) status = partials_check(opt, t, err);
        t->found = wait && !status ? partials_total(opt, t) : (struct optim_partial){0};
    }
    return status;
}

static int step_begin(struct meopt *opt, int64_t step, double lr, int check, struct meopt_error *err)
{
    if (!opt) return optim_fail(err, MEOPT_BAD_ARGUMENT, "no optimizer given");
    if (opt->options.dry) return optim_fail(err, MEOPT_BAD_ARGUMENT, "a dry optimizer cannot step");
    if (optim_between_steps(opt, err) || optim_at_training(opt, err)) return MEOPT_BAD_ORDER;
    if (check < 0 || check > 2)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "check is %d, must be 0, 1 or 2", check);
    if (step < 1)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "step is %lld, steps count from 1", (long long)step);
    if (!isfinite(lr) || lr < 0) return optim_fail(err, MEOPT_BAD_ARGUMENT, "the learning rate is %g", lr);
    opt->stepping = true;
    opt->check = check;
    opt->clipped = opt->refused = false;
    opt->orthogonalized = 0;
    opt->step = step;
    opt->lr = lr;
    for (size_t i = 0; i < opt->count; i++) opt->tensors[i].stepped = false;
    return MEOPT_OK;
}

int meopt_step_begin(struct meopt *opt, int64_t step, double lr, int check, struct meopt_error *err)
{
    if (opt && opt->options.max_grad_norm > 0)
        return optim_fail(
            err, MEOPT_BAD_ORDER,
            "max_grad_norm %g requires all gradients: call meopt_step, or pass the clipping `scale`",
            opt->options.max_grad_norm);
    return step_begin(opt, step, lr, check, err);
}

/* Steps between two updates of a chunk, once its decay is so near 1 that this changes little. */
enum { AVERAGE_EVERY = 16 };

/* Prepares the average: its first value is the weight, then decay grows as min(average_decay, (1 + t) / (10 +
 * t)). From 1 - 1/256 on, one step of 16 uses the decay of 16. */
static void average_prepare(const struct meopt *opt, const struct tensor *t, struct optim_task *task)
{
    if (!t->layout.average) return;
    double updates = (double)t->updates,
           decay = fmin(opt->options.average_decay, (1 + updates) / (10 + updates));
    bool seldom = t->averaged && decay >= 1 - 1.0 / 256;
    task->average = t->state ? t->state + t->layout.average_at : NULL;
    task->average_every = seldom ? AVERAGE_EVERY : 1;
    task->average_rest = (float)(!t->averaged ? 1 : seldom ? 1 - pow(decay, AVERAGE_EVERY) : 1 - decay);
}

/* Checks the arguments of one tensor's step, and prepares its task. */
static int task_prepare(const struct meopt *opt, const struct tensor *t, const void *gradient, int dtype,
                        double scale, struct optim_task *task, struct meopt_error *err)
{
    if (t->stepped)
        return optim_fail(err, MEOPT_BAD_ORDER, "tensor %.100s has already taken step %lld", t->name,
                          (long long)opt->step);
    if (opt->step <= t->last_step)
        return optim_fail(err, MEOPT_BAD_ARGUMENT,
                          "tensor %.100s: step is %lld, expected a number above its last, %lld", t->name,
                          (long long)opt->step, (long long)t->last_step);
    if (!isfinite(scale))
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "tensor %.100s: gradient scale is %g", t->name, scale);
    *task = task_of(opt, t);
    task->s = step_scalars(opt, t, scale);
    task->updates = (uint32_t)t->updates;
    task->step[0] = (uint32_t)opt->step;
    task->step[1] = (uint32_t)(opt->step >> 32) & 0xffffffu;
    average_prepare(opt, t, task);
    return gradient_prepare(t, gradient, dtype, task, err);
}

static int not_finite(struct meopt_error *err, const struct tensor *t)
{
    return optim_fail(err, MEOPT_NOT_FINITE, "the gradient of %.100s holds a NaN or an infinity", t->name);
}

/* Updates a tensor's counters after a sweep, and clears its accumulator. */
static int task_finish(const struct meopt *opt, struct tensor *t, bool accumulated, struct meopt_error *err)
{
    t->stepped = true;
    t->averaged = t->layout.average;
    if (RULE_HAS(opt->options.rule, WITH_POINTS)) {
        struct meopt_options own;
        double lr = opt->lr * t->lr_scale;
        t->averaging_before = t->averaging;
        t->averaging = averaging_next(tensor_options(opt, t, &own), t, &lr);
    }
    t->updates++;
    t->last_step = opt->step - (t->found.bad_groups > 0); /* a step with bad groups may be repeated */
    if (accumulated) accumulator_clear(opt, t);
    return t->found.bad_groups ? not_finite(err, t) : MEOPT_OK;
}

/* Options of a step. wait: results are complete on return. finite: the caller checked the gradients. refused:
 * do not step, only record that. clip: a card computes the scale from its statistics. */
struct step_options {
    double scale;
    bool wait, finite, refused;
    struct optim_clip *clip;
};

/* Steps the named tensors; tasks has one slot for each. It checks all arguments before it changes anything.
 * Later errors concern single tensors: the others still step, and the first error is returned. */
static int step_named(struct meopt *opt, const size_t *tensors, const struct meopt_gradient *gradients,
                      size_t count, const struct step_options *how, struct optim_task *tasks,
                      struct meopt_error *err)
{
    bool wait = how->wait;
    struct optim_sweep sweep = {.tasks = tasks,
                                .count = count,
                                .partials = opt->partials,
                                .kernels = opt->kernels,
                                .threads = opt->options.threads,
                                .wait = wait,
                                .check = opt->check && !how->finite && !how->clip, /* a clip checks, too */
                                .clip = how->clip,
                                .bad = -1};
    int status = MEOPT_OK;
    for (size_t i = 0; i < count; i++) {
        struct tensor *t = &opt->tensors[tensors[i]];
        status = task_prepare(opt, t, gradients[i].data, gradients[i].dtype, how->scale, &tasks[i], err);
        if (status) {
            for (size_t k = 0; k < i; k++) opt->tensors[tensors[k]].stepped = false;
            return status;
        }
        t->stepped = true;
    }
    if (how->refused) {
        sweep.bad = 0;
        opt->device->optim->step(opt->device, opt->work, &sweep);
        return optim_fail(err, MEOPT_NOT_FINITE, "the gradient holds a NaN or an infinity");
    }
    status = sweep_steps(opt, tensors, tasks, &sweep, err);
    if (!wait) opt->deferred = true;
    if (status) return status;
    if (sweep.bad >= 0) return not_finite(err, &opt->tensors[tensors[sweep.bad]]);
    if (opt->check == 2) opt->check = 0;
    for (size_t i = 0; i < count; i++) {
        int ended = task_finish(opt, &opt->tensors[tensors[i]],
                                tasks[i].gradient_format == GRADIENT_ACCUMULATOR, status ? NULL : err);
        if (!status) status = ended;
    }
    return status;
}

static int step_tensors(struct meopt *opt, const size_t *tensors, const struct meopt_gradient *gradients,
                        size_t count, const struct step_options *how, struct meopt_error *err)
{
    if (!count) return MEOPT_OK;
    struct optim_task one = {0}, *tasks = count == 1 ? &one : calloc(count, sizeof *tasks);
    int status = tasks ? step_named(opt, tensors, gradients, count, how, tasks, err)
                       : optim_fail(err, MEOPT_NO_MEMORY, "no memory for %zu tasks", count);
    if (count > 1) free(tasks);
    return status;
}

static int step_check(const struct meopt *opt, const size_t *tensors, const struct meopt_gradient *gradients,
                      size_t count, struct meopt_error *err)
{
    if (!opt || (count && (!tensors || !gradients)))
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "no optimizer, or no tensors or gradients named");
    if (!opt->stepping) return optim_fail(err, MEOPT_BAD_ORDER, "no step was begun");
    for (size_t i = 0; i < count; i++)
        if (tensors[i] >= opt->count)
            return optim_fail(err, MEOPT_BAD_ARGUMENT, "no tensor %zu in the optimizer", tensors[i]);
    return MEOPT_OK;
}

int meopt_step_tensors(struct meopt *opt, const size_t *tensors, const struct meopt_gradient *gradients,
                       size_t count, double scale, struct meopt_error *err)
{
    OPTIM_ENTER(opt);
    int status = step_check(opt, tensors, gradients, count, err);
    if (status) return status;
    return step_tensors(opt, tensors, gradients, count,
                        &(struct step_options){.scale = scale, .wait = !opt->device->optim->asynchronous},
                        err);
}

int meopt_step_clipped(struct meopt *opt, const size_t *tensors, const struct meopt_gradient *gradients,
                       size_t count, const struct meopt_clip *clip, struct meopt_error *err)
{
    _Static_assert(sizeof(struct meopt_grad_stats) == sizeof(struct optim_grad_stats),
                   "one thing by two names");
    OPTIM_ENTER(opt);
    int status = step_check(opt, tensors, gradients, count, err);
    if (status) return status;
    if (!clip || !clip->found) return optim_fail(err, MEOPT_BAD_ARGUMENT, "no clip, or no clip->found");
    if (!opt->device->optim->asynchronous) { /* the CPU: clip->found is in host memory */
        const struct meopt_grad_stats *found = clip->found;
        opt->refused = opt->refused || !found->finite || !isfinite(found->squares);
        return step_tensors(opt, tensors, gradients, count,
                            &(struct step_options){.scale = meopt_clip_by(clip, sqrt(found->squares)),
                                                   .wait = true,
                                                   .finite = true,
                                                   .refused = opt->refused},
                            err);
    }
    struct optim_clip by = {.found = (const void *)clip->found,
                            .divide = clip->divide_norm,
                            .clip = clip->max_norm,
                            .refuses = true,
                            .first = !opt->clipped};
    opt->clipped = true;
    return step_tensors(opt, tensors, gradients, count, &(struct step_options){.scale = 1, .clip = &by}, err);
}

int meopt_step_tensor(struct meopt *opt, size_t tensor, const void *gradient, enum meopt_dtype dtype,
                      double scale, struct meopt_error *err)
{
    return meopt_step_tensors(opt, &tensor, &(struct meopt_gradient){gradient, (int)dtype}, 1, scale, err);
}

/* Fetches the results of steps that were not waited for. */
static int deferred_results(struct meopt *opt, struct meopt_error *err)
{
    opt->deferred = false;
    int status = optim_results(opt, err);
    for (size_t i = 0; i < opt->count && !status; i++) {
        struct tensor *t = &opt->tensors[i];
        if (!t->stepped) continue;
        t->found = partials_total(opt, t);
        t->last_step = opt->step - (t->found.bad_groups > 0);
        if (!isinf(t->found.gradient_squares)) continue;
        t->updates--; /* the check refused it */
        t->averaging = t->averaging_before;
        if (!t->updates) t->averaged = false;
    }
    return status;
}

static bool stepped(const struct meopt *opt, size_t tensor, const void *context)
{
    (void)context;
    return opt->tensors[tensor].stepped;
}

int meopt_step_end_sized(size_t size, struct meopt *opt, struct meopt_step_stats *stats,
                         struct meopt_error *err)
{
    if (!opt) return optim_fail(err, MEOPT_BAD_ARGUMENT, "no optimizer given");
    OPTIM_ENTER(opt);
    if (!opt->stepping) return optim_fail(err, MEOPT_BAD_ORDER, "no step was begun");
    opt->stepping = false;
    if (opt->deferred) {
        int status = deferred_results(opt, err);
        if (status) return status;
    }
    struct meopt_step_stats found = {0};
    double squares = 0;
    int64_t bad = 0;
    int failed = gradient_sums(opt, stepped, NULL, true, &squares, &bad, &opt->wide_groups, err);
    if (failed) return failed;
    for (size_t i = 0; i < opt->count; i++) found.tensors += opt->tensors[i].stepped;
    found.grad_norm = sqrt(squares);
    found.bad_groups = bad;
    found.matrices = opt->orthogonalized;
    if (stats) struct_copy_out(stats, size, &found, sizeof found);
    if (found.bad_groups)
        return optim_fail(
            err, MEOPT_NOT_FINITE,
            "step %lld: %lld groups of 64 were not stepped, their gradient holds a NaN or an infinity",
            (long long)opt->step, (long long)found.bad_groups);
    return MEOPT_OK;
}

int64_t meopt_wide_groups(const struct meopt *opt) { return opt ? opt->wide_groups : 0; }

/* Divides *scale so that the norm of the scaled gradients is at most options.max_grad_norm. */
static int norm_divide(struct meopt *opt, const struct meopt_gradient *gradients, double *scale,
                       struct meopt_error *err)
{
    double norm, limit = opt->options.max_grad_norm;
    int finite;
    if (!(limit > 0) || opt->stepping || opt->options.dry)
        return MEOPT_OK; /* step_begin refuses the last two */
    int status = meopt_gradient_norm(opt, gradients, &norm, &finite, err);
    if (!status && !finite)
        status =
            optim_fail(err, MEOPT_NOT_FINITE, "a gradient holds a NaN or an infinity: no tensor was stepped");
    norm *= fabs(*scale);
    if (!status && norm > limit) *scale *= limit / norm;
    return status;
}

int meopt_step_sized(size_t size, struct meopt *opt, int64_t step, double lr, double scale,
                     const struct meopt_gradient *gradients, struct meopt_step_stats *stats,
                     struct meopt_error *err)
{
    if (opt && opt->count && !gradients) return optim_fail(err, MEOPT_BAD_ARGUMENT, "no gradients given");
    int status = opt ? norm_divide(opt, gradients, &scale, err) : MEOPT_OK;
    if (!status) status = step_begin(opt, step, lr, opt ? opt->options.all_or_nothing : 0, err);
    if (status) return status;
    OPTIM_ENTER(opt);
    size_t *tensors = calloc(opt->count + 1, sizeof *tensors), count = 0;
    struct meopt_gradient *given = calloc(opt->count + 1, sizeof *given);
    if (!tensors || !given)
        status = optim_fail(err, MEOPT_NO_MEMORY, "no memory for %zu tensors", opt->count);
    for (size_t i = 0; !status && i < opt->count; i++)
        if (gradients[i].data) {
            tensors[count] = i;
            given[count++] = gradients[i];
        }
    if (!status)
        status = step_tensors(
            opt, tensors, given, count,
            &(struct step_options){.scale = scale, .wait = !opt->device->optim->asynchronous}, err);
    if (status && status != MEOPT_NOT_FINITE) opt->stepping = false;
    else {
        int ended = meopt_step_end_sized(size, opt, stats, status ? NULL : err);
        if (!status) status = ended;
    }
    free(tensors);
    free(given);
    return status;
}
