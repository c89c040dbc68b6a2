/* What meopt plan tells beside its table: tensors with their remedies, cards by name. */
#ifndef MEOPT_CLI_COMMANDS_PLAN_EXPLAIN_H
#define MEOPT_CLI_COMMANDS_PLAN_EXPLAIN_H

#include "core/train/memory_explain.h"

#include <jansson.h>

/* A class by name; -1: all. */
int plan_explain_class(const char *name);
/* One tensor in a line of w columns; with the key that shrinks it where there is room. */
void plan_explain_line(char *dst, size_t size, const struct explanation *e, const struct explain_row *row);
void plan_explain_print(const struct explanation *e, int class);
json_t *plan_explain_json(const struct explanation *e, int class);

/* Memory of a card by the name that people give it. EXIT_USAGE with the names for any other, and for
 * "list". */
int plan_card(const char *name, size_t *bytes, struct error *err);
/* The names that it knows; NULL behind the last. */
const char *plan_card_name(int i);

#endif
