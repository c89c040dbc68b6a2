/* Runs as people call them on the command line: a directory, a name below --run-dir, or the beginning of one.
 */
#ifndef MEOPT_CLI_RUN_NAME_H
#define MEOPT_CLI_RUN_NAME_H

#include "core/base/error.h"

#include <stdbool.h>

/* Names of the runs in a directory, sorted, malloc'ed each and together; NULL is none. count < 0: it cannot
 * be listed (errno says why). Without `look`, names of all directories: what is no run is not told from one,
 * which costs a call for each. */
char **run_names(const char *directory, bool look, int *count);
void run_names_free(char **names, int count);

/* The directory of the run that `word` means, malloc'ed: what exists by that path, else the run of that name
 * in `parent` ("runs" when NULL), else the only run whose name begins so. NULL, with EXIT_FAILED or
 * EXIT_USAGE in *code, when there is none or more than one (errno 0), or `parent` cannot be listed
 * (errno says why). */
char *run_named(const char *word, const char *parent, int *code, struct error *err);

#endif
