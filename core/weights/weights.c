/* Opens a file of weights by its content, and builds the table of its tensors: see weights.h. */
#include "core/weights/weights_internal.h"
#include "core/base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
        w->format = _("pytorch zip");
        return pytorch_zip_open(w, err);
    }
    if (!safetensors && pickle) {
        w->format = _("pytorch legacy");
        return pytorch_legacy_open(w, err);
    }
    if (safetensors || (map->bytes > 8 && map->data[8] == '{' && !is_json(map))) {
        w->format = "safetensors"; /* the reader reports a header that exceeds the file */
        return safetensors_open(w, err);
    }
    if (is_json(map) && !w->sharded) return weights_add_index(w, path, err);
    return weights_refuse_foreign(map, err);
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
        {N_("a DTensor"),
         N_("save whole tensors: get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)) "
            "of torch.distributed.checkpoint.state_dict")},
        {N_("a NumPy array"), N_("torch.save({k: torch.from_numpy(v) for k, v in values.items()}, ...)")},
        {"sparse", N_("make it dense with .to_dense() and save again")},
        {"quantized", N_("save the model before it is quantized, or .dequantize() each tensor")},
        {N_("a view with"), N_("save it with .resolve_neg().resolve_conj()")},
        {N_("a meta tensor"), N_("load the weights into the model before it is saved")},
    };
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++)
        if (strncmp(kind, hints[i].begin, strlen(hints[i].begin)) == 0) return hints[i].hint;
    return _("convert it to float32, float16 or bfloat16 in PyTorch and save again");
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
    if (code == 0) code = weights_index_names(w, err);
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
    int code = 0;
    if (there && !directory) code = weights_refuse_part(path, err);
    else if (!there && errno != ENOENT && errno != ENOTDIR)
        code = error_errno(err, EXIT_FAILED, NULL, "cannot examine this file");
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
    if (code == 0) code = weights_add_descriptor(w, own, path, err);
    if (code == 0) code = add_by_content(w, path, err);
    return finish(out, w, path, code, err);
}

int weights_open_rows(struct weights **out, const char *path, const struct weights_row *rows, int64_t count,
                      void (*close)(void *context), void *context, struct error *err)
{
    struct weights *w = begin(out, path, err);
    int code = 0;
    w->format = "made";
    w->made = xcalloc((size_t)count + 1, sizeof *w->made);
    w->close_made = close;
    w->made_context = context;
    w->bytes = INT64_MAX; /* no file bounds the shapes */
    for (int64_t i = 0; i < count && !code; i++) {
        struct row row = {.tensor = {.dtype = rows[i].dtype, .ndim = rows[i].ndim}, .payload = -1};
        memcpy(row.tensor.shape, rows[i].shape, sizeof row.tensor.shape);
        w->made[i] = rows[i];
        code = weights_add_row(w, &row, rows[i].name, strlen(rows[i].name), err);
    }
    return finish(out, w, path, code, err);
}

struct weights *weights_share(struct weights *w)
{
    __atomic_add_fetch(&w->shares, 1, __ATOMIC_RELAXED);
    return w;
}

void weights_close(struct weights *w)
{
    if (!w || __atomic_fetch_sub(&w->shares, 1, __ATOMIC_ACQ_REL) > 0) return;
    if (w->close_made) w->close_made(w->made_context);
    free(w->made);
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

const char *weights_metadata(const struct weights *w, const char *key)
{
    for (char **m = w->metadata; m && *m; m += 2)
        if (strcmp(*m, key) == 0) return m[1];
    return NULL;
}
