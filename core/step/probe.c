/* Linear probe: see probe.h. */
#include "core/step/probe.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TILE = 16, LANES = 8, COLUMNS = 32, TOGETHER = 8, POWERS = 6, PARALLEL = 1 << 16 /* operations */ };

static const double FLOOR = 1e-5; /* of a deviation, as in fewshot_lsr.py */

static int64_t padded(int64_t count) { return (count + TILE - 1) / TILE * TILE; }

static size_t doubles(int64_t width, int64_t classes, int64_t batch)
{
    int64_t stride = padded(width);
    return (size_t)(stride * (stride + classes + batch + 3) + 2 * padded(classes));
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
    p->diagonal = p->gram + p->stride * p->stride;
    p->sums = p->diagonal + p->stride;
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

/* Replaces the sums of features by those of standardised ones. */
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
    for (int64_t i = 0; i < p->width; i++)
        for (int64_t j = 0; j <= i; j++) {
            double sum = p->gram[i * p->stride + j] - images * p->mean[i] * p->mean[j];
            *(j < i ? &p->gram[j * p->stride + i] : &p->diagonal[i]) = sum / (p->scale[i] * p->scale[j]);
        }
    for (int64_t c = 0; c < p->classes; c++) {
        double *sum = p->sums + c * p->stride, own = (double)p->images[c];
        p->bias[c] = own > 0 ? 2 * own / images - 1 : NAN;
        for (int64_t k = 0; k < p->width; k++) sum[k] = 2 * (sum[k] - own * p->mean[k]) / p->scale[k];
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

/* Computes the Cholesky factor of the sums with l2 on their diagonal, some columns at a time, whose rows stay
 * in the cache. false: they are not positive definite. */
static bool factorise(struct probe *p, double l2)
{
    for (int64_t i = 0; i < p->width; i++) {
        for (int64_t j = 0; j < i; j++) p->gram[i * p->stride + j] = p->gram[j * p->stride + i];
        p->gram[i * p->stride + i] = p->diagonal[i] + l2;
    }
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

/* Solve for `count` vectors (count, stride) with the factor L, whose rows are read once for all: L x = v for
 * v that are 0 before `first`, and L^T x = v. */
static void solve_forward(const struct probe *p, double *vectors, int count, int64_t first)
{
    for (int64_t i = first; i < p->width; i++) {
        const double *row = p->gram + i * p->stride;
        for (double *v = vectors; v < vectors + count * p->stride; v += p->stride)
            v[i] = (v[i] - dot(row + first, v + first, i - first)) / row[i];
    }
}
static void solve_backward(const struct probe *p, double *vectors, int count)
{
    for (int64_t i = p->width - 1; i >= 0; i--) {
        const double *row = p->gram + i * p->stride;
        for (double *v = vectors; v < vectors + count * p->stride; v += p->stride) {
            v[i] /= row[i];
            for (int64_t k = 0; k < i; k++) v[k] -= row[k] * v[i];
        }
    }
}

/* Computes the coefficients of TOGETHER classes from `first` on, if `keep`; returns their sum of squared
 * errors. */
static double solve_classes(struct probe *p, int64_t first, double l2, bool keep)
{
    int64_t count = p->classes - first < TOGETHER ? p->classes - first : TOGETHER;
    double *w = xmalloc((size_t)(count * p->stride) * sizeof *w), *sums = p->sums + first * p->stride,
           error = 0;
    memcpy(w, sums, (size_t)(count * p->stride) * sizeof *w);
    solve_forward(p, w, (int)count, 0);
    solve_backward(p, w, (int)count);
    for (int64_t c = 0; c < count; c++) {
        const double *v = w + c * p->stride;
        double mean = p->bias[first + c];
        if (isnan(mean)) continue;
        error += (double)p->count * (1 - mean * mean) - dot(v, sums + c * p->stride, p->width) -
                 l2 * dot(v, v, p->width);
    }
    if (keep) memcpy(sums, w, (size_t)(count * p->stride) * sizeof *w);
    free(w);
    return error;
}

/* Returns the part of TOGETHER columns from `first` on in the trace of the inverse: squares of L^-1. */
static double inverse_trace(const struct probe *p, int64_t first)
{
    int64_t count = p->width - first < TOGETHER ? p->width - first : TOGETHER;
    double *v = xcalloc((size_t)(count * p->stride), sizeof *v), trace = 0;
    for (int64_t c = 0; c < count; c++) v[c * p->stride + first + c] = 1;
    solve_forward(p, v, (int)count, first);
    for (int64_t c = 0; c < count; c++) trace += dot(v + c * p->stride, v + c * p->stride, p->width);
    free(v);
    return trace;
}

/* Computes the coefficients for all classes, if `keep`; returns the sum of squared errors. */
static double solve_all(struct probe *p, double l2, bool keep)
{
    int64_t parts = (p->classes + TOGETHER - 1) / TOGETHER;
    double *errors = xcalloc((size_t)parts, sizeof *errors), error = 0;
#pragma omp parallel for schedule(dynamic)
    for (int64_t n = 0; n < parts; n++) errors[n] = solve_classes(p, n * TOGETHER, l2, keep);
    for (int64_t n = 0; n < parts; n++) error += errors[n];
    free(errors);
    return error;
}

/* Returns the error of generalised cross-validation, the factor being that of l2. */
static double validation_error(struct probe *p, double l2)
{
    int64_t parts = (p->width + TOGETHER - 1) / TOGETHER;
    double *traces = xcalloc((size_t)parts, sizeof *traces), inverse = 0, images = (double)p->count;
#pragma omp parallel for schedule(dynamic)
    for (int64_t n = 0; n < parts; n++) traces[n] = inverse_trace(p, n * TOGETHER);
    for (int64_t n = 0; n < parts; n++) inverse += traces[n];
    free(traces);
    double free_share = 1 - ((double)p->width - l2 * inverse + 1) / images, error = solve_all(p, l2, false);
    return error > 0 && free_share > 0 ? error / images / (free_share * free_share) : INFINITY;
}

/* Returns the l2 with the least error; 0: none can be solved. */
static double choose_l2(struct probe *p)
{
    double least = INFINITY, best = 0, l2 = (double)p->count;
    for (int k = 0; k <= POWERS; k++, l2 /= 10) {
        if (!factorise(p, l2)) continue;
        double error = validation_error(p, l2);
        if (best > 0 && !(error < least)) continue;
        best = l2;
        least = error;
    }
    return best;
}

void probe_fit(struct probe *p)
{
    standardise(p);
    p->used_l2 = !p->count ? 0 : p->l2 > 0 ? p->l2 : choose_l2(p);
    if (p->used_l2 > 0 && factorise(p, p->used_l2)) solve_all(p, p->used_l2, true);
    else
        for (int64_t c = 0; c < p->classes; c++) p->bias[c] = NAN;
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
