/* Streams of devices that complete every call at once (the CPU), or do nothing (dry devices): see
 * device.h. */
#include "core/device/cpu.h"

#include <stdlib.h>
#include <string.h>

static char nothing; /* the handle of every stream and event of these devices */

static int at_once_create(struct device *dev, struct device_stream **stream, struct error *err)
{
    (void)dev, (void)err;
    *stream = (struct device_stream *)(void *)&nothing;
    return 0;
}
static void at_once_destroy(struct device *dev, struct device_stream *stream) { (void)dev, (void)stream; }
static int at_once_event_create(struct device *dev, struct device_event **event, struct error *err)
{
    (void)dev, (void)err;
    *event = (struct device_event *)(void *)&nothing;
    return 0;
}
static void at_once_event(struct device *dev, struct device_event *event) { (void)dev, (void)event; }
static void at_once_record(struct device *dev, struct device_event *event, struct device_stream *stream)
{
    (void)dev, (void)event, (void)stream;
}
static void at_once_wait(struct device *dev, struct device_stream *stream, struct device_event *event)
{
    (void)dev, (void)stream, (void)event;
}
static void at_once_upload(struct device *dev, struct device_stream *stream, void *dst, const void *src,
                           size_t bytes)
{
    (void)stream;
    dev->upload(dev, dst, src, bytes);
}
static void at_once_download(struct device *dev, struct device_stream *stream, void *dst, const void *src,
                             size_t bytes)
{
    (void)stream;
    dev->download(dev, dst, src, bytes);
}
static void *at_once_host_allocate(struct device *dev, size_t bytes)
{
    (void)dev;
    return aligned_alloc(64, (bytes + 64) & ~(size_t)63);
}
static void at_once_host_free(struct device *dev, void *p)
{
    (void)dev;
    free(p);
}

#define AT_ONCE                                                                                              \
    .create = at_once_create, .destroy = at_once_destroy, .event_create = at_once_event_create,              \
    .event_destroy = at_once_event, .record = at_once_record, .wait = at_once_wait,                          \
    .upload = at_once_upload, .send = at_once_upload, .download = at_once_download,                          \
    .finish = at_once_destroy, .finish_event = at_once_event, .host_allocate = at_once_host_allocate,        \
    .host_free = at_once_host_free
const struct device_streams streams_at_once = {.overlap = false, AT_ONCE};
const struct device_streams streams_of_dry_card = {.overlap = true, AT_ONCE};
