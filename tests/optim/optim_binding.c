/* libmeopt under a framework that owns the tensors: options of single tensors between steps, moved memory,
 * weights written by the caller, moments as fp32, empty tensors, and the options of apex's, NVIDIA's and
 * timm's LAMB. */
#include "tests/optim/optim_spans.h"
#include "tests/optim/optim_table.h"

#include <math.h>
#include <stdbool.h>

static float x[A], y[A], m[A], v[A], m2[A], v2[A];

static void same_weights(const struct meopt *a, const struct meopt *b)
{
    struct meopt_error err;
    for (size_t i = 0; i < COUNT; i++) {
        int64_t n = i ? B : A;
        assert_int_equal(meopt_export(a, i, 0, n, x, &err), 0);
        assert_int_equal(meopt_export(b, i, 0, n, y, &err), 0);
        assert_memory_equal(x, y, (size_t)n * sizeof *x);
    }
}

/* The group of a tensor that has the options. */
static struct meopt_group group_of(const struct meopt_options *o, size_t tensor)
{
    return (struct meopt_group){.size = sizeof(struct meopt_group),
                                .lr_scale = 1,
                                .weight_decay = table[tensor].flags & MEOPT_NO_DECAY ? 0 : o->weight_decay,
                                .beta1 = o->beta1,
                                .beta2 = o->beta2,
                                .eps = o->eps,
                                .momentum = o->momentum,
                                .dampening = o->dampening,
                                .maximize = o->maximize};
}

static void options_of_a_tensor_are_settable_between_steps(void **state)
{
    for (int rule = 0; rule < MEOPT_RULE_COUNT; rule++)
        for (size_t p = 0; p < sizeof presets / sizeof *presets; p++) {
            struct meopt_options o;
            struct meopt_error err;
            struct meopt *made, *set = make(rule, presets[p], 7);
            struct meopt_group group;
            meopt_options_init(&o, sizeof o, rule);
            meopt_options_preset(&o, presets[p], &err);
            o.seed = 7;
            if (rule != MEOPT_ADAFACTOR) o.beta1 = 0.8; /* it would have a first moment */
            o.beta2 = 0.97;
            o.eps = 1e-5;
            o.weight_decay = 0.3;
            o.dampening = 0.25;
            if (rule == MEOPT_APSGD) o.momentum = 0.7;
            assert_int_equal(meopt_create(&made, &o, table, COUNT, &err), 0);
            assert_int_equal(meopt_import(made, 0, 0, A, start, &err), 0);
            assert_int_equal(meopt_import(made, 1, 0, B, start, &err), 0);
            for (size_t i = 0; i < COUNT; i++) {
                group = group_of(&o, i);
                assert_int_equal(meopt_set_group(set, i, &group, &err), 0);
            }
            steps(made, 1, 5);
            steps(set, 1, 5);
            same_weights(made, set);
            group.lr_scale = 0; /* between steps: it stands still */
            assert_int_equal(meopt_set_group(set, 1, &group, &err), 0);
            meopt_export(set, 1, 0, B, m, &err);
            steps(set, 6, 6);
            meopt_export(set, 1, 0, B, m2, &err);
            if (rule != MEOPT_SCHEDULE_FREE) assert_memory_equal(m, m2, B * sizeof *m); /* y still nears z */
            group.beta2 = 1;
            assert_int_equal(meopt_set_group(set, 0, &group, &err), MEOPT_BAD_ARGUMENT);
            group.beta2 = 0.97;
            group.size = 8;
            assert_int_equal(meopt_set_group(set, 0, &group, &err), MEOPT_BAD_ARGUMENT);
            group.size = sizeof group;
            assert_int_equal(meopt_step_begin(set, 7, 1e-3, 0, &err), 0);
            assert_int_equal(meopt_set_group(set, 0, &group, &err), MEOPT_BAD_ORDER);
            assert_int_equal(meopt_step_end(set, NULL, &err), 0);
            meopt_destroy(made);
            meopt_destroy(set);
        }
}

