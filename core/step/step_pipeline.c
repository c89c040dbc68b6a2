/* Pipelines (dist.pipeline): the ranks of a replica are its stages, and group g is on stage g mod stages
 * (stage_of_group). Stage p of replica d (layout.c) trains the micro-batches of rank d of data-parallel steps
 * (step_ranks.c). The owners of a group, one in each replica, fold its gradients, and share its states as
 * dist.shard says.
 *
 * Rounds are breadth-first: a stage computes one group for all micro-batches of its replica, or of a wave
 * then its next group. Between two groups the residual stream travels, or its gradient,
 * both fp32. So no bit changes.
 *
 * Time is counted in ticks, in each of which a stage computes one micro-batch of one group:
 *
 *     begin(first group) = 0, begin(group) = max(begin(group before) + 1, end of the stage's group before)
 *
 * With at least as many micro-batches as stages no stage waits but for the first ticks and the last ones. All
 * calls of a step are ordered by tick, then by the stage that computes: first its message, then the sums of
 * its gradients. Each rank makes its calls in that order, so ranks cannot wait for one another (comm.h). A
 * message travels while its sender computes the next micro-batch. */
#include "core/base/memory.h"
#include "core/step/step.h"

#include <stdlib.h>

struct pipe_message {
    struct comm_message message;
    struct comm_job job;
};

struct pipeline {
    struct pipe_message *sends, *receives; /* (rounds) of each micro-batch's stream */
    int64_t *begin;                        /* (groups) first tick of each */
};

bool pipeline_divides_teacher(const struct trainer *t)
{
    return t->config->dist.pipeline > 1 && t->objective->teacher && !t->config->train.cache_teacher &&
           !t->evaluates;
}

int64_t pipeline_stream_bytes(const struct tower *tower, int64_t samples)
{
    return samples * tower->tokens * tower->model_shape.width * (int64_t)sizeof(float);
}

void pipeline_create(struct trainer *t)
{
    size_t rounds = (size_t)t->schedule.rounds, groups = (size_t)t->student->group_count;
    for (int i = 0; i < t->teacher_count && trainer_teaches(t); i++)
        if ((size_t)t->teachers[i].tower->group_count > groups)
            groups = (size_t)t->teachers[i].tower->group_count;
    struct pipeline *p = t->pipeline = xcalloc(1, sizeof *p);
    p->sends = xcalloc(rounds, sizeof *p->sends);
    p->receives = xcalloc(rounds, sizeof *p->receives);
    p->begin = xcalloc(groups, sizeof *p->begin);
}

void pipeline_close(struct trainer *t)
{
    struct pipeline *p = t->pipeline;
    if (!p) return;
    free(p->sends);
    free(p->receives);
    free(p->begin);
    free(p);
}

static int stage_of(const struct trainer *t, const struct group_pass *pass, int group)
{
    return stage_of_group(t->stages->size, pass->tower->group_count, group);
}

/* Sets the ticks of a pass, and returns their number. */
static int64_t set_ticks(const struct trainer *t, const struct group_pass *pass)
{
    int64_t tick = 0, *begin = t->pipeline->begin, *ready = xcalloc((size_t)t->stages->size, sizeof *ready);
    for (int g = pass->from; g != pass->to + pass->by; g += pass->by) {
        int64_t *stage = &ready[stage_of(t, pass, g)];
        if (tick < *stage) tick = *stage;
        begin[g] = tick++;
        *stage = begin[g] + pass->count;
    }
    free(ready);
    return begin[pass->to] + pass->count;
}

/* Returns the group that a stage computes in a tick, and for which micro-batch; -1: none. */
static int group_at(const struct trainer *t, const struct group_pass *pass, int stage, int64_t tick,
                    int64_t *slot)
{
    for (int g = pass->from; g != pass->to + pass->by; g += pass->by) {
        *slot = tick - t->pipeline->begin[g];
        if (stage_of(t, pass, g) == stage && *slot >= 0 && *slot < pass->count) return g;
    }
    return -1;
}

static int transfer(struct comm *comm, void *context, struct error *err)
{
    const struct pipe_message *m = context;
    return comm_transfer(comm, &m->message, 1, err);
}

