/* The record of one tensor's state: see state.c. */
#ifndef MEOPT_OPTIM_STATE_H
#define MEOPT_OPTIM_STATE_H

#include "core/optim/optim.h"

#include <stddef.h>

#define RECORD_MAGIC "MEOPTST" /* and the digit of the version */

enum record_flags {
    RECORD_AVERAGE = 4,  /* the average of the weights follows the scales */
    RECORD_POINTS = 8,   /* of a rule WITH_POINTS: fields from weight_sum on; its weights, fp32, follow */
    RECORD_FACTORS = 16, /* row and column means of the whole tensor are last, in float */
    /* times 1 + the elements that a part's last group lacks; 0: of a whole tensor */
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

/* Returns the version of the records of these formats: each changed by itself. */
static inline int record_version(int m, int v) { return OPTIM_JOINT(m, v) ? 3 : v == STATE_NONE ? 4 : 1; }

/* Reads the header of a record of the tensor `name`. MEOPT_BAD_STATE: it is none, or one of another
 * version. */
int record_read_header(struct record *r, const void *record, size_t bytes, const char *name,
                       struct meopt_error *err);

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
    uint32_t known = RECORD_AVERAGE | RECORD_POINTS | RECORD_FACTORS;
    return !(r->flags % RECORD_PADDING & ~known) && r->flags / RECORD_PADDING <= OPTIM_GROUP;
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
/* Returns the elements of a record of `groups` groups. */
static inline int64_t record_count(const struct record *r, int64_t groups)
{
    uint32_t padding = r->flags / RECORD_PADDING;
    return padding ? groups * OPTIM_GROUP - (padding - 1) : record_elements(r);
}
/* Computes the bytes of a group in the record's arrays, for checked formats. */
enum { RECORD_ARRAYS = 5, SCALES = 2, AVERAGE = 3, TRAINED = 4 };
static inline void record_group_bytes(const struct record *r, size_t each[RECORD_ARRAYS])
{
    each[AVERAGE] = r->flags & RECORD_AVERAGE ? optim_state_bytes(STATE_BF16) : 0;
    each[TRAINED] = r->flags & RECORD_POINTS ? optim_state_bytes(STATE_F32) : 0;
    each[0] = optim_state_bytes(r->m);
    each[1] = optim_state_bytes(r->v);
    each[2] = optim_scale_bytes(r->m, r->v);
    if (!OPTIM_JOINT(r->m, r->v)) return;
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
/* Returns the bytes of a record with its header and checksum. */
static inline size_t record_bytes(const struct record *r)
{
    uint64_t arrays = r->m_bytes + r->v_bytes + r->scale_bytes + record_factor_bytes(r);
    for (int i = AVERAGE; i < RECORD_ARRAYS; i++) arrays += record_array_bytes(r, i);
    return record_header_bytes(r) + (size_t)arrays + sizeof(uint32_t);
}

#endif
