/* The arithmetic of the optimizers, once for every device: update rules, formats of weights and states. The
 * includer defines two types and a few functions:
 *   real, word             float and uint32_t, or vectors of them (kernels/cpu/optim_vector.h)
 *   OPTIM_FN               qualifiers of a function: static inline, __device__, ...
 *   as_word, as_real       reinterpret the bits
 *   constant_real          the float with these bits
 *   real_all, word_all     broadcast a float, a uint32_t
 *   real_sqrt, real_fma    fma: x y + z, rounded once
 *   real_fnma              z - x y, rounded once
 *   real_limit(x, limit)   x with its magnitude limited
 *   word_min, word_max     the smaller, the larger of each
 *   word_nonzero(real)     all ones where x != 0
 *   word_at_least(x, n)    all ones where x >= n
 *   word_where_nonzero(x, a, b)    a where the real x != 0, else b
 *   real_of, word_of       convert a word below 2^31 to real; truncate a real to word
 *   single                 float on the CPU, real on a card; single_of, single_whole: as above
 * Only correctly rounded IEEE operations are used, and multiply-adds are fused only where written
 * (-ffp-contract=off). All devices and instruction sets are therefore bit-identical.
 *
 * Rules: Adam (Kingma, Ba 2015), AdamW (Loshchilov, Hutter 2019), SGD, all with torch.optim's conventions;
 * LAMB (You et al. 2020) like timm; Lion (Chen et al. 2023); schedule-free AdamW (Defazio et al. 2024) like
 * schedulefree.AdamWScheduleFree; Adafactor (Shazeer, Stern 2018) like transformers and torch.optim.
 *
 * Low-bit states. A code of an 8-bit state has 4 mantissa bits, that of a 4-bit state 1. Stochastic rounding
 * adds random bits below the mantissa and truncates: unbiased, and exact for values that have a code. One
 * byte per group of 64 holds the exponent E of the group's largest value.
 *   v is stored as its square root, unsigned: 16 binades (8 with 4 bits) from 2^E down. There is NO code for
 *     zero, so that m is never divided by a v that was rounded to 0. An all-zero group has E = 0.
 *   m is stored relative to the binade of its own stored sqrt(v): |m| <= R sqrt(v) for a constant R of the
 *     betas (core/optim/optim_step.c). It needs no scale, and a small element survives next to a large one.
 *     With v in 16 or 32 bits, and with 4 bits in rules without v, m uses the group's exponent instead.
 *   m codes are sign and magnitude. The magnitude x is stored as the float x + c truncated to the mantissa
 *     bits: linear near zero with a step given by c, zero exact, logarithmic above.
 *
 * Joint codes. 8-bit m and v are one 16-bit code on a grid of their group. A moving average that is rounded
 * stochastically at each step has a noise of about sqrt(|g^2 - v| step / 4) in sqrt(v), for every beta. Only
 * smaller steps of the codes reduce it, so the grid covers only the range of the group's values:
 *   v: the bits of its root (a logarithm, linear between powers of two) in equal steps from the group's
 *     smallest to its largest. Only elements without any gradient so far have code 0.
 *   m: m / sqrt(v) in equal steps up to the largest of the group, times 11/16 in those eighths of the group
 *     (elements e % 8) whose values allow it.
 *   The joint code is code of v * M + code of m, M odd. M is 489 for a width of 1/16 binade, down to 61 for
 *     32: the cube root that minimizes the sum of both errors.
 *   Rounding: v and m are rounded up from thresholds that rotate by the golden ratio with each update. This
 *     is unbiased like random bits. But equal steps of v meet all thresholds equally often, and errors of m
 *     in successive steps cancel, so that its noise is close to that of rounding to nearest. The groups of a
 *     tensor share 16 sets of thresholds, which are computed once.
 *   m / sqrt(v) uses the new moments before v is rounded, and is read back with the code of v. The update,
 *     their quotient, is therefore not affected by the rounding of v in the same step.
 *   The grid stays while it covers the group and is at most a quarter too wide: a new grid rounds all codes.
 *   Schedule-free: m is z - y, in units of the weights, and takes the place of m / sqrt(v), because it does
 *   not grow with the gradients. Its largest of a group has 4 steps per octave from 2^-24 to 2^8.
 *
 * 8-bit m without v (SGD, Lion) has a grid per group, too: a sign, and 127 equal steps of the bits of |m| +
 * c, where c is the low end of the grid. It is about linear up to c, and logarithmic above. Lion uses the
 * sign of beta1 m + (1 - beta1) g, so its c is the smallest max(|m|, (1 - beta1) |g|) of the group. Steps are
 * then small relative to each element, or to the gradient added to it. SGD updates weights by m itself, so
 * steps must be small relative to the largest m: c is 1/16 of that. Thresholds rotate like those of joint
 * codes.
 */
