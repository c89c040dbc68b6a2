/* Offloaded states of a card. The stages are in its memory; the pieces pass through pinned host memory. Two
 * streams carry the copies, one per direction, in parallel with the card's own work. Events order them, and
 * the host does not wait if the states are stored in host memory. If they are stored in a file, each stage
 * has its own pinned buffer, and a piece that has left the card is written to the file while the next pieces
 * step. */
#include "core/base/file.h"
#include "core/optim/offload_internal.h"

#include <stdlib.h>
#include <string.h>

struct carrier {
    struct device *device;
    struct device_stream *down, *up;
    void *pinned;
    uint8_t *home; /* of all pieces; NULL: they are in a file */
};

bool offload_on_card(const struct meopt *opt)
{
    return opt->device->streams && opt->device->streams->overlap;
}

/* Of pinned memory, of the class that most of it is. */
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
            dev->streams->event_create(dev, &stage->left, &why) ||
            dev->streams->event_create(dev, &stage->arrived, &why))
            return failed(&why, err);
    }
    return MEOPT_OK;
}

int carrier_create(struct meopt *opt, struct offload *o, struct meopt_error *err)
{
    struct device *dev = opt->device;
    bool home = opt->options.offload == MEOPT_OFFLOAD_HOST;
    size_t bytes = pinned_bytes(opt, o);
    struct error why = {0};
    if (!home) device_offloaded(dev, PLACE_HOST, MEMORY_OPTIMIZER, (int64_t)bytes);
    if (opt->options.dry) return MEOPT_OK;
    struct carrier *c = o->carrier = calloc(1, sizeof *c);
    if (!c) return optim_fail(err, MEOPT_NO_MEMORY, "no memory");
    c->device = dev;
    if (dev->streams->create(dev, &c->down, &why) || dev->streams->create(dev, &c->up, &why))
        return failed(&why, err);
    c->pinned = dev->streams->host_allocate(dev, bytes + TRANSFER_ALIGNMENT);
    if (!c->pinned)
        return optim_fail(
            err, MEOPT_NO_MEMORY,
            "no %zu bytes of pinned memory for offloaded states: give less of them away, or nvme", bytes);
    uintptr_t at = ((uintptr_t)c->pinned + TRANSFER_ALIGNMENT - 1) & ~(uintptr_t)(TRANSFER_ALIGNMENT - 1);
    if (home) c->home = (uint8_t *)at;
    for (int s = 0; s <= o->stage_count && !home; s++)
        o->stages[s].host = (uint8_t *)at + (size_t)s * o->stage_bytes;
    return events_create(o, dev, err);
}

void carrier_destroy(struct meopt *opt, struct offload *o)
{
    struct device *dev = opt->device;
    struct carrier *c = o->carrier;
    if (opt->options.offload != MEOPT_OFFLOAD_HOST && offload_on_card(opt))
        device_offloaded(dev, PLACE_HOST, MEMORY_OPTIMIZER, -(int64_t)pinned_bytes(opt, o));
    if (!c) return;
    dev->streams->destroy(dev, c->down);
    dev->streams->destroy(dev, c->up);
    for (int s = 0; s < o->stage_count; s++) {
        dev->streams->event_destroy(dev, o->stages[s].stepped);
        dev->streams->event_destroy(dev, o->stages[s].left);
        dev->streams->event_destroy(dev, o->stages[s].arrived);
    }
    dev->streams->host_free(dev, c->pinned);
    free(c);
}

uint8_t *carrier_home(const struct offload *o, const struct piece *p)
{
    return o->carrier && o->carrier->home ? o->carrier->home + p->offset : NULL;
}

static void send(struct carrier *c, struct stage *s, const uint8_t *from, size_t bytes)
{
    const struct device_streams *q = c->device->streams;
    q->send(c->device, c->up, s->memory, from, bytes);
    q->record(c->device, s->arrived, c->up);
}

void carrier_turn(struct offload *o, int stage, int out, int in)
{
    struct carrier *c = o->carrier;
    struct stage *s = &o->stages[stage];
    struct device *dev = c->device;
    const struct device_streams *q = dev->streams;
    q->record(dev, s->stepped, NULL);
    q->wait(dev, c->down, s->stepped);
    if (out != NOWHERE) {
        const struct piece *p = &o->pieces[out];
        q->download(dev, c->down, c->home ? c->home + p->offset : s->host, s->memory, p->bytes);
    }
    q->record(dev, s->left, c->down);
    s->leaving = !c->home && (out != NOWHERE || in != NOWHERE);
    s->reads = in;
    if (!c->home || in == NOWHERE) return;
    const struct piece *p = &o->pieces[in];
    q->wait(dev, c->up, s->left);
    if (p->writer != NOWHERE && p->writer != stage) q->wait(dev, c->up, o->stages[p->writer].left);
    send(c, s, c->home + p->offset, p->bytes);
}

void carrier_push(struct offload *o, int stage)
{
    struct stage *s = &o->stages[stage];
    if (!s->leaving) return;
    s->leaving = false;
    o->carrier->device->streams->finish_event(o->carrier->device, s->left);
    struct transfer w = {0}, r = {0};
    if (s->writes != NOWHERE) {
        struct piece *p = &o->pieces[s->writes];
        p->crc = crc32c(0, s->host, p->bytes);
        w = (struct transfer){s->host, p->bytes, p->offset};
    }
    if (s->reads != NOWHERE)
        r = (struct transfer){s->host, o->pieces[s->reads].bytes, o->pieces[s->reads].offset};
    transfers_start(o->transfers, stage, &w, &r);
}

void carrier_arrive(struct offload *o, int stage)
{
    struct carrier *c = o->carrier;
    struct stage *s = &o->stages[stage];
    const struct piece *p = &o->pieces[s->piece];
    if (!p->written) {
        c->device->optim->clear(c->device, s->memory, p->bytes, 1, 0);
        return;
    }
    if (!c->home) send(c, s, s->host, p->bytes);
    c->device->streams->wait(c->device, NULL, s->arrived);
}

void carrier_finish(struct offload *o)
{
    o->carrier->device->streams->finish(o->carrier->device, o->carrier->down);
    o->carrier->device->streams->finish(o->carrier->device, o->carrier->up);
}
