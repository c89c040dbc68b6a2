/* The teacher's outputs in a file: what the teacher gives, computed once, and never taken from a file that is
 * not of these images. */
#include "core/train/teacher_cache.h"
#include "core/train/experiment.h"
#include "tests/tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
#include <cmocka.h>

enum { IMAGES = 5 };

static struct tiny tiny;
static char *path;

static int setup(void **state)
{
    (void)state;
    int code = tiny_begin(&tiny);
    path = path_join(tiny.directory, "teacher.safetensors");
    return code;
}

static int teardown(void **state)
{
    (void)state;
    free(path);
    return tiny_end(&tiny);
}

static int fill(void *context, struct trainer *t, struct error *err)
{
    (void)context;
    return teacher_cache_fill(t, path, err);
}

/* The cache of a trainer opened anew: (*images, *row) values, the caller frees. */
static float *cached(int64_t *images, int64_t *row)
{
    struct error err = {0};
    if (tiny_open(&tiny, "train.cache_teacher=true", fill, NULL, &err)) fail_msg("%s", err.what);
    struct trainer *t = tiny.trainer;
    *images = t->cache_images;
    *row = t->student->out_rows * t->student->out_width;
    assert_null(t->teacher); /* its memory is the student's now */
    float *copy = xmalloc((size_t)(*images * *row) * sizeof *copy);
    memcpy(copy, t->cache, (size_t)(*images * *row) * sizeof *copy);
    tiny_close(&tiny);
    return copy;
}

/* Of each image by a teacher that stays. */
static float *computed(int64_t images, int64_t row)
{
    struct error err = {0};
    struct data *data;
    struct data_batch batch;
    float *out = xmalloc((size_t)(images * row) * sizeof *out);
    if (tiny_open(&tiny, NULL, NULL, NULL, &err)) fail_msg("%s", err.what);
    struct data_options options = train_data_options(&tiny.config);
    options.whole = true;
    options.shuffle = false;
    options.batch = 1;
    assert_int_equal(data_open(&data, &options, &err), 0);
    assert_int_equal(data_start(data, 0, &err), 0);
    for (int64_t i = 0; i < images; i++) {
        assert_int_equal(data_next(data, &batch, &err), 0);
        assert_int_equal(batch.count, 1);
        float *to = out + batch.ids[0] * row;
        assert_int_equal(trainer_embed_teacher(tiny.trainer, &(struct batch){batch.images, 1}, to, &err), 0);
    }
    data_close(data);
    tiny_close(&tiny);
    return out;
}

static void rewrite(const float *values, int64_t images, int64_t row)
{
    struct weights_row table = {
        .name = "teacher", .dtype = DTYPE_F32, .ndim = 2, .shape = {images, row}, .data = values};
    assert_int_equal(weights_write_safetensors(path, &table, 1, NULL, NULL), 0);
}

static void it_holds_what_the_teacher_gives(void **state)
{
    (void)state;
    int64_t images, row, again;
    float *first = cached(&images, &row), *direct = computed(images, row), *second;
    assert_int_equal(images, IMAGES);
    assert_memory_equal(first, direct, (size_t)(images * row) * sizeof *first);
    second = cached(&again, &row); /* from the file */
    assert_int_equal(again, IMAGES);
    assert_memory_equal(first, second, (size_t)(images * row) * sizeof *first);
    free(second);
    free(direct);
    free(first);
}

static void it_is_computed_once(void **state)
{
    (void)state;
    int64_t images, row;
    float *values = cached(&images, &row), *found;
    for (int64_t i = 0; i < images * row; i++) values[i] = (float)i;
    rewrite(values, images, row); /* a file that the teacher cannot have made */
    found = cached(&images, &row);
    assert_memory_equal(values, found, (size_t)(images * row) * sizeof *values);
    free(found);
    free(values);
}

static void a_file_that_does_not_fit_is_made_anew(void **state)
{
    (void)state;
    int64_t images, row;
    float *right = cached(&images, &row), *found;
    size_t bytes = (size_t)(images * row) * sizeof *right;
    float *zeros = xcalloc(1, bytes);
    rewrite(zeros, images - 1, row);
    found = cached(&images, &row);
    assert_memory_equal(right, found, bytes);
    free(found);
    assert_int_equal(file_write_atomic(path, "no safetensors", 14, NULL), 0);
    found = cached(&images, &row);
    assert_memory_equal(right, found, bytes);
    free(found);
    assert_int_equal(tiny_image(&tiny, "another.jpg", "07_tall.jpg"), 0);
    found = cached(&images, &row);
    assert_int_equal(images, IMAGES + 1);
    free(found);
    free(zeros);
    free(right);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(it_holds_what_the_teacher_gives, setup, teardown),
        cmocka_unit_test_setup_teardown(it_is_computed_once, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_that_does_not_fit_is_made_anew, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
