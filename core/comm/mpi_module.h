/* The interface of libmeopt_mpi.so: one table of functions, so that the program is not linked with MPI and
 * runs without it. All calls except `abort` come from the thread that called `open`. */
#ifndef MEOPT_COMM_MPI_MODULE_H
#define MEOPT_COMM_MPI_MODULE_H

#include <stddef.h>

enum { MEOPT_MPI_VERSION = 2 };

struct meopt_mpi {
    int version;
    /* Return 0, or fill `why`. As in struct comm_ops. */
    int (*open)(int *rank, int *size, char *why, size_t why_bytes);
    int (*exchange)(const void *send, void *receive, size_t bytes, char *why, size_t why_bytes);
    int (*gather)(const void *send, void *receive, size_t bytes, char *why, size_t why_bytes);
    int (*broadcast)(void *p, size_t bytes, int root, char *why, size_t why_bytes);
    void (*abort)(int exit_code); /* from any thread; does not return */
    void (*close)(void);
};
extern const struct meopt_mpi meopt_mpi;

#endif
