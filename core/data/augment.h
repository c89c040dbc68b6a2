/* Augmentations of training images, on prepared pixels: RandAugment and random erasing of torchvision, mixup
 * and cutmix. Random numbers are counter-based. What happens to an image depends on seed, epoch, its
 * index and the number of the crop; how a row is mixed depends on seed, step and its position in the global
 * batch.
 */
#ifndef MEOPT_DATA_AUGMENT_H
#define MEOPT_DATA_AUGMENT_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* An image of a data set in an epoch, and which of its crops. */
struct image_draw {
    uint64_t seed, epoch, index;
    uint32_t crop;
};
/* Returns number `which` of an image's draw, uniform in [0, 1). */
double image_uniform(const struct image_draw *draw, uint32_t which);

/* ---- RandAugment: torchvision.transforms.RandAugment of PIL images with its defaults ---- */

/* In torchvision's order. */
enum augment_op {
    AUGMENT_IDENTITY,
    AUGMENT_SHEAR_X,
    AUGMENT_SHEAR_Y,
    AUGMENT_TRANSLATE_X,
    AUGMENT_TRANSLATE_Y,
    AUGMENT_ROTATE,
    AUGMENT_BRIGHTNESS,
    AUGMENT_COLOR,
    AUGMENT_CONTRAST,
    AUGMENT_SHARPNESS,
    AUGMENT_POSTERIZE,
    AUGMENT_SOLARIZE,
    AUGMENT_AUTO_CONTRAST,
    AUGMENT_EQUALIZE,
    AUGMENT_OPS
};
enum { AUGMENT_BINS = 31 }; /* magnitudes 0 to 30 */
/* Applies one operation to (side, side, 3) bytes; negative: the other direction, where there is one. */
int image_augment(uint8_t *rgb, int side, enum augment_op op, int magnitude, bool negative,
                  struct error *err);
/* Applies two operations drawn at random. */
int image_randaugment(uint8_t *rgb, int side, int magnitude, const struct image_draw *draw,
                      struct error *err);

/* ---- Random erasing: torchvision.transforms.RandomErasing with its defaults, value 0 ---- */

struct pixel_box {
    int left, top, right, bottom;
};
/* Draws the box; empty: nothing is erased. */
struct pixel_box image_erasing(int side, double probability, const struct image_draw *draw);
/* Sets the box of (3, side, side) normalised values to 0. */
void image_erase(float *image, int side, struct pixel_box box);

/* ---- Mixup and cutmix ---- */

/* How a row of the global batch is mixed with its partner. */
struct mix {
    double share;              /* of the row itself, before a box is clipped; 1: not mixed */
    bool cut;                  /* cutmix: a box of the partner */
    double centre_x, centre_y; /* of the box, from 0 to 1 */
};
/* alpha of the Beta distribution of each; 0: off. With both, each is drawn for half of the rows. */
struct mix mix_draw(double mixup, double cutmix, uint64_t seed, int64_t step, int64_t row);
/* Returns the partner of a row: its neighbour, with which it forms a pair. The last row of an odd batch is
 * its own. */
int64_t mix_partner(int64_t row, int64_t rows);
/* Returns the box of a cutmix, and its share of the row itself, like torchvision.transforms.v2.CutMix. */
struct pixel_box mix_box(const struct mix *mix, int side, float *share);
/* Mixes the partner into (3, side, side) values. */
void mix_images(float *image, const float *partner, int side, const struct mix *mix);

struct data_options;
/* Refuses RandAugment of pixels that are not bytes. */
int augment_check(const struct data_options *options, struct error *err);

#endif
