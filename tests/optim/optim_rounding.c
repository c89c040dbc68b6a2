/* Stochastic rounding: the documented random bits, and unbiased. MEOPT_LONG=1: over 10^8 roundings of each
 * kind. */
#include "core/optim/optim.h"
#include "kernels/philox.h"
#include "tests/optim/optim_numbers.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static void philox_known_answers(void **state)
{
    static const uint32_t cases[3][10] = {
        /* Random123, kat_vectors */
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb,
         0x5001e420, 0x24126ea1},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        philox4x32_10(cases[i], cases[i] + 4, out);
        assert_memory_equal(out, cases[i] + 6, 16);
    }
}

/* The 16 random bits that round m of an element, by the definition in kernels/cpu/optim_kernel.h. */
static uint32_t random_of_m(const struct optim_task *t, int64_t element)
{
    uint64_t group = (uint64_t)(t->first_group + element / 64), e = (uint64_t)element % 64,
             block = group / 2 * 8 + e % 16 / 2;
    uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), t->step[0], t->step[1]}, out[4];
    philox4x32_10(counter, t->key, out);
    uint32_t word = out[2 * (group % 2) + e % 2], turn = (uint32_t)(e / 16 * 8 + 16) % 32;
    return (turn ? word << turn | word >> (32 - turn) : word) >> 16;
}

static void rounding_uses_the_documented_random_bits(void **state)
{
    enum { N = 64 * 37 + 5, PADDED = 64 * 38 };
    static float gradient[N];
    static uint16_t sum[PADDED];
    for (int i = 0; i < N; i++) gradient[i] = (float)uniform() * 3 - 1;
    for (size_t k = 0; k < 3; k++) {
        const struct optim_kernels *kernels = optim_kernels_find(variants[k]);
        if (!kernels) continue;
        struct optim_task t = {.count = N,
                               .first_group = ((int64_t)1 << 34) + 3,
                               .rule = RULE_ACCUMULATE,
                               .m_format = STATE_BF16,
                               .v_format = STATE_NONE,
                               .gradient = gradient,
                               .m = sum,
                               .key = {11, 22},
                               .step = {33, 44},
                               .s = {.gradient_scale = 1}};
        struct optim_partial found;
        memset(sum, 0, sizeof sum);
        kernels->step(&t, 0, 5, &found); /* uneven pieces: pairs of groups share random words */
        kernels->step(&t, 5, 38, &found);
        for (int i = 0; i < N; i++)
            assert_int_equal(sum[i], (to_bits(gradient[i]) + random_of_m(&t, i)) >> 16);
    }
}

/* Rounding up must happen with the probability that makes the mean right: a normal deviate per value, their
 * squares a chi-square. Values through the accumulator (m codes, bf16) and through v and weights of a step.
 */
static double unbiased(const struct optim_kernels *kernels, int what, int format, int values)
{
    enum { N = 64 * 512 };
    static float gradient[N], weights[N], m[N], v[N];
    static uint16_t half[N];
    static uint8_t correction[N * 2], codes[N * 4], vcodes[N * 4], scales[N / 64 * 4];
    double chi = 0;
    for (int k = 0; k < values; k++) {
        float x = (float)(0.3 + 0.65 * uniform());
        struct optim_task t = {.count = N,
                               .key = {(uint32_t)k, 5},
                               .step = {(uint32_t)format + 1, 0},
                               .gradient = gradient,
                               .gradient_format = GRADIENT_F32,
                               .m = codes,
                               .v = vcodes,
                               .scales = scales,
                               .weights = half,
                               .correction = correction,
                               .m_range = 0,
                               .v_format = STATE_NONE};
        struct optim_partial found;
        memset(scales, 0, sizeof scales);
        memset(codes, 0, sizeof codes);
        memset(vcodes, 0, sizeof vcodes);
        for (int i = 0; i < N; i++) gradient[i] = what == 2 ? 0 : i % 64 == 63 ? 1 : x;
        t.s.gradient_scale = 1;
        if (what == 0) { /* m, with its group's exponent */
            t.rule = RULE_ACCUMULATE;
            t.m_format = format;
            kernels->step(&t, 0, N / 64, &found);
            kernels->state_out(&t, 0, N / 64, m, NULL);
        } else if (what == 1) { /* sqrt(v) = x */
            t.rule = RULE_APADAMW;
            t.m_format = t.v_format = format;
            t.s = (struct optim_scalars){.beta1 = 0,
                                         .rest1 = 1,
                                         .beta2 = 0,
                                         .rest2 = 1,
                                         .eps = 1,
                                         .root_scale = 1,
                                         .direction_limit = 9,
                                         .decay = 1,
                                         .gradient_scale = 1};
            t.weight_format = WEIGHTS_F32;
            t.weights = weights;
            kernels->step(&t, 0, N / 64, &found);
            kernels->state_out(&t, 0, N / 64, v, m);
            for (int i = 0; i < N; i++) m[i] = sqrtf(m[i]);
        } else { /* a weight that is decayed to x */
            t.rule = RULE_APADAMW;
            t.m_format = t.v_format = STATE_F32;
            t.m = m;
            t.v = v;
            memset(m, 0, sizeof m);
            memset(v, 0, sizeof v);
            for (int i = 0; i < N; i++) weights[i] = 0.75f;
            t.weight_format = format;
            kernels->weights_in(&t, 0, N / 64, weights);
            t.s = (struct optim_scalars){.eps = 1, .root_scale = 1, .decay = x / 0.75f, .gradient_scale = 1};
            x = 0.75f * (x / 0.75f);
            kernels->step(&t, 0, N / 64, &found);
            kernels->weights_out(&t, 0, N / 64, m);
        }
        double sum = 0, low = 1e9, high = 0;
        int n = 0;
        for (int i = 0; i < N; i++) {
            if (what != 2 && i % 64 == 63) continue;
            sum += (double)m[i];
            low = fmin(low, (double)m[i]);
            high = fmax(high, (double)m[i]);
            n++;
        }
        if (high == low) continue; /* a code itself */
        double p = ((double)x - low) / (high - low),
               z = (sum / n - (double)x) / ((high - low) * sqrt(p * (1 - p) / n));
        if (p * n > 20 && (1 - p) * n > 20) chi += z * z - 1;
    }
    return chi / sqrt(2.0 * values); /* about normal */
}

static void stochastic_rounding_is_unbiased(void **state)
{
    static const struct {
        int what, format;
        const char *name;
    } cases[] = {{0, STATE_8BIT, "m 8bit"},       {0, STATE_4BIT, "m 4bit"},
                 {0, STATE_BF16, "bf16"},         {1, STATE_8BIT, "sqrt(v) 8bit, a pair"},
                 {1, STATE_4BIT, "sqrt(v) 4bit"}, {2, WEIGHTS_BF16_SR, "bf16_sr"},
                 {2, WEIGHTS_20, "bf16+4"},       {2, WEIGHTS_24, "bf16+8"}};
    int values = getenv("MEOPT_LONG") ? 3000 : 100;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double z = unbiased(optim_kernels_find(NULL), cases[i].what, cases[i].format, values);
        print_message("%s: chi-square of %d values x 32256 roundings, standardised: %+.2f\n", cases[i].name,
                      values, z);
        assert_true(z < 5 && (cases[i].what == 1 || z > -5)); /* thresholds in turn are nearer than chance */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(rounding_uses_the_documented_random_bits),
        cmocka_unit_test(stochastic_rounding_is_unbiased),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
