/* Writing checkpoints, and removing old ones: see checkpoint.h. */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/hash.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/run/checkpoint_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEPT_READ = 4 }; /* kept checkpoints that are verified by content; older ones by size */

/* The file of records. */
struct record_file {
    const char *path;
    int fd;
    uint64_t left; /* bytes that the record still lacks */
};

static int put_part(void *file, const void *data, size_t bytes, struct error *err)
{
    struct record_file *f = file;
    if (bytes > f->left)
        return error_set(err, EXIT_FAILED, NULL, "a record of optimizer state is longer than its size");
    f->left -= bytes;
    return file_write_all(f->fd, data, bytes, f->path, err);
}

static int write_records(const struct checkpoint_record *records, int64_t count, const char *path,
                         struct error *err)
{
    /* O_EXCL: another process may still write it, for example one left from before a restart */
    struct record_file f = {path, open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666), 0};
    int code = f.fd < 0 ? error_errno(err, EXIT_FAILED, NULL, "cannot create %s", path) : 0;
    for (int64_t i = 0; i < count && !code; i++) {
        const struct checkpoint_record *r = &records[i];
        uint64_t header = f.left = r->bytes;
        code = file_write_all(f.fd, &header, sizeof header, path, err);
        if (!code) code = r->write(r->context, i, put_part, &f, err);
        if (!code && f.left)
            code = error_set(err, EXIT_FAILED, NULL, "a record of optimizer state is shorter than its size");
    }
    if (!code) code = file_sync(f.fd, path, err);
    if (f.fd >= 0) close(f.fd);
    return code;
}

/* Reads size and checksum of a file back from disk. */
static int read_back(const char *path, struct checkpoint_written *found, struct checkpoint_blocks *blocks,
                     struct error *err)
{
    int fd = -1, code = checkpoint_open_part(AT_FDCWD, path, &fd, err);
    if (!code) code = checkpoint_checksum(fd, path, found, blocks, err);
    if (fd >= 0) close(fd);
    return code;
}

/* Checks that a file that another host wrote is visible here: a host's local disk is not. */
static int check_here(const char *path, const struct checkpoint_written *reported, struct error *err)
{
    struct stat st;
    int fd = -1, code = checkpoint_open_part(AT_FDCWD, path, &fd, err);
    if (!code && (fstat(fd, &st) != 0 || (int64_t)st.st_size != reported->bytes))
        code = error_set(err, EXIT_FAILED, NULL,
                         "%s was written with %lld bytes, and is missing or shorter here", path,
                         (long long)reported->bytes);
    if (fd >= 0) close(fd);
    if (code && err)
        snprintf(err->hint, sizeof err->hint,
                 _("put the run's directory on a file system that all hosts share"));
    return code;
}

static bool add_blocks(json_t *entry, const struct checkpoint_blocks *blocks)
{
    char *text = xcalloc(blocks->count + 1, 8);
    for (size_t i = 0; i < blocks->count; i++) snprintf(text + 8 * i, 9, "%08x", (unsigned)blocks->crcs[i]);
    bool added = json_object_set_new(entry, "block_bytes", json_integer(CHECKPOINT_BLOCK)) == 0 &&
                 json_object_set_new(entry, "blocks_crc32c", json_string(text)) == 0;
    free(text);
    return added;
}

/* reported: by the rank that wrote the file; NULL: this process wrote it. */
static int add_part(json_t *files, const char *partial, const char *name,
                    const struct checkpoint_written *reported, struct error *err)
{
    struct checkpoint_written found = reported ? *reported : (struct checkpoint_written){0};
    struct checkpoint_blocks blocks = {0};
    char *path = path_join(partial, name);
    int code = reported ? check_here(path, reported, err) : read_back(path, &found, &blocks, err);
    json_t *entry =
        json_pack("{s:I, s:I}", "bytes", (json_int_t)found.bytes, "crc32c", (json_int_t)found.crc);
    bool whole = entry && (!blocks.count || add_blocks(entry, &blocks));
    if (json_object_set_new(files, name, entry)) whole = false;
    if (!code && !whole) code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for the manifest");
    free(blocks.crcs);
    free(path);
    return code;
}

/* written: of several ranks, else NULL */
static int write_manifest(const char *partial, int64_t step, json_t *more, int writers,
                          const struct checkpoint_written *written, struct error *err)
{
    json_t *object =
               json_pack("{s:i, s:I}", "version", written ? CHECKPOINT_VERSION : 1, "step", (json_int_t)step),
           *files = json_object();
    bool whole = object && files && (!more || json_object_update(object, more) == 0) &&
                 json_object_set(object, "files", files) == 0;
    int code = whole ? add_part(files, partial, checkpoint_model, NULL, err) : 0;
    for (int i = 0; i < writers && whole && !code; i++) {
        char *name = checkpoint_records_name(i, writers);
        code = add_part(files, partial, name, written ? &written[i] : NULL, err);
        free(name);
    }
    char *text = whole && !code
                     ? json_text(object, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17))
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

