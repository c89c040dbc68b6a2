/* Monotonic time for measurements. It never runs backwards; values of different machines or boots cannot be
 * compared. */
#ifndef MEOPT_BASE_CLOCK_H
#define MEOPT_BASE_CLOCK_H

#include <time.h>

static inline double clock_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif
