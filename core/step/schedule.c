/* The order of work in a step. Read this file first: the rest of a step is what it calls.
 *
 * Each rank has `rounds` micro-batches in a step. A wave of them runs forward and backward before the next
 * wave; a pass visits the groups one after the other (the embedding, a block, or the head), and in each
 * group all micro-batches of the wave:
 *
 *     for each wave:
 *         forward        for group 0 .. last:       for each micro-batch:  x_g+1 = f_g(x_g, w_g)
 *         loss           of each micro-batch:       L, dL/dx_last+1
 *         backward       for group last .. lowest:  for each micro-batch:  dL/dx_g; take dL/dw_g
 *     update of w_g      from the sum of dL/dw_g over all micro-batches of all ranks
 *
 * x_g and dL/dx_g, the residual stream, are F32 (images * tokens, width) of a micro-batch; dL/dw_g has the
 * shape of the weights, in bf16 or F32, and its buffer is that of one group: it must be taken before the next
 * gradient is there. Depth-first rounds are waves of one micro-batch, breadth-first ones a single wave.
 *
 * Clipping scales all gradients by min(1, c / |dL/dw|), and |dL/dw| is known after the last gradient only. So
 * three orders of an update exist:
 *
 *     inside     apply each group in the last wave's backward, clipped by another norm (clipping.c), or not
 *     twice      a first backward pass of the last wave measures, a second one computes the same bits again
 *                and applies
 *     at end     gradients of all groups are kept, or their sums: measured in the backward pass, applied
 *                afterwards
 *
 *   mode         gradients stored      order    norm for clipping
 *   kept         all                   at end   exact
 *   released     one group             inside   previous: of the last step; block: the group's share
 *   twice        one group             twice    exact
 *   accumulated  one group, and bf16   at end   exact: of the accumulators
 *   (or waves)   accumulators
 *   breadth      one group, and bf16   twice    exact
 *                accumulators of one
 *   ranks        see step_ranks.c
 *
 * kept: optim.gradients keep. released, twice (clip_mode exact): optim.gradients release with the whole batch
 * in one forward. accumulated, breadth, waves: release with train.micro_batch below batch_size, by
 * train.rounds and train.wave; the same bits. clip_mode auto is exact, except in mode released, where exact
 * has a cost. The modes are sinks (schedule.h): sinks.c has those of one rank, step_ranks.c that of several.
 * With stages (dist.pipeline) the same passes run in the order of step_pipeline.c. */
#include "core/step/schedule.h"
#include "core/step/step.h"
#include "core/step/weight_stream.h"

#include <math.h>

/* ---- waves and passes ---- */

/* Measures and applies the gradients of the step, in the last wave. */
static int update(struct step *s, struct error *err)
{
    const struct schedule *o = s->order;
    const struct sink *sink = s->sink;
    int code = 0;
    if ((o->twice || o->at_end) && sink->measured) code = sink->measured(s, err);
    if (!code && sink->begin) code = sink->begin(s, err);
    if (code) return code;
    s->measures = false;
    if (!o->at_end) code = s->backward(s, err);
    for (int group = o->last; group >= o->lowest && o->at_end && !code; group--)
        code = sink->apply(s, group, err);
    return sink->end ? sink->end(s, code, err) : code;
}

int schedule_run(struct step *s, struct error *err)
{
    struct schedule *o = s->order;
    bool reads = s->read_loss && !s->sink->reads_losses;
    int code = 0;
    for (o->first = 0; o->first < o->rounds && !code; o->first += o->wave) {
        int64_t left = o->rounds - o->first;
        bool last = left <= o->wave;
        o->count = last ? left : o->wave;
        code = s->forward(s, err);
        s->unread = last && reads && s->loss_late;
        if (!code && last && reads && !s->loss_late) code = s->read_loss(s, err);
        s->measures = true;
        if (!code && (!last || o->twice || o->at_end)) code = s->backward(s, err);
        if (!code && last) code = update(s, err);
    }
    o->first = 0;
    return code;
}

/* ---- groups and micro-batches ---- */

