/* Checkpoints on disk: see checkpoint.h. */
#include "core/run/checkpoint_parts.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/retry.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

const char *const checkpoint_parts[PARTS] = {"model.safetensors", "optimizer.bin"};
const char checkpoint_manifest[] = "MANIFEST.json";

enum {
    READ_BYTES = 1 << 25,
    MANIFEST_BYTES = 1 << 24, /* at most */
    READ_TRIES = 4,           /* of what cannot be read now, 0.1, 0.2, 0.4 s apart */
    LIST_TRIES = 1000         /* a training removes what was listed */
};

char *checkpoint_path(const char *directory, int64_t step)
{
    char *all = path_join(directory, "ckpt"), *path = xasprintf("%s/step-%08lld", all, (long long)step);
    free(all);
    return path;
}

/* ---- what is there ---- */

static int newer_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

int checkpoint_each_name(const char *directory,
                         void (*take)(void *context, const char *all, const char *name), void *context,
                         struct error *err)
{
    char *all = path_join(directory, "ckpt");
    DIR *dir = opendir(all);
    int code = 0;
    struct dirent *entry = NULL;
    if (dir || errno != ENOENT) {
        while (dir && (errno = 0, entry = readdir(dir)) != NULL) take(context, all, entry->d_name);
        if (errno) {
            code = error_errno(err, EXIT_FAILED, "may you read it, and is its file system well?",
                               "cannot list the checkpoints");
            error_at(err, all, 0, 0);
        }
    }
    if (dir) closedir(dir);
    free(all);
    return code;
}

struct listing {
    int64_t *steps;
    int count;
};

static void take_step(void *context, const char *all, const char *name)
{
    struct listing *list = context;
    long long step;
    int end = 0;
    (void)all;
    if (sscanf(name, "step-%lld%n", &step, &end) != 1 || name[end] || step < 0) return;
    if (list->count % 64 == 0)
        list->steps = xrealloc(list->steps, (size_t)(list->count + 64) * sizeof *list->steps);
    list->steps[list->count++] = step;
}

int checkpoint_steps(const char *directory, int64_t **steps, int *count, struct error *err)
{
    struct listing list = {0};
    int code = checkpoint_each_name(directory, take_step, &list, err);
    if (code) {
        free(list.steps);
        list = (struct listing){0};
    }
    if (list.steps) qsort(list.steps, (size_t)list.count, sizeof *list.steps, newer_first);
    *steps = list.steps;
    *count = list.count;
    return code;
}

/* ---- whether it is whole ---- */

/* Up to `bytes` from `offset`; *got less only at the end of the file. */
static int read_at(int fd, void *dst, size_t bytes, int64_t offset, size_t *got, const char *path,
                   struct error *err)
{
    *got = 0;
    while (*got < bytes) {
        ssize_t n = retry_read(fd, (char *)dst + *got, bytes - *got, offset + (int64_t)*got);
        if (n < 0) {
            int code = error_errno(err, EXIT_FAILED, NULL, "cannot read %s", path);
            error_at(err, path, 0, 0);
            return code;
        }
        if (n == 0) break;
        *got += (size_t)n;
    }
    return 0;
}

int checkpoint_open_part(const char *path, int *fd, struct error *err)
{
    struct stat st;
    int code = 0;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0 || fstat(*fd, &st) != 0) code = error_errno(err, EXIT_FAILED, NULL, "cannot open %s", path);
    else if (!S_ISREG(st.st_mode)) code = error_set(err, EXIT_INTEGRITY, NULL, "is not a regular file");
    if (code) error_at(err, path, 0, 0);
    return code;
}

/* By reading, not by a map: a disk that fails is an error then, and no signal. */
int checkpoint_checksum(int fd, const char *path, json_int_t *bytes, json_int_t *crc, struct error *err)
{
    uint32_t sum = 0;
    size_t got = READ_BYTES;
    char *buffer = malloc(READ_BYTES);
    int code = buffer ? 0 : error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory reading %s", path);
    *bytes = 0;
    while (!code && got == READ_BYTES) {
        code = read_at(fd, buffer, READ_BYTES, *bytes, &got, path, err);
        if (!code) sum = crc32c(sum, buffer, got);
        *bytes += (json_int_t)got;
    }
    *crc = sum;
    free(buffer);
    return code;
}

