/* Properties of a model that are one of a list: each list once, as an enum and as the names of the YAML keys
 * and of the metadata in weights, indexed by the number, ending with NULL. core/config's schema has the enums
 * as its fields. Number 0, "auto": not known yet, or the family's usual. */
#ifndef MEOPT_MODEL_CHOICES_H
#define MEOPT_MODEL_CHOICES_H

#include "core/model/families.h"

// clang-format off
#define FAMILY_CHOICE(X, number, name, ...) X(FAMILY_##number, name)
#define CHOICES_FAMILY(X) X(FAMILY_UNKNOWN, "auto") ALL_FAMILIES(FAMILY_CHOICE, X)

/* Bicubic interpolation of the patches' positions, which differs between libraries. USUAL: of the family, and
 * of towers with registers. DINOV2: the hub without registers, source = (d + .5) grid / (side + .1) - .5,
 * A = -.75. HF: transformers' Dinov2Model, EVA, (d + .5) grid / side - .5, A = -.75. TIMM: timm, open_clip,
 * the hub with registers, the same with antialias, A = -.5. BILINEAR: PE's own class and C-RADIO, the same
 * source, linear without antialias; PE's rotary positions are then those of the image's own grid. */
#define CHOICES_POS_RESIZE(X) X(POS_RESIZE_USUAL, "auto") X(POS_RESIZE_DINOV2, "dinov2") \
    X(POS_RESIZE_HF, "hf") X(POS_RESIZE_TIMM, "timm") \
    X(POS_RESIZE_BILINEAR, "bilinear")

/* Order of a block's norms: pre-norm, x + f(norm(x)), the default, or post-norm, x + norm(f(x))
 * (EVA02-CLIP-E), or the norm of the sum, norm(x + f(x)) (BERT). */
#define CHOICES_NORMS(X) X(NORMS_USUAL, "auto") X(NORMS_BEFORE, "pre") X(POST_NORM, "post") X(SUM_NORM, "sum")

/* Pooling: the input of the embedding.
 *   USUAL      the class token; AVG of a tower without one
 *   CLS        the class token after the last norm
 *   AVG        the mean of the patches after the last norm
 *   AVG_FIRST  the last norm of the patches' mean (CLIPA, timm's fc_norm)
 *   AVG_ALL    the last norm of the mean of all tokens (EVA-CLIP's use_mean_pooling)
 *   AVG_RAW    the mean of the patches without the last norm (CLIPForImageClassification)
 *   CLS_DIST   the mean of the first two tokens after the last norm: class and distillation (DeiT)
 *   CLS_AVG    both CLS and AVG, 2 * width (linear heads of DINOv2) */
#define CHOICES_POOL(X) X(POOL_USUAL, "auto") X(POOL_CLS, "cls") X(POOL_AVG, "avg") \
    X(POOL_AVG_FIRST, "avg_first") X(POOL_AVG_ALL, "avg_all") X(POOL_AVG_RAW, "avg_raw") \
    X(POOL_CLS_DIST, "cls_dist") X(POOL_CLS_AVG, "cls+avg")

/* A learned scale of each channel of a branch's output (CaiT). */
#define CHOICES_LAYERSCALE(X) X(LAYERSCALE_USUAL, "auto") X(LAYERSCALE_WITHOUT, "without") \
    X(LAYERSCALE_WITH, "with")

/* L(tag of the enum, its list) */
#define MODEL_CHOICE_LISTS(L) L(family, CHOICES_FAMILY) L(pos_resize, CHOICES_POS_RESIZE) \
    L(norms, CHOICES_NORMS) L(pool, CHOICES_POOL) L(layerscale, CHOICES_LAYERSCALE)

#define CHOICE_NUMBER(number, spelling) number,
#define CHOICE_ENUM(tag, LIST) enum tag { LIST(CHOICE_NUMBER) }; extern const char *const tag##_names[];
#define CHOICE_SPELLING(number, spelling) [number] = spelling,
#define CHOICE_NAMES(tag, LIST) const char *const tag##_names[] = {LIST(CHOICE_SPELLING) NULL};
// clang-format on
MODEL_CHOICE_LISTS(CHOICE_ENUM)
#define FAMILY_ONE(c, ...) +1
enum { FAMILY_COUNT = 1 ALL_FAMILIES(FAMILY_ONE, ) };

#endif
