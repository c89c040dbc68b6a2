/* Attention of bf16 tensors on AMX tiles; contracts as attention_forward and attention_backward in ops.h.
 * Only where gemm_amx_available. */
#ifndef MEOPT_KERNELS_ATTENTION_AMX_H
#define MEOPT_KERNELS_ATTENTION_AMX_H

#include <stddef.h>
#include <stdint.h>

/* Bytes for each thread, a multiple of 64. */
size_t attention_amx_scratch(int64_t N, int64_t dh);
void attention_amx_forward(const uint16_t *qkv, uint16_t *out, float *lse, int64_t B, int64_t N, int64_t H,
                           int64_t dh, void *scratch, int threads);
void attention_amx_backward(const uint16_t *qkv, const uint16_t *out, const float *lse, const uint16_t *dout,
                            uint16_t *dqkv, int64_t B, int64_t N, int64_t H, int64_t dh, void *scratch,
                            int threads);

#endif
