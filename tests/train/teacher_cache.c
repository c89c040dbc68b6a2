/* The file of the teacher's outputs: equal to the teacher's outputs, computed once, also by a process that
 * was killed. It is never used with different images or a different teacher, nor for an image without an
 * entry. */
#include "core/weights/cached_rows.h"
#include "core/train/teacher_cache.h"
#include "core/experiment/experiment.h"
#include "tests/train/tiny.h"

#include <fcntl.h>
#include <math.h>
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
    int code = tiny_begin(&tiny);
    path = path_join(tiny.directory, "teacher.rows");
    return code;
}

static int teardown(void **state)
{
    free(path);
    return tiny_end(&tiny);
}

static struct {
    int64_t stop_at; /* rows after which the pass is ended; 0: never */
    int64_t first;   /* rows that were there when it was first asked, -1: it was not */
    bool other;      /* another teacher */
    bool streamed;   /* whose weights come block by block */
} wanted;

enum { KILLED = 99 };

static int tick(void *context, int64_t done, int64_t images, struct error *err)
{
    (void)context;
    (void)err;
    assert_int_equal(images > 0, 1);
    if (wanted.first < 0) wanted.first = done;
    return wanted.stop_at && done >= wanted.stop_at ? KILLED : 0;
}

static int fill(void *context, struct trainer *t, struct error *err)
{
    (void)context;
    wanted.first = -1;
    if (wanted.other) {
        const struct parameter *p =
            &t->teachers[0].tower->parameters[t->teachers[0].tower->parameter_count - 1];
        t->device->upload(t->device, p->weight, &(float){3}, sizeof(float));
    }
    return teacher_cache_fill(t, path, tick, NULL, err);
}

/* The cache of a trainer opened anew: (*images, *row) values, the caller frees. */
static float *cached(int64_t *images, int64_t *row)
{
    struct error err = {0};
    const char *streamed = "train.cache_teacher=true model_t.place=streamed train.scratch_dir=/tmp";
    if (tiny_open(&tiny, wanted.streamed ? streamed : "train.cache_teacher=true", fill, NULL, &err))
        fail_msg("%s", err.what);
    struct trainer *t = tiny.trainer;
    *images = t->cache.images;
    *row = t->student->out_rows * t->student->out_width;
    assert_null(t->teachers[0].tower); /* its memory is the student's now */
    float *copy = xmalloc((size_t)(*images * *row) * sizeof *copy);
    memcpy(copy, t->cache.rows, (size_t)(*images * *row) * sizeof *copy);
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
    struct data_options options = experiment_data_options(&tiny.config);
    options.whole = true;
    options.shuffle = false;
    options.batch = 1;
    assert_int_equal(data_open(&data, &options, &err), 0);
    assert_int_equal(data_start(data, 0, &err), 0);
    for (int64_t i = 0; i < images; i++) {
        assert_int_equal(data_next(data, &batch, &err), 0);
        assert_int_equal(batch.count, 1);
        float *to = out + batch.ids[0] * row;
        assert_int_equal(
            trainer_embed_teacher(tiny.trainer, &(struct batch){.input = batch.images, .count = 1}, to, &err),
            0);
    }
    data_close(data);
    tiny_close(&tiny);
    return out;
}

/* The whole file (the caller frees). */
static void stored(char **bytes, size_t *count)
{
    assert_int_equal(file_read(path, 1 << 24, bytes, count, NULL), 0);
}

static void it_holds_what_the_teacher_gives(void **state)
{
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
    int64_t images, row;
    free(cached(&images, &row));
    assert_true(wanted.first > 0);
    free(cached(&images, &row));
    assert_int_equal(wanted.first, -1);
}

static void a_streamed_teacher_gives_the_same_file(void **state)
{
    int64_t images, row;
    float *held = cached(&images, &row), *streamed;
    size_t bytes = (size_t)(images * row) * sizeof *held;
    wanted.streamed = true;
    streamed = cached(&images, &row); /* from the file: its first line says the same teacher */
    assert_int_equal(wanted.first, -1);
    assert_memory_equal(held, streamed, bytes);
    free(streamed);
    assert_int_equal(unlink(path), 0);
    streamed = cached(&images, &row);
    assert_true(wanted.first > 0);
    assert_memory_equal(held, streamed, bytes);
    wanted.streamed = false;
    free(streamed);
    free(held);
}

static void a_pass_that_was_killed_goes_on_with_the_same_bits(void **state)
{
    int64_t images, row;
    float *right = cached(&images, &row), *found;
    assert_int_equal(unlink(path), 0);
    wanted.stop_at = 2;
    struct error err = {0};
    assert_int_equal(tiny_open(&tiny, "train.cache_teacher=true", fill, NULL, &err), KILLED);
    tiny_close(&tiny);
    wanted.stop_at = 0;
    found = cached(&images, &row);
    assert_true(wanted.first > 2); /* two of the first batch were there */
    assert_memory_equal(right, found, (size_t)(images * row) * sizeof *right);
    free(found);
    free(right);
}

