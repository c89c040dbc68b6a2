/* What signals and requests ask of a process that trains: the one table of it (man meopt-train, STOPPING).
 * A handler only notes a wish, a request (core/run/request.h) notes the same one, and the loop looks where it
 * can obey: between two steps, between two images of the teacher's pass, between two stages of loading.
 *
 *     SIGTERM SIGINT SIGUSR1, request/stop   REQUEST_STOP, however often and in whatever order
 *     SIGXCPU SIGPWR                         the same: processor time (ulimit -t) and power run out
 *     SIGUSR2, request/checkpoint            REQUEST_SAVE
 *     request/change                         REQUEST_CHANGE
 *     SIGHUP                                 nothing
 *
 *     wish        loading, teacher's pass    waiting, step               saving
 *     REQUEST_STOP   leave, nothing is unsaved  save behind the step, leave  leave behind the save
 *     REQUEST_SAVE   behind the first step      save behind the step         behind the next step
 *     REQUEST_CHANGE behind the first step      behind the step              behind the next step
 *
 * Nothing of this ends a process without saving. Two things do: request/stop-now, which the supervisor obeys,
 * and haste: a person's second Ctrl-C, more than a second behind the first. Batch systems and terminals send
 * the same signal to several processes, which pass it on to each other, so what comes within that second is
 * the first one again.
 */
#ifndef MEOPT_TRAIN_SIGNALS_H
#define MEOPT_TRAIN_SIGNALS_H

#include "core/train/loop.h"

#include <stdbool.h>

enum signal_request { REQUEST_NONE, REQUEST_STOP, REQUEST_SAVE, REQUEST_CHANGE, REQUEST_COUNT };
enum signal_act { ACT_CONTINUE, ACT_SAVE, ACT_STOP, ACT_SAVE_STOP, ACT_CHANGE };

/* Catch them, with nothing asked yet but what came while they were blocked (a supervisor starts its worker
 * so, and none is lost). Requests are looked for in the directory of this run, which may be moved meanwhile
 * and must stay valid; NULL: none. */
void signals_catch(struct run *run);
/* What signal `number` asks for. */
enum signal_request signals_request(int number);
/* The wish is granted: it is asked no more. */
void signals_handled(enum signal_request wish);
/* Whether it is asked and not granted yet. */
bool signals_asked(enum signal_request wish);
/* What the wishes mean in this phase, at the next point where it can be left. */
enum signal_act signals_act(enum train_phase phase);

/* Interrupts of a person: whether the one at `now` (clock_seconds()) asks for haste. Starts as {0}. */
struct signal_interrupts {
    bool any;
    double first;
};
bool signals_force_quit(struct signal_interrupts *interrupts, double now);

#endif
