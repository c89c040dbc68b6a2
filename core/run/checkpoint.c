/* Checkpoints on disk: see checkpoint.h. */
#include "core/run/checkpoint.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/log.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PART_TENSORS, PART_RECORDS, PARTS };
static const char *const parts[PARTS] = {"model.safetensors", "optimizer.bin"};

static char *checkpoint_path(const char *directory, int64_t step)
{
    char *all = path_join(directory, "ckpt"), *path = xasprintf("%s/step-%08lld", all, (long long)step);
    free(all);
    return path;
}

/* ---- writing ---- */

static int write_records(const struct checkpoint_content *content, const char *path, struct error *err)
{
    int code = 0, fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) code = error_errno(err, EXIT_FAILED, NULL, "cannot create %s", path);
    for (int64_t i = 0; i < content->record_count && !code; i++) {
        const struct checkpoint_record *r = &content->records[i];
        uint64_t header = r->bytes;
        void *record = malloc(r->bytes ? r->bytes : 1);
        if (!record)
            code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for %zu bytes of optimizer state",
                             r->bytes);
        if (!code) code = r->fill(r->context, i, record, r->bytes, err);
        if (!code) code = file_write_all(fd, &header, sizeof header, path, err);
        if (!code) code = file_write_all(fd, record, r->bytes, path, err);
        free(record);
    }
    if (!code && fsync(fd) != 0) code = error_errno(err, EXIT_FAILED, NULL, "cannot sync %s", path);
    if (fd >= 0) close(fd);
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

static int write_manifest(const char *partial, int64_t step, json_t *more, struct error *err)
{
    json_t *object = json_pack("{s:i, s:I}", "version", 1, "step", (json_int_t)step), *files = json_object();
    if (more) json_object_update(object, more);
    json_object_set_new(object, "files", files);
    int code = 0;
    for (int i = 0; i < PARTS && !code; i++) {
        json_int_t bytes, crc;
        char *path = path_join(partial, parts[i]);
        code = checksum(path, &bytes, &crc, err);
        if (!code)
            json_object_set_new(files, parts[i], json_pack("{s:I, s:I}", "bytes", bytes, "crc32c", crc));
        free(path);
    }
    if (!code) {
        char *text = json_dumps(object, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17)),
             *path = path_join(partial, "MANIFEST.json");
        code = file_write_atomic(path, text, strlen(text), err);
        free(path);
        free(text);
    }
    json_decref(object);
    return code;
}

/* Everything of it, under its side name. */
static int write_partial(const char *partial, int64_t step, const struct checkpoint_content *content,
                         struct error *err)
{
    static const char *const metadata[] = {"format", "pt", NULL};
    char *tensors = path_join(partial, parts[PART_TENSORS]),
         *records = path_join(partial, parts[PART_RECORDS]);
    int code = file_remove_tree(partial, err);
    if (!code) code = file_make_dirs(partial, err);
    if (!code)
        code = weights_write_safetensors(tensors, content->tensors, content->tensor_count, metadata, err);
    if (!code) code = write_records(content, records, err);
    if (!code) code = write_manifest(partial, step, content->more, err);
    free(tensors);
    free(records);
    return code;
}

static int publish(const char *directory, const char *partial, const char *final, struct error *err)
{
    char *all = path_join(directory, "ckpt"), *latest = path_join(all, "LATEST");
    int code = 0;
    if (file_remove_tree(final, err) != 0 || rename(partial, final) != 0)
        code = error_errno(err, EXIT_FAILED, NULL, "cannot rename %s", partial);
    if (!code) code = file_sync_dir(all, err);
    if (!code) code = file_write_atomic(latest, path_basename(final), strlen(path_basename(final)), err);
    free(latest);
    free(all);
    return code;
}

static void forget_old(const char *directory, int keep)
{
    int count;
    int64_t *steps = checkpoint_steps(directory, &count);
    for (int i = keep; i < count; i++) {
        /* out of the way first, so that a half removed checkpoint has no name that counts */
        char *from = checkpoint_path(directory, steps[i]),
             *to = xasprintf("%s/ckpt/.trash-%lld", directory, (long long)steps[i]);
        if (rename(from, to) == 0) file_remove_tree(to, NULL);
        free(from);
        free(to);
    }
    free(steps);
}

int checkpoint_save(const char *directory, int64_t step, int keep, const struct checkpoint_content *content,
                    struct error *err)
{
    char *final = checkpoint_path(directory, step), *partial = xasprintf("%s.partial", final);
    int code = write_partial(partial, step, content, err);
    if (!code) code = publish(directory, partial, final, err);
    if (code) file_remove_tree(partial, NULL);
    else forget_old(directory, keep > 0 ? keep : 1);
    free(partial);
    free(final);
    return code;
}

/* ---- finding ---- */

static int newer_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

