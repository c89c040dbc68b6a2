/* Data-parallel steps: of several ranks, or of one rank that must compute bit-identical steps.
 *
 * The images of a step are split into micro-batches of train.micro_batch, which are assigned to the ranks
 * round-robin: rank j % ranks computes micro-batch j, in round j / ranks. Its gradient g_j has the gradient
 * type of the student (bf16). The gradient of the step is the fp32 sum in this order:
 *
 *     g = (((0 + g_0) + g_1) + ...) + g_(n-1)
 *
 * Round r continues the sum of round r - 1. Each rank reduces its part of every tensor (partition.h). Loss
 * and metrics are summed in the same order. Therefore a step is bit-identical on any number of ranks, sharded
 * or not, for the same images and train.micro_batch.
 *
 * The communication thread reduces the gradients of one group while the backward of the next group computes.
 * Then the optimizer updates the group, and its buffer is reused. A sink of schedule.c, whose modes differ:
 *
 *   mode                      buffers of sums             reductions    weights are updated
 *   released, one round       two groups                  1             inside backward
 *   released, more rounds     all tensors, own part       1 per round   inside the last round's backward
 *   exact, one round          two groups                  2             inside a second backward
 *   exact, more rounds; kept  all tensors (shard none:    1 per round   after the last round
 *                             whole, else own part)
 *   breadth                   two groups                  1 per round,  inside backward, which visits all
 *                                                         exact: 2      rounds of a group before the next
 *   breadth in waves          as with more rounds         1 per round   as with more rounds
 */
#include "core/step/partition.h"
#include "core/step/shard.h"
#include "core/step/step.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct data_parallel {
    bool sharded;                    /* states are sharded (dist.shard) */
    int64_t micro_count;             /* micro-batches of a step, of all ranks */
    struct partition *partition;     /* of what is trained */
    struct partition *base;          /* with `shard` and adapters: of the frozen weights; else NULL */
    struct shard *shard;             /* sharded weights (dist.shard parameters); else NULL */
    float *group_sums[2];            /* sums of two groups, round-robin, for updates inside backward */
    float *all_sums;                 /* sums of all groups, of several waves or at_end; else NULL */
    int64_t *all_sums_at;            /* (groups) offsets in all_sums */
    struct group *jobs;              /* (groups) */
    struct meopt_gradient *measured; /* (tensors) arguments of the optimizer's norms */
    int *set_of;                     /* (tensors) of norms: step_norm_set */
    double *norms;                   /* (groups, sets) NAN: not finite */
    int *finite;                     /* (groups, sets) */
    int64_t wide_groups;             /* with slices: of the last step */
};

/* The communication of one group in one round. */
struct group {
    struct trainer *t;
    int number, contributors; /* contributors: ranks with a micro-batch in this round */
    bool first, last;         /* round */
    struct gradient_span span;
    const float *before; /* sum of the rounds before; the first one has none */
    float *sum;
    struct comm_job reduce, gather;
};

static int64_t micro_batch_images(const struct trainer *t, int64_t index)
{
    int64_t left = t->images - index * t->micro;
    return index >= t->dp->micro_count ? 0 : left < t->micro ? left : t->micro;
}

/* Returns the images of a rank in a step. */
static int64_t images_of(const struct trainer *t, int rank)
{
    int64_t images = 0;
    for (int64_t index = rank; index < t->dp->micro_count; index += t->data->size)
        images += micro_batch_images(t, index);
    return images;
}

int64_t dp_most_images(const struct trainer *t)
{
    int64_t first = images_of(t, 0), second = t->data->size > 1 ? images_of(t, 1) : 0;
    return first > second ? first : second; /* the last micro-batch may be smaller */
}

void dp_plan(struct trainer *t, int64_t micro_count)
{
    struct data_parallel *m = t->dp = xcalloc(1, sizeof *m);
    int ranks = t->data->size;
    m->micro_count = micro_count;
    t->schedule.rounds = (micro_count + ranks - 1) / ranks;
    m->sharded = t->config->dist.shard != DIST_SHARD_NONE && ranks > 1;
    t->batch = images_of(t, t->data->rank);
}

int64_t dp_gathered_bytes(const struct trainer *t)
{
    return t->dp && t->dp->shard ? shard_gathered_bytes(t->dp->shard) : 0;
}

