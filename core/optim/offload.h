/* States stored outside device memory between steps: in a file, or for a card in host memory.
 *
 * Moments and residual bits of a tensor are split into pieces of whole chunks (kernels/optim_task.h), of at
 * most a megabyte or one chunk. A step works through a ring of staging buffers (stages), one piece each.
 * After a piece has stepped, its stage writes the piece back and reads the next one, asynchronously. The
 * order is that of the previous step: during a block's backward pass, the previous block's pieces are written
 * and its own are read. Results are bit-identical to resident states: the pass is the same, chunk for chunk,
 * at different addresses.
 *
 * The file has no name. A checkpoint copies its content tensor by tensor, as from memory, so that later
 * changes of the file do not affect the checkpoint. A kill or a failing disk loses the steps since the last
 * checkpoint, as with resident states. (A checkpoint could link the file instead. But then each piece needs
 * two locations, or reflinks, to save one copy in some hundred steps that each move as many bytes.) The
 * checksum of each piece is in memory: computed when the piece is written, compared when it is read. */
#ifndef MEOPT_OPTIM_OFFLOAD_H
#define MEOPT_OPTIM_OFFLOAD_H

#include "core/optim/optim.h"

/* Returns whether to offload this tensor. Call it once per tensor, in the order of the table. */
bool offload_select(struct meopt *opt, const struct layout *layout);

/* Creates pieces, file and ring, after all tensors were created. Does nothing if no tensor is offloaded. */
int offload_create(struct meopt *opt, struct meopt_error *err);
void offload_destroy(struct meopt *opt);

/* Steps the offloaded tensors of a sweep; with norms_only computes their norms. */
int offload_sweep(struct meopt *opt, const size_t *tensors, const struct optim_sweep *sweep,
                  struct meopt_error *err);

/* Read and write moments and residual bits of an offloaded tensor, in host memory with the offsets of struct
 * layout. NULL: skip those. Between steps only. */
int offload_read(const struct meopt *opt, const struct tensor *t, uint8_t *state, uint8_t *correction,
                 struct meopt_error *err);
/* Calls `use` for each piece of an offloaded tensor, in order: its groups, and the arrays m, v, scales and
 * average of their state, which are valid until it returns. Between steps only. */
int offload_each(const struct meopt *opt, const struct tensor *t,
                 void (*use)(void *context, int64_t group, int64_t groups, const uint8_t *const arrays[4]),
                 void *context, struct meopt_error *err);
int offload_write(const struct meopt *opt, const struct tensor *t, const uint8_t *state,
                  const uint8_t *correction, struct meopt_error *err);

#endif
