/* Requests to a run: an empty file request/NAME in its directory. Anyone who may write there makes it; who
 * obeys takes it away. NAME: stop, checkpoint, change (the trainer; change.h), stop-now (its supervisor). */
#ifndef MEOPT_RUN_REQUEST_H
#define MEOPT_RUN_REQUEST_H

#include "core/base/error.h"

#include <stdbool.h>

int run_request(const char *directory, const char *name, struct error *err);
/* Whether NAME was asked for; the request is taken away. */
bool run_requested(const char *directory, const char *name);
/* Those that were made for an earlier process: to be called by whoever holds the run, before it says that it
 * starts, and by nobody later: a request that comes while a run starts is one. */
void run_requests_forget(const char *directory);

#endif
