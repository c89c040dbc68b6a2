/* The operations of one instruction set as a table: see ops.h. */
#include "kernels/cpu/table.h"

#include "kernels/cpu/codes.h"

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)

const struct cpu_ops NAME(cpu_ops) = {
    .isa = TEXT(CPU_ISA),
    .patchify = NAME(patchify),
    .embed_forward = NAME(embed_forward),
    .embed_backward = NAME(embed_backward),
    .resize_rows = NAME(resize_rows),
    .layernorm_forward = NAME(layernorm_forward),
    .layernorm_apply = NAME(layernorm_apply),
    .layernorm_backward = NAME(layernorm_backward),
    .attention_forward = NAME(attention_forward),
    .attention_backward = NAME(attention_backward),
    .gemm = NAME(gemm),
    .gemm_codes = HAS_CODES,
#ifdef __AVX512F__
    .gemm_fp32 = true,
#endif
    .rotate = NAME(rotate),
    .row_mean_forward = NAME(row_mean_forward),
    .row_mean_backward = NAME(row_mean_backward),
    .gelu_forward = NAME(gelu_forward),
    .quick_gelu_forward = NAME(quick_gelu_forward),
    .swiglu_forward = NAME(swiglu_forward),
    .activation_backward = NAME(activation_backward),
    .residual_forward = NAME(residual_forward),
    .branch_gradient = NAME(branch_gradient),
    .column_sums = NAME(column_sums),
    .layerscale_backward = NAME(layerscale_backward),
    .encode = NAME(encode),
    .decode = NAME(decode),
    .distill_loss = NAME(distill_loss),
    .cast = NAME(cast),
    .sum_squares = NAME(sum_squares),
};
