/* Commands of the user's that a supervisor runs when something happens to its run: --on-event, for each line
 * that events.jsonl gets, and --on-end, once.
 *
 * They run one after another beside the training, in sessions of their own, with the facts in their
 * environment and as a line of JSON on standard input; what they say goes to RUN/hooks.log. One that fails is
 * told once, one that hangs is killed after a minute: nothing of it touches the run or its exit code.
 */
#ifndef MEOPT_CLI_SUPERVISOR_HOOKS_H
#define MEOPT_CLI_SUPERVISOR_HOOKS_H

#include "core/base/error.h"

#include <stdbool.h>

struct hooks;

/* Events that stand there already are not told. NULL when neither command is given; everything below takes
 * it. */
struct hooks *hooks_open(const char *directory, const char *on_event, const char *on_end);
/* The run is at this path now; NULL: nowhere, and what commands say is not kept. */
void hooks_moved(struct hooks *hooks, const char *directory);
/* Look for events, begin what waits, reap what has ended. Does not block. */
void hooks_update(struct hooks *hooks);
/* The run has ended so, and state.json says it. */
void hooks_ended(struct hooks *hooks, int exit_code, const struct error *err);
/* Something runs or waits. */
bool hooks_busy(const struct hooks *hooks);
/* Kills what runs, forgets what waits. */
void hooks_close(struct hooks *hooks);

#endif
