/* The class of each image: from directories, and the classes of validation images. */
#include "core/base/file.h"
#include "core/data/data.h"
#include "core/data/labels.h"
#include "tests/mentions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char work[64];

static int setup(void **state)
{
    (void)state;
    strcpy(work, "/tmp/meopt-labels-XXXXXX");
    return mkdtemp(work) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return file_remove_tree(work, NULL);
}

/* Writes an image below the work directory: a copy of a real one, or a few bytes if it is only listed. */
static void put(const char *name, bool real)
{
    char *path = path_join(work, name), *directory = path_dirname(path), *bytes = NULL;
    size_t size = 1;
    assert_int_equal(file_make_dirs(directory, NULL), 0);
    if (real)
        assert_int_equal(file_read(MEOPT_SOURCE_DIR "/tests/data/preprocess/images/01_base444.jpg", 1 << 24,
                                   &bytes, &size, NULL),
                         0);
    assert_int_equal(file_write_atomic(path, real ? bytes : "x", size, NULL), 0);
    free(bytes);
    free(directory);
    free(path);
}

static void put_all(const char *const *names)
{
    for (; *names; names++) put(*names, false);
}
#define PUT(...) put_all((const char *const[]){__VA_ARGS__, NULL})

static struct data_options options_of(const char *root)
{
    return (struct data_options){.root = root,
                                 .image_size = 16,
                                 .preprocess = preprocess_clip,
                                 .batch = 2,
                                 .ranks = 1,
                                 .workers = 2,
                                 .labels = true};
}

static void expect_labels(const struct image_list *list, const char *classes, const char *labels)
{
    char text[256] = "";
    for (int32_t i = 0; i < list->class_count; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i ? " " : "", list->classes[i]);
    assert_string_equal(text, classes);
    text[0] = 0;
    for (int64_t i = 0; i < list->count; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d", i ? " " : "", list->labels[i]);
    assert_string_equal(text, labels);
}

/* Python's sorted() of these five names. In the order of the paths, "a b/" comes before "a/". */
static void classes_are_sorted_like_imagefolder(void **state)
{
    (void)state;
    struct image_list list;
    struct error err = {0};
    struct data_options o = options_of(work);
    PUT("b/1.jpg", "a b/1.jpg", "a/2.png", "a/deep/1.jpg", "B/1.jpeg", "\xc3\xa9/1.webp", "outside.jpg",
        "empty/notes.txt");
    assert_int_equal(image_list_open(&list, &o, &err), 0);
    expect_labels(&list, "B a a b b \xc3\xa9", "0 2 1 1 3 4");
    assert_true(mentions(list.outside, "1 |outside.jpg|empty"));
    uint32_t hash = image_list_classes_hash(&list);
    list.labels[0] = 1;
    assert_int_not_equal(image_list_classes_hash(&list), hash);
    image_list_free(&list);
    o.exclude = "B,a/2.png";
    assert_int_equal(image_list_open(&list, &o, &err), 0);
    expect_labels(&list, "a a b b \xc3\xa9", "1 0 2 3");
    image_list_free(&list);
    o.labels = false;
    o.exclude = NULL;
    assert_int_equal(image_list_open(&list, &o, &err), 0);
    assert_true(list.count == 7 && !list.labels && image_list_classes_hash(&list) == 0);
    image_list_free(&list);
}

static void a_part_is_no_class(void **state)
{
    (void)state;
    struct image_list list;
    struct error err = {0};
    struct data_options o = options_of(work);
    PUT("set/train/cat/1.jpg", "set/train/dog/1.jpg", "set/train/dog/2.jpg", "set/val/cat/1.jpg",
        "set/val/dog/1.jpg");
    assert_int_equal(image_list_open(&list, &o, &err), 0);
    expect_labels(&list, "cat dog", "0 1 1");
    image_list_free(&list);
    o.validation = true;
    assert_int_equal(image_list_open(&list, &o, &err), 0);
    expect_labels(&list, "cat dog", "0 1");
    assert_string_equal(list.names[0], "set/val/cat/1.jpg");
    image_list_free(&list);
    o.validation = false;
    o.include = "set/train/d*"; /* one class */
    assert_int_equal(image_list_open(&list, &o, &err), EXIT_FAILED);
    assert_true(mentions(err.what, "one class|dog"));
}

static void validation_has_the_classes_of_training(void **state)
{
    (void)state;
    char *train = path_join(work, "t"), *val = path_join(work, "v");
    struct data_options o = options_of(train);
    struct data *d;
    struct image_list list;
    struct error err = {0};
    PUT("t/a/1.jpg", "t/b/1.jpg", "t/c/1.jpg", "v/c/1.jpg", "v/b/1.jpg");
    assert_int_equal(data_open(&d, &o, &err), 0);
    assert_int_equal(data_classes(d), 3);
    assert_string_equal(data_class_name(d, 2), "c");
    o.root = val;
    o.classes = d;
    assert_int_equal(image_list_open(&list, &o, &err), 0);
    expect_labels(&list, "a b c", "1 2");
    assert_true(mentions(list.outside, "1 |validation|a"));
    image_list_free(&list);
    PUT("v/unknown/1.jpg");
    assert_int_equal(image_list_open(&list, &o, &err), EXIT_FAILED);
    assert_true(mentions(err.what, "unknown"));
    assert_string_equal(err.file, val);
    data_close(d);
    free(train);
    free(val);
}

static void batches_have_labels(void **state)
{
    (void)state;
    struct data_options o = options_of(work);
    struct data *d;
    struct data_batch b;
    struct error err = {0};
    put("b/1.jpg", true);
    put("b/2.jpg", true);
    put("a/1.jpg", true);
    put("c/bad.jpg", false);
    o.shuffle = true;
    o.max_bad = 1;
    assert_int_equal(data_open(&d, &o, &err), 0);
    assert_int_equal(data_start(d, 0, &err), 0);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(data_next(d, &b, &err), 0);
        for (int64_t k = 0; k < b.count; k++) {
            assert_int_equal(b.labels[k], data_label(d, b.ids[k]));
            assert_int_equal(b.labels[k], data_name(d, b.ids[k])[0] - 'a');
        }
    }
    data_close(d);
    o.whole = true;
    assert_int_equal(data_open(&d, &o, &err), 0);
    assert_int_equal(data_start(d, 0, &err), 0);
    const int32_t expected[] = {0, 1, 1, -1};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(data_next(d, &b, &err), 0);
        assert_memory_equal(b.labels, expected + 2 * i, 2 * sizeof *expected);
    }
    data_close(d);
}

static void images_without_directories_are_refused(void **state)
{
    (void)state;
    struct data_options o = options_of(work);
    struct image_list list;
    struct error err = {0};
    PUT("1.jpg", "2.jpg");
    assert_int_equal(image_list_open(&list, &o, &err), EXIT_FAILED);
    assert_true(mentions(err.what, "2 |1.jpg, 2.jpg"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {TEST(classes_are_sorted_like_imagefolder), TEST(a_part_is_no_class),
                                       TEST(validation_has_the_classes_of_training),
                                       TEST(batches_have_labels),
                                       TEST(images_without_directories_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
