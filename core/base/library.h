/* Optional third-party libraries, loaded on first use. One table has their names and directories
 * (library.c). */
#ifndef MEOPT_BASE_LIBRARY_H
#define MEOPT_BASE_LIBRARY_H

#include "core/base/error.h"

enum library_id {
    LIBRARY_HIP, /* for AMD's cards and Hygon's DCUs */
    LIBRARY_CUDA,
    LIBRARY_ROCBLAS,
    LIBRARY_CUBLAS,
    LIBRARY_HIPBLASLT,
    LIBRARY_CUBLASLT,
    LIBRARY_RCCL,
    LIBRARY_NCCL,
    LIBRARY_ROCM_SMI,
    LIBRARY_NVML,
    LIBRARY_CURL,
    LIBRARY_ARCHIVE,
    LIBRARY_CRYPTO,
    LIBRARIES
};

struct library {
    void *handle;    /* NULL: not loaded */
    char path[4096]; /* its file; if not loaded: the variable's value, or the first name */
    char why
        [256]; /* if not loaded: the loader's message about the first existing file, else about the first */
};

/* The environment variable with a file that replaces all candidates: MEOPT_HIP_LIBRARY, ... The value "none"
 * disables the library. */
const char *library_variable(enum library_id id);

/* Loads a library. handle NULL: see why. A library that this process has loaded already, under any of its
 * names, comes first: two copies of a runtime do not share cards and streams. Dependencies that the loader
 * does not find are searched next to the library and in the directories of DTK and ROCm. Loaded libraries
 * stay loaded: drivers start threads that do not survive dlclose. Returns l->handle. */
void *library_open(enum library_id id, struct library *l);
/* Like library_open for a file. */
void *library_open_file(const char *file, struct library *l);

/* Fills `table`, a struct of pointers to functions, with those of `names` (until NULL): from `linked`, such a
 * struct of a library that this program has in it, or if that is NULL from the library. Does nothing if the
 * table is filled. Returns 0 or EXIT_FAILED, with the library's Debian package in the hint. */
int library_load_functions(enum library_id id, const char *const *names, const void *linked, void *table,
                           struct error *err);

/* Like library_open for libmeopt_mpi.so, the part of this program that is built where MPI is: from
 * MEOPT_MPI_MODULE, the program's directory, or the installation's. */
void *library_open_mpi(struct library *l);

#endif
