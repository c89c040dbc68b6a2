/* Simulated steps of many ranks: see simulate.h. */
#include "core/plan/simulate.h"
#include "core/base/file.h"
#include "core/step/step_ranks_parts.h"

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
        .group_count = tower->group_count,
        .lowest = tower->lowest,
        .groups = xcalloc((size_t)tower->group_count, sizeof *s->groups),
        .ranks = t->ranks.size > 1 ? t->ranks.size : 1,
        .sharded = dp_divides_states(t),
        .sharded_weights = dp_weight_buffers(t) > 0,
        .two_gradients = tower->options.gradient_buffers == 2,
        .two_weights = dp_weight_buffers(t) == 2,
        .twice = t->schedule.twice,
        .breadth = t->schedule.breadth,
        .wave = t->schedule.breadth && schedule_waves(&t->schedule) > 1 ? t->schedule.wave : 0,
        .stages = t->stages ? t->stages->size : 1,
        .stream_bytes = t->stages ? (double)pipeline_stream_bytes(tower, t->micro) : 0,
        .step_at_end = t->dp && t->schedule.at_end,
    };
    if (pipeline_divides_teacher(t)) {
        s->teacher_groups = t->teacher->group_count;
        s->teacher_stream_bytes = (double)pipeline_stream_bytes(t->teacher, t->micro);
    }
    s->micro_count = t->dp ? (t->images + t->micro - 1) / t->micro : (t->batch + t->micro - 1) / t->micro;
    bool library = t->config->dist.reduce == DIST_REDUCE_LIBRARY;
    for (int i = 0; i < tower->parameter_count; i++) {
        const struct parameter *p = &tower->parameters[i];
        struct simulated_group *g = &s->groups[p->group];
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
    for (int g = 0; g < s->group_count; g++) work += s->groups[g].work;
    for (int g = 0; g < s->group_count; g++) s->groups[g].work /= work > 0 ? work : 1;
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
    int64_t micro_count, rounds, round;
    double *clock;      /* (ranks) */
    double *computed;   /* (ranks) */
    double *reduced;    /* (groups) when the reduction of a group ends */
    double link;        /* when the link is free */
    double last_gather; /* when the last gather of changed weights ends */
    int slot[2];        /* groups in the buffers of weights; -1: none */
    double slot_end[2]; /* when they have arrived */
    int in_flight;      /* group whose reduction is in flight; -1: none */
    bool ends;          /* it is of the last round */
    struct simulated_step result;
};

/* A replica's stages. */
struct stages {
    struct simulation *all;
    int count;
    double *arrived; /* (rounds) when the stream of a micro-batch has arrived at the next group's stage */
};

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

