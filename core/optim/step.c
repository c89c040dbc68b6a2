/* The step: scalars of each tensor, the sweep over its groups, norms, clipping, accumulation. */
#include "core/optim/card.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The most that |m| / sqrt(v) can be, by Cauchy-Schwarz over the gradients that m and v average:
 *   ((1 - b1) sum b1^k g_k)^2 <= (1 - b1)^2 / (1 - b2) sum_k (b1^2 / b2)^k * v */
double ratio_limit(const struct meopt_options *o, double t)
{
    double q = o->beta1 * o->beta1 / (o->beta2 > 0 ? o->beta2 : DBL_MIN);
    double terms = t > 0 ? (q == 1 ? t : (1 - pow(q, t)) / (1 - q)) : (q < 1 ? 1 / (1 - q) : INFINITY);
    double limit = (1 - o->beta1) * sqrt(terms / (1 - o->beta2));
    return limit < 1e30 ? limit : 1e30;
}

/* The binades above that of sqrt(v) that m needs: |m| <= limit * sqrt(v) < 2 limit * binade; a rounded
 * sqrt(v) may be one code less. The largest code stands for 1.93 (8 bits) or 1.375 (4 bits, where half the
 * limit has to do: finer codes for ordinary elements are worth more than the rare largest ones). */
int m_range(const struct meopt_options *o, int m_format)
{
    double need = m_format == STATE_4BIT ? ratio_limit(o, 0) / 2 / 1.375 : ratio_limit(o, 0) * 2 / 1.92;
    int range = need > 1 ? (int)ceil(log2(need)) : 0;
    return range < 20 ? range : 20;
}

struct optim_scalars step_scalars(const struct meopt *opt, const struct tensor *tensor, double scale)
{
    const struct meopt_options *o = &opt->options;
    double t = (double)tensor->updates + 1, lr = opt->lr * tensor->lr_scale,
           decay = tensor->decay ? o->weight_decay : 0;
    double correction1 = 1 - pow(o->beta1, t), correction2 = 1 - pow(o->beta2, t);
    struct optim_scalars s = {
        .lr = (float)lr,
        .decay = (float)(1 - lr * decay),
        .weight_decay = (float)decay,
        .beta1 = (float)o->beta1,
        .rest1 = (float)(1 - o->beta1),
        .beta2 = (float)o->beta2,
        .rest2 = (float)(1 - o->beta2),
        .eps = (float)o->eps,
        .step_size = (float)((o->rule == MEOPT_LAMB ? 1 : lr) / correction1),
        .root_scale = (float)(1 / sqrt(correction2)),
        .direction_limit = (float)(ratio_limit(o, t) * sqrt(correction2) * (1 - 1e-6)),
        .gradient_scale = (float)scale,
        .nesterov = o->nesterov,
    };
    if (tensor->layout.m == STATE_F32 && tensor->layout.v == STATE_F32)
        s.direction_limit = FLT_MAX; /* exact by itself */
    if (o->rule == MEOPT_APSGD) {    /* torch: the buffer is the first gradient itself */
        s.beta1 = tensor->updates ? (float)o->momentum : 0;
        s.rest1 = tensor->updates ? (float)(1 - o->dampening) : 1;
        s.beta2 = (float)o->momentum;
    }
    return s;
}

static void run_chunk(const struct meopt *opt, const struct tensor *t, const struct optim_task *task,
                      int64_t chunk)
{
    int64_t begin = chunk * CHUNK_GROUPS, end = begin + CHUNK_GROUPS;
    if (end > t->layout.groups) end = t->layout.groups;
    opt->kernels->step(task, begin, end, &opt->partials[t->first_partial + (size_t)chunk]);
}

/* Sum in the order of chunks, whoever computed them. */
static struct optim_partial partials_total(const struct meopt *opt, const struct tensor *t)
{
    struct optim_partial total = {0};
    for (int64_t c = 0; c < chunks_of(t); c++) {
        const struct optim_partial *p = &opt->partials[t->first_partial + (size_t)c];
        total.gradient_squares += p->gradient_squares;
        total.weight_squares += p->weight_squares;
        total.update_squares += p->update_squares;
        total.bad_groups += p->bad_groups;
    }
    return total;
}

/* One pass over the tensors of tasks[i].count > 0. Tensors of many chunks are split among the threads in the
 * same way as their state was first touched; the chunks of the others are dealt out together. */
