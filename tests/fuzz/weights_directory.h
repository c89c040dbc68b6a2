/* A directory in memory where there is such a place, removed at the end, and files in it. */
#ifndef MEOPT_FUZZ_WEIGHTS_DIRECTORY_H
#define MEOPT_FUZZ_WEIGHTS_DIRECTORY_H

#include "core/base/file.h"
#include "tests/fuzz/weights_any.h"

#include <fcntl.h>

static char fuzz_directory[64];

static void remove_directory(void) { file_remove_tree(fuzz_directory, NULL); }

/* 1 when it was made by this call. */
static int make_directory(void)
{
    if (fuzz_directory[0]) return 0;
    snprintf(fuzz_directory, sizeof fuzz_directory, "%s/meopt-fuzz-XXXXXX",
             access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    if (!mkdtemp(fuzz_directory)) abort();
    atexit(remove_directory);
    return 1;
}

static void put_file(const char *name, const uint8_t *data, size_t bytes)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", fuzz_directory, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes) abort();
    close(fd);
}

#endif
