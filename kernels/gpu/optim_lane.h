/* A lane's part of a group of 64 elements in optim.hip: eight elements, loaded from and stored in every
 * format of gradients, weights and states, with the arithmetic of kernels/optim_math.h.
 *
 * Lane u of eight (an octet) has the elements 16 i + 2 u + j (i 0..3, j 0..1), so that both nibbles of a byte
 * of a 4-bit state are in one lane.
 */
#ifndef MEOPT_GPU_OPTIM_LANE_H
#define MEOPT_GPU_OPTIM_LANE_H

#include "kernels/gpu/vendor.h"
#include "kernels/optim_task.h"

/* A float whose operations are rounded separately: compilers may fuse a * b + c of plain floats. */
struct real {
    float x;
    real() = default;
    DEVICE_METHOD real(float value) : x(value) {}
};
typedef uint32_t word;
typedef real single;
#define OPTIM_FN DEVICE
OPTIM_FN real operator+(real a, real b) { return exact_add(a.x, b.x); }
OPTIM_FN real operator-(real a, real b) { return exact_add(a.x, -b.x); }
OPTIM_FN real operator*(real a, real b) { return exact_mul(a.x, b.x); }
OPTIM_FN real operator/(real a, real b) { return exact_div(a.x, b.x); }
OPTIM_FN word as_word(real a)
{
    union {
        float f;
        uint32_t u;
    } x;
    x.f = a.x;
    return x.u;
}
OPTIM_FN real as_real(word u)
{
    union {
        uint32_t u;
        float f;
    } x;
    x.u = u;
    return x.f;
}
OPTIM_FN real constant_real(uint32_t bits) { return as_real(bits); }
OPTIM_FN real real_all(real x) { return x; }
OPTIM_FN real real_sqrt(real a) { return exact_sqrt(a.x); }
OPTIM_FN real real_fma(real a, real b, real c) { return fmaf(a.x, b.x, c.x); }
/* -b: where a is an fma itself, GCC makes one instruction of it and its sign, with another zero. */
OPTIM_FN real real_fnma(real a, real b, real c) { return fmaf(a.x, -b.x, c.x); }
OPTIM_FN real real_limit(real a, real limit)
{
    a = a.x > -limit.x ? a : real(-limit.x);
    return a.x < limit.x ? a : limit;
}
OPTIM_FN word word_all(word x) { return x; }
OPTIM_FN word word_max(word a, word b) { return a > b ? a : b; }
OPTIM_FN word word_nonzero(real a) { return a.x != 0.0f ? 0xffffffffu : 0u; }
OPTIM_FN word word_min(word a, word b) { return a < b ? a : b; }
OPTIM_FN word word_at_least(word a, uint32_t limit) { return a >= limit ? 0xffffffffu : 0u; }
OPTIM_FN word word_where_nonzero(real x, word a, word b) { return x.x != 0.0f ? a : b; }
OPTIM_FN real real_of(word a) { return (float)(int32_t)a; }
OPTIM_FN word word_of(real a) { return (word)(int32_t)a.x; }
OPTIM_FN single single_of(uint32_t a) { return (float)(int32_t)a; }
OPTIM_FN uint32_t single_whole(single a) { return (uint32_t)(int32_t)a.x; }
OPTIM_FN uint32_t bits_of(single a) { return as_word(a); }
OPTIM_FN real operator-(real a) { return -a.x; }
#include "kernels/optim_math.h"

enum { OCTET = 8, LANE_ELEMENTS = 8 };

/* Returns the index in the group of a lane's k-th element. */
DEVICE int element(int k, int u) { return k / 2 * 16 + 2 * u + k % 2; }

DEVICE state_code code_of(int format)
{
    const state_code code8 = STATE_CODE_8, code4 = STATE_CODE_4;
    return format == STATE_8BIT ? code8 : code4;
}
DEVICE word octet_max(word x)
{
    for (int mask = 1; mask < OCTET; mask *= 2)
        x = word_max(x, (word)wave_xor((int)x, mask)); /* bits of positive floats, or less than 2^31 */
    return x;
}

/* Loads and stores of a lane's eight elements. `left` elements of the group exist; whole groups are accessed
 * two elements at a time. */

