/* Saves and loads a trainer (core/run/checkpoint.h).
 *
 * model.safetensors has every parameter of the student as exact fp32 values, with the keys of its family.
 * optimizer.bin has one record per trained tensor, each with its own checksum. The manifest has the gradient
 * norm that clip_mode previous needs. Importing the fp32 values restores bit-identical weights in every
 * weight format.
 *
 * With sharded states (dist.shard) each rank writes its part to optimizer.R-of-N.bin. A record there has the
 * shape of the whole tensor and the offset of its part. On resume the parts are resharded for any number of
 * ranks.
 */
#ifndef MEOPT_TRAIN_TRAINER_CHECKPOINT_H
#define MEOPT_TRAIN_TRAINER_CHECKPOINT_H

#include "core/step/trainer.h"

/* trainer_save and trainer_resume are collective calls. Rank 0 gathers and writes the weights and publishes
 * the checkpoint. If a rank cannot write its part, all ranks return the same error, which names that rank.
 * The file of the weights is bit-identical for any number of ranks.
 */

/* Saves to the run's directory. keep: number of checkpoints that remain. */
int trainer_save(const struct trainer *trainer, const char *directory, int64_t step, int keep,
                 struct error *err);
/* Returns the student's parameter of a key of model.safetensors; -1: none. */
int trainer_parameter_named(const struct trainer *trainer, const char *key);
/* Returns the most host memory that a save of this rank allocates, in bytes. */
size_t trainer_save_bytes(const struct trainer *trainer);

/* Address space for saves. Under a limit (ulimit -v) it is reserved before the first step, so that a run that
 * cannot be saved is refused then, and not after its last step. Without a limit nothing is reserved. */
struct save_reservation {
    void *p;
    size_t bytes;
};
int save_reserve(struct save_reservation *r, size_t bytes, struct error *err);
void save_release(struct save_reservation *r);

/* Loads the newest complete checkpoint. The caller holds the run's lock. *step: -1 without a checkpoint. */
int trainer_resume(struct trainer *trainer, const char *directory, int64_t *step, struct error *err);

#endif
