/* The rows of the training objectives: see objective.h. */
#include "core/train/objective.h"
#include "core/train/trainer.h"

static void loss_of_distillation(struct trainer *t, const struct batch *batch, const float *target,
                                 double units, double *sums)
{
    const struct tower *s = t->student;
    distill_loss(t->device, &t->loss, s->out, target, t->dout, sums, sums + 1,
                 (float)((double)batch->count / units), batch->count, s->out_rows, s->out_width);
}

static const struct objective rows[] = {
    [TRAIN_OBJECTIVE_DISTILL] = {.name = "distill",
                                 .metrics = {"cosine"},
                                 .teacher = true,
                                 .loss = loss_of_distillation},
};

const struct objective *objective_of(const struct config *config) { return &rows[config->train.objective]; }

int objective_sums(const struct objective *o)
{
    int count = 1;
    for (int i = 0; i < OBJECTIVE_METRICS && o->metrics[i]; i++) count++;
    return count;
}
