/* Algorithms of a vendor's GEMM library (cuBLASLt, hipBLASLt), found by trial, so that a run can store and
 * repeat them: its bits depend on them. Without choices the first algorithm of the library's heuristic is
 * used.
 *
 * Trials run at the first use of a shape, on its real operands and within the library's planned workspace.
 * That use is still computed by the first algorithm: device_gemm_use is for later ones. */
#ifndef MEOPT_DEVICE_GEMM_CHOICES_H
#define MEOPT_DEVICE_GEMM_CHOICES_H

#include "core/device/device.h"

enum { GEMM_CHOICES = 256, GEMM_ALGORITHM_BYTES = 64 };

/* What the library's heuristic depends on; all bytes count. */
struct gemm_key {
    int64_t m, n, k, lda, ldb, ldc;
    uint32_t aligned[4]; /* a, b, c, bias: bytes, at most 16 */
    uint8_t transpose_a, transpose_b, in16, out16, bias, unused[3];
};

struct gemm_choice {
    struct gemm_key key;
    uint8_t
        algorithm[GEMM_ALGORITHM_BYTES]; /* as the library describes it; only compared, never given to it */
    double first_ms, ms;                 /* of the heuristic's first algorithm, of this one */
};

struct gemm_choices {
    char card[128], library[64]; /* where they were found: "cublasLt 130100" */
    int32_t count, algorithm_bytes;
    struct gemm_choice list[GEMM_CHOICES];
};

/* Fills in card and library of this device, with no choices. false: it has no such library. */
bool device_gemm_choices(struct device *device, struct gemm_choices *choices);
/* Begins (or ends) trials of shapes at their first use from now on. */
void device_gemm_try(struct device *device, bool on);
/* Appends what the trials have found. */
void device_gemm_found(struct device *device, struct gemm_choices *choices);
/* Uses these algorithms from now on. One that the library does not offer here is reported, and the first one
 * is used. */
void device_gemm_use(struct device *device, const struct gemm_choices *choices);

#endif
