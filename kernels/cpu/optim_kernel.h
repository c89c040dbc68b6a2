/* One optimizer step over groups of 64 elements. kernels/cpu/optim_{avx512,avx2,plain}.c compile this file
 * for three instruction sets (OPTIM_NAME adds the suffix). Each group is loaded once, stepped in registers
 * and stored once.
 */
#include "kernels/cpu/optim_formats.h"
#include "kernels/philox.h"

/* ---- Random bits -------------------------------------------------------------------------------------- */
/* Two groups share eight Philox blocks. Element e of group g has word 2 (g % 2) + e % 2 of block 8 (g / 2) +
 * e % 16 / 2, rotated left by 8 (e / 16) bits. Its highest bits round v. Rotated by 8 more bits it rounds the
 * weight, by 16 more m, so that the leading bytes of the three roundings are independent.
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

/* Computes the words of RANDOM_GROUPS groups from an even one: LANES / 2 blocks at a time in 64-bit lanes, of
 * which the low halves hold counters. Several vectors at a time, because a round waits for its products. */
#define RANDOM_GROUPS  16
#define RANDOM_VECTORS (LANES == 16 ? 8 : 2)
static void random_fill(const struct random_keys *keys, int64_t group, word random[RANDOM_GROUPS][SUBVECTORS])
{
    uint64_t block = (uint64_t)group / 2 * 8;
    wide zero = (wide){0};
    for (uint64_t i = 0; i < RANDOM_GROUPS / 2 * SUBVECTORS; i += RANDOM_VECTORS) {
        wide c[RANDOM_VECTORS][4];
        for (uint64_t j = 0; j < RANDOM_VECTORS; j++) {
            uint64_t first = block + (i + j) * (LANES / 2);
            c[j][0] = lane_indices() + (first & 0xffffffffu);
            c[j][1] = zero + (first >> 32);
            c[j][2] = zero + keys->step[0];
            c[j][3] = zero + keys->step[1];
        }
        for (int round = 0; round < 10; round++)
            for (int j = 0; j < RANDOM_VECTORS; j++) {
                wide p0 = multiply_even(c[j][0], PHILOX_M0), p1 = multiply_even(c[j][2], PHILOX_M1);
                c[j][0] = wide_high(p1) ^ c[j][1] ^ keys->k0[round];
                c[j][2] = wide_high(p0) ^ c[j][3] ^ keys->k1[round];
                c[j][1] = p1;
                c[j][3] = p0;
            }
        for (uint64_t j = 0; j < RANDOM_VECTORS; j++)
            for (uint64_t k = 0; k < 2; k++)
                random[(i + j) / SUBVECTORS * 2 + k][(i + j) % SUBVECTORS] =
                    (word)((c[j][2 * k] & 0xffffffffu) | (c[j][2 * k + 1] << 32));
    }
}

OPTIM_FN void random_rotate(word random[VECTORS], const word words[SUBVECTORS])
{
    for (int i = 0; i < VECTORS; i++) {
        word x = words[i % SUBVECTORS];
        int turn = i / SUBVECTORS * 8;
        if (turn) x = (x << turn) | (x >> (32 - turn));
        random[i] = x;
    }
}
/* Random words of vector i, for v, weight and m */
#define RANDOM_V(random, i)      (random)[i]
#define RANDOM_WEIGHT(random, i) (random)[((i) + SUBVECTORS) % VECTORS]
#define RANDOM_M(random, i)      (random)[((i) + 2 * SUBVECTORS) % VECTORS]

/* ---- One group --------------------------------------------------------------------------------------- */

struct sums {
    real gradient[SUBVECTORS], weight[SUBVECTORS],
        update[SUBVECTORS]; /* squares, of up to 16 groups, by element % 16; of scaled gradients */
    int64_t bad_groups, wide_groups;
};

OPTIM_FN bool uses_m_grid(const struct optim_task *t)
{
    return OPTIM_M_GRID(t->m_format, t->v_format) && t->rule != RULE_ACCUMULATE;
}
OPTIM_FN bool needs_random(const struct optim_task *t)
{
    return t->m_format == STATE_BF16 || t->v_format == STATE_BF16 ||
           (!OPTIM_JOINT(t->m_format, t->v_format) && !uses_m_grid(t) &&
            (OPTIM_LOW_BIT(t->m_format) || OPTIM_LOW_BIT(t->v_format))) ||
           (t->rule != RULE_ACCUMULATE && t->weight_format >= WEIGHTS_BF16_SR &&
            t->weight_format != WEIGHTS_32);
}

