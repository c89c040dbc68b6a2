/* Libraries of others that are loaded when they are wanted, and may be there or not: what each is called and
 * where it lies stands in one table (library.c). */
#ifndef MEOPT_BASE_LIBRARY_H
#define MEOPT_BASE_LIBRARY_H

enum library_id {
    LIBRARY_HIP, /* of AMD's cards and Hygon's DCUs */
    LIBRARY_CUDA,
    LIBRARY_ROCBLAS,
    LIBRARY_CUBLAS,
    LIBRARY_HIPBLASLT,
    LIBRARY_CUBLASLT,
    LIBRARY_RCCL,
    LIBRARY_NCCL,
    LIBRARY_ROCM_SMI,
    LIBRARY_NVML,
    LIBRARIES
};

struct library {
    void *handle;    /* NULL: it is not there */
    char path[4096]; /* its file; of one that is not there: what the variable names, or its first name */
    char
        why[256]; /* it is not there: the loader's words about the first file that is, else about the first */
};

/* The variable that names another file in place of all: MEOPT_HIP_LIBRARY, ... "none" there is to do without.
 */
const char *library_variable(enum library_id id);

/* Load it; handle NULL: see why. One that is in this process already comes first, under any of its names: two
 * copies of a runtime know nothing of each other's cards and streams. What a library needs and the loader
 * does not find is looked for beside it and where DTK and ROCm have it. Loaded libraries stay loaded: drivers
 * start threads that do not survive dlclose. Returns l->handle. */
void *library_open(enum library_id id, struct library *l);
/* The same of a file, or of the first that loads of a list (ends with NULL) of names as in library.c. */
void *library_open_file(const char *file, struct library *l);
void *library_open_first(const char *const *files, struct library *l);

#endif
