/* Inside kernels/cpu: the functions of one instruction set, declared under their suffixed names. */
#ifndef MEOPT_KERNELS_CPU_TABLE_H
#define MEOPT_KERNELS_CPU_TABLE_H

#include "kernels/cpu/ops.h"
#include "kernels/cpu/vector.h"

/* A set that has products of its own takes the other functions from the set that it stands on. */
#ifdef CPU_REST
#define REST(x) JOIN(x, CPU_REST)
#else
#define REST(x) NAME(x)
#endif

void REST(patchify)(int bf16, const float *images, void *patches, int64_t B, int64_t S, int64_t p);
void REST(embed_forward)(const struct embedding *);
void REST(embed_backward)(const struct embedding_gradient *);
void REST(resize_rows)(const float *w, const float *in, float *out, int64_t n_out, int64_t n_in, int64_t D,
                       int transpose);
void REST(layernorm_forward)(const struct layernorm *);
void REST(layernorm_apply)(const struct layernorm *);
/* sums[c] += column c of each of ROW_SHARES shares in order, which are `stride` floats apart */
void REST(add_shares)(const float *shares, int64_t stride, int64_t columns, float *sums);
void REST(layernorm_backward)(const struct layernorm_gradient *, float *shares);
void REST(attention_forward)(const struct attention *, void *scratch, int threads);
void REST(attention_backward)(const struct attention_gradient *, void *scratch, int threads);
int64_t NAME(gemm)(const struct gemm *, void *scratch, int threads);
void REST(rotate)(const struct rotation *);
void REST(row_mean_forward)(const struct row_mean *);
void REST(row_mean_backward)(const struct row_mean_gradient *);
void REST(gelu_forward)(int bf16, const void *h, void *y, int64_t n);
void REST(quick_gelu_forward)(int bf16, const void *h, void *y, int64_t n);
void REST(swiglu_forward)(int bf16, const void *h, void *y, int64_t R, int64_t F);
void REST(activation_backward)(const struct activation_gradient *, float *shares);
void REST(residual_forward)(const struct residual *);
void REST(branch_gradient)(const struct branch_gradient *, float *shares);
void REST(column_sums)(int bf16, const void *x, float *sums, int64_t R, int64_t D, float *shares);
void REST(layerscale_backward)(const struct layerscale_gradient *);
void REST(encode)(const struct coded *);
void REST(decode)(const struct coded *);
void REST(distill_loss)(const struct distillation *, double *scratch);
void REST(cast)(const void *src, int src_bf16, void *dst, int dst_bf16, int64_t n);
int REST(sum_squares)(const void *x, int bf16, int64_t n, double *sum, double *scratch);

#endif
