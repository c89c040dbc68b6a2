/* The step of rules with joint codes of m and v: part of kernels/cpu/optim_kernel.h.
 *
 * A software pipeline of seven stages. Each stage waits for slow results of the previous one (roots,
 * quotients, the largest of 64), and the out-of-order window is smaller than a group. In one iteration each
 * stage therefore works on a different group, and its inputs were started one iteration earlier. Roots and
 * quotients are computed in halves with other work between them, because the divider takes ten to twelve
 * cycles per vector, and code after four divisions in a row would wait.
 */
#ifndef MEOPT_KERNELS_CPU_OPTIM_JOINT_H
#define MEOPT_KERNELS_CPU_OPTIM_JOINT_H

/* 1. The grid. */
OPTIM_FN void joint_begin(const struct optim_task *t, struct joint_work *w, int64_t group,
                          struct joint_grids *grids)
{
    uint32_t header = load_header(t, group);
    w->group = group;
    w->active = true;
    bool points = RULE_HAS(t->rule, WITH_POINTS);
    uint32_t low = header & 0x7ffu;
    w->smallest = 0;
    joint_grid_cached(grids, low ? (low << 19) + JOINT_MIN_LOW : 0, header >> 11 & 63u, &w->grid, points);
    joint_m_scales(w->scale, header, &w->grid, points ? 1 : t->s.beta1, points);
}
/* 2. Gradient, m and v. */
OPTIM_FN void joint_moments(const struct optim_task *t, struct joint_work *w,
                            struct padded_group *padded_group, struct sums *sums)
{
    const uint16_t *codes = (const uint16_t *)t->m + w->group * OPTIM_GROUP;
    struct group_at at = group_at(t, w->group, padded_group);
    real g[VECTORS], weights[VECTORS];
    w->active = step_gradient(t, w->group, at.gradient, g, sums);
    if (!LIKELY(w->active)) return;
    if (t->rule == RULE_APADAM) {
        load_weights(weights, t, at.weights, w->group);
        for (int i = 0; i < VECTORS; i++) g[i] = real_fma(weights[i], real_all(t->s.weight_decay), g[i]);
    }
    if (LIKELY(w->grid.low))
        for (int i = 0; i < VECTORS; i++)
            load_joint_vector(&w->m[i], &w->root[i], codes, i, w->scale, &w->grid);
    else
        for (int i = 0; i < VECTORS; i++) load_joint_zeros(&w->m[i], &w->root[i]);
    for (int i = 0; i < VECTORS; i++) {
        if (RULE_HAS(t->rule, WITH_POINTS)) w->direction[i] = g[i];
        else w->m[i] = joint_m_average(w->m[i], w->root[i], g[i], t->s.rest1);
        w->root[i] = rule_average(w->root[i] * w->root[i], g[i] * g[i], t->s.beta2, t->s.rest2);
    }
}
/* 3. The roots of v. */
OPTIM_FN void joint_roots(struct joint_work *w, int begin, int end)
{
    for (int i = begin; i < end; i++) w->root[i] = real_sqrt(w->root[i]);
}
/* 4. The update direction, and m / root. */
OPTIM_FN void joint_quotients(const struct optim_task *t, struct joint_work *w, int begin, int end)
{
    for (int i = begin; i < end; i++)
        w->direction[i] = RULE_HAS(t->rule, WITH_POINTS) ? rule_quotient(w->direction[i], w->root[i], &t->s)
                                                         : joint_quotient(&w->m[i], w->root[i], &t->s);
}
/* 5. The weights. */
OPTIM_FN void joint_weights(const struct optim_task *t, struct joint_work *w,
                            struct padded_group *padded_group, const word *words, struct sums *sums)
{
    struct group_at at = group_at(t, w->group, padded_group);
    real weights[VECTORS];
    word random[VECTORS];
    load_weights(weights, t, at.weights, w->group);
    for (int i = 0; i < VECTORS; i++) step_weight(t, weights, w->m, w->direction[i], i, sums);
    if (!LIKELY(!t->norms_only)) return;
    random_of(random, words);
    weights_write(t, w->group, at.weights, at.copy, weights, random);
    group_write_back(t, w->group, &at);
}

enum { JOINT_STAGES = 7, JOINT_EARLY = 2 };
OPTIM_FN void step_joint(const struct optim_task *t, int64_t begin, int64_t end, struct range_run *r)
{
    struct joint_work work[JOINT_STAGES], *w[JOINT_STAGES]; /* w[i]: the group of stage i + 1 */
    struct joint_grids grids;
    struct joint_ratios ratios;
    struct joint_thresholds thresholds[THRESHOLD_SETS];
    struct padded_group padded_group;
    joint_thresholds(thresholds, t);
    joint_ratios(&ratios, RULE_HAS(t->rule, WITH_POINTS));
    uint64_t of = (uint64_t)t->first_group;
    /* most grids change: they are chosen a stage before they are used */
    bool early = !t->norms_only && (joint_refit_due(t->updates) || t->updates <= JOINT_EARLY);
    grids.made = 0;
    for (int i = 0; i < JOINT_STAGES; i++) {
        w[i] = &work[i];
        w[i]->active = false;
    }
    for (int64_t n = begin; n < end + JOINT_STAGES - 1; n++) {
        struct joint_work *next = w[JOINT_STAGES - 1];
        for (int i = JOINT_STAGES - 1; i > 0; i--) w[i] = w[i - 1];
        w[0] = next;
        if (LIKELY(w[3]->active)) joint_quotients(t, w[3], 0, VECTORS / 2);
        w[0]->active = false;
        if (LIKELY(n < end)) {
            prefetch_group(t, n + PREFETCH_GROUPS);
            joint_begin(t, w[0], n, &grids);
        }
        if (LIKELY(w[1]->active)) {
            range_group_begin(r, n - 1);
            joint_moments(t, w[1], &padded_group, &r->sums);
        }
        if (LIKELY(w[3]->active)) joint_quotients(t, w[3], VECTORS / 2, VECTORS);
        if (early && w[3]->active) joint_fit(t, w[3], &grids);
        if (n < end) range_random(t, r, n, begin);
        if (LIKELY(w[4]->active)) joint_weights(t, w[4], &padded_group, range_words(r, n - 4), &r->sums);
        if (LIKELY(n >= begin + 4 && n < end + 4)) range_group_end(t, r, n - 4);
        if (LIKELY(w[2]->active)) joint_roots(w[2], 0, VECTORS / 2);
        if (LIKELY(w[4]->active && !t->norms_only))
            joint_round(t, w[4], &thresholds[(of + (uint64_t)n - 4) % THRESHOLD_SETS], &grids,
                        &r->sums.wide_groups);
        if (LIKELY(w[2]->active)) joint_roots(w[2], VECTORS / 2, VECTORS);
        if (!LIKELY(!t->norms_only)) continue;
        if (LIKELY(w[5]->active)) joint_scale(w[5], &ratios);
        if (LIKELY(w[6]->active)) joint_store(t, w[6], &thresholds[(of + (uint64_t)n - 6) % THRESHOLD_SETS]);
    }
}

#endif
