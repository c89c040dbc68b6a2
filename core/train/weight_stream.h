/* Weights of a tower that stand elsewhere and come block by block (model_t.place, model_s.place streamed).
 *
 * The tower holds two groups' weights (tower_options.weight_buffers 2), in two buffers that its groups take
 * turns in. All of them stand in the store, in the form in which they are computed with: on a CPU in a
 * working file, which a thread reads past the page cache; for a card in pinned host memory, which a queue
 * copies from. A pass asks for a group just before it is read (stream_need), and the next one's weights
 * travel while this one is computed with.
 *
 * The file has no name: it goes with the process, however that ends, and nothing else writes to it. Each
 * tensor that is read is compared with the checksum that it was written with.
 */
#ifndef MEOPT_TRAIN_WEIGHT_STREAM_H
#define MEOPT_TRAIN_WEIGHT_STREAM_H

#include "core/nn/nn.h"

struct stream;

/* Bound to the tower, which must outlive it. directory: of the file. On a dry device nothing is stored: what
 * would be stands in the account. */
int stream_make(struct stream **stream, struct tower *tower, const char *directory, struct error *err);
void stream_close(struct stream *stream); /* NULL is fine */

/* A parameter's values, host memory, into the store (parameter_values of nn.h). What is not trained stays in
 * the tower, and is passed over. */
int stream_put(void *stream, int parameter, const float *values, struct error *err);
/* And its bytes, of parameter.weight_type, back. */
int stream_take(struct stream *stream, int parameter, void *values, struct error *err);

/* The weights of a group are wanted, and then those of `next` (group_needed of nn.h). */
int stream_need(void *stream, int group, int next, struct error *err);

/* A group that is in its buffer was changed there, by what was given to the device so far: before another one
 * takes its place it is written back. */
void stream_changed(struct stream *stream, int group);

/* Of the store. */
size_t stream_bytes(const struct stream *stream); /* NULL: 0 */
/* How long stream_need has waited so far, of a store in a file. */
double stream_waited_seconds(const struct stream *stream);

#endif
