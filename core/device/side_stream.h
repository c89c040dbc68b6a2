/* A side stream of a card, for a vendor library that works on the raw stream (RCCL and NCCL, core/comm), with
 * the functions that its user needs. One thread uses it, except for side_stream_mark. Functions return 0 or
 * the driver's error, for side_stream_text. */
#ifndef MEOPT_DEVICE_SIDE_STREAM_H
#define MEOPT_DEVICE_SIDE_STREAM_H

#include "core/device/device.h"

/* Returns DEVICE_HIP or DEVICE_CUDA for a card, also for a dry one that models a card of this machine;
 * DEVICE_CPU for all others. */
enum device_kind side_stream_kind(const struct device *device);

struct side_stream;
/* Opens the stream in the thread that will use it. */
int side_stream_open(struct side_stream **side, struct device *device, struct error *err);
void side_stream_close(struct side_stream *side); /* NULL is allowed */
void *side_stream_handle(const struct side_stream *side);

/* side_stream_mark marks the current end of the device's own stream (called by the thread that issues work
 * there); side_stream_follow makes the side stream wait for a mark. Marks are few and reused round-robin: an
 * old mark may stand for later work than at its creation, never for earlier. */
void *side_stream_mark(struct side_stream *side);
int side_stream_follow(struct side_stream *side, void *mark);

/* host: from host_allocate (device.h) */
int side_stream_upload(struct side_stream *side, void *device_dst, const void *host_src, size_t bytes);
int side_stream_download(struct side_stream *side, void *host_dst, const void *device_src, size_t bytes);

/* out (n) = ((before + r0) + r1) + ..., in fp32: rank r's part at received + r * stride bytes, rank me's at
 * own. before NULL: 0. tree: ((r0 + r1) + (r2 + r3)) + ..., F32, 2, 4 or 8 contributors, without `before` */
struct side_stream_sum {
    enum dtype type;
    const float *before;
    const void *received, *own;
    int64_t stride;
    int me, contributors;
    float *out;
    int64_t count;
    bool tree;
};
int side_stream_sum(struct side_stream *side, const struct side_stream_sum *sum);
/* Computes the same sum on the device's own stream; failures surface in device_check. */
void device_sum(struct device *device, const struct side_stream_sum *sum);

/* Combines the `ranks` arrays at received into out: `bytes`, a multiple of 8. Each byte is zero in all arrays
 * but one, and out gets the bits of that one. */
int side_stream_combine(struct side_stream *side, const void *received, int ranks, void *out, size_t bytes);

/* Returns whether all work before side_stream_end is done. SIDE_STREAM_BUSY: not yet. */
enum { SIDE_STREAM_BUSY = -1 };
int side_stream_end(struct side_stream *side);
int side_stream_ended(struct side_stream *side);

const char *side_stream_text(const struct side_stream *side, int error, char *text, size_t size);

#endif