/* Steps a group with a rule without v. grid: of 8-bit m. */
OPTIM_FN void step_momentum(const struct optim_task *t, int m_format, int64_t group, real g[VECTORS],
                            real w[VECTORS], real m[VECTORS], const struct m_grid *grid)
{
    const struct optim_scalars *s = &t->s;
    int rule = t->rule;
    if (uses_m_grid(t)) load_m_grid(m, t, group, grid);
    else if (m_format != STATE_NONE) load_scaled(m, t->m, t->scales, group, m_format);
    if (rule == RULE_LION)
        for (int i = 0; i < VECTORS; i++) {
            w[i] = w[i] * s->decay - rule_sign(rule_average(m[i], g[i], s->beta1, s->rest1), s->lr);
            m[i] = rule_average(m[i], g[i], s->beta2, s->rest2);
        }
    else if (rule == RULE_ACCUMULATE)
        for (int i = 0; i < VECTORS; i++) m[i] += g[i];
    else if (rule == RULE_MUON)
        for (int i = 0; i < VECTORS; i++) {
            m[i] = rule_average(m[i], g[i], s->beta1, s->rest1);
            w[i] = s->nesterov ? rule_average(m[i], g[i], s->beta1, s->rest1) : m[i];
        }
    else if (rule == RULE_APPLY)
        for (int i = 0; i < VECTORS; i++) w[i] = real_fma(g[i], real_all(-s->lr), w[i] * s->decay);
    else {
        for (int i = 0; i < VECTORS; i++) g[i] = real_fma(w[i], real_all(s->weight_decay), g[i]);
        if (m_format != STATE_NONE)
            for (int i = 0; i < VECTORS; i++) {
                m[i] = rule_average(m[i], g[i], s->beta1, s->rest1);
                g[i] = s->nesterov ? real_fma(m[i], real_all(s->beta2), g[i]) : m[i];
            }
        for (int i = 0; i < VECTORS; i++) w[i] = real_fma(g[i], real_all(-s->lr), w[i]);
    }
}

/* Loads the gradient of a group, times gradient_scale. Returns false if the group must be skipped. */
OPTIM_FN bool step_gradient(const struct optim_task *t, int64_t group, const void *gradient, real g[VECTORS],
                            struct sums *sums)
{
    load_gradient(g, t, gradient, group);
    real squares[SUBVECTORS];
    for (int i = 0; i < SUBVECTORS; i++) squares[i] = real_all(0);
    if (!LIKELY(t->s.gradient_scale == 1))
        for (int i = 0; i < VECTORS; i++) g[i] *= t->s.gradient_scale;
    for (int i = 0; i < VECTORS; i++) squares[i % SUBVECTORS] = real_fma(g[i], g[i], squares[i % SUBVECTORS]);
    word worst = as_word(squares[0]);
    for (int i = 1; i < SUBVECTORS; i++) worst = word_max(worst, as_word(squares[i]));
    if (!LIKELY(!word_any_reaches(worst, GRADIENT_SQUARES_MAX))) {
        sums->bad_groups++;
        return false;
    }
    for (int i = 0; i < SUBVECTORS; i++) sums->gradient[i] += squares[i];
    return true;
}

/* The rules:
 *
 *   m' = beta1 m + rest1 g, v' = beta2 v + rest2 g^2, rest = 1 - beta
 *   d = m' / (root_scale sqrt(v') + eps); root_scale and step_size hold the bias corrections of torch.optim:
 *   step_size d = lr m_hat / (sqrt(v_hat) + eps)
 *
 *   Adam        g += weight_decay w first; w -= step_size d
 *   AdamW       w = decay w - step_size d, decay = 1 - lr weight_decay
 *   LAMB        u = step_size d + weight_decay w, step_size without lr; w -= lr u. lr includes the tensor's
 *               trust ratio |w| / |u|, from a first pass over all groups (norms_only: sums, no stores)
 *   Lion        w = decay w - lr sign(beta1 m + rest1 g); m' = beta2 m + rest2 g
 *   SGD         g += weight_decay w; m' = momentum m + rest1 g, rest1 = 1 - dampening; w -= lr m', or with
 *               nesterov lr (g + momentum m')
 *   accumulate  m' = m + g
 *   Muon        m' = momentum m + (1 - momentum) g; instead of the weights, the matrix to orthogonalize is
 *               stored: m', or with nesterov momentum m' + (1 - momentum) g
 *   apply       w = decay w - lr g; g is that matrix, orthogonalized
 *   schedule-free: rule_points
 *   Adafactor   u = g / max(root, root_floor); root: of row quotient times column mean, or of a vector's v' =
 *               beta2 v + rest2 (g^2 + eps); m' = beta1 m + rest1 lr u; w = decay w - m', or - lr u without
 *               m. lr and decay follow from the norms of w and u of a first pass (norms_only)
 *
 * step_weight updates the weights of vector i, for rules with v; quotient: rule_quotient of the new moments;
 * WITH_POINTS of the gradient, and m changes, too. */
