/* Loads and stores groups of 64 elements in every weight, state and gradient format (kernels/optim_math.h),
 * for kernels/cpu/optim_kernel.h. */
#ifndef MEOPT_KERNELS_CPU_OPTIM_FORMATS_H
#define MEOPT_KERNELS_CPU_OPTIM_FORMATS_H

#include <stdbool.h>

#include "kernels/cpu/optim.h"
#include "kernels/cpu/optim_vector.h"
#include "kernels/optim_math.h"

#define VECTORS    (OPTIM_GROUP / LANES)
#define SUBVECTORS (16 / LANES)

/* Loads the codes of a group, with `high` to the highest bits. 4 bits: byte k (0..31) holds element k in its
 * lower half and element k + 32 in its upper half. */
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
/* Stores bits `at` to at + 3 of each element as nibbles; at >= 4. */
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

OPTIM_FN struct state_code code_of(int format)
{
    static const struct state_code code8 = STATE_CODE_8, code4 = STATE_CODE_4;
    return format == STATE_8BIT ? code8 : code4;
}

/* Returns state_exponent of the largest lane. It rarely changes between steps, and a comparison is cheaper
 * than finding the largest lane. */
OPTIM_FN uint32_t group_exponent(word largest, uint32_t old, uint32_t bump)
{
    bool compare = LANES == 16 && old;
    if (compare && word_any_reaches(largest, (old << 23) - bump) &&
        !word_any_reaches(largest, ((old + 1) << 23) - bump))
        return old;
    return state_exponent(word_largest(largest), bump);
}

