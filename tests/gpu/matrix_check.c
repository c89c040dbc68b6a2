/* On a card ($MEOPT_TEST_DEVICE; the simulated ones of tests/gpu/fake_driver.cc): matrix instructions are
 * used only if the check at the start passes. Each lane with its sums in different positions is detected,
 * and GEMM and attention are then correct without matrix instructions. */
#include "core/device/device.h"
#include "core/device/gpu.h"
#include "tests/mentions.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const char *spec(void) { return getenv("MEOPT_TEST_DEVICE"); }
static struct device *opened(int lane)
{
    struct device *device;
    struct error err = {0};
    char text[16];
    snprintf(text, sizeof text, "%d", lane);
    setenv("FAKE_LANE", text, 1);
    if (device_open(&device, spec(), 0, &err)) fail_msg("%s", err.what);
    return device;
}

/* The largest difference of op(a) op(b)^T of bf16 ones and others by the card from what it should be. */
static double product_error(struct device *device)
{
    enum { M = 37, N = 29, K = 45 };
    uint16_t a[M * K], b[N * K];
    float c[M * N];
    struct error err = {0};
    for (int i = 0; i < M * K; i++) a[i] = (uint16_t)(0x3F80 + i * 7 % 100);
    for (int i = 0; i < N * K; i++) b[i] = (uint16_t)(0x3F80 + i * 5 % 90);
    char *p = device_alloc(device, MEMORY_DATA, sizeof a + sizeof b + sizeof c + 64, "factors", &err);
    char *q = p + (sizeof a + 15) / 16 * 16, *r = q + (sizeof b + 15) / 16 * 16;
    device->upload(device, p, a, sizeof a);
    device->upload(device, q, b, sizeof b);
    struct gemm gemm = {.m = M,
                        .n = N,
                        .k = K,
                        .transpose_b = true,
                        .a = p,
                        .b = q,
                        .c = r,
                        .lda = K,
                        .ldb = K,
                        .ldc = N,
                        .ab_type = DTYPE_BF16,
                        .c_type = DTYPE_F32,
                        .alpha = 1};
    device->ops->gemm(device, &gemm);
    device->download(device, c, r, sizeof c);
    if (device_check(device, &err)) fail_msg("%s", err.what);
    device_free(device, p);
    double most = 0;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int k = 0; k < K; k++)
                sum += (1 + (i * K + k) * 7 % 100 / 128.0) * (1 + (j * K + k) * 5 % 90 / 128.0);
            double error = fabs(sum - (double)c[i * N + j]) / sum;
            if (!(error <= most)) most = isnan(error) ? INFINITY : error;
        }
    return most;
}

static void right_instructions_are_used(void **state)
{
    struct device *device = opened(-1);
    const struct gpu *gpu = gpu_of(device);
    const char *mma = device->kind == DEVICE_CUDA            ? "mma"
                      : strstr(gpu->driver.path, "fake_dcu") ? "mmac"
                                                             : "mfma";
    assert_false(gpu->plain);
    assert_string_equal(gpu->matrix, mma);
    assert_true(product_error(device) < 1e-6);
    device_close(device);
}

static void each_wrong_lane_is_found(void **state)
{
    for (int lane = 0, wave = 1; lane < wave; lane++) {
        struct device *device = opened(lane);
        const struct gpu *gpu = gpu_of(device);
        wave = gpu->wave;
        if (!gpu->plain) fail_msg("lane %d is wrong, and nothing was said", lane);
        assert_true(mentions(gpu->matrix, "none (m")); /* mma, mfma, mmac */
        if (lane % 16 == 5) assert_true(product_error(device) < 1e-6);
        device_close(device);
    }
}

/* Without the start's answer each such lane gives wrong results: what is found is worth finding. */
static void each_wrong_lane_makes_wrong_products(void **state)
{
    for (int lane = 0, wave = 1; lane < wave; lane++) {
        struct device *device = opened(lane);
        gpu_of(device)->plain = false;
        wave = gpu_of(device)->wave;
        assert_true(product_error(device) > 1e-3);
        device_close(device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(right_instructions_are_used),
                                       cmocka_unit_test(each_wrong_lane_is_found),
                                       cmocka_unit_test(each_wrong_lane_makes_wrong_products)};
    if (!spec()) return 77; /* matrix_check_on_... */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
