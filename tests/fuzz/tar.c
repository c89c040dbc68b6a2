/* Tar archives from outside: list the members, read each. */
#include "core/base/file.h"
#include "core/data/tar.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void take(void *context, const char *name, int64_t offset, int64_t bytes)
{
    char *data;
    struct error err;
    if (tar_read(context, offset, bytes, &data, &err)) abort(); /* it lies within the archive */
    (void)name;
    free(data);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    char path[64];
    struct error err;
    int fd = memfd_create("tar", MFD_CLOEXEC);
    if (fd < 0) return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (file_write_all(fd, bytes, size, path, &err) == 0) tar_list(path, take, path, &err);
    close(fd);
    return 0;
}
