/* The arithmetic of the optimizers: update rules, and the formats of weights and states. It stands here once for
 * every device. The includer gives two types and a few functions:
 *   real, word      float and uint32_t, or vectors of them (kernels/cpu/optim_vector.h)
 *   OPTIM_FN        qualifiers of a function: static inline, __device__, ...
 *   as_word, as_real (bits), constant_real(uint32_t bits), real_all(float), real_sqrt, real_min, word_min, word_max (of
 *   any mix of scalars and vectors), word_nonzero(real): all ones where x != 0
 * Only IEEE operations that round correctly are used, and never a fused multiply-add (-ffp-contract=off), so all
 * devices and instruction sets give the same bits.
 *
 * Rules: Adam (Kingma, Ba 2015), AdamW (Loshchilov, Hutter 2019), SGD, all with torch.optim's conventions; LAMB (You
 * et al. 2020) as timm has it; Lion (Chen et al. 2023).
 *
 * Low-bit states. A code of an 8-bit state keeps 4 bits of mantissa, one of a 4-bit state 1 bit; what is dropped is
 * rounded stochastically by adding random bits below the mantissa and cutting (unbiased, and exact where the value is
 * a code). One byte per group of 64 holds the exponent E of the group's largest value.
 *   v is kept as its square root, unsigned: 16 binades (8 for 4 bits) from 2^E down and NO code for zero, so a
 *     parameter that has seen a gradient can never divide by an empty v. An all-zero group has E = 0.
 *   m is kept relative to the binade of its own stored sqrt(v): |m| <= R sqrt(v) for a constant R of the betas
 *     (ratio_limit, by Cauchy-Schwarz), so it needs no scale and a small element is not lost beside a large one.
 *     Rules without v (and v in 16 or 32 bits) take the group's exponent instead.
 *   m codes are sign and magnitude; the magnitude x is kept as the float x + c cut to the mantissa bits: near zero as
 *     fine as c allows, zero exact, further out logarithmic.
 */
#ifndef MEOPT_KERNELS_OPTIM_MATH_H
#define MEOPT_KERNELS_OPTIM_MATH_H

/* ---- Rules ------------------------------------------------------------------------------------------- */

/* m and v of one step, raw (bias corrections are in the scalars). */
OPTIM_FN real rule_average(real old, real x, float beta, float rest) { return old * beta + x * rest; }

/* |m| <= limit * root: what exact Adam obeys by itself, rounded moments need not. */
OPTIM_FN real rule_bound(real m, real root, float limit)
{
    word bits = as_word(m);
    real magnitude = real_min(as_real(bits & 0x7fffffffu), root * limit);
    return as_real(as_word(magnitude) | (bits & 0x80000000u));
}

OPTIM_FN real rule_adam_direction(real m, real root, float root_scale, float eps)
{
    return m / (root * root_scale + eps);
}

OPTIM_FN real rule_lamb_update(real w, real m, real root, const struct optim_scalars *s)
{
    return rule_adam_direction(m, root, s->root_scale, s->eps) * s->step_size + w * s->weight_decay;
}

/* x with magnitude `size`, or 0 where x is 0. */
OPTIM_FN real rule_sign(real x, float size)
{
    word bits = as_word(x);
    return as_real((bits & 0x80000000u) | (word_nonzero(x) & as_word(real_all(size))));
}

/* ---- 16 bits ----------------------------------------------------------------------------------------- */

OPTIM_FN word bf16_nearest(word bits) { return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16; }
OPTIM_FN word bf16_stochastic(word bits, word random16) { return (bits + random16) >> 16; }

/* Each element has 16 random bits a step, bytes H and L. v rounds by (H, L), m by (L, H), the weight by (H ^ L, L): each
 * uniform by itself, and any two independent in their leading bytes. */
OPTIM_FN word random_m(word random16) { return ((random16 << 8) | (random16 >> 8)) & 0xffffu; }
OPTIM_FN word random_weight(word random16) { return (random16 ^ (random16 << 8)) & 0xffffu; }

