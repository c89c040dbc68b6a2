/* Distance of one loss curve from another. */
#ifndef MEOPT_COMPARE_GAP_H
#define MEOPT_COMPARE_GAP_H

#include "core/compare/record.h"

struct gap {
    double max,
        /* loss - reference at equal steps: the largest absolute value, and that at the last common step */
        final;
    /* at equal training time, both smoothed over 2 % of their steps; NAN: no common time */
    double time_max, time_final;
};
struct gap gap_measure(const struct record *run, const struct record *reference);

#endif