/* wait: results are in opt->partials on return, also from a card. */
static int sweep(const struct meopt *opt, const struct tensor *tensors, const struct optim_task *tasks,
                 size_t count, bool wait, struct meopt_error *err)
{
    if (card_of(opt)) return card_sweep(opt, tensors, tasks, count, wait, err);
    int threads = threads_of(opt);
    int64_t small = 0, many = (int64_t)threads * 8;
    for (size_t i = 0; i < count; i++)
        if (tasks[i].count && chunks_of(&tensors[i]) < many) small += chunks_of(&tensors[i]);
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
#endif
    {
        for (size_t i = 0; i < count; i++) {
            int64_t chunks = chunks_of(&tensors[i]);
            if (!tasks[i].count || chunks < many) continue;
#ifdef _OPENMP
#pragma omp for schedule(static) nowait
#endif
            for (int64_t c = 0; c < chunks; c++) run_chunk(opt, &tensors[i], &tasks[i], c);
        }
        size_t at = 0; /* each thread's own place in the table: its chunks come in rising order */
        int64_t before = 0;
#ifdef _OPENMP
#pragma omp for schedule(static)
#endif
        for (int64_t c = 0; c < small; c++) {
            while (!tasks[at].count || chunks_of(&tensors[at]) >= many ||
                   c - before >= chunks_of(&tensors[at])) {
                if (tasks[at].count && chunks_of(&tensors[at]) < many) before += chunks_of(&tensors[at]);
                at++;
            }
            run_chunk(opt, &tensors[at], &tasks[at], c - before);
        }
    }
    return MEOPT_OK;
}

/* Trust ratio of LAMB (timm): |w| / |u|, 1 where either is 0 or the tensor has no decay. */
static float trust_lr(const struct meopt *opt, const struct tensor *t, const struct optim_partial *norms,
                      double lr)
{
    const struct meopt_options *o = &opt->options;
    double w = sqrt(norms->weight_squares), u = sqrt(norms->update_squares), trust = 1;
    if (((t->decay && o->weight_decay != 0) || o->always_adapt) && w > 0 && u > 0) trust = w / u;
    if (o->trust_clip && trust > 1) trust = 1;
    return (float)(lr * trust);
}

static int sweep_steps(struct meopt *opt, struct tensor *tensors, struct optim_task *tasks, size_t count,
                       bool wait, struct meopt_error *err)
{
    int status = MEOPT_OK;
    if (opt->options.rule == MEOPT_LAMB) {
        for (size_t i = 0; i < count; i++) tasks[i].norms_only = 1;
        status = sweep(opt, tensors, tasks, count, true, err);
        for (size_t i = 0; i < count; i++) {
            if (!tasks[i].count) continue;
            struct optim_partial norms = partials_total(opt, &tensors[i]);
            tasks[i].norms_only = 0;
            tasks[i].s.lr = trust_lr(opt, &tensors[i], &norms, opt->lr * tensors[i].lr_scale);
        }
    }
    if (!status) status = sweep(opt, tensors, tasks, count, wait, err);
    for (size_t i = 0; i < count; i++)
        if (tasks[i].count)
            tensors[i].found = wait ? partials_total(opt, &tensors[i]) : (struct optim_partial){0};
    return status;
}

int meopt_step_begin(struct meopt *opt, int64_t step, double lr, int check, struct meopt_error *err)
{
    if (!opt) return optim_fail(err, MEOPT_BAD_ARGUMENT, "no optimizer given");
    if (opt->options.dry) return optim_fail(err, MEOPT_BAD_ARGUMENT, "a dry optimizer cannot step");
    if (opt->stepping)
        return optim_fail(err, MEOPT_BAD_ORDER, "step %lld was begun and not ended", (long long)opt->step);
    if (step < 1)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "step is %lld, steps count from 1", (long long)step);
    if (!isfinite(lr) || lr < 0) return optim_fail(err, MEOPT_BAD_ARGUMENT, "the learning rate is %g", lr);
    opt->stepping = true;
    opt->check = check != 0;
    opt->step = step;
    opt->lr = lr;
    for (size_t i = 0; i < opt->count; i++) opt->tensors[i].stepped = false;
    return MEOPT_OK;
}