/* Two neighbours are one access of twice their width. Compilers split structs of two and copies of bytes. */
template <class T> DEVICE T load_whole(const void *p) { return *in_memory((const T *)p); }
template <class T> DEVICE void store_whole(void *p, T x) { *in_memory((T *)p) = x; }
DEVICE bool by_twos(const void *p, int bytes, int64_t left)
{
    return left >= OPTIM_GROUP && (uintptr_t)p % (2 * bytes) == 0;
}

DEVICE void load_reals(real x[LANE_ELEMENTS], const void *p, int u, int64_t left)
{
    const float *f = (const float *)p;
    if (by_twos(p, 4, left))
        for (int i = 0; i < 4; i++) {
            uint64_t two = load_whole<uint64_t>(f + 16 * i + 2 * u);
            x[2 * i] = as_real((word)two);
            x[2 * i + 1] = as_real((word)(two >> 32));
        }
    else
        for (int k = 0; k < LANE_ELEMENTS; k++)
            x[k] = element(k, u) < left ? as_real(load_whole<uint32_t>(f + element(k, u))) : 0.0f;
}
DEVICE void store_reals(void *p, const real x[LANE_ELEMENTS], int u, int64_t left)
{
    float *f = (float *)p;
    if (by_twos(p, 4, left))
        for (int i = 0; i < 4; i++)
            store_whole<uint64_t>(f + 16 * i + 2 * u, as_word(x[2 * i]) | (uint64_t)as_word(x[2 * i + 1])
                                                                              << 32);
    else
        for (int k = 0; k < LANE_ELEMENTS; k++)
            if (element(k, u) < left) store_whole<uint32_t>(f + element(k, u), as_word(x[k]));
}
DEVICE void load_halves(word x[LANE_ELEMENTS], const void *p, int u, int64_t left)
{
    const uint16_t *h = (const uint16_t *)p;
    if (by_twos(p, 2, left))
        for (int i = 0; i < 4; i++) {
            word two = load_whole<uint32_t>(h + 16 * i + 2 * u);
            x[2 * i] = two & 0xffffu;
            x[2 * i + 1] = two >> 16;
        }
    else
        for (int k = 0; k < LANE_ELEMENTS; k++)
            x[k] = element(k, u) < left ? load_whole<uint16_t>(h + element(k, u)) : 0u;
}
DEVICE void store_halves(void *p, const word x[LANE_ELEMENTS], int u, int64_t left)
{
    uint16_t *h = (uint16_t *)p;
    if (by_twos(p, 2, left))
        for (int i = 0; i < 4; i++)
            store_whole<uint32_t>(h + 16 * i + 2 * u, (x[2 * i] & 0xffffu) | x[2 * i + 1] << 16);
    else
        for (int k = 0; k < LANE_ELEMENTS; k++)
            if (element(k, u) < left) store_whole<uint16_t>(h + element(k, u), (uint16_t)x[k]);
}
/* Codes are padded to whole groups, at even addresses. 4 bits: byte b holds element b in its lower half and
 * element b + 32 in its upper half. */
DEVICE void load_codes(word code[LANE_ELEMENTS], const void *p, int64_t group, bool four, int u)
{
    const uint8_t *b = (const uint8_t *)p + group * (four ? OPTIM_GROUP / 2 : OPTIM_GROUP) + 2 * u;
    for (int i = 0; i < (four ? 2 : 4); i++) {
        word two = load_whole<uint16_t>(b + 16 * i), low = two & 255u, high = two >> 8;
        code[2 * i] = four ? low & 15u : low;
        code[2 * i + 1] = four ? high & 15u : high;
        if (four) code[2 * i + 4] = low >> 4, code[2 * i + 5] = high >> 4;
    }
}
DEVICE void store_codes(void *p, int64_t group, bool four, const word code[LANE_ELEMENTS], int u)
{
    uint8_t *b = (uint8_t *)p + group * (four ? OPTIM_GROUP / 2 : OPTIM_GROUP) + 2 * u;
    for (int i = 0; i < (four ? 2 : 4); i++) {
        word low = code[2 * i], high = code[2 * i + 1];
        if (four) low |= code[2 * i + 4] << 4, high |= code[2 * i + 5] << 4;
        store_whole<uint16_t>(b + 16 * i, (uint16_t)((low & 255u) | high << 8));
    }
}
DEVICE word sign_extended(word code, bool four) { return four ? (code ^ 8u) - 8u : (code ^ 0x80u) - 0x80u; }

