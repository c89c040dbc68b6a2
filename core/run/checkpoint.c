/* Checkpoints on disk: see checkpoint.h. */
#include "core/run/checkpoint_internal.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/platform.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

const char checkpoint_model[] = "model.safetensors";
const char checkpoint_manifest[] = "MANIFEST.json";

enum {
    MANIFEST_BYTES = 1 << 24, /* at most */
    READ_TRIES = 4,           /* attempts to read, 0.1, 0.2 and 0.4 s apart */
    LIST_TRIES = 1000,        /* a trainer may remove checkpoints after they were listed */
    SPARE_DESCRIPTORS = 256   /* of a process, in addition to the files of records */
};

static const char CKPT[] = "ckpt";

char *checkpoint_path(const char *directory, int64_t step)
{
    char *all = path_join(directory, CKPT), *path = xasprintf("%s/step-%08lld", all, (long long)step);
    free(all);
    return path;
}

char *checkpoint_records_name(int writer, int writers)
{
    return writers > 1 ? xasprintf("optimizer.%d-of-%d.bin", writer, writers) : xstrdup("optimizer.bin");
}

/* ---- Listing ---- */

static int newer_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

int checkpoint_each_name(const char *directory,
                         void (*take)(void *context, const char *all, const char *name), void *context,
                         struct error *err)
{
    DIR *dir = file_list_below(directory, CKPT);
    int code = 0;
    struct dirent *entry = NULL;
    if (dir || errno != ENOENT) {
        char *all = path_join(directory, CKPT);
        while (dir && (errno = 0, entry = readdir(dir)) != NULL) take(context, all, entry->d_name);
        if (errno) code = file_below_error(directory, CKPT, "list the checkpoints", err);
        free(all);
    }
    if (dir) closedir(dir);
    return code;
}

struct listing {
    int64_t *steps;
    int count;
};

static void add_listed_step(void *context, const char *all, const char *name)
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
    int code = checkpoint_each_name(directory, add_listed_step, &list, err);
    if (code) {
        free(list.steps);
        list = (struct listing){0};
    }
    if (list.steps) qsort(list.steps, (size_t)list.count, sizeof *list.steps, newer_first);
    *steps = list.steps;
    *count = list.count;
    return code;
}

/* ---- Verification ---- */

static int read_manifest(struct checkpoint *c, int fd, const char *path, struct error *err)
{
    struct stat st;
    size_t got = 0;
    if (fstat(fd, &st) != 0) return error_errno(err, EXIT_FAILED, NULL, "cannot read %s", path);
    if (st.st_size > MANIFEST_BYTES) return error_set(err, EXIT_INTEGRITY, NULL, "manifest: too long");
    size_t bytes = (size_t)st.st_size;
    char *text = malloc(bytes + 1);
    int code = text ? 0 : error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory reading %s", path);
    if (!code) code = checkpoint_read_at(fd, text, bytes, 0, &got, path, err);
    if (!code) {
        json_error_t why;
        const json_t *step;
        c->manifest = json_parse(text, got, JSON_REJECT_DUPLICATES, &why);
        if (!c->manifest && !why.text[0])
            code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory reading %s", path);
        else if (!c->manifest)
            code = error_set(err, EXIT_INTEGRITY, NULL, "manifest, line %d, column %d: %s", why.line,
                             why.column, why.text);
        else if (!json_is_object(c->manifest))
            code = error_set(err, EXIT_INTEGRITY, NULL, "manifest: not a JSON object");
        else if (json_is_integer(step = json_object_get(c->manifest, "step")) &&
                 json_integer_value(step) != (json_int_t)c->step)
            code = error_set(err, EXIT_INTEGRITY, NULL, "manifest: belongs to step %lld",
                             (long long)json_integer_value(step));
    }
    free(text);
    return code;
}

