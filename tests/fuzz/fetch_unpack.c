/* libFuzzer: any bytes as an archive, listed without writing files. Returned paths are clean, and sizes
 * are respected. */
#include "fetch/archive.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int64_t file_size, file_bytes;

static void check_path(const char *path)
{
    if (!*path || *path == '/' || strlen(path) > 4096) abort();
    for (const char *p = path; *p;) {
        size_t n = strcspn(p, "/");
        if (n == 0 || n > 255 || (n == 1 && *p == '.') || (n == 2 && p[0] == '.' && p[1] == '.')) abort();
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)p[i] < ' ' || p[i] == 0x7f) abort();
        p += n + (p[n] == '/');
    }
}

static int on_directory(void *context, const char *path, struct error *err)
{
    (void)context;
    (void)err;
    check_path(path);
    return 0;
}

static int on_file(void *context, const char *path, int64_t bytes, int64_t mtime, struct error *err)
{
    (void)context;
    (void)mtime;
    (void)err;
    check_path(path);
    if (bytes < 0) abort();
    file_size = bytes;
    file_bytes = 0;
    return 0;
}

static int on_data(void *context, const void *data, size_t bytes, int64_t offset, struct error *err)
{
    (void)context;
    (void)err;
    volatile uint8_t last = ((const uint8_t *)data)[bytes - 1];
    (void)last;
    if (offset < 0 || offset + (int64_t)bytes > file_size) abort();
    file_bytes += (int64_t)bytes;
    return 0;
}

static int on_end(void *context, struct error *err)
{
    (void)context;
    (void)err;
    return 0;
}

static int64_t there(void *context, int64_t bytes)
{
    (void)bytes;
    return *(int64_t *)context;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int fd = memfd_create("fuzz", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    int64_t bytes = (int64_t)size;
    struct archive_input input = {fd, "", there, &bytes};
    struct archive_limits limits = {64 << 20, 10000, 50, 1 << 20};
    struct archive_sink sink = {NULL, on_directory, on_file, on_data, on_end, NULL};
    struct archive_counts counts;
    struct error err = {0};
    int code = archive_walk(&input, &limits, &sink, &counts, &err);
    if ((code != 0) != (err.what[0] != 0) || (code == 0 && counts.out > limits.bytes)) abort();
    close(fd);
    return 0;
}
