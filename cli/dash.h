/* The dashboard: a reader of one run directory, in a terminal. It never touches the run but by requests. */
#ifndef MEOPT_CLI_DASH_H
#define MEOPT_CLI_DASH_H

#include "core/base/error.h"

#include <stdbool.h>

struct dash_options {
    const char *directory; /* of the run */
    const char *baseline;  /* of another, whose loss is overlaid; or NULL */
    bool trains; /* opened by meopt train: Ctrl-C asks the run to stop, its end closes the dashboard */
    bool replay;
    double speed; /* of a replay, times as fast; 0: show its end */
    bool ascii;
};

/* Until the user leaves, or (trains) the run ends: then *ended is its exit code, else -1. */
int dash_view(const struct dash_options *options, int *ended, struct error *err);

#endif
