/* The list of a tower's parameters, with checkpoint names. */
#ifndef MEOPT_MODEL_PARAMETERS_H
#define MEOPT_MODEL_PARAMETERS_H

#include "core/model/family.h"

/* Fills a new list (malloc'ed) in group order; returns the count. */
int parameters_list(const struct model_shape *model_shape, int64_t target, struct parameter **list);

int role_part(enum role role);                               /* PART_... that the role belongs to, 0: none */
int role_ndim(const struct family_row *row, enum role role); /* dimensions of its tensor after leading 1s */

#endif
