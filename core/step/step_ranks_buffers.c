/* The buffers of data-parallel steps, and this rank's parts of weights and sums: see step_ranks.c. */
#include "core/step/step_ranks_parts.h"
#include "core/base/file.h"

#include <stdlib.h>

bool dp_divides_states(const struct trainer *t) { return t->dp && t->dp->sharded; }

bool dp_sharded(const struct trainer *t) { return dp_divides_states(t) || (t->dp && t->stages); }

int dp_writers(const struct trainer *t)
{
    return dp_divides_states(t) ? t->ranks.size : t->dp && t->stages ? t->stages->size : 1;
}

bool dp_cut_among_data(const struct trainer *t, int parameter)
{
    const struct parameter *p = &t->student->parameters[parameter];
    return dp_divides_states(t) && (p->trained || (t->dp->shard && !p->resident));
}

bool dp_divides(const struct trainer *t, int parameter)
{
    return (t->dp && t->stages) || dp_cut_among_data(t, parameter);
}

const struct partition *dp_partition_of(const struct trainer *t, int parameter)
{
    const struct data_parallel *m = t->dp;
    return m->base && !t->student->parameters[parameter].trained ? m->base : m->partition;
}

void dp_part(const struct trainer *t, int parameter, int64_t *first, int64_t *count)
{
    const struct parameter *p = &t->student->parameters[parameter];
    bool part = dp_cut_among_data(t, parameter);
    *first = part ? dp_partition_of(t, parameter)->first[parameter] : 0;
    *count = part                               ? dp_partition_of(t, parameter)->count[parameter]
             : tower_owns(t->student, p->group) ? p->count
                                                : 0;
}

int dp_weight_buffers(const struct trainer *t)
{
    if (!dp_divides_states(t) || t->config->dist.shard != DIST_SHARD_PARAMETERS) return 0;
    return dp_gradient_buffers(t);
}

/* 1 on a card without RCCL or NCCL: its copies would be captured into the graph of the computation. */
int dp_gradient_buffers(const struct trainer *t) { return t->data->size > 1 && t->data->overlaps ? 2 : 1; }

int dp_partition(struct trainer *t, struct error *err)
{
    struct data_parallel *m = t->dp;
    m->partition = partition_make(t->student, t->data->size, t->data->rank, false);
    if (!dp_weight_buffers(t)) return 0;
    if (t->student->options.lora.rank)
        m->base = partition_make(t->student, t->data->size, t->data->rank, true);
    return shard_make(&m->shard, t->student, t->data, m->base ? m->base : m->partition, err);
}

void *dp_weights(const struct trainer *t, int parameter)
{
    const struct parameter *p = &t->student->parameters[parameter];
    int64_t first, count;
    if (dp_cut_among_data(t, parameter) && t->dp->shard && !p->resident)
        return shard_part(t->dp->shard, parameter);
    dp_part(t, parameter, &first, &count);
    return (char *)p->weight + (size_t)first * dtype_bytes(p->weight_type);
}

/* Returns the floats of a group's sums that this rank stores. */
static int64_t group_capacity(const struct trainer *t, int group)
{
    const struct data_parallel *m = t->dp;
    if (group < t->student->lowest || !tower_owns(t->student, group)) return 0;
    return m->sharded ? partition_own(m->partition, group) : partition_elements(m->partition, group);
}

int64_t dp_own_vectors(const struct trainer *t, int group)
{
    return t->dp->sharded ? 0 : t->dp->partition->groups[group].vectors[t->data->rank];
}
int64_t dp_own_matrices(const struct trainer *t, int group)
{
    const struct partition_group *g = &t->dp->partition->groups[group];
    int rank = t->data->rank;
    return t->dp->sharded ? g->vectors[rank + 1] - g->vectors[rank]
                          : g->vectors[t->data->size] + g->matrices[rank];
}

const float *dp_gradient_in(const struct trainer *t, const float *sums, int parameter)
{
    const struct parameter *p = &t->student->parameters[parameter];
    const struct partition *cut = t->dp->partition;
    const struct partition_group *g = &cut->groups[p->group];
    int64_t at = cut->element[parameter];
    if (!t->dp->sharded) return sums + at + (p->matrix ? g->vectors[t->data->size] : 0);
    if (!cut->count[parameter]) return sums; /* an empty part */
    at += cut->first[parameter] - (p->matrix ? g->matrices : g->vectors)[t->data->rank];
    return sums + at + (p->matrix ? dp_own_matrices(t, p->group) : 0);
}

