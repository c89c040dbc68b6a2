/* Hooks: user commands that the supervisor runs. --on-event runs for each new line of events.jsonl,
 * --on-end once at the end.
 *
 * Hooks run one after another, in parallel with training, each in its own session. They receive the event
 * as environment variables and as a line of JSON on standard input; their output is appended to
 * RUN/hooks.log. The supervisor warns once about a hook that fails and kills one after a minute. Hooks do
 * not affect the run or its exit code.
 */
#ifndef MEOPT_CLI_SUPERVISOR_HOOKS_H
#define MEOPT_CLI_SUPERVISOR_HOOKS_H

#include "core/base/error.h"

#include <stdbool.h>

struct hooks;

/* Starts after the existing events. Returns NULL without commands; all functions below accept NULL. */
struct hooks *hooks_open(const char *directory, const char *on_event, const char *on_end);
/* Sets the new path of the run directory; NULL: it is missing, and output of hooks is discarded. */
void hooks_moved(struct hooks *hooks, const char *directory);
/* Reads new events, starts the next hook and reaps ended ones. Does not block. */
void hooks_update(struct hooks *hooks);
/* Queues --on-end, after state.json has the final status. */
void hooks_ended(struct hooks *hooks, int exit_code, const struct error *err);
/* Returns whether a hook runs or is queued. */
bool hooks_busy(const struct hooks *hooks);
/* Kills the running hook and drops queued ones. */
void hooks_close(struct hooks *hooks);

#endif
