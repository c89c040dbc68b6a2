/* Trials of a GEMM library's algorithms (core/device/gemm_choices.h): what they leave in memory, what they
 * find, and that alignment above 16 bytes makes no other GEMM. On cards with such a library
 * ($MEOPT_TEST_DEVICE). */
#include "core/device/gemm_choices.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { M = 24, N = 40, K = 32, EXTRA = 64 };

static struct device *device;
static struct gemm_choices choices;

/* Small integers, whose sums are exact in any order; in bf16. */
static int operand(int i, int step) { return i * step % 11 % 5 - 2; }
static uint16_t half(int value)
{
    float x = (float)value;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static int setup(void **state)
{
    const char *spec = getenv("MEOPT_TEST_DEVICE");
    struct error err;
    setenv("FAKE_LT_ALGORITHMS", "4", 1); /* of the stand-in */
    setenv("FAKE_LT_FAST", "3", 1);
    setenv("FAKE_LT_SLOW", "2000", 1);
    if (spec && device_open(&device, spec, 0, &err)) fail_msg("%s", err.what);
    return 0;
}
static int teardown(void **state)
{
    device_close(device);
    return 0;
}

/* C += A B^T, twice, with operands at these bytes beyond an address of 256 bytes. */
static void adds(size_t offset)
{
    uint16_t a[M * K], b[N * K];
    float c[M * N];
    struct error err;
    for (int i = 0; i < M * K; i++) a[i] = half(operand(i, 7));
    for (int i = 0; i < N * K; i++) b[i] = half(operand(i, 5));
    for (int i = 0; i < M * N; i++) c[i] = (float)(i % 9);
    char *pa = device_alloc(device, MEMORY_WORKSPACE, sizeof a + EXTRA, "a", &err),
         *pb = device_alloc(device, MEMORY_WORKSPACE, sizeof b + EXTRA, "b", &err),
         *pc = device_alloc(device, MEMORY_WORKSPACE, sizeof c + EXTRA, "c", &err);
    assert_true(pa && pb && pc);
    struct gemm g = {.m = M,
                     .n = N,
                     .k = K,
                     .transpose_b = true,
                     .a = pa + offset,
                     .b = pb + offset,
                     .c = pc + offset,
                     .lda = K,
                     .ldb = K,
                     .ldc = N,
                     .ab_type = DTYPE_BF16,
                     .c_type = DTYPE_F32,
                     .alpha = 1,
                     .beta = 1};
    device->upload(device, pa + offset, a, sizeof a);
    device->upload(device, pb + offset, b, sizeof b);
    device->upload(device, pc + offset, c, sizeof c);
    for (int i = 0; i < 2; i++) device->ops->gemm(device, &g);
    device->sync(device);
    device->download(device, c, pc + offset, sizeof c);
    assert_int_equal(device_check(device, &err), 0);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            int sum = 0, at = i * N + j;
            for (int l = 0; l < K; l++) sum += operand(i * K + l, 7) * operand(j * K + l, 5);
            assert_int_equal((int)c[at], at % 9 + 2 * sum);
        }
    device_free(device, pa);
    device_free(device, pb);
    device_free(device, pc);
}

static void a_trial_leaves_what_it_adds_to(void **state)
{
    if (!device || !device_gemm_choices(device, &choices)) skip();
    assert_true(choices.card[0] && choices.library[0] && choices.count == 0);
    device_gemm_try(device, true);
    adds(0);
    adds(16); /* the same to the library */
    adds(48);
    device_gemm_try(device, false);
    device_gemm_found(device, &choices);
    assert_int_equal(choices.count, 1);
    const struct gemm_choice *c = &choices.list[0];
    assert_true(c->key.m == M && c->key.n == N && c->key.k == K && c->key.transpose_b && !c->key.out16);
    for (int i = 0; i < 3; i++) assert_int_equal(c->key.aligned[i], 16);
    assert_true(c->ms > 0 && c->ms <= c->first_ms);
    adds(8);
    device_gemm_use(device, &choices);
    adds(32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_trial_leaves_what_it_adds_to)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
