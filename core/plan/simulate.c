/* Simulated steps of many ranks: see simulate.h. */
#include "core/plan/simulate.h"
#include "core/base/memory.h"
#include "core/step/step.h"

#include <math.h>
#include <stdlib.h>

/* ---- the schedule of a trainer ---- */

void simulate_inspect(void *context, const struct trainer *t)
{
    struct simulated_schedule *s = context;
    const struct tower *tower = t->student;
    double work = 0;
    if (!tower) return; /* the teacher's pass of train.cache_teacher */
    simulate_free(s);
    *s = (struct simulated_schedule){
        .order = t->schedule,
        .groups = xcalloc((size_t)tower->group_count, sizeof *s->groups),
        .ranks = t->ranks.size > 1 ? t->ranks.size : 1,
        .sharded = dp_divides_states(t),
        .sharded_weights = dp_weight_buffers(t) > 0,
        .two_gradients = tower->options.gradient_buffers == 2,
        .two_weights = dp_weight_buffers(t) == 2,
        .stages = t->stages ? t->stages->size : 1,
        .tensor = t->tensor ? t->tensor->size : 1,
        .tensor_bytes = t->tensor ? (double)(t->tensor->tree_bytes * t->schedule.rounds) : 0,
        .stream_bytes = t->stages ? (double)pipeline_stream_bytes(tower, t->micro) : 0,
    };
    if (pipeline_divides_teacher(t)) {
        for (int i = 0; i < t->teacher_count; i++) {
            double bytes = (double)pipeline_stream_bytes(t->teachers[i].tower, t->micro);
            s->teacher_groups += t->teachers[i].tower->group_count;
            if (bytes > s->teacher_stream_bytes) s->teacher_stream_bytes = bytes;
        }
    }
    s->micro_count = (t->images + t->micro - 1) / t->micro;
    bool library = t->config->dist.reduce == DIST_REDUCE_LIBRARY;
    for (int i = 0; i < tower->parameter_count; i++) {
        const struct parameter *p = &tower->parameters[i];
        struct simulated_group *g = &s->groups[p->group];
        if (!tower_owns_slice(tower, p)) continue;
        bool table = tower->model_shape.context && p->group == 0; /* tokens are looked up, not multiplied */
        if (p->matrix && !table) g->work += (double)p->count;
        if (!p->resident) g->weight_bytes += (double)p->count * (double)dtype_bytes(p->weight_type);
        if (!p->trained) continue;
        if (!s->sharded_weights || p->resident)
            g->changed_bytes += (double)p->count * (double)dtype_bytes(p->weight_type);
        g->reduced_bytes +=
            (double)p->count * (double)dtype_bytes(library ? DTYPE_F32 : p->grad_type); /* dist.reduce */
        g->summed_bytes += (double)p->count * sizeof(float);
    }
    for (int g = 0; g <= s->order.last; g++) work += s->groups[g].work;
    for (int g = 0; g <= s->order.last; g++) s->groups[g].work /= work > 0 ? work : 1;
}

void simulate_free(struct simulated_schedule *s)
{
    free(s->groups);
    *s = (struct simulated_schedule){0};
}

/* ---- a step ---- */

/* The ranks of one stage, or all without a pipeline. */
struct simulation {
    const struct simulated_schedule *schedule;
    const struct simulated_speed *speed;
    int ranks, here; /* here: of them in a node */
    int64_t micro_count, round;
    double *clock;           /* (ranks) */
    double *computed;        /* (ranks) */
    double *reduced;         /* (groups) when the reduction of a group ends */
    double link;             /* when the link is free */
    double last_gather;      /* when the last gather of changed weights ends */
    int slot[2];             /* groups in the buffers of weights; -1: none */
    double slot_end[2];      /* when they have arrived */
    struct in_flight flight; /* the reduction in flight */
    struct simulated_step result;
};

/* A replica's stages, and their current pass. */
struct stages {
    struct simulation *all;
    int count;
    struct schedule order;
    double *arrived; /* (rounds) when the stream of a micro-batch has arrived at the next group's stage */
    struct group_pass pass;
    struct step *step;
    int group_count;
    double seconds, stream_bytes; /* of a micro-batch: of all groups, and between two of them */
    double work;                  /* of the groups; 0: of equal ones */
};

