/* Properties of the formats: error bounds, no code for an empty second moment, exact residual bits, and
 * bit-identical instruction sets. MEOPT_LONG=1 visits all 2^32 fp32 numbers, and over 10^8 random values
 * for each property. */
#include "core/optim/optim.h"
#include "kernels/cpu/select.h"
#include "tests/optim/optim_numbers.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { COUNT = 64 * 21 + 17, SPACE = 64 * 22 * 4 };
struct memory {
    uint8_t weights[SPACE], copy[SPACE], correction[SPACE], m[SPACE], v[SPACE], scales[64 * 4];
    struct optim_partial found;
};

static void run_steps(const struct optim_kernels *kernels, struct optim_task t, struct memory *mem, int steps,
                      const float *gradients)
{
    memset(mem, 0, sizeof *mem);
    t.weights = mem->weights;
    t.copy = mem->copy;
    t.correction = mem->correction;
    t.m = mem->m;
    t.v = mem->v;
    t.scales = mem->scales;
    static float start[64 * 22];
    for (int i = 0; i < COUNT; i++) start[i] = gradients[i] * 3;
    kernels->weights_in(&t, 0, 22, start);
    for (int step = 1; step <= steps; step++) {
        t.step[0] = (uint32_t)step;
        t.updates = (uint32_t)step - 1;
        t.gradient = gradients + step * COUNT;
        if (t.rule == RULE_LAMB) {
            t.norms_only = 1;
            kernels->step(&t, 0, 22, &mem->found);
            t.norms_only = 0;
        }
        kernels->step(&t, 0, 7, &mem->found);
        kernels->step(&t, 7, 22, &mem->found);
    }
}

static void every_variant_gives_the_same_bits(void **state)
{
    enum { STEPS = 5 };
    static float gradients[(STEPS + 1) * COUNT];
    static struct memory reference, other;
    for (int i = 0; i < (STEPS + 1) * COUNT; i++)
        gradients[i] = random_next() % 5 ? (float)((uniform() - 0.5) * pow(10, uniform() * 8 - 6)) : 0;
    struct optim_scalars s = {.lr = 0.01f,
                              .decay = 0.999f,
                              .weight_decay = 0.1f,
                              .beta1 = 0.9f,
                              .rest1 = 0.1f,
                              .beta2 = 0.99f,
                              .rest2 = 0.01f,
                              .eps = 1e-8f,
                              .step_size = 0.02f,
                              .root_scale = 1.7f,
                              .direction_limit = 3,
                              .gradient_scale = 0.7f,
                              .nesterov = 1};
    for (int rule = RULE_APADAM; rule <= RULE_LION; rule++)
        for (int weights = WEIGHTS_F32; weights <= WEIGHTS_32; weights++)
            for (int m = STATE_F32; m <= STATE_4BIT; m++)
                for (int v = STATE_F32; v <= STATE_4BIT; v++) {
                    bool has_v = rule != RULE_APSGD && rule != RULE_LION;
                    if (!has_v && v != STATE_F32) continue;
                    struct optim_task t = {.count = COUNT,
                                           .first_group = 3,
                                           .rule = rule,
                                           .weight_format = weights,
                                           .m_format = m,
                                           .v_format = has_v ? v : STATE_NONE,
                                           .gradient_format = GRADIENT_F32,
                                           .m_range = 3,
                                           .key = {1, 2},
                                           .s = s};
                    run_steps(optim_kernels_find("plain"), t, &reference, STEPS, gradients);
                    for (int k = 0; k < 2; k++) {
                        const struct optim_kernels *kernels = optim_kernels_find(variants[k]);
                        if (!kernels) continue;
                        run_steps(kernels, t, &other, STEPS, gradients);
                        if (memcmp(&reference, &other, sizeof other) != 0)
                            fail_msg("rule %d weights %d m %d v %d: %s differs from plain", rule, weights, m,
                                     v, variants[k]);
                    }
                }
}

static struct optim_kernels spied;
static int spied_steps;
static void spied_step(const struct optim_task *task, int64_t begin, int64_t end, struct optim_partial *out)
{
    spied_steps++;
    optim_kernels_find("plain")->step(task, begin, end, out);
}

