/* core/weights: written files read back, whatever their size; a full disk leaves no file.
 *
 * `test_weights write DIR` serves tests/cli/weights_torch.sh. */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/weights/weights_internal.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static char directory[] = "/tmp/meopt-weights-XXXXXX";

static char *in_directory(const char *name) { return path_join(directory, name); }

static uint32_t next_random(uint32_t *state) { return *state = *state * 1664525u + 1013904223u; }

/* A table of every type and of shapes from () to 4 dimensions, filled with noise. */
enum { SAMPLE_ROWS = 14 };
struct sample {
    struct weights_row rows[SAMPLE_ROWS];
    void *values[SAMPLE_ROWS];
};

static void make_sample(struct sample *s)
{
    static const struct weights_row rows[SAMPLE_ROWS] = {
        {.name = "visual.bias_u8", .dtype = DTYPE_U8, .ndim = 1, .shape = {5}},
        {.name = "visual.conv1.weight", .dtype = DTYPE_F32, .ndim = 4, .shape = {3, 2, 4, 4}},
        {.name = "visual.half", .dtype = DTYPE_F16, .ndim = 2, .shape = {7, 3}},
        {.name = "logit_scale", .dtype = DTYPE_F32},
        {.name = "bfloat", .dtype = DTYPE_BF16, .ndim = 1, .shape = {65537}},
        {.name = "double", .dtype = DTYPE_F64, .ndim = 2, .shape = {2, 9}},
        {.name = "i64", .dtype = DTYPE_I64, .ndim = 1, .shape = {4}},
        {.name = "i32", .dtype = DTYPE_I32, .ndim = 3, .shape = {1, 1, 3}},
        {.name = "i16", .dtype = DTYPE_I16, .ndim = 1, .shape = {3}},
        {.name = "i8", .dtype = DTYPE_I8, .ndim = 1, .shape = {3}},
        {.name = "bool", .dtype = DTYPE_BOOL, .ndim = 1, .shape = {3}},
        {.name = "empty", .dtype = DTYPE_F32, .ndim = 2, .shape = {0, 4}},
        {.name = "\xc3\xa9\xe4\xb8\xad \"quoted\"", .dtype = DTYPE_F32, .ndim = 1, .shape = {1}},
        {.name = "large",
         .dtype = DTYPE_F32,
         .ndim = 2,
         .shape = {1500, 1001}}, /* 5.7 MiB: several chunks and threads */
    };
    uint32_t random = 1;
    for (int i = 0; i < SAMPLE_ROWS; i++) {
        s->rows[i] = rows[i];
        int64_t count = shape_count(rows[i].shape, rows[i].ndim);
        size_t bytes = (size_t)count * dtype_bytes(rows[i].dtype);
        uint8_t *p = xmalloc(bytes);
        if (rows[i].dtype == DTYPE_F32)
            for (int64_t k = 0; k < count; k++)
                ((float *)(void *)p)[k] = (float)(int32_t)next_random(&random) / 1e9f;
        else
            for (size_t k = 0; k < bytes; k++)
                p[k] = (uint8_t)(next_random(&random) >> (rows[i].dtype == DTYPE_BOOL ? 31 : 24));
        s->rows[i].data = s->values[i] = p;
    }
}

static void free_sample(struct sample *s)
{
    for (int i = 0; i < SAMPLE_ROWS; i++) free(s->values[i]);
}

static void assert_sample(const char *path, const struct sample *s)
{
    struct error err = {0};
    struct weights *w;
    if (weights_open(&w, path, &err)) fail_msg("%s: %s", path, err.what);
    assert_int_equal(weights_count(w), SAMPLE_ROWS);
    for (int i = 0; i < SAMPLE_ROWS; i++) {
        const struct weights_tensor *t = weights_tensor(w, i);
        size_t bytes = (size_t)t->count * dtype_bytes(t->dtype);
        uint8_t *p = xmalloc(bytes);
        assert_string_equal(t->name, s->rows[i].name);
        assert_int_equal(weights_find(w, t->name), i);
        assert_int_equal(t->dtype, s->rows[i].dtype);
        assert_int_equal(t->ndim, s->rows[i].ndim);
        assert_memory_equal(t->shape, s->rows[i].shape, sizeof t->shape);
        if (weights_read(w, i, p, t->dtype, &err)) fail_msg("%s: %s", path, err.what);
        assert_memory_equal(p, s->values[i], bytes);
        free(p);
    }
    weights_close(w);
}

