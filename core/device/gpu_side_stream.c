/* Side streams: see side_stream.h. */
#include "core/device/gpu.h"
#include "core/device/side_stream.h"

#include <stdlib.h>

enum { MARKS = 8 };
enum { SUM, SUM_BF16, SUM_TREE, COMBINE, KERNELS };

struct side_stream {
    struct device *device;
    void *stream, *end; /* an event */
    void *marks[MARKS];
    unsigned mark; /* the next one */
    void *kernels[KERNELS];
};

static const char *const side_stream_kernels[KERNELS] = {"sum_ranks_f32", "sum_ranks_bf16", "sum_tree_f32",
                                                         "unite_ranks"};

static struct driver *driver_of(const struct side_stream *side) { return &gpu_of(side->device)->driver; }

enum device_kind side_stream_kind(const struct device *device)
{
    const struct gpu *gpu = device->state;
    if (!gpu_is(device) || (gpu->dry && !gpu->meant)) return DEVICE_CPU;
    return gpu->driver.kind == DRIVER_HIP ? DEVICE_HIP : DEVICE_CUDA;
}

int side_stream_open(struct side_stream **out, struct device *device, struct error *err)
{
    char text[160];
    struct side_stream *side = *out = calloc(1, sizeof *side);
    if (!side) return error_set(err, EXIT_HOST_MEMORY, NULL, "no memory");
    side->device = device;
    struct driver *d = driver_of(side);
    gpu_current(device);
    int code = d->stream_create(&side->stream, DRIVER_STREAM_NON_BLOCKING);
    if (!code) code = d->event_create(&side->end, DRIVER_EVENT_NO_TIMING);
    for (int i = 0; i < MARKS && !code; i++) code = d->event_create(&side->marks[i], DRIVER_EVENT_NO_TIMING);
    if (code)
        return error_set(err, EXIT_FAILED, driver_remedy(d, code, N_("see 'meopt doctor'")),
                         "no stream on %s: %s", device->name, driver_text(d, code, text, sizeof text));
    for (int i = 0; i < KERNELS; i++)
        if (!(side->kernels[i] = gpu_function(device, side_stream_kernels[i])))
            return error_set(err, EXIT_FAILED, "build MEOpt and its code objects together",
                             "%s has no kernel %s", gpu_of(device)->object, side_stream_kernels[i]);
    return 0;
}

void side_stream_close(struct side_stream *side)
{
    if (!side) return;
    struct driver *d = driver_of(side);
    gpu_current(side->device);
    if (side->stream) d->stream_destroy(side->stream);
    if (side->end) d->event_destroy(side->end);
    for (int i = 0; i < MARKS; i++)
        if (side->marks[i]) d->event_destroy(side->marks[i]);
    free(side);
}

void *side_stream_handle(const struct side_stream *side) { return side->stream; }

void *side_stream_mark(struct side_stream *side)
{
    void *event = side->marks[side->mark++ % MARKS];
    gpu_current(side->device);
    gpu_fail(side->device, driver_of(side)->event_record(event, gpu_of(side->device)->stream),
             "recording an event");
    return event;
}

int side_stream_follow(struct side_stream *side, void *mark)
{
    gpu_current(side->device);
    return driver_of(side)->stream_wait(side->stream, mark, 0);
}

int side_stream_upload(struct side_stream *side, void *dst, const void *src, size_t bytes)
{
    gpu_current(side->device);
    return gpu_to_card(side->device, dst, src, bytes, side->stream);
}
int side_stream_download(struct side_stream *side, void *dst, const void *src, size_t bytes)
{
    gpu_current(side->device);
    return driver_of(side)->to_host(dst, src, bytes, side->stream);
}

void device_sum(struct device *device, const struct side_stream_sum *sum)
{
    struct side_stream_sum s = *sum;
    gpu_launch(
        device, side_stream_kernels[s.type == DTYPE_BF16 ? SUM_BF16 : SUM], gpu_blocks(device, s.count), 1,
        (void *[]){&s.before, &s.received, &s.stride, &s.own, &s.me, &s.contributors, &s.out, &s.count});
}

static int launch(struct side_stream *side, int kernel, int64_t count, void *arguments[])
{
    gpu_current(side->device);
    return driver_of(side)->launch(side->kernels[kernel], (unsigned)gpu_blocks(side->device, count), 1, 1,
                                   GPU_THREADS, 1, 1, 0, side->stream, arguments, NULL);
}

int side_stream_sum(struct side_stream *side, const struct side_stream_sum *sum)
{
    struct side_stream_sum s = *sum;
    if (s.tree)
        return launch(side, SUM_TREE, s.count,
                      (void *[]){&s.received, &s.stride, &s.own, &s.me, &s.contributors, &s.out, &s.count});
    return launch(
        side, s.type == DTYPE_BF16 ? SUM_BF16 : SUM, s.count,
        (void *[]){&s.before, &s.received, &s.stride, &s.own, &s.me, &s.contributors, &s.out, &s.count});
}

int side_stream_combine(struct side_stream *side, const void *received, int ranks, void *out, size_t bytes)
{
    int64_t stride = (int64_t)bytes, count = stride / (int64_t)sizeof(uint64_t);
    return launch(side, COMBINE, count, (void *[]){&received, &stride, &ranks, &out, &count});
}

int side_stream_end(struct side_stream *side)
{
    gpu_current(side->device);
    return driver_of(side)->event_record(side->end, side->stream);
}
int side_stream_ended(struct side_stream *side)
{
    gpu_current(side->device);
    int code = driver_of(side)->event_query(side->end);
    return code == DRIVER_NOT_READY ? (int)SIDE_STREAM_BUSY : code;
}

const char *side_stream_text(const struct side_stream *side, int error, char *text, size_t size)
{
    return driver_text(driver_of(side), error, text, size);
}
