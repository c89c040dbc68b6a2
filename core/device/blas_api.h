/* Entry points and constants of rocBLAS, cuBLAS, hipBLASLt and cuBLASLt. The libraries are loaded at run
 * time, never linked. Handles and descriptors are void pointers, enumerations are ints. The test vendor_api
 * compares this file with the vendors' headers if they are installed. Debian 12 has no headers of rocBLAS and
 * hipBLASLt. Sources:
 *
 *   rocBLAS     ROCm/rocBLAS library/include/internal/rocblas-functions.h (rocblas_gemm_ex),
 *               rocblas-auxiliary.h (handle, stream, atomics), rocblas-types.h (constants);
 *               equal in 2.x to 5.x and DTK
 *   hipBLASLt   ROCm/hipBLASLt library/include/hipblaslt/hipblaslt.h, library/include/hipblaslt-types.h;
 *               since ROCm 6, types and operations are those of hipblas-common and hip/library_types.h
 *   cuBLAS(Lt)  cublas_api.h, cublasLt.h, library_types.h of CUDA 11 and later
 */
#ifndef MEOPT_DEVICE_BLAS_API_H
#define MEOPT_DEVICE_BLAS_API_H

#include <stddef.h>
#include <stdint.h>

/* member, name, arguments */
#define ROCBLAS_ENTRIES(X)                                                                                   \
    X(create, rocblas_create_handle, (void **handle))                                                        \
    X(destroy, rocblas_destroy_handle, (void *handle))                                                       \
    X(set_stream, rocblas_set_stream, (void *handle, void *stream))                                          \
    X(gemm, rocblas_gemm_ex,                                                                                 \
      (void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a, int a_type,  \
       int lda, const void *b, int b_type, int ldb, const void *beta, const void *c, int c_type, int ldc,    \
       void *d, int d_type, int ldd, int compute_type, int algorithm, int32_t solution, uint32_t flags))
#define CUBLAS_ENTRIES(X)                                                                                    \
    X(create, cublasCreate_v2, (void **handle))                                                              \
    X(destroy, cublasDestroy_v2, (void *handle))                                                             \
    X(set_stream, cublasSetStream_v2, (void *handle, void *stream))                                          \
    X(gemm, cublasGemmEx,                                                                                    \
      (void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a, int a_type,  \
       int lda, const void *b, int b_type, int ldb, const void *beta, void *c, int c_type, int ldc,          \
       int compute_type, int algorithm))

/* Entry points that a library may lack. */
#define ROCBLAS_OPTIONAL(X) X(set_atomics, rocblas_set_atomics_mode, (void *handle, int mode))
#define CUBLAS_OPTIONAL(X)  X(set_math, cublasSetMathMode, (void *handle, int mode))

enum { ROCBLAS_NONE = 111, ROCBLAS_TRANSPOSE = 112, ROCBLAS_F32 = 151, ROCBLAS_BF16 = 168 };
enum { ROCBLAS_NO_ATOMICS = 0 };
enum { CUBLAS_F32 = 0, CUBLAS_BF16 = 14, CUBLAS_COMPUTE_F32 = 68, CUBLAS_ALGORITHM = -1 };
enum { CUBLAS_DEFAULT_MATH_MODE = 0, CUBLAS_NO_REDUCED_PRECISION = 16 }; /* a mode, and a flag added to it */

#define BLAS_MEMBER(member, symbol, arguments) int(*member) arguments;
struct rocblas_api {
    ROCBLAS_ENTRIES(BLAS_MEMBER) ROCBLAS_OPTIONAL(BLAS_MEMBER)
};
struct cublas_api {
    CUBLAS_ENTRIES(BLAS_MEMBER) CUBLAS_OPTIONAL(BLAS_MEMBER)
};

/* Names start with hipblasLt or cublasLt: member, the rest of the name, arguments. */
#define LT_ENTRIES(X)                                                                                        \
    X(create, Create, (void **handle))                                                                       \
    X(destroy, Destroy, (void *handle))                                                                      \
    X(product_create, MatmulDescCreate, (void **product, int compute_type, int scale_type))                  \
    X(gemm_isa, MatmulDescSetAttribute, (void *product, int attribute, const void *value, size_t bytes))     \
    X(product_destroy, MatmulDescDestroy, (void *product))                                                   \
    X(layout_create, MatrixLayoutCreate,                                                                     \
      (void **layout, int type, uint64_t rows, uint64_t columns, int64_t ld))                                \
    X(layout_destroy, MatrixLayoutDestroy, (void *layout))                                                   \
    X(preference_create, MatmulPreferenceCreate, (void **preference))                                        \
    X(preference_set, MatmulPreferenceSetAttribute,                                                          \
      (void *preference, int attribute, const void *value, size_t bytes))                                    \
    X(preference_destroy, MatmulPreferenceDestroy, (void *preference))                                       \
    X(heuristic, MatmulAlgoGetHeuristic,                                                                     \
      (void *handle, void *product, void *a, void *b, void *c, void *d, void *preference, int wanted,        \
       void *results, int *found))                                                                           \
    X(multiply, Matmul,                                                                                      \
      (void *handle, void *product, const void *alpha, const void *a, void *a_layout, const void *b,         \
       void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,             \
       const void *algorithm, void *workspace, size_t workspace_bytes, void *stream))
struct lt_api {
    LT_ENTRIES(BLAS_MEMBER)
};
#undef BLAS_MEMBER

/* HIPBLASLT_: values since ROCm 6; before HIP 6 they were different */
enum {
    HIPBLASLT_COMPUTE_F32 = 2,
    HIPBLASLT_F32 = 0,
    HIPBLASLT_BF16 = 14,
    HIPBLASLT_PLAIN = 111,
    HIPBLASLT_TRANSPOSED = 112,
    HIPBLASLT_TRANSPOSE_A = 0,
    HIPBLASLT_TRANSPOSE_B = 1,
    HIPBLASLT_EPILOGUE = 2,
    HIPBLASLT_BIAS = 3,
    HIPBLASLT_WORKSPACE = 1,
    HIPBLASLT_VERSION = 60000000 /* of the driver */
};
enum {
    CUBLASLT_PLAIN = 0,
    CUBLASLT_TRANSPOSED = 1,
    CUBLASLT_TRANSPOSE_A = 3,
    CUBLASLT_TRANSPOSE_B = 4,
    CUBLASLT_EPILOGUE_OF = 7,
    CUBLASLT_BIAS = 8,
    CUBLASLT_WORKSPACE = 1,
    CUBLASLT_REDUCTION = 3,
    CUBLASLT_ALIGNMENT = 5, /* of A; the next three are of B, C and D */
    CUBLASLT_VERSION = 11000
};
enum {
    LT_EPILOGUE_NONE = 1,
    LT_EPILOGUE_BIAS = 4,
    LT_REDUCTION_IN_COMPUTE_TYPE = 2
};                              /* the same values in both */
enum { LT_RESULT_BYTES = 512 }; /* capacity for one heuristic result, which begins with the algorithm */

#endif
