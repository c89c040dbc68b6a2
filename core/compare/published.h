/* Figures that others published (configs/published.yaml), as columns beside runs. */
#ifndef MEOPT_COMPARE_PUBLISHED_H
#define MEOPT_COMPARE_PUBLISHED_H

#include "core/compare/table.h"

/* Append the columns of `name` ("without", "with"), marked as published; *columns is grown. path: the YAML
 * file. EXIT_USAGE names what there is when `name` is not in it. */
int published_add(struct column **columns, int *count, const char *path, const char *name, struct error *err);
/* Each name that the file has; nothing when it cannot be read. */
void published_names(const char *path, void (*take)(void *context, const char *name), void *context);

#endif
