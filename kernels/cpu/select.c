/* Choice of the instruction set at run time: see select.h, ops.h. */
/* clang-format off */
/* Products of bf16 per cycle with 256 bits. A vfmadd computes 8 as floats; a vpmaddwd, followed by a vpaddd,
 * 16 as integers. Number of ports for each instruction (Fog, "Instruction tables", 2022; Abel and Reineke,
 * uops.info; LLVM's scheduling models):
 *
 *                                     vfmadd  vpmaddwd  vpaddd    floats  integers
 *     Intel Haswell, Broadwell           2       1         2         16   16 without the cost of quantization
 *     Intel Skylake and later            2       2         3         16   24
 *     AMD Zen 1, Zen+ (128 bits wide)    2       1         3          8    8
 *     AMD Zen 2                          2       1         3         16   16
 *     AMD Zen 3 and later                2       2         4         16   32
 *     Hygon Dhyana, C86-4G-M4 and -M6    2       1         3, 4   as Zen 1, as Zen 2
 *     Hygon C86-4G-M7 and later          2       2         4      as Zen 3
 *
 * VNNI's vpdpwssd combines both, on the ports of vfmadd. With 512 bits and no VNNI (Skylake-X), vpmaddwd and
 * vpaddd share two ports: 32 of either kind. Processors that are not in the table use floats, the simpler
 * arithmetic. */
/* clang-format on */
#include "kernels/cpu/select.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const unsigned needs[CPU_SETS] = {
    [SET_AVX2_FMA] = CAN_AVX2,
    [SET_AVX2] = CAN_AVX2,
    [SET_AVX2_VNNI] = CAN_AVX2 | CAN_AVX_VNNI,
    [SET_AVX512] = CAN_AVX512,
    [SET_AVX512_VNNI] = CAN_AVX512 | CAN_AVX512_VNNI,
    [SET_AVX512_BF16] = CAN_AVX512 | CAN_AVX512_BF16,
};

const char *const cpu_isa_names[CPU_SETS] = {
    [SET_PLAIN] = "plain",
    [SET_AVX2_FMA] = "avx2_fma",
    [SET_AVX2] = "avx2",
    [SET_AVX2_VNNI] = "avx2_vnni",
    [SET_AVX512] = "avx512",
    [SET_AVX512_VNNI] = "avx512_vnni",
    [SET_AVX512_BF16] = "avx512_bf16",
};

/* ---- Default of a processor ---------------------------------------------------------------------------- */

static bool whole_numbers_pay(const struct processor *p)
{
    /* Haswell, Broadwell; Knights Landing and Mill (unknown) */
    static const unsigned char slow[] = {0x3c, 0x3f, 0x45, 0x46, 0x3d, 0x47, 0x4f, 0x56, 0x57, 0x85};
    if (strcmp(p->vendor, "AuthenticAMD") == 0) return p->family >= 0x19;
    if (strcmp(p->vendor, "HygonGenuine") == 0) return p->family == 0x18 && p->model >= 7;
    if (strcmp(p->vendor, "GenuineIntel") != 0) return false;
    for (size_t i = 0; p->family == 6 && i < sizeof slow; i++)
        if (p->model == slow[i]) return false;
    return true;
}

enum cpu_isa cpu_isa_of(const struct processor *p)
{
    bool avx512 = p->can & CAN_AVX512, avx2 = p->can & CAN_AVX2;
    /* On AMD, an instruction with 32 products of bf16 takes as long as one with 16 of floats. On an Intel of
     * 2023 it takes four times as long (measured: 86 and 172 GFLOP/s). Others are unknown. */
    if (avx512 && p->can & CAN_AVX512_BF16 && strcmp(p->vendor, "AuthenticAMD") == 0) return SET_AVX512_BF16;
    if (avx512) return p->can & CAN_AVX512_VNNI ? SET_AVX512_VNNI : SET_AVX512;
    if (avx2 && p->can & CAN_AVX_VNNI) return SET_AVX2_VNNI;
    if (avx2) return whole_numbers_pay(p) ? SET_AVX2 : SET_AVX2_FMA;
    return SET_PLAIN;
}

/* ---- This processor ------------------------------------------------------------------------------------ */

/* Instruction sets that the compiler of this build lacked. */
static const unsigned not_built =
    (MEOPT_HAS_AVX2_VNNI ? 0 : CAN_AVX_VNNI) | (MEOPT_HAS_AVX512_VNNI ? 0 : CAN_AVX512_VNNI) |
    (MEOPT_HAS_AVX512_BF16 ? 0 : CAN_AVX512_BF16) | (MEOPT_HAS_AMX ? 0 : CAN_AMX);

/* Returns this processor, with the instruction sets that it and this build support. */
static struct processor here(void)
{
    struct processor p = *cpu_here();
    p.can &= ~not_built;
    return p;
}

const char *cpu_isa_not_built(const struct processor *p)
{
    if (p->can & not_built & CAN_AMX) return "amx";
    struct processor built = *p;
    built.can &= ~not_built;
    enum cpu_isa best = cpu_isa_of(p);
    return best == cpu_isa_of(&built) ? NULL : cpu_isa_names[best];
}

static enum cpu_isa own_set(void)
{
    struct processor p = here();
    return cpu_isa_of(&p);
}

bool cpu_isa_runs(enum cpu_isa set) { return (here().can & needs[set]) == needs[set]; }

/* Returns MEOPT_CPU_ISA, NULL if unset. amx: the matrix unit in addition to the default set. */
static const char *wanted(void)
{
    const char *name = getenv("MEOPT_CPU_ISA");
    return name && *name ? name : NULL;
}

static bool is_tiles(const char *name) { return strcmp(name, "amx") == 0; }

bool cpu_tiles_wanted(void)
{
    const char *name = wanted();
    return !name || is_tiles(name);
}

const char *cpu_plain_remedy(void)
{
    return wanted() ? "unset MEOPT_CPU_ISA" : "run on a processor of 2013 or later";
}

static enum cpu_isa named(const char *name)
{
    enum cpu_isa set = 0;
    while (set < CPU_SETS && strcmp(name, cpu_isa_names[set]) != 0) set++;
    return set;
}

enum cpu_isa cpu_isa_taken(void)
{
    const char *name = wanted();
    enum cpu_isa set = name ? named(name) : CPU_SETS;
    return set < CPU_SETS && cpu_isa_runs(set) ? set : own_set();
}

bool cpu_isa_refused(bool tiles, struct cpu_refusal *r)
{
    const char *name = wanted();
    if (!name) return false;
    enum cpu_isa set = named(name);
    bool amx = is_tiles(name);
    if (amx ? tiles : set < CPU_SETS && cpu_isa_runs(set)) return false;
    snprintf(r->why, sizeof r->why, "MEOPT_CPU_ISA=%.60s is %s", name,
             amx || set < CPU_SETS ? "not what this processor, or this build, can run"
                                   : "no instruction set that is known");
    size_t n =
        (size_t)snprintf(r->hint, sizeof r->hint, "unset it to have %s; it may be", cpu_isa_names[own_set()]);
    for (int s = CPU_SETS - 1; s >= 0; s--)
        if (cpu_isa_runs((enum cpu_isa)s) && n < sizeof r->hint)
            n += (size_t)snprintf(r->hint + n, sizeof r->hint - n, " %s", cpu_isa_names[s]);
    return true;
}
