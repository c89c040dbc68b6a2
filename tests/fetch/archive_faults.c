/* For every k, the k-th read of an archive fails or is interrupted: this file defines pread in front of
 * the C library's. A failed read is not reported as a damaged archive. */
#include "core/base/crc32c.h"
#include "core/meopt.h"
#include "fetch/archive.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cmocka.h>

#define CORPUS MEOPT_SOURCE_DIR "/tests/fuzz/corpus/fetch_unpack/"

static int calls, fails, reason; /* the `fails`-th call; one at a time: a thread reads a tar's bytes */

ssize_t pread(int fd, void *to, size_t bytes, off_t at)
{
    if (++calls == fails) {
        errno = reason;
        return -1;
    }
    return syscall(SYS_pread64, fd, to, bytes, at);
}

static int64_t there(void *context, int64_t bytes)
{
    (void)bytes;
    return *(int64_t *)context;
}

static int take_name(void *context, const char *path, struct error *err)
{
    (void)err;
    *(uint32_t *)context = crc32c(*(uint32_t *)context, path, strlen(path));
    return 0;
}

static int take_file(void *context, const char *path, int64_t bytes, int64_t mtime, struct error *err)
{
    (void)bytes;
    (void)mtime;
    return take_name(context, path, err);
}

static int take_data(void *context, const void *data, size_t bytes, int64_t offset, struct error *err)
{
    (void)offset;
    (void)err;
    *(uint32_t *)context = crc32c(*(uint32_t *)context, data, bytes);
    return 0;
}

static int take_end(void *context, struct error *err)
{
    (void)context;
    (void)err;
    return 0;
}

/* *sum: of all names and bytes. */
static int walk(const char *path, int failing, int why, uint32_t *sum, struct error *err)
{
    int fd = open(path, O_RDONLY);
    int64_t bytes = lseek(fd, 0, SEEK_END);
    struct archive_input input = {fd, path, there, &bytes};
    struct archive_sink sink = {sum, take_name, take_file, take_data, take_end, NULL};
    if (fd < 0) fail_msg("no %s", path);
    *sum = 0;
    calls = 0;
    fails = failing;
    reason = why;
    memset(err, 0, sizeof *err);
    int code = archive_walk(&input, &archive_limits_default, &sink, NULL, err);
    close(fd);
    return code;
}

static void no_read_that_fails_is_a_damaged_archive(void **state)
{
    static const char *const archives[] = {CORPUS "ok_ustar.tar", CORPUS "ok_ustar.tar.gz",
                                           CORPUS "ok_plain.tar.zst", CORPUS "ok_stored.zip",
                                           CORPUS "ok_deflate.zip"};
    for (size_t i = 0; i < sizeof archives / sizeof *archives; i++) {
        struct error err;
        uint32_t want, got;
        int whole = walk(archives[i], 0, 0, &want, &err), reads = calls;
        if (whole) fail_msg("%s: %s", archives[i], err.what);
        assert_true(reads > 1);
        for (int k = 1; k <= reads; k++) {
            int code = walk(archives[i], k, EIO, &got, &err);
            if (code != EXIT_FAILED || !strstr(err.what, strerror(EIO)) || strcmp(err.file, archives[i]) != 0)
                fail_msg("%s, read %d: exit %d: %s", archives[i], k, code, err.what);
            code = walk(archives[i], k, EINTR, &got, &err);
            if (code || got != want)
                fail_msg("%s, read %d interrupted: exit %d: %s", archives[i], k, code, err.what);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_read_that_fails_is_a_damaged_archive)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