/* Everything about one tensor's step but the sweep. */
static int task_prepare(const struct meopt *opt, const struct tensor *t, const void *gradient, int dtype,
                        double scale, struct optim_task *task, struct meopt_error *err)
{
    if (t->stepped)
        return optim_fail(err, MEOPT_BAD_ORDER, "tensor %.100s has already taken step %lld", t->name,
                          (long long)opt->step);
    if (!isfinite(scale))
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "tensor %.100s: gradient scale is %g", t->name, scale);
    *task = task_of(opt, t);
    task->s = step_scalars(opt, t, scale);
    task->step[0] = (uint32_t)opt->step;
    task->step[1] = (uint32_t)(opt->step >> 32) & 0xffffffu;
    if (!gradient) {
        if (!t->accumulator || !t->accumulated)
            return optim_fail(err, MEOPT_BAD_ARGUMENT, "tensor %.100s: no gradient, and none accumulated",
                              t->name);
        task->gradient_format = GRADIENT_ACCUMULATOR;
        task->accumulator_format = t->layout.accumulator;
        task->gradient = t->accumulator;
        task->gradient_scales = (uint8_t *)t->accumulator + t->layout.accumulator_scales_at;
        return MEOPT_OK;
    }
    if ((dtype != MEOPT_F32 && dtype != MEOPT_BF16) || (uintptr_t)gradient % (dtype == MEOPT_F32 ? 4 : 2))
        return optim_fail(err, MEOPT_BAD_ARGUMENT,
                          "tensor %.100s: gradient at %p has dtype %d or is misaligned", t->name, gradient,
                          dtype);
    task->gradient_format = dtype == MEOPT_F32 ? GRADIENT_F32 : GRADIENT_BF16;
    task->gradient = gradient;
    return MEOPT_OK;
}

static int not_finite(struct meopt_error *err, const struct tensor *t)
{
    return optim_fail(err, MEOPT_NOT_FINITE, "the gradient of %.100s holds a NaN or an infinity", t->name);
}

/* After a sweep: counters, accumulator, promotion. */
static int task_finish(struct meopt *opt, struct tensor *t, bool accumulated, double error,
                       struct meopt_error *err)
{
    t->stepped = true;
    t->updates++;
    if (accumulated) {
        t->accumulated = 0;
        if (card_of(opt)) card_clear(opt, t->accumulator, t->layout.accumulator_bytes);
        else memset(t->accumulator, 0, t->layout.accumulator_bytes);
    }
    if (t->found.bad_groups) return not_finite(err, t);
    return error >= 0 ? adapt_act(opt, t, error, err) : MEOPT_OK;
}

static int all_finite(const struct tensor *t, const struct optim_task *task, int threads)
{
    int64_t size = CHUNK_GROUPS * OPTIM_GROUP, chunks = chunks_of(t);
    size_t bytes = task->gradient_format == GRADIENT_F32 ? 4 : 2;
    int fine = 1;
    (void)threads; /* where there is no OpenMP */
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads) if (chunks > 8) reduction(& : fine)
#endif
    for (int64_t c = 0; c < chunks; c++) {
        int64_t n = task->count - c * size < size ? task->count - c * size : size;
        fine &= optim_all_finite((const char *)task->gradient + (size_t)(c * size) * bytes,
                                 task->gradient_format, n);
    }
    return fine;
}

/* The check of a step's gradients before any of their tensors moves; MEOPT_NOT_FINITE: none of them will. A
 * card tells later. */
static int check_gradients(struct meopt *opt, const size_t *tensors, const struct optim_task *tasks,
                           size_t first, size_t count, struct meopt_error *err)
{
    if (card_of(opt)) {
        card_check_begin(opt);
        return MEOPT_OK;
    }
    const struct tensor *bad = NULL;
    for (size_t i = 0; i < count && !bad; i++) {
        const struct optim_task *task = &tasks[tensors[i] - first];
        if (task->gradient_format != GRADIENT_ACCUMULATOR &&
            !all_finite(&opt->tensors[tensors[i]], task, threads_of(opt)))
            bad = &opt->tensors[tensors[i]];
    }
    for (size_t i = 0; i < count && bad; i++) {
        struct tensor *t = &opt->tensors[tensors[i]];
        t->found = (struct optim_partial){.gradient_squares = INFINITY, .bad_groups = t->layout.groups};
    }
    return bad ? not_finite(err, bad) : MEOPT_OK;
}

