/* What this processor can do. By CPUID alone: of vendors that a compiler's __builtin_cpu_supports does not
 * know, Hygon among them, it says that they can do nothing. */
#ifndef MEOPT_CORE_BASE_CPU_H
#define MEOPT_CORE_BASE_CPU_H

#include <stdbool.h>

/* the operating system willing; AVX2 is with FMA, AVX512 with F, BW, VL and DQ, AMX with tiles of bf16 */
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
    int family, model;  /* as CPUID's leaf 1 gives them, extended ones added */
    unsigned can;
};

/* Asked once, since a virtual machine may be slow to answer. */
const struct processor *cpu_here(void);

/* Whether this processor can do all of that. */
bool cpu_can(unsigned what);

#endif
