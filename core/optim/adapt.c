/* Adaptive precision: how far the stored moments of a tensor are from exact ones of the same gradients, on a
 * sample of its groups; promotion of tensors where that is too far, and the way back.
 *
 * Of up to 16 groups, evenly spread, the moments are kept in fp32, too, and take every step: what the stored
 * ones have lost since is all there, not what one rounding loses. Every adapt_every steps both say what the
 * next update would be if it depended on the state alone: u = m / (sqrt(v) root_scale + eps), m for rules
 * without v. The error is ||u(stored) - u(exact)|| / ||u(exact)||.
 *
 * A promotion cannot mend what the narrower format has lost. So a wider tensor's error is counted from what
 * was stored at its promotion (since_m, since_v); and it goes back when the moments stored have come near
 * those that are exact since the first step, and the narrower format would hold these: its sampled groups are
 * kept in that format as well (the trial), with the random bits that they would have. Both then have half of
 * the threshold at most, after as many steps as the averages remember.
 *
 * Samples stand twice: a step makes the next ones from those that count, so a step that is refused afterwards
 * leaves them as they were.
 */
#include "core/optim/state.h"

#include <float.h>
#include <math.h>
#include <string.h>

struct samples samples_in(int64_t whole_groups, int64_t first_group, int64_t groups)
{
    struct samples s = {.of = whole_groups};
    int64_t all = whole_groups < SAMPLE_GROUPS ? whole_groups : SAMPLE_GROUPS, end = first_group + groups;
    if (!whole_groups) return s;
    s.first = (first_group * all + whole_groups - 1) / whole_groups;
    s.count = (end * all + whole_groups - 1) / whole_groups - s.first;
    return s;
}

int64_t sample_group(const struct samples *s, int64_t k)
{
    return (s->first + k) * s->of / (s->of < SAMPLE_GROUPS ? s->of : SAMPLE_GROUPS);
}

bool adapt_watches(const struct meopt_options *o, const struct layout *l)
{
    return o->adapt_every > 0 && (OPTIM_LOW_BIT(l->asked_m) || OPTIM_LOW_BIT(l->asked_v));
}

bool adapt_due(const struct meopt *opt, const struct tensor *t)
{
    return adapt_watches(&opt->options, &t->layout) && opt->step % opt->options.adapt_every == 0;
}

size_t samples_bytes(const struct tensor *t)
{
    return (size_t)t->layout.samples.count * sizeof(struct sample);
}

/* Those that count, and those of the step that goes on. */
static struct sample *samples_at(const struct tensor *t, bool next)
{
    return (struct sample *)t->samples + (t->second != next ? t->layout.samples.count : 0);
}

/* ---- Formats ------------------------------------------------------------------------------------------ */

static int wider(int format)
{
    return format == STATE_4BIT   ? STATE_8BIT
           : format == STATE_8BIT ? STATE_BF16
           : format == STATE_BF16 ? STATE_F32
                                  : format;
}

static int narrower(int format, int asked)
{
    if (format == asked) return format;
    return format == STATE_F32 ? STATE_BF16 : format == STATE_BF16 ? STATE_8BIT : STATE_4BIT;
}

/* A task of one group whose state is a sample's trial. */
static struct optim_task trial_task(const struct tensor *t, const struct optim_task *task, struct sample *s)
{
    struct optim_task trial = *task;
    trial.m_format = t->trial.m;
    trial.v_format = t->trial.v;
    trial.m = s->codes;
    trial.v = s->codes + 128;
    trial.scales = s->codes + 256;
    return trial;
}

/* The trial of the next narrower format, from the samples' exact moments; none where there is none. */
static void trial_begin(const struct meopt *opt, struct tensor *t, struct sample *samples)
{
    const struct layout *l = &t->layout;
    t->trial = (struct trial){narrower(l->m, l->asked_m), narrower(l->v, l->asked_v), t->updates};
    if (!t->promoted) return;
    for (int64_t k = 0; k < l->samples.count; k++) {
        memset(samples[k].codes, 0, sizeof samples[k].codes);
        struct optim_task task = task_of(opt, t);
        task.m_range = t->trial.m == STATE_4BIT ? opt->m_range4 : opt->m_range8;
        task = trial_task(t, &task, &samples[k]);
        opt->kernels->state_in(&task, 0, 1, samples[k].m, l->v == STATE_NONE ? NULL : samples[k].v);
    }
}

void adapt_done(struct tensor *t) { t->second = !t->second; }

int adapt_undone(const struct meopt *opt, struct tensor *t, struct meopt_error *err)
{
    t->second = !t->second;
    return t->promoted ? adapt_restart(opt, t, true, err)
                       : MEOPT_OK; /* it may be that step that promoted it */
}

/* ---- In and out --------------------------------------------------------------------------------------- */

int adapt_restart(const struct meopt *opt, struct tensor *t, bool promoted, struct meopt_error *err)
{
    const struct layout *l = &t->layout;
    struct tensor host;
    int status = tensor_hold(opt, t, PART_STATE | PART_SAMPLES, &host, err);
    if (status) return status;
    struct sample *samples = samples_at(&host, false);
    struct optim_task task = task_of(opt, &host);
    for (int64_t k = 0; k < l->samples.count; k++) {
        int64_t group = sample_group(&l->samples, k) - l->first_sampled;
        struct sample *x = &samples[k];
        opt->kernels->state_out(&task, group, group + 1, x->since_m, l->v == STATE_NONE ? NULL : x->since_v);
        if (promoted) continue;
        memcpy(x->m, x->since_m, sizeof x->m);
        memcpy(x->v, x->since_v, sizeof x->v);
    }
    trial_begin(opt, &host, samples);
    t->trial = host.trial;
    return tensor_release(opt, t, &host, true, err);
}

int adapt_save(const struct meopt *opt, const struct tensor *t, void *to, struct meopt_error *err)
{
    struct tensor host;
    struct sampled head = {t->trial.since, t->trial.m, t->trial.v};
    memcpy(to, &head, sizeof head);
    int status = tensor_hold(opt, t, PART_SAMPLES, &host, err);
    if (status) return status;
    if (samples_bytes(t)) memcpy((char *)to + sizeof head, samples_at(&host, false), samples_bytes(t));
    return tensor_release(opt, t, &host, false, NULL);
}

int adapt_load(const struct meopt *opt, struct tensor *t, const void *from, struct meopt_error *err)
{
    struct tensor host;
    struct sampled head;
    memcpy(&head, from, sizeof head);
    const struct layout *l = &t->layout;
    int status = tensor_hold(opt, t, PART_SAMPLES, &host, err);
    if (status) return status;
    struct sample *samples = samples_at(&host, false);
    if (samples_bytes(t)) memcpy(samples, (const char *)from + sizeof head, samples_bytes(t));
    if (head.m == narrower(l->m, l->asked_m) && head.v == narrower(l->v, l->asked_v))
        host.trial = (struct trial){head.m, head.v, head.since};
    else trial_begin(opt, &host, samples);
    t->trial = host.trial;
    return tensor_release(opt, t, &host, true, err);
}

const char *adapt_check(const struct meopt *opt, const struct tensor *t, const void *from)
{
    struct sampled head;
    memcpy(&head, from, sizeof head);
    bool v = t->layout.v != STATE_NONE;
    if (head.since < 0 || !meopt_state_format_name(head.m) ||
        (v ? !meopt_state_format_name(head.v) : head.v != STATE_NONE))
        return "the formats of its samples are impossible";
    for (int64_t k = 0; k < t->layout.samples.count; k++) {
        struct sample s;
        struct tensor of = {.trial = {head.m, head.v, 0}};
        float decoded_m[OPTIM_GROUP], decoded_v[OPTIM_GROUP] = {0};
        memcpy(&s, (const char *)from + sizeof head + (size_t)k * sizeof s, sizeof s);
        struct optim_task task = task_of(opt, t);
        task.m_range = head.m == STATE_4BIT ? opt->m_range4 : opt->m_range8;
        task = trial_task(&of, &task, &s);
        if (state_scales_wrong(head.m, head.v, OPTIM_PAIR(head.m, head.v), s.codes + 256, 1) < 1)
            return "the scale of a sample is impossible";
        opt->kernels->state_out(&task, 0, 1, decoded_m, v ? decoded_v : NULL);
        for (int i = 0; i < OPTIM_GROUP; i++)
            if (!isfinite(s.m[i]) || !(s.v[i] >= 0 && isfinite(s.v[i])) || !isfinite(decoded_m[i]) ||
                !(decoded_v[i] >= 0 && isfinite(decoded_v[i])) || !isfinite(s.since_m[i]) ||
                !(s.since_v[i] >= 0 && isfinite(s.since_v[i])))
                return "a sample holds a NaN, an infinity or a negative second moment";
    }
    return NULL;
}

/* ---- The step ----------------------------------------------------------------------------------------- */