OPTIM_FN void step_weight(const struct optim_task *t, real w[VECTORS], real m[VECTORS], real quotient, int i,
                          struct sums *sums)
{
    const struct optim_scalars *s = &t->s;
    if (RULE_HAS(t->rule, WITH_POINTS)) {
        rule_points(&w[i], &m[i], quotient, s);
        return;
    }
    if (RULE_HAS(t->rule, WITH_TRUST)) {
        w[i] *= s->decay;
        real u = rule_lamb_update(w[i], rule_direction(quotient, s), s);
        sums->weight[i % SUBVECTORS] = real_fma(w[i], w[i], sums->weight[i % SUBVECTORS]);
        sums->update[i % SUBVECTORS] = real_fma(u, u, sums->update[i % SUBVECTORS]);
        w[i] = real_fma(u, real_all(-s->lr), w[i]);
        return;
    }
    if (t->rule == RULE_APADAMW) w[i] *= s->decay;
    w[i] = real_fnma(rule_direction(quotient, s), real_all(s->step_size), w[i]);
}
OPTIM_FN void weights_write(const struct optim_task *t, int64_t group, void *weights, void *copy,
                            const real w[VECTORS], const word random[VECTORS])
{
    word rotated[VECTORS];
    for (int i = 0; i < VECTORS; i++) rotated[i] = RANDOM_WEIGHT(random, i);
    store_weights(t, weights, copy, group, w, rotated);
}
OPTIM_FN void random_of(word random[VECTORS], const word *words)
{
    if (words) random_rotate(random, words);
    else
        for (int i = 0; i < VECTORS; i++) random[i] = word_all(ROUND_NEAREST);
}

#include "kernels/cpu/optim_factored.h"

/* gradient, weights, copy point at the group itself; the rest of the task is found by its index. shared: of
 * spans. Pairs: optim_pairs.h. */
OPTIM_FN void step_group(const struct optim_task *t, int64_t group, const void *gradient, void *weights,
                         void *copy, const word *words, const struct m_grids *shared, struct sums *sums)
{
    int rule = t->rule, m_format = t->m_format, v_format = t->v_format;
    bool v_low = OPTIM_LOW_BIT(v_format);
    const struct optim_scalars *s = &t->s;
    real g[VECTORS], w[VECTORS], m[VECTORS], root[VECTORS], v[VECTORS];
    word random[VECTORS], rotated[VECTORS];
    struct m_grid grid;
    if (uses_m_grid(t)) {
        uint32_t header = load_m_grid_header(t, group);
        grid = shared->grid[header >> 11];
        m_grid_set_low(&grid, m_grid_low(header));
    }
    for (int i = 0; i < VECTORS; i++) w[i] = m[i] = root[i] = v[i] = real_all(0);
    if (!step_gradient(t, group, gradient, g, sums)) return;
    random_of(random, words);
    if (rule != RULE_ACCUMULATE) load_weights(w, t, weights, group);
    if (RULE_HAS(rule, WITH_V)) {
        if (rule == RULE_APADAM)
            for (int i = 0; i < VECTORS; i++) g[i] = real_fma(w[i], real_all(s->weight_decay), g[i]);
        if (v_low) {
            load_rooted(m, root, t, m_format, v_format, group);
            for (int i = 0; i < VECTORS; i++) v[i] = root[i] * root[i];
        } else {
            load_scaled(m, t->m, t->scales, group, m_format);
            load_wide_state(v, t->v, group, v_format);
        }
        for (int i = 0; i < VECTORS; i++) {
            v[i] = rule_average(v[i], g[i] * g[i], s->beta2, s->rest2);
            root[i] = real_sqrt(v[i]);
        }
        bool points = RULE_HAS(rule, WITH_POINTS);
        for (int i = 0; i < VECTORS && !points; i++) m[i] = rule_average(m[i], g[i], s->beta1, s->rest1);
        for (int i = 0; i < VECTORS; i++)
            step_weight(t, w, m, rule_quotient(points ? g[i] : m[i], root[i], s), i, sums);
        if (RULE_HAS(rule, WITH_TRUST) && t->norms_only) return;
    } else if (RULE_HAS(rule, WITH_FACTORS)) {
        if (!step_factored(t, group, g, w, m, v, &grid, sums)) return;
    } else step_momentum(t, m_format, group, g, w, m, &grid);

    for (int i = 0; i < VECTORS; i++) rotated[i] = RANDOM_M(random, i);
    if (uses_m_grid(t))
        store_m_grid(t, group, grid, m, rule == RULE_LION ? g : NULL,
                     shared->threshold[(uint64_t)(t->first_group + group) % THRESHOLD_SETS],
                     m_grid_refit_due(t->updates, t->first_group + group));
    else if (v_low) store_rooted(t, m_format, v_format, group, m, root, random, rotated);
    else {
        if (m_format != STATE_NONE) store_scaled(t->m, t->scales, group, m_format, m, rotated);
        if (v_format != STATE_NONE) store_wide_state(t->v, group, v_format, v, random);
    }
    if (rule != RULE_ACCUMULATE) weights_write(t, group, weights, copy, w, random);
}