#ifndef MEOPT_KERNELS_OPTIM_MATH_H
#define MEOPT_KERNELS_OPTIM_MATH_H

/* ---- Rules ---- */

/* Returns the new moving average; bias corrections are in the scalars. */
OPTIM_FN real rule_average(real old, real x, float beta, float rest)
{
    return real_fma(old, real_all(beta), x * rest);
}

/* m / (sqrt(v) root_scale + eps), limited in magnitude: rounded moments may exceed the bound of exact
 * ones. */
OPTIM_FN real rule_quotient(real m, real root, const struct optim_scalars *s)
{
    return m / real_fma(root, real_all(s->root_scale), real_all(s->eps));
}
OPTIM_FN real rule_direction(real quotient, const struct optim_scalars *s)
{
    return real_limit(quotient, s->direction_limit);
}

OPTIM_FN real rule_lamb_update(real w, real direction, const struct optim_scalars *s)
{
    return real_fma(direction, real_all(s->step_size), w * s->weight_decay);
}

/* Schedule-free AdamW: steps y (the weights) and d = z - y (m), for the averaging weight c of this step
 * (beta1; rest1 is 1 - c) and u = g / (sqrt(v_hat) + eps) + weight_decay y:
 *   z' = z - lr u, y' = (1 - c) y + c z - lr (1 - b1 (1 - c)) u, so d' = z' - y' = (1 - c) (d - lr b1 u)
 *   and the average is x = y - (1 - b1) / b1 d.
 * In the scalars, step_size is lr (1 - b1 (1 - c)), and lr is lr b1. d is stored, not z or x: it is the
 * smallest, so that a format of few bits loses least. */
OPTIM_FN void rule_points(real *y, real *d, real quotient, const struct optim_scalars *s)
{
    real u = real_fma(*y, real_all(s->weight_decay), quotient);
    *y = real_fnma(u, real_all(s->step_size), real_fma(*d, real_all(s->beta1), *y));
    *d = real_fnma(u, real_all(s->lr), *d) * real_all(s->rest1);
}

#define FACTORED_UPDATE_MOST 0x5d000000u /* 2^59: sums of squares stay finite */
/* Adafactor: the square that enters averages, and the update before its clipping. */
OPTIM_FN real rule_factored_square(real g, const struct optim_scalars *s)
{
    return real_fma(g, g, real_all(s->eps));
}
OPTIM_FN real rule_factored_update(real g, real root, const struct optim_scalars *s)
{
    /* both are positive or 0, so that their bits have their order */
    real u = g / as_real(word_max(as_word(root), as_word(real_all(s->root_floor))));
    return real_limit(u, constant_real(FACTORED_UPDATE_MOST));
}

/* Returns `size` with the sign of x, or 0 where x is 0. */
OPTIM_FN real rule_sign(real x, float size)
{
    word bits = as_word(x);
    return as_real((bits & 0x80000000u) | (word_nonzero(x) & as_word(real_all(size))));
}

/* ---- Random bits, 16 bits ---- */
/* Rounding adds the highest bits of a random word below the last stored bit, and truncates. Representable
 * values do not change. ROUND_NEAREST instead of a random word rounds to nearest. */
