/* meopt train with several ranks: how many there are, who starts them, on which cards. */
#ifndef MEOPT_CLI_COMMANDS_TRAIN_RANKS_H
#define MEOPT_CLI_COMMANDS_TRAIN_RANKS_H

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

/* What the environment says; nothing is started. To be called first. args, here and below: of 'meopt train';
 * NULL: of a command that has none of its options. */
int train_ranks_read(struct train_ranks *r, const struct arguments *args, struct error *err);
/* One that a launcher started, and not rank 0: it does not come back but for an error. resume: the run's
 * directory, or NULL. */
bool train_ranks_follows(const struct train_ranks *r);
int train_ranks_follow(struct train_ranks *r, const struct arguments *args, const char *resume,
                       const char *force, struct error *err);

/* --cards and --workers into the configuration. */
int train_ranks_assign(const struct train_ranks *r, const struct arguments *args, struct config *config,
                       struct error *err);
/* From that configuration, before it is resolved. directory: that the ranks of a launcher share, of runs or
 * of the run. */
int train_ranks_plan(struct train_ranks *r, const struct arguments *args, const struct config *config,
                     const char *directory, struct error *err);
/* The i-th number of device.cards; -1: there are not so many. */
int train_ranks_card(const struct config *config, int i);
/* Of the ranks of the plan, so many are on a host. */
int train_ranks_of_host(const struct train_ranks *r);
void train_ranks_free(struct train_ranks *r);

#endif