/* The tensors named, from `first` on; tasks and errors have a place for each from there to the last. */
static int step_named(struct meopt *opt, const size_t *tensors, const struct meopt_gradient *gradients,
                      size_t count, double scale, size_t first, struct optim_task *tasks, double *errors,
                      size_t span, struct meopt_error *err)
{
    bool card = card_of(opt) != NULL; /* there, results are asked for at the end of the step */
    int status = MEOPT_OK;
    for (size_t i = 0; i < count; i++) {
        struct tensor *t = &opt->tensors[tensors[i]];
        status = task_prepare(opt, t, gradients[i].data, gradients[i].dtype, scale,
                              &tasks[tensors[i] - first], err);
        if (status) { /* as if nothing had been asked */
            for (size_t k = 0; k < i; k++) opt->tensors[tensors[k]].stepped = false;
            return status;
        }
        t->stepped = true;
    }
    if (opt->check && (status = check_gradients(opt, tensors, tasks, first, count, err)) != 0) return status;
    for (size_t i = 0; i < count && !status; i++) {
        size_t at = tensors[i] - first;
        errors[at] = -1;
        if (adapt_due(opt, &opt->tensors[tensors[i]]))
            status = adapt_measure(opt, &opt->tensors[tensors[i]], &tasks[at], &errors[at], err);
    }
    if (!status) status = sweep_steps(opt, &opt->tensors[first], tasks, span, !card, err);
    if (card) {
        card_check_end(opt);
        opt->deferred = true;
    }
    for (size_t i = 0; i < count && (!status || status == MEOPT_NOT_FINITE); i++) {
        int ended = task_finish(opt, &opt->tensors[tensors[i]], !gradients[i].data,
                                errors[tensors[i] - first], status ? NULL : err);
        if (!status) status = ended;
    }
    return status;
}

int meopt_step_tensors(struct meopt *opt, const size_t *tensors, const struct meopt_gradient *gradients,
                       size_t count, double scale, struct meopt_error *err)
{
    if (!opt || (count && (!tensors || !gradients)))
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "no optimizer, or no tensors or gradients named");
    if (!opt->stepping) return optim_fail(err, MEOPT_BAD_ORDER, "no step was begun");
    size_t first = SIZE_MAX, last = 0;
    for (size_t i = 0; i < count; i++) {
        if (tensors[i] >= opt->count)
            return optim_fail(err, MEOPT_BAD_ARGUMENT, "no tensor %zu in the optimizer", tensors[i]);
        if (tensors[i] < first) first = tensors[i];
        if (tensors[i] > last) last = tensors[i];
    }
    if (!count) return MEOPT_OK;
    size_t span = last - first + 1;
    struct optim_task one = {0}, *tasks = span == 1 ? &one : calloc(span, sizeof *tasks);
    double alone, *errors = span == 1 ? &alone : calloc(span, sizeof *errors);
    int status = tasks && errors
                     ? step_named(opt, tensors, gradients, count, scale, first, tasks, errors, span, err)
                     : optim_fail(err, MEOPT_NO_MEMORY, "no memory for %zu tasks", span);
    if (span > 1) {
        free(tasks);
        free(errors);
    }
    return status;
}

int meopt_step_tensor(struct meopt *opt, size_t tensor, const void *gradient, enum meopt_dtype dtype,
                      double scale, struct meopt_error *err)
{
    return meopt_step_tensors(opt, &tensor, &(struct meopt_gradient){gradient, (int)dtype}, 1, scale, err);
}

/* What the card found in the tensors that were stepped one by one. */
static int deferred_results(struct meopt *opt, struct meopt_error *err)
{
    const struct tensor *last = &opt->tensors[opt->count - 1];
    opt->deferred = false;
    int status = card_collect(opt, last->first_partial + (size_t)chunks_of(last), err);
    for (size_t i = 0; i < opt->count && !status; i++) {
        struct tensor *t = &opt->tensors[i];
        if (!t->stepped) continue;
        t->found = partials_total(opt, t);
        if (isinf(t->found.gradient_squares)) t->updates--; /* the check refused it */
    }
    return status;
}

