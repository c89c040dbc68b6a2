/* Published figures (configs/published.yaml) as columns next to runs. */
#ifndef MEOPT_COMPARE_PUBLISHED_H
#define MEOPT_COMPARE_PUBLISHED_H

#include "core/compare/table.h"

/* Appends the columns of `name` ("without", "with"), marked as published; grows *columns. path: the YAML
 * file. EXIT_USAGE lists the available names if `name` is not in it. */
int published_add(struct column **columns, int *count, const char *path, const char *name, struct error *err);
/* Calls `take` for each name in the file; for none if it cannot be read. */
void published_names(const char *path, void (*take)(void *context, const char *name), void *context);

#endif
