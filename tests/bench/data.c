/* Decodes, resizes and crops every JPEG named on the command line as the OpenAI-CLIP pipeline does, on one
 * thread, from memory; prints milliseconds per image, best of five passes. tests/bench/data.sh prints PIL's
 * rate for comparison. */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/data/data.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

int main(int count, char **files)
{
    enum { SIDE = 224 };
    char **bytes = xmalloc((size_t)count * sizeof *bytes);
    size_t *sizes = xmalloc((size_t)count * sizeof *sizes);
    uint8_t *out = xmalloc(SIDE * SIDE * 3);
    struct error err;
    double best = 1e30;
    for (int i = 1; i < count; i++)
        if (file_read(files[i], 1 << 28, &bytes[i], &sizes[i], &err))
            return fprintf(stderr, "%s: %s\n", files[i], err.what), 1;
    for (int pass = 0; pass < 5; pass++) {
        double begin = now_ms();
        for (int i = 1; i < count; i++) {
            struct image image;
            if (image_decode(&image, (const uint8_t *)bytes[i], sizes[i], &err) ||
                image_prepare(&image, &preprocess_clip, SIDE, out, &err))
                return fprintf(stderr, "%s: %s\n", files[i], err.what), 1;
            image_free(&image);
        }
        double took = now_ms() - begin;
        if (took < best) best = took;
    }
    printf("%.3f\n", best / (count - 1));
    return 0;
}
