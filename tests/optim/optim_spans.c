/* 8-bit momentum of rules without v: for any values of a group and any record, its grid gives finite
 * numbers. A momentum whose gradient stops decays to zero, and a refused gradient changes nothing. */
#include "core/optim/optim.h"
#include "tests/optim/optim_spans.h"

#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { GROUP = 64, ALL_CODES = 256, N = 4 * GROUP + 36 };
static const int rules[] = {RULE_APSGD, RULE_LION};

static struct optim_task task_for(int rule, void *m, uint8_t *scales)
{
    return (struct optim_task){.count = ALL_CODES,
                               .rule = rule,
                               .weight_format = WEIGHTS_F32,
                               .m_format = STATE_8BIT,
                               .v_format = STATE_NONE,
                               .m = m,
                               .scales = scales,
                               .key = {5, 6},
                               .s = {.lr = 1e-3f,
                                     .decay = 1,
                                     .beta1 = 0.9f,
                                     .rest1 = 0.1f,
                                     .beta2 = 0.99f,
                                     .rest2 = 0.01f,
                                     .gradient_scale = 1}};
}

static void every_header_and_code_is_a_number(void **state)
{
    const struct optim_kernels *kernels = optim_kernels_find(NULL);
    uint8_t *codes = malloc(ALL_CODES), *scales = malloc(ALL_CODES / GROUP * 2);
    float m[ALL_CODES];
    for (int i = 0; i < ALL_CODES; i++) codes[i] = (uint8_t)i;
    for (uint32_t header = 0; header < 65536; header++) {
        struct optim_task t = task_for(RULE_LION, codes, scales);
        for (int i = 0; i < ALL_CODES / GROUP; i++) memcpy(scales + 2 * i, &(uint16_t){(uint16_t)header}, 2);
        kernels->state_out(&t, 0, ALL_CODES / GROUP, m, NULL);
        for (int i = 0; i < 128; i++)
            if (!isfinite(m[i]) || m[i + 128] != -m[i] || (i ? m[i] <= m[i - 1] : m[i] != 0))
                fail_msg("header %04x, code %d: %g, of the other sign %g", header, i, (double)m[i],
                         (double)m[i + 128]);
    }
    free(codes);
    free(scales);
}

/* From every span, with gradients of any size that is not refused; each set of instructions gives the same.
 */
static void steps_from_any_header_stay_numbers(void **state)
{
    struct {
        float weights[ALL_CODES];
        uint8_t codes[ALL_CODES], scales[ALL_CODES / GROUP * 2];
    } of[3];
    float m[ALL_CODES];
    for (uint32_t header = 0; header < 65536; header += 61)
        for (int k = 0; k < 6; k++) {
            const struct optim_kernels *kernels = optim_kernels_find(variants[2 - k % 3]);
            struct optim_task t = task_for(rules[k / 3], of[k % 3].codes, of[k % 3].scales);
            struct optim_partial found;
            float g[ALL_CODES];
            if (!kernels) continue;
            memset(&of[k % 3], 0, sizeof of[0]);
            random_state = header;
            for (int i = 0; i < ALL_CODES; i++) {
                double size = exp2((int)(header % 160) - 100 - (int)(header / 61 % 5) * i % 40);
                of[k % 3].codes[i] = (uint8_t)i;
                g[i] = i % 7 ? (float)(size * (uniform() - 0.5)) : 0;
                memcpy(of[k % 3].scales + i / GROUP * 2, &(uint16_t){(uint16_t)header}, 2);
            }
            t.weights = of[k % 3].weights;
            t.gradient = g;
            for (t.updates = header; t.updates < header + 3; t.updates++) {
                kernels->step(&t, 0, ALL_CODES / GROUP, &found);
                assert_int_equal(found.bad_groups, 0);
            }
            kernels->state_out(&t, 0, ALL_CODES / GROUP, m, NULL);
            for (int i = 0; i < ALL_CODES; i++) assert_true(isfinite(m[i]));
            assert_memory_equal(&of[0], &of[k % 3], sizeof of[0]);
        }
}