#define ROUND_NEAREST 0x80000000u

/* bf16 is the upper half of the result. */
OPTIM_FN word bf16_nearest(word bits) { return bits + 0x7fffu + ((bits >> 16) & 1u); } /* ties to even */
OPTIM_FN word bf16_stochastic(word bits, word random) { return bits + (random >> 16); }

/* Convert fp16, in the lower half of a word, to fp32 (exact) and back: to nearest, ties to even, infinity
 * from 65520 on, like kernels/f16.h. Flushing of subnormal fp32 numbers does not change results. */
OPTIM_FN real f16_read(word half)
{
    word magnitude = half & word_all(0x7fffu), normal = word_at_least(magnitude, 0x400u);
    word special = word_at_least(magnitude, 0x7c00u); /* infinities and NaNs */
    word bits = (magnitude << 13) + word_all(112u << 23) + (special & word_all(112u << 23));
    word small = as_word(real_of(magnitude) * real_all(constant_real(0x33800000u))); /* times 2^-24 */
    return as_real(((half & word_all(0x8000u)) << 16) | (bits & normal) | (small & ~normal));
}
/* Below 2^-14, the last bit of an fp16 is 2^-24, like that of a float from 1/2 to 1: adding 1/2 rounds. */
OPTIM_FN word f16_nearest(real x)
{
    word bits = as_word(x), magnitude = bits & word_all(0x7fffffffu);
    word half =
        ((magnitude + word_all(0xfffu) + ((magnitude >> 13) & word_all(1u))) >> 13) - word_all(112u << 10);
    word small = as_word(as_real(magnitude) + real_all(0.5f)) - word_all(0x3f000000u);
    word normal = word_at_least(magnitude, 0x38800000u), most = word_at_least(magnitude, 0x477ff000u);
    half = (((half & normal) | (small & ~normal)) & ~most) | (most & word_all(0x7c00u));
    return half | (word_at_least(magnitude, 0x7f800001u) & word_all(0x200u)) |
           ((bits >> 16) & word_all(0x8000u));
}

/* ---- Weights of 20, 24 and 32 bits ---- */
/* A weight is an fp32 number truncated to 32 - drop bits. Its bf16 half is the nearest bf16 number. The
 * residual bits are the signed distance in units of the last stored bit:
 * bits = (half << 16) + (signed residual << drop). */

/* Bits below `drop` of the result are undefined; weight_half and weight_residual ignore them. weight_half
 * returns the bf16 half in the upper half of the word; weight_join expects it there, with a lower half of
 * 0. */
OPTIM_FN word weight_round(word bits, word random, int drop)
{
    return drop ? bits + (random >> (32 - drop)) : bits;
}
OPTIM_FN word weight_half(word bits) { return bits + word_all(0x8000u); }
OPTIM_FN word weight_residual(word bits, int drop) { return (bits & 0xffffu) >> drop; }
/* distance: the residual bits, sign-extended to 32 bits, << drop */
OPTIM_FN word weight_join(word half, word distance) { return half + distance; }

/* ---- States of 8 and 4 bits ---- */

struct state_code {
    int shift;             /* mantissa bits dropped */
    uint32_t root_binades; /* binades below that of E */
    uint32_t root_bump;    /* E is one higher if the largest value exceeds the last code */
    uint32_t m_codes;      /* magnitudes of m, including zero */
    uint32_t m_offset;     /* c, as bits */
    uint32_t m_last;       /* x + c of the last code: 1.9375, 1.5 */
    uint32_t m_bump;       /* like root_bump, for m with a group exponent */
    int m_fold;            /* shift of the sign of a rounded m to its code */
};
#define STATE_CODE_8                                                                                         \
    {                                                                                                        \
        19, 15, 0x07ffffu, 128, 120u << 23, 0x3ff80000u, 0x08ffffu, 5                                        \
    }
