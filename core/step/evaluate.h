/* Evaluation of the student on the images of data.val. It reads the weights of training and changes none, nor
 * any other state of a step. */
#ifndef MEOPT_STEP_EVALUATE_H
#define MEOPT_STEP_EVALUATE_H

#include "core/experiment/experiment.h"
#include "core/step/trainer.h"

struct evaluation {
    int64_t images; /* that could be decoded; of a language model the tokens with a label */
    /* objective.evaluation: the loss first; with train.eval also knn_top1, knn_top5, probe_top1, probe_top5;
     * then none, or the end of the array */
    struct metric metrics[EVALUATION_METRICS];
};

/* Images of a class, and those of them whose class has the largest output: of the classifier or the probe, or
 * the most votes. */
struct class_count {
    int64_t images, correct;
};

/* Evaluates in one pass over `data` (experiment_open_validation with t->micro). Collective call: the ranks
 * share the micro-batches, and the sums are bit-identical on any number of ranks. Returns EXIT_STOPPED within
 * one micro-batch after a request to stop (validation_data.stop). classes: NULL, or counts of all classes, to
 * which this rank's images are added. */
int trainer_evaluate(struct trainer *trainer, const struct validation_data *data, struct evaluation *result,
                     struct class_count *classes, struct error *err);

/* Returns the metric that chooses the best checkpoint. */
const char *trainer_best_metric(const struct trainer *trainer);

#endif
