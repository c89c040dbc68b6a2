/* meopt compare --run: trains the same configuration without and with MEOpt. */
#ifndef MEOPT_CLI_COMMANDS_COMPARE_RUN_H
#define MEOPT_CLI_COMMANDS_COMPARE_RUN_H

#include "core/base/error.h"

struct compare_plan {
    const char *config;
    char **overrides;
    int override_count;
    int repeats;                /* with seeds train.seed, train.seed + 1, ... */
    const char *run_dir, *name; /* NULL: run.dir or "runs"; the name of the file */
};

/* Trains the runs DIR/NAME-without-R and DIR/NAME-with-R (one repeat: without -R) that are not done, and
 * resumes interrupted ones. Each trains like 'meopt train', under a supervisor and on all cards of
 * device.cards. directories receives 2 * repeats names (malloc'ed): all without MEOpt, then all with.
 * EXIT_STOPPED if a stop was requested. */
int compare_run(const struct compare_plan *plan, char **directories, struct error *err);

#endif
