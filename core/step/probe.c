/* Linear probe: see probe.h. */
#include "core/step/probe.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TILE = 16, LANES = 8, COLUMNS = 32, TOGETHER = 8, PARALLEL = 1 << 16 /* operations */ };

static const double FLOOR = 1e-5; /* of a deviation, as in fewshot_lsr.py */

static int64_t padded(int64_t count) { return (count + TILE - 1) / TILE * TILE; }

static size_t doubles(int64_t width, int64_t classes, int64_t batch)
{
    int64_t stride = padded(width);
    return (size_t)(stride * (stride + classes + batch + 2) + 2 * padded(classes));
}

size_t probe_bytes(int64_t width, int64_t classes, int64_t batch)
{
    return width ? doubles(width, classes, batch) * sizeof(double) : 0;
}

int probe_create(struct probe **probe, struct device *device, int64_t width, int64_t classes, int64_t batch,
                 double l2, struct error *err)
{
    struct probe *p = xcalloc(1, sizeof *p);
    size_t bytes = probe_bytes(width, classes, batch);
    *p = (struct probe){.device = device, .width = width, .classes = classes, .batch = batch, .l2 = l2};
    p->stride = padded(width);
    *probe = p;
    if (!bytes) return 0;
    if (device_counts_host_memory(device)) {
        p->memory = device_alloc(device, MEMORY_DATA, bytes, "linear probe (train.probe_classes)", err);
        if (!p->memory) return err->code;
    } else {
        device_offloaded(device, PLACE_HOST, MEMORY_DATA, (int64_t)bytes);
        if (device->kind != DEVICE_DRY && !(p->memory = malloc(bytes)))
            return error_set(err, EXIT_HOST_MEMORY, "lower train.probe_classes",
                             "out of memory for the %zu bytes of the linear probe", bytes);
    }
    if (device->kind == DEVICE_DRY) return 0;
    p->gram = p->memory;
    p->sums = p->gram + p->stride * p->stride;
    p->rows = p->sums + classes * p->stride;
    p->mean = p->rows + batch * p->stride;
    p->scale = p->mean + p->stride;
    p->bias = p->scale + p->stride;
    p->images = (int64_t *)(void *)(p->bias + padded(classes));
    return 0;
}

void probe_close(struct probe *p)
{
    if (!p) return;
    if (device_counts_host_memory(p->device)) device_free(p->device, p->memory);
    else {
        size_t bytes = probe_bytes(p->width, p->classes, p->batch);
        device_offloaded(p->device, PLACE_HOST, MEMORY_DATA, -(int64_t)bytes);
        free(p->memory);
    }
    free(p);
}

void probe_begin(struct probe *p)
{
    p->count = 0;
    memset(p->memory, 0, probe_bytes(p->width, p->classes, p->batch));
}

/* Adds the products of columns i and j of all rows to a tile of the sums, row after row. */
static void add_tile(struct probe *p, int64_t count, int64_t i, int64_t j)
{
    double sums[TILE][TILE], *to = p->gram + i * p->stride + j;
    for (int64_t a = 0; a < TILE; a++) memcpy(sums[a], to + a * p->stride, sizeof sums[a]);
    for (int64_t n = 0; n < count; n++) {
        const double *row = p->rows + n * p->stride;
        for (int64_t a = 0; a < TILE; a++)
            for (int64_t b = 0; b < TILE; b++) sums[a][b] += row[i + a] * row[j + b];
    }
    for (int64_t a = 0; a < TILE; a++) memcpy(to + a * p->stride, sums[a], sizeof sums[a]);
}

/* Adds at most `batch` rows, all of which have labels. */
static void add_rows(struct probe *p, const float *rows, const int32_t *labels, int64_t count)
{
    int64_t tiles = p->stride / TILE;
    for (int64_t n = 0; n < count; n++) {
        double *row = p->rows + n * p->stride, *sum = p->sums + labels[n] * p->stride;
        for (int64_t k = 0; k < p->width; k++) sum[k] += row[k] = rows[n * p->width + k];
        p->images[labels[n]]++;
    }
    p->count += count;
#pragma omp parallel for schedule(dynamic) if (count * p->stride * p->stride > PARALLEL)
    for (int64_t i = 0; i < tiles; i++)
        for (int64_t j = 0; j <= i; j++) add_tile(p, count, i * TILE, j * TILE);
}

void probe_add(struct probe *p, const float *rows, const int32_t *labels, int64_t count)
{
    for (int64_t first = 0, end; first < count; first = end) { /* in runs of images with a label */
        for (end = first; end < count && labels[end] >= 0 && end - first < p->batch;) end++;
        if (end > first) add_rows(p, rows + first * p->width, labels + first, end - first);
        else end++;
    }
}

static double dot(const double *a, const double *b, int64_t count)
{
    double lanes[LANES] = {0}, sum = 0;
    int64_t n = 0;
    for (; n + LANES <= count; n += LANES)
        for (int k = 0; k < LANES; k++) lanes[k] += a[n + k] * b[n + k];
    for (int k = 0; k < LANES; k++) sum += lanes[k];
    for (; n < count; n++) sum += a[n] * b[n];
    return sum;
}

