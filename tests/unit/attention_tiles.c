/* Attention on AMX tiles (kernels/cpu/attention_amx.c), in emulation (emulate_amx.h), against attention
 * without tiles, in the norm of bf16: masks, windows, packed documents, a first query; scratch memory. */
#include "kernels/cpu/attention_amx.h"
#include "kernels/cpu/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { SEGMENTS = 1, CAUSAL = 2, MARK = 0xB5, MARKS = 256 };

static uint16_t *numbers(int64_t count, uint32_t seed)
{
    uint16_t *x = malloc((size_t)count * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        float f = ((float)(seed >> 8 & 0xFFFF) - 32768) / 16384;
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        x[i] = (uint16_t)(bits >> 16);
    }
    return x;
}
static float wide(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static void assert_near(const uint16_t *x, const uint16_t *want, int64_t count, double share)
{
    double error = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        double a = (double)wide(x[i]), b = (double)wide(want[i]);
        assert_true(isfinite(a));
        error += (a - b) * (a - b);
        size += b * b;
    }
    assert_true(error <= share * share * size);
}
static uint8_t *scratch_of(size_t bytes)
{
    uint8_t *p = aligned_alloc(64, bytes + MARKS);
    assert_non_null(p);
    memset(p, MARK, bytes + MARKS);
    return p;
}
static void assert_marks(const uint8_t *p)
{
    for (int i = 0; i < MARKS; i++) assert_int_equal(p[i], MARK);
}

/* From a first query on, out and lse are those of all queries; before it they stay. */
static void try_first(struct attention f, int64_t first, uint8_t *scratch)
{
    int64_t row = f.H * f.dh;
    uint16_t *out = numbers(f.B * f.N * row, 5), *before = numbers(f.B * f.N * row, 5);
    const uint16_t *all = f.out;
    const float *sums = f.lse;
    float *lse = malloc((size_t)(f.B * f.H * f.N) * sizeof *lse);
    assert_non_null(lse);
    for (int64_t i = 0; i < f.B * f.H * f.N; i++) lse[i] = -1;
    f.out = out;
    f.lse = lse;
    f.first = first;
    attention_amx_forward(&f, scratch, 1);
    for (int64_t i = 0; i < f.B * f.N; i++)
        assert_memory_equal(out + i * row, (i % f.N < first ? before : all) + i * row,
                            (size_t)row * sizeof *out);
    for (int64_t i = 0; i < f.B * f.H * f.N; i++) assert_true(lse[i] == (i % f.N < first ? -1 : sums[i]));
    free(out);
    free(before);
    free(lse);
}

/* B N H G dh, mask, window, first query */
static void try_shape(const int64_t s[8])
{
    int64_t B = s[0], N = s[1], H = s[2], G = s[3], dh = s[4], rows = B * N, all = rows * (H + 2 * G) * dh,
            outputs = rows * H * dh;
    uint16_t *qkv = numbers(all, 1), *dout = numbers(outputs, 2), *out = numbers(outputs, 3),
             *want = numbers(outputs, 3), *dqkv = numbers(all, 4), *dwant = numbers(all, 4);
    float *lse = malloc((size_t)(rows * H) * sizeof *lse),
          *lse_want = malloc((size_t)(rows * H) * sizeof *lse);
    int32_t *begins = malloc((size_t)rows * sizeof *begins), *ends = malloc((size_t)rows * sizeof *ends);
    size_t bytes = attention_amx_scratch(N, H, G, dh),
           others = (attention_scratch(N, dh, 0, 1) + 63) & ~(size_t)63;
    uint8_t *scratch = scratch_of(bytes), *other = scratch_of(others);
    assert_true(lse && lse_want && begins && ends);
    for (int64_t b = 0; b < B; b++)
        for (int64_t first = 0, end, length = 1 + 17 * b; first < N; first = end, length += 17) {
            end = first + length < N ? first + length : N;
            for (int64_t i = first; i < end; i++) {
                begins[b * N + i] = (int32_t)first;
                ends[b * N + i] = (int32_t)end;
            }
        }
    struct attention f = {.type = DTYPE_BF16,
                          .qkv = qkv,
                          .out = out,
                          .lse = lse,
                          .B = B,
                          .N = N,
                          .H = H,
                          .G = G,
                          .dh = dh,
                          .causal = s[5] & CAUSAL,
                          .window = s[6],
                          .begins = s[5] & SEGMENTS ? begins : NULL,
                          .ends = s[5] & SEGMENTS ? ends : NULL};
    attention_amx_forward(&f, scratch, 1);
    try_first(f, s[7], scratch);
    assert_marks(scratch + bytes);
    f.out = want;
    f.lse = lse_want;
    cpu_ops_plain.attention_forward(&f, other, 1);
    struct attention_gradient g = {f, dout, dqkv};
    attention_amx_backward(&g, scratch, 1);
    assert_marks(scratch + bytes);
    g.dqkv = dwant;
    cpu_ops_plain.attention_backward(&g, other, 1);
    assert_near(out, want, outputs, 0x1p-8);
    assert_near(dqkv, dwant, all, 0x1p-7);
    for (int64_t i = 0; i < rows * H; i++) assert_true(fabsf(lse[i] - lse_want[i]) < 1e-4f);
    void *memory[] = {qkv, dout, out, want, dqkv, dwant, lse, lse_want, begins, ends, scratch, other};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) free(memory[i]);
}

static void tiles_equal_other_attention(void **state)
{
    static const int64_t shapes[][8] = {
        {1, 5, 1, 1, 32},
        {2, 33, 2, 2, 80},
        {1, 130, 1, 1, 88},
        {1, 50, 7, 1, 16},
        {2, 70, 4, 2, 64, CAUSAL},
        {1, 131, 3, 1, 80, CAUSAL},
        {2, 70, 2, 2, 96, CAUSAL | SEGMENTS},
        {1, 99, 4, 1, 128, CAUSAL | SEGMENTS},
        {3, 45, 7, 1, 24, SEGMENTS},
        {1, 150, 2, 1, 64, CAUSAL, 17},
        {2, 77, 2, 2, 40, 0, 33},
        {1, 203, 4, 2, 32, CAUSAL | SEGMENTS, 50},
        {2, 5, 2, 2, 8, CAUSAL | SEGMENTS, 1},
        {1, 200, 2, 1, 64, CAUSAL, 64},
        {1, 200, 2, 1, 64, 0, 31},
        {1, 530, 2, 1, 16},
        {1, 600, 1, 1, 40, CAUSAL, 40},
        {1, 1030, 1, 1, 16, CAUSAL},
        {1, 131, 3, 1, 80, CAUSAL, 0, 130},
        {2, 203, 4, 2, 32, CAUSAL | SEGMENTS, 50, 70},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) try_shape(shapes[i]);
}

static void scratch_grows_with_the_tokens(void **state)
{
    for (int64_t heads = 1; heads <= 4; heads++)
        assert_true(attention_amx_scratch(8192, heads, 1, 128) <=
                    2 * attention_amx_scratch(4096, heads, 1, 128));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tiles_equal_other_attention),
                                       cmocka_unit_test(scratch_grows_with_the_tokens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
