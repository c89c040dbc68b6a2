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
#include "core/step/step_ranks_parts.h"
#include "core/base/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool dp_enabled(const struct config *c, int ranks) { return ranks > 1 || c->train.global_batch > 0; }

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

void dp_plan(struct trainer *t)
{
    const struct config *c = t->config;
    struct data_parallel *m = t->dp = xcalloc(1, sizeof *m);
    int ranks = t->data->size;
    t->images = c->train.global_batch > 0 ? c->train.global_batch : c->train.batch_size * ranks;
    t->micro = c->train.micro_batch > 0 ? c->train.micro_batch : c->train.batch_size;
    if (t->micro > t->images) t->micro = t->images;
    m->micro_count = (t->images + t->micro - 1) / t->micro;
    t->schedule.rounds = (m->micro_count + ranks - 1) / ranks;
    m->sharded = c->dist.shard != DIST_SHARD_NONE && ranks > 1;
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
    free(m->group_of);
    free(m->norms);
    free(m->finite);
    free(m);
    t->dp = NULL;
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
    int64_t at[] = {dp_own_vectors(t, g->number), dp_own_matrices(t, g->number)};
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
static int take(void *context, int group, int64_t round, struct error *err)
{
    const struct step *s = context;
    struct trainer *t = s->t;
    struct data_parallel *m = t->dp;
    struct group *g = &m->jobs[group];
    int64_t left = m->micro_count - round * t->data->size;
    bool last = round == t->schedule.rounds - 1, keep = m->all_sums && (t->schedule.at_end || !last);
    float *all = m->all_sums ? m->all_sums + m->all_sums_at[group] : NULL,
          *one = m->group_sums[m->group_sums[1] ? dp_turn(t, group) : 0];
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

static int taken(void *context, int group, struct error *err)
{
    struct trainer *t = ((struct step *)context)->t;
    return comm_end(t->data, &t->dp->jobs[group].reduce, err);
}

/* Returns whether the host adds up the norms of groups: ranks have parts, and the device cannot combine. */
static bool norms_by_host(const struct trainer *t) { return dp_sharded(t) && !comm_combines(t->data); }

/* Computes the squared norm of a group's gradient. If groups are clipped separately and the host adds up,
 * waits for it and sets the scale; else the norm is read later. */
static int measure(void *context, int group, struct error *err)
{
    struct step *s = context;
    struct trainer *t = s->t;
    struct data_parallel *m = t->dp;
    struct meopt_error library = {0};
    int finite = 1, status;
    double norm;
    for (int i = 0; i < t->tensor_count; i++) {
        bool here = m->group_of[i] == group;
        m->measured[i] = (struct meopt_gradient){
            here ? dp_gradient_in(t, m->jobs[group].sum, t->parameter_of[i]) : NULL, MEOPT_F32};
    }
    if (!s->by_group) status = meopt_norms_begin(t->opt, m->measured, &library);
    else if (!norms_by_host(t))
        status = meopt_gradient_found(t->opt, m->measured, step_grad_stats(t, group), &library);
    else {
        status = meopt_gradient_norm(t->opt, m->measured, &norm, &finite, &library);
        if (!status && !finite && !t->stages)
            return step_diverged(t, s->step, step_not_finite, s->moved, err);
        if (!status) {
            m->norms[group] = finite ? norm : NAN;
            struct meopt_clip clip = step_clip_group(t, group);
            s->scale = meopt_clip_by(&clip, norm);
        }
    }
    return status ? trainer_library_error(&library, err) : 0;
}

/* Returns the square of a group's norm, measured or of its clipping; NAN: not finite. */
static double squares_of(const struct trainer *t, int group)
{
    return t->dp->norms[group] * t->dp->norms[group];
}

static int measured(void *context, struct error *err)
{
    struct step *s = context;
    struct trainer *t = s->t;
    struct data_parallel *m = t->dp;
    struct meopt_error library = {0};
    int groups = t->student->group_count;
    t->sums_of_all = true;
    int failed = meopt_norms_end(t->opt, (size_t)groups, m->group_of, m->norms, m->finite, &library);
    t->sums_of_all = false;
    if (failed) return trainer_library_error(&library, err);
    for (int group = 0; group < groups; group++)
        if (!m->finite[group]) m->norms[group] = NAN;
    return step_add_norms(s, squares_of, err);
}

/* Sets the norms by which groups were clipped, of all stages. Groups after one that is not finite were not
 * updated, but for other stages, which learn of it here. */
static int exchange_norms(struct trainer *t, struct error *err)
{
    double *norms = t->dp->norms;
    int groups = t->student->group_count;
    for (int group = t->schedule.lowest; group < groups; group++) {
        if (!tower_owns(t->student, group)) norms[group] = 0;
        else if (!norms_by_host(t)) norms[group] = sqrt(step_found_squares(t, group));
    }
    return t->stages ? comm_all_reduce(t->stages, COMM_SUM, norms, groups, err) : 0;
}

static int begin(void *context, struct error *err) { return step_begin_updates(context, 0, err); }

static int apply(void *context, int group, struct error *err)
{
    struct step *s = context;
    struct trainer *t = s->t;
    struct group *g = &t->dp->jobs[group];
    struct meopt_error library = {0};
    size_t count = 0;
    bool moved = s->moved;
    int code = s->by_group ? measure(s, group, err) : 0;
    if (code || !tower_owns(t->student, group)) return code;
    s->moved = true;
    if (t->dp->shard && !t->dp->base) shard_invalidate(t->dp->shard, group);
    for (int i = 0; i < t->tensor_count; i++) {
        if (t->student->parameters[t->parameter_of[i]].group != group) continue;
        t->tensors[count] = (size_t)i;
        t->gradients[count++] =
            (struct meopt_gradient){dp_gradient_in(t, g->sum, t->parameter_of[i]), MEOPT_F32};
    }
    int status;
    if (s->by_group && !norms_by_host(t)) {
        struct meopt_clip clip = step_clip_group(t, group);
        clip.found = step_grad_stats(t, group);
        status = meopt_step_clipped(t->opt, t->tensors, t->gradients, count, &clip, &library);
        if (status == MEOPT_NOT_FINITE && !t->stages)
            return step_diverged(t, s->step, step_not_finite, moved, err);
    } else status = meopt_step_tensors(t->opt, t->tensors, t->gradients, count, s->scale, &library);
    if (status && status != MEOPT_NOT_FINITE) /* other ranks learn of that at the end of the step */
        return trainer_library_error(&library, err);
    if (t->dp->sharded && (!t->dp->shard || t->dp->base)) {
        comm_begin(t->data, &g->gather);
        if (!t->data->overlaps) return comm_end(t->data, &g->gather, err);
    }
    return 0;
}

/* Steps the tensors of other stages, of which this rank has no elements: the optimizer's sums are over the
 * tensors stepped, and over the same ones on all ranks. */
static int step_other_stages(const struct step *s, struct error *err)
{
    struct trainer *t = s->t;
    struct meopt_error library = {0};
    size_t count = 0;
    for (int i = 0; i < t->tensor_count; i++) {
        if (tower_owns(t->student, t->dp->group_of[i])) continue;
        t->tensors[count] = (size_t)i;
        t->gradients[count++] = (struct meopt_gradient){t->sums, MEOPT_F32};
    }
    int status = meopt_step_tensors(t->opt, t->tensors, t->gradients, count, s->scale, &library);
    return status ? trainer_library_error(&library, err) : 0;
}

static int end(void *context, int code, struct error *err)
{
    struct step *s = context;
    struct trainer *t = s->t;
    if (!code && t->stages) code = step_other_stages(s, err);
    if (s->by_group && !norms_by_host(t)) step_send_grad_stats(t);
    return step_end_updates(s, code, squares_of, exchange_norms, err);
}

const struct sink sink_ranks = {.take = take,
                                .taken = taken,
                                .measure = measure,
                                .apply = apply,
                                .measured = measured,
                                .begin = begin,
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

int dp_gather_values(const struct trainer *t, int parameter, float *values, struct error *err)
{
    if (!dp_divides(t, parameter)) return 0;
    const struct parameter *p = &t->student->parameters[parameter];
    int stages = t->ranks.size / t->data->size;
    int64_t *offsets = xcalloc((size_t)t->ranks.size + 1, sizeof *offsets);
    partition_offsets(dp_partition_of(t, parameter), t->student, parameter, sizeof *values, offsets);
    if (!dp_cut_among_data(t, parameter)) /* the first replica has all of it */
        for (int q = 1; q <= t->data->size; q++) offsets[q] = p->count * (int64_t)sizeof *values;
    partition_stages(offsets, t->data->size, stages,
                     stage_of_group(stages, t->student->group_count, p->group));
    int code = comm_gather_host((struct comm *)(uintptr_t)&t->ranks, values, offsets, err);
    free(offsets);
    return code;
}
