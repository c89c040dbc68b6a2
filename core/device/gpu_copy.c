/* Streams, events and copies of a card: see device.h and gpu.h.
 *
 * Copies from memory that the driver does not know go through pinned memory. Small ones use a ring, so that
 * the host rarely waits. Others use two buffers: the host fills one while the card reads the other.
 */
#include "core/device/gpu.h"

#include <pthread.h>
#include <string.h>

static void *stream_of(struct gpu *gpu, struct device_stream *stream)
{
    return stream ? (void *)stream : gpu->stream;
}

int gpu_to_card(struct device *dev, void *dst, const void *src, size_t bytes, void *stream)
{
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&one);
    int code = gpu_of(dev)->driver.to_device(dst, src, bytes, stream);
    pthread_mutex_unlock(&one);
    return code;
}

/* Returns whether the call is skipped: after a failure, or in a recording, which cannot contain copies. */
static bool refused(struct device *dev)
{
    gpu_current(dev);
    return gpu_unrecordable(dev) || dev->pending.code;
}

/* ---- The device's own stream --------------------------------------------------------------------------- */

/* Uploads through the ring: the host writes one half while the card reads the other. A wait occurs only if
 * the card still reads the half that comes next, hundreds of uploads later. */
static void upload_small(struct device *dev, void *dst, const void *src, size_t bytes)
{
    enum { HALF = GPU_RING / 2 };
    struct gpu *gpu = gpu_of(dev);
    size_t padded = (bytes + 63) & ~(size_t)63;
    if (!bytes) return;
    if (gpu->ring_used + padded > HALF) {
        int left = gpu->ring_half;
        gpu_fail(dev, gpu->driver.event_record(gpu->ring_left[left], gpu->stream), "copying to the card");
        gpu_fail(dev, gpu->driver.event_sync(gpu->ring_left[1 - left]), "copying to the card");
        gpu->ring_half = 1 - left;
        gpu->ring_used = 0;
    }
    char *at = gpu->ring + (size_t)gpu->ring_half * HALF + gpu->ring_used;
    gpu->ring_used += padded;
    memcpy(at, src, bytes);
    gpu_fail(dev, gpu_to_card(dev, dst, at, bytes, gpu->stream), "copying to the card");
}

static void upload_staged(struct device *dev, void *dst, const void *src, size_t bytes, void *stream)
{
    struct gpu *gpu = gpu_of(dev);
    for (size_t at = 0; at < bytes && !dev->pending.code; at += GPU_STAGING) {
        int i = gpu->next_staging;
        size_t n = bytes - at < GPU_STAGING ? bytes - at : GPU_STAGING;
        gpu->next_staging = 1 - i;
        gpu_fail(dev, gpu->driver.event_sync(gpu->staged[i]), "copying to the card");
        memcpy(gpu->staging[i], (const char *)src + at, n);
        gpu_fail(dev, gpu_to_card(dev, (char *)dst + at, gpu->staging[i], n, stream), "copying to the card");
        gpu_fail(dev, gpu->driver.event_record(gpu->staged[i], stream), "copying to the card");
    }
}

void gpu_upload(struct device *dev, void *dst, const void *src, size_t bytes)
{
    if (refused(dev)) return;
    if (bytes <= GPU_SMALL) upload_small(dev, dst, src, bytes);
    else upload_staged(dev, dst, src, bytes, gpu_of(dev)->stream);
}

void gpu_download(struct device *dev, void *dst, const void *src, size_t bytes)
{
    struct gpu *gpu = gpu_of(dev);
    memset(dst, 0, bytes); /* defined contents after a failure */
    if (refused(dev)) return;
    for (size_t at = 0; at < bytes && !dev->pending.code; at += 2 * (size_t)GPU_STAGING) {
        size_t left = bytes - at, n[2] = {left < GPU_STAGING ? left : GPU_STAGING, 0};
        n[1] = left - n[0] < GPU_STAGING ? left - n[0] : GPU_STAGING;
        for (int i = 0; i < 2 && n[i]; i++) { /* copies on other streams may still read from here */
            gpu_fail(dev, gpu->driver.event_sync(gpu->staged[i]), "copying from the card");
            gpu_fail(dev,
                     gpu->driver.to_host(gpu->staging[i], (const char *)src + at + i * (size_t)GPU_STAGING,
                                         n[i], gpu->stream),
                     "copying from the card");
        }
        gpu_fail(dev, gpu->driver.stream_sync(gpu->stream), "copying from the card");
        for (int i = 0; i < 2 && !dev->pending.code; i++)
            memcpy((char *)dst + at + i * (size_t)GPU_STAGING, gpu->staging[i], n[i]);
    }
}

