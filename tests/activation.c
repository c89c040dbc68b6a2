/* kernels/cpu/activation: bf16 has the results of floats, rounded, for each of its values and each kind,
 * whether they are computed or looked up. */
#include "core/device/device.h"
#include "kernels/bf16.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { VALUES = 65536, COLUMNS = 256, ROWS = VALUES / COLUMNS };
static uint16_t h[2 * VALUES], dy[VALUES], y[VALUES], dh[2 * VALUES];
static float wide_h[2 * VALUES], wide_dy[VALUES], wide_y[VALUES], wide_dh[2 * VALUES];

static float widen(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static void alike(const uint16_t *halves, const float *floats, int64_t n, const char *what, int kind)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &floats[i], 4);
        if (isnan(floats[i]) && isnan(widen(halves[i]))) continue;
        if (halves[i] != bf16_of_bits(bits))
            fail_msg("%s of kind %d, element %lld: %g in bf16, %g in floats", what, kind, (long long)i,
                     (double)widen(halves[i]), (double)floats[i]);
    }
}

static void bf16_has_the_results_of_floats(void **state)
{
    struct device *device;
    struct error err;
    (void)state;
    for (int i = 0; i < VALUES; i++) wide_dy[i] = widen(dy[i] = (uint16_t)(0x3E00 + i * 77 % 0x200));
    assert_int_equal(device_open(&device, "cpu", 0, &err), 0);
    for (int k = ACTIVATION_GELU; k <= ACTIVATION_QUICK_GELU; k++) {
        const struct device_ops *ops = device->ops;
        int64_t wide = k == ACTIVATION_SWIGLU ? 2 * VALUES : VALUES;
        for (int i = 0; i < wide; i++) { /* of SwiGLU each value stands left of another */
            int row = i / (2 * COLUMNS), right = i / COLUMNS % 2;
            h[i] = (uint16_t)(wide == VALUES ? i : row * COLUMNS + i % COLUMNS + right * 4321);
            wide_h[i] = widen(h[i]);
        }
        ops->activation_forward(
            device,
            &(struct activation_value){
                .type = DTYPE_BF16, .kind = (enum activation)k, .h = h, .y = y, .R = ROWS, .F = COLUMNS});
        ops->activation_forward(device, &(struct activation_value){.type = DTYPE_F32,
                                                                   .kind = (enum activation)k,
                                                                   .h = wide_h,
                                                                   .y = wide_y,
                                                                   .R = ROWS,
                                                                   .F = COLUMNS});
        alike(y, wide_y, VALUES, "values", k);
        struct activation_gradient o = {.type = DTYPE_BF16,
                                        .kind = (enum activation)k,
                                        .dy = dy,
                                        .h = h,
                                        .dh = dh,
                                        .R = ROWS,
                                        .F = COLUMNS};
        struct activation_gradient w = o;
        w.type = DTYPE_F32;
        w.dy = wide_dy;
        w.h = wide_h;
        w.dh = wide_dh;
        ops->activation_backward(device, &o);
        ops->activation_backward(device, &w);
        alike(dh, wide_dh, wide, "gradients", k);
    }
    device_close(device);
}

static int with_instruction_set(void **state)
{
    return *state ? setenv("MEOPT_CPU_ISA", *state, 1) : unsetenv("MEOPT_CPU_ISA");
}

int main(void)
{
    static char plain[] = "plain", avx2[] = "avx2";
#define ON(isa)                                                                                              \
    {                                                                                                        \
        "bf16_has_the_results_of_floats", bf16_has_the_results_of_floats, with_instruction_set, NULL, isa    \
    }
    const struct CMUnitTest tests[] = {ON(NULL), ON(avx2), ON(plain)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