static int read_manifest(struct checkpoint *c, int fd, const char *path, struct error *err)
{
    struct stat st;
    size_t got = 0;
    if (fstat(fd, &st) != 0) return error_errno(err, EXIT_FAILED, NULL, "cannot read %s", path);
    if (st.st_size > MANIFEST_BYTES) return error_set(err, EXIT_INTEGRITY, NULL, "manifest: too long");
    size_t bytes = (size_t)st.st_size;
    char *text = malloc(bytes + 1);
    int code = text ? 0 : error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory reading %s", path);
    if (!code) code = read_at(fd, text, bytes, 0, &got, path, err);
    if (!code) {
        json_error_t why;
        const json_t *step;
        c->manifest = json_loadb(text, got, 0, &why);
        if (!c->manifest && !why.text[0]) /* jansson has no word for it */
            code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory reading %s", path);
        else if (!json_is_object(c->manifest))
            code = error_set(err, EXIT_INTEGRITY, NULL, "manifest: %s", c->manifest ? "no object" : why.text);
        else if (json_is_integer(step = json_object_get(c->manifest, "step")) &&
                 json_integer_value(step) != (json_int_t)c->step)
            code = error_set(err, EXIT_INTEGRITY, NULL, "manifest: is of step %lld",
                             (long long)json_integer_value(step));
    }
    free(text);
    return code;
}

static int compare_part(const struct checkpoint *c, int part, int fd, enum depth depth, struct error *err)
{
    char *path = path_join(c->directory, checkpoint_parts[part]);
    json_t *entry = json_object_get(json_object_get(c->manifest, "files"), checkpoint_parts[part]);
    json_int_t bytes = -1, crc = json_integer_value(json_object_get(entry, "crc32c"));
    struct stat st;
    int code = 0;
    if (depth == BY_CONTENT) code = checkpoint_checksum(fd, path, &bytes, &crc, err);
    else if (fstat(fd, &st) == 0) bytes = (json_int_t)st.st_size;
    else code = error_errno(err, EXIT_FAILED, NULL, "cannot read %s", path);
    if (!code && (!entry || bytes != json_integer_value(json_object_get(entry, "bytes")) ||
                  crc != json_integer_value(json_object_get(entry, "crc32c"))))
        code = error_set(err, EXIT_INTEGRITY, NULL, "%s does not agree with the manifest's size and checksum",
                         checkpoint_parts[part]);
    free(path);
    return code;
}

/* Everything is opened before anything is read, which may take minutes: from then on it may be removed. */
static int open_whole(struct checkpoint *c, enum depth depth, struct error *err)
{
    int fds[PARTS + 1] = {-1, -1, -1}, code = 0, opened;
    char *paths[PARTS + 1];
    struct error unusable = {0};
    for (int i = 0; i < PARTS; i++) paths[i] = path_join(c->directory, checkpoint_parts[i]);
    paths[PARTS] = path_join(c->directory, checkpoint_manifest);
    for (int i = PARTS; i >= 0 && !code; i--) code = checkpoint_open_part(paths[i], &fds[i], err);
    opened = code || depth == BY_SIZE ? 0 : weights_open(&c->model, paths[PART_TENSORS], &unusable);
    if (!code) code = read_manifest(c, fds[PARTS], paths[PARTS], err);
    for (int i = 0; i < PARTS && !code; i++) code = compare_part(c, i, fds[i], depth, err);
    if (!code && opened) { /* it is what was written: no reason to pass it over */
        *err = unusable;
        code = err->code = opened == EXIT_INTEGRITY ? EXIT_FAILED : opened;
    }
    c->records = fds[PART_RECORDS];
    for (int i = 0; i <= PARTS; i++) {
        if (i != PART_RECORDS && fds[i] >= 0) close(fds[i]);
        free(paths[i]);
    }
    return code;
}

