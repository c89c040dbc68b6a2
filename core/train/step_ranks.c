/* A step of several ranks, and of one rank that is to make the same steps.
 *
 * The images of a step are cut into micro-batches of train.micro_batch, which the ranks take in turns: the
 * j-th is rank j % ranks' in round j / ranks. Its gradient g_j is rounded as its format says (bf16); the
 * gradient of the step is their sum in fp32 in that order,
 *
 *     g = (((0 + g_0) + g_1) + ...) + g_(n-1)
 *
 * which round r continues where r - 1 has left it, each rank for its part of every tensor (partition.h).
 * Loss and
 * cosine are summed in the same order. So a step has the same bits on any number of ranks, and whether states
 * are held whole or in parts, as long as its images and train.micro_batch are the same.
 *
 * While the next group's backward computes, the comm's thread reduces this one's gradients; then it is
 * stepped, and its gradients make room. What the modes of clipping cost here:
 *
 *   way                      sums are held of           reduced       weights move
 *   released, one round      two groups                 once          inside backward
 *   released, more rounds    all tensors, own part      every round   inside the last round's backward
 *   exact, one round         two groups                 twice         inside a second backward
 *   exact, more rounds; kept all tensors (shard none:   every round   behind the last round
 *                            whole, else own part)
 */
#include "core/base/file.h"
#include "core/train/partition.h"
#include "core/train/train_internal.h"
#include "core/train/shard.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct data_parallel {
    bool sharded, held;     /* states in parts; weights move behind the last round */
    int64_t pieces, rounds; /* micro-batches of a step, and of this or another rank */
    struct partition *cut;
    struct shard *shard; /* weights in parts; else NULL */
    float *sums[2];      /* of two groups by turns, what is stepped inside backward */
    float *kept; /* of all groups at kept_at: what further rounds add to, or is stepped behind the last */
    int64_t *kept_at;                /* (groups) */
    double *losses;                  /* (ranks, rounds, 2) */
    struct group *jobs;              /* (groups) */
    struct meopt_gradient *measured; /* (tensors) */
    int *group_of;                   /* (tensors) */
    double *norms;                   /* (groups) */
    int *finite;                     /* (groups) */
};

/* One group's way through a round. */
struct group {
    struct trainer *t;
    int number, contributors;
    bool first, last;
    struct gradient_span span;
    float *sum;
    struct comm_job reduce, gather;
};

/* State of the backward pass's call-backs. */
struct dp_pass {
    struct trainer *t;
    int64_t step;
    int contributors;
    bool first, last; /* round */
    bool by_group, measure, moved;
    double scale, squares;
    int64_t parameters;
    int waiting; /* group that is being reduced; -1: none */
};

bool dp_enabled(const struct config *c, int ranks) { return ranks > 1 || c->train.global_batch > 0; }

static int64_t piece_images(const struct trainer *t, int64_t piece)
{
    int64_t left = t->images - piece * t->micro;
    return piece >= t->dp->pieces ? 0 : left < t->micro ? left : t->micro;
}

int dp_plan(struct trainer *t, struct error *err)
{
    const struct config *c = t->config;
    struct data_parallel *m = t->dp = xcalloc(1, sizeof *m);
    int ranks = t->ranks.size;
    t->images = c->train.global_batch > 0 ? c->train.global_batch : c->train.batch_size * ranks;
    t->micro = c->train.micro_batch > 0 ? c->train.micro_batch : c->train.batch_size;
    if (t->micro > t->images) t->micro = t->images;
    m->pieces = (t->images + t->micro - 1) / t->micro;
    m->rounds = (m->pieces + ranks - 1) / ranks;
    m->sharded = c->dist.shard != DIST_SHARD_NONE && ranks > 1;
    if (m->pieces < ranks)
        return error_set(err, EXIT_CONFIG, "lower train.micro_batch, or start fewer ranks",
                         "%d ranks for %lld micro-batches of %lld images: %lld in a step", ranks,
                         (long long)m->pieces, (long long)t->micro, (long long)t->images);
    t->batch = 0;
    for (int64_t piece = t->ranks.rank; piece < m->pieces; piece += ranks) t->batch += piece_images(t, piece);
    bool exact = config_clips(c) && c->optim.clip_mode == OPTIM_CLIP_MODE_EXACT;
    t->twice = t->release && m->rounds == 1 && exact;
    m->held = !t->release || (exact && m->rounds > 1);
    return 0;
}

