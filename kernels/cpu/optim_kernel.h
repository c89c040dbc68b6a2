/* One optimizer step over groups of 64 elements: the body of kernels/cpu/optim_{avx512,avx2,plain}.c, which
 * are this file compiled for three instruction sets (OPTIM_NAME adds the suffix). Each group is read once,
 * stepped in registers and written once.
 */
#include "kernels/cpu/optim.h"
#include "kernels/cpu/optim_vector.h"
#include "kernels/optim_math.h"
#include "kernels/philox.h"

#include <stdbool.h>

#define VECTORS (OPTIM_GROUP / LANES)
#define PARTS   (16 / LANES)

/* ---- Random bits -------------------------------------------------------------------------------------- */
/* Two groups share eight Philox blocks. Element e of group g has word 2 (g % 2) + e % 2 of block 8 (g / 2) +
 * e % 16 / 2, rotated left by 8 (e / 16) bits: its highest bits round v, those of the word rotated by 8 bits
 * more the weight, by 16 bits more m. So the leading bytes of an element's three roundings are independent.
 */

struct random_keys {
    uint64_t k0[10], k1[10];
    uint32_t step[2];
};

static struct random_keys random_keys(const struct optim_task *t)
{
    struct random_keys keys = {.step = {t->step[0], t->step[1]}};
    uint32_t k0 = t->key[0], k1 = t->key[1];
    for (int i = 0; i < 10; i++, k0 += PHILOX_W0, k1 += PHILOX_W1) {
        keys.k0[i] = k0;
        keys.k1[i] = k1;
    }
    return keys;
}

/* The words of RANDOM_GROUPS groups from an even one, LANES / 2 blocks at a time in 64-bit lanes (only the
 * low halves of the counters count), two vectors at a time because a round waits for its products. */
#define RANDOM_GROUPS 16
static void random_fill(const struct random_keys *keys, int64_t group, word random[RANDOM_GROUPS][PARTS])
{
    uint64_t block = (uint64_t)group / 2 * 8;
    wide zero = (wide){0};
    for (uint64_t i = 0; i < RANDOM_GROUPS / 2 * PARTS; i += 2) {
        wide c[2][4];
        for (uint64_t j = 0; j < 2; j++) {
            uint64_t first = block + (i + j) * (LANES / 2);
            c[j][0] = lane_numbers() + (first & 0xffffffffu);
            c[j][1] = zero + (first >> 32);
            c[j][2] = zero + keys->step[0];
            c[j][3] = zero + keys->step[1];
        }
        for (int round = 0; round < 10; round++)
            for (int j = 0; j < 2; j++) {
                wide p0 = multiply_even(c[j][0], PHILOX_M0), p1 = multiply_even(c[j][2], PHILOX_M1);
                c[j][0] = (p1 >> 32) ^ c[j][1] ^ keys->k0[round];
                c[j][2] = (p0 >> 32) ^ c[j][3] ^ keys->k1[round];
                c[j][1] = p1;
                c[j][3] = p0;
            }
        for (uint64_t j = 0; j < 2; j++)
            for (uint64_t k = 0; k < 2; k++)
                random[(i + j) / PARTS * 2 + k][(i + j) % PARTS] =
                    (word)((c[j][2 * k] & 0xffffffffu) | (c[j][2 * k + 1] << 32));
    }
}

OPTIM_FN void random_spread(word random[VECTORS], const word words[PARTS])
{
    for (int i = 0; i < VECTORS; i++) {
        word x = words[i % PARTS];
        int turn = i / PARTS * 8;
        if (turn) x = (x << turn) | (x >> (32 - turn));
        random[i] = x;
    }
}
/* Those of vector i for each purpose */
#define RANDOM_V(random, i)      (random)[i]
#define RANDOM_WEIGHT(random, i) (random)[((i) + PARTS) % VECTORS]
#define RANDOM_M(random, i)      (random)[((i) + 2 * PARTS) % VECTORS]

/* ---- Loads ------------------------------------------------------------------------------------------- */

/* Codes of a group, in the highest bits where `high`. 4 bits: byte k (0..31) holds element k below and
 * element k + 32 above. */