static int stage_of(const struct stages *p, int group)
{
    return stage_of_group(p->count, p->group_count, group);
}

/* Computes on all ranks that have a micro-batch in this round. */
static void compute(struct simulation *s, double seconds)
{
    for (int r = 0; r < s->ranks; r++) {
        if (s->round * s->ranks + r >= s->micro_count) continue;
        s->clock[r] += seconds;
        s->computed[r] += seconds;
    }
}

static void wait_until(struct simulation *s, double end)
{
    for (int r = 0; r < s->ranks; r++) s->clock[r] = fmax(s->clock[r], end);
}

/* Occupies the link for `seconds`, once all ranks have called; returns when that ends. */
static double occupy(struct simulation *s, double bytes, double seconds)
{
    double start = s->link;
    for (int r = 0; r < s->ranks; r++) start = fmax(start, s->clock[r]);
    s->result.sent_bytes += bytes;
    s->result.sums_s += seconds;
    s->link = start + seconds;
    if (s->speed->slowdown > 0) wait_until(s, s->link);
    return s->link;
}

/* Begins a collective over an array; returns when it ends, 0 for an empty one. */
static double begin(struct simulation *s, double bytes)
{
    const struct simulated_speed *v = s->speed;
    int n = s->ranks, g = s->here;
    double sent = bytes * (n - 1) / n, seconds = sent / v->bandwidth;
    if (bytes <= 0) return 0;
    if (v->network > 0 && g > 0 && n > g)
        seconds = fmax(seconds, sent * (n - g) / (n - 1) * v->node_ranks / v->network);
    return occupy(s, sent, seconds + (n - 1) * v->latency_s);
}

/* Sends a micro-batch's stream to another stage; returns when it has arrived. */
static double send_stream(const struct stages *p, int from, int to, double bytes)
{
    struct simulation *s = &p->all[from];
    const struct simulated_speed *v = s->speed;
    double rate = v->bandwidth, nodes = v->node_ranks > 0 ? v->node_ranks : s->ranks * p->count;
    if (v->network > 0 && v->stages_apart) rate = fmin(rate, v->network / nodes);
    else if (v->network > 0 && from / (int)nodes != to / (int)nodes) rate = fmin(rate, v->network);
    return occupy(s, bytes, bytes / rate + v->latency_s);
}

/* Returns the stage's next group in the pass; -1: none. */
static int next_own(const struct stages *p, int group)
{
    int stage = stage_of(p, group);
    while (group != p->pass.to)
        if (stage_of(p, group += p->pass.by) == stage) return group;
    return -1;
}

/* Gathers a group's weights, and prefetches the next group's (shard_fetch). */
static void fetch(struct simulation *s, int group, int next)
{
    const struct simulated_schedule *q = s->schedule;
    int slots = q->two_weights ? 2 : 1, turns = q->stages > 1 ? q->stages : 1;
    if (!q->sharded_weights) return;
    for (int i = 0; i < slots; i++) {
        int g = i ? next : group, slot = g / turns % slots;
        if (g < 0 || s->slot[slot] == g) continue;
        s->slot[slot] = g;
        s->slot_end[slot] = begin(s, q->groups[g].weight_bytes);
    }
    wait_until(s, s->slot_end[group / turns % slots]);
}

/* ---- what the schedule of core/step calls ---- */

static int need(void *context, int group, int next, struct error *err)
{
    const struct stages *p = context;
    (void)next, (void)err;
    fetch(&p->all[stage_of(p, group)], group, next_own(p, group));
    return 0;
}

