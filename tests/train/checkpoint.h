/* Checkpoints of numbers made here: no model and no optimizer. */
#ifndef MEOPT_TESTS_TRAIN_CHECKPOINT_H
#define MEOPT_TESTS_TRAIN_CHECKPOINT_H

#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/log.h"
#include "core/run/checkpoint.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

enum { VALUES = 6, RECORDS = 3 };

static char directory[64];
static float values[2][VALUES];
static const size_t record_bytes[RECORDS] = {5, 0, 70000};
static int64_t refused_record = -1;
static int record_more;      /* bytes that a record has more than its size */
static int writers, failing; /* how many write records, and which of them cannot */

static int setup(void **state)
{
    log_level = LOG_QUIET;
    refused_record = failing = -1;
    record_more = 0;
    writers = 1;
    strcpy(directory, "/tmp/meopt-ckpt-XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

static int teardown(void **state) { return file_remove_tree(directory, NULL); }

static int fill(void *context, int64_t index, checkpoint_put *put, void *file, struct error *err)
{
    char part[1000];
    int code = 0;
    if (index == refused_record) return error_set(err, EXIT_HOST_MEMORY, NULL, "record refused");
    memset(part, *(const int *)context + (int)index, sizeof part);
    for (size_t left = record_bytes[index] + (size_t)record_more; left && !code;) {
        size_t some = left < sizeof part ? left : sizeof part;
        code = put(file, part, some, err);
        left -= some;
    }
    return code;
}

/* What each of several writers holds of a record: all of it, its own number in front. */
struct part {
    int number, seed;
};

static int fill_part(void *context, int64_t index, checkpoint_put *put, void *file, struct error *err)
{
    const struct part *part = context;
    char number = (char)part->number;
    int code = put(file, &number, 1, err);
    return code ? code : fill((void *)(uintptr_t)&part->seed, index, put, file, err);
}

struct others {
    int64_t step;
    int seed;
};

static int write_all(void *context, struct checkpoint_written *all, struct error *err)
{
    const struct others *o = context;
    for (int w = 0; w < writers; w++) {
        struct part part = {w, o->seed};
        struct checkpoint_record records[RECORDS];
        if (w == failing) return error_set(err, EXIT_DISK, NULL, "writer %d has no room", w);
        for (int i = 0; i < RECORDS; i++)
            records[i] = (struct checkpoint_record){record_bytes[i] + 1, fill_part, &part};
        int code = checkpoint_save_part(directory, o->step, w, writers, records, RECORDS, &all[w], err);
        if (code) return code;
    }
    return 0;
}

static const struct weights_row rows[2] = {
    {.name = "blocks.0.weight", .dtype = DTYPE_F32, .ndim = 2, .shape = {2, 3}, .data = values[0]},
    {.name = "bias", .dtype = DTYPE_F32, .ndim = 1, .shape = {VALUES}, .data = values[1]}};

static int save(int64_t step, int keep, int seed, struct error *err)
{
    struct checkpoint_record records[RECORDS];
    for (int i = 0; i < RECORDS; i++) records[i] = (struct checkpoint_record){record_bytes[i], fill, &seed};
    for (int i = 0; i < 2 * VALUES; i++) values[i / VALUES][i % VALUES] = (float)(seed * 100 + i) / 3;
    struct others others = {step, seed};
    struct checkpoint_content content = {.tensors = rows,
                                         .tensor_count = 2,
                                         .records = records,
                                         .record_count = RECORDS,
                                         .more = json_pack("{s:f}", "norm", seed / 3.0),
                                         .writers = writers,
                                         .gather = write_all,
                                         .context = &others};
    int code = checkpoint_save(directory, step, keep, &content, err);
    json_decref(content.more);
    return code;
}

static int same_tensor(void *context, int64_t index, const float *found, struct error *err)
{
    (void)err;
    for (int i = 0; i < VALUES; i++)
        assert_true(found[i] == (float)(*(const int *)context * 100 + index * VALUES + i) / 3);
    return 0;
}

static int same_record(void *context, int64_t index, const void *const *parts, const size_t *bytes,
                       struct error *err)
{
    size_t before = writers > 1;
    (void)err;
    for (int w = 0; w < writers; w++) {
        const uint8_t *record = parts[w];
        assert_int_equal(bytes[w], record_bytes[index] + before);
        if (before) assert_int_equal(record[0], w);
        for (size_t i = before; i < bytes[w]; i++) assert_int_equal(record[i], *(const int *)context + index);
    }
    return 0;
}

static void expect(int64_t step, int seed)
{
    struct checkpoint c;
    struct error err = {0};
    if (checkpoint_newest(&c, directory, false, &err)) fail_msg("%s", err.what);
    assert_int_equal(c.step, step);
    assert_int_equal(json_integer_value(json_object_get(c.manifest, "step")), step);
    assert_true(json_real_value(json_object_get(c.manifest, "norm")) == seed / 3.0);
    if (checkpoint_tensors(&c, rows, 2, NULL, same_tensor, &seed, &err)) fail_msg("%s", err.what);
    if (checkpoint_records(&c, RECORDS, NULL, same_record, &seed, &err)) fail_msg("%s", err.what);
    checkpoint_close(&c);
}

static char *within(int64_t step, const char *name)
{
    return xasprintf("%s/ckpt/step-%08lld/%s", directory, (long long)step, name);
}

static int64_t *list_steps(int *count)
{
    int64_t *steps;
    struct error err = {0};
    if (checkpoint_steps(directory, &steps, count, &err)) fail_msg("%s", err.what);
    return steps;
}

static int count_steps(void)
{
    int count;
    free(list_steps(&count));
    return count;
}

/* Another byte in the middle of the file. */
static void damage(int64_t step, const char *name)
{
    char *path = within(step, name), *text = NULL;
    size_t bytes;
    assert_int_equal(file_read(path, 1 << 20, &text, &bytes, NULL), 0);
    text[bytes / 2] ^= 1;
    int fd = open(path, O_WRONLY | O_TRUNC);
    assert_int_equal(file_write_all(fd, text, bytes, path, NULL), 0);
    close(fd);
    free(text);
    free(path);
}

#endif