OPTIM_FN void load_codes(word code[VECTORS], const void *p, int64_t group, bool four, bool high)
{
    const uint8_t *b = (const uint8_t *)p + group * (four ? OPTIM_GROUP / 2 : OPTIM_GROUP);
    if (!four) {
        for (int i = 0; i < VECTORS; i++)
            code[i] = high ? load_high_bytes(b + i * LANES) : load_bytes(b + i * LANES);
        return;
    }
    for (int i = 0; i < VECTORS / 2; i++) {
        word both = high ? load_high_bytes(b + i * LANES) : load_bytes(b + i * LANES);
        code[i] = high ? both << 4 : both & 15u;
        code[i + VECTORS / 2] = high ? both & 0xf0000000u : both >> 4;
    }
}
/* Nibbles: bits `at` to at + 3 of each element (4 or more) */
OPTIM_FN void store_nibbles(void *p, int64_t group, const word x[VECTORS], int at)
{
    for (int i = 0; i < VECTORS / 2; i++) {
        word below = word_all(15),
             both = ((x[i] >> at) & below) | ((x[i + VECTORS / 2] >> (at - 4)) & ~below);
        store_bytes((uint8_t *)p + group * (OPTIM_GROUP / 2) + i * LANES, both);
    }
}
OPTIM_FN void store_zeros(void *p, int64_t group, int format)
{
    size_t size = optim_state_bytes(format);
    memset((uint8_t *)p + (size_t)group * size, 0, size);
}

OPTIM_FN void load_wide_state(real x[VECTORS], const void *p, int64_t group, int format)
{
    for (int i = 0; i < VECTORS; i++) {
        int64_t at = group * OPTIM_GROUP + i * LANES;
        x[i] = format == STATE_F32 ? load_reals((const float *)p + at)
                                   : as_real(load_high_halves((const uint16_t *)p + at));
    }
}
OPTIM_FN void store_wide_state(void *p, int64_t group, int format, const real x[VECTORS],
                               const word random[VECTORS])
{
    word half[VECTORS];
    if (format == STATE_F32) {
        for (int i = 0; i < VECTORS; i++) store_reals((float *)p + group * OPTIM_GROUP + i * LANES, x[i]);
        return;
    }
    if (format == STATE_BF16)
        for (int i = 0; i < VECTORS; i++) half[i] = bf16_stochastic(as_word(x[i]), random[i]);
    else
        for (int i = 0; i < VECTORS; i++) half[i] = bf16_nearest(as_word(x[i]));
    for (int i = 0; i < VECTORS; i += 2)
        store_high_halves2((uint16_t *)p + group * OPTIM_GROUP + i * LANES, half + i);
}

static inline bool low_bit(int format) { return format == STATE_8BIT || format == STATE_4BIT; }
OPTIM_FN struct state_code code_of(int format)
{
    static const struct state_code code8 = STATE_CODE_8, code4 = STATE_CODE_4;
    return format == STATE_8BIT ? code8 : code4;
}

/* state_exponent of the largest lane. It seldom changes from one step to the next, and asking that is cheaper
 * than finding the lane. */
OPTIM_FN uint32_t group_exponent(word largest, uint32_t old, uint32_t bump)
{
    bool asks = LANES == 16 && old;
    if (asks && word_any_reaches(largest, (old << 23) - bump) &&
        !word_any_reaches(largest, ((old + 1) << 23) - bump))
        return old;
    return state_exponent(word_largest(largest), bump);
}