/* torch's maximize: the gradient is negated first, so weight decay still makes weights smaller. */
static void maximize_negates_the_gradient_before_all(void **state)
{
    static float negated[A];
    for (int rule = 0; rule < MEOPT_RULE_COUNT; rule++)
        for (int way = 0; way < 4; way++) { /* of all tensors or of one; clipped or not */
            bool all = way & 1, clipped = way & 2;
            struct meopt_options o;
            struct meopt_error err;
            struct meopt *up, *down = make(rule, "quality", 7);
            meopt_options_init(&o, sizeof o, rule);
            meopt_options_preset(&o, "quality", &err);
            o.weight_decay = 0.01;
            o.seed = 7;
            o.maximize = all;
            assert_int_equal(meopt_create(&up, &o, table, COUNT, &err), 0);
            assert_int_equal(meopt_import(up, 0, 0, A, start, &err), 0);
            assert_int_equal(meopt_import(up, 1, 0, B, start, &err), 0);
            struct meopt_group group = group_of(&o, 1);
            group.maximize = 1;
            assert_int_equal(meopt_set_group(up, 1, &group, &err), 0);
            group.size = offsetof(struct meopt_group, maximize); /* an older header */
            assert_int_equal(meopt_set_group(up, 0, &group, &err), MEOPT_BAD_ARGUMENT);
            group.size = sizeof group;
            group.maximize = 2;
            assert_int_equal(meopt_set_group(up, 0, &group, &err), MEOPT_BAD_ARGUMENT);
            for (int step = 1; step <= 5; step++) {
                fill(gradient, A, (uint32_t)step, 0.1f);
                for (int i = 0; i < A; i++) negated[i] = -gradient[i];
                struct meopt_gradient g[COUNT] = {{gradient, MEOPT_F32}, {gradient, MEOPT_F32}},
                                      n[COUNT] = {{all ? negated : gradient, MEOPT_F32},
                                                  {negated, MEOPT_F32}};
                struct meopt_grad_stats found;
                struct meopt_clip clip = {&found, 0.7, 0};
                struct meopt_step_stats stats[2];
                assert_int_equal(meopt_gradient_found(up, g, &found, &err), 0);
                for (int d = 0; d < 2; d++) {
                    struct meopt *opt = d ? down : up;
                    assert_int_equal(meopt_step_begin(opt, step, 1e-3, 0, &err), 0);
                    for (size_t i = 0; i < COUNT; i++)
                        assert_int_equal(
                            clipped
                                ? meopt_step_clipped(opt, &i, d ? &n[i] : &g[i], 1, &clip, &err)
                                : meopt_step_tensor(opt, i, d ? n[i].data : g[i].data, MEOPT_F32, 0.5, &err),
                            0);
                    assert_int_equal(meopt_step_end(opt, &stats[d], &err), 0);
                }
                assert_true(stats[0].grad_norm == stats[1].grad_norm);
            }
            same_weights(up, down);
            meopt_destroy(up);
            meopt_destroy(down);
        }
}

static void offloaded_tensors_have_no_view(void **state)
{
    struct meopt_options o;
    struct meopt_error err;
    struct meopt *opt;
    meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
    o.offload = MEOPT_OFFLOAD_FILE;
    o.offload_dir = "/tmp";
    assert_int_equal(meopt_create(&opt, &o, table, 1, &err), 0);
    void *p;
    size_t bytes;
    int format;
    assert_int_equal(meopt_state_view(opt, 0, MEOPT_VIEW_M, &p, &bytes, &format, &err), MEOPT_BAD_ARGUMENT);
    assert_int_equal(meopt_state_view(opt, 0, MEOPT_VIEW_RESIDUAL, &p, &bytes, &format, &err), 0);
    assert_true(!p && !bytes); /* fp32 weights have none */
    meopt_destroy(opt);
}

