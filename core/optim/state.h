/* The record of one tensor's state: see state.c. */
#ifndef MEOPT_OPTIM_STATE_H
#define MEOPT_OPTIM_STATE_H

#include "core/optim/optim.h"

#include <float.h>
#include <string.h>

#define RECORD_V4 "MEOPTST4" /* rules without v: 8-bit m with a quantizer range per group */
#define RECORD_V3 "MEOPTST3" /* joint 16-bit codes of m and v */
#define RECORD_V2 "MEOPTST2" /* joint codes with an older quantizer (load_joint_v2 in optim_formats.h) */
#define RECORD_V1 "MEOPTST1" /* separate codes of 8-bit moments, with a scale per group */

enum record_flags {
    /* Records of versions that widened formats during a run. Neither is written any more. */
    RECORD_PROMOTED = 1, /* the formats are wider than those of the options */
    RECORD_SAMPLES = 2,  /* measurements follow the scales; they are ignored */
    RECORD_AVERAGE = 4,  /* the average of the weights follows the scales */
    RECORD_POINTS = 8,   /* of a rule WITH_POINTS: fields from weight_sum on; its weights, fp32, follow */
    RECORD_FACTORS = 16, /* row and column means of the whole tensor are last, in float */
    /* times 1 + the elements that a part's last group lacks; 0: of a whole tensor, or of an older version */
    RECORD_PADDING = 256
};

struct record {
    char magic[8];
    uint32_t header_bytes;
    int32_t m, v, m_range, ndim;
    uint32_t flags; /* enum record_flags */
    int64_t shape[8], first, updates;
    uint64_t m_bytes, v_bytes, scale_bytes;
    double weight_sum, lr_max; /* with RECORD_POINTS; else the header ends before */
};
static inline size_t record_header_bytes(const struct record *r)
{
    return r->flags & RECORD_POINTS ? sizeof *r : offsetof(struct record, weight_sum);
}

static inline bool record_is(const struct record *r, const char *magic)
{
    return memcmp(r->magic, magic, 8) == 0;
}
/* Returns whether the header is that of a record. */
static inline bool record_known(const struct record *r)
{
    return record_is(r, RECORD_V4) || record_is(r, RECORD_V3) || record_is(r, RECORD_V2) ||
           record_is(r, RECORD_V1);
}
/* Reads a header. Returns false if it is that of no record. */
static inline bool record_read(struct record *r, const void *record, size_t bytes)
{
    memset(r, 0, sizeof *r);
    if (!record || bytes < offsetof(struct record, weight_sum) + sizeof(uint32_t)) return false;
    memcpy(r, record, offsetof(struct record, weight_sum));
    if (!record_known(r) || r->header_bytes != record_header_bytes(r) ||
        bytes < r->header_bytes + sizeof(uint32_t))
        return false;
    memcpy(r, record, r->header_bytes);
    return r->weight_sum >= 0 && r->weight_sum <= DBL_MAX && r->lr_max >= 0 && r->lr_max <= DBL_MAX;
}
/* 1: 8-bit m and v have separate codes, 2: joint codes with older quantizers, 3: 8-bit m without v has a
 * scale per group, 4: the current format. */
