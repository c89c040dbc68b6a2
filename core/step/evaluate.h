/* Evaluation of the student on the images of data.val. It reads the weights of training and changes none, nor
 * any other state of a step. */
#ifndef MEOPT_STEP_EVALUATE_H
#define MEOPT_STEP_EVALUATE_H

#include "core/experiment/experiment.h"
#include "core/step/trainer.h"

struct evaluation {
    int64_t images; /* that could be decoded; of a language model the tokens with a label */
    /* objective.evaluation: the loss first; with train.eval knn also knn_top1 and knn_top5 */
    struct metric metrics[1 + OBJECTIVE_METRICS];
};

/* Images of a class, and those of them whose class has the largest output, or the most votes. */
struct class_count {
    int64_t images, correct;
};

/* Evaluates in one pass over `data` (experiment_open_validation with t->micro). Collective call: the ranks
 * share the micro-batches, and the sums are bit-identical on any number of ranks. Returns EXIT_STOPPED within
 * one micro-batch after a request to stop (validation_data.stop). classes: NULL, or counts of all classes, to
 * which this rank's images are added. */
int trainer_evaluate(struct trainer *trainer, const struct validation_data *data, struct evaluation *result,
                     struct class_count *classes, struct error *err);

#endif
