/* The table of the chosen instruction set, and scratch sizes: see ops.h. */
#include "kernels/cpu/ops.h"
#include "kernels/cpu/select.h"

#if !defined(__x86_64__)
#define X86(ops) NULL
#else
#define X86(ops) &ops
#endif
#ifdef MEOPT_AVX_VNNI
#define AVX_VNNI(ops) &ops
#else
#define AVX_VNNI(ops) NULL
#endif

const struct cpu_ops *cpu_ops_select(void)
{
    static const struct cpu_ops *const tables[CPU_SETS] = {
        [SET_PLAIN] = &cpu_ops_plain,
        [SET_AVX2_FMA] = X86(cpu_ops_avx2_fma),
        [SET_AVX2] = X86(cpu_ops_avx2),
        [SET_AVX2_VNNI] = AVX_VNNI(cpu_ops_avx2_vnni),
        [SET_AVX512] = X86(cpu_ops_avx512),
        [SET_AVX512_VNNI] = X86(cpu_ops_avx512_vnni),
        [SET_AVX512_BF16] = X86(cpu_ops_avx512_bf16),
    };
    return tables[cpu_isa_taken()];
}

/* the operands of attention.c, the larger of its forms of each */
size_t attention_scratch(int64_t N, int64_t dh, int threads)
{
    size_t n = ((size_t)N + 15) & ~(size_t)15, d = ((size_t)dh + 15) & ~(size_t)15;
    return (size_t)threads * (5 * n * d + ATTENTION_ROWS * (3 * d + 4 * n + 1)) * sizeof(float);
}

size_t gemm_scratch(int threads)
{
    size_t floats = GEMM_DEPTH * (GEMM_ROWS + GEMM_PANEL) + GEMM_GAPS + 2 * GEMM_SCALES + GEMM_FALLBACK +
                    2 * GEMM_DEPTH * GEMM_PANEL + GEMM_ROWS * GEMM_COLUMNS;
    return (size_t)threads * ((floats + 15) & ~(size_t)15) * sizeof(float);
}
