/* One wave multiplies 16 x 16 matrices of bf16, with fp32 sums, using the card's matrix instructions.
 * MEOPT_MATRIX is the kind that the arch has and the compiler supports. With MATRIX_NONE, kernels use plain
 * loops (-DMEOPT_MATRIX=0 selects that on any arch).
 *
 * The first operand (`fragment`) and the sum (`result`) are 16 x 16 matrices, distributed over the lanes of a
 * wave by the same map: a lane's element i is at (fragment_row(i), fragment_column(i)). multiply() computes
 * sum(r, c) += a(r, k) b(c, k) over k; both operands have k along their rows. Because of the common map, the
 * probabilities of attention, a result, become the next first operand without leaving the registers. The
 * second operand (`partner`) has the columns of that map, and rows partner_row(i).
 *
 *   MATRIX_MMA   NVIDIA, wave 32: mma.sync.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16 with
 *                floating point type"), once for each half of the columns: rows lane / 4 and 8 further,
 *                columns 2 (lane % 4), the next, and both 8 further.
 *   MATRIX_MFMA  AMD, wave 64: v_mfma_f32_16x16x16_bf16_1k (Instinct MI200 ISA, chapter 7): a lane of an
 *                operand has row lane % 16 and four k from 4 (lane / 16) on. A lane of the sum has that as
 *                its column, and four rows, so the code computes the transposed product. gfx908 only has the
 *                instruction of half the depth and uses plain loops, although its compiler accepts this one.
 *   MATRIX_MMAC  Hygon DCU, wave 64: v_mmac_f32_16x16x16_bf16. Operands as for MFMA. A lane of the sum has
 *                row lane % 16, but columns 4 i + lane / 16 (see composable_kernel and aiter of HYGON-AI).
 *                The rows of the second operand are therefore loaded in the order that puts column 4 (lane /
 *                16) + i there. matrix_check (gemm.hip) tests compiler and card at every start.
 */
#ifndef MEOPT_GPU_MATRIX_H
#define MEOPT_GPU_MATRIX_H

#include "kernels/gpu/vendor.h"

#define MATRIX_NONE 0
#define MATRIX_MMA  1
#define MATRIX_MFMA 2
#define MATRIX_MMAC 3

/* Names of DCU's instruction: since 2026, before, and in builds based on ROCm's compiler; gfx938 has its own.
 * __has_builtin answers for the compiler, not for the arch, so the arch is checked first. */
#if defined(__gfx928__) || defined(__gfx936__) || defined(__gfx938__) || defined(__gfx92a__) ||              \
    defined(__gfx946__)
#define MATRIX_DCU 1
#if defined(__gfx938__) && __has_builtin(__builtin_hcu_mmac_f32_16x16x16_bf16_lit_lts)
#define MMAC(a, b, c) __builtin_hcu_mmac_f32_16x16x16_bf16_lit_lts(a, b, c, false, false)
#elif __has_builtin(__builtin_hcu_mmac_f32_16x16x16_bf16)
#define MMAC(a, b, c) __builtin_hcu_mmac_f32_16x16x16_bf16(a, b, c)
#elif __has_builtin(__builtin_amdgcn_mmac_f32_16x16x16bf16)
#define MMAC(a, b, c) __builtin_amdgcn_mmac_f32_16x16x16bf16(a, b, c)
#elif __has_builtin(__builtin_amdgcn_mmac_f32_16x16x16_bf16)
#define MMAC(a, b, c) __builtin_amdgcn_mmac_f32_16x16x16_bf16(a, b, c)
#endif
#endif

#if !defined(MEOPT_MATRIX)
#if defined(MEOPT_EMULATE_WAVE)
#define MEOPT_MATRIX (MEOPT_EMULATE_WAVE == 64 ? MATRIX_MFMA : MATRIX_MMA)
#elif defined(__CUDA_ARCH__)
#define MEOPT_MATRIX (__CUDA_ARCH__ >= 800 ? MATRIX_MMA : MATRIX_NONE)
#elif defined(MATRIX_DCU) && defined(MMAC)
#define MEOPT_MATRIX MATRIX_MMAC
#elif defined(MATRIX_DCU)
#define MEOPT_MATRIX MATRIX_NONE
#elif defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) ||            \
    defined(__gfx950__)
#define MEOPT_MATRIX MATRIX_MFMA
#else
#define MEOPT_MATRIX MATRIX_NONE
#endif
#endif

/* Loads the first `count` of eight elements, zeros after them. aligned: p is a multiple of 16 bytes. */
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

/* Start copying 16 bytes to shared memory, zeros without `real`; they are there after copies_wait, for other
 * threads after a barrier, too. ASYNC: the card has such copies (cp.async). */
