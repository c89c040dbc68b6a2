/* What a heartbeat does for ranks that are processes, for two that are threads: each gives, all see. */
#ifndef MEOPT_TESTS_RANKS_HAND_ROUND_H
#define MEOPT_TESTS_RANKS_HAND_ROUND_H

#include "core/comm/comm.h"

#include <pthread.h>
#include <string.h>

enum { RANKS = 2, MOST_OFFER = 512 };

static pthread_barrier_t all_here; /* of RANKS */
static char handed_round[RANKS][MOST_OFFER];

/* comm_options.exchange; its context: the rank's own options */
static inline int hand_round(void *context, const char *name, const void *own, size_t bytes, void *all,
                             struct error *err)
{
    const struct comm_options *options = context;
    (void)name;
    if (bytes > MOST_OFFER) return error_set(err, EXIT_FAILED, NULL, "%zu bytes", bytes);
    memcpy(handed_round[options->rank], own, bytes);
    pthread_barrier_wait(&all_here);
    for (int q = 0; q < RANKS; q++) memcpy((char *)all + (size_t)q * bytes, handed_round[q], bytes);
    pthread_barrier_wait(&all_here);
    return 0;
}

#endif