/* The gradient of a task of one group in fp32, padded with zeros. */
static void group_gradient(const struct meopt *opt, const struct optim_task *task,
                           float gradient[OPTIM_GROUP])
{
    size_t count = (size_t)task->count;
    memset(gradient, 0, OPTIM_GROUP * 4);
    if (task->gradient_format == GRADIENT_F32) memcpy(gradient, task->gradient, count * 4);
    else if (task->gradient_format == GRADIENT_BF16)
        for (size_t i = 0; i < count; i++) {
            uint32_t bits = (uint32_t)((const uint16_t *)task->gradient)[i] << 16;
            memcpy(&gradient[i], &bits, 4);
        }
    else {
        struct optim_task from = *task;
        from.m = (void *)(uintptr_t)task->gradient;
        from.scales = (uint8_t *)(uintptr_t)task->gradient_scales;
        from.m_format = task->accumulator_format;
        from.v_format = STATE_NONE;
        opt->kernels->state_out(&from, 0, 1, gradient, NULL);
    }
}

/* A step of one group's state; its weights are not wanted. */
static void state_step(const struct meopt *opt, const struct optim_task *task, const float *weights)
{
    float moved[OPTIM_GROUP];
    struct optim_task copy = *task;
    struct optim_partial found;
    memcpy(moved, weights, sizeof moved);
    copy.weights = moved;
    opt->kernels->step(&copy, 0, 1, &found);
}

/* Of a state after the step: its updates. */
static void updates_of(const struct meopt *opt, const struct optim_task *task, double u[OPTIM_GROUP])
{
    bool has_v = task->v_format != STATE_NONE;
    float m[OPTIM_GROUP], v[OPTIM_GROUP];
    opt->kernels->state_out(task, 0, 1, m, has_v ? v : NULL);
    for (int i = 0; i < OPTIM_GROUP; i++)
        u[i] = has_v ? (double)m[i] / (sqrt((double)v[i]) * (double)task->s.root_scale + (double)task->s.eps)
                     : (double)m[i];
}

