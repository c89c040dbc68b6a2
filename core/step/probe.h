/* Linear probe of features (train.eval probe): L2-regularised least squares of one-against-all targets -1 and
 * 1, in closed form, as in BiT and ViT (arXiv:1912.11370, arXiv:2010.11929, section 4) and in big_vision's
 * fewshot_lsr.py. Features x of unit length are standardised over the training images, z = (x - mean) /
 * (deviation + 1e-5), with the deviation of the population. The coefficients W minimise
 *
 *     sum over images |W z + b - y|^2 + l2 |W|^2
 *
 * and b, the mean of y, is not regularised. Of N images, l2 is N, N / 10, ... or N / 10^6: the one with the
 * least error by generalised cross-validation (Golub, Heath, Wahba 1979), unless it is given. Sums and
 * solution are doubles on the host. They are bit-identical for any number of ranks and threads, and for any
 * batches of the same rows in the same order.
 */
#ifndef MEOPT_STEP_PROBE_H
#define MEOPT_STEP_PROBE_H

#include "core/device/device.h"

struct probe {
    struct device *device;
    int64_t width, classes, batch; /* values of a feature, most classes, most rows at once */
    int64_t stride;                /* of rows: width, rounded up */
    double l2;                     /* 0: by cross-validation */
    double used_l2;                /* by the last probe_fit */
    void *memory;                  /* of what follows; NULL on a dry device */
    /* (stride, stride) sum of x x^T, in the lower triangle; then of z z^T in the upper one, without its
     * diagonal, and Cholesky's factor in the lower one */
    double *gram;
    double *diagonal; /* (stride) of the sum of z z^T */
    double *sums;     /* (classes, stride): sum of x per class; then of y z; then the coefficients */
    double *rows;     /* (batch, stride) */
    double *mean;     /* (stride) */
    double *scale;    /* (stride): deviation + 1e-5 */
    double *bias;     /* (classes); NAN: a class without images, which is not predicted */
    int64_t *images;  /* (classes) */
    int64_t count;    /* images so far */
};

/* Scores of a row: true if its class is the first, or among the first five. Of equal scores the smaller class
 * comes first. */
struct probe_found {
    bool top1, top5;
};

/* Memory class: data; of a card it is host memory. width 0: a rank without features. */
int probe_create(struct probe **probe, struct device *device, int64_t width, int64_t classes, int64_t batch,
                 double l2, struct error *err);
void probe_close(struct probe *probe);
size_t probe_bytes(int64_t width, int64_t classes, int64_t batch);
/* Removes the images of an earlier evaluation. */
void probe_begin(struct probe *probe);
/* Adds rows (count, width), except those with label -1. */
void probe_add(struct probe *probe, const float *rows, const int32_t *labels, int64_t count);
/* Computes the coefficients. Features that are not finite give none: no class is predicted. */
void probe_fit(struct probe *probe);
/* Classifies `count` rows, at most `batch`. found[i] is false for label -1. */
void probe_classify(struct probe *probe, const float *rows, const int32_t *labels, int64_t count,
                    struct probe_found *found);

#endif
