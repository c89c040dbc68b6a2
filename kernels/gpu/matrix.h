/* One wave multiplies 16 x 16 matrices of bf16, with fp32 sums, on the card's matrix instructions.
 * MEOPT_MATRIX is 1 where the compiler offers them for the arch being built; elsewhere kernels keep their
 * plain loops (-DMEOPT_MATRIX=0 does so anywhere).
 *
 * A factor (`fragment`) and a sum (`result`) are 16 x 16 matrices spread over the lanes of a wave, both by
 * one map: a lane's element i stands at (fragment_row(i), fragment_column(i)). multiply() is
 * sum(r, c) += a(r, k) b(c, k), summed over k: both factors have k along their rows. As the map is the same,
 * attention's probabilities, a result, are the next product's factor without leaving the registers.
 *
 *   wave 64   v_mfma_f32_16x16x16_bf16_1k (AMD Instinct MI200 ISA, chapter 7): a factor's lane has row
 *             lane % 16 and four k from 4 (lane / 16) on. The sum's lane has that as its column and four
 *             rows, so the transposed product is asked for.
 *   wave 32   mma.sync.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type"),
 *             once for each half of the columns: rows lane / 4 and 8 further, columns 2 (lane % 4), the next,
 *             and both 8 further.
 *
 * gfx908 has the instruction of half the depth alone and stays plain, though its compiler claims the other.
 */
#ifndef MEOPT_GPU_MATRIX_H
#define MEOPT_GPU_MATRIX_H

#include "kernels/gpu/vendor.h"

#if !defined(MEOPT_MATRIX)
#if defined(MEOPT_EMULATE_WAVE)
#define MEOPT_MATRIX 1
#elif defined(__CUDA_ARCH__)
#define MEOPT_MATRIX (__CUDA_ARCH__ >= 800)
#elif defined(__AMDGCN__) && !defined(__gfx908__) && WAVE == 64
#define MEOPT_MATRIX __has_builtin(__builtin_amdgcn_mfma_f32_16x16x16bf16_1k)
#else
#define MEOPT_MATRIX 0
#endif
#endif

/* eight bf16, as memory is best read and written */
struct alignas(16) chunk {
    uint32_t pair[4];
};
/* The first `count` of eight elements, zeros behind them. aligned: p is a multiple of 16 bytes. */
DEVICE chunk load_chunk(const bf16 *p, int64_t count, bool aligned)
{
    chunk c = {};
    if (aligned && count >= 8) __builtin_memcpy(&c, __builtin_assume_aligned(p, sizeof c), sizeof c);
    else
        UNROLLED for (int i = 0; i < 8; i += 2) c.pair[i / 2] =
            (i < count ? p[i].bits : 0u) | (i + 1 < count ? (uint32_t)p[i + 1].bits << 16 : 0u);
    return c;
}

#if MEOPT_MATRIX

enum {
    FRAGMENT = 16 * 16 / WAVE,
    RUN = WAVE / 16 /* elements side by side */,
    LANE_ROWS = WAVE == 64 ? 1 : 2
};
struct fragment {
    uint32_t pair[FRAGMENT / 2]; /* elements 2 i (low half) and 2 i + 1 */
};
struct result {
    float at[FRAGMENT];
};

#if WAVE == 64

DEVICE int fragment_row(int) { return THREAD % 16; }
DEVICE int fragment_column(int i) { return THREAD % WAVE / 16 * 4 + i; }
DEVICE int lane_row(int) { return 0; } /* which of the lane's LANE_ROWS rows */
enum { ROW_MASK = 16, ROW_MASK_END = 64 };
#if !defined(MEOPT_EMULATE_WAVE)
typedef short mfma_factor __attribute__((ext_vector_type(4)));
typedef float mfma_sum __attribute__((ext_vector_type(4)));
#endif
DEVICE void multiply(result &sum, const fragment &a, const fragment &b)
{
#if defined(MEOPT_EMULATE_WAVE)
    emulate::mfma_f32_16x16x16_bf16(sum.at, b.pair, a.pair);
#else
    mfma_factor x, y;
    mfma_sum z;
    __builtin_memcpy(&x, b.pair, sizeof x);
    __builtin_memcpy(&y, a.pair, sizeof y);
    __builtin_memcpy(&z, sum.at, sizeof z);
    z = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(x, y, z, 0, 0, 0);
    __builtin_memcpy(sum.at, &z, sizeof z);
#endif
}

#else

DEVICE int fragment_row(int i) { return THREAD % WAVE / 4 + i / 2 % 2 * 8; }
DEVICE int fragment_column(int i) { return THREAD % 4 * 2 + i % 2 + i / 4 * 8; }
DEVICE int lane_row(int i) { return i / 2 % 2; }
enum { ROW_MASK = 1, ROW_MASK_END = 4 };
DEVICE void multiply(result &sum, const fragment &a, const fragment &b)
{
    UNROLLED for (int half = 0; half < 2; half++)
    {
        float *c = sum.at + 4 * half;
#if defined(MEOPT_EMULATE_WAVE)
        const uint32_t factor[2] = {b.pair[half], b.pair[2 + half]};
        emulate::mma_m16n8k16_bf16(c, a.pair, factor);
#else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
            "%9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a.pair[0]), "r"(a.pair[1]), "r"(a.pair[2]), "r"(a.pair[3]), "r"(b.pair[half]),
              "r"(b.pair[2 + half]));
#endif
    }
}

#endif

/* A 16 x 16 part of a tile in shared memory: its rows are the factor's rows.
 * stride, in elements, is a multiple of 8. */
DEVICE fragment fragment_rows(const bf16 *tile, int stride)
{
    fragment f;
    UNROLLED for (int i = 0; i < FRAGMENT; i += RUN) __builtin_memcpy(
        &f.pair[i / 2],
        __builtin_assume_aligned(tile + fragment_row(i) * stride + fragment_column(i), 2 * RUN), 2 * RUN);
    return f;
}
/* Its columns are the factor's rows: k runs down the tile. */
DEVICE fragment fragment_columns(const bf16 *tile, int stride)
{
    fragment f;
    UNROLLED for (int i = 0; i < FRAGMENT; i += 2)
    {
        const bf16 *at = tile + fragment_column(i) * stride + fragment_row(i);
        f.pair[i / 2] = at->bits | (uint32_t)at[stride].bits << 16;
    }
    return f;
}
DEVICE fragment fragment_of(const result &x)
{
    fragment f;
    UNROLLED for (int i = 0; i < FRAGMENT; i += 2) f.pair[i / 2] =
        bf16_bits(x.at[i]) | (uint32_t)bf16_bits(x.at[i + 1]) << 16;
    return f;
}
/* Over the lanes that share a row; each of them gets the value. */
DEVICE float row_sum(float x)
{
    for (int mask = ROW_MASK; mask < ROW_MASK_END; mask *= 2) x += wave_xor(x, mask);
    return x;
}
DEVICE float row_max(float x)
{
    for (int mask = ROW_MASK; mask < ROW_MASK_END; mask *= 2) {
        float other = wave_xor(x, mask);
        x = other > x ? other : x;
    }
    return x;
}

#endif
#endif
