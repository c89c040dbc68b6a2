/* Inside kernels/cpu: the functions of one instruction set, declared under their suffixed names. */
#ifndef MEOPT_KERNELS_CPU_TABLE_H
#define MEOPT_KERNELS_CPU_TABLE_H

#include "kernels/cpu/ops.h"
#include "kernels/cpu/isa.h"

/* A set with its own GEMM uses the other functions of the set that it extends. */
#ifdef CPU_REST
#define REST(x) JOIN(x, CPU_REST)
#else
#define REST(x) NAME(x)
#endif

/* bf16 instructions multiply in attention, too. */
#if defined(CPU_REST) && !defined(__AVX512BF16__)
#define ATTENTION(x) REST(x)
#else
#define ATTENTION(x) NAME(x)
#endif

#define SLOT_KERNEL(name, kind, parameters, ...)  void REST(name) parameters;
#define SLOT_SCRATCH(name, kind, parameters, ...) void REST(name)(OPERATION_LIST parameters, void *scratch);
#define SLOT_DEVICE(...)
OPERATION_ROWS(SLOT_KERNEL, SLOT_SCRATCH, SLOT_DEVICE)
#undef SLOT_KERNEL
#undef SLOT_SCRATCH
#undef SLOT_DEVICE
void ATTENTION(attention_forward)(const struct attention *, void *scratch, int threads);
void ATTENTION(attention_backward)(const struct attention_gradient *, void *scratch, int threads);
int64_t NAME(gemm)(const struct gemm *, void *scratch, int threads);
/* sums[c] += column c of each of ROW_SHARES shares in order; `stride` floats between shares */
void REST(add_shares)(const float *shares, int64_t stride, int64_t columns, float *sums);

#endif
