/* Private to the table: shared by its files. */
#ifndef MEOPT_COMPARE_TABLE_INTERNAL_H
#define MEOPT_COMPARE_TABLE_INTERNAL_H

#include "core/compare/table.h"

struct row *table_add_row(struct table *table, enum section section, const char *key, const char *label,
                          const char *unit, int better);
/* Joins the distinct texts of a column's runs, in order; malloc'ed. */
char *table_join(const struct column *column, const char *(*text)(const struct record *run, const void *what),
                 const void *what);
/* Returns the value of a key of config.yaml, "" if it is missing. */
const char *table_setting(const struct record *run, const void *key);

/* ---- checks.c ---- */

/* Adds a row for each difference that makes runs incomparable; after the settings. */
void checks_add(struct table *table);
/* Warns about settings that change the loss without the user's intention. */
void checks_warn(struct table *table);

#endif