/* m_code of both halves */
OPTIM_FN word m_codes(word rounded, struct state_code c)
{
    word magnitudes = word_all((c.m_codes - 1) * 0x10001u);
    return (rounded & magnitudes) | (shift_halves(rounded, c.m_fold) & ~magnitudes);
}
/* rounded: of m_round */
OPTIM_FN void store_m_codes(void *p, int64_t group, int format, const word rounded[VECTORS])
{
    struct state_code c = code_of(format);
    if (format == STATE_4BIT) {
        word code[VECTORS];
        for (int i = 0; i < VECTORS; i++) code[i] = m_code(rounded[i], c) << 4;
        store_nibbles(p, group, code, 4);
    } else
        for (int i = 0; i < VECTORS; i += 4)
            store_packed((uint8_t *)p + group * OPTIM_GROUP + i * LANES,
                         m_codes(pack_halves(rounded[i], rounded[i + 1]), c),
                         m_codes(pack_halves(rounded[i + 2], rounded[i + 3]), c));
}
/* bits: of root_round */
OPTIM_FN void store_root_codes(void *p, int64_t group, int format, const word bits[VECTORS], uint32_t base)
{
    int shift = code_of(format).shift;
    if (format == STATE_4BIT) {
        word code[VECTORS];
        for (int i = 0; i < VECTORS; i++) code[i] = ((bits[i] >> shift) - base) << 4;
        store_nibbles(p, group, code, 4);
        return;
    }
    word both = word_all(base * 0x10001u);
    for (int i = 0; i < VECTORS; i += 4)
        store_packed((uint8_t *)p + group * OPTIM_GROUP + i * LANES,
                     pack_halves(bits[i] >> shift, bits[i + 1] >> shift) - both,
                     pack_halves(bits[i + 2] >> shift, bits[i + 3] >> shift) - both);
}

/* m with the group's exponent as its scale */
OPTIM_FN void load_scaled(real m[VECTORS], const void *p, const uint8_t *scales, int64_t group, int format)
{
    if (!low_bit(format)) {
        load_wide_state(m, p, group, format);
        return;
    }
    word code[VECTORS];
    uint32_t exponent = scales[group];
    load_codes(code, p, group, format == STATE_4BIT, true);
    if (exponent)
        for (int i = 0; i < VECTORS; i++)
            m[i] = m_decode(code[i], word_all(exponent << 23), 0, code_of(format));
    else
        for (int i = 0; i < VECTORS; i++) m[i] = real_all(0);
}
OPTIM_FN void store_scaled(void *p, uint8_t *scales, int64_t group, int format, const real m[VECTORS],
                           const word random[VECTORS])
{
    if (!low_bit(format)) {
        store_wide_state(p, group, format, m, random);
        return;
    }
    struct state_code c = code_of(format);
    word largest = as_word(m[0]) & word_all(0x7fffffffu);
    for (int i = 1; i < VECTORS; i++) largest = word_max(largest, as_word(m[i]) & word_all(0x7fffffffu));
    uint32_t exponent = group_exponent(largest, scales[group], c.m_bump);
    scales[group] = (uint8_t)exponent;
    if (!exponent) {
        store_zeros(p, group, format);
        return;
    }
    word rounded[VECTORS];
    for (int i = 0; i < VECTORS; i++) rounded[i] = m_round(m[i], random[i], word_all(exponent << 23), 0, c);
    store_m_codes(p, group, format, rounded);
}

/* m and sqrt(v) when v is low-bit; m in any format */
OPTIM_FN void load_rooted(real m[VECTORS], real root[VECTORS], const struct optim_task *t, int m_format,
                          int v_format, int64_t group)
{
    uint32_t exponent = t->scales[group], base = root_base(exponent, code_of(v_format));
    word code[VECTORS];
    if (!exponent)
        for (int i = 0; i < VECTORS; i++) root[i] = m[i] = real_all(0);
    else {
        load_codes(code, t->v, group, v_format == STATE_4BIT, false);
        for (int i = 0; i < VECTORS; i++) root[i] = root_decode(code[i], base, code_of(v_format));
    }
    if (!low_bit(m_format)) load_wide_state(m, t->m, group, m_format);
    else if (exponent) {
        load_codes(code, t->m, group, m_format == STATE_4BIT, true);
        for (int i = 0; i < VECTORS; i++)
            m[i] = m_decode(code[i], as_word(root[i]), t->m_range, code_of(m_format));
    }
}
OPTIM_FN void store_rooted(const struct optim_task *t, int m_format, int v_format, int64_t group,
                           const real m[VECTORS], const real root[VECTORS], const word random_v[VECTORS],
                           const word random_m[VECTORS])
{
    struct state_code c = code_of(v_format);
    word largest = as_word(root[0]);
    for (int i = 1; i < VECTORS; i++) largest = word_max(largest, as_word(root[i]));
    uint32_t exponent = group_exponent(largest, t->scales[group], c.root_bump), base = root_base(exponent, c);
    word bits[VECTORS], rounded[VECTORS];
    t->scales[group] = (uint8_t)exponent;
    if (!low_bit(m_format)) store_wide_state(t->m, group, m_format, m, random_m);
    if (!exponent) {
        store_zeros(t->v, group, v_format);
        if (low_bit(m_format)) store_zeros(t->m, group, m_format);
        return;
    }
    for (int i = 0; i < VECTORS; i++) bits[i] = root_round(root[i], random_v[i], base, c);
    store_root_codes(t->v, group, v_format, bits, base);
    if (!low_bit(m_format)) return;
    for (int i = 0; i < VECTORS; i++)
        rounded[i] = m_round(m[i], random_m[i], root_binade(bits[i]), t->m_range, code_of(m_format));
    store_m_codes(t->m, group, m_format, rounded);
}

