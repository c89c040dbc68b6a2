/* Ranks of 'meopt train': their number, their launcher, and their cards. */
#ifndef MEOPT_CLI_TRAIN_RANKS_H
#define MEOPT_CLI_TRAIN_RANKS_H

#include "cli/command.h"
#include "cli/supervisor/supervise.h"
#include "core/config/config.h"
#include "core/comm/launch.h"

struct train_ranks {
    struct launch launch;
    struct supervised_ranks how;
    char *file;   /* how.file */
    char **cards; /* how.cards */
};

/* Reads the launcher's environment; call it first. args, here and below: of 'meopt train'; NULL: a command
 * without its options. */
int train_ranks_read(struct train_ranks *r, const struct arguments *args, struct error *err);
/* train_ranks_follows: returns whether a launcher started this process as a rank above 0.
 * train_ranks_follow: becomes the worker of that rank; returns only with an error. resume: the run's
 * directory, or NULL. */
bool train_ranks_follows(const struct train_ranks *r);
int train_ranks_follow(struct train_ranks *r, const struct arguments *args, const char *resume,
                       const char *force, struct error *err);

/* Writes --cards and --workers into the configuration. */
int train_ranks_assign(const struct train_ranks *r, const struct arguments *args, struct config *config,
                       struct error *err);
/* Plans the ranks of that configuration, before it is resolved. directory: shared by the ranks of a
 * launcher, the directory of runs or the run's. */
int train_ranks_plan(struct train_ranks *r, const struct arguments *args, const struct config *config,
                     const char *directory, struct error *err);
/* Returns the i-th number of device.cards; -1: there are fewer. */
int train_ranks_card(const struct config *config, int i);
/* Returns the number of planned ranks on this host. */
int train_ranks_of_host(const struct train_ranks *r);
void train_ranks_free(struct train_ranks *r);

#endif