/* ---- A range of groups ------------------------------------------------------------------------------- */

OPTIM_FN double lanes_total(const real x[SUBVECTORS])
{
    double total = 0;
    for (int i = 0; i < 16; i++) total += (double)x[i / LANES][i % LANES];
    return total;
}

static inline size_t gradient_bytes(const struct optim_task *t)
{
    return t->gradient_format == GRADIENT_F32 ? 4 : 2;
}

/* Prefetches a later group. The hardware prefetcher stops at page boundaries, and there are five streams. */
#define PREFETCH_GROUPS 16
static inline void prefetch(const void *array, int64_t group, size_t size)
{
    uintptr_t at = (uintptr_t)array + (uintptr_t)group * size;
#pragma GCC unroll 4
    for (size_t i = 0; i < 256; i += 64) /* no array has more bytes per group */
        if (i < size) __builtin_prefetch((const void *)(at + i), 1);
}
OPTIM_FN void prefetch_group(const struct optim_task *t, int64_t group)
{
    bool joint = OPTIM_JOINT(t->m_format, t->v_format);
    if (t->gradient_format != GRADIENT_ACCUMULATOR)
        prefetch(t->gradient, group, gradient_bytes(t) * OPTIM_GROUP);
    prefetch(t->m, group, optim_state_bytes(t->m_format) * (joint ? 2 : 1));
    if (!joint) prefetch(t->v, group, optim_state_bytes(t->v_format));
    if (t->rule == RULE_ACCUMULATE) return;
    prefetch(t->weights, group, optim_weight_bytes(t->weight_format) * OPTIM_GROUP);
    prefetch(t->correction, group, optim_residual_bytes(t->weight_format));
}