enum { ASYNC = MEOPT_MATRIX == MATRIX_MMA };
#if MEOPT_MATRIX == MATRIX_MMA && defined(MEOPT_EMULATE_WAVE)
using emulate::copies_wait;
using emulate::copy_async;
#elif MEOPT_MATRIX == MATRIX_MMA
DEVICE void copy_async(chunk *to, const void *from, bool real)
{
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
        "l"(from), "r"(real ? 16 : 0)
        : "memory");
}
DEVICE void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#else
DEVICE void copy_async(chunk *, const void *, bool) {}
DEVICE void copies_wait() {}
#endif

enum { FRAGMENT = 16 * 16 / WAVE, RUN = WAVE / 16 /* contiguous elements */, LANE_ROWS = WAVE == 64 ? 1 : 2 };
struct fragment {
    uint32_t pair[FRAGMENT / 2]; /* elements 2 i (low half) and 2 i + 1 */
};
struct partner {
    uint32_t pair[FRAGMENT / 2];
};
struct result {
    float at[FRAGMENT];
};

#if WAVE == 64

DEVICE int fragment_row(int) { return THREAD % 16; }
DEVICE int fragment_column(int i) { return THREAD % WAVE / 16 * 4 + i; }
DEVICE int lane_row(int) { return 0; }                  /* which of the lane's LANE_ROWS rows */
DEVICE int row_of_lane(int) { return fragment_row(0); } /* row r of the lane's LANE_ROWS */
enum { ROW_MASK = 16, ROW_MASK_END = 64 };
#if MEOPT_MATRIX == MATRIX_MMAC
/* lane 16 g + 4 i + j gets row 4 j + i: the sum's column 4 i + g of the instruction is column 4 g + i */
DEVICE int partner_row(int) { return THREAD % 4 * 4 + THREAD / 4 % 4; }
#else
DEVICE int partner_row(int i) { return fragment_row(i); }
#endif
#if !defined(MEOPT_EMULATE_WAVE)
typedef short matrix_factor __attribute__((ext_vector_type(4)));
typedef float matrix_sum __attribute__((ext_vector_type(4)));
#endif
DEVICE void multiply(result &sum, const fragment &a, const partner &b)
{
#if defined(MEOPT_EMULATE_WAVE) && MEOPT_MATRIX == MATRIX_MMAC
    emulate::mmac_f32_16x16x16_bf16(sum.at, a.pair, b.pair);
#elif defined(MEOPT_EMULATE_WAVE)
    emulate::mfma_f32_16x16x16_bf16(sum.at, b.pair, a.pair);
#else
    matrix_factor x, y;
    matrix_sum z;
    __builtin_memcpy(&x, a.pair, sizeof x);
    __builtin_memcpy(&y, b.pair, sizeof y);
    __builtin_memcpy(&z, sum.at, sizeof z);
#if MEOPT_MATRIX == MATRIX_MMAC
    z = MMAC(x, y, z);
#else
    z = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(y, x, z, 0, 0, 0);
#endif
    __builtin_memcpy(sum.at, &z, sizeof z);
#endif
}

#else

DEVICE int fragment_row(int i) { return THREAD % WAVE / 4 + i / 2 % 2 * 8; }
DEVICE int fragment_column(int i) { return THREAD % 4 * 2 + i % 2 + i / 4 * 8; }
DEVICE int partner_row(int i) { return fragment_row(i); }
DEVICE int lane_row(int i) { return i / 2 % 2; }
DEVICE int row_of_lane(int r) { return fragment_row(2 * r); }
enum { ROW_MASK = 1, ROW_MASK_END = 4 };
DEVICE void multiply(result &sum, const fragment &a, const partner &b)
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

/* Rounds two numbers to bf16. */
DEVICE uint32_t bf16_pair(float low, float high)
{
#if MEOPT_MATRIX == MATRIX_MMA && !defined(MEOPT_EMULATE_WAVE)
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return bf16_bits(low) | (uint32_t)bf16_bits(high) << 16;
#endif
}
/* Load parts of 16 x 16 of a tile in shared memory, whose stride is a multiple of 8 elements. In
 * fragment_rows and partner_rows, its rows are the operand's; in partner_columns, k runs down the tile, and
 * part p of GROUP parts has as row r the column GROUP r + p, so that a lane loads neighbours. */
#if MEOPT_MATRIX == MATRIX_MMA
/* ldmatrix: lane 8 m + r names row r of the 8 x 8 matrix m, which becomes output m; TURNED: transposed. The
 * second matrix is below the first one (DOWN) or to its right. Outputs are neighbouring registers. */