/* The longest part that travels in one index. */
static int64_t longest_part(const struct trainer *t)
{
    const struct data_parallel *m = t->dp;
    int64_t longest = 0,
            size = (int64_t)(m->sharded ? dtype_bytes(t->student->options.grad_type) : sizeof(float));
    const struct tower *towers[] = {t->student, t->teacher};
    for (int i = 0; i < 2 && t->stages; i++) {
        int64_t stream = towers[i] ? pipeline_stream_bytes(towers[i], t->micro) : 0;
        if (stream > longest) longest = stream;
    }
    for (int group = 0; group < t->student->group_count; group++)
        for (int r = 0; r < t->data->size; r++) {
            const struct partition_group *g = &m->partition->groups[group],
                                         *base = m->base ? &m->base->groups[group] : g;
            int64_t bytes[] = {(g->vectors[r + 1] - g->vectors[r]) * (int64_t)sizeof(float),
                               (g->matrices[r + 1] - g->matrices[r]) * size,
                               m->sharded ? g->weights[r + 1] - g->weights[r] : 0,
                               m->sharded ? base->weights[r + 1] - base->weights[r] : 0};
            for (int i = 0; i < 4; i++)
                if (bytes[i] > longest) longest = bytes[i];
        }
    return longest;
}

int dp_turn(const struct trainer *t, int group) { return group / (t->stages ? t->stages->size : 1) % 2; }

int dp_buffers(struct trainer *t, struct error *err)
{
    struct data_parallel *m = t->dp;
    int64_t all = 0, most[2] = {0, 0}, groups = t->student->group_count;
    int turns = t->student->options.gradient_buffers == 2 ? 2 : 1;
    m->all_sums_at = xcalloc((size_t)groups, sizeof *m->all_sums_at);
    m->jobs = xcalloc((size_t)groups, sizeof *m->jobs);
    m->measured = xcalloc((size_t)t->tensor_count, sizeof *m->measured);
    m->group_of = xcalloc((size_t)t->tensor_count, sizeof *m->group_of);
    m->norms = xcalloc((size_t)groups, sizeof *m->norms);
    m->finite = xcalloc((size_t)groups, sizeof *m->finite);
    for (int i = 0; i < t->tensor_count; i++)
        m->group_of[i] = t->student->parameters[t->parameter_of[i]].group;
    if (comm_reserve(&t->ranks, longest_part(t), err)) return err->code;
    for (int group = 0; group < groups; group++) {
        int64_t capacity = (group_capacity(t, group) + 15) & ~(int64_t)15;
        m->all_sums_at[group] = all;
        all += capacity;
        int64_t *turn = &most[dp_turn(t, group) % turns];
        if (capacity > *turn) *turn = capacity;
    }
    if (t->schedule.at_end || schedule_waves(&t->schedule) > 1) {
        m->all_sums = device_alloc(t->device, MEMORY_GRADIENTS, (size_t)(all + 16) * sizeof *m->all_sums,
                                   "sums of gradients", err);
        if (!m->all_sums) return err->code;
    }
    for (int i = 0; i < turns && !t->schedule.at_end; i++) {
        m->group_sums[i] = device_alloc(t->device, MEMORY_GRADIENTS, (size_t)(most[i] + 16) * sizeof(float),
                                        "sums of a block's gradients", err);
        if (!m->group_sums[i]) return err->code;
    }
    return 0;
}

/* Returns the bytes of `rank` that depend on its parts: states and weights by elements, and the sums. */
static double rank_bytes(const struct trainer *t, int rank)
{
    const struct data_parallel *m = t->dp;
    struct meopt_bytes held = {0};
    int64_t all = 0, base = 0, most[2] = {0, 0};
    (void)meopt_held(t->opt, &held);
    double bytes = held.parameters ? (double)held.total / (double)held.parameters : 0;
    if (m->shard && !m->base) bytes += 2;
    if (m->all_sums) bytes += sizeof(float);
    for (int group = t->student->lowest; group < t->student->group_count; group++) {
        int64_t count = partition_of(m->partition, group, rank),
                *of = &most[m->group_sums[1] ? dp_turn(t, group) : 0];
        if (!tower_owns(t->student, group)) continue;
        all += count;
        if (count > *of && m->group_sums[0]) *of = count;
    }
    for (int group = 0; group < t->student->group_count && m->base; group++) {
        const int64_t *at = m->base->groups[group].weights;
        base += at[rank + 1] - at[rank];
    }
    return bytes * (double)all + (double)base + sizeof(float) * (double)(most[0] + most[1]);
}

int dp_largest_rank(const struct trainer *t)
{
    int largest = 0;
    if (!dp_divides_states(t)) return t->stages ? t->stages->rank : 0; /* it has at least as many images */
    for (int r = 1; r < t->data->size; r++)
        if (rank_bytes(t, r) > rank_bytes(t, largest)) largest = r;
    return largest * (t->stages ? t->stages->size : 1) + (t->stages ? t->stages->rank : 0);
}
