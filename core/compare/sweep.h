/* A sweep: runs that differ by the values of some keys, as one table with a line per run, the best first. Its
 * columns are rows of the comparison, which the other outputs print, too. */
#ifndef MEOPT_COMPARE_SWEEP_H
#define MEOPT_COMPARE_SWEEP_H

#include "core/compare/output.h"

#include <jansson.h>

/* A run of the sweep that Slurm knows. */
struct sweep_task {
    char *name, *job, *state; /* state as squeue has it; owned */
};
struct sweep_tasks {
    struct sweep_task *all;
    int count;
};

struct sweep {
    char *name;                 /* owned */
    const char *metric;         /* key of the fact that orders the runs */
    struct sweep_tasks missing; /* they have no directory */
    struct sweep_tasks queued;  /* they have one, and wait to be resumed */
};

/* Orders the columns from first to before: finished runs, then others, each by the metric that chooses the
 * best checkpoint if all finished runs have it, else by the converged loss. `best`: the metric of the
 * objective, or NULL. Returns the key of the fact. */
const char *sweep_sort(struct column *columns, int first, int before, const char *best);
void sweep_free(struct sweep *sweep);

void sweep_terminal(FILE *out, const struct table *table, const struct output_options *options);
void sweep_markdown(FILE *out, const struct table *table);
void sweep_html(FILE *out, const struct table *table);
/* name, metric, keys, missing and queued. */
json_t *sweep_json(const struct table *table);

#endif