/* By MEOPT_CPU_ISA, when a handle is made; its steps are then that set's. */
static void the_instruction_set_is_the_one_asked_for(void **state)
{
    static const struct {
        const char *asked, *is;
    } sets[] = {{"plain", "plain"},   {"avx2", "avx2"}, {"avx512", "avx512"},  {"avx2_vnni", "avx2"},
                {"avx2_fma", "avx2"}, {"amx", NULL},    {"avx512_bf16", NULL}, {"avx512_vnni", NULL}};
    unsetenv("MEOPT_CPU_ISA");
    const struct optim_kernels *fastest = optim_kernels_find(NULL);
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        if (sets[i].is && !optim_kernels_find(sets[i].is)) continue;
        struct cpu_refusal refusal;
        setenv("MEOPT_CPU_ISA", sets[i].asked, 1);
        if (cpu_isa_refused(true, &refusal)) {
            unsetenv("MEOPT_CPU_ISA");
            continue;
        }
        const struct optim_kernels *found = optim_kernels_find(NULL);
        assert_ptr_equal(found, sets[i].is ? optim_kernels_find(sets[i].is) : fastest);
        struct meopt_options o;
        struct meopt *opt;
        struct meopt_tensor t = {.name = "w", .ndim = 2, .shape = {64, 64}};
        static float gradient[64 * 64];
        struct meopt_gradient g = {gradient, MEOPT_F32};
        assert_int_equal(meopt_options_init(&o, sizeof o, MEOPT_APADAMW), 0);
        assert_int_equal(meopt_create(&opt, &o, &t, 1, NULL), 0);
        unsetenv("MEOPT_CPU_ISA");
        assert_ptr_equal(opt->kernels, found);
        spied = *found;
        spied.step = spied_step;
        opt->kernels = &spied;
        spied_steps = 0;
        assert_int_equal(meopt_step(opt, 1, 1e-3, 1, &g, NULL, NULL), 0);
        assert_int_equal(spied_steps, 1);
        meopt_destroy(opt);
    }
}

static void threads_do_not_change_a_bit(void **state)
{
    enum { ROWS = 300, COLUMNS = 777 };
    static float gradient[ROWS * COLUMNS], weights[3][ROWS * COLUMNS];
    double norms[3] = {0};
    for (int i = 0; i < ROWS * COLUMNS; i++) gradient[i] = (float)(uniform() - 0.5);
    for (int rule = 0; rule < MEOPT_RULE_COUNT; rule++) {
        for (int k = 0; k < 3; k++) {
            struct meopt_options o;
            struct meopt_error err;
            struct meopt *opt;
            struct meopt_step_stats stats;
            meopt_options_init(&o, sizeof o, rule);
            meopt_options_preset(&o, "balanced", &err);
            o.weight_decay = 0.01;
            o.threads = (int[]){1, 2, 5}[k];
            struct meopt_tensor table[2] = {{.name = "a", .ndim = 2, .shape = {ROWS, COLUMNS}},
                                            {.name = "b", .ndim = 1, .shape = {77}}};
            assert_int_equal(meopt_create(&opt, &o, table, 2, &err), 0);
            assert_int_equal(meopt_import(opt, 0, 0, ROWS * COLUMNS, gradient, &err), 0);
            for (int step = 1; step < 4; step++) {
                struct meopt_gradient g[2] = {{gradient, MEOPT_F32}, {gradient, MEOPT_F32}};
                assert_int_equal(meopt_step(opt, step, 1e-3, 0.5, g, &stats, &err), 0);
            }
            assert_int_equal(meopt_export(opt, 0, 0, ROWS * COLUMNS, weights[k], &err), 0);
            norms[k] = stats.grad_norm;
            meopt_destroy(opt);
        }
        assert_memory_equal(weights[0], weights[1], sizeof weights[0]);
        assert_memory_equal(weights[0], weights[2], sizeof weights[0]);
        assert_true(norms[0] == norms[1] && norms[0] == norms[2]);
    }
}

