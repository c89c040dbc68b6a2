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
 * Then the optimizer updates the group, and its buffer is reused. The modes (trainer.h) differ:
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
    m->rounds = (m->micro_count + ranks - 1) / ranks;
    m->sharded = c->dist.shard != DIST_SHARD_NONE && ranks > 1;
    t->batch = images_of(t, t->data->rank);
    bool exact = config_clips(c) && c->optim.clip_mode == OPTIM_CLIP_MODE_EXACT;
    t->twice = t->release && m->rounds == 1 && exact;
    m->step_at_end = !t->release || (exact && m->rounds > 1);
}

void dp_plan_breadth(struct trainer *t) { t->dp->step_at_end = false; }

int64_t dp_gathered_bytes(const struct trainer *t)
{
    return t->dp && t->dp->shard ? shard_gathered_bytes(t->dp->shard) : 0;
}

int64_t dp_round_count(const struct trainer *t) { return t->dp ? t->dp->rounds : 1; }

int64_t dp_wave_rounds(const struct trainer *t)
{
    int64_t left = dp_round_count(t) - t->first;
    return left < t->wave ? left : t->wave;
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

/* ---- one group ---- */

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

void dp_begin_group(struct dp_pass *r, int group)
{
    struct trainer *t = r->t;
    struct data_parallel *m = t->dp;
    struct group *g = &m->jobs[group];
    bool keep = m->all_sums && (m->step_at_end || !r->last);
    float *all = m->all_sums ? m->all_sums + m->all_sums_at[group] : NULL,
          *one = m->group_sums[m->group_sums[1] ? dp_turn(t, group) : 0];
    *g = (struct group){.t = t,
                        .number = group,
                        .contributors = r->contributors,
                        .first = r->first,
                        .last = r->last,
                        .span = tower_group_gradients(t->student, group),
                        .before = all ? all : one,
                        .sum = keep ? all : one};
    g->reduce = (struct comm_job){.run = reduce_group, .context = g};
    g->gather = (struct comm_job){.run = gather_weights, .context = g};
    comm_begin(t->data, &g->reduce);
}

/* Returns whether the host adds up the norms of groups: ranks have parts, and the device cannot combine. */
static bool norms_by_host(const struct trainer *t) { return dp_sharded(t) && !comm_combines(t->data); }

static double group_share(const struct dp_pass *r, int group)
{
    return sqrt((double)step_parameters(r->t, group) / (double)r->parameters);
}

/* Computes the squared norm of a group's gradient. If groups are clipped separately and the host adds up,
 * waits for it and sets the scale; else the norm is read later. */
static int measure_group(struct dp_pass *r, int group, struct error *err)
{
    struct trainer *t = r->t;
    struct data_parallel *m = t->dp;
    struct meopt_error library = {0};
    int finite = 1, status;
    double norm;
    for (int i = 0; i < t->tensor_count; i++) {
        bool here = m->group_of[i] == group;
        m->measured[i] = (struct meopt_gradient){
            here ? dp_gradient_in(t, m->jobs[group].sum, t->parameter_of[i]) : NULL, MEOPT_F32};
    }
    if (!r->by_group) status = meopt_norms_begin(t->opt, m->measured, &library);
    else if (!norms_by_host(t))
        status = meopt_gradient_found(t->opt, m->measured, step_grad_stats(t, group), &library);
    else {
        status = meopt_gradient_norm(t->opt, m->measured, &norm, &finite, &library);
        if (!status && !finite && !t->stages)
            return step_diverged(t, r->step, step_not_finite, r->moved, err);
        if (!status) {
            m->norms[group] = finite ? norm : NAN;
            r->scale = step_clip_scale(t, norm, group_share(r, group));
        }
    }
    return status ? trainer_library_error(&library, err) : 0;
}

/* Adds up the measured norms of all groups, in the order of their updates, and sets the scale. */
static int finish_norms(struct dp_pass *r, struct error *err)
{
    struct trainer *t = r->t;
    struct data_parallel *m = t->dp;
    struct meopt_error library = {0};
    int groups = t->student->group_count;
    t->sums_of_all = true;
    int failed = meopt_norms_end(t->opt, (size_t)groups, m->group_of, m->norms, m->finite, &library);
    t->sums_of_all = false;
    if (failed) return trainer_library_error(&library, err);
    for (int group = groups - 1; group >= t->student->lowest; group--) {
        if (!m->finite[group]) return step_diverged(t, r->step, step_not_finite, false, err);
        r->squares += m->norms[group] * m->norms[group];
    }
    r->scale = step_clip_scale(t, sqrt(r->squares), 1);
    return 0;
}

/* Adds up the norms by which groups were clipped, of all stages. found: they are read from the device. Groups
 * after one that is not finite were not updated, but for other stages, which learn of it here. */
static int add_group_norms(struct dp_pass *r, bool found, struct error *err)
{
    struct trainer *t = r->t;
    double *norms = t->dp->norms;
    int last = t->student->group_count - 1, code = 0;
    for (int group = last; group >= t->student->lowest; group--) {
        double squares;
        if (!tower_owns(t->student, group)) norms[group] = 0;
        else if (found) norms[group] = step_found_read(t, group, &squares) ? sqrt(squares) : NAN;
    }
    if (t->stages) code = comm_all_reduce(t->stages, COMM_SUM, norms, last + 1, err);
    for (int group = last; group >= t->student->lowest && !code; group--) {
        if (!isfinite(norms[group])) code = step_diverged(t, r->step, step_not_finite, group < last, err);
        r->squares += norms[group] * norms[group];
    }
    return code;
}

static int step_group(struct dp_pass *r, int group, struct error *err)
{
    struct trainer *t = r->t;
    struct group *g = &t->dp->jobs[group];
    struct meopt_error library = {0};
    size_t count = 0;
    bool moved = r->moved;
    r->moved = true;
    if (t->dp->shard && !t->dp->base) shard_invalidate(t->dp->shard, group);
    for (int i = 0; i < t->tensor_count; i++) {
        if (t->student->parameters[t->parameter_of[i]].group != group) continue;
        t->tensors[count] = (size_t)i;
        t->gradients[count++] =
            (struct meopt_gradient){dp_gradient_in(t, g->sum, t->parameter_of[i]), MEOPT_F32};
    }
    int status;
    if (r->by_group && !norms_by_host(t)) {
        struct meopt_clip clip = step_clip(t, group_share(r, group));
        clip.found = step_grad_stats(t, group);
        status = meopt_step_clipped(t->opt, t->tensors, t->gradients, count, &clip, &library);
        if (status == MEOPT_NOT_FINITE && !t->stages)
            return step_diverged(t, r->step, step_not_finite, moved, err);
    } else status = meopt_step_tensors(t->opt, t->tensors, t->gradients, count, r->scale, &library);
    if (status && status != MEOPT_NOT_FINITE) /* other ranks learn of that at the end of the step */
        return trainer_library_error(&library, err);
    if (t->dp->sharded && (!t->dp->shard || t->dp->base)) {
        comm_begin(t->data, &g->gather);
        if (!t->data->overlaps) return comm_end(t->data, &g->gather, err);
    }
    return 0;
}

int dp_end_group(struct dp_pass *r, int group, struct error *err)
{
    struct trainer *t = r->t;
    int code = comm_end(t->data, &t->dp->jobs[group].reduce, err);
    bool deferred = r->measure || t->dp->step_at_end; /* until all groups are measured */
    if (code || !t->dp->jobs[group].last) return code;
    if (deferred || r->by_group) code = measure_group(r, group, err);
    return code || deferred ? code : step_group(r, group, err);
}

/* Called when a group's gradients are complete: starts their reduction, and finishes the group before. */
static int on_group(void *context, int group, struct error *err)
{
    struct dp_pass *r = context;
    struct step_result *result = r->result;
    int before = r->in_flight;
    r->result = NULL;
    int code = result ? step_sum_losses(r->t, r->step, result, err) : 0;
    if (code) return code;
    dp_begin_group(r, group);
    r->in_flight = group;
    if (r->t->student->options.gradient_buffers != 2) { /* no buffer for the next group */
        r->in_flight = -1;
        return dp_end_group(r, group, err);
    }
    return before >= 0 ? dp_end_group(r, before, err) : 0;
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

/* ---- one pass, one round ---- */

/* Sets the round, and the ranks that have a micro-batch in it. */
static void set_round(struct dp_pass *r, int64_t round)
{
    const struct data_parallel *m = r->t->dp;
    int64_t left = m->micro_count - round * r->t->data->size;
    r->round = round;
    r->first = round == 0;
    r->last = round == m->rounds - 1;
    r->contributors = left < r->t->data->size ? (int)left : r->t->data->size;
}

/* Reads a loss that the head's backward has computed, once and before the first update. */
static int read_loss(struct dp_pass *r, struct error *err)
{
    struct step_result *result = r->result;
    r->result = NULL;
    return result ? step_sum_losses(r->t, r->step, result, err) : 0;
}

/* Starts the reduction of a group's gradient of this round, after that of the micro-batch before. */
static int take_gradient(struct dp_pass *r, int group, int64_t round, struct error *err)
{
    int code = r->in_flight >= 0 ? dp_end_group(r, r->in_flight, err) : 0;
    r->in_flight = -1;
    set_round(r, round);
    if (!code && r->last) code = read_loss(r, err);
    if (code) return code;
    dp_begin_group(r, group);
    /* with fewer rounds than slots, the next group's first gradient may be in the same buffer */
    if (r->t->student->options.gradient_buffers != 2 || dp_wave_rounds(r->t) < r->t->wave)
        return dp_end_group(r, group, err);
    r->in_flight = group;
    return 0;
}

/* Runs backward of the wave's rounds, group by group. The reduction of one micro-batch overlaps with the
 * backward of the next one. */
static int breadth_backward(struct dp_pass *r, struct error *err)
{
    struct trainer *t = r->t;
    int code = 0, lowest = t->student->lowest, last = t->student->group_count - 1;
    for (int group = last; group >= lowest && !code; group--) {
        code = tower_need(t->student, group, group > lowest ? group - 1 : -1, err);
        for (int64_t slot = 0; slot < dp_wave_rounds(t) && !code; slot++) {
            if (step_micro_images(t, t->first + slot)) breadth_backward_group(t, slot, group);
            code = take_gradient(r, group, t->first + slot, err);
        }
    }
    return code;
}

static void backward_slot(void *context, int64_t slot, int group)
{
    breadth_backward_group(((struct dp_pass *)context)->t, slot, group);
}

static int finish_slot(void *context, int64_t slot, int group, bool own, struct error *err)
{
    struct dp_pass *r = context;
    bool head = group == r->t->student->group_count - 1;
    if (!own && head && slot == dp_wave_rounds(r->t) - 1) return read_loss(r, err);
    return own ? take_gradient(r, group, r->t->first + slot, err) : 0;
}

/* The same of this stage's groups. */
static int stage_backward(struct dp_pass *r, struct error *err)
{
    struct tower *s = r->t->student;
    return pipeline_run(r->t,
                        &(struct pipeline_pass){s, s->group_count - 1, s->lowest, -1, .context = r,
                                                .compute = backward_slot, .finish = finish_slot},
                        err);
}

/* Runs backward of this rank's micro-batch. With count 0 it has none, and only joins the collectives. */
static int depth_backward(struct dp_pass *r, int64_t count, struct error *err)
{
    struct trainer *t = r->t;
    int code = 0;
    struct batch batch = step_batch(t, r->round, count);
    if (count) code = tower_backward(t->student, &batch, t->dout, true, true, on_group, r, err);
    int lowest = t->student->lowest;
    for (int group = t->student->group_count - 1; group >= lowest && !count && !code; group--) {
        if (t->dp->shard) code = shard_fetch(t->dp->shard, group, group > lowest ? group - 1 : -1, err);
        if (!code) code = on_group(r, group, err);
    }
    return code;
}

static int backward(struct dp_pass *r, int64_t count, struct error *err)
{
    r->in_flight = -1;
    int code = r->t->stages    ? stage_backward(r, err)
               : r->t->breadth ? breadth_backward(r, err)
                               : depth_backward(r, count, err);
    return !code && r->in_flight >= 0 ? dp_end_group(r, r->in_flight, err) : code;
}

int dp_forward_idle(struct trainer *t, struct error *err)
{
    int code = 0, last = t->student->group_count - 1;
    for (int group = 0; group <= last && t->dp && t->dp->shard && !code; group++)
        code = shard_fetch(t->dp->shard, group, group < last ? group + 1 : -1, err);
    return code;
}

/* Steps the tensors of other stages, of which this rank has no elements: the optimizer's sums are over the
 * tensors stepped, and over the same ones on all ranks. */
static int step_other_stages(const struct dp_pass *r, struct error *err)
{
    struct trainer *t = r->t;
    struct meopt_error library = {0};
    size_t count = 0;
    for (int i = 0; i < t->tensor_count; i++) {
        if (tower_owns(t->student, t->dp->group_of[i])) continue;
        t->tensors[count] = (size_t)i;
        t->gradients[count++] = (struct meopt_gradient){t->sums, MEOPT_F32};
    }
    int status = meopt_step_tensors(t->opt, t->tensors, t->gradients, count, r->scale, &library);
    return status ? trainer_library_error(&library, err) : 0;
}

/* Runs backward of the last round: measures, clips and applies the gradients. */
static int last_round(struct dp_pass *r, double lr, int64_t count, struct step_result *result,
                      struct error *err)
{
    struct trainer *t = r->t;
    const struct config *c = t->config;
    struct meopt_error library = {0};
    struct meopt_step_stats stats = {0};
    int code = 0;
    if (t->twice || t->dp->step_at_end) {
        r->measure = t->twice;
        if ((code = backward(r, count, err)) != 0) return code;
        r->measure = false;
        if ((code = finish_norms(r, err)) != 0) return code;
    } else if (config_clips(c) && (c->optim.clip_mode == OPTIM_CLIP_MODE_BLOCK || t->previous_norm <= 0)) {
        r->by_group = true; /* also the first step of `previous`, which has no norm yet */
    } else if (config_clips(c)) {
        r->scale = step_clip_scale(t, t->previous_norm, 1);
    }
    if (meopt_step_begin(t->opt, r->step, lr, 0, &library)) return trainer_library_error(&library, err);
    if (!t->dp->step_at_end) code = backward(r, count, err);
    for (int group = t->student->group_count - 1; group >= t->student->lowest && t->dp->step_at_end && !code;
         group--)
        if (tower_owns(t->student, group)) code = step_group(r, group, err);
    if (!code && t->stages) code = step_other_stages(r, err);
    bool found = r->by_group && !norms_by_host(t);
    if (found) step_send_grad_stats(t);
    t->sums_of_all = true;
    int ended = code && code != EXIT_DIVERGED ? 0 : meopt_step_end(t->opt, &stats, &library);
    t->sums_of_all = false;
    if (!code && r->by_group && (!ended || ended == MEOPT_NOT_FINITE)) code = add_group_norms(r, found, err);
    if (!code && ended == MEOPT_NOT_FINITE) code = step_diverged(t, r->step, step_not_finite, r->moved, err);
    if (!code && ended) code = trainer_library_error(&library, err);
    result->grad_norm = t->twice || t->dp->step_at_end || r->by_group ? sqrt(r->squares) : stats.grad_norm;
    return code;
}

int dp_step(struct trainer *t, int64_t step, double lr, const struct batch_source *source,
            struct step_result *result, struct error *err)
{
    struct data_parallel *m = t->dp;
    struct dp_pass r = {.t = t, .step = step, .scale = 1, .parameters = step_parameters(t, -1)};
    int code = 0;
    int64_t done = 0;
    for (t->first = 0; t->first < m->rounds && !code; t->first += t->wave) {
        int64_t round = t->first, count = micro_batch_images(t, round * t->data->size + t->data->rank);
        bool last = round + t->wave >= m->rounds;
        code = t->breadth ? breadth_forward(t, source, err)
               : count    ? step_forward(t, round, done, count, source, err)
                          : dp_forward_idle(t, err);
        if (!code && last) {
            if (t->student->owns_loss) r.result = result;
            else code = step_sum_losses(t, step, result, err);
        }
        if (code) break;
        done += count;
        set_round(&r, round);
        code = last ? last_round(&r, lr, count, result, err) : backward(&r, count, err);
    }
    t->first = 0;
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