static int read_row(void *context, size_t offset, void *dst, size_t bytes, struct error *err)
{
    (void)err;
    memcpy(dst, (const uint8_t *)context + offset, bytes);
    return 0;
}

static int write_file(const char *path, const struct weights_row *rows, int64_t count, struct error *err)
{
    static const char *const metadata[] = {"format", "pt", "step", "12\n", NULL};
    const char *dot = strrchr(path, '.');
    return strcmp(dot, ".pt") == 0 ? weights_write_pt(path, rows, count, metadata, err)
                                   : weights_write_safetensors(path, rows, count, metadata, err);
}

static void what_is_written_is_read_again(void **state)
{
    static const char *const names[] = {"sample.pt", "sample.safetensors"};
    struct sample s;
    struct error err = {0};
    make_sample(&s);
    for (int i = 0; i < 2; i++) {
        char *path = in_directory(names[i]);
        if (write_file(path, s.rows, SAMPLE_ROWS, &err)) fail_msg("%s", err.what);
        assert_sample(path, &s);
        struct sample streamed = s;
        for (int k = 0; k < SAMPLE_ROWS; k++)
            streamed.rows[k] = s.rows[k], streamed.rows[k].data = NULL, streamed.rows[k].read = read_row,
            streamed.rows[k].context = s.values[k];
        char *first, *second;
        size_t first_bytes, second_bytes;
        assert_int_equal(file_read(path, 1 << 24, &first, &first_bytes, &err), 0);
        assert_int_equal(write_file(path, streamed.rows, SAMPLE_ROWS, &err), 0);
        assert_int_equal(file_read(path, 1 << 24, &second, &second_bytes, &err), 0);
        assert_int_equal(first_bytes, second_bytes); /* the same bytes, streamed or not, now or later */
        assert_memory_equal(first, second, first_bytes);
        free(first), free(second), free(path);
    }
    struct weights *w;
    char *path = in_directory("sample.pt");
    assert_int_equal(weights_open(&w, path, &err), 0);
    assert_string_equal(weights_metadata(w, "step"), "12\n");
    weights_close(w);
    free(path);
    path = in_directory("sample.safetensors");
    assert_int_equal(weights_open(&w, path, &err), 0);
    assert_string_equal(weights_metadata(w, "step"), "12\n");
    assert_null(weights_metadata(w, "none"));
    assert_int_equal(weights_find(w, "none"), -1);
    for (int i = 0; i < SAMPLE_ROWS; i++) /* as safetensors itself lays them out */
        assert_int_equal((w->rows[i].offset) % dtype_bytes(w->rows[i].tensor.dtype), 0);
    weights_close(w);
    free(path);
    free_sample(&s);
}

static void payloads_of_a_pt_are_aligned_to_64_bytes(void **state)
{
    struct sample s;
    struct error err = {0};
    struct weights *w;
    make_sample(&s);
    char *path = in_directory("aligned.pt");
    assert_int_equal(weights_write_pt(path, s.rows, SAMPLE_ROWS, NULL, &err), 0);
    assert_int_equal(weights_open(&w, path, &err), 0);
    for (int64_t i = 0; i < w->payload_count; i++) assert_int_equal(w->payloads[i].offset % 64, 0);
    weights_close(w);
    free(path);
    free_sample(&s);
}

static void more_members_than_16_bits_count(void **state)
{
    enum { COUNT = 66000 };
    struct weights_row *rows = xcalloc(COUNT, sizeof *rows);
    char(*names)[16] = xcalloc(COUNT, sizeof *names);
    float *values = xcalloc(COUNT, sizeof *values), value;
    struct error err = {0};
    struct weights *w;
    for (int i = 0; i < COUNT; i++) {
        snprintf(names[i], sizeof names[i], "t%d", i);
        values[i] = (float)i;
        rows[i] = (struct weights_row){.name = names[i], .dtype = DTYPE_F32, .data = &values[i]};
    }
    char *path = in_directory("many.pt");
    if (weights_write_pt(path, rows, COUNT, NULL, &err)) fail_msg("%s", err.what);
    if (weights_open(&w, path, &err)) fail_msg("%s", err.what);
    assert_int_equal(weights_count(w), COUNT);
    assert_int_equal(weights_read(w, COUNT - 1, &value, DTYPE_F32, &err), 0);
    assert_true(value == COUNT - 1);
    weights_close(w);
    unlink(path);
    free(path), free(rows), free(names), free(values);
}