static void corrections_keep_every_bit_they_can(void **state)
{
    enum { BATCH = 64 * 64 };
    static float values[BATCH], back[BATCH];
    static uint16_t half[BATCH];
    static uint8_t correction[BATCH * 2];
    const struct optim_kernels *kernels = optim_kernels_find(NULL);
    uint64_t stride = getenv("MEOPT_LONG") ? 1 : 1021;
    uint64_t at = 0;
    while (at < (uint64_t)1 << 32) {
        int n = 0;
        for (; n < BATCH && at < (uint64_t)1 << 32; at += stride)
            if (((uint32_t)at & 0x7f800000u) != 0x7f800000u) values[n++] = from_bits((uint32_t)at);
        for (int format = WEIGHTS_20; format <= WEIGHTS_32; format++) {
            int drop = format == WEIGHTS_20 ? 12 : format == WEIGHTS_24 ? 8 : 0;
            struct optim_task t = {
                .count = n, .weight_format = format, .weights = half, .correction = correction};
            kernels->weights_in(&t, 0, (n + 63) / 64, values);
            kernels->weights_out(&t, 0, (n + 63) / 64, back);
            uint32_t wrong = 0;
            for (int i = 0; i < n; i++) {
                uint32_t bits = to_bits(values[i]),
                         nearest = drop ? (bits + (1u << (drop - 1))) >> drop << drop : bits;
                wrong |= to_bits(back[i]) ^ nearest;
                wrong |= half[i] ^ (nearest + 0x8000u) >> 16;
            }
            assert_int_equal(wrong, 0);
            memcpy(values, back, sizeof back); /* what 24 bits hold comes back; the next format is wider */
            kernels->weights_in(&t, 0, (n + 63) / 64, values);
            kernels->weights_out(&t, 0, (n + 63) / 64, back);
            assert_memory_equal(values, back, (size_t)n * 4);
        }
    }
}

static struct optim_task state_task(int m_format, int v_format, uint8_t *m, uint8_t *v, uint8_t *scales)
{
    return (struct optim_task){.count = 64,
                               .m_format = m_format,
                               .v_format = v_format,
                               .m_range = 3,
                               .m = m,
                               .v = v,
                               .scales = scales};
}

/* Of 64 values each: with MEOPT_LONG over 10^8 values. */
static int random_groups(void) { return getenv("MEOPT_LONG") ? 1600000 : 20000; }

static void second_moment_has_no_zero_and_a_bounded_error(void **state)
{
    const struct optim_kernels *kernels = optim_kernels_find(NULL);
    uint8_t mc[256], vc[256], scale[4];
    float m[64] = {0}, v[64], m2[64], v2[64], v3[64];
    for (int format = STATE_8BIT; format <= STATE_4BIT; format++) {
        int codes = format == STATE_8BIT ? 256 : 16, binades = format == STATE_8BIT ? 16 : 8;
        /* a code of its own: 8 bits of both moments are pairs (tests/optim/optim_pairs.c) */
        struct optim_task t = state_task(STATE_BF16_NEAREST, format, mc, vc, scale);
        /* every code of every scale: positive, rising, and it comes back as itself */
        for (int e = 83; e <= 190; e++)
            for (int first = 0; first < codes; first += 63) {
                for (int i = 0; i < 64; i++) vc[i] = 0;
                for (int i = 0; i < 64; i++) {
                    int code = i == 63 || first + i > codes - 1 ? codes - 1 : first + i;
                    if (format == STATE_8BIT) vc[i] = (uint8_t)code;
                    else vc[i % 32] = (uint8_t)(vc[i % 32] | code << (i / 32 * 4));
                }
                scale[0] = (uint8_t)e;
                memset(mc, 0, sizeof mc);
                kernels->state_out(&t, 0, 1, m2, v2);
                for (int i = 0; i < 64; i++) {
                    assert_true(v2[i] >= 1.17549435e-38f && isfinite(v2[i]));
                    if (i && i < 63 && first + i < codes) assert_true(v2[i] > v2[i - 1]);
                }
                kernels->state_in(&t, 0, 1, m2, v2);
                kernels->state_out(&t, 0, 1, m2, v3);
                assert_memory_equal(v2, v3, sizeof v2);
            }
        /* random groups: nearest is within half a code of the root */
        for (int round = 0; round < random_groups(); round++) {
            double top = pow(10, uniform() * 34 - 24), bound = format == STATE_8BIT ? 1.0 / 32 : 1.0 / 4;
            float largest = 0;
            for (int i = 0; i < 64; i++) {
                v[i] = (float)(top * pow(10, -uniform() * 8));
                if (random_next() % 10 == 0) v[i] = 0;
                largest = fmaxf(largest, v[i]);
            }
            if (largest == 0) continue;
            kernels->state_in(&t, 0, 1, m, v);
            kernels->state_out(&t, 0, 1, m2, v2);
            double low = sqrt((double)largest) * pow(2, 2 - binades);
            for (int i = 0; i < 64; i++) {
                double root = sqrt((double)v[i]), back = sqrt((double)v2[i]);
                assert_true(back > 0 && isfinite(back));
                if (root > 2 * low) assert_true(fabs(back - root) <= root * bound * (1 + 1e-6));
                if (root <= low / 2) assert_true(back <= 4 * low); /* below the last code: kept too large */
                assert_true(back >= root * (1 - bound));
            }
        }
        memset(v, 0, sizeof v);
        kernels->state_in(&t, 0, 1, m, v);
        kernels->state_out(&t, 0, 1, m2, v2);
        assert_int_equal(scale[0], 0);
        assert_memory_equal(v, v2, sizeof v);
        v[17] = 1e10f; /* one outlier: the others read small, not zero */
        kernels->state_in(&t, 0, 1, m, v);
        kernels->state_out(&t, 0, 1, m2, v2);
        for (int i = 0; i < 64; i++)
            assert_true(v2[i] > 0 && (i == 17 || v2[i] < 1e10f / (format == STATE_8BIT ? 1e8f : 1e3f)));
    }
}

