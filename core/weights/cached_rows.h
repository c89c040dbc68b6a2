/* Cached targets of images (train.cache_teacher): in memory or in a file, as fp32, bf16 or 8 bits.
 *
 * A row is the targets of one image, `values` numbers. In 8 bits each group of 64 has a factor in bf16: the
 * largest magnitude / 127, rounded up, so that no value is off by more than half of it. In a file the row of
 * image i is slot i: a head, then its bytes, in the machine's order. */
#ifndef MEOPT_WEIGHTS_CACHED_ROWS_H
#define MEOPT_WEIGHTS_CACHED_ROWS_H

#include <stddef.h>
#include <stdint.h>

enum cached_type { CACHED_FP32, CACHED_BF16, CACHED_INT8 };

/* What comes before a row in a file. */
struct cached_head {
    uint32_t crc;   /* CRC-32C of image, state and the row's bytes */
    uint32_t state; /* 0: not written; 1: the row follows; 2: the image could not be decoded */
};
enum { CACHED_ROWS_AT = 4096 }; /* of the first slot */

size_t cached_row_bytes(enum cached_type type, int64_t values);
int64_t cached_slot_bytes(enum cached_type type, int64_t values);
void cached_row_encode(enum cached_type type, const float *values, int64_t count, void *row);
void cached_row_decode(enum cached_type type, const void *row, int64_t count, float *values);
uint32_t cached_row_crc(int64_t image, uint32_t state, const void *row, size_t bytes);

#endif