/* Computes a group on its stage; its stream then travels to the stage of the next group. */
static int compute_group(void *context, int64_t slot, int group, struct error *err)
{
    const struct stages *p = context;
    int stage = stage_of(p, group), next = group == p->pass.to ? stage : stage_of(p, group + p->pass.by);
    struct simulation *s = &p->all[stage];
    double *arrived = &p->arrived[s->round = p->order.first + slot];
    (void)err;
    wait_until(s, *arrived);
    if (p->work > 0) compute(s, p->seconds * s->schedule->groups[group].work / p->work);
    else compute(s, p->seconds / p->group_count);
    *arrived = next == stage ? 0 : send_stream(p, stage, next, p->stream_bytes);
    return 0;
}

static int computed(void *context, int64_t slot, int group, bool own, struct error *err)
{
    const struct stages *p = context;
    return schedule_take(p->step, &p->all[stage_of(p, group)].flight, group, slot, own, err);
}

enum pass_kind { TEACHER, FORWARD, BACKWARD };

/* Runs a pass over `count` groups in `seconds` for a micro-batch, which their `work` divides (0: evenly). */
static int run_pass(struct stages *p, enum pass_kind kind, int count, double seconds, double work)
{
    const struct simulated_schedule *q = p->all->schedule;
    p->group_count = count;
    p->seconds = seconds;
    p->work = work;
    p->stream_bytes = kind == TEACHER ? q->teacher_stream_bytes : q->stream_bytes;
    p->pass = (struct group_pass){.to = count - 1,
                                  .by = 1,
                                  .count = p->order.count,
                                  .context = p,
                                  .need = kind == TEACHER ? NULL : need,
                                  .compute = compute_group};
    if (kind == BACKWARD) {
        p->pass.from = p->order.last;
        p->pass.to = p->order.lowest;
        p->pass.by = -1;
        p->pass.computed = computed;
    }
    return group_pass_run(&p->pass, NULL);
}

static int forward(struct step *step, struct error *err)
{
    struct stages *p = step->simulation;
    const struct simulated_schedule *q = p->all->schedule;
    const struct simulated_speed *v = p->all->speed;
    double each = v->step_s * p->count / (double)p->order.rounds;
    (void)err;
    return run_pass(p, TEACHER, q->teacher_groups ? q->teacher_groups : 1,
                    each * (1 - v->backward - v->student), 0) ||
           run_pass(p, FORWARD, q->order.last + 1, each * v->student, 1);
}

static int backward(struct step *step, struct error *err)
{
    struct stages *p = step->simulation;
    const struct simulated_schedule *q = p->all->schedule;
    const struct simulated_speed *v = p->all->speed;
    double seconds = v->step_s * p->count * v->backward / (double)p->order.rounds / (q->order.twice ? 2 : 1),
           work = 0;
    for (int g = q->order.lowest; g <= q->order.last; g++) work += q->groups[g].work;
    for (int i = 0; i < p->count; i++) p->all[i].flight.group = -1;
    int code = run_pass(p, BACKWARD, q->order.last + 1, work > 0 ? seconds : 0, work);
    for (int i = 0; i < p->count; i++) code |= schedule_wait(step, &p->all[i].flight, err);
    return code;
}

/* Reduces a group's gradient of a round. */
static int take(struct step *step, int g, int64_t round, struct error *err)
{
    struct stages *p = step->simulation;
    struct simulation *s = &p->all[stage_of(p, g)];
    const struct simulated_schedule *q = s->schedule;
    (void)err;
    s->reduced[g] = begin(s, q->groups[g].reduced_bytes);
    if (round == p->order.rounds - 1 && !q->sharded)
        s->reduced[g] = fmax(s->reduced[g], begin(s, q->groups[g].summed_bytes));
    return 0;
}

static int wait_taken(struct step *step, int group, struct error *err)
{
    struct simulation *s = &step->simulation->all[stage_of(step->simulation, group)];
    (void)err;
    wait_until(s, s->reduced[group]);
    return 0;
}

static int apply(struct step *step, int group, struct error *err)
{
    struct simulation *s = &step->simulation->all[stage_of(step->simulation, group)];
    const struct simulated_schedule *q = s->schedule;
    double changed = q->groups[group].changed_bytes;
    (void)err;
    for (int i = 0; i < 2 && changed <= 0; i++)
        if (s->slot[i] == group) s->slot[i] = -1;
    if (!q->sharded || changed <= 0) return 0;
    s->last_gather = begin(s, changed);
    if (!q->two_gradients) wait_until(s, s->last_gather);
    return 0;
}

