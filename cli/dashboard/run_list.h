/* The list of runs to choose from: what 'meopt' and 'meopt attach' open. It reads the directory of runs,
 * every two seconds what has changed, and touches none but by requests. */
#ifndef MEOPT_CLI_DASHBOARD_RUN_LIST_H
#define MEOPT_CLI_DASHBOARD_RUN_LIST_H

#include "core/base/error.h"

#include <stdbool.h>

/* EXIT_USAGE without a terminal. */
int workspace_view(const char *directory, bool ascii, struct error *err);

#endif