#define STATE_CODE_4                                                                                         \
    {                                                                                                        \
        22, 7, 0x3fffffu, 8, 124u << 23, 0x3fc00000u, 0x4fffffu, 6                                           \
    }

/* A group is skipped if a sum of four squared gradients reaches these bits (2^126): a NaN, an infinity, one
 * gradient of 2^63 or four of 2^62. */
#define GRADIENT_SQUARES_MAX 0x7e800000u

/* Returns the scale byte of a group, for the bits of its largest magnitude. 0: all zero. */
OPTIM_FN uint32_t state_exponent(uint32_t largest, uint32_t bump)
{
    uint32_t e = (largest + bump) >> 23;
    if (largest == 0) return 0;
    return e < STATE_EXPONENT_MIN ? STATE_EXPONENT_MIN : e > STATE_EXPONENT_MAX ? STATE_EXPONENT_MAX : e;
}

/* For exponent != 0. root_round returns the bits of the rounded root; only those from c.shift up are valid.
 * The code is these bits minus root_base. The largest root does not exceed the last code (root_bump), so
 * rounding cannot leave the range. */
OPTIM_FN uint32_t root_base(uint32_t exponent, struct state_code c)
{
    return (exponent - c.root_binades) << (23 - c.shift);
}
OPTIM_FN word root_round(real root, word random, uint32_t base, struct state_code c)
{
    return word_max(as_word(root) + (random >> (32 - c.shift)), word_all(base << c.shift));
}
OPTIM_FN word root_binade(word bits) { return bits & word_all(0x7f800000u); }
OPTIM_FN real root_decode(word code, uint32_t base, struct state_code c)
{
    return as_real((code + base) << c.shift);
}

/* binade: bits of 2^e; m is stored relative to 2^(e + range). m_round returns sign and magnitude in
 * 32 - c.shift bits. The base of the magnitudes is a multiple of m_codes, so that the code, m_codes (the
 * sign) | magnitude, consists of bits of it. */
OPTIM_FN word m_round(real m, word random, word binade, int range, struct state_code c)
{
    word inverse = word_all((254u - (uint32_t)range) << 23) - binade;
    real offset = as_real((as_word(m) & word_all(0x80000000u)) | word_all(c.m_offset));
    real x = real_limit(real_fma(m, as_real(inverse), offset), constant_real(c.m_last));
    return (as_word(x) + (random >> (32 - c.shift))) >> c.shift;
}
OPTIM_FN word m_code(word rounded, struct state_code c)
{
    return (rounded & (c.m_codes - 1)) | ((rounded >> c.m_fold) & c.m_codes);
}
/* code: in the highest bits, all others 0; root: bits of any number in the binade */
OPTIM_FN real m_decode(word code, word root, int range, struct state_code c)
{
    word magnitude = word_all((c.m_codes - 1) << c.shift), exponent = word_all(0x7f800000u);
    real y = as_real(((code >> c.m_fold) & magnitude) |
                     word_all(c.m_offset)); /* the offset has none of these bits */
    real least = real_all(constant_real(0x80000000u | (c.m_offset + ((uint32_t)range << 23))));
    return real_fma(y, real_all(constant_real((127u + (uint32_t)range) << 23)), least) *
           as_real((root & exponent) | (code & ~exponent));
}

/* ---- Joint codes of 8-bit m and v ---- */

#define JOINT_HEADER        4           /* bytes: joint_header */
#define JOINT_MIN_ROOT      (67u << 23) /* 2^-60: a smaller root has code 0 */
#define JOINT_ZERO_ROOT     (66u << 23) /* code 0 is read as 2^-61 */
#define JOINT_MAX_WIDTH     (31u << 23) /* of a grid; smaller roots are stored as its low end */
#define JOINT_LOW_STEP      (1u << 19)  /* 1/16 binade */
#define JOINT_MIN_LOW       (66u << 23)
#define JOINT_POINTS        2    /* codes of m, times this, of rules WITH_POINTS */
#define THRESHOLD_SETS      16   /* a group's set is its index in the whole tensor modulo this */
#define GRID_STEP_UNIT      128u /* steps are multiples of it, so that sums of steps are exact in 24 bits */
#define THRESHOLD_UPDATE    0x9e3779b9u /* rotation per update: the golden ratio */
#define THRESHOLD_ELEMENT_V 0xbb67ae85u /* rotation per element, for v: sqrt(3) */
#define THRESHOLD_ELEMENT_M 0x3c6ef372u /* and for m: sqrt(5) */

