/* The arithmetic of the optimizers: update rules, and the formats of weights and states. It stands here once
 * for every device. The includer gives two types and a few functions:
 *   real, word             float and uint32_t, or vectors of them (kernels/cpu/optim_vector.h)
 *   OPTIM_FN               qualifiers of a function: static inline, __device__, ...
 *   as_word, as_real       the bits
 *   constant_real          of uint32_t bits
 *   real_all, word_all     of a float, of a uint32_t
 *   real_sqrt, real_fma    fma: x y + z, rounded once
 *   real_limit(x, limit)   x, its magnitude at most limit
 *   word_max               the larger of each
 *   word_nonzero(real)     all ones where x != 0
 * Only IEEE operations that round correctly are used, and multiply-adds are fused where it is written and
 * nowhere else (-ffp-contract=off), so all devices and instruction sets give the same bits.
 *
 * Rules: Adam (Kingma, Ba 2015), AdamW (Loshchilov, Hutter 2019), SGD, all with torch.optim's conventions;
 * LAMB (You et al. 2020) as timm has it; Lion (Chen et al. 2023).
 *
 * Low-bit states. A code of an 8-bit state keeps 4 bits of mantissa, one of a 4-bit state 1 bit; what is
 * dropped is rounded stochastically by adding random bits below the mantissa and cutting (unbiased, and exact
 * where the value is a code). One byte per group of 64 holds the exponent E of the group's largest value.
 *   v is kept as its square root, unsigned: 16 binades (8 for 4 bits) from 2^E down and NO code for zero, so
 *     a parameter that has seen a gradient can never divide by an empty v. An all-zero group has E = 0.
 *   m is kept relative to the binade of its own stored sqrt(v): |m| <= R sqrt(v) for a constant R of the
 *     betas (core/optim/step.c), so it needs no scale and a small element is not lost beside a large one.
 *     Rules without v (and v in 16 or 32 bits) take the group's exponent instead.
 *   m codes are sign and magnitude; the magnitude x is kept as the float x + c cut to the mantissa bits: near
 *     zero as fine as c allows, zero exact, further out logarithmic.
 */
#ifndef MEOPT_KERNELS_OPTIM_MATH_H
#define MEOPT_KERNELS_OPTIM_MATH_H

/* ---- Rules ---- */

/* m and v of one step, raw (bias corrections are in the scalars). */
OPTIM_FN real rule_average(real old, real x, float beta, float rest)
{
    return real_fma(old, real_all(beta), x * rest);
}

/* m / (sqrt(v) root_scale + eps), its magnitude at most `limit`: exact moments obey that by themselves,
 * rounded ones need not. */
OPTIM_FN real rule_direction(real m, real root, const struct optim_scalars *s)
{
    return real_limit(m / real_fma(root, real_all(s->root_scale), real_all(s->eps)), s->direction_limit);
}

OPTIM_FN real rule_lamb_update(real w, real direction, const struct optim_scalars *s)
{
    return real_fma(direction, real_all(s->step_size), w * s->weight_decay);
}

/* x with magnitude `size`, or 0 where x is 0. */
OPTIM_FN real rule_sign(real x, float size)
{
    word bits = as_word(x);
    return as_real((bits & 0x80000000u) | (word_nonzero(x) & as_word(real_all(size))));
}

/* ---- Random bits, 16 bits ---- */
/* A rounding adds the highest bits of a random word below the last bit that is kept, and cuts: a value that
 * is representable stays what it is. ROUND_NEAREST in place of a random word rounds to nearest. */
#define ROUND_NEAREST 0x80000000u

/* bf16 is the upper half of the result. */
OPTIM_FN word bf16_nearest(word bits) { return bits + 0x7fffu + ((bits >> 16) & 1u); } /* ties to even */
OPTIM_FN word bf16_stochastic(word bits, word random) { return bits + (random >> 16); }

