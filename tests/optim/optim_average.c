/* The average of the weights (options.average_decay): against float64 within the noise of its rounding, in
 * every step and in turns; weights and states do not depend on it; saved, loaded, in parts; its bytes. */
#include "core/meopt.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { ROWS = 40, COLUMNS = 41, COUNT = ROWS * COLUMNS, STEPS = 2608 };

static float gradient[COUNT];
static void draw(int64_t step)
{
    uint32_t x = (uint32_t)step * 2654435761u;
    for (int i = 0; i < COUNT; i++) {
        x = x * 1664525u + 1013904223u;
        gradient[i] = (float)(int32_t)x * 0x1p-31f + 0.1f * (float)(i % 7 - 3);
    }
}

static struct meopt_options options_of(double decay, const char *preset)
{
    struct meopt_options o;
    assert_int_equal(meopt_options_init(&o, sizeof o, MEOPT_APADAMW), 0);
    assert_int_equal(meopt_options_preset(&o, preset, NULL), 0);
    o.small_count = 0;
    o.average_decay = decay;
    return o;
}

/* `count` elements from `first` of a tensor of COUNT */
static struct meopt *open_part(const struct meopt_options *o, int64_t first, int64_t count)
{
    struct meopt_error err = {0};
    struct meopt_tensor t = {
        .name = "t", .ndim = 2, .shape = {ROWS, COLUMNS}, .first = first, .count = count};
    struct meopt *opt;
    float start[COUNT];
    if (count < COUNT) t.flags = MEOPT_PART;
    for (int i = 0; i < COUNT; i++) start[i] = (float)(i % 13 - 6) * 0.05f;
    if (meopt_create(&opt, o, &t, 1, &err) || meopt_import(opt, 0, 0, count, start + first, &err))
        fail_msg("%s", err.message);
    return opt;
}
static struct meopt *open_whole(double decay, const char *preset)
{
    struct meopt_options o = options_of(decay, preset);
    return open_part(&o, 0, COUNT);
}

static void step_part(struct meopt *opt, int64_t step, int64_t first)
{
    struct meopt_error err = {0};
    struct meopt_gradient g = {gradient + first, MEOPT_F32};
    draw(step);
    if (meopt_step(opt, step, 1e-3, 1, &g, NULL, &err)) fail_msg("%s", err.message);
}

static uint8_t *record_of(const struct meopt *opt, size_t *bytes)
{
    *bytes = meopt_state_bytes(opt, 0);
    uint8_t *record = malloc(*bytes);
    assert_int_equal(meopt_state_save(opt, 0, record, *bytes, NULL), 0);
    return record;
}

static void average_of(const struct meopt *opt, float *values, int64_t count)
{
    struct meopt_error err = {0};
    size_t bytes;
    uint8_t *record = record_of(opt, &bytes);
    if (meopt_state_average(record, bytes, values, count, &err)) fail_msg("%s", err.message);
    free(record);
}

/* An average of every step, as timm's ModelEmaV3 computes it, and how far the one in turns may be from it. Of
 * n steps with decays d_j and w_n the weight read in the turn, the difference is
 * prod (e - a) + (prod - d_n^16) (a - w_n) + sum over j of c_j (w_j - w_n), where e, a are the two averages
 * before, prod is the product of d_j, c_j the share of step j in e. Paths bound w_j - w_n. */
static struct {
    double each[COUNT], bound[COUNT], path[COUNT], prod;
    float before[COUNT];
} every;

static void every_step(const float *weights, double rest)
{
    if (rest == 1) memcpy(every.before, weights, sizeof every.before);
    for (int i = 0; i < COUNT; i++) {
        double moved = fabs((double)weights[i] - (double)every.before[i]);
        every.each[i] += rest * ((double)weights[i] - every.each[i]);
        every.path[i] = (1 - rest) * (every.path[i] + (1 - every.prod) * moved);
    }
    every.prod *= 1 - rest;
    memcpy(every.before, weights, sizeof every.before);
}