/* Replaces the sums of products by those of standardised features, with l2 on the diagonal. */
static void standardise(struct probe *p)
{
    double images = (double)p->count;
    for (int64_t c = 0; c < p->classes; c++)
        for (int64_t k = 0; k < p->width; k++) p->mean[k] += p->sums[c * p->stride + k];
    for (int64_t k = 0; k < p->width; k++) {
        p->mean[k] /= images;
        double variance = p->gram[k * p->stride + k] / images - p->mean[k] * p->mean[k];
        p->scale[k] = sqrt(variance < 0 ? 0 : variance) + FLOOR;
    }
    for (int64_t i = 0; i < p->width; i++) {
        double *row = p->gram + i * p->stride;
        for (int64_t j = 0; j <= i; j++)
            row[j] = (row[j] - images * p->mean[i] * p->mean[j]) / (p->scale[i] * p->scale[j]);
        row[i] += p->l2;
    }
}

/* Computes columns first to end - 1 of Cholesky's factor in row i, which is not one of these. */
static void factorise_row(struct probe *p, int64_t i, int64_t first, int64_t end)
{
    double *row = p->gram + i * p->stride;
    for (int64_t j = first; j < end; j++) {
        const double *pivot = p->gram + j * p->stride;
        row[j] = (row[j] - dot(row, pivot, j)) / pivot[j];
    }
}

/* Replaces the lower triangle by its Cholesky factor, some columns at a time, whose rows stay in the cache.
 * false: it is not positive definite. */
static bool factorise(struct probe *p)
{
    for (int64_t first = 0, end; first < p->width; first = end) {
        end = first + COLUMNS < p->width ? first + COLUMNS : p->width;
        for (int64_t j = first; j < end; j++) {
            double *pivot = p->gram + j * p->stride;
            factorise_row(p, j, first, j);
            double square = pivot[j] - dot(pivot, pivot, j);
            if (!(square > 0) || isinf(square)) return false;
            pivot[j] = sqrt(square);
        }
#pragma omp parallel for schedule(static) if ((p->width - end) * end * COLUMNS > PARALLEL)
        for (int64_t i = end; i < p->width; i++) factorise_row(p, i, first, end);
    }
    return true;
}

/* Replaces the sums of `count` classes by their coefficients; each row of the factor is read once for all. */
static void solve(struct probe *p, const int64_t *classes, int count)
{
    for (int c = 0; c < count; c++) {
        double *w = p->sums + classes[c] * p->stride, images = (double)p->images[classes[c]];
        p->bias[classes[c]] = 2 * images / (double)p->count - 1;
        for (int64_t k = 0; k < p->width; k++) w[k] = 2 * (w[k] - images * p->mean[k]) / p->scale[k];
    }
    for (int64_t i = 0; i < p->width; i++) {
        const double *row = p->gram + i * p->stride;
        for (int c = 0; c < count; c++) {
            double *w = p->sums + classes[c] * p->stride;
            w[i] = (w[i] - dot(row, w, i)) / row[i];
        }
    }
    for (int64_t i = p->width - 1; i >= 0; i--) {
        const double *row = p->gram + i * p->stride;
        for (int c = 0; c < count; c++) {
            double *w = p->sums + classes[c] * p->stride, value = w[i] /= row[i];
            for (int64_t k = 0; k < i; k++) w[k] -= row[k] * value;
        }
    }
}

void probe_fit(struct probe *p)
{
    standardise(p);
    bool solvable = p->count && factorise(p);
#pragma omp parallel for schedule(dynamic)
    for (int64_t first = 0; first < p->classes; first += TOGETHER) {
        int64_t with_images[TOGETHER];
        int count = 0;
        for (int64_t c = first; c < first + TOGETHER && c < p->classes; c++) {
            p->bias[c] = NAN;
            if (solvable && p->images[c]) with_images[count++] = c;
        }
        solve(p, with_images, count);
    }
}

static struct probe_found rank_class(const struct probe *p, const double *row, int32_t label)
{
    if (label >= p->classes || isnan(p->bias[label])) return (struct probe_found){0};
    double own = p->bias[label] + dot(row, p->sums + label * p->stride, p->width);
    int before = isnan(own) ? 5 : 0;
    for (int64_t c = 0; c < p->classes && before < 5; c++) {
        if (isnan(p->bias[c])) continue;
        double other = p->bias[c] + dot(row, p->sums + c * p->stride, p->width);
        before += other > own || (other >= own && c < label);
    }
    return (struct probe_found){before < 1, before < 5};
}

void probe_classify(struct probe *p, const float *rows, const int32_t *labels, int64_t count,
                    struct probe_found *found)
{
#pragma omp parallel for schedule(dynamic) if (count * p->classes * p->width > PARALLEL)
    for (int64_t n = 0; n < count; n++) {
        double *row = p->rows + n * p->stride;
        for (int64_t k = 0; k < p->width; k++)
            row[k] = ((double)rows[n * p->width + k] - p->mean[k]) / p->scale[k];
        found[n] = labels[n] < 0 ? (struct probe_found){0} : rank_class(p, row, labels[n]);
    }
}
