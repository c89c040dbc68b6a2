/* Ranks as one: what every back end promises (core/dist/dist.h), shown by the back end of one rank. */
#include "core/dist/dist.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static struct device *device;

static int open_device(void **state)
{
    struct error err;
    (void)state;
    return device_open(&device, "cpu", 0, &err);
}

static int close_device(void **state)
{
    (void)state;
    device_close(device);
    return 0;
}

static void a_sum_over_one_rank_is_its_own_values(void **state)
{
    struct dist dist;
    struct error err = {0};
    const float values[6] = {1, -2, 0.5f, 3e38f, -0.0f, 1e-42f};
    float parts[6], whole[6];
    (void)state;
    dist_self(&dist, device);
    assert_int_equal(dist.ops->reduce_scatter(&dist, values, parts, 6, DTYPE_F32, &err), 0);
    assert_memory_equal(parts, values, sizeof values);
    assert_int_equal(dist.ops->all_gather(&dist, parts, whole, 6, DTYPE_F32, &err), 0);
    assert_memory_equal(whole, values, sizeof values);
    assert_int_equal(dist_sum(&dist, whole, 6, DTYPE_F32, &err), 0); /* in place */
    assert_memory_equal(whole, values, sizeof values);
    double sums[2] = {0.1, -7};
    assert_int_equal(dist.ops->all_reduce(&dist, DIST_SUM, sums, 2, &err), 0);
    assert_true(sums[0] == 0.1 && sums[1] == -7);
    assert_int_equal(dist.ops->broadcast(&dist, whole, sizeof whole, 0, &err), 0);
    assert_int_equal(dist.ops->barrier(&dist, &err), 0);
    dist_close(&dist);
}

static void what_ranks_could_not_do_together_is_refused(void **state)
{
    struct dist dist;
    struct error err = {0};
    float values[4] = {0};
    (void)state;
    dist_self(&dist, device);
    assert_int_equal(dist.ops->reduce_scatter(&dist, values, values, 4, DTYPE_I32, &err), EXIT_FAILED);
    assert_non_null(strstr(err.what, "I32"));
    assert_int_equal(dist.ops->all_gather(&dist, NULL, values, 4, DTYPE_F32, &err), EXIT_FAILED);
    assert_int_equal(dist.ops->all_reduce(&dist, DIST_SUM, NULL, 1, &err), EXIT_FAILED);
    assert_int_equal(dist.ops->broadcast(&dist, values, sizeof values, 1, &err), EXIT_FAILED);
    assert_non_null(strstr(err.what, "rank 1 of 1"));
    dist.size = 3; /* shares of unequal size */
    assert_int_equal(dist_sum(&dist, values, 4, DTYPE_F32, &err), EXIT_FAILED);
    assert_non_null(strstr(err.what, "4 values cannot be shared by 3 ranks"));
    dist_close(&dist);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_sum_over_one_rank_is_its_own_values),
                                       cmocka_unit_test(what_ranks_could_not_do_together_is_refused)};
    return cmocka_run_group_tests(tests, open_device, close_device);
}