OPTIM_FN void load_gradient(real g[VECTORS], const struct optim_task *t, const void *gradient, int64_t group)
{
    if (t->gradient_format == GRADIENT_ACCUMULATOR)
        load_scaled(g, t->gradient, t->gradient_scales, group, t->accumulator_format);
    else load_wide_state(g, gradient, 0, t->gradient_format == GRADIENT_F32 ? STATE_F32 : STATE_BF16);
}

OPTIM_FN void load_weights(real w[VECTORS], const struct optim_task *t, const void *weights, int64_t group)
{
    int format = t->weight_format;
    if (format <= WEIGHTS_F32_COPY) {
        load_wide_state(w, weights, 0, STATE_F32);
        return;
    }
    if (format <= WEIGHTS_BF16_SR) {
        load_wide_state(w, weights, 0, STATE_BF16);
        return;
    }
    for (int i = 0; i < VECTORS; i++) {
        word half = load_high_halves((const uint16_t *)weights + i * LANES), distance;
        if (format == WEIGHTS_20) { /* as load_codes, but in place */
            word both = load_signed_bytes((const uint8_t *)t->correction + group * (OPTIM_GROUP / 2) +
                                          i % (VECTORS / 2) * LANES);
            distance = i < VECTORS / 2 ? (word)((signed_word)(both << 28) >> 16)
                                       : (both << 8) & word_all(0xfffff000u);
        } else if (format == WEIGHTS_24)
            distance = load_signed_bytes((const uint8_t *)t->correction + group * OPTIM_GROUP + i * LANES)
                       << 8;
        else distance = load_signed_halves((const uint16_t *)t->correction + group * OPTIM_GROUP + i * LANES);
        w[i] = as_real(weight_join(half, distance));
    }
}
OPTIM_FN void store_weights(const struct optim_task *t, void *weights, void *copy, int64_t group,
                            const real w[VECTORS], const word random[VECTORS])
{
    int format = t->weight_format;
    if (format <= WEIGHTS_F32_COPY) store_wide_state(weights, 0, STATE_F32, w, random);
    if (format == WEIGHTS_F32_COPY) store_wide_state(copy, 0, STATE_BF16_NEAREST, w, random);
    if (format == WEIGHTS_BF16) store_wide_state(weights, 0, STATE_BF16_NEAREST, w, random);
    if (format == WEIGHTS_BF16_SR) store_wide_state(weights, 0, STATE_BF16, w, random);
    if (format < WEIGHTS_20) return;
    word bits[VECTORS], half[VECTORS], low[VECTORS];
    for (int i = 0; i < VECTORS; i++) {
        bits[i] = as_word(w[i]);
        if (format == WEIGHTS_20) bits[i] = weight_round(bits[i], random[i], 12);
        if (format == WEIGHTS_24) bits[i] = weight_round(bits[i], random[i], 8);
        half[i] = weight_half(bits[i]);
    }
    for (int i = 0; i < VECTORS; i += 2) store_high_halves2((uint16_t *)weights + i * LANES, half + i);
    if (format == WEIGHTS_20) {
        store_nibbles(t->correction, group, bits, 12);
        return;
    }
    for (int i = 0; i < VECTORS; i++)
        low[i] = format == WEIGHTS_24 ? weight_correction(bits[i], 8) : bits[i] << 16;
    if (format == WEIGHTS_24)
        for (int i = 0; i < VECTORS; i += 4)
            store_packed((uint8_t *)t->correction + group * OPTIM_GROUP + i * LANES,
                         pack_halves(low[i], low[i + 1]), pack_halves(low[i + 2], low[i + 3]));
    else
        for (int i = 0; i < VECTORS; i += 2)
            store_high_halves2((uint16_t *)t->correction + group * OPTIM_GROUP + i * LANES, low + i);
}

