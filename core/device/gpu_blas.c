/* GEMM by the vendor's library, loaded when a card is opened: rocBLAS (AMD, DTK) or cuBLAS. See gpu.h.
 *
 * Both use column-major matrices. A row-major C = op(A) op(B) is the column-major C^T = op(B)^T op(A)^T, and
 * a row-major matrix read column-major is its own transpose: the operands are swapped and the flags stay.
 */
#include "core/device/gpu.h"
#include "core/device/blas_api.h"
#include "core/base/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Shapes that the library refused, and that are not tried again. */
struct refused {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t types[2], transposed[2], adds, unused;
};
enum { MOST_REFUSED = 64 };

struct blas {
    enum driver_kind kind;
    struct refused refused[MOST_REFUSED];
    int refusals;
    char path[4096];
    void *handle;
    struct rocblas_api roc; /* of HIP */
    struct cublas_api cuda;
};

static const struct {
    enum driver_kind kind;
    const char *name;
    size_t at;
    bool optional;
} entries[] = {
#define ROW(kind, field, symbol, optional)     {kind, #symbol, offsetof(struct blas, field), optional},
#define ROC_ROW(member, symbol, arguments)     ROW(DRIVER_HIP, roc.member, symbol, false)
#define ROC_OPTION(member, symbol, arguments)  ROW(DRIVER_HIP, roc.member, symbol, true)
#define CUDA_ROW(member, symbol, arguments)    ROW(DRIVER_CUDA, cuda.member, symbol, false)
#define CUDA_OPTION(member, symbol, arguments) ROW(DRIVER_CUDA, cuda.member, symbol, true)
    ROCBLAS_ENTRIES(ROC_ROW) ROCBLAS_OPTIONAL(ROC_OPTION) CUBLAS_ENTRIES(CUDA_ROW)
        CUBLAS_OPTIONAL(CUDA_OPTION)};

static bool fill(struct blas *b, void *library)
{
    bool whole = true;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        if (entries[i].kind != b->kind) continue;
        void *p = dlsym(library, entries[i].name);
        whole = whole && (p || entries[i].optional);
        memcpy((char *)b + entries[i].at, &p, sizeof p);
    }
    return whole;
}

/* Selects sums in a fixed order and in fp32. By default (up to ROCm 5 and in DTK) rocBLAS adds partial sums
 * with atomics, in an order that changes from call to call; cuBLAS may add partial sums of bf16 operands in
 * bf16. 0, or the library's code. */
static int sum_exactly(struct blas *b)
{
    if (b->kind == DRIVER_HIP)
        return b->roc.set_atomics ? b->roc.set_atomics(b->handle, ROCBLAS_NO_ATOMICS) : 0;
    int mode = CUBLAS_DEFAULT_MATH_MODE | CUBLAS_NO_REDUCED_PRECISION;
    return b->cuda.set_math ? b->cuda.set_math(b->handle, mode) : 0;
}

struct blas *blas_open(struct device *dev)
{
    struct gpu *gpu = gpu_of(dev);
    bool hip = gpu->driver.kind == DRIVER_HIP;
    struct library library;
    struct blas *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    b->kind = gpu->driver.kind;
    library_open(hip ? LIBRARY_ROCBLAS : LIBRARY_CUBLAS, &library);
    snprintf(b->path, sizeof b->path, "%s", library.path);
    if (library.handle && fill(b, library.handle) &&
        (hip ? b->roc.create : b->cuda.create)(&b->handle) == 0) {
        if ((hip ? b->roc.set_stream : b->cuda.set_stream)(b->handle, gpu->stream) == 0 &&
            sum_exactly(b) == 0)
            return b;
        (hip ? b->roc.destroy : b->cuda.destroy)(b->handle);
    }
    if (library.handle) snprintf(gpu->blas_why, sizeof gpu->blas_why, N_("%.120s does not work"), b->path);
    else snprintf(gpu->blas_why, sizeof gpu->blas_why, "%.150s", library.why);
    free(b);
    return NULL;
}

void blas_close(struct blas *b)
{
    if (b && b->handle) (b->kind == DRIVER_HIP ? b->roc.destroy : b->cuda.destroy)(b->handle);
    free(b);
}

const char *blas_path(const struct blas *b) { return b->path; }

static bool was_refused(const struct blas *b, const struct refused *key)
{
    for (int i = 0; i < b->refusals; i++)
        if (memcmp(&b->refused[i], key, sizeof *key) == 0) return true;
    return b->refusals == MOST_REFUSED; /* then the library is not used at all */
}

static int multiply(struct blas *b, const struct gemm *g)
{
    if (g->m > INT32_MAX || g->n > INT32_MAX || g->k > INT32_MAX || g->lda > INT32_MAX ||
        g->ldb > INT32_MAX || g->ldc > INT32_MAX)
        return -1;
    int m = (int)g->n, n = (int)g->m, k = (int)g->k, lda = (int)g->ldb, ldb = (int)g->lda, ldc = (int)g->ldc;
    bool in16 = g->ab_type == DTYPE_BF16, out16 = g->c_type == DTYPE_BF16;
    if (!in16 && out16) return -1; /* a pair of types that neither library supports */
    if (b->kind == DRIVER_HIP) {
        int in = in16 ? ROCBLAS_BF16 : ROCBLAS_F32, out = out16 ? ROCBLAS_BF16 : ROCBLAS_F32;
        return b->roc.gemm(b->handle, g->transpose_b ? ROCBLAS_TRANSPOSE : ROCBLAS_NONE,
                           g->transpose_a ? ROCBLAS_TRANSPOSE : ROCBLAS_NONE, m, n, k, &g->alpha, g->b, in,
                           lda, g->a, in, ldb, &g->beta, g->c, out, ldc, g->c, out, ldc, ROCBLAS_F32, 0, 0,
                           0);
    }
    int in = in16 ? CUBLAS_BF16 : CUBLAS_F32, out = out16 ? CUBLAS_BF16 : CUBLAS_F32;
    return b->cuda.gemm(b->handle, g->transpose_b, g->transpose_a, m, n, k, &g->alpha, g->b, in, lda, g->a,
                        in, ldb, &g->beta, g->c, out, ldc, CUBLAS_COMPUTE_F32, CUBLAS_ALGORITHM);
}

int blas_gemm(struct blas *b, const struct gemm *g)
{
    struct refused key = {
        .m = g->m,
        .n = g->n,
        .k = g->k,
        .lda = g->lda,
        .ldb = g->ldb,
        .ldc = g->ldc,
        .types = {(int32_t)g->ab_type, (int32_t)g->c_type},
        .transposed = {g->transpose_a, g->transpose_b},
        .adds = g->beta != 0,
    };
    if (was_refused(b, &key)) return -1;
    int code = multiply(b, g);
    if (code > 0) b->refused[b->refusals++] = key;
    return code;
}