struct joint_grid {
    uint32_t low, range;        /* bits of the root of code 1 (0: all zero); code of the width */
    uint32_t width;             /* in bits of a root, from code 1 to the last code or slightly above */
    single base, step, inverse; /* bits of the root of code 0; bits per code; 1 / step */
    single m_codes, m_inverse;  /* M, 1 / M */
    single middle, most;        /* the code of m = 0; the code of the largest m, minus 1/64 */
    single most_inverse;        /* 1 / most */
};

/* Returns the width of a grid in bits of a root, seven steps per octave: 1/16 binade (0) to 32 (63). */
OPTIM_FN uint32_t joint_grid_width(uint32_t range)
{
    return single_whole(constant_real((146u << 23) + range * 1198373u));
}
OPTIM_FN struct joint_grid joint_grid_make(uint32_t low, uint32_t range, bool points)
{
    struct joint_grid g;
    /* 85 for a width of 13.5 binades; proportional to the cube root of 1 / width, with bits as a logarithm */
    single codes = constant_real(0x43f4a6d4u - range * 399458u);
    uint32_t m_codes = single_whole(points ? codes * single_of(JOINT_POINTS) : codes) | 1u;
    single m = single_of(m_codes);
    uint32_t v_codes = single_whole(single_of(65536) / m);
    g.low = low;
    g.range = range;
    g.width = joint_grid_width(range);
    g.step = single_of((g.width / (v_codes - 2) | (GRID_STEP_UNIT - 1)) + 1);
    g.base = single_of(low) - g.step;
    g.inverse = single_of(1) / g.step;
    g.m_codes = m;
    g.m_inverse = single_of(1) / m;
    g.middle = single_of(m_codes / 2);
    g.most = g.middle - single_of(1) / single_of(64);
    g.most_inverse = single_of(1) / g.most;
    return g;
}
/* Returns whether the grid is the widest one, below which there may be roots. */
OPTIM_FN bool joint_grid_is_widest(const struct joint_grid *g) { return g->range == 63u; }
/* Returns whether this update checks if a grid is too wide. */
OPTIM_FN bool joint_refit_due(uint32_t updates) { return updates % 16 == 0; }
/* Sets low end and width of a grid for roots with bits from smallest to largest (ignoring those below
 * JOINT_MIN_ROOT). Returns false if `old`, the group's present grid, stays. */
OPTIM_FN bool joint_grid_fit(uint32_t smallest, uint32_t largest, const struct joint_grid *old, bool due,
                             uint32_t *low, uint32_t *range)
{
    uint32_t need = largest - smallest;
    if (need > JOINT_MAX_WIDTH) {
        need = JOINT_MAX_WIDTH;
        smallest = largest - need;
    }
    if (old->low && smallest >= old->low && largest - old->low <= old->width &&
        (!due || need + need / 4 >= old->width || !old->range))
        return false;
    uint32_t want = need + need / 64 + JOINT_LOW_STEP, bits = bits_of(single_of(want)) + 1198372u, r = 0;
    if (bits > 146u << 23) r = (bits - (146u << 23)) / 1198373u;
    if (r > 63u) r = 63u;
    uint32_t from = (smallest - (joint_grid_width(r) - JOINT_LOW_STEP - need) / 2) & ~(JOINT_LOW_STEP - 1);
    *low = from < JOINT_MIN_ROOT ? JOINT_MIN_ROOT : from;
    *range = r;
    return true;
}
OPTIM_FN struct joint_grid joint_grid_read(uint32_t header, bool points)
{
    uint32_t low = header & 0x7ffu;
    return joint_grid_make(low ? (low << 19) + JOINT_MIN_LOW : 0, header >> 11 & 63u, points);
}
/* From the lowest bit: 11 bits low (0: a group of zeros), 6 width, 7 ratio, 8 flags of small eighths. */
OPTIM_FN uint32_t joint_header(const struct joint_grid *g, uint32_t ratio, uint32_t small)
{
    return (g->low - JOINT_MIN_LOW) >> 19 | g->range << 11 | ratio << 17 | small << 24;
}

