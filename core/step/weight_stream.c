/* Streamed weights: see weight_stream.h. */
#include "core/step/weight_stream.h"
#include "core/base/clock.h"
#include "core/base/crc32c.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/log.h"
#include "core/base/progress.h"
#include "core/base/retry.h"
#include "core/base/platform.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PAGE = 4096,
    CONVERT = 65536,
    PART_BYTES = 1 << 24, /* between two calls of progress_mark */
    TRIES = 100           /* of a transfer without progress */
};

/* One of the tower's buffers. */
struct slot {
    int held, wanted;             /* groups: the current one, the requested one; -1: none */
    bool dirty;                   /* changed since it was read from the store */
    int64_t turn;                 /* order of requests */
    struct device_event *arrived; /* of a card */
    int code;                     /* of the last fetch */
    struct error err;
};

struct weight_stream {
    struct tower *tower;
    size_t *at; /* (groups) offset of each group in the store */
    size_t bytes;
    int sets;       /* 2: the averages of all groups follow their weights in the store */
    bool averages;  /* fetch and write_back use the averages */
    bool *averaged; /* (groups) with an average */
    struct slot slots[WEIGHT_BUFFERS];
    enum memory_place place;

    char *host; /* card: the store in pinned memory */
    struct device_stream *copies;
    struct device_event *issued; /* operations issued to the card so far */

    int fd;         /* CPU: the scratch file, -1: none */
    int direct;     /* the same with O_DIRECT, -1: not supported */
    char *path;     /* for messages */
    uint32_t *crcs; /* (sets, parameters) */
    bool *written;  /* (sets, parameters): crcs is set */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool running, stop;
    int64_t turns;
    double waited;
    int64_t moved; /* bytes */
};

static struct slot *slot_of(struct weight_stream *s, int group)
{
    return &s->slots[tower_weight_buffer(s->tower, group)];
}

static size_t parameter_bytes(const struct parameter *p)
{
    return (size_t)p->count * dtype_bytes(p->weight_type);
}

/* Returns the values of a group that are fetched: 0 weights, 1 averages. */
static int set_of(const struct weight_stream *s, int group) { return s->averages && s->averaged[group]; }

/* Returns the offset of a group in the store. */
static size_t group_offset(const struct weight_stream *s, int group)
{
    return s->at[group] + (size_t)set_of(s, group) * s->bytes;
}

/* Returns the place of a parameter's checksum. */
static int checksum_of(const struct weight_stream *s, int parameter)
{
    const struct tower *t = s->tower;
    return parameter + set_of(s, t->parameters[parameter].group) * t->parameter_count;
}

/* Returns the offset of a parameter that is not resident in the store. */
static size_t store_offset(const struct weight_stream *s, const struct parameter *p)
{
    return group_offset(s, p->group) +
           (size_t)((char *)p->weight - tower_group_weights(s->tower, p->group).p);
}

/* Returns the bytes of the store. */
static size_t store_bytes(const struct weight_stream *s) { return s->bytes * (size_t)s->sets; }

/* ---- the file ---- */

static int make_file(struct weight_stream *s, const char *directory, struct error *err)
{
    char hint[] = N_("train.scratch_dir: a directory on a disk with free space");
    char again[40];
    s->path = path_join(directory, ".meopt-weights-"); /* for messages: it has no name */
    s->fd = file_nameless(directory, 0);
    if (s->fd < 0) {
        int code = error_errno(err, EXIT_FAILED, hint, "cannot create a scratch file for streamed weights");
        return error_at(err, directory, 0, 0), code;
    }
    bool memory = file_in_memory(s->fd);
    snprintf(again, sizeof again, "/proc/self/fd/%d", s->fd);
    if (!memory) s->direct = open(again, O_RDWR | O_DIRECT | O_CLOEXEC);
    if (memory) log_warn("%s is on tmpfs: streaming weights from there saves no memory: %s", directory, hint);
    /* padding and the k part of EVA's bias are zero */
    int code = file_shorten(s->fd, (int64_t)store_bytes(s), s->path, err);
    if (!code)
        log_info("streamed weights: an unnamed scratch file of %.1f MiB in %s%s",
                 (double)store_bytes(s) / 1048576.0, directory, s->direct < 0 ? "" : ", with O_DIRECT");
    return code;
}

