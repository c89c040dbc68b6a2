/* The student's weights where each rank holds its part of them (dist.shard parameters).
 *
 * A rank keeps the span of every group that is its own (partition.h), which its optimizer steps. A pass
 * gathers a
 * group into the tower's buffer (tower_options.weight_buffers) just before it is read: where there are two
 * buffers, the next group's weights travel while this one's are computed with. What stands in the buffers
 * when a pass ends is not gathered again by the next one, unless it has taken a step since: so the last two
 * groups are there when the backward pass begins.
 *
 * All ranks make the same calls in the same order. */
#ifndef MEOPT_TRAIN_SHARD_H
#define MEOPT_TRAIN_SHARD_H

#include "core/comm/comm.h"
#include "core/train/partition.h"

struct shard;

/* Memory by class weights, zeroed; bound to the tower. Everything given must outlive it. */
int shard_make(struct shard **shard, struct tower *tower, struct comm *ranks, const struct partition *cut,
               struct error *err);
void shard_close(struct shard *shard); /* NULL is fine */

/* Where the own part of a trained parameter lies, from element cut->first on. */
void *shard_part(const struct shard *shard, int parameter);
/* The own part of the group's weights has changed; group -1: of all. */
void shard_changed(struct shard *shard, int group);
/* The weights of a group are wanted, and then those of `next` (group_needed of nn.h). */
int shard_need(void *shard, int group, int next, struct error *err);
/* Waits for what is under way, of a pass that has ended early. */
int shard_end(struct shard *shard, struct error *err);

#endif
