/* Measured peak rates of a device: the denominators of the ratios that `meopt bench` prints. */
#ifndef MEOPT_DEVICE_BENCH_H
#define MEOPT_DEVICE_BENCH_H

#include "core/device/device.h"

struct gemm_peak {
    double gflops;
    char of[96]; /* kernel and shape: "own, avx2, 2048 x 1408 x 6144"; "" for none */
};

/* Measures the highest rate of large GEMMs (all in `type`): the best of several runs each of a square GEMM
 * and of three GEMMs of a transformer. `by` divides the sides, up to 32; 0: not divided, except on emulated
 * kernels. The measurement takes about a second and a sixth of a GiB, and restores the device's memory
 * accounting. 0 or an exit code. */
int device_gemm_peak(struct device *device, enum dtype type, int64_t by, struct gemm_peak *peak,
                     struct error *err);
/* Returns the rate alone; 0 if memory was short. */
double device_gemm_peak_gflops(struct device *device, enum dtype type);

/* Returns the rate in bytes per second, reads plus writes, of copies inside the device's memory: between the
 * two halves of a block, `bytes` each. */
double device_copy_rate(struct device *device, char *block, size_t bytes);

/* Returns the seconds that an empty operation takes, best of many: the fixed cost per operation (on a
 * processor, the start and the join of the threads). 0 if memory was short. */
double device_call_seconds(struct device *device);

#endif