/* Addresses of a group in the caller's arrays, or in the padded copies. */
struct group_at {
    const void *gradient;
    void *weights, *copy;
};
/* The last, short group is stepped in padded copies. */
struct padded_group {
    float gradient[OPTIM_GROUP], weights[OPTIM_GROUP];
    uint16_t copy[OPTIM_GROUP];
};
OPTIM_FN struct group_at group_at(const struct optim_task *t, int64_t group,
                                  struct padded_group *padded_group)
{
    size_t gb = gradient_bytes(t), wb = optim_weight_bytes(t->weight_format),
           at = (size_t)group * OPTIM_GROUP;
    bool array = t->gradient_format != GRADIENT_ACCUMULATOR, weighted = t->rule != RULE_ACCUMULATE;
    bool copied = t->weight_format == WEIGHTS_F32_COPY && weighted;
    struct group_at g = {.gradient = array ? (const char *)t->gradient + at * gb : NULL,
                         .weights = weighted ? (char *)t->weights + at * wb : NULL,
                         .copy = copied ? (uint16_t *)t->copy + at : NULL};
    if (LIKELY(at + OPTIM_GROUP <= (size_t)t->count)) return g;
    size_t tail = (size_t)t->count - at;
    memset(padded_group, 0, sizeof *padded_group);
    if (array) g.gradient = memcpy(padded_group->gradient, g.gradient, tail * gb);
    if (weighted) g.weights = memcpy(padded_group->weights, g.weights, tail * wb);
    if (copied) g.copy = memcpy(padded_group->copy, g.copy, tail * 2);
    return g;
}
OPTIM_FN void group_write_back(const struct optim_task *t, int64_t group, const struct group_at *g)
{
    size_t at = (size_t)group * OPTIM_GROUP;
    if (LIKELY(at + OPTIM_GROUP <= (size_t)t->count) || !g->weights || t->norms_only) return;
    size_t wb = optim_weight_bytes(t->weight_format), tail = (size_t)t->count - at;
    memcpy((char *)t->weights + at * wb, g->weights, tail * wb);
    if (g->copy) memcpy((uint16_t *)t->copy + at, g->copy, tail * 2);
}

/* State of a loop over groups: random words, and sums over batches of 16 that begin at an even group of the
 * whole tensor. */
struct range_run {
    struct random_keys keys;
    word random[2 * RANDOM_GROUPS][SUBVECTORS];
    int64_t first; /* of the first batch: two groups share random words */
    bool randomly;
    struct sums sums;
    double squares[3];
};
OPTIM_FN void range_begin(const struct optim_task *t, struct range_run *r, int64_t begin)
{
    r->keys = random_keys(t);
    r->first = begin - ((begin + t->first_group) & 1);
    r->randomly = needs_random(t) && !t->norms_only;
    memset(&r->sums, 0, sizeof r->sums);
    memset(r->squares, 0, sizeof r->squares);
}
OPTIM_FN const word *range_words(const struct range_run *r, int64_t group)
{
    return r->randomly ? r->random[(uint64_t)(group - r->first) % (2 * RANDOM_GROUPS)] : NULL;
}
/* Computes the random words of the next RANDOM_GROUPS groups when `group` is the first of them. */
OPTIM_FN void range_random(const struct optim_task *t, struct range_run *r, int64_t group, int64_t begin)
{
    uint64_t at = (uint64_t)(group - r->first), in = at % RANDOM_GROUPS;
    if (!r->randomly || (in && group != begin)) return;
    random_fill(&r->keys, t->first_group + group - (int64_t)in, r->random + (at - in) % (2 * RANDOM_GROUPS));
}
/* Adds up the gradient sums of the previous batch if `group` begins a new one. */
OPTIM_FN void range_group_begin(struct range_run *r, int64_t group)
{
    if ((uint64_t)(group - r->first) % OPTIM_BATCH) return;
    r->squares[0] += lanes_total(r->sums.gradient);
    for (int i = 0; i < SUBVECTORS; i++) r->sums.gradient[i] = real_all(0);
}
OPTIM_FN void range_sum_weights(const struct optim_task *t, struct range_run *r)
{
    if (!RULE_HAS_NORMS(t->rule)) return;
    r->squares[1] += lanes_total(r->sums.weight);
    r->squares[2] += lanes_total(r->sums.update);
    for (int i = 0; i < SUBVECTORS; i++) r->sums.weight[i] = r->sums.update[i] = real_all(0);
}
/* Adds up the weight sums if `group` ends a batch. */
OPTIM_FN void range_group_end(const struct optim_task *t, struct range_run *r, int64_t group)
{
    if ((uint64_t)(group + 1 - r->first) % OPTIM_BATCH == 0) range_sum_weights(t, r);
}

#include "kernels/cpu/optim_joint.h"

#include "kernels/cpu/optim_factor_sums.h"

OPTIM_FN void step_each(const struct optim_task *t, int64_t begin, int64_t end, struct range_run *r)
{
    struct padded_group padded_group;
    struct m_grids shared;
    if (uses_m_grid(t)) m_grids_make(&shared, t);
    for (int64_t group = begin; group < end; group++) {
        range_random(t, r, group, begin);
        range_group_begin(r, group);
        prefetch_group(t, group + PREFETCH_GROUPS);
        struct group_at at = group_at(t, group, &padded_group);
        step_group(t, group, at.gradient, at.weights, at.copy, range_words(r, group), &shared, &r->sums);
        group_write_back(t, group, &at);
        range_group_end(t, r, group);
    }
}

