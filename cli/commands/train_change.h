/* Going on otherwise: a run resumed with other keys, a run of its own from an earlier checkpoint, and a new
 * run that begins with another's weights. */
#ifndef MEOPT_CLI_COMMANDS_TRAIN_CHANGE_H
#define MEOPT_CLI_COMMANDS_TRAIN_CHANGE_H

#include "cli/command.h"
#include "core/config/config.h"

/* The key=value of a command line, with those that --from stands for: the weights of that run's newest whole
 * checkpoint, and that the student begins with them. */
struct train_overrides {
    char **all;
    int count;
};
int train_overrides(struct train_overrides *o, const struct arguments *args, struct error *err);
void train_overrides_free(struct train_overrides *o);

/* A run that is there, held (*lock), and its configuration. A process that was killed a moment ago may still
 * hold it: it is waited for a little. */
int train_reopen(const char *directory, struct config *config, int *lock, struct error *err);

/* The step that `meopt train --resume` goes on from: of the newest whole checkpoint, or with --at of the last
 * one at or before that step; 0: none. */
int train_resumed_step(const struct arguments *args, const char *directory, int64_t *step, struct error *err);
/* train.steps of this command line into *steps, 0 where it says nothing: --steps N, or +N more than `from`
 * (-1: of a new run, which has none), and of a resumed run train.steps=N. Fewer than have been made are
 * refused. */
int train_steps_asked(const struct arguments *args, int64_t from, int64_t *steps, struct error *err);

/* Keys and options of this command line into the run's own config.yaml, so that whoever resumes it next has
 * them, too. *config is what the file said, and is what it says now. A key that may not be another when a run
 * goes on is EXIT_CONFIG, and nothing is written; force: keys between commas that may, NULL for none. */
int train_change_run(const struct arguments *args, const char *directory, const char *force,
                     struct config *config, struct error *err);

/* The directory of runs that a branch is made in: `parent`, or the one that the run lies in; malloc'ed. */
char *train_branch_parent(const char *directory, const char *parent);
/* A run of its own, PARENT/NAME or beside the other one, that has everything of `directory` up to its newest
 * whole checkpoint at or before `step`; the other one stays as it is. *branch is malloc'ed, *lock held. */
int train_branch(const char *directory, int64_t step, const char *parent, const char *name, char **branch,
                 int *lock, struct error *err);

#endif