enum verdict checkpoint_verify(struct checkpoint *c, const char *directory, int64_t step, enum depth depth,
                               struct error *err)
{
    *c = (struct checkpoint){.step = step, .directory = checkpoint_path(directory, step), .records = -1};
    int code = open_whole(c, depth, err);
    enum verdict verdict = !code ? WHOLE : code == EXIT_INTEGRITY ? DAMAGED : UNREADABLE;
    for (int i = 0; i <= PARTS && verdict == UNREADABLE; i++) {
        char *path = path_join(c->directory, i < PARTS ? checkpoint_parts[i] : checkpoint_manifest);
        if (file_absent(path)) verdict = DAMAGED;
        free(path);
    }
    if (code && file_absent(c->directory)) verdict = GONE;
    return verdict;
}

int checkpoint_set_aside(const char *directory, int64_t step, const char *why, struct error *err)
{
    char *from = checkpoint_path(directory, step), *to = xasprintf("%s.damaged", from);
    for (int i = 2; !file_absent(to) && i < 1000; i++) {
        free(to);
        to = xasprintf("%s.damaged.%d", from, i);
    }
    int code = rename(from, to) == 0 || errno == ENOENT
                   ? 0
                   : error_errno(err, EXIT_FAILED, NULL, "cannot rename %s to %s", from, path_basename(to));
    if (!code) log_warn("%s is damaged: %s; it is now called %s", from, why, path_basename(to));
    free(from);
    free(to);
    return code;
}

/* ---- finding ---- */

/* From the newest on until one is whole; WHOLE with c->step -1: there is none. */
static enum verdict newest_listed(struct checkpoint *c, const char *directory, bool owner, struct error *err)
{
    int64_t *steps;
    int count, damaged = 0;
    enum verdict verdict = DAMAGED;
    *c = (struct checkpoint){.step = -1, .records = -1};
    if (checkpoint_steps(directory, &steps, &count, err)) return UNREADABLE;
    struct error *whys = xcalloc((size_t)count, sizeof *whys);
    for (; damaged < count; damaged++) {
        verdict = checkpoint_verify(c, directory, steps[damaged], BY_CONTENT, &whys[damaged]);
        if (verdict == WHOLE) break;
        if (verdict == UNREADABLE && err) *err = whys[damaged];
        if (verdict != DAMAGED) break;
        if (!owner) log_warn("%s is damaged: %s; trying the one before", c->directory, whys[damaged].what);
        checkpoint_close(c);
    }
    if (verdict == WHOLE)
        for (int i = 0; i < damaged && owner; i++) {
            struct error aside = {0};
            if (checkpoint_set_aside(directory, steps[i], whys[i].what, &aside)) log_warn("%s", aside.what);
        }
    else checkpoint_close(c);
    if (count == 0) verdict = WHOLE;
    if (verdict == DAMAGED)
        error_set(err, EXIT_INTEGRITY, "start the run again", "no checkpoint of the run is whole (%s)",
                  whys[0].what);
    free(whys);
    free(steps);
    return verdict;
}

int checkpoint_newest(struct checkpoint *c, const char *directory, bool owner, struct error *err)
{
    struct error own = {0};
    enum verdict verdict = GONE;
    if (!err) err = &own;
    for (int listed = 0, read = 1; listed < LIST_TRIES; listed++) {
        verdict = newest_listed(c, directory, owner, err);
        if (verdict == WHOLE) return 0;
        if (verdict == DAMAGED || (verdict == UNREADABLE && read == READ_TRIES)) break;
        if (verdict == UNREADABLE) nanosleep(&(struct timespec){.tv_nsec = 50000000L << read++}, NULL);
    }
    if (verdict == DAMAGED) {
        char *all = path_join(directory, "ckpt");
        error_at(err, all, 0, 0);
        free(all);
    }
    if (verdict == GONE)
        error_set(err, EXIT_FAILED, "try again", "the checkpoints are removed faster than they are opened");
    return err->code;
}

