/* Models of a framework in 16 bits: tensors whose forward and backward read bf16 or fp16 whatever their size,
 * and gradients in fp16. */
#include "core/optim/optim.h"
#include "tests/optim/optim_numbers.h"
#include "tests/optim/optim_table.h"

#include <math.h>
#include <stdbool.h>

enum { SMALL = 20 * 30, ROWS = 4 };
/* as optim_table.h has them, and one that is small, and one that is kept */
static const int64_t counts[ROWS] = {A, B, SMALL, A};

static struct meopt *opened(int rule, const char *preset, unsigned flags, void *const weights[ROWS])
{
    struct meopt_options o;
    struct meopt_error err;
    struct meopt *opt;
    struct meopt_tensor rows[ROWS] = {
        table[0],
        table[1],
        {.name = "small", .ndim = 2, .shape = {20, 30}, .first = 100},
        {.name = "kept", .ndim = 2, .shape = {130, 70}, .flags = MEOPT_KEEP_F32}};
    meopt_options_init(&o, sizeof o, rule);
    assert_int_equal(meopt_options_preset(&o, preset, &err), 0);
    o.weight_decay = 0.01;
    o.seed = 7;
    fill(start, A, 1, 1);
    for (int i = 0; i < ROWS; i++) {
        rows[i].flags |= flags;
        rows[i].weights = weights ? weights[i] : NULL;
    }
    struct meopt_bytes planned, held;
    assert_int_equal(meopt_query(&o, rows, ROWS, &planned, &err), 0);
    assert_int_equal(meopt_create(&opt, &o, rows, ROWS, &err), 0);
    assert_int_equal(meopt_held(opt, &held), 0);
    assert_memory_equal(&planned, &held, sizeof held);
    for (size_t i = 0; i < ROWS; i++) {
        struct meopt_tensor_info plan, info;
        assert_int_equal(meopt_plan_tensor(&o, &rows[i], &plan, &err), 0);
        assert_int_equal(meopt_info(opt, i, &info), 0);
        assert_int_equal(plan.weights, info.weights);
        assert_int_equal(plan.first_moment, info.first_moment);
        assert_int_equal(plan.bytes.total, info.bytes.total);
        assert_int_equal(meopt_import(opt, i, 0, counts[i], start, &err), 0);
    }
    return opt;
}

static void steps_of_all(struct meopt *opt, int first, int last)
{
    for (int step = first; step <= last; step++) {
        struct meopt_gradient g[ROWS];
        fill(gradient, A, (uint32_t)step, 0.1f);
        for (int i = 0; i < ROWS; i++) g[i] = (struct meopt_gradient){gradient, MEOPT_F32};
        assert_int_equal(meopt_step(opt, step, 1e-3, 1, g, NULL, NULL), 0);
    }
}

static void a_model_in_bf16_has_no_weights_in_fp32(void **state)
{
    static uint16_t memory[ROWS][A];
    static float x[A], y[A];
    for (int rule = 0; rule < MEOPT_RULE_COUNT; rule++)
        for (size_t p = 0; p < sizeof presets / sizeof *presets; p++) {
            struct meopt *plain = opened(rule, presets[p], 0, NULL),
                         *bf16 = opened(rule, presets[p], MEOPT_KEEP_BF16,
                                        (void *[]){memory[0], memory[1], memory[2], memory[3]});
            steps_of_all(plain, 1, 6);
            steps_of_all(bf16, 1, 6);
            for (size_t i = 0; i < ROWS; i++) {
                struct meopt_tensor_info of, to;
                void *half;
                enum meopt_dtype dtype;
                assert_int_equal(meopt_info(plain, i, &of), 0);
                assert_int_equal(meopt_info(bf16, i, &to), 0);
                bool was_fp32 = of.weights <= MEOPT_WEIGHTS_F32_COPY;
                assert_int_equal(to.weights, was_fp32 ? MEOPT_WEIGHTS_32 : of.weights);
                assert_int_equal(to.first_moment, of.first_moment);
                assert_int_equal(to.second_moment, of.second_moment);
                if (i && to.first_moment >= 0) assert_int_equal(to.first_moment, MEOPT_STATE_F32);
                assert_int_equal(to.bytes.copy, 0);
                assert_int_equal(to.bytes.callers, (counts[i] * 2 + 63) / 64 * 64);
                assert_int_equal(meopt_weights(bf16, i, &half, &dtype), 0);
                assert_ptr_equal(half, memory[i]);
                assert_int_equal(dtype, MEOPT_BF16);
                assert_int_equal(meopt_export(plain, i, 0, counts[i], x, NULL), 0);
                assert_int_equal(meopt_export(bf16, i, 0, counts[i], y, NULL), 0);
                assert_memory_equal(x, y, (size_t)counts[i] * sizeof *x);
                for (int64_t k = 0; was_fp32 && k < counts[i]; k++)
                    assert_int_equal(memory[i][k], (to_bits(y[k]) + 0x8000u) >> 16);
            }
            meopt_destroy(plain);
            meopt_destroy(bf16);
        }
}

