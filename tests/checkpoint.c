/* Checkpoints on disk: what was saved comes back, a damaged one is passed over, a failed save leaves what was
 * there, and as many stay as are kept. No model and no optimizer: tensors and records are numbers made here.
 */
#include "core/base/file.h"
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

static int setup(void **state)
{
    (void)state;
    log_level = LOG_QUIET;
    refused_record = -1;
    strcpy(directory, "/tmp/meopt-ckpt-XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return file_remove_tree(directory, NULL);
}

static int fill(void *context, int64_t index, void *dst, size_t bytes, struct error *err)
{
    if (index == refused_record) return error_set(err, EXIT_HOST_MEMORY, NULL, "record refused");
    memset(dst, *(const int *)context + (int)index, bytes);
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
    struct checkpoint_content content = {rows, 2, records, RECORDS, json_pack("{s:f}", "norm", seed / 3.0)};
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

static int same_record(void *context, int64_t index, const void *record, size_t bytes, struct error *err)
{
    (void)err;
    assert_int_equal(bytes, record_bytes[index]);
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(((const uint8_t *)record)[i], *(const int *)context + index);
    return 0;
}

static void expect(int64_t step, int seed)
{
    struct checkpoint c;
    struct error err = {0};
    if (checkpoint_newest(&c, directory, &err)) fail_msg("%s", err.what);
    assert_int_equal(c.step, step);
    assert_int_equal(json_integer_value(json_object_get(c.manifest, "step")), step);
    assert_true(json_real_value(json_object_get(c.manifest, "norm")) == seed / 3.0);
    if (checkpoint_tensors(&c, rows, 2, same_tensor, &seed, &err)) fail_msg("%s", err.what);
    if (checkpoint_records(&c, RECORDS, same_record, &seed, &err)) fail_msg("%s", err.what);
    checkpoint_close(&c);
}

static char *within(int64_t step, const char *name)
{
    return xasprintf("%s/ckpt/step-%08lld/%s", directory, (long long)step, name);
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

static void what_was_saved_comes_back(void **state)
{
    (void)state;
    struct checkpoint c;
    struct error err = {0};
    assert_int_equal(checkpoint_newest(&c, directory, &err), 0);
    assert_int_equal(c.step, -1); /* none */
    assert_int_equal(save(7, 2, 1, &err), 0);
    expect(7, 1);
    assert_int_equal(save(7, 2, 2, &err), 0); /* over the same step */
    expect(7, 2);
    char *latest = path_join(directory, "ckpt/LATEST"), *text = NULL;
    size_t bytes;
    assert_int_equal(file_read(latest, 100, &text, &bytes, NULL), 0);
    assert_string_equal(text, "step-00000007");
    free(text);
    free(latest);
}

static void a_damaged_one_is_passed_over(void **state)
{
    (void)state;
    static const char *const files[] = {"model.safetensors", "optimizer.bin"};
    struct error err = {0};
    struct checkpoint c;
    for (int64_t step = 1; step <= 4; step++) assert_int_equal(save(step, 9, (int)step, &err), 0);
    for (int i = 0; i < 2; i++) {
        damage(4 - i, files[i]);
        expect(3 - i, 3 - i);
    }
    char *manifest = within(2, "MANIFEST.json");
    assert_int_equal(unlink(manifest), 0);
    free(manifest);
    expect(1, 1);
    char *cut = within(1, "optimizer.bin");
    assert_int_equal(truncate(cut, 100), 0);
    free(cut);
    assert_int_equal(checkpoint_newest(&c, directory, &err), EXIT_INTEGRITY);
    assert_string_equal(err.what, "no checkpoint of the run is whole");
}

static void a_save_that_fails_leaves_what_was_there(void **state)
{
    (void)state;
    struct error err = {0};
    int count;
    assert_int_equal(save(1, 1, 1, &err), 0);
    refused_record = 2;
    assert_int_equal(save(2, 1, 2, &err), EXIT_HOST_MEMORY);
    assert_string_equal(err.what, "record refused");
    char *partial = xasprintf("%s/ckpt/step-00000002.partial", directory);
    assert_int_not_equal(access(partial, F_OK), 0);
    free(partial);
    free(checkpoint_steps(directory, &count));
    assert_int_equal(count, 1);
    expect(1, 1);
}

static void as_many_stay_as_are_kept(void **state)
{
    (void)state;
    struct error err = {0};
    int count;
    for (int64_t step = 5; step <= 30; step += 5) assert_int_equal(save(step, 3, (int)step, &err), 0);
    int64_t *steps = checkpoint_steps(directory, &count);
    assert_int_equal(count, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(steps[i], 30 - 5 * i);
    free(steps);
    assert_int_equal(save(35, 0, 7, &err), 0); /* none cannot be kept: the one just written stays */
    steps = checkpoint_steps(directory, &count);
    assert_int_equal(count, 1);
    free(steps);
    expect(35, 7);
}

static void the_newest_of_thousands_is_found(void **state)
{
    (void)state;
    struct error err = {0};
    int count;
    assert_int_equal(save(5000, 9999, 3, &err), 0);
    for (int step = 1; step <= 3000; step++) {
        char *empty = within(step, "");
        assert_int_equal(mkdir(empty, 0777), 0);
        free(empty);
    }
    int64_t *steps = checkpoint_steps(directory, &count);
    assert_int_equal(count, 3001);
    assert_int_equal(steps[0], 5000);
    for (int i = 1; i < count; i++) assert_int_equal(steps[i], 3001 - i);
    free(steps);
    expect(5000, 3);
}

static void another_shape_is_refused(void **state)
{
    (void)state;
    struct error err = {0};
    struct checkpoint c;
    int seed = 1;
    struct weights_row other[2] = {rows[0], rows[1]};
    assert_int_equal(save(1, 1, 1, &err), 0);
    assert_int_equal(checkpoint_newest(&c, directory, &err), 0);
    other[1].shape[0]++;
    assert_int_equal(checkpoint_tensors(&c, other, 2, same_tensor, &seed, &err), EXIT_INTEGRITY);
    other[1] = (struct weights_row){.name = "head", .ndim = 1, .shape = {VALUES}};
    assert_int_equal(checkpoint_tensors(&c, other, 2, same_tensor, &seed, &err), EXIT_INTEGRITY);
    assert_string_equal(err.what, "tensor head is missing or has another shape");
    checkpoint_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_saved_comes_back, setup, teardown),
        cmocka_unit_test_setup_teardown(a_damaged_one_is_passed_over, setup, teardown),
        cmocka_unit_test_setup_teardown(a_save_that_fails_leaves_what_was_there, setup, teardown),
        cmocka_unit_test_setup_teardown(as_many_stay_as_are_kept, setup, teardown),
        cmocka_unit_test_setup_teardown(the_newest_of_thousands_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(another_shape_is_refused, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