static char *partial_path(const char *directory, int64_t step)
{
    char *final = checkpoint_path(directory, step), *partial = xasprintf("%s.partial", final);
    free(final);
    return partial;
}

int checkpoint_save_part(const char *directory, int64_t step, int writer, int writers,
                         const struct checkpoint_record *records, int64_t count,
                         struct checkpoint_written *written, struct error *err)
{
    char *partial = partial_path(directory, step), *name = checkpoint_records_name(writer, writers),
         *path = path_join(partial, name);
    struct stat st;
    int code = write_records(records, count, path, err);
    /* the same permissions as the other files, independent of this process's umask */
    if (!code && writers > 1 && stat(partial, &st) == 0 && chmod(path, st.st_mode & 0666) != 0)
        code = error_errno(err, EXIT_FAILED, NULL, "cannot change the mode of %s", path);
    if (!code) code = read_back(path, written, NULL, err);
    free(path);
    free(name);
    free(partial);
    return code;
}

/* Writes all files, under the temporary name. */
static int write_partial(const char *directory, const char *partial, int64_t step,
                         const struct checkpoint_content *content, struct error *err)
{
    char *tensors = path_join(partial, checkpoint_model), *below = path_join("ckpt", path_basename(partial));
    int writers = content->writers > 1 ? content->writers : 1;
    struct checkpoint_written *written = xcalloc((size_t)writers, sizeof *written);
    int code = file_remove_tree(partial, err);
    /* does not recreate a run that was removed */
    if (!code) code = file_make_dirs_below(directory, below, err);
    if (!code)
        code = weights_write_safetensors(tensors, content->tensors, content->tensor_count, content->metadata,
                                         err);
    if (!code && writers > 1) code = content->gather(content->context, written, err);
    else if (!code)
        code = checkpoint_save_part(directory, step, 0, 1, content->records, content->record_count, written,
                                    err);
    if (!code)
        code = write_manifest(partial, step, content->more, writers, writers > 1 ? written : NULL, err);
    free(written);
    free(tensors);
    free(below);
    return code;
}

static int name_latest(const char *directory, const char *final, struct error *err)
{
    static const char latest[] = "ckpt/LATEST";
    char *text = NULL;
    const char *name = path_basename(final);
    size_t bytes = 0;
    bool named = file_read_below(directory, latest, 4096, &text, &bytes, NULL) == 0 &&
                 bytes == strlen(name) && memcmp(text, name, bytes) == 0;
    int code = named ? 0 : file_write_below(directory, latest, name, strlen(name), err);
    free(text);
    return code;
}

static int publish(const char *directory, const char *partial, const char *final, struct error *err)
{
    char *all = path_join(directory, "ckpt");
    int code = 0;
    if (file_rename_at(AT_FDCWD, partial, final) != 0)
        code = error_errno(err, EXIT_FAILED, NULL, "cannot rename %s to %s", partial, path_basename(final));
    if (!code) code = file_sync_dir(all, err);
    if (!code) code = name_latest(directory, final, err);
    free(all);
    return code;
}

/* ---- Old checkpoints ---- */

/* Checkpoints that this process wrote or verified: a hash of the attributes of their files. */
static uint64_t known[2 * KEPT_READ];
static unsigned known_next;