static void every_instruction_set_gives_the_same_bits(void **state)
{
    for (int rule = 0; rule < MEOPT_RULE_COUNT; rule++) {
        struct buffer first = {0};
        for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
            struct meopt *opt = opened(rule, "balanced", MEOPT_KEEP_BF16, NULL);
            const struct optim_kernels *kernels = optim_kernels_find(variants[v]);
            if (kernels) {
                opt->kernels = kernels;
                steps_of_all(opt, 1, 4);
                struct buffer b = saved(opt);
                if (!first.data) first = b;
                else {
                    assert_int_equal(b.bytes, first.bytes);
                    assert_memory_equal(b.data, first.data, b.bytes);
                    free(b.data);
                }
            }
            meopt_destroy(opt);
        }
        free(first.data);
    }
}

/* ---- fp16 ---- */

static double half_value(uint16_t h)
{
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double x = exponent == 31 ? (mantissa ? NAN : INFINITY)
               : exponent     ? ldexp(1024 + mantissa, exponent - 25)
                              : ldexp(mantissa, -24);
    return h & 0x8000 ? -x : x;
}
/* To nearest, ties to even, as torch's half() */
static uint16_t half_of(double x)
{
    int exponent;
    double magnitude = fabs(x);
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    if (magnitude != magnitude) return sign | 0x7e00;
    if (magnitude >= 65520) return sign | 0x7c00;
    frexp(magnitude, &exponent);
    if (exponent < -13 || magnitude == 0) exponent = -13; /* subnormal */
    int units = (int)nearbyint(ldexp(magnitude, 11 - exponent));
    return (uint16_t)(sign | ((exponent + 13) * 1024 + units));
}

