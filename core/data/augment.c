/* RandAugment and random erasing: see augment.h. The operations are those of PIL (ImageOps,
 * ImageEnhance, Image.transform), the magnitudes those of torchvision, all to the byte. */
#include "core/data/augment.h"
#include "core/data/data.h"
#include "kernels/philox.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double image_uniform(const struct image_draw *draw, uint32_t which)
{
    uint32_t counter[4] = {(uint32_t)draw->index, (uint32_t)(draw->index >> 32), (uint32_t)draw->epoch,
                           which >> 2 | draw->crop << 16},
             out[4];
    uint32_t key[2] = {(uint32_t)draw->seed, (uint32_t)(draw->seed >> 32) ^ 0x696d6167u};
    philox4x32_10(counter, key, out);
    return out[which & 3] / 4294967296.0;
}

/* ---- Affine maps ---- */

static int64_t fixed(double v) { return (int64_t)floor(v * 65536.0 + 0.5); }

/* Takes each pixel from m = (a, b, c, d, e, f): x' = a x + b y + c, y' = d x + e y + f, in 16.16 fixed point
 * like PIL's affine_fixed. */
static void transform_fixed(const uint8_t *in, uint8_t *out, int side, const double m[6])
{
    int64_t x0 = fixed(m[2] + m[0] * 0.5 + m[1] * 0.5), y0 = fixed(m[5] + m[3] * 0.5 + m[4] * 0.5);
    const int64_t a = fixed(m[0]), b = fixed(m[1]), d = fixed(m[3]), e = fixed(m[4]);
    for (int row = 0; row < side; row++, x0 += b, y0 += e) {
        int64_t x = x0, y = y0;
        for (int column = 0; column < side; column++, x += a, y += d, out += 3) {
            int64_t from_x = x >> 16, from_y = y >> 16;
            if (from_x >= 0 && from_x < side && from_y >= 0 && from_y < side)
                memcpy(out, in + 3 * (from_y * side + from_x), 3);
        }
    }
}

/* The same without rotation or shear, in floating point like PIL's ImagingScaleAffine. */
static void transform_scale(const uint8_t *in, uint8_t *out, int side, const double m[6])
{
    double y = m[5] + m[4] * 0.5;
    for (int row = 0; row < side; row++, y += m[4]) {
        double x = m[2] + m[0] * 0.5;
        for (int column = 0; column < side; column++, x += m[0], out += 3)
            if (x >= 0 && x < side && y >= 0 && y < side) memcpy(out, in + 3 * ((int)y * side + (int)x), 3);
    }
}

/* Returns the number rounded to 15 digits after the point, like Python. */
static double rounded(double v)
{
    char text[40];
    snprintf(text, sizeof text, "%.15f", v);
    return strtod(text, NULL);
}

/* Computes torchvision's _get_inverse_affine_matrix for a shear in radians and a translation. */
static void affine_matrix(double m[6], double centre, double shear_x, double shear_y, double move_x,
                          double move_y)
{
    double a = cos(-shear_y) / cos(shear_y), b = -cos(-shear_y) * tan(shear_x) / cos(shear_y),
           c = sin(-shear_y) / cos(shear_y), d = -sin(-shear_y) * tan(shear_x) / cos(shear_y) + 1;
    m[0] = d;
    m[1] = -b;
    m[2] = m[0] * (-centre - move_x) + m[1] * (-centre - move_y) + centre;
    m[3] = -c;
    m[4] = a;
    m[5] = m[3] * (-centre - move_x) + m[4] * (-centre - move_y) + centre;
}

/* Computes PIL's Image.rotate about the centre, degrees counter-clockwise. */
static void rotation_matrix(double m[6], double centre, double degrees)
{
    double whole = fmod(degrees, 360);
    if (whole < 0) whole += 360;
    double angle = -(whole * (M_PI / 180));
    m[0] = m[4] = rounded(cos(angle));
    m[1] = rounded(sin(angle));
    m[3] = rounded(-sin(angle));
    m[2] = m[0] * -centre + m[1] * -centre + centre;
    m[5] = m[3] * -centre + m[4] * -centre + centre;
}

static int move_pixels(uint8_t *rgb, int side, enum augment_op op, double magnitude)
{
    double m[6], radians = atan(magnitude) * (180 / M_PI) * (M_PI / 180); /* through degrees */
    size_t bytes = 3 * (size_t)side * (size_t)side;
    switch (op) {
    case AUGMENT_SHEAR_X: affine_matrix(m, 0, radians, 0, 0, 0); break;
    case AUGMENT_SHEAR_Y: affine_matrix(m, 0, 0, radians, 0, 0); break;
    case AUGMENT_TRANSLATE_X: affine_matrix(m, side * 0.5, 0, 0, (int)magnitude, 0); break;
    case AUGMENT_TRANSLATE_Y: affine_matrix(m, side * 0.5, 0, 0, 0, (int)magnitude); break;
    default:
        if (magnitude == 0) return 0;
        rotation_matrix(m, side / 2.0, magnitude);
    }
    uint8_t *in = malloc(bytes);
    if (!in) return EXIT_HOST_MEMORY;
    memcpy(in, rgb, bytes);
    memset(rgb, 0, bytes);
    if (m[1] == 0 && m[3] == 0) transform_scale(in, rgb, side, m);
    else transform_fixed(in, rgb, side, m);
    free(in);
    return 0;
}

