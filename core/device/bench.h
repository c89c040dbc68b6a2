/* What a device can do at best, measured: the denominator of the ratios that `meopt bench` prints. */
#ifndef MEOPT_DEVICE_BENCH_H
#define MEOPT_DEVICE_BENCH_H

#include "core/device/device.h"

struct gemm_peak {
    double own_gflops;     /* this program's matrix product */
    double library_gflops; /* the vendor's: oneDNN on a CPU; 0 where it has none of this type, or the own is
                              the library's */
    char of[96]; /* whose and which product the larger was: "oneDNN, 2048 x 1408 x 6144"; "" for none */
};

/* Largest rate of large matrix products (all in `type`), the best of several runs each of a square product
 * and of a transformer's three: the peak to compare with is the larger of the two fields. `by` divides the
 * sides of the products, up to 32; 0: not at all, but where kernels are emulated. Takes about a second and,
 * while it runs, a quarter of a GiB; leaves the device's memory accounting as it was. 0 or an exit code. */
int device_gemm_peak(struct device *device, enum dtype type, int64_t by, struct gemm_peak *peak,
                     struct error *err);
/* The larger of the two. */
double gemm_peak_gflops(const struct gemm_peak *peak);
/* The same, measured; 0 when there was no memory. */
double device_gemm_peak_gflops(struct device *device, enum dtype type);

/* Bytes a second, read and written, of copies inside the device's memory: between the halves, of `bytes`
 * each, of a block. */
double device_copy_rate(struct device *device, char *block, size_t bytes);

/* Seconds that an operation takes which has nothing to do, best of many: what each costs beside its work (on
 * a processor, that the threads begin together and wait for each other). 0 when there was no memory. */
double device_call_seconds(struct device *device);

#endif