/* Reads from the manifest how many ranks wrote records. */
static int read_writers(struct checkpoint *c, struct error *err)
{
    const json_t *given = json_object_get(c->manifest, "version");
    json_int_t version = given ? json_integer_value(given) : 1;
    json_t *files = json_object_get(c->manifest, "files"), *entry;
    const char *name;
    if (version < 1 || version > CHECKPOINT_VERSION) /* neither damaged nor skipped */
        return error_set(err, EXIT_FAILED, "use the version of meopt that wrote it, or a later one",
                         "the checkpoint of step %lld has version %lld, expected 1 to %d", (long long)c->step,
                         (long long)version, CHECKPOINT_VERSION);
    c->writers = 1;
    json_object_foreach(files, name, entry)
    {
        int writers = 0, end = 0;
        if (sscanf(name, "optimizer.0-of-%d.bin%n", &writers, &end) == 1 && end > 0 && !name[end] &&
            writers > 1 && writers <= CHECKPOINT_WRITERS)
            c->writers = writers;
    }
    return 0;
}

/* Finds the first block with a wrong checksum. 0: the manifest has no block checksums, or all match. */
static int name_block(const struct checkpoint *c, const char *name, int fd, struct error *err)
{
    struct checkpoint_reader r;
    int code = 0;
    if (!checkpoint_reader_open(&r, c, name, fd)) return 0;
    for (int64_t i = 0; i < r.count && !code; i++) code = checkpoint_reader_block(&r, i, err);
    checkpoint_reader_close(&r);
    return code;
}

static int compare_part(const struct checkpoint *c, const char *name, int fd, enum depth depth,
                        struct error *err)
{
    char *path = path_join(c->directory, name);
    json_t *entry = json_object_get(json_object_get(c->manifest, "files"), name);
    json_int_t bytes = json_integer_value(json_object_get(entry, "bytes")),
               crc = json_integer_value(json_object_get(entry, "crc32c"));
    struct checkpoint_written found = {.bytes = -1, .crc = (uint32_t)crc};
    struct stat st;
    int code = 0;
    if (depth == BY_CONTENT) code = checkpoint_checksum(fd, path, &found, NULL, err);
    else if (fstat(fd, &st) == 0) found.bytes = (int64_t)st.st_size;
    else code = error_errno(err, EXIT_FAILED, NULL, "cannot read %s", path);
    bool agrees = entry && found.bytes == bytes && found.crc == crc;
    if (!code && !agrees) {
        if (!entry)
            code = error_set(err, EXIT_INTEGRITY, NULL,
                             "%s does not agree with the manifest: it is not listed", name);
        else if (found.bytes != bytes)
            code = error_set(err, EXIT_INTEGRITY, NULL,
                             "%s does not agree with the manifest: it has %lld bytes, expected %lld", name,
                             (long long)found.bytes, (long long)bytes);
        else if ((code = name_block(c, name, fd, err)) == 0)
            code = error_set(err, EXIT_INTEGRITY, NULL,
                             "%s does not agree with the manifest: its CRC-32C is %lld, expected %lld", name,
                             (long long)found.crc, (long long)crc);
        error_at(err, path, 0, 0);
    }
    free(path);
    return code;
}

/* Whether the manifest has checksums of this file's blocks; only such a file can be split into shares. */
static bool has_blocks(const struct checkpoint *c, const char *name)
{
    json_t *entry = json_object_get(json_object_get(c->manifest, "files"), name);
    return json_object_get(entry, "blocks_crc32c") != NULL;
}

/* Verifies one share of a file: a range of blocks if the manifest has their checksums, else the whole
 * file. */
static int compare_share_of_file(const struct checkpoint *c, const char *name, int fd, int index, int count,
                                 struct error *err)
{
    struct checkpoint_reader r;
    int code = compare_part(c, name, fd, BY_SIZE, err);
    if (code) return code;
    if (!checkpoint_reader_open(&r, c, name, fd)) return compare_part(c, name, fd, BY_CONTENT, err);
    for (int64_t i = r.count * index / count; i < r.count * (index + 1) / count && !code; i++)
        code = checkpoint_reader_block(&r, i, err);
    checkpoint_reader_close(&r);
    return code;
}

/* Returns the name of a file of the checkpoint (-1: tensors, else the records of that writer); the caller
 * frees it. */
static char *name_of_file(const struct checkpoint *c, int file)
{
    return file < 0 ? xstrdup(checkpoint_model) : checkpoint_records_name(file, c->writers);
}

