/* The set of kernels of a processor. It depends only on vendor, family and CPUID: results never depend on a
 * measurement.
 *
 * Sets of one width differ in how they multiply bf16 (gemm.c): widened to floats (plain, avx2_fma, avx512),
 * by integer GEMM (avx2, avx2_vnni, avx512_vnni: bfp.h), or with bf16 instructions (avx512_bf16). */
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

/* Returns the default set of a processor. */
enum cpu_isa cpu_isa_of(const struct processor *);

/* Returns whether this processor and build support the set. */
bool cpu_isa_runs(enum cpu_isa);

/* Returns the name of the set, or "amx", that this processor would use if this build had it; NULL: it has.
 * A build lacks the sets that its compiler does not support. */
const char *cpu_isa_not_built(const struct processor *);

/* Returns whether the matrix unit may be used: MEOPT_CPU_ISA does not exclude it. */
bool cpu_tiles_wanted(void);

/* Returns the hint for a machine that uses the plain kernels. */
const char *cpu_plain_remedy(void);

/* Returns the set of MEOPT_CPU_ISA if it runs here, else the default of this processor. */
enum cpu_isa cpu_isa_taken(void);

/* Returns whether MEOPT_CPU_ISA names an unknown or unavailable ISA (amx: without `tiles`). */
struct cpu_refusal {
    char why[160]; /* the requested set, and the reason */
    char hint[200];
};
bool cpu_isa_refused(bool tiles, struct cpu_refusal *);

#endif
