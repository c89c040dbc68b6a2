/* The optimizer step on a card: every rule and format, many tensors in one launch, bit-identical to the
 * CPU's.
 *
 * The arithmetic is that of kernels/optim_math.h. A block processes a chunk of 512 groups of 64 elements.
 * Eight neighbouring lanes (an octet) process 16 groups, two at a time, because two groups share eight Philox
 * blocks, one per lane. optim_lane.h has a lane's part of a group: the random words of its elements are one
 * word rotated by 8 i bits. Sums of squares have the order of the CPU: by element % 16 over 16 groups in
 * fp32, then in double.
 */
#include "kernels/gpu/optim_lane.h"
#include "kernels/philox.h"
#define SCALE_FN        DEVICE
#define SCALE_MUL(a, b) exact_mul(a, b)
#include "kernels/gpu/optim_factors.h"

enum { BATCH = OPTIM_BATCH, CHUNK = OPTIM_CHUNK, OPTIM_THREADS = 256, BATCHES = CHUNK / BATCH + 1 };

struct lane_sums {
    real gradient[2], weight[2], update[2];
    int bad_groups, wide_groups;
};

DEVICE bool uses_m_grid(const optim_task *t, int m_format, int v_format)
{
    return OPTIM_M_GRID(m_format, v_format) && t->rule != RULE_ACCUMULATE;
}
DEVICE bool needs_random(const optim_task *t, int m_format, int v_format)
{
    bool codes = !OPTIM_JOINT(m_format, v_format) && !uses_m_grid(t, m_format, v_format) &&
                 (OPTIM_LOW_BIT(m_format) || OPTIM_LOW_BIT(v_format));
    return !t->norms_only && (m_format == STATE_BF16 || v_format == STATE_BF16 || codes ||
                              (t->rule != RULE_ACCUMULATE && t->weight_format >= WEIGHTS_BF16_SR &&
                               t->weight_format != WEIGHTS_32));
}

/* Steps a group with a rule without v. grid: of 8-bit m. */
DEVICE void step_momentum(const optim_task *t, int m_format, int v_format, int64_t group, bool active,
                          real g[LANE_ELEMENTS], real w[LANE_ELEMENTS], real m[LANE_ELEMENTS], m_grid *grid,
                          int u)
{
    const optim_scalars *s = &t->s;
    int rule = t->rule;
    *grid = m_grid_read(0);
    if (active && uses_m_grid(t, m_format, v_format)) load_m_grid(m, grid, t, group, u);
    else if (active && m_format != STATE_NONE) load_scaled(m, t->m, t->scales, group, m_format, u);
    if (rule == RULE_LION)
        for (int k = 0; k < LANE_ELEMENTS; k++) {
            w[k] = w[k] * s->decay - rule_sign(rule_average(m[k], g[k], s->beta1, s->rest1), s->lr);
            m[k] = rule_average(m[k], g[k], s->beta2, s->rest2);
        }
    else if (rule == RULE_ACCUMULATE)
        for (int k = 0; k < LANE_ELEMENTS; k++) m[k] = m[k] + g[k];
    else if (rule == RULE_MUON)
        for (int k = 0; k < LANE_ELEMENTS; k++) {
            m[k] = rule_average(m[k], g[k], s->beta1, s->rest1);
            w[k] = s->nesterov ? rule_average(m[k], g[k], s->beta1, s->rest1) : m[k];
        }
    else if (rule == RULE_APPLY)
        for (int k = 0; k < LANE_ELEMENTS; k++) w[k] = real_fma(g[k], -s->lr, w[k] * s->decay);
    else {
        for (int k = 0; k < LANE_ELEMENTS; k++) g[k] = real_fma(w[k], s->weight_decay, g[k]);
        if (m_format != STATE_NONE)
            for (int k = 0; k < LANE_ELEMENTS; k++) {
                m[k] = rule_average(m[k], g[k], s->beta1, s->rest1);
                g[k] = s->nesterov ? real_fma(m[k], s->beta2, g[k]) : m[k];
            }
        for (int k = 0; k < LANE_ELEMENTS; k++) w[k] = real_fma(g[k], -s->lr, w[k]);
    }
}

/* Steps a group. even, odd: random words of elements 2u and 2u+1 of each 16. Every lane of a wave calls it;
 * groups that are not `active` do not change. */
