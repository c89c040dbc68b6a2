/* Breadth-first rounds (train.rounds breadth): all micro-batches of this rank pass one group before the next
 * one, forward and backward. Weights that are streamed or gathered are loaded once per pass, not once per
 * micro-batch. A group steps after its last micro-batch, so accumulators of one group are enough. Activations
 * of all micro-batches are kept: the inputs of the blocks, and the streams between groups. Blocks are
 * recomputed in backward.
 *
 * With train.wave M, M micro-batches run forward and backward before the next ones: a wave. Weights are
 * loaded once per wave and pass, and activations of one wave are kept. Between waves the accumulators of all
 * groups are, as in depth-first rounds, which are waves of one micro-batch.
 *
 * Each group adds up the gradients of its micro-batches in the order of depth-first rounds, so that no bit
 * changes. Exact clipping needs the norm of all groups: a first backward pass measures it. */
#include "core/step/step.h"
#include "core/base/file.h"
#include "core/step/weight_stream.h"

#include <stdio.h>
#include <stdlib.h>

/* Returns the rounds of a step, the same number on all ranks. */
static int64_t round_count(const struct trainer *t)
{
    return t->dp ? dp_round_count(t) : step_micro_batches(t);
}

/* Returns whether the rounds can be breadth-first; a configuration that says so is refused if they cannot
 * (experiment_check). */
static bool is_possible(const struct trainer *t)
{
    return !t->evaluates && (round_count(t) > 1 || t->stages) && t->release &&
           t->config->train.save_activations != TRAIN_SAVE_ACTIVATIONS_8BIT;
}

/* Returns whether the activations of all micro-batches take no more memory than the sums of gradients that
 * breadth-first rounds save, by formula. */
static bool saves_memory(const struct trainer *t)
{
    const struct model_shape *g = &t->student_shape;
    double depth = (double)g->depth, rows = (double)(t->micro * model_shape_tokens(g)),
           sums =
               (t->dp ? 4.0 / (dp_sharded(t) ? t->data->size : 1) : 2.0) * (double)model_shape_parameters(g);
    return (double)(round_count(t) - 1) * rows * (double)g->width * (2 * depth + 4) <= sums * (1 - 1 / depth);
}

void trainer_rounds(bool breadth, bool twice, int64_t count, int64_t wave, char *text, size_t size)
{
    const char *order =
        breadth ? _("breadth: each block for all %lld micro-batches before the next block; blocks "
                    "are recomputed%s")
                : _("depth: all blocks for each of %lld micro-batches before the next%s");
    if (breadth && wave < count)
        snprintf(
            text, size,
            _("breadth, in waves: each block for %lld of %lld micro-batches before the next block; blocks "
              "are recomputed"),
            (long long)wave, (long long)count);
    else
        snprintf(text, size, order, (long long)count,
                 breadth && twice ? _(", and exact clipping takes a second backward pass") : "");
}

void breadth_plan(struct trainer *t)
{
    const struct config *c = t->config;
    bool loaded = c->model_t.place == TOWER_PLACE_STREAMED || c->model_s.place == TOWER_PLACE_STREAMED ||
                  dp_weight_buffers(t),
         exact = config_clips(c) && (!t->dp || c->optim.clip_mode == OPTIM_CLIP_MODE_EXACT),
         free = t->stages || c->train.wave ||
                (loaded && !exact && c->train.recompute == TRAIN_RECOMPUTE_BLOCK && saves_memory(t));
    t->slots = t->wave = 1;
    t->breadth = is_possible(t) &&
                 (c->train.rounds == TRAIN_ROUNDS_BREADTH || (c->train.rounds == TRAIN_ROUNDS_AUTO && free));
    if (!t->breadth) return;
    t->wave = c->train.wave && c->train.wave < round_count(t) ? c->train.wave : round_count(t);
    t->slots = t->wave < step_micro_batches(t) ? t->wave : step_micro_batches(t);
    t->waves = t->wave < round_count(t);
    t->twice = exact && !t->waves;
    if (t->dp && !t->waves) dp_plan_breadth(t);
}