static void first_moment_is_idempotent_and_bounded(void **state)
{
    const struct optim_kernels *kernels = optim_kernels_find(NULL);
    uint8_t mc[256], vc[256], scale[4];
    float m[64], v[64], m2[64], v2[64], m3[64];
    int regrouped = 0;
    for (int with_v = 0; with_v < 2; with_v++) /* m of 8 bits alone: spans, below */
        for (int format = with_v ? STATE_8BIT : STATE_4BIT; format <= STATE_4BIT; format++)
            for (int round = 0; round < random_groups(); round++) {
                struct optim_task t = state_task(format,
                                                 !with_v                ? STATE_NONE
                                                 : format == STATE_8BIT ? STATE_4BIT
                                                                        : STATE_8BIT,
                                                 mc, vc, scale);
                double top = pow(10, uniform() * 16 - 11);
                for (int i = 0; i < 64; i++) {
                    v[i] = (float)(top * top * pow(10, -uniform() * 4));
                    m[i] = (float)((with_v ? sqrt((double)v[i]) * (format == STATE_8BIT ? 7.2 : 3.5) : top) *
                                   (2 * uniform() - 1) * pow(10, -uniform() * 3));
                    if (random_next() % 10 == 0) m[i] = 0;
                }
                kernels->state_in(&t, 0, 1, m, with_v ? v : NULL);
                kernels->state_out(&t, 0, 1, m2, with_v ? v2 : NULL);
                float largest = 0;
                for (int i = 0; i < 64; i++) largest = fmaxf(largest, fabsf(m[i]));
                for (int i = 0; i < 64; i++) {
                    /* spacing of codes at x + c is (x + c) / 16 (8 bits) or / 2 (4 bits) at most; half of it
                     * to nearest */
                    double unit = with_v ? 8 * sqrt((double)v2[i]) : 2 * (double)largest;
                    double c = format == STATE_8BIT ? 0.0078125 : 0.125,
                           bound = (fabs((double)m[i]) + c * unit) / (format == STATE_8BIT ? 32 : 4);
                    assert_true(fabs((double)m2[i] - (double)m[i]) <= bound * 1.0001);
                    if (m[i] == 0) assert_true(m2[i] == 0);
                }
                uint8_t before = scale[0];
                kernels->state_in(&t, 0, 1, m2, with_v ? v2 : NULL);
                kernels->state_out(&t, 0, 1, m3, with_v ? v2 : NULL);
                if (!with_v &&
                    scale[0] !=
                        before) { /* the largest m rounded below the edge of its binade: another grid */
                    regrouped++;
                    continue;
                }
                for (int i = 0; i < 64; i++) assert_true(m2[i] == m3[i]);
            }
    print_message("groups whose exponent moved: %d of %d\n", regrouped, 2 * random_groups());
    assert_true(regrouped < 2 * random_groups() / 10);
}

/* Nearest is within half a step of a span's grid, which its header gives; zeros are exact, and nothing else
 * is 0 that is not far below the span, or 2^-61. */
