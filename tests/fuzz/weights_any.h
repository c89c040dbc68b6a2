/* Hand bytes to weights_open as a file, and read everything that it finds: what opens must be readable, in
 * bounds. */
#ifndef MEOPT_FUZZ_WEIGHTS_ANY_H
#define MEOPT_FUZZ_WEIGHTS_ANY_H

#include "core/weights/weights.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { READ_MOST = 1 << 20 }; /* elements: an expanded view may be larger, which is allowed but slow */

static void read_all(const struct weights *w)
{
    for (int64_t i = 0; i < weights_count(w) && i < 64; i++) {
        const struct weights_tensor *t = weights_tensor(w, i);
        if (weights_find(w, t->name) != i) abort();
        if (t->count > READ_MOST) continue;
        void *dst = malloc((size_t)t->count * 8 + 1);
        weights_read(w, i, dst, t->dtype, NULL);
        weights_read(w, i, dst, DTYPE_BF16, NULL);
        free(dst);
    }
}

/* The file or directory of that path; `missing`: a file that it names may not be there. */
static inline void open_path(const char *path, int missing)
{
    struct error err = {0};
    struct weights *w;
    if (weights_open(&w, path, &err) == 0) {
        read_all(w);
        weights_close(w);
    } else if ((err.code != EXIT_INTEGRITY && !(missing && err.code == EXIT_FAILED)) || !err.what[0]) abort();
}

static inline void open_bytes(const uint8_t *data, size_t bytes)
{
    char path[64];
    int fd = memfd_create("weights", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    open_path(path, 0);
    close(fd);
}

#endif
