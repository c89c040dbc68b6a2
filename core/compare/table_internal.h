/* Inside the table: what its files share. */
#ifndef MEOPT_COMPARE_TABLE_INTERNAL_H
#define MEOPT_COMPARE_TABLE_INTERNAL_H

#include "core/compare/table.h"

struct row *table_add_row(struct table *table, enum section section, const char *key, const char *label,
                          const char *unit, int better);
/* Distinct texts of a column's runs, in order, joined; malloc'ed. */
char *table_join(const struct column *column, const char *(*text)(const struct record *run, const void *what),
                 const void *what);
/* The value of a key of config.yaml, "" without one. */
const char *table_setting(const struct record *run, const void *key);

/* ---- checks.c ---- */

/* Adds a row for everything that stands in the way of a comparison; after the settings. */
void checks_add(struct table *table);
/* Warns about settings that change the loss though nobody asked for it. */
void checks_warn(struct table *table);

#endif
