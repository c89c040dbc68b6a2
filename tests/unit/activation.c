/* kernels/cpu/activation: results of bf16 are those of floats, rounded, for each value and each kind,
 * whether computed or from a table. */
#include "core/device/device.h"
#include "kernels/bf16.h"
#include "kernels/cpu/select.h"

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

static uint16_t bf16_from(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bf16_of_bits(bits);
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
    for (int i = 0; i < VALUES; i++) wide_dy[i] = widen(dy[i] = (uint16_t)(0x3E00 + i * 77 % 0x200));
    assert_int_equal(device_open(&device, "cpu", 0, &err), 0);
    for (int k = ACTIVATION_GELU; k < ACTIVATION_COUNT; k++) {
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

/* Far from 0 the functions and their gradients are at their limits, whatever computes them. */
static void limits_are_those_of_the_functions(void **state)
{
    enum { N = 11 };
    static const float far[N] = {INFINITY, 3e38f, 1e30f, 200, 90, -INFINITY, -3e38f, -1e30f, -200, -90, NAN};
    struct device *device;
    struct error err;
    assert_int_equal(device_open(&device, "cpu", 0, &err), 0);
    for (int k = ACTIVATION_GELU; k < ACTIVATION_COUNT; k++)
        for (int half = 0; half < 2; half++) {
            bool gated = k == ACTIVATION_SWIGLU, bounded = k == ACTIVATION_TANH;
            float out[N], gradient[2 * N], ones[N], in[2 * N];
            uint16_t half_in[2 * N], half_ones[N], half_out[N], half_gradient[2 * N];
            for (int i = 0; i < 2 * N; i++) in[i] = widen(half_in[i] = bf16_from(i < N ? far[i] : 0.5f));
            for (int i = 0; i < N; i++) ones[i] = widen(half_ones[i] = bf16_from(1));
            struct activation_gradient o = {.type = half ? DTYPE_BF16 : DTYPE_F32,
                                            .kind = (enum activation)k,
                                            .dy = half ? (void *)half_ones : ones,
                                            .h = half ? (void *)half_in : in,
                                            .dh = half ? (void *)half_gradient : gradient,
                                            .act = half ? (void *)half_out : out,
                                            .R = 1,
                                            .F = N};
            for (int backward = 0; backward < 2; backward++) {
                struct activation_value forward = {
                    .type = o.type, .kind = o.kind, .h = o.h, .y = o.act, .R = 1, .F = N};
                if (backward) device->ops->activation_backward(device, &o);
                else device->ops->activation_forward(device, &forward);
                for (int i = 0; i < N; i++) {
                    float value = half ? widen(half_out[i]) : out[i], x = in[i], factor = gated ? 0.5f : 1;
                    float want = bounded && x > 0   ? 1
                                 : bounded && x < 0 ? -1
                                 : x > 0            ? x * factor
                                 : x < 0            ? 0
                                                    : x,
                          slope = x > 0   ? bounded ? 0 : factor
                                  : x < 0 ? 0
                                          : x,
                          gate = x > 0   ? x
                                 : x < 0 ? 0
                                         : x;
                    float dx = half ? widen(half_gradient[i]) : gradient[i],
                          dgate = gated ? half ? widen(half_gradient[N + i]) : gradient[N + i] : gate;
                    assert_true(isnan(x) ? isnan(value) : value == want || fabsf(value - want) < 1e-36f);
                    if (!backward) continue;
                    assert_true(isnan(x) ? isnan(dx) : fabsf(dx - slope) < 1e-36f);
                    assert_true(isnan(x) ? isnan(dgate) : dgate == gate || fabsf(dgate - gate) < 1e-36f);
                }
            }
        }
    device_close(device);
}

static int with_instruction_set(void **state) { return setenv("MEOPT_CPU_ISA", *state, 1); }

int main(void)
{
    struct CMUnitTest tests[2 * CPU_SETS];
    size_t count = 0;
    for (enum cpu_isa set = 0; set < CPU_SETS; set++) {
        union {
            const char *name;
            void *state;
        } isa = {cpu_isa_names[set]};
        if (!cpu_isa_runs(set)) continue;
        tests[count++] = (struct CMUnitTest){cpu_isa_names[set], bf16_has_the_results_of_floats,
                                             with_instruction_set, NULL, isa.state};
        tests[count++] = (struct CMUnitTest){cpu_isa_names[set], limits_are_those_of_the_functions,
                                             with_instruction_set, NULL, isa.state};
    }
    return _cmocka_run_group_tests("activation", tests, count, NULL, NULL);
}
