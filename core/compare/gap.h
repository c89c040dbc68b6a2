/* How far one loss curve lies from another. */
#ifndef MEOPT_COMPARE_GAP_H
#define MEOPT_COMPARE_GAP_H

#include "core/compare/record.h"

struct gap {
    double max,
        final; /* loss - reference at equal steps: of the largest absolute value, at the last common step */
    double time_max, time_final; /* at equal training time, both smoothed over 2 % of their steps; NAN when
                                    there is no common time */
};
struct gap gap_measure(const struct record *run, const struct record *reference);

#endif
