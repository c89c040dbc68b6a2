/* Requests to a run: an empty file request/NAME in its directory. Any process with write permission
 * creates it; the process that handles it removes it. NAME: stop, checkpoint, change (the trainer;
 * change.h), stop-now (its supervisor). */
#ifndef MEOPT_RUN_REQUEST_H
#define MEOPT_RUN_REQUEST_H

#include "core/base/error.h"

#include <stdbool.h>

int run_request(const char *directory, const char *name, struct error *err);
/* Returns whether NAME was requested, and removes the request. */
bool run_requested(const char *directory, const char *name);
/* Removes requests to an earlier process. The holder of the run calls it once, before it reports its
 * start: requests that arrive during the start are kept. */
void run_requests_forget(const char *directory);

#endif
