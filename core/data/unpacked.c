/* Decompressed archives: see unpacked.h. */
#include "core/data/unpacked.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/log.h"
#include "core/base/platform.h"
#include "core/base/progress.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { ARCHIVES = 8, BLOCK = 256 << 10, IDENTITY_NUMBERS = 5 };

/* The environment variable by which a process names its decompressed archives to those that it starts: FD and
 * the numbers of each, separated by spaces. */
static const char VARIABLE[] = "MEOPT_UNPACKED";

/* Device, inode, size and time of the compressed file. */
struct identity {
    long long numbers[IDENTITY_NUMBERS];
};
static struct {
    struct identity of;
    int fd;
} archives[ARCHIVES];
static int archive_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

bool unpacked_name(const char *path)
{
    size_t n = strlen(path);
    return n > 3 && (strcmp(path + n - 3, ".gz") == 0 || (n > 4 && strcmp(path + n - 4, ".tgz") == 0));
}

static struct identity identity_of(const struct stat *st)
{
    return (struct identity){{(long long)st->st_dev, (long long)st->st_ino, (long long)st->st_size,
                              (long long)st->st_mtim.tv_sec, (long long)st->st_mtim.tv_nsec}};
}

static bool same(const struct identity *a, const struct identity *b)
{
    return memcmp(a->numbers, b->numbers, sizeof a->numbers) == 0;
}

static int keep(const struct identity *of, int fd)
{
    archives[archive_count].of = *of;
    archives[archive_count++].fd = fd;
    return fd;
}

/* Returns the archive that the process which started this one has decompressed; -1: none. */
static int inherited(const struct identity *of)
{
    const char *at = getenv(VARIABLE);
    struct identity found;
    long long fd;
    struct stat st;
    int length;
    long long *n = found.numbers;
    for (; at &&
           sscanf(at, "%lld %lld %lld %lld %lld %lld %n", &fd, n, n + 1, n + 2, n + 3, n + 4, &length) == 6;
         at += length) {
        if (!same(&found, of) || fstat((int)fd, &st) != 0 || !S_ISREG(st.st_mode)) continue;
        fcntl((int)fd, F_SETFD, FD_CLOEXEC);
        return (int)fd;
    }
    return -1;
}

static int damaged(const char *why, struct error *err)
{
    errno = 0;
    return error_set(err, EXIT_INTEGRITY, "download it again", "the gzip data is damaged: %s", why);
}

/* Copies the content of a gzip file to `to`. */
static int decompress(gzFile in, int to, struct error *err)
{
    uint8_t *block = xmalloc(BLOCK);
    size_t bytes = 0;
    int code = 0, n, z;
    while (!code && (n = gzread(in, block, BLOCK)) > 0) {
        progress_mark();
        bytes += (size_t)n;
        if (gzdirect(in)) code = damaged("it has no header of gzip", err);
        else if (bytes > UNPACKED_BYTES)
            code = error_set(err, EXIT_FAILED, "unpack it with tar -xf",
                             "has more than %zu MiB, the limit of an archive that is read in place",
                             UNPACKED_BYTES >> 20);
        else if (file_write_all(to, block, (size_t)n, "memory", NULL))
            code = error_errno(err, EXIT_HOST_MEMORY, "unpack it with tar -xf",
                               "cannot decompress it to memory after %zu MiB", bytes >> 20);
    }
    free(block);
    const char *why = gzerror(in, &z); /* a truncated file is only an error at its end */
    return !code && z != Z_OK && z != Z_STREAM_END ? damaged(why, err) : code;
}

static int unpack(int fd, int *unpacked, struct error *err)
{
    gzFile in = gzdopen(fd, "rb");
    *unpacked = in ? memory_file("meopt-archive") : -1;
    if (*unpacked < 0) {
        int code =
            error_errno(err, EXIT_HOST_MEMORY, "unpack it with tar -xf", "cannot decompress it to memory");
        if (in) gzclose(in);
        else close(fd);
        return code;
    }
    int code = decompress(in, *unpacked, err), reason = errno;
    gzclose(in);
    if (code) close(*unpacked);
    errno = reason;
    return code;
}

/* Finds or decompresses an archive, which is open as `fd`; closes fd. */
static int find(const char *path, int fd, const struct identity *of, int *found, struct error *err)
{
    *found = -1;
    for (int i = 0; i < archive_count && *found < 0; i++)
        if (same(&archives[i].of, of)) *found = archives[i].fd;
    bool full = archive_count == ARCHIVES;
    if (*found < 0 && !full && (*found = inherited(of)) >= 0) keep(of, *found);
    if (*found >= 0 || full) close(fd);
    if (*found >= 0) return 0;
    if (full) return error_set(err, EXIT_FAILED, NULL, "is the %dth compressed archive", ARCHIVES + 1);
    int code = unpack(fd, found, err);
    if (code) return code;
    keep(of, *found);
    log_debug("%s: decompressed to memory", path);
    return 0;
}

int unpacked_open(const char *path, int *fd, struct error *err)
{
    struct stat st;
    int file, found, code = file_open(path, &file, &st, err);
    if (code || !unpacked_name(path)) return *fd = file, code;
    struct identity of = identity_of(&st);
    pthread_mutex_lock(&lock);
    code = find(path, file, &of, &found, err);
    if (!code && (*fd = fcntl(found, F_DUPFD_CLOEXEC, 0)) < 0)
        code = error_errno(err, EXIT_FAILED, NULL, "cannot open the decompressed archive");
    int reason = errno;
    pthread_mutex_unlock(&lock);
    if (code) error_at(err, path, 0, 0);
    errno = reason;
    return code;
}

void unpacked_inherit(void)
{
    char text[ARCHIVES * 160];
    size_t used = 0;
    for (int i = 0; i < archive_count; i++) {
        const long long *n = archives[i].of.numbers;
        fcntl(archives[i].fd, F_SETFD, 0);
        used += (size_t)snprintf(text + used, sizeof text - used, "%d %lld %lld %lld %lld %lld ",
                                 archives[i].fd, n[0], n[1], n[2], n[3], n[4]);
    }
    if (used) setenv(VARIABLE, text, 1);
}
