/* The interface of libmeopt_mpi.so: one table of functions, so that the program is not linked with MPI and
 * runs without it. All calls except `abort` come from the thread that called `open`. */
#ifndef MEOPT_COMM_MPI_MODULE_H
#define MEOPT_COMM_MPI_MODULE_H

#include <stdbool.h>
#include <stddef.h>

enum { MEOPT_MPI_VERSION = 5, MEOPT_MPI_PARTS = 9, MEOPT_MPI_MESSAGES = 32 };

struct meopt_mpi_message {
    void *p;
    size_t bytes;
    int peer;
    bool receive;
};

struct meopt_mpi {
    int version;
    /* Return 0, or fill `why`. As in struct comm_ops. part: 0 for all ranks, or a result of split */
    int (*open)(int *rank, int *size, char *why, size_t why_bytes);
    int (*exchange)(int part, const void *send, void *receive, size_t bytes, char *why, size_t why_bytes);
    int (*gather)(int part, const void *send, void *receive, size_t bytes, char *why, size_t why_bytes);
    int (*broadcast)(int part, void *p, size_t bytes, int root, char *why, size_t why_bytes);
    int (*collect)(int part, const void *send, void *receive, size_t bytes, char *why, size_t why_bytes);
    int (*scatter_sums)(int part, const float *send, float *receive, size_t count, char *why,
                        size_t why_bytes);
    /* All ranks call it. color -1: this rank takes part in none. */
    int (*split)(int color, int *part, char *why, size_t why_bytes);
    void (*release)(int part);
    /* Transfers messages between ranks of part 0, all at once. At most MEOPT_MPI_MESSAGES, each of at most
     * 1 GiB. */
    int (*transfer)(const struct meopt_mpi_message *messages, int count, char *why, size_t why_bytes);
    void (*abort)(int exit_code); /* from any thread; does not return */
    void (*close)(void);
};
extern const struct meopt_mpi meopt_mpi;

#endif
