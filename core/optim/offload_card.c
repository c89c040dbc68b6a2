/* Offloaded states of a card. The stages are in its memory; the pieces pass through pinned host memory. Two
 * streams carry the copies, one per direction, in parallel with the card's own work. Events order them, and
 * the host does not wait if the states are stored in host memory. If they are stored in a file, each stage
 * has its own pinned buffer, and a piece that has left the card is written to the file while the next pieces
 * step. */
#include "core/base/crc32c.h"
#include "core/optim/offload_internal.h"

#include <stdlib.h>
#include <string.h>

struct copier {
    struct device *device;
    struct device_stream *down, *up;
    void *pinned;
    uint8_t *storage; /* all pieces; NULL: they are in a file */
};

bool offload_on_card(const struct meopt *opt)
{
    return opt->device->streams && opt->device->streams->overlap;
}

/* Returns the bytes of pinned memory: storage of all pieces, or one buffer per stage. */
static size_t pinned_bytes(const struct meopt *opt, const struct offload *o)
{
    return opt->options.offload == MEOPT_OFFLOAD_HOST ? (size_t)o->file_bytes
                                                      : ((size_t)o->stage_count + 1) * o->stage_bytes;
}

static int failed(const struct error *why, struct meopt_error *err)
{
    return optim_fail(err, MEOPT_DEVICE_FAILED, "%.240s", why->what);
}

static int events_create(struct offload *o, struct device *dev, struct meopt_error *err)
{
    struct error why = {0};
    for (int s = 0; s < o->stage_count; s++) {
        struct stage *stage = &o->stages[s];
        if (dev->streams->event_create(dev, &stage->stepped, &why) ||
            dev->streams->event_create(dev, &stage->downloaded, &why) ||
            dev->streams->event_create(dev, &stage->uploaded, &why))
            return failed(&why, err);
    }
    return MEOPT_OK;
}

int copier_create(struct meopt *opt, struct offload *o, struct meopt_error *err)
{
    struct device *dev = opt->device;
    bool storage = opt->options.offload == MEOPT_OFFLOAD_HOST;
    size_t bytes = pinned_bytes(opt, o);
    struct error why = {0};
    if (!storage) device_offloaded(dev, PLACE_HOST, MEMORY_OPTIMIZER, (int64_t)bytes);
    if (opt->options.dry) return MEOPT_OK;
    struct copier *c = o->copier = calloc(1, sizeof *c);
    if (!c) return optim_fail(err, MEOPT_NO_MEMORY, "no memory");
    c->device = dev;
    if (dev->streams->create(dev, &c->down, &why) || dev->streams->create(dev, &c->up, &why))
        return failed(&why, err);
    c->pinned = dev->streams->host_allocate(dev, bytes + TRANSFER_ALIGNMENT);
    if (!c->pinned)
        return optim_fail(err, MEOPT_NO_MEMORY,
                          "cannot pin %zu bytes: lower optim.offload_fraction, or use optim.offload=nvme",
                          bytes);
    uintptr_t at = ((uintptr_t)c->pinned + TRANSFER_ALIGNMENT - 1) & ~(uintptr_t)(TRANSFER_ALIGNMENT - 1);
    if (storage) c->storage = (uint8_t *)at;
    for (int s = 0; s <= o->stage_count && !storage; s++)
        o->stages[s].host = (uint8_t *)at + (size_t)s * o->stage_bytes;
    return events_create(o, dev, err);
}

void copier_destroy(struct meopt *opt, struct offload *o)
{
    struct device *dev = opt->device;
    struct copier *c = o->copier;
    if (opt->options.offload != MEOPT_OFFLOAD_HOST && offload_on_card(opt))
        device_offloaded(dev, PLACE_HOST, MEMORY_OPTIMIZER, -(int64_t)pinned_bytes(opt, o));
    if (!c) return;
    dev->streams->destroy(dev, c->down);
    dev->streams->destroy(dev, c->up);
    for (int s = 0; s < o->stage_count; s++) {
        dev->streams->event_destroy(dev, o->stages[s].stepped);
        dev->streams->event_destroy(dev, o->stages[s].downloaded);
        dev->streams->event_destroy(dev, o->stages[s].uploaded);
    }
    dev->streams->host_free(dev, c->pinned);
    free(c);
}

uint8_t *copier_storage(const struct offload *o, const struct piece *p)
{
    return o->copier && o->copier->storage ? o->copier->storage + p->offset : NULL;
}

static void send(struct copier *c, struct stage *s, const uint8_t *from, size_t bytes)
{
    const struct device_streams *q = c->device->streams;
    q->send(c->device, c->up, s->memory, from, bytes);
    q->record(c->device, s->uploaded, c->up);
}

void copier_exchange(struct offload *o, int stage, int out, int in)
{
    struct copier *c = o->copier;
    struct stage *s = &o->stages[stage];
    struct device *dev = c->device;
    const struct device_streams *q = dev->streams;
    q->record(dev, s->stepped, NULL);
    q->wait(dev, c->down, s->stepped);
    if (out != NONE) {
        const struct piece *p = &o->pieces[out];
        q->download(dev, c->down, c->storage ? c->storage + p->offset : s->host, s->memory, p->bytes);
    }
    q->record(dev, s->downloaded, c->down);
    s->downloading = !c->storage && (out != NONE || in != NONE);
    s->reads = in;
    if (!c->storage || in == NONE) return;
    const struct piece *p = &o->pieces[in];
    q->wait(dev, c->up, s->downloaded);
    if (p->writer != NONE && p->writer != stage) q->wait(dev, c->up, o->stages[p->writer].downloaded);
    send(c, s, c->storage + p->offset, p->bytes);
}

void copier_start_file(struct offload *o, int stage)
{
    struct stage *s = &o->stages[stage];
    if (!s->downloading) return;
    s->downloading = false;
    o->copier->device->streams->finish_event(o->copier->device, s->downloaded);
    struct transfer w = {0}, r = {0};
    if (s->writes != NONE) {
        struct piece *p = &o->pieces[s->writes];
        p->crc = crc32c(0, s->host, p->bytes);
        w = (struct transfer){s->host, p->bytes, p->offset};
    }
    if (s->reads != NONE)
        r = (struct transfer){s->host, o->pieces[s->reads].bytes, o->pieces[s->reads].offset};
    transfers_start(o->transfers, stage, &w, &r);
}

void copier_deliver(struct offload *o, int stage)
{
    struct copier *c = o->copier;
    struct stage *s = &o->stages[stage];
    const struct piece *p = &o->pieces[s->piece];
    if (!p->written) {
        c->device->optim->clear(c->device, s->memory, p->bytes, 1, 0);
        return;
    }
    if (!c->storage) send(c, s, s->host, p->bytes);
    c->device->streams->wait(c->device, NULL, s->uploaded);
}

void copier_finish(struct offload *o)
{
    o->copier->device->streams->finish(o->copier->device, o->copier->down);
    o->copier->device->streams->finish(o->copier->device, o->copier->up);
}