void dp_close(struct trainer *t)
{
    struct data_parallel *m = t->dp;
    if (!m) return;
    shard_close(m->shard);
    partition_free(m->partition);
    partition_free(m->base);
    for (int i = 0; i < 2; i++) device_free(t->device, m->group_sums[i]);
    device_free(t->device, m->all_sums);
    free(m->all_sums_at);
    free(m->jobs);
    free(m->measured);
    free(m->set_of);
    free(m->norms);
    free(m->finite);
    free(m);
    t->dp = NULL;
}

/* ---- the parts of this rank, and its buffers ---- */

bool dp_divides_states(const struct trainer *t) { return t->dp && t->dp->sharded; }

bool dp_sharded(const struct trainer *t)
{
    return dp_divides_states(t) || (t->dp && (t->stages || t->tensor));
}

int dp_writers(const struct trainer *t)
{
    return dp_divides_states(t) ? t->ranks.size : t->dp ? comm_layout_ranks(t->ranks.layout) : 1;
}

/* The same among the ranks with its group. */
static bool cut_among_data(const struct trainer *t, int parameter)
{
    const struct parameter *p = &t->student->parameters[parameter];
    return dp_divides_states(t) && (p->trained || (t->dp->shard && !p->resident));
}

/* Returns whether a rank of this rank's plane has a part of a parameter only. Frozen weights are divided with
 * the weights. */
static bool divides_parameter(const struct trainer *t, int parameter)
{
    return (t->dp && t->stages) || cut_among_data(t, parameter);
}

/* Returns the partition that has the parts of a parameter. */
static const struct partition *cut_of(const struct trainer *t, int parameter)
{
    const struct data_parallel *m = t->dp;
    return m->base && !t->student->parameters[parameter].trained ? m->base : m->partition;
}

void dp_part(const struct trainer *t, int parameter, int64_t *first, int64_t *count)
{
    const struct parameter *p = &t->student->parameters[parameter];
    bool part = cut_among_data(t, parameter);
    *first = part ? cut_of(t, parameter)->first[parameter] : 0;
    *count = part                                  ? cut_of(t, parameter)->count[parameter]
             : tower_owns_parameter(t->student, p) ? p->count
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
    if (tower_has_adapters(t->student))
        m->base = partition_make(t->student, t->data->size, t->data->rank, true);
    return shard_make(&m->shard, t->student, t->data, m->base ? m->base : m->partition, err);
}

