/* safetensors: u64 header length, a JSON object {name: {dtype, shape, data_offsets: [begin, end]}}, then the
 * bytes. The format's rules are enforced (github.com/huggingface/safetensors, "Format"): no duplicate names,
 * no overlap, no gap, no bytes after the last tensor. */
#include "core/weights/weights_internal.h"
#include "core/base/json.h"

#include <stdlib.h>
#include <string.h>

struct range {
    uint64_t begin, end;
    const char *name;
};

static int damaged(struct error *err, const char *name, const char *what)
{
    return error_set(err, EXIT_INTEGRITY, "get the file again", "safetensors header: %s%s%s",
                     name ? quote(name, strlen(name)) : "", name ? ": " : "", what);
}

static int find_dtype(const char *name)
{
    for (int d = DTYPE_F32; d <= DTYPE_BOOL; d++)
        if (strcmp(name, dtype_name((enum dtype)d)) == 0) return d;
    return -1;
}

/* Unsupported types of the format, and the width of an element (github.com/huggingface/safetensors,
 * tensor.rs). */
static const struct {
    const char *name;
    int bits;
} unread_types[] = {
    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F4", 4},
    {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U16", 16},    {"U32", 32},        {"U64", 64},        {"C64", 64},
};

static int unread_bits(const char *name)
{
    for (size_t i = 0; i < sizeof unread_types / sizeof *unread_types; i++)
        if (strcmp(name, unread_types[i].name) == 0) return unread_types[i].bits;
    return 0;
}

static int read_shape(const char *name, const json_t *shape, struct weights_tensor *t, struct error *err)
{
    if (!json_is_array(shape)) return damaged(err, name, "no shape");
    if (json_array_size(shape) > WEIGHTS_MAX_DIMS)
        return error_set(err, EXIT_INTEGRITY, NULL, "tensor %s has %zu dimensions, at most %d are supported",
                         quote(name, strlen(name)), json_array_size(shape), WEIGHTS_MAX_DIMS);
    t->ndim = (int)json_array_size(shape);
    for (int i = 0; i < t->ndim; i++) {
        const json_t *size = json_array_get(shape, (size_t)i);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return damaged(err, name, "a size that is not an integer");
        t->shape[i] = json_integer_value(size);
    }
    return 0;
}

/* data: offset of the payload in the file; data_bytes: its size. */
static int read_tensor(struct weights *w, const char *name, const json_t *entry, uint64_t data,
                       uint64_t data_bytes, struct range *range, struct error *err)
{
    struct row row = {.payload = -1};
    const json_t *dtype = json_object_get(entry, "dtype"), *offsets = json_object_get(entry, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (!json_is_object(entry) || !json_is_string(dtype)) return damaged(err, name, "no dtype");
    int d = find_dtype(json_string_value(dtype)), bits = unread_bits(json_string_value(dtype));
    if (d < 0 && !bits)
        return error_set(err, EXIT_INTEGRITY, "convert it to one of the usual types and save again",
                         "tensor %s is of the unsupported type %s", quote(name, strlen(name)),
                         quote(json_string_value(dtype), json_string_length(dtype)));
    if (d >= 0) bits = 8 * (int)dtype_bytes(row.tensor.dtype = (enum dtype)d);
    int code = read_shape(name, json_object_get(entry, "shape"), &row.tensor, err);
    if (code) return code;
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin))
        return damaged(err, name, "data_offsets is not [begin, end]");
    *range = (struct range){(uint64_t)json_integer_value(begin), (uint64_t)json_integer_value(end), name};
    if (range->end > data_bytes) return damaged(err, name, "extends beyond the end of the file");
    int64_t count = shape_count(row.tensor.shape, row.tensor.ndim);
    uint64_t whole_bits;
    if (count < 0 || __builtin_mul_overflow((uint64_t)count, (uint64_t)bits, &whole_bits) || whole_bits % 8 ||
        whole_bits / 8 != range->end - range->begin)
        return damaged(err, name, "shape and data_offsets disagree");
    if (d < 0) return weights_add_unread(w, name, strlen(name), json_string_value(dtype), err);
    int64_t stride = 1;
    for (int i = row.tensor.ndim; count && i-- > 0; stride *= row.tensor.shape[i]) row.stride[i] = stride;
    row.offset = data + range->begin;
    return weights_add_row(w, &row, name, strlen(name), err);
}

static int compare_ranges(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static int check_ranges(struct range *ranges, size_t count, uint64_t data_bytes, struct error *err)
{
    uint64_t at = 0;
    qsort(ranges, count, sizeof *ranges, compare_ranges);
    for (size_t i = 0; i < count; i++) {
        if (ranges[i].begin != at)
            return damaged(err, ranges[i].name,
                           ranges[i].begin < at ? "overlaps another tensor" : N_("a hole before it"));
        at = ranges[i].end;
    }
    return at == data_bytes ? 0 : damaged(err, NULL, "bytes at the end of the file that belong to no tensor");
}

static int read_header(struct weights *w, json_t *header, uint64_t data, uint64_t data_bytes,
                       struct error *err)
{
    if (!json_is_object(header)) return damaged(err, NULL, "is no JSON object");
    if (!weights_take_metadata(w, json_object_get(header, "__metadata__")))
        return damaged(err, "__metadata__", "is not an object of strings");
    int code = 0;
    struct range *ranges = calloc(json_object_size(header) + 1, sizeof *ranges);
    if (!ranges) return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for the table of tensors");
    const char *name;
    json_t *entry;
    size_t n = 0;
    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) continue;
        if ((code = read_tensor(w, name, entry, data, data_bytes, &ranges[n++], err)) != 0) break;
    }
    if (code == 0) code = check_ranges(ranges, n, data_bytes, err);
    free(ranges);
    return code;
}

int safetensors_open(struct weights *w, struct error *err)
{
    const struct file_map *map = weights_map(w);
    uint64_t header_bytes;
    memcpy(&header_bytes, map->data, 8);
    if (header_bytes > map->bytes - 8)
        return error_set(err, EXIT_INTEGRITY, "get the file again",
                         "safetensors header of %llu bytes in a file of %zu",
                         (unsigned long long)header_bytes, map->bytes);
    if (header_bytes > SAFETENSORS_MAX_HEADER_BYTES)
        return error_set(err, EXIT_INTEGRITY, NULL,
                         "safetensors header of %llu bytes, at most %zu are supported",
                         (unsigned long long)header_bytes, SAFETENSORS_MAX_HEADER_BYTES);
    json_error_t where;
    json_t *header = json_parse((const char *)map->data + 8, header_bytes, JSON_REJECT_DUPLICATES, &where);
    if (!header)
        return error_set(err, EXIT_INTEGRITY, "get the file again", "safetensors header, byte %d: %s",
                         where.position, where.text);
    int code = read_header(w, header, 8 + header_bytes, map->bytes - 8 - header_bytes, err);
    json_decref(header);
    return code;
}
