/* meopt compare --run: trains the same configuration without and with MEOpt, or with several update rules. */
#ifndef MEOPT_CLI_COMMANDS_COMPARE_RUN_H
#define MEOPT_CLI_COMMANDS_COMPARE_RUN_H

#include "core/base/error.h"

/* One column: what its runs have besides the configuration. */
struct compare_variant {
    char *label, *suffix; /* of the column; of the names of its runs */
    int rule;             /* of --rules */
    const char **overrides;
    int override_count;
};

struct compare_plan {
    const char *config;
    struct compare_variant *variants;
    int variant_count;
    char **overrides;
    int override_count;
    int repeats;                /* with seeds train.seed, train.seed + 1, ... */
    const char *run_dir, *name; /* NULL: run.dir or "runs"; the name of the file */
};

/* Sets the variants, which compare_variants_free frees: without and with MEOpt, or one of each rule in
 * `rules`, "adamw,lion". Settings of one rule, "lion:optim.lr=3e-4", move from plan->overrides to its
 * variant. */
int compare_variants(struct compare_plan *plan, const char *rules, struct error *err);
void compare_variants_free(struct compare_plan *plan);

/* Trains the runs DIR/NAME-SUFFIX-R (one repeat: without -R) that are not done, and resumes interrupted ones.
 * All configurations are checked first. Each trains like 'meopt train', under a supervisor, on all cards of
 * device.cards. directories receives variant_count * repeats names (malloc'ed): all of the first variant,
 * then all of the next. EXIT_STOPPED if a stop was requested. */
int compare_run(const struct compare_plan *plan, char **directories, struct error *err);

#endif
