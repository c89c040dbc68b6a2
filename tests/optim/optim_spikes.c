/* Single elements of a gradient a million times larger than the others: their neighbours in the group train
 * as with fp32 moments. */
#include "core/meopt.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { D = 64, BATCH = 8, STEPS = 600 };
static uint32_t seed;
static float uniform(void) { return (float)((seed = seed * 1664525u + 1013904223u) >> 8) / 16777216.0f; }
static float normal(void)
{
    float sum = -2;
    for (int i = 0; i < 4; i++) sum += uniform();
    return sum * 1.7320508f;
}

/* y = W x + noise of 1, W of rows of norm 1: the loss of the W found, a row's mean; 1 is the least, 2 that of
 * W = 0. One element of each row, which is a group of 64, spikes in one step of a hundred. */
static double loss_after_training(const char *preset, float spike)
{
    static float target[D][D], w[D][D], gradient[D][D];
    struct meopt_options o;
    struct meopt_error err;
    struct meopt *opt;
    struct meopt_tensor table = {.name = "w", .ndim = 2, .shape = {D, D}};
    meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
    assert_int_equal(meopt_options_preset(&o, preset, &err), 0);
    assert_int_equal(meopt_create(&opt, &o, &table, 1, &err), 0);
    seed = 1;
    for (int i = 0; i < D; i++)
        for (int j = 0; j < D; j++) target[i][j] = normal() / 8;
    for (int step = 1; step <= STEPS; step++) {
        assert_int_equal(meopt_export(opt, 0, 0, D * D, &w[0][0], &err), 0);
        memset(gradient, 0, sizeof gradient);
        for (int b = 0; b < BATCH; b++) {
            float x[D];
            for (int j = 0; j < D; j++) x[j] = normal();
            for (int i = 0; i < D; i++) {
                float error = normal();
                for (int j = 0; j < D; j++) error += (w[i][j] - target[i][j]) * x[j];
                for (int j = 0; j < D; j++) gradient[i][j] += error * x[j] / BATCH;
            }
        }
        for (int i = 0; i < D; i++)
            if (uniform() < 0.01f) gradient[i][5] *= spike;
        struct meopt_gradient g = {gradient, MEOPT_F32};
        double lr = 2e-2 * (1 - (double)(step - 1) / STEPS);
        assert_int_equal(meopt_step(opt, step, lr, 1, &g, NULL, &err), 0);
    }
    assert_int_equal(meopt_export(opt, 0, 0, D * D, &w[0][0], &err), 0);
    double loss = 1;
    for (int i = 0; i < D; i++)
        for (int j = 0; j < D; j++)
            loss += ((double)w[i][j] - (double)target[i][j]) * ((double)w[i][j] - (double)target[i][j]) / D;
    meopt_destroy(opt);
    return loss;
}

static void spikes_leave_the_loss_within_a_hundredth_of_fp32(void **state)
{
    static const float spikes[] = {1e6f, 1e7f};
    for (size_t s = 0; s < 2; s++) {
        double exact = loss_after_training("fp32", spikes[s]);
        assert_true(exact < 1.5); /* it learns */
        for (int k = 0; k < 2; k++) {
            static const char *const presets[] = {"balanced", "minimal"};
            double loss = loss_after_training(presets[k], spikes[s]);
            print_message("spikes of %g: %s %.4f, fp32 %.4f\n", (double)spikes[s], presets[k], loss, exact);
            assert_true(fabs(loss / exact - 1) <= 0.01);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(spikes_leave_the_loss_within_a_hundredth_of_fp32)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