/* ---- Weights of 20, 24 and 32 bits ---- */
/* A weight is an fp32 number cut to 32 - drop bits. Its bf16 half is the
 * nearest bf16 number; the bits between are the signed distance in units
 * of the last kept bit: bits = (half << 16) + (signed correction << drop). */

/* Bits below `drop` of the result are meaningless: weight_half and weight_correction do not look at them. The
 * half is the upper half of what weight_half gives and weight_join takes (its lower half 0). */
OPTIM_FN word weight_round(word bits, word random, int drop)
{
    return drop ? bits + (random >> (32 - drop)) : bits;
}
OPTIM_FN word weight_half(word bits) { return bits + word_all(0x8000u); }
OPTIM_FN word weight_correction(word bits, int drop) { return (bits & 0xffffu) >> drop; }
/* distance: the correction, sign-extended to 32 bits, << drop */
OPTIM_FN word weight_join(word half, word distance) { return half + distance; }

/* ---- States of 8 and 4 bits ---- */

struct state_code {
    int shift;             /* mantissa bits dropped */
    uint32_t root_binades; /* binades below that of E */
    uint32_t root_bump;    /* E is one more where the largest value is beyond the last code */
    uint32_t m_codes;      /* magnitudes of m, zero included */
    uint32_t m_offset;     /* c, as bits */
    uint32_t m_last;       /* x + c of the last code: 1.9375, 1.5 */
    uint32_t m_bump;       /* as root_bump, for m with a group exponent */
    int m_fold;            /* the sign of a rounded m moves so far down to its code */
};
#define STATE_CODE_8                                                                                         \
    {                                                                                                        \
        19, 15, 0x07ffffu, 128, 120u << 23, 0x3ff80000u, 0x08ffffu, 5                                        \
    }
#define STATE_CODE_4                                                                                         \
    {                                                                                                        \
        22, 7, 0x3fffffu, 8, 124u << 23, 0x3fc00000u, 0x4fffffu, 6                                           \
    }

/* Exponents that keep every intermediate product normal: roots 2^-59 .. 2^65. */
#define STATE_EXPONENT_MIN 83u
#define STATE_EXPONENT_MAX 191u
/* A group with a gradient of NaN, infinity or 2^63 and more is refused:
 * sums of four squares reach these bits (2^126). */
#define GRADIENT_SQUARES_MAX 0x7e800000u

/* Scale byte of a group from the bits of its largest magnitude. 0: all zero. */
OPTIM_FN uint32_t state_exponent(uint32_t largest, uint32_t bump)
{
    uint32_t e = (largest + bump) >> 23;
    if (largest == 0) return 0;
    return e < STATE_EXPONENT_MIN ? STATE_EXPONENT_MIN : e > STATE_EXPONENT_MAX ? STATE_EXPONENT_MAX : e;
}

/* exponent != 0. root_round gives the bits of the rounded root, of which those from c.shift up count; its
 * code is these less root_base. The largest root of a group is not beyond its last code (root_bump), so
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

/* binade: bits of 2^e, what m is relative to (times 2^range). m_round gives sign and magnitude, 32 - c.shift
 * bits; the base of the magnitudes is a multiple of m_codes, so the code, m_codes (the sign) | magnitude, is
 * made of bits of it. */
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
/* code: in the highest bits, the others zero; root: bits of any number of the binade */
OPTIM_FN real m_decode(word code, word root, int range, struct state_code c)
{
    word magnitude = word_all((c.m_codes - 1) << c.shift), exponent = word_all(0x7f800000u);
    real y = as_real(((code >> c.m_fold) & magnitude) |
                     word_all(c.m_offset)); /* the offset has none of these bits */
    real least = real_all(constant_real(0x80000000u | (c.m_offset + ((uint32_t)range << 23))));
    return real_fma(y, real_all(constant_real((127u + (uint32_t)range) << 23)), least) *
           as_real((root & exponent) | (code & ~exponent));
}

#endif
