/* The library for GEMMs with bias, and its matmuls by shape: see gpu_lt.c. */
#ifndef MEOPT_DEVICE_GPU_LT_H
#define MEOPT_DEVICE_GPU_LT_H

#include "core/base/library.h"
#include "core/device/blas_api.h"
#include "core/device/gemm_choices.h"
#include "core/device/gpu.h"

enum { LT_PLANS = GEMM_CHOICES, LT_WORKSPACE_BYTES = 32 << 20, LT_ALIGNED = 16, LT_TRIED = 8 };

struct lt_numbers {
    int compute_f32, f32, bf16, plain, transposed; /* types, operations */
    int transpose_a, transpose_b, epilogue, bias;  /* attributes of a matmul */
    int workspace, reduction,
        alignment;     /* attributes of a preference, -1: none; alignment of A, B, C, D from here */
    int driver;        /* minimum driver version */
    const char *needs; /* the same in words */
    const char *prefix;
    enum library_id library;
    int algorithm_bytes, result_bytes, state_at; /* a result of the heuristic begins with the algorithm */
};

struct lt_plan {
    struct gemm_key key;
    bool usable, tried, looked_up;
    void *description, *a, *b, *c; /* operands in the library's names */
    _Alignas(16) unsigned char result[LT_RESULT_BYTES];
};

struct lt {
    const struct lt_numbers *is;
    char path[4096], version[64];
    void *handle, *workspace;
    int count;
    bool trying;
    struct lt_plan *plans;
    struct gemm_choices *found, *used; /* NULL: none */
    struct lt_api call;
};

#endif
