/* The elements of an array, spread over the threads of a launch by grid-stride loops, and loads and stores of
 * 16 bytes at a time. */
#ifndef MEOPT_GPU_ELEMENTS_H
#define MEOPT_GPU_ELEMENTS_H

#include "kernels/gpu/vendor.h"

#define FOR_EACH(i, n) for (int64_t i = BLOCK_X * THREADS + THREAD; i < (n); i += BLOCKS_X * THREADS)

/* Returns a / b and the remainder, a >= 0, b > 0. Cards have no instruction for 64-bit division, which only
 * arrays of 2^32 elements and more need: bit by bit. */
DEVICE constexpr int64_t divide(int64_t a, int64_t b, int64_t *rest)
{
    if ((a | b) >> 32 == 0) {
        uint32_t q = (uint32_t)a / (uint32_t)b;
        *rest = (uint32_t)a - q * (uint32_t)b;
        return q;
    }
    int64_t q = 0, r = 0;
    ROLLED for (int bit = 62; bit >= 0; bit--)
    {
        r = 2 * r + (a >> bit & 1);
        q = 2 * q + (r >= b);
        r -= r >= b ? b : 0;
    }
    *rest = r;
    return q;
}
#if defined(MEOPT_EMULATE_WAVE) /* no test has so large an array */
DEVICE constexpr bool divides(int64_t a, int64_t b, int64_t quotient, int64_t remainder)
{
    int64_t rest = 0;
    return divide(a, b, &rest) == quotient && rest == remainder;
}
static_assert(divides(((int64_t)1 << 40) + 5, 3 << 20, 349525, (1 << 20) + 5), "");
static_assert(divides(INT64_MAX, (int64_t)1 << 32, INT32_MAX, UINT32_MAX), "");
static_assert(divides(7, (int64_t)1 << 40, 0, 7), "");
#endif
DEVICE uint32_t divide(uint32_t a, uint32_t b, uint32_t *rest)
{
    *rest = a % b;
    return a / b;
}
/* The indices of element i of an array of N dimensions, the last one first; sizes: of all dimensions but the
 * first. They advance with i by carrying, so that each thread divides only once. I: int64_t, or uint32_t for
 * arrays that are `indexed` by it */
template <int N, class I> struct walk {
    I i, n, stride, at[N], step[N], size[N];
    DEVICE_METHOD walk(int64_t count, const int64_t (&sizes)[N - 1])
        : i((I)(BLOCK_X * THREADS + THREAD)), n((I)count), stride((I)(BLOCKS_X * THREADS))
    {
        I a = i, b = stride;
        UNROLLED for (int k = 0; k < N - 1; k++)
        {
            size[k] = (I)sizes[k];
            a = divide(a, size[k], &at[k]);
            b = divide(b, size[k], &step[k]);
        }
        at[N - 1] = a;
        step[N - 1] = b;
    }
    DEVICE_METHOD void next()
    {
        I carry = 0;
        i += stride;
        UNROLLED for (int k = 0; k < N - 1; k++)
        {
            at[k] += step[k] + carry;
            carry = at[k] >= size[k];
            if (carry) at[k] -= size[k];
        }
        at[N - 1] += step[N - 1] + carry;
    }
};
#define FOR_EACH_AT_BY(I, w, dimensions, count, ...)                                                         \
    for (walk<dimensions, I> w(count, {__VA_ARGS__}); w.i < w.n; w.next())
#define FOR_EACH_AT(w, dimensions, count, ...) FOR_EACH_AT_BY(int64_t, w, dimensions, count, __VA_ARGS__)
/* Whether uint32_t has the indices of an array, also those one step beyond its end. */
DEVICE bool indexed(int64_t count) { return count <= INT32_MAX && BLOCKS_X * THREADS <= INT32_MAX; }

/* Calls PART of an array of `count` elements with indices of 32 bits, else of 64. */
#define BY_INDEX(PART, count, ...)                                                                           \
    if (indexed(count)) PART<uint32_t>(__VA_ARGS__);                                                         \
    else PART<int64_t>(__VA_ARGS__)