/* Returns the micro-batches of this rank in the current wave. */
static int64_t slots_used(const struct trainer *t)
{
    int64_t left = step_micro_batches(t) - t->first;
    return left < 0 ? 0 : left < t->slots ? left : t->slots;
}

/* Returns the device's copy of a slot's micro-batch, as a tower reads it, and selects the slot. */
static struct batch select_batch(struct trainer *t, bool student, int64_t slot)
{
    int64_t index = t->first + slot, count = step_micro_images(t, index);
    step_select(t, slot);
    return student ? step_batch(t, index, count) : (struct batch){.input = t->input, .count = count};
}

/* A forward pass of a tower. */
struct forward_pass {
    struct trainer *t;
    struct tower *tower;
};

static void forward_slot(void *context, int64_t slot, int group)
{
    struct forward_pass *p = context;
    struct batch batch = select_batch(p->t, p->tower == p->t->student, slot);
    tower_forward_group(p->tower, &batch, slot, group);
}

static int groups_forward(struct trainer *t, struct tower *tower, struct error *err)
{
    int code = 0, last = tower->group_count - 1;
    struct forward_pass p = {t, tower};
    if (t->stages)
        return pipeline_run(
            t, &(struct pipeline_pass){tower, 0, last, 1, .context = &p, .compute = forward_slot}, err);
    for (int group = 0; group <= last && !code; group++) {
        code = tower_need(tower, group, group < last ? group + 1 : -1, err);
        for (int64_t i = 0; i < slots_used(t) && !code; i++) forward_slot(&p, i, group);
    }
    return code;
}

int breadth_forward(struct trainer *t, const struct batch_source *source, struct error *err)
{
    const float *target;
    int code = 0;
    for (int64_t i = 0; i < slots_used(t) && !code; i++) {
        int64_t index = t->first + i;
        step_select(t, i);
        code = step_prepare(t, index, step_micro_images(t, index), source, &target, err);
    }
    bool later = step_teacher_by_groups(t);
    if (!code && later) code = groups_forward(t, t->teacher, err);
    if (!code) code = groups_forward(t, t->student, err);
    if (!tower_owns(t->student, t->student->group_count - 1)) return code;
    for (int64_t i = 0; i < slots_used(t) && !code; i++) {
        struct batch batch = select_batch(t, true, i);
        tower_select(t->student, i);
        if (later) tower_select(t->teacher, i);
        step_loss(t, t->first + i, &batch, later ? t->teacher->out : t->slots > 1 ? t->target : target);
    }
    return code ? code : device_check(t->device, err);
}

void breadth_backward_group(struct trainer *t, int64_t slot, int group)
{
    struct batch batch = select_batch(t, true, slot);
    tower_backward_group(t->student, &batch, t->dout, slot, group);
}

/* One backward pass over all groups. */
struct breadth_pass {
    struct trainer *t;
    int64_t step;
    bool measure, moved; /* moved: a group was updated */
    double scale;
    struct step_result *result; /* not NULL: the head's backward computes the loss, read before an update */
};

static int diverged_or(struct breadth_pass *p, int status, const struct meopt_error *library,
                       struct error *err)
{
    if (status == MEOPT_NOT_FINITE) return step_diverged(p->t, p->step, library->message, p->moved, err);
    return status ? trainer_library_error(library, err) : 0;
}

/* Measures the sums of a group, or applies them. The norm that is reported is in either case that of the
 * sums. */
