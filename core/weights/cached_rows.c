/* Cached targets of images: see cached_rows.h. */
#include "core/weights/cached_rows.h"
#include "core/base/crc32c.h"
#include "kernels/bf16.h"

#include <math.h>
#include <string.h>

enum { GROUP = 64 };

size_t cached_row_bytes(enum cached_type type, int64_t values)
{
    size_t n = (size_t)values, groups = (n + GROUP - 1) / GROUP;
    return type == CACHED_FP32   ? n * sizeof(float)
           : type == CACHED_BF16 ? n * sizeof(uint16_t)
                                 : n + groups * sizeof(uint16_t);
}

int64_t cached_slot_bytes(enum cached_type type, int64_t values)
{
    return (int64_t)((sizeof(struct cached_head) + cached_row_bytes(type, values) + 7) & ~(size_t)7);
}

static float float_of(uint16_t bf16)
{
    uint32_t bits = (uint32_t)bf16 << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint16_t bf16_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bf16_of_bits(bits);
}

/* The least bf16 that is not below a factor >= 0. */
static uint16_t factor_of(float factor)
{
    uint16_t rounded = bf16_of(factor);
    return float_of(rounded) < factor ? (uint16_t)(rounded + 1) : rounded;
}

void cached_row_encode(enum cached_type type, const float *values, int64_t count, void *row)
{
    uint16_t *words = row;
    int8_t *codes = (int8_t *)row + (count + GROUP - 1) / GROUP * (int64_t)sizeof(uint16_t);
    if (type == CACHED_FP32) memcpy(row, values, (size_t)count * sizeof *values);
    for (int64_t i = 0; i < count && type == CACHED_BF16; i++) words[i] = bf16_of(values[i]);
    for (int64_t at = 0; at < count && type == CACHED_INT8; at += GROUP) {
        int64_t end = at + GROUP < count ? at + GROUP : count;
        float top = 0;
        for (int64_t i = at; i < end; i++) top = fmaxf(top, fabsf(values[i]));
        words[at / GROUP] = factor_of(top / 127);
        float factor = float_of(words[at / GROUP]);
        for (int64_t i = at; i < end; i++) codes[i] = (int8_t)(factor > 0 ? lrintf(values[i] / factor) : 0);
    }
}

void cached_row_decode(enum cached_type type, const void *row, int64_t count, float *values)
{
    const uint16_t *words = row;
    const int8_t *codes = (const int8_t *)row + (count + GROUP - 1) / GROUP * (int64_t)sizeof(uint16_t);
    if (type == CACHED_FP32) memcpy(values, row, (size_t)count * sizeof *values);
    for (int64_t i = 0; i < count && type == CACHED_BF16; i++) values[i] = float_of(words[i]);
    for (int64_t i = 0; i < count && type == CACHED_INT8; i++)
        values[i] = (float)codes[i] * float_of(words[i / GROUP]);
}

uint32_t cached_row_crc(int64_t image, uint32_t state, const void *row, size_t bytes)
{
    uint32_t crc = crc32c(crc32c(0, &image, sizeof image), &state, sizeof state);
    return state == 1 ? crc32c(crc, row, bytes) : crc;
}
