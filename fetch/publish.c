/* Publishes an unpacked tree: see publish.h. */
#include "fetch/publish.h"

#include "core/base/crc32c.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/retry.h"
#include "core/base/platform.h"
#include "fetch/unpack.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE_BYTES = 8192 };

char *publish_top(const char *staging, const char *wanted, struct error *err)
{
    DIR *dir = opendir(staging);
    char *top = NULL, shown[256];
    int others = 0, problem = dir ? 0 : errno;
    while (!problem) {
        struct stat st;
        errno = 0;
        struct dirent *e = readdir(dir);
        if (!e) {
            problem = errno;
            break;
        }
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
            strcmp(e->d_name, UNPACK_MANIFEST) == 0)
            continue;
        if (fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) problem = errno;
        else if (S_ISDIR(st.st_mode) && !top && (!wanted || strcmp(wanted, e->d_name) == 0))
            top = xstrdup(e->d_name);
        else {
            name_printable(shown, sizeof shown, e->d_name);
            others++;
        }
    }
    if (dir) closedir(dir);
    if (top && others == 0 && !problem) return top;
    free(top);
    errno = problem;
    if (problem) error_errno(err, EXIT_FAILED, "run the same command again", "cannot read %s", staging);
    else if (wanted && others)
        error_set(err, EXIT_INTEGRITY, "check that it is the right archive",
                  "the archive holds '%s' at its top, expected the directory %s alone", shown, wanted);
    else if (others)
        error_set(err, EXIT_INTEGRITY, "pack one directory",
                  "the archive has %d entries at its top level (one is '%s'), expected one directory",
                  others + (top != NULL), shown);
    else error_set(err, EXIT_INTEGRITY, NULL, "the archive holds no files");
    return NULL;
}

/* Writes staging/TOP/.meopt-complete from staging/.meopt-files, with paths relative to TOP. In place: a run
 * that continues after a kill writes it anew, and TOP gets no other file. */
