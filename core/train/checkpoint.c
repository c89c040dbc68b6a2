/* Checkpoints: see checkpoint.h. */
#include "core/train/checkpoint.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/train/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* One parameter on its way into model.safetensors: exported whole at its first byte. */
struct stream {
    const struct trainer *trainer;
    int parameter;
    float **staging;
    int *staged;
};

static int stream_read(void *context, size_t offset, void *dst, size_t bytes, struct error *err)
{
    struct stream *s = context;
    if (*s->staged != s->parameter) {
        int code = trainer_export(s->trainer, s->parameter, *s->staging, err);
        if (code) return code;
        *s->staged = s->parameter;
    }
    memcpy(dst, (const char *)*s->staging + offset, bytes);
    return 0;
}

static int write_model(const struct trainer *t, const char *path, struct error *err)
{
    const struct tower *tower = t->student;
    int64_t largest = 1;
    for (int i = 0; i < tower->parameter_count; i++)
        if (tower->parameters[i].count > largest) largest = tower->parameters[i].count;
    float *staging = malloc((size_t)largest * sizeof *staging);
    if (!staging)
        return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for a staging buffer of %lld values",
                         (long long)largest);
    int staged = -1;
    struct weights_row *rows = xcalloc((size_t)tower->parameter_count, sizeof *rows);
    struct stream *streams = xcalloc((size_t)tower->parameter_count, sizeof *streams);
    for (int i = 0; i < tower->parameter_count; i++) {
        const struct parameter *p = &tower->parameters[i];
        streams[i] = (struct stream){t, i, &staging, &staged};
        rows[i] = (struct weights_row){
            .name = xasprintf("%s%s", p->head ? "" : family_prefix(tower->geometry.family), p->name),
            .dtype = DTYPE_F32,
            .ndim = p->ndim,
            .read = stream_read,
            .context = &streams[i]};
        for (int d = 0; d < p->ndim; d++) rows[i].shape[d] = p->shape[d];
    }
    const char *const metadata[] = {"format", "pt", NULL};
    int code = weights_write_safetensors(path, rows, tower->parameter_count, metadata, err);
    for (int i = 0; i < tower->parameter_count; i++) free((void *)(uintptr_t)rows[i].name);
    free(rows);
    free(streams);
    free(staging);
    return code;
}

static int write_optimizer(const struct trainer *t, const char *path, struct error *err)
{
    struct meopt_error library = {0};
    int code = 0, fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) code = error_errno(err, EXIT_FAILED, NULL, "cannot create %s", path);
    for (int i = 0; i < t->tensor_count && !code; i++) {
        size_t bytes = meopt_state_bytes(t->opt, (size_t)i);
        uint64_t header = bytes;
        void *record = malloc(bytes);
        if (!record)
            code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for %zu bytes of optimizer state",
                             bytes);
        if (!code && meopt_state_save(t->opt, (size_t)i, record, bytes, &library))
            code = trainer_library_error(&library, err);
        if (!code) code = file_write_all(fd, &header, sizeof header, path, err);
        if (!code) code = file_write_all(fd, record, bytes, path, err);
        free(record);
    }
    if (!code && fsync(fd) != 0) code = error_errno(err, EXIT_FAILED, NULL, "cannot sync %s", path);
    if (fd >= 0) close(fd);
    return code;
}

static int read_optimizer(struct trainer *t, const char *path, struct error *err)
{
    struct meopt_error library = {0};
    struct file_map map;
    int code = file_map_open(&map, path, err);
    size_t at = 0;
    for (int i = 0; i < t->tensor_count && !code; i++) {
        uint64_t bytes = 0;
        if (map.bytes - at >= sizeof bytes) memcpy(&bytes, map.data + at, sizeof bytes);
        if (map.bytes - at < sizeof bytes || bytes > map.bytes - at - sizeof bytes)
            code = error_set(err, EXIT_INTEGRITY, NULL, "optimizer state ends at tensor %d of %d", i,
                             t->tensor_count);
        else if (meopt_state_load(t->opt, (size_t)i, map.data + at + sizeof bytes, bytes, &library))
            code = trainer_library_error(&library, err);
        at += sizeof bytes + bytes;
    }
    if (code) error_at(err, path, 0, 0);
    file_map_close(&map);
    return code;
}

static int read_model(struct trainer *t, const char *path, struct error *err)
{
    struct weights *w;
    int code = weights_open(&w, path, err);
    if (code) return code;
    float *values = NULL;
    for (int i = 0; i < t->student->parameter_count && !code; i++) {
        const struct parameter *p = &t->student->parameters[i];
        char key[192];
        snprintf(key, sizeof key, "%s%s", p->head ? "" : family_prefix(t->student->geometry.family), p->name);
        int64_t at = weights_find(w, key);
        if (at < 0 || weights_tensor(w, at)->count != p->count) {
            code = error_set(err, EXIT_INTEGRITY, "resume with the configuration that made the checkpoint",
                             "tensor %s is missing or has another shape", key);
            error_at(err, path, 0, 0);
            break;
        }
        float *larger = realloc(values, (size_t)p->count * sizeof *values);
        if (!larger)
            code =
                error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for %lld values", (long long)p->count);
        else values = larger;
        if (!code) code = weights_read(w, at, values, DTYPE_F32, err);
        if (!code) code = trainer_import(t, i, values, err);
    }
    free(values);
    weights_close(w);
    return code;
}

static int checksum(const char *path, json_int_t *bytes, json_int_t *crc, struct error *err)
{
    struct file_map map;
    int code = file_map_open(&map, path, err);
    if (code) return code;
    *bytes = (json_int_t)map.bytes;
    *crc = crc32c(0, map.data, map.bytes);
    file_map_close(&map);
    return 0;
}