int64_t dp_round_count(const struct trainer *t) { return t->dp ? t->dp->rounds : 1; }

bool dp_sharded(const struct trainer *t) { return t->dp && t->dp->sharded; }

void dp_part(const struct trainer *t, int parameter, int64_t *first, int64_t *count)
{
    bool part = dp_sharded(t) && t->student->parameters[parameter].trained;
    *first = part ? t->dp->cut->first[parameter] : 0;
    *count = part ? t->dp->cut->count[parameter] : t->student->parameters[parameter].count;
}

/* ---- where sums lie ---- */

int dp_weight_buffers(const struct trainer *t)
{
    if (!dp_sharded(t) || t->config->dist.shard != DIST_SHARD_PARAMETERS) return 0;
    return dp_gradient_buffers(t);
}

/* One on a card without RCCL or NCCL: its copies would go into the graph of what it computes meanwhile. */
int dp_gradient_buffers(const struct trainer *t) { return t->ranks.size > 1 && t->ranks.overlaps ? 2 : 1; }

int dp_partition(struct trainer *t, struct error *err)
{
    struct data_parallel *m = t->dp;
    m->cut = partition_make(t->student, t->ranks.size, t->ranks.rank);
    return dp_weight_buffers(t) ? shard_make(&m->shard, t->student, &t->ranks, m->cut, err) : 0;
}

void *dp_weights(const struct trainer *t, int parameter)
{
    const struct parameter *p = &t->student->parameters[parameter];
    int64_t first, count;
    if (t->dp && t->dp->shard) return shard_part(t->dp->shard, parameter);
    dp_part(t, parameter, &first, &count);
    return (char *)p->weight + (size_t)first * dtype_bytes(p->weight_type);
}

/* In floats, of what is held of a group's sums. */
static int64_t group_capacity(const struct trainer *t, int group)
{
    const struct data_parallel *m = t->dp;
    return m->sharded ? partition_own(m->cut, group) : partition_elements(m->cut, group);
}

/* Where in them the vectors and the matrices of this rank's part begin. */
static int64_t own_vectors(const struct trainer *t, int group)
{
    return t->dp->sharded ? 0 : t->dp->cut->groups[group].vectors[t->ranks.rank];
}
static int64_t own_matrices(const struct trainer *t, int group)
{
    const struct partition_group *g = &t->dp->cut->groups[group];
    int rank = t->ranks.rank;
    return t->dp->sharded ? g->vectors[rank + 1] - g->vectors[rank]
                          : g->vectors[t->ranks.size] + g->matrices[rank];
}

/* And where a parameter's gradient: that of its own part, or of all of it. */
static const float *gradient_in(const struct trainer *t, const float *sums, int parameter)
{
    const struct parameter *p = &t->student->parameters[parameter];
    const struct partition *cut = t->dp->cut;
    const struct partition_group *g = &cut->groups[p->group];
    int64_t at = cut->element[parameter];
    if (!t->dp->sharded) return sums + at + (p->matrix ? g->vectors[t->ranks.size] : 0);
    if (!cut->count[parameter]) return sums; /* of nothing */
    at += cut->first[parameter] - (p->matrix ? g->matrices : g->vectors)[t->ranks.rank];
    return sums + at + (p->matrix ? own_matrices(t, p->group) : 0);
}

/* The longest part that travels in one piece. */
static int64_t longest_part(const struct trainer *t)
{
    const struct data_parallel *m = t->dp;
    int64_t longest = 0,
            size = (int64_t)(m->sharded ? dtype_bytes(t->student->options.grad_type) : sizeof(float));
    for (int group = 0; group < t->student->group_count; group++)
        for (int r = 0; r < t->ranks.size; r++) {
            const struct partition_group *g = &m->cut->groups[group];
            int64_t bytes[] = {(g->vectors[r + 1] - g->vectors[r]) * (int64_t)sizeof(float),
                               (g->matrices[r + 1] - g->matrices[r]) * size,
                               m->sharded ? g->weights[r + 1] - g->weights[r] : 0};
            for (int i = 0; i < 3; i++)
                if (bytes[i] > longest) longest = bytes[i];
        }
    return longest;
}