/* Returns the code of v, as a number, of a joint code minus `middle`. Adding 1.5 2^23 removes the fraction of
 * numbers below 2^22. */
#define JOINT_ROUNDER 0x4b400000u /* 1.5 2^23 */
OPTIM_FN real joint_v_code(real joint, const struct joint_grid *g)
{
    real rounder = real_all(constant_real(JOINT_ROUNDER));
    return real_fma(joint, real_all(g->m_inverse), rounder) - rounder;
}
OPTIM_FN real joint_m_code(real joint, real code, const struct joint_grid *g)
{
    return real_fnma(code, real_all(g->m_codes), joint);
}
OPTIM_FN real joint_root(real code, const struct joint_grid *g)
{
    word bits = word_of(real_fma(code, real_all(g->step), real_all(g->base)));
    return as_real(word_where_nonzero(code, bits, word_all(JOINT_ZERO_ROOT)));
}

/* Returns the new m; ratio: the stored m / root, times beta1. */
OPTIM_FN real joint_m_average(real ratio, real root, real g, float rest)
{
    return real_fma(ratio, root, g * rest);
}
/* Returns rule_quotient, and replaces m by m / root, with one division. No product overflows or underflows,
 * because roots are at least 2^-61, and g^2 and v below 2^126. */
OPTIM_FN real joint_quotient(real *m, real root, const struct optim_scalars *s)
{
    real divisor = real_fma(root, real_all(s->root_scale), real_all(s->eps)), part = *m / (root * divisor);
    *m = part * divisor;
    return part * root;
}

/* Return the rounding thresholds of element e of THRESHOLD_SETS groups: u + 1/2 for v, w - 1/2 for m. Codes
 * round up from a fraction of 1 - u or 1 - w. u and w are in (0, 1), with few bits, so that sums are
 * exact. */
OPTIM_FN real joint_threshold_v(uint32_t updates, uint32_t key, word e)
{
    word turn = e * word_all(THRESHOLD_ELEMENT_V) + word_all(key * 0x85ebca6bu + updates * THRESHOLD_UPDATE);
    return real_fma(real_of((turn >> 19) | word_all(1)), real_all(constant_real(0x39000000u)),
                    real_all(0.5f));
}
OPTIM_FN real joint_threshold_m(uint32_t updates, uint32_t key, word e)
{
    word turn = e * word_all(THRESHOLD_ELEMENT_M) + word_all(key * 0x9e3779b1u + updates * THRESHOLD_UPDATE);
    return real_fma(real_of((turn >> 24) | word_all(1)), real_all(constant_real(0x3b800000u)),
                    real_all(-0.5f));
}
#define JOINT_NEAREST_V 1.0f
#define JOINT_NEAREST_M 0.0f

/* Returns the bits of a root above the grid's low end; for a root below JOINT_MIN_ROOT, bits that round to
 * code 0. */