int group_pass_run(const struct group_pass *p, struct error *err)
{
    int code = 0;
    for (int group = p->from; !code; group += p->by) {
        bool end = group == p->to || p->whole;
        if (p->need) code = p->need(p->context, group, end ? -1 : group + p->by, err);
        for (int64_t slot = 0; slot < p->count && !code; slot++) {
            code = p->compute(p->context, slot, group, err);
            if (!code && p->computed) code = p->computed(p->context, slot, group, true, err);
        }
        if (end) break;
    }
    return code;
}

/* Waits until a gradient is taken; that of the last round completes the group's sum. */
static int wait_taken(struct step *s, struct in_flight flight, struct error *err)
{
    const struct sink *sink = s->sink;
    if (flight.group < 0) return 0;
    int code = sink->wait ? sink->wait(s, flight.group, err) : 0;
    if (code || !flight.last) return code;
    if (!s->measures) return sink->apply(s, flight.group, err);
    return sink->measure ? sink->measure(s, flight.group, err) : 0;
}

int schedule_wait(struct step *s, struct in_flight *flight, struct error *err)
{
    struct in_flight before = *flight;
    flight->group = -1;
    return wait_taken(s, before, err);
}

int schedule_take(struct step *s, struct in_flight *flight, int group, int64_t slot, bool own,
                  struct error *err)
{
    const struct schedule *o = s->order;
    int64_t round = o->first + slot;
    bool last = round == o->rounds - 1;
    /* breadth-first the sum of the micro-batch before is continued, so it must be there */
    int code = own && o->breadth ? schedule_wait(s, flight, err) : 0;
    if (!code && last && group == o->last && s->unread) {
        s->unread = false;
        code = s->read_loss(s, err);
    }
    if (code || !own) return code;
    if (s->sink->take) code = s->sink->take(s, group, round, err);
    if (code) return code;
    struct in_flight before = *flight;
    *flight = (struct in_flight){group, last};
    /* with fewer rounds than a wave has, the next group's first gradient may be in the same buffer */
    return s->overlaps && o->count == o->wave ? wait_taken(s, before, err) : schedule_wait(s, flight, err);
}

/* ---- micro-batches of this rank ---- */

int64_t step_micro_batches(const struct trainer *t) { return (t->batch + t->micro - 1) / t->micro; }

int64_t step_micro_images(const struct trainer *t, int64_t index)
{
    int64_t left = t->batch - index * t->micro;
    return left <= 0 ? 0 : left < t->micro ? left : t->micro;
}

/* Binds the device's copy of a slot's micro-batch, and returns it as a tower reads it. */
static struct batch select_batch(struct trainer *t, bool student, int teacher, int64_t slot)
{
    int64_t index = t->schedule.first + slot, count = step_micro_images(t, index);
    step_select(t, slot);
    if (student) return step_batch(t, index, count);
    return (struct batch){.input = (char *)t->input + t->teachers[teacher].input_at, .count = count};
}

static int need(void *context, int group, int next, struct error *err)
{
    return tower_need(((struct step *)context)->tower, group, next, err);
}

/* Runs a pass over groups of a tower, on the stages of a pipeline in their order. whole: as one program,
 * which loads the weights itself. */
static int run_pass(struct step *s, struct tower *tower, struct group_pass pass, bool whole,
                    struct error *err)
{
    s->tower = pass.tower = tower;
    pass.by = pass.from > pass.to ? -1 : 1;
    pass.count = s->t->schedule.count;
    pass.whole = whole;
    pass.context = s;
    pass.need = whole ? NULL : need;
    return s->t->stages ? pipeline_run(s->t, &pass, err) : group_pass_run(&pass, err);
}

/* ---- forward: x_g -> x_g+1, then the loss ---- */

static int forward_slot(void *context, int64_t slot, int group, struct error *err)
{
    const struct step *s = context;
    struct trainer *t = s->t;
    bool here = step_micro_images(t, t->schedule.first + slot) > 0;
    if (!here) return t->schedule.breadth ? 0 : dp_forward_idle(t, err);
    struct batch batch = select_batch(t, s->tower == t->student, s->teacher, slot);
    if (!t->schedule.breadth) return tower_forward_bound(s->tower, &batch, err);
    tower_forward_group(s->tower, &batch, slot, group);
    return tower_failed(s->tower, err);
}

