/* The table of the chosen instruction set: see ops.h. */
#include "kernels/cpu/ops.h"
#include "kernels/cpu/select.h"

#if !defined(__x86_64__)
#define X86(ops) NULL
#else
#define X86(ops) &ops
#endif

const struct cpu_ops *cpu_ops_select(void)
{
    static const struct cpu_ops *const tables[CPU_SETS] = {
        [SET_PLAIN] = &cpu_ops_plain,
        [SET_AVX2_FMA] = X86(cpu_ops_avx2_fma),
        [SET_AVX2] = X86(cpu_ops_avx2),
        [SET_AVX2_VNNI] = MEOPT_HAS_AVX2_VNNI ? &cpu_ops_avx2_vnni : NULL,
        [SET_AVX512] = X86(cpu_ops_avx512),
        [SET_AVX512_VNNI] = MEOPT_HAS_AVX512_VNNI ? &cpu_ops_avx512_vnni : NULL,
        [SET_AVX512_BF16] = MEOPT_HAS_AVX512_BF16 ? &cpu_ops_avx512_bf16 : NULL,
    };
    return tables[cpu_isa_taken()];
}
