/* Reads one tensor from the file into memory and converts it.
 *
 * A contiguous tensor is read through a buffer per thread that fits into the L2 cache, or straight into dst
 * if no conversion is needed, and its checksum is computed while the bytes are in the cache. A view is
 * gathered from the mapping.
 */
#include "core/weights/weights_internal.h"
#include "core/base/progress.h"
#include "core/base/retry.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { CHUNK_BYTES = 1 << 18, GATHER = 1024 };

static int read_at(int fd, void *dst, size_t bytes, uint64_t offset, struct error *err)
{
    uint8_t *p = dst;
    while (bytes) {
        ssize_t n = retry_read(fd, p, bytes, (int64_t)offset);
        if (n < 0)
            return error_errno(err, EXIT_FAILED, NULL, "cannot read %zu bytes at %llu", bytes,
                               (unsigned long long)offset);
        if (n == 0)
            return error_set(err, EXIT_INTEGRITY, "do not change a file while it is in use",
                             "became shorter while it was being read");
        p += n;
        bytes -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

/* Reads [offset, offset+bytes) of the file in chunks, each converted to dst (NULL: checksum only). */
struct pass {
    int fd;
    uint64_t offset, bytes;
    uint8_t *dst;
    enum dtype dst_type, src_type;
    uint32_t *crcs; /* one per chunk; NULL: no checksum */
};

static int read_chunk(const struct pass *pass, int64_t i, uint8_t *buffer, struct error *err)
{
    uint64_t begin = (uint64_t)i * CHUNK_BYTES;
    size_t n = (size_t)(pass->bytes - begin < CHUNK_BYTES ? pass->bytes - begin : CHUNK_BYTES),
           each = dtype_bytes(pass->src_type);
    bool straight = pass->dst && pass->dst_type == pass->src_type;
    if (straight) buffer = pass->dst + begin;
    int code = read_at(pass->fd, buffer, n, pass->offset + begin, err);
    if (code) return code;
    if (pass->crcs) pass->crcs[i] = crc32_zip(0, buffer, n);
    if (pass->dst && !straight)
        weights_convert(pass->dst + begin / each * dtype_bytes(pass->dst_type), pass->dst_type, buffer,
                        pass->src_type, (int64_t)(n / each));
    return 0;
}

/* Uses several threads if it pays. *crc is set if pass->crcs is not NULL. */
static int run_pass(struct pass *pass, bool checked, uint32_t *crc, struct error *err)
{
    int64_t chunks = (int64_t)((pass->bytes + CHUNK_BYTES - 1) / CHUNK_BYTES);
    int result = 0;
    if (checked && !(pass->crcs = malloc((size_t)(chunks + 1) * sizeof *pass->crcs))) goto no_memory;
#ifdef _OPENMP
#pragma omp parallel if (chunks >= 4)
#endif
    {
        struct error local;
        int code = 0;
        uint8_t *buffer = malloc(CHUNK_BYTES);
        if (!buffer) code = error_set(&local, EXIT_HOST_MEMORY, NULL, "out of memory reading weights");
#ifdef _OPENMP
#pragma omp for schedule(static)
#endif
        for (int64_t i = 0; i < chunks; i++)
            if (code == 0) code = read_chunk(pass, i, buffer, &local);
        free(buffer);
        if (code) {
#ifdef _OPENMP
#pragma omp critical(weights_read)
#endif
            {
                if (result == 0) *err = local;
                result = code;
            }
        }
    }
    if (checked && result == 0) {
        z_off_t last = (z_off_t)(pass->bytes - (uint64_t)(chunks ? chunks - 1 : 0) * CHUNK_BYTES);
        *crc = 0;
        for (int64_t i = 0; i < chunks; i++)
            *crc = (uint32_t)crc32_combine(*crc, pass->crcs[i], i + 1 < chunks ? CHUNK_BYTES : last);
    }
    free(pass->crcs);
    return result;
no_memory:
    return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory reading weights");
}

static int check_crc(struct payload *payload, uint32_t crc, struct error *err)
{
    if (crc != payload->crc)
        return error_set(err, EXIT_INTEGRITY, "get the file again",
                         "damaged: %llu bytes at %llu have the checksum %08x, expected %08x",
                         (unsigned long long)payload->bytes, (unsigned long long)payload->offset, crc,
                         payload->crc);
    __atomic_store_n(&payload->checked, 1, __ATOMIC_RELAXED);
    return 0;
}

/* Removes dimensions of size 1 and merges adjacent contiguous ones. Returns the number left. */
static int join_dimensions(const struct row *row, int64_t *shape, int64_t *stride)
{
    int n = 0;
    for (int i = 0; i < row->tensor.ndim; i++) {
        if (row->tensor.shape[i] == 1) continue;
        if (n && stride[n - 1] == row->stride[i] * row->tensor.shape[i]) {
            shape[n - 1] *= row->tensor.shape[i];
            stride[n - 1] = row->stride[i];
        } else {
            shape[n] = row->tensor.shape[i];
            stride[n++] = row->stride[i];
        }
    }
    return n;
}

/* Gathers one run of `count` elements, `stride` elements apart. */
static void gather(uint8_t *dst, enum dtype dst_type, const uint8_t *src, enum dtype src_type, int64_t count,
                   int64_t stride)
{
    uint8_t block[GATHER * 8];
    size_t each = dtype_bytes(src_type);
    if (stride == 1) {
        weights_convert(dst, dst_type, src, src_type, count);
        return;
    }
    for (int64_t done = 0; done < count; done += GATHER) {
        int64_t n = count - done < GATHER ? count - done : GATHER;
        const uint8_t *from = src + (size_t)(done * stride) * each;
        for (int64_t i = 0; i < n; i++)
            memcpy(block + (size_t)i * each, from + (size_t)(i * stride) * each, each);
        weights_convert(dst + (size_t)done * dtype_bytes(dst_type), dst_type, block, src_type, n);
    }
}

static void gather_view(const struct weights *w, const struct row *row, const int64_t *shape,
                        const int64_t *stride, int ndim, uint8_t *dst, enum dtype dst_type)
{
    int64_t at[WEIGHTS_MAX_DIMS] = {0},
            element = 0; /* element: offset in the storage at the multi-dimensional index `at` */
    const uint8_t *src = w->sources[row->source].map.data + row->offset;
    size_t run_bytes = (size_t)shape[ndim - 1] * dtype_bytes(dst_type);
    for (int64_t done = 0; done < row->tensor.count; done += shape[ndim - 1], dst += run_bytes) {
        gather(dst, dst_type, src + (size_t)element * dtype_bytes(row->tensor.dtype), row->tensor.dtype,
               shape[ndim - 1], stride[ndim - 1]);
        for (int d = ndim - 2; d >= 0; d--) {
            element += stride[d];
            if (++at[d] < shape[d]) break;
            element -= stride[d] * shape[d];
            at[d] = 0;
        }
    }
}

static int read_row(const struct weights *w, const struct row *row, void *dst, enum dtype dst_type,
                    struct error *err);

/* Copies a box into the tensor, in runs that are contiguous in both. */
static void scatter(const struct weights_tensor *t, const struct piece *p, uint8_t *dst, const uint8_t *src,
                    size_t each)
{
    const struct weights_tensor *box = &p->row.tensor;
    int64_t at[WEIGHTS_MAX_DIMS] = {0}, run = 1;
    int d = t->ndim;
    while (d > 0 && box->shape[d - 1] == t->shape[d - 1]) run *= box->shape[--d];
    if (d > 0)
        run *= box->shape[--d]; /* the partitioned dimension: one run per index of the dimensions before it */
    for (int64_t done = 0; done < box->count; done += run, src += (size_t)run * each) {
        int64_t element = 0;
        for (int i = 0; i < t->ndim; i++) element = element * t->shape[i] + p->at[i] + at[i];
        memcpy(dst + (size_t)element * each, src, (size_t)run * each);
        for (int i = d - 1; i >= 0 && ++at[i] == box->shape[i]; i--) at[i] = 0;
    }
}

static int read_pieces(const struct weights *w, const struct row *row, void *dst, enum dtype dst_type,
                       struct error *err)
{
    size_t each = dtype_bytes(dst_type);
    for (int64_t i = 0; i < row->piece_count; i++) {
        const struct piece *p = &w->pieces[row->first_piece + i];
        bool whole = p->row.tensor.count == row->tensor.count;
        uint8_t *box = whole ? dst : malloc((size_t)p->row.tensor.count * each + 1);
        if (!box) return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory reading weights");
        int code = read_row(w, &p->row, box, dst_type, err);
        if (code == 0 && !whole) scatter(&row->tensor, p, dst, box, each);
        if (!whole) free(box);
        if (code) return code;
    }
    return 0;
}

static int read_row(const struct weights *w, const struct row *row, void *dst, enum dtype dst_type,
                    struct error *err)
{
    const struct weights_tensor *t = &row->tensor;
    struct payload *payload = row->payload >= 0 ? &w->payloads[row->payload] : NULL;
    bool check = payload && payload->crc && !__atomic_load_n(&payload->checked, __ATOMIC_RELAXED);
    int64_t shape[WEIGHTS_MAX_DIMS] = {1}, stride[WEIGHTS_MAX_DIMS] = {1};
    int ndim = join_dimensions(row, shape, stride);
    uint64_t bytes = (uint64_t)t->count * dtype_bytes(t->dtype);
    bool one_piece = ndim == 0 || (ndim == 1 && stride[0] == 1);
    bool whole = one_piece && payload && payload->offset == row->offset && payload->bytes == bytes;
    uint32_t crc = 0;
    int code;
    if (t->count == 0) return 0; /* has no source if no part of a distributed checkpoint was opened */
    if (dst_type != t->dtype && dst_type != DTYPE_F32 && dst_type != DTYPE_BF16 && dst_type != DTYPE_F16)
        return error_set(err, EXIT_FAILED, NULL, "is never converted from %s to %s", dtype_name(t->dtype),
                         dtype_name(dst_type));
    if (row->piece_count) return read_pieces(w, row, dst, dst_type, err);
    int fd = w->sources[row->source].fd;
    if (check && !whole) {
        struct pass pass = {.fd = fd, .offset = payload->offset, .bytes = payload->bytes};
        code = run_pass(&pass, true, &crc, err);
        if (code == 0) code = check_crc(payload, crc, err);
        if (code) return code;
    }
    if (one_piece) {
        struct pass pass = {.fd = fd,
                            .offset = row->offset,
                            .bytes = bytes,
                            .dst = dst,
                            .dst_type = dst_type,
                            .src_type = t->dtype};
        code = run_pass(&pass, check && whole, &crc, err);
        return code || !check || !whole ? code : check_crc(payload, crc, err);
    }
    gather_view(w, row, shape, stride, ndim, dst, dst_type);
    return 0;
}

/* Reads a tensor of weights_open_rows. */
static int read_made(const struct weights_row *from, int64_t count, void *dst, enum dtype dst_type,
                     struct error *err)
{
    size_t bytes = (size_t)count * dtype_bytes(from->dtype);
    void *values = dst_type == from->dtype ? dst : malloc(bytes + 1);
    if (!values) return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory reading weights");
    int code = from->read(from->context, 0, values, bytes, err);
    if (values == dst) return code;
    if (!code) weights_convert(dst, dst_type, values, from->dtype, count);
    free(values);
    return code;
}

int64_t weights_place(const struct weights *w, int64_t index)
{
    const struct row *row = &w->rows[index];
    int64_t shape[WEIGHTS_MAX_DIMS] = {1}, stride[WEIGHTS_MAX_DIMS] = {1};
    int ndim = join_dimensions(row, shape, stride);
    bool one_piece = !w->made && !row->piece_count && (ndim == 0 || (ndim == 1 && stride[0] == 1));
    return one_piece ? (int64_t)row->offset : -1;
}

static const char *path_of(const struct weights *w, const struct row *row)
{
    return w->made ? w->path : w->sources[row->source].path;
}

int weights_read(const struct weights *w, int64_t index, void *dst, enum dtype dst_type, struct error *err)
{
    struct error local;
    const struct row *row = &w->rows[index];
    if (!err) err = &local;
    int code = w->made ? read_made(&w->made[index], row->tensor.count, dst, dst_type, err)
                       : read_row(w, row, dst, dst_type, err);
    progress_mark();
    if (code) {
        struct error inner = *err;
        error_set(err, inner.code, inner.hint[0] ? inner.hint : NULL, "tensor %s: %s",
                  quote(row->tensor.name, strlen(row->tensor.name)), inner.what);
        error_at(err, path_of(w, row), 0, 0);
    }
    return code;
}

/* Counts elements whose exponent is all ones: NaN and the infinities. */
#define COUNT_NOT_FINITE(type, exponent)                                                                     \
    static int64_t not_finite_##type(const uint8_t *values, int64_t count)                                   \
    {                                                                                                        \
        int64_t found = 0;                                                                                   \
        for (int64_t i = 0; i < count; i++) {                                                                \
            type bits;                                                                                       \
            memcpy(&bits, values + (size_t)i * sizeof bits, sizeof bits);                                    \
            found += (bits & (type)(exponent)) == (type)(exponent);                                          \
        }                                                                                                    \
        return found;                                                                                        \
    }
typedef uint16_t half_bits;
typedef uint16_t bfloat_bits;
typedef uint32_t float_bits;
typedef uint64_t double_bits;
COUNT_NOT_FINITE(half_bits, 0x7c00)
COUNT_NOT_FINITE(bfloat_bits, 0x7f80)
COUNT_NOT_FINITE(float_bits, 0x7f800000)
COUNT_NOT_FINITE(double_bits, 0x7ff0000000000000)

static int64_t count_not_finite(const uint8_t *values, enum dtype dtype, int64_t count)
{
    switch (dtype) {
    case DTYPE_F16: return not_finite_half_bits(values, count);
    case DTYPE_BF16: return not_finite_bfloat_bits(values, count);
    case DTYPE_F32: return not_finite_float_bits(values, count);
    case DTYPE_F64: return not_finite_double_bits(values, count);
    default: return 0; /* integers */
    }
}

int weights_check_finite(const struct weights *w, int64_t index, const void *values, enum dtype dtype,
                         struct error *err)
{
    const struct row *row = &w->rows[index];
    int64_t found = count_not_finite(values, dtype, row->tensor.count), first = 0;
    if (!found) return 0;
    while (!count_not_finite((const uint8_t *)values + (size_t)first * dtype_bytes(dtype), dtype, 1)) first++;
    error_set(err, EXIT_INTEGRITY, "the training run that wrote it diverged: use an earlier checkpoint",
              "tensor %s: %lld of its %lld values are NaN or infinite, the first is element %lld",
              quote(row->tensor.name, strlen(row->tensor.name)), (long long)found,
              (long long)row->tensor.count, (long long)first);
    error_at(err, path_of(w, row), 0, 0);
    return EXIT_INTEGRITY;
}
