/* Opening a file of weights by what it holds, and the table of its tensors: see weights.h. */
#include "core/weights/internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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
            raw[i] = '?'; /* a NUL would hide what follows, a line feed would begin a line */
    if (n < bytes) memcpy(raw + n, "...", 4);
    return text_printable(out, sizeof ring[0], raw);
}

static int out_of_memory(struct error *err)
{
    return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for the table of tensors");
}

int64_t weights_add_payload(struct weights *w, uint64_t offset, uint64_t bytes, uint32_t crc)
{
    if (w->payload_count == w->payloads_room) {
        w->payloads_room = w->payloads_room ? w->payloads_room * 2 : 256;
        w->payloads = xrealloc(w->payloads, (size_t)w->payloads_room * sizeof *w->payloads);
    }
    w->payloads[w->payload_count] = (struct payload){offset, bytes, crc, 0};
    return w->payload_count++;
}

int weights_add_row(struct weights *w, const struct row *row, const char *name, size_t name_bytes,
                    struct error *err)
{
    static const char hint[] = "do not trust this file";
    if (name_bytes == 0 || name_bytes > WEIGHTS_MAX_NAME_BYTES || !text_is_utf8(name, name_bytes))
        return error_set(err, EXIT_INTEGRITY, hint,
                         "the tensor name %s (%zu bytes) is empty, longer than %d bytes or no UTF-8",
                         quote(name, name_bytes), name_bytes, WEIGHTS_MAX_NAME_BYTES);
    if (w->count == WEIGHTS_MAX_TENSORS)
        return error_set(err, EXIT_INTEGRITY, hint, "holds more than the %d tensors that are read",
                         WEIGHTS_MAX_TENSORS);
    int64_t count = shape_count(row->tensor.shape, row->tensor.ndim);
    uint64_t bytes = 0,
             most = w->map.bytes > WEIGHTS_MAX_EXPANDED_BYTES ? w->map.bytes : WEIGHTS_MAX_EXPANDED_BYTES;
    if (count < 0 || __builtin_mul_overflow((uint64_t)count, dtype_bytes(row->tensor.dtype), &bytes) ||
        bytes > most)
        return error_set(err, EXIT_INTEGRITY, hint, "tensor %s claims %lld elements, in a file of %zu bytes",
                         quote(name, name_bytes), (long long)count, w->map.bytes);
    if (w->count == w->rows_room) {
        int64_t room = w->rows_room ? w->rows_room * 2 : 256;
        struct row *larger = realloc(w->rows, (size_t)room * sizeof *larger);
        if (!larger) return out_of_memory(err);
        w->rows = larger;
        w->rows_room = room;
    }
    char *copy = malloc(name_bytes + 1);
    if (!copy) return out_of_memory(err);
    memcpy(copy, name, name_bytes);
    copy[name_bytes] = 0;
    struct row *added = &w->rows[w->count++];
    *added = *row;
    added->tensor.name = copy;
    added->tensor.count = count;
    return 0;
}

static int compare_names(const void *a, const void *b, void *rows)
{
    return strcmp(((const struct row *)rows)[*(const uint32_t *)a].tensor.name,
                  ((const struct row *)rows)[*(const uint32_t *)b].tensor.name);
}

/* The index by name; a name that occurs twice (also through a stripped prefix) is refused. */
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

static bool begins_with(const struct file_map *map, const char *text)
{
    size_t n = strlen(text);
    return map->bytes >= n && memcmp(map->data, text, n) == 0;
}

/* What people take for a checkpoint and what to do about it. */
static int refuse_foreign(const struct file_map *map, struct error *err)
{
    static const struct {
        const char *begin, *is, *hint;
    } kinds[] = {
        {"version https://git-lfs", "is a git-lfs pointer, not the file itself",
         "run 'git lfs pull' where it came from, or download the file itself"},
        {"<", "is a web page (HTML or XML), not a checkpoint",
         "the server sent an error page: download the file again"},
        {"\x1f\x8b", "is a gzip archive, expected a checkpoint", "unpack it first"},
        {"\x28\xb5\x2f\xfd", "is a zstd archive, expected a checkpoint", "unpack it first"},
        {"PK", "is a damaged or empty zip, expected a checkpoint", "get the file again"},
        {"\x93NUMPY", "is a NumPy array, expected a checkpoint", "save it with torch.save or as safetensors"},
        {"{", "is JSON, expected a checkpoint", "name the weight file itself"},
        {"\x89HDF", "is an HDF5 file, expected a checkpoint", "save it with torch.save or as safetensors"},
        {"GGUF", "is a GGUF file, expected a checkpoint",
         "name the PyTorch or safetensors file it was made from"},
    };
    static const char names[] = "name a file written by torch.save, or a safetensors file";
    if (map->bytes == 0)
        return error_set(err, EXIT_INTEGRITY, "get the file again",
                         "is empty, expected a PyTorch or safetensors file");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (begins_with(map, kinds[i].begin))
            return error_set(err, EXIT_INTEGRITY, kinds[i].hint, "%s", kinds[i].is);
    uint8_t first[4] = {0};
    memcpy(first, map->data, map->bytes < 4 ? map->bytes : 4);
    return error_set(err, EXIT_INTEGRITY, names,
                     "is neither a PyTorch nor a safetensors file: %zu bytes beginning %02x %02x %02x %02x",
                     map->bytes, first[0], first[1], first[2], first[3]);
}

static int open_by_content(struct weights *w, struct error *err)
{
    const struct file_map *map = &w->map;
    if (begins_with(map, "PK\3\4") || begins_with(map, "PK\5\6")) {
        w->format = "pytorch zip";
        return pytorch_zip_open(w, err);
    }
    if (map->bytes > 2 && map->data[0] == 0x80 && map->data[1] >= 2 && map->data[1] <= 5) {
        w->format = "pytorch legacy";
        return pytorch_legacy_open(w, err);
    }
    if (map->bytes > 8 && map->data[8] == '{') {
        w->format = "safetensors";
        return safetensors_open(w, err);
    }
    return refuse_foreign(map, err);
}

int weights_open(struct weights **out, const char *path, struct error *err)
{
    struct error unwanted;
    if (!err) err = &unwanted;
    struct weights *w = xcalloc(1, sizeof *w);
    *out = NULL;
    w->path = xstrdup(path);
    w->fd = -1;
    int code = file_map_open(&w->map, path, err);
    if (code) goto fail;
    if (w->map.bytes)
        madvise((void *)(uintptr_t)w->map.data, w->map.bytes, MADV_RANDOM); /* headers lie far apart */
    w->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (w->fd < 0) {
        code = error_errno(err, EXIT_FAILED, "check the path", "cannot open");
        goto fail;
    }
    if ((code = open_by_content(w, err)) != 0 || (code = index_names(w, err)) != 0) goto fail;
    *out = w;
    return 0;
fail:
    error_at(err, path, 0, 0);
    weights_close(w);
    return code;
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
    if (w->fd >= 0) close(w->fd);
    file_map_close(&w->map);
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

const char *weights_metadata(const struct weights *w, const char *key)
{
    for (char **m = w->metadata; m && *m; m += 2)
        if (strcmp(*m, key) == 0) return m[1];
    return NULL;
}