static const struct sink timed = {.take = take, .wait = wait_taken, .apply = apply};

/* Returns how many of a stage's ranks are in a node. */
static int ranks_here(const struct simulated_speed *v, int ranks, int stages)
{
    int nodes = v->node_ranks > 0 ? (ranks + v->node_ranks - 1) / v->node_ranks : 1, common = stages,
        here = v->node_ranks / stages;
    if (v->stages_apart) { /* rank r is on node r mod nodes */
        for (int left = nodes; left;) {
            int rest = common % left;
            common = left;
            left = rest;
        }
        here = ranks / stages * common / nodes;
    }
    return v->node_ranks > 0 && here < 1 ? 1 : here;
}

struct simulated_step simulate_step(const struct simulated_schedule *q, const struct simulated_speed *given,
                                    int ranks)
{
    struct simulated_speed v = *given;
    int count = q->stages > 1 ? q->stages : 1, tensor = q->tensor > 1 ? q->tensor : 1;
    double sums = 2.0 * (tensor - 1) / tensor * q->tensor_bytes / v.bandwidth;
    double shared = v.slowdown, busy = 0;
    if (shared > 0 && count > 1) v.slowdown = 1; /* while a stage waits, others have its processor */
    if (v.slowdown > 0) v.step_s *= v.slowdown;
    v.step_s += sums;
    ranks /= tensor;
    v.network /= tensor;
    if (v.node_ranks > 0) v.node_ranks = v.node_ranks > tensor ? v.node_ranks / tensor : 1;
    if (ranks < 2) return (struct simulated_step){v.step_s, v.step_s - sums, sums, sums * v.bandwidth};
    struct stages p = {.all = xcalloc((size_t)count, sizeof *p.all), .count = count};
    p.order = q->order;
    struct simulated_step result = {0};
    for (int i = 0; i < count; i++) {
        struct simulation *s = &p.all[i];
        *s = (struct simulation){.schedule = q, .speed = &v, .ranks = ranks / count, .slot = {-1, -1}};
        s->here = ranks_here(&v, ranks, count);
        s->micro_count = (q->micro_count * ranks * tensor + q->ranks - 1) / q->ranks;
        p.order.rounds = (s->micro_count + s->ranks - 1) / s->ranks;
        s->clock = xcalloc((size_t)s->ranks, sizeof *s->clock);
        s->computed = xcalloc((size_t)s->ranks, sizeof *s->computed);
        s->reduced = xcalloc((size_t)q->order.last + 1, sizeof *s->reduced);
    }
    p.order.wave = q->order.wave < q->order.rounds ? q->order.wave : q->order.breadth ? p.order.rounds : 1;
    p.arrived = xcalloc((size_t)p.order.rounds, sizeof *p.arrived);
    p.step = &(struct step){.order = &p.order,
                            .sink = &timed,
                            .overlaps = q->two_gradients,
                            .forward = forward,
                            .backward = backward,
                            .simulation = &p};
    (void)schedule_run(p.step, NULL);
    for (int i = 0; i < count; i++) {
        struct simulation *s = &p.all[i];
        wait_until(s, s->last_gather);
        for (int r = 0; r < s->ranks; r++) {
            result.step_s = fmax(result.step_s, s->clock[r]);
            result.compute_s = fmax(result.compute_s, s->computed[r]);
            busy += (s->computed[r] * shared + s->result.sums_s) / ranks;
        }
        result.sums_s = fmax(result.sums_s, s->result.sums_s);
        result.sent_bytes = fmax(result.sent_bytes, s->result.sent_bytes);
        free(s->clock);
        free(s->computed);
        free(s->reduced);
    }
    result.sums_s += sums;
    result.compute_s -= sums;
    result.sent_bytes += sums * v.bandwidth;
    if (shared > 0 && count > 1) result.step_s = fmax(result.step_s, busy);
    free(p.arrived);
    free(p.all);
    return result;
}