/* Of numbers that come from outside. What is beyond 2^97 is cut to a span's end. */
static void odd_groups_come_back(void **state)
{
    const struct optim_kernels *kernels = optim_kernels_find(NULL);
    static const char *const names[] = {"zeros",   "one",          "equal",      "subnormal",
                                        "2^-61",   "2^-126 on",    "2^60 to 97", "2^-60 to 97",
                                        "FLT_MAX", "FLT_MAX and 1"};
    for (int r = 0; r < 2; r++)
        for (int kind = 0; kind < 10; kind++) {
            uint8_t codes[GROUP], scales[2] = {0xff, 0xff};
            float m[GROUP] = {0}, back[GROUP];
            struct optim_task t = task_for(rules[r], codes, scales);
            for (int i = 0; i < GROUP; i++) {
                float sign = i % 2 ? -1 : 1;
                if (kind == 1 && i == 17) m[i] = -3e-5f;
                if (kind == 2) m[i] = 7e-3f;
                if (kind == 3) m[i] = sign * from_bits((uint32_t)i * 1000);
                if (kind == 4) m[i] = sign * (float)exp2(-61 + i / 64.0);
                if (kind == 5) m[i] = sign * (float)exp2(-126 + 2 * i);
                if (kind == 6) m[i] = sign * (float)exp2(60 + i * 37 / 64.0);
                if (kind == 7) m[i] = sign * (float)exp2(-60 + i * 157 / 64.0);
                if (kind >= 8) m[i] = kind == 9 && i % 3 ? 1 : sign * FLT_MAX;
            }
            kernels->state_in(&t, 0, 1, m, NULL);
            kernels->state_out(&t, 0, 1, back, NULL);
            for (int i = 0; i < GROUP; i++) {
                double x = (double)m[i], y = (double)back[i];
                bool good = fabs(x) > exp2(97) ? x * y > 0 && fabs(y) <= fabs(x) && fabs(y) > exp2(96)
                                               : fabs(x - y) <= span_off(rules[r], m, GROUP, x, y);
                if (x == 0 && y != 0) good = false;
                if (!good) fail_msg("rule %d, %s: element %d is %g, was %g", rules[r], names[kind], i, y, x);
            }
        }
}

static struct meopt *made(int rule, const char *preset, double beta1, double beta2, double dampening,
                          bool nesterov)
{
    struct meopt_options o;
    struct meopt_error err;
    struct meopt *opt;
    struct meopt_tensor t = {.name = "w", .ndim = 2, .shape = {4, N / 4}};
    assert_int_equal(meopt_options_init(&o, sizeof o, rule), 0);
    assert_int_equal(meopt_options_preset(&o, preset, &err), 0);
    o.weights = MEOPT_WEIGHTS_F32;
    o.small_count = 0;
    o.seed = 3;
    o.threads = 1;
    o.weight_decay = 0;
    if (rule == MEOPT_LION) o.beta1 = beta1, o.beta2 = beta2;
    else o.momentum = beta1, o.dampening = dampening, o.nesterov = nesterov;
    assert_int_equal(meopt_create(&opt, &o, &t, 1, &err), 0);
    return opt;
}
static float gradient[N];
static void step(struct meopt *opt, int number, bool quiet)
{
    struct meopt_gradient g = {gradient, MEOPT_F32};
    random_state = (uint64_t)number;
    for (int i = 0; i < N; i++)
        gradient[i] = quiet ? 0 : (float)(exp2(i % 11 - 6) * (uniform() - 0.5 + (i % 5 - 2) / 8.0));
    assert_int_equal(meopt_step(opt, number, 1e-3, 1, &g, NULL, NULL), 0);
}

/* Lion's step is as long however small its momentum is: what stays would move weights for ever. It fades
 * without turning, as it does in fp32, and is 0 where it was some 2^-61. */
static void a_gradient_that_stops_leaves_no_momentum(void **state)
{
    enum { BEFORE = 60, AFTER = 700 };
    for (int r = 0; r < 2; r++) {
        int rule = r ? MEOPT_LION : MEOPT_APSGD;
        struct meopt *opt = made(rule, "balanced", 0.9, 0.9, 0, false),
                     *exact = made(rule, "fp32", 0.9, 0.9, 0, false);
        float at_stop[N], m[N], w[2][N], end[N];
        for (int i = 1; i <= BEFORE; i++) step(opt, i, false), step(exact, i, false);
        assert_int_equal(meopt_moments_export(opt, 0, 0, N, at_stop, NULL, NULL), 0);
        assert_int_equal(meopt_moments_import(exact, 0, 0, N, at_stop, NULL, -1, NULL), 0);
        memset(w, 0, sizeof w);
        assert_int_equal(meopt_import(opt, 0, 0, N, w[0], NULL), 0);
        assert_int_equal(meopt_import(exact, 0, 0, N, w[0], NULL), 0);
        double apart = 0, whole = 0;
        for (int i = 1; i <= AFTER; i++) {
            step(opt, BEFORE + i, true), step(exact, BEFORE + i, true);
            assert_int_equal(meopt_moments_export(opt, 0, 0, N, m, NULL, NULL), 0);
            for (int k = 0; k < N; k++)
                if (m[k] != 0 && (m[k] > 0) != (at_stop[k] > 0)) fail_msg("m %d turns after %d steps", k, i);
            if (i != 200) continue;
            assert_int_equal(meopt_export(opt, 0, 0, N, w[0], NULL), 0);
            assert_int_equal(meopt_export(exact, 0, 0, N, w[1], NULL), 0);
            for (int k = 0; k < N; k++) {
                apart += pow((double)w[0][k] - (double)w[1][k], 2);
                whole += pow((double)w[1][k], 2);
            }
        }
        if (apart > (r ? 0 : 0.06 * 0.06) * whole)
            fail_msg("%s: error %g of the way without a gradient", meopt_rule_name(rule),
                     sqrt(apart / whole));
        for (int k = 0; k < N; k++)
            if (m[k] != 0) fail_msg("%s: m %d stays at %g", meopt_rule_name(rule), k, (double)m[k]);
        assert_int_equal(meopt_export(opt, 0, 0, N, w[0], NULL), 0);
        for (int i = 1; i <= 20; i++) step(opt, BEFORE + AFTER + i, true);
        assert_int_equal(meopt_export(opt, 0, 0, N, end, NULL), 0);
        assert_memory_equal(w[0], end, sizeof end);
        meopt_destroy(opt);
        meopt_destroy(exact);
    }
}

