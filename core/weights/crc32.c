/* CRC-32 of zip at memory speed, so that every tensor can be checked while it is read.
 *
 * Method: carry-less multiplication folds 64 bytes at a time down to 16, and a Barrett reduction the rest
 * (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009;
 * constants for the bit-reflected polynomial 0xEDB88320 from its table). Other processors, and the remaining
 * bytes, use zlib.
 */
#include "core/base/cpu.h"
#include "core/weights/weights_internal.h"

#include <zlib.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define TARGET __attribute__((target("pclmul,sse4.1")))

/* x * k, both halves, plus the next 16 bytes */
TARGET static inline __m128i fold(__m128i x, __m128i k, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(x, k, 0x00), high = _mm_clmulepi64_si128(x, k, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

TARGET static inline __m128i load(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

/* bytes: at least 64, a multiple of 16; crc without the inversions of the zip format */
TARGET static uint32_t crc32_folded(uint32_t crc, const uint8_t *p, size_t bytes)
{
    const __m128i k12 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4),
                  k34 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    const __m128i k5 = _mm_set_epi64x(0, 0x163cd6124), mu = _mm_set_epi64x(0x1f7011641, 0x1db710641);
    const __m128i low32 = _mm_setr_epi32(-1, 0, -1, 0);
    __m128i a = _mm_xor_si128(load(p), _mm_cvtsi32_si128((int)crc)), b = load(p + 16), c = load(p + 32),
            d = load(p + 48);
    for (p += 64, bytes -= 64; bytes >= 64; p += 64, bytes -= 64) {
        a = fold(a, k12, load(p));
        b = fold(b, k12, load(p + 16));
        c = fold(c, k12, load(p + 32));
        d = fold(d, k12, load(p + 48));
    }
    a = fold(fold(fold(a, k34, b), k34, c), k34, d);
    for (; bytes >= 16; p += 16, bytes -= 16) a = fold(a, k34, load(p));
    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, k34, 0x10)); /* 128 bits to 96 */
    a = _mm_xor_si128(_mm_srli_si128(a, 4),
                      _mm_clmulepi64_si128(_mm_and_si128(a, low32), k5, 0x00)); /* to 64 */
    __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(a, low32), mu, 0x10);
    a = _mm_xor_si128(a, _mm_clmulepi64_si128(_mm_and_si128(quotient, low32), mu, 0x00));
    return (uint32_t)_mm_extract_epi32(a, 1);
}

uint32_t crc32_zip(uint32_t crc, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    if (bytes >= 64 && cpu_can(CAN_CARRYLESS)) {
        size_t folded = bytes & ~(size_t)15;
        crc = ~crc32_folded(~crc, p, folded);
        p += folded;
        bytes -= folded;
    }
    return bytes ? (uint32_t)crc32_z(crc, p, bytes) : crc;
}
#else
uint32_t crc32_zip(uint32_t crc, const void *data, size_t bytes)
{
    return bytes ? (uint32_t)crc32_z(crc, data, bytes) : crc;
}
#endif
