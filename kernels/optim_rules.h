/* The update rules: one row per rule, from which its number, names, choices and defaults follow.
 *
 * X(c, number, name, alias, traits, decay, update, beta2, eps, momentum), c: passed through.
 *   number    MEOPT_<number> of enum meopt_rule (core/meopt.h) and RULE_<number> of the kernels are the same
 *   name      the value of optim.name; alias: a second name
 *   traits    of enum rule_trait: which moments and hyper-parameters the rule has
 *   decay     where weight decay enters: enum rule_decay
 *   update    the first update as a function of the gradient: enum rule_update
 *   beta2, eps, momentum   defaults of meopt_options_init
 * The arithmetic: kernels/cpu/optim_kernel.h and kernels/gpu/optim.hip.
 */
#ifndef MEOPT_KERNELS_OPTIM_RULES_H
#define MEOPT_KERNELS_OPTIM_RULES_H

#include <stdint.h>

// clang-format off
#define OPTIM_RULES(X, c) \
  X(c, APADAM,  "apadam",  "adam",   WITH_V,              DECAY_GRADIENT, UPDATE_RATIO,    0.999, 1e-8, 0) \
  X(c, APADAMW, "apadamw", "adamw",  WITH_V,              DECAY_WEIGHT,   UPDATE_RATIO,    0.999, 1e-8, 0) \
  X(c, APSGD,   "apsgd",   "sgd",    WITH_MOMENTUM,       DECAY_GRADIENT, UPDATE_GRADIENT, 0.999, 1e-8, 0.9) \
  X(c, LAMB,    "lamb",    "aplamb", WITH_V | WITH_TRUST, DECAY_UPDATE,   UPDATE_RATIO,    0.999, 1e-6, 0) \
  X(c, LION,    "lion",    "aplion", 0,                   DECAY_WEIGHT,   UPDATE_SIGN,     0.99,  1e-8, 0) \
  X(c, MUON,    "muon",    "apmuon", WITH_MATRICES,       DECAY_WEIGHT,   UPDATE_MATRIX,   0.999, 1e-8, .95) \
  X(c, SCHEDULE_FREE, "schedule_free", "adamw_schedule_free", WITH_V | WITH_POINTS, DECAY_UPDATE, \
                                                                  UPDATE_RATIO,    0.999, 1e-8, 0) \
  X(c, ADAFACTOR, "adafactor", "apadafactor", WITH_FACTORS, DECAY_WEIGHT, UPDATE_RATIO, 0.999, 1e-30, 0)
// clang-format on

/* V: a second moment; beta2, eps. TRUST: a trust ratio, with a first pass for the norms of weight and update;
 * trust_clip, always_adapt, max_grad_norm, decoupled_decay. MOMENTUM: m is torch's momentum buffer, absent if
 * momentum is 0; dampening, nesterov. MATRICES: the update is of a whole matrix (core/optim/muon.c);
 * momentum, nesterov, ns_..., adjust_lr. Other tensors then have APADAMW. FACTORS: the second moment is a
 * row and a column of means of each matrix, or v of a vector; m is absent if beta1 is 0; a first pass for the
 * norms like TRUST; clip_threshold, decay_rate, eps2, scale_parameter, relative_step, warmup_init,
 * torch_form. POINTS: gradients are computed at y, evaluation uses the average x, and m is z - y;
 * warmup_steps, r, weight_lr_power. */
// clang-format off
enum rule_trait { WITH_V = 1, WITH_TRUST = 2, WITH_MOMENTUM = 4, WITH_MATRICES = 8, WITH_FACTORS = 16,
                  WITH_POINTS = 32 };
// clang-format on
/* GRADIENT: added to the gradient. WEIGHT: decoupled. UPDATE: added to the update, or decoupled with
 * decoupled_decay. */
enum rule_decay { DECAY_GRADIENT, DECAY_WEIGHT, DECAY_UPDATE };
/* For gradient g, before decay: RATIO g / (|g| + eps), GRADIENT g, SIGN the sign of g. MATRIX: of none alone.
 */
enum rule_update { UPDATE_RATIO, UPDATE_GRADIENT, UPDATE_SIGN, UPDATE_MATRIX };

#define RULE_NUMBER(prefix, number, ...) prefix##number,
/* ACCUMULATE adds the gradient to m and has no weights. APPLY subtracts the gradient, MUON's update, from the
 * weights and has no m. Both are internal. */
enum { OPTIM_RULES(RULE_NUMBER, RULE_) RULE_COUNT, RULE_ACCUMULATE = RULE_COUNT, RULE_APPLY };

/* Returns whether the rule has all of `traits`; a constant expression if `rule` is constant. */
#define RULE_BIT(wanted, number, name, alias, traits, ...)                                                   \
    | (((traits) & (wanted)) == (wanted) ? 1u << RULE_##number : 0u)
#define RULE_HAS(rule, traits) ((0u OPTIM_RULES(RULE_BIT, traits)) >> (rule)&1u)
/* Returns whether a first pass over all groups finds the norms of weight and update. */
#define RULE_HAS_NORMS(rule) (RULE_HAS(rule, WITH_TRUST) || RULE_HAS(rule, WITH_FACTORS))

/* Newton-Schulz of a matrix (core/optim/muon.c), whose sides are `long_side` and `short_side`: whether the
 * Gram form is used, for a form of enum meopt_ns_form, and the operations of all steps. */
enum { MATRIX_AUTO, MATRIX_DIRECT, MATRIX_GRAM };
static inline int matrix_uses_gram(int form, int64_t long_side, int64_t short_side, int card)
{
    return form == MATRIX_AUTO ? long_side / short_side >= (card ? 40 : 8) : form == MATRIX_GRAM;
}
static inline double matrix_flops(int gram, double steps, double long_side, double short_side)
{
    double square = short_side * short_side, cube = square * short_side;
    return gram ? 4 * square * long_side + (8 * steps - 4) * cube
                : steps * (4 * square * long_side + 2 * cube);
}

struct rule_info {
    const char *name, *alias;
    unsigned traits;
    enum rule_decay decay;
    enum rule_update update;
    double beta2, eps, momentum;
};
extern const struct rule_info optim_rules[RULE_COUNT]; /* by number */

#endif