/* Computes m_code in both halves of a word. */
OPTIM_FN word m_code_halves(word rounded, struct state_code c)
{
    word magnitudes = word_all((c.m_codes - 1) * 0x10001u);
    return (rounded & magnitudes) | (shift_halves(rounded, c.m_fold) & ~magnitudes);
}
/* rounded: results of m_round */
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
                         m_code_halves(pack_halves(rounded[i], rounded[i + 1]), c),
                         m_code_halves(pack_halves(rounded[i + 2], rounded[i + 3]), c));
}
/* bits: results of root_round */
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
    if (!OPTIM_LOW_BIT(format)) {
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
    if (!OPTIM_LOW_BIT(format)) {
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
    if (!OPTIM_LOW_BIT(m_format)) load_wide_state(m, t->m, group, m_format);
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
    if (!OPTIM_LOW_BIT(m_format)) store_wide_state(t->m, group, m_format, m, random_m);
    if (!exponent) {
        store_zeros(t->v, group, v_format);
        if (OPTIM_LOW_BIT(m_format)) store_zeros(t->m, group, m_format);
        return;
    }
    for (int i = 0; i < VECTORS; i++) bits[i] = root_round(root[i], random_v[i], base, c);
    store_root_codes(t->v, group, v_format, bits, base);
    if (!OPTIM_LOW_BIT(m_format)) return;
    for (int i = 0; i < VECTORS; i++)
        rounded[i] = m_round(m[i], random_m[i], root_binade(bits[i]), t->m_range, code_of(m_format));
    store_m_codes(t->m, group, m_format, rounded);
}

/* ---- 8-bit m without v, on a grid per group ---- */

/* Shared by the groups of a range: a grid of each width, with the lowest c, and m_grid_threshold of each
 * element. */
struct m_grids {
    struct m_grid grid[32];
    real threshold[THRESHOLD_SETS][VECTORS];
};
OPTIM_FN void m_grids_make(struct m_grids *s, const struct optim_task *t)
{
    word e;
    for (uint32_t range = 0; range < 32; range++) s->grid[range] = m_grid_make(M_GRID_MIN_LOW, range);
    for (int k = 0; k < LANES; k++) e[k] = (uint32_t)k;
    for (int i = 0; i < THRESHOLD_SETS * VECTORS; i++, e += LANES)
        s->threshold[i / VECTORS][i % VECTORS] = m_grid_threshold(t->updates, t->key[0] ^ t->key[1], e);
}
OPTIM_FN uint32_t load_m_grid_header(const struct optim_task *t, int64_t group)
{
    uint16_t header;
    memcpy(&header, t->scales + group * M_GRID_HEADER, sizeof header);
    return header;
}
OPTIM_FN void load_m_grid(real m[VECTORS], const struct optim_task *t, int64_t group, const struct m_grid *g)
{
    word code[VECTORS];
    load_codes(code, t->m, group, false, true);
    for (int i = 0; i < VECTORS; i++) m[i] = m_grid_decode(code[i], g);
}
/* The range of values that a grid must cover. */
struct m_extent {
    word most,
        least;      /* bits of the largest |m|; of the requested low end minus 1, so that zeros are ignored */
    bool converted; /* Lion's m, converted without a gradient */
};
OPTIM_FN struct m_extent m_extent_find(const struct optim_task *t, const real m[VECTORS],
                                       const real *gradient)
{
    struct m_extent seen = {word_all(0), word_all(~0u), t->rule == RULE_LION && !gradient};
    for (int i = 0; i < VECTORS; i++) {
        word size = as_word(m[i]) & word_all(0x7fffffffu);
        seen.most = word_max(seen.most, size);
        if (gradient) size = word_max(size, as_word(gradient[i] * t->s.rest1) & word_all(0x7fffffffu));
        seen.least = word_min(seen.least, size - word_all(1));
    }
    return seen;
}
/* Returns the header of a group whose grid may no longer fit. */
static __attribute__((noinline)) uint32_t m_grid_refit(const struct optim_task *t, uint32_t header,
                                                       struct m_extent seen, bool due)
{
    struct m_grid old = m_grid_read(header), g;
    uint32_t largest = word_largest(seen.most), smallest = ~word_largest(~seen.least) + 1;
    if (seen.converted && smallest + M_GRID_CONVERTED < largest) smallest = largest - M_GRID_CONVERTED;
    g = m_grid_fit(t->rule == RULE_LION ? smallest : m_grid_low_sgd(largest), largest, &old, due);
    return m_grid_header(&g);
}
OPTIM_FN void store_m_grid(const struct optim_task *t, int64_t group, struct m_grid g, const real m[VECTORS],
                           const real *gradient, const real threshold[VECTORS], bool due)
{
    word code[VECTORS], farthest = word_all(0);
    for (int i = 0; i < VECTORS; i++) {
        code[i] = m_grid_bits_above_low(m[i], &g);
        farthest = word_max(farthest, code[i]);
    }
    if (due || word_any_reaches(farthest, g.reach + 1)) {
        uint16_t header = (uint16_t)m_grid_refit(t, m_grid_header(&g), m_extent_find(t, m, gradient), due);
        g = m_grid_read(header);
        memcpy(t->scales + group * M_GRID_HEADER, &header, sizeof header);
        for (int i = 0; i < VECTORS; i++)
            code[i] = word_min(m_grid_bits_above_low(m[i], &g), word_all(g.reach));
    }
    for (int i = 0; i < VECTORS; i++) code[i] = m_grid_code(m[i], code[i], threshold[i], &g);
    for (int i = 0; i < VECTORS; i += 4)
        store_packed((uint8_t *)t->m + group * OPTIM_GROUP + i * LANES, pack_halves(code[i], code[i + 1]),
                     pack_halves(code[i + 2], code[i + 3]));
}
/* Stores m of a group, rounded to nearest, on a new grid. */
OPTIM_FN void store_m_grid_nearest(const struct optim_task *t, int64_t group, const real m[VECTORS])
{
    real nearest[VECTORS];
    for (int i = 0; i < VECTORS; i++) nearest[i] = real_all(M_GRID_NEAREST);
    store_m_grid(t, group, m_grid_read(0), m, NULL, nearest, true);
}
/* ---- Joint codes: m and sqrt(v) in 16 bits ---- */

/* Lanes by element % 8: vector i belongs to set i % EIGHTHS. */
#define EIGHTHS (LANES < 8 ? 8 / LANES : 1)
OPTIM_FN lanes eighth_lanes(uint32_t bits, int set) { return lanes_of_bits(bits * 0x101u >> set * LANES); }
OPTIM_FN uint32_t load_header(const struct optim_task *t, int64_t group)
{
    uint32_t header;
    memcpy(&header, t->scales + group * JOINT_HEADER, sizeof header);
    return header;
}

/* Computes m / root per code of m, times `beta`, for each eighth. */
OPTIM_FN void joint_m_scales(real unit[EIGHTHS], uint32_t header, const struct joint_grid *g, float beta,
                             bool points)
{
    for (int i = 0; i < EIGHTHS; i++)
        unit[i] = lanes_times(eighth_lanes(header >> 24, i),
                              real_all(joint_ratio(header >> 17 & 127u, points) * g->most_inverse * beta),
                              constant_real(JOINT_SMALL));
}
/* ratio: m / root times the beta of joint_m_scales */
OPTIM_FN void load_joint_vector(real *ratio, real *root, const uint16_t *codes, int i,
                                const real unit[EIGHTHS], const struct joint_grid *g)
{
    real joint = load_halves_less(codes + i * LANES, g->middle), code = joint_v_code(joint, g);
    *root = joint_root(code, g);
    *ratio = joint_m_code(joint, code, g) * unit[i % EIGHTHS];
}
OPTIM_FN void load_joint_zeros(real *ratio, real *root)
{
    *ratio = real_all(0);
    *root = as_real(word_all(JOINT_ZERO_ROOT));
}
OPTIM_FN void load_joint(real m[VECTORS], real root[VECTORS], const struct optim_task *t, int64_t group)
{
    uint32_t header = load_header(t, group);
    struct joint_grid g = joint_grid_read(header, RULE_HAS(t->rule, WITH_POINTS));
    real unit[EIGHTHS];
    joint_m_scales(unit, header, &g, 1, RULE_HAS(t->rule, WITH_POINTS));
    for (int i = 0; i < VECTORS; i++) {
        if (g.low)
            load_joint_vector(&m[i], &root[i], (const uint16_t *)t->m + group * OPTIM_GROUP, i, unit, &g);
        else load_joint_zeros(&m[i], &root[i]);
        if (!RULE_HAS(t->rule, WITH_POINTS)) m[i] *= root[i];
    }
}

/* The data of a group between loading and storing its codes. */
struct joint_work {
    /* m, then m / root; v, then its root, then the code of v plus 1/2 */
    real m[VECTORS], root[VECTORS];
    real direction[VECTORS]; /* WITH_POINTS: at first the gradient */
    real largest[EIGHTHS];   /* |m| / root of each eighth */
    real scale[EIGHTHS];     /* m / root per code of m; then codes of m per 1 */
    uint32_t header;
    struct joint_grid grid; /* the grid it is loaded with, then the grid it is stored with */
    int64_t group;
    uint32_t smallest; /* root of the group, from JOINT_MIN_ROOT on, as joint_fit found it; 0: not called */
    bool active;       /* it steps, and its values must be stored */
};
/* joint_threshold_v and joint_threshold_m of each element of a group */
struct joint_thresholds {
    real v[VECTORS], m[VECTORS];
};
OPTIM_FN void joint_thresholds(struct joint_thresholds d[THRESHOLD_SETS], const struct optim_task *t)
{
    word e;
    for (int k = 0; k < LANES; k++) e[k] = (uint32_t)k;
    for (int i = 0; i < THRESHOLD_SETS * VECTORS; i++) {
        d[i / VECTORS].v[i % VECTORS] = joint_threshold_v(t->updates, t->key[0] ^ t->key[1], e);
        d[i / VECTORS].m[i % VECTORS] = joint_threshold_m(t->updates, t->key[0] ^ t->key[1], e);
        e += LANES;
    }
}
OPTIM_FN void joint_thresholds_nearest(struct joint_thresholds *d)
{
    for (int i = 0; i < VECTORS; i++) {
        d->v[i] = real_all(JOINT_NEAREST_V);
        d->m[i] = real_all(JOINT_NEAREST_M);
    }
}

/* Cache of grids by width: copying a grid is faster than its divisions. */
struct joint_grids {
    uint64_t made; /* one bit per width */
    struct joint_grid grid[64];
};
OPTIM_FN void joint_grid_cached(struct joint_grids *grids, uint32_t low, uint32_t range, struct joint_grid *g,
                                bool points)
{
    if (!LIKELY(grids->made >> range & 1u)) {
        grids->grid[range] = joint_grid_make(0, range, points);
        grids->made |= (uint64_t)1 << range;
    }
    *g = grids->grid[range];
    g->low = low;
    g->base = single_of(low) - g->step;
}

/* Chooses the grid of a group whose grid may no longer fit. */
OPTIM_FN void joint_fit(const struct optim_task *t, struct joint_work *w, struct joint_grids *grids)
{
    word most = as_word(w->root[0]), least = most - word_all(JOINT_MIN_ROOT);
    for (int i = 1; i < VECTORS; i++) {
        most = word_max(most, as_word(w->root[i]));
        least = word_min(least, as_word(w->root[i]) - word_all(JOINT_MIN_ROOT));
    }
    uint32_t largest = word_largest(most);
    bool points = RULE_HAS(t->rule, WITH_POINTS);
    w->smallest = ~word_largest(~least) + JOINT_MIN_ROOT;
    if (largest < JOINT_MIN_ROOT && points) { /* m lasts without any gradient */
        for (int i = 0; i < VECTORS; i++) w->root[i] = as_real(word_all(JOINT_MIN_ROOT));
        w->smallest = largest = JOINT_MIN_ROOT;
    }
    uint32_t low, range;
    if (largest < JOINT_MIN_ROOT) w->grid.low = 0;
    else if (joint_grid_fit(w->smallest, largest, &w->grid, joint_refit_due(t->updates), &low, &range))
        joint_grid_cached(grids, low, range, &w->grid, points);
}
/* Takes the roots and ratios as they are read from the group's new grid. Stores a group of zeros at once. */
static __attribute__((noinline)) void joint_refit(const struct optim_task *t, struct joint_work *w,
                                                  const struct joint_thresholds *d, word above[VECTORS])
{
    if (!w->grid.low) {
        memset(t->scales + w->group * JOINT_HEADER, 0, JOINT_HEADER);
        memset((uint16_t *)t->m + w->group * OPTIM_GROUP, 0, 2 * OPTIM_GROUP);
        w->active = false;
        return;
    }
    for (int i = 0; i < VECTORS; i++) above[i] = joint_bits_above_low(as_word(w->root[i]), d->v[i], &w->grid);
    if (w->smallest < w->grid.low && !RULE_HAS(t->rule, WITH_POINTS))
        for (int i = 0; i < VECTORS; i++) w->m[i] = joint_ratio_stored(w->m[i], w->root[i], &w->grid);
}
/* Computes the codes of v, and the largest |m| / root of each eighth. Adds 1 to *wide_groups if the group is
 * saturated. */
OPTIM_FN void joint_round(const struct optim_task *t, struct joint_work *w, const struct joint_thresholds *d,
                          struct joint_grids *grids, int64_t *wide_groups)
{
    word above[VECTORS], farthest = word_all(0);
    real largest[EIGHTHS];
    for (int i = 0; i < VECTORS; i++) {
        above[i] = as_word(w->root[i]) - word_all(w->grid.low);
        farthest = word_max(farthest, above[i]);
    }
    if (!LIKELY(!w->smallest && w->grid.low && !word_any_reaches(farthest, w->grid.width + 1))) {
        if (!w->smallest) joint_fit(t, w, grids);
        joint_refit(t, w, d, above);
        if (!w->active) return;
    }
    *wide_groups += joint_grid_is_widest(&w->grid);
    for (int i = 0; i < EIGHTHS; i++) largest[i] = real_all(0);
    for (int i = 0; i < VECTORS; i++) {
        w->root[i] = joint_v_round(above[i], d->v[i], &w->grid);
        largest[i % EIGHTHS] = real_largest(w->m[i], largest[i % EIGHTHS]);
    }
    for (int i = 0; i < EIGHTHS; i++) w->largest[i] = largest[i];
}
/* Tables by the code of the largest ratio. */
struct joint_ratios {
    single small[128], inverse[128]; /* joint_small, joint_ratio_inverse */
    bool points;                     /* of a rule WITH_POINTS */
};
OPTIM_FN void joint_ratios(struct joint_ratios *r, bool points)
{
    r->points = points;
    for (uint32_t code = 0; code < 128; code++) {
        r->small[code] = joint_small(joint_ratio(code, points));
        r->inverse[code] = joint_ratio_inverse(code, points);
    }
}
/* Chooses the scales of the ratios, and makes the header. */
OPTIM_FN void joint_scale(struct joint_work *w, const struct joint_ratios *ratios)
{
    real all = w->largest[0];
    if (LANES == 16) all = real_largest(all, as_real(word_swap_eights(as_word(all))));
    w->largest[0] = all;
    for (int i = 1; i < EIGHTHS; i++) all = real_largest(all, w->largest[i]);
    uint32_t largest = word_largest_of_eight(as_word(all)), ratio = joint_ratio_code(largest, ratios->points),
             eighths = 0;
    single top = joint_ratio(ratio, ratios->points);
    real codes_of = real_all(w->grid.most) * real_all(ratios->inverse[ratio]),
         least = real_all(ratios->small[ratio]);
    if (!LIKELY(largest <= bits_of(top)))
        for (int i = 0; i < VECTORS; i++) w->m[i] = real_limit(w->m[i], top);
    for (int i = 0; i < EIGHTHS; i++) {
        lanes small = lanes_at_most(w->largest[i], least);
        eighths |= (lanes_bits(small) & 255u) << (i * LANES);
        w->scale[i] = lanes_times(small, codes_of, constant_real(JOINT_SMALL_INVERSE));
    }
    w->header = joint_header(&w->grid, ratio, eighths);
}
/* Stores the joint codes and the header. */
OPTIM_FN void joint_store(const struct optim_task *t, const struct joint_work *w,
                          const struct joint_thresholds *d)
{
    uint16_t *codes = (uint16_t *)t->m + w->group * OPTIM_GROUP;
    for (int i = 0; i < VECTORS; i += 2) {
        word joint[2];
        for (int k = i; k < i + 2; k++)
            joint[k - i] = joint_code(w->root[k], w->m[k], w->scale[k % EIGHTHS], d->m[k], &w->grid);
        store_halves2(codes + i * LANES, joint);
    }
    memcpy(t->scales + w->group * JOINT_HEADER, &w->header, sizeof w->header);
}
/* Stores m and roots of a group, rounded to nearest, on a new grid. */
OPTIM_FN void store_joint_nearest(const struct optim_task *t, int64_t group, const real m[VECTORS],
                                  const real root[VECTORS], const struct joint_ratios *ratios)
{
    struct joint_work work = {.grid = {.low = 0}, .group = group, .active = true};
    struct joint_thresholds nearest;
    int64_t wide_groups = 0;
    struct joint_grids grids = {.made = 0};
    joint_thresholds_nearest(&nearest);
    for (int i = 0; i < VECTORS; i++) {
        work.root[i] = as_real(word_max(as_word(root[i]), word_all(JOINT_ZERO_ROOT)));
        work.m[i] = ratios->points ? m[i] : m[i] / work.root[i];
    }
    joint_round(t, &work, &nearest, &grids, &wide_groups);
    if (!work.active) return;
    joint_scale(&work, ratios);
    joint_store(t, &work, &nearest);
}

OPTIM_FN void load_gradient(real g[VECTORS], const struct optim_task *t, const void *gradient, int64_t group)
{
    if (t->gradient_format == GRADIENT_ACCUMULATOR)
        load_scaled(g, t->gradient, t->gradient_scales, group, t->accumulator_format);
    else if (t->gradient_format == GRADIENT_F16)
        for (int i = 0; i < VECTORS; i++)
            g[i] = f16_read(load_halves((const uint16_t *)gradient + i * LANES));
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
        if (format == WEIGHTS_20) { /* like load_codes, but in place */
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
    if (format == WEIGHTS_F32_COPY && t->copy_f16)
        for (int i = 0; i < VECTORS; i += 2) {
            word half[2] = {f16_nearest(w[i]), f16_nearest(w[i + 1])};
            store_halves2((uint16_t *)copy + i * LANES, half);
        }
    else if (format == WEIGHTS_F32_COPY) store_wide_state(copy, 0, STATE_BF16_NEAREST, w, random);
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
        low[i] = format == WEIGHTS_24 ? weight_residual(bits[i], 8) : bits[i] << 16;
    if (format == WEIGHTS_24)
        for (int i = 0; i < VECTORS; i += 4)
            store_packed((uint8_t *)t->correction + group * OPTIM_GROUP + i * LANES,
                         pack_halves(low[i], low[i + 1]), pack_halves(low[i + 2], low[i + 3]));
    else
        for (int i = 0; i < VECTORS; i += 2)
            store_high_halves2((uint16_t *)t->correction + group * OPTIM_GROUP + i * LANES, low + i);
}

#endif
