/* Attention of bf16 tensors on AMX tiles; contracts as attention_forward and attention_backward in ops.h.
 * Only where gemm_amx_available. */
#ifndef MEOPT_KERNELS_ATTENTION_AMX_H
#define MEOPT_KERNELS_ATTENTION_AMX_H

#include "kernels/operations.h"

#include <stddef.h>

/* Bytes for each thread, a multiple of 64. */
size_t attention_amx_scratch(int64_t N, int64_t H, int64_t G, int64_t dh);
void attention_amx_forward(const struct attention *o, void *scratch, int threads);
void attention_amx_backward(const struct attention_gradient *o, void *scratch, int threads);

#endif
