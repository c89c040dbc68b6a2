/* The dashboard: shows one run directory in a terminal. It changes the run only through requests. */
#ifndef MEOPT_CLI_DASHBOARD_DASH_H
#define MEOPT_CLI_DASHBOARD_DASH_H

#include "cli/command.h"
#include "core/base/error.h"

#include <stdbool.h>

enum { DASH_BASELINES = 4 };

struct dash_options {
    const char *directory; /* of the run */
    char *const
        *baselines; /* (DASH_BASELINES) directories of runs to compare with, NULL after the last; NULL: none
        **/
    bool trains;    /* opened by meopt train: Ctrl-C requests a stop, the end of the run closes it */
    bool replay;
    double speed; /* of a replay, relative to the run; 0: show the end */
    bool ascii;
};

/* Reads all --baseline options into list (DASH_BASELINES), NULL after the last; dash_baselines_free frees
 * them. */
int dash_baselines_given(char **list, const struct arguments *args, struct error *err);
void dash_baselines_free(char **list);

/* Runs the dashboard until the user leaves or, with `trains`, the run ends: *ended is its exit code, or -1.
 * */
int dash_view(const struct dash_options *options, int *ended, struct error *err);

#endif
