/* Numbers of a step for one tensor: its options, scalars, and the range of m. See optim.h. */
#include "core/optim/optim.h"

#include <float.h>
#include <math.h>

/* Returns the bound of |m| / sqrt(v), by Cauchy-Schwarz over the gradients that m and v average:
 *   ((1 - b1) sum b1^k g_k)^2 <= (1 - b1)^2 / (1 - b2) sum_k (b1^2 / b2)^k * v
 * Without grad_averaging the first factor, 1 - b1, is 1. */
double ratio_limit(const struct meopt_options *o, double t)
{
    if (RULE_HAS(o->rule, WITH_POINTS)) return 1 / sqrt(1 - o->beta2); /* of g itself */
    double q = o->beta1 * o->beta1 / (o->beta2 > 0 ? o->beta2 : DBL_MIN);
    double terms = t > 0 ? (q == 1 ? t : (1 - pow(q, t)) / (1 - q)) : (q < 1 ? 1 / (1 - q) : INFINITY);
    double limit = (o->grad_averaging ? 1 - o->beta1 : 1) * sqrt(terms / (1 - o->beta2));
    return limit < 1e30 ? limit : 1e30;
}

/* Returns how many binades above that of sqrt(v) m requires: |m| <= limit * sqrt(v) < 2 limit * binade. A
 * rounded sqrt(v) may be one code less. The largest code represents 1.93 with 8 bits, 1.375 with 4 bits. With
 * 4 bits half the limit is enough: finer codes for most elements matter more than rare large ones. */
int m_range(const struct meopt_options *o, int m_format)
{
    double need = m_format == STATE_4BIT ? ratio_limit(o, 0) / 2 / 1.375 : ratio_limit(o, 0) * 2 / 1.92;
    int range = need > 1 ? (int)ceil(log2(need)) : 0;
    return range < 20 ? range : 20;
}

const struct meopt_options *tensor_options(const struct meopt *opt, const struct tensor *tensor,
                                           struct meopt_options *own)
{
    if (!tensor->grouped && tensor->rule == opt->options.rule) return &opt->options;
    *own = opt->options;
    own->rule = tensor->rule;
    /* options.eps is of roots, or of squares: not of both */
    if (RULE_HAS(own->rule, WITH_FACTORS) != RULE_HAS(opt->options.rule, WITH_FACTORS))
        own->eps = optim_rules[own->rule].eps;
    if (!tensor->grouped) return own;
    own->weight_decay = tensor->group.weight_decay;
    own->beta1 = tensor->group.beta1;
    own->beta2 = tensor->group.beta2;
    own->eps = tensor->group.eps;
    own->momentum = tensor->group.momentum;
    own->dampening = tensor->group.dampening;
    own->maximize = tensor->group.maximize;
    return own;
}

struct averaging averaging_next(const struct meopt_options *o, const struct tensor *tensor, double *lr)
{
    double t = (double)tensor->updates + 1;
    if (tensor->updates < o->warmup_steps) *lr *= t / (double)o->warmup_steps;
    struct averaging next = {.lr_max = fmax(*lr, tensor->averaging.lr_max)};
    next.weight_sum = tensor->averaging.weight_sum + pow(t, o->r) * pow(next.lr_max, o->weight_lr_power);
    return next;
}

/* The scalars of rule_points (kernels/optim_math.h). */
static void point_scalars(struct optim_scalars *s, const struct meopt_options *o, const struct tensor *tensor,
                          double lr)
{
    struct averaging next = averaging_next(o, tensor, &lr);
    double added = next.weight_sum - tensor->averaging.weight_sum,
           c = next.weight_sum > 0 ? added / next.weight_sum : 0;
    s->beta1 = (float)c;
    s->rest1 = (float)(1 - c);
    s->lr = (float)(lr * o->beta1);
    s->step_size = (float)(lr * (1 - o->beta1 * (1 - c)));
}

double factored_rate(const struct meopt *opt, const struct tensor *tensor)
{
    const struct meopt_options *o = &opt->options;
    double t = (double)tensor->updates + 1, lr = opt->lr * tensor->lr_scale;
    if (o->relative_step) lr = fmin(lr, 1 / sqrt(t));
    return o->relative_step && o->warmup_init ? fmin(lr, 1e-6 * t) : lr;
}

/* Adafactor's second moment, whose decay approaches 1; the rate follows from norms (kernels/optim_scale.h).
 */
static void factored_scalars(const struct meopt_options *o, double t, struct optim_scalars *s)
{
    double rest = pow(t, o->decay_rate), floor = o->torch_form ? o->eps : 0;
    s->beta2 = (float)(1 - rest);
    s->rest2 = (float)rest;
    s->rest1 = (float)(1 - o->beta1);
    s->eps = (float)(o->torch_form ? 0 : o->eps);
    s->root_floor = (float)fmax(floor, (double)FLT_MIN);
}

struct optim_scalars step_scalars(const struct meopt *opt, const struct tensor *tensor, double scale)
{
    struct meopt_options own;
    const struct meopt_options *o = tensor_options(opt, tensor, &own);
    double t = (double)tensor->updates + 1, lr = opt->lr * tensor->lr_scale,
           decay = tensor->decay ? o->weight_decay : 0;
    double correction1 = o->bias_correction ? 1 - pow(o->beta1, t) : 1,
           correction2 = o->bias_correction ? 1 - pow(o->beta2, t) : 1;
    bool of_update = optim_rules[o->rule].decay == DECAY_UPDATE,
         inside = of_update && !(o->decoupled_decay && RULE_HAS(o->rule, WITH_TRUST));
    struct optim_scalars s = {
        .lr = (float)lr,
        .decay = (float)(inside ? 1 : 1 - lr * decay),
        .weight_decay = (float)(of_update && !inside ? 0 : decay),
        .beta1 = (float)o->beta1,
        .rest1 = (float)(!RULE_HAS(o->rule, WITH_V) || o->grad_averaging ? 1 - o->beta1 : 1),
        .beta2 = (float)o->beta2,
        .rest2 = (float)(1 - o->beta2),
        .eps = (float)o->eps,
        .step_size = (float)((RULE_HAS(o->rule, WITH_TRUST) ? 1 : lr) / correction1),
        .root_scale = (float)(1 / sqrt(correction2)),
        .direction_limit = (float)(ratio_limit(o, t) * sqrt(correction2) * (1 - 1e-6)),
        .gradient_scale = (float)(o->maximize ? -scale : scale),
        .nesterov = o->nesterov,
    };
    if (tensor->layout.m == STATE_F32 && tensor->layout.v == STATE_F32)
        s.direction_limit = FLT_MAX;        /* exact moments need no limit */
    if (RULE_HAS(o->rule, WITH_MOMENTUM)) { /* like torch: the buffer begins as the first gradient */
        s.beta1 = tensor->updates ? (float)o->momentum : 0;
        s.rest1 = tensor->updates ? (float)(1 - o->dampening) : 1;
        s.beta2 = (float)o->momentum;
    }
    if (RULE_HAS(o->rule, WITH_MATRICES)) {
        s.beta1 = (float)o->momentum;
        s.rest1 = (float)(1 - o->momentum);
    }
    if (RULE_HAS(o->rule, WITH_POINTS)) point_scalars(&s, o, tensor, lr);
    if (RULE_HAS(o->rule, WITH_FACTORS)) factored_scalars(o, t, &s);
    return s;
}
