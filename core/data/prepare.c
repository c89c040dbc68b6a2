/* Turns a decoded image into the input of a tower: resize, crop, normalise, like torchvision's transforms.
 * The values below are those of CLIP (openai/CLIP, clip.py) and DINOv2 (dinov2/data/transforms.py). */
#include "core/base/crc32c.h"
#include "core/data/augment.h"
#include "core/data/data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const struct preprocess preprocess_clip = {
    .crop_pct = 1, .mean = {.48145466f, .4578275f, .40821073f}, .std = {.26862954f, .26130258f, .27577711f}};
const struct preprocess preprocess_dinov2 = {
    .crop_pct = 0.875, .mean = {.485f, .456f, .406f}, .std = {.229f, .224f, .225f}};

const struct preprocess preprocess_siglip = {
    .resize = RESIZE_SQUASH, .crop_pct = 1, .mean = {.5f, .5f, .5f}, .std = {.5f, .5f, .5f}};

bool preprocess_same(const struct preprocess *a, const struct preprocess *b)
{
    bool same = a->resample == b->resample && a->resize == b->resize && a->as == b->as;
    if (a->resize != RESIZE_EXACT) same = same && a->crop_pct == b->crop_pct;
    for (int c = 0; c < 3; c++) same = same && a->mean[c] == b->mean[c] && a->std[c] == b->std[c];
    return same;
}

uint32_t preprocess_hash(const struct preprocess *how, int64_t side)
{
    if (preprocess_same(how, &preprocess_clip)) return 0;
    if (preprocess_same(how, &preprocess_dinov2) && preprocess_resized(how, side) * 7 == side * 8) return 1;
    int kinds[] = {(int)how->resample, (int)how->resize, (int)how->as, preprocess_resized(how, side)};
    uint32_t crc = crc32c(0, kinds, sizeof kinds);
    return crc32c(crc32c(crc, how->mean, sizeof how->mean), how->std, sizeof how->std);
}

size_t preprocess_bytes(const struct preprocess *how, int64_t side)
{
    return (size_t)(3 * side * side) * (how->as == RESIZE_AS_HF_FLOAT ? sizeof(float) : 1);
}

int preprocess_resized(const struct preprocess *how, int64_t side)
{
    return (int)floor((double)side / how->crop_pct);
}

/* Returns the offset of the crop: torchvision's int(round(x / 2)), half to even; transformers rounds down. */
static int crop_begin(const struct preprocess *how, int margin)
{
    int half = margin / 2;
    return how->as == RESIZE_AS_PIL && margin % 2 && half % 2 ? half + 1 : half;
}

int image_prepare(const struct image *image, const struct preprocess *how, int side, void *out,
                  struct error *err)
{
    int w = image->width, h = image->height, small = preprocess_resized(how, side);
    struct resize_task r = {.w = w, .h = h, .out_w = small, .out_h = small, .side = side};
    if (how->resize == RESIZE_EXACT) {
        r.out_w = w;
        r.out_h = h;
        if (w < side || h < side)
            return error_set(err, EXIT_FAILED, NULL,
                             "is %d x %d pixels, and data.resize exact expects at least %d x %d", w, h, side,
                             side);
    } else if (how->resize == RESIZE_SHORTEST) {
        if (w > h) r.out_w = (int)((int64_t)small * w / h);
        else r.out_h = (int)((int64_t)small * h / w);
    }
    r.left = crop_begin(how, r.out_w - side);
    r.top = crop_begin(how, r.out_h - side);
    return image_resize(image, how, &r, out, err);
}

static void mirror(uint8_t *pixels, int side, size_t bytes)
{
    uint8_t kept[3 * sizeof(float)];
    for (int r = 0; r < side; r++, pixels += (size_t)side * bytes)
        for (int a = 0, b = side - 1; a < b; a++, b--) {
            memcpy(kept, pixels + (size_t)a * bytes, bytes);
            memcpy(pixels + (size_t)a * bytes, pixels + (size_t)b * bytes, bytes);
            memcpy(pixels + (size_t)b * bytes, kept, bytes);
        }
}

int image_prepare_random(const struct image *image, const struct preprocess *how, int side, double scale_min,
                         double scale_max, bool flip, const struct image_draw *draw, void *out,
                         struct error *err)
{
    int W = image->width, H = image->height, x = 0, y = 0, w = 0, h = 0;
    const double low = log(3.0 / 4.0), high = log(4.0 / 3.0);
    uint32_t at = 0;
    for (int try = 0; try < 10 && w == 0; try++, at += 4) {
        double area = (double)W * H * (scale_min + (scale_max - scale_min) * image_uniform(draw, at));
        double ratio = exp(low + (high - low) * image_uniform(draw, at + 1));
        int cw = (int)nearbyint(sqrt(area * ratio)), ch = (int)nearbyint(sqrt(area / ratio));
        if (cw < 1 || ch < 1 || cw > W || ch > H) continue;
        w = cw;
        h = ch;
        y = (int)(image_uniform(draw, at + 2) * (H - h + 1));
        x = (int)(image_uniform(draw, at + 3) * (W - w + 1));
    }
    if (w == 0) { /* the centre, as close to the requested aspect ratios as the image allows */
        double ratio = (double)W / H;
        w = ratio > 4.0 / 3.0 ? (int)nearbyint(H * 4.0 / 3.0) : W;
        h = ratio < 3.0 / 4.0 ? (int)nearbyint(W * 4.0 / 3.0) : H;
        x = (W - w) / 2;
        y = (H - h) / 2;
    }
    struct resize_task r = {.x = x, .y = y, .w = w, .h = h, .out_w = side, .out_h = side, .side = side};
    int code = image_resize(image, how, &r, out, err);
    if (!code && flip && image_uniform(draw, 64) < 0.5) mirror(out, side, preprocess_bytes(how, 1));
    return code;
}

void image_normalize(const void *pixels, const struct preprocess *how, int side, float *out)
{
    int64_t count = (int64_t)side * side;
    const uint8_t *bytes = pixels;
    const float *values = pixels;
    float table[3][256];
    for (int c = 0; c < 3; c++)
        for (int v = 0; v < 256; v++) table[c][v] = ((float)v / 255.0f - how->mean[c]) / how->std[c];
    if (how->as == RESIZE_AS_HF_FLOAT)
        for (int64_t i = 0; i < count; i++)
            for (int c = 0; c < 3; c++) out[c * count + i] = (values[i * 3 + c] - how->mean[c]) / how->std[c];
    else
        for (int64_t i = 0; i < count; i++)
            for (int c = 0; c < 3; c++) out[c * count + i] = table[c][bytes[i * 3 + c]];
}
