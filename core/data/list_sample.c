/* Checksums of the content of some images, or of token files: see list.h. */
#include "core/base/crc32c.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/retry.h"
#include "core/data/list.h"
#include "core/data/token_loader.h"
#include "core/data/unpacked.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Continues a checksum with up to `bytes` from `offset`. Returns false if they cannot be read. */
static bool add_range(uint32_t *crc, int fd, int64_t offset, size_t bytes, char *buffer)
{
    size_t used = 0;
    ssize_t n = 0;
    for (; used < bytes; used += (size_t)n)
        if ((n = retry_read(fd, buffer + used, bytes - used, offset + (int64_t)used)) <= 0) break;
    if (n >= 0) *crc = crc32c(*crc, buffer, used);
    return n >= 0;
}

/* Returns the checksum of `count` windows that are evenly spread over a file, or over its part of an
 * archive; of its beginning if count is 1. 0: cannot be read. */
static uint32_t sample_crc(const char *path, const struct image_place *place, int64_t count, int64_t window)
{
    int64_t bytes = place->bytes < window ? place->bytes : window, last = place->bytes - bytes;
    char *buffer = xcalloc((size_t)bytes + 1, 1);
    uint32_t crc = 0;
    int fd = -1;
    bool read = !unpacked_open(path, &fd, NULL);
    for (int64_t i = 0; i < count && read; i++)
        read = add_range(&crc, fd, place->offset + (count > 1 ? last * i / (count - 1) : 0), (size_t)bytes,
                         buffer);
    if (fd >= 0) close(fd);
    free(buffer);
    return read ? crc : 0;
}

int64_t image_sample_at(const struct image_list *list, int64_t index)
{
    return list->tokens || list->count <= IMAGE_SAMPLES ? index
                                                        : (list->count - 1) * index / (IMAGE_SAMPLES - 1);
}

/* Sets how much of a token file is read: of the tokens IMAGE_SAMPLES windows, of its other parts
 * (token_list_part) all, or as many windows as are allowed. */
static void token_windows(const char *name, int64_t tokens, int64_t files, int64_t *count, int64_t *window)
{
    int64_t bytes = image_place(name).bytes;
    *window = SAMPLE_BYTES;
    if (token_list_part(name)) {
        *count = (bytes + SAMPLE_BYTES - 1) / SAMPLE_BYTES;
        if (*count > PART_WINDOWS) *count = PART_WINDOWS;
    } else {
        while (*window > 4096 && *window * files > IMAGE_SAMPLES * (int64_t)SAMPLE_BYTES) *window /= 2;
        *count = tokens ? (IMAGE_SAMPLES * bytes + tokens - 1) / tokens : 0;
        if (*count > (bytes + *window - 1) / *window) *count = (bytes + *window - 1) / *window;
    }
    if (*count < 1) *count = 1;
}

struct image_sample *image_list_sample(const struct image_list *list, const char *root, int64_t *samples)
{
    int64_t n = list->tokens || list->count < IMAGE_SAMPLES ? list->count : IMAGE_SAMPLES, tokens = 0,
            files = 0;
    struct image_sample *all = xcalloc((size_t)n + 1, sizeof *all);
    struct stat st;
    bool single = list->tokens && stat(root, &st) == 0 && S_ISREG(st.st_mode);
    char *directory = single ? path_dirname(root) : xstrdup(root);
    for (int64_t i = 0; i < list->count && list->tokens; i++)
        if (!token_list_part(list->names[i])) tokens += image_place(list->names[i]).bytes, files++;
    for (int64_t i = 0; i < n; i++) {
        int64_t image = image_sample_at(list, i), count = 1, window = SAMPLE_BYTES;
        const char *name = list->names[image];
        struct image_place place = image_place(name);
        size_t length = place.archive_length ? (size_t)place.archive_length : strlen(name);
        char *path = xasprintf("%s/%.*s", directory, (int)length, name);
        if (list->tokens) token_windows(name, tokens, files, &count, &window);
        all[i] = (struct image_sample){image, sample_crc(path, &place, count, window)};
        free(path);
    }
    free(directory);
    *samples = n;
    return all;
}
