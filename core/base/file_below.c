/* Files below a directory that others may have filled, such as a run: see file.h. */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef O_TMPFILE /* glibc 2.19 */
#define O_TMPFILE (020000000 | O_DIRECTORY)
#endif

enum { QUIET = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY };

/* Opens the directory `part` in `at` and closes `at`. A link fails with ELOOP. */
static int step_into(int at, const char *part, size_t bytes)
{
    char name[NAME_MAX + 1];
    struct stat st;
    int fd = -1;
    if (bytes > NAME_MAX) errno = ENAMETOOLONG;
    else if (bytes == 2 && memcmp(part, "..", 2) == 0) errno = EINVAL;
    else {
        memcpy(name, part, bytes);
        name[bytes] = 0;
        fd = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 && errno == ENOTDIR && fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            errno = S_ISLNK(st.st_mode) ? ELOOP : ENOTDIR;
    }
    int saved = errno;
    close(at);
    errno = saved;
    return fd;
}

int file_place_open(struct file_place *place, const char *directory, const char *name)
{
    const char *slash = directory ? strchr(name, '/') : NULL;
    *place = (struct file_place){.at = AT_FDCWD, .path = directory ? path_join(directory, name) : NULL};
    if (!place->path) place->path = xstrdup(name);
    place->name = place->path;
    if (!slash) return 0; /* the directory's own links are followed, the name's are not: O_NOFOLLOW */
    place->at = open(directory[0] ? directory : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (; place->at >= 0 && slash; slash = strchr(name, '/')) {
        if (slash > name) place->at = step_into(place->at, name, (size_t)(slash - name));
        name = slash + 1;
    }
    place->name = place->path + strlen(place->path) - strlen(name);
    if (place->at >= 0) return 0;
    int saved = errno;
    file_place_close(place);
    errno = saved;
    return -1;
}

void file_place_close(struct file_place *place)
{
    if (place->at >= 0) close(place->at);
    free(place->path);
    *place = (struct file_place){.at = -1};
}

int file_at(const char *directory, const char *name, int flags)
{
    struct file_place place;
    if (file_place_open(&place, directory, name)) return -1;
    int fd = openat(place.at, place.name, flags | QUIET, 0666), saved = errno;
    file_place_close(&place);
    errno = saved;
    return fd;
}

static bool is_link(const char *directory, const char *name)
{
    struct file_place place;
    struct stat st;
    if (file_place_open(&place, directory, name)) return errno == ELOOP;
    bool link = fstatat(place.at, place.name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode);
    file_place_close(&place);
    return link;
}

int file_below_error(const char *directory, const char *name, const char *doing, struct error *err)
{
    int reason = errno;
    bool link = (reason == ELOOP || reason == ENOTDIR) && is_link(directory, name);
    char *path = path_join(directory, name);
    int code = link ? error_set(err, EXIT_FAILED, "remove the link: meopt follows no links inside a run",
                                "is a symbolic link, or is below one")
               : reason == ENXIO
                   ? error_set(err, EXIT_FAILED, "remove it", "is not a regular file")
                   : (errno = reason, error_errno(err, EXIT_FAILED, "check the path", "cannot %s", doing));
    error_at(err, path, 0, 0);
    free(path);
    errno = link ? ELOOP : reason;
    return code;
}

int file_open_below(const char *directory, const char *name, int flags, int *fd, struct stat *status,
                    struct error *err)
{
    struct stat local;
    int code = 0, reason = 0;
    if (!status) status = &local;
    *fd = file_at(directory, name, flags);
    if (*fd < 0 || fstat(*fd, status) != 0) {
        code = file_below_error(directory, name, "open", err);
        reason = errno;
    } else if (!S_ISREG(status->st_mode)) {
        char *path = path_join(directory, name);
        code = error_set(err, EXIT_FAILED, "remove it",
                         S_ISDIR(status->st_mode) ? N_("is a directory, expected a file")
                                                  : N_("is not a regular file"));
        error_at(err, path, 0, 0);
        free(path);
    }
    if (code && *fd >= 0) close(*fd);
    if (code) *fd = -1;
    errno = reason;
    return code;
}

bool file_absent_below(const char *directory, const char *name)
{
    struct file_place place;
    struct stat st;
    bool absent = file_place_open(&place, directory, name) != 0 ||
                  fstatat(place.at, place.name, &st, AT_SYMLINK_NOFOLLOW) != 0;
    absent = absent && (errno == ENOENT || errno == ENOTDIR);
    file_place_close(&place);
    return absent;
}

DIR *file_list_below(const char *directory, const char *name)
{
    int fd = file_at(directory, name, O_RDONLY | O_DIRECTORY);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    int saved = errno;
    if (fd >= 0 && !dir) close(fd);
    errno = saved;
    return dir;
}

int file_unlink_below(const char *directory, const char *name, int flags)
{
    struct file_place place;
    if (file_place_open(&place, directory, name)) return -1;
    int failed = unlinkat(place.at, place.name, flags), saved = errno;
    file_place_close(&place);
    errno = saved;
    return failed;
}

int file_rename_at(int at, const char *from, const char *to)
{
    struct stat before, after;
    bool known = fstatat(at, from, &before, AT_SYMLINK_NOFOLLOW) == 0;
    if (renameat(at, from, at, to) == 0) return 0;
    int saved = errno;
    bool done = known && saved == ENOENT && fstatat(at, to, &after, AT_SYMLINK_NOFOLLOW) == 0 &&
                before.st_dev == after.st_dev && before.st_ino == after.st_ino;
    errno = saved;
    return done ? 0 : -1;
}

int file_nameless(const char *directory, int flags)
{
    int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return fd;
    char *path = xasprintf("%s/.meopt-XXXXXX", directory); /* some file systems do not have O_TMPFILE */
    fd = mkostemp(path, O_CLOEXEC | flags);
    int why = errno;
    if (fd >= 0) unlink(path);
    free(path);
    errno = why;
    return fd;
}
