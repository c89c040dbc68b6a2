/* The memory that a configuration may use, and the memory option (core/train/memory_options.h) that fits. */
#ifndef MEOPT_CLI_COMMANDS_PLAN_FIT_H
#define MEOPT_CLI_COMMANDS_PLAN_FIT_H

#include "cli/command.h"
#include "core/train/memory_options.h"

#include <jansson.h>

/* The memory of one rank. */
struct card {
    size_t bytes, free_bytes; /* free_bytes: now; equal to bytes if unknown */
    char name[64];            /* "64.0 GiB named", "this machine's memory" */
    bool assumed; /* this machine's memory, without a statement that the run will use this machine */
};

/* Finds the memory of a rank: --card or --card-memory (args NULL: no options), else device.memory_limit, else
 * the smallest card that the host_ranks ranks of a host use, else an equal share of this machine's memory. */
int fit_card(struct card *card, const struct arguments *args, const struct config *config, int host_ranks,
             struct error *err);

/* Returns the limit of train.memory: auto: the free memory minus a twentieth, which the driver and the
 * libraries use outside of the plan. */
size_t fit_auto(const struct card *card);

void fit_print(const struct memory_options *options, const char *path);
json_t *fit_json(const struct memory_options *options);
/* Returns EXIT_CONFIG if no memory option fits. */
int fit_check(const struct memory_options *options, struct error *err);

/* Returns and logs the option that train.memory chooses. Without keys: train.memory is not set, or the
 * configuration fits unchanged. ranks: of the run; host_ranks: of this host. */
int fit_choose(struct memory_option *chosen, const struct config *config, const char *path,
               char *const *overrides, int count, int ranks, int host_ranks, struct error *err);

#endif