OPTIM_FN word joint_bits_above_low(word bits, real threshold, const struct joint_grid *g)
{
    word seen = word_at_least(bits, JOINT_MIN_ROOT),
         above = word_max(bits, word_all(g->low)) - word_all(g->low);
    word below = word_of(real_fma(threshold, real_all(-g->step), real_all(g->step * 0.25f)));
    return (above & seen) | (below & ~seen);
}
/* Returns m / root relative to the root that will be read back: at least the grid's low end. */
OPTIM_FN real joint_ratio_stored(real ratio, real root, const struct joint_grid *g)
{
    word bits = as_word(root), seen = word_at_least(bits, JOINT_MIN_ROOT);
    real read = as_real((word_max(bits, word_all(g->low)) & seen) | (bits & ~seen));
    return ratio * (root / read);
}
/* Returns the code of v plus 1/2. above: joint_bits_above_low, at most the width. */
OPTIM_FN real joint_v_round(word above, real threshold, const struct joint_grid *g)
{
    real rounder = real_all(constant_real(0x4b000000u)), less = real_all(constant_real(0x4affffffu));
    return (real_fma(real_of(above), real_all(g->inverse), threshold) + rounder) - less;
}

/* Returns the largest |m| / root of a code: 2^-8 to 2^8, in 8 steps per octave; of rules WITH_POINTS the
 * largest |m|: 2^-24 to 2^8, in 4 steps. */
OPTIM_FN single joint_ratio(uint32_t code, bool points)
{
    return constant_real(points ? (103u << 23) + (code << 21) : (119u << 23) + (code << 20));
}
OPTIM_FN uint32_t joint_ratio_code(uint32_t largest, bool points)
{
    uint32_t first = (points ? 103u : 119u) << 23, shift = points ? 21 : 20;
    if (largest <= first) return 0;
    uint32_t code = (largest - first + (1u << shift) - 1) >> shift;
    return code < 127u ? code : 127u;
}
OPTIM_FN single joint_ratio_inverse(uint32_t code, bool points)
{
    return single_of(1) / joint_ratio(code, points);
}
/* Scale of small eighths: 11/16, and 16/11. */
#define JOINT_SMALL         0x3f300000u
#define JOINT_SMALL_INVERSE 0x3fba2e8cu
/* Returns the bound of a small eighth: its largest |m| / root is at most this. */
OPTIM_FN single joint_small(single top) { return top * constant_real(JOINT_SMALL); }
/* Returns the joint code. code: joint_v_round; x: m / root; scale: codes per 1; threshold:
 * joint_threshold_m. */
OPTIM_FN word joint_code(real code, real x, real scale, real threshold, const struct joint_grid *g)
{
    return word_of(real_fma(x, scale, real_fma(code, real_all(g->m_codes), threshold)));
}

/* ---- Grid of 8-bit m without v ---- */

#define M_GRID_HEADER    2           /* bytes: m_grid_header */
#define M_GRID_MIN_LOW   (66u << 23) /* 2^-61: the lowest c; a header of 0 is the narrowest grid from there */
#define M_GRID_MAX_LOW   (M_GRID_MIN_LOW + (2047u << 19))
#define M_GRID_MAX_WIDTH (30u << 23)
#define M_GRID_SGD       (4u << 23)  /* distance of c below the largest m, for SGD */
#define M_GRID_LOW_STEP  (1u << 19)  /* 1/16 binade */
#define M_GRID_CONVERTED (12u << 23) /* maximum width for Lion when m is converted without a gradient */
#define M_GRID_CODES     127u

struct m_grid {
    uint32_t low, range; /* bits of c; code of the width */
    uint32_t width;      /* in bits, from c to |m| + c of the largest */
    uint32_t reach;      /* bits of the last code: the width, or slightly more */
    single c, base;      /* base: low, as a number */
    single step, inverse;
};