static void every_turn(const float *weights, const double *average, double decay)
{
    for (int i = 0; i < COUNT; i++) {
        every.bound[i] = every.prod * every.bound[i] + every.path[i] +
                         fabs((every.prod - decay) * (average[i] - (double)weights[i]));
        every.path[i] = 0;
    }
    every.prod = 1;
}

/* The bound is less than a twentieth of the way that the average lags the weights by. */
static void compare_every(const float *got, const double *variance)
{
    double bounds = 0, way = 0;
    for (int i = 0; i < COUNT; i++) {
        if (!(fabs((double)got[i] - every.each[i]) <= every.bound[i] + 6 * sqrt(variance[i] + 1e-30)))
            fail_msg("element %d: %g, of every step %g", i, (double)got[i], every.each[i]);
        bounds += every.bound[i];
        way += fabs((double)every.before[i] - every.each[i]);
    }
    printf("in turns: at most %.2g, lag of the average %.2g\n", bounds / COUNT, way / COUNT);
    assert_true(bounds < way / 20);
}

/* A rounding moves x by less than its unit u, to either side, so that its mean is 0 and its variance at most
 * u |moved| and u^2 / 4 (moved: what the step adds). Later steps shrink the error by 1 - rest. Of 1,640
 * errors each may be 6 standard deviations, and their mean relative to it 5 / sqrt(1640). */
static void equals_float64(void **state)
{
    static double average[COUNT], variance[COUNT];
    static float weights[COUNT], got[COUNT];
    const char *const *preset = *state;
    double decay = 0.9999, sum = 0;
    struct meopt *opt = open_whole(decay, *preset);
    memset(&every, 0, sizeof every);
    every.prod = 1;
    memset(average, 0, sizeof average);
    memset(variance, 0, sizeof variance);
    for (int64_t step = 1; step <= STEPS; step++) {
        step_part(opt, step, 0);
        assert_int_equal(meopt_export(opt, 0, 0, COUNT, weights, NULL), 0);
        double d = fmin(decay, (double)step / (9 + (double)step)), rest = step == 1 ? 1 : 1 - d;
        every_step(weights, rest);
        if (d >= 1 - 1.0 / 256) {
            if (step % 16) continue; /* the first chunk's turn */
            rest = 1 - pow(d, 16);
        }
        every_turn(weights, average, 1 - rest);
        for (int i = 0; i < COUNT; i++) {
            double moved = fabs(rest * ((double)weights[i] - average[i]));
            average[i] += rest * ((double)weights[i] - average[i]);
            double unit = ldexp(1, ilogb(fabs(average[i]) + 1e-30) - 6); /* of the binade above, too */
            variance[i] =
                variance[i] * (1 - rest) * (1 - rest) + fmin(unit * (moved + unit / 64), unit * unit / 4);
        }
        if (step % 100 && step != STEPS) continue;
        average_of(opt, got, COUNT);
        sum = 0;
        for (int i = 0; i < COUNT; i++) {
            double error = ((double)got[i] - average[i]) / sqrt(variance[i] + 1e-30);
            sum += error;
            if (!(fabs(error) <= 6))
                fail_msg("step %d element %d: %g, should be %g", (int)step, i, (double)got[i], average[i]);
        }
        assert_true(fabs(sum) / COUNT < 5 / sqrt(COUNT));
    }
    compare_every(got, variance);
    meopt_destroy(opt);
}

static void weights_do_not_depend_on_it(void **state)
{
    static float a[COUNT], b[COUNT], v[2][COUNT];
    const char *const *preset = *state;
    struct meopt *with = open_whole(0.999, *preset), *without = open_whole(0, *preset);
    struct meopt_bytes more, less;
    for (int64_t step = 1; step <= 20; step++) {
        step_part(with, step, 0);
        step_part(without, step, 0);
    }
    assert_int_equal(meopt_export(with, 0, 0, COUNT, a, NULL) | meopt_export(without, 0, 0, COUNT, b, NULL),
                     0);
    assert_memory_equal(a, b, sizeof a);
    assert_int_equal(meopt_moments_export(with, 0, 0, COUNT, a, v[0], NULL), 0);
    assert_int_equal(meopt_moments_export(without, 0, 0, COUNT, b, v[1], NULL), 0);
    assert_memory_equal(a, b, sizeof a);
    assert_memory_equal(v[0], v[1], sizeof v[0]);
    meopt_held(with, &more);
    meopt_held(without, &less);
    assert_true((double)(more.total - less.total) <= 2.1 * COUNT);
    meopt_destroy(with);
    meopt_destroy(without);
}

