/* What a device can do at best, measured: the denominator of the ratios that `meopt bench` prints. */
#ifndef MEOPT_DEVICE_BENCH_H
#define MEOPT_DEVICE_BENCH_H

#include "core/device/device.h"

struct gemm_peak {
    double gflops;
    char of[96]; /* which kernel and shape: "own, avx2, 2048 x 1408 x 6144"; "" for none */
};

/* Largest rate of large matrix products (all in `type`), the best of several runs each of a square product
 * and of a transformer's three. `by` divides the sides of the products, up to 32; 0: not at all, but where
 * kernels are emulated. Takes about a second and, while it runs, a sixth of a GiB; leaves the device's memory
 * accounting as it was. 0 or an exit code. */
int device_gemm_peak(struct device *device, enum dtype type, int64_t by, struct gemm_peak *peak,
                     struct error *err);
/* Its rate; 0 when there was no memory. */
double device_gemm_peak_gflops(struct device *device, enum dtype type);

/* Bytes a second, read and written, of copies inside the device's memory: between the halves, of `bytes`
 * each, of a block. */
double device_copy_rate(struct device *device, char *block, size_t bytes);

/* Seconds that an operation takes which has nothing to do, best of many: what each costs beside its work (on
 * a processor, that the threads begin together and wait for each other). 0 when there was no memory. */
double device_call_seconds(struct device *device);

#endif