int dp_buffers(struct trainer *t, struct error *err)
{
    struct data_parallel *m = t->dp;
    int64_t all = 0, most[2] = {0, 0}, groups = t->student->group_count;
    int turns = t->student->options.gradient_buffers == 2 ? 2 : 1;
    m->kept_at = xcalloc((size_t)groups, sizeof *m->kept_at);
    m->jobs = xcalloc((size_t)groups, sizeof *m->jobs);
    m->losses = xcalloc(2 * (size_t)(m->rounds * t->ranks.size), sizeof *m->losses);
    m->measured = xcalloc((size_t)t->tensor_count, sizeof *m->measured);
    m->group_of = xcalloc((size_t)t->tensor_count, sizeof *m->group_of);
    m->norms = xcalloc((size_t)groups, sizeof *m->norms);
    m->finite = xcalloc((size_t)groups, sizeof *m->finite);
    for (int i = 0; i < t->tensor_count; i++)
        m->group_of[i] = t->student->parameters[t->parameter_of[i]].group;
    if (comm_reserve(&t->ranks, longest_part(t), err)) return err->code;
    for (int group = 0; group < groups; group++) {
        int64_t room = (group_capacity(t, group) + 15) & ~(int64_t)15;
        m->kept_at[group] = all;
        all += room;
        if (room > most[group % turns]) most[group % turns] = room;
    }
    if (m->held || m->rounds > 1) {
        m->kept = device_alloc(t->device, MEMORY_GRADIENTS, (size_t)(all + 16) * sizeof *m->kept,
                               "sums of gradients", err);
        if (!m->kept) return err->code;
    }
    for (int i = 0; i < turns && !m->held; i++) {
        m->sums[i] = device_alloc(t->device, MEMORY_GRADIENTS, (size_t)(most[i] + 16) * sizeof(float),
                                  "sums of a block's gradients", err);
        if (!m->sums[i]) return err->code;
    }
    return 0;
}

/* What ranks hold unlike much of: states and weights by the elements of their parts, sums by their largest.
 */
static double held_of(const struct trainer *t, int rank)
{
    const struct data_parallel *m = t->dp;
    struct meopt_bytes held = {0};
    int64_t all = 0, most[2] = {0, 0};
    (void)meopt_held(t->opt, &held);
    double bytes = held.parameters ? (double)held.total / (double)held.parameters : 0;
    if (m->shard) bytes += 2;
    if (m->kept) bytes += sizeof(float);
    for (int group = 0; group < t->student->group_count; group++) {
        int64_t count = partition_of(m->cut, group, rank), *of = &most[m->sums[1] ? group % 2 : 0];
        all += count;
        if (count > *of && m->sums[0]) *of = count;
    }
    return bytes * (double)all + sizeof(float) * (double)(most[0] + most[1]);
}

int dp_largest_rank(const struct trainer *t)
{
    int largest = 0;
    if (!dp_sharded(t)) return 0; /* which has no fewer images than any other */
    for (int r = 1; r < t->ranks.size; r++)
        if (held_of(t, r) > held_of(t, largest)) largest = r;
    return largest;
}

void dp_close(struct trainer *t)
{
    struct data_parallel *m = t->dp;
    if (!m) return;
    shard_close(m->shard);
    partition_free(m->cut);
    for (int i = 0; i < 2; i++) device_free(t->device, m->sums[i]);
    device_free(t->device, m->kept);
    free(m->kept_at);
    free(m->jobs);
    free(m->losses);
    free(m->measured);
    free(m->group_of);
    free(m->norms);
    free(m->finite);
    free(m);
    t->dp = NULL;
}

/* ---- one group ---- */

/* In the comm's thread: vectors, then matrices; the sum of the last round is given to all unless its parts
 * are stepped where they are. */
