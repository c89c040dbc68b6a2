/* Sharded weights: see shard.h. */
#include "core/step/shard.h"
#include "core/base/memory.h"

#include <stdlib.h>

/* One of the tower's buffers. group: gathered or being gathered; -1: none that is current. */
struct slot {
    struct shard *shard;
    int group;
    struct comm_job job;
};

struct shard {
    struct tower *tower;
    struct comm *ranks;
    const struct partition *cut;
    char *own;      /* this rank's parts of all groups */
    size_t *own_at; /* (groups) */
    struct slot slots[WEIGHT_BUFFERS];
    int64_t gathered; /* bytes */
};

static size_t own_bytes(const struct tower *tower, const struct partition *cut, int group)
{
    const int64_t *at = cut->groups[group].weights;
    return tower_owns(tower, group) ? (size_t)(at[cut->rank + 1] - at[cut->rank]) : 0;
}

int shard_make(struct shard **shard, struct tower *tower, struct comm *ranks, const struct partition *cut,
               struct error *err)
{
    struct shard *s = *shard = xcalloc(1, sizeof *s);
    size_t bytes = 0;
    *s = (struct shard){.tower = tower, .ranks = ranks, .cut = cut};
    for (int i = 0; i < WEIGHT_BUFFERS; i++) s->slots[i] = (struct slot){s, .group = -1};
    s->own_at = xcalloc((size_t)tower->group_count, sizeof *s->own_at);
    for (int group = 0; group < tower->group_count; group++) {
        s->own_at[group] = bytes;
        bytes += (own_bytes(tower, cut, group) + 63) & ~(size_t)63;
    }
    s->own = device_alloc(tower->device, MEMORY_WEIGHTS, bytes + 64, "own part of the weights", err);
    if (!s->own) return err->code;
    tower->device->ops->fill(tower->device, s->own, 0, bytes); /* including the padding between tensors */
    tower_bind_weights(tower, shard_fetch, s);
    return 0;
}

void shard_close(struct shard *s)
{
    if (!s) return;
    tower_bind_weights(s->tower, NULL, NULL);
    device_free(s->tower->device, s->own);
    free(s->own_at);
    free(s);
}

void *shard_part(const struct shard *s, int parameter)
{
    const struct parameter *p = &s->tower->parameters[parameter];
    if (!s->cut->count[parameter]) return s->own; /* an empty part */
    int64_t at = (const char *)p->weight - tower_group_weights(s->tower, p->group).p +
                 s->cut->first[parameter] * (int64_t)dtype_bytes(p->weight_type) -
                 s->cut->groups[p->group].weights[s->cut->rank];
    return s->own + s->own_at[p->group] + at;
}

void shard_invalidate(struct shard *s, int group)
{
    for (int i = 0; i < WEIGHT_BUFFERS; i++)
        if (group < 0 || s->slots[i].group == group) s->slots[i].group = -1;
}

/* Runs in the communication thread. */
static int shard_gather(struct comm *comm, void *context, struct error *err)
{
    const struct slot *slot = context;
    const struct shard *s = slot->shard;
    return comm_gather_from(comm, s->own + s->own_at[slot->group],
                            tower_group_weights(s->tower, slot->group).p, s->cut->groups[slot->group].weights,
                            err);
}

static struct slot *slot_of(struct shard *s, int group)
{
    return &s->slots[tower_weight_buffer(s->tower, group)];
}

/* Starts to gather a group. comm_begin orders it after the operations issued so far, which may read the
 * buffer. */
static void shard_begin(struct shard *s, int group)
{
    struct slot *slot = slot_of(s, group);
    if (slot->group == group) return;
    slot->group = group;
    s->gathered += (int64_t)tower_group_weights(s->tower, group).bytes;
    slot->job = (struct comm_job){.run = shard_gather, .context = slot};
    comm_begin(s->ranks, &slot->job);
}

int shard_fetch(void *context, int group, int next, struct error *err)
{
    struct shard *s = context;
    shard_begin(s, group);
    if (next >= 0 && s->tower->options.weight_buffers > 1) shard_begin(s, next);
    int code = comm_end(s->ranks, &slot_of(s, group)->job, err);
    if (code) shard_invalidate(s, group);
    return code;
}

int64_t shard_gathered_bytes(const struct shard *s) { return s->gathered; }

int shard_end(struct shard *s, struct error *err)
{
    int code = 0;
    for (int i = 0; i < WEIGHT_BUFFERS; i++) {
        struct error other;
        int ended = comm_end(s->ranks, &s->slots[i].job, &other);
        if (!ended) continue;
        s->slots[i].group = -1;
        if (!code && err) *err = other;
        if (!code) code = ended;
    }
    return code;
}
