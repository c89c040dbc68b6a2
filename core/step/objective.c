/* The rows of the training objectives: see objective.h. */
#include "core/experiment/objective.h"
#include "core/step/step.h"

#include <string.h>

static void loss_of_distillation(struct trainer *t, const struct batch *batch, const float *target,
                                 double units, double *sums)
{
    targets_loss(t, target, batch->count, 0, batch->count, (float)((double)batch->count / units), t->dout,
                 sums);
}

static void evaluate_distillation(struct trainer *t, const struct batch *batch, const float *target,
                                  int64_t first, int64_t count, double *sums)
{
    targets_loss(t, target, batch->count, first, count, (float)count, NULL, sums);
}

static int64_t labelled(const struct trainer *t, const struct batch *host)
{
    int64_t count = 0;
    for (int64_t i = 0; i < host->count * t->labels_each; i++) count += host->labels[i] >= 0;
    return count;
}

static void cross_entropy(struct trainer *t, const struct batch *batch, double smoothing, float weight,
                          const float *logits, float *dlogits, double *sums)
{
    t->device->ops->cross_entropy(t->device, &(struct cross_entropy){.logits = logits,
                                                                     .label = batch->labels,
                                                                     .label2 = batch->labels2,
                                                                     .share = batch->share,
                                                                     .smoothing = (float)smoothing,
                                                                     .weight = weight,
                                                                     .dlogits = dlogits,
                                                                     .loss = sums,
                                                                     .top1 = sums + 1,
                                                                     .top5 = sums + 2,
                                                                     .R = batch->count,
                                                                     .C = t->student->out_width});
}

static void loss_of_classification(struct trainer *t, const struct batch *batch, const float *target,
                                   double units, double *sums)
{
    (void)target;
    cross_entropy(t, batch, t->config->train.label_smoothing, units > 0 ? (float)(1 / units) : 0,
                  t->student->out, t->dout, sums);
}

static void evaluate_classification(struct trainer *t, const struct batch *batch, const float *target,
                                    int64_t first, int64_t count, double *sums)
{
    struct batch part = {.count = count, .labels = batch->labels + first};
    (void)target;
    cross_entropy(t, &part, 0, 1, t->student->out + first * t->student->out_width, NULL, sums);
}

/* All samples of the batch at once. */
static void evaluate_language(struct trainer *t, const struct batch *batch, const float *target,
                              int64_t first, int64_t count, double *sums)
{
    struct batch all = *batch;
    (void)target;
    (void)first;
    (void)count;
    all.weight = 1;
    all.smoothing = 0;
    all.sums = sums;
    tower_evaluate(t->student, &all);
}

/* Of classify, where a sample is a document. */
enum { TEXT_CLASSES = TRAIN_OBJECTIVE_COUNT };

static const struct objective rows[] = {
    [TRAIN_OBJECTIVE_DISTILL] = {.name = "distill",
                                 .metrics = {"cosine", "loss_1", "loss_2", "loss_3", "loss_4", "loss_5",
                                             "loss_6", "loss_7", "loss_8"},
                                 .teacher = true,
                                 .loss = loss_of_distillation,
                                 .evaluate = evaluate_distillation,
                                 .evaluation = {"val_loss", "val_cosine"},
                                 .best = "val_loss"},
    [TRAIN_OBJECTIVE_CLASSIFY] = {.name = "classify",
                                  .metrics = {"top1", "top5"},
                                  .labels = true,
                                  .classes = true,
                                  .units = labelled,
                                  .loss = loss_of_classification,
                                  .evaluate = evaluate_classification,
                                  .evaluation = {"val_loss", "val_top1", "val_top5"},
                                  .best = "val_top1"},
    [TEXT_CLASSES] = {.name = "classify",
                      .metrics = {"top1", "top5"},
                      .labels = true,
                      .classes = true,
                      .tokens = true,
                      .encoder = true,
                      .units = labelled,
                      .loss = loss_of_classification,
                      .evaluate = evaluate_classification,
                      .evaluation = {"val_loss", "val_top1", "val_top5"},
                      .best = "val_top1"},
    [TRAIN_OBJECTIVE_LANGUAGE] = {.name = "language",
                                  .metrics = {"accuracy"},
                                  .labels = true,
                                  .tokens = true,
                                  .units = labelled,
                                  .evaluate = evaluate_language,
                                  .evaluation = {"val_loss", "val_accuracy"},
                                  .perplexity = "val_perplexity",
                                  .best = "val_loss"},
    [TRAIN_OBJECTIVE_MASKED] = {.name = "masked",
                                .metrics = {"accuracy"},
                                .labels = true,
                                .tokens = true,
                                .encoder = true,
                                .masked = true,
                                .units = labelled,
                                .evaluate = evaluate_language,
                                .evaluation = {"val_loss", "val_accuracy"},
                                .perplexity = "val_perplexity",
                                .best = "val_loss"},
};

const struct objective *objective_of(const struct config *config)
{
    bool text = config->train.objective == TRAIN_OBJECTIVE_CLASSIFY && config_reads_tokens(config);
    return &rows[text ? TEXT_CLASSES : (int)config->train.objective];
}

const char *objective_best(const char *name)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].name, name) == 0) return rows[i].best;
    return NULL;
}

const char *objective_tower(const struct objective *o, bool student)
{
    return !student ? "teacher" : o->teacher ? "student" : "model";
}

int objective_sums(const struct objective *o)
{
    int count = 1;
    for (int i = 0; i < OBJECTIVE_METRICS && o->metrics[i]; i++) count++;
    return count;
}