static int reduce_group(struct comm *comm, void *context, struct error *err)
{
    struct group *g = context;
    const struct trainer *t = g->t;
    const struct data_parallel *m = t->dp;
    const struct partition_group *cut = &m->cut->groups[g->number];
    enum dtype types[] = {DTYPE_F32, t->student->options.grad_type};
    const int64_t *offsets[] = {cut->vectors, cut->matrices};
    int64_t at[] = {own_vectors(t, g->number), own_matrices(t, g->number)};
    const float *before = g->first ? NULL : m->kept + m->kept_at[g->number];
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

/* In the comm's thread: the weights that each rank has stepped, to all. */
static int gather_weights(struct comm *comm, void *context, struct error *err)
{
    struct group *g = context;
    return comm_gather(comm, tower_group_weights(g->t->student, g->number).p,
                       g->t->dp->cut->groups[g->number].weights, err);
}

static void begin_group(struct dp_pass *r, int group)
{
    struct trainer *t = r->t;
    struct data_parallel *m = t->dp;
    struct group *g = &m->jobs[group];
    bool keep = m->held || !r->last;
    *g = (struct group){.t = t,
                        .number = group,
                        .contributors = r->contributors,
                        .first = r->first,
                        .last = r->last,
                        .span = tower_group_gradients(t->student, group),
                        .sum = keep ? m->kept + m->kept_at[group] : m->sums[m->sums[1] ? group % 2 : 0]};
    g->reduce = (struct comm_job){.run = reduce_group, .context = g};
    g->gather = (struct comm_job){.run = gather_weights, .context = g};
    comm_begin(&t->ranks, &g->reduce);
}

/* Does the host add up norms of groups? Only it reaches those of other ranks' parts, where these are not on
 * cards that meet in their library. */
static bool norms_by_host(const struct trainer *t) { return t->dp->sharded && !comm_combines(&t->ranks); }

static double group_share(const struct dp_pass *r, int group)
{
    return sqrt((double)step_parameters(r->t, group) / (double)r->parameters);
}

/* The squares of a group's gradient. Where each is clipped by its own, and the host adds them up, they are
 * waited for, and give the scale; else they are read later. */
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
            here ? gradient_in(t, m->jobs[group].sum, t->parameter_of[i]) : NULL, MEOPT_F32};
    }
    if (!r->by_group) status = meopt_norms_begin(t->opt, m->measured, &library);
    else if (!norms_by_host(t))
        status = meopt_gradient_found(t->opt, m->measured, step_grad_stats(t, group), &library);
    else {
        status = meopt_gradient_norm(t->opt, m->measured, &norm, &finite, &library);
        if (!status && !finite) return step_diverged(t, r->step, step_not_finite, r->moved, err);
        if (!status) {
            r->squares += norm * norm;
            r->scale = step_clip_scale(t, norm, group_share(r, group));
        }
    }
    return status ? trainer_library_error(&library, err) : 0;
}

/* The norm of all that was measured, in the order in which groups step. */
static int all_squares(struct dp_pass *r, struct error *err)
{
    struct trainer *t = r->t;
    struct data_parallel *m = t->dp;
    struct meopt_error library = {0};
    int groups = t->student->group_count;
    if (meopt_norms_end(t->opt, (size_t)groups, m->group_of, m->norms, m->finite, &library))
        return trainer_library_error(&library, err);
    for (int group = groups - 1; group >= 0; group--) {
        if (!m->finite[group]) return step_diverged(t, r->step, step_not_finite, false, err);
        r->squares += m->norms[group] * m->norms[group];
    }
    r->scale = step_clip_scale(t, sqrt(r->squares), 1);
    return 0;
}

/* What the groups were clipped by, read with the results of the step; behind one that is not finite none
 * stepped. */
static int found_squares(struct dp_pass *r, struct error *err)
{
    struct trainer *t = r->t;
    int last = t->student->group_count - 1;
    for (int group = last; group >= 0; group--) {
        double squares;
        if (!step_found_read(t, group, &squares))
            return step_diverged(t, r->step, step_not_finite, group < last, err);
        r->squares += sqrt(squares) * sqrt(squares);
    }
    return 0;
}