void *dp_weights(const struct trainer *t, int parameter)
{
    const struct parameter *p = &t->student->parameters[parameter];
    int64_t first, count;
    if (cut_among_data(t, parameter) && t->dp->shard && !p->resident)
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

/* Return where this rank's vectors and matrices begin in a group's sums. */
static int64_t own_vectors(const struct trainer *t, int group)
{
    return t->dp->sharded ? 0 : t->dp->partition->groups[group].vectors[t->data->rank];
}
static int64_t own_matrices(const struct trainer *t, int group)
{
    const struct partition_group *g = &t->dp->partition->groups[group];
    int rank = t->data->rank;
    return t->dp->sharded ? g->vectors[rank + 1] - g->vectors[rank]
                          : g->vectors[t->data->size] + g->matrices[rank];
}

/* Returns where a parameter's gradient begins in a group's sums: of this rank's part, or of all of it. */
static const float *gradient_in(const struct trainer *t, const float *sums, int parameter)
{
    const struct parameter *p = &t->student->parameters[parameter];
    const struct partition *cut = t->dp->partition;
    const struct partition_group *g = &cut->groups[p->group];
    int64_t at = cut->element[parameter];
    if (!t->dp->sharded) return sums + at + (p->matrix ? g->vectors[t->data->size] : 0);
    if (!cut->count[parameter]) return sums; /* an empty part */
    at += cut->first[parameter] - (p->matrix ? g->matrices : g->vectors)[t->data->rank];
    return sums + at + (p->matrix ? own_matrices(t, p->group) : 0);
}

/* The partition from which all ranks size their window alike: of a tensor group, that of its first rank,
 * whose slices of the vocabulary are the longest. NULL: the own one. The caller frees. */
static struct partition *first_partition(const struct trainer *t)
{
    struct tower_slices first = {0, t->student->options.slices_own};
    return t->tensor ? partition_elsewhere(t->student, t->data->size, t->stages ? t->stages->size : 1, &first)
                     : NULL;
}

/* The longest part that travels in one index; on all ranks the same. */
static int64_t longest_part(const struct trainer *t)
{
    const struct data_parallel *m = t->dp;
    struct partition *first = first_partition(t);
    const struct partition *cut = first ? first : m->partition;
    int64_t longest = 0,
            size = (int64_t)(m->sharded ? dtype_bytes(t->student->options.grad_type) : sizeof(float)),
            weight = (int64_t)dtype_bytes(t->student->options.weight_type);
    for (int i = -1; i < t->teacher_count && (t->stages || t->tensor); i++) {
        const struct tower *tower = i < 0 ? t->student : t->teachers[i].tower;
        int64_t stream = tower ? pipeline_stream_bytes(tower, t->micro) : 0;
        if (!t->stages) stream = comm_tree_part(t->tensor->size, stream / (int64_t)sizeof(float));
        if (stream > longest) longest = stream;
    }
    for (int group = 0; group < t->student->group_count; group++)
        for (int r = 0; r < t->data->size; r++) {
            const struct partition_group *g = &cut->groups[group],
                                         *base = m->base ? &m->base->groups[group] : g;
            int64_t vectors = (g->vectors[r + 1] - g->vectors[r]) * (int64_t)sizeof(float),
                    matrices = g->matrices[r + 1] - g->matrices[r];
            int64_t bytes[] = {vectors, matrices * size,
                               !m->sharded ? 0
                               : first     ? vectors + matrices * weight
                                           : g->weights[r + 1] - g->weights[r],
                               m->sharded ? base->weights[r + 1] - base->weights[r] : 0};
            for (int i = 0; i < 4; i++)
                if (bytes[i] > longest) longest = bytes[i];
        }
    partition_free(first);
    return longest;
}

/* Returns which of two buffers of sums a group has. */
static int turn_of(const struct trainer *t, int group)
{
    return group / (t->stages ? t->stages->size : 1) % 2;
}

int dp_buffers(struct trainer *t, struct error *err)
{
    struct data_parallel *m = t->dp;
    int64_t all = 0, most[2] = {0, 0}, groups = t->student->group_count;
    int turns = t->student->options.gradient_buffers == 2 ? 2 : 1;
    m->all_sums_at = xcalloc((size_t)groups, sizeof *m->all_sums_at);
    m->jobs = xcalloc((size_t)groups, sizeof *m->jobs);
    m->measured = xcalloc((size_t)t->tensors.count, sizeof *m->measured);
    size_t sets = (size_t)groups * (size_t)step_norm_sets(t);
    m->set_of = xcalloc((size_t)t->tensors.count, sizeof *m->set_of);
    m->norms = xcalloc(sets, sizeof *m->norms);
    m->finite = xcalloc(sets, sizeof *m->finite);
    for (int i = 0; i < t->tensors.count; i++)
        m->set_of[i] = step_norm_set(t, &t->student->parameters[t->tensors.parameter[i]]);
    if (comm_reserve(&t->ranks, longest_part(t), err)) return err->code;
    for (int group = 0; group < groups; group++) {
        int64_t capacity = (group_capacity(t, group) + 15) & ~(int64_t)15;
        m->all_sums_at[group] = all;
        all += capacity;
        int64_t *turn = &most[turn_of(t, group) % turns];
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
                *of = &most[m->group_sums[1] ? turn_of(t, group) : 0];
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
    int largest = 0, each = comm_layout_ranks(t->ranks.layout), here = t->ranks.rank % each;
    if (!dp_divides_states(t)) return here; /* it has at least as many images */
    for (int r = 1; r < t->data->size; r++)
        if (rank_bytes(t, r) > rank_bytes(t, largest)) largest = r;
    return largest * each + here;
}

/* ---- the sink: one group ---- */

/* Reduces a group's vectors, then its matrices (communication thread); unsharded, gathers the last sum. */
static int reduce_group(struct comm *comm, void *context, struct error *err)
{
    struct group *g = context;
    const struct trainer *t = g->t;
    const struct data_parallel *m = t->dp;
    const struct partition_group *cut = &m->partition->groups[g->number];
    enum dtype types[] = {DTYPE_F32, t->student->options.grad_type};
    const int64_t *offsets[] = {cut->vectors, cut->matrices};
    int64_t at[] = {own_vectors(t, g->number), own_matrices(t, g->number)};
    const float *before = g->first ? NULL : g->before;
    int code = 0;
    for (int i = 0; i < 2 && !code; i++)
        code = comm_reduce(comm,
                           &(struct comm_sum){.send = (char *)g->span.p + (i ? g->span.f32_bytes : 0),
                                              .type = types[i],
                                              .offsets = offsets[i],
                                              .contributors = g->contributors,
                                              .before = before ? before + at[i] : NULL,
                                              .receive = g->sum + at[i]},
                           err);
    if (!g->last || m->sharded || comm->size == 1) return code;
    int64_t *bytes = xcalloc((size_t)comm->size + 1, sizeof *bytes);
    for (int i = 0; i < 2 && !code; i++) {
        for (int q = 0; q <= comm->size; q++) bytes[q] = offsets[i][q] * (int64_t)sizeof(float);
        code = comm_gather(comm, g->sum + (i ? cut->vectors[comm->size] : 0), bytes, err);
    }
    free(bytes);
    return code;
}

/* All-gathers the weights that each rank has updated (communication thread). */
static int gather_weights(struct comm *comm, void *context, struct error *err)
{
    const struct group *g = context;
    const struct partition_group *cut = &g->t->dp->partition->groups[g->number];
    return cut->span ? comm_gather(comm, cut->span, cut->weights, err) : 0;
}

/* Starts the reduction of a group's gradient of this round, after that of the round before. */
static int take(struct step *s, int group, int64_t round, struct error *err)
{
    struct trainer *t = s->t;
    struct data_parallel *m = t->dp;
    struct group *g = &m->jobs[group];
    int64_t left = m->micro_count - round * t->data->size;
    bool last = round == t->schedule.rounds - 1, keep = m->all_sums && (t->schedule.at_end || !last);
    float *all = m->all_sums ? m->all_sums + m->all_sums_at[group] : NULL,
          *one = m->group_sums[m->group_sums[1] ? turn_of(t, group) : 0];
    (void)err;
    *g = (struct group){.t = t,
                        .number = group,
                        .contributors = left < t->data->size ? (int)left : t->data->size,
                        .first = round == 0,
                        .last = last,
                        .span = tower_group_gradients(t->student, group),
                        .before = all ? all : one,
                        .sum = keep ? all : one};
    g->reduce = (struct comm_job){.run = reduce_group, .context = g};
    g->gather = (struct comm_job){.run = gather_weights, .context = g};
    comm_begin(t->data, &g->reduce);
    return 0;
}

static int wait_taken(struct step *s, int group, struct error *err)
{
    struct trainer *t = s->t;
    return comm_end(t->data, &t->dp->jobs[group].reduce, err);
}

/* Returns whether the host adds up the norms of groups: ranks have parts, and the device cannot combine, or
 * groups have several norms. */
static bool norms_by_host(const struct trainer *t)
{
    return (dp_sharded(t) && !comm_combines(t->data)) || step_norm_sets(t) > 1;
}

/* Returns the square of a group's norm, from those of its sets. */
static double squares_in(const struct trainer *t, const double *norms, int group)
{
    int sets = step_norm_sets(t);
    double squares = 0;
    norms += (int64_t)group * sets;
    for (int i = 0; i < sets; i++) squares += norms[i] * norms[i];
    return squares;
}

/* Returns the square of a group's norm, measured or of its clipping; NAN: not finite. */
static double squares_of(const struct trainer *t, int group) { return squares_in(t, t->dp->norms, group); }

/* Sets values of sets, one for each norm, to those of the ranks of the tensor group that have the slices. All
 * have what is not sliced, with the same bits: other ones are an error, and one that is NaN counts. */
static int exchange_tensor(const struct trainer *t, double *values, int count, struct error *err)
{
    int sets = step_norm_sets(t), own = t->student->options.slices_own;
    if (!t->tensor) return 0;
    size_t bytes = (size_t)count * sizeof *values;
    double *all = xcalloc((size_t)t->tensor->size, bytes);
    memcpy(all + (int64_t)t->tensor->rank * count, values, bytes);
    int code = comm_gather_each(t->tensor, all, bytes, err);
    for (int i = 0; i < count && !code; i++) {
        int slice = i % sets - 1, differs = -1;
        values[i] = all[(slice < 0 ? 0 : slice / own) * count + i];
        for (int r = 1; r < t->tensor->size && slice < 0; r++) {
            const double *other = &all[r * count + i];
            if (isnan(*other)) values[i] = NAN;
            else if (memcmp(other, &values[i], sizeof *other) != 0 && !isnan(values[i])) differs = r;
        }
        if (differs > 0)
            code =
                error_set(err, EXIT_FAILED, "try the cards with 'meopt doctor', then: meopt train --resume",
                          "ranks %d and %d have different gradients of block group %d: %.9g and %.9g",
                          comm_world_rank(t->tensor, 0), comm_world_rank(t->tensor, differs), i / sets,
                          values[i], all[differs * count + i]);
    }
    free(all);
    return code;
}

/* Passes the gradients of a group's parameters to the optimizer's norms: of one set, or of all (-1). Returns
 * whether this rank has one. */
static bool set_measured(struct trainer *t, int group, int set)
{
    struct data_parallel *m = t->dp;
    bool any = false;
    for (int i = 0; i < t->tensors.count; i++) {
        const struct parameter *p = &t->student->parameters[t->tensors.parameter[i]];
        bool here = p->group == group && tower_owns_slice(t->student, p) &&
                    (set < 0 || m->set_of[i] == group * step_norm_sets(t) + set);
        m->measured[i] = (struct meopt_gradient){
            here ? gradient_in(t, m->jobs[group].sum, t->tensors.parameter[i]) : NULL, MEOPT_F32};
        any = any || here;
    }
    return any;
}

/* Computes the norm by which a group is clipped, of all its sets, and the scale. */
static int clip_by_host(struct step *s, int group, struct error *err)
{
    struct trainer *t = s->t;
    struct meopt_error library = {0};
    int sets = step_norm_sets(t);
    double *norms = t->dp->norms + (int64_t)group * sets;
    for (int i = 0; i < sets; i++) {
        int finite = 1;
        norms[i] = 0;
        if (!set_measured(t, group, i)) continue;
        if (meopt_gradient_norm(t->opt, t->dp->measured, &norms[i], &finite, &library))
            return trainer_library_error(&library, err);
        if (!finite) norms[i] = NAN;
    }
    int code = exchange_tensor(t, norms, sets, err);
    if (code) return code;
    double norm = sets == 1 ? norms[0] : sqrt(squares_of(t, group));
    if (isnan(norm) && !t->stages) return step_diverged(t, s->step, step_not_finite, s->moved, err);
    struct meopt_clip clip = step_clip_group(t, group);
    s->scale = meopt_clip_by(&clip, norm);
    return 0;
}

/* Computes the squared norm of a group's gradient. If groups are clipped separately and the host adds up,
 * waits for it and sets the scale; else the norm is read later. */
static int measure(struct step *s, int group, struct error *err)
{
    struct trainer *t = s->t;
    struct meopt_error library = {0};
    int status;
    if (s->by_group && norms_by_host(t)) return clip_by_host(s, group, err);
    set_measured(t, group, -1);
    if (!s->by_group) status = meopt_norms_begin(t->opt, t->dp->measured, &library);
    else status = meopt_gradient_found(t->opt, t->dp->measured, step_grad_stats(t, group), &library);
    return status ? trainer_library_error(&library, err) : 0;
}

static int measured(struct step *s, struct error *err)
{
    struct trainer *t = s->t;
    struct data_parallel *m = t->dp;
    struct meopt_error library = {0};
    int groups = t->student->group_count, sets = groups * step_norm_sets(t);
    t->reduce.of_all = true;
    int failed = meopt_norms_end(t->opt, (size_t)sets, m->set_of, m->norms, m->finite, &library);
    t->reduce.of_all = false;
    if (failed) return trainer_library_error(&library, err);
    for (int i = 0; i < sets; i++)
        if (!m->finite[i]) m->norms[i] = NAN;
    int code = exchange_tensor(t, m->norms, sets, err);
    return code ? code : step_add_norms(s, squares_of, err);
}

/* Sets the norms by which groups were clipped, of all stages. Groups after one that is not finite were not
 * updated, but for other stages, which learn of it here. */
static int exchange_norms(struct trainer *t, struct error *err)
{
    double *norms = t->dp->norms;
    int groups = t->student->group_count, sets = step_norm_sets(t);
    for (int group = t->schedule.lowest; group < groups; group++) {
        if (!tower_owns(t->student, group)) memset(norms + group * sets, 0, (size_t)sets * sizeof *norms);
        else if (!norms_by_host(t)) norms[group] = sqrt(step_found_squares(t, group));
    }
    return t->stages ? comm_all_reduce(t->stages, COMM_SUM, norms, (int64_t)groups * sets, err) : 0;
}

static int apply(struct step *s, int group, struct error *err)
{
    struct trainer *t = s->t;
    struct group *g = &t->dp->jobs[group];
    struct meopt_error library = {0};
    size_t count = 0;
    bool moved = s->moved;
    int code = s->by_group ? measure(s, group, err) : 0;
    if (code || !tower_owns(t->student, group)) return code;
    s->moved = true;
    if (t->dp->shard && !t->dp->base) shard_invalidate(t->dp->shard, group);
    for (int i = 0; i < t->tensors.count; i++) {
        const struct parameter *p = &t->student->parameters[t->tensors.parameter[i]];
        if (p->group != group || !tower_owns_slice(t->student, p)) continue;
        t->tensors.given[count] = (size_t)i;
        t->tensors.gradients[count++] =
            (struct meopt_gradient){gradient_in(t, g->sum, t->tensors.parameter[i]), MEOPT_F32};
    }
    int status;
    if (s->by_group && !norms_by_host(t)) {
        struct meopt_clip clip = step_clip_group(t, group);
        clip.found = step_grad_stats(t, group);
        status = meopt_step_clipped(t->opt, t->tensors.given, t->tensors.gradients, count, &clip, &library);
        if (status == MEOPT_NOT_FINITE && !t->stages)
            return step_diverged(t, s->step, step_not_finite, moved, err);
    } else
        status =
            meopt_step_tensors(t->opt, t->tensors.given, t->tensors.gradients, count, s->scale, &library);
    if (status && status != MEOPT_NOT_FINITE) /* other ranks learn of that at the end of the step */
        return trainer_library_error(&library, err);
    if (t->dp->sharded && (!t->dp->shard || t->dp->base)) {
        comm_begin(t->data, &g->gather);
        if (!t->data->overlaps) return comm_end(t->data, &g->gather, err);
    }
    return 0;
}

/* Steps the tensors of other stages and slices, of which this rank has no elements: the optimizer's sums are
 * over the tensors stepped, and over the same ones on all ranks that have parts of them. */
static int step_others(const struct step *s, struct error *err)
{
    struct trainer *t = s->t;
    struct meopt_error library = {0};
    size_t count = 0;
    for (int i = 0; i < t->tensors.count; i++) {
        if (tower_owns_parameter(t->student, &t->student->parameters[t->tensors.parameter[i]])) continue;
        t->tensors.given[count] = (size_t)i;
        t->tensors.gradients[count++] = (struct meopt_gradient){t->sums, MEOPT_F32};
    }
    int status =
        meopt_step_tensors(t->opt, t->tensors.given, t->tensors.gradients, count, s->scale, &library);
    return status ? trainer_library_error(&library, err) : 0;
}

/* Sets the norm of the step if it was not measured before, and the saturated groups, from what all ranks of
 * the tensor group found in it. Without slices the optimizer has them. */
static int gather_found(struct step *s, struct error *err)
{
    struct trainer *t = s->t;
    struct data_parallel *m = t->dp;
    struct meopt_error library = {0};
    int each = step_norm_sets(t), sets = t->student->group_count * each;
    if (each == 1) return 0;
    double *norms = xcalloc(2 * (size_t)sets, sizeof *norms), *wide = norms + sets, squares = 0;
    int64_t *saturated = xcalloc((size_t)sets, sizeof *saturated);
    t->reduce.of_all = true;
    int code = meopt_step_sets(t->opt, (size_t)sets, m->set_of, norms, m->finite, saturated, &library)
                   ? trainer_library_error(&library, err)
                   : 0;
    t->reduce.of_all = false;
    for (int i = 0; i < sets; i++) {
        if (!m->finite[i]) norms[i] = NAN;
        wide[i] = (double)saturated[i];
    }
    if (!code) code = exchange_tensor(t, norms, sets, err);
    if (!code) code = exchange_tensor(t, wide, sets, err);
    m->wide_groups = 0;
    for (int group = t->schedule.last; group >= t->schedule.lowest; group--)
        squares += squares_in(t, norms, group);
    for (int i = 0; i < sets; i++) m->wide_groups += (int64_t)wide[i];
    free(norms);
    free(saturated);
    if (!code && isnan(squares)) code = step_diverged(t, s->step, step_not_finite, s->moved, err);
    if (code || s->normed) return code;
    s->result->grad_norm = sqrt(squares);
    s->normed = true;
    return 0;
}

int64_t dp_wide_groups(const struct trainer *t)
{
    return t->dp && step_norm_sets(t) > 1 ? t->dp->wide_groups : meopt_wide_groups(t->opt);
}

static int end(struct step *s, int code, struct error *err)
{
    struct trainer *t = s->t;
    if (!code && (t->stages || t->tensor)) code = step_others(s, err);
    if (s->by_group && !norms_by_host(t)) step_send_grad_stats(t);
    return step_end_updates(s, code, squares_of, exchange_norms, gather_found, err);
}

const struct sink sink_ranks = {.take = take,
                                .wait = wait_taken,
                                .measure = measure,
                                .apply = apply,
                                .measured = measured,
                                .begin = step_begin_updates,
                                .end = end};

int dp_settle(struct trainer *t, int code, struct error *err)
{
    struct data_parallel *m = t->dp;
    struct error other = {0};
    int fetched = m->shard ? shard_end(m->shard, &other) : 0;
    if (!code && (code = fetched) != 0 && err) *err = other;
    for (int group = 0; group < t->student->group_count; group++) { /* wait for collectives in flight */
        int reduced = comm_end(t->data, &m->jobs[group].reduce, &other);
        int gathered = comm_end(t->data, &m->jobs[group].gather, reduced ? NULL : &other);
        if (code || !(reduced || gathered)) continue;
        code = reduced ? reduced : gathered;
        if (err) *err = other;
    }
    return code;
}

/* ---- weights and values of all ranks ---- */

int dp_forward_idle(struct trainer *t, struct error *err)
{
    int code = 0, last = t->student->group_count - 1;
    for (int group = 0; group <= last && t->dp && t->dp->shard && !code; group++)
        code = shard_fetch(t->dp->shard, group, group < last ? group + 1 : -1, err);
    return code;
}

int dp_gather_weights(struct trainer *t, struct error *err)
{
    int code = 0;
    if (!dp_sharded(t)) return 0;
    if (t->dp->shard) shard_invalidate(t->dp->shard, -1);
    if (!dp_divides_states(t) || (t->dp->shard && !t->dp->base)) return 0;
    for (int group = t->student->lowest; group < t->student->group_count && !code; group++) {
        const struct partition_group *cut = &t->dp->partition->groups[group];
        if (tower_owns(t->student, group) && cut->span)
            code = comm_gather(t->data, cut->span, cut->weights, err);
    }
    return code;
}

/* Gathers them from the ranks of this plane, which have it. */
static int gather_in_plane(const struct trainer *t, int parameter, float *values, struct error *err)
{
    const struct parameter *p = &t->student->parameters[parameter];
    int stages = t->plane->size / t->data->size;
    int64_t *offsets = xcalloc((size_t)t->plane->size + 1, sizeof *offsets);
    partition_offsets(cut_of(t, parameter), t->student, parameter, sizeof *values, offsets);
    if (!cut_among_data(t, parameter)) /* the first replica has all of it */
        for (int q = 1; q <= t->data->size; q++) offsets[q] = p->count * (int64_t)sizeof *values;
    partition_spread(offsets, t->data->size, stages,
                     stage_of_group(stages, t->student->group_count, p->group));
    int code = comm_gather_host(t->plane, values, offsets, err);
    free(offsets);
    return code;
}

/* Gives a slice to the ranks that have others. */
static int give_slice(const struct trainer *t, const struct parameter *p, float *values, struct error *err)
{
    int64_t offsets[COMM_TREE_RANKS + 1] = {0};
    for (int q = layout_slice_owner(t->ranks.layout, p) + 1; q <= t->tensor->size; q++)
        offsets[q] = p->count * (int64_t)sizeof *values;
    return comm_gather_host(t->tensor, values, offsets, err);
}

int dp_gather_values(const struct trainer *t, int parameter, float *values, struct error *err)
{
    const struct parameter *p = &t->student->parameters[parameter];
    int code = divides_parameter(t, parameter) && tower_owns_slice(t->student, p)
                   ? gather_in_plane(t, parameter, values, err)
                   : 0;
    return code || !t->tensor || p->slice < 0 ? code : give_slice(t, p, values, err);
}
