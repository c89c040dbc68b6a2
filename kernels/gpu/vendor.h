/* Differences between vendors. Every kernels/gpu/NAME.hip is compiled three ways:
 *   hipcc --genco   AMD and Hygon DCU, wave 64
 *   nvcc -fatbin    NVIDIA, wave 32
 *   g++             the emulation of tests/gpu/emulate.h, wave 32 and wave 64 (MEOPT_EMULATE_WAVE)
 * Rules for kernels:
 * - The wave width is WAVE, never a literal.
 * - Every lane of a wave reaches every wave_* call, and every thread of a block every barrier().
 * - Shared memory is declared with SHARED, and undefined before it is written.
 * - A pointer that was loaded from memory is dereferenced through in_memory(). Otherwise each access tests at
 *   run time whether it is shared memory.
 * - A kernel works for any block size that is a multiple of WAVE up to its MAX_THREADS.
 */
#ifndef MEOPT_GPU_VENDOR_H
#define MEOPT_GPU_VENDOR_H

#include <stdint.h>

#if defined(MEOPT_EMULATE_WAVE) /* tests/CMakeLists.txt includes the emulation before each kernel */

#elif defined(__HIP__) || defined(__HIPCC__) && !defined(__CUDACC__)

#include <hip/hip_runtime.h>
/* Waves of a SIMD that find registers. With 512 of them a compiler that knows of one wave takes the second
 * half, too, and moves each sum of a matrix instruction there and back. */
#if defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) ||              \
    defined(__gfx950__)
#define SIMD_WAVES 2
#else
#define SIMD_WAVES 1
#endif
#define KERNEL(name, ...)                                                                                    \
    extern "C" __global__ void __launch_bounds__(256, SIMD_WAVES) name(__VA_ARGS__) /* MAX_THREADS */
#define KERNEL_TWICE(name, ...)          KERNEL(name, __VA_ARGS__)
#define KERNEL_BLOCKS(blocks, name, ...) KERNEL(name, __VA_ARGS__)

#define DEVICE   static __device__ __forceinline__
#define SHARED   __shared__
#define ROLLED   _Pragma("unroll 1")
#define UNROLLED _Pragma("unroll")
/* ROCm's own macro warns since 6.4 and was removed in 7.2; older compilers have no __GFX9__. The last case is
 * the host half of the compilation, which is not used. The kernel wave_width checks the width at every
 * start. */
#if defined(__GFX9__)
#define WAVE 64
#elif defined(__GFX10__) || defined(__GFX11__) || defined(__GFX12__)
#define WAVE 32
#elif defined(__AMDGCN_WAVEFRONT_SIZE)
#define WAVE __AMDGCN_WAVEFRONT_SIZE
#else
#define WAVE 64
#endif
#define CARDS_WAVE    ((int)warpSize)
#define THREAD        ((int)threadIdx.x)
#define THREADS       ((int)blockDim.x)
#define BLOCK_X       ((int64_t)blockIdx.x)
#define BLOCK_Y       ((int64_t)blockIdx.y)
#define BLOCKS_X      ((int64_t)gridDim.x)
#define BLOCKS_Y      ((int64_t)gridDim.y)
#define barrier()     __syncthreads()
template <class T> DEVICE __attribute__((address_space(1))) T *in_memory(T *p)
{
    return (__attribute__((address_space(1))) T *)p;
}
DEVICE float wave_xor(float x, int mask) { return __shfl_xor(x, mask, WAVE); }
DEVICE double wave_xor(double x, int mask) { return __shfl_xor(x, mask, WAVE); }
DEVICE int wave_xor(int x, int mask) { return __shfl_xor(x, mask, WAVE); }
#define DEVICE_METHOD __device__ __forceinline__
DEVICE float exact_add(float a, float b)
{
#pragma clang fp contract(off)
    return a + b;
}
DEVICE float exact_mul(float a, float b)
{
#pragma clang fp contract(off)
    return a * b;
}
DEVICE double exact_mul(double a, double b)
{
#pragma clang fp contract(off)
    return a * b;
}
/* Requires -fhip-fp32-correctly-rounded-divide-sqrt; __fsqrt_rn is an approximation in some releases. */
DEVICE float exact_div(float a, float b) { return a / b; }
DEVICE float exact_sqrt(float a) { return sqrtf(a); }
#if __has_builtin(__builtin_amdgcn_exp2f)
DEVICE float power_of_2(float x) { return __builtin_amdgcn_exp2f(x); } /* v_exp_f32 */
#else
DEVICE float power_of_2(float x)
{
    float y;
    asm("v_exp_f32 %0, %1" : "=v"(y) : "v"(x));
    return y;
}
#endif
/* What all lanes of a wave agree on, for a branch of the wave */
DEVICE bool agreed(bool x) { return __builtin_amdgcn_readfirstlane(x); }