/* Writing something and then stretching it: the payload of "w" grows by a hole beyond 4 GiB in front of it
 * and inside it, as torch's own zip64 files have it (sizes and offsets saturated in the directory). */
static void put(uint8_t **p, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++) *(*p)++ = (uint8_t)(v >> 8 * i);
}

static uint64_t put_local(int fd, uint64_t at, const char *name, const void *data, size_t bytes)
{
    uint8_t header[128] = {0}, *p = header;
    put(&p, 0x04034b50, 4), put(&p, 45, 2), put(&p, 0x0808, 2);
    p = header + 26; /* sizes and checksum zero, as torch leaves them */
    put(&p, strlen(name), 2), put(&p, 0, 2);
    memcpy(p, name, strlen(name));
    p += strlen(name);
    assert_int_equal(pwrite(fd, header, (size_t)(p - header), (off_t)at), p - header);
    at += (uint64_t)(p - header);
    assert_int_equal(pwrite(fd, data, bytes, (off_t)at), bytes);
    return at;
}

static void put_central(uint8_t **p, const char *name, uint64_t bytes, uint64_t at)
{
    bool large = bytes >= UINT32_MAX, far = at >= UINT32_MAX;
    put(p, 0x02014b50, 4), put(p, 45, 2), put(p, 45, 2), put(p, 0x0808, 2), put(p, 0, 2), put(p, 0, 4),
        put(p, 0, 4);
    put(p, large ? UINT32_MAX : bytes, 4), put(p, large ? UINT32_MAX : bytes, 4), put(p, strlen(name), 2);
    put(p, large || far ? 4u + 16u * large + 8u * far : 0, 2), put(p, 0, 2), put(p, 0, 2), put(p, 0, 2),
        put(p, 0, 4), put(p, far ? UINT32_MAX : at, 4);
    memcpy(*p, name, strlen(name));
    *p += strlen(name);
    if (large || far) put(p, 1, 2), put(p, 16u * large + 8u * far, 2);
    if (large) put(p, bytes, 8), put(p, bytes, 8);
    if (far) put(p, at, 8);
}

