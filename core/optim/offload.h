/* States that live elsewhere between steps: in a file, or of a card in this machine's memory.
 *
 * Moments and corrections of a tensor are cut into pieces of whole chunks (kernels/optim_task.h), of at most
 * a megabyte or one chunk. A step works through a ring of stages, each the room of one piece: as soon as a
 * piece was stepped its stage goes on by itself, writes the piece back and reads the one that is due next.
 * Which is next is known from the step before: so while the backward pass of a block runs, what the block
 * before it has changed is written and what it will need is read. The bits are the resident ones: the sweep
 * is the same, chunk for chunk, and only the addresses of m, v, scales and corrections are others.
 *
 * The file has no name and is nobody's record: a checkpoint is written from it tensor by tensor, as from
 * memory, and stays what it is whatever the file goes through afterwards. So a kill, a full disk or a failing
 * one lose what a resident run would lose: the steps since the last checkpoint. (Instead a checkpoint could
 * link the file: then each piece needs two places, or a file system with reflinks, for the sake of one copy
 * in some hundred steps that each move as many bytes.) Each piece has a checksum in memory, made when it is
 * written and compared when it is read. */
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
