/* The operand CONFIG|RUN of commands that read the weights of a run. */
#ifndef MEOPT_CLI_RUN_WEIGHTS_H
#define MEOPT_CLI_RUN_WEIGHTS_H

#include "core/config/config.h"
#include "core/nn/nn.h"

/* Loads the configuration that operands[0] names, a file, a run (a directory, or a name as in run_name.h), or
 * a model directory of transformers (hf:OWNER/REPO, too), with the key=value pairs after it. *run: directory
 * of the run, malloc'ed; NULL: none. The caller frees it, and the configuration with config_free, also after
 * an error. */
int run_weights_config(struct config *config, char **run, char **operands, int count, struct error *err);

struct checkpoint;
enum run_checkpoint { RUN_BEST_OR_NEWEST, RUN_BEST, RUN_NEWEST };
/* Returns what --checkpoint says: NULL, best or last. */
enum run_checkpoint run_checkpoint_asked(const char *which);
/* Opens and verifies a checkpoint of the run; to be closed in any case. EXIT_FAILED: there is none. Logs the
 * choice of the best one where none was asked for. */
int run_checkpoint_open(struct checkpoint *c, const char *run, enum run_checkpoint which, struct error *err);
/* Sets *path (malloc'ed) to the weights of a checkpoint of the run, which is verified, and *step to its
 * step. */
int run_weights_path(char **path, const char *run, enum run_checkpoint which, int64_t *step,
                     struct error *err);
/* Sets the student's weights, or its adapters, to those of a checkpoint of the run, which is verified, and
 * *step to its step. */
int run_weights_use(struct config *config, const char *run, enum run_checkpoint which, int64_t *step,
                    struct error *err);

/* Reads lora.adapter, if it is set, into a tower that only computes. */
int run_load_adapters(const struct config *config, struct tower *tower, struct error *err);

#endif
