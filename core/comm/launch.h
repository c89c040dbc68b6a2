/* Launcher, rank and number of ranks of this process, from the environment variables that srun, mpirun and
 * torchrun set. Variables that contradict each other are an error.
 *
 * Launchers can be nested: mpirun in a job of sbatch, torchrun in srun, Open MPI in srun --pty. The
 * innermost one counts; the table in launch.c lists them in this order.
 */
#ifndef MEOPT_COMM_LAUNCH_H
#define MEOPT_COMM_LAUNCH_H

#include "core/base/error.h"

#include <stdbool.h>

enum { LAUNCH_RANKS_MAX = 65536 };

struct launch {
    const char *launcher; /* its name, "srun"; NULL: no launcher, a single process */
    int rank, size;       /* 0 of 1 without a launcher */
    int local_rank;       /* on this host; -1: unknown */
    int local_size;       /* -1: unknown */
    bool one_host;        /* all ranks are known to be on this host */
    char job[160];        /* identifies this launch, valid in a file name; "" without a launcher */
    int idle_tasks;       /* tasks of a Slurm job whose batch script did not use srun; otherwise 0 */
};

/* Returns the value of an environment variable, or NULL: getenv, or a table in tests. */
typedef const char *launch_variable(const char *name, const void *context);

/* EXIT_USAGE, with variables and values, if they contradict each other or are not numbers. get NULL: the
 * environment of this process. */
int launch_read(struct launch *launch, launch_variable *get, const void *context, struct error *err);

#endif
