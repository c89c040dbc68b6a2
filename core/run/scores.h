/* The metrics that objectives add to the loss, one row each: names for files and people. The parser of lines,
 * dashboard, compare, TensorBoard and Prometheus read the rows. A run has those of its objective; NAN is
 * unknown. */
#ifndef MEOPT_RUN_SCORES_H
#define MEOPT_RUN_SCORES_H

#include <stdbool.h>
#include <stddef.h>

enum score {
    SCORE_COSINE,
    SCORE_TOP1,
    SCORE_TOP5,
    SCORE_VAL_LOSS,
    SCORE_VAL_TOP1,
    SCORE_VAL_TOP5,
    SCORE_COUNT
};

struct score_row {
    const char *key;          /* in metrics.jsonl, tag in TensorBoard */
    const char *label;        /* for people */
    const char *gauge, *help; /* in Prometheus */
    bool percent;             /* a share from 0 to 1, which people read as a percentage */
    bool rare;                /* only in the lines of evaluations */
    bool lower;               /* the better, the lower */
};
extern const struct score_row score_rows[SCORE_COUNT];

#define SCORES_UNKNOWN                                                                                       \
    {                                                                                                        \
        NAN, NAN, NAN, NAN, NAN, NAN                                                                         \
    }
_Static_assert(SCORE_COUNT == 6, "SCORES_UNKNOWN has one NAN per row");

/* Returns the row of a key of metrics.jsonl; NULL: none. */
const struct score_row *score_named(const char *key);
/* Writes the value for people, as "93.75%" or with `format`. Returns dst. */
char *score_text(char *dst, size_t size, const struct score_row *row, double value, const char *format);
/* Keeps the better values. */
void scores_best(double into[SCORE_COUNT], const double from[SCORE_COUNT]);
/* Copies the scores of a step, and keeps the last ones of evaluations. */
void scores_update(double into[SCORE_COUNT], const double from[SCORE_COUNT]);

#endif
