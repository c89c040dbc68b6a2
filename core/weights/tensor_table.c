/* The table of tensors that the readers of the formats fill in: see weights_internal.h. */
#include "core/weights/weights_internal.h"
#include "core/base/memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int64_t shape_count(const int64_t *shape, int ndim)
{
    int64_t count = 1;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0) return -1;
        if (shape[i] == 0) return 0;
    }
    for (int i = 0; i < ndim; i++)
        if (__builtin_mul_overflow(count, shape[i], &count)) return -1;
    return count;
}

bool text_is_utf8(const char *text, size_t bytes)
{
    const uint8_t *p = (const uint8_t *)text, *end = p + bytes;
    while (p < end) {
        uint32_t c = *p++, least = 0;
        int more = c < 0x80 ? 0 : c >> 5 == 6 ? 1 : c >> 4 == 14 ? 2 : c >> 3 == 30 ? 3 : -1;
        if (c == 0 || more < 0 || end - p < more) return false;
        if (more) {
            static const uint32_t least_of[] = {0, 0x80, 0x800, 0x10000};
            least = least_of[more];
            c &= 0x3fu >> more;
            for (int i = 0; i < more; i++) {
                if (*p >> 6 != 2) return false;
                c = c << 6 | (*p++ & 0x3f);
            }
        }
        if (c < least || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return false;
    }
    return true;
}

const char *quote(const char *text, size_t bytes)
{
    static _Thread_local char ring[6][96];
    static _Thread_local unsigned next;
    char raw[72], *out = ring[next++ % 6];
    size_t n = bytes < sizeof raw - 1 ? bytes : sizeof raw - 4;
    memcpy(raw, text, n);
    raw[n] = 0;
    for (size_t i = 0; i < n; i++)
        if ((uint8_t)raw[i] < 0x20)
            raw[i] = '?'; /* a NUL would hide the rest, a line feed would start a new line */
    if (n < bytes) memcpy(raw + n, "...", 4);
    return text_printable(out, sizeof ring[0], raw);
}

static int out_of_memory(struct error *err)
{
    return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for the table of tensors");
}

int64_t weights_add_payload(struct weights *w, uint64_t offset, uint64_t bytes, uint32_t crc)
{
    if (w->payload_count == w->payloads_capacity) {
        w->payloads_capacity = w->payloads_capacity ? w->payloads_capacity * 2 : 256;
        w->payloads = xrealloc(w->payloads, (size_t)w->payloads_capacity * sizeof *w->payloads);
    }
    w->payloads[w->payload_count] = (struct payload){offset, bytes, crc, 0};
    return w->payload_count++;
}

static int refuse_name(const char *name, size_t name_bytes, struct error *err)
{
    return error_set(err, EXIT_INTEGRITY, "do not trust this file",
                     "the tensor name %s (%zu bytes) is empty, longer than %d bytes or not UTF-8",
                     quote(name, name_bytes), name_bytes, WEIGHTS_MAX_NAME_BYTES);
}

static int too_many(struct error *err)
{
    return error_set(err, EXIT_INTEGRITY, "do not trust this file", "contains more than %d tensors",
                     WEIGHTS_MAX_TENSORS);
}

int weights_add_row(struct weights *w, const struct row *row, const char *name, size_t name_bytes,
                    struct error *err)
{
    if (name_bytes == 0 || name_bytes > WEIGHTS_MAX_NAME_BYTES || !text_is_utf8(name, name_bytes))
        return refuse_name(name, name_bytes, err);
    if (w->count == WEIGHTS_MAX_TENSORS) return too_many(err);
    int64_t count = shape_count(row->tensor.shape, row->tensor.ndim);
    uint64_t file_bytes = w->bytes;
    uint64_t bytes = 0,
             most = file_bytes > WEIGHTS_MAX_EXPANDED_BYTES ? file_bytes : WEIGHTS_MAX_EXPANDED_BYTES;
    if (count < 0 || __builtin_mul_overflow((uint64_t)count, dtype_bytes(row->tensor.dtype), &bytes) ||
        bytes > most)
        return error_set(err, EXIT_INTEGRITY, "do not trust this file",
                         "tensor %s claims %lld elements, in a file of %zu bytes", quote(name, name_bytes),
                         (long long)count, file_bytes);
    if (w->count == w->rows_capacity) {
        int64_t capacity = w->rows_capacity ? w->rows_capacity * 2 : 256;
        struct row *larger = realloc(w->rows, (size_t)capacity * sizeof *larger);
        if (!larger) return out_of_memory(err);
        w->rows = larger;
        w->rows_capacity = capacity;
    }
    char *copy = malloc(name_bytes + 1);
    if (!copy) return out_of_memory(err);
    memcpy(copy, name, name_bytes);
    copy[name_bytes] = 0;
    struct row *added = &w->rows[w->count++];
    *added = *row;
    added->source = w->source_count - 1;
    added->tensor.name = copy;
    added->tensor.count = count;
    return 0;
}

int weights_add_unread(struct weights *w, const char *name, size_t name_bytes, const char *kind,
                       struct error *err)
{
    if (name_bytes == 0 || name_bytes > WEIGHTS_MAX_NAME_BYTES || !text_is_utf8(name, name_bytes))
        return refuse_name(name, name_bytes, err);
    if (w->unread_count == WEIGHTS_MAX_TENSORS) return too_many(err);
    if (w->unread_count == w->unread_capacity) {
        w->unread_capacity = w->unread_capacity ? w->unread_capacity * 2 : 16;
        w->unread = xrealloc(w->unread, (size_t)w->unread_capacity * sizeof *w->unread);
    }
    w->unread[w->unread_count++] = (struct unread){xasprintf("%.*s", (int)name_bytes, name), xstrdup(kind)};
    return 0;
}

int weights_add_descriptor(struct weights *w, int fd, const char *path, struct error *err)
{
    w->sources = xrealloc(w->sources, (size_t)(w->source_count + 1) * sizeof *w->sources);
    struct source *s = &w->sources[w->source_count++];
    *s = (struct source){.path = xstrdup(path), .fd = fd};
    int code = file_map_descriptor(&s->map, fd, path, err);
    w->bytes += s->map.bytes;
    if (s->map.bytes)
        madvise((void *)(uintptr_t)s->map.data, s->map.bytes, MADV_RANDOM); /* headers are far apart */
    return code;
}

int weights_add_source(struct weights *w, const char *path, struct error *err)
{
    int fd, code = file_open(path, &fd, NULL, err);
    return code ? code : weights_add_descriptor(w, fd, path, err);
}

bool weights_take_metadata(struct weights *w, const json_t *object)
{
    const char *key;
    json_t *value;
    size_t n = 0;
    if (!object || w->metadata) return !object || json_is_object(object);
    if (!json_is_object(object)) return false;
    w->metadata = xcalloc(2 * json_object_size(object) + 1, sizeof *w->metadata);
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        if (!json_is_string(value)) return false;
        w->metadata[n++] = xstrdup(key);
        w->metadata[n++] = xstrdup(json_string_value(value));
    }
    return true;
}

static int compare_names(const void *a, const void *b, void *rows)
{
    return strcmp(((const struct row *)rows)[*(const uint32_t *)a].tensor.name,
                  ((const struct row *)rows)[*(const uint32_t *)b].tensor.name);
}

int weights_index_names(struct weights *w, struct error *err)
{
    w->by_name = calloc((size_t)w->count + 1, sizeof *w->by_name);
    if (!w->by_name) return out_of_memory(err);
    for (int64_t i = 0; i < w->count; i++) w->by_name[i] = (uint32_t)i;
    qsort_r(w->by_name, (size_t)w->count, sizeof *w->by_name, compare_names, w->rows);
    for (int64_t i = 1; i < w->count; i++)
        if (compare_names(&w->by_name[i - 1], &w->by_name[i], w->rows) == 0) {
            const char *name = w->rows[w->by_name[i]].tensor.name;
            return error_set(err, EXIT_INTEGRITY, "do not trust this file", "the tensor %s occurs twice",
                             quote(name, strlen(name)));
        }
    return 0;
}
