/* Views of memory options (core/plan/memory_options.h): --what-if, --explain and --fit of 'meopt plan', and
 * the choice of train.memory. */
#ifndef MEOPT_CLI_PLAN_MEMORY_H
#define MEOPT_CLI_PLAN_MEMORY_H

#include "cli/plan/plan_card.h"
#include "core/plan/memory_explain.h"

#include <jansson.h>

/* Prints the settings of --what-if. */
void plan_memory_print_settings(const struct explanation *e, int ranks);
/* Prints the tensors of a class, -1: of all, each with the setting that shrinks it. */
void plan_memory_print_tensors(const struct explanation *e, int class);
/* Adds both. */
void plan_memory_explain_json(json_t *root, const struct explanation *e, int class);

void plan_memory_print_fit(const struct memory_options *options, const char *path);
json_t *plan_memory_fit_json(const struct memory_options *options);
/* Returns EXIT_CONFIG if no memory option fits. */
int plan_memory_check(const struct memory_options *options, struct error *err);

/* Returns the limit of train.memory: auto: the free memory minus a twentieth, which the driver and the
 * libraries use outside of the plan. */
size_t plan_memory_auto(const struct card *card);
/* Returns and logs the option that train.memory chooses. Without keys: train.memory is not set, or the
 * configuration fits unchanged. ranks: of the run; host_ranks: of this host. */
int plan_memory_choose(struct memory_option *chosen, const struct config *config, const char *path,
                       char *const *overrides, int count, int ranks, int host_ranks, struct error *err);

#endif