int meopt_step_end(struct meopt *opt, struct meopt_step_stats *stats, struct meopt_error *err)
{
    if (!opt) return optim_fail(err, MEOPT_BAD_ARGUMENT, "no optimizer given");
    if (!opt->stepping) return optim_fail(err, MEOPT_BAD_ORDER, "no step was begun");
    opt->stepping = false;
    if (opt->deferred) {
        int status = deferred_results(opt, err);
        if (status) return status;
    }
    struct meopt_step_stats found = {0};
    double squares = 0;
    for (size_t i = 0; i < opt->count; i++) {
        const struct tensor *t = &opt->tensors[i];
        if (!t->stepped) continue;
        found.tensors++;
        found.bad_groups += t->found.bad_groups;
        squares += t->found.gradient_squares;
    }
    found.grad_norm = sqrt(squares);
    if (stats) *stats = found;
    if (found.bad_groups)
        return optim_fail(
            err, MEOPT_NOT_FINITE,
            "step %lld: %lld groups of 64 were not stepped, their gradient holds a NaN or an infinity",
            (long long)opt->step, (long long)found.bad_groups);
    return MEOPT_OK;
}

int meopt_step(struct meopt *opt, int64_t step, double lr, double scale,
               const struct meopt_gradient *gradients, struct meopt_step_stats *stats,
               struct meopt_error *err)
{
    if (opt && opt->count && !gradients) return optim_fail(err, MEOPT_BAD_ARGUMENT, "no gradients given");
    int status = meopt_step_begin(opt, step, lr, 0, err);
    if (status) return status;
    struct optim_task *tasks = calloc(opt->count + 1, sizeof *tasks);
    double *errors = calloc(opt->count + 1, sizeof *errors);
    if (!tasks || !errors) status = optim_fail(err, MEOPT_NO_MEMORY, "no memory for %zu tasks", opt->count);
    for (size_t i = 0; !status && i < opt->count; i++) {
        struct tensor *t = &opt->tensors[i];
        errors[i] = -1;
        if (gradients[i].data)
            status = task_prepare(opt, t, gradients[i].data, gradients[i].dtype, scale, &tasks[i], err);
        if (!status && gradients[i].data && adapt_due(opt, t))
            status = adapt_measure(opt, t, &tasks[i], &errors[i], err);
    }
    if (!status) status = sweep_steps(opt, opt->tensors, tasks, opt->count, true, err);
    if (status) opt->stepping = false;
    else {
        for (size_t i = 0; i < opt->count; i++)
            if (tasks[i].count) {
                int failed = task_finish(opt, &opt->tensors[i], false, errors[i], err);
                if (failed && !status) status = failed;
            }
        int ended = meopt_step_end(opt, stats, status ? NULL : err);
        if (!status) status = ended;
    }
    free(tasks);
    free(errors);
    return status;
}

/* Squares of groups begin to end of what was accumulated. */
static double accumulated_squares(const struct meopt *opt, const struct tensor *t, int64_t begin, int64_t end,
                                  int *finite)
{
    enum { AT_ONCE = 16 };
    float values[AT_ONCE * OPTIM_GROUP];
    double squares = 0;
    struct optim_task from = task_of(opt, t);
    from.m = t->accumulator;
    from.m_format = t->layout.accumulator;
    from.v_format = STATE_NONE;
    from.scales = (uint8_t *)t->accumulator + t->layout.accumulator_scales_at;
    for (int64_t g = begin; g < end; g += AT_ONCE) {
        int64_t stop = g + AT_ONCE < end ? g + AT_ONCE : end, left = t->layout.count - g * OPTIM_GROUP;
        int64_t n = (stop - g) * OPTIM_GROUP < left ? (stop - g) * OPTIM_GROUP : left;
        opt->kernels->state_out(&from, g, stop, values, NULL);
        optim_sum_squares(values, GRADIENT_F32, n, &squares, finite);
    }
    return squares;
}

/* What was accumulated on a card, in a copy. */
static int card_accumulated_squares(const struct meopt *opt, const struct tensor *t, double *squares,
                                    int *finite, struct meopt_error *err)
{
    struct tensor host = *t;
    host.accumulator = malloc(t->layout.accumulator_bytes);
    if (!host.accumulator) return optim_fail(err, MEOPT_NO_MEMORY, "no memory for a copy of %.100s", t->name);
    int status = card_read(opt, host.accumulator, t->accumulator, t->layout.accumulator_bytes, err);
    if (!status) *squares += accumulated_squares(opt, &host, 0, t->layout.groups, finite);
    free(host.accumulator);
    return status;
}

