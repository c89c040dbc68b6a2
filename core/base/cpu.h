/* Features of this processor, by CPUID alone. A compiler's __builtin_cpu_supports does not know every vendor,
 * and reports no feature at all for Hygon. */
#ifndef MEOPT_CORE_BASE_CPU_H
#define MEOPT_CORE_BASE_CPU_H

#include <stdbool.h>

/* Each requires the operating system's support. AVX2 includes FMA; AVX512 includes F, BW, VL and DQ; AMX
 * includes bf16 tiles. */
enum {
    CAN_AVX2 = 1,
    CAN_AVX_VNNI = 2,
    CAN_AVX512 = 4,
    CAN_AVX512_VNNI = 8,
    CAN_AVX512_BF16 = 16,
    CAN_AMX = 32,
    CAN_CRC32C = 64,     /* SSE4.2 */
    CAN_CARRYLESS = 128, /* PCLMULQDQ, SSE4.1 */
};
struct processor {
    const char *vendor; /* the 12 letters of CPUID's leaf 0 */
    int family, model;  /* from CPUID leaf 1, with the extended fields added */
    unsigned can;
};

/* Reads CPUID once and keeps the result, because a virtual machine may answer slowly. */
const struct processor *cpu_here(void);

/* Returns whether this processor has all of these features. */
bool cpu_can(unsigned what);

#endif