/* ---- One group --------------------------------------------------------------------------------------- */

struct sums {
    real gradient[PARTS], weight[PARTS],
        update[PARTS]; /* squares, of up to 16 groups, by element % 16; of scaled gradients */
    int64_t bad_groups;
};

OPTIM_FN bool needs_random(const struct optim_task *t)
{
    return t->m_format == STATE_BF16 || t->v_format == STATE_BF16 || low_bit(t->m_format) ||
           low_bit(t->v_format) ||
           (t->rule != RULE_ACCUMULATE && t->weight_format >= WEIGHTS_BF16_SR &&
            t->weight_format != WEIGHTS_32);
}

/* gradient, weights, copy point at the group itself; the rest of the task is found by its index. */
OPTIM_FN void step_group(const struct optim_task *t, bool v_low, int m_format, int v_format, int64_t group,
                         const void *gradient, void *weights, void *copy, const word *words,
                         const struct optim_scalars *s, struct sums *sums)
{
    int rule = t->rule;
    real g[VECTORS], w[VECTORS], m[VECTORS], root[VECTORS], v[VECTORS];
    word random[VECTORS], turned[VECTORS];
    for (int i = 0; i < VECTORS; i++) w[i] = m[i] = root[i] = v[i] = real_all(0);

    load_gradient(g, t, gradient, group);
    real squares[PARTS];
    for (int i = 0; i < PARTS; i++) squares[i] = real_all(0);
    if (s->gradient_scale != 1)
        for (int i = 0; i < VECTORS; i++) g[i] *= s->gradient_scale;
    for (int i = 0; i < VECTORS; i++) squares[i % PARTS] = real_fma(g[i], g[i], squares[i % PARTS]);
    word worst = as_word(squares[0]);
    for (int i = 1; i < PARTS; i++) worst = word_max(worst, as_word(squares[i]));
    if (word_any_reaches(worst, GRADIENT_SQUARES_MAX)) {
        sums->bad_groups++;
        return;
    }
    for (int i = 0; i < PARTS; i++) sums->gradient[i] += squares[i];
    if (words) random_spread(random, words);
    else
        for (int i = 0; i < VECTORS; i++) random[i] = word_all(ROUND_NEAREST);
    if (rule != RULE_ACCUMULATE) load_weights(w, t, weights, group);

    if (rule == RULE_ADAM || rule == RULE_ADAMW || rule == RULE_LAMB) {
        if (rule == RULE_ADAM)
            for (int i = 0; i < VECTORS; i++) g[i] = real_fma(w[i], real_all(s->weight_decay), g[i]);
        if (v_low) {
            load_rooted(m, root, t, m_format, v_format, group);
            for (int i = 0; i < VECTORS; i++) {
                v[i] = rule_average(root[i] * root[i], g[i] * g[i], s->beta2, s->rest2);
                root[i] = real_sqrt(v[i]);
            }
        } else {
            load_scaled(m, t->m, t->scales, group, m_format);
            load_wide_state(v, t->v, group, v_format);
            for (int i = 0; i < VECTORS; i++) {
                v[i] = rule_average(v[i], g[i] * g[i], s->beta2, s->rest2);
                root[i] = real_sqrt(v[i]);
            }
        }
        for (int i = 0; i < VECTORS; i++) m[i] = rule_average(m[i], g[i], s->beta1, s->rest1);
        if (rule == RULE_LAMB)
            for (int i = 0; i < VECTORS; i++) {
                real u = rule_lamb_update(w[i], rule_direction(m[i], root[i], s), s);
                sums->weight[i % PARTS] = real_fma(w[i], w[i], sums->weight[i % PARTS]);
                sums->update[i % PARTS] = real_fma(u, u, sums->update[i % PARTS]);
                w[i] = real_fma(u, real_all(-s->lr), w[i]);
            }
        else
            for (int i = 0; i < VECTORS; i++) {
                if (rule == RULE_ADAMW) w[i] *= s->decay;
                w[i] = real_fma(rule_direction(m[i], root[i], s), real_all(-s->step_size), w[i]);
            }
        if (rule == RULE_LAMB && t->norms_only) return;
    } else if (rule == RULE_LION) {
        load_scaled(m, t->m, t->scales, group, m_format);
        for (int i = 0; i < VECTORS; i++) {
            w[i] = w[i] * s->decay - rule_sign(rule_average(m[i], g[i], s->beta1, s->rest1), s->lr);
            m[i] = rule_average(m[i], g[i], s->beta2, s->rest2);
        }
    } else if (rule == RULE_SGD) {
        for (int i = 0; i < VECTORS; i++) g[i] = real_fma(w[i], real_all(s->weight_decay), g[i]);
        if (m_format != STATE_NONE) {
            load_scaled(m, t->m, t->scales, group, m_format);
            for (int i = 0; i < VECTORS; i++) {
                m[i] = rule_average(m[i], g[i], s->beta1, s->rest1);
                g[i] = s->nesterov ? real_fma(m[i], real_all(s->beta2), g[i]) : m[i];
            }
        }
        for (int i = 0; i < VECTORS; i++) w[i] = real_fma(g[i], real_all(-s->lr), w[i]);
    } else {
        load_scaled(m, t->m, t->scales, group, m_format);
        for (int i = 0; i < VECTORS; i++) m[i] += g[i];
    }

    for (int i = 0; i < VECTORS; i++) turned[i] = RANDOM_M(random, i);
    if (v_low) store_rooted(t, m_format, v_format, group, m, root, random, turned);
    else {
        if (m_format != STATE_NONE) store_scaled(t->m, t->scales, group, m_format, m, turned);
        if (rule <= RULE_ADAMW || rule == RULE_LAMB) store_wide_state(t->v, group, v_format, v, random);
    }
    if (rule == RULE_ACCUMULATE) return;
    for (int i = 0; i < VECTORS; i++) turned[i] = RANDOM_WEIGHT(random, i);
    store_weights(t, weights, copy, group, w, turned);
}

