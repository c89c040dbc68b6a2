/* Runs as lines: which of them, in which order, and their columns, for 'meopt runs' and the workspace. */
#ifndef MEOPT_CLI_DASHBOARD_RUN_TABLE_H
#define MEOPT_CLI_DASHBOARD_RUN_TABLE_H

#include "core/run/run_summary.h"

#include <stdbool.h>

enum run_order { ORDER_AGE, ORDER_NAME, ORDER_STATE, ORDER_STEP, ORDER_LOSS, ORDER_PEAK, ORDER_COUNT };
extern const char *const run_order_names[ORDER_COUNT + 1]; /* ends with NULL */

struct run_table {
    const char *directory;
    struct run_brief *briefs;   /* all directories there, by name */
    int entries, count, unread; /* of these; of runs; of which no more than a name is known yet */
    int *shown;                 /* indices of those that pass, in order */
    int shown_count;
    char filter[128];  /* of words, each of which name, state or device must hold; "" all */
    const char *state; /* NULL: any */
    enum run_order order;
    bool reversed;
};

/* Look at the directory: runs that are new or gone, and what has changed, for about `seconds`. False (errno)
 * when it cannot be listed. *changed (may be NULL): something has. */
bool run_table_refresh(struct run_table *table, double seconds, bool *changed);
/* shown, anew. */
void run_table_choose(struct run_table *table);
void run_table_free(struct run_table *table);

/* The columns that fit `width`; names get what is left, at least `name_width` when that is above 0. ascii:
 * the sparkline in ASCII. dst of RUN_LINE bytes. */
enum { RUN_LINE = 1024 };
/* First, for those that are shown from..from+count-1: what only some widths have room for is read. */
void run_table_ready(const struct run_table *table, int from, int count, int width, int name_width);
void run_table_head(char dst[RUN_LINE], int width, int name_width);
void run_table_line(char dst[RUN_LINE], const struct run_brief *brief, int width, int name_width, bool ascii);

#endif