/* Begins to send the stream of a micro-batch, or to receive it. */
static int begin_message(struct trainer *t, struct tower *tower, int64_t slot, int64_t samples, int peer,
                         bool receive, struct error *err)
{
    struct pipe_message *m = &(receive ? t->pipeline->receives : t->pipeline->sends)[slot];
    int code = comm_end(t->stages, &m->job, err);
    if (code) return code;
    m->message = (struct comm_message){.p = tower_slot_stream(tower, slot),
                                       .bytes = (size_t)pipeline_stream_bytes(tower, samples),
                                       .peer = peer,
                                       .tag = (int)slot,
                                       .receive = receive};
    m->job = (struct comm_job){.run = transfer, .context = m};
    comm_begin(t->stages, &m->job);
    return t->stages->overlaps ? 0 : comm_end(t->stages, &m->job, err);
}

/* Returns this stage's next group in a pass; -1: none. */
static int next_own(const struct group_pass *pass, int group)
{
    while (group != pass->to)
        if (tower_owns(pass->tower, group += pass->by)) return group;
    return -1;
}

/* What happens in a tick at `stage`: it computes and sends, and the stage of the next group receives. */
static int stage_tick(struct trainer *t, const struct group_pass *pass, int stage, int64_t tick,
                      struct error *err)
{
    int64_t slot;
    int group = group_at(t, pass, stage, tick, &slot), here = t->stages->rank, code = 0;
    if (group < 0) return 0;
    int64_t samples = pass->only ? pass->only->count : step_micro_images(t, t->schedule.first + slot);
    int to = group == pass->to ? stage : stage_of(t, pass, group + pass->by);
    bool own = stage == here;
    if (own) code = comm_end(t->stages, &t->pipeline->receives[slot].job, err);
    if (own && samples && !code) code = pass->compute(pass->context, slot, group, err);
    if (samples && !code && to != stage && (own || to == here))
        code = begin_message(t, pass->tower, slot, samples, own ? to : stage, !own, err);
    return !code && pass->computed ? pass->computed(pass->context, slot, group, own, err) : code;
}

int pipeline_run(struct trainer *t, const struct group_pass *pass, struct error *err)
{
    int64_t ticks = set_ticks(t, pass), slot;
    int code = 0;
    for (int64_t tick = 0; tick < ticks && !code; tick++) {
        int own = group_at(t, pass, t->stages->rank, tick, &slot);
        if (own >= 0 && slot == 0) code = tower_need(pass->tower, own, next_own(pass, own), err);
        for (int stage = 0; stage < t->stages->size && !code; stage++)
            code = stage_tick(t, pass, stage, tick, err);
    }
    /* a divergence is known to all ranks; for another error they would wait, and this rank for them */
    if (code && code != EXIT_DIVERGED && code != EXIT_RANK_LOST) comm_fail(&t->ranks, code, err);
    for (int64_t i = 0; i < pass->count; i++) {
        struct error other;
        int sent = comm_end(t->stages, &t->pipeline->sends[i].job, &other);
        int received = comm_end(t->stages, &t->pipeline->receives[i].job, sent ? NULL : &other);
        if (code || !(sent || received)) continue;
        code = sent ? sent : received;
        if (err) *err = other;
    }
    return code;
}

static int forward_batch(void *context, int64_t slot, int group, struct error *err)
{
    const struct group_pass *pass = context;
    tower_forward_group(pass->tower, pass->only, slot, group);
    return tower_failed(pass->tower, err);
}

int pipeline_forward(struct trainer *t, struct tower *tower, const struct batch *batch, struct error *err)
{
    struct group_pass pass = {.tower = tower,
                              .to = tower->group_count - 1,
                              .by = 1,
                              .count = 1,
                              .only = batch,
                              .context = &pass,
                              .compute = forward_batch};
    return pipeline_run(t, &pass, err);
}

int step_tower_forward(struct trainer *t, struct tower *tower, const struct batch *batch, struct error *err)
{
    return tower->options.stages > 1 ? pipeline_forward(t, tower, batch, err)
                                     : tower_forward_bound(tower, batch, err);
}
