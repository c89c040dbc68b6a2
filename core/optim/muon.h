/* Muon: steps of whole matrices, whose update is the orthogonalized momentum. */
#ifndef MEOPT_OPTIM_MUON_H
#define MEOPT_OPTIM_MUON_H

#include "core/optim/optim.h"

/* Checks the matrices of a tensor of muon, and sets rows[0] if none were given. wide: dimensions above 1. */
int muon_read(struct meopt_tensor *tensor, const struct meopt_options *options, int wide, int64_t count,
              struct meopt_error *err);
/* Takes a tensor's matrices from its row, which muon_read has read. */
void muon_describe(struct tensor *tensor, const struct meopt_tensor *from);

/* The workspace of a handle: bytes of the matrices in which its largest tensor steps, or, where handles
 * divide tensors, of a result and a part of another's. */
struct muon_space {
    size_t most, result, part;
};
/* Adds a tensor; returns whether none before was larger, and it is of muon. */
bool muon_space_add(struct muon_space *space, const struct meopt_options *options,
                    const struct tensor *tensor);
size_t muon_space_bytes(const struct muon_space *space);
/* Returns the chunks of the largest tensor of muon, whose results a card keeps next to those of gradients. */
size_t muon_chunks(const struct meopt *opt);
/* Allocates the largest tensor's bytes. On a dry device, also reserves what the GEMMs need. */
int muon_reserve(struct meopt *opt, struct meopt_error *err);

/* Steps those tensors of a sweep that are of muon; tasks were prepared as for other rules. Results have the
 * squares of the gradients. If a group of a gradient is not finite, its matrix keeps its weights, and all
 * groups of that count as bad. */
int muon_steps(struct meopt *opt, const size_t *tensors, const struct optim_sweep *sweep,
               struct meopt_error *err);

#endif