static int io_error(const struct weight_stream *s, bool write, size_t bytes, size_t at, struct error *err)
{
    int code = error_errno(
        err, EXIT_FAILED,
        "check the disk and its free space; to use a different disk: meopt train --resume RUN "
        "train.scratch_dir=DIR",
        "cannot %s %zu bytes of streamed weights at %zu", write ? _("write") : _("read"), bytes, at);
    return error_at(err, s->path, 0, 0), code;
}

/* Returns an error if the scratch file was truncated. */
static int check_length(const struct weight_stream *s, struct error *err)
{
    struct stat st;
    size_t at, bytes = store_bytes(s);
    if (fstat(s->fd, &st) != 0 || (size_t)st.st_size >= bytes) return 0;
    at = (size_t)st.st_size;
    int code = error_set(err, EXIT_INTEGRITY, "start again with --resume",
                         "the scratch file of streamed weights ends at %zu, %zu bytes early", at, bytes - at);
    return error_at(err, s->path, 0, 0), code;
}

enum { UNALIGNED = -1 };

/* Reads or writes `bytes` at offset `at`. page: alignment of every request, also after a short one. Returns
 * UNALIGNED if the file system requires a larger alignment for O_DIRECT. */
static int file_io(const struct weight_stream *s, int fd, bool write, char *p, size_t bytes, size_t at,
                   size_t page, struct error *err)
{
    for (size_t done = 0, stuck = 0; done < bytes;) {
        size_t from = done - done % page, part = bytes - from < PART_BYTES ? bytes - from : PART_BYTES;
        int64_t here = (int64_t)(at + from);
        ssize_t n = write ? retry_write(fd, p + from, part, here) : retry_read(fd, p + from, part, here);
        if (n < 0 && errno == EINVAL && page > 1) return UNALIGNED;
        bool further = n > 0 && from + (size_t)n > done;
        stuck = further ? 0 : stuck + 1;
        int short_file = !write && stuck ? check_length(s, err) : 0;
        if (short_file) return short_file;
        if (n == 0 || stuck == TRIES) errno = write && !n ? ENOSPC : EIO;
        if (n <= 0 || stuck == TRIES) return io_error(s, write, part, at + from, err);
        if (further) done = from + (size_t)n;
        progress_mark();
    }
    return 0;
}

/* Transfers a group between its buffer and the file (stream thread). O_DIRECT avoids a copy by the CPU and
 * memory for the page cache; it transfers whole pages, for which the buffer has space. Falls back to the
 * page cache. */
static int transfer(struct weight_stream *s, int group, bool write, struct error *err)
{
    struct weight_span span = tower_group_weights(s->tower, group);
    size_t at = group_offset(s, group), whole = (span.bytes + PAGE - 1) & ~(size_t)(PAGE - 1);
    if (s->direct >= 0 && (uintptr_t)span.p % PAGE == 0) {
        int code = file_io(s, s->direct, write, span.p, whole, at, PAGE, err);
        posix_fadvise(s->fd, (off_t)at, (off_t)whole, POSIX_FADV_DONTNEED); /* cached while loading */
        if (code != UNALIGNED) return code;
        close(s->direct);
        s->direct = -1;
    }
    return file_io(s, s->fd, write, span.p, span.bytes, at, 1, err);
}

static int verify(const struct weight_stream *s, int parameter, const void *values, struct error *err)
{
    const struct parameter *p = &s->tower->parameters[parameter];
    uint32_t crc = crc32c(0, values, parameter_bytes(p));
    int set = checksum_of(s, parameter);
    if (crc == s->crcs[set] || !s->written[set]) return 0;
    int code =
        error_set(err, EXIT_INTEGRITY, "check the disk, and start again with --resume",
                  "the scratch file of streamed weights was changed: %s, %zu bytes at %zu, has the checksum "
                  "%08x, and was written with %08x",
                  p->name, parameter_bytes(p), store_offset(s, p), crc, s->crcs[set]);
    return error_at(err, s->path, 0, 0), code;
}

/* Reads a group into its buffer and verifies it (stream thread). */
static int fetch(struct weight_stream *s, int group, struct error *err)
{
    const struct tower *t = s->tower;
    int code = transfer(s, group, false, err);
    for (int i = 0; i < t->parameter_count && !code; i++)
        if (t->parameters[i].group == group && !t->parameters[i].resident)
            code = verify(s, i, t->parameters[i].weight, err);
    return code;
}