/* Verifies all files (count 0), or one of `count` shares; other files are not opened then. */
static int compare_files(const struct checkpoint *c, enum depth depth, int index, int count,
                         struct error *err)
{
    int code = 0;
    for (int i = -1; i < c->writers && !code; i++) {
        char *name = name_of_file(c, i);
        bool mine = i < 0 || !count || i % count == index || has_blocks(c, name);
        if (mine && i >= 0) code = checkpoint_open_records(c, i, err);
        int fd = i < 0 ? c->model_file : c->records[i];
        if (mine && !code)
            code = count ? compare_share_of_file(c, name, fd, index, count, err)
                         : compare_part(c, name, fd, depth, err);
        free(name);
    }
    return code;
}

int checkpoint_compare_share(const struct checkpoint *c, int index, int count, struct error *err)
{
    return compare_files(c, BY_CONTENT, index, count, err);
}

/* Reads every byte of the checkpoint: in this process, or split over the processes of the share. */
static int compare_all(const struct checkpoint *c, enum depth depth, const struct checkpoint_share *share,
                       struct error *err)
{
    if (depth == BY_SIZE || !share) return compare_files(c, depth, 0, 0, err);
    int code = share->begin ? share->begin(share->context, c->step, err) : 0;
    if (code) return code;
    code = checkpoint_compare_share(c, share->index, share->count, err);
    return share->end ? share->end(share->context, c, code, err) : code;
}

int checkpoint_open_records(const struct checkpoint *c, int writer, struct error *err)
{
    if (c->records[writer] >= 0) return 0;
    char *name = checkpoint_records_name(writer, c->writers), *path = path_join(c->directory, name);
    int code = checkpoint_open_part(c->at, path, &c->records[writer], err);
    free(path);
    free(name);
    return code;
}

/* Opens the files of records. later: they are opened when they are read. */
static int open_records(struct checkpoint *c, bool later, struct error *err)
{
    int code = 0;
    c->records = xcalloc((size_t)c->writers, sizeof *c->records);
    for (int i = 0; i < c->writers; i++) c->records[i] = -1;
    descriptors_allow(c->writers + SPARE_DESCRIPTORS); /* a checkpoint of 1,000 ranks has 1,000 files */
    for (int i = 0; i < c->writers && !code && !later; i++) code = checkpoint_open_records(c, i, err);
    return code;
}

/* Opens all files before the first read, which may take minutes: a trainer may remove the checkpoint in
 * that time. The ranks of a training that share the reading hold the run's lock, so that no other process
 * removes it. */
static int open_whole(struct checkpoint *c, enum depth depth, const struct checkpoint_share *share,
                      struct error *err)
{
    int manifest = -1;
    char *manifest_path = path_join(c->directory, checkpoint_manifest),
         *model_path = path_join(c->directory, checkpoint_model);
    struct error unusable = {0};
    int code = checkpoint_open_part(c->at, manifest_path, &manifest, err);
    if (!code) code = read_manifest(c, manifest, manifest_path, err);
    if (!code) code = read_writers(c, err);
    if (!code) code = open_records(c, share != NULL, err);
    if (!code) code = checkpoint_open_part(c->at, model_path, &c->model_file, err);
    int opened = code || depth == BY_SIZE
                     ? 0
                     : weights_open_descriptor(&c->model, c->model_file, model_path, &unusable);
    if (!code) code = compare_all(c, depth, share, err);
    if (!code && opened) { /* the file is as written: an older checkpoint is no replacement */
        *err = unusable;
        code = err->code = opened == EXIT_INTEGRITY ? EXIT_FAILED : opened;
    }
    if (manifest >= 0) close(manifest);
    free(model_path);
    free(manifest_path);
    return code;
}

/* Whether a file that the manifest lists is missing. */
static bool lacks_a_file(const struct checkpoint *c)
{
    bool lacks = false;
    for (int i = -2; i < c->writers && !lacks; i++) {
        char *name = i == -2 ? xstrdup(checkpoint_manifest) : name_of_file(c, i);
        char *path = path_join(c->directory, name);
        lacks = file_absent(path);
        free(path);
        free(name);
    }
    return lacks;
}

