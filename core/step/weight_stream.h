/* Weights of a tower that are stored outside its memory and loaded block by block (model_t.place,
 * model_s.place streamed).
 *
 * The tower holds the weights of two groups in two buffers (tower_options.weight_buffers 2), which its groups
 * share round-robin. The store holds the weights of all groups, converted to the type in which they are
 * computed with. On a CPU the store is a scratch file, which a thread reads with O_DIRECT. For a card it is
 * pinned host memory, copied on a side stream. A pass calls weight_stream_fetch for a group before it reads
 * its weights; the weights of the next group are prefetched while this group computes.
 *
 * The scratch file has no name: it is freed when the process ends, and no other process writes to it. Every
 * tensor that is read is verified with the checksum that was computed when it was written.
 */
#ifndef MEOPT_STEP_WEIGHT_STREAM_H
#define MEOPT_STEP_WEIGHT_STREAM_H

#include "core/nn/nn.h"

struct weight_stream;

/* Creates the store and binds it to the tower, which must outlive it. directory: of the scratch file. On a
 * dry device nothing is stored, and only the memory account is updated. averages: the store has twice the
 * size, for weight_stream_keep_average. */
int weight_stream_open(struct weight_stream **stream, struct tower *tower, const char *directory,
                       bool averages, struct error *err);
void weight_stream_close(struct weight_stream *stream); /* NULL is allowed */

/* Writes a parameter's values (host memory) to the store; a parameter_values callback of nn.h. Parameters
 * that are resident stay in the tower and are ignored. */
int weight_stream_write(void *stream, int parameter, const float *values, struct error *err);
/* Reads a parameter's values, as parameter.weight_type. */
int weight_stream_read(struct weight_stream *stream, int parameter, void *values, struct error *err);

/* Waits until the weights of a group are in its buffer, and starts to load those of group `next` (-1: none);
 * a group_needed callback of nn.h. */
int weight_stream_fetch(void *stream, int group, int next, struct error *err);

/* Marks the buffer of a group as changed by the operations issued so far. It is written back to the store
 * before the buffer is reused. */
void weight_stream_mark_dirty(struct weight_stream *stream, int group);

/* Stores the buffer of a group, which was fetched and then changed, as the group's average, next to its
 * weights in the store, and empties the buffer. */
int weight_stream_keep_average(struct weight_stream *stream, int group, struct error *err);
/* Stores changed buffers and empties all. Then weight_stream_fetch loads the averages of groups that have
 * one, or weights again. */
int weight_stream_select(struct weight_stream *stream, bool averages, struct error *err);

/* Size of the weights in the store in bytes; 0 for NULL. */
size_t weight_stream_bytes(const struct weight_stream *stream);
/* Bytes that were read from the store and written to it so far, without loading; 0 for NULL. */
int64_t weight_stream_moved_bytes(const struct weight_stream *stream);
/* Seconds that weight_stream_fetch has waited so far for a store in a file. */
double weight_stream_waited_seconds(const struct weight_stream *stream);

#endif
