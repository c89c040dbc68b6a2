/* What signals ask of a process that trains. A handler only notes it; the loop looks between two steps, and
 * the same notes are made for requests that come as files (core/run/request.h).
 *
 *     SIGTERM SIGINT   save and stop; the second of the two, or one behind SIGUSR1: end at once, unsaved,
 * with status 128 + its number SIGUSR1          save and stop (batch systems send it before the time is over)
 *     SIGUSR2          save and go on
 */
#ifndef MEOPT_TRAIN_SIGNALS_H
#define MEOPT_TRAIN_SIGNALS_H

#include <stdbool.h>

enum signal_wish { WISH_STOP, WISH_SAVE, WISH_COUNT };

/* Catch them, with nothing asked yet. */
void signals_catch(void);
bool signals_asked(enum signal_wish wish);
/* As a signal would. */
void signals_ask(enum signal_wish wish);
/* The wish is granted: it is asked no more. */
void signals_obeyed(enum signal_wish wish);

#endif
