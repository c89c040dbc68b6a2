/* Changes of runs: resuming a run with changed keys (--resume), a branch from an earlier checkpoint (--at),
 * and a new run that begins with the weights of an earlier one (--from). */
#ifndef MEOPT_CLI_TRAIN_CHANGE_H
#define MEOPT_CLI_TRAIN_CHANGE_H

#include "cli/command.h"
#include "core/config/config.h"

/* The key=value words of a command line, and those that --from implies: model_s.weight of the run's newest
 * complete checkpoint, and model_s.init. */
struct train_overrides {
    char **all;
    int count;
};
int train_overrides(struct train_overrides *o, const struct arguments *args, struct error *err);
void train_overrides_free(struct train_overrides *o);

/* Locks an existing run (*lock) and loads its configuration. Waits up to 3 s for a process that was just
 * killed. */
int train_reopen(const char *directory, struct config *config, int *lock, struct error *err);

/* Returns in *step the step from which --resume continues: that of the newest complete checkpoint, with
 * --at of the last one at or before that step; 0: none. */
int train_resumed_step(const struct arguments *args, const char *directory, int64_t *step, struct error *err);
/* Returns in *steps the total steps that the command line requests (0: none): --steps N, --steps +N (N more
 * than `from`; -1: a new run), or train.steps=N of a resumed run. EXIT_USAGE if the run has already made
 * more. */
int train_steps_asked(const struct arguments *args, int64_t from, int64_t *steps, struct error *err);

/* Writes keys and options of the command line into the run's config.yaml, so that later resumes use them,
 * and loads *config again. EXIT_CONFIG, with the file unchanged, for a key that cannot change on resume;
 * force: keys that may change, separated by commas; NULL: none. *before: the earlier text, malloc'ed; NULL if
 * nothing was written. */
int train_change_run(const struct arguments *args, const char *directory, const char *force,
                     struct config *config, char **before, struct error *err);

/* Returns the directory for a branch, malloc'ed: `parent`, or (NULL) the directory that contains the run. */
char *train_branch_parent(const char *directory, const char *parent);
/* Makes a new run PARENT/NAME with all data of `directory` up to its newest complete checkpoint at or
 * before `step`; parent NULL: next to `directory`. `directory` is not changed. *branch is malloc'ed, *lock
 * is held. */
int train_branch(const char *directory, int64_t step, const char *parent, const char *name, char **branch,
                 int *lock, struct error *err);

#endif