/* task: formats and rule may be compile-time constants. A copy, so that the compiler knows no store changes
 * it. */
OPTIM_FN void step_range(struct optim_task task, int64_t begin, int64_t end, struct optim_partial *out)
{
    const struct optim_task *t = &task;
    struct range_run r;
    range_begin(t, &r, begin);
    if (OPTIM_JOINT(task.m_format, task.v_format)) step_joint(t, begin, end, &r);
    else step_each(t, begin, end, &r);
    r.squares[0] += lanes_total(r.sums.gradient);
    range_sum_weights(t, &r);
    double scale = (double)t->s.gradient_scale, unscaled = scale != 0 ? r.squares[0] / (scale * scale) : 0;
    if (task.rule == RULE_APPLY) { /* the rest is of the gradient */
        if (r.sums.bad_groups > out->bad_groups) out->bad_groups = r.sums.bad_groups;
        return;
    }
    *out =
        (struct optim_partial){unscaled, r.squares[1], r.squares[2], r.sums.bad_groups, r.sums.wide_groups};
}

/* Specialized copies of the loop for common formats. The others use branches, which predict well. */
OPTIM_FN void step_as(const struct optim_task *t, int rule, int weight_format, int m_format, int v_format,
                      int64_t begin, int64_t end, struct optim_partial *out)
{
    struct optim_task task = *t;
    task.rule = rule;
    task.weight_format = weight_format;
    task.m_format = m_format;
    task.v_format = v_format;
    step_range(task, begin, end, out);
}
void OPTIM_NAME(optim_step)(const struct optim_task *t, int64_t begin, int64_t end, struct optim_partial *out)
{
#ifdef OPTIM_ONE_COPY
    step_range(*t, begin, end, out);
#else
    int m = t->m_format, v = t->v_format, w = t->weight_format, rule = t->rule;
    if (OPTIM_JOINT(m, v)) {
        if (rule == RULE_APADAMW && w == WEIGHTS_20)
            step_as(t, RULE_APADAMW, WEIGHTS_20, STATE_8BIT, STATE_8BIT, begin, end, out);
        else if (rule == RULE_APADAMW && w == WEIGHTS_24)
            step_as(t, RULE_APADAMW, WEIGHTS_24, STATE_8BIT, STATE_8BIT, begin, end, out);
        else if (rule == RULE_APADAMW && w == WEIGHTS_BF16_SR)
            step_as(t, RULE_APADAMW, WEIGHTS_BF16_SR, STATE_8BIT, STATE_8BIT, begin, end, out);
        else if (rule == RULE_APADAMW && w == WEIGHTS_F32)
            step_as(t, RULE_APADAMW, WEIGHTS_F32, STATE_8BIT, STATE_8BIT, begin, end, out);
        else step_as(t, rule, w, STATE_8BIT, STATE_8BIT, begin, end, out);
    } else if (v == STATE_NONE && m == STATE_8BIT)
        step_as(t, rule, w, STATE_8BIT, STATE_NONE, begin, end, out);
    else if (v == STATE_BF16 && m == STATE_BF16) step_as(t, rule, w, STATE_BF16, STATE_BF16, begin, end, out);
    else if (v == STATE_F32 && m == STATE_F32) step_as(t, rule, w, STATE_F32, STATE_F32, begin, end, out);
    else step_range(*t, begin, end, out);
#endif
}

/* ---- Conversions ------------------------------------------------------------------------------------- */