static void a_sparse_file_beyond_4_gib_is_read(void **state)
{
    /* {"big": 1.25 G floats in storage 0, "tail": 3 floats in storage 1} */
    const uint64_t big_bytes = (uint64_t)5 << 30;
    uint8_t pickle[512], *p = pickle, directory_bytes[1024], *d = directory_bytes;
    static const char tensor[] =
        "ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0";
    memcpy(p, "\x80\2}(", 4), p += 4;
    for (int i = 0; i < 2; i++) {
        memcpy(p, i ? "X\4\0\0\0tail" : "X\3\0\0\0big", i ? 9 : 8), p += i ? 9 : 8;
        memcpy(p, tensor, sizeof tensor - 1), p += sizeof tensor - 1;
        *p++ = (uint8_t)('0' + i);
        memcpy(p, "X\3\0\0\0cpu\x8a\x08", 10), p += 10;
        put(&p, i ? 3 : big_bytes / 4, 8);
        memcpy(p, "tQK\0\x8a\x08", 6), p += 6;
        put(&p, i ? 3 : big_bytes / 4, 8);
        memcpy(p, "\x85K\1\x85\x89}tR", 8), p += 8;
    }
    memcpy(p, "u.", 2), p += 2;

    char *path = in_directory("sparse.pt");
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    static const float tail[] = {1, 2, 3};
    const float last = 4.5f;
    uint64_t big = put_local(fd, 4096, "sparse/data/0", "", 0), far = big + big_bytes;
    assert_int_equal(pwrite(fd, &last, 4, (off_t)(far - 4)), 4);
    put_local(fd, 0, "sparse/data.pkl", pickle, (size_t)(p - pickle));
    uint64_t end = put_local(fd, far, "sparse/data/1", tail, sizeof tail) + sizeof tail;
    put_central(&d, "sparse/data.pkl", (uint64_t)(p - pickle), 0);
    put_central(&d, "sparse/data/0", big_bytes, 4096);
    put_central(&d, "sparse/data/1", sizeof tail, far);
    uint64_t central_bytes = (uint64_t)(d - directory_bytes);
    put(&d, 0x06064b50, 4), put(&d, 44, 8), put(&d, 45, 2), put(&d, 45, 2), put(&d, 0, 8), put(&d, 3, 8),
        put(&d, 3, 8), put(&d, central_bytes, 8), put(&d, end, 8);
    put(&d, 0x07064b50, 4), put(&d, 0, 4), put(&d, end + central_bytes, 8), put(&d, 1, 4);
    put(&d, 0x06054b50, 4), put(&d, 0, 4), put(&d, 3, 2), put(&d, 3, 2), put(&d, central_bytes, 4),
        put(&d, UINT32_MAX, 4), put(&d, 0, 2);
    assert_int_equal(pwrite(fd, directory_bytes, (size_t)(d - directory_bytes), (off_t)end),
                     d - directory_bytes);
    close(fd);

    struct error err = {0};
    struct weights *w;
    float values[3];
    if (weights_open(&w, path, &err)) fail_msg("%s", err.what);
    assert_int_equal(weights_tensor(w, 0)->count, big_bytes / 4);
    if (weights_read(w, 1, values, DTYPE_F32, &err)) fail_msg("%s", err.what);
    assert_memory_equal(values, tail, sizeof tail);
    float read_back;
    memcpy(&read_back, w->sources[0].map.data + w->rows[0].offset + big_bytes - 4, 4);
    assert_true(read_back == last);
    weights_close(w);
    unlink(path);
    free(path);
}

static void overwrite(const char *path, const void *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    struct error err;
    assert_int_equal(file_write_all(fd, data, bytes, path, &err), 0);
    close(fd);
}

static int entries_in(const char *dir)
{
    char *command = xasprintf("ls -A '%s' | wc -l", dir);
    FILE *pipe = popen(command, "r");
    int n = -1;
    assert_int_equal(fscanf(pipe, "%d", &n), 1);
    pclose(pipe);
    free(command);
    return n;
}

static int refuse_in_the_middle(void *context, size_t offset, void *dst, size_t bytes, struct error *err)
{
    memset(dst, 0, bytes);
    return offset ? error_set(err, EXIT_CARD_MEMORY, NULL, "%s", (const char *)context) : 0;
}

static void a_full_disk_leaves_no_file(void **state)
{
    static const char *const names[] = {"full.pt", "full.safetensors"};
    char *dir = in_directory("full");
    struct sample s;
    make_sample(&s);
    assert_int_equal(mkdir(dir, 0700), 0);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit before, limit;
    getrlimit(RLIMIT_FSIZE, &before);
    for (int i = 0; i < 2; i++) {
        char *path = path_join(dir, names[i]);
        struct error err = {0};
        overwrite(path, "old", 3);
        for (rlim_t most = 0; most < 6100000; most = most * 3 + 500) {
            limit = (struct rlimit){most, before.rlim_max};
            setrlimit(RLIMIT_FSIZE, &limit);
            int code = write_file(path, s.rows, SAMPLE_ROWS, &err);
            setrlimit(RLIMIT_FSIZE, &before);
            assert_int_equal(code, EXIT_DISK);
            assert_true(err.file[0] && err.hint[0]);
            assert_int_equal(entries_in(dir), 1 + i);
        }
        char *old;
        size_t bytes;
        assert_int_equal(file_read(path, 1 << 24, &old, &bytes, &err), 0);
        assert_int_equal(bytes, 3); /* what was there is still there */
        free(old);
        struct weights_row row = {.name = "w",
                                  .dtype = DTYPE_F32,
                                  .ndim = 1,
                                  .shape = {4 << 20},
                                  .read = refuse_in_the_middle,
                                  .context = "no more"};
        assert_int_equal(write_file(path, &row, 1, &err), EXIT_CARD_MEMORY);
        assert_string_equal(err.what, "no more");
        assert_int_equal(entries_in(dir), 1 + i);
        free(path);
    }
    free(dir);
    free_sample(&s);
}

