/* PIL's bicubic resize, bit for bit: separable, horizontal then vertical, kernel A = -0.5 widened when
 * shrinking, weights in 22-bit fixed point, rounded and clipped to bytes between the passes; and the crops
 * around it (models.md 3). */
#include "core/data/data.h"
#include "kernels/cpu/resize.h"
#include "kernels/philox.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static double cubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static void taps_free(struct resize_axis *t)
{
    free(t->first);
    free(t->length);
    free(t->weights);
    free(t->start);
    free(t->packed);
}

/* Output positions begin .. begin + count of a resize from `in` to `out`. */
static int taps_make(struct resize_axis *t, int in, int out, int begin, int count)
{
    double scale = (double)in / out, stretch = scale < 1 ? 1 : scale, support = 2 * stretch;
    t->count = count;
    t->size = (int)ceil(support) * 2 + 1;
    t->first = malloc((size_t)count * sizeof(int));
    t->length = malloc((size_t)count * sizeof(int));
    t->weights = calloc((size_t)count * (size_t)t->size, sizeof(int));
    double *w = malloc((size_t)t->size * sizeof *w);
    bool fine = t->first && t->length && t->weights && w;
    for (int i = 0; i < count && fine; i++) {
        double centre = (begin + i + 0.5) * scale, sum = 0;
        int low = (int)(centre - support + 0.5), high = (int)(centre + support + 0.5);
        if (low < 0) low = 0;
        if (high > in) high = in;
        for (int x = low; x < high; x++) sum += w[x - low] = cubic((x - centre + 0.5) / stretch);
        for (int x = 0; x < high - low; x++) {
            double v = (sum != 0 ? w[x] / sum : w[x]) * (1 << RESIZE_BITS);
            t->weights[i * t->size + x] = v < 0 ? (int)(v - 0.5) : (int)(v + 0.5);
        }
        t->first[i] = low;
        t->length[i] = high - low;
    }
    free(w);
    return fine ? 0 : EXIT_HOST_MEMORY;
}

int image_resize(const struct image *image, int x, int y, int w, int h, int out_w, int out_h, int left,
                 int top, int side, uint8_t *out, struct error *err)
{
    struct resize_axis across = {0}, down = {0};
    int row_bytes = side * 3, code = 0;
    uint8_t *rows = NULL;
    bool wide = out_w != w, tall = out_h != h, vector = resize_vector();
    if (wide) code = taps_make(&across, w, out_w, left, side);
    if (!code && wide) resize_pack(&across, w);
    if (!code && tall) code = taps_make(&down, h, out_h, top, side);
    /* only the rows that the window needs */
    int first = tall ? 0 : top, last = tall ? 0 : top + side;
    if (!code && tall) {
        first = down.first[0];
        last = down.first[side - 1] + down.length[side - 1];
        for (int i = 0; i < side; i++) down.first[i] -= first;
    }
    if (!code && tall && !(rows = malloc((size_t)(last - first) * (size_t)row_bytes)))
        code = EXIT_HOST_MEMORY;
    if (!code) {
        const uint8_t *in = image->rgb + ((size_t)(y + first) * (size_t)image->width + (size_t)x) * 3;
        uint8_t *to = tall ? rows : out;
        int64_t stride = (int64_t)image->width * 3;
        if (wide) resize_across(&across, in, stride, last - first, to);
        else
            for (int r = 0; r < last - first; r++)
                memcpy(to + (size_t)r * (size_t)row_bytes, in + r * stride + 3 * left, (size_t)row_bytes);
        for (int i = 0; i < side && tall; i++)
            resize_down(&down, i, rows, row_bytes, vector, out + (size_t)i * (size_t)row_bytes);
    }
    free(rows);
    taps_free(&across);
    taps_free(&down);
    return code ? error_set(err, code, NULL, "out of memory resizing an image of %d x %d", image->width,
                            image->height)
                : 0;
}

/* Python's round() of x / 2: half to even */
static int half_even(int x)
{
    int half = x / 2;
    return x % 2 == 0 ? half : half % 2 == 0 ? half : half + 1;
}

int image_prepare(const struct image *image, enum pipeline pipeline, int side, uint8_t *out,
                  struct error *err)
{
    int w = image->width, h = image->height,
        small = pipeline == PIPELINE_DINOV2 ? (side * 256 + 112) / 224 : side;
    int out_w = w <= h ? small : (int)((int64_t)small * w / h),
        out_h = w <= h ? (int)((int64_t)small * h / w) : small;
    return image_resize(image, 0, 0, w, h, out_w, out_h, half_even(out_w - side), half_even(out_h - side),
                        side, out, err);
}

