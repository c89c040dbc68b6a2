/* Training objectives, one row each: whether there is a teacher, how a batch is weighed, the loss, and the
 * metrics of a step. Trainer, step, plan and loop read the row and have no branch by objective.
 *
 * A step's loss is a mean over the units of the global batch: all images, or those with a label. Every
 * micro-batch adds its part to sums on the device: loss first, then one sum per metric.
 */
#ifndef MEOPT_EXPERIMENT_OBJECTIVE_H
#define MEOPT_EXPERIMENT_OBJECTIVE_H

#include "core/config/config.h"

enum { OBJECTIVE_METRICS = 1 + MOST_LOSSES };
enum { EVALUATION_METRICS = 1 + OBJECTIVE_METRICS + 4 }; /* with those of train.eval */

struct metric {
    const char *name; /* key in metrics.jsonl; NULL after the last */
    double value;
};

struct trainer;
struct batch;

struct objective {
    const char *name;                       /* as in train.objective */
    const char *metrics[OBJECTIVE_METRICS]; /* means over the units, in the order of their sums; NULL: none */
    bool teacher;                           /* the target is a teacher's output */
    bool labels;                            /* the target is the batch's labels */
    bool classes;                           /* each sample has one label, its class */
    bool tokens;  /* samples are tokens, each of which has a label unless `classes` */
    bool encoder; /* tokens are read by an encoder (family.h) */
    bool masked;  /* the labels are of masked tokens */
    /* Returns the units of a micro-batch in host memory; NULL: its images. */
    int64_t (*units)(const struct trainer *t, const struct batch *host);
    /* NULL: the student's head computes it in backward (tower.owns_loss).
     * Computes the loss of the student's output, divided by `units`, those of the global batch. Adds loss and
     * metrics to sums, and the gradient to t->dout. batch: input and labels in device memory. target: the
     * teacher's output, or NULL. */
    void (*loss)(struct trainer *t, const struct batch *batch, const float *target, double units,
                 double *sums);
    /* Adds loss and metrics of `count` images of the batch, from `first` on, for evaluation: sums over the
     * images, without smoothing and gradient. */
    void (*evaluate)(struct trainer *t, const struct batch *batch, const float *target, int64_t first,
                     int64_t count, double *sums);
    const char *evaluation[1 + OBJECTIVE_METRICS]; /* keys of its means, in the order of the sums */
    const char *perplexity;                        /* key of e to the loss, after them; NULL: not given */
    const char *best;                              /* the one that chooses the best checkpoint */
};

const struct objective *objective_of(const struct config *config);
/* Returns the metric that chooses the best checkpoint of an objective of that name; NULL: there is none. */
const char *objective_best(const char *name);
/* Returns what a tower is called: "teacher", "student", or "model" without a teacher. */
const char *objective_tower(const struct objective *objective, bool student);
/* Returns the number of sums per micro-batch: the loss and its metrics. */
int objective_sums(const struct objective *objective);

#endif
