/* The optimizer kernels for one instruction set:
 * kernels/cpu/optim_kernel.h compiled with its flags (CMakeLists.txt). */
#if defined(__AVX512F__) && defined(__AVX512BW__)
#define OPTIM_NAME(name) name##_avx512
#include "kernels/cpu/optim_kernel.h"

const struct optim_kernels optim_kernels_avx512 = {"avx512",
                                                   optim_step_avx512,
                                                   optim_weights_in_avx512,
                                                   optim_weights_out_avx512,
                                                   optim_state_in_avx512,
                                                   optim_state_out_avx512,
                                                   optim_average_avx512,
                                                   optim_product_avx512,
                                                   optim_factor_sums_avx512};
#else
typedef int optim_avx512_not_here;
#endif
