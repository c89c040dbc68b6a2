/* Weighted k-nearest neighbours of features (train.eval: knn), the score of DINO (arXiv:2104.14294, after
 * arXiv:1805.01978): each of the K nearest features of training images, by cosine, votes for its class with
 * exp(cosine / 0.07). The cosines are GEMMs in fp32 on the device, the votes doubles on the host.
 */
#ifndef MEOPT_STEP_KNN_H
#define MEOPT_STEP_KNN_H

#include "core/nn/nn.h"

enum { KNN_NEIGHBOURS = 20 };

struct knn {
    struct device *device;
    int64_t capacity, width, batch; /* images of the bank, values of a feature, largest number of queries */
    int64_t count;                  /* images in the bank so far */
    float *bank;                    /* device (capacity, width), of unit length */
    float *queries, *cosines;       /* device (batch, width), (batch, KNN_CHUNK) */
    int32_t *labels;                /* (capacity) classes of the bank */
    float *host;                    /* (batch, max(width, KNN_CHUNK)) */
};
enum { KNN_CHUNK = 1024 }; /* images of the bank that are compared at once */

/* Votes of a query's neighbours: true if its class is the first, or among the first five. A class without
 * votes is neither; of equal votes the smaller class comes first. */
struct knn_found {
    bool top1, top5;
};

/* Memory class: data. capacity 0: for features alone. */
int knn_create(struct knn **knn, struct device *device, int64_t capacity, int64_t width, int64_t batch,
               struct error *err);
void knn_close(struct knn *knn);
/* Returns the bytes of device memory. */
size_t knn_bytes(int64_t capacity, int64_t width, int64_t batch);
/* Copies the student's pooled rows of the last forward to rows (count, width), host memory, normalized. */
void knn_features(struct knn *knn, struct tower *student, int64_t count, float *rows);
/* Runs the operations of a micro-batch on the dry device. */
int knn_dry(struct knn *knn, struct tower *student, int64_t count, struct error *err);
/* Adds normalized rows to the bank, as far as there is capacity, except those with label -1. */
void knn_add(struct knn *knn, const float *rows, const int32_t *labels, int64_t count);
/* Classifies `count` normalized rows. found[i] is false for label -1. */
int knn_classify(struct knn *knn, const float *rows, const int32_t *labels, int64_t count,
                 struct knn_found *found, struct error *err);

#endif