/* With SGD, w = 0 - 1 g: the weights are the gradients as they were read. */
static void every_half_is_read_exactly(void **state)
{
    enum { N = 1 << 16 };
    static uint16_t halves[N];
    static float values[N], zeros[N];
    for (int i = 0; i < N; i++) halves[i] = (uint16_t)(i * 40503u + 7); /* each once */
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++)
        for (int bad = 0; bad < 2; bad++) {
            struct meopt_options o;
            struct meopt *opt;
            struct meopt_tensor t = {.name = "w", .ndim = 2, .shape = {N / 8, 8}};
            struct meopt_gradient g = {halves, MEOPT_F16};
            double norm, squares = 0;
            int finite;
            const struct optim_kernels *kernels = optim_kernels_find(variants[v]);
            if (!kernels) continue;
            meopt_options_init(&o, sizeof o, MEOPT_APSGD);
            o.momentum = 0;
            assert_int_equal(meopt_create(&opt, &o, &t, 1, NULL), 0);
            opt->kernels = kernels;
            assert_int_equal(meopt_import(opt, 0, 0, N, zeros, NULL), 0);
            if (!bad)
                for (int i = 0; i < N; i++)
                    if ((halves[i] & 0x7c00) == 0x7c00) halves[i] = (uint16_t)(halves[i] & 0x83ff);
            for (int i = 0; i < N; i++) squares += bad ? 0 : half_value(halves[i]) * half_value(halves[i]);
            assert_int_equal(meopt_gradient_norm(opt, &g, &norm, &finite, NULL), 0);
            assert_int_equal(finite, !bad);
            if (!bad) assert_true(fabs(norm - sqrt(squares)) <= 1e-12 * norm);
            struct meopt_step_stats stats;
            assert_int_equal(meopt_step(opt, 1, 1, 1, &g, &stats, NULL), bad ? MEOPT_NOT_FINITE : 0);
            assert_int_equal(meopt_export(opt, 0, 0, N, values, NULL), 0);
            int64_t bad_groups = 0;
            for (int group = 0; group < N / 64; group++) {
                bool skipped = false;
                for (int i = group * 64; i < group * 64 + 64; i++)
                    skipped = skipped || (halves[i] & 0x7c00) == 0x7c00;
                bad_groups += skipped;
                for (int i = group * 64; i < group * 64 + 64; i++)
                    assert_true((double)values[i] == (skipped ? 0 : -half_value(halves[i])));
            }
            assert_int_equal(stats.bad_groups, bad_groups);
            o.all_or_nothing = 1;
            meopt_destroy(opt);
            assert_int_equal(meopt_create(&opt, &o, &t, 1, NULL), 0);
            assert_int_equal(meopt_step(opt, 1, 1, 1, &g, &stats, NULL), bad ? MEOPT_NOT_FINITE : 0);
            assert_int_equal(meopt_export(opt, 0, 0, N, values, NULL), 0);
            for (int i = 0; i < N && bad; i++) assert_true(values[i] == 0);
            meopt_destroy(opt);
            for (int i = 0; i < N; i++) halves[i] = (uint16_t)(i * 40503u + 7);
        }
}

static void gradients_in_fp16_step_as_the_same_numbers_in_fp32(void **state)
{
    static uint16_t halves[A];
    for (int rule = 0; rule < MEOPT_RULE_COUNT; rule++)
        for (int way = 0; way < 4; way++) { /* at once, one by one, accumulated, clipped */
            struct meopt_options o;
            struct meopt *opts[2];
            struct meopt_error err;
            meopt_options_init(&o, sizeof o, rule);
            meopt_options_preset(&o, "balanced", &err);
            o.weight_decay = 0.01;
            o.accumulator = MEOPT_STATE_8BIT;
            for (int d = 0; d < 2; d++) {
                assert_int_equal(meopt_create(&opts[d], &o, table, COUNT, &err), 0);
                fill(start, A, 1, 1);
                assert_int_equal(meopt_import(opts[d], 0, 0, A, start, &err), 0);
                assert_int_equal(meopt_import(opts[d], 1, 0, B, start, &err), 0);
            }
            for (int step = 1; step <= 4; step++) {
                fill(gradient, A, (uint32_t)step, step == 3 ? 1e-5f : 60000.0f); /* as after a loss scale */
                for (int i = 0; i < A; i++) {
                    halves[i] = half_of((double)gradient[i]);
                    gradient[i] = (float)half_value(halves[i]);
                }
                for (int d = 0; d < 2; d++) {
                    struct meopt_gradient g = {d ? (void *)halves : (void *)gradient,
                                               d ? MEOPT_F16 : MEOPT_F32},
                                          both[COUNT] = {g, g};
                    struct meopt_grad_stats found;
                    struct meopt_clip clip = {&found, 0.7, 0};
                    double scale = way == 2 ? 1 : 1.0 / 1024;
                    if (!way) {
                        assert_int_equal(meopt_step(opts[d], step, 1e-3, scale, both, NULL, &err), 0);
                        continue;
                    }
                    assert_int_equal(meopt_gradient_found(opts[d], both, &found, &err), 0);
                    assert_int_equal(meopt_step_begin(opts[d], step, 1e-3, 1, &err), 0);
                    for (size_t i = 0; i < COUNT; i++) {
                        if (way == 2)
                            for (int again = 0; again < 2; again++)
                                assert_int_equal(
                                    meopt_accumulate(opts[d], i, g.data, g.dtype, 1.0 / 1024, &err), 0);
                        assert_int_equal(way == 3 ? meopt_step_clipped(opts[d], &i, &g, 1, &clip, &err)
                                                  : meopt_step_tensor(opts[d], i, way == 2 ? NULL : g.data,
                                                                      (enum meopt_dtype)g.dtype, scale, &err),
                                         0);
                    }
                    assert_int_equal(meopt_step_end(opts[d], NULL, &err), 0);
                }
            }
            struct buffer x = saved(opts[0]), y = saved(opts[1]);
            assert_memory_equal(x.data, y.data, x.bytes);
            free(x.data);
            free(y.data);
            assert_int_equal(meopt_step_begin(opts[0], 9, 1e-3, 0, &err), 0);
            assert_int_equal(meopt_step_tensor(opts[0], 0, halves, (enum meopt_dtype)3, 1, &err),
                             MEOPT_BAD_ARGUMENT);
            assert_int_equal(meopt_step_tensor(opts[0], 0, (char *)halves + 1, MEOPT_F16, 1, &err),
                             MEOPT_BAD_ARGUMENT);
            assert_int_equal(meopt_accumulate(opts[0], 0, halves, (enum meopt_dtype)3, 1, &err),
                             MEOPT_BAD_ARGUMENT);
            for (int d = 0; d < 2; d++) meopt_destroy(opts[d]);
        }
}

