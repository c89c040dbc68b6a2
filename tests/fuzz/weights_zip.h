/* Put a pickle into a zip as torch.save makes it, or as torch.jit.save does. */
#ifndef MEOPT_FUZZ_WEIGHTS_ZIP_H
#define MEOPT_FUZZ_WEIGHTS_ZIP_H

#include "tests/fuzz/weights_any.h"

#include <stdbool.h>
#include <string.h>

static uint8_t *put(uint8_t *p, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++) *p++ = (uint8_t)(i < 8 ? v >> 8 * i : 0);
    return p;
}

static uint8_t *put_header(uint8_t *p, uint32_t signature, const char *name, size_t bytes, size_t at)
{
    bool central = signature == 0x02014b50;
    p = put(p, signature, 4);
    p = put(p, 20, central ? 4 : 2); /* versions */
    p = put(p, 0, 2 + 2 + 4 + 4);    /* flags, method, time, no checksum */
    p = put(put(p, bytes, 4), bytes, 4);
    p = put(put(p, strlen(name), 2), 0, 2);
    if (central) p = put(put(p, 0, 2 + 2 + 2 + 4), at, 4);
    memcpy(p, name, strlen(name));
    return p + strlen(name);
}

static void open_pickle(const uint8_t *data, size_t bytes, bool script)
{
    static const char *const names[] = {"a/data.pkl", "a/data/0", "a/data/1", "a/constants.pkl"};
    const size_t sizes[] = {bytes, 16, 64, 0};
    uint8_t *file = calloc(1, bytes + 1024), *p = file;
    size_t at[4];
    int count = script ? 4 : 3;
    for (int i = 0; i < count; i++) {
        at[i] = (size_t)(p - file);
        p = put_header(p, 0x04034b50, names[i], sizes[i], 0);
        if (i == 0 && bytes) memcpy(p, data, bytes);
        p += sizes[i];
    }
    size_t directory = (size_t)(p - file);
    for (int i = 0; i < count; i++) p = put_header(p, 0x02014b50, names[i], sizes[i], at[i]);
    size_t directory_bytes = (size_t)(p - file) - directory;
    p = put(put(put(p, 0x06054b50, 4), 0, 4), (uint64_t)count, 2);
    p = put(put(put(put(p, (uint64_t)count, 2), directory_bytes, 4), directory, 4), 0, 2);
    open_bytes(file, (size_t)(p - file));
    free(file);
}

#endif