/* Writes a group from its buffer (stream thread). */
static int write_back(struct weight_stream *s, int group, struct error *err)
{
    const struct tower *t = s->tower;
    for (int i = 0; i < t->parameter_count; i++) {
        const struct parameter *p = &t->parameters[i];
        if (p->group != group || p->resident) continue;
        s->crcs[checksum_of(s, i)] = crc32c(0, p->weight, parameter_bytes(p));
        s->written[checksum_of(s, i)] = true;
    }
    return transfer(s, group, true, err);
}

/* Retries a failed operation once: a disk or its network may be unavailable for a moment. */
static int with_retry(int (*operation)(struct weight_stream *, int, struct error *), struct weight_stream *s,
                      int group, struct error *err)
{
    if (!operation(s, group, err)) return 0;
    log_warn("%s: %s; retrying once", s->path, err->what);
    return operation(s, group, err);
}

/* Returns the slot with the oldest request; NULL: none. */
static struct slot *next_slot(struct weight_stream *s)
{
    struct slot *first = NULL;
    for (int i = 0; i < WEIGHT_BUFFERS; i++) {
        struct slot *slot = &s->slots[i];
        if (slot->wanted >= 0 && (!first || slot->turn < first->turn)) first = slot;
    }
    return first;
}

static void *stream_thread(void *context)
{
    struct weight_stream *s = context;
    struct slot *slot;
    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        if (!(slot = next_slot(s))) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        int group = slot->wanted, before = slot->held, code = 0;
        pthread_mutex_unlock(&s->lock);
        if (slot->dirty) code = with_retry(write_back, s, before, &slot->err);
        bool kept = code != 0; /* the changed weights exist in the buffer only */
        if (!code) code = with_retry(fetch, s, group, &slot->err);
        pthread_mutex_lock(&s->lock);
        slot->code = code;
        slot->dirty = kept;
        slot->held = kept ? before : code ? -1 : group;
        slot->wanted = -1;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static int start(struct weight_stream *s, struct error *err)
{
    if ((errno = thread_start(&s->thread, stream_thread, s)) != 0)
        return error_errno(err, EXIT_HOST_MEMORY, "raise the limits on memory and processes (ulimit -v, -u)",
                           "cannot start the thread that reads streamed weights");
    s->running = true;
    return 0;
}

static void request_group(struct weight_stream *s, int group)
{
    struct slot *slot = slot_of(s, group);
    while (slot->wanted >= 0 && slot->wanted != group) pthread_cond_wait(&s->changed, &s->lock);
    if (slot->wanted == group || slot->held == group) return;
    /* counted when it is asked for: a step then has the same count however fast the thread is */
    if (slot->dirty) s->moved += (int64_t)tower_group_weights(s->tower, slot->held).bytes;
    s->moved += (int64_t)tower_group_weights(s->tower, group).bytes;
    slot->wanted = group;
    slot->turn = s->turns++;
    slot->code = 0;
    pthread_cond_broadcast(&s->changed);
}

static int fetch_from_file(struct weight_stream *s, int group, int next, struct error *err)
{
    struct slot *slot = slot_of(s, group);
    double begin = clock_seconds();
    pthread_mutex_lock(&s->lock);
    request_group(s, group);
    if (next >= 0) request_group(s, next);
    while (slot->held != group && !slot->code) pthread_cond_wait(&s->changed, &s->lock);
    int code = slot->code;
    if (code && err) *err = slot->err;
    slot->code = 0;
    s->waited += clock_seconds() - begin;
    pthread_mutex_unlock(&s->lock);
    return code;
}

/* ---- a card's ---- */

static int make_host(struct weight_stream *s, struct error *err)
{
    struct device *dev = s->tower->device;
    const struct device_streams *q = dev->streams;
    size_t bytes = store_bytes(s);
    s->host = q->host_allocate(dev, bytes);
    if (!s->host)
        return error_set(err, EXIT_HOST_MEMORY, "free host memory, or set place: resident",
                         "cannot pin %.1f MiB of host memory for streamed weights",
                         (double)bytes / 1048576.0);
    memset(s->host, 0, bytes);
    int code = q->create(dev, &s->copies, err);
    if (!code) code = q->event_create(dev, &s->issued, err);
    for (int i = 0; i < WEIGHT_BUFFERS && !code; i++) code = q->event_create(dev, &s->slots[i].arrived, err);
    return code;
}

/* Copies a group to the card, after the operations issued so far, which may still use the buffer. Saves a
 * changed buffer first. */
static void copy_group(struct weight_stream *s, int group)
{
    struct device *dev = s->tower->device;
    struct slot *slot = slot_of(s, group);
    struct weight_span span = tower_group_weights(s->tower, group);
    if (slot->held == group) return;
    dev->streams->record(dev, s->issued, NULL);
    dev->streams->wait(dev, s->copies, s->issued);
    if (slot->dirty) {
        struct weight_span changed = tower_group_weights(s->tower, slot->held);
        dev->streams->download(dev, s->copies, s->host + group_offset(s, slot->held), changed.p,
                               changed.bytes);
        s->moved += (int64_t)changed.bytes;
    }
    s->moved += (int64_t)span.bytes;
    slot->dirty = false;
    slot->held = group;
    dev->streams->send(dev, s->copies, span.p, s->host + group_offset(s, group), span.bytes);
    dev->streams->record(dev, slot->arrived, s->copies);
}

/* ---- both ---- */

int weight_stream_open(struct weight_stream **stream, struct tower *tower, const char *directory,
                       bool averages, struct error *err)
{
    struct device *dev = tower->device;
    struct weight_stream *s = *stream = xcalloc(1, sizeof *s);
    *s = (struct weight_stream){.tower = tower, .sets = averages ? 2 : 1, .fd = -1, .direct = -1};
    for (int i = 0; i < WEIGHT_BUFFERS; i++) s->slots[i].held = s->slots[i].wanted = -1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->at = xcalloc((size_t)tower->group_count, sizeof *s->at);
    s->averaged = xcalloc((size_t)tower->group_count, sizeof *s->averaged);
    s->crcs = xcalloc((size_t)(s->sets * tower->parameter_count), sizeof *s->crcs);
    s->written = xcalloc((size_t)(s->sets * tower->parameter_count), sizeof *s->written);
    for (int group = 0; group < tower->group_count; group++) {
        s->at[group] = s->bytes;
        if (!tower_owns(tower, group)) continue;
        s->bytes += (tower_group_weights(tower, group).bytes + PAGE - 1) & ~(size_t)(PAGE - 1);
    }
    bool card = dev->streams->overlap;
    assert(tower->options.weight_buffers == 2);
    s->place = card ? PLACE_HOST : PLACE_FILE;
    device_offloaded(dev, s->place, tower->options.weights_class, (int64_t)store_bytes(s));
    tower_bind_weights(tower, weight_stream_fetch, s);
    if (dev->kind == DEVICE_DRY) return 0;
    if (card) return make_host(s, err);
    int code = make_file(s, directory, err);
    return code ? code : start(s, err);
}

void weight_stream_close(struct weight_stream *s)
{
    if (!s) return;
    struct device *dev = s->tower->device;
    if (s->running) {
        pthread_mutex_lock(&s->lock);
        s->stop = true;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    dev->streams->destroy(dev, s->copies); /* after its work */
    dev->streams->event_destroy(dev, s->issued);
    for (int i = 0; i < WEIGHT_BUFFERS; i++) dev->streams->event_destroy(dev, s->slots[i].arrived);
    dev->streams->host_free(dev, s->host);
    tower_bind_weights(s->tower, NULL, NULL);
    device_offloaded(dev, s->place, s->tower->options.weights_class, -(int64_t)store_bytes(s));
    if (s->direct >= 0) close(s->direct);
    if (s->fd >= 0) close(s->fd);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s->path);
    free(s->written);
    free(s->crcs);
    free(s->averaged);
    free(s->at);
    free(s);
}

int weight_stream_write(void *context, int parameter, const float *values, struct error *err)
{
    struct weight_stream *s = context;
    const struct parameter *p = &s->tower->parameters[parameter];
    size_t each = dtype_bytes(p->weight_type), at;
    uint32_t crc = 0;
    int code = 0;
    if (p->resident || !tower_owns(s->tower, p->group)) return 0;
    at = store_offset(s, p);
    char *buffer = xmalloc(CONVERT * sizeof(float));
    for (int64_t done = 0; done < p->count && !code; done += CONVERT) {
        int64_t count = p->count - done < CONVERT ? p->count - done : CONVERT;
        size_t bytes = (size_t)count * each;
        weights_convert(buffer, p->weight_type, values + done, DTYPE_F32, count);
        crc = crc32c(crc, buffer, bytes);
        if (s->host) memcpy(s->host + at, buffer, bytes);
        else code = file_io(s, s->fd, true, buffer, bytes, at, 1, err);
        at += bytes;
    }
    s->crcs[parameter] = crc;
    s->written[parameter] = true;
    free(buffer);
    return code;
}

int weight_stream_read(struct weight_stream *s, int parameter, void *values, struct error *err)
{
    const struct parameter *p = &s->tower->parameters[parameter];
    size_t at = store_offset(s, p), bytes = parameter_bytes(p);
    if (p->resident) {
        s->tower->device->download(s->tower->device, values, p->weight, bytes);
        return 0;
    }
    if (s->host) {
        memcpy(values, s->host + at, bytes);
        return 0;
    }
    int code = file_io(s, s->fd, false, values, bytes, at, 1, err);
    return code ? code : verify(s, parameter, values, err);
}

/* Returns the first group of the next pass that does not take the buffer of `group`; -1: none. */
static int first_in_other(const struct tower *t, int group)
{
    for (int g = 0; g < t->group_count; g++)
        if (tower_owns(t, g) && tower_weight_buffer(t, g) != tower_weight_buffer(t, group)) return g;
    return -1;
}

int weight_stream_fetch(void *context, int group, int next, struct error *err)
{
    struct weight_stream *s = context;
    const struct tower *t = s->tower;
    struct device *dev = t->device;
    if (next < 0 && t->options.gradients == GRADIENTS_NONE) next = first_in_other(t, group);
    if (s->fd >= 0) return fetch_from_file(s, group, next, err);
    if (!s->host) return 0; /* a plan */
    copy_group(s, group);
    if (next >= 0) copy_group(s, next);
    dev->streams->wait(dev, NULL, slot_of(s, group)->arrived);
    return 0;
}

void weight_stream_mark_dirty(struct weight_stream *s, int group)
{
    if (tower_has_adapters(s->tower)) return; /* adapters stay in memory, and nothing else changes */
    pthread_mutex_lock(&s->lock);
    slot_of(s, group)->dirty = true;
    pthread_mutex_unlock(&s->lock);
}

/* Waits for the transfers that were requested, and writes changed buffers. */
static int settle(struct weight_stream *s, struct error *err)
{
    struct device *dev = s->tower->device;
    int code = 0;
    if (s->fd < 0 && !s->host) return 0; /* a plan */
    pthread_mutex_lock(&s->lock);
    while (next_slot(s)) pthread_cond_wait(&s->changed, &s->lock);
    for (int i = 0; i < WEIGHT_BUFFERS && !code; i++) {
        struct slot *slot = &s->slots[i];
        if (s->host && slot->held >= 0) dev->streams->wait(dev, NULL, slot->arrived);
        if (!slot->dirty) continue;
        struct weight_span span = tower_group_weights(s->tower, slot->held);
        s->moved += (int64_t)span.bytes;
        if (!s->host) code = with_retry(write_back, s, slot->held, err);
        else dev->download(dev, s->host + group_offset(s, slot->held), span.p, span.bytes);
        slot->dirty = code != 0;
    }
    pthread_mutex_unlock(&s->lock);
    return code;
}

int weight_stream_keep_average(struct weight_stream *s, int group, struct error *err)
{
    struct slot *slot = slot_of(s, group);
    assert(s->sets == 2);
    slot->dirty = s->averages = s->averaged[group] = true;
    int code = settle(s, err);
    s->averages = slot->dirty = false;
    slot->held = -1;
    return code;
}

int weight_stream_select(struct weight_stream *s, bool averages, struct error *err)
{
    int code = settle(s, err);
    if (code) return code;
    for (int i = 0; i < WEIGHT_BUFFERS; i++) s->slots[i].held = -1;
    s->averages = averages;
    return 0;
}

size_t weight_stream_bytes(const struct weight_stream *s) { return s ? s->bytes : 0; }

int64_t weight_stream_moved_bytes(const struct weight_stream *s) { return s ? s->moved : 0; }

double weight_stream_waited_seconds(const struct weight_stream *s) { return s ? s->waited : 0; }
