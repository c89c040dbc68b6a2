/* Inside kernels/cpu: names with the instruction set as their suffix, and how it multiplies bf16. */
#ifndef MEOPT_KERNELS_CPU_ISA_H
#define MEOPT_KERNELS_CPU_ISA_H

#define JOIN_(a, b) a##_##b
#define JOIN(a, b)  JOIN_(a, b)
#define NAME(x)     JOIN(x, CPU_ISA)

/* Whether it does so in block floating point: bfp.h. CPU_FLOATS: a set without, for CPUs where integer GEMM
 * is slow (select.c) */
#if defined(__AVX512VNNI__) && !defined(__AVX512BF16__) ||                                                   \
    defined(__AVX2__) && !defined(__AVX512F__) && !defined(CPU_FLOATS)
#define CPU_BFP 1
#else
#define CPU_BFP 0
#endif

#endif
