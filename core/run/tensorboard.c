/* TensorBoard's event file, written by hand: a sequence of TFRecords
 * (tensorflow/core/lib/io/record_writer.h), each, little endian,
 *
 *     uint64 length   uint32 masked CRC-32C of length   data   uint32 masked CRC-32C of data
 *
 * whose data is a protobuf message Event (tensorflow/core/util/event.proto), of which five fields are used:
 *
 *     double wall_time = 1   int64 step = 2   string file_version = 3   Summary summary = 5
 *     SessionLog session_log = 7
 *     Summary { repeated Value value = 1 }   Value { string tag = 1   float simple_value = 2 }
 *     SessionLog { enum status = 1 }
 */
#include "core/run/tensorboard.h"
#include "core/base/crc32c.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct tensorboard {
    int fd;
    char *path;
    off_t bytes; /* of complete records */
};

/* A message under construction. All messages here fit, because tags are truncated at TAG_MAX. */
enum { MESSAGE_MAX = 8192, TAG_MAX = 64 };
struct message {
    size_t bytes;
    uint8_t data[MESSAGE_MAX];
};

enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

static void put_varint(struct message *m, uint64_t v)
{
    for (; v >= 128; v >>= 7) m->data[m->bytes++] = (uint8_t)(v | 128);
    m->data[m->bytes++] = (uint8_t)v;
}

static void put_key(struct message *m, unsigned field, enum wire wire) { put_varint(m, field << 3 | wire); }

static void put_fixed(uint8_t *to, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++) to[i] = (uint8_t)(v >> 8 * i);
}

static void put_double(struct message *m, unsigned field, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_key(m, field, WIRE_64);
    put_fixed(m->data + m->bytes, bits, 8);
    m->bytes += 8;
}

static void put_bytes(struct message *m, unsigned field, const void *data, size_t bytes)
{
    put_key(m, field, WIRE_BYTES);
    put_varint(m, bytes);
    memcpy(m->data + m->bytes, data, bytes);
    m->bytes += bytes;
}

static void put_value(struct message *summary, const char *group, const char *name, double value)
{
    if (isnan(value) || summary->bytes + 2 * TAG_MAX + 32 > MESSAGE_MAX / 2) return;
    uint8_t inner[2 * TAG_MAX + 32];
    struct message *m = &(struct message){0};
    char tag[2 * TAG_MAX];
    int n = snprintf(tag, sizeof tag, "%.*s%.*s", TAG_MAX - 1, group, TAG_MAX - 1, name);
    float f = (float)value;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    put_bytes(m, 1, tag, (size_t)n);
    put_key(m, 2, WIRE_32);
    put_fixed(m->data + m->bytes, bits, 4);
    m->bytes += 4;
    memcpy(inner, m->data, m->bytes);
    put_bytes(summary, 1, inner, m->bytes);
}

