/* Resizing of one box of an image, as three libraries do it. All are separable, horizontal first, with a
 * kernel that is widened when shrinking:
 *   Pillow                   weights in 22-bit fixed point, rounded and clipped to bytes between the passes
 *   torchvision, bytes       the same with weights of 16 bits: as many fractional bits as the largest allows
 *   torchvision, floats      nothing is rounded
 * The first two are bit for bit; both run through the same kernels, for a weight of fewer fractional bits is
 * one of 22 with zeros at its end. */
#include "core/data/data.h"
#include "kernels/cpu/resize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Kernels, as in PIL's Resample.c ---- */

static double cubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static double triangle(double x)
{
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

static double sinc(double x)
{
    if (x == 0) return 1;
    x *= M_PI;
    return sin(x) / x;
}
static double lanczos(double x) { return -3 <= x && x < 3 ? sinc(x) * sinc(x / 3) : 0; }
static double box(double x) { return x > -0.5 && x <= 0.5 ? 1 : 0; }
static double hamming(double x)
{
    x = fabs(x);
    return x >= 1 ? 0 : sinc(x) * (0.54 + 0.46 * cos(x * M_PI));
}

static const struct filter {
    double support;
    double (*value)(double x);
} filters[] = {[RESAMPLE_BICUBIC] = {2, cubic},
               [RESAMPLE_BILINEAR] = {1, triangle},
               [RESAMPLE_LANCZOS] = {3, lanczos},
               [RESAMPLE_BOX] = {0.5, box},
               [RESAMPLE_HAMMING] = {1, hamming}};

/* ---- Weights ---- */

static void taps_free(struct resize_axis *t)
{
    free(t->first);
    free(t->length);
    free(t->weights);
    free(t->start);
    free(t->packed);
}

/* One axis of a resize from `in` to `out` positions. */
struct axis_task {
    const struct filter *filter;
    int in, out;
    double scale, stretch, support;
};

static struct axis_task axis_task(enum resample resample, int in, int out)
{
    struct axis_task a = {.filter = &filters[resample], .in = in, .out = out, .scale = (double)in / out};
    a.stretch = a.scale < 1 ? 1 : a.scale;
    a.support = a.filter->support * a.stretch;
    return a;
}

static int axis_most(const struct axis_task *a) { return (int)ceil(a->support) * 2 + 1; }

/* Computes the weights of output position i, which sum to 1, and the input position of the first of them. */
static int axis_weights(const struct axis_task *a, int i, double *w, int *first)
{
    double centre = (i + 0.5) * a->scale, sum = 0, shrink = 1 / a->stretch;
    int low = (int)(centre - a->support + 0.5), high = (int)(centre + a->support + 0.5);
    if (low < 0) low = 0;
    if (high > a->in) high = a->in;
    for (int x = low; x < high; x++) sum += w[x - low] = a->filter->value((x - centre + 0.5) * shrink);
    for (int x = 0; x < high - low; x++)
        if (sum != 0) w[x] /= sum;
    *first = low;
    return high - low;
}

/* Returns the fractional bits of torchvision's 16-bit weights: the most with which the largest weight
 * fits. */
static int short_bits(const struct axis_task *a, double *w)
{
    double most = 0;
    int bits = 0, first;
    for (int i = 0; i < a->out; i++)
        for (int n = axis_weights(a, i, w, &first); n-- > 0;) most = w[n] > most ? w[n] : most;
    while (bits < RESIZE_BITS && (int)(0.5 + most * (2 << bits)) < 1 << 15) bits++;
    return bits;
}

/* Computes the taps of output positions begin .. begin + count. */
static int taps_make(struct resize_axis *t, const struct preprocess *how, int in, int out, int begin,
                     int count)
{
    struct axis_task a = axis_task(how->resample, in, out);
    t->count = count;
    t->size = axis_most(&a);
    t->first = malloc((size_t)count * sizeof(int));
    t->length = malloc((size_t)count * sizeof(int));
    t->weights = calloc((size_t)count * (size_t)t->size, sizeof(int));
    double *w = malloc((size_t)t->size * sizeof *w);
    bool fine = t->first && t->length && t->weights && w;
    int bits = fine && how->as == RESIZE_AS_HF ? short_bits(&a, w) : RESIZE_BITS;
    for (int i = 0; i < count && fine; i++) {
        t->length[i] = axis_weights(&a, begin + i, w, &t->first[i]);
        for (int x = 0; x < t->length[i]; x++) {
            double v = w[x] * (1 << bits);
            t->weights[i * t->size + x] =
                (v < 0 ? (int)(v - 0.5) : (int)(v + 0.5)) * (1 << (RESIZE_BITS - bits));
        }
    }
    free(w);
    return fine ? 0 : EXIT_HOST_MEMORY;
}

/* ---- Order of the passes ---- */

/* Whether the vertical pass comes first: Pillow does so from version 13 on if an image shrinks far more in
 * height than in width. */
static bool vertical_first(const struct preprocess *how, const struct resize_task *r)
{
    return how->as != RESIZE_AS_HF && r->out_w != r->w && r->h > r->out_h &&
           r->h - r->out_h > 2 * (r->w - r->out_w);
}

/* Resizes the rows of the window in all columns, then its columns. */
static int resize_down_across(const struct image *image, const struct resize_task *r,
                              const struct resize_axis *across, const struct resize_axis *down, uint8_t *out)
{
    int row_bytes = image->width * 3;
    uint8_t *rows = malloc((size_t)r->side * (size_t)row_bytes);
    if (!rows) return EXIT_HOST_MEMORY;
    for (int i = 0; i < r->side; i++)
        resize_down(down, i, image->rgb + (size_t)r->y * (size_t)row_bytes, row_bytes, resize_vector(),
                    rows + (size_t)i * (size_t)row_bytes);
    resize_across(across, rows + 3 * r->x, row_bytes, r->side, out);
    free(rows);
    return 0;
}

/* Resizes the columns of the window in the required rows, then its rows. */
static int resize_across_down(const struct image *image, const struct resize_task *r,
                              const struct resize_axis *across, struct resize_axis *down, uint8_t *out)
{
    int row_bytes = r->side * 3, first = r->top, last = r->top + r->side;
    int64_t stride = (int64_t)image->width * 3;
    uint8_t *rows = out;
    if (down->count) {
        first = down->first[0];
        last = down->first[r->side - 1] + down->length[r->side - 1];
        for (int i = 0; i < r->side; i++) down->first[i] -= first;
        if (!(rows = malloc((size_t)(last - first) * (size_t)row_bytes))) return EXIT_HOST_MEMORY;
    }
    const uint8_t *in = image->rgb + ((size_t)(r->y + first) * (size_t)image->width + (size_t)r->x) * 3;
    if (across->count) resize_across(across, in, stride, last - first, rows);
    else
        for (int y = 0; y < last - first; y++)
            memcpy(rows + (size_t)y * (size_t)row_bytes, in + y * stride + 3 * r->left, (size_t)row_bytes);
    for (int i = 0; i < down->count; i++)
        resize_down(down, i, rows, row_bytes, resize_vector(), out + (size_t)i * (size_t)row_bytes);
    if (down->count) free(rows);
    return 0;
}

static int resize_bytes(const struct image *image, const struct preprocess *how, const struct resize_task *r,
                        uint8_t *out)
{
    struct resize_axis across = {0}, down = {0}; /* count 0: that side keeps its size */
    int code = 0;
    if (r->out_w != r->w) code = taps_make(&across, how, r->w, r->out_w, r->left, r->side);
    if (!code && across.count) resize_pack(&across, r->w);
    if (!code && r->out_h != r->h) code = taps_make(&down, how, r->h, r->out_h, r->top, r->side);
    if (!code)
        code = vertical_first(how, r) ? resize_down_across(image, r, &across, &down, out)
                                      : resize_across_down(image, r, &across, &down, out);
    taps_free(&across);
    taps_free(&down);
    return code;
}

/* Resizes to values from 0 to 1. */
static int resize_floats(const struct image *image, const struct preprocess *how, const struct resize_task *r,
                         float *out)
{
    struct axis_task across = axis_task(how->resample, r->w, r->out_w),
                     down = axis_task(how->resample, r->h, r->out_h);
    int first_row, last_row,
        most = axis_most(&across) > axis_most(&down) ? axis_most(&across) : axis_most(&down);
    size_t row = (size_t)r->side * 3;
    double *w = malloc((size_t)most * sizeof *w);
    if (!w) return EXIT_HOST_MEMORY;
    axis_weights(&down, r->top, w, &first_row);
    int length = axis_weights(&down, r->top + r->side - 1, w, &last_row);
    last_row += length;
    float *rows = calloc((size_t)(last_row - first_row) * row, sizeof *rows);
    for (int i = 0; i < r->side && rows; i++) {
        int first, n = axis_weights(&across, r->left + i, w, &first);
        for (int y = first_row; y < last_row; y++) {
            const uint8_t *p =
                image->rgb + ((size_t)(r->y + y) * (size_t)image->width + (size_t)(r->x + first)) * 3;
            float *to = rows + (size_t)(y - first_row) * row + 3 * (size_t)i;
            for (int k = 0; k < n; k++)
                for (int c = 0; c < 3; c++) to[c] += (float)w[k] * ((float)p[3 * k + c] * (1.0f / 255.0f));
        }
    }
    if (rows) memset(out, 0, (size_t)r->side * row * sizeof *out);
    for (int i = 0; i < r->side && rows; i++) {
        int first, n = axis_weights(&down, r->top + i, w, &first);
        for (int k = 0; k < n; k++)
            for (size_t x = 0; x < row; x++)
                out[(size_t)i * row + x] += (float)w[k] * rows[(size_t)(first + k - first_row) * row + x];
    }
    int code = rows ? 0 : EXIT_HOST_MEMORY;
    free(rows);
    free(w);
    return code;
}

/* Computes the input position of each output position by repeated addition, like PIL. */
static void nearest_positions(int *positions, int in, int out, int begin, int count)
{
    double step = (double)in / out, at = step * 0.5;
    for (int i = 0; i < begin + count; i++, at += step)
        if (i >= begin) positions[i - begin] = at < in ? (int)at : in - 1;
}

static int resize_nearest(const struct image *image, const struct resize_task *r, uint8_t *out)
{
    int *columns = malloc(2 * (size_t)r->side * sizeof *columns), *rows = columns + r->side;
    if (!columns) return EXIT_HOST_MEMORY;
    nearest_positions(columns, r->w, r->out_w, r->left, r->side);
    nearest_positions(rows, r->h, r->out_h, r->top, r->side);
    for (int i = 0; i < r->side; i++)
        for (int k = 0; k < r->side; k++, out += 3)
            memcpy(out,
                   image->rgb +
                       ((size_t)(r->y + rows[i]) * (size_t)image->width + (size_t)(r->x + columns[k])) * 3,
                   3);
    free(columns);
    return 0;
}

int image_resize(const struct image *image, const struct preprocess *how, const struct resize_task *r,
                 void *out, struct error *err)
{
    int code = how->as == RESIZE_AS_HF_FLOAT       ? resize_floats(image, how, r, out)
               : how->resample == RESAMPLE_NEAREST ? resize_nearest(image, r, out)
                                                   : resize_bytes(image, how, r, out);
    return code ? error_set(err, code, NULL, "out of memory resizing an image of %d x %d", image->width,
                            image->height)
                : 0;
}