/* ---- A range of groups ------------------------------------------------------------------------------- */

OPTIM_FN double lanes_total(const real x[PARTS])
{
    double total = 0;
    for (int i = 0; i < 16; i++) total += (double)x[i / LANES][i % LANES];
    return total;
}

static inline size_t gradient_bytes(const struct optim_task *t)
{
    return t->gradient_format == GRADIENT_BF16 ? 2 : 4;
}
static inline size_t weight_bytes(const struct optim_task *t)
{
    return t->weight_format <= WEIGHTS_F32_COPY ? 4 : 2;
}

/* Ask for the memory of a later group: the processor's own look-ahead stops at the end of a page, and here
 * are five streams. */
#define AHEAD 16
static inline void prefetch(const void *array, int64_t group, size_t size)
{
    uintptr_t at = (uintptr_t)array + (uintptr_t)group * size;
    for (size_t i = 0; i < size; i += 64) __builtin_prefetch((const void *)(at + i), 1);
}
OPTIM_FN void prefetch_group(const struct optim_task *t, int m_format, int v_format, int64_t group)
{
    if (t->gradient_format != GRADIENT_ACCUMULATOR)
        prefetch(t->gradient, group, gradient_bytes(t) * OPTIM_GROUP);
    prefetch(t->m, group, optim_state_bytes(m_format));
    prefetch(t->v, group, optim_state_bytes(v_format));
    if (t->rule == RULE_ACCUMULATE) return;
    prefetch(t->weights, group, weight_bytes(t) * OPTIM_GROUP);
    prefetch(t->correction, group, optim_correction_bytes(t->weight_format));
}

