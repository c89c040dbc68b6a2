/* kernels/cpu/optim_kernel.h, compiled for one instruction set (CMakeLists.txt). One copy of the loop serves
 * all formats: specialized copies take long to compile, and pay off only with vector instructions. */
#if 1 /* everywhere */
#define OPTIM_NAME(name) name##_plain
#define OPTIM_ONE_COPY
#include "kernels/cpu/optim_kernel.h"

const struct optim_kernels optim_kernels_plain = {"plain",
                                                  optim_step_plain,
                                                  optim_weights_in_plain,
                                                  optim_weights_out_plain,
                                                  optim_state_in_plain,
                                                  optim_state_out_plain,
                                                  optim_average_plain,
                                                  optim_product_plain,
                                                  optim_factor_sums_plain};
#else
typedef int optim_plain_not_here;
#endif