static int forward_tower(struct step *s, struct tower *tower, struct error *err)
{
    struct group_pass pass = {.from = 0, .to = tower->group_count - 1, .compute = forward_slot};
    return run_pass(s, tower, pass, !s->t->schedule.breadth, err);
}

/* Uploads the wave's micro-batches, computes the teacher's outputs, the student's, and the losses. */
static int forward(struct step *s, struct error *err)
{
    struct trainer *t = s->t;
    const struct schedule *order = &t->schedule;
    const float *target = NULL;
    int64_t count = step_micro_batches(t) - order->first;
    int code = 0;
    if (count > order->count) count = order->count; /* of this rank; it may have none */
    for (int64_t slot = 0; slot < count && !code; slot++) {
        step_select(t, slot);
        code = step_prepare(t, order->first + slot, step_micro_images(t, order->first + slot), s->source,
                            &target, err);
    }
    bool later = step_teacher_by_groups(t);
    bool copied = later && targets_are_copied(t);
    for (s->teacher = 0; later && s->teacher < t->teacher_count && !code; s->teacher++) {
        struct tower *teacher = t->teachers[s->teacher].tower;
        code = forward_tower(s, teacher, err);
        for (int64_t slot = 0; slot < count && copied && !code && teacher->out; slot++) {
            step_select(t, slot);
            tower_select(teacher, slot);
            targets_take(t, s->teacher, step_micro_images(t, order->first + slot));
        }
    }
    if (!code) code = forward_tower(s, t->student, err);
    if (!tower_owns(t->student, t->student->group_count - 1)) return code;
    for (int64_t slot = 0; slot < count && !code; slot++) {
        struct batch batch = select_batch(t, true, 0, slot);
        tower_select(t->student, slot);
        if (later) tower_select(t->teachers[0].tower, slot);
        if (later && !copied) target = t->teachers[0].tower->out;
        else if (copied || order->slots > 1) target = t->in.target;
        step_loss(t, order->first + slot, &batch, target);
        if (s->source) step_prefetch(t, order->first + slot, s->source);
    }
    return code ? code : device_check(t->device, err);
}

/* ---- backward: dL/dx_g+1 -> dL/dx_g and dL/dw_g, which the sink takes ---- */

static int backward_slot(void *context, int64_t slot, int group, struct error *err)
{
    const struct step *s = context;
    struct trainer *t = s->t;
    int64_t index = t->schedule.first + slot;
    if (!step_micro_images(t, index)) return 0;
    struct batch batch = select_batch(t, true, 0, slot);
    if (s->sink->whole) /* gradients of all micro-batches are added up in place */
        return tower_backward(t->student, &batch, t->dout, index == 0,
                              index == t->schedule.rounds - 1 || !s->source, NULL, NULL, err);
    tower_backward_group(t->student, &batch, t->dout, slot, group);
    return tower_failed(t->student, err);
}

static int take(void *context, int64_t slot, int group, bool own, struct error *err)
{
    struct step *s = context;
    return schedule_take(s, &s->flight, group, slot, own, err);
}

static int backward(struct step *s, struct error *err)
{
    struct group_pass pass = {.from = s->t->schedule.last,
                              .to = s->t->schedule.lowest,
                              .compute = backward_slot,
                              .computed = s->source ? take : NULL};
    s->flight.group = -1;
    int code = run_pass(s, s->t->student, pass, s->sink->whole, err);
    return code ? code : schedule_wait(s, &s->flight, err);
}

static int read_loss(struct step *s, struct error *err)
{
    return step_sum_losses(s->t, s->step, s->result, err);
}

/* ---- a step ---- */

const char step_not_finite[] = "the gradient is not finite";

int step_diverged(struct trainer *t, int64_t step, const char *what, bool moved, struct error *err)
{
    t->diverged = true;
    return error_set(err, EXIT_DIVERGED,
                     "a lower optim.lr, a longer warm-up or optim.clip_grad_norm may help",
                     "step %lld: %s; %s", (long long)step, what,
                     moved ? _("the update was partly applied; weights in memory are discarded")
                           : _("the update was not applied"));
}

/* Returns the seconds of offload waits since the last call; negative: nothing is offloaded. */
static double offload_waited(struct trainer *t)
{
    struct meopt_offload_info info = {.size = sizeof info};
    double before = t->offload_waited;
    if (!t->config->optim.offload || meopt_offloaded(t->opt, &info, NULL)) return -1e-3;
    t->offload_waited = info.wait_seconds;
    return info.wait_seconds - before;
}