DEVICE void step_group(const optim_task *t, bool joint, int m_format, int v_format, int64_t group,
                       bool active, bool randomly, word even, word odd, int u, lane_sums *sums)
{
    const optim_scalars *s = &t->s;
    int rule = t->rule;
    bool v_low = OPTIM_LOW_BIT(v_format);
    int64_t left = t->count - group * OPTIM_GROUP;
    real g[LANE_ELEMENTS], w[LANE_ELEMENTS], m[LANE_ELEMENTS], root[LANE_ELEMENTS], v[LANE_ELEMENTS],
        squares[2] = {0.0f, 0.0f};
    joint_grid grid;
    m_grid grid_m;
    word random[LANE_ELEMENTS], rotated[LANE_ELEMENTS];
    for (int k = 0; k < LANE_ELEMENTS; k++) g[k] = w[k] = m[k] = root[k] = v[k] = 0.0f;

    if (active) load_gradient(g, t, group, u, left);
    for (int k = 0; k < LANE_ELEMENTS; k++) {
        g[k] = g[k] * s->gradient_scale;
        squares[k % 2] = real_fma(g[k], g[k], squares[k % 2]);
    }
    word worst = word_max(as_word(squares[0]), as_word(squares[1]));
    worst = octet_max(worst & 0x80000000u ? 0x7fc00000u : worst); /* a NaN may be negative */
    if (worst >= GRADIENT_SQUARES_MAX) {
        sums->bad_groups += active;
        active = false;
        for (int k = 0; k < LANE_ELEMENTS; k++) g[k] = 0.0f;
        squares[0] = squares[1] = 0.0f;
    }
    sums->gradient[0] = sums->gradient[0] + squares[0];
    sums->gradient[1] = sums->gradient[1] + squares[1];
    for (int k = 0; k < LANE_ELEMENTS; k++) {
        int turn = k / 2 * 8;
        word x = k % 2 ? odd : even;
        random[k] = !randomly ? ROUND_NEAREST : turn ? x << turn | x >> (32 - turn) : x;
    }
    if (active && rule != RULE_ACCUMULATE) load_weights(w, t, group, u, left);

    if (RULE_HAS(rule, WITH_V)) {
        if (rule == RULE_APADAM)
            for (int k = 0; k < LANE_ELEMENTS; k++) g[k] = real_fma(w[k], s->weight_decay, g[k]);
        bool points = RULE_HAS(rule, WITH_POINTS);
        grid.low = 0;
        if (active && joint) load_joint(m, root, &grid, t, group, points ? 1.0f : s->beta1, u);
        else if (active && v_low) load_rooted(m, root, t, m_format, v_format, group, u);
        else if (active) {
            load_scaled(m, t->m, t->scales, group, m_format, u);
            load_wide(v, t->v, group, v_format, u, OPTIM_GROUP);
        }
        for (int k = 0; k < LANE_ELEMENTS; k++) {
            if (points) {
            } else if (joint) m[k] = joint_m_average(m[k], root[k], g[k], s->rest1);
            else m[k] = rule_average(m[k], g[k], s->beta1, s->rest1);
            v[k] = rule_average(v_low ? root[k] * root[k] : v[k], g[k] * g[k], s->beta2, s->rest2);
            root[k] = real_sqrt(v[k]);
            real quotient = joint && !points ? joint_quotient(&m[k], root[k], s)
                                             : rule_quotient(points ? g[k] : m[k], root[k], s);
            if (points) rule_points(&w[k], &m[k], quotient, s);
            else if (RULE_HAS(rule, WITH_TRUST)) {
                w[k] = w[k] * s->decay;
                real update = rule_lamb_update(w[k], rule_direction(quotient, s), s);
                if (active) {
                    sums->weight[k % 2] = real_fma(w[k], w[k], sums->weight[k % 2]);
                    sums->update[k % 2] = real_fma(update, update, sums->update[k % 2]);
                }
                w[k] = real_fma(update, -s->lr, w[k]);
            } else {
                if (rule == RULE_APADAMW) w[k] = w[k] * s->decay;
                w[k] = real_fma(rule_direction(quotient, s), -s->step_size, w[k]);
            }
        }
    } else if ((v_format == STATE_NONE || v_format == STATE_F32) && RULE_HAS(rule, WITH_FACTORS)) {
        bool has_grid = uses_m_grid(t, m_format, v_format);
        if (!step_factored(t, m_format, has_grid, group, active, g, w, m, v, &grid_m, sums->weight,
                           sums->update, u, left))
            return;
    } else step_momentum(t, m_format, v_format, group, active, g, w, m, &grid_m, u);

    if (t->norms_only) return; /* the same for all octets of the block */
    for (int k = 0; k < LANE_ELEMENTS; k++) rotated[k] = random[(k + 4) % LANE_ELEMENTS];
    if (joint) sums->wide_groups += store_joint(t, group, &grid, m, root, u, active);
    else if (uses_m_grid(t, m_format, v_format)) store_m_grid(t, group, &grid_m, m, g, u, active);
    else if (v_low) store_rooted(t, m_format, v_format, group, m, root, random, rotated, u, active);
    else {
        if (m_format != STATE_NONE) store_scaled(t->m, t->scales, group, m_format, m, rotated, u, active);
        if (active && v_format != STATE_NONE) store_wide(t->v, group, v_format, v, random, u, OPTIM_GROUP);
    }
    if (!active || rule == RULE_ACCUMULATE) return;
    for (int k = 0; k < LANE_ELEMENTS; k++) rotated[k] = random[(k + 2) % LANE_ELEMENTS];
    store_weights(t, group, w, rotated, u, left);
}