static void any_momentum_and_dampening_goes_the_way_of_fp32(void **state)
{
    static const struct {
        int rule;
        double beta1, beta2, dampening;
        bool nesterov;
        double most;
    } cases[] = {{MEOPT_LION, 0, 0, 0, false, 0},          {MEOPT_LION, 0, 0.99, 0, false, 0},
                 {MEOPT_LION, 0.95, 0.98, 0, false, 0.06}, {MEOPT_APSGD, 0, 0, 0, false, 0},
                 {MEOPT_APSGD, 0.9, 0, 0.9, false, 0.06},  {MEOPT_APSGD, 0.9, 0, 0, true, 0.06},
                 {MEOPT_APSGD, 0.99, 0, 0.5, false, 0.06}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct meopt *opt[2];
        float w[2][N];
        double apart = 0, whole = 0;
        for (int k = 0; k < 2; k++) {
            opt[k] = made(cases[c].rule, k ? "fp32" : "balanced", cases[c].beta1, cases[c].beta2,
                          cases[c].dampening, cases[c].nesterov);
            for (int i = 1; i <= 300; i++) step(opt[k], i, false);
            assert_int_equal(meopt_export(opt[k], 0, 0, N, w[k], NULL), 0);
            meopt_destroy(opt[k]);
        }
        for (int k = 0; k < N; k++) {
            apart += pow((double)w[0][k] - (double)w[1][k], 2);
            whole += pow((double)w[1][k], 2);
        }
        if (sqrt(apart / whole) > cases[c].most) fail_msg("case %zu: error %g", c, sqrt(apart / whole));
    }
}

static void a_refused_gradient_changes_nothing(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, -FLT_MAX, 1e19f};
    for (int r = 0; r < 2; r++)
        for (size_t b = 0; b < sizeof bad / sizeof *bad; b++) {
            struct meopt *opt = made(r ? MEOPT_LION : MEOPT_APSGD, "balanced", 0.9, 0.99, 0, true);
            struct meopt_step_stats stats;
            struct meopt_gradient g = {gradient, MEOPT_F32};
            float w[2][N], m[2][N];
            for (int i = 1; i <= 15; i++) step(opt, i, false);
            assert_int_equal(meopt_export(opt, 0, 0, N, w[0], NULL), 0);
            assert_int_equal(meopt_moments_export(opt, 0, 0, N, m[0], NULL, NULL), 0);
            for (int i = 0; i < N; i += GROUP) gradient[i + i / GROUP] = bad[b];
            for (int i = 16; i < 40; i++) meopt_step(opt, i, 1e-3, 1, &g, &stats, NULL);
            assert_int_equal(stats.bad_groups, (N + GROUP - 1) / GROUP);
            assert_int_equal(meopt_export(opt, 0, 0, N, w[1], NULL), 0);
            assert_int_equal(meopt_moments_export(opt, 0, 0, N, m[1], NULL, NULL), 0);
            assert_memory_equal(w[0], w[1], sizeof w[0]);
            assert_memory_equal(m[0], m[1], sizeof m[0]);
            meopt_destroy(opt);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_header_and_code_is_a_number),
        cmocka_unit_test(steps_from_any_header_stay_numbers),
        cmocka_unit_test(odd_groups_come_back),
        cmocka_unit_test(a_gradient_that_stops_leaves_no_momentum),
        cmocka_unit_test(any_momentum_and_dampening_goes_the_way_of_fp32),
        cmocka_unit_test(a_refused_gradient_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
