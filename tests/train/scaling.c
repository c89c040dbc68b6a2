/* Predicted steps of many ranks, compared with numbers computed by hand (core/train/scaling.h). */
#include "core/train/scaling.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void near(double found, double expected)
{
    double apart = found > expected ? found - expected : expected - found;
    if (apart > 1e-12 + 1e-12 * expected) fail_msg("%.15g, expected %.15g", found, expected);
}

/* 1 s, half of it backward, in 10 messages; 1 GB/s and 1 ms. */
static const struct scaling slow = {1, 0.5, 10, true, 1e9, 0, 8, 1e-3};

static void one_rank_needs_what_it_needs(void **state)
{
    (void)state;
    near(scaling_sums_s(&slow, 1, 0), 0);
    near(scaling_step_s(&slow, 1, 0), 1);
}

static void all_reduces_shorter_than_backward_are_hidden(void **state)
{
    (void)state;
    /* 4 ranks: 100 MB are 0.1 s, and 10 * 2 * 3 ms: c = 0.016, b = 0.05 */
    near(scaling_sums_s(&slow, 4, 1e8), 0.16);
    near(scaling_step_s(&slow, 4, 1e8), 0.5 + 0.05 + 9 * 0.05 + 0.016);
}

static void sums_that_are_longer_decide(void **state)
{
    (void)state;
    /* 2 GB: 2.06 s, c = 0.206 */
    near(scaling_step_s(&slow, 4, 2e9), 0.5 + 0.05 + 9 * 0.206 + 0.206);
}

static void kept_gradients_wait(void **state)
{
    (void)state;
    struct scaling s = slow;
    s.overlap = false;
    near(scaling_step_s(&s, 4, 1e8), 1.16);
}

static void a_network_is_shared_by_the_ranks_of_a_node(void **state)
{
    (void)state;
    struct scaling s = slow;
    s.network = 4e9;
    s.latency_s = 0;
    near(scaling_sums_s(&s, 8, 1e9), 1);                       /* within a node */
    near(scaling_sums_s(&s, 16, 1e9), 1e9 * 8 / 15 * 8 / 4e9); /* 1.0667 s: 0.5 GB/s for each */
    s.network = 40e9;
    near(scaling_sums_s(&s, 16, 1e9), 1); /* the rank's own link is slower */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_needs_what_it_needs),
        cmocka_unit_test(all_reduces_shorter_than_backward_are_hidden),
        cmocka_unit_test(sums_that_are_longer_decide),
        cmocka_unit_test(kept_gradients_wait),
        cmocka_unit_test(a_network_is_shared_by_the_ranks_of_a_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
