/* The memory of a card: of one given by name, or of those that a configuration uses. */
#ifndef MEOPT_CLI_PLAN_CARD_H
#define MEOPT_CLI_PLAN_CARD_H

#include "cli/command.h"
#include "core/config/config.h"
#include "core/device/card_peak.h"

/* Returns in *bytes the nominal memory of a card by its trade name. EXIT_USAGE with the known names for an
 * unknown one. */
int plan_card_bytes(const char *name, size_t *bytes, struct error *err);
/* Returns the i-th known name; NULL after the last. */
const char *plan_card_name(int i);

/* Returns the published peaks of a card by its trade name; 0: not known. */
struct card_peaks plan_card_peaks(const char *name);

/* The memory of one rank. */
struct card {
    size_t bytes, free_bytes; /* free_bytes: now; equal to bytes if unknown */
    char name[64];            /* "64.0 GiB named", "this machine's memory" */
    bool assumed; /* this machine's memory, without a statement that the run will use this machine */
};
/* Finds the memory of a rank: --card or --card-memory (args NULL: no options), else device.memory_limit, else
 * the smallest card that the host_ranks ranks of a host use, else an equal share of this machine's memory. */
int plan_card_find(struct card *card, const struct arguments *args, const struct config *config,
                   int host_ranks, struct error *err);

#endif