static int step_group(struct dp_pass *r, int group, struct error *err)
{
    struct trainer *t = r->t;
    struct group *g = &t->dp->jobs[group];
    struct meopt_error library = {0};
    size_t count = 0;
    bool moved = r->moved;
    r->moved = true;
    if (t->dp->shard) shard_invalidate(t->dp->shard, group);
    for (int i = 0; i < t->tensor_count; i++) {
        if (t->student->parameters[t->parameter_of[i]].group != group) continue;
        t->tensors[count] = (size_t)i;
        t->gradients[count++] =
            (struct meopt_gradient){gradient_in(t, g->sum, t->parameter_of[i]), MEOPT_F32};
    }
    int status;
    if (r->by_group && !norms_by_host(t)) {
        struct meopt_clip clip = step_clip(t, group_share(r, group));
        clip.found = step_grad_stats(t, group);
        status = meopt_step_clipped(t->opt, t->tensors, t->gradients, count, &clip, &library);
        if (status == MEOPT_NOT_FINITE) return step_diverged(t, r->step, step_not_finite, moved, err);
    } else status = meopt_step_tensors(t->opt, t->tensors, t->gradients, count, r->scale, &library);
    if (status &&
        status != MEOPT_NOT_FINITE) /* which is known to the ranks that hold that part alone, and to */
        return trainer_library_error(&library, err); /* all at the end of the step */
    if (t->dp->sharded && !t->dp->shard) {
        comm_begin(&t->ranks, &g->gather);
        if (!t->ranks.overlaps) return comm_end(&t->ranks, &g->gather, err);
    }
    return 0;
}

/* The group's sum is there: measure it, step it, or leave it for later. */
static int end_group(struct dp_pass *r, int group, struct error *err)
{
    struct trainer *t = r->t;
    int code = comm_end(&t->ranks, &t->dp->jobs[group].reduce, err);
    bool waits = r->measure || t->dp->held; /* for all groups to be measured */
    if (code || !r->last) return code;
    if (waits || r->by_group) code = measure_group(r, group, err);
    return code || waits ? code : step_group(r, group, err);
}

/* A group's gradients are complete on this rank: they travel while the next group's are computed, and the one
 * before is stepped. */
static int on_group(void *context, int group, struct error *err)
{
    struct dp_pass *r = context;
    int before = r->waiting;
    begin_group(r, group);
    r->waiting = group;
    if (r->t->student->options.gradient_buffers != 2) { /* there is no room for another group's */
        r->waiting = -1;
        return end_group(r, group, err);
    }
    return before >= 0 ? end_group(r, before, err) : 0;
}

int dp_gather_weights(struct trainer *t, struct error *err)
{
    int code = 0;
    if (!dp_sharded(t)) return 0;
    if (t->dp->shard) shard_invalidate(t->dp->shard, -1);
    for (int group = 0; group < t->student->group_count && !t->dp->shard && !code; group++)
        code = comm_gather(&t->ranks, tower_group_weights(t->student, group).p,
                           t->dp->cut->groups[group].weights, err);
    return code;
}

int dp_gather_values(const struct trainer *t, int parameter, float *values, struct error *err)
{
    if (!dp_sharded(t)) return 0;
    int64_t *offsets = xcalloc((size_t)t->ranks.size + 1, sizeof *offsets);
    partition_offsets(t->dp->cut, t->student, parameter, sizeof *values, offsets);
    int code = comm_gather_host((struct comm *)(uintptr_t)&t->ranks, values, offsets, err);
    free(offsets);
    return code;
}

/* ---- one pass, one round ---- */

/* Backward of this rank's micro-batch; with count 0 it has none, and only takes part. */
static int backward(struct dp_pass *r, int64_t count, struct error *err)
{
    struct trainer *t = r->t;
    int code = 0;
    r->waiting = -1;
    if (count)
        code = tower_backward(t->student, &(struct batch){trainer_student_input(t), count}, t->dout, true,
                              true, on_group, r, err);
    for (int group = t->student->group_count - 1; group >= 0 && !count && !code; group--) {
        if (t->dp->shard) code = shard_fetch(t->dp->shard, group, group - 1, err);
        if (!code) code = on_group(r, group, err);
    }
    if (!code && r->waiting >= 0) code = end_group(r, r->waiting, err);
    return code;
}

/* The forward pass of a rank without a micro-batch. */
static int take_part(struct trainer *t, struct error *err)
{
    int code = 0, last = t->student->group_count - 1;
    for (int group = 0; group <= last && t->dp->shard && !code; group++)
        code = shard_fetch(t->dp->shard, group, group < last ? group + 1 : -1, err);
    return code;
}