/* Returns the seconds of stream waits so far; negative: no weights are streamed. */
static double stream_waited(const struct trainer *t)
{
    bool any = t->student_stream;
    double waited = weight_stream_waited_seconds(t->student_stream);
    for (int i = 0; i < t->teacher_count; i++) {
        any = any || t->teachers[i].stream;
        waited += weight_stream_waited_seconds(t->teachers[i].stream);
    }
    return any ? waited : -1;
}

/* Returns the seconds so far in which this rank waited for other stages: for their messages, and where all
 * ranks meet, for the loss and the norms. */
static double stages_waited(const struct trainer *t)
{
    return t->stages ? t->stages->waited + t->ranks.waited : 0;
}

/* Sets the figures of a step whose samples have no label: it has no loss, and changes nothing. */
static void set_unknown(struct step_result *result)
{
    result->loss = NAN;
    for (int i = 0; i < OBJECTIVE_METRICS; i++) result->metrics[i].value = NAN;
}

static const struct sink *sink_of(const struct trainer *t)
{
    return t->dp                  ? &sink_ranks
           : !t->release          ? &sink_kept
           : t->micro == t->batch ? &sink_released
           : t->schedule.at_end   ? &sink_accumulated
                                  : &sink_grouped;
}

static int run_step(struct trainer *t, int64_t step, double lr, const struct batch_source *source,
                    struct step_result *result, struct error *err)
{
    struct step s = {.order = &t->schedule,
                     .sink = sink_of(t),
                     .overlaps = t->dp && t->student->options.gradient_buffers == 2,
                     .forward = forward,
                     .backward = backward,
                     .read_loss = read_loss,
                     .loss_late = t->student->owns_loss,
                     .t = t,
                     .step = step,
                     .lr = lr,
                     .source = source,
                     .result = result};
    step_clip_begin(&s);
    int code = schedule_run(&s, err);
    return t->dp ? dp_settle(t, code, err) : code;
}

int step_dry(struct trainer *t, int backwards, struct error *err)
{
    struct step s = {.order = &t->schedule, .sink = sink_of(t), .t = t};
    t->schedule.first = 0;
    t->schedule.count = 1;
    int code = forward(&s, err);
    for (int i = 0; i < backwards && !code; i++) code = backward(&s, err);
    step_select(t, 0);
    return code ? code : device_check(t->device, err);
}

int trainer_step(struct trainer *t, int64_t step, double lr, const struct batch_source *source,
                 struct step_result *result, struct error *err)
{
    *result = (struct step_result){0};
    int metrics = t->targets.count && config_losses(t->config) > 1 ? 1 + config_losses(t->config)
                  : t->targets.count                               ? 1
                                                                   : OBJECTIVE_METRICS;
    for (int i = 0; i < metrics; i++) result->metrics[i].name = t->objective->metrics[i];
    double waited = stream_waited(t);
    int code = step_count_units(t, source, err);
    double stages = stages_waited(t);
    bool empty = !code && t->objective->units && !(t->units > 0); /* on all ranks */
    t->step = step;
    if (empty) set_unknown(result);
    else if (!code) code = run_step(t, step, lr, source, result, err);
    step_select(t, 0);
    if (t->reduce.lost.code) { /* the optimizer only knows that a reduction failed */
        code = t->reduce.lost.code;
        if (err) *err = t->reduce.lost;
    }
    t->step = 0;
    if (!code) code = device_check(t->device, err);
    if (!empty) t->previous_norm = result->grad_norm;
    result->wide_groups = dp_wide_groups(t);
    result->offload_wait_ms = offload_waited(t) * 1e3;
    result->stage_wait_ms = t->stages ? (stages_waited(t) - stages) * 1e3 : -1;
    result->stream_wait_ms = waited < 0 ? -1 : (stream_waited(t) - waited) * 1e3;
    if ((code || empty) && t->in.sent.input) { /* prefetched, and not used */
        t->device->streams->wait(t->device, NULL, t->in.arrived);
        t->in.sent.input = NULL;
    }
    return code;
}
