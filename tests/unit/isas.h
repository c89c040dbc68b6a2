/* The instruction sets that a test tries, one after another: those of this processor, or the one of
 * MEOPT_CPU_ISA if the test is started with it; on a card, one run. Linked with the tiles of emulate_amx.h
 * (MEOPT_EMULATED_TILES): `amx` alone. Nothing that is computed under one ISA may be compared with results of
 * another, unless a promise says that both have the same bits.
 *
 *     for (int isa = 0; isa < ISAS; isa++) {
 *         if (!isa_select(isa)) continue;
 *         ...
 *     }
 *     isas_restore();
 */
#ifndef MEOPT_TESTS_UNIT_ISAS_H
#define MEOPT_TESTS_UNIT_ISAS_H

#include "kernels/cpu/gemm_amx.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/select.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const isas[] = {"amx",       "avx512_bf16", "avx512_vnni", "avx512",
                                   "avx2_vnni", "avx2",        "avx2_fma",    "plain"};
enum { ISAS = sizeof isas / sizeof *isas };

/* MEOPT_CPU_ISA at the start, which isa_select changes */
static const char *isa_requested(void)
{
    static char requested[32];
    static bool known;
    const char *name = getenv("MEOPT_CPU_ISA");
    if (!known && name) snprintf(requested, sizeof requested, "%s", name);
    known = true;
    return requested;
}

static void isas_restore(void)
{
    if (*isa_requested()) setenv("MEOPT_CPU_ISA", isa_requested(), 1);
    else unsetenv("MEOPT_CPU_ISA");
}

/* Selects the ISA for devices that are opened from now on. Returns false if it is not tried. */
static bool isa_select(int isa)
{
    struct cpu_refusal refusal;
    if (getenv("MEOPT_TEST_DEVICE")) return isa == 0;
#ifdef MEOPT_EMULATED_TILES
    if (strcmp(isas[isa], "amx") != 0) return false;
#endif
    if (*isa_requested() && strcmp(isa_requested(), isas[isa]) != 0) return false;
    setenv("MEOPT_CPU_ISA", isas[isa], 1);
    bool refused = cpu_isa_refused(gemm_amx_available(), &refusal);
    if (refused) isas_restore();
    return !refused;
}

/* Prints what tests/tools/summary.sh reads: which ISAs ran on the processor or in emulation. */
static inline void isas_report(void)
{
#ifdef MEOPT_EMULATED_TILES
    const char *where = "in emulation";
#else
    const char *where = "on this processor";
#endif
    for (int isa = 0; isa < ISAS && !getenv("MEOPT_TEST_DEVICE"); isa++)
        printf("instruction set %s: %s\n", isas[isa], isa_select(isa) ? where : "not here");
    isas_restore();
}

/* Returns whether the ISA has kernels of its own for an operation: the others are those of an ISA that is
 * tried as well (tests/unit/cpu_sets.c compares them). A requested ISA is tried with all, as is a card. */
static inline bool isa_has_own(int isa, const char *operation, bool bf16)
{
    static const char *const gemm_alone[] = {"avx512_vnni", "avx2_vnni", "avx2_fma"};
    bool gemm = strncmp(operation, "gemm", 4) == 0, attention = strncmp(operation, "attention", 9) == 0;
    if (getenv("MEOPT_TEST_DEVICE")) return true;
#ifndef MEOPT_EMULATED_TILES
    if (*isa_requested()) return true;
#endif
    if (strcmp(isas[isa], "amx") == 0) return bf16 && (gemm || attention);
    if (strcmp(isas[isa], "avx512_bf16") == 0) return gemm || attention;
    for (size_t i = 0; i < sizeof gemm_alone / sizeof *gemm_alone; i++)
        if (strcmp(isas[isa], gemm_alone[i]) == 0) return gemm;
    return true;
}

/* Returns whether the selected ISA multiplies bf16 as integers with shared exponents (kernels/cpu/bfp.h). */
static inline bool isa_has_bfp(void) { return !gemm_amx_available() && cpu_ops_select()->gemm_bfp; }

#endif
