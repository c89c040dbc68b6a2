/* Signals and requests to a training process, and how it handles them (man meopt-train, STOPPING). A signal
 * handler and a request file (core/run/request.h) both set a flag. The loop reads the flags between two
 * steps, between two images of the teacher's pass, between two micro-batches of an evaluation, and between
 * two stages of loading.
 *
 *     SIGTERM SIGINT SIGUSR1, request/stop   REQUEST_STOP, repeated or in any order
 *     SIGXCPU SIGPWR                         REQUEST_STOP: processor time (ulimit -t) or power runs out
 *     SIGUSR2, request/checkpoint            REQUEST_SAVE
 *     request/change                         REQUEST_CHANGE
 *     SIGHUP                                 ignored
 *
 *     request         loading, teacher's pass   waiting, step               saving
 *     REQUEST_STOP    exit, nothing to save     save after the step, exit   exit after the save
 *     REQUEST_SAVE    after the first step      save after the step         after the next step
 *     REQUEST_CHANGE  after the first step      after the step              after the next step
 *
 * During an evaluation, REQUEST_STOP ends it (its result is left out), then saves and exits.
 *
 * These never end a process without saving. Two others do: request/stop-now, which the supervisor handles,
 * and a second Ctrl-C more than a second after the first. Batch systems and terminals send one signal to
 * several processes, which forward it to each other; therefore repeats within that second count as one.
 */
#ifndef MEOPT_TRAIN_SIGNALS_H
#define MEOPT_TRAIN_SIGNALS_H

#include "core/train/loop.h"

#include <stdbool.h>

enum signal_request { REQUEST_NONE, REQUEST_STOP, REQUEST_SAVE, REQUEST_CHANGE, REQUEST_COUNT };
enum signal_act { ACT_CONTINUE, ACT_SAVE, ACT_STOP, ACT_SAVE_STOP, ACT_CHANGE };

/* Installs the handlers and clears all requests. Signals that arrived while they were blocked are kept: a
 * supervisor starts its worker with signals blocked. Request files are read in the directory of `run`, which
 * may be moved and must remain valid; NULL: no request files. */
void signals_catch(struct run *run);
/* Returns the request of signal `number`. */
enum signal_request signals_request(int number);
/* Clears a request that was handled. */
void signals_handled(enum signal_request request);
/* Returns whether a request is pending. */
bool signals_asked(enum signal_request request);
/* Returns the action that the pending requests require in this phase. */
enum signal_act signals_act(enum train_phase phase);

/* Returns whether an interrupt at `now` (clock_seconds()) is a second Ctrl-C that ends the process at once.
 * interrupts: initialized as {0}. */
struct signal_interrupts {
    bool any;
    double first;
};
bool signals_force_quit(struct signal_interrupts *interrupts, double now);

#endif