/* Steps a batch of up to 16 groups with one octet. Stores its sums by element % 16 in `sums` (3, 16), and
 * adds bad and saturated groups to *bad and *wide_groups. */
DEVICE void step_batch(const optim_task *t, bool joint, int m_format, int v_format, int64_t first,
                       int64_t begin, int64_t end, int u, float (*sums)[16], int *bad, int *wide_groups)
{
    bool randomly = needs_random(t, m_format, v_format);
    lane_sums lane = {{0.0f, 0.0f}, {0.0f, 0.0f}, {0.0f, 0.0f}, 0, 0};
    ROLLED for (int i = 0; i < BATCH; i += 2)
    {
        uint32_t counter[4], words[4] = {0, 0, 0, 0};
        uint64_t block = (uint64_t)(t->first_group + first + i) / 2 * 8 + (uint64_t)u;
        counter[0] = (uint32_t)block;
        counter[1] = (uint32_t)(block >> 32);
        counter[2] = t->step[0];
        counter[3] = t->step[1];
        if (randomly) philox4x32_10(counter, t->key, words);
        ROLLED for (int parity = 0; parity < 2; parity++)
        {
            int64_t group = first + i + parity;
            step_group(t, joint, m_format, v_format, group, group >= begin && group < end, randomly,
                       parity ? words[2] : words[0], parity ? words[3] : words[1], u, &lane);
        }
    }
    for (int j = 0; j < 2 && sums; j++) {
        sums[0][2 * u + j] = lane.gradient[j].x;
        sums[1][2 * u + j] = lane.weight[j].x;
        sums[2][2 * u + j] = lane.update[j].x;
    }
    *bad += lane.bad_groups;
    *wide_groups += lane.wide_groups;
}

/* Returns the row of this block: the last one that begins at or before it. */
DEVICE const optim_row *task_find(const optim_row *tasks, int count, int64_t block)
{
    int low = 0, high = count;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (tasks[middle].first_block <= block) low = middle;
        else high = middle;
    }
    return tasks + low;
}

/* Returns the number of bad groups, at least that of earlier gradients in the same accumulator, which were
 * not yet reported. */
DEVICE int64_t carried(const optim_task *t, int64_t bad, int64_t before)
{
    bool accumulated = t->rule == RULE_ACCUMULATE ? (t->step[1] & 0xffffffu) != 0
                                                  : t->gradient_format == GRADIENT_ACCUMULATOR;
    return accumulated && before > bad ? before : bad;
}