#else

#include <cuda_runtime.h>
#define KERNEL(name, ...)                                                                                    \
    extern "C" __global__ void __launch_bounds__(256, 1) name(__VA_ARGS__) /* MAX_THREADS */
/* A kernel two blocks of which find registers */
#define KERNEL_TWICE(name, ...) extern "C" __global__ void __launch_bounds__(256, 2) name(__VA_ARGS__)
/* A kernel with blocks of four waves, `blocks` of which find registers on a multiprocessor */
#define KERNEL_BLOCKS(blocks, name, ...)                                                                     \
    extern "C" __global__ void __launch_bounds__(128, blocks) name(__VA_ARGS__)

#define DEVICE        static __device__ __forceinline__
#define SHARED        __shared__
#define ROLLED        _Pragma("unroll 1")
#define UNROLLED      _Pragma("unroll")
#define WAVE          32
#define CARDS_WAVE    warpSize
#define THREAD        ((int)threadIdx.x)
#define THREADS       ((int)blockDim.x)
#define BLOCK_X       ((int64_t)blockIdx.x)
#define BLOCK_Y       ((int64_t)blockIdx.y)
#define BLOCKS_X      ((int64_t)gridDim.x)
#define BLOCKS_Y      ((int64_t)gridDim.y)
#define barrier()     __syncthreads()
template <class T> DEVICE T *in_memory(T *p)
{
    __builtin_assume(__isGlobal(p));
    return p;
}
DEVICE float wave_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask, WAVE); }
DEVICE double wave_xor(double x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask, WAVE); }
DEVICE int wave_xor(int x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask, WAVE); }
#define DEVICE_METHOD __device__ __forceinline__
DEVICE float exact_add(float a, float b) { return __fadd_rn(a, b); }
DEVICE float exact_mul(float a, float b) { return __fmul_rn(a, b); }
DEVICE double exact_mul(double a, double b) { return __dmul_rn(a, b); }
DEVICE float exact_div(float a, float b) { return __fdiv_rn(a, b); }
DEVICE float exact_sqrt(float a) { return __fsqrt_rn(a); }
DEVICE bool agreed(bool x) { return x; }
DEVICE float power_of_2(float x) /* as precise as exp2f, with 0 for what is below 2^-126 */
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif

#define BF16_FN DEVICE
#include "kernels/bf16.h"
#define F16_FN DEVICE
#include "kernels/f16.h"

enum { MAX_THREADS = 256 };
/* Rows that a thread with one column loads before it stores any of them, so that loads overlap although the
 * output may be the input. */
enum { AT_ONCE = 4 };

/* Stores one and the same value as other threads and blocks of the launch. */
DEVICE void store_flag(int *p, int x)
{
#if defined(__CUDACC__) /* PTX: volatile accesses are relaxed ones */
    *(volatile int *)p = x;
#else
    __atomic_store_n(p, x, __ATOMIC_RELAXED);
#endif
}

/* Eight bf16 or four floats: one 16-byte memory access. */
struct alignas(16) chunk {
    uint32_t pair[4];
};

/* bf16 as its 16 bits, so that no vendor's header is needed. */
struct bf16 {
    uint16_t bits;
};
DEVICE float load(const float *p, int64_t i) { return p[i]; }
DEVICE float load(const bf16 *p, int64_t i)
{
    union {
        uint32_t u;
        float f;
    } x;
    x.u = (uint32_t)p[i].bits << 16;
    return x.f;
}
/* fp16 likewise */
struct f16 {
    uint16_t bits;
};
DEVICE float load(const f16 *p, int64_t i) { return f16_value(p[i].bits); }
/* Returns x[i] plus the bias of column d, if there is a bias. */
template <class T> DEVICE float biased(const T *x, int64_t i, const float *bias, int64_t d)
{
    return bias ? load(x, i) + bias[d] : load(x, i);
}
/* Returns the factor of a row (struct drop_path). */
DEVICE float drop_factor(const float *keep, int64_t rows, int64_t row)
{
    return keep ? keep[(uint32_t)row / (uint32_t)rows] : 1.0f;
}
DEVICE uint16_t bf16_bits(float f)
{
    union {
        float f;
        uint32_t u;
    } x;
    x.f = f;
    return bf16_of_bits(x.u);
}
DEVICE void store(float *p, int64_t i, float x) { p[i] = x; }
DEVICE void store(bf16 *p, int64_t i, float x) { p[i].bits = bf16_bits(x); }
DEVICE void store(f16 *p, int64_t i, float x) { p[i].bits = f16_of(x); }
/* Returns x rounded to the pointer's type. */
DEVICE float rounded(const float *, float x) { return x; }
DEVICE float rounded(const bf16 *, float x)
{
    bf16 stored;
    store(&stored, 0, x);
    return load(&stored, 0);
}
DEVICE float rounded(const f16 *, float x) { return f16_value(f16_of(x)); }