static int fetch_first(void *context, int64_t index, struct batch *batch, const int64_t **ids,
                       struct error *err)
{
    static const int64_t first[] = {0, 1};
    (void)index;
    (void)err;
    batch->input = context;
    *ids = first;
    return 0;
}

/* Values of a row in each format, with outliers of 3000 times. */
static void rows_are_as_exact_as_their_format(void **state)
{
    enum { COUNT = 300 };
    static const struct {
        enum cached_type type;
        size_t bytes;
        double off; /* of the group's largest magnitude, or of the value itself */
    } forms[] = {{CACHED_FP32, 1200, 0},
                 {CACHED_BF16, 600, 1.0 / 256},
                 {CACHED_INT8, 310, 0.5 / 127 * (1 + 1.0 / 128)}};
    float values[COUNT], again[COUNT];
    char row[COUNT * sizeof(float)];
    for (int i = 0; i < COUNT; i++) values[i] = (float)sin(i * 1.7) * (i % 50 == 7 ? 3000 : 1);
    for (int i = 64; i < 128; i++) values[i] = 0;
    for (int f = 0; f < 3; f++) {
        assert_int_equal(cached_row_bytes(forms[f].type, COUNT), forms[f].bytes);
        cached_row_encode(forms[f].type, values, COUNT, row);
        cached_row_decode(forms[f].type, row, COUNT, again);
        for (int i = 0; i < COUNT; i++) {
            double top = fabs((double)values[i]);
            for (int k = i / 64 * 64; k < COUNT && k < i / 64 * 64 + 64 && f == 2; k++)
                top = fmax(top, fabs((double)values[k]));
            assert_true(fabs((double)again[i] - (double)values[i]) <= forms[f].off * top);
        }
    }
}

/* The rows of a file that each step reads are those of memory; a damaged one is the error of the step. */
static void a_file_is_read_in_each_step(void **state)
{
    static const char *const types[] = {"fp32", "bf16", "int8"};
    for (int i = 0; i < 3; i++) {
        struct error err = {0};
        double loss[2] = {0, 1};
        for (int disk = 0; disk < 2; disk++) {
            struct step_result result;
            char *settings = xasprintf("train.cache_teacher=true train.cache_type=%s train.cache_place=%s "
                                       "data.val= data.augment=false",
                                       types[i], disk ? "disk" : "memory");
            float *pixels = xcalloc(2 * 3 * 28 * 28, sizeof *pixels);
            if (tiny_open(&tiny, settings, fill, NULL, &err)) fail_msg("%s: %s", settings, err.what);
            struct batch_source source = {.fetch = fetch_first, .context = pixels};
            assert_int_equal(trainer_step(tiny.trainer, 1, 1e-3, &source, &result, &err), 0);
            loss[disk] = result.loss;
            if (disk) {
                char *file;
                size_t count;
                stored(&file, &count);
                file[CACHED_ROWS_AT + 9] ^= 4;
                int fd = open(path, O_WRONLY);
                assert_true(pwrite(fd, file, count, 0) == (ssize_t)count);
                close(fd);
                free(file);
                assert_int_equal(trainer_step(tiny.trainer, 2, 1e-3, &source, &result, &err), EXIT_INTEGRITY);
            }
            tiny_close(&tiny);
            unlink(path);
            free(pixels);
            free(settings);
        }
        assert_true(loss[0] == loss[1]);
    }
}

static void what_is_cut_off_or_damaged_is_computed_again(void **state)
{
    int64_t images, row;
    float *right = cached(&images, &row), *found;
    size_t bytes = (size_t)(images * row) * sizeof *right, count, begin = CACHED_ROWS_AT,
           record = (size_t)cached_slot_bytes(CACHED_FP32, row);
    char *file;
    stored(&file, &count);
    assert_int_equal(count, begin + (size_t)images * record);
    const size_t cuts[] = {0, 5, begin, begin + 7, begin + record, begin + 2 * record + 20, count - 1};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        assert_int_equal(file_write_atomic(path, file, cuts[i], NULL), 0);
        found = cached(&images, &row);
        assert_memory_equal(right, found, bytes);
        free(found);
    }
    const size_t wrong[] = {begin + 3, begin + record + 9, begin + record + 13, begin + 3 * record + 30};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        file[wrong[i]] ^= 4;
        assert_int_equal(file_write_atomic(path, file, count, NULL), 0);
        file[wrong[i]] ^= 4;
        found = cached(&images, &row);
        assert_memory_equal(right, found, bytes);
        free(found);
    }
    free(file);
    free(right);
}