static void memory_that_moved_is_followed(void **state)
{
    struct meopt_options o;
    struct meopt_error err;
    struct meopt *opt, *still = make(MEOPT_APADAMW, "balanced", 7);
    static uint16_t first[A], second[A];
    struct meopt_tensor rows[COUNT] = {table[0], table[1]};
    rows[0].weights = first;
    meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
    meopt_options_preset(&o, "balanced", &err);
    o.weight_decay = 0.01;
    o.seed = 7;
    assert_int_equal(meopt_create(&opt, &o, rows, COUNT, &err), 0);
    assert_int_equal(meopt_import(opt, 0, 0, A, start, &err), 0);
    assert_int_equal(meopt_import(opt, 1, 0, B, start, &err), 0);
    steps(opt, 1, 3);
    memcpy(second, first, sizeof second);
    memset(first, 0xff, sizeof first);
    assert_int_equal(meopt_rebind(opt, 0, second, NULL, &err), 0);
    steps(opt, 4, 6);
    steps(still, 1, 6);
    same_weights(opt, still);
    assert_int_equal(first[7], 0xffff);
    assert_int_equal(meopt_rebind(opt, 0, (char *)second + 1, NULL, &err), MEOPT_BAD_ARGUMENT);
    assert_int_equal(meopt_rebind(opt, 0, second, first, &err), MEOPT_BAD_ARGUMENT);
    assert_int_equal(meopt_rebind(opt, 1, x, NULL, &err), MEOPT_BAD_ARGUMENT); /* the library's own */
    assert_int_equal(meopt_rebind(opt, 0, NULL, NULL, &err), MEOPT_BAD_ARGUMENT);
    meopt_destroy(opt);
    meopt_destroy(still);
}

static void what_others_wrote_is_the_truth_after_sync(void **state)
{
    static const int formats[] = {MEOPT_WEIGHTS_F32_COPY, MEOPT_WEIGHTS_BF16_SR, MEOPT_WEIGHTS_20,
                                  MEOPT_WEIGHTS_24, MEOPT_WEIGHTS_32};
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        struct meopt_options o;
        struct meopt_error err;
        struct meopt *opt;
        void *p;
        enum meopt_dtype dtype;
        meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
        o.weights = formats[f];
        assert_int_equal(meopt_create(&opt, &o, table, COUNT, &err), 0);
        fill(start, A, 1, 1);
        meopt_import(opt, 0, 0, A, start, &err);
        steps(opt, 1, 3);
        assert_int_equal(meopt_weights(opt, 0, &p, &dtype), 0);
        assert_int_equal(dtype, MEOPT_BF16);
        uint16_t *half = p;
        for (int i = 0; i < A; i++) half[i] = (uint16_t)(0x3f80 + i % 256);
        assert_int_equal(meopt_sync(opt, 0, &err), 0);
        assert_int_equal(meopt_export(opt, 0, 0, A, x, &err), 0);
        for (int i = 0; i < A; i++) {
            uint32_t bits;
            memcpy(&bits, &x[i], 4);
            assert_int_equal(bits, (uint32_t)half[i] << 16);
        }
        assert_int_equal(meopt_sync(opt, 2, &err), MEOPT_BAD_ARGUMENT);
        meopt_destroy(opt);
    }
}

/* Half-way between two bf16 numbers: the even one, as torch rounds; the upper one where a correction keeps
 * what is left, so that nothing is lost. */
static void the_half_of_a_tie_is_even_where_nothing_else_keeps_it(void **state)
{
    static const uint32_t ties[] = {0x3f808000, 0x3f818000, 0xbf808000, 0xbf818000};
    for (int format = MEOPT_WEIGHTS_F32_COPY; format < MEOPT_WEIGHT_FORMAT_COUNT; format++) {
        bool corrected = format >= MEOPT_WEIGHTS_20;
        struct meopt_options o;
        struct meopt *opt;
        struct meopt_tensor t = {.name = "w", .ndim = 2, .shape = {2, 2}};
        float values[4], back[4];
        void *half;
        enum meopt_dtype dtype;
        meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
        o.weights = format;
        o.small_count = 0;
        memcpy(values, ties, sizeof ties);
        assert_int_equal(meopt_create(&opt, &o, &t, 1, NULL), 0);
        assert_int_equal(meopt_import(opt, 0, 0, 4, values, NULL), 0);
        assert_int_equal(meopt_weights(opt, 0, &half, &dtype), 0);
        for (int i = 0; i < 4; i++)
            assert_int_equal(((uint16_t *)half)[i], (ties[i] >> 16) + (corrected || i % 2 ? 1 : 0));
        assert_int_equal(meopt_export(opt, 0, 0, 4, back, NULL), 0);
        if (corrected || format == MEOPT_WEIGHTS_F32_COPY) assert_memory_equal(values, back, sizeof back);
        meopt_destroy(opt);
    }
}

