/* Mixup and cutmix of pairs of rows: see augment.h. */
#include "core/data/augment.h"
#include "kernels/philox.h"

#include <math.h>
#include <string.h>

/* Consecutive random numbers of a row. */
struct row_draw {
    uint32_t counter[4], key[2], out[4];
    int left; /* of out */
};

/* Returns a number uniform in (0, 1). */
static double draw(struct row_draw *r)
{
    if (!r->left) {
        philox4x32_10(r->counter, r->key, r->out);
        r->counter[3]++;
        r->left = 4;
    }
    return (r->out[--r->left] + 0.5) / 4294967296.0;
}

/* Returns a number of the Gamma distribution (Marsaglia, Tsang 2000). */
static double draw_gamma(struct row_draw *r, double alpha)
{
    double boost = alpha < 1 ? pow(draw(r), 1 / alpha) : 1;
    double d = (alpha < 1 ? alpha + 1 : alpha) - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double radius = sqrt(-2 * log(draw(r))), normal = radius * cos(2 * M_PI * draw(r));
        double v = 1 + c * normal;
        v = v * v * v;
        double u = draw(r);
        if (v > 0 && log(u) < 0.5 * normal * normal + d - d * v + d * log(v)) return boost * d * v;
    }
}

struct mix mix_draw(double mixup, double cutmix, uint64_t seed, int64_t step, int64_t row)
{
    struct mix mix = {.share = 1};
    struct row_draw r = {.counter = {(uint32_t)step, (uint32_t)((uint64_t)step >> 32), (uint32_t)row},
                         .key = {(uint32_t)seed, (uint32_t)(seed >> 32) ^ 0x6d697875u}};
    if (mixup <= 0 && cutmix <= 0) return mix;
    double choice = draw(&r);
    mix.cut = mixup <= 0 || (cutmix > 0 && choice < 0.5);
    mix.centre_x = draw(&r);
    mix.centre_y = draw(&r);
    double alpha = mix.cut ? cutmix : mixup;
    double a = draw_gamma(&r, alpha), b = draw_gamma(&r, alpha);
    mix.share = a + b > 0 ? a / (a + b) : 1; /* both may underflow if alpha is tiny */
    return mix;
}

int64_t mix_partner(int64_t row, int64_t rows)
{
    int64_t partner = row ^ 1;
    return partner < rows ? partner : row;
}

struct pixel_box mix_box(const struct mix *mix, int side, float *share)
{
    int half = (int)(0.5 * sqrt(1 - mix->share) * side), x = (int)(mix->centre_x * side),
        y = (int)(mix->centre_y * side);
    struct pixel_box box = {x - half < 0 ? 0 : x - half, y - half < 0 ? 0 : y - half,
                            x + half > side ? side : x + half, y + half > side ? side : y + half};
    double area = (double)(box.right - box.left) * (box.bottom - box.top);
    *share = (float)(1 - area / ((double)side * side));
    return box;
}

void mix_images(float *image, const float *partner, int side, const struct mix *mix)
{
    size_t line = (size_t)side, values = 3 * line * line;
    float share;
    if (!mix->cut) {
        float own = (float)mix->share, other = (float)(1 - mix->share);
        for (size_t i = 0; i < values; i++) {
            float part = partner[i] * other;
            image[i] = part + image[i] * own;
        }
        return;
    }
    struct pixel_box box = mix_box(mix, side, &share);
    for (size_t c = 0; c < 3; c++)
        for (size_t y = (size_t)box.top; y < (size_t)box.bottom; y++) {
            size_t at = (c * line + y) * line + (size_t)box.left;
            memcpy(image + at, partner + at, (size_t)(box.right - box.left) * sizeof *image);
        }
}