static int finish_group(struct breadth_pass *p, int group, struct error *err)
{
    struct trainer *t = p->t;
    struct meopt_error library = {0};
    int status;
    size_t count = step_group_gradients(t, group, true);
    if (p->measure || !t->twice) {
        struct meopt_gradient *none = xcalloc((size_t)t->tensor_count + 1, sizeof *none);
        status = meopt_norms_begin(t->opt, none, &library);
        if (!status && p->measure) status = meopt_accumulators_clear(t->opt, &library);
        free(none);
        if (status || p->measure) return diverged_or(p, status, &library, err);
    }
    status = meopt_step_tensors(t->opt, t->tensors, t->gradients, count, p->scale, &library);
    if (t->student_stream) weight_stream_mark_dirty(t->student_stream, group);
    int code = diverged_or(p, status, &library, err);
    p->moved = true;
    return code;
}

static int backward(struct breadth_pass *p, struct error *err)
{
    struct trainer *t = p->t;
    int code = 0, last = t->student->group_count - 1, lowest = t->student->lowest;
    for (int group = last; group >= lowest && !code; group--) {
        code = tower_need(t->student, group, group > lowest ? group - 1 : -1, err);
        for (int64_t i = 0; i < slots_used(t) && !code; i++) {
            struct meopt_error library = {0};
            breadth_backward_group(t, i, group);
            size_t count = step_group_gradients(t, group, false);
            int status = meopt_accumulate_tensors(t->opt, t->tensors, t->gradients, count, 1, &library);
            code = diverged_or(p, status, &library, err);
        }
        if (!code && p->result) code = step_sum_losses(t, p->step, p->result, err);
        p->result = NULL;
        if (!code && !t->waves) code = finish_group(p, group, err);
    }
    return code;
}

/* Returns the norm of all gradients. */
static int norm_of_all(struct breadth_pass *p, double *norm, struct error *err)
{
    struct trainer *t = p->t;
    struct meopt_error library = {0};
    int finite, *sets = xcalloc((size_t)t->tensor_count + 1, sizeof *sets),
                status = meopt_norms_end(t->opt, 1, sets, norm, &finite, &library);
    free(sets);
    if (status) return trainer_library_error(&library, err);
    return finite ? 0 : step_diverged(t, p->step, step_not_finite, p->moved, err);
}

/* Accumulates the gradients of all groups wave by wave, and applies them. */
static int step_waves(struct trainer *t, int64_t step, double lr, const struct batch_source *source,
                      struct step_result *result, struct error *err)
{
    struct breadth_pass p = {.t = t, .step = step, .scale = 1};
    int code = 0;
    for (t->first = 0; t->first < step_micro_batches(t) && !code; t->first += t->wave) {
        code = breadth_forward(t, source, err);
        if (!code) code = backward(&p, err);
    }
    t->first = 0;
    return code ? code : step_accumulated(t, step, lr, result, err);
}

int breadth_step(struct trainer *t, int64_t step, double lr, const struct batch_source *source,
                 struct step_result *result, struct error *err)
{
    struct meopt_error library = {0};
    struct breadth_pass p = {.t = t, .step = step, .scale = 1};
    if (t->waves) return step_waves(t, step, lr, source, result, err);
    int code = breadth_forward(t, source, err);
    if (!code && t->student->owns_loss) p.result = result;
    else if (!code) code = step_sum_losses(t, step, result, err);
    if (!code && t->twice) {
        p.measure = true;
        code = backward(&p, err);
        if (!code) code = norm_of_all(&p, &result->grad_norm, err);
        p.measure = false;
        p.scale = step_clip_scale(t, result->grad_norm, 1);
    }
    if (code) return code;
    if (meopt_step_begin(t->opt, step, lr, t->twice ? 0 : 1, &library))
        return trainer_library_error(&library, err);
    code = backward(&p, err);
    if (!code && !t->twice) code = norm_of_all(&p, &result->grad_norm, err);
    int ended = meopt_step_end(t->opt, NULL, &library);
    if (!code && ended == MEOPT_NOT_FINITE) code = step_diverged(t, step, step_not_finite, true, err);
    return !code && ended ? trainer_library_error(&library, err) : code;
}
