/* The trainer in a checkpoint (core/run/checkpoint.h):
 * which tensors, under which keys, and the optimizer's records.
 *
 * model.safetensors has every parameter of the student as exact fp32 values with the keys of its family;
 * optimizer.bin one record per trained tensor, each with its own checksum; the manifest what clip_mode
 * previous needs. Importing the fp32 values restores the same bits in every weight format.
 *
 * Ranks that hold states in parts (dist.shard) write them in parts, each its own to optimizer.R-of-N.bin: a
 * record there has the shape of the whole tensor and says where its part begins, and is joined and cut again
 * for as many ranks as go on.
 */
#ifndef MEOPT_TRAIN_TRAINER_CHECKPOINT_H
#define MEOPT_TRAIN_TRAINER_CHECKPOINT_H

#include "core/train/trainer.h"

/* Of several ranks all make both calls together: rank 0 writes the weights, of which the others give it what
 * they hold, and publishes; a rank that cannot write its part is named, and all end alike. The weights' file
 * is the same bytes on any number of ranks, and what several have written is loaded on any.
 */

/* Save in the run's directory; keep: how many checkpoints stay. */
int trainer_save(const struct trainer *trainer, const char *directory, int64_t step, int keep,
                 struct error *err);
/* Bytes of memory that a save of this rank takes for a while, at most. */
size_t trainer_save_bytes(const struct trainer *trainer);

/* Under a limit of address space (ulimit -v) the address space of a save is reserved before the first step: a
 * run that could not be saved is refused then, not after its last step. Nothing is reserved otherwise. */
struct save_reservation {
    void *p;
    size_t bytes;
};
int save_reserve(struct save_reservation *room, size_t bytes, struct error *err);
void save_release(struct save_reservation *room);

/* Load the newest whole checkpoint, for the process that holds the run: its step, or -1 when there is none.
 */
int trainer_resume(struct trainer *trainer, const char *directory, int64_t *step, struct error *err);

#endif
