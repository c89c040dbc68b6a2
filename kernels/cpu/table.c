/* The operations of one instruction set as a table: see ops.h. */
#include "kernels/cpu/table.h"

#include "kernels/cpu/codes.h"

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)

const struct cpu_ops NAME(cpu_ops) = {
    .isa = TEXT(CPU_ISA),
    .patchify = REST(patchify),
    .embed_forward = REST(embed_forward),
    .embed_backward = REST(embed_backward),
    .resize_rows = REST(resize_rows),
    .layernorm_forward = REST(layernorm_forward),
    .layernorm_apply = REST(layernorm_apply),
    .layernorm_backward = REST(layernorm_backward),
    .attention_forward = REST(attention_forward),
    .attention_backward = REST(attention_backward),
    .gemm = NAME(gemm),
    .gemm_codes = HAS_CODES,
    .rotate = REST(rotate),
    .row_mean_forward = REST(row_mean_forward),
    .row_mean_backward = REST(row_mean_backward),
    .gelu_forward = REST(gelu_forward),
    .quick_gelu_forward = REST(quick_gelu_forward),
    .swiglu_forward = REST(swiglu_forward),
    .activation_backward = REST(activation_backward),
    .residual_forward = REST(residual_forward),
    .branch_gradient = REST(branch_gradient),
    .column_sums = REST(column_sums),
    .layerscale_backward = REST(layerscale_backward),
    .encode = REST(encode),
    .decode = REST(decode),
    .distill_loss = REST(distill_loss),
    .cast = REST(cast),
    .sum_squares = REST(sum_squares),
};
