/* The instruction sets that a test tries, one after another: those of this processor, or the one of
 * MEOPT_CPU_ISA if the test is started with it; on a card, one run. Linked with the tiles of emulate_amx.h
 * (MEOPT_EMULATED_TILES): `amx` alone. Nothing that is computed under one set may be compared with results of
 * another, unless a promise says that both have the same bits.
 *
 *     for (int set = 0; set < SETS; set++) {
 *         if (!set_selected(set)) continue;
 *         ...
 *     }
 *     sets_end();
 */
#ifndef MEOPT_TESTS_UNIT_SETS_H
#define MEOPT_TESTS_UNIT_SETS_H

#include "kernels/cpu/gemm_amx.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/select.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const sets[] = {"amx",       "avx512_bf16", "avx512_vnni", "avx512",
                                   "avx2_vnni", "avx2",        "avx2_fma",    "plain"};
enum { SETS = sizeof sets / sizeof *sets };

/* MEOPT_CPU_ISA at the start, which set_selected changes */
static const char *sets_asked(void)
{
    static char asked[32];
    static bool known;
    const char *name = getenv("MEOPT_CPU_ISA");
    if (!known && name) snprintf(asked, sizeof asked, "%s", name);
    known = true;
    return asked;
}

static void sets_end(void)
{
    if (*sets_asked()) setenv("MEOPT_CPU_ISA", sets_asked(), 1);
    else unsetenv("MEOPT_CPU_ISA");
}

/* Selects the set for devices that are opened from now on. Returns false if it is not tried. */
static bool set_selected(int set)
{
    struct cpu_refusal refusal;
    if (getenv("MEOPT_TEST_DEVICE")) return set == 0;
#ifdef MEOPT_EMULATED_TILES
    if (strcmp(sets[set], "amx") != 0) return false;
#endif
    if (*sets_asked() && strcmp(sets_asked(), sets[set]) != 0) return false;
    setenv("MEOPT_CPU_ISA", sets[set], 1);
    bool refused = cpu_isa_refused(gemm_amx_available(), &refusal);
    if (refused) sets_end();
    return !refused;
}

/* Prints what tests/tools/summary.sh reads: which sets ran on the processor or in emulation. */
static inline void sets_report(void)
{
#ifdef MEOPT_EMULATED_TILES
    const char *where = "in emulation";
#else
    const char *where = "on this processor";
#endif
    for (int set = 0; set < SETS && !getenv("MEOPT_TEST_DEVICE"); set++)
        printf("instruction set %s: %s\n", sets[set], set_selected(set) ? where : "not here");
    sets_end();
}

/* Returns whether the set has kernels of its own for an operation: the others are those of a set that is
 * tried as well (tests/unit/cpu_sets.c compares them). If a set is asked for, it is tried with all. */
static inline bool set_has_own(int set, const char *operation, bool bf16)
{
    static const char *const gemm_alone[] = {"avx512_vnni", "avx2_vnni", "avx2_fma"};
    bool gemm = strncmp(operation, "gemm", 4) == 0, attention = strncmp(operation, "attention", 9) == 0;
#ifndef MEOPT_EMULATED_TILES
    if (*sets_asked()) return true;
#endif
    if (strcmp(sets[set], "amx") == 0) return bf16 && (gemm || attention);
    if (strcmp(sets[set], "avx512_bf16") == 0) return gemm || attention;
    for (size_t i = 0; i < sizeof gemm_alone / sizeof *gemm_alone; i++)
        if (strcmp(sets[set], gemm_alone[i]) == 0) return gemm;
    return true;
}

/* Returns whether the selected set multiplies bf16 as integers with shared exponents (kernels/cpu/bfp.h). */
static inline bool set_has_bfp(void) { return !gemm_amx_available() && cpu_ops_select()->gemm_bfp; }

#endif