template <bool DOWN, bool TURNED>
DEVICE void matrices_load(uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d, const bf16 *tile, int stride)
{
    int second = THREAD % WAVE / 8 % 2 * 8, third = THREAD % WAVE / 16 * 8;
    const bf16 *row = tile + (THREAD % 8 + (DOWN ? second : third)) * stride + (DOWN ? third : second);
#if defined(MEOPT_EMULATE_WAVE)
    uint32_t own[4], got[4];
    __builtin_memcpy(own, __builtin_assume_aligned(row, 16), sizeof own);
    emulate::ldmatrix_x4(got, own, TURNED);
    a = got[0], b = got[1], c = got[2], d = got[3];
#else
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    if (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                     : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                     : "r"(at));
#endif
}
DEVICE fragment fragment_rows(const bf16 *tile, int stride)
{
    fragment f;
    matrices_load<true, false>(f.pair[0], f.pair[1], f.pair[2], f.pair[3], tile, stride);
    return f;
}
/* multiply() takes pairs 0 and 2, and 1 and 3, together. */
DEVICE partner partner_rows(const bf16 *tile, int stride)
{
    partner f;
    matrices_load<false, false>(f.pair[0], f.pair[2], f.pair[1], f.pair[3], tile, stride);
    return f;
}
template <int GROUP> DEVICE void partner_columns(partner (&f)[GROUP], const bf16 *tile, int stride)
{
    static_assert(GROUP == 1, "");
    matrices_load<true, true>(f[0].pair[0], f[0].pair[2], f[0].pair[1], f[0].pair[3], tile, stride);
}
#else
DEVICE fragment fragment_rows(const bf16 *tile, int stride)
{
    fragment f;
    UNROLLED for (int i = 0; i < FRAGMENT; i += RUN) __builtin_memcpy(
        &f.pair[i / 2],
        __builtin_assume_aligned(tile + fragment_row(i) * stride + fragment_column(i), 2 * RUN), 2 * RUN);
    return f;
}
DEVICE partner partner_rows(const bf16 *tile, int stride)
{
    partner f;
    UNROLLED for (int i = 0; i < FRAGMENT; i += RUN) __builtin_memcpy(
        &f.pair[i / 2],
        __builtin_assume_aligned(tile + partner_row(i) * stride + fragment_column(i), 2 * RUN), 2 * RUN);
    return f;
}
/* Returns the low halves of two words, or the high ones. */
DEVICE uint32_t halves(uint32_t a, uint32_t b, bool high)
{
#if !defined(MEOPT_EMULATE_WAVE)
#if __has_builtin(__builtin_amdgcn_perm)
    return __builtin_amdgcn_perm(b, a, high ? 0x07060302u : 0x05040100u); /* v_perm_b32 */
#endif
#endif
    return high ? a >> 16 | (b & 0xffff0000u) : (a & 0xffffu) | b << 16;
}
/* A lane of a single part loads the word of its column and a neighbour, so that one access has two rows. */
DEVICE void partner_columns(partner (&f)[1], const bf16 *tile, int stride)
{
    UNROLLED for (int i = 0; i < FRAGMENT; i += 2)
    {
        const bf16 *at = tile + fragment_column(i) * stride + partner_row(i) / 2 * 2;
        uint32_t row, next;
        __builtin_memcpy(&row, __builtin_assume_aligned(at, sizeof row), sizeof row);
        __builtin_memcpy(&next, __builtin_assume_aligned(at + stride, sizeof next), sizeof next);
        f[0].pair[i / 2] = halves(row, next, partner_row(i) % 2);
    }
}
template <int GROUP> DEVICE void partner_columns(partner (&f)[GROUP], const bf16 *tile, int stride)
{
    UNROLLED for (int i = 0; i < FRAGMENT; i += 2)
    {
        const bf16 *at = tile + fragment_column(i) * stride + GROUP * partner_row(i);
        uint16_t low[GROUP], high[GROUP];
        __builtin_memcpy(low, __builtin_assume_aligned(at, sizeof low), sizeof low);
        __builtin_memcpy(high, __builtin_assume_aligned(at + stride, sizeof high), sizeof high);
        UNROLLED for (int p = 0; p < GROUP; p++) f[p].pair[i / 2] = low[p] | (uint32_t)high[p] << 16;
    }
}
#endif
/* Part d of PARTS parts belongs to a group of this many, which begins at a multiple of 4. */
DEVICE constexpr int group_of(int parts, int d)
{
    return WAVE == 32 ? 1 : d / 4 * 4 + 4 <= parts ? 4 : parts % 4;
}
DEVICE constexpr int group_begin(int d) { return WAVE == 32 ? d : d / 4 * 4; }
/* The column of element i of part d in a sum whose second operand partner_columns loaded in these groups */
DEVICE int grouped_column(int parts, int d, int i)
{
    int begin = group_begin(d);
    return 16 * begin + group_of(parts, d) * fragment_column(i) + d - begin;
}
DEVICE fragment fragment_of(const result &x)
{
    fragment f;
    UNROLLED for (int i = 0; i < FRAGMENT; i += 2) f.pair[i / 2] = bf16_pair(x.at[i], x.at[i + 1]);
    return f;
}
/* Sums over the lanes that share a row; each of them gets the sum. */
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