static void a_file_of_other_images_or_another_teacher_is_made_anew(void **state)
{
    int64_t images, row;
    float *right = cached(&images, &row), *found;
    size_t bytes = (size_t)(images * row) * sizeof *right;
    assert_int_equal(file_write_atomic(path, "no such thing", 13, NULL), 0);
    found = cached(&images, &row);
    assert_memory_equal(right, found, bytes);
    free(found);
    wanted.other = true;
    found = cached(&images, &row);
    assert_true(wanted.first > 0);
    assert_memory_not_equal(right, found, bytes);
    free(found);
    wanted.other = false;
    found = cached(&images, &row);
    assert_memory_equal(right, found, bytes);
    free(found);
    assert_int_equal(tiny_image(&tiny, "another.jpg", "07_tall.jpg"), 0);
    found = cached(&images, &row);
    assert_int_equal(images, IMAGES + 1);
    assert_int_equal(wanted.first, 2);
    free(found);
    free(right);
}

static int give_ids(void *context, int64_t index, struct batch *batch, const int64_t **ids, struct error *err)
{
    static float pixels[2 * 3 * 28 * 28];
    (void)index;
    (void)err;
    batch->input = pixels;
    *ids = context;
    return 0;
}

/* The second of the images by name. */
static void set_second(const char *bytes, size_t count)
{
    char *name = path_join(tiny.directory, "02_base422.jpg");
    assert_int_equal(file_write_atomic(name, bytes, count, NULL), 0);
    free(name);
}

static void an_image_without_a_row_is_never_a_target(void **state)
{
    char *bytes, *name = path_join(tiny.directory, "02_base422.jpg");
    size_t count;
    struct error err = {0};
    struct step_result result;
    assert_int_equal(file_read(name, 1 << 24, &bytes, &count, NULL), 0);
    for (int again = 0; again < 2; again++) { /* computed; from the file */
        char *damaged = xcalloc(count, 1);
        set_second(damaged, count);
        free(damaged); /* as long as it was: the list stays the same */
        assert_int_equal(tiny_open(&tiny, "train.cache_teacher=true", fill, NULL, &err), 0);
        assert_int_equal(tiny.trainer->cache.known[1], 0);
        for (int i = 0; i < IMAGES; i++) assert_int_equal(tiny.trainer->cache.known[i], i != 1);
        set_second(bytes, count); /* the error has passed */
        int64_t ids[2] = {0, 1};
        struct batch_source source = {.fetch = give_ids, .context = ids};
        assert_int_equal(trainer_step(tiny.trainer, 1, 1e-3, &source, &result, &err), EXIT_FAILED);
        assert_non_null(strstr(err.what, "image 1"));
        ids[1] = 2;
        assert_int_equal(trainer_step(tiny.trainer, 1, 1e-3, &source, &result, &err), 0);
        tiny_close(&tiny);
    }
    int64_t images, row;
    float *found = cached(&images, &row), *direct = computed(images, row); /* and now it has one */
    assert_memory_equal(found, direct, (size_t)(images * row) * sizeof *found);
    free(direct);
    free(found);
    free(bytes);
    free(name);
}

static struct {
    int (*real)(struct device *, enum memory_class, size_t, void **);
    int countdown; /* the allocation that fails, once */
} memory;

static int scarce(struct device *device, enum memory_class class, size_t bytes, void **p)
{
    return --memory.countdown == 0 ? EXIT_HOST_MEMORY : memory.real(device, class, bytes, p);
}

static int fill_then_scarce(void *context, struct trainer *t, struct error *err)
{
    memory.real = t->device->allocate;
    t->device->allocate = scarce;
    return fill(context, t, err);
}

static void a_failed_allocation_after_the_cache_is_reported(void **state)
{
    bool failed = true;
    for (int k = 1; failed; k++) {
        struct error err = {0};
        memory.countdown = k;
        int code = tiny_open(&tiny, "train.cache_teacher=true", fill_then_scarce, NULL, &err);
        failed = memory.countdown <= 0;
        assert_int_equal(code, failed ? EXIT_HOST_MEMORY : 0);
        assert_true(!failed || err.what[0]);
        assert_true(k > 1 || failed);
        tiny_close(&tiny);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(it_holds_what_the_teacher_gives, setup, teardown),
        cmocka_unit_test_setup_teardown(it_is_computed_once, setup, teardown),
        cmocka_unit_test_setup_teardown(a_streamed_teacher_gives_the_same_file, setup, teardown),
        cmocka_unit_test_setup_teardown(a_pass_that_was_killed_goes_on_with_the_same_bits, setup, teardown),
        cmocka_unit_test(rows_are_as_exact_as_their_format),
        cmocka_unit_test_setup_teardown(a_file_is_read_in_each_step, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_cut_off_or_damaged_is_computed_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_of_other_images_or_another_teacher_is_made_anew, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(an_image_without_a_row_is_never_a_target, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failed_allocation_after_the_cache_is_reported, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