/* Updates the average of a chunk's weights, which this block has stored. An octet takes a group at a time. */
DEVICE void average_chunk(const optim_task *t, int64_t begin, int64_t end)
{
    int u = THREAD % OCTET;
    for (int64_t group = begin + THREAD / OCTET; group < end; group += OPTIM_THREADS / OCTET) {
        if (!OPTIM_AVERAGES(t, group)) continue;
        uint64_t whole = (uint64_t)(t->first_group + group), block = whole / 2 * 8 + (uint64_t)u;
        uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), t->step[0],
                               t->step[1] | (uint32_t)RANDOM_AVERAGE << 24},
                 words[4];
        real w[LANE_ELEMENTS], e[LANE_ELEMENTS];
        word random[LANE_ELEMENTS];
        philox4x32_10(counter, t->key, words);
        load_weights(w, t, group, u, t->count - group * OPTIM_GROUP);
        load_wide(e, t->average, group, STATE_BF16, u, OPTIM_GROUP);
        for (int k = 0; k < LANE_ELEMENTS; k++) {
            int turn = k / 2 * 8;
            word x = whole % 2 ? (k % 2 ? words[3] : words[2]) : (k % 2 ? words[1] : words[0]);
            random[k] = turn ? x << turn | x >> (32 - turn) : x;
            e[k] = real_fma(w[k] - e[k], t->average_rest, e[k]);
        }
        store_wide(t->average, group, STATE_BF16, e, random, u, OPTIM_GROUP);
    }
}

/* M, V: m_format and v_format as compile-time constants, or ANY */
enum { ANY = -9 };
template <int M, int V> DEVICE void step_chunk(const optim_row *tasks, int count, optim_partial *partials)
{
    SHARED float sums[BATCHES][3][16];
    SHARED double totals[BATCHES][3];
    SHARED int bad[OPTIM_THREADS / OCTET], wide_groups[OPTIM_THREADS / OCTET];
    const bool IS_JOINT = OPTIM_JOINT(M, V);
    const optim_row *entry = task_find(tasks, count, BLOCK_X);
    const optim_task *t = &entry->task;
    int m_format = M == ANY ? t->m_format : M, v_format = V == ANY ? t->v_format : V;
    int64_t chunk = BLOCK_X - entry->first_block, groups = (t->count + OPTIM_GROUP - 1) / OPTIM_GROUP;
    int64_t begin = chunk * CHUNK, end = begin + CHUNK < groups ? begin + CHUNK : groups;
    int64_t first =
        begin - ((begin + t->first_group) & 1); /* two groups of the whole tensor share random words */
    if (entry->proceed && !*entry->proceed) {
        if (THREAD) return;
        optim_partial refused = {as_real(0x7f800000u).x, 0, 0, end - begin, 0};
        partials[t->first_partial + chunk] = refused;
        return;
    }
    int octet = THREAD / OCTET, u = THREAD % OCTET, failed = 0, widened = 0,
        batches = (int)((end - first + BATCH - 1) / BATCH);
    int leader = THREAD / WAVE * (WAVE / OCTET); /* uniform within a wave */
    if (leader < batches)
        step_batch(t, IS_JOINT, m_format, v_format, first + octet * BATCH, begin, end, u, sums[octet],
                   &failed, &widened);
    if (batches == BATCHES && leader == 0) /* after an odd first group, one is left at the end */
        step_batch(t, IS_JOINT, m_format, v_format, octet ? end : first + (BATCHES - 1) * BATCH, begin, end,
                   u, octet ? nullptr : sums[BATCHES - 1], &failed, &widened);
    if (u == 0) {
        bad[octet] = failed;
        wide_groups[octet] = widened;
    }
    barrier(); /* also: the weights are stored */
    if (t->average_every && !t->norms_only) average_chunk(t, begin, end);
    if (THREAD < batches)
        for (int kind = 0; kind < 3; kind++) {
            double total = 0;
            for (int i = 0; i < 16; i++) total += (double)sums[THREAD][kind][i];
            totals[THREAD][kind] = total;
        }
    barrier();
    if (THREAD) return;
    double total[3] = {0, 0, 0};
    int64_t bad_groups = 0, wide = 0;
    for (int b = 0; b < batches; b++)
        for (int kind = 0; kind < 3; kind++) total[kind] += totals[b][kind];
    for (int i = 0; i < OPTIM_THREADS / OCTET; i++) {
        bad_groups += bad[i];
        wide += wide_groups[i];
    }
    double scale = (double)t->s.gradient_scale;
    optim_partial *out = partials + t->first_partial + chunk;
    if (t->rule == RULE_APPLY) { /* the rest is of the gradient */
        if (bad_groups > out->bad_groups) out->bad_groups = bad_groups;
        return;
    }
    out->gradient_squares = scale != 0 ? total[0] / (scale * scale) : 0;
    out->weight_squares = RULE_HAS_NORMS(t->rule) ? total[1] : 0;
    out->update_squares = RULE_HAS_NORMS(t->rule) ? total[2] : 0;
    out->bad_groups = carried(t, bad_groups, out->bad_groups);
    out->wide_groups = wide;
}

