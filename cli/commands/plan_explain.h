/* 'meopt plan --explain': tensors, each with the setting that shrinks it; '--card': memory by name. */
#ifndef MEOPT_CLI_COMMANDS_PLAN_EXPLAIN_H
#define MEOPT_CLI_COMMANDS_PLAN_EXPLAIN_H

#include "core/train/memory_explain.h"

#include <jansson.h>

/* Returns the class of that name; -1 for "all". */
int plan_explain_class(const char *name);
/* Formats one tensor as a line; adds the keys that shrink it if they fit into size. */
void plan_explain_line(char *dst, size_t size, const struct explanation *e, const struct explain_row *row);
void plan_explain_print(const struct explanation *e, int class);
json_t *plan_explain_json(const struct explanation *e, int class);

/* Returns in *bytes the nominal memory of a card by its trade name. EXIT_USAGE with the known names for an
 * unknown one. */
int plan_card(const char *name, size_t *bytes, struct error *err);
/* Returns the i-th known name; NULL after the last. */
const char *plan_card_name(int i);

#endif
