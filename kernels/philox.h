/* Philox4x32-10: random numbers by counter (Salmon, Moraes, Dror, Shaw: "Parallel random numbers:
 * as easy as 1, 2, 3", SC 2011). The same counter and key give the same four words on every device,
 * in any order, on any number of threads or ranks, and after a restart. Plain C, C++, HIP and CUDA. */
#ifndef MEOPT_KERNELS_PHILOX_H
#define MEOPT_KERNELS_PHILOX_H

#include <stdint.h>

#if defined(__HIPCC__) || defined(__CUDACC__)
#define PHILOX_INLINE __host__ __device__ static inline
#else
#define PHILOX_INLINE static inline
#endif

#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u

PHILOX_INLINE void philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)PHILOX_M0 * c0, p1 = (uint64_t)PHILOX_M1 * c2;
        uint32_t next0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, next2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c0 = next0;
        c1 = (uint32_t)p1;
        c2 = next2;
        c3 = (uint32_t)p0;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

#endif
