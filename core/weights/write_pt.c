/* Writes PyTorch's zip format as torch.save does for an OrderedDict of CPU tensors. Source:
 * torch/serialization.py (_save), caffe2/serialize/inline_container.cc (PyTorchStreamWriter).
 *
 * torch streams and omits sizes and checksums from the local headers. meopt writes them, so that any unzip
 * can check the file. A zip64 field is written only for a number that requires one.
 */
#include "core/weights/write.h"
#include "core/base/memory.h"
#include "core/base/json.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64, LOCAL_BYTES = 30, MAX_MEMBERS_32 = 65535, VERSION_ZIP64 = 45, VERSION_PLAIN = 20 };
#define MAX_32 UINT64_C(0xffffffff)

struct bytes {
    uint8_t *data;
    size_t used, capacity;
};

static void put(struct bytes *b, const void *data, size_t n)
{
    if (b->capacity - b->used < n) {
        b->capacity = (b->used + n) * 2;
        b->data = xrealloc(b->data, b->capacity);
    }
    if (n) memcpy(b->data + b->used, data, n);
    b->used += n;
}

static void put_text(struct bytes *b, const char *text) { put(b, text, strlen(text)); }

/* Appends the n low bytes, little-endian. */
static void put_number(struct bytes *b, uint64_t v, int n)
{
    uint8_t p[8];
    for (int i = 0; i < n; i++) p[i] = (uint8_t)(v >> 8 * i);
    put(b, p, (size_t)n);
}

/* The pickle, protocol 2. Memo slots: 0 the rebuild function, 1 "storage", 2 "cpu", 3 OrderedDict, 4.. one
 * per storage class. */

static void pickle_text(struct bytes *b, const char *text)
{
    put(b, "X", 1); /* BINUNICODE */
    put_number(b, strlen(text), 4);
    put_text(b, text);
}

static void pickle_int(struct bytes *b, int64_t v)
{
    if (v >= 0 && v < 256) {
        put(b, "K", 1); /* BININT1 */
        put_number(b, (uint64_t)v, 1);
    } else if (v >= 0 && v < 65536) {
        put(b, "M", 1); /* BININT2 */
        put_number(b, (uint64_t)v, 2);
    } else if (v >= INT32_MIN && v <= INT32_MAX) {
        put(b, "J", 1); /* BININT */
        put_number(b, (uint64_t)v, 4);
    } else {
        put(b, "\x8a\x08", 2); /* LONG1 */
        put_number(b, (uint64_t)v, 8);
    }
}

static void pickle_ints(struct bytes *b, const int64_t *v, int n)
{
    put(b, "(", 1);
    for (int i = 0; i < n; i++) pickle_int(b, v[i]);
    put(b, "t", 1);
}

/* A memoised text or class: in full the first time, later as BINGET. */
static void pickle_memo(struct bytes *b, bool *known, int slot, char kind, const char *text)
{
    if (*known) {
        put(b, "h", 1);
        put_number(b, (uint64_t)slot, 1);
        return;
    }
    if (kind == 'c') {
        put(b, "c", 1);
        put_text(b, text);
    } else pickle_text(b, text);
    put(b, "q", 1);
    put_number(b, (uint64_t)slot, 1);
    *known = true;
}

static void pickle_tensor(struct bytes *b, const struct weights_row *row, int64_t key, bool known[16])
{
    static const char *const classes[] = {
        [DTYPE_F32] = "torch\nFloatStorage\n", [DTYPE_BF16] = "torch\nBFloat16Storage\n",
        [DTYPE_F16] = "torch\nHalfStorage\n",  [DTYPE_F64] = "torch\nDoubleStorage\n",
        [DTYPE_I64] = "torch\nLongStorage\n",  [DTYPE_I32] = "torch\nIntStorage\n",
        [DTYPE_I16] = "torch\nShortStorage\n", [DTYPE_I8] = "torch\nCharStorage\n",
        [DTYPE_U8] = "torch\nByteStorage\n",   [DTYPE_BOOL] = "torch\nBoolStorage\n",
    };
    char key_text[24];
    int64_t stride[WEIGHTS_MAX_DIMS], step = 1, count = shape_count(row->shape, row->ndim);
    for (int i = row->ndim; i-- > 0;) {
        stride[i] = step;
        step *= row->shape[i] > 1 ? row->shape[i] : 1;
    }
    snprintf(key_text, sizeof key_text, "%lld", (long long)key);
    pickle_memo(b, &known[0], 0, 'c', "torch._utils\n_rebuild_tensor_v2\n");
    put(b, "((", 2);
    pickle_memo(b, &known[1], 1, 'X', "storage");
    pickle_memo(b, &known[4 + row->dtype], 4 + (int)row->dtype, 'c', classes[row->dtype]);
    pickle_text(b, key_text);
    pickle_memo(b, &known[2], 2, 'X', "cpu");
    pickle_int(b, count);
    put(b, "tQ", 2); /* BINPERSID */
    pickle_int(b, 0);
    pickle_ints(b, row->shape, row->ndim);
    pickle_ints(b, stride, row->ndim);
    put(b, "\x89", 1); /* requires_grad: False */
    pickle_memo(b, &known[3], 3, 'c', "collections\nOrderedDict\n");
    put(b, ")RtR", 4); /* no backward hooks; call the rebuild function */
}

static struct bytes make_pickle(const struct weights_row *rows, int64_t count)
{
    enum { BATCH = 1000 }; /* items for each SETITEMS, as in Python */
    struct bytes b = {0};
    bool known[16] = {0};
    put(&b, "\x80\x02", 2);
    pickle_memo(&b, &known[3], 3, 'c', "collections\nOrderedDict\n");
    put(&b, ")R", 2);
    for (int64_t i = 0; i < count; i++) {
        if (i % BATCH == 0) put(&b, "(", 1);
        pickle_text(&b, rows[i].name);
        pickle_tensor(&b, &rows[i], i, known);
        if (i % BATCH == BATCH - 1 || i + 1 == count) put(&b, "u", 1);
    }
    put(&b, ".", 1);
    return b;
}

/* The container. */

struct archive {
    struct writer out;
    struct bytes directory;
    uint64_t members;
};

static uint64_t saturated(uint64_t v) { return v < MAX_32 ? v : MAX_32; }

/* Fields that local and central header share, from "version needed" on. */
static void put_common(struct bytes *b, uint64_t bytes, uint32_t crc, size_t name_bytes, size_t extra_bytes,
                       bool zip64)
{
    put_number(b, zip64 ? VERSION_ZIP64 : VERSION_PLAIN, 2);
    put_number(b, 0x0800, 2);     /* names are UTF-8 */
    put_number(b, 0, 2);          /* stored */
    put_number(b, 0x00210000, 4); /* 1980-01-01 00:00: equal input gives equal files */
    put_number(b, crc, 4);
    put_number(b, saturated(bytes), 4);
    put_number(b, saturated(bytes), 4);
    put_number(b, name_bytes, 2);
    put_number(b, extra_bytes, 2);
}

static struct bytes local_header(const char *name, uint64_t at, uint64_t bytes, uint32_t crc)
{
    struct bytes b = {0};
    bool zip64 = bytes >= MAX_32;
    size_t name_bytes = strlen(name), fixed = LOCAL_BYTES + name_bytes + (zip64 ? 20 : 0) + 4;
    size_t padding = (size_t)(ALIGNMENT - (at + fixed) % ALIGNMENT) % ALIGNMENT;
    put(&b, "PK\3\4", 4);
    put_common(&b, bytes, crc, name_bytes, fixed - LOCAL_BYTES - name_bytes + padding, zip64);
    put_text(&b, name);
    if (zip64) {
        put_number(&b, 0x00100001, 4);
        put_number(&b, bytes, 8);
        put_number(&b, bytes, 8);
    }
    put(&b, "FB", 2); /* torch's padding field */
    put_number(&b, padding, 2);
    for (size_t i = 0; i < padding; i++) put(&b, "Z", 1);
    return b;
}

static void central_header(struct bytes *b, const char *name, uint64_t at, uint64_t bytes, uint32_t crc)
{
    size_t extra = (bytes >= MAX_32 ? 16 : 0) + (at >= MAX_32 ? 8 : 0);
    put(b, "PK\1\2", 4);
    put_number(b, extra ? VERSION_ZIP64 : VERSION_PLAIN, 2);
    put_common(b, bytes, crc, strlen(name), extra ? extra + 4 : 0, extra != 0);
    put_number(b, 0, 2); /* comment */
    put_number(b, 0, 2); /* disk */
    put_number(b, 0, 2); /* internal attributes */
    put_number(b, 0, 4); /* external attributes */
    put_number(b, saturated(at), 4);
    put_text(b, name);
    if (!extra) return;
    put_number(b, 1, 2);
    put_number(b, extra, 2);
    if (bytes >= MAX_32) {
        put_number(b, bytes, 8);
        put_number(b, bytes, 8);
    }
    if (at >= MAX_32) put_number(b, at, 8);
}