/* Copies of every exponent, of ties and their neighbours. */
static void copies_in_fp16_are_those_of_half(void **state)
{
    enum { N = 512 * 64 };
    static float values[N], back[N];
    for (int i = 0; i < N; i++) {
        uint32_t bits = (uint32_t)i / 128 << 23 | (uint32_t)(i % 2) << 31;
        static const uint32_t ends[] = {0, 0xfff, 0x1000, 0x1001, 0x3000, 0x2fff, 0x3001, 0x7fffff};
        bits |= (uint32_t)(i / 2 % 8) * 0x4000 + ends[i / 16 % 8];
        values[i] = from_bits(bits & 0x7fffffff) < 3e38f ? from_bits(bits) : 65519.996f;
    }
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        static uint16_t copy[N];
        struct meopt_options o;
        struct meopt *opt;
        struct meopt_tensor t = {
            .name = "w", .ndim = 1, .shape = {N - 3}, .flags = MEOPT_COPY_F16, .copy = copy};
        struct meopt_gradient g = {gradient, MEOPT_F32};
        const struct optim_kernels *kernels = optim_kernels_find(variants[v]);
        if (!kernels) continue;
        meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
        meopt_options_preset(&o, "minimal", NULL);
        assert_int_equal(meopt_create(&opt, &o, &t, 1, NULL), 0);
        opt->kernels = kernels;
        assert_int_equal(meopt_import(opt, 0, 0, N - 3, values, NULL), 0);
        for (int step = 0; step < 2; step++) { /* by the import, then by a step */
            assert_int_equal(meopt_export(opt, 0, 0, N - 3, back, NULL), 0);
            assert_memory_equal(back, values, (N - 3) * sizeof *back);
            for (int i = 0; i < N - 3; i++) assert_int_equal(copy[i], half_of((double)values[i]));
            memset(copy, 0x55, sizeof copy);
            memset(gradient, 0, sizeof gradient);
            static float none[N];
            g.data = none;
            assert_int_equal(meopt_step(opt, step + 1, 1e-3, 1, &g, NULL, NULL), 0);
        }
        assert_int_equal(copy[N - 3], 0x5555); /* nothing is written after it */
        meopt_destroy(opt);
    }
}