/* ---- Enhancement ---- */

/* Blends a into b: a + alpha (b - a), like PIL's ImagingBlend. */
static uint8_t blend(int a, int b, float alpha)
{
    float value = (float)a + alpha * (float)(b - a);
    return value <= 0 ? 0 : value >= 255 ? 255 : (uint8_t)value;
}

static int luma(const uint8_t *p) { return (p[0] * 19595 + p[1] * 38470 + p[2] * 7471 + 0x8000) >> 16; }

/* Smooths by (1 1 1, 1 5 1, 1 1 1) / 13; the border stays. */
static void smooth(const uint8_t *in, uint8_t *out, int side)
{
    const float one = 1.0f / 13, five = 5.0f / 13;
    int line = 3 * side;
    memcpy(out, in, (size_t)line * (size_t)side);
    for (int y = 1; y < side - 1; y++)
        for (int x = 3; x < line - 3; x++) {
            const uint8_t *above = in + (y - 1) * line + x, *here = above + line, *below = here + line;
            float sum = 0.5f;
            sum += (float)below[-3] * one + (float)below[0] * one + (float)below[3] * one;
            sum += (float)here[-3] * one + (float)here[0] * five + (float)here[3] * one;
            sum += (float)above[-3] * one + (float)above[0] * one + (float)above[3] * one;
            out[y * line + x] = sum >= 255 ? 255 : (uint8_t)sum;
        }
}

static int enhance(uint8_t *rgb, int side, enum augment_op op, float factor)
{
    size_t pixels = (size_t)side * (size_t)side;
    int64_t sum = 0;
    for (size_t i = 0; i < pixels && op == AUGMENT_CONTRAST; i++) sum += luma(rgb + 3 * i);
    int mean = (int)((double)sum / (double)pixels + 0.5);
    uint8_t *smoothed = op == AUGMENT_SHARPNESS ? malloc(3 * pixels) : NULL;
    if (op == AUGMENT_SHARPNESS) {
        if (!smoothed) return EXIT_HOST_MEMORY;
        smooth(rgb, smoothed, side);
    }
    for (size_t i = 0; i < pixels; i++) {
        int grey = op == AUGMENT_COLOR ? luma(rgb + 3 * i) : op == AUGMENT_CONTRAST ? mean : 0;
        for (size_t k = 3 * i; k < 3 * i + 3; k++)
            rgb[k] = blend(smoothed ? smoothed[k] : grey, rgb[k], factor);
    }
    free(smoothed);
    return 0;
}

/* ---- Tables ---- */

static void autocontrast_table(const int64_t histogram[256], uint8_t table[256])
{
    int low = 0, high = 255;
    while (low < 255 && !histogram[low]) low++;
    while (high > 0 && !histogram[high]) high--;
    double scale = high > low ? 255.0 / (high - low) : 1, offset = high > low ? -low * scale : 0;
    for (int i = 0; i < 256; i++) {
        int value = (int)(i * scale + offset);
        table[i] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
    }
}

static void equalize_table(const int64_t histogram[256], uint8_t table[256])
{
    int64_t sum = 0, last = 0, kinds = 0;
    for (int i = 0; i < 256; i++) {
        sum += histogram[i];
        kinds += histogram[i] > 0;
        if (histogram[i]) last = histogram[i];
    }
    int64_t step = (sum - last) / 255, n = step / 2;
    for (int i = 0; i < 256; i++) {
        int64_t value = kinds <= 1 || !step ? i : n / step;
        table[i] = (uint8_t)(value > 255 ? 255 : value);
        n += histogram[i];
    }
}

/* Replaces each value through a table per channel, made from its histogram or from the magnitude. */
static void replace_values(uint8_t *rgb, int side, enum augment_op op, double magnitude)
{
    size_t count = 3 * (size_t)side * (size_t)side;
    for (size_t c = 0; c < 3; c++) {
        int64_t histogram[256] = {0};
        uint8_t table[256];
        for (size_t i = c; i < count; i += 3) histogram[rgb[i]]++;
        if (op == AUGMENT_AUTO_CONTRAST) autocontrast_table(histogram, table);
        else if (op == AUGMENT_EQUALIZE) equalize_table(histogram, table);
        else
            for (int v = 0; v < 256; v++)
                table[v] = (uint8_t)(op == AUGMENT_POSTERIZE ? v & ~((1 << (8 - (int)magnitude)) - 1)
                                     : v < magnitude         ? v
                                                             : 255 - v);
        for (size_t i = c; i < count; i += 3) rgb[i] = table[rgb[i]];
    }
}

