/* Which set of kernels a processor takes. By what it is called and what it says it can do alone: bits never
 * depend on a measurement.
 *
 * Sets of one width differ in how they multiply bf16 (gemm.c): widened to floats (plain, avx2_fma, avx512),
 * by integer GEMM (avx2, avx2_vnni, avx512_vnni: bfp.h), or as they are (avx512_bf16). */
#ifndef MEOPT_KERNELS_CPU_SELECT_H
#define MEOPT_KERNELS_CPU_SELECT_H

#include "core/base/cpu.h"

#include <stdbool.h>

enum cpu_isa {
    SET_PLAIN,
    SET_AVX2_FMA,
    SET_AVX2,
    SET_AVX2_VNNI,
    SET_AVX512,
    SET_AVX512_VNNI,
    SET_AVX512_BF16,
    CPU_SETS
};
extern const char *const cpu_isa_names[CPU_SETS];

/* The set that it takes by itself. */
enum cpu_isa cpu_isa_of(const struct processor *);

/* Whether this processor and build have it. */
bool cpu_isa_runs(enum cpu_isa);

/* Whether the matrix unit may be used where there is one: nothing else is asked for. */
bool cpu_tiles_wanted(void);

/* What to do about kernels that are plain. */
const char *cpu_plain_remedy(void);

/* What this processor takes by itself, or the set that MEOPT_CPU_ISA asks for where it runs. */
enum cpu_isa cpu_isa_taken(void);

/* Returns whether MEOPT_CPU_ISA names an unknown or unavailable ISA (amx: without `tiles`). */
struct cpu_refusal {
    char why[160]; /* what was asked, and why it is not */
    char hint[200];
};
bool cpu_isa_refused(bool tiles, struct cpu_refusal *);

#endif
