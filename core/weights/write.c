/* Shared by the two writers: see write.h. */
#include "core/weights/write.h"
#include "core/base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

uint64_t row_bytes(const struct weights_row *row)
{
    return (uint64_t)shape_count(row->shape, row->ndim) * dtype_bytes(row->dtype);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_unique(const struct weights_row *rows, int64_t count, struct error *err)
{
    const char **names = xcalloc((size_t)count, sizeof *names);
    int code = 0;
    for (int64_t i = 0; i < count; i++) names[i] = rows[i].name;
    qsort(names, (size_t)count, sizeof *names, compare_names);
    for (int64_t i = 1; i < count && code == 0; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            code = error_set(err, EXIT_FAILED, NULL, "two tensors to write have the name %s",
                             quote(names[i], strlen(names[i])));
    free(names);
    return code;
}

int write_check_rows(const struct weights_row *rows, int64_t count, struct error *err)
{
    uint64_t total = 0;
    if (count < 1 || count > WEIGHTS_MAX_TENSORS)
        return error_set(err, EXIT_FAILED, NULL, "%lld tensors to write, expected 1 to %d", (long long)count,
                         WEIGHTS_MAX_TENSORS);
    for (int64_t i = 0; i < count; i++) {
        const struct weights_row *r = &rows[i];
        size_t name_bytes = strlen(r->name);
        if (!name_bytes || name_bytes > WEIGHTS_MAX_NAME_BYTES || !text_is_utf8(r->name, name_bytes) ||
            strcmp(r->name, "__metadata__") == 0)
            return error_set(err, EXIT_FAILED, NULL, "%s cannot be the name of a tensor",
                             quote(r->name, name_bytes));
        int64_t elements = r->ndim < 0 || r->ndim > WEIGHTS_MAX_DIMS ? -1 : shape_count(r->shape, r->ndim);
        if (elements < 0 || elements > INT64_MAX / 8 ||
            __builtin_add_overflow(total, (uint64_t)elements * 8, &total) || total > INT64_MAX / 2)
            return error_set(err, EXIT_FAILED, NULL, "tensor %s has an impossible shape",
                             quote(r->name, name_bytes));
        if (elements && !r->data && !r->read)
            return error_set(err, EXIT_FAILED, NULL, "tensor %s has no values to write",
                             quote(r->name, name_bytes));
    }
    return check_unique(rows, count, err);
}

int writer_begin(struct writer *out, const char *path, uint64_t bytes, struct error *err)
{
    *out = (struct writer){.path = path, .file.fd = -1};
    int code = file_atomic_begin_large(&out->file, path, err);
    if (code) return code;
    /* Even where the file system cannot reserve space, the disk may run full later. */
    if (bytes && fallocate(out->file.fd, 0, 0, (off_t)bytes) != 0 &&
        (errno == ENOSPC || errno == EFBIG || errno == EDQUOT))
        code = error_errno(err, EXIT_DISK, "free some space or choose another directory",
                           "no space for the %llu bytes of the file", (unsigned long long)bytes);
    out->buffer = code ? NULL : malloc(WRITE_CHUNK_BYTES);
    if (!code && !out->buffer) code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory writing weights");
    return code ? writer_end(out, code, err) : 0;
}

int writer_put(struct writer *out, const void *data, size_t bytes, struct error *err)
{
    int code = file_write_all(out->file.fd, data, bytes, out->path, err);
    if (code == 0) out->at += bytes;
    return code;
}

int writer_put_row(struct writer *out, const struct weights_row *row, uint32_t *crc, struct error *err)
{
    uint64_t bytes = row_bytes(row);
    int code = 0;
    if (crc) *crc = 0;
    for (uint64_t done = 0; done < bytes && code == 0;) {
        size_t n = (size_t)(bytes - done < WRITE_CHUNK_BYTES ? bytes - done : WRITE_CHUNK_BYTES);
        const void *chunk = row->data ? (const uint8_t *)row->data + done : out->buffer;
        if (!row->data) code = row->read(row->context, (size_t)done, out->buffer, n, err);
        if (code == 0 && crc) *crc = crc32_zip(*crc, chunk, n);
        if (code == 0) code = writer_put(out, chunk, n, err);
        done += n;
    }
    return code;
}

int writer_end(struct writer *out, int code, struct error *err)
{
    free(out->buffer);
    out->buffer = NULL;
    if (code == 0) return file_atomic_commit(&out->file, err);
    file_atomic_abort(&out->file);
    if (!err->file[0]) error_at(err, out->path, 0, 0); /* else the error is about the source of the rows */
    return code;
}
