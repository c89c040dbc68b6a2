/* Joins the records of parts to a whole tensor's record, and cuts it into parts. Arrays of a state consist of
 * whole groups of 64, and parts begin at groups, so bytes are copied. */
#include "core/base/crc32c.h"
#include "core/optim/state.h"

#include <string.h>

/* A record with a correct checksum, and the positions of its arrays. */
struct open_record {
    struct record r;
    const char *arrays[RECORD_ARRAYS];
    size_t bytes[RECORD_ARRAYS];
    int64_t groups; /* in the arrays; 0 for a rule without moments */
    const char *factors;
    size_t factor_bytes;
};

static int record_open(struct open_record *o, const void *record, size_t bytes, struct meopt_error *err)
{
    uint32_t crc;
    int status = record_read_header(&o->r, record, bytes, "a tensor", err);
    if (status) return status;
    memcpy(&crc, (const char *)record + bytes - 4, 4);
    const struct record *r = &o->r;
    size_t left = bytes - r->header_bytes - 4;
    if (r->m < STATE_NONE || r->m > STATE_4BIT || r->v < STATE_NONE || r->v > STATE_4BIT || r->ndim < 0 ||
        r->ndim > 8 || r->first < 0 || r->first >> 50 || !record_flags_valid(r) || r->m_bytes > left ||
        r->v_bytes > left - r->m_bytes || r->scale_bytes > left - r->m_bytes - r->v_bytes ||
        bytes != record_bytes(r))
        return optim_fail(err, MEOPT_BAD_STATE, "a state's header is damaged");
    if (crc != crc32c(0, record, bytes - 4))
        return optim_fail(err, MEOPT_BAD_STATE, "a state's checksum does not match");
    o->bytes[0] = (size_t)r->m_bytes;
    o->bytes[1] = (size_t)r->v_bytes;
    o->bytes[2] = (size_t)r->scale_bytes;
    for (int i = AVERAGE; i < RECORD_ARRAYS; i++) o->bytes[i] = (size_t)record_array_bytes(r, i);
    o->arrays[0] = (const char *)record + r->header_bytes;
    for (int i = 1; i < RECORD_ARRAYS; i++) o->arrays[i] = o->arrays[i - 1] + o->bytes[i - 1];
    size_t each[RECORD_ARRAYS];
    record_group_bytes(r, each);
    o->groups = each[0] ? (int64_t)(r->m_bytes / each[0]) : each[1] ? (int64_t)(r->v_bytes / each[1]) : 0;
    o->factors = o->arrays[RECORD_ARRAYS - 1] + o->bytes[RECORD_ARRAYS - 1];
    o->factor_bytes = (size_t)record_factor_bytes(r);
    return MEOPT_OK;
}

/* Writes the header of `elements` elements from `first`, and returns the addresses of its arrays. */
static int record_begin(struct record *r, int64_t first, int64_t elements, void *to, size_t *bytes,
                        char *arrays[RECORD_ARRAYS], struct meopt_error *err)
{
    size_t each[RECORD_ARRAYS], capacity = *bytes;
    int64_t groups = record_grouped(r) ? optim_groups(elements) : 0;
    record_group_bytes(r, each);
    r->first = first;
    r->m_bytes = (uint64_t)groups * each[0];
    r->v_bytes = (uint64_t)groups * each[1];
    r->scale_bytes = (uint64_t)groups * each[2];
    r->flags = record_flags_of(r, elements);
    *bytes = record_bytes(r);
    if (!to) return MEOPT_OK;
    if (capacity < *bytes)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "a state of %zu bytes does not fit in %zu", *bytes,
                          capacity);
    memcpy(to, r, r->header_bytes);
    arrays[0] = (char *)to + r->header_bytes;
    arrays[1] = arrays[0] + r->m_bytes;
    arrays[2] = arrays[1] + r->v_bytes;
    arrays[AVERAGE] = arrays[SCALES] + r->scale_bytes;
    arrays[TRAINED] = arrays[AVERAGE] + record_array_bytes(r, AVERAGE);
    return MEOPT_OK;
}

/* factors: row and column means, the same in every part. */
static void record_end(void *to, size_t bytes, const struct open_record *factors)
{
    memcpy((char *)to + bytes - 4 - factors->factor_bytes, factors->factors, factors->factor_bytes);
    uint32_t crc = crc32c(0, to, bytes - 4);
    memcpy((char *)to + bytes - 4, &crc, 4);
}

static bool same_kind(const struct record *a, const struct record *b)
{
    return memcmp(a->magic, b->magic, 8) == 0 && a->m == b->m && a->v == b->v && a->m_range == b->m_range &&
           a->ndim == b->ndim && memcmp(a->shape, b->shape, sizeof a->shape) == 0 &&
           a->updates == b->updates && memcmp(&a->weight_sum, &b->weight_sum, 2 * sizeof(double)) == 0 &&
           a->flags % RECORD_PADDING == b->flags % RECORD_PADDING;
}

/* Returns whether `elements` elements from `first` end at a group, or at the end of the record's tensor or
 * part. */