/* ---- Weights of 20, 24 and 32 bits ------------------------------------------------------------------- */
/* A weight is an fp32 number cut to 32 - drop bits. Its bf16 half is the nearest bf16 number; the bits between are the
 * signed distance in units of the last kept bit: bits = (half << 16) + (signed correction << drop). */

OPTIM_FN word weight_round(word bits, word random16, int drop)
{
    return (bits + (random16 >> (16 - drop))) & (0xffffffffu << drop);
}
OPTIM_FN word weight_half(word bits) { return (bits + 0x8000u) >> 16; }
OPTIM_FN word weight_correction(word bits, int drop) { return (bits & 0xffffu) >> drop; }
OPTIM_FN word weight_join(word half, word correction, int drop)
{
    return (half << 16) + (((correction ^ (0x8000u >> drop)) - (0x8000u >> drop)) << drop);
}

/* ---- States of 8 and 4 bits -------------------------------------------------------------------------- */

struct state_code {
    int shift;             /* mantissa bits dropped */
    uint32_t root_codes;   /* codes of sqrt(v) */
    uint32_t root_binades; /* binades below that of E */
    uint32_t root_bump;    /* the largest value must stay below the last code: E is one more near the top */
    uint32_t m_codes;      /* magnitudes of m, zero included */
    uint32_t m_offset;     /* c, as bits */
    uint32_t m_bump;       /* as root_bump, for m with a group exponent */
};
#define STATE_CODE_8 {19, 256, 15, 1u << 19, 128, 120u << 23, 1u << 20}
#define STATE_CODE_4 {22, 16, 7, 1u << 22, 8, 124u << 23, 5u << 20}

/* Exponents that keep every intermediate product normal: roots 2^-59 .. 2^64. */
#define STATE_EXPONENT_MIN 83u
#define STATE_EXPONENT_MAX 190u
#define STATE_V_MAX 8.5e37f /* 2^126: v beyond is cut, so that its root stays below the largest exponent */

/* Scale byte of a group from the bits of its largest magnitude. 0: all zero. */
OPTIM_FN uint32_t state_exponent(uint32_t largest, uint32_t bump)
{
    uint32_t e = (largest + bump) >> 23;
    if (largest == 0) return 0;
    return e < STATE_EXPONENT_MIN ? STATE_EXPONENT_MIN : e > STATE_EXPONENT_MAX ? STATE_EXPONENT_MAX : e;
}

OPTIM_FN word random_dropped(word random16, int shift) { return (random16 << (shift - 16)) | (1u << (shift - 17)); }

/* exponent != 0 */
OPTIM_FN word root_encode(real root, word random16, uint32_t exponent, struct state_code c)
{
    uint32_t base = (exponent - c.root_binades) << (23 - c.shift);
    word kept = (as_word(root) + random_dropped(random16, c.shift)) >> c.shift;
    return word_min(word_max(kept, base) - base, c.root_codes - 1);
}
OPTIM_FN real root_decode(word code, uint32_t exponent, struct state_code c)
{
    uint32_t base = (exponent - c.root_binades) << (23 - c.shift);
    return as_real((code + base) << c.shift);
}

/* binade: bits of 2^e, what m is relative to (times 2^range). */
OPTIM_FN word m_encode(real m, word random16, word binade, int range, struct state_code c)
{
    uint32_t base = c.m_offset >> c.shift;
    word bits = as_word(m), inverse = ((254u - (uint32_t)range) << 23) - binade;
    real x = as_real(bits & 0x7fffffffu) * as_real(inverse);
    word kept = (as_word(real_min(x + constant_real(c.m_offset), 1.99f)) + random_dropped(random16, c.shift)) >> c.shift;
    word code = word_min(kept - base, c.m_codes - 1);
    return code | ((bits >> (c.m_codes == 128 ? 24 : 28)) & c.m_codes);
}
OPTIM_FN real m_decode(word code, word binade, int range, struct state_code c)
{
    real y = as_real(((code & (c.m_codes - 1)) << c.shift) + c.m_offset);
    real m = (y - constant_real(c.m_offset)) * as_real(binade + ((uint32_t)range << 23));
    return as_real(as_word(m) | ((code & c.m_codes) << (c.m_codes == 128 ? 24 : 28)));
}

#endif
