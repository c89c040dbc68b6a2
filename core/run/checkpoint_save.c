/* Checkpoints written, and those that stay: see checkpoint.h. */
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/run/checkpoint_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEPT_READ = 4 }; /* kept checkpoints that are read whole; further ones are known by their sizes */

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
    if (!code) code = file_sync(fd, path, err);
    if (fd >= 0) close(fd);
    return code;
}

/* Size and checksum of a part, as they are on the disk. */
static int add_part(json_t *files, const char *partial, int part, struct error *err)
{
    json_int_t bytes, crc;
    int fd = -1;
    char *path = path_join(partial, checkpoint_parts[part]);
    int code = checkpoint_open_part(path, &fd, err);
    if (!code) code = checkpoint_checksum(fd, path, &bytes, &crc, err);
    if (!code && json_object_set_new(files, checkpoint_parts[part],
                                     json_pack("{s:I, s:I}", "bytes", bytes, "crc32c", crc)))
        code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for the manifest");
    if (fd >= 0) close(fd);
    free(path);
    return code;
}

static int write_manifest(const char *partial, int64_t step, json_t *more, struct error *err)
{
    json_t *object = json_pack("{s:i, s:I}", "version", 1, "step", (json_int_t)step), *files = json_object();
    bool whole = object && files && (!more || json_object_update(object, more) == 0) &&
                 json_object_set(object, "files", files) == 0;
    int code = 0;
    for (int i = 0; i < PARTS && whole && !code; i++) code = add_part(files, partial, i, err);
    char *text = whole && !code
                     ? json_dumps(object, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17))
                     : NULL,
         *path = path_join(partial, checkpoint_manifest);
    if (text) code = file_write_atomic(path, text, strlen(text), err);
    else if (!code) code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for the manifest");
    free(path);
    free(text);
    json_decref(files);
    json_decref(object);
    return code;
}

/* Everything of it, under its side name. */
static int write_partial(const char *partial, int64_t step, const struct checkpoint_content *content,
                         struct error *err)
{
    char *tensors = path_join(partial, checkpoint_parts[PART_TENSORS]),
         *records = path_join(partial, checkpoint_parts[PART_RECORDS]);
    int code = file_remove_tree(partial, err);
    if (!code) code = file_make_dirs(partial, err);
    if (!code)
        code = weights_write_safetensors(tensors, content->tensors, content->tensor_count, content->metadata,
                                         err);
    if (!code) code = write_records(content, records, err);
    if (!code) code = write_manifest(partial, step, content->more, err);
    free(tensors);
    free(records);
    return code;
}

static int name_latest(const char *directory, const char *final, struct error *err)
{
    char *latest = path_join(directory, "ckpt/LATEST"), *text = NULL;
    const char *name = path_basename(final);
    size_t bytes = 0;
    bool named = !file_absent(latest) && file_read(latest, 4096, &text, &bytes, NULL) == 0 &&
                 bytes == strlen(name) && memcmp(text, name, bytes) == 0;
    int code = named ? 0 : file_write_atomic(latest, name, strlen(name), err);
    free(text);
    free(latest);
    return code;
}

static int publish(const char *directory, const char *partial, const char *final, struct error *err)
{
    char *all = path_join(directory, "ckpt");
    int code = 0;
    if (rename(partial, final) != 0)
        code = error_errno(err, EXIT_FAILED, NULL, "cannot rename %s to %s", partial, path_basename(final));
    if (!code) code = file_sync_dir(all, err);
    if (!code) code = name_latest(directory, final, err);
    free(all);
    return code;
}

/* ---- what stays ---- */

/* Checkpoints that this process has written or read whole: their files, as the system knows them. */
struct known {
    struct {
        dev_t device;
        ino_t inode;
        off_t bytes;
        struct timespec changed;
    } files[PARTS + 1];
};
static struct known known[2 * KEPT_READ];
static unsigned known_next;

static bool look(struct known *k, const char *checkpoint)
{
    bool there = true;
    memset(k, 0, sizeof *k);
    for (int i = 0; i <= PARTS && there; i++) {
        struct stat st;
        char *path = path_join(checkpoint, i < PARTS ? checkpoint_parts[i] : checkpoint_manifest);
        there = stat(path, &st) == 0;
        free(path);
        if (!there) break;
        k->files[i].device = st.st_dev;
        k->files[i].inode = st.st_ino;
        k->files[i].bytes = st.st_size;
        k->files[i].changed = st.st_mtim;
    }
    return there;
}

static void remember(const char *checkpoint)
{
    struct known k;
    if (look(&k, checkpoint)) known[known_next++ % (2 * KEPT_READ)] = k;
}

