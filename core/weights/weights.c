/* Opens a file of weights by its content, and builds the table of its tensors: see weights.h. */
#include "core/weights/weights_internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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

static int compare_names(const void *a, const void *b, void *rows)
{
    return strcmp(((const struct row *)rows)[*(const uint32_t *)a].tensor.name,
                  ((const struct row *)rows)[*(const uint32_t *)b].tensor.name);
}

/* Builds the index by name; a duplicate name (also after removing a prefix) is refused. */
static int index_names(struct weights *w, struct error *err)
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

static bool begins_with(const struct file_map *map, const char *text)
{
    size_t n = strlen(text);
    return map->bytes >= n && memcmp(map->data, text, n) == 0;
}

/* Checked before other formats, because a header's length may look like a pickle (80 02). */
static bool is_safetensors(const struct file_map *map)
{
    uint64_t header_bytes = 0;
    if (map->bytes <= 8 || map->data[8] != '{') return false;
    memcpy(&header_bytes, map->data, 8);
    return header_bytes <= map->bytes - 8;
}

static bool is_json(const struct file_map *map)
{
    size_t i = 0;
    while (i < map->bytes && i < 64 && strchr(" \t\r\n", map->data[i]) && map->data[i]) i++;
    return i < map->bytes && map->data[i] == '{';
}

static int add_by_content(struct weights *w, const char *path, struct error *err)
{
    const struct file_map *map = weights_map(w);
    bool pickle = map->bytes > 2 && map->data[0] == 0x80 && map->data[1] >= 2 && map->data[1] <= 5;
    bool safetensors = is_safetensors(map);
    if (!safetensors && (begins_with(map, "PK\3\4") || begins_with(map, "PK\5\6"))) {
        w->format = "pytorch zip";
        return pytorch_zip_open(w, err);
    }
    if (!safetensors && pickle) {
        w->format = "pytorch legacy";
        return pytorch_legacy_open(w, err);
    }
    if (safetensors || (map->bytes > 8 && map->data[8] == '{' && !is_json(map))) {
        w->format = "safetensors"; /* the reader reports a header that exceeds the file */
        return safetensors_open(w, err);
    }
    if (is_json(map) && !w->sharded) return weights_add_index(w, path, err);
    return weights_refuse_foreign(map, err);
}

/* The source takes ownership of the descriptor. */
static int add_open_source(struct weights *w, int fd, const char *path, struct error *err)
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
    return code ? code : add_open_source(w, fd, path, err);
}

int weights_add_file(struct weights *w, const char *path, struct error *err)
{
    int code = weights_add_source(w, path, err);
    if (code == 0) code = add_by_content(w, path, err);
    if (code && !err->file[0]) error_at(err, path, 0, 0);
    return code;
}

/* Returns how to convert a tensor of that kind to a supported one. */
static const char *unread_hint(const char *kind)
{
    static const struct {
        const char *begin, *hint;
    } hints[] = {
        {"a DTensor",
         "save whole tensors: get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)) "
         "of torch.distributed.checkpoint.state_dict"},
        {"a NumPy array", "torch.save({k: torch.from_numpy(v) for k, v in values.items()}, ...)"},
        {"sparse", "make it dense with .to_dense() and save again"},
        {"quantized", "save the model before it is quantized, or .dequantize() each tensor"},
        {"a view with", "save it with .resolve_neg().resolve_conj()"},
        {"a meta tensor", "load the weights into the model before it is saved"},
    };
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++)
        if (strncmp(kind, hints[i].begin, strlen(hints[i].begin)) == 0) return hints[i].hint;
    return "convert it to float32, float16 or bfloat16 in PyTorch and save again";
}

/* Refuses a file all of whose tensors are unsupported. */
static int refuse_unread(const struct weights *w, struct error *err)
{
    return error_set(err, EXIT_INTEGRITY, unread_hint(w->unread[0].kind),
                     "none of its %lld tensors is supported: %s is %s", (long long)w->unread_count,
                     quote(w->unread[0].name, strlen(w->unread[0].name)), w->unread[0].kind);
}

