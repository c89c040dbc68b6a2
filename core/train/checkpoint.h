/* A checkpoint is either whole or not there (design D8).
 *
 * ckpt/step-N/ holds model.safetensors (every parameter of the student, exact fp32 values, the keys of the
 * family: PyTorch opens it as it is), optimizer.bin (one record per tensor, each with its own checksum) and,
 * written last, MANIFEST.json with the size and CRC-32C of both and what a resume needs. It is written as
 * step-N.partial, synced, renamed, and the directory synced; ckpt/LATEST names the newest. Importing the fp32
 * values restores the same bits in every weight format.
 */
#ifndef MEOPT_TRAIN_CHECKPOINT_H
#define MEOPT_TRAIN_CHECKPOINT_H

#include "core/run/run.h"
#include "core/train/trainer.h"

int checkpoint_save(const struct run *run, const struct trainer *trainer, int64_t step, int keep,
                    struct error *err);
/* The newest that is whole (a damaged one is told and passed over): its step, or -1 when there is none. With
 * trainer NULL only the search; *path (malloc'ed, may be NULL) gets its directory. */
int checkpoint_load(const struct run *run, struct trainer *trainer, int64_t *step, char **path,
                    struct error *err);

#endif