/* Before a step: sets *proceed of the rows to 0 if a gradient holds a NaN or an infinity. */
KERNEL(optim_check, const optim_row *tasks, int count, optim_partial *)
{
    const optim_row *entry = task_find(tasks, count, BLOCK_X);
    const optim_task *t = &entry->task;
    int64_t begin = (BLOCK_X - entry->first_block) * CHUNK * OPTIM_GROUP, end = begin + CHUNK * OPTIM_GROUP;
    if (end > t->count) end = t->count;
    bool bad = false;
    if (t->gradient_format == GRADIENT_F32) {
        const uint32_t *bits = (const uint32_t *)t->gradient;
        for (int64_t i = begin + THREAD; i < end; i += OPTIM_THREADS)
            bad |= (load_whole<uint32_t>(bits + i) & 0x7f800000u) == 0x7f800000u;
    } else if (t->gradient_format != GRADIENT_ACCUMULATOR) {
        const uint16_t *bits = (const uint16_t *)t->gradient;
        uint32_t low = t->gradient_format == GRADIENT_F16 ? 0x7c00u : 0x7f80u,
                 high = low << 16;                               /* exponents */
        int64_t at = begin + (int64_t)((uintptr_t)bits / 2 % 2); /* aligned: two at a time from here */
        for (int64_t i = at + 2 * THREAD; i + 1 < end; i += 2 * OPTIM_THREADS) {
            uint32_t two = load_whole<uint32_t>(bits + i);
            bad |= (two & low) == low || (two & high) == high;
        }
        if (THREAD == 0 && begin < end)
            bad |= (load_whole<uint16_t>(bits + begin) & low) == low ||
                   (load_whole<uint16_t>(bits + end - 1) & low) == low;
    }
    if (bad && entry->proceed) store_flag(entry->proceed, 0);
}

/* Loads a lane's eight elements of a group of a gradient or accumulator: u, 8 + u, ... 56 + u; zeros from
 * `left` on. Types narrower than 4 bytes are loaded as whole words that neighbours share: accumulators and
 * their scales are padded to whole words. */
DEVICE void load_eighths(float x[LANE_ELEMENTS], const optim_task *t, int64_t group, int u, int64_t left)
{
    int format = t->gradient_format == GRADIENT_ACCUMULATOR ? t->accumulator_format
                 : t->gradient_format == GRADIENT_F32       ? STATE_F32
                                                            : STATE_BF16;
    bool f16 = t->gradient_format == GRADIENT_F16;
    const char *p = (const char *)t->gradient;
    if (OPTIM_LOW_BIT(format)) {
        bool four = format == STATE_4BIT;
        uint32_t exponent =
            load_whole<uint32_t>(t->gradient_scales + (group & ~(int64_t)3)) >> group % 4 * 8 & 255u;
        const char *row = p + group * (four ? OPTIM_GROUP / 2 : OPTIM_GROUP);
        for (int k = 0; k < LANE_ELEMENTS; k++) {
            word byte = (word)(load_whole<uint64_t>(row + (four ? k % 4 : k) * 8) >> 8 * u) & 255u,
                 code = four ? (byte >> k / 4 * 4 & 15u) << 28 : byte << 24;
            x[k] = exponent && 8 * k + u < left ? m_decode(code, exponent << 23, 0, code_of(format)).x : 0.0f;
        }
    } else if (format == STATE_F32) {
        const float *f = (const float *)p + group * OPTIM_GROUP + u;
        for (int k = 0; k < LANE_ELEMENTS; k++) x[k] = 8 * k + u < left ? load_whole<float>(f + 8 * k) : 0.0f;
    } else {
        const uint16_t *h = (const uint16_t *)p + group * OPTIM_GROUP;
        bool pairs = by_twos(p, 2, left);
        for (int k = 0; k < LANE_ELEMENTS; k++) {
            word half = 0;
            if (pairs) half = load_whole<uint32_t>(h + 8 * k + (u & ~1)) >> u % 2 * 16;
            else if (8 * k + u < left) half = load_whole<uint16_t>(h + 8 * k + u);
            x[k] = (f16 ? f16_read(half & 0xffffu) : as_real(half << 16)).x;
        }
    }
}