/* ---- RandAugment ---- */

/* Returns torch.linspace(0, last, AUGMENT_BINS)[i], whose second half is fused multiply-adds. */
static double linear(double last, int i)
{
    float step = (float)last / (AUGMENT_BINS - 1);
    if (i < AUGMENT_BINS / 2) return step * (float)i;
    return fmaf(-step, (float)(AUGMENT_BINS - 1 - i), (float)last);
}

static const struct {
    bool is_signed;
    double last; /* of its magnitudes, from 0 */
} spaces[AUGMENT_OPS] = {
    [AUGMENT_SHEAR_X] = {true, 0.3},   [AUGMENT_SHEAR_Y] = {true, 0.3},  [AUGMENT_TRANSLATE_X] = {true, 0},
    [AUGMENT_TRANSLATE_Y] = {true, 0}, [AUGMENT_ROTATE] = {true, 30},    [AUGMENT_BRIGHTNESS] = {true, 0.9},
    [AUGMENT_COLOR] = {true, 0.9},     [AUGMENT_CONTRAST] = {true, 0.9}, [AUGMENT_SHARPNESS] = {true, 0.9},
};

static double magnitude_of(enum augment_op op, int side, int i)
{
    switch (op) {
    case AUGMENT_TRANSLATE_X:
    case AUGMENT_TRANSLATE_Y: return linear(150.0 / 331.0 * side, i);
    case AUGMENT_POSTERIZE: return 8 - nearbyint(i / ((AUGMENT_BINS - 1) / 4.0));
    case AUGMENT_SOLARIZE: return 255 - 8.5 * i;
    default: return linear(spaces[op].last, i);
    }
}

int image_augment(uint8_t *rgb, int side, enum augment_op op, int magnitude, bool negative, struct error *err)
{
    double value = magnitude_of(op, side, magnitude);
    int code = 0;
    if (negative && spaces[op].is_signed) value = -value;
    if (op >= AUGMENT_SHEAR_X && op <= AUGMENT_ROTATE) code = move_pixels(rgb, side, op, value);
    else if (op >= AUGMENT_BRIGHTNESS && op <= AUGMENT_SHARPNESS)
        code = enhance(rgb, side, op, (float)(1 + value));
    else if (op >= AUGMENT_POSTERIZE) replace_values(rgb, side, op, value);
    return code ? error_set(err, code, NULL, "out of memory augmenting an image of %d x %d", side, side) : 0;
}

/* Numbers of an image's draws; those of the crop and of the flip come before. */
enum { DRAW_OPS = 80, DRAW_ERASE = 96, DRAW_BOX = 100, BOX_TRIES = 10 };

int image_randaugment(uint8_t *rgb, int side, int magnitude, const struct image_draw *draw, struct error *err)
{
    int code = 0;
    for (uint32_t i = 0; i < 2 && !code; i++) {
        enum augment_op op = (enum augment_op)(image_uniform(draw, DRAW_OPS + 2 * i) * AUGMENT_OPS);
        code = image_augment(rgb, side, op, magnitude, image_uniform(draw, DRAW_OPS + 2 * i + 1) < 0.5, err);
    }
    return code;
}

/* ---- Random erasing ---- */

struct pixel_box image_erasing(int side, double probability, const struct image_draw *draw)
{
    const double low = log(0.3), high = log(3.3);
    struct pixel_box none = {0};
    if (image_uniform(draw, DRAW_ERASE) >= probability) return none;
    for (uint32_t try = 0, at = DRAW_BOX; try < BOX_TRIES; try++, at += 4) {
        double area = (double)side * side * (0.02 + (0.33 - 0.02) * image_uniform(draw, at));
        double ratio = exp(low + (high - low) * image_uniform(draw, at + 1));
        int h = (int)nearbyint(sqrt(area * ratio)), w = (int)nearbyint(sqrt(area / ratio));
        if (h >= side || w >= side) continue;
        int top = (int)(image_uniform(draw, at + 2) * (side - h + 1)),
            left = (int)(image_uniform(draw, at + 3) * (side - w + 1));
        return (struct pixel_box){left, top, left + w, top + h};
    }
    return none;
}

void image_erase(float *image, int side, struct pixel_box box)
{
    for (int c = 0; c < 3; c++)
        for (int y = box.top; y < box.bottom; y++)
            memset(image + ((size_t)c * (size_t)side + (size_t)y) * (size_t)side + box.left, 0,
                   (size_t)(box.right - box.left) * sizeof *image);
}

int augment_check(const struct data_options *o, struct error *err)
{
    bool floats = o->preprocess.as == RESIZE_AS_HF_FLOAT;
    for (int i = 0; i < o->more_views; i++) floats |= o->more[i].preprocess.as == RESIZE_AS_HF_FLOAT;
    if (!o->augment || !o->randaugment || !floats) return 0;
    return error_set(err, EXIT_CONFIG, "set data.resize_as: pil",
                     "data.randaugment requires pixels of bytes, but data.resize_as is hf_float");
}
