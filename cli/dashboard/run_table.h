/* A table of runs: filter, order and columns, for 'meopt runs' and the list of runs. */
#ifndef MEOPT_CLI_DASHBOARD_RUN_TABLE_H
#define MEOPT_CLI_DASHBOARD_RUN_TABLE_H

#include "core/run/run_summary.h"

#include <stdbool.h>

enum run_order { ORDER_AGE, ORDER_NAME, ORDER_STATE, ORDER_STEP, ORDER_LOSS, ORDER_PEAK, ORDER_COUNT };
extern const char *const run_order_names[ORDER_COUNT + 1]; /* ends with NULL */

struct run_table {
    const char *directory;
    struct run_brief *briefs;   /* all directories there, by name */
    int entries, count, unread; /* directories; runs; runs with only their name read so far */
    int *shown;                 /* indices of the matching runs, in order */
    int shown_count;
    char filter[128];  /* words that must each match name, state or device; "": all runs */
    const char *state; /* NULL: any */
    enum run_order order;
    bool reversed;
};

/* Rereads the directory and changed runs, for about `seconds`. Returns false with errno if it cannot be
 * listed. *changed (may be NULL): something has changed. */
bool run_table_refresh(struct run_table *table, double seconds, bool *changed);
/* Recomputes `shown`. */
void run_table_choose(struct run_table *table);
void run_table_free(struct run_table *table);

/* Format lines with the columns that fit `width`; the rest is for the name, at least `name_width` if above
 * 0. ascii: ASCII sparkline. */
enum { RUN_LINE = 1024 };
/* Reads data of optional columns for shown runs from..from+count-1. Call it before run_table_line. */
void run_table_ready(const struct run_table *table, int from, int count, int width, int name_width);
void run_table_head(char dst[RUN_LINE], int width, int name_width);
void run_table_line(char dst[RUN_LINE], const struct run_brief *brief, int width, int name_width, bool ascii);

#endif
