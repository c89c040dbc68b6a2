/* Writing safetensors. The header lists the tensors in the caller's order. Their bytes follow, the widest
 * types first, so that each is aligned to its element size (as in the reference implementation). */
#include "core/weights/write.h"
#include "core/base/memory.h"
#include "core/base/json.h"

#include <stdlib.h>
#include <string.h>

enum { WIDEST_BYTES = 8 };

static int add_metadata(json_t *header, const char *const *metadata)
{
    json_t *object = json_object();
    int failed = json_object_set_new(header, "__metadata__", object);
    for (; metadata[0] && metadata[1] && !failed; metadata += 2)
        failed = json_object_set_new(object, metadata[0], json_string(metadata[1]));
    return failed;
}

static int add_row(json_t *header, const struct weights_row *row, uint64_t begin)
{
    json_t *shape = json_array();
    int failed = 0;
    for (int i = 0; i < row->ndim; i++) failed |= json_array_append_new(shape, json_integer(row->shape[i]));
    if (failed) json_decref(shape);
    return failed || json_object_set_new(header, row->name,
                                         json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype_name(row->dtype),
                                                   "shape", shape, "data_offsets", (json_int_t)begin,
                                                   (json_int_t)(begin + row_bytes(row))));
}

static bool is_text(const char *const *metadata)
{
    for (; metadata && *metadata; metadata++)
        if (!text_is_utf8(*metadata, strlen(*metadata))) return false;
    return true;
}

/* Builds the header as text, padded with spaces to a multiple of 8; NULL if memory is exhausted. */
static char *make_header(const struct weights_row *rows, int64_t count, const char *const *metadata,
                         uint64_t *data_bytes)
{
    json_t *header = json_object();
    uint64_t *begin = xcalloc((size_t)count, sizeof *begin);
    *data_bytes = 0;
    for (size_t width = WIDEST_BYTES; width; width /= 2)
        for (int64_t i = 0; i < count; i++)
            if (dtype_bytes(rows[i].dtype) == width) {
                begin[i] = *data_bytes;
                *data_bytes += row_bytes(&rows[i]);
            }
    int failed = metadata && metadata[0] ? add_metadata(header, metadata) : 0;
    for (int64_t i = 0; i < count && !failed; i++) failed = add_row(header, &rows[i], begin[i]);
    char *text = failed ? NULL : json_text(header, JSON_COMPACT | JSON_PRESERVE_ORDER);
    json_decref(header);
    free(begin);
    if (!text) return NULL;
    size_t bytes = strlen(text), padded = (bytes + 7) & ~(size_t)7;
    text = xrealloc(text, padded + 1);
    memset(text + bytes, ' ', padded - bytes);
    text[padded] = 0;
    return text;
}

int weights_write_safetensors(const char *path, const struct weights_row *rows, int64_t count,
                              const char *const *metadata, struct error *err)
{
    struct writer out;
    struct error unwanted;
    uint64_t data_bytes;
    if (!err) err = &unwanted;
    int code = write_check_rows(rows, count, err);
    if (code) return error_at(err, path, 0, 0);
    bool texts = is_text(metadata);
    char *header = texts ? make_header(rows, count, metadata, &data_bytes) : NULL;
    uint64_t header_bytes = header ? strlen(header) : 0;
    if (!header || header_bytes > SAFETENSORS_MAX_HEADER_BYTES) {
        free(header);
        error_set(err, texts && !header ? EXIT_HOST_MEMORY : EXIT_FAILED, NULL,
                  !texts   ? N_("metadata that is not UTF-8 text")
                  : header ? N_("the header exceeds the limit of the reader")
                           : N_("out of memory for the header"));
        return error_at(err, path, 0, 0);
    }
    if ((code = writer_begin(&out, path, 8 + header_bytes + data_bytes, err)) != 0) goto done;
    if ((code = writer_put(&out, &header_bytes, 8, err)) == 0)
        code = writer_put(&out, header, header_bytes, err);
    for (size_t width = WIDEST_BYTES; width; width /= 2)
        for (int64_t i = 0; i < count && code == 0; i++)
            if (dtype_bytes(rows[i].dtype) == width) code = writer_put_row(&out, &rows[i], NULL, err);
    code = writer_end(&out, code, err);
done:
    free(header);
    return code;
}
