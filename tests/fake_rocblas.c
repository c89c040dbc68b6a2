/* rocBLAS for tests: the one product that MEOpt calls, column-major and slow, on the emulated card's memory.
 * The stream's work is waited for first: the product reads what that makes. FAKE_ROCBLAS_WRONG: from its
 * second call on a product of that many columns leaves the last of them unwritten, and says that all is well.
 * FAKE_ROCBLAS_REFUSES: products of that many columns are refused, each with a line on stderr; with
 * FAKE_ROCBLAS_LATER=N from the N-th of them on.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

int rocblas_create_handle(void **handle);
int rocblas_destroy_handle(void *handle);
int rocblas_set_stream(void *handle, void *stream);
int rocblas_gemm_ex(void *handle, int op_a, int op_b, int m, int n, int k, const float *alpha, const void *a,
                    int a_type, int lda, const void *b, int b_type, int ldb, const float *beta, const void *c,
                    int c_type, int ldc, void *d, int d_type, int ldd, int compute_type, int algorithm,
                    int32_t solution, uint32_t flags);

enum { TRANSPOSE = 112, F32 = 151, BF16 = 168 };
#include "tests/fake_product.h"

static void *product_stream;
/* the driver's, where it counts (tests/fake_traffic.h) */
static void (*moved)(const char *what, long long read, long long written);

int rocblas_create_handle(void **handle)
{
    *handle = handle;
    return 0;
}
int rocblas_destroy_handle(void *handle) { return handle == 0; }
int rocblas_set_stream(void *handle, void *stream)
{
    product_stream = stream;
    const char *named = getenv("MEOPT_HIP_LIBRARY");
    void *driver = named ? dlopen(named, RTLD_NOW | RTLD_NOLOAD) : 0,
         *entry = driver ? dlsym(driver, "fake_driver_moved") : 0;
    memcpy(&moved, &entry, sizeof entry);
    return !find_wait("MEOPT_HIP_LIBRARY", "hipStreamSynchronize") || handle == 0 || stream == 0;
}

int rocblas_gemm_ex(void *handle, int op_a, int op_b, int m, int n, int k, const float *alpha, const void *a,
                    int a_type, int lda, const void *b, int b_type, int ldb, const float *beta, const void *c,
                    int c_type, int ldc, void *d, int d_type, int ldd, int compute_type, int algorithm,
                    int32_t solution, uint32_t flags)
{
    (void)algorithm, (void)solution, (void)flags;
    if (!handle || compute_type != F32 || c != d || c_type != d_type || ldc != ldd || a_type != b_type)
        return 6;
    static int calls, refusable;
    const char *refuses = getenv("FAKE_ROCBLAS_REFUSES"), *later = getenv("FAKE_ROCBLAS_LATER");
    if (refuses && atoi(refuses) == m && ++refusable >= (later ? atoi(later) : 1)) {
        fprintf(stderr, "fake rocBLAS refuses\n");
        return 5;
    }
    wait_for(product_stream);
    if (moved)
        moved("rocblas",
              (long long)k * (m + n) * (a_type == F32 ? 4 : 2) +
                  (*beta != 0 ? (long long)m * n * (c_type == F32 ? 4 : 2) : 0),
              (long long)m * n * (c_type == F32 ? 4 : 2));
    const char *wrong = getenv("FAKE_ROCBLAS_WRONG");
    bool unwritten = wrong && atoi(wrong) == m && calls++ > 0;
    for (int j = 0; j < n; j++)
        for (int i = 0; i < m - unwritten; i++) {
            float sum = 0;
            for (int l = 0; l < k; l++)
                sum += load(a, a_type, op_a == TRANSPOSE ? (long)i * lda + l : (long)l * lda + i) *
                       load(b, b_type, op_b == TRANSPOSE ? (long)l * ldb + j : (long)j * ldb + l);
            long at = (long)j * ldd + i;
            store(d, d_type, at, *alpha * sum + (*beta != 0 ? *beta * load(c, c_type, at) : 0));
        }
    return 0;
}