DEVICE void load_wide(real x[LANE_ELEMENTS], const void *p, int64_t group, int format, int u, int64_t left)
{
    if (format == STATE_F32) {
        load_reals(x, (const float *)p + group * OPTIM_GROUP, u, left);
        return;
    }
    word half[LANE_ELEMENTS];
    load_halves(half, (const uint16_t *)p + group * OPTIM_GROUP, u, left);
    for (int k = 0; k < LANE_ELEMENTS; k++) x[k] = as_real(half[k] << 16);
}
DEVICE void store_wide(void *p, int64_t group, int format, const real x[LANE_ELEMENTS],
                       const word random[LANE_ELEMENTS], int u, int64_t left)
{
    if (format == STATE_F32) {
        store_reals((float *)p + group * OPTIM_GROUP, x, u, left);
        return;
    }
    word half[LANE_ELEMENTS];
    for (int k = 0; k < LANE_ELEMENTS; k++)
        half[k] = (format == STATE_BF16 ? bf16_stochastic(as_word(x[k]), random[k])
                                        : bf16_nearest(as_word(x[k]))) >>
                  16;
    store_halves((uint16_t *)p + group * OPTIM_GROUP, half, u, left);
}

/* m with the group's exponent as its scale */
DEVICE void load_scaled(real m[LANE_ELEMENTS], const void *p, const uint8_t *scales, int64_t group,
                        int format, int u)
{
    if (!OPTIM_LOW_BIT(format)) {
        load_wide(m, p, group, format, u, OPTIM_GROUP);
        return;
    }
    word code[LANE_ELEMENTS];
    bool four = format == STATE_4BIT;
    uint32_t exponent = load_whole<uint8_t>(scales + group);
    load_codes(code, p, group, four, u);
    for (int k = 0; k < LANE_ELEMENTS; k++) {
        m[k] =
            exponent ? m_decode(code[k] << (four ? 28 : 24), exponent << 23, 0, code_of(format)) : real(0.0f);
    }
}
/* Every lane of a wave calls it; `write`: store this octet's group. */
DEVICE void store_scaled(void *p, uint8_t *scales, int64_t group, int format, const real m[LANE_ELEMENTS],
                         const word random[LANE_ELEMENTS], int u, bool write)
{
    if (!OPTIM_LOW_BIT(format)) {
        if (write) store_wide(p, group, format, m, random, u, OPTIM_GROUP);
        return;
    }
    state_code c = code_of(format);
    word largest = 0, code[LANE_ELEMENTS];
    for (int k = 0; k < LANE_ELEMENTS; k++) largest = word_max(largest, as_word(m[k]) & 0x7fffffffu);
    uint32_t exponent = state_exponent(octet_max(largest), c.m_bump);
    for (int k = 0; k < LANE_ELEMENTS; k++)
        code[k] = exponent ? m_code(m_round(m[k], random[k], exponent << 23, 0, c), c) : 0u;
    if (!write) return;
    if (u == 0) store_whole(scales + group, (uint8_t)exponent);
    store_codes(p, group, format == STATE_4BIT, code, u);
}