/* Computes the sum of squares of a chunk in the order of the CPU (optim_sum_squares). An octet has a batch of
 * groups, a lane every eighth element. bad_groups: whether a value is not finite. */
KERNEL(optim_squares, const optim_row *tasks, int count, optim_partial *partials)
{
    SHARED double sums[CHUNK / BATCH];
    SHARED int bad[CHUNK / BATCH];
    const optim_row *entry = task_find(tasks, count, BLOCK_X);
    const optim_task *t = &entry->task;
    int64_t chunk = BLOCK_X - entry->first_block;
    int octet = THREAD / OCTET, u = THREAD % OCTET, failed = 0; /* OPTIM_THREADS / OCTET == CHUNK / BATCH */
    int64_t first = chunk * CHUNK + octet * BATCH, end = first + BATCH,
            groups = (t->count + OPTIM_GROUP - 1) / OPTIM_GROUP;
    double sum = 0;
    if (end > groups) end = groups;
    for (int64_t group = first; group < end; group++) {
        float x[LANE_ELEMENTS];
        load_eighths(x, t, group, u, t->count - group * OPTIM_GROUP);
        for (int k = 0; k < LANE_ELEMENTS; k++) {
            sum += (double)x[k] * (double)x[k];
            failed |= x[k] - x[k] != 0;
        }
    }
    for (int mask = 1; mask < OCTET; mask *= 2) {
        sum += wave_xor(sum, mask);
        failed |= wave_xor(failed, mask);
    }
    if (u == 0) {
        sums[octet] = sum;
        bad[octet] = failed;
    }
    barrier();
    if (THREAD) return;
    optim_partial found = {0, 0, 0, 0, 0};
    for (int b = 0; b < CHUNK / BATCH; b++) {
        found.gradient_squares += sums[b];
        found.bad_groups |= bad[b];
    }
    found.bad_groups = carried(t, found.bad_groups, partials[t->first_partial + chunk].bad_groups);
    partials[t->first_partial + chunk] = found;
}

/* Before a step: multiplies the gradient scale of all rows by the clipping scale. If a gradient is not
 * finite, sets *proceed to 0, also for the rest of the step. */
KERNEL(optim_clip, optim_row *tasks, int count, const optim_grad_stats *found, double divide, double clip)
{
    int row = (int)BLOCK_X * THREADS + THREAD;
    bool finite = found->finite && found->squares - found->squares == 0;
    if (row >= count) return;
    tasks[row].task.s.gradient_scale *= (float)scale_clipped(sqrt(found->squares), divide, clip);
    if (!finite && tasks[row].proceed) store_flag(tasks[row].proceed, 0);
}

/* If ranks hold parts: copies the results of this rank's chunks to the slots of the whole tensors. One block
 * per row. */
KERNEL(optim_spread, const optim_row *tasks, int, const optim_partial *partials, optim_partial *slots)
{
    const optim_row *r = &tasks[BLOCK_X];
    const optim_task *t = &r->task;
    int64_t chunks = ((t->count + OPTIM_GROUP - 1) / OPTIM_GROUP + CHUNK - 1) / CHUNK;
    for (int64_t c = THREAD; c < chunks; c += THREADS)
        slots[r->first_slot + t->first_group / CHUNK + c] = partials[t->first_partial + c];
}

/* After optim_squares: adds up chunks, then rows, in the order of the host. */
KERNEL(optim_total, const optim_row *tasks, int count, const optim_partial *partials, optim_grad_stats *found)
{
    SHARED double squares[OPTIM_THREADS];
    SHARED int bad[OPTIM_THREADS];
    optim_grad_stats total = {0, 1, 0};
    for (int row = 0; row < count; row++) {
        const optim_row *r = &tasks[row];
        for (int64_t first = 0; first < r->slots; first += THREADS) {
            int64_t left = r->slots - first, here = left < THREADS ? left : (int64_t)THREADS;
            if (THREAD < here) {
                const optim_partial *p = partials + r->first_slot + first + THREAD;
                squares[THREAD] = p->gradient_squares;
                bad[THREAD] = p->bad_groups != 0;
            }
            barrier();
            for (int i = 0; i < here && THREAD == 0; i++) {
                total.squares += squares[i];
                total.finite &= !bad[i];
            }
            barrier(); /* untested: no test has two rows of several chunks in the table */
        }
    }
    if (THREAD == 0) *found = total;
}