static int next_group(const struct simulated_schedule *q, int group, int by, int last)
{
    int stage = stage_of_group(q->stages, q->group_count, group);
    while (group != last)
        if (stage_of_group(q->stages, q->group_count, group += by) == stage) return group;
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

/* Computes a group on `stage`, for the current round; its stream then travels to `next`, the stage of the
 * next group. */
static void compute_group(const struct stages *p, int stage, int next, double seconds, double bytes)
{
    struct simulation *s = &p->all[stage];
    double *arrived = &p->arrived[s->round];
    wait_until(s, *arrived);
    compute(s, seconds);
    *arrived = next == stage ? 0 : send_stream(p, stage, next, bytes);
}

/* The forward passes of rounds `from` to `to`. */
static void forward(const struct stages *p, int64_t from, int64_t to)
{
    const struct simulated_schedule *q = p->all->schedule;
    const struct simulated_speed *v = p->all->speed;
    double each = v->step_s * p->count / (double)p->all->rounds,
           teacher = each * (1 - v->backward - v->student), student = each * v->student;
    int last = q->group_count - 1, groups = q->teacher_groups;
    for (int g = 0; g < (groups ? groups : 1); g++) {
        int stage = stage_of_group(p->count, groups, g),
            next = g + 1 < groups ? stage_of_group(p->count, groups, g + 1) : stage;
        struct simulation *s = &p->all[stage];
        for (s->round = from; s->round < to; s->round++)
            compute_group(p, stage, next, groups ? teacher / groups : teacher, q->teacher_stream_bytes);
    }
    for (int g = 0; g <= last; g++) {
        int stage = stage_of_group(p->count, last + 1, g),
            next = g < last ? stage_of_group(p->count, last + 1, g + 1) : stage;
        struct simulation *s = &p->all[stage];
        fetch(s, g, next_group(q, g, 1, last));
        for (s->round = from; s->round < to; s->round++)
            compute_group(p, stage, next, student * q->groups[g].work, q->stream_bytes);
    }
}

static void update(struct simulation *s, int group)
{
    const struct simulated_schedule *q = s->schedule;
    double changed = q->groups[group].changed_bytes;
    for (int i = 0; i < 2 && changed <= 0; i++)
        if (s->slot[i] == group) s->slot[i] = -1;
    if (!q->sharded || changed <= 0) return;
    s->last_gather = begin(s, changed);
    if (!q->two_gradients) wait_until(s, s->last_gather);
}

static void end_group(struct simulation *s, int group, bool updates)
{
    wait_until(s, s->reduced[group]);
    if (updates) update(s, group);
}

/* Reduces a group's gradient of this round. */
static void reduce(struct simulation *s, int g, bool updates)
{
    const struct simulated_schedule *q = s->schedule;
    bool last = s->round == s->rounds - 1;
    int before = s->in_flight;
    if (q->breadth && before >= 0) end_group(s, before, updates && s->ends);
    s->reduced[g] = begin(s, q->groups[g].reduced_bytes);
    if (last && !q->sharded) s->reduced[g] = fmax(s->reduced[g], begin(s, q->groups[g].summed_bytes));
    if (!q->two_gradients) end_group(s, g, updates && last);
    else if (!q->breadth && before >= 0) end_group(s, before, updates && s->ends);
    s->in_flight = q->two_gradients ? g : -1;
    s->ends = last;
}

/* The backward passes of rounds `from` to `to`. measures: computes the norm only (step_ranks.c, `twice`). */
static void backward(const struct stages *p, int64_t from, int64_t to, bool measures)
{
    const struct simulated_schedule *q = p->all->schedule;
    const struct simulated_speed *v = p->all->speed;
    bool updates = !measures && !q->step_at_end;
    double seconds = v->step_s * p->count * v->backward / (double)p->all->rounds / (q->twice ? 2 : 1),
           work = 0;
    for (int g = q->lowest; g < q->group_count; g++) work += q->groups[g].work;
    for (int i = 0; i < p->count; i++) p->all[i].in_flight = -1;
    for (int i = 0; i < p->count; i++) p->all[i].ends = false;
    for (int g = q->group_count - 1; g >= q->lowest; g--) {
        int stage = stage_of_group(p->count, q->group_count, g),
            next = g > q->lowest ? stage_of_group(p->count, q->group_count, g - 1) : stage;
        struct simulation *s = &p->all[stage];
        fetch(s, g, next_group(q, g, -1, q->lowest));
        for (s->round = from; s->round < to; s->round++) {
            compute_group(p, stage, next, work > 0 ? seconds * q->groups[g].work / work : 0, q->stream_bytes);
            reduce(s, g, updates);
        }
    }
    for (int i = 0; i < p->count; i++)
        if (p->all[i].in_flight >= 0) end_group(&p->all[i], p->all[i].in_flight, updates && p->all[i].ends);
}

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

static void simulate_stages(struct stages *p, const struct simulated_schedule *q)
{
    int64_t rounds = p->all->rounds, stride = q->wave ? q->wave : q->breadth ? rounds : 1;
    for (int64_t from = 0; from < rounds; from += stride) {
        int64_t to = from + stride < rounds ? from + stride : rounds;
        forward(p, from, to);
        if (q->twice) backward(p, from, to, true);
        backward(p, from, to, false);
    }
    for (int g = q->group_count - 1; g >= q->lowest && q->step_at_end; g--)
        update(&p->all[stage_of_group(p->count, q->group_count, g)], g);
}

struct simulated_step simulate_step(const struct simulated_schedule *q, const struct simulated_speed *given,
                                    int ranks)
{
    struct simulated_speed v = *given;
    int count = q->stages > 1 ? q->stages : 1;
    double shared = v.slowdown, busy = 0;
    if (shared > 0 && count > 1) v.slowdown = 1; /* while a stage waits, others have its processor */
    if (v.slowdown > 0) v.step_s *= v.slowdown;
    if (ranks < 2) return (struct simulated_step){v.step_s, v.step_s, 0, 0};
    struct stages p = {.all = xcalloc((size_t)count, sizeof *p.all), .count = count};
    struct simulated_step result = {0};
    for (int i = 0; i < count; i++) {
        struct simulation *s = &p.all[i];
        *s = (struct simulation){.schedule = q, .speed = &v, .ranks = ranks / count, .slot = {-1, -1}};
        s->here = ranks_here(&v, ranks, count);
        s->micro_count = (q->micro_count * ranks + q->ranks - 1) / q->ranks;
        s->rounds = (s->micro_count + s->ranks - 1) / s->ranks;
        s->clock = xcalloc((size_t)s->ranks, sizeof *s->clock);
        s->computed = xcalloc((size_t)s->ranks, sizeof *s->computed);
        s->reduced = xcalloc((size_t)q->group_count, sizeof *s->reduced);
    }
    p.arrived = xcalloc((size_t)p.all->rounds, sizeof *p.arrived);
    simulate_stages(&p, q);
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
    if (shared > 0 && count > 1) result.step_s = fmax(result.step_s, busy);
    free(p.arrived);
    free(p.all);
    return result;
}
