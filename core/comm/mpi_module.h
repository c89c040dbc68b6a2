/* What libmeopt_mpi.so gives the program: MPI behind one table, so that the program is linked without it and
 * runs where there is none. Every call is made from the thread that made `open`. */
#ifndef MEOPT_COMM_MPI_MODULE_H
#define MEOPT_COMM_MPI_MODULE_H

#include <stddef.h>

enum { MEOPT_MPI_VERSION = 2 };

struct meopt_mpi {
    int version;
    /* 0, or else why (size bytes). As in struct comm_ops. */
    int (*open)(int *rank, int *size, char *why, size_t why_bytes);
    int (*exchange)(const void *send, void *receive, size_t bytes, char *why, size_t why_bytes);
    int (*gather)(const void *send, void *receive, size_t bytes, char *why, size_t why_bytes);
    int (*broadcast)(void *p, size_t bytes, int root, char *why, size_t why_bytes);
    void (*abort)(int exit_code); /* from any thread; does not return */
    void (*close)(void);
};
extern const struct meopt_mpi meopt_mpi;

#endif
