/* The optimizer kernels for one instruction set:
 * kernels/cpu/optim_kernel.h compiled with its flags (CMakeLists.txt). */
#if defined(__AVX2__) && defined(__FMA__) && !defined(__AVX512F__)
#define OPTIM_NAME(name) name##_avx2
#include "kernels/cpu/optim_kernel.h"

const struct optim_kernels optim_kernels_avx2 = {"avx2",
                                                 optim_step_avx2,
                                                 optim_weights_in_avx2,
                                                 optim_weights_out_avx2,
                                                 optim_state_in_avx2,
                                                 optim_state_out_avx2,
                                                 optim_average_avx2,
                                                 optim_product_avx2,
                                                 optim_factor_sums_avx2};
#else
typedef int optim_avx2_not_here;
#endif