int meopt_gradient_norm(struct meopt *opt, const struct meopt_gradient *gradients, double *norm, int *finite,
                        struct meopt_error *err)
{
    if (!opt || !norm || !finite) return optim_fail(err, MEOPT_BAD_ARGUMENT, "a null argument");
    double squares = 0;
    int good = 1;
    for (size_t i = 0; i < opt->count; i++) {
        const struct tensor *t = &opt->tensors[i];
        struct meopt_gradient gradient = gradients ? gradients[i] : (struct meopt_gradient){0};
        size_t bytes = gradient.dtype == MEOPT_F32 ? 4 : 2;
        if (!gradient.data && !(t->accumulator && t->accumulated)) continue;
        if (gradient.data && ((gradient.dtype != MEOPT_F32 && gradient.dtype != MEOPT_BF16) ||
                              (uintptr_t)gradient.data % bytes))
            return optim_fail(err, MEOPT_BAD_ARGUMENT, "tensor %.100s: gradient dtype %d, or misaligned",
                              t->name, gradient.dtype);
        if (card_of(opt)) {
            int status = gradient.data
                             ? card_squares(opt, gradient.data,
                                            gradient.dtype == MEOPT_F32 ? GRADIENT_F32 : GRADIENT_BF16,
                                            t->layout.count, &squares, &good, err)
                             : card_accumulated_squares(opt, t, &squares, &good, err);
            if (status) return status;
            continue;
        }
        int64_t size = CHUNK_GROUPS * OPTIM_GROUP, chunks = chunks_of(t);
        struct optim_partial *partials = opt->partials + t->first_partial;
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads_of(opt)) if (chunks > 1) reduction(& : good)
#endif
        for (int64_t c = 0; c < chunks; c++) {
            int64_t n = t->layout.count - c * size < size ? t->layout.count - c * size : size;
            int64_t begin = c * CHUNK_GROUPS,
                    end = begin + CHUNK_GROUPS < t->layout.groups ? begin + CHUNK_GROUPS : t->layout.groups;
            int fine = 1;
            partials[c].gradient_squares = 0;
            if (gradient.data)
                optim_sum_squares((const char *)gradient.data + (size_t)(c * size) * bytes,
                                  gradient.dtype == MEOPT_F32 ? GRADIENT_F32 : GRADIENT_BF16, n,
                                  &partials[c].gradient_squares, &fine);
            else partials[c].gradient_squares = accumulated_squares(opt, t, begin, end, &fine);
            good &= fine;
        }
        for (int64_t c = 0; c < chunks; c++) squares += partials[c].gradient_squares;
    }
    *norm = sqrt(squares);
    *finite = good;
    return MEOPT_OK;
}

double meopt_clip_scale(double norm, double max_norm)
{
    double scale = max_norm / (norm + 1e-6);
    return scale < 1 ? scale : 1;
}

int meopt_accumulate(struct meopt *opt, size_t tensor, const void *gradient, enum meopt_dtype dtype,
                     double scale, struct meopt_error *err)
{
    if (!opt || tensor >= opt->count)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "no optimizer, or no tensor %zu in it", tensor);
    struct tensor *t = &opt->tensors[tensor];
    if (!t->accumulator || opt->options.dry)
        return optim_fail(err, MEOPT_BAD_ORDER, "tensor %.100s has no accumulator (option accumulator)",
                          t->name);
    if (!gradient || (dtype != MEOPT_F32 && dtype != MEOPT_BF16) ||
        (uintptr_t)gradient % (dtype == MEOPT_F32 ? 4 : 2) || !isfinite(scale))
        return optim_fail(err, MEOPT_BAD_ARGUMENT,
                          "tensor %.100s: no gradient, dtype %d, misaligned, or scale %g", t->name,
                          (int)dtype, scale);
    struct optim_task task = task_of(opt, t);
    int64_t step = t->updates + 1;
    task.rule = RULE_ACCUMULATE;
    task.gradient = gradient;
    task.gradient_format = dtype == MEOPT_F32 ? GRADIENT_F32 : GRADIENT_BF16;
    task.m = t->accumulator;
    task.m_format = t->layout.accumulator;
    task.v_format = STATE_NONE;
    task.scales = (uint8_t *)t->accumulator + t->layout.accumulator_scales_at;
    task.s.gradient_scale = (float)scale;
    task.step[0] = (uint32_t)step;
    task.step[1] = ((uint32_t)t->accumulated & 0xffffffu) | (uint32_t)RANDOM_ACCUMULATE << 24;
    int status = sweep(opt, t, &task, 1, true, err);
    if (status) return status;
    t->accumulated++;
    if (partials_total(opt, t).bad_groups) return not_finite(err, t);
    return MEOPT_OK;
}