/* Writes the header without the checksum, then the bytes, then the header again with their checksum. */
static int put_member(struct archive *a, const char *name, const struct weights_row *row, struct error *err)
{
    uint64_t at = a->out.at, bytes = row_bytes(row);
    uint32_t crc = 0;
    struct bytes header = local_header(name, at, bytes, 0);
    int code = writer_put(&a->out, header.data, header.used, err);
    if (code == 0) code = writer_put_row(&a->out, row, &crc, err);
    free(header.data);
    if (code) return code;
    header = local_header(name, at, bytes, crc);
    code = file_write_all_at(a->out.file.fd, header.data, header.used, (int64_t)at, a->out.path, err);
    free(header.data);
    central_header(&a->directory, name, at, bytes, crc);
    a->members++;
    return code;
}

static int put_small_member(struct archive *a, const char *name, const void *data, size_t bytes,
                            struct error *err)
{
    struct weights_row row = {.dtype = DTYPE_U8, .ndim = 1, .shape = {(int64_t)bytes}, .data = data};
    return put_member(a, name, &row, err);
}

static int put_end(struct archive *a, struct error *err)
{
    uint64_t at = a->out.at, bytes = a->directory.used, end64 = at + bytes;
    struct bytes *b = &a->directory;
    if (a->members >= MAX_MEMBERS_32 || at >= MAX_32 || bytes >= MAX_32) {
        put(b, "PK\6\6", 4);
        put_number(b, 44, 8); /* bytes of this record after this field */
        put_number(b, VERSION_ZIP64, 2);
        put_number(b, VERSION_ZIP64, 2);
        put_number(b, 0, 8); /* disks */
        put_number(b, a->members, 8);
        put_number(b, a->members, 8);
        put_number(b, bytes, 8);
        put_number(b, at, 8);
        put(b, "PK\6\7", 4);
        put_number(b, 0, 4);
        put_number(b, end64, 8);
        put_number(b, 1, 4);
    }
    uint64_t members = a->members < MAX_MEMBERS_32 ? a->members : MAX_MEMBERS_32;
    put(b, "PK\5\6", 4);
    put_number(b, 0, 4); /* disks */
    put_number(b, members, 2);
    put_number(b, members, 2);
    put_number(b, saturated(bytes), 4);
    put_number(b, saturated(at), 4);
    put_number(b, 0, 2); /* comment */
    return writer_put(&a->out, b->data, b->used, err);
}

/* Lower bound of the file's size: padding and directory are unknown here, and small. */
static uint64_t least_bytes(const struct weights_row *rows, int64_t count)
{
    uint64_t bytes = 0;
    for (int64_t i = 0; i < count; i++) bytes += row_bytes(&rows[i]);
    return bytes;
}

/* Returns a JSON object, malloc'ed; NULL if memory is exhausted or a text is not UTF-8. */
static char *metadata_text(const char *const *metadata)
{
    json_t *object = json_object();
    bool failed = !object;
    for (const char *const *m = metadata; m[0] && m[1] && !failed; m += 2)
        failed = json_object_set_new(object, m[0], json_string(m[1])) != 0;
    char *text = failed ? NULL : json_text(object, JSON_COMPACT | JSON_PRESERVE_ORDER);
    json_decref(object);
    return text;
}

static int put_metadata(struct archive *a, const char *const *metadata, struct error *err)
{
    char *text = metadata_text(metadata);
    int code = text ? put_small_member(a, "archive/extra/meopt.json", text, strlen(text), err)
                    : error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for the metadata");
    free(text);
    return code;
}

int weights_write_pt(const char *path, const struct weights_row *rows, int64_t count,
                     const char *const *metadata, struct error *err)
{
    struct archive a = {0};
    struct error unwanted;
    if (!err) err = &unwanted;
    int code = write_check_rows(rows, count, err);
    if (code) return error_at(err, path, 0, 0);
    struct bytes pickle = make_pickle(rows, count);
    code = writer_begin(&a.out, path, least_bytes(rows, count), err);
    if (code) goto done;
    code = put_small_member(&a, "archive/data.pkl", pickle.data, pickle.used, err);
    if (code == 0) code = put_small_member(&a, "archive/byteorder", "little", 6, err);
    for (int64_t i = 0; i < count && code == 0; i++) {
        char name[40];
        snprintf(name, sizeof name, "archive/data/%lld", (long long)i);
        code = put_member(&a, name, &rows[i], err);
    }
    if (code == 0) code = put_small_member(&a, "archive/version", "3\n", 2, err);
    if (code == 0 && metadata && metadata[0]) code = put_metadata(&a, metadata, err);
    if (code == 0) code = put_end(&a, err);
    code = writer_end(&a.out, code, err);
done:
    free(a.directory.data);
    free(pickle.data);
    return code;
}