static bool is_known(const char *checkpoint)
{
    struct known k;
    bool found = false;
    if (!look(&k, checkpoint)) return false;
    for (int i = 0; i < 2 * KEPT_READ && !found; i++) found = memcmp(&known[i], &k, sizeof k) == 0;
    return found;
}

static void forget(const char *directory, int64_t step)
{
    /* out of the way first, so that a half removed checkpoint has no name that counts */
    char *from = checkpoint_path(directory, step),
         *to = xasprintf("%s/ckpt/.trash-%lld", directory, (long long)step);
    struct error err = {0};
    if (rename(from, to) != 0) error_errno(&err, EXIT_FAILED, NULL, "cannot rename %s", from);
    else file_remove_tree(to, &err);
    if (err.code) log_warn("an old checkpoint is left behind: %s", err.what);
    free(from);
    free(to);
}

/* The checkpoint just written stays, with the newest before it that are whole. One that cannot be read now
 * stays as well, and counts for nothing. */
static void forget_old(const char *directory, int64_t written, int keep)
{
    int64_t *steps;
    int count, kept = 1, looked = 0;
    struct error err = {0};
    if (checkpoint_steps(directory, &steps, &count, &err))
        log_warn("old checkpoints are left behind: %s", err.what);
    for (int i = 0; i < count; i++) {
        struct checkpoint c = {.records = -1};
        if (steps[i] >= written) continue;
        if (kept >= keep) {
            forget(directory, steps[i]);
            continue;
        }
        char *path = checkpoint_path(directory, steps[i]);
        bool trusted = is_known(path);
        enum depth depth = looked++ < KEPT_READ ? BY_CONTENT : BY_SIZE;
        enum verdict verdict = trusted ? WHOLE : checkpoint_verify(&c, directory, steps[i], depth, &err);
        checkpoint_close(&c);
        if (verdict == WHOLE) kept++;
        if (verdict == WHOLE && !trusted && depth == BY_CONTENT) remember(path);
        if (verdict == UNREADABLE) log_warn("%s cannot be read now: %s", path, err.what);
        if (verdict == DAMAGED && checkpoint_set_aside(directory, steps[i], err.what, &err))
            log_warn("%s", err.what);
        free(path);
    }
    free(steps);
}

/* What a killed save leaves: half a checkpoint, half a removal, LATEST's side file. */
static void take_leftover(void *context, const char *all, const char *name)
{
    (void)context;
    size_t n = strlen(name), suffix = strlen(".partial");
    bool partial = strncmp(name, "step-", 5) == 0 && n > suffix && strcmp(name + n - suffix, ".partial") == 0;
    if (!partial && strncmp(name, ".trash-", 7) != 0 && strncmp(name, ".LATEST.", 8) != 0) return;
    char *path = path_join(all, name);
    struct error err = {0};
    if (file_remove_tree(path, &err)) log_warn("what a killed save has left stays: %s", err.what);
    free(path);
}

/* Behind a checkpoint that stands. */
static void clear_up(const char *directory, int64_t step, int keep)
{
    struct error err = {0};
    forget_old(directory, step, keep > 0 ? keep : 1);
    if (checkpoint_each_name(directory, take_leftover, NULL, &err)) log_warn("%s: %s", err.file, err.what);
}

void checkpoint_tidy(const char *directory, int64_t step, int keep)
{
    char *path = checkpoint_path(directory, step);
    struct error err = {0};
    if (name_latest(directory, path, &err)) log_warn("%s: %s", err.file, err.what);
    clear_up(directory, step, keep);
    free(path);
}

int checkpoint_save(const char *directory, int64_t step, int keep, const struct checkpoint_content *content,
                    struct error *err)
{
    char *final = checkpoint_path(directory, step), *partial = xasprintf("%s.partial", final);
    struct checkpoint there = {.records = -1};
    struct error own = {0}, why = {0};
    if (!err) err = &own;
    enum verdict verdict =
        file_absent(final) ? GONE : checkpoint_verify(&there, directory, step, BY_CONTENT, &why);
    checkpoint_close(&there);
    int code = checkpoint_each_name(directory, take_leftover, NULL, err);
    if (!code && verdict == WHOLE) {
        code = name_latest(directory, final, err);
    } else if (!code) {
        code = write_partial(partial, step, content, err);
        if (!code && verdict != GONE) code = checkpoint_set_aside(directory, step, why.what, err);
        if (!code) code = publish(directory, partial, final, err);
        if (code) file_remove_tree(partial, NULL);
    }
    if (!code) remember(final);
    if (!code) clear_up(directory, step, keep);
    free(partial);
    free(final);
    return code;
}
