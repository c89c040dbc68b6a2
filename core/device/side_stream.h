/* A lane of a card: a queue beside its own, for a library of the card's maker that is given the stream itself
 * (RCCL and NCCL, core/comm), and what such a library's user needs around it. One thread uses it, but for
 * side_stream_mark. Functions return 0 or the driver's error, for side_stream_text. */
#ifndef MEOPT_DEVICE_SIDE_STREAM_H
#define MEOPT_DEVICE_SIDE_STREAM_H

#include "core/device/device.h"

/* DEVICE_HIP or DEVICE_CUDA of a card, also of a dry one that stands for a card of this machine; DEVICE_CPU
 * for all others. */
enum device_kind side_stream_kind(const struct device *device);

struct side_stream;
/* In the thread that will use it. */
int side_stream_open(struct side_stream **lane, struct device *device, struct error *err);
void side_stream_close(struct side_stream *lane); /* NULL is fine */
void *side_stream_handle(const struct side_stream *lane);

/* What the device's own queue was given so far, from the thread that gives it; and: what the lane is given
 * from now on comes behind that. Marks are few and taken in turns: an old one may stand for more than it was
 * taken for, never for less. */
void *side_stream_mark(struct side_stream *lane);
int side_stream_follow(struct side_stream *lane, void *mark);

/* host: of host_allocate (device.h) */
int side_stream_upload(struct side_stream *lane, void *device_dst, const void *host_src, size_t bytes);
int side_stream_download(struct side_stream *lane, void *host_dst, const void *device_src, size_t bytes);

/* out (n) = ((before + r0) + r1) + ..., in fp32: rank r's part at received + r * stride bytes, rank me's at
 * own. before NULL: 0 */
struct side_stream_sum {
    enum dtype type;
    const float *before;
    const void *received, *own;
    int64_t stride;
    int me, contributors;
    float *out;
    int64_t count;
};
int side_stream_sum(struct side_stream *lane, const struct side_stream_sum *sum);
/* The same on the device's own queue; failures surface in device_check. */
void device_sum(struct device *device, const struct side_stream_sum *sum);

/* out: `bytes`, a multiple of 8, of which each is zero in all but one of the `ranks` arrays at received, and
 * has the bits of that one. */
int side_stream_combine(struct side_stream *lane, const void *received, int ranks, void *out, size_t bytes);

/* Is all done that the lane was given before side_stream_end? LANE_BUSY: not yet. */
enum { LANE_BUSY = -1 };
int side_stream_end(struct side_stream *lane);
int side_stream_ended(struct side_stream *lane);

const char *side_stream_text(const struct side_stream *lane, int error, char *text, size_t size);

#endif
