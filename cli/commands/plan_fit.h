/* What an experiment is to fit into, and the rung of the memory ladder that does. */
#ifndef MEOPT_CLI_COMMANDS_PLAN_FIT_H
#define MEOPT_CLI_COMMANDS_PLAN_FIT_H

#include "cli/command.h"
#include "core/train/memory_options.h"

#include <jansson.h>

/* What one rank has. */
struct card {
    size_t bytes, free_bytes; /* free_bytes: now; all of it where nobody can say */
    char name[64];            /* "64.0 GiB named", "this machine's memory" */
    bool assumed;             /* nobody said that it will train on this machine */
};

/* By --card or --card-memory (args NULL: no options), else device.memory_limit, else the card or machine
 * here: of the cards that the ranks of a host take, so many, the least; this machine's memory they share. */
int fit_card(struct card *card, const struct arguments *args, const struct config *config, int host_ranks,
             struct error *err);

/* train.memory auto: what is free, without a twentieth for what is in no plan (the driver's, libraries'). */
size_t fit_auto(const struct card *card);

void fit_print(const struct memory_options *ladder, const char *path);
json_t *fit_json(const struct memory_options *ladder);
/* EXIT_CONFIG when no rung fits. */
int fit_check(const struct memory_options *ladder, struct error *err);

/* The words of the rung that train.memory asks for, between spaces (malloc'ed); NULL: it is not set, or the
 * experiment fits as it is. Of so many ranks, and of them on a host, into what one has. The choice is told.
 */
int fit_keys(char **keys, const struct config *config, const char *path, char **overrides, int count,
             int ranks, int host_ranks, struct error *err);

#endif
