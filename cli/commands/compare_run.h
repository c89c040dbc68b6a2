/* meopt compare --run: train the same experiment without and with MEOpt. */
#ifndef MEOPT_CLI_COMMANDS_COMPARE_RUN_H
#define MEOPT_CLI_COMMANDS_COMPARE_RUN_H

#include "core/base/error.h"

struct compare_plan {
    const char *config;
    char **overrides;
    int override_count;
    int repeats;                /* with seeds train.seed, train.seed + 1, ... */
    const char *run_dir, *name; /* NULL: run.dir or runs, and the file's name */
};

/* Runs what is not done yet, in DIR/NAME-without-R and DIR/NAME-with-R (without -R when there is one repeat
 * only); a run that was broken off goes on from its checkpoint. directories gets 2 * repeats names
 * (malloc'ed): all without, then all with. Each trains as 'meopt train' would, under a supervisor and on all
 * cards of device.cards. EXIT_STOPPED when asked to stop. */
int compare_run(const struct compare_plan *plan, char **directories, struct error *err);

#endif