/* Sum over a wave, then over a block, in a fixed order; every thread gets the result. */
template <class T> DEVICE T wave_sum(T x)
{
    for (int mask = WAVE / 2; mask; mask /= 2) x += wave_xor(x, mask);
    return x;
}
template <class T> DEVICE T wave_max(T x)
{
    for (int mask = WAVE / 2; mask; mask /= 2) {
        T other = wave_xor(x, mask);
        x = other > x ? other : x;
    }
    return x;
}
/* partial: shared, MAX_THREADS / 32 values; free again when the call returns */
template <class T> DEVICE T block_sum(T x, T *partial)
{
    x = wave_sum(x);
    if (THREAD % WAVE == 0) partial[THREAD / WAVE] = x;
    barrier();
    T sum = 0;
    for (int i = 0; i < THREADS / WAVE; i++) sum += partial[i];
    barrier();
    return sum;
}
/* A sum of floats in two floats (Knuth's two-sum): nearly as precise as one in double, whose instructions
 * have 1/64 of the rate of fp32's on cards for workstations. `low` is what the roundings of `high` lost. */
struct two_floats {
    float high, low;
};
DEVICE void add_to(two_floats &sum, float x)
{
    float high = exact_add(sum.high, x), of_x = exact_add(high, -sum.high);
    float lost = exact_add(exact_add(sum.high, -exact_add(high, -of_x)), exact_add(x, -of_x));
    sum.low = exact_add(sum.low, lost);
    sum.high = high;
}
/* Infinities and NaN have no `low`. */
DEVICE double value_of(const two_floats &x)
{
    return x.low - x.low == 0 ? (double)x.high + (double)x.low : (double)x.high;
}
/* Thread 0 gets the sum of a block, in a fixed order: over waves, then over their sums. partial: as for
 * block_sum */
DEVICE double block_total(two_floats x, two_floats *partial)
{
    for (int mask = WAVE / 2; mask; mask /= 2) {
        float high = wave_xor(x.high, mask), low = wave_xor(x.low, mask);
        add_to(x, high);
        x.low = exact_add(x.low, low);
    }
    if (THREAD % WAVE == 0) partial[THREAD / WAVE] = x;
    barrier();
    two_floats sum = {0, 0};
    for (int i = 0; i < THREADS / WAVE && THREAD == 0; i++) {
        add_to(sum, partial[i].high);
        sum.low = exact_add(sum.low, partial[i].low);
    }
    barrier();
    return value_of(sum);
}
/* Largest value of a block; every thread gets the result. partial as for block_sum */
template <class T> DEVICE T block_max(T x, T *partial)
{
    x = wave_max(x);
    if (THREAD % WAVE == 0) partial[THREAD / WAVE] = x;
    barrier();
    x = partial[0];
    for (int i = 1; i < THREADS / WAVE; i++) x = partial[i] > x ? partial[i] : x;
    barrier(); /* untested: no caller uses partial again at once */
    return x;
}
/* Computes two sums at once, each like block_sum. */
DEVICE void block_sums(float &a, float &b, float *partial_a, float *partial_b)
{
    a = wave_sum(a);
    b = wave_sum(b);
    if (THREAD % WAVE == 0) {
        partial_a[THREAD / WAVE] = a;
        partial_b[THREAD / WAVE] = b;
    }
    barrier();
    a = b = 0;
    for (int i = 0; i < THREADS / WAVE; i++) {
        a += partial_a[i];
        b += partial_b[i];
    }
    barrier();
}

#endif