int64_t *checkpoint_steps(const char *directory, int *count)
{
    char *all = path_join(directory, "ckpt");
    DIR *dir = opendir(all);
    int64_t *steps = NULL;
    *count = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        long long step;
        int end = 0;
        if (sscanf(entry->d_name, "step-%lld%n", &step, &end) != 1 || entry->d_name[end]) continue;
        if (*count % 64 == 0) steps = xrealloc(steps, (size_t)(*count + 64) * sizeof *steps);
        steps[(*count)++] = step;
    }
    if (steps) qsort(steps, (size_t)*count, sizeof *steps, newer_first);
    if (dir) closedir(dir);
    free(all);
    return steps;
}

/* Whole: the manifest is there and both files agree with it. */
static int verify(struct checkpoint *c, struct error *err)
{
    char *path = path_join(c->directory, "MANIFEST.json");
    struct error why;
    c->manifest = json_read(path, 1 << 20, &why);
    int code = c->manifest ? 0 : error_set(err, EXIT_INTEGRITY, NULL, "manifest: %s", why.what);
    for (int i = 0; i < PARTS && !code; i++) {
        char *part = path_join(c->directory, parts[i]);
        json_t *entry = json_object_get(json_object_get(c->manifest, "files"), parts[i]);
        json_int_t bytes = -1, crc = -1;
        code = checksum(part, &bytes, &crc, err);
        if (!code && (!entry || bytes != json_integer_value(json_object_get(entry, "bytes")) ||
                      crc != json_integer_value(json_object_get(entry, "crc32c"))))
            code = error_set(err, EXIT_INTEGRITY, NULL,
                             "%s does not agree with the manifest's size and checksum", parts[i]);
        free(part);
    }
    free(path);
    return code;
}

int checkpoint_newest(struct checkpoint *c, const char *directory, struct error *err)
{
    int count, code = 0;
    int64_t *steps = checkpoint_steps(directory, &count);
    *c = (struct checkpoint){.step = -1};
    for (int i = 0; i < count && c->step < 0; i++) {
        struct error why = {0};
        *c = (struct checkpoint){.step = steps[i], .directory = checkpoint_path(directory, steps[i])};
        if (verify(c, &why)) {
            log_warn("%s: %s; trying the one before", c->directory, why.what);
            checkpoint_close(c);
        }
    }
    if (count > 0 && c->step < 0) {
        char *all = path_join(directory, "ckpt");
        code = error_set(err, EXIT_INTEGRITY, "start the run again", "no checkpoint of the run is whole");
        error_at(err, all, 0, 0);
        free(all);
    }
    free(steps);
    return code;
}

void checkpoint_close(struct checkpoint *c)
{
    json_decref(c->manifest);
    free(c->directory);
    *c = (struct checkpoint){.step = -1};
}

/* ---- reading ---- */

char *checkpoint_model(const struct checkpoint *c) { return path_join(c->directory, parts[PART_TENSORS]); }

int checkpoint_tensors(const struct checkpoint *c, const struct weights_row *rows, int64_t count,
                       int (*take)(void *context, int64_t index, const float *values, struct error *err),
                       void *context, struct error *err)
{
    struct weights *w;
    char *path = checkpoint_model(c);
    float *values = NULL;
    int code = weights_open(&w, path, err);
    for (int64_t i = 0; i < count && !code; i++) {
        int64_t at = weights_find(w, rows[i].name), wanted = 1;
        for (int d = 0; d < rows[i].ndim; d++) wanted *= rows[i].shape[d];
        if (at < 0 || weights_tensor(w, at)->count != wanted) {
            code = error_set(err, EXIT_INTEGRITY, "resume with the configuration that made the checkpoint",
                             "tensor %s is missing or has another shape", rows[i].name);
            error_at(err, path, 0, 0);
            break;
        }
        float *larger = realloc(values, (size_t)wanted * sizeof *values);
        if (!larger)
            code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for %lld values", (long long)wanted);
        else values = larger;
        if (!code) code = weights_read(w, at, values, DTYPE_F32, err);
        if (!code) code = take(context, i, values, err);
    }
    free(values);
    weights_close(w);
    free(path);
    return code;
}

int checkpoint_records(const struct checkpoint *c, int64_t count,
                       int (*take)(void *context, int64_t index, const void *record, size_t bytes,
                                   struct error *err),
                       void *context, struct error *err)
{
    struct file_map map;
    char *path = path_join(c->directory, parts[PART_RECORDS]);
    int code = file_map_open(&map, path, err);
    size_t at = 0;
    for (int64_t i = 0; i < count && !code; i++) {
        uint64_t bytes = 0;
        if (map.bytes - at >= sizeof bytes) memcpy(&bytes, map.data + at, sizeof bytes);
        if (map.bytes - at < sizeof bytes || bytes > map.bytes - at - sizeof bytes)
            code = error_set(err, EXIT_INTEGRITY, NULL, "optimizer state ends at tensor %lld of %lld",
                             (long long)i, (long long)count);
        else code = take(context, i, map.data + at + sizeof bytes, bytes, err);
        at += sizeof bytes + bytes;
    }
    if (code) error_at(err, path, 0, 0);
    file_map_close(&map);
    free(path);
    return code;
}
