/* Failing calls on paths, defined under the names of the C library: see shim.h. */
#include "next.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- open ---- */

REAL(int, openat, (int at, const char *path, int flags, mode_t mode), (at, path, flags, mode))
REAL(int, mkostemp, (char *name, int flags), (name, flags))

static int open_file(int at, const char *path, int flags, mode_t mode)
{
    char file[PATH_BYTES];
    if (!path_met(at, path, file)) return real_openat(at, path, flags, mode);
    MAY_FAIL(CALL_OPEN, file, -1);
    if (!logging || !(flags & (O_CREAT | O_TRUNC))) return real_openat(at, path, flags, mode);
    log_begin();
    struct statx s; // of its family the one that is not taken over here
    bool there = statx(at, path, 0, STATX_INO, &s) == 0;
    int fd = real_openat(at, path, flags, mode);
    struct record r = {.change = there ? LOG_TRUNCATE : LOG_CREATE, .inode = fd < 0 ? 0 : log_inode(fd)};
    if (fd < 0 || (there && !(flags & O_TRUNC))) log_nothing();
    else log_end(&r, file, NULL, NULL);
    return fd;
}

static mode_t mode_of(int flags, va_list list)
{
    return flags & O_CREAT ? (mode_t)va_arg(list, unsigned) : 0;
}