static void what_could_not_be_read_again_is_not_written(void **state)
{
    static const float zero;
    struct error err = {0};
    char *path = in_directory("never.pt");
    const struct weights_row good = {.name = "w", .dtype = DTYPE_F32, .data = &zero};
    struct weights_row rows[2] = {good, good};
    assert_int_equal(write_file(path, rows, 2, &err), EXIT_FAILED); /* twice the same name */
    rows[1].name = "";
    assert_int_equal(write_file(path, rows, 2, &err), EXIT_FAILED);
    rows[1] = good, rows[1].name = "v", rows[1].ndim = 1, rows[1].shape[0] = -1;
    assert_int_equal(write_file(path, rows, 2, &err), EXIT_FAILED);
    rows[1].ndim = 9;
    assert_int_equal(write_file(path, rows, 2, &err), EXIT_FAILED);
    rows[1].ndim = 0, rows[1].data = NULL;
    assert_int_equal(write_file(path, rows, 2, &err), EXIT_FAILED);
    assert_int_equal(write_file(path, rows, 0, &err), EXIT_FAILED);
    assert_int_not_equal(access(path, F_OK), 0);
    struct weights *w;
    assert_int_equal(weights_open(&w, path, &err), EXIT_FAILED);
    assert_string_equal(err.file, path);
    free(path);
}

/* Long: 4.3 GiB are really written. */
static void a_pt_beyond_4_gib_is_written(void **state)
{
    if (!getenv("MEOPT_LONG")) skip();
    const int64_t count = (int64_t)4300 << 18; /* 4300 MiB of floats */
    float *values = calloc((size_t)count, 4), last[2];
    assert_non_null(values);
    values[count - 1] = 5;
    const struct weights_row rows[] = {
        {.name = "big", .dtype = DTYPE_F32, .ndim = 1, .shape = {count}, .data = values},
        {.name = "tail", .dtype = DTYPE_F32, .ndim = 1, .shape = {2}, .data = values + count - 2}};
    struct error err = {0};
    struct weights *w;
    char *path = in_directory("big.pt");
    if (weights_write_pt(path, rows, 2, NULL, &err)) fail_msg("%s", err.what);
    if (weights_open(&w, path, &err)) fail_msg("%s", err.what);
    memset(values, 1, 4096);
    if (weights_read(w, 0, values, DTYPE_F32, &err)) fail_msg("%s", err.what);
    assert_true(values[0] == 0 && values[count - 1] == 5);
    if (weights_read(w, 1, last, DTYPE_F32, &err)) fail_msg("%s", err.what);
    assert_true(last[0] == 0 && last[1] == 5);
    weights_close(w);
    unlink(path);
    free(path), free(values);
}

static int clean(void **state)
{
    struct error err;
    return file_remove_tree(directory, &err);
}

static int write_for_torch(const char *dir)
{
    struct sample s;
    struct error err = {0};
    make_sample(&s);
    char *pt = path_join(dir, "sample.pt"), *safetensors = path_join(dir, "sample.safetensors");
    int code = write_file(pt, s.rows, SAMPLE_ROWS, &err);
    if (code == 0) code = write_file(safetensors, s.rows, SAMPLE_ROWS, &err);
    if (code) error_print(&err);
    free(pt), free(safetensors);
    free_sample(&s);
    return code;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "write") == 0) return write_for_torch(argv[2]);
    if (!mkdtemp(directory)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_again),
        cmocka_unit_test(payloads_of_a_pt_are_aligned_to_64_bytes),
        cmocka_unit_test(more_members_than_16_bits_count),
        cmocka_unit_test(a_sparse_file_beyond_4_gib_is_read),
        cmocka_unit_test(a_full_disk_leaves_no_file),
        cmocka_unit_test(what_could_not_be_read_again_is_not_written),
        cmocka_unit_test(a_pt_beyond_4_gib_is_written),
    };
    return cmocka_run_group_tests(tests, NULL, clean);
}
