/* Writes and reads bundles: see bundle.h. */
#include "fetch/bundle.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "fetch/sources.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char list_name[] = "meopt-bundle.json";
enum { LIST_MAX_BYTES = 1 << 20, MOST_ARCHIVES = 256, PIECE_BYTES = 1 << 20 };

void bundle_free(struct bundle *b)
{
    for (int i = 0; i < b->count; i++) {
        free(b->entries[i].name);
        free(b->entries[i].file);
        free(b->entries[i].top);
        free(b->entries[i].path);
    }
    free(b->entries);
    *b = (struct bundle){0};
}

static int check_cancel(const atomic_int *cancel, struct error *err)
{
    return cancel && *cancel ? error_set(err, EXIT_SIGNAL + SIGINT, "run the same command again", "stopped")
                             : 0;
}

/* Sets an error from libarchive's last message about this file. */
static int archive_failed(struct archive *a, const char *path, int otherwise, struct error *err)
{
    char shown[256];
    const char *what = archive_error_string(a);
    errno = archive_errno(a) > 0 ? archive_errno(a) : 0;
    int code = errno == ENOSPC || errno == EDQUOT || errno == EIO
                   ? error_errno(err, otherwise, "check the disk", "cannot continue")
                   : error_set(err, otherwise, NULL, "%s",
                               text_printable(shown, sizeof shown, what ? what : "cannot continue"));
    return error_at(err, path, 0, 0), code;
}

/* ---- writing ---- */

static char *list_text(const struct bundle *b)
{
    json_t *all = json_array();
    for (int i = 0; i < b->count; i++) {
        const struct bundle_entry *e = &b->entries[i];
        json_array_append_new(all,
                              json_pack("{s:s, s:s, s:s?, s:s, s:I}", "name", e->name, "file", e->file, "top",
                                        e->top, "sha256", e->sha256, "size", (json_int_t)e->size));
    }
    json_t *root = json_pack("{s:i, s:o}", "version", 1, "archives", all);
    char *text = json_dumps(root, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    json_decref(root);
    return text;
}

static int write_header(struct archive *a, const char *name, int64_t bytes, const char *path,
                        struct error *err)
{
    struct archive_entry *entry = archive_entry_new();
    archive_entry_set_pathname(entry, name);
    archive_entry_set_size(entry, bytes);
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    int status = archive_write_header(a, entry);
    archive_entry_free(entry);
    return status == ARCHIVE_OK ? 0 : archive_failed(a, path, EXIT_FAILED, err);
}

static int write_archive(struct archive *a, const struct bundle_entry *e, const char *path,
                         const atomic_int *cancel, struct error *err)
{
    struct stat st;
    int fd, code = file_open(e->path, &fd, &st, err);
    if (code) return code;
    if (st.st_size != e->size) {
        error_set(err, EXIT_INTEGRITY, "fetch it again", "has %lld bytes, expected %lld",
                  (long long)st.st_size, (long long)e->size);
        code = error_at(err, e->path, 0, 0);
    } else code = write_header(a, e->file, e->size, path, err);
    char *piece = xmalloc(PIECE_BYTES);
    for (int64_t left = e->size; left > 0 && !code;) {
        ssize_t n = read(fd, piece, left < PIECE_BYTES ? (size_t)left : PIECE_BYTES);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            code = n < 0 ? error_errno(err, EXIT_FAILED, "check the disk", "cannot read the archive")
                         : error_set(err, EXIT_FAILED, "check that no other process writes it",
                                     "the file was truncated");
            error_at(err, e->path, 0, 0);
        } else if (archive_write_data(a, piece, (size_t)n) != n)
            code = archive_failed(a, path, EXIT_FAILED, err);
        else code = check_cancel(cancel, err);
        left -= n;
    }
    free(piece);
    close(fd);
    return code;
}

int bundle_write(const char *path, const struct bundle *b, const atomic_int *cancel, struct error *err)
{
    struct file_atomic f;
    int code = file_atomic_begin(&f, path, err);
    if (code) return code;
    struct archive *a = archive_write_new();
    char *list = list_text(b);
    if (!a || !list) code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory");
    else if (archive_write_set_format_pax_restricted(a) != ARCHIVE_OK ||
             archive_write_open_fd(a, f.fd) != ARCHIVE_OK)
        code = archive_failed(a, path, EXIT_FAILED, err);
    else code = write_header(a, list_name, (int64_t)strlen(list), path, err);
    if (!code && archive_write_data(a, list, strlen(list)) != (la_ssize_t)strlen(list))
        code = archive_failed(a, path, EXIT_FAILED, err);
    for (int i = 0; i < b->count && !code; i++) code = write_archive(a, &b->entries[i], path, cancel, err);
    if (!code && archive_write_close(a) != ARCHIVE_OK) code = archive_failed(a, path, EXIT_FAILED, err);
    archive_write_free(a);
    free(list);
    if (!code) return file_atomic_commit(&f, err);
    file_atomic_abort(&f);
    return code;
}

/* ---- reading ---- */

static struct archive *open_bundle(const char *path, int *fd)
{
    struct stat st;
    struct error ignored;
    if (file_open(path, fd, &st, &ignored) != 0) return NULL;
    struct archive *a = archive_read_new();
    archive_read_support_format_tar(a);
    if (archive_read_open_fd(a, *fd, PIECE_BYTES) == ARCHIVE_OK) return a;
    archive_read_free(a);
    close(*fd);
    return NULL;
}

static struct archive_entry *first_is_list(struct archive *a)
{
    struct archive_entry *entry = NULL;
    if (archive_read_next_header(a, &entry) != ARCHIVE_OK) return NULL;
    const char *name = archive_entry_pathname(entry);
    return name && strcmp(name, list_name) == 0 && archive_entry_filetype(entry) == AE_IFREG ? entry : NULL;
}

