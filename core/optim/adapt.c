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
#include <stdlib.h>
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

int adapt_load(const struct meopt *opt, struct tensor *t, const void *from, bool before,
               struct meopt_error *err)
{
    struct tensor host;
    struct sampled head;
    memcpy(&head, from, sizeof head);
    const struct layout *l = &t->layout;
    int status = tensor_hold(opt, t, PART_SAMPLES, &host, err);
    if (status) return status;
    struct sample *samples = samples_at(&host, false);
    if (samples_bytes(t)) memcpy(samples, (const char *)from + sizeof head, samples_bytes(t));
    if (head.m == narrower(l->m, l->asked_m) && head.v == narrower(l->v, l->asked_v) &&
        !(before && head.m == STATE_8BIT))
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
        if (state_scales_wrong(head.m, head.v, RECORD_TODAY, s.codes + 256, 1) < 1)
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

/* States of a sample that take the step: exact; of a promoted tensor also since_m and since_v, and the trial.
 */
enum { EXACT, SINCE, TRIAL, SHADOWS };
_Static_assert(sizeof(struct sample_room) == SHADOWS * SAMPLE_WEIGHTS, "weights beside each state");

/* A group of a task as a task of its own. */
static struct optim_task task_group(const struct optim_task *whole, int64_t group)
{
    struct optim_task one = *whole;
    int64_t left = whole->count - group * OPTIM_GROUP;
    size_t at = (size_t)group, m = optim_state_bytes(whole->m_format), v = optim_state_bytes(whole->v_format),
           gradient = whole->gradient_format == GRADIENT_F32 ? OPTIM_GROUP * 4
                      : whole->gradient_format == GRADIENT_BF16
                          ? OPTIM_GROUP * 2
                          : optim_state_bytes(whole->accumulator_format);
    if (OPTIM_PAIR(whole->m_format, whole->v_format)) {
        m += v;
        v = 0;
    }
    one.count = left < OPTIM_GROUP ? left : OPTIM_GROUP;
    one.first_group += group;
    one.gradient = whole->gradient ? (const char *)whole->gradient + at * gradient : NULL;
    if (whole->gradient_scales) one.gradient_scales += at;
    one.weights = (char *)whole->weights + at * OPTIM_GROUP * optim_weight_bytes(whole->weight_format);
    if (whole->correction)
        one.correction = (char *)whole->correction + at * optim_correction_bytes(whole->weight_format);
    one.m = (char *)whole->m + at * m;
    if (whole->v) one.v = (char *)whole->v + at * v;
    one.scales = whole->scales + at * optim_scale_bytes(whole->m_format, whole->v_format);
    return one;
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

/* Tasks of the states of a sample, whose group's task is `one`; how many there are. */
static size_t shadow_tasks(const struct meopt *opt, const struct tensor *t, const struct optim_task *one,
                           struct sample *s, struct optim_task to[SHADOWS])
{
    to[EXACT] = exact_task(one, s->m, s->v);
    if (!t->promoted) return 1;
    to[SINCE] = exact_task(one, s->since_m, s->since_v);
    to[TRIAL] = trial_task(t, one, s);
    to[TRIAL].m_range = t->trial.m == STATE_4BIT ? opt->m_range4 : opt->m_range8;
    return SHADOWS;
}

static void copy_here(const struct meopt *opt, void *to, const void *from, size_t bytes)
{
    if (!bytes) return;
    if (opt->device->host_memory) memcpy(to, from, bytes);
    else opt->device->ops->copy(opt->device, to, from, bytes);
}

/* A task steps weights that nobody wants, where `room` is; those of its group where its moments ask for them.
 */
static void weights_apart(const struct meopt *opt, struct optim_task *task, uint8_t *room)
{
    size_t correction = optim_correction_bytes(task->weight_format);
    if ((task->rule == RULE_ADAM || task->rule == RULE_SGD) && task->s.weight_decay != 0) {
        copy_here(opt, room, task->weights, (size_t)task->count * optim_weight_bytes(task->weight_format));
        copy_here(opt, room + SAMPLE_WEIGHTS / 2, task->correction, correction);
        if (task->weight_format == WEIGHTS_F32_COPY) task->weight_format = WEIGHTS_F32;
    } else task->weight_format = WEIGHTS_F32;
    task->weights = room;
    task->correction = room + SAMPLE_WEIGHTS / 2;
    task->copy = NULL;
}

/* The steps of the samples of one tensor: their tasks, how many there are. */
static size_t samples_step(const struct meopt *opt, struct tensor *t, const struct optim_task *whole,
                           struct optim_task *tasks)
{
    const struct samples *s = &t->layout.samples;
    struct sample *next = samples_at(t, true);
    struct sample_room *rooms = (struct sample_room *)((char *)t->samples + sample_rooms_at(s));
    size_t count = 0;
    copy_here(opt, next, samples_at(t, false), samples_bytes(t));
    for (int64_t k = 0; k < s->count; k++) {
        struct optim_task one = task_group(whole, sample_group(s, k) - t->layout.first_sampled);
        if (one.rule == RULE_LAMB) one.rule = RULE_ADAMW; /* the same moments */
        size_t shadows = shadow_tasks(opt, t, &one, &next[k], &tasks[count]);
        for (size_t i = 0; i < shadows; i++) weights_apart(opt, &tasks[count + i], rooms[k].weights[i]);
        count += shadows;
    }
    t->root_scale = whole->s.root_scale;
    t->eps = whole->s.eps;
    return count;
}

static void shadows_sweep(const struct meopt *opt, struct optim_task *tasks, size_t count,
                          struct optim_partial *partials, const struct optim_clip *clip)
{
    struct optim_clip same;
    if (clip) {
        same = *clip;
        same.refuses = false; /* what is not finite is left out by itself */
    }
    for (size_t i = 0; i < count; i++) tasks[i].first_partial = (int64_t)i;
    opt->device->optim->step(opt->device, opt->shadows,
                             &(struct optim_sweep){.tasks = tasks,
                                                   .count = count,
                                                   .partials = partials,
                                                   .kernels = opt->kernels,
                                                   .threads = opt->options.threads,
                                                   .clip = clip ? &same : NULL,
                                                   .bad = -1});
}

int adapt_step(struct meopt *opt, const size_t *tensors, const struct optim_task *tasks, size_t count,
               const struct optim_clip *clip, struct meopt_error *err)
{
    enum { ROOM = ADAPT_TASKS };
    struct optim_task *shadows = NULL;
    struct optim_partial *partials = NULL;
    size_t filled = 0;
    int status = MEOPT_OK;
    for (size_t i = 0; i < count && !status; i++) {
        struct tensor *t = &opt->tensors[tensors[i]];
        if (!adapt_watches(&opt->options, &t->layout) || !t->layout.samples.count) continue;
        if (!shadows) {
            shadows = malloc(ROOM * sizeof *shadows);
            partials = malloc(ROOM * sizeof *partials);
        }
        if (!shadows || !partials) status = optim_fail(err, MEOPT_NO_MEMORY, "no memory for %d tasks", ROOM);
        if (status) break;
        if (filled + SHADOWS * SAMPLE_GROUPS > ROOM) {
            shadows_sweep(opt, shadows, filled, partials, clip);
            filled = 0;
        }
        filled += samples_step(opt, t, &tasks[i], &shadows[filled]);
    }
    if (filled && !status) shadows_sweep(opt, shadows, filled, partials, clip);
    free(shadows);
    free(partials);
    return status ? status : optim_device_status(opt, err);
}

/* ---- Measuring ---------------------------------------------------------------------------------------- */

/* What is added up: squares of differences between updates, and of updates; and, of each tensor, whether it
 * cannot be told. */
enum { STORED_SINCE, SIZE_SINCE, STORED_EXACT, TRIAL_EXACT, SIZE_EXACT, SUMS };
enum { VALUES = SUMS * SAMPLE_GROUPS + 1 };

size_t adapt_values(void) { return VALUES; }

/* Of a state after the step: its updates. */
static void updates_of(const struct meopt *opt, const struct tensor *t, const struct optim_task *task,
                       double u[OPTIM_GROUP])
{
    bool has_v = task->v_format != STATE_NONE;
    float m[OPTIM_GROUP], v[OPTIM_GROUP];
    opt->kernels->state_out(task, 0, 1, m, has_v ? v : NULL);
    for (int i = 0; i < OPTIM_GROUP; i++)
        u[i] = has_v ? (double)m[i] / (sqrt((double)v[i]) * (double)t->root_scale + (double)t->eps)
                     : (double)m[i];
}

static double squares_between(const double *a, const double *b)
{
    double sum = 0;
    for (int i = 0; i < OPTIM_GROUP; i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sum;
}

/* A sample and the stored state of its group, both on the host. */
struct seen {
    struct sample sample;
    _Alignas(64) uint8_t m[OPTIM_GROUP * 4], v[OPTIM_GROUP * 4], scales[8];
};

static bool measured_now(const struct meopt *opt, const struct tensor *t)
{
    return t->stepped && adapt_due(opt, t);
}

void adapt_fetch(struct meopt *opt)
{
    struct device *dev = opt->device;
    if (dev->host_memory) return;
    for (size_t i = 0; i < opt->count; i++) {
        const struct tensor *t = &opt->tensors[i];
        if (!measured_now(opt, t)) continue;
        if (!opt->seen) opt->seen = dev->queues->host_allocate(dev, opt->samples * sizeof(struct seen));
        if (!opt->seen) return;
        struct optim_task whole = task_of(opt, t);
        bool pair = OPTIM_PAIR(whole.m_format, whole.v_format);
        for (int64_t k = 0; k < t->layout.samples.count; k++) {
            struct seen *to = (struct seen *)opt->seen + t->first_seen + k;
            struct optim_task one =
                task_group(&whole, sample_group(&t->layout.samples, k) - t->layout.first_sampled);
            const struct sample *sample = samples_at(t, false) + k;
            dev->queues->download(dev, NULL, &to->sample, sample, sizeof *sample);
            dev->queues->download(dev, NULL, to->m, one.m, optim_state_bytes(one.m_format) * (pair ? 2 : 1));
            if (!pair && one.v_format != STATE_NONE)
                dev->queues->download(dev, NULL, to->v, one.v, optim_state_bytes(one.v_format));
            dev->queues->download(dev, NULL, to->scales, one.scales,
                                  optim_scale_bytes(one.m_format, one.v_format));
        }
    }
}

/* The sums of one sample. */
static void sample_sums(const struct meopt *opt, const struct tensor *t, int64_t k, double *sums)
{
    static const double none[OPTIM_GROUP];
    double u[OPTIM_GROUP], exact_u[OPTIM_GROUP], since_u[OPTIM_GROUP], trial_u[OPTIM_GROUP];
    struct optim_task whole = task_of(opt, t), shadows[SHADOWS],
                      one = task_group(&whole, sample_group(&t->layout.samples, k) - t->layout.first_sampled);
    struct sample *sample;
    if (opt->device->host_memory) sample = samples_at(t, false) + k;
    else {
        struct seen *seen = (struct seen *)opt->seen + t->first_seen + k;
        sample = &seen->sample;
        one.m = seen->m;
        one.v = seen->v;
        one.scales = seen->scales;
    }
    shadow_tasks(opt, t, &one, sample, shadows);
    updates_of(opt, t, &one, u);
    updates_of(opt, t, &shadows[EXACT], exact_u);
    updates_of(opt, t, &shadows[t->promoted ? SINCE : EXACT], since_u);
    updates_of(opt, t, &shadows[t->promoted ? TRIAL : EXACT], trial_u);
    sums[STORED_SINCE] = squares_between(u, since_u);
    sums[SIZE_SINCE] = squares_between(since_u, none);
    sums[STORED_EXACT] = squares_between(u, exact_u);
    sums[TRIAL_EXACT] = squares_between(trial_u, exact_u);
    sums[SIZE_EXACT] = squares_between(exact_u, none);
}

static void tensor_sums(const struct meopt *opt, const struct tensor *t, double sums[VALUES])
{
    const struct samples *s = &t->layout.samples;
    memset(sums, 0, VALUES * sizeof *sums);
    if (t->found.bad_groups || (s->count && !opt->device->host_memory && !opt->seen)) sums[VALUES - 1] = 1;
    else
        for (int64_t k = 0; k < s->count; k++) sample_sums(opt, t, k, &sums[SUMS * (s->first + k)]);
}

static void errors_of(const struct tensor *t, const double sums[VALUES], double errors[2])
{
    double total[SUMS] = {0};
    for (int k = 0; k < SUMS * SAMPLE_GROUPS; k++) total[k % SUMS] += sums[k];
    errors[0] = total[SIZE_SINCE] > 0 ? sqrt(total[STORED_SINCE] / total[SIZE_SINCE]) : 0;
    errors[1] =
        total[SIZE_EXACT] > 0 ? sqrt(fmax(total[STORED_EXACT], total[TRIAL_EXACT]) / total[SIZE_EXACT]) : 0;
    if (!t->promoted) errors[1] = -1;
}

/* Steps after which an average has forgotten what it began with. */
static double steps_remembered(const struct meopt *opt, const struct tensor *t)
{
    struct meopt_options own;
    const struct meopt_options *o = tensor_options(opt, t, &own);
    return 1 / (1 - (o->rule == MEOPT_APSGD ? o->momentum : o->beta2));
}

/* After a step that was due: promote or demote. */
static int adapt_act(struct meopt *opt, struct tensor *t, const double errors[2], struct meopt_error *err)
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

int adapt_measure(struct meopt *opt, struct meopt_error *err)
{
    size_t count = 0;
    for (size_t i = 0; i < opt->count; i++)
        if (measured_now(opt, &opt->tensors[i]))
            tensor_sums(opt, &opt->tensors[i], opt->sums + VALUES * count++);
    int status = count ? optim_reduce(opt, opt->sums, VALUES * count, err) : MEOPT_OK;
    if (status) return status;
    count = 0;
    for (size_t i = 0; i < opt->count; i++) {
        struct tensor *t = &opt->tensors[i];
        double errors[2];
        if (!measured_now(opt, t)) continue;
        const double *sums = opt->sums + VALUES * count++;
        if (sums[VALUES - 1] > 0) continue;
        errors_of(t, sums, errors);
        int acted = adapt_act(opt, t, errors, status ? NULL : err);
        if (!status) status = acted;
    }
    return status;
}
