/* The instruction set at run time. */
#include "kernels/cpu/ops.h"

#include <stdlib.h>
#include <string.h>

const struct cpu_ops *cpu_ops_select(void)
{
    const char *wanted = getenv("MEOPT_CPU_ISA");
#if defined(__x86_64__)
    if (wanted && strcmp(wanted, "amx") == 0)
        wanted = NULL; /* the matrix unit beside AVX-512: gemm_amx_available */
    int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx512 && (!wanted || strcmp(wanted, "avx512") == 0)) return &cpu_ops_avx512;
    if (avx2 && (!wanted || strcmp(wanted, "avx2") == 0)) return &cpu_ops_avx2;
#endif
    (void)wanted;
    return &cpu_ops_plain;
}

size_t attention_scratch(int64_t N, int64_t dh, int threads)
{
    size_t square = ((size_t)(N * N) + 15) & ~(size_t)15, tall = ((size_t)(N * dh) + 15) & ~(size_t)15;
    return (size_t)threads * (2 * square + 4 * tall) * sizeof(float);
}
