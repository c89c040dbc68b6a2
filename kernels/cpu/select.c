/* The instruction set at run time. */
#include "kernels/cpu/ops.h"

#include <stdlib.h>
#include <string.h>

const struct cpu_ops *cpu_ops_select(void)
{
    const char *wanted = getenv("MEOPT_CPU_ISA");
#if defined(__x86_64__)
    if (wanted && strcmp(wanted, "amx") == 0)
        wanted = NULL; /* the matrix unit beside all else: gemm_amx_available */
    int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    int bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    /* an instruction of 32 products of bf16 takes AMD's as long as one of 16 of floats; on an Intel of 2023
     * it was measured to take four times as long (86 and 172 GFLOP/s); whole numbers are as fast as bf16
     * ought to be */
    int pays = __builtin_cpu_is("amd");
    if (bf16 && (wanted ? strcmp(wanted, "avx512_bf16") == 0 : pays)) return &cpu_ops_avx512_bf16;
    int vnni = avx512 && __builtin_cpu_supports("avx512vnni");
    if (vnni && (!wanted || strcmp(wanted, "avx512_vnni") == 0)) return &cpu_ops_avx512_vnni;
    if (avx512 && (!wanted || strcmp(wanted, "avx512") == 0)) return &cpu_ops_avx512;
    if (avx2 && (!wanted || strcmp(wanted, "avx2") == 0)) return &cpu_ops_avx2;
#endif
    (void)wanted;
    return &cpu_ops_plain;
}

/* the operands of attention.c, the larger of its forms of each */
size_t attention_scratch(int64_t N, int64_t dh, int threads)
{
    size_t n = ((size_t)N + 15) & ~(size_t)15, d = ((size_t)dh + 15) & ~(size_t)15;
    return (size_t)threads * (5 * n * d + ATTENTION_ROWS * (3 * d + 4 * n + 1)) * sizeof(float);
}

size_t gemm_scratch(int threads)
{
    return (size_t)threads *
           (GEMM_DEPTH * (GEMM_ROWS + GEMM_PANEL) + GEMM_GAPS + GEMM_UNITS + GEMM_ROWS * GEMM_COLUMNS) *
           sizeof(float);
}