/* Two parts that were saved, joined, and cut elsewhere equal the whole. */
static void parts_and_a_resume_equal_the_whole(void **state)
{
    const char *const *preset = *state;
    struct meopt_options o = options_of(0.999, *preset);
    const int64_t cuts[2] = {64 * 7, 64 * 13};
    struct meopt *whole = open_part(&o, 0, COUNT),
                 *parts[2] = {open_part(&o, 0, cuts[0]), open_part(&o, cuts[0], COUNT - cuts[0])};
    static float values[COUNT];
    struct meopt_error err = {0};
    for (int64_t step = 1; step <= 5; step++) {
        step_part(whole, step, 0);
        step_part(parts[0], step, 0);
        step_part(parts[1], step, cuts[0]);
    }
    size_t bytes[2], size = 0, all;
    void *records[2] = {record_of(parts[0], &bytes[0]), record_of(parts[1], &bytes[1])};
    for (int p = 0; p < 2; p++) { /* with the other cut */
        int64_t first = p ? cuts[1] : 0, count = p ? COUNT - cuts[1] : cuts[1];
        struct meopt *next = open_part(&o, first, count);
        assert_int_equal(meopt_export(whole, 0, 0, COUNT, values, NULL), 0);
        assert_int_equal(meopt_import(next, 0, 0, count, values + first, NULL), 0);
        assert_int_equal(
            meopt_state_range((const void *const *)records, bytes, 2, first, count, NULL, &size, &err), 0);
        void *cut = malloc(size);
        assert_int_equal(
            meopt_state_range((const void *const *)records, bytes, 2, first, count, cut, &size, &err), 0);
        if (meopt_state_load(next, 0, cut, size, &err)) fail_msg("%s", err.message);
        free(cut);
        meopt_destroy(parts[p]);
        parts[p] = next;
    }
    for (int64_t step = 6; step <= 9; step++) {
        step_part(whole, step, 0);
        step_part(parts[0], step, 0);
        step_part(parts[1], step, cuts[1]);
    }
    for (int p = 0; p < 2; p++) {
        free(records[p]);
        records[p] = record_of(parts[p], &bytes[p]);
    }
    uint8_t *expected = record_of(whole, &all), *joined = malloc(all);
    size = all;
    assert_int_equal(meopt_state_join((const void *const *)records, bytes, 2, joined, &size, &err), 0);
    assert_int_equal(size, all);
    assert_memory_equal(expected, joined, all);
    expected[all - 8] ^= 1; /* a damaged average */
    assert_int_equal(meopt_state_load(whole, 0, expected, all, &err), MEOPT_BAD_STATE);
    free(expected);
    free(joined);
    for (int p = 0; p < 2; p++) {
        free(records[p]);
        meopt_destroy(parts[p]);
    }
    meopt_destroy(whole);
}

int main(void)
{
    static const char *const presets[] = {"fp32", "balanced", "minimal"};
    struct CMUnitTest tests[9];
    for (int i = 0; i < 3; i++) {
        void *preset = (void *)(uintptr_t)&presets[i];
        tests[3 * i] = (struct CMUnitTest){"equals_float64", equals_float64, NULL, NULL, preset};
        tests[3 * i + 1] = (struct CMUnitTest){"weights_do_not_depend_on_it", weights_do_not_depend_on_it,
                                               NULL, NULL, preset};
        tests[3 * i + 2] = (struct CMUnitTest){"parts_and_a_resume_equal_the_whole",
                                               parts_and_a_resume_equal_the_whole, NULL, NULL, preset};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