/* m and sqrt(v) when v is low-bit; m in any format */
DEVICE void load_rooted(real m[LANE_ELEMENTS], real root[LANE_ELEMENTS], const optim_task *t, int m_format,
                        int v_format, int64_t group, int u)
{
    uint32_t exponent = load_whole<uint8_t>(t->scales + group), base = root_base(exponent, code_of(v_format));
    word code[LANE_ELEMENTS];
    load_codes(code, t->v, group, v_format == STATE_4BIT, u);
    for (int k = 0; k < LANE_ELEMENTS; k++)
        root[k] = exponent ? root_decode(code[k], base, code_of(v_format)) : real(0.0f);
    if (!OPTIM_LOW_BIT(m_format)) {
        load_wide(m, t->m, group, m_format, u, OPTIM_GROUP);
        return;
    }
    load_codes(code, t->m, group, m_format == STATE_4BIT, u);
    for (int k = 0; k < LANE_ELEMENTS; k++) {
        word c = code[k] << (m_format == STATE_4BIT ? 28 : 24);
        m[k] = exponent ? m_decode(c, as_word(root[k]), t->m_range, code_of(m_format)) : real(0.0f);
    }
}
DEVICE void store_rooted(const optim_task *t, int m_format, int v_format, int64_t group,
                         const real m[LANE_ELEMENTS], const real root[LANE_ELEMENTS],
                         const word random_v[LANE_ELEMENTS], const word random_m[LANE_ELEMENTS], int u,
                         bool write)
{
    state_code c = code_of(v_format), d = code_of(m_format);
    word largest = 0, code[LANE_ELEMENTS], codes_m[LANE_ELEMENTS];
    for (int k = 0; k < LANE_ELEMENTS; k++) largest = word_max(largest, as_word(root[k]));
    uint32_t exponent = state_exponent(octet_max(largest), c.root_bump), base = root_base(exponent, c);
    for (int k = 0; k < LANE_ELEMENTS; k++) {
        word rounded = root_round(root[k], random_v[k], base, c);
        code[k] = exponent ? (rounded >> c.shift) - base : 0u;
        codes_m[k] = exponent && OPTIM_LOW_BIT(m_format)
                         ? m_code(m_round(m[k], random_m[k], root_binade(rounded), t->m_range, d), d)
                         : 0u;
    }
    if (!write) return;
    if (u == 0) store_whole(t->scales + group, (uint8_t)exponent);
    store_codes(t->v, group, v_format == STATE_4BIT, code, u);
    if (OPTIM_LOW_BIT(m_format)) store_codes(t->m, group, m_format == STATE_4BIT, codes_m, u);
    else store_wide(t->m, group, m_format, m, random_m, u, OPTIM_GROUP);
}

/* ---- 8-bit m without v, on a grid per group ---- */

DEVICE void load_m_grid(real m[LANE_ELEMENTS], m_grid *grid, const optim_task *t, int64_t group, int u)
{
    word code[LANE_ELEMENTS];
    *grid = m_grid_read(load_whole<uint16_t>(t->scales + group * M_GRID_HEADER));
    load_codes(code, t->m, group, false, u);
    for (int k = 0; k < LANE_ELEMENTS; k++) m[k] = m_grid_decode(code[k] << 24, grid);
}
/* Every lane of a wave calls it; `write`: store this octet's group. */
DEVICE void store_m_grid(const optim_task *t, int64_t group, const m_grid *old, const real m[LANE_ELEMENTS],
                         const real gradient[LANE_ELEMENTS], int u, bool write)
{
    bool lion = t->rule == RULE_LION;
    word most = 0, least = 0xffffffffu, code[LANE_ELEMENTS];
    for (int k = 0; k < LANE_ELEMENTS; k++) {
        word size = as_word(m[k]) & 0x7fffffffu;
        most = word_max(most, size);
        if (lion) size = word_max(size, as_word(gradient[k] * t->s.rest1) & 0x7fffffffu);
        least = word_min(least, size - 1u); /* without zeros */
    }
    uint32_t largest = octet_max(most), smallest = ~octet_max(~least) + 1u;
    uint32_t key = t->key[0] ^ t->key[1],
             first = (uint32_t)((t->first_group + group) % THRESHOLD_SETS) * OPTIM_GROUP;
    m_grid g = m_grid_fit(lion ? smallest : m_grid_low_sgd(largest), largest, old,
                          m_grid_refit_due(t->updates, t->first_group + group));
    for (int k = 0; k < LANE_ELEMENTS; k++)
        code[k] = m_grid_code(m[k], word_min(m_grid_bits_above_low(m[k], &g), g.reach),
                              m_grid_threshold(t->updates, key, first + (uint32_t)element(k, u)), &g);
    if (!write) return;
    if (u == 0) store_whole(t->scales + group * M_GRID_HEADER, (uint16_t)m_grid_header(&g));
    store_codes(t->m, group, false, code, u);
}

/* ---- Joint codes: m and sqrt(v) in 16 bits; elements e % 8 of a lane: 2 u % 8 and the next ---- */

DEVICE uint32_t octet_or(uint32_t x)
{
    for (int mask = 1; mask < OCTET; mask *= 2) x |= (uint32_t)wave_xor((int)x, mask);
    return x;
}
DEVICE bool eighth_is_small(uint32_t bits, int k, int u) { return bits >> ((2 * u + k % 2) % 8) & 1u; }