void gpu_sync(struct device *dev)
{
    gpu_current(dev);
    if (!gpu_unrecordable(dev))
        gpu_fail(dev, gpu_of(dev)->driver.stream_sync(gpu_of(dev)->stream), "running");
}

/* ---- Streams and events -------------------------------------------------------------------------------- */

static int made(struct device *dev, int code, const char *what, struct error *err)
{
    char text[160];
    return code ? error_set(err, EXIT_FAILED,
                            driver_remedy(&gpu_of(dev)->driver, code, N_("see 'meopt doctor'")),
                            "%s on %s: %s", what, dev->name,
                            driver_text(&gpu_of(dev)->driver, code, text, sizeof text))
                : 0;
}
static int gpu_stream_create(struct device *dev, struct device_stream **stream, struct error *err)
{
    void *created = NULL;
    gpu_current(dev);
    int code = gpu_of(dev)->driver.stream_create(&created, DRIVER_STREAM_NON_BLOCKING);
    *stream = created;
    return made(dev, code, "no stream", err);
}
static void gpu_stream_destroy(struct device *dev, struct device_stream *stream)
{
    if (!stream) return;
    gpu_current(dev);
    gpu_of(dev)->driver.stream_sync(stream);
    gpu_of(dev)->driver.stream_destroy(stream);
}
static int gpu_event_create(struct device *dev, struct device_event **event, struct error *err)
{
    void *p = NULL;
    gpu_current(dev);
    int code = gpu_of(dev)->driver.event_create(&p, DRIVER_EVENT_NO_TIMING);
    *event = p;
    return made(dev, code, "no event", err);
}
static void gpu_event_destroy(struct device *dev, struct device_event *event)
{
    gpu_current(dev);
    if (event) gpu_of(dev)->driver.event_destroy(event);
}
static void gpu_record(struct device *dev, struct device_event *event, struct device_stream *stream)
{
    struct gpu *gpu = gpu_of(dev);
    if (!refused(dev))
        gpu_fail(dev, gpu->driver.event_record(event, stream_of(gpu, stream)), "recording an event");
}
static void gpu_wait(struct device *dev, struct device_stream *stream, struct device_event *event)
{
    struct gpu *gpu = gpu_of(dev);
    if (!refused(dev))
        gpu_fail(dev, gpu->driver.stream_wait(stream_of(gpu, stream), event, 0), "ordering streams");
}
static void gpu_stream_upload(struct device *dev, struct device_stream *stream, void *dst, const void *src,
                              size_t bytes)
{
    if (!refused(dev)) upload_staged(dev, dst, src, bytes, stream_of(gpu_of(dev), stream));
}
static void gpu_stream_send(struct device *dev, struct device_stream *stream, void *dst, const void *src,
                            size_t bytes)
{
    struct gpu *gpu = gpu_of(dev);
    if (!refused(dev) && bytes)
        gpu_fail(dev, gpu_to_card(dev, dst, src, bytes, stream_of(gpu, stream)), "copying to the card");
}
static void gpu_stream_download(struct device *dev, struct device_stream *stream, void *dst, const void *src,
                                size_t bytes)
{
    struct gpu *gpu = gpu_of(dev);
    if (!refused(dev) && bytes)
        gpu_fail(dev, gpu->driver.to_host(dst, src, bytes, stream_of(gpu, stream)), "copying from the card");
}
static void gpu_finish(struct device *dev, struct device_stream *stream)
{
    struct gpu *gpu = gpu_of(dev);
    if (!refused(dev)) gpu_fail(dev, gpu->driver.stream_sync(stream_of(gpu, stream)), "waiting for a stream");
}
static void gpu_finish_event(struct device *dev, struct device_event *event)
{
    if (!refused(dev)) gpu_fail(dev, gpu_of(dev)->driver.event_sync(event), "waiting for an event");
}
static void *gpu_host_allocate(struct device *dev, size_t bytes)
{
    void *p = NULL;
    gpu_current(dev);
    return gpu_of(dev)->driver.host_allocate(&p, bytes ? bytes : 1, 0) ? NULL : p;
}
static void gpu_host_free(struct device *dev, void *p)
{
    gpu_current(dev);
    if (p) gpu_of(dev)->driver.host_deallocate(p);
}

const struct device_streams gpu_streams = {
    .overlap = true,
    .create = gpu_stream_create,
    .destroy = gpu_stream_destroy,
    .event_create = gpu_event_create,
    .event_destroy = gpu_event_destroy,
    .record = gpu_record,
    .wait = gpu_wait,
    .upload = gpu_stream_upload,
    .send = gpu_stream_send,
    .download = gpu_stream_download,
    .finish = gpu_finish,
    .finish_event = gpu_finish_event,
    .host_allocate = gpu_host_allocate,
    .host_free = gpu_host_free,
};