/* Uniform in [0, 1) number `which` of an image's draw. */
static double uniform(uint64_t seed, uint64_t epoch, uint64_t index, uint32_t which)
{
    uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)epoch, which >> 2}, out[4];
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32) ^ 0x696d6167u};
    philox4x32_10(counter, key, out);
    return out[which & 3] / 4294967296.0;
}

int image_prepare_random(const struct image *image, int side, double scale_min, double scale_max, bool flip,
                         uint64_t seed, uint64_t epoch, uint64_t index, uint8_t *out, struct error *err)
{
    int W = image->width, H = image->height, x = 0, y = 0, w = 0, h = 0;
    const double low = log(3.0 / 4.0), high = log(4.0 / 3.0);
    uint32_t draw = 0;
    for (int try = 0; try < 10 && w == 0; try++, draw += 4) {
        double area =
            (double)W * H * (scale_min + (scale_max - scale_min) * uniform(seed, epoch, index, draw));
        double ratio = exp(low + (high - low) * uniform(seed, epoch, index, draw + 1));
        int cw = (int)nearbyint(sqrt(area * ratio)), ch = (int)nearbyint(sqrt(area / ratio));
        if (cw < 1 || ch < 1 || cw > W || ch > H) continue;
        w = cw;
        h = ch;
        y = (int)(uniform(seed, epoch, index, draw + 2) * (H - h + 1));
        x = (int)(uniform(seed, epoch, index, draw + 3) * (W - w + 1));
    }
    if (w == 0) { /* the centre, as near to the wanted shapes as the image allows */
        double ratio = (double)W / H;
        w = ratio > 4.0 / 3.0 ? (int)nearbyint(H * 4.0 / 3.0) : W;
        h = ratio < 3.0 / 4.0 ? (int)nearbyint(W * 4.0 / 3.0) : H;
        x = (W - w) / 2;
        y = (H - h) / 2;
    }
    int code = image_resize(image, x, y, w, h, side, side, 0, 0, side, out, err);
    if (code || !flip || uniform(seed, epoch, index, 64) >= 0.5) return code;
    for (int r = 0; r < side; r++)
        for (int a = 0, b = side - 1; a < b; a++, b--)
            for (int c = 0; c < 3; c++) {
                uint8_t *p = out + (size_t)r * (size_t)side * 3, kept = p[3 * a + c];
                p[3 * a + c] = p[3 * b + c];
                p[3 * b + c] = kept;
            }
    return 0;
}

static float normalized[2][3][256]; /* by pipeline, channel, value */
static void make_normalized(void)
{
    static const float mean[2][3] = {{.48145466f, .4578275f, .40821073f}, {.485f, .456f, .406f}};
    static const float deviation[2][3] = {{.26862954f, .26130258f, .27577711f}, {.229f, .224f, .225f}};
    for (int p = 0; p < 2; p++)
        for (int c = 0; c < 3; c++)
            for (int v = 0; v < 256; v++)
                normalized[p][c][v] = ((float)v / 255.0f - mean[p][c]) / deviation[p][c];
}

void image_normalize(const uint8_t *rgb, enum pipeline pipeline, int side, float *out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int64_t pixels = (int64_t)side * side;
    pthread_once(&once, make_normalized);
    const float(*table)[256] = normalized[pipeline];
    for (int64_t i = 0; i < pixels; i++)
        for (int c = 0; c < 3; c++) out[c * pixels + i] = table[c][rgb[i * 3 + c]];
}

/* A balanced Feistel network over the next even number of bits,
 * walked until it lands inside (Black, Rogaway 2002). */
int64_t data_shuffle(uint64_t seed, uint64_t epoch, int64_t position, int64_t count)
{
    int half = 1;
    while (((int64_t)1 << (2 * half)) < count) half++;
    uint64_t mask = ((uint64_t)1 << half) - 1, x = (uint64_t)position;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint32_t round = 0; round < 6; round++) {
            uint32_t counter[4] = {(uint32_t)right, (uint32_t)(right >> 32), (uint32_t)epoch, round}, out[4];
            uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32) ^ 0x6f726465u};
            philox4x32_10(counter, key, out);
            uint64_t next = left ^ (out[0] & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= (uint64_t)count);
    return (int64_t)x;
}
