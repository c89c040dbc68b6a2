/* The dashboard: a reader of one run directory, in a terminal. It never touches the run but by requests. */
#ifndef MEOPT_CLI_DASHBOARD_DASH_H
#define MEOPT_CLI_DASHBOARD_DASH_H

#include "cli/command.h"
#include "core/base/error.h"

#include <stdbool.h>

enum { DASH_BASELINES = 4 };

struct dash_options {
    const char *directory; /* of the run */
    char *const
        *baselines; /* (DASH_BASELINES) of others, whose curves lie beneath; NULL behind the last, or none */
    bool trains;    /* opened by meopt train: Ctrl-C asks the run to stop, its end closes the dashboard */
    bool replay;
    double speed; /* of a replay, times as fast; 0: show its end */
    bool ascii;
};

/* What --baseline names, given again and again: (DASH_BASELINES) malloc'ed, NULL behind the last. */
int dash_baselines_given(char **list, const struct arguments *args, struct error *err);
void dash_baselines_free(char **list);

/* Until the user leaves, or (trains) the run ends: then *ended is its exit code, else -1. */
int dash_view(const struct dash_options *options, int *ended, struct error *err);

#endif