static bool ends_with_a_group(const struct record *r, int64_t first, int64_t elements)
{
    int64_t end = first + elements, whole = record_elements(r);
    return elements % OPTIM_GROUP == 0 || end == whole || end - r->first == whole;
}

static int not_in_groups(struct meopt_error *err, int64_t first, int64_t elements)
{
    return optim_fail(err, MEOPT_BAD_ARGUMENT,
                      "%lld elements from %lld are not groups of 64 of the whole tensor: use "
                      "meopt_moments_export",
                      (long long)elements, (long long)first);
}

/* Assembles `elements` elements from group `first` (all: the whole tensor) from records of parts in rising
 * order. */
static int assemble(const void *const *parts, const size_t *part_bytes, size_t count, bool all, int64_t first,
                    int64_t elements, void *to, size_t *bytes, struct meopt_error *err)
{
    struct open_record one, part;
    char *arrays[RECORD_ARRAYS] = {0};
    size_t each[RECORD_ARRAYS];
    int status = record_open(&one, parts[0], part_bytes[0], err);
    if (status) return status;
    struct record r = one.r;
    if (all) elements = record_elements(&r);
    if (!ends_with_a_group(&r, first * OPTIM_GROUP, elements))
        return not_in_groups(err, first * OPTIM_GROUP, elements);
    int64_t groups = record_grouped(&r) ? optim_groups(elements) : 0;
    if ((status = record_begin(&r, first * OPTIM_GROUP, elements, to, bytes, arrays, err)) != 0 || !to)
        return status;
    record_group_bytes(&r, each);
    int64_t at = 0, previous_end = -1; /* groups copied so far; element at the end of the previous part */
    for (size_t i = 0; i < count; i++) {
        if ((status = record_open(&part, parts[i], part_bytes[i], err)) != 0) return status;
        if (part.groups && part.r.first % OPTIM_GROUP)
            return not_in_groups(err, part.r.first, part.groups * OPTIM_GROUP);
        int64_t begin = part.r.first / OPTIM_GROUP, end = begin + part.groups,
                some = (end < first + groups ? end : first + groups) - (first + at);
        if (!same_kind(&part.r, &one.r) || memcmp(part.factors, one.factors, one.factor_bytes) != 0 ||
            (part.groups && previous_end >= 0 && part.r.first != previous_end) ||
            (all && part.groups && (begin != at || end > groups)))
            return optim_fail(err, MEOPT_BAD_STATE, "states of %zu parts do not fit: number %zu from %lld",
                              count, i, (long long)part.r.first);
        if (part.groups) previous_end = part.r.first + record_count(&part.r, part.groups);
        if (some <= 0 || begin > first + at) continue;
        for (int k = 0; k < RECORD_ARRAYS; k++)
            memcpy(arrays[k] + (size_t)at * each[k], part.arrays[k] + (size_t)(first + at - begin) * each[k],
                   (size_t)some * each[k]);
        at += some;
    }
    if (at != groups || (all && groups && previous_end < elements))
        return optim_fail(err, MEOPT_BAD_STATE, "states of %zu parts have %lld of %lld groups", count,
                          (long long)at, (long long)groups);
    record_end(to, *bytes, &one);
    return MEOPT_OK;
}

int meopt_state_join(const void *const *parts, const size_t *part_bytes, size_t count, void *to,
                     size_t *bytes, struct meopt_error *err)
{
    if (!parts || !part_bytes || !count || !bytes)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "no records to join, or bytes is NULL");
    return assemble(parts, part_bytes, count, true, 0, 0, to, bytes, err);
}

int meopt_state_range(const void *const *parts, const size_t *part_bytes, size_t parts_count, int64_t first,
                      int64_t count, void *to, size_t *bytes, struct meopt_error *err)
{
    if (!parts || !part_bytes || !parts_count || !bytes)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "no records to join, or bytes is NULL");
    if (first < 0 || first % OPTIM_GROUP || count < 0 || first > INT64_MAX - count)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "%lld elements from %lld are no part of a state",
                          (long long)count, (long long)first);
    return assemble(parts, part_bytes, parts_count, false, first / OPTIM_GROUP, count, to, bytes, err);
}

int meopt_state_average(const void *record, size_t bytes, float *values, int64_t count,
                        struct meopt_error *err)
{
    struct open_record o;
    int status = record_open(&o, record, bytes, err);
    if (status) return status;
    if (!(o.r.flags & RECORD_AVERAGE) || !o.r.updates)
        return optim_fail(err, MEOPT_BAD_STATE, "a state has no average of the weights");
    if (!values || count < 0 || optim_groups(count) != o.groups)
        return optim_fail(err, MEOPT_BAD_ARGUMENT,
                          "a state has %lld groups of 64 elements, not %lld elements", (long long)o.groups,
                          (long long)count);
    for (int64_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, o.arrays[AVERAGE] + 2 * i, 2);
        uint32_t single = (uint32_t)half << 16;
        memcpy(&values[i], &single, 4);
    }
    return MEOPT_OK;
}