/* Completes the table after its sources were added, with this code. */
static int finish(struct weights **out, struct weights *w, const char *path, int code, struct error *err)
{
    if (code == 0 && w->count == 0 && w->unread_count) code = refuse_unread(w, err);
    if (code == 0) code = index_names(w, err);
    if (code == 0) {
        *out = w;
        return 0;
    }
    if (!err->file[0]) error_at(err, path, 0, 0);
    weights_close(w);
    return code;
}

static struct weights *begin(struct weights **out, const char *path, struct error *err)
{
    struct weights *w = xcalloc(1, sizeof *w);
    *out = NULL;
    *err = (struct error){0};
    w->path = xstrdup(path);
    return w;
}

int weights_open(struct weights **out, const char *path, struct error *err)
{
    struct error unwanted;
    if (!err) err = &unwanted;
    struct weights *w = begin(out, path, err);
    struct stat st;
    bool there = stat(path, &st) == 0, directory = there && S_ISDIR(st.st_mode);
    int code = there && !directory ? weights_refuse_part(path, err) : 0;
    if (code == 0) code = directory ? weights_add_directory(w, path, err) : weights_add_file(w, path, err);
    return finish(out, w, path, code, err);
}

int weights_open_descriptor(struct weights **out, int fd, const char *path, struct error *err)
{
    struct error unwanted;
    if (!err) err = &unwanted;
    struct weights *w = begin(out, path, err);
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0),
        code = own < 0 ? error_errno(err, EXIT_FAILED, NULL, "cannot open") : 0;
    w->sharded = true; /* an index is not followed */
    if (code == 0) code = add_open_source(w, own, path, err);
    if (code == 0) code = add_by_content(w, path, err);
    return finish(out, w, path, code, err);
}

void weights_close(struct weights *w)
{
    if (!w) return;
    for (int64_t i = 0; i < w->count; i++) free((char *)(uintptr_t)w->rows[i].tensor.name);
    for (char **m = w->metadata; m && *m; m++) free(*m);
    free(w->metadata);
    free(w->payloads);
    free(w->by_name);
    free(w->rows);
    for (int64_t i = 0; i < w->unread_count; i++) free(w->unread[i].name), free(w->unread[i].kind);
    free(w->unread);
    free(w->pieces);
    for (int i = 0; i < w->source_count; i++) {
        if (w->sources[i].fd >= 0) close(w->sources[i].fd);
        file_map_close(&w->sources[i].map);
        free(w->sources[i].path);
    }
    free(w->sources);
    free(w->path);
    free(w);
}

const char *weights_path(const struct weights *w) { return w->path; }
const char *weights_format(const struct weights *w) { return w->format; }
int64_t weights_count(const struct weights *w) { return w->count; }
const struct weights_tensor *weights_tensor(const struct weights *w, int64_t index)
{
    return &w->rows[index].tensor;
}

int64_t weights_find(const struct weights *w, const char *name)
{
    int64_t low = 0, high = w->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int order = strcmp(name, w->rows[w->by_name[middle]].tensor.name);
        if (order == 0) return w->by_name[middle];
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return -1;
}

const char *weights_unread(const struct weights *w, const char *name)
{
    for (int64_t i = 0; i < w->unread_count; i++)
        if (strcmp(w->unread[i].name, name) == 0) return w->unread[i].kind;
    return NULL;
}

const char *weights_unread_name(const struct weights *w, int64_t index)
{
    return index < w->unread_count ? w->unread[index].name : NULL;
}

int weights_refuse_missing(const struct weights *w, const char *name, const char *hint, struct error *err)
{
    const char *kind = weights_unread(w, name), *printed = quote(name, strlen(name));
    if (kind)
        error_set(err, EXIT_CONFIG, unread_hint(kind), "tensor %s is %s, which is not supported", printed,
                  kind);
    else error_set(err, EXIT_CONFIG, hint, "tensor %s is missing", printed);
    error_at(err, w->path, 0, 0);
    return EXIT_CONFIG;
}

const char *weights_entry(const struct weights *w) { return w->entry; }
const char *weights_other_entries(const struct weights *w) { return w->others; }

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

const char *weights_metadata(const struct weights *w, const char *key)
{
    for (char **m = w->metadata; m && *m; m += 2)
        if (strcmp(*m, key) == 0) return m[1];
    return NULL;
}
