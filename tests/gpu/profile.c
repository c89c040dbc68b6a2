/* core/device/profile: every operation has a kind of work. */
#include "core/device/bench.h"
#include "core/device/profile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

typedef void (*slot)(void);

/* A slot that the profile left out would be a call of no function. */
static void every_operation_is_timed(void **state)
{
    enum { OPS = sizeof(struct device_ops) / sizeof(slot) };
    struct device *device;
    struct device_profile profile;
    struct error err;
    slot before[OPS], now[OPS];
    assert_int_equal(device_open(&device, "cpu", 0, &err), 0);
    struct device_optim own = *device->optim;
    memcpy(before, device->ops, sizeof before);
    profile_begin(&profile, device);
    memcpy(now, device->ops, sizeof now);
    for (size_t i = 0; i < OPS; i++) {
        if (before[i] && !now[i]) fail_msg("operation %zu of struct device_ops is lost", i);
        if (before[i] && now[i] == before[i]) fail_msg("operation %zu of struct device_ops has no clock", i);
    }
    assert_true(device->optim->step != own.step && device->optim->squares != own.squares &&
                device->optim->results != own.results && device->optim->clear != own.clear);
    device_close(device);
}

static void time_and_calls_are_of_their_kind(void **state)
{
    struct device *device;
    struct device_profile profile;
    struct error err;
    float x[6] = {1, 2, 3, 4, 5, 6}, y[4] = {0}, mean[2];
    assert_int_equal(device_open(&device, "cpu", 0, &err), 0);
    assert_true(device_call_seconds(device) > 0);
    assert_int_equal(device->use.peak_total_bytes, 0);
    profile_begin(&profile, device);
    struct gemm g = {
        .m = 2, .n = 2, .k = 1, .a = x, .b = x, .c = y, .lda = 1, .ldb = 2, .ldc = 2, .alpha = 1};
    device->ops->gemm(device, &g);
    struct row_mean rows = {.type = DTYPE_F32, .x = x, .y = mean, .B = 1, .N = 3, .D = 2, .skip = 1};
    device->ops->row_mean_forward(device, &rows);
    device->ops->row_mean_forward(device, &rows);
    assert_int_equal(profile.calls[WORK_PRODUCTS], 1);
    assert_int_equal(profile.calls[WORK_ELEMENTWISE], 2);
    assert_int_equal(profile.calls[WORK_ATTENTION] + profile.calls[WORK_OPTIMIZER], 0);
    assert_true(profile.seconds[WORK_PRODUCTS] > 0 && profile.seconds[WORK_ELEMENTWISE] > 0);
    assert_float_equal(mean[0], 4, 0);
    profile_clear(&profile);
    assert_int_equal(profile.calls[WORK_PRODUCTS], 0);
    assert_true(profile.seconds[WORK_PRODUCTS] <= 0);
    device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_operation_is_timed),
                                       cmocka_unit_test(time_and_calls_are_of_their_kind)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
