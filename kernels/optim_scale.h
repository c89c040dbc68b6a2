/* The clipping scale, LAMB's trust ratio, the norm of muon's matrices and Adafactor's rate, bit-identical on
 * host and card. SCALE_FN: qualifiers of a function. SCALE_MUL: a product of doubles that is not fused with
 * the following sum. */
#ifndef MEOPT_KERNELS_OPTIM_SCALE_H
#define MEOPT_KERNELS_OPTIM_SCALE_H

#ifndef SCALE_FN
#include <math.h>
#define SCALE_FN        static inline
#define SCALE_MUL(a, b) ((a) * (b))
#endif

#include "kernels/optim_task.h"

/* Returns the scale of gradients of norm `norm`: a norm above `divide` is divided to it (LAMB), then a norm
 * above `clip` is clipped like torch's clip_grad_norm_; 0 skips either. */
SCALE_FN double scale_clipped(double norm, double divide, double clip)
{
    double scale = 1;
    if (divide > 0 && norm > divide) scale = divide / norm;
    if (clip > 0) {
        double factor = clip / (SCALE_MUL(norm, scale) + 1e-6);
        if (factor < 1) scale = SCALE_MUL(scale, factor);
    }
    return scale;
}

/* Returns norm / max(|x|, least) for the sum of squares of x. */
SCALE_FN float scale_normal(double squares, double least, double norm)
{
    double size = sqrt(squares);
    return (float)(norm / (size < least ? least : size));
}

/* Returns lr times LAMB's trust ratio (timm): |w| / |u|; 1 if either is 0 or `adapts` is 0. */
SCALE_FN float scale_trusted(double lr, double weight_squares, double update_squares, int adapts,
                             int at_most_1)
{
    double w = sqrt(weight_squares), u = sqrt(update_squares), trust = 1;
    if (adapts && w > 0 && u > 0) trust = w / u;
    if (at_most_1 && trust > 1) trust = 1;
    return (float)SCALE_MUL(lr, trust);
}

/* Returns Adafactor's learning rate: times the weight's root mean square if that counts, divided by that of
 * the update / threshold if it is above 1. *decay: the factor of the weights. */
SCALE_FN float scale_factored(double lr, double weight_squares, double update_squares,
                              const struct optim_clipping *c, float *decay)
{
    double weight = sqrt(weight_squares / c->count), excess = sqrt(update_squares / c->count) / c->threshold;
    if (c->eps2 > 0) lr = SCALE_MUL(lr, weight > c->eps2 ? weight : c->eps2);
    *decay = (float)(1 - SCALE_MUL(c->decay_lr >= 0 ? c->decay_lr : lr, c->decay));
    return (float)(excess > 1 ? lr / excess : lr);
}

#endif
