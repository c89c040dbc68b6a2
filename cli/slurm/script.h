/* The run that a job script starts: reads the command 'meopt train' of a script, as `meopt sbatch` writes it,
 * also after a user has edited it. Nothing of the script is executed. */
#ifndef MEOPT_CLI_SLURM_SCRIPT_H
#define MEOPT_CLI_SLURM_SCRIPT_H

#include "core/base/error.h"

#include <stdbool.h>

struct slurm_script {
    char *run;    /* directory of the run */
    char *config; /* its configuration */
    char **overrides;
    int override_count;
};

/* Reads the command of a task ("": no array). Relative paths are relative to `directory`. An error: the
 * script has no such command, or it depends on variables whose values are unknown. */
int slurm_script_read(struct slurm_script *script, const char *text, const char *job, const char *task,
                      const char *directory, struct error *err);
void slurm_script_free(struct slurm_script *script);

/* Returns the name of the run of a task of a sweep, malloc'ed; NULL: the script is no sweep, or has no such
 * task. */
char *slurm_script_sweep_name(const char *text, int task);
/* Finds the task whose run is in this directory: task (16 bytes) becomes its number, "" for no array. */
bool slurm_script_find(const char *text, const char *job, const char *directory, const char *run,
                       char task[16]);

/* Returns the path of a run with the real path of its parent directory, malloc'ed. */
char *slurm_run_path(const char *run);

#endif
