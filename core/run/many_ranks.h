/* Runs with more than RANKS_LISTED ranks: metrics.jsonl and live.json list a few ranks and summarize all, so
 * that a line has a bounded length (man meopt-run). */
#ifndef MEOPT_RUN_MANY_RANKS_H
#define MEOPT_RUN_MANY_RANKS_H

#include <jansson.h>
#include <stdbool.h>

enum { RANKS_LISTED = 64, RANKS_WORST = 8, HOSTS_LISTED = 64 };

/* Marks rank 0, or all ranks if there are at most RANKS_LISTED. */
void many_ranks_begin(bool *listed, int size);
/* Marks the RANKS_WORST ranks with the largest values (sign 1) or the smallest ones (-1), the lower ranks
 * first; without those whose value is NAN. */
void many_ranks_mark(bool *listed, const double *values, int size, int sign);
/* Returns {"min", "median", "max", "min_rank", "max_rank"}. */
json_t *many_ranks_range(const double *values, int size);

struct many_range { /* NAN, -1: unknown */
    double min, median, max;
    int min_rank, max_rank;
};
struct many_range many_ranks_parse(const json_t *object, const char *key);

#endif