/* m: m / root, times `beta` */
DEVICE void load_joint(real m[LANE_ELEMENTS], real root[LANE_ELEMENTS], joint_grid *grid, const optim_task *t,
                       int64_t group, float beta, int u)
{
    uint32_t header = load_whole<uint32_t>(t->scales + group * JOINT_HEADER);
    joint_grid g = joint_grid_read(header, RULE_HAS(t->rule, WITH_POINTS));
    word codes[LANE_ELEMENTS];
    load_halves(codes, (const uint16_t *)t->m + group * OPTIM_GROUP, u, OPTIM_GROUP);
    *grid = g;
    real unit[2];
    for (int j = 0; j < 2; j++)
        unit[j] = joint_ratio(header >> 17 & 127u, RULE_HAS(t->rule, WITH_POINTS)) * g.most_inverse * beta *
                  (eighth_is_small(header >> 24, j, u) ? constant_real(JOINT_SMALL) : real(1.0f));
    for (int k = 0; k < LANE_ELEMENTS; k++) {
        real joint = real_of(codes[k]) - g.middle, code = joint_v_code(joint, &g);
        root[k] = g.low ? joint_root(code, &g) : as_real(JOINT_ZERO_ROOT);
        m[k] = g.low ? joint_m_code(joint, code, &g) * unit[k % 2] : real(0.0f);
    }
}
/* m: m / root. Every lane of a wave calls it; `write`: store this octet's group. Returns whether the group is
 * saturated. */
DEVICE bool store_joint(const optim_task *t, int64_t group, const joint_grid *old, real m[LANE_ELEMENTS],
                        const real root[LANE_ELEMENTS], int u, bool write)
{
    word largest = 0, least = 0xffffffffu, codes[LANE_ELEMENTS], ratios[2] = {0, 0};
    for (int k = 0; k < LANE_ELEMENTS; k++) {
        largest = word_max(largest, as_word(root[k]));
        least = word_min(least, as_word(root[k]) - JOINT_MIN_ROOT);
    }
    largest = octet_max(largest);
    word smallest = ~octet_max(~least) + JOINT_MIN_ROOT;
    bool points = RULE_HAS(t->rule, WITH_POINTS), none = largest < JOINT_MIN_ROOT, zero = none && !points;
    if (none) smallest = largest = JOINT_MIN_ROOT;
    uint32_t low, range;
    bool other = joint_grid_fit(smallest, largest, old, joint_refit_due(t->updates), &low, &range);
    joint_grid g = other ? joint_grid_make(low, range, points) : *old;
    uint32_t key = t->key[0] ^ t->key[1],
             first = (uint32_t)((t->first_group + group) % THRESHOLD_SETS) * OPTIM_GROUP;
    real code[LANE_ELEMENTS], scale[2];
    for (int k = 0; k < LANE_ELEMENTS; k++) {
        real threshold = joint_threshold_v(t->updates, key, first + (uint32_t)element(k, u));
        word bits = none && points ? JOINT_MIN_ROOT : as_word(root[k]); /* m lasts without any gradient */
        code[k] = joint_v_round(joint_bits_above_low(bits, threshold, &g), threshold, &g);
        if (!points) m[k] = joint_ratio_stored(m[k], root[k], &g);
        ratios[k % 2] = word_max(ratios[k % 2], as_word(m[k]) & 0x7fffffffu);
    }
    for (int j = 0; j < 2; j++) ratios[j] = word_max(ratios[j], (word)wave_xor((int)ratios[j], OCTET / 2));
    uint32_t ratio = joint_ratio_code(octet_max(word_max(ratios[0], ratios[1])), points), eighths = 0;
    single top = joint_ratio(ratio, points), codes_of = g.most * joint_ratio_inverse(ratio, points);
    for (int j = 0; j < 2; j++) {
        bool small = ratios[j] <= bits_of(joint_small(top));
        eighths |= (word)small << ((2 * u + j) % 8);
        scale[j] = codes_of * (small ? constant_real(JOINT_SMALL_INVERSE) : real(1.0f));
    }
    eighths = octet_or(eighths);
    for (int k = 0; k < LANE_ELEMENTS; k++)
        codes[k] = zero ? 0u
                        : joint_code(code[k], real_limit(m[k], top), scale[k % 2],
                                     joint_threshold_m(t->updates, key, first + (uint32_t)element(k, u)), &g);
    if (!write) return false;
    store_halves((uint16_t *)t->m + group * OPTIM_GROUP, codes, u, OPTIM_GROUP);
    if (u == 0) store_whole(t->scales + group * JOINT_HEADER, zero ? 0u : joint_header(&g, ratio, eighths));
    return !zero && joint_grid_is_widest(&g);
}

