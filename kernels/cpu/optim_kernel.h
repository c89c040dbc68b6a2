/* One optimizer step over groups of 64 elements: the body of kernels/cpu/optim_{avx512,avx2,plain}.c, which
 * are this file compiled for three instruction sets (OPTIM_NAME adds the suffix). Each group is read once,
 * stepped in registers and written once.
 */
#include "kernels/cpu/optim_formats.h"
#include "kernels/philox.h"

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

/* ---- One group --------------------------------------------------------------------------------------- */

struct sums {
    real gradient[PARTS], weight[PARTS],
        update[PARTS]; /* squares, of up to 16 groups, by element % 16; of scaled gradients */
    int64_t bad_groups, wide_groups;
};

OPTIM_FN bool needs_random(const struct optim_task *t)
{
    return t->m_format == STATE_BF16 || t->v_format == STATE_BF16 || OPTIM_LOW_BIT(t->m_format) ||
           OPTIM_LOW_BIT(t->v_format) ||
           (t->rule != RULE_ACCUMULATE && t->weight_format >= WEIGHTS_BF16_SR &&
            t->weight_format != WEIGHTS_32);
}

/* The rules without v. */
OPTIM_FN void step_momentum(const struct optim_task *t, int m_format, int64_t group, real g[VECTORS],
                            real w[VECTORS], real m[VECTORS], const struct optim_scalars *s)
{
    int rule = t->rule;
    if (m_format != STATE_NONE) load_scaled(m, t->m, t->scales, group, m_format);
    if (rule == RULE_LION)
        for (int i = 0; i < VECTORS; i++) {
            w[i] = w[i] * s->decay - rule_sign(rule_average(m[i], g[i], s->beta1, s->rest1), s->lr);
            m[i] = rule_average(m[i], g[i], s->beta2, s->rest2);
        }
    else if (rule == RULE_ACCUMULATE)
        for (int i = 0; i < VECTORS; i++) m[i] += g[i];
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

/* What stands between the steps of a batch's groups and their bytes. */
struct pair_batch {
    int64_t first;
    struct pair_work *work;
    word (*words)[PARTS];
};
/* The codes of v of group i of a batch, and the pairs of one before. */
OPTIM_FN void batch_round(const struct optim_task *t, const struct pair_batch *b, int64_t i,
                          struct sums *sums)
{
    if (i >= 0 && i < RANDOM_GROUPS && b->work[i].there)
        pair_round_v(t, b->first + i, &b->work[i], false, &sums->wide_groups);
}
OPTIM_FN void batch_store(const struct optim_task *t, const struct pair_batch *b, int64_t i)
{
    word random[VECTORS], turned[VECTORS];
    if (i < 0 || !b->work[i].there) return;
    random_spread(random, b->words[i]);
    for (int k = 0; k < VECTORS; k++) turned[k] = RANDOM_M(random, k);
    pair_store(t, b->first + i, &b->work[i], turned);
}

/* One step of the task's rule on one group; g is the gradient times gradient_scale (clipping, loss scale).
 * gradient, weights, copy point at the group itself; the rest of the task is found by its index.
 *
 *   m' = beta1 m + rest1 g, v' = beta2 v + rest2 g^2, rest = 1 - beta
 *   d = m' / (root_scale sqrt(v') + eps); root_scale and step_size hold the bias corrections of torch.optim:
 *   step_size d = lr m_hat / (sqrt(v_hat) + eps)
 *
 *   Adam        g += weight_decay w first; w -= step_size d
 *   AdamW       w = decay w - step_size d, decay = 1 - lr weight_decay
 *   LAMB        u = step_size d + weight_decay w, step_size without lr; w -= lr u, where lr has the tensor's
 *               trust ratio |w| / |u|, from a first pass over all groups (norms_only: sums, no stores)
 *   Lion        w = decay w - lr sign(beta1 m + rest1 g); m' = beta2 m + rest2 g
 *   SGD         g += weight_decay w; m' = momentum m + rest1 g, rest1 = 1 - dampening; w -= lr m', or with
 *               nesterov lr (g + momentum m')
 *   accumulate  m' = m + g
 */
OPTIM_FN void step_group(const struct optim_task *t, const struct pair_batch *batch, struct pair_work *pair,
                         bool v_low, int m_format, int v_format, int64_t group, const void *gradient,
                         void *weights, void *copy, const word *words, const struct optim_scalars *s,
                         struct sums *sums)
{
    int rule = t->rule;
    real g[VECTORS], w[VECTORS], m[VECTORS], root[VECTORS], v[VECTORS];
    real moved[VECTORS]; /* of a pair: m, less what was read */
    word random[VECTORS], turned[VECTORS];
    for (int i = 0; i < VECTORS; i++) w[i] = m[i] = root[i] = v[i] = moved[i] = real_all(0);

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
        if (pair && !t->norms_only) {
            batch_round(t, batch, group - batch->first - 1, sums);
            batch_store(t, batch, group - batch->first - 2);
        }
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
            if (pair) load_pair(m, root, &pair->grid, t, group);
            else load_rooted(m, root, t, m_format, v_format, group);
            for (int i = 0; i < VECTORS; i++) {
                moved[i] = m[i];
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
        if (pair && !t->norms_only) batch_round(t, batch, group - batch->first - 1, sums);
        for (int i = 0; i < VECTORS; i++) {
            m[i] = rule_average(m[i], g[i], s->beta1, s->rest1);
            moved[i] = m[i] - moved[i];
        }
        if (rule == RULE_LAMB)
            for (int i = 0; i < VECTORS; i++) {
                w[i] *= s->decay;
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
        if (pair) batch_store(t, batch, group - batch->first - 2);
    } else step_momentum(t, m_format, group, g, w, m, s);

    for (int i = 0; i < VECTORS; i++) turned[i] = RANDOM_M(random, i);
    if (pair) {
        pair->there = true;
        memcpy(pair->m, m, sizeof m);
        memcpy(pair->moved, moved, sizeof moved);
        memcpy(pair->root, root, sizeof root);
    } else if (v_low) store_rooted(t, m_format, v_format, group, m, root, random, turned);
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

/* Ask for the memory of a later group: the processor's own look-ahead stops at the end of a page, and here
 * are five streams. */
#define AHEAD 16
static inline void prefetch(const void *array, int64_t group, size_t size)
{
    uintptr_t at = (uintptr_t)array + (uintptr_t)group * size;
    for (size_t i = 0; i < size; i += 64) __builtin_prefetch((const void *)(at + i), 1);
}
OPTIM_FN void prefetch_group(const struct optim_task *t, bool pair, int m_format, int v_format, int64_t group)
{
    if (t->gradient_format != GRADIENT_ACCUMULATOR)
        prefetch(t->gradient, group, gradient_bytes(t) * OPTIM_GROUP);
    prefetch(t->m, group, optim_state_bytes(m_format) * (pair ? 2 : 1));
    if (!pair) prefetch(t->v, group, optim_state_bytes(v_format));
    if (t->rule == RULE_ACCUMULATE) return;
    prefetch(t->weights, group, optim_weight_bytes(t->weight_format) * OPTIM_GROUP);
    prefetch(t->correction, group, optim_correction_bytes(t->weight_format));
}

/* The grids of a range of groups: of each span one that was made (its divisions take longer than a copy). */
struct pair_grids {
    uint64_t made; /* a bit for each span */
    struct pair_grid grid[64];
};
OPTIM_FN struct pair_grid grid_read(struct pair_grids *grids, uint32_t header)
{
    uint32_t range = header >> 11 & 63u, low = header & 0x7ffu;
    if (!(grids->made >> range & 1u)) {
        grids->grid[range] = pair_grid_of(0, range);
        grids->made |= (uint64_t)1 << range;
    }
    struct pair_grid g = grids->grid[range];
    g.low = low ? (low << 19) + PAIR_LOW_LEAST : 0;
    return g;
}

OPTIM_FN void step_range(const struct optim_task *t, bool pair, bool v_low, int m_format, int v_format,
                         int64_t begin, int64_t end, struct optim_partial *out)
{
    struct random_keys keys = random_keys(t);
    struct optim_scalars scalars = t->s; /* a copy that no store can change */
    word random[RANDOM_GROUPS][PARTS];
    struct pair_work work[RANDOM_GROUPS];
    struct pair_grids grids;
    grids.made = 0;
    bool randomly = needs_random(t) && !t->norms_only;
    size_t gb = gradient_bytes(t), wb = optim_weight_bytes(t->weight_format);
    bool array = t->gradient_format != GRADIENT_ACCUMULATOR, weighted = t->rule != RULE_ACCUMULATE;
    bool copied = t->weight_format == WEIGHTS_F32_COPY && weighted;
    double squares[3] = {0, 0, 0};
    int64_t bad = 0, wide_groups = 0;
    int64_t odd = t->first_group & 1; /* random words come for pairs of groups */
    for (int64_t first = begin - ((begin + odd) & 1); first < end; first += RANDOM_GROUPS) {
        for (int64_t group = first < begin ? begin : first;
             pair && group < end && group < first + RANDOM_GROUPS; group++)
            work[group - first].grid = grid_read(&grids, load_header(t, group));
        if (pair)
            for (int i = 0; i < RANDOM_GROUPS; i++) work[i].there = false;
        struct pair_batch batch = {first, work, random};
        if (randomly) random_fill(&keys, t->first_group + first, random);
        struct sums sums = {.bad_groups = 0};
        for (int i = 0; i < PARTS; i++) sums.gradient[i] = sums.weight[i] = sums.update[i] = real_all(0);
        for (int64_t group = first < begin ? begin : first; group < end && group < first + RANDOM_GROUPS;
             group++) {
            size_t at = (size_t)group * OPTIM_GROUP, tail = 0;
            prefetch_group(t, pair, m_format, v_format, group + AHEAD);
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
            step_group(t, &batch, pair ? &work[group - first] : NULL, v_low, m_format, v_format, group,
                       gradient, weights, copy, randomly ? random[group - first] : NULL, &scalars, &sums);
            if (!tail || !weighted || t->norms_only) continue;
            memcpy((char *)t->weights + at * wb, padded_weights, tail * wb);
            if (copied) memcpy((uint16_t *)t->copy + at, padded_copy, tail * 2);
        }
        int64_t stepped = end - first < RANDOM_GROUPS ? end - first : RANDOM_GROUPS;
        if (pair && !t->norms_only) {
            batch_round(t, &batch, stepped - 1, &sums);
            batch_store(t, &batch, stepped - 2);
            batch_store(t, &batch, stepped - 1);
        }
        squares[0] += lanes_total(sums.gradient);
        if (t->rule == RULE_LAMB) {
            squares[1] += lanes_total(sums.weight);
            squares[2] += lanes_total(sums.update);
        }
        bad += sums.bad_groups;
        wide_groups += sums.wide_groups;
    }
    double scale = (double)t->s.gradient_scale, unscaled = scale != 0 ? squares[0] / (scale * scale) : 0;
    *out = (struct optim_partial){unscaled, squares[1], squares[2], bad, wide_groups};
}

/* Copies of the loop for the formats that have to be fast; the other choices are branches that predict well.
 */
void OPTIM_NAME(optim_step)(const struct optim_task *t, int64_t begin, int64_t end, struct optim_partial *out)
{
    int m = t->m_format, v = t->v_format;
#ifdef OPTIM_ONE_COPY
    step_range(t, OPTIM_PAIR(m, v), OPTIM_LOW_BIT(v), m, v, begin, end, out);
#else
    if (OPTIM_PAIR(m, v)) step_range(t, true, true, STATE_8BIT, STATE_8BIT, begin, end, out);
    else if (OPTIM_LOW_BIT(v)) step_range(t, false, true, m, v, begin, end, out);
    else if (v == STATE_NONE && m == STATE_8BIT)
        step_range(t, false, false, STATE_8BIT, STATE_NONE, begin, end, out);
    else if (v == STATE_BF16 && m == STATE_BF16)
        step_range(t, false, false, STATE_BF16, STATE_BF16, begin, end, out);
    else step_range(t, false, false, m, v, begin, end, out);
#endif
}

/* ---- Conversions ------------------------------------------------------------------------------------- */

/* fp32 to the format, to nearest, and back. values: padded to whole groups from group `begin`. */
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
        if (v && OPTIM_LOW_BIT(t->v_format)) {
            for (int i = 0; i < VECTORS; i++) y[i] = real_sqrt(y[i]);
            if (OPTIM_PAIR(t->m_format, t->v_format)) {
                struct pair_work work = {.grid = {.low = 0},
                                         .there = true}; /* not the grid that lies there: the
                                                          * same values, the same bytes */
                int64_t wide_groups = 0;
                memcpy(work.m, x, sizeof x);
                memcpy(work.root, y, sizeof y);
                pair_round_v(t, group, &work, true, &wide_groups);
                if (work.there) pair_store(t, group, &work, half);
                continue;
            }
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
        if (v && OPTIM_LOW_BIT(t->v_format)) {
            if (OPTIM_PAIR(t->m_format, t->v_format) && !t->apart) {
                struct pair_grid grid = pair_grid_read(load_header(t, group));
                load_pair(x, y, &grid, t, group);
            } else load_rooted(x, y, t, t->m_format, t->v_format, group);
            for (int i = 0; i < VECTORS; i++) y[i] *= y[i];
        } else {
            load_scaled(x, t->m, t->scales, group, t->m_format);
            if (v) load_wide_state(y, t->v, group, t->v_format);
        }
        store_wide_state(m, 0, STATE_F32, x, NULL);
        if (v) store_wide_state(v, 0, STATE_F32, y, NULL);
    }
}
