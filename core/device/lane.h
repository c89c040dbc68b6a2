/* A lane of a card: a queue beside its own, for a library of the card's maker that is given the stream itself
 * (RCCL and NCCL, core/dist), and what such a library's user needs around it. One thread uses it, but for
 * lane_mark. Functions return 0 or the driver's error, for lane_text. */
#ifndef MEOPT_DEVICE_LANE_H
#define MEOPT_DEVICE_LANE_H

#include "core/device/device.h"

/* DEVICE_HIP or DEVICE_CUDA of a card, also of a dry one that stands for a card of this machine; DEVICE_CPU
 * for all others. */
enum device_kind lane_kind(const struct device *device);

struct lane;
/* In the thread that will use it. */
int lane_open(struct lane **lane, struct device *device, struct error *err);
void lane_close(struct lane *lane); /* NULL is fine */
void *lane_stream(const struct lane *lane);

/* What the device's own queue was given so far, from the thread that gives it; and: what the lane is given
 * from now on comes behind that. Marks are few and taken in turns: an old one may stand for more than it was
 * taken for, never for less. */
void *lane_mark(struct lane *lane);
int lane_follow(struct lane *lane, void *mark);

/* host: of host_allocate (device.h) */
int lane_upload(struct lane *lane, void *device_dst, const void *host_src, size_t bytes);
int lane_download(struct lane *lane, void *host_dst, const void *device_src, size_t bytes);

/* out (n) = ((before + r0) + r1) + ..., in fp32: rank r's part at received + r * stride bytes, rank me's at
 * own. before NULL: 0 */
struct lane_sum {
    enum dtype type;
    const float *before;
    const void *received, *own;
    int64_t stride;
    int me, givers;
    float *out;
    int64_t count;
};
int lane_sum(struct lane *lane, const struct lane_sum *sum);
/* The same on the device's own queue; failures surface in device_check. */
void device_sum(struct device *device, const struct lane_sum *sum);

/* out: `bytes`, a multiple of 8, of which each is zero in all but one of the `ranks` arrays at received, and
 * has the bits of that one. */
int lane_unite(struct lane *lane, const void *received, int ranks, void *out, size_t bytes);

/* Is all done that the lane was given before lane_end? LANE_BUSY: not yet. */
enum { LANE_BUSY = -1 };
int lane_end(struct lane *lane);
int lane_ended(struct lane *lane);

const char *lane_text(const struct lane *lane, int error, char *text, size_t size);

#endif