/* Elements of T in 16 bytes */
template <class T> constexpr int MANY = 16 / (int)sizeof(T);
/* Whether arrays begin at multiples of 16 bytes; NULL does. */
template <class... P> DEVICE bool in_chunks(const P *...p)
{
    return ((uintptr_t)0 | ... | (uintptr_t)p) % sizeof(chunk) == 0;
}

DEVICE uint32_t bits_of(float x)
{
    union {
        float f;
        uint32_t u;
    } v;
    v.f = x;
    return v.u;
}
DEVICE float float_of(uint32_t bits)
{
    union {
        uint32_t u;
        float f;
    } v;
    v.u = bits;
    return v.f;
}

/* N bf16 of one memory access */
template <int N> struct alignas(2 * N) pairs_of {
    uint32_t pair[N / 2];
};
template <class C> DEVICE void load_words(C *words, const void *p)
{
    const void *from = __builtin_assume_aligned(p, sizeof *words);
    __builtin_memcpy(words, from, sizeof *words);
}
template <class C> DEVICE void store_words(void *p, const C *words)
{
    void *to = __builtin_assume_aligned(p, sizeof *words);
    __builtin_memcpy(to, words, sizeof *words);
}
/* Load and store N elements from i on: 1, or 4 or 8 that begin at a multiple of their size. */
template <int N> DEVICE void load_many(float (&x)[N], const float *p, int64_t i)
{
    if constexpr (N == 1) x[0] = p[i];
    else {
        UNROLLED for (int k = 0; k < N; k += 4)
        {
            chunk c;
            load_words(&c, p + i + k);
            UNROLLED for (int j = 0; j < 4; j++) x[k + j] = float_of(c.pair[j]);
        }
    }
}
template <int N> DEVICE void store_many(float *p, int64_t i, const float (&x)[N])
{
    if constexpr (N == 1) p[i] = x[0];
    else {
        UNROLLED for (int k = 0; k < N; k += 4)
        {
            chunk c;
            UNROLLED for (int j = 0; j < 4; j++) c.pair[j] = bits_of(x[k + j]);
            store_words(p + i + k, &c);
        }
    }
}
template <int N> DEVICE void load_many(float (&x)[N], const bf16 *p, int64_t i)
{
    if constexpr (N == 1) x[0] = load(p, i);
    else {
        pairs_of<N> c;
        load_words(&c, p + i);
        UNROLLED for (int k = 0; k < N; k++) x[k] =
            float_of(k % 2 ? c.pair[k / 2] & 0xffff0000u : c.pair[k / 2] << 16);
    }
}
template <int N> DEVICE void store_many(bf16 *p, int64_t i, const float (&x)[N])
{
    if constexpr (N == 1) store(p, i, x[0]);
    else {
        pairs_of<N> c;
        UNROLLED for (int k = 0; k < N; k += 2) c.pair[k / 2] =
            bf16_bits(x[k]) | (uint32_t)bf16_bits(x[k + 1]) << 16;
        store_words(p + i, &c);
    }
}
/* x[k] += bias[d + k], unless bias is NULL */
template <int N> DEVICE void add_bias(float (&x)[N], const float *bias, int64_t d)
{
    float b[N];
    if (!bias) return;
    load_many(b, bias, d);
    UNROLLED for (int k = 0; k < N; k++) x[k] = x[k] + b[k];
}
/* Calls PART for a matrix (R, D) of T: by 16 bytes with indices of 32 bits, else by elements and 64 bits. */
#define BY_CHUNKS(PART, R, D, aligned, ...)                                                                  \
    if ((aligned) && (D) % MANY<T> == 0 && indexed((R) * (D) / MANY<T>))                                     \
        PART<MANY<T>, uint32_t>(__VA_ARGS__);                                                                \
    else PART<1, int64_t>(__VA_ARGS__)

#endif