/* Returns a hash that does not depend on the order of the files; 0: unknown. */
static uint64_t files_hash(const char *checkpoint)
{
    uint64_t sum = 0;
    DIR *dir = opendir(checkpoint);
    for (const struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        struct stat st;
        if (entry->d_name[0] == '.') continue;
        if (fstatat(dirfd(dir), entry->d_name, &st, 0) != 0) {
            sum = 0;
            break;
        }
        char *line = xasprintf("%s %llu %llu %lld %lld.%09ld", entry->d_name, (unsigned long long)st.st_dev,
                               (unsigned long long)st.st_ino, (long long)st.st_size,
                               (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
        sum += fnv1a_64(line);
        free(line);
    }
    if (dir) closedir(dir);
    return sum;
}

static void remember(const char *checkpoint)
{
    uint64_t found = files_hash(checkpoint);
    if (found) known[known_next++ % (2 * KEPT_READ)] = found;
}

static bool is_known(const char *checkpoint)
{
    uint64_t found = files_hash(checkpoint);
    bool is = false;
    for (int i = 0; i < 2 * KEPT_READ && found && !is; i++) is = known[i] == found;
    return is;
}

static void forget(const char *directory, int64_t step)
{
    /* renamed first, so that a partly removed checkpoint has no valid name */
    char *from = checkpoint_path(directory, step),
         *to = xasprintf("%s/ckpt/.trash-%lld", directory, (long long)step);
    struct error err = {0};
    if (file_rename_at(AT_FDCWD, from, to) != 0)
        error_errno(&err, EXIT_FAILED, NULL, "cannot rename %s", from);
    else file_remove_tree(to, &err);
    if (err.code) log_warn("could not remove an old checkpoint: %s", err.what);
    free(from);
    free(to);
}

/* Keeps the checkpoint just written and the newest complete ones before it. A temporarily unreadable one
 * stays, too, and is not counted. */
static void forget_old(const char *directory, int64_t written, int keep)
{
    int64_t *steps;
    int count, kept = 1, looked = 0;
    struct checkpoint_best best;
    struct error err = {0};
    if (checkpoint_best_read(directory, &best, &err)) {
        log_warn("old checkpoints are kept until it is known which is the best: %s: %s", err.file, err.what);
        return;
    }
    if (checkpoint_steps(directory, &steps, &count, &err))
        log_warn("could not remove old checkpoints: %s", err.what);
    for (int i = 0; i < count; i++) {
        struct checkpoint c = {0};
        if (steps[i] >= written) continue;
        if (kept >= keep) {
            if (steps[i] != best.step) forget(directory, steps[i]);
            continue;
        }
        char *path = checkpoint_path(directory, steps[i]);
        bool trusted = is_known(path);
        enum depth depth = looked++ < KEPT_READ ? BY_CONTENT : BY_SIZE;
        enum checkpoint_state state =
            trusted ? WHOLE : checkpoint_verify(&c, directory, steps[i], depth, &err);
        checkpoint_close(&c);
        if (state == WHOLE) kept++;
        if (state == WHOLE && !trusted && depth == BY_CONTENT) remember(path);
        if (state == UNREADABLE) log_warn("%s cannot be read now: %s", path, err.what);
        if (state == DAMAGED && checkpoint_set_aside(directory, steps[i], err.what, &err))
            log_warn("%s", err.what);
        free(path);
    }
    free(steps);
}

/* Removes the remains of an interrupted save: a partial checkpoint, a partly removed one, LATEST's
 * temporary file. */
static void remove_leftover(void *context, const char *all, const char *name)
{
    (void)context;
    size_t n = strlen(name), suffix = strlen(".partial");
    bool partial = strncmp(name, "step-", 5) == 0 && n > suffix && strcmp(name + n - suffix, ".partial") == 0;
    if (!partial && strncmp(name, ".trash-", 7) != 0 && strncmp(name, ".LATEST.", 8) != 0) return;
    char *path = path_join(all, name);
    struct error err = {0};
    if (file_remove_tree(path, &err))
        log_warn("could not remove the remains of an interrupted save: %s", err.what);
    free(path);
}

/* Removes old checkpoints and temporary files after a complete save. */
static void remove_leftovers(const char *directory, int64_t step, int keep)
{
    struct error err = {0};
    forget_old(directory, step, keep > 0 ? keep : 1);
    if (checkpoint_each_name(directory, remove_leftover, NULL, &err)) log_warn("%s: %s", err.file, err.what);
}

void checkpoint_tidy(const char *directory, int64_t step, int keep)
{
    char *path = checkpoint_path(directory, step);
    struct error err = {0};
    if (name_latest(directory, path, &err)) log_warn("%s: %s", err.file, err.what);
    remove_leftovers(directory, step, keep);
    free(path);
}

int checkpoint_save(const char *directory, int64_t step, int keep, const struct checkpoint_content *content,
                    struct error *err)
{
    char *final = checkpoint_path(directory, step), *partial = partial_path(directory, step);
    struct checkpoint there = {0};
    struct error own = {0}, why = {0};
    if (!err) err = &own;
    enum checkpoint_state state =
        file_absent(final) ? GONE : checkpoint_verify(&there, directory, step, BY_CONTENT, &why);
    checkpoint_close(&there);
    int code = checkpoint_each_name(directory, remove_leftover, NULL, err);
    if (!code && state == WHOLE) {
        code = name_latest(directory, final, err);
    } else if (!code) {
        code = write_partial(directory, partial, step, content, err);
        if (!code && state != GONE) code = checkpoint_set_aside(directory, step, why.what, err);
        if (!code) code = publish(directory, partial, final, err);
        if (code) file_remove_tree(partial, NULL);
    }
    if (!code) remember(final);
    if (!code) remove_leftovers(directory, step, keep);
    free(partial);
    free(final);
    return code;
}