void checkpoint_close(struct checkpoint *c)
{
    json_decref(c->manifest);
    weights_close(c->model);
    if (c->directory && c->records >= 0) close(c->records);
    free(c->directory);
    *c = (struct checkpoint){.step = -1, .records = -1};
}

int checkpoint_before(const char *directory, int64_t before, int64_t *step, struct error *err)
{
    int64_t *steps;
    int count, code = checkpoint_steps(directory, &steps, &count, err);
    *step = -1;
    for (int i = 0; i < count && *step < 0; i++) {
        struct checkpoint c;
        struct error why;
        if (steps[i] > before) continue;
        if (checkpoint_verify(&c, directory, steps[i], BY_SIZE, &why) == WHOLE) *step = steps[i];
        checkpoint_close(&c);
    }
    free(steps);
    return code;
}

bool checkpoint_named(const char *path, char *run, size_t size, int64_t *step)
{
    const char *part[3], *end = path + strlen(path); /* of the last three components, from behind */
    for (int i = 0; i < 3; i++) {
        const char *slash = memrchr(path, '/', (size_t)(end - path));
        if (!slash) return false;
        part[i] = slash + 1;
        end = slash;
    }
    long long number;
    if (strcmp(part[0], checkpoint_parts[PART_TENSORS]) != 0 || strncmp(part[2], "ckpt/", 5) != 0 ||
        sscanf(part[1], "step-%lld/", &number) != 1)
        return false;
    const char *slash = memrchr(path, '/', (size_t)(end - path)), *name = slash ? slash + 1 : path;
    snprintf(run, size, "%.*s", (int)(end - name), name);
    *step = number;
    return true;
}

/* ---- reading ---- */

int checkpoint_tensors(const struct checkpoint *c, const struct weights_row *rows, int64_t count,
                       int (*take)(void *context, int64_t index, const float *values, struct error *err),
                       void *context, struct error *err)
{
    struct weights *w = c->model;
    float *values = NULL;
    int code = 0;
    for (int64_t i = 0; i < count && !code; i++) {
        int64_t at = weights_find(w, rows[i].name), wanted = 1;
        for (int d = 0; d < rows[i].ndim; d++) wanted *= rows[i].shape[d];
        if (at < 0 || weights_tensor(w, at)->count != wanted) {
            code = error_set(err, EXIT_INTEGRITY, "resume with the configuration that made the checkpoint",
                             "tensor %s is missing or has another shape", rows[i].name);
            error_at(err, weights_path(w), 0, 0);
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
    return code;
}

int checkpoint_records(const struct checkpoint *c, int64_t count,
                       int (*take)(void *context, int64_t index, const void *record, size_t bytes,
                                   struct error *err),
                       void *context, struct error *err)
{
    char *path = path_join(c->directory, checkpoint_parts[PART_RECORDS]);
    struct stat st;
    int code = fstat(c->records, &st) == 0 ? 0 : error_errno(err, EXIT_FAILED, NULL, "cannot read");
    uint64_t left = code ? 0 : (uint64_t)st.st_size, at = 0, bytes;
    for (int64_t i = 0; i < count && !code; i++) {
        size_t got = 0;
        char *record = NULL;
        code = read_at(c->records, &bytes, sizeof bytes, (int64_t)at, &got, path, err);
        if (!code && (got < sizeof bytes || bytes > left - at - sizeof bytes))
            code = error_set(err, EXIT_INTEGRITY, NULL, "optimizer state ends at tensor %lld of %lld",
                             (long long)i, (long long)count);
        if (!code && !(record = malloc(bytes ? bytes : 1)))
            code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for %llu bytes of optimizer state",
                             (unsigned long long)bytes);
        at += sizeof bytes;
        if (!code) code = read_at(c->records, record, bytes, (int64_t)at, &got, path, err);
        if (!code && got < bytes) code = error_set(err, EXIT_INTEGRITY, NULL, "has become shorter");
        if (!code) code = take(context, i, record, bytes, err);
        if (!code) at += bytes;
        free(record);
    }
    if (code) error_at(err, path, 0, 0);
    free(path);
    return code;
}
