/* What downloads that run at the same time share: connections, and the pauses that a busy server asks for. */
#ifndef MEOPT_FETCH_CONNECTIONS_H
#define MEOPT_FETCH_CONNECTIONS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Each download has one connection of its own. spare: more of them, for further ranges of a large file. */
struct connections {
    atomic_int spare;
    _Atomic int64_t resume_ms; /* of clock_seconds: no request begins before */
};

/* Takes a spare connection. Returns false if there is none. */
bool connections_take(struct connections *c);
/* Gives connections back. */
void connections_return(struct connections *c, int count);
/* Lets no request begin before this time of clock_seconds. */
void connections_pause(struct connections *c, double until);
/* Returns that time; 0: none. */
double connections_resume(const struct connections *c);

#endif
