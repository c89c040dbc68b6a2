/* The student's weights when each rank stores its part of them only (dist.shard parameters).
 *
 * A rank stores its span of every group (partition.h), which its optimizer updates. A pass all-gathers a
 * group into the tower's buffer (tower_options.weight_buffers) before it reads the weights. With two
 * buffers the next group is prefetched while this one computes. A group that is still in a buffer when a
 * pass ends, and was not updated since, is not gathered again: the last two groups are present when the
 * backward pass begins.
 *
 * All ranks make the same calls in the same order. */
#ifndef MEOPT_STEP_SHARD_H
#define MEOPT_STEP_SHARD_H

#include "core/comm/comm.h"
#include "core/step/partition.h"

struct shard;

/* Allocates the parts (memory class weights, zeroed) and binds them to the tower. All arguments must outlive
 * the shard. */
int shard_make(struct shard **shard, struct tower *tower, struct comm *ranks, const struct partition *cut,
               struct error *err);
void shard_close(struct shard *shard); /* NULL is allowed */

/* Returns this rank's part of a trained parameter, from element cut->first on. */
void *shard_part(const struct shard *shard, int parameter);
/* Marks this rank's part of a group as updated, so that the group is gathered again; group -1: all groups. */
void shard_invalidate(struct shard *shard, int group);
/* Gathers a group and prefetches group `next`; -1: none (a group_needed callback of nn.h). */
int shard_fetch(void *shard, int group, int next, struct error *err);
/* Bytes of whole groups that were gathered so far. */
int64_t shard_gathered_bytes(const struct shard *shard);
/* Waits for gathers in flight, after a pass that ended early. */
int shard_end(struct shard *shard, struct error *err);

#endif
