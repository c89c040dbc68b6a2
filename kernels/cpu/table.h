/* Inside kernels/cpu: the functions of one instruction set, declared under their suffixed names. */
#ifndef MEOPT_KERNELS_CPU_TABLE_H
#define MEOPT_KERNELS_CPU_TABLE_H

#include "kernels/cpu/ops.h"
#include "kernels/cpu/vector.h"

void NAME(patchify)(int bf16, const float *images, void *patches, int64_t B, int64_t S, int64_t p);
void NAME(embed_forward)(const struct embedding *);
void NAME(embed_backward)(const struct embedding_gradient *);
void NAME(resize_rows)(const float *w, const float *in, float *out, int64_t n_out, int64_t n_in, int64_t D,
                       int transpose);
void NAME(layernorm_forward)(const struct layernorm *);
/* rows from..to-1, at most NORM_ROWS, by one thread */
enum { NORM_ROWS = 4 };
void NAME(layernorm_rows)(const struct layernorm *, int64_t from, int64_t to);
void NAME(layernorm_apply)(const struct layernorm *);
/* sums[c] += column c of each of ROW_SHARES shares in order, which are `stride` floats apart */
void NAME(add_shares)(const float *shares, int64_t stride, int64_t columns, float *sums);
void NAME(layernorm_backward)(const struct layernorm_gradient *, float *shares);
void NAME(attention_forward)(const struct attention *, void *scratch, int threads);
void NAME(attention_backward)(const struct attention_gradient *, void *scratch, int threads);
void NAME(gemm)(const struct gemm *, void *scratch, int threads);
void NAME(rotate)(const struct rotation *);
void NAME(row_mean_forward)(const struct row_mean *);
void NAME(row_mean_backward)(const struct row_mean_gradient *);
void NAME(gelu_forward)(int bf16, const void *h, void *y, int64_t n);
void NAME(quick_gelu_forward)(int bf16, const void *h, void *y, int64_t n);
void NAME(swiglu_forward)(int bf16, const void *h, void *y, int64_t R, int64_t F);
void NAME(activation_backward)(const struct activation_gradient *, float *shares);
void NAME(residual_forward)(const struct residual *);
void NAME(branch_gradient)(const struct branch_gradient *, float *shares);
void NAME(column_sums)(int bf16, const void *x, float *sums, int64_t R, int64_t D, float *shares);
void NAME(layerscale_backward)(const struct layerscale_gradient *);
void NAME(encode)(const struct coded *);
void NAME(decode)(const struct coded *);
void NAME(distill_loss)(const struct distillation *, double *scratch);
void NAME(cast)(const void *src, int src_bf16, void *dst, int dst_bf16, int64_t n);
int NAME(sum_squares)(const void *x, int bf16, int64_t n, double *sum, double *scratch);

#endif
