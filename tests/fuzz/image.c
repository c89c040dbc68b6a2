/* libFuzzer: any bytes as an image, decoded and prepared. */
#include "core/data/augment.h"
#include "core/data/data.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct image image;
    struct error err;
    if (image_decode(&image, bytes, size, &err)) return 0;
    uint8_t *out = malloc(32 * 32 * 3);
    if (out && (int64_t)image.width * image.height < 4000000) {
        image_prepare(&image, &preprocess_clip, 32, out, &err);
        image_prepare_random(&image, &preprocess_clip, 32, 0.08, 1, true, &(struct image_draw){1, 2, 3, 0},
                             out, &err);
    }
    free(out);
    image_free(&image);
    return 0;
}
