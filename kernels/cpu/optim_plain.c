/* The optimizer kernels for one instruction set:
 * kernels/cpu/optim_kernel.h compiled with its flags (CMakeLists.txt). */
#if 1 /* everywhere */
#define OPTIM_NAME(name)  name##_plain
#define OPTIM_ONE_COPY    /* of the loop: a fast one is for processors that have the instructions, and those \
                             take long to compile */
#include "kernels/cpu/optim_kernel.h"

const struct optim_kernels optim_kernels_plain = {"plain",
                                                  optim_step_plain,
                                                  optim_weights_in_plain,
                                                  optim_weights_out_plain,
                                                  optim_state_in_plain,
                                                  optim_state_out_plain};
#else
typedef int optim_plain_not_here;
#endif
