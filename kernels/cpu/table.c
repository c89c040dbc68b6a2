/* The operations of one instruction set as a table: see ops.h. */
#include "kernels/cpu/table.h"

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)

#define ROW(name, ...) .name = REST(name),
#define ROW_DEVICE(...)
const struct cpu_ops NAME(cpu_ops) = {
    .isa = TEXT(CPU_ISA),
    .attention_forward = ATTENTION(attention_forward),
    .attention_backward = ATTENTION(attention_backward),
    .gemm = NAME(gemm),
    .gemm_bfp = CPU_BFP,
    OPERATION_ROWS(ROW, ROW, ROW_DEVICE) /* the rest */
};