enum { RECORD_CURRENT = 4 };
static inline int record_version(const struct record *r)
{
    if (OPTIM_M_GRID(r->m, r->v)) return record_is(r, RECORD_V4) ? RECORD_CURRENT : 3;
    if (!OPTIM_JOINT(r->m, r->v)) return RECORD_CURRENT;
    return record_is(r, RECORD_V1) ? 1 : record_is(r, RECORD_V2) ? 2 : RECORD_CURRENT;
}
/* Returns the elements of the whole tensor; 0: impossible shape. */
static inline int64_t record_elements(const struct record *r)
{
    int64_t count = 1;
    for (int d = 0; d < r->ndim; d++)
        if (r->shape[d] < 1 || __builtin_mul_overflow(count, r->shape[d], &count)) return 0;
    return count;
}
static inline bool record_flags_valid(const struct record *r)
{
    return r->flags % RECORD_PADDING <=
               (RECORD_PROMOTED | RECORD_SAMPLES | RECORD_AVERAGE | RECORD_POINTS | RECORD_FACTORS) &&
           r->flags / RECORD_PADDING <= OPTIM_GROUP;
}
/* Returns whether the record has arrays in groups. */
static inline bool record_grouped(const struct record *r) { return r->m != STATE_NONE || r->v != STATE_NONE; }
/* Returns the bytes of row and column means, which are those of the whole tensor. */
static inline uint64_t record_factor_bytes(const struct record *r)
{
    int64_t elements = r->ndim < 2 || !(r->flags & RECORD_FACTORS) ? 0 : record_elements(r);
    if (!elements || elements > INT64_MAX / 16) return elements ? UINT64_MAX / 4 : 0;
    int64_t rows = r->shape[r->ndim - 2], columns = r->shape[r->ndim - 1];
    return (uint64_t)(elements / columns + elements / rows) * sizeof(float);
}
/* Returns the flags of a record of `count` elements. Parts of equal groups may differ in count. */
static inline uint32_t record_flags_of(const struct record *r, int64_t count)
{
    bool part = record_grouped(r) && count != record_elements(r);
    uint32_t padding = (uint32_t)(optim_groups(count) * OPTIM_GROUP - count);
    return r->flags % RECORD_PADDING + (part ? RECORD_PADDING * (1 + padding) : 0);
}
/* Returns the elements of a record of `groups` groups; without RECORD_PADDING, the most possible. */
static inline int64_t record_count(const struct record *r, int64_t groups)
{
    uint32_t padding = r->flags / RECORD_PADDING;
    return groups * OPTIM_GROUP - (padding ? padding - 1 : 0);
}
/* Computes the bytes of a group in the record's arrays, for checked formats. */
enum { RECORD_ARRAYS = 5, SCALES = 2, AVERAGE = 3, TRAINED = 4 };
static inline void record_group_bytes(const struct record *r, size_t each[RECORD_ARRAYS])
{
    each[AVERAGE] = r->flags & RECORD_AVERAGE ? optim_state_bytes(STATE_BF16) : 0;
    each[TRAINED] = r->flags & RECORD_POINTS ? optim_state_bytes(STATE_F32) : 0;
    each[0] = optim_state_bytes(r->m);
    each[1] = optim_state_bytes(r->v);
    each[2] = record_version(r) == 1 || record_version(r) == 3 ? 1 : optim_scale_bytes(r->m, r->v);
    if (record_version(r) == 1 || !OPTIM_JOINT(r->m, r->v)) return;
    each[0] += each[1];
    each[1] = 0;
}

/* Returns the bytes of an array after the scales, for checked formats. */
static inline uint64_t record_array_bytes(const struct record *r, int array)
{
    size_t each[RECORD_ARRAYS];
    record_group_bytes(r, each);
    return each[0] ? r->m_bytes / each[0] * each[array] : 0;
}
/* Returns the bytes of a record with its header and checksum, without measurements. */
static inline size_t record_bytes(const struct record *r)
{
    uint64_t arrays = r->m_bytes + r->v_bytes + r->scale_bytes + record_factor_bytes(r);
    for (int i = AVERAGE; i < RECORD_ARRAYS; i++) arrays += record_array_bytes(r, i);
    return record_header_bytes(r) + (size_t)arrays + sizeof(uint32_t);
}
/* Returns whether a record of this size holds its arrays. Measurements may follow the scales. */
static inline bool record_fits(const struct record *r, size_t bytes)
{
    return r->flags & RECORD_SAMPLES ? bytes >= record_bytes(r) : bytes == record_bytes(r);
}

/* Checks scales of `groups` groups, or headers of joint codes and ranges, of a record of this version.
 * Returns `groups` if all are valid, else the first invalid one. */
int64_t state_scales_wrong(int m, int v, int version, const uint8_t *scales, int64_t groups);

#endif