static void a_model_in_fp16_has_weights_in_fp32_here(void **state)
{
    static uint16_t memory[2][ROWS][A];
    static float x[A], y[A];
    for (int rule = 0; rule < MEOPT_RULE_COUNT; rule++) {
        struct meopt_options o;
        struct meopt_error err;
        struct meopt *opt, *plain = opened(rule, "amp", 0, NULL);
        struct meopt_tensor rows[ROWS] = {
            table[0],
            table[1],
            {.name = "small", .ndim = 2, .shape = {20, 30}},
            {.name = "kept", .ndim = 2, .shape = {130, 70}, .flags = MEOPT_KEEP_F32}};
        meopt_options_init(&o, sizeof o, rule);
        meopt_options_preset(&o, "fp32", &err);
        o.weight_decay = 0.01;
        o.seed = 7;
        for (int i = 0; i < ROWS; i++) {
            rows[i].flags |= MEOPT_COPY_F16;
            rows[i].copy = memory[0][i];
        }
        assert_int_equal(meopt_create(&opt, &o, rows, ROWS, &err), 0);
        for (size_t i = 0; i < ROWS; i++)
            assert_int_equal(meopt_import(opt, i, 0, counts[i], start, &err), 0);
        steps_of_all(opt, 1, 3);
        memcpy(memory[1], memory[0], sizeof memory[0]); /* the model moves, and the weights here stay */
        for (size_t i = 0; i < ROWS; i++) assert_int_equal(meopt_rebind(opt, i, NULL, memory[1][i], &err), 0);
        steps_of_all(opt, 4, 6);
        steps_of_all(plain, 1, 6);
        for (size_t i = 0; i < ROWS; i++) {
            struct meopt_tensor_info info;
            void *p;
            enum meopt_dtype dtype;
            assert_int_equal(meopt_info(opt, i, &info), 0);
            assert_int_equal(info.weights, MEOPT_WEIGHTS_F32_COPY);
            assert_int_equal(info.bytes.callers, info.bytes.copy);
            assert_int_equal(meopt_weights(opt, i, &p, &dtype), 0);
            assert_ptr_equal(p, memory[1][i]);
            assert_int_equal(dtype, MEOPT_F16);
            assert_int_equal(meopt_export(opt, i, 0, counts[i], x, &err), 0);
            assert_int_equal(meopt_export(plain, i, 0, counts[i], y, &err), 0);
            assert_memory_equal(x, y, (size_t)counts[i] * sizeof *x);
            for (int64_t k = 0; k < counts[i]; k++) assert_int_equal(memory[1][i][k], half_of((double)x[k]));
            /* and what others wrote is the truth */
            for (int64_t k = 0; k < counts[i]; k++) memory[1][i][k] = (uint16_t)(k * 3 % 0x7c00);
            assert_int_equal(meopt_sync(opt, i, &err), 0);
            memory[1][i][5] = 0x7c00;
            assert_int_equal(meopt_sync(opt, i, &err), MEOPT_NOT_FINITE);
            assert_int_equal(meopt_export(opt, i, 0, counts[i], x, &err), 0);
            for (int64_t k = 0; k < counts[i]; k++)
                assert_true((double)x[k] == half_value((uint16_t)(k * 3 % 0x7c00)));
        }
        struct buffer b = saved(opt);
        memset(memory[1], 0, sizeof memory[1]);
        assert_int_equal(meopt_load(opt, b.data, b.bytes, &err), 0);
        for (int64_t k = 0; k < A; k++) assert_int_equal(memory[1][0][k], k * 3 % 0x7c00);
        free(b.data);
        meopt_destroy(opt);
        meopt_destroy(plain);
        rows[0].flags |= MEOPT_KEEP_BF16;
        assert_int_equal(meopt_create(&opt, &o, rows, ROWS, &err), MEOPT_BAD_ARGUMENT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_in_bf16_has_no_weights_in_fp32),
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
        cmocka_unit_test(every_half_is_read_exactly),
        cmocka_unit_test(gradients_in_fp16_step_as_the_same_numbers_in_fp32),
        cmocka_unit_test(copies_in_fp16_are_those_of_half),
        cmocka_unit_test(a_model_in_fp16_has_weights_in_fp32_here),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
