/* Weights of a framework's models in 16 bits: flags of a tensor whose forward and backward read bf16 whatever
 * its size. */
#include "core/optim/optim.h"
#include "tests/optim/optim_numbers.h"
#include "tests/optim/optim_table.h"

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
        {.name = "small", .ndim = 2, .shape = {20, 30}},
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
    (void)state;
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
    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_in_bf16_has_no_weights_in_fp32),
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