/* Loss and cosine of the step's micro-batches, in their order: rank by rank in each round. */
static int sum_losses(struct trainer *t, int64_t step, struct step_result *result, struct error *err)
{
    struct data_parallel *m = t->dp;
    int64_t ranks = t->ranks.size, own = (t->batch + t->micro - 1) / t->micro;
    size_t bytes = 2 * (size_t)m->rounds * sizeof *m->losses;
    double *mine = m->losses + 2 * m->rounds * t->ranks.rank;
    int code = step_read_sums(t, 2 * own, err);
    if (code) return code;
    memset(mine, 0, bytes); /* where this rank has no micro-batch in the last round */
    memcpy(mine, t->host_sums, 2 * (size_t)own * sizeof *mine);
    code = comm_gather_each(&t->ranks, m->losses, bytes, err);
    for (int64_t p = 0; p < m->rounds * ranks && !code; p++) {
        const double *given = m->losses + 2 * (p % ranks * m->rounds + p / ranks);
        if (!isfinite(given[0])) return step_diverged(t, step, "the loss is not finite", false, err);
        result->loss += given[0];
        result->cosine += given[1] / (double)t->images;
    }
    return code;
}

/* The last round, or the only one: gradients are measured, clipped, stepped. */
static int last_round(struct dp_pass *r, double lr, int64_t count, struct step_result *result,
                      struct error *err)
{
    struct trainer *t = r->t;
    const struct config *c = t->config;
    struct meopt_error library = {0};
    struct meopt_step_stats stats = {0};
    int code = 0;
    if (t->twice || t->dp->held) {
        r->measure = t->twice;
        if ((code = backward(r, count, err)) != 0) return code;
        r->measure = false;
        if ((code = all_squares(r, err)) != 0) return code;
    } else if (config_clips(c) && (c->optim.clip_mode == OPTIM_CLIP_MODE_BLOCK || t->previous_norm <= 0)) {
        r->by_group = true; /* also the first step of `previous`, which has no norm yet */
    } else if (config_clips(c)) {
        r->scale = step_clip_scale(t, t->previous_norm, 1);
    }
    if (meopt_step_begin(t->opt, r->step, lr, 0, &library)) return trainer_library_error(&library, err);
    if (!t->dp->held) code = backward(r, count, err);
    for (int group = t->student->group_count - 1; group >= 0 && t->dp->held && !code; group--)
        code = step_group(r, group, err);
    bool found = r->by_group && !norms_by_host(t);
    if (found) step_send_grad_stats(t);
    int ended = code && code != EXIT_DIVERGED ? 0 : meopt_step_end(t->opt, &stats, &library);
    if (!code && found && (!ended || ended == MEOPT_NOT_FINITE)) code = found_squares(r, err);
    if (!code && ended == MEOPT_NOT_FINITE) code = step_diverged(t, r->step, step_not_finite, r->moved, err);
    if (!code && ended) code = trainer_library_error(&library, err);
    result->grad_norm = t->twice || t->dp->held || r->by_group ? sqrt(r->squares) : stats.grad_norm;
    return code;
}

int dp_step(struct trainer *t, int64_t step, double lr, const struct batch_source *source,
            struct step_result *result, struct error *err)
{
    struct data_parallel *m = t->dp;
    struct dp_pass r = {.t = t, .step = step, .scale = 1, .parameters = step_parameters(t, -1)};
    int code = 0;
    int64_t done = 0;
    for (int64_t round = 0; round < m->rounds && !code; round++) {
        int64_t begin = round * t->ranks.size, count = piece_images(t, begin + t->ranks.rank);
        code = count ? step_forward(t, round, done, count, source, err) : take_part(t, err);
        if (!code && round == m->rounds - 1) code = sum_losses(t, step, result, err);
        if (code) break;
        done += count;
        r.contributors = m->pieces - begin < t->ranks.size ? (int)(m->pieces - begin) : t->ranks.size;
        r.first = round == 0;
        r.last = round == m->rounds - 1;
        code = r.last ? last_round(&r, lr, count, result, err) : backward(&r, count, err);
    }
    struct error other = {0};
    int fetched = m->shard ? shard_end(m->shard, &other) : 0;
    if (!code && (code = fetched) != 0 && err) *err = other;
    for (int group = 0; group < t->student->group_count; group++) { /* what was begun is waited for */
        int reduced = comm_end(&t->ranks, &m->jobs[group].reduce, &other);
        int gathered = comm_end(&t->ranks, &m->jobs[group].gather, reduced ? NULL : &other);
        if (code || !(reduced || gathered)) continue;
        code = reduced ? reduced : gathered;
        if (err) *err = other;
    }
    return code;
}
