/* Matrix products by the vendor's library, loaded when a card is opened:
 * rocBLAS (AMD, DTK) or cuBLAS. See gpu.h.
 *
 * Both take column-major matrices. A row-major C = op(A) op(B) is the column-major C^T = op(B)^T op(A)^T, and
 * a row-major matrix read column-major is its own transpose: the operands change places and the flags stay.
 */
#include "core/device/gpu.h"
#include "core/base/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct blas {
    enum driver_kind kind;
    char path[4096];
    void *handle;
    int (*destroy)(void *handle);
    /* rocblas_gemm_ex */
    int (*roc)(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a,
               int a_type, int lda, const void *b, int b_type, int ldb, const void *beta, const void *c,
               int c_type, int ldc, void *d, int d_type, int ldd, int compute_type, int algorithm,
               int32_t solution, uint32_t flags);
    /* cublasGemmEx */
    int (*cuda)(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a,
                int a_type, int lda, const void *b, int b_type, int ldb, const void *beta, void *c,
                int c_type, int ldc, int compute_type, int algorithm);
};

static void *entry(void *library, const char *name, bool *whole)
{
    void *p = dlsym(library, name);
    if (!p) *whole = false;
    return p;
}

struct blas *blas_open(struct device *dev)
{
    struct gpu *gpu = gpu_of(dev);
    bool hip = gpu->driver.kind == DRIVER_HIP, whole = true;
    struct blas *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    struct library found;
    void *library = library_open(hip ? LIBRARY_ROCBLAS : LIBRARY_CUBLAS, &found);
    b->kind = gpu->driver.kind;
    snprintf(b->path, sizeof b->path, "%s", found.path);
    int (*create)(void **) = NULL, (*set_stream)(void *, void *) = NULL;
    void *p;
    if (library) {
        p = entry(library, hip ? "rocblas_create_handle" : "cublasCreate_v2", &whole);
        memcpy(&create, &p, sizeof p);
        p = entry(library, hip ? "rocblas_set_stream" : "cublasSetStream_v2", &whole);
        memcpy(&set_stream, &p, sizeof p);
        p = entry(library, hip ? "rocblas_destroy_handle" : "cublasDestroy_v2", &whole);
        memcpy(&b->destroy, &p, sizeof p);
        p = entry(library, hip ? "rocblas_gemm_ex" : "cublasGemmEx", &whole);
        if (hip) memcpy(&b->roc, &p, sizeof p);
        else memcpy(&b->cuda, &p, sizeof p);
    }
    if (library && whole && create(&b->handle) == 0) {
        if (set_stream(b->handle, gpu->stream) == 0) return b;
        b->destroy(b->handle);
    }
    if (library) snprintf(gpu->blas_why, sizeof gpu->blas_why, "%.120s does not work", b->path);
    else snprintf(gpu->blas_why, sizeof gpu->blas_why, "%.150s", found.why);
    free(b);
    return NULL;
}

void blas_close(struct blas *b)
{
    if (b && b->handle) b->destroy(b->handle);
    free(b);
}

const char *blas_path(const struct blas *b) { return b->path; }

int blas_gemm(struct blas *b, const struct gemm *g)
{
    enum {
        ROC_NONE = 111,
        ROC_TRANSPOSE = 112,
        ROC_F32 = 151,
        ROC_BF16 = 168,
        CUDA_F32 = 0,
        CUDA_BF16 = 14,
        CUDA_COMPUTE_32F = 68
    };
    if (g->m > INT32_MAX || g->n > INT32_MAX || g->k > INT32_MAX || g->lda > INT32_MAX ||
        g->ldb > INT32_MAX || g->ldc > INT32_MAX)
        return -1;
    int m = (int)g->n, n = (int)g->m, k = (int)g->k, lda = (int)g->ldb, ldb = (int)g->lda, ldc = (int)g->ldc;
    bool in16 = g->ab_type == DTYPE_BF16, out16 = g->c_type == DTYPE_BF16;
    if (!in16 && out16) return -1; /* a pair that neither library has */
    if (b->kind == DRIVER_HIP) {
        int in = in16 ? ROC_BF16 : ROC_F32, out = out16 ? ROC_BF16 : ROC_F32;
        return b->roc(b->handle, g->transpose_b ? ROC_TRANSPOSE : ROC_NONE,
                      g->transpose_a ? ROC_TRANSPOSE : ROC_NONE, m, n, k, &g->alpha, g->b, in, lda, g->a, in,
                      ldb, &g->beta, g->c, out, ldc, g->c, out, ldc, ROC_F32, 0, 0, 0);
    }
    int in = in16 ? CUDA_BF16 : CUDA_F32, out = out16 ? CUDA_BF16 : CUDA_F32;
    return b->cuda(b->handle, g->transpose_b, g->transpose_a, m, n, k, &g->alpha, g->b, in, lda, g->a, in,
                   ldb, &g->beta, g->c, out, ldc, CUDA_COMPUTE_32F, -1);
}