static void formats_are_planned_before_tensors_exist(void **state)
{
    for (int rule = 0; rule < MEOPT_RULE_COUNT; rule++)
        for (size_t p = 0; p < sizeof presets / sizeof *presets; p++) {
            struct meopt_options o;
            struct meopt_error err;
            struct meopt *opt = make(rule, presets[p], 7);
            meopt_options_init(&o, sizeof o, rule);
            meopt_options_preset(&o, presets[p], &err);
            for (size_t i = 0; i < COUNT; i++) {
                struct meopt_tensor_info planned, info;
                assert_int_equal(meopt_plan_tensor(&o, &table[i], &planned, &err), 0);
                assert_int_equal(meopt_info(opt, i, &info), 0);
                assert_int_equal(planned.count, info.count);
                assert_int_equal(planned.weights, info.weights);
                assert_int_equal(planned.first_moment, info.first_moment);
                assert_int_equal(planned.second_moment, info.second_moment);
                assert_int_equal(planned.bytes.total, info.bytes.total);
            }
            meopt_destroy(opt);
        }
}

static void moments_go_out_and_in_as_numbers(void **state)
{
    for (int rule = 0; rule < MEOPT_RULE_COUNT; rule++)
        for (size_t p = 0; p < sizeof presets / sizeof *presets; p++) {
            if (rule == MEOPT_ADAFACTOR) continue; /* optim_factors.c */
            struct meopt_error err;
            struct meopt *from = make(rule, presets[p], 7), *to = make(rule, presets[p], 7);
            steps(from, 1, 5);
            for (size_t i = 0; i < COUNT; i++) {
                int64_t n = i ? B : A;
                struct meopt_tensor_info of;
                assert_int_equal(meopt_info(from, i, &of), 0);
                float *has_v = of.second_moment < 0 ? NULL : v;
                assert_int_equal(meopt_export(from, i, 0, n, x, &err), 0);
                assert_int_equal(meopt_import(to, i, 0, n, x, &err), 0);
                assert_int_equal(meopt_moments_export(from, i, 0, n, m, has_v, &err), 0);
                assert_int_equal(meopt_moments_import(to, i, 0, n, m, has_v, 5, &err), 0);
                assert_int_equal(meopt_moments_export(to, i, 0, n, m2, has_v ? v2 : NULL, &err), 0);
                double sums[2];
                int status = meopt_average_sums(from, i, NULL, sums, &err);
                assert_int_equal(status, rule == MEOPT_SCHEDULE_FREE ? MEOPT_OK : MEOPT_BAD_ARGUMENT);
                if (!status) assert_int_equal(meopt_average_sums(to, i, sums, NULL, &err), 0);
                for (int64_t k = 0; !has_v && k < n; k++) { /* onto a span of its own */
                    int64_t group = k / 64 * 64;
                    double was = (double)m[k], is = (double)m2[k];
                    double off = of.first_moment == MEOPT_STATE_8BIT
                                     ? span_off(rule, m + group, n - group < 64 ? n - group : 64, was, is)
                                     : 0;
                    assert_true(fabs(is - was) <= off);
                }
                for (int64_t k = 0; has_v && k < n; k++) { /* pairs may find another grid: half a code of the
                                                            * widest, where |m| <= 7.3 sqrt(v) */
                    double root = sqrt((double)v[k]);
                    assert_true(fabs((double)m2[k] - (double)m[k]) <= 7.3 * 9 / 8 / 60 * root);
                    assert_true(fabs(sqrt((double)v2[k]) - root) <= 32.0 / 1074 / 2 * root);
                }
            }
            steps(from, 6, 8);
            steps(to, 6, 8);
            if (strcmp(presets[p], "fp32") == 0) same_weights(from, to);
            struct meopt_tensor_info info;
            meopt_info(to, 0, &info);
            assert_int_equal(info.updates, 8);
            float *has_v = info.second_moment < 0 ? NULL : v;
            m[3] = NAN;
            assert_int_equal(meopt_moments_import(to, 0, 0, 64, m, has_v, -1, &err), MEOPT_NOT_FINITE);
            assert_int_equal(meopt_moments_export(to, 0, 3, 64, m, has_v, &err), MEOPT_BAD_ARGUMENT);
            assert_int_equal(meopt_moments_export(to, 0, 0, 64, m, has_v ? NULL : v, &err),
                             MEOPT_BAD_ARGUMENT);
            meopt_destroy(from);
            meopt_destroy(to);
        }
}