static int write_marker(const char *staging, const char *top, const struct published *what, struct error *err)
{
    char *list_path = path_join(staging, UNPACK_MANIFEST), *tree = path_join(staging, top),
         *marker = path_join(tree, PUBLISH_MARKER);
    char *line = xmalloc(LINE_BYTES);
    size_t top_bytes = strlen(top);
    FILE *list = fopen(list_path, "re"), *out = NULL;
    int fd = -1, code = 0;
    if (!list) code = error_errno(err, EXIT_FAILED, NULL, "cannot read %s", list_path);
    else if ((fd = open(marker, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666)) < 0 ||
             !(out = fdopen(fd, "w")))
        code = error_errno(err, EXIT_FAILED, NULL, "cannot write %s", marker);
    if (fd >= 0 && !out) close(fd);
    if (!code) {
        errno = 0;
        json_t *head =
            json_pack("{s:i, s:s, s:s, s:s, s:I, s:I, s:I}", "format", 1, "source", what->source, "archive",
                      what->archive, "sha256", what->sha256, "size_bytes", (json_int_t)what->size, "files",
                      (json_int_t)what->files, "unpacked_bytes", (json_int_t)what->unpacked);
        char *text = head ? json_dumps(head, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
        if (text) fprintf(out, "%s\n", text);
        else if (errno == ENOMEM)
            code = error_set(err, EXIT_HOST_MEMORY, "close other programs", "out of memory for %s", marker);
        else code = error_set(err, EXIT_FAILED, NULL, "the name of the archive is not UTF-8");
        free(text);
        json_decref(head);
    }
    while (!code && fgets(line, LINE_BYTES, list)) {
        int at = 0;
        if (sscanf(line, "%*8x %*d %n", &at) != 0 || at == 0 || strncmp(line + at, top, top_bytes) != 0 ||
            line[at + (int)top_bytes] != '/')
            code = error_set(err, EXIT_FAILED, NULL, "%s is damaged", list_path);
        else fprintf(out, "%.*s%s", at, line, line + at + top_bytes + 1);
    }
    if (!code && ferror(list)) /* otherwise the marker would be truncated */
        code = error_errno(err, EXIT_FAILED, "run the same command again", "cannot read %s", list_path);
    if (out) {
        bool failed = fflush(out) != 0 || ferror(out) || retry_sync(fsync, fd) != 0;
        if ((fclose(out) != 0 || failed) && !code)
            code = error_errno(err, EXIT_FAILED, "free some space, then run the same command again",
                               "cannot write %s", marker);
    }
    if (!code) code = file_sync_dir(tree, err);
    if (list) fclose(list);
    free(line);
    free(marker);
    free(tree);
    free(list_path);
    return code;
}

int publish(const char *staging, const char *dest, const char *top, const struct published *what,
            struct error *err)
{
    char *from = path_join(staging, top), *to = path_join(dest, top);
    int fd = open(staging, O_RDONLY | O_DIRECTORY | O_CLOEXEC), code = 0;
    /* sync the data first: the marker on disk implies complete files */
    if (fd < 0 || retry_sync(syncfs, fd) != 0)
        code = error_errno(err, EXIT_FAILED, "free some space, then run the same command again",
                           "cannot sync %s", staging);
    if (!code) code = write_marker(staging, top, what, err);
    if (!code && rename_new(from, to) != 0) {
        if (errno == EINVAL ||
            errno ==
                ENOSYS) { /* no RENAME_NOREPLACE on this file system: an empty directory would be replaced */
            struct stat st;
            if (lstat(to, &st) == 0) errno = EEXIST;
            else if (rename(from, to) == 0) errno = 0;
        }
        if (errno)
            code = error_errno(err, EXIT_FAILED, "move it away, then run the same command again",
                               "cannot rename to %s", to);
    }
    if (!code) code = file_sync_dir(dest, err);
    if (fd >= 0) close(fd);
    free(from);
    free(to);
    return code;
}

static FILE *open_marker(const char *tree, struct published *what)
{
    char *path = path_join(tree, PUBLISH_MARKER), *line = xmalloc(LINE_BYTES);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;
    json_t *head = f && fgets(line, LINE_BYTES, f) ? json_loads(line, 0, NULL) : NULL;
    const char *source, *archive, *sha256;
    json_int_t size, files, unpacked;
    int format;
    bool ok = head &&
              json_unpack(head, "{s:i, s:s, s:s, s:s, s:I, s:I, s:I}", "format", &format, "source", &source,
                          "archive", &archive, "sha256", &sha256, "size_bytes", &size, "files", &files,
                          "unpacked_bytes", &unpacked) == 0 &&
              format == 1 && strlen(sha256) == 64;
    if (ok) {
        *what = (struct published){.size = size, .files = files, .unpacked = unpacked};
        snprintf(what->source, sizeof what->source, "%s", source);
        snprintf(what->archive, sizeof what->archive, "%s", archive);
        memcpy(what->sha256, sha256, 65);
    } else if (f) {
        fclose(f);
        f = NULL;
    }
    json_decref(head);
    free(line);
    free(path);
    return f;
}

bool published_read(const char *tree, struct published *what)
{
    FILE *f = open_marker(tree, what);
    if (f) fclose(f);
    return f != NULL;
}

static const char *compare_stat(const struct stat *st, int64_t size)
{
    return !S_ISREG(st->st_mode) ? _("is not a file")
           : st->st_size != size ? _("has a different size")
                                 : NULL;
}

/* Returns how the file differs from the list, or NULL. */
static const char *check_file(int tree, const char *path, uint32_t crc, int64_t size, uint8_t *buffer,
                              size_t capacity)
{
    int fd = openat(tree, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat st;
    if (fd < 0) return errno == ENOENT || errno == ENOTDIR ? _("is missing") : strerror(errno);
    const char *why = fstat(fd, &st) != 0 ? _("is not a file") : compare_stat(&st, size);
    uint32_t sum = 0;
    for (ssize_t n; !why && (n = retry_read(fd, buffer, capacity, -1)) != 0;) {
        if (n < 0) why = strerror(errno);
        else sum = crc32c(sum, buffer, (size_t)n);
    }
    close(fd);
    return why ? why : sum != crc ? _("has changed") : NULL;
}

/* Returns whether a path of the list stays within the tree. */
static bool below_tree(const char *path)
{
    for (const char *p = path; *p; p += *p == '/') {
        size_t n = strcspn(p, "/");
        if (n == 0 || (n == 1 && *p == '.') || (n == 2 && memcmp(p, "..", 2) == 0)) return false;
        p += n;
    }
    return *path;
}

enum { BUFFER_BYTES = 1 << 20 };

/* Restores a file of the tree from the directory `from`, by rename. */
static int restore_file(int from, const char *tree, int to, const char *path, uint32_t crc, int64_t size,
                        uint8_t *buffer, struct error *err)
{
    const char *why = check_file(from, path, crc, size, buffer, BUFFER_BYTES);
    char shown[300], *whole = path_join(tree, path);
    char *slash = strrchr(whole, '/');
    name_printable(shown, sizeof shown, path);
    int code = why ? error_set(err, EXIT_INTEGRITY, "move the directory away and fetch it again",
                               "'%s' of the archive is not the file that was published: it %s", shown, why)
                   : 0;
    *slash = 0;
    if (!code) code = file_make_dirs(whole, err);
    if (!code && renameat(from, path, to, path) != 0)
        code = error_errno(err, EXIT_FAILED, "move it away, then run the same command again",
                           "cannot restore '%s'", shown);
    free(whole);
    return code;
}

/* Returns how existence and size of the file differ from the list, or NULL. */
static const char *check_size(int tree, const char *path, int64_t size)
{
    struct stat st;
    if (fstatat(tree, path, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT || errno == ENOTDIR ? _("is missing") : strerror(errno);
    return compare_stat(&st, size);
}

int published_check(const char *tree, const struct published_pass *pass, struct published_damage *damage,
                    struct error *err)
{
    struct published what;
    *damage = (struct published_damage){0};
    FILE *list = open_marker(tree, &what);
    if (!list)
        return error_set(err, EXIT_INTEGRITY, "fetch it again into another place",
                         "%s has no marker of a complete fetch", tree);
    int fd = open(tree, O_RDONLY | O_DIRECTORY | O_CLOEXEC), code = 0,
        from = pass->restore_from ? open(pass->restore_from, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    char *line = xmalloc(LINE_BYTES);
    uint8_t *buffer = xmalloc(BUFFER_BYTES);
    int64_t bytes = 0;
    while (!code && fgets(line, LINE_BYTES, list)) {
        unsigned crc;
        long long size;
        int at = 0;
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "%8x %lld %n", &crc, &size, &at) != 2 || at == 0 || !below_tree(line + at)) {
            code = error_set(err, EXIT_INTEGRITY, "fetch it again into another place",
                             "%s/%s is damaged at line %lld", tree, PUBLISH_MARKER,
                             (long long)damage->files + 2);
            break;
        }
        const char *why = pass->content ? check_file(fd, line + at, crc, size, buffer, BUFFER_BYTES)
                                        : check_size(fd, line + at, size);
        if (why && damage->wrong++ == 0) {
            damage->why = why;
            name_printable(damage->first, sizeof damage->first, line + at);
        }
        if (why && pass->restore_from) code = restore_file(from, tree, fd, line + at, crc, size, buffer, err);
        damage->files++;
        bytes += size;
        if (pass->progress) pass->progress(pass->context, damage->files, bytes);
        if (!code && pass->cancel && *pass->cancel)
            code = error_set(err, EXIT_SIGNAL + SIGINT, NULL, "verifying was stopped after %lld files",
                             (long long)damage->files);
    }
    if (!code && damage->files != what.files)
        code = error_set(err, EXIT_INTEGRITY, "move the directory away and fetch it again",
                         "%s: the list has %lld of %lld files", tree, (long long)damage->files,
                         (long long)what.files);
    if (!code && pass->restore_from && damage->wrong && retry_sync(syncfs, fd) != 0)
        code = error_errno(err, EXIT_FAILED, "run the same command again", "cannot sync %s", tree);
    free(buffer);
    free(line);
    fclose(list);
    if (fd >= 0) close(fd);
    if (from >= 0) close(from);
    return code;
}