/* Opens the checkpoint's directory. Neither it nor ckpt/ may be a symbolic link. */
static int open_directory(struct checkpoint *c, const char *directory, struct error *err)
{
    char *name = xasprintf("%s/step-%08lld", CKPT, (long long)c->step);
    c->at = file_at(directory, name, O_RDONLY | O_DIRECTORY);
    int code = c->at < 0 ? file_below_error(directory, name, "open", err) : 0;
    if (code && errno == ELOOP) code = err->code = EXIT_INTEGRITY;
    free(name);
    return code;
}

static enum checkpoint_state verify_shared(struct checkpoint *c, const char *directory, int64_t step,
                                           enum depth depth, const struct checkpoint_share *share,
                                           struct error *err)
{
    *c = (struct checkpoint){
        .step = step, .directory = checkpoint_path(directory, step), .at = -1, .model_file = -1};
    int code = open_directory(c, directory, err);
    if (!code) code = open_whole(c, depth, share, err);
    enum checkpoint_state state = !code ? WHOLE : code == EXIT_INTEGRITY ? DAMAGED : UNREADABLE;
    if (state == UNREADABLE && lacks_a_file(c)) state = DAMAGED;
    if (code && file_absent(c->directory)) state = GONE;
    return state;
}

enum checkpoint_state checkpoint_verify(struct checkpoint *c, const char *directory, int64_t step,
                                        enum depth depth, struct error *err)
{
    return verify_shared(c, directory, step, depth, NULL, err);
}

int checkpoint_scan(struct checkpoint *c, const char *directory, int64_t step,
                    const struct checkpoint_share *share, struct error *err)
{
    struct error own = {0};
    if (!err) err = &own;
    return verify_shared(c, directory, step, BY_CONTENT, share, err) == WHOLE ? 0 : err->code;
}

int checkpoint_set_aside(const char *directory, int64_t step, const char *why, struct error *err)
{
    char *from = checkpoint_path(directory, step), *to = xasprintf("%s.damaged", from);
    for (int i = 2; !file_absent(to) && i < 1000; i++) {
        free(to);
        to = xasprintf("%s.damaged.%d", from, i);
    }
    int code = file_rename_at(AT_FDCWD, from, to) == 0 || errno == ENOENT
                   ? 0
                   : error_errno(err, EXIT_FAILED, NULL, "cannot rename %s to %s", from, path_basename(to));
    if (!code) log_warn("%s is damaged: %s; renamed to %s", from, why, path_basename(to));
    free(from);
    free(to);
    return code;
}

bool checkpoint_again(int *tries)
{
    if (*tries >= READ_TRIES) return false;
    nanosleep(&(struct timespec){.tv_nsec = 50000000L << (*tries)++}, NULL);
    return true;
}

/* ---- The newest checkpoint ---- */

/* Tries the checkpoints from the newest on until one is complete. WHOLE with c->step -1: there is none. */
static enum checkpoint_state newest_listed(struct checkpoint *c, const char *directory, bool owner,
                                           const struct checkpoint_share *share, struct error *err)
{
    int64_t *steps;
    int count, damaged = 0;
    enum checkpoint_state state = DAMAGED;
    *c = (struct checkpoint){.step = -1, .at = -1, .model_file = -1};
    if (checkpoint_steps(directory, &steps, &count, err)) return UNREADABLE;
    struct error *whys = xcalloc((size_t)count, sizeof *whys);
    for (; damaged < count; damaged++) {
        state = verify_shared(c, directory, steps[damaged], BY_CONTENT, share, &whys[damaged]);
        if (state == WHOLE) break;
        if (state == UNREADABLE && err) *err = whys[damaged];
        if (state != DAMAGED) break;
        if (!owner) log_warn("%s is damaged: %s; trying the previous one", c->directory, whys[damaged].what);
        checkpoint_close(c);
    }
    if (state == WHOLE)
        for (int i = 0; i < damaged && owner; i++) {
            struct error aside = {0};
            if (checkpoint_set_aside(directory, steps[i], whys[i].what, &aside)) log_warn("%s", aside.what);
        }
    else checkpoint_close(c);
    if (count == 0) state = WHOLE;
    if (state == DAMAGED)
        error_set(err, EXIT_INTEGRITY, "start the run again", "no checkpoint of the run is complete (%s)",
                  whys[0].what);
    free(whys);
    free(steps);
    return state;
}