/* Between the passes of LAMB and Adafactor, one block per row: adds up the norms of weight and update in the
 * order of the host, sets the learning rate, and lets the next pass step. */
KERNEL(optim_trust, optim_row *tasks, int, const optim_partial *partials)
{
    SHARED double squares[2][OPTIM_THREADS];
    optim_row *r = &tasks[BLOCK_X];
    optim_task *t = &r->task;
    double weights = 0, updates = 0;
    for (int64_t first = 0; first < r->slots; first += THREADS) {
        int64_t left = r->slots - first, here = left < THREADS ? left : (int64_t)THREADS;
        if (THREAD < here) {
            squares[0][THREAD] = partials[r->first_slot + first + THREAD].weight_squares;
            squares[1][THREAD] = partials[r->first_slot + first + THREAD].update_squares;
        }
        barrier();
        for (int i = 0; i < here && THREAD == 0; i++) {
            weights += squares[0][i];
            updates += squares[1][i];
        }
        barrier(); /* untested: no test has a tensor of more than 256 chunks, 8.4 million elements */
    }
    if (THREAD) return;
    if (RULE_HAS(t->rule, WITH_FACTORS))
        t->s.lr = scale_factored(t->lr, weights, updates, &t->clipping, &t->s.decay);
    else t->s.lr = scale_trusted(t->lr, weights, updates, t->trust, t->trust_at_most_1);
    t->norms_only = 0;
}

/* Matrices of muon: struct optim_copy; x *= norm / max(|x|, least), with the sum of squares in found. */
template <class T, class U>
DEVICE void copy_matrix(T *to, const U *from, int64_t rows, int64_t columns, int64_t to_ld, int64_t from_ld)
{
    for (int64_t i = BLOCK_X * THREADS + THREAD; i < rows * columns; i += BLOCKS_X * THREADS) {
        int64_t row = i / columns, column = i % columns;
        float unit = row == column ? 1.0f : 0.0f;
        store(to, row * to_ld + column, from ? load(from, row * from_ld + column) : unit);
    }
}
#define COPY_MATRIX(name, T, U)                                                                              \
    KERNEL(name, T *to, const U *from, int64_t rows, int64_t columns, int64_t to_ld, int64_t from_ld)        \
    {                                                                                                        \
        copy_matrix(to, from, rows, columns, to_ld, from_ld);                                                \
    }
COPY_MATRIX(optim_copy_f32_f32, float, float)
COPY_MATRIX(optim_copy_bf16_bf16, bf16, bf16)
COPY_MATRIX(optim_copy_f32_bf16, bf16, float)
template <class T>
DEVICE void normalize(T *x, int64_t count, double least, double norm, const optim_grad_stats *found)
{
    float factor = scale_normal(found->squares, least, norm);
    for (int64_t i = BLOCK_X * THREADS + THREAD; i < count; i += BLOCKS_X * THREADS)
        store(x, i, load(x, i) * factor);
}
#define NORMALIZE(name, T)                                                                                   \
    KERNEL(name, T *x, int64_t count, double least, double norm, const optim_grad_stats *found)              \
    {                                                                                                        \
        normalize(x, count, least, norm, found);                                                             \
    }
NORMALIZE(optim_normalize_f32, float)
NORMALIZE(optim_normalize_bf16, bf16)

/* All but the last find registers for two blocks; of any formats, it would spill. */
#define STEP(KIND, name, M, V)                                                                               \
    KIND(name, const optim_row *tasks, int count, optim_partial *partials)                                   \
    {                                                                                                        \
        step_chunk<M, V>(tasks, count, partials);                                                            \
    }
STEP(KERNEL_TWICE, optim_step_f32, STATE_F32, STATE_F32)
STEP(KERNEL_TWICE, optim_step_bf16, STATE_BF16, STATE_BF16)
STEP(KERNEL_TWICE, optim_step_8bit, STATE_8BIT, STATE_8BIT)
STEP(KERNEL_TWICE, optim_step_4bit, STATE_4BIT, STATE_4BIT)
STEP(KERNEL, optim_step_any, ANY, ANY)
