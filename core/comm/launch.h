/* Who started this process, and as which of how many: what srun, mpirun and torchrun leave in the
 * environment. Nothing here starts anything; the variables are read, compared, and refused where they
 * contradict each other.
 *
 * A launcher often stands inside another one: mpirun inside a job of sbatch, torchrun inside srun, Open MPI
 * under srun --pty. The innermost one counts. Which that is, is the order of the table in launch.c.
 */
#ifndef MEOPT_COMM_LAUNCH_H
#define MEOPT_COMM_LAUNCH_H

#include "core/base/error.h"

#include <stdbool.h>

enum { LAUNCH_RANKS_MAX = 65536 };

struct launch {
    const char *launcher; /* for people: "srun"; NULL: none, this is one process alone */
    int rank, size;       /* 0 of 1 without a launcher */
    int local_rank;       /* on this machine; -1: not told */
    int local_size;       /* -1: not told */
    bool one_host;        /* all ranks are on this machine, as far as that is told */
    char job[160];        /* names this launch among others, fit for a file's name; "" without a launcher */
    int idle_tasks; /* tasks of a Slurm job that this process is no step of: srun was left out; else 0 */
};

/* The value of an environment variable, or NULL: getenv, and a table in tests. */
typedef const char *launch_variable(const char *name, const void *context);

/* EXIT_USAGE with the variables and what they say where they contradict each other or are no numbers. `get`
 * NULL: the environment of this process. */
int launch_read(struct launch *launch, launch_variable *get, const void *context, struct error *err);

#endif