static void an_empty_tensor_takes_its_steps(void **state)
{
    struct meopt_options o;
    struct meopt_error err;
    struct meopt *opt, *again;
    struct meopt_tensor rows[] = {{.name = "empty", .ndim = 2, .shape = {0, 70}}, table[0]};
    struct meopt_step_stats stats;
    void *p;
    enum meopt_dtype dtype;
    meopt_options_init(&o, sizeof o, MEOPT_LAMB);
    meopt_options_preset(&o, "balanced", &err);
    o.weight_decay = 0.1;
    assert_int_equal(meopt_create(&opt, &o, rows, 2, &err), 0);
    assert_int_equal(meopt_create(&again, &o, rows, 2, &err), 0);
    assert_int_equal(meopt_weights(opt, 0, &p, &dtype), 0);
    assert_int_equal(meopt_step_begin(opt, 1, 1e-3, 0, &err), 0);
    assert_int_equal(meopt_step_tensor(opt, 0, NULL, MEOPT_F32, 1, &err), 0);
    assert_int_equal(meopt_step_tensor(opt, 1, gradient, MEOPT_F32, 1, &err), 0);
    assert_int_equal(meopt_step_end(opt, &stats, &err), 0);
    assert_int_equal(stats.tensors, 2);
    struct meopt_gradient g[] = {{x, MEOPT_F32}, {gradient, MEOPT_F32}};
    assert_int_equal(meopt_step(opt, 2, 1e-3, 1, g, &stats, &err), 0);
    struct buffer b = saved(opt);
    assert_int_equal(meopt_load(again, b.data, b.bytes, &err), 0);
    struct meopt_tensor_info info;
    meopt_info(again, 0, &info);
    assert_int_equal(info.updates, 2);
    free(b.data);
    meopt_destroy(opt);
    meopt_destroy(again);
}

static void one_bad_gradient_stops_all_where_that_is_asked(void **state)
{
    for (int all = 0; all < 2; all++) {
        struct meopt_options o;
        struct meopt_error err;
        struct meopt *opt;
        meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
        meopt_options_preset(&o, "balanced", &err);
        o.all_or_nothing = all;
        assert_int_equal(meopt_create(&opt, &o, table, COUNT, &err), 0);
        fill(start, A, 1, 1);
        meopt_import(opt, 0, 0, A, start, &err);
        meopt_export(opt, 0, 0, A, x, &err);
        fill(gradient, A, 3, 1);
        static float bad[B];
        bad[70] = INFINITY;
        struct meopt_gradient g[] = {{gradient, MEOPT_F32}, {bad, MEOPT_F32}};
        assert_int_equal(meopt_step(opt, 1, 1e-3, 1, g, NULL, &err), MEOPT_NOT_FINITE);
        meopt_export(opt, 0, 0, A, y, &err);
        assert_int_equal(memcmp(x, y, sizeof x) == 0, all);
        struct meopt_tensor_info info;
        meopt_info(opt, 0, &info);
        assert_int_equal(info.updates, !all);
        meopt_destroy(opt);
    }
}

static void gradients_are_divided_by_their_norm_inside(void **state)
{
    for (int rule = 0; rule < MEOPT_RULE_COUNT; rule++) {
        struct meopt_options o;
        struct meopt_error err;
        struct meopt *inside, *outside = make(rule, "balanced", 7);
        meopt_options_init(&o, sizeof o, rule);
        meopt_options_preset(&o, "balanced", &err);
        o.weight_decay = 0.01;
        o.seed = 7;
        o.max_grad_norm = 2;
        assert_int_equal(meopt_create(&inside, &o, table, COUNT, &err), 0);
        meopt_import(inside, 0, 0, A, start, &err);
        meopt_import(inside, 1, 0, B, start, &err);
        for (int step = 1; step <= 6; step++) { /* norms from 0.6 to 20, each gradient times 0.5 */
            double norm;
            int finite;
            fill(gradient, A, (uint32_t)step, step % 2 ? 0.7f : 0.02f);
            struct meopt_gradient g[COUNT] = {{gradient, MEOPT_F32}, {gradient, MEOPT_F32}};
            assert_int_equal(meopt_gradient_norm(outside, g, &norm, &finite, &err), 0);
            norm *= 0.5;
            assert_int_equal(meopt_step(inside, step, 1e-3, 0.5, g, NULL, &err), 0);
            assert_int_equal(
                meopt_step(outside, step, 1e-3, norm > 2 ? 0.5 * (2 / norm) : 0.5, g, NULL, &err), 0);
        }
        same_weights(inside, outside);
        assert_int_equal(meopt_step_begin(inside, 7, 1e-3, 0, &err), MEOPT_BAD_ORDER);
        gradient[9] = NAN;
        struct meopt_gradient g[COUNT] = {{gradient, MEOPT_F32}, {start, MEOPT_F32}};
        assert_int_equal(meopt_step(inside, 7, 1e-3, 1, g, NULL, &err), MEOPT_NOT_FINITE);
        same_weights(inside, outside);
        meopt_destroy(inside);
        meopt_destroy(outside);
    }
}