/* Convert fp32 to the format, to nearest, and back. values: padded to whole groups from group `begin`. */
void OPTIM_NAME(optim_weights_in)(const struct optim_task *t, int64_t begin, int64_t end, const float *values)
{
    for (int64_t group = begin; group < end; group++, values += OPTIM_GROUP) {
        real w[VECTORS];
        word half[VECTORS];
        size_t at = (size_t)group * OPTIM_GROUP, wb = optim_weight_bytes(t->weight_format);
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
        size_t at = (size_t)group * OPTIM_GROUP, wb = optim_weight_bytes(t->weight_format);
        size_t count = (size_t)t->count - at < OPTIM_GROUP ? (size_t)t->count - at : OPTIM_GROUP;
        float weights[OPTIM_GROUP] = {0};
        memcpy(weights, (const char *)t->weights + at * wb, count * wb);
        load_weights(w, t, weights, group);
        store_wide_state(values, 0, STATE_F32, w, NULL);
    }
}
/* v: NULL if the rule has none */
void OPTIM_NAME(optim_state_in)(const struct optim_task *t, int64_t begin, int64_t end, const float *m,
                                const float *v)
{
    struct joint_ratios ratios;
    joint_ratios(&ratios, RULE_HAS(t->rule, WITH_POINTS));
    for (int64_t group = begin; group < end; group++, m += OPTIM_GROUP, v = v ? v + OPTIM_GROUP : NULL) {
        real x[VECTORS], y[VECTORS];
        word half[VECTORS];
        for (int i = 0; i < VECTORS; i++) {
            half[i] = word_all(ROUND_NEAREST);
            y[i] = real_all(0); /* gcc 10 does not see that it is loaded wherever it is read */
        }
        load_wide_state(x, m, 0, STATE_F32);
        if (v) load_wide_state(y, v, 0, STATE_F32);
        if (v && OPTIM_LOW_BIT(t->v_format)) {
            for (int i = 0; i < VECTORS; i++) y[i] = real_sqrt(y[i]);
            if (OPTIM_JOINT(t->m_format, t->v_format)) {
                store_joint_nearest(t, group, x, y, &ratios);
                continue;
            }
            store_rooted(t, t->m_format, t->v_format, group, x, y, half, half);
            continue;
        }
        if (uses_m_grid(t)) {
            store_m_grid_nearest(t, group, x);
            continue;
        }
        if (t->m_format != STATE_NONE)
            store_scaled(t->m, t->scales, group, t->m_format == STATE_BF16 ? STATE_BF16_NEAREST : t->m_format,
                         x, half);
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
        if (v && OPTIM_LOW_BIT(t->v_format)) {
            if (OPTIM_JOINT(t->m_format, t->v_format)) load_joint(x, y, t, group);
            else load_rooted(x, y, t, t->m_format, t->v_format, group);
            for (int i = 0; i < VECTORS; i++) y[i] *= y[i];
        } else if (uses_m_grid(t)) {
            struct m_grid grid = m_grid_read(load_m_grid_header(t, group));
            load_m_grid(x, t, group, &grid);
        } else {
            if (t->m_format != STATE_NONE) load_scaled(x, t->m, t->scales, group, t->m_format);
            if (v) load_wide_state(y, t->v, group, t->v_format);
        }
        store_wide_state(m, 0, STATE_F32, x, NULL);
        if (v) store_wide_state(v, 0, STATE_F32, y, NULL);
    }
}

/* ---- Average of the weights ---------------------------------------------------------------------------- */

void OPTIM_NAME(optim_average)(const struct optim_task *t, int64_t begin, int64_t end)
{
    struct random_keys keys = random_keys(t);
    word words[RANDOM_GROUPS][SUBVECTORS];
    int64_t filled = -RANDOM_GROUPS; /* group of the whole tensor that words begins with */
    keys.step[1] |= (uint32_t)RANDOM_AVERAGE << 24;
    for (int64_t group = begin; group < end; group++) {
        int64_t whole = t->first_group + group;
        if (!OPTIM_AVERAGES(t, group)) {
            group += OPTIM_CHUNK - 1 - whole % OPTIM_CHUNK;
            continue;
        }
        if (whole >= filled + RANDOM_GROUPS) random_fill(&keys, filled = whole & ~(int64_t)1, words);
        real w[VECTORS], e[VECTORS];
        word random[VECTORS];
        size_t at = (size_t)group * OPTIM_GROUP, wb = optim_weight_bytes(t->weight_format);
        const char *weights = (const char *)t->weights + at * wb;
        float last[OPTIM_GROUP] = {0};
        if (at + OPTIM_GROUP > (size_t)t->count)
            weights = memcpy(last, weights, ((size_t)t->count - at) * wb);
        load_weights(w, t, weights, group);
        load_wide_state(e, t->average, group, STATE_BF16);
        for (int i = 0; i < VECTORS; i++) e[i] = real_fma(w[i] - e[i], real_all(t->average_rest), e[i]);
        random_rotate(random, words[whole - filled]);
        store_wide_state(t->average, group, STATE_BF16, e, random);
    }
}

#include "kernels/cpu/optim_product.h"