static const char *const parts[] = {"model.safetensors", "optimizer.bin"};
enum { PARTS = 2 };

/* Newest first, at most `room`. */
static int list_steps(const char *directory, int64_t *steps, int room)
{
    DIR *dir = opendir(directory);
    int count = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        long long step;
        int end = 0;
        if (sscanf(entry->d_name, "step-%lld%n", &step, &end) != 1 || entry->d_name[end] || count == room)
            continue;
        int at = count++;
        for (; at > 0 && steps[at - 1] < step; at--) steps[at] = steps[at - 1];
        steps[at] = step;
    }
    if (dir) closedir(dir);
    return count;
}

static void forget_old(const char *directory, int keep)
{
    int64_t steps[1024];
    int count = list_steps(directory, steps, 1024);
    for (int i = keep; i < count; i++) {
        /* out of the way first, so that a half removed checkpoint has no name that counts */
        char *from = xasprintf("%s/step-%08lld", directory, (long long)steps[i]),
             *to = xasprintf("%s/.trash-%lld", directory, (long long)steps[i]);
        if (rename(from, to) == 0) file_remove_tree(to, NULL);
        free(from);
        free(to);
    }
}

int checkpoint_save(const struct run *run, const struct trainer *t, int64_t step, int keep, struct error *err)
{
    char *directory = run_path(run, "ckpt"), *final = xasprintf("%s/step-%08lld", directory, (long long)step),
         *partial = xasprintf("%s.partial", final);
    char *paths[PARTS], *manifest = path_join(partial, "MANIFEST.json"),
                        *latest = path_join(directory, "LATEST");
    for (int i = 0; i < PARTS; i++) paths[i] = path_join(partial, parts[i]);
    json_t *object = json_pack("{s:i, s:I, s:f, s:o}", "version", 1, "step", (json_int_t)step,
                               "previous_norm", t->previous_norm, "files", json_object());
    int code = file_remove_tree(partial, err);
    if (!code) code = file_make_dirs(partial, err);
    if (!code) code = write_model(t, paths[0], err);
    if (!code) code = write_optimizer(t, paths[1], err);
    for (int i = 0; i < PARTS && !code; i++) {
        json_int_t bytes, crc;
        code = checksum(paths[i], &bytes, &crc, err);
        if (!code)
            json_object_set_new(json_object_get(object, "files"), parts[i],
                                json_pack("{s:I, s:I}", "bytes", bytes, "crc32c", crc));
    }
    if (!code) {
        char *text = json_dumps(object, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17));
        code = file_write_atomic(manifest, text, strlen(text), err);
        free(text);
    }
    if (!code && (file_remove_tree(final, err) != 0 || rename(partial, final) != 0))
        code = error_errno(err, EXIT_FAILED, NULL, "cannot rename %s", partial);
    if (!code) code = file_sync_dir(directory, err);
    if (!code) code = file_write_atomic(latest, path_basename(final), strlen(path_basename(final)), err);
    if (code) file_remove_tree(partial, NULL);
    else forget_old(directory, keep > 0 ? keep : 1);
    json_decref(object);
    for (int i = 0; i < PARTS; i++) free(paths[i]);
    free(manifest);
    free(latest);
    free(partial);
    free(final);
    free(directory);
    return code;
}

/* Whole: the manifest is there and both files agree with it. */
static int verify(const char *directory, double *previous_norm, struct error *err)
{
    char *path = path_join(directory, "MANIFEST.json");
    json_error_t why;
    json_t *object = json_load_file(path, 0, &why);
    int code = object ? 0 : error_set(err, EXIT_INTEGRITY, NULL, "manifest: %s", why.text);
    for (int i = 0; i < PARTS && !code; i++) {
        char *part = path_join(directory, parts[i]);
        json_t *entry = json_object_get(json_object_get(object, "files"), parts[i]);
        json_int_t bytes = -1, crc = -1;
        code = checksum(part, &bytes, &crc, err);
        if (!code && (!entry || bytes != json_integer_value(json_object_get(entry, "bytes")) ||
                      crc != json_integer_value(json_object_get(entry, "crc32c"))))
            code = error_set(err, EXIT_INTEGRITY, NULL,
                             "%s does not agree with the manifest's size and checksum", parts[i]);
        free(part);
    }
    if (!code) *previous_norm = json_number_value(json_object_get(object, "previous_norm"));
    json_decref(object);
    free(path);
    return code;
}

int checkpoint_load(const struct run *run, struct trainer *t, int64_t *step, char **path, struct error *err)
{
    char *directory = run_path(run, "ckpt");
    int64_t steps[1024];
    int count = list_steps(directory, steps, 1024), code = 0;
    *step = -1;
    if (path) *path = NULL;
    for (int i = 0; i < count && *step < 0 && !code; i++) {
        char *at = xasprintf("%s/step-%08lld", directory, (long long)steps[i]);
        struct error why = {0};
        double norm = 0;
        if (verify(at, &norm, &why)) {
            log_warn("%s: %s; trying the one before", at, why.what);
            free(at);
            continue;
        }
        *step = steps[i];
        char *model = path_join(at, parts[0]), *optimizer = path_join(at, parts[1]);
        if (t) {
            code = read_model(t, model, err);
            if (!code) code = read_optimizer(t, optimizer, err);
            t->previous_norm = norm;
        }
        free(model);
        free(optimizer);
        if (path) *path = at;
        else free(at);
    }
    if (!code && count > 0 && *step < 0) {
        code = error_set(err, EXIT_INTEGRITY, "start the run again", "no checkpoint of the run is whole");
        error_at(err, directory, 0, 0);
    }
    free(directory);
    return code;
}