OPTIM_FN void step_range(const struct optim_task *t, bool v_low, int m_format, int v_format, int64_t begin,
                         int64_t end, struct optim_partial *out)
{
    struct random_keys keys = random_keys(t);
    struct optim_scalars scalars = t->s; /* a copy that no store can change */
    word random[RANDOM_GROUPS][PARTS];
    bool randomly = needs_random(t) && !t->norms_only;
    size_t gb = gradient_bytes(t), wb = weight_bytes(t);
    bool array = t->gradient_format != GRADIENT_ACCUMULATOR, weighted = t->rule != RULE_ACCUMULATE;
    bool copied = t->weight_format == WEIGHTS_F32_COPY && weighted;
    double squares[3] = {0, 0, 0};
    int64_t bad = 0;
    int64_t odd = t->first_group & 1; /* random words come for pairs of groups */
    for (int64_t first = begin - ((begin + odd) & 1); first < end; first += RANDOM_GROUPS) {
        if (randomly) random_fill(&keys, t->first_group + first, random);
        struct sums sums = {.bad_groups = 0};
        for (int i = 0; i < PARTS; i++) sums.gradient[i] = sums.weight[i] = sums.update[i] = real_all(0);
        for (int64_t group = first < begin ? begin : first; group < end && group < first + RANDOM_GROUPS;
             group++) {
            size_t at = (size_t)group * OPTIM_GROUP, tail = 0;
            prefetch_group(t, m_format, v_format, group + AHEAD);
            const char *gradient = array ? (const char *)t->gradient + at * gb : NULL;
            char *weights = weighted ? (char *)t->weights + at * wb : NULL;
            uint16_t *copy = copied ? (uint16_t *)t->copy + at : NULL;
            float padded_gradient[OPTIM_GROUP], padded_weights[OPTIM_GROUP];
            uint16_t padded_copy[OPTIM_GROUP];
            if (at + OPTIM_GROUP > (size_t)t->count) { /* the last, short group is stepped in padded copies */
                tail = (size_t)t->count - at;
                memset(padded_gradient, 0, sizeof padded_gradient);
                memset(padded_weights, 0, sizeof padded_weights);
                if (array) gradient = memcpy(padded_gradient, gradient, tail * gb);
                if (weighted) weights = memcpy(padded_weights, weights, tail * wb);
                if (copied) copy = memcpy(padded_copy, copy, tail * 2);
            }
            step_group(t, v_low, m_format, v_format, group, gradient, weights, copy,
                       randomly ? random[group - first] : NULL, &scalars, &sums);
            if (!tail || !weighted || t->norms_only) continue;
            memcpy((char *)t->weights + at * wb, padded_weights, tail * wb);
            if (copied) memcpy((uint16_t *)t->copy + at, padded_copy, tail * 2);
        }
        squares[0] += lanes_total(sums.gradient);
        if (t->rule == RULE_LAMB) {
            squares[1] += lanes_total(sums.weight);
            squares[2] += lanes_total(sums.update);
        }
        bad += sums.bad_groups;
    }
    double scale = (double)t->s.gradient_scale, unscaled = scale != 0 ? squares[0] / (scale * scale) : 0;
    *out = (struct optim_partial){unscaled, squares[1], squares[2], bad};
}

/* Copies of the loop for the formats that have to be fast; the other choices are branches that predict well.
 */
void OPTIM_NAME(optim_step)(const struct optim_task *t, int64_t begin, int64_t end, struct optim_partial *out)
{
    int m = t->m_format, v = t->v_format;
    if (v == STATE_8BIT && m == STATE_8BIT) step_range(t, true, STATE_8BIT, STATE_8BIT, begin, end, out);
    else if (low_bit(v)) step_range(t, true, m, v, begin, end, out);
    else if (v == STATE_NONE && m == STATE_8BIT)
        step_range(t, false, STATE_8BIT, STATE_NONE, begin, end, out);
    else if (v == STATE_BF16 && m == STATE_BF16)
        step_range(t, false, STATE_BF16, STATE_BF16, begin, end, out);
    else step_range(t, false, m, v, begin, end, out);
}

