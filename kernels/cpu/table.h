/* Inside kernels/cpu: the functions of one instruction set, declared under their suffixed names. */
#ifndef MEOPT_KERNELS_CPU_TABLE_H
#define MEOPT_KERNELS_CPU_TABLE_H

#include "kernels/cpu/ops.h"
#include "kernels/cpu/vector.h"

void NAME(patchify)(int bf16, const float *images, void *patches, int64_t B, int64_t S, int64_t p);
void NAME(embed_forward)(int bf16, const void *patch_out, const float *cls, const float *pos, void *tokens,
                         int64_t B, int64_t N, int64_t D);
void NAME(embed_backward)(int bf16, const float *dtokens, void *dpatch_out, float *dcls, float *dpos,
                          int64_t B, int64_t N, int64_t D);
void NAME(resize_rows)(const float *w, const float *in, float *out, int64_t n_out, int64_t n_in, int64_t D,
                       int transpose);
void NAME(layernorm_forward)(int bf16, const void *x, int64_t stride, const float *weight, const float *bias,
                             void *y, float *mean, float *rstd, int64_t R, int64_t D, float eps);
void NAME(layernorm_apply)(int bf16, const void *x, int64_t stride, const float *weight, const float *bias,
                           const float *mean, const float *rstd, void *y, int64_t R, int64_t D);
void NAME(layernorm_backward)(int bf16, const void *dy, const void *x, int64_t stride, const float *weight,
                              const float *mean, const float *rstd, float *dx, int64_t dx_stride,
                              float *dweight, float *dbias, int64_t R, int64_t D, float *shares);
void NAME(attention_forward)(int bf16, const void *qkv, void *out, float *lse, int64_t B, int64_t N,
                             int64_t H, int64_t dh, void *scratch, int threads);
void NAME(attention_backward)(int bf16, const void *qkv, const void *out, const float *lse, const void *dout,
                              void *dqkv, int64_t B, int64_t N, int64_t H, int64_t dh, void *scratch,
                              int threads);
void NAME(gelu_forward)(int bf16, const void *h, void *y, int64_t n);
void NAME(gelu_backward)(int bf16, const void *dy, const void *h, void *dh, int64_t n);
void NAME(swiglu_forward)(int bf16, const void *h, void *y, int64_t R, int64_t F);
void NAME(swiglu_backward)(int bf16, const void *dy, const void *h, void *dh, int64_t R, int64_t F);
void NAME(residual_forward)(int bf16, const void *x, const void *branch, const float *gamma, void *y,
                            int64_t R, int64_t D);
void NAME(scale_columns)(int bf16, const float *dx, const float *gamma, void *out, int64_t R, int64_t D);
void NAME(column_sums)(int bf16, const void *x, float *sums, int64_t R, int64_t D, float *shares);
void NAME(layerscale_backward)(int w_bf16, const void *W, int g_bf16, void *G, const float *b, const float *s,
                               const float *gamma, float *dgamma, float *db, int64_t D, int64_t K);
void NAME(distill_loss)(int kind, int normalize, int sum_dim, const float *y, const float *target, float *dy,
                        double *loss, double *cosine, float weight, int64_t rows, int64_t D, double *scratch);
void NAME(cast)(const void *src, int src_bf16, void *dst, int dst_bf16, int64_t n);
int NAME(sum_squares)(const void *x, int bf16, int64_t n, double *sum, double *scratch);
void NAME(widen)(const uint16_t *src, int64_t stride, float *dst, int64_t rows, int64_t columns);
void NAME(finish)(const float *x, void *c, int c_bf16, int64_t ldc, int64_t m, int64_t n, float alpha,
                  float beta, const float *bias);

#endif