int checkpoint_newest(struct checkpoint *c, const char *directory, bool owner, struct error *err)
{
    return checkpoint_newest_among(c, directory, owner, NULL, err);
}

int checkpoint_newest_among(struct checkpoint *c, const char *directory, bool owner,
                            const struct checkpoint_share *share, struct error *err)
{
    struct error own = {0};
    enum checkpoint_state state = GONE;
    if (!err) err = &own;
    for (int listed = 0, tries = 1; listed < LIST_TRIES; listed++) {
        state = newest_listed(c, directory, owner, share, err);
        if (state == WHOLE) return 0;
        if (state == DAMAGED || (state == UNREADABLE && !checkpoint_again(&tries))) break;
    }
    if (state == DAMAGED) {
        char *all = path_join(directory, "ckpt");
        error_at(err, all, 0, 0);
        free(all);
    }
    if (state == GONE)
        error_set(err, EXIT_FAILED, "try again", "the checkpoints are removed faster than they are opened");
    return err->code;
}

void checkpoint_close(struct checkpoint *c)
{
    json_decref(c->manifest);
    weights_close(c->model);
    if (c->model_file >= 0 && c->directory) close(c->model_file);
    if (c->at >= 0 && c->directory) close(c->at);
    for (int i = 0; i < c->writers && c->records; i++)
        if (c->records[i] >= 0) close(c->records[i]);
    free(c->records);
    free(c->directory);
    *c = (struct checkpoint){.step = -1, .at = -1, .model_file = -1};
}

/* One attempt of checkpoint_before. */
static int find_before(const char *directory, int64_t before, int64_t *step, struct error *err)
{
    int64_t *steps;
    int count, code = checkpoint_steps(directory, &steps, &count, err);
    *step = -1;
    for (int i = 0; i < count && *step < 0 && !code; i++) {
        struct checkpoint c;
        if (steps[i] > before) continue;
        enum checkpoint_state state = checkpoint_verify(&c, directory, steps[i], BY_SIZE, err);
        if (state == WHOLE) *step = steps[i];
        if (state == UNREADABLE) code = err->code;
        checkpoint_close(&c);
    }
    free(steps);
    return code;
}

int checkpoint_before(const char *directory, int64_t before, int64_t *step, struct error *err)
{
    struct error own;
    int code, tries = 1;
    if (!err) err = &own;
    while ((code = find_before(directory, before, step, err)) != 0 && checkpoint_again(&tries)) continue;
    return code;
}

bool checkpoint_named(const char *path, char *run, size_t size, int64_t *step)
{
    /* the last three components of the path, last one first */
    const char *part[3], *end = path + strlen(path);
    for (int i = 0; i < 3; i++) {
        const char *slash = memrchr(path, '/', (size_t)(end - path));
        if (!slash) return false;
        part[i] = slash + 1;
        end = slash;
    }
    long long number;
    if (strcmp(part[0], checkpoint_model) != 0 || strncmp(part[2], "ckpt/", 5) != 0 ||
        sscanf(part[1], "step-%lld/", &number) != 1)
        return false;
    const char *slash = memrchr(path, '/', (size_t)(end - path)), *name = slash ? slash + 1 : path;
    snprintf(run, size, "%.*s", (int)(end - name), name);
    *step = number;
    return true;
}

char **checkpoint_files(const char *directory, int64_t step, struct error *err)
{
    struct checkpoint c;
    char **names = NULL;
    if (checkpoint_verify(&c, directory, step, BY_SIZE, err) == WHOLE) {
        names = xcalloc((size_t)c.writers + 3, sizeof *names);
        names[0] = xstrdup(checkpoint_model);
        for (int i = 0; i < c.writers; i++) names[i + 1] = checkpoint_records_name(i, c.writers);
        names[c.writers + 1] = xstrdup(checkpoint_manifest);
    }
    checkpoint_close(&c);
    return names;
}
