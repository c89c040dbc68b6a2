/* Weighted k-nearest neighbours, and features of images: see knn.h. */
#include "core/step/knn.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double TEMPERATURE = 0.07;

/* The neighbours of a query so far, nearest first; of equal cosines the earlier image of the bank. */
struct neighbours {
    int count;
    float cosine[KNN_NEIGHBOURS];
    int32_t label[KNN_NEIGHBOURS];
};

/* Returns the floats of the bank or of the queries, so that the next part is aligned. */
static int64_t part_floats(int64_t rows, int64_t width) { return (rows * width + 15) / 16 * 16; }

size_t knn_bytes(int64_t capacity, int64_t width, int64_t batch)
{
    int64_t cosines = capacity ? batch * KNN_CHUNK : 0;
    return (size_t)(part_floats(capacity, width) + part_floats(batch, width) + cosines) * sizeof(float);
}

int knn_create(struct knn **knn, struct device *device, int64_t capacity, int64_t width, int64_t batch,
               struct error *err)
{
    struct knn *k = xcalloc(1, sizeof *k);
    *k = (struct knn){.device = device, .capacity = capacity, .width = width, .batch = batch};
    *knn = k;
    k->bank = device_alloc(device, MEMORY_DATA, knn_bytes(capacity, width, batch),
                           "features of images (train.knn_bank)", err);
    if (!k->bank) return err->code;
    k->queries = k->bank + part_floats(capacity, width);
    k->cosines = k->queries + part_floats(batch, width);
    k->labels = xcalloc((size_t)capacity, sizeof *k->labels);
    k->host = xcalloc((size_t)(batch * (width > KNN_CHUNK ? width : KNN_CHUNK)), sizeof *k->host);
    return 0;
}

void knn_close(struct knn *k)
{
    if (!k) return;
    device_free(k->device, k->bank);
    free(k->labels);
    free(k->host);
    free(k);
}

/* Scales rows to unit length. */
static void normalize(float *rows, int64_t count, int64_t width)
{
    for (int64_t i = 0; i < count; i++) {
        float *row = rows + i * width;
        double squares = 0;
        for (int64_t k = 0; k < width; k++) squares += (double)row[k] * row[k];
        double scale = squares > 0 ? 1 / sqrt(squares) : 0;
        for (int64_t k = 0; k < width; k++) row[k] = (float)(row[k] * scale);
    }
}

void knn_features(struct knn *k, struct tower *student, int64_t count, float *rows)
{
    tower_pooled(student, count, k->queries);
    k->device->download(k->device, rows, k->queries, (size_t)(count * k->width) * sizeof *rows);
    normalize(rows, count, k->width);
}

void knn_add(struct knn *k, const float *rows, const int32_t *labels, int64_t count)
{
    size_t bytes = (size_t)k->width * sizeof *rows;
    for (int64_t first = 0, end; first < count; first = end + 1) { /* in runs of images with a label */
        for (end = first; end < count && labels[end] >= 0;) end++;
        int64_t left = k->capacity - k->count, run = end - first < left ? end - first : left;
        if (run <= 0) continue;
        k->device->upload(k->device, k->bank + k->count * k->width, rows + first * k->width,
                          (size_t)run * bytes);
        memcpy(k->labels + k->count, labels + first, (size_t)run * sizeof *labels);
        k->count += run;
    }
}

static void add_neighbour(struct neighbours *n, float cosine, int32_t label)
{
    if (isnan(cosine) || (n->count == KNN_NEIGHBOURS && !(cosine > n->cosine[n->count - 1]))) return;
    int at = n->count < KNN_NEIGHBOURS ? n->count++ : n->count - 1;
    for (; at > 0 && cosine > n->cosine[at - 1]; at--) {
        n->cosine[at] = n->cosine[at - 1];
        n->label[at] = n->label[at - 1];
    }
    n->cosine[at] = cosine;
    n->label[at] = label;
}

static struct knn_found count_votes(const struct neighbours *n, int32_t label)
{
    int32_t classes[KNN_NEIGHBOURS];
    double votes[KNN_NEIGHBOURS], own = 0;
    int count = 0, before = 0;
    for (int i = 0; i < n->count; i++) {
        int at = 0;
        while (at < count && classes[at] != n->label[i]) at++;
        if (at == count) classes[count] = n->label[i], votes[count++] = 0;
        votes[at] += exp(n->cosine[i] / TEMPERATURE);
        if (n->label[i] == label) own = votes[at];
    }
    for (int i = 0; i < count; i++) before += votes[i] > own || (votes[i] >= own && classes[i] < label);
    return (struct knn_found){own > 0 && before<1, own> 0 && before < 5};
}

/* Computes cosines (count, chunk) of the queries and the bank's images from `first` on. */
static void compare(struct knn *k, int64_t count, int64_t first, int64_t chunk)
{
    k->device->ops->gemm(k->device, &(struct gemm){.m = count,
                                                   .n = chunk,
                                                   .k = k->width,
                                                   .transpose_b = true,
                                                   .a = k->queries,
                                                   .b = k->bank + first * k->width,
                                                   .c = k->cosines,
                                                   .lda = k->width,
                                                   .ldb = k->width,
                                                   .ldc = chunk,
                                                   .ab_type = DTYPE_F32,
                                                   .c_type = DTYPE_F32,
                                                   .alpha = 1,
                                                   .floats = true});
}

int knn_dry(struct knn *k, struct tower *student, int64_t count, struct error *err)
{
    tower_pooled(student, count, k->queries);
    if (k->capacity) compare(k, count, 0, k->capacity < KNN_CHUNK ? k->capacity : KNN_CHUNK);
    return device_check(k->device, err);
}

int knn_classify(struct knn *k, const float *rows, const int32_t *labels, int64_t count,
                 struct knn_found *found, struct error *err)
{
    struct device *dev = k->device;
    struct neighbours *all = xcalloc((size_t)count, sizeof *all);
    dev->upload(dev, k->queries, rows, (size_t)(count * k->width) * sizeof *rows);
    for (int64_t first = 0; first < k->count; first += KNN_CHUNK) {
        int64_t chunk = k->count - first < KNN_CHUNK ? k->count - first : KNN_CHUNK;
        compare(k, count, first, chunk);
        dev->download(dev, k->host, k->cosines, (size_t)(count * chunk) * sizeof *k->host);
        for (int64_t i = 0; i < count; i++)
            for (int64_t n = 0; n < chunk && labels[i] >= 0; n++)
                add_neighbour(&all[i], k->host[i * chunk + n], k->labels[first + n]);
    }
    for (int64_t i = 0; i < count; i++)
        found[i] = labels[i] < 0 ? (struct knn_found){0} : count_votes(&all[i], labels[i]);
    free(all);
    return device_check(dev, err);
}
