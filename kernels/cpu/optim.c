/* Chooses the optimizer kernels for this processor, and checks gradients. */
#include "kernels/cpu/optim.h"
#include "kernels/cpu/select.h"
#include "kernels/f16.h"

#include <string.h>

extern const struct optim_kernels optim_kernels_plain;
#if defined(__x86_64__)
extern const struct optim_kernels optim_kernels_avx512, optim_kernels_avx2;
#endif

/* Instruction sets of one width differ only in GEMM. */
static const char *width_of(enum cpu_isa set)
{
    return set >= SET_AVX512 ? "avx512" : set == SET_PLAIN ? "plain" : "avx2";
}

const struct optim_kernels *optim_kernels_find(const char *name)
{
    if (!name) name = width_of(cpu_isa_taken());
#if defined(__x86_64__)
    if (strcmp(name, "avx512") == 0 && cpu_can(CAN_AVX512)) return &optim_kernels_avx512;
    if (strcmp(name, "avx2") == 0 && cpu_can(CAN_AVX2)) return &optim_kernels_avx2;
#endif
    return strcmp(name, "plain") == 0 ? &optim_kernels_plain : NULL;
}

/* Uses eight partial sums in a fixed order, so that the compiler can vectorize. */
void optim_sum_squares(const void *x, int gradient_format, int64_t count, double *squares, int *finite)
{
    double part[8] = {0};
    uint32_t largest = 0;
    const float *f = x;
    const uint16_t *h = x;
    for (int64_t i = 0; i < count; i += 8)
        for (int64_t j = 0; j < 8 && i + j < count; j++) {
            uint32_t bits;
            float value;
            if (gradient_format == GRADIENT_F32) memcpy(&bits, f + i + j, 4);
            else if (gradient_format == GRADIENT_F16) bits = f16_bits_of(h[i + j]);
            else bits = (uint32_t)h[i + j] << 16;
            memcpy(&value, &bits, 4);
            part[j] += (double)value * (double)value;
            bits &= 0x7fffffffu;
            largest = bits > largest ? bits : largest;
        }
    *squares += ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
    if (largest >= 0x7f800000u) *finite = 0;
}

/* Looks for exponents of all ones, without branches inside a piece. */
int optim_all_finite(const void *x, int gradient_format, int64_t count)
{
    enum { PIECE = 4096 };
    const uint32_t *f = x;
    const uint16_t *h = x, exponent = gradient_format == GRADIENT_F16 ? 0x7c00 : 0x7f80;
    for (int64_t begin = 0; begin < count; begin += PIECE) {
        int64_t end = begin + PIECE < count ? begin + PIECE : count;
        if (gradient_format == GRADIENT_F32) {
            uint32_t bad = 0;
            for (int64_t i = begin; i < end; i++) bad |= (f[i] & 0x7f800000u) == 0x7f800000u ? ~0u : 0u;
            if (bad) return 0;
        } else {
            uint16_t bad = 0;
            for (int64_t i = begin; i < end; i++)
                bad = (uint16_t)(bad | ((h[i] & exponent) == exponent ? 0xffffu : 0u));
            if (bad) return 0;
        }
    }
    return 1;
}