OPTIM_FN void m_grid_set_low(struct m_grid *g, uint32_t low)
{
    g->low = low;
    g->c = constant_real(low);
    g->base = single_of(low);
}
OPTIM_FN struct m_grid m_grid_make(uint32_t low, uint32_t range)
{
    struct m_grid g;
    /* six steps per octave: 1 binade (0) to 32 (31) */
    g.width = single_whole(constant_real((150u << 23) + range * 1353001u));
    uint32_t step = (g.width / M_GRID_CODES | (GRID_STEP_UNIT - 1)) + 1;
    g.range = range;
    g.reach = M_GRID_CODES * step;
    g.step = single_of(step);
    g.inverse = single_of(1) / g.step;
    m_grid_set_low(&g, low);
    return g;
}
OPTIM_FN uint32_t m_grid_low(uint32_t header) { return ((header & 0x7ffu) << 19) + M_GRID_MIN_LOW; }
OPTIM_FN struct m_grid m_grid_read(uint32_t header) { return m_grid_make(m_grid_low(header), header >> 11); }
OPTIM_FN uint32_t m_grid_header(const struct m_grid *g)
{
    return (g->low - M_GRID_MIN_LOW) >> 19 | g->range << 11;
}
/* Returns whether this update checks if a group's grid is too wide, or does not reach low enough. */
OPTIM_FN bool m_grid_refit_due(uint32_t updates, int64_t group)
{
    return (updates + (uint32_t)group) % 16 == 0;
}
/* Returns the low end for SGD, for the bits of the largest |m|. */
OPTIM_FN uint32_t m_grid_low_sgd(uint32_t largest)
{
    return largest > M_GRID_MIN_LOW + M_GRID_SGD ? largest - M_GRID_SGD : M_GRID_MIN_LOW;
}
/* Returns the grid for a group whose largest |m| has these bits. smallest: the requested low end. */
OPTIM_FN struct m_grid m_grid_fit(uint32_t smallest, uint32_t largest, const struct m_grid *old, bool due)
{
    uint32_t low = smallest > M_GRID_MIN_LOW ? smallest : M_GRID_MIN_LOW;
    if (largest > M_GRID_MAX_WIDTH && low < largest - M_GRID_MAX_WIDTH) low = largest - M_GRID_MAX_WIDTH;
    low = (low < M_GRID_MAX_LOW ? low : M_GRID_MAX_LOW) & ~(M_GRID_LOW_STEP - 1);
    uint32_t need = bits_of(constant_real(largest) + constant_real(low)) - low;
    bool holds = bits_of(constant_real(largest) + old->c) - old->low <= old->reach;
    if (holds && (!due || (low >= old->low && need + need / 4 + (1u << 21) >= old->width))) return *old;
    uint32_t want = need + need / 64 + 2 * M_GRID_LOW_STEP, bits = bits_of(single_of(want)) + 1353000u,
             range = 0;
    if (bits > 150u << 23) range = (bits - (150u << 23)) / 1353001u;
    return m_grid_make(low, range < 31u ? range : 31u);
}

/* Returns the bits of |m| + c minus those of c; at most `reach` if the grid covers the group. */
OPTIM_FN word m_grid_bits_above_low(real m, const struct m_grid *g)
{
    return as_word(as_real(as_word(m) & word_all(0x7fffffffu)) + real_all(g->c)) - word_all(g->low);
}
/* Returns the threshold of element e of THRESHOLD_SETS groups: codes round up from a fraction of 1 - this. */
OPTIM_FN real m_grid_threshold(uint32_t updates, uint32_t key, word e)
{
    word turn = e * word_all(THRESHOLD_ELEMENT_M) + word_all(key * 0x9e3779b1u + updates * THRESHOLD_UPDATE);
    return real_of((turn >> 19) | word_all(1)) * real_all(constant_real(0x39000000u));
}
#define M_GRID_NEAREST 0.5f
OPTIM_FN word m_grid_code(real m, word above, real threshold, const struct m_grid *g)
{
    return word_of(real_fma(real_of(above), real_all(g->inverse), threshold)) |
           ((as_word(m) >> 24) & word_all(0x80u));
}
/* code: in the highest bits, all others 0 */
OPTIM_FN real m_grid_decode(word code, const struct m_grid *g)
{
    real step = real_all(g->step * constant_real(0x33800000u)); /* 2^-24 */
    word bits = word_of(real_fma(real_of(code & word_all(0x7fffffffu)), step, real_all(g->base)));
    return as_real(as_word(as_real(bits) - real_all(g->c)) | (code & word_all(0x80000000u)));
}

#endif