static void a_span_is_within_half_a_step(void **state)
{
    const struct optim_kernels *kernels = optim_kernels_find(NULL);
    uint8_t codes[64], scales[4];
    float m[64], m2[64];
    for (int rule = RULE_APSGD; rule <= RULE_LION; rule += RULE_LION - RULE_APSGD)
        for (int round = 0; round < random_groups(); round++) {
            struct optim_task t = state_task(STATE_8BIT, STATE_NONE, codes, NULL, scales);
            double top = pow(10, uniform() * 16 - 11), width = uniform() * 9, largest = 0;
            for (int i = 0; i < 64; i++) {
                m[i] = (float)(top * (2 * uniform() - 1) * pow(10, -uniform() * width));
                if (random_next() % 10 == 0) m[i] = 0;
                largest = fmax(largest, fabs((double)m[i]));
            }
            t.rule = rule;
            kernels->state_in(&t, 0, 1, m, NULL);
            kernels->state_out(&t, 0, 1, m2, NULL);
            uint32_t header = scales[0] | (uint32_t)scales[1] << 8,
                     low = ((header & 0x7ff) << 19) + (66u << 23);
            double c = (double)from_bits(low),
                   span = exp2(23 + (header >> 11) * 1353001.0 / 8388608) * 1.07 / 127;
            for (int i = 0; i < 64; i++) {
                double x = fabs((double)m[i]),
                       step = (x + c) * span / 8388608; /* of bits: of x + c at most */
                assert_true(fabs((double)m2[i] - (double)m[i]) <= step * 0.51);
                if (m[i] == 0) assert_true(m2[i] == 0);
                if (rule == RULE_LION && x > fmax(largest / 4096, 1e-18)) assert_true(m2[i] != 0);
            }
        }
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* Groups of any fp32 numbers, denormal ones too: decoded values keep order and sign, are finite and never
 * denormal, and a v with a nonzero v in its group is never zero. */
static void any_group_keeps_its_order(void **state)
{
    const struct optim_kernels *kernels = optim_kernels_find(NULL);
    uint8_t mc[256], vc[256], scale[4];
    float m[64], v[64], m2[64], v2[64], zero[64] = {0};
    for (int format = STATE_8BIT; format <= STATE_4BIT; format++)
        for (int round = 0; round < random_groups(); round++) {
            /* exponents from a window of its own: narrow groups, wide ones, and all there is */
            uint32_t width = 1 + random_next() % (round % 3 ? 24 : 188),
                     lowest = random_next() % (188 - width + 1);
            for (int i = 0; i < 64; i++) {
                uint32_t bits = random_next();
                m[i] = from_bits((bits & 0x807fffffu) | (lowest + random_next() % width) << 23);
                v[i] = from_bits((random_next() & 0x7fffffu) | (lowest + random_next() % width) << 23);
                if (bits % 64 == 0) m[i] = v[i] = 0;
            }
            qsort(m, 64, sizeof *m, by_value);
            qsort(v, 64, sizeof *v, by_value);
            struct optim_task t = state_task(format, STATE_NONE, mc, vc, scale);
            scale[0] = 0; /* not a byte of a pair's header: an exponent of its own is looked at first */
            kernels->state_in(&t, 0, 1, m, NULL);
            kernels->state_out(&t, 0, 1, m2, NULL);
            t = state_task(format, format, mc, vc, scale);
            kernels->state_in(&t, 0, 1, zero, v);
            kernels->state_out(&t, 0, 1, zero, v2);
            for (int i = 0; i < 64; i++) {
                assert_true(isfinite(m2[i]) && (m2[i] == 0 || fabsf(m2[i]) >= FLT_MIN) &&
                            m2[i] * (m[i] > 0 ? 1.0f : -1.0f) >= 0);
                assert_true(isfinite(v2[i]) && (v[63] < FLT_MIN || v2[i] >= FLT_MIN));
                assert_true(zero[i] == 0);
                if (i) assert_true(m2[i] >= m2[i - 1] && v2[i] >= v2[i - 1]);
            }
        }
}

static void scales_survive_gradients_of_any_size(void **state)
{
    const struct optim_kernels *kernels = optim_kernels_find(NULL);
    for (int format = STATE_8BIT; format <= STATE_4BIT; format++)
        for (int power = -12; power <= 6; power++) {
            float gradient[64], weights[64] = {0}, m[64], v[64];
            uint8_t mc[256] = {0}, vc[256] = {0}, scale[4] = {0};
            struct optim_task t = state_task(format, format, mc, vc, scale);
            struct optim_partial found;
            for (int i = 0; i < 64; i++)
                gradient[i] = (float)(pow(10, power) * (i % 2 ? 1 : -1) * (0.5 + uniform()));
            t.rule = RULE_APADAMW;
            t.gradient = gradient;
            t.weights = weights;
            t.s = (struct optim_scalars){.decay = 1,
                                         .beta1 = 0.9f,
                                         .rest1 = 0.1f,
                                         .beta2 = 0.999f,
                                         .rest2 = 0.001f,
                                         .eps = 1e-30f,
                                         .gradient_scale = 1,
                                         .step_size = 10,
                                         .root_scale = 31.6227766f,
                                         .direction_limit = 0.1f};
            kernels->step(&t, 0, 1, &found);
            kernels->state_out(&t, 0, 1, m, v);
            for (int i = 0; i < 64; i++) {
                double root = sqrt(0.001) * fabs((double)gradient[i]);
                assert_true(fabs(fabs((double)weights[i]) - 1) < 1e-5);
                assert_true(fabs(sqrt((double)v[i]) / root - 1) < (format == STATE_8BIT ? 0.0626 : 0.51));
                if (format == STATE_8BIT)
                    assert_true(fabs((double)m[i] / (0.1 * (double)gradient[i]) - 1) < 0.075);
            }
        }
}

static void a_bad_gradient_touches_nothing_of_its_group(void **state)
{
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY, 1e19f};
    for (size_t b = 0; b < 5; b++)
        for (int format = 0; format < 2; format++) {
            struct meopt_options o;
            struct meopt_error err;
            struct meopt *opt;
            struct meopt_step_stats stats;
            static float values[4160], before[4160], after[4160];
            meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
            meopt_options_preset(&o, format ? "balanced" : "fp32", &err);
            struct meopt_tensor table = {.name = "w", .ndim = 2, .shape = {65, 64}};
            assert_int_equal(meopt_create(&opt, &o, &table, 1, &err), 0);
            for (int i = 0; i < 4160; i++) values[i] = 0.5f;
            assert_int_equal(meopt_import(opt, 0, 0, 4160, values, &err), 0);
            assert_int_equal(meopt_export(opt, 0, 0, 4160, before, &err), 0);
            values[200] = bad[b];
            struct meopt_gradient g = {values, MEOPT_F32};
            double norm;
            int finite;
            assert_int_equal(meopt_gradient_norm(opt, &g, &norm, &finite, &err), 0);
            if (b < 4) assert_false(finite);
            assert_int_equal(meopt_step_begin(opt, 1, 0.1, b < 4, &err), 0);
            assert_int_equal(meopt_step_tensor(opt, 0, values, MEOPT_F32, 1, &err), MEOPT_NOT_FINITE);
            assert_int_equal(meopt_step_end(opt, &stats, &err), MEOPT_NOT_FINITE);
            assert_int_equal(meopt_export(opt, 0, 0, 4160, after, &err), 0);
            if (b < 4)
                assert_memory_equal(before, after, sizeof after); /* check = 1: nothing of the tensor */
            assert_int_equal(meopt_step(opt, 2, 0.1, 1, &g, &stats, &err), MEOPT_NOT_FINITE);
            assert_int_equal(stats.bad_groups, 1);
            assert_int_equal(meopt_export(opt, 0, 0, 4160, after, &err), 0);
            for (int i = 0; i < 4160; i++)
                assert_true((before[i] == after[i]) == (b < 4 ? i / 64 == 3 : i / 64 == 3));
            meopt_destroy(opt);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_gives_the_same_bits),
        cmocka_unit_test(the_instruction_set_is_the_one_asked_for),
        cmocka_unit_test(threads_do_not_change_a_bit),
        cmocka_unit_test(corrections_keep_every_bit_they_can),
        cmocka_unit_test(second_moment_has_no_zero_and_a_bounded_error),
        cmocka_unit_test(a_span_is_within_half_a_step),
        cmocka_unit_test(any_group_keeps_its_order),
        cmocka_unit_test(first_moment_is_idempotent_and_bounded),
        cmocka_unit_test(scales_survive_gradients_of_any_size),
        cmocka_unit_test(a_bad_gradient_touches_nothing_of_its_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