bool bundle_is(const char *path)
{
    int fd;
    struct archive *a = open_bundle(path, &fd);
    if (!a) return false;
    bool is = first_is_list(a) != NULL;
    archive_read_free(a);
    close(fd);
    return is;
}

/* Returns a copy of a file name: one component, no control characters, no leading dot; NULL: invalid. */
static char *read_name(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (!text || !*text || *text == '.' || strlen(text) > 200 ||
        strlen(text) != json_string_length(json_object_get(object, key)))
        return NULL;
    for (const char *p = text; *p; p++)
        if (*p == '/' || (unsigned char)*p < ' ' || *p == 0x7f) return NULL;
    return xstrdup(text);
}

static bool read_entry(struct bundle_entry *e, const json_t *object)
{
    const char *sha = json_string_value(json_object_get(object, "sha256"));
    const json_t *top = json_object_get(object, "top"), *size = json_object_get(object, "size");
    e->name = read_name(object, "name");
    e->file = read_name(object, "file");
    e->top = read_name(object, "top");
    e->size = json_is_integer(size) ? json_integer_value(size) : -1;
    return e->name && e->file && (e->top || !top || json_is_null(top)) && sha && strlen(sha) == 64 &&
           sha256_parse(e->sha256, sha) && e->size >= 0;
}

static int invalid_bundle(const char *path, const char *what, struct error *err)
{
    error_set(err, EXIT_INTEGRITY, "create it again with: meopt fetch NAME ... --bundle FILE", "%s", what);
    return error_at(err, path, 0, 0);
}

int bundle_read(struct bundle *b, const char *path, struct error *err)
{
    int fd = -1, code = 0;
    *b = (struct bundle){0};
    struct archive *a = open_bundle(path, &fd);
    struct archive_entry *entry = a ? first_is_list(a) : NULL;
    int64_t bytes = entry ? archive_entry_size(entry) : -1;
    if (!entry || bytes <= 0 || bytes > LIST_MAX_BYTES)
        code = invalid_bundle(path, "is not a bundle of meopt", err);
    char *text = code ? NULL : xmalloc((size_t)bytes);
    json_t *root = text && archive_read_data(a, text, (size_t)bytes) == (la_ssize_t)bytes
                       ? json_loadb(text, (size_t)bytes, JSON_REJECT_DUPLICATES, NULL)
                       : NULL;
    const json_t *all = json_object_get(root, "archives");
    size_t count = json_array_size(all);
    if (!code &&
        (json_integer_value(json_object_get(root, "version")) != 1 || count < 1 || count > MOST_ARCHIVES))
        code = invalid_bundle(path, "its list of archives is invalid", err);
    if (!code) b->entries = xcalloc(count, sizeof *b->entries);
    for (size_t i = 0; i < count && !code; i++) {
        b->count++;
        if (!read_entry(&b->entries[i], json_array_get(all, i)))
            code = invalid_bundle(path, "its list of archives has an invalid entry", err);
        for (size_t k = 0; k < i && !code; k++)
            if (strcmp(b->entries[k].name, b->entries[i].name) == 0 ||
                strcmp(b->entries[k].file, b->entries[i].file) == 0)
                code = invalid_bundle(path, "its list has a duplicate archive", err);
    }
    json_decref(root);
    free(text);
    if (a) archive_read_free(a);
    if (fd >= 0) close(fd);
    if (code) bundle_free(b);
    return code;
}

static int copy_out(struct archive *a, const char *path, struct file_atomic *f, const char *to,
                    const struct bundle_entry *e, const atomic_int *cancel, struct error *err)
{
    char *piece = xmalloc(PIECE_BYTES);
    int code = 0;
    int64_t done = 0;
    while (!code) {
        la_ssize_t n = archive_read_data(a, piece, PIECE_BYTES);
        if (n == 0) break;
        if (n < 0) code = archive_failed(a, path, EXIT_INTEGRITY, err);
        else code = file_write_all(f->fd, piece, (size_t)n, to, err);
        if (!code) code = check_cancel(cancel, err);
        done += n > 0 ? n : 0;
    }
    if (!code && done != e->size) code = invalid_bundle(path, "is truncated", err);
    free(piece);
    return code;
}

int bundle_extract(const char *path, const struct bundle_entry *e, const char *to, const atomic_int *cancel,
                   struct error *err)
{
    int fd = -1, status = ARCHIVE_OK;
    struct file_atomic f;
    struct archive_entry *entry = NULL;
    struct archive *a = open_bundle(path, &fd);
    if (!a) return invalid_bundle(path, "is not a bundle of meopt", err);
    bool found = false;
    while (!found && (status = archive_read_next_header(a, &entry)) == ARCHIVE_OK) {
        const char *name = archive_entry_pathname(entry);
        found = name && strcmp(name, e->file) == 0 && archive_entry_filetype(entry) == AE_IFREG;
    }
    int code = found && archive_entry_size(entry) == e->size ? 0
               : status != ARCHIVE_OK && status != ARCHIVE_EOF
                   ? archive_failed(a, path, EXIT_INTEGRITY, err)
                   : invalid_bundle(path, "lacks an archive of its list, or the size differs", err);
    if (!code && (code = file_atomic_begin(&f, to, err)) == 0) {
        code = copy_out(a, path, &f, to, e, cancel, err);
        if (!code) code = file_atomic_commit(&f, err);
        else file_atomic_abort(&f);
    }
    archive_read_free(a);
    close(fd);
    return code;
}