/* multi_tensor_lamb.cu of apex: beta3 = grad_averaging ? 1 - beta1 : 1; without bias_correction both
 * corrections are 1; u = m_hat / (sqrt(v_hat) + eps) + decay w; w -= lr |w| / |u| u. */
static void lamb_has_the_switches_of_apex(void **state)
{
    enum { STEPS = 20 };
    const double lr = 1e-2, decay = 0.01, eps = 1e-6, b1 = 0.9, b2 = 0.999;
    for (int way = 0; way < 4; way++) {
        struct meopt_options o;
        struct meopt_error err;
        struct meopt *opt;
        static double w[A], em[A], ev[A], u[A];
        meopt_options_init(&o, sizeof o, MEOPT_LAMB);
        o.weight_decay = decay;
        o.bias_correction = way & 1;
        o.grad_averaging = way >> 1;
        assert_int_equal(meopt_create(&opt, &o, table, 1, &err), 0);
        fill(start, A, 1, 1);
        meopt_import(opt, 0, 0, A, start, &err);
        double moved = 0;
        for (int i = 0; i < A; i++) w[i] = (double)start[i], em[i] = ev[i] = 0;
        for (int step = 1; step <= STEPS; step++) {
            fill(gradient, A, (uint32_t)step, 0.1f);
            struct meopt_gradient g = {gradient, MEOPT_F32};
            assert_int_equal(meopt_step(opt, step, lr, 1, &g, NULL, &err), 0);
            double c1 = way & 1 ? 1 - pow(b1, step) : 1, c2 = way & 1 ? 1 - pow(b2, step) : 1, ww = 0, uu = 0;
            for (int i = 0; i < A; i++) {
                double gi = (double)gradient[i];
                em[i] = b1 * em[i] + (way >> 1 ? 1 - b1 : 1) * gi;
                ev[i] = b2 * ev[i] + (1 - b2) * gi * gi;
                u[i] = em[i] / c1 / (sqrt(ev[i] / c2) + eps) + decay * w[i];
                ww += w[i] * w[i];
                uu += u[i] * u[i];
            }
            double ratio = sqrt(ww / uu), largest = 0;
            for (int i = 0; i < A; i++) {
                w[i] -= lr * ratio * u[i];
                largest = fmax(largest, fabs(lr * ratio * u[i]));
            }
            moved += largest;
        }
        assert_int_equal(meopt_export(opt, 0, 0, A, x, &err), 0);
        /* a step rounds w once (2^-25 of at most 1), u and the ratio some 16 times; moments carry 10 of those
         */
        double bound = STEPS * ldexp(1, -25) + moved * 160 * ldexp(1, -24);
        for (int i = 0; i < A; i++) assert_true(fabs((double)x[i] - w[i]) <= bound);
        meopt_destroy(opt);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_of_a_tensor_are_settable_between_steps),
        cmocka_unit_test(maximize_negates_the_gradient_before_all),
        cmocka_unit_test(offloaded_tensors_have_no_view),
        cmocka_unit_test(memory_that_moved_is_followed),
        cmocka_unit_test(what_others_wrote_is_the_truth_after_sync),
        cmocka_unit_test(the_half_of_a_tie_is_even_where_nothing_else_keeps_it),
        cmocka_unit_test(formats_are_planned_before_tensors_exist),
        cmocka_unit_test(moments_go_out_and_in_as_numbers),
        cmocka_unit_test(an_empty_tensor_takes_its_steps),
        cmocka_unit_test(one_bad_gradient_stops_all_where_that_is_asked),
        cmocka_unit_test(gradients_are_divided_by_their_norm_inside),
        cmocka_unit_test(lamb_has_the_switches_of_apex),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
