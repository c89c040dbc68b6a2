/* Simulated steps of many ranks: see simulate.h. */
#include "core/train/simulate.h"
#include "core/base/file.h"
#include "core/train/step_ranks_parts.h"

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
        .sharded = dp_sharded(t),
        .sharded_weights = dp_weight_buffers(t) > 0,
        .two_gradients = tower->options.gradient_buffers == 2,
        .two_weights = dp_weight_buffers(t) == 2,
        .twice = t->twice,
        .breadth = t->breadth,
        .wave = t->waves ? t->wave : 0,
        .step_at_end = t->dp && t->dp->step_at_end,
    };
    s->micro_count = t->dp ? (t->images + t->micro - 1) / t->micro : (t->batch + t->micro - 1) / t->micro;
    for (int i = 0; i < tower->parameter_count; i++) {
        const struct parameter *p = &tower->parameters[i];
        struct simulated_group *g = &s->groups[p->group];
        bool table = tower->model_shape.context && p->group == 0; /* tokens are looked up, not multiplied */
        if (p->matrix && !table) g->work += (double)p->count;
        if (!p->resident) g->weight_bytes += (double)p->count * (double)dtype_bytes(p->weight_type);
        if (!p->trained) continue;
        g->reduced_bytes += (double)p->count * (double)dtype_bytes(p->grad_type);
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

struct simulation {
    const struct simulated_schedule *schedule;
    const struct simulated_speed *speed;
    int ranks;
    int64_t micro_count, rounds, round;
    double *clock;      /* (ranks) */
    double *computed;   /* (ranks) */
    double *reduced;    /* (groups) when the reduction of a group ends */
    double link;        /* when the link is free */
    double last_gather; /* when the last gather of changed weights ends */
    int slot[2];        /* groups in the buffers of weights; -1: none */
    double slot_end[2]; /* when they have arrived */
    struct simulated_step result;
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

/* Begins a collective over an array; returns when it ends, 0 for an empty one. */
static double begin(struct simulation *s, double bytes)
{
    const struct simulated_speed *v = s->speed;
    int n = s->ranks, g = v->node_ranks;
    double start = s->link, sent = bytes * (n - 1) / n, seconds = sent / v->bandwidth;
    if (bytes <= 0) return 0;
    for (int r = 0; r < n; r++) start = fmax(start, s->clock[r]);
    if (v->network > 0 && g > 0 && n > g) seconds = fmax(seconds, sent * (n - g) / (n - 1) * g / v->network);
    seconds += (n - 1) * v->latency_s;
    s->result.sent_bytes += sent;
    s->result.sums_s += seconds;
    s->link = start + seconds;
    if (v->slowdown > 0) wait_until(s, s->link);
    return s->link;
}

/* Gathers a group's weights, and prefetches the next group's (shard_fetch). */
static void fetch(struct simulation *s, int group, int next)
{
    const struct simulated_schedule *q = s->schedule;
    int slots = q->two_weights ? 2 : 1;
    if (!q->sharded_weights) return;
    for (int i = 0; i < slots; i++) {
        int g = i ? next : group;
        if (g < 0 || s->slot[g % slots] == g) continue;
        s->slot[g % slots] = g;
        s->slot_end[g % slots] = begin(s, q->groups[g].weight_bytes);
    }
    wait_until(s, s->slot_end[group % slots]);
}

/* The forward passes of rounds `from` to `to`. */
static void forward(struct simulation *s, int64_t from, int64_t to)
{
    const struct simulated_schedule *q = s->schedule;
    const struct simulated_speed *v = s->speed;
    double teacher = v->step_s * (1 - v->backward - v->student) / (double)s->rounds,
           student = v->step_s * v->student / (double)s->rounds;
    for (s->round = from; s->round < to; s->round++) compute(s, teacher);
    for (int g = 0; g < q->group_count; g++) {
        fetch(s, g, g + 1 < q->group_count ? g + 1 : -1);
        for (s->round = from; s->round < to; s->round++) compute(s, student * q->groups[g].work);
    }
}

static void update(struct simulation *s, int group)
{
    const struct simulated_schedule *q = s->schedule;
    for (int i = 0; i < 2; i++)
        if (s->slot[i] == group) s->slot[i] = -1;
    if (!q->sharded || q->sharded_weights) return;
    s->last_gather = begin(s, q->groups[group].weight_bytes);
    if (!q->two_gradients) wait_until(s, s->last_gather);
}

static void end_group(struct simulation *s, int group, bool updates)
{
    wait_until(s, s->reduced[group]);
    if (updates) update(s, group);
}

/* The backward passes of rounds `from` to `to`. measures: computes the norm only (step_ranks.c, `twice`). */
static void backward(struct simulation *s, int64_t from, int64_t to, bool measures)
{
    const struct simulated_schedule *q = s->schedule;
    bool updates = !measures && !q->step_at_end, ends = false; /* ends: in_flight is of the last round */
    double seconds = s->speed->step_s * s->speed->backward / (double)s->rounds / (q->twice ? 2 : 1), work = 0;
    int in_flight = -1;
    for (int g = q->lowest; g < q->group_count; g++) work += q->groups[g].work;
    for (int g = q->group_count - 1; g >= q->lowest; g--) {
        fetch(s, g, g > q->lowest ? g - 1 : -1);
        for (s->round = from; s->round < to; s->round++) {
            bool last = s->round == s->rounds - 1;
            int before = in_flight;
            compute(s, work > 0 ? seconds * q->groups[g].work / work : 0);
            if (q->breadth && before >= 0) end_group(s, before, updates && ends);
            s->reduced[g] = begin(s, q->groups[g].reduced_bytes);
            if (last && !q->sharded) s->reduced[g] = fmax(s->reduced[g], begin(s, q->groups[g].summed_bytes));
            if (!q->two_gradients) end_group(s, g, updates && last);
            else if (!q->breadth && before >= 0) end_group(s, before, updates && ends);
            in_flight = q->two_gradients ? g : -1;
            ends = last;
        }
    }
    if (in_flight >= 0) end_group(s, in_flight, updates && ends);
}

struct simulated_step simulate_step(const struct simulated_schedule *q, const struct simulated_speed *given,
                                    int ranks)
{
    struct simulated_speed v = *given;
    if (v.slowdown > 0) v.step_s *= v.slowdown;
    if (ranks < 2) return (struct simulated_step){v.step_s, v.step_s, 0, 0};
    struct simulation s = {.schedule = q, .speed = &v, .ranks = ranks, .slot = {-1, -1}};
    s.micro_count = (q->micro_count * ranks + q->ranks - 1) / q->ranks;
    s.rounds = (s.micro_count + ranks - 1) / ranks;
    s.clock = xcalloc((size_t)ranks, sizeof *s.clock);
    s.computed = xcalloc((size_t)ranks, sizeof *s.computed);
    s.reduced = xcalloc((size_t)q->group_count, sizeof *s.reduced);
    int64_t stride = q->wave ? q->wave : q->breadth ? s.rounds : 1;
    for (int64_t from = 0; from < s.rounds; from += stride) {
        int64_t to = from + stride < s.rounds ? from + stride : s.rounds;
        forward(&s, from, to);
        if (q->twice) backward(&s, from, to, true);
        backward(&s, from, to, false);
    }
    for (int g = q->group_count - 1; g >= q->lowest && q->step_at_end; g--) update(&s, g);
    wait_until(&s, s.last_gather);
    for (int r = 0; r < ranks; r++) {
        s.result.step_s = fmax(s.result.step_s, s.clock[r]);
        s.result.compute_s = fmax(s.result.compute_s, s.computed[r]);
    }
    free(s.clock);
    free(s.computed);
    free(s.reduced);
    return s.result;
}
