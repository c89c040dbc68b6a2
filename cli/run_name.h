/* Finds runs by the words of a command line: a directory, a name in --run-dir, or a unique prefix of one. */
#ifndef MEOPT_CLI_RUN_NAME_H
#define MEOPT_CLI_RUN_NAME_H

#include "core/base/error.h"

#include <stdbool.h>

/* Returns the sorted names of the runs in a directory; free with run_names_free. *count < 0: the directory
 * cannot be listed (errno has the reason). check: keep only directories with a config.yaml, which costs one
 * system call each; else all directories are returned. */
char **run_names(const char *directory, bool check, int *count);
void run_names_free(char **names, int count);

/* Returns the directory of the run `word`, malloc'ed: the path itself if it exists, else the run of that
 * name in `parent` (NULL: "runs"), else the only run whose name has that prefix. Returns NULL with
 * EXIT_FAILED or EXIT_USAGE in *code if there is no such run or more than one (errno 0), or if `parent`
 * cannot be listed (errno has the reason). */
char *run_named(const char *word, const char *parent, int *code, struct error *err);

/* Returns the directories of the runs of the sweep or array `word`, as `meopt sbatch` names them:
 * word-KEY=VALUE ..., else word-0, word-1 ... (at least two); free with run_names_free. NULL: none, or a run
 * or a file has that very name. */
char **run_sweep(const char *word, const char *parent, int *count);

#endif