/* ---- Conversions ------------------------------------------------------------------------------------- */

/* fp32 to the format, to nearest, and back. values: padded to whole groups from group `begin`. */
void OPTIM_NAME(optim_weights_in)(const struct optim_task *t, int64_t begin, int64_t end, const float *values)
{
    for (int64_t group = begin; group < end; group++, values += OPTIM_GROUP) {
        real w[VECTORS];
        word half[VECTORS];
        size_t at = (size_t)group * OPTIM_GROUP, wb = weight_bytes(t);
        size_t count = (size_t)t->count - at < OPTIM_GROUP ? (size_t)t->count - at : OPTIM_GROUP;
        float weights[OPTIM_GROUP];
        uint16_t copy[OPTIM_GROUP];
        load_wide_state(w, values, 0, STATE_F32);
        for (int i = 0; i < VECTORS; i++) half[i] = word_all(ROUND_NEAREST);
        if (t->weight_format == WEIGHTS_BF16_SR) store_wide_state(weights, 0, STATE_BF16_NEAREST, w, half);
        else store_weights(t, weights, copy, group, w, half);
        memcpy((char *)t->weights + at * wb, weights, count * wb);
        if (t->weight_format == WEIGHTS_F32_COPY) memcpy((uint16_t *)t->copy + at, copy, count * 2);
    }
}
void OPTIM_NAME(optim_weights_out)(const struct optim_task *t, int64_t begin, int64_t end, float *values)
{
    for (int64_t group = begin; group < end; group++, values += OPTIM_GROUP) {
        real w[VECTORS];
        size_t at = (size_t)group * OPTIM_GROUP, wb = weight_bytes(t);
        size_t count = (size_t)t->count - at < OPTIM_GROUP ? (size_t)t->count - at : OPTIM_GROUP;
        float weights[OPTIM_GROUP] = {0};
        memcpy(weights, (const char *)t->weights + at * wb, count * wb);
        load_weights(w, t, weights, group);
        store_wide_state(values, 0, STATE_F32, w, NULL);
    }
}
/* v NULL where the rule has none */
void OPTIM_NAME(optim_state_in)(const struct optim_task *t, int64_t begin, int64_t end, const float *m,
                                const float *v)
{
    for (int64_t group = begin; group < end; group++, m += OPTIM_GROUP, v = v ? v + OPTIM_GROUP : NULL) {
        real x[VECTORS], y[VECTORS];
        word half[VECTORS];
        for (int i = 0; i < VECTORS; i++) half[i] = word_all(ROUND_NEAREST);
        load_wide_state(x, m, 0, STATE_F32);
        if (v) load_wide_state(y, v, 0, STATE_F32);
        if (v && low_bit(t->v_format)) {
            for (int i = 0; i < VECTORS; i++) y[i] = real_sqrt(y[i]);
            store_rooted(t, t->m_format, t->v_format, group, x, y, half, half);
            continue;
        }
        store_scaled(t->m, t->scales, group, t->m_format == STATE_BF16 ? STATE_BF16_NEAREST : t->m_format, x,
                     half);
        if (v)
            store_wide_state(t->v, group, t->v_format == STATE_BF16 ? STATE_BF16_NEAREST : t->v_format, y,
                             half);
    }
}
void OPTIM_NAME(optim_state_out)(const struct optim_task *t, int64_t begin, int64_t end, float *m, float *v)
{
    for (int64_t group = begin; group < end; group++, m += OPTIM_GROUP, v = v ? v + OPTIM_GROUP : NULL) {
        real x[VECTORS], y[VECTORS];
        for (int i = 0; i < VECTORS; i++) x[i] = y[i] = real_all(0);
        if (v && low_bit(t->v_format)) {
            load_rooted(x, y, t, t->m_format, t->v_format, group);
            for (int i = 0; i < VECTORS; i++) y[i] *= y[i];
        } else {
            load_scaled(x, t->m, t->scales, group, t->m_format);
            if (v) load_wide_state(y, t->v, group, t->v_format);
        }
        store_wide_state(m, 0, STATE_F32, x, NULL);
        if (v) store_wide_state(v, 0, STATE_F32, y, NULL);
    }
}
