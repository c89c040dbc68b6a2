/* rocBLAS for tests, or cuBLAS (FAKE_CUDA): the one product that MEOpt calls, column-major and slow, on the
 * emulated card's memory. The stream's work is waited for first: the product reads what that makes. The two
 * differ in names, numbers and what stands between arguments; declarations are those of
 * core/device/blas_api.h, which a test compares with the vendors' (vendor_api, nccl_api). FAKE_BLAS_WRONG
 * from its second call on a product of that many columns leaves the last of them unwritten, and says that all
 * is well FAKE_BLAS_REFUSES  products of that many columns are refused, each with a line on stderr; with
 *                      FAKE_BLAS_LATER=N from the N-th of them on
 */
#include "core/device/blas_api.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#ifdef FAKE_CUDA
enum { TRANSPOSE = 1, F32 = CUBLAS_F32, BF16 = CUBLAS_BF16, COMPUTE = CUBLAS_COMPUTE_F32, REFUSED = 15 };
#define ENTRIES(X)     CUBLAS_ENTRIES(X) CUBLAS_OPTIONAL(X)
#define DRIVER_LIBRARY "MEOPT_CUDA_LIBRARY"
#define DRIVER_WAIT    "cuStreamSynchronize"
#else
enum { TRANSPOSE = ROCBLAS_TRANSPOSE, F32 = ROCBLAS_F32, BF16 = ROCBLAS_BF16, COMPUTE = F32, REFUSED = 5 };
#define ENTRIES(X)     ROCBLAS_ENTRIES(X) ROCBLAS_OPTIONAL(X)
#define DRIVER_LIBRARY "MEOPT_HIP_LIBRARY"
#define DRIVER_WAIT    "hipStreamSynchronize"
#endif
#define DECLARED(member, symbol, arguments) int symbol arguments;
ENTRIES(DECLARED)
#include "tests/gpu/fake_product.h"

static void *product_stream;
static bool exact; /* atomics, and reduced precision, are forbidden: else products are refused */
/* the driver's, where it counts (tests/gpu/fake_traffic.h) */
static void (*moved)(const char *what, long long read, long long written);

static int create(void **handle)
{
    *handle = handle;
    return 0;
}
static int destroy(void *handle) { return handle == 0; }
static int set_stream(void *handle, void *stream)
{
    product_stream = stream;
    const char *named = getenv(DRIVER_LIBRARY);
    void *driver = named ? dlopen(named, RTLD_NOW | RTLD_NOLOAD) : 0,
         *entry = driver ? dlsym(driver, "fake_driver_moved") : 0;
    memcpy(&moved, &entry, sizeof entry);
    return !find_wait(DRIVER_LIBRARY, DRIVER_WAIT) || handle == 0 || stream == 0;
}

struct factor {
    const void *p;
    int type, ld;
    bool transposed;
};

/* c = alpha op(a) op(b) + beta c, of m rows and n columns */
static int multiply(int m, int n, int k, float alpha, struct factor a, struct factor b, float beta, void *c,
                    int c_type, int ldc)
{
    static int calls, refusable;
    const char *refuses = getenv("FAKE_BLAS_REFUSES"), *later = getenv("FAKE_BLAS_LATER"),
               *wrong = getenv("FAKE_BLAS_WRONG");
    if (!exact) return REFUSED;
    if (refuses && atoi(refuses) == m && ++refusable >= (later ? atoi(later) : 1)) {
        fprintf(stderr, "fake BLAS refuses\n");
        return REFUSED;
    }
    wait_for(product_stream);
    long long c_bytes = (long long)m * n * (c_type == F32 ? 4 : 2);
    if (moved)
        moved("rocblas", (long long)k * (m + n) * (a.type == F32 ? 4 : 2) + (beta != 0 ? c_bytes : 0),
              c_bytes);
    bool unwritten = wrong && atoi(wrong) == m && calls++ > 0;
    for (int j = 0; j < n; j++)
        for (int i = 0; i < m - unwritten; i++) {
            float sum = 0;
            for (int l = 0; l < k; l++)
                sum += load(a.p, a.type, a.transposed ? (long)i * a.ld + l : (long)l * a.ld + i) *
                       load(b.p, b.type, b.transposed ? (long)l * b.ld + j : (long)j * b.ld + l);
            long at = (long)j * ldc + i;
            store(c, c_type, at, alpha * sum + (beta != 0 ? beta * load(c, c_type, at) : 0));
        }
    return 0;
}

#ifdef FAKE_CUDA
int cublasCreate_v2(void **handle) { return create(handle); }
int cublasDestroy_v2(void *handle) { return destroy(handle); }
int cublasSetStream_v2(void *handle, void *stream) { return set_stream(handle, stream); }
int cublasSetMathMode(void *handle, int mode)
{
    exact = mode == (CUBLAS_DEFAULT_MATH_MODE | CUBLAS_NO_REDUCED_PRECISION);
    return !handle || !exact;
}
int cublasGemmEx(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a,
                 int a_type, int lda, const void *b, int b_type, int ldb, const void *beta, void *c,
                 int c_type, int ldc, int compute_type, int algorithm)
{
    if (!handle || compute_type != COMPUTE || a_type != b_type || algorithm != CUBLAS_ALGORITHM) return 7;
    if ((a_type != F32 && a_type != BF16) || (c_type != F32 && c_type != BF16) || op_a >> 1 || op_b >> 1)
        return 7;
    return multiply(m, n, k, *(const float *)alpha, (struct factor){a, a_type, lda, op_a == TRANSPOSE},
                    (struct factor){b, b_type, ldb, op_b == TRANSPOSE}, *(const float *)beta, c, c_type, ldc);
}
#else
int rocblas_create_handle(void **handle) { return create(handle); }
int rocblas_destroy_handle(void *handle) { return destroy(handle); }
int rocblas_set_stream(void *handle, void *stream) { return set_stream(handle, stream); }
int rocblas_set_atomics_mode(void *handle, int mode)
{
    exact = mode == ROCBLAS_NO_ATOMICS;
    return !handle || !exact;
}
int rocblas_gemm_ex(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a,
                    int a_type, int lda, const void *b, int b_type, int ldb, const void *beta, const void *c,
                    int c_type, int ldc, void *d, int d_type, int ldd, int compute_type, int algorithm,
                    int32_t solution, uint32_t flags)
{
    (void)algorithm, (void)solution, (void)flags;
    if (!handle || compute_type != COMPUTE || c != d || c_type != d_type || ldc != ldd || a_type != b_type)
        return 6;
    return multiply(m, n, k, *(const float *)alpha, (struct factor){a, a_type, lda, op_a == TRANSPOSE},
                    (struct factor){b, b_type, ldb, op_b == TRANSPOSE}, *(const float *)beta, d, d_type, ldd);
}
#endif