static double squares_between(const double *a, const double *b)
{
    double sum = 0;
    for (int i = 0; i < OPTIM_GROUP; i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sum;
}

/* The stored state of one group, copied, takes the step, too. */
static void stored_step(const struct meopt *opt, const struct optim_task *task, const float *weights,
                        double u[OPTIM_GROUP])
{
    _Alignas(64) uint8_t m[OPTIM_GROUP * 4], v[OPTIM_GROUP * 4], scales[8];
    struct optim_task stored = *task;
    bool pair = OPTIM_PAIR(task->m_format, task->v_format);
    memcpy(m, task->m, optim_state_bytes(task->m_format) * (pair ? 2 : 1));
    if (!pair) memcpy(v, task->v, optim_state_bytes(task->v_format));
    memcpy(scales, task->scales, optim_scale_bytes(task->m_format, task->v_format));
    stored.m = m;
    stored.v = v;
    stored.scales = scales;
    state_step(opt, &stored, weights);
    updates_of(opt, &stored, u);
}

static struct optim_task exact_task(const struct optim_task *task, float *m, float *v)
{
    struct optim_task exact = *task;
    exact.m = m;
    exact.v = v;
    exact.m_format = STATE_F32;
    exact.v_format = task->v_format == STATE_NONE ? STATE_NONE : STATE_F32;
    exact.s.direction_limit = FLT_MAX;
    return exact;
}

/* What is added up: squares of differences between updates, and of updates. */
enum { STORED_SINCE, SIZE_SINCE, STORED_EXACT, TRIAL_EXACT, SIZE_EXACT, SUMS };

/* The task of a sampled group alone, whose gradient and weights are in fp32, in *room. */
struct alone {
    struct group_room room;
    float gradient[OPTIM_GROUP], weights[OPTIM_GROUP];
    struct optim_task task;
};
static int alone_hold(const struct meopt *opt, const struct optim_task *whole, int64_t group, bool state,
                      struct alone *a, struct meopt_error *err)
{
    struct optim_task from = *whole;
    bool decays = (whole->rule == RULE_ADAM || whole->rule == RULE_SGD) && whole->s.weight_decay != 0;
    if (!decays) from.weights = from.copy = from.correction = NULL; /* moments do not ask for them */
    if (!state) from.m = from.v = from.scales = NULL;
    int status = group_hold(opt, &from, group, &a->room, &a->task, err);
    if (status) return status;
    group_gradient(opt, &a->task, a->gradient);
    memset(a->weights, 0, sizeof a->weights);
    if (decays) opt->kernels->weights_out(&a->task, 0, 1, a->weights);
    a->task.count = OPTIM_GROUP;
    a->task.rule = whole->rule == RULE_LAMB ? RULE_ADAMW : whole->rule;
    a->task.gradient = a->gradient;
    a->task.gradient_format = GRADIENT_F32;
    a->task.weight_format = WEIGHTS_F32;
    return MEOPT_OK;
}

/* One sample takes the step; sums: NULL where it is not due. */
static int sample_step(const struct meopt *opt, const struct tensor *t, const struct optim_task *whole,
                       int64_t k, struct sample *next, double *sums, struct meopt_error *err)
{
    static const double none[OPTIM_GROUP];
    struct alone a;
    double u[OPTIM_GROUP], exact_u[OPTIM_GROUP], since_u[OPTIM_GROUP], trial_u[OPTIM_GROUP];
    int64_t group = sample_group(&t->layout.samples, k) - t->layout.first_sampled;
    int status = alone_hold(opt, whole, group, sums != NULL, &a, err);
    if (status) return status;
    struct optim_task exact = exact_task(&a.task, next->m, next->v),
                      since = exact_task(&a.task, next->since_m, next->since_v),
                      trial = trial_task(t, &a.task, next);
    trial.m_range = t->trial.m == STATE_4BIT ? opt->m_range4 : opt->m_range8;
    state_step(opt, &exact, a.weights);
    if (t->promoted) {
        state_step(opt, &since, a.weights);
        state_step(opt, &trial, a.weights);
    }
    if (!sums) return MEOPT_OK;
    stored_step(opt, &a.task, a.weights, u);
    updates_of(opt, &exact, exact_u);
    updates_of(opt, t->promoted ? &since : &exact, since_u);
    updates_of(opt, t->promoted ? &trial : &exact, trial_u);
    sums[STORED_SINCE] = squares_between(u, since_u);
    sums[SIZE_SINCE] = squares_between(since_u, none);
    sums[STORED_EXACT] = squares_between(u, exact_u);
    sums[TRIAL_EXACT] = squares_between(trial_u, exact_u);
    sums[SIZE_EXACT] = squares_between(exact_u, none);
    return MEOPT_OK;
}

int adapt_step(const struct meopt *opt, const struct tensor *t, const struct optim_task *task,
               double errors[2], struct meopt_error *err)
{
    const struct samples *s = &t->layout.samples;
    bool due = adapt_due(opt, t);
    double sums[SUMS * SAMPLE_GROUPS] = {0}, total[SUMS] = {0};
    struct tensor host;
    int status = tensor_hold(opt, t, PART_SAMPLES, &host, err);
    if (status) return status;
    struct sample *now = samples_at(&host, false), *next = samples_at(&host, true);
    for (int64_t k = 0; k < s->count && !status; k++) {
        next[k] = now[k];
        status = sample_step(opt, t, task, k, &next[k], due ? &sums[SUMS * (s->first + k)] : NULL, err);
    }
    int released = tensor_release(opt, t, &host, !status, status ? NULL : err);
    if (!status) status = released;
    if (!due || status) return status;
    status = optim_reduce(opt, sums, SUMS * SAMPLE_GROUPS, err);
    for (int k = 0; k < SUMS * SAMPLE_GROUPS; k++) total[k % SUMS] += sums[k];
    errors[0] = total[SIZE_SINCE] > 0 ? sqrt(total[STORED_SINCE] / total[SIZE_SINCE]) : 0;
    errors[1] =
        total[SIZE_EXACT] > 0 ? sqrt(fmax(total[STORED_EXACT], total[TRIAL_EXACT]) / total[SIZE_EXACT]) : 0;
    if (!t->promoted) errors[1] = -1;
    return status;
}

/* Steps after which an average has forgotten what it began with. */
static double steps_remembered(const struct meopt *opt, const struct tensor *t)
{
    struct meopt_options own;
    const struct meopt_options *o = tensor_options(opt, t, &own);
    return 1 / (1 - (o->rule == MEOPT_APSGD ? o->momentum : o->beta2));
}

int adapt_act(struct meopt *opt, struct tensor *t, const double errors[2], struct meopt_error *err)
{
    const struct meopt_options *o = &opt->options;
    const struct layout *l = &t->layout;
    struct meopt_report report = {t->name, opt->step, errors[0], o->adapt_threshold, l->m,
                                  l->v,    l->m,      l->v,      errors[1]};
    int status = MEOPT_OK, m = l->m, v = l->v;
    if (!(errors[0] <= o->adapt_threshold)) {
        if (OPTIM_LOW_BIT(l->m)) m = wider(l->m);
        if (OPTIM_LOW_BIT(l->v)) v = wider(l->v);
    } else if (t->promoted && errors[1] <= o->adapt_threshold / 2 &&
               (double)(t->updates - t->trial.since) >= steps_remembered(opt, t)) {
        m = t->trial.m;
        v = t->trial.v;
    }
    if (m != l->m || v != l->v) {
        status = state_convert(opt, t, m, v, err);
        report.new_first_moment = l->m;
        report.new_second_moment = l->v;
        if (!status) status = adapt_restart(opt, t, true, err);
    }
    if (o->report) o->report(o->context, &report);
    return status == MEOPT_NO_MEMORY ? MEOPT_OK
                                     : status; /* the step is made; the next one that is due asks again */
}
