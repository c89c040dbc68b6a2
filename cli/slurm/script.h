/* The runs of a job script: the lines '#MEOPT task=... run=... config=... override=...' that `meopt sbatch`
 * writes next to the commands, and their reader. The run of a command that differs from its line is unknown.
 * Nothing of a script is executed or interpreted. */
#ifndef MEOPT_CLI_SLURM_SCRIPT_H
#define MEOPT_CLI_SLURM_SCRIPT_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stdio.h>

struct slurm_script {
    char task[16]; /* "": no array; a number of a sweep; "*": every number N, with -N after the run, for %a */
    char *run;     /* directory of the run, absolute */
    char *config;  /* its configuration, absolute */
    char **overrides;
    int override_count, value_count; /* of the overrides the last value_count are the values of a sweep */
};

/* Adds a copy of an override. */
void slurm_script_add(struct slurm_script *script, const char *override);
void slurm_script_free(struct slurm_script *script);

/* Writes the line of a run. Bytes up to ' ', and %, are written as %XX. */
void slurm_script_write_line(FILE *out, const struct slurm_script *script);
/* Writes the words of its command from "train" on, which take name and values of a sweep from variables. */
void slurm_script_write_command(FILE *out, const struct slurm_script *script);
/* Writes the arm of a `case` that sets these variables. */
void slurm_script_write_case(FILE *out, const struct slurm_script *script);
/* Writes one quoted word for the shell; with `array` every %a becomes the number of the task. */
void slurm_script_write_word(FILE *out, const char *text, bool array);

/* Reads the run of a task ("": no array). An error: the script has no line of the task, or a different
 * command. */
int slurm_script_read(struct slurm_script *script, const char *text, const char *job, const char *task,
                      struct error *err);
/* Finds the task whose run is in this directory: task (16 bytes) becomes its number, "" for no array. */
bool slurm_script_find(const char *text, const char *run, char task[16]);

/* Returns the path of a run with the real path of its parent directory, malloc'ed. */
char *slurm_run_path(const char *run);

#endif