static uint32_t masked_crc(const void *data, size_t bytes)
{
    uint32_t crc = crc32c(0, data, bytes);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static int record_write(struct tensorboard *t, const struct message *event, struct error *err)
{
    uint8_t record[MESSAGE_MAX + 16];
    put_fixed(record, event->bytes, 8);
    put_fixed(record + 8, masked_crc(record, 8), 4);
    memcpy(record + 12, event->data, event->bytes);
    put_fixed(record + 12 + event->bytes, masked_crc(event->data, event->bytes), 4);
    size_t bytes = event->bytes + 16;
    int code = file_write_all(t->fd, record, bytes, t->path, err);
    if (code == 0) t->bytes += (off_t)bytes;
    else if (ftruncate(t->fd, t->bytes) != 0) return code; /* (the torn record stays; readers stop there) */
    return code;
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int file_create(struct tensorboard *t, const char *directory, struct error *err)
{
    char host[65] = "", *slash;
    if (gethostname(host, sizeof host - 1) != 0 || host[0] == 0) strcpy(host, "localhost");
    while ((slash = strchr(host, '/'))) *slash = '_';
    for (int i = 0; i < 1000; i++) {
        t->path = xasprintf("%s/events.out.tfevents.%010lld.%s.%d.%d", directory, (long long)time(NULL), host,
                            (int)getpid(), i);
        t->fd = open(t->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
        if (t->fd >= 0) return 0;
        int code = error_errno(err, EXIT_FAILED, "make the directory writable", "cannot create %s", t->path);
        if (errno != EEXIST) return code;
        free(t->path);
        t->path = NULL;
    }
    return err->code;
}

int tensorboard_open(struct tensorboard **out, const char *directory, int64_t next_step, struct error *err)
{
    static const char version[] = "brain.Event:2";
    struct error unused;
    *out = NULL;
    int code = file_make_dirs(directory, err ? err : &unused);
    if (code) return code;
    struct tensorboard *t = xcalloc(1, sizeof *t);
    struct message event = {0};
    t->fd = -1;
    if ((code = file_create(t, directory, err ? err : &unused))) goto fail;
    put_double(&event, 1, now_s());
    put_bytes(&event, 3, version, sizeof version - 1);
    if ((code = record_write(t, &event, err))) goto fail;
    if (next_step > 1) {
        static const uint8_t started[] = {1 << 3 | WIRE_VARINT, 1};
        event.bytes = 0;
        put_double(&event, 1, now_s());
        put_key(&event, 2, WIRE_VARINT);
        put_varint(&event, (uint64_t)next_step);
        put_bytes(&event, 7, started, sizeof started);
        if ((code = record_write(t, &event, err))) goto fail;
    }
    *out = t;
    return 0;
fail:
    tensorboard_close(t);
    return code;
}

/* Returns the step of an Event with a summary; -1: it has none. */
static int64_t event_step(const uint8_t *p, const uint8_t *end)
{
    int64_t step = -1;
    bool summary = false;
    while (p < end) {
        unsigned key = *p++;
        uint64_t value = 0;
        int shift = 0;
        if ((key & 7) == WIRE_64) {
            if (end - p < 8) return -1;
            p += 8;
            continue;
        }
        if ((key & 7) != WIRE_VARINT && (key & 7) != WIRE_BYTES) return -1;
        for (; p < end && shift < 63; shift += 7) {
            value |= (uint64_t)(*p & 127) << shift;
            if (*p++ < 128) break;
        }
        if (key == (2 << 3 | WIRE_VARINT)) step = value < INT64_MAX ? (int64_t)value : -1;
        summary |= key == (5 << 3 | WIRE_BYTES);
        if ((key & 7) == WIRE_BYTES && value > (uint64_t)(end - p)) return -1;
        if ((key & 7) == WIRE_BYTES) p += value;
    }
    return summary ? step : -1;
}

/* Raises *last to the last step of a file's complete records. */
static int file_last_step(const char *path, int64_t *last, struct error *err)
{
    struct file_map map;
    int code = file_map_open(&map, path, err);
    for (size_t at = 0; !code && at + 16 <= map.bytes;) {
        uint64_t bytes = 0;
        for (int i = 0; i < 8; i++) bytes |= (uint64_t)map.data[at + (size_t)i] << 8 * i;
        if (bytes > map.bytes - at - 16) break;
        const uint8_t *event = map.data + at + 12;
        int64_t step = event_step(event, event + bytes);
        if (step > *last) *last = step;
        at += 16 + bytes;
    }
    if (!code) file_map_close(&map);
    return code;
}

int tensorboard_last_step(const char *directory, int64_t *last, struct error *err)
{
    static const char begin[] = "events.out.tfevents.";
    DIR *dir = opendir(directory);
    const struct dirent *entry;
    int code = 0;
    *last = 0;
    while (dir && !code && (errno = 0, entry = readdir(dir)) != NULL) {
        if (strncmp(entry->d_name, begin, sizeof begin - 1) != 0) continue;
        char *path = path_join(directory, entry->d_name);
        code = file_last_step(path, last, err);
        free(path);
    }
    if (!code && errno) {
        code = error_errno(err, EXIT_FAILED, NULL, "cannot list this directory");
        error_at(err, directory, 0, 0);
    }
    if (dir) closedir(dir);
    return code;
}

int tensorboard_write(struct tensorboard *t, const struct scalars *s, struct error *err)
{
    struct message summary = {0}, event = {0};
    put_value(&summary, "", "loss", s->loss);
    for (int i = 0; i < SCORE_COUNT; i++)
        put_value(&summary, "", score_rows[i].key, (score_rows[i].percent ? 100 : 1) * s->scores[i]);
    put_value(&summary, "", "lr", s->lr);
    put_value(&summary, "", "grad_norm", s->grad_norm);
    put_value(&summary, "", "epoch", s->epoch);
    put_value(&summary, "throughput/", "images_per_s", s->images_per_s);
    put_value(&summary, "time/", "step_ms", s->step_ms);
    put_value(&summary, "time/", "data_wait_ms", s->data_wait_ms);
    for (int i = 0; i < s->memory_count; i++)
        put_value(&summary, "memory/", s->memory[i].class, s->memory[i].bytes);
    put_double(&event, 1, s->time_s > 0 ? s->time_s : now_s());
    put_key(&event, 2, WIRE_VARINT);
    put_varint(&event, (uint64_t)s->step);
    put_bytes(&event, 5, summary.data, summary.bytes);
    return record_write(t, &event, err);
}

void tensorboard_close(struct tensorboard *t)
{
    if (!t) return;
    if (t->fd >= 0) close(t->fd);
    free(t->path);
    free(t);
}
