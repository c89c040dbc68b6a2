/* States stored outside device memory between steps: in a file, or for a card in host memory.
 *
 * Moments and residual bits of a tensor are split into pieces of whole chunks (kernels/optim_task.h), of at
 * most a megabyte or one chunk. A step works through a ring of staging buffers (stages), one piece each.
 * After a piece has stepped, its stage writes the piece back and reads the next one, asynchronously. The
 * order is that of the previous step: during a block's backward pass, the previous block's pieces are written
 * and its own are read. Results are bit-identical to resident states: the pass is the same, chunk for chunk,
 * at different addresses.
 *
 * The file has no name and is no record: a checkpoint is written from it tensor by tensor, as from memory,
 * and later changes of the file do not affect it. A kill, a full disk or a failing one lose the same steps as
 * with resident states: those since the last checkpoint. (A checkpoint could link the file instead. Then each
 * piece needs two locations, or a file system with reflinks, to save one copy in some hundred steps that each
 * move as many bytes.) Each piece has a checksum in memory, computed when it is written and compared when it
 * is read. */
#ifndef MEOPT_OPTIM_OFFLOAD_H
#define MEOPT_OPTIM_OFFLOAD_H

#include "core/optim/optim.h"

/* Is this tensor to be offloaded? Asked once for each, in the order of the table. */
bool offload_takes(struct meopt *opt, const struct layout *layout);

/* With all tensors there: pieces, file, ring. Nothing is done where no tensor is offloaded. */
int offload_create(struct meopt *opt, struct meopt_error *err);
void offload_destroy(struct meopt *opt);

/* The sweep's tasks whose tensors are offloaded take their step (with norms_only: are looked at). */
int offload_sweep(struct meopt *opt, const size_t *tensors, const struct optim_sweep *sweep,
                  struct meopt_error *err);

/* Moments and corrections of an offloaded tensor in and out of memory of this machine, in the form of
 * struct layout; NULL: not these. Between steps. */
int offload_read(const struct meopt *opt, const struct tensor *t, uint8_t *state, uint8_t *correction,
                 struct meopt_error *err);
int offload_write(const struct meopt *opt, const struct tensor *t, const uint8_t *state,
                  const uint8_t *correction, struct meopt_error *err);

#endif