int open(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    mode_t mode = mode_of(flags, list);
    va_end(list);
    return open_file(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    mode_t mode = mode_of(flags, list);
    va_end(list);
    return open_file(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}

int openat(int at, const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    mode_t mode = mode_of(flags, list);
    va_end(list);
    return open_file(at, path, flags, mode);
}

int mkostemp(char *name, int flags)
{
    char file[PATH_BYTES];
    if (!path_met(AT_FDCWD, name, file)) return real_mkostemp(name, flags);
    MAY_FAIL(CALL_OPEN, file, -1);
    if (!logging) return real_mkostemp(name, flags);
    log_begin();
    int fd = real_mkostemp(name, flags);
    struct record r = {.change = LOG_CREATE, .inode = fd < 0 ? 0 : log_inode(fd)};
    if (fd < 0 || !path_met(AT_FDCWD, name, file)) log_nothing();
    else log_end(&r, file, NULL, NULL);
    return fd;
}

/* ---- streams: made of cookies, so that what stdio reads and writes within the C library passes through the
 * calls below ---- */

REAL(FILE *, fopen, (const char *path, const char *mode), (path, mode))
REAL(FILE *, fdopen, (int fd, const char *mode), (fd, mode))

static ssize_t stream_read(void *cookie, char *to, size_t bytes)
{
    ssize_t n;
    do n = read((int)(intptr_t)cookie, to, bytes);
    while (n < 0 && errno == EINTR); // not to be asked for again by stdio
    return n;
}
static ssize_t stream_write(void *cookie, const char *from, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) { // stdio continues after a short one
        ssize_t n = write((int)(intptr_t)cookie, from + done, bytes - done);
        if (n < 0 && errno != EINTR) break;
        done += n > 0 ? (size_t)n : 0;
    }
    return (ssize_t)done; // less is an error, as fopencookie wants it
}
static int stream_close(void *cookie) { return close((int)(intptr_t)cookie); }
static int stream_seek(void *cookie, off64_t *at, int whence)
{
    off64_t to = lseek64((int)(intptr_t)cookie, *at, whence);
    if (to >= 0) *at = to;
    return to < 0 ? -1 : 0;
}

FILE *fdopen(int fd, const char *mode)
{
    char file[PATH_BYTES];
    if (!descriptor_met(fd, file)) return real_fdopen(fd, mode);
    return fopencookie((void *)(intptr_t)fd, mode,
                       (cookie_io_functions_t){stream_read, stream_write, stream_seek, stream_close});
}

FILE *fopen(const char *path, const char *mode)
{
    char file[PATH_BYTES];
    if (!path_met(AT_FDCWD, path, file)) return real_fopen(path, mode);
    bool plus = false;
    for (const char *m = mode; *m; m++) plus = plus || *m == '+';
    int flags = mode[0] == 'r' ? 0 : mode[0] == 'w' ? O_CREAT | O_TRUNC : O_CREAT | O_APPEND;
    int fd = open_file(AT_FDCWD, path,
                       flags |
                           (plus             ? O_RDWR
                            : mode[0] == 'r' ? O_RDONLY
                                             : O_WRONLY) |
                           O_CLOEXEC,
                       0666);
    return fd < 0 ? NULL : fdopen(fd, mode);
}
FILE *fopen64(const char *path, const char *mode) { return fopen(path, mode); }

/* ---- directories ---- */

REAL(DIR *, opendir, (const char *path), (path))
REAL(DIR *, fdopendir, (int fd), (fd))
REAL(struct dirent *, readdir, (DIR * d), (d))

DIR *opendir(const char *path)
{
    char file[PATH_BYTES];
    if (path_met(AT_FDCWD, path, file)) MAY_FAIL(CALL_OPENDIR, file, NULL);
    return real_opendir(path);
}

DIR *fdopendir(int fd)
{
    char file[PATH_BYTES];
    if (descriptor_met(fd, file)) MAY_FAIL(CALL_OPENDIR, file, NULL);
    return real_fdopendir(fd);
}

struct dirent *readdir(DIR *d)
{
    char file[PATH_BYTES];
    if (descriptor_met(dirfd(d), file)) MAY_FAIL(CALL_READDIR, file, NULL);
    return real_readdir(d);
}

REAL(int, mkdirat, (int at, const char *path, mode_t mode), (at, path, mode))
int mkdirat(int at, const char *path, mode_t mode)
{
    char file[PATH_BYTES];
    if (!path_met(at, path, file)) return real_mkdirat(at, path, mode);
    MAY_FAIL(CALL_MKDIR, file, -1);
    if (!logging) return real_mkdirat(at, path, mode);
    log_begin();
    int code = real_mkdirat(at, path, mode);
    struct statx s = {0};
    if (code == 0) code = statx(at, path, 0, STATX_INO, &s);
    if (code == 0) log_end(&(struct record){.change = LOG_MKDIR, .inode = s.stx_ino}, file, NULL, NULL);
    else log_nothing();
    return code;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

/* ---- names ---- */

REAL(int, renameat2, (int from_at, const char *from, int to_at, const char *to, unsigned flags),
     (from_at, from, to_at, to, flags))
int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags)
{
    char file[PATH_BYTES], other[PATH_BYTES];
    bool met = path_met(from_at, from, file);
    if (!path_met(to_at, to, other) && !met) return real_renameat2(from_at, from, to_at, to, flags);
    if (late) { /* done, and its reply lost: the repetition says what it finds */
        if (real_renameat2(from_at, from, to_at, to, flags)) return -1;
        errno = flags & RENAME_NOREPLACE ? EEXIST : ENOENT;
        return -1;
    }
    MAY_FAIL(CALL_RENAME, other, -1);
    if (!logging) return real_renameat2(from_at, from, to_at, to, flags);
    log_begin();
    int code = real_renameat2(from_at, from, to_at, to, flags);
    if (code == 0) log_end(&(struct record){.change = LOG_RENAME, .offset = flags}, file, other, NULL);
    else log_nothing();
    return code;
}
int renameat(int from_at, const char *from, int to_at, const char *to)
{
    return renameat2(from_at, from, to_at, to, 0);
}
int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

REAL(int, symlinkat, (const char *target, int at, const char *path), (target, at, path))
int symlinkat(const char *target, int at, const char *path)
{
    if (!linkless) return real_symlinkat(target, at, path);
    errno = EPERM;
    return -1;
}

REAL(int, unlinkat, (int at, const char *path, int flags), (at, path, flags))
int unlinkat(int at, const char *path, int flags)
{
    char file[PATH_BYTES];
    if (!path_met(at, path, file)) return real_unlinkat(at, path, flags);
    MAY_FAIL(CALL_UNLINK, file, -1);
    if (!logging) return real_unlinkat(at, path, flags);
    log_begin();
    int code = real_unlinkat(at, path, flags);
    if (code == 0) log_end(&(struct record){.change = LOG_UNLINK}, file, NULL, NULL);
    else log_nothing();
    return code;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

/* ---- what a file is ---- */

REAL(int, fstatat, (int at, const char *path, struct stat *s, int flags), (at, path, s, flags))
int fstatat(int at, const char *path, struct stat *s, int flags)
{
    char file[PATH_BYTES];
    bool met = *path ? path_met(at, path, file) : descriptor_met(at, file);
    if (met) MAY_FAIL(CALL_STAT, file, -1);
    return real_fstatat(at, path, s, flags);
}
int stat(const char *path, struct stat *s) { return fstatat(AT_FDCWD, path, s, 0); }
int lstat(const char *path, struct stat *s) { return fstatat(AT_FDCWD, path, s, AT_SYMLINK_NOFOLLOW); }
int fstat(int fd, struct stat *s) { return fstatat(fd, "", s, AT_EMPTY_PATH); }
REAL(int, faccessat, (int at, const char *path, int mode, int flags), (at, path, mode, flags))
int faccessat(int at, const char *path, int mode, int flags)
{
    char file[PATH_BYTES];
    if (path_met(at, path, file)) MAY_FAIL(CALL_STAT, file, -1);
    return real_faccessat(at, path, mode, flags);
}
int access(const char *path, int mode) { return faccessat(AT_FDCWD, path, mode, 0); }
int fstatat64(int at, const char *path, struct stat64 *s, int flags)
{
    return fstatat(at, path, (struct stat *)s, flags);
}
int stat64(const char *path, struct stat64 *s) { return stat(path, (struct stat *)s); }
int lstat64(const char *path, struct stat64 *s) { return lstat(path, (struct stat *)s); }
int fstat64(int fd, struct stat64 *s) { return fstat(fd, (struct stat *)s); }