DEVICE void load_gradient(real g[LANE_ELEMENTS], const optim_task *t, int64_t group, int u, int64_t left)
{
    if (t->gradient_format == GRADIENT_ACCUMULATOR)
        load_scaled(g, t->gradient, t->gradient_scales, group, t->accumulator_format, u);
    else if (t->gradient_format == GRADIENT_F16) {
        word half[LANE_ELEMENTS];
        load_halves(half, (const uint16_t *)t->gradient + group * OPTIM_GROUP, u, left);
        for (int k = 0; k < LANE_ELEMENTS; k++) g[k] = f16_read(half[k]);
    } else
        load_wide(g, t->gradient, group, t->gradient_format == GRADIENT_F32 ? STATE_F32 : STATE_BF16, u,
                  left);
}
DEVICE void load_weights(real w[LANE_ELEMENTS], const optim_task *t, int64_t group, int u, int64_t left)
{
    int format = t->weight_format;
    if (format <= WEIGHTS_BF16_SR) {
        load_wide(w, t->weights, group, format <= WEIGHTS_F32_COPY ? STATE_F32 : STATE_BF16, u, left);
        return;
    }
    word half[LANE_ELEMENTS], low[LANE_ELEMENTS];
    load_halves(half, (const uint16_t *)t->weights + group * OPTIM_GROUP, u, left);
    if (format == WEIGHTS_32)
        load_halves(low, (const uint16_t *)t->correction + group * OPTIM_GROUP, u, OPTIM_GROUP);
    else load_codes(low, t->correction, group, format == WEIGHTS_20, u);
    for (int k = 0; k < LANE_ELEMENTS; k++)
        w[k] =
            as_real(weight_join(half[k] << 16, format == WEIGHTS_32   ? (low[k] ^ 0x8000u) - 0x8000u
                                               : format == WEIGHTS_24 ? sign_extended(low[k], false) << 8
                                                                      : sign_extended(low[k], true) << 12));
}
DEVICE void store_weights(const optim_task *t, int64_t group, const real w[LANE_ELEMENTS],
                          const word random[LANE_ELEMENTS], int u, int64_t left)
{
    int format = t->weight_format;
    if (format <= WEIGHTS_F32_COPY) store_wide(t->weights, group, STATE_F32, w, random, u, left);
    word half[LANE_ELEMENTS], low[LANE_ELEMENTS];
    if (format == WEIGHTS_F32_COPY && t->copy_f16) {
        for (int k = 0; k < LANE_ELEMENTS; k++) half[k] = f16_nearest(w[k]);
        store_halves((uint16_t *)t->copy + group * OPTIM_GROUP, half, u, left);
    } else if (format == WEIGHTS_F32_COPY) store_wide(t->copy, group, STATE_BF16_NEAREST, w, random, u, left);
    if (format == WEIGHTS_BF16) store_wide(t->weights, group, STATE_BF16_NEAREST, w, random, u, left);
    if (format == WEIGHTS_BF16_SR) store_wide(t->weights, group, STATE_BF16, w, random, u, left);
    if (format < WEIGHTS_20) return;
    int drop = format == WEIGHTS_20 ? 12 : format == WEIGHTS_24 ? 8 : 0;
    for (int k = 0; k < LANE_ELEMENTS; k++) {
        word bits = weight_round(as_word(w[k]), random[k], drop);
        half[k] = weight_half(bits) >> 16;
        low[k] = weight_residual(bits, drop);
    }
    store_halves((uint16_t *)t->weights + group * OPTIM_GROUP, half, u, left);
    if (format == WEIGHTS_32)
        store_halves((uint16_t *)t->correction + group * OPTIM_GROUP, low, u, OPTIM_GROUP);
    else store_codes(t->correction, group, format == WEIGHTS_20, low, u);
}

#endif
