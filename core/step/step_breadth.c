/* Which order of rounds a step has. Breadth-first (train.rounds breadth) weights that are streamed or
 * gathered are loaded once per wave and pass, not once per micro-batch, and accumulators of one group are
 * enough; but activations of all micro-batches of the wave are kept: the inputs of the blocks, which are
 * recomputed, and the streams between groups. In several waves (train.wave) the accumulators of all groups
 * are kept as well. A group adds its gradients up in the order of depth-first rounds: no bit changes. */
#include "core/step/step.h"

#include <stdio.h>

/* Returns whether the rounds can be breadth-first; a configuration that says so is refused if they cannot
 * (experiment_check). */
static bool is_possible(const struct trainer *t)
{
    return !t->evaluates && (t->schedule.rounds > 1 || t->stages) && t->release &&
           t->config->train.save_activations != TRAIN_SAVE_ACTIVATIONS_8BIT;
}

/* Returns whether the activations of all micro-batches take no more memory than the sums of gradients that
 * breadth-first rounds save, by formula. */
static bool saves_memory(const struct trainer *t)
{
    const struct model_shape *g = &t->student_shape;
    double depth = (double)g->depth, rows = (double)(t->micro * model_shape_tokens(g)),
           sums = (t->dp ? 4.0 / (dp_divides_states(t) || t->stages ? t->data->size : 1) : 2.0) *
                  (double)model_shape_parameters(g);
    return (double)(t->schedule.rounds - 1) * rows * (double)g->width * (2 * depth + 4) <=
           sums * (1 - 1 / depth);
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

void schedule_plan(struct trainer *t)
{
    const struct config *c = t->config;
    struct schedule *s = &t->schedule;
    s->slots = s->wave = 1;
    if (t->evaluates) return;
    /* accumulated gradients have an exact norm at no cost, but not those of ranks, which sum in turn */
    bool loaded = c->model_t[0].place == TOWER_PLACE_STREAMED || c->model_s.place == TOWER_PLACE_STREAMED ||
                  dp_weight_buffers(t),
         exact =
             config_clips(c) && ((!t->dp && s->rounds > 1) || c->optim.clip_mode == OPTIM_CLIP_MODE_EXACT),
         free = t->stages || c->train.wave ||
                (loaded && !exact && c->train.recompute == TRAIN_RECOMPUTE_BLOCK && saves_memory(t));
    s->breadth = is_possible(t) &&
                 (c->train.rounds == TRAIN_ROUNDS_BREADTH || (c->train.rounds == TRAIN_ROUNDS_AUTO && free));
    if (s->breadth) {
        s->wave = c->train.wave && c->train.wave < s->rounds ? c->train.wave : s->rounds;
        s->slots = s->wave < step_micro_batches(t) ? s->wave : step_micro_batches(t);
    }
    bool waves = s->wave < s->rounds;
    s->at_end = !t->release || (waves && (exact || !t->dp));
    s->twice = exact && !s->at_end;
}
