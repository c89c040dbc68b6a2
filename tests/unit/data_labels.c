/* The class of each image: from directories, and the classes of validation images. */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/data/data.h"
#include "core/data/labels_internal.h"
#include "tests/mentions.h"
#include "tests/work_directory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

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

/* Directories that contain all images are no classes, nor is unlabeled next to train. */
static void directories_above_are_no_classes(void **state)
{
    struct image_list list;
    struct error err = {0};
    struct data_options o = options_of(work);
    PUT("seg_train/seg_train/forest/1.jpg", "seg_train/seg_train/sea/1.jpg", "seg_test/seg_test/sea/1.jpg",
        "seg_pred/1.jpg");
    assert_int_equal(image_list_open(&list, &o, &err), 0);
    expect_labels(&list, "forest sea", "0 1");
    image_list_free(&list);
    o.validation = true;
    assert_int_equal(image_list_open(&list, &o, &err), 0);
    expect_labels(&list, "sea", "0");
    image_list_free(&list);
    char *root = path_join(work, "other");
    o = options_of(root);
    PUT("other/train/cat/1.jpg", "other/train/dog/1.jpg", "other/unlabeled/1.jpg", "other/unlabeled/2.jpg");
    assert_int_equal(image_list_open(&list, &o, &err), 0);
    expect_labels(&list, "cat dog", "0 1");
    assert_non_null(list.chosen);
    image_list_free(&list);
    o.labels = false;
    assert_int_equal(image_list_open(&list, &o, &err), 0);
    assert_int_equal(list.count, 4);
    image_list_free(&list);
    free(root);
}

/* A classifier's order: by names if they are the same, refused if they are others, of numbers as they are. */
static void classes_are_in_the_order_of_a_classifier(void **state)
{
    char *names[] = {"zebra", "ant", "cow"}, file[] = "config.json", *twice[] = {"ant", "zebra", "ant"};
    struct class_names order = {names, 3, file, true};
    struct image_list list;
    struct error err = {0};
    struct data_options o = options_of(work);
    o.order = &order;
    PUT("ant/1.jpg", "cow/1.jpg", "zebra/1.jpg");
    assert_int_equal(image_list_open(&list, &o, &err), 0);
    expect_labels(&list, "zebra ant cow", "1 2 0");
    assert_true(mentions(list.ordered_by, "config.json"));
    image_list_free(&list);
    o.exclude = "cow";
    assert_int_equal(image_list_open(&list, &o, &err), 0); /* another head */
    expect_labels(&list, "ant zebra", "0 1");
    image_list_free(&list);
    o.partly = true;
    assert_int_equal(image_list_open(&list, &o, &err), 0);
    expect_labels(&list, "zebra ant cow", "1 0");
    image_list_free(&list);
    o.partly = false;
    o.exclude = NULL;
    order.names = twice;
    assert_int_equal(image_list_open(&list, &o, &err), EXIT_CONFIG);
    order.names = names;
    names[2] = file;
    assert_int_equal(image_list_open(&list, &o, &err), EXIT_CONFIG);
    assert_true(mentions(err.what, "config.json|cow"));
    order.classifier = false;
    assert_int_equal(image_list_open(&list, &o, &err), 0);
    expect_labels(&list, "ant cow zebra", "0 1 2");
    image_list_free(&list);
}

static void validation_has_the_classes_of_training(void **state)
{
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
    o.classes = data_list(d);
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
            assert_int_equal(b.labels[k], data_list(d)->labels[b.ids[k]]);
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
    struct data_options o = options_of(work);
    struct image_list list;
    struct error err = {0};
    PUT("1.jpg", "2.jpg");
    assert_int_equal(image_list_open(&list, &o, &err), EXIT_FAILED);
    assert_true(mentions(err.what, "2 |1.jpg, 2.jpg"));
}

/* ---- Lists ---- */

static void put_text(const char *name, const char *text)
{
    char *path = path_join(work, name);
    assert_int_equal(file_write_atomic(path, text, strlen(text), NULL), 0);
    free(path);
}

/* Labels the images a/1.jpg, a/2.jpg and b.png by a list. */
static int read_list(const char *text, struct image_list *list, struct error *err)
{
    char *file = path_join(work, "list.csv");
    struct data_options o = options_of(work);
    PUT("a/1.jpg", "a/2.jpg", "b.png");
    put_text("list.csv", text);
    o.label_file = file;
    *err = (struct error){0};
    int code = image_list_open(list, &o, err);
    free(file);
    return code;
}

static void lists_are_read(void **state)
{
    static const struct {
        const char *text, *classes, *labels, *said;
    } rows[] = {
        {"a/1.jpg,cat\na/2.jpg,dog\nb.png,cat\n", "cat dog", "0 1 0", "names"},
        {"a/1.jpg,2\na/2.jpg,0\nb.png,2", "0 1 2", "2 0 2", "numbers"},
        {"path,label\r\na/1.jpg,10\r\nb.png,9\r\n", "0 1 2 3 4 5 6 7 8 9 10", "10 9", "numbers|path|label"},
        {"\xef\xbb\xbf"
         "file,label\r\nb.png,\"a, \"\"b\"\"\"\r\n./a/1.jpg,c\r\n\r\n",
         "a, \"b\" c", "1 0", "names"},
        {"label,split,path\r\nx,1,b.png\r\ny,2,a/2.jpg\r\n", "x y", "1 0", "names|path|label"},
        {"b.png,\"two\nlines\"\ra/2.jpg,1\r", "1 two\nlines", "0 1", "names"},
        {"b.png,B\na/1.jpg,\xc3\xa9\na/2.jpg,b\n", "B b \xc3\xa9", "2 1 0", "names"},
    };
    struct image_list list;
    struct error err;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (read_list(rows[i].text, &list, &err)) fail_msg("%zu: %s:%d: %s", i, err.file, err.line, err.what);
        expect_labels(&list, rows[i].classes, rows[i].labels);
        if (!mentions(list.classes_from, rows[i].said)) fail_msg("%s", list.classes_from);
        image_list_free(&list);
    }
}

static void what_data_val_lists_is_not_trained_on(void **state)
{
    struct image_list list;
    struct error err = {0};
    char *val = path_join(work, "val.csv");
    struct data_options o = options_of(work);
    PUT("a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg");
    put_text("val.csv", "a/2.jpg,a\nb/1.jpg,b\n");
    o.apart = val;
    assert_int_equal(image_list_open(&list, &o, &err), 0);
    expect_labels(&list, "a b", "0 1");
    assert_string_equal(list.names[1], "b/2.jpg");
    assert_true(mentions(list.apart, "2 "));
    image_list_free(&list);
    put_text("val.csv", "a/1.jpg,a\na/2.jpg,a\nb/1.jpg,b\nb/2.jpg,b\n");
    assert_int_equal(image_list_open(&list, &o, &err), 0); /* the same: that is a warning */
    assert_true(list.count == 4 && !list.apart);
    image_list_free(&list);
    free(val);
}

static void bad_lists_are_refused(void **state)
{
    static const struct {
        const char *text;
        int line;
        const char *words;
    } rows[] = {
        {"", 1, "no image"},
        {"path,label\r\n", 1, "no image"},
        {"b.png;1\r\n", 1, "semicolon"},
        {"b.png\t1\n", 1, "tab"},
        {"path,label\r\nb.png,1\r\na/1.jpg\r\n", 3, "one field"},
        {"b.png,1\na/1.jpg,1,2\n", 2, "3 |2 "},
        {"b.png,1\na/1.jpg,\"1\n\na/2.jpg,1", 2, "quote"},
        {"b.png,1\na/1.jpg,\"1\"2\n", 2, "quote"},
        {"b.png,0\na/1.jpg,-1\n", 2, "a/1.jpg|-1"},
        {"b.png,0\na/1.jpg,1048576\n", 2, "a/1.jpg|1048576|1048575"},
        {"b.png,0\na/1.jpg,99999999999999999999\n", 2, "99999999999999999999"},
        {"b.png,0\na/1.jpg,\n", 2, "a/1.jpg|empty"},
        {"b.png,0\nmissing.jpg,1\n", 2, "missing.jpg"},
        {"b.png,0\na/1.jpg,1\nb.png,1\n", 3, "b.png|1|0|line 1"},
        {"b.png,0\na/1.jpg,0\n", 0, "one class|0"},
        {"\xff\xfe"
         "b\0",
         1, "UTF-16"},
    };
    struct image_list list;
    struct error err;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(read_list(rows[i].text, &list, &err), EXIT_FAILED);
        if (!mentions(err.what, rows[i].words) || err.line != rows[i].line)
            fail_msg("%zu: %s:%d: %s", i, err.file, err.line, err.what);
    }
    struct data_options o = options_of(work);
    o.label_file = "/nonexistent/list.csv";
    assert_int_not_equal(image_list_open(&list, &o, &err), 0);
    assert_string_equal(err.file, "/nonexistent/list.csv");
}

/* 100000 classes with an image each, in directories and in a list. */
static void many_classes(void **state)
{
    enum { MANY = 100000 };
    size_t bytes = 32 * MANY;
    char *text = xmalloc(bytes), *at = text;
    struct image_list list = {0};
    for (int i = 0; i < MANY; i++) {
        int class = (int)((int64_t)i * 7919 % MANY);
        at += snprintf(at, (size_t)(text + bytes - at), "%06d.jpg,class %06d\n", i, class);
        image_list_add(&list, xasprintf("%06d.jpg", i), (struct image_place){0});
    }
    list.labels = xcalloc(MANY, sizeof *list.labels);
    put_text("list.csv", text);
    char *file = path_join(work, "list.csv");
    struct data_options o = options_of(work);
    struct error err = {0};
    o.label_file = file;
    assert_int_equal(label_from_file(&list, &o, &err), 0);
    assert_int_equal(list.class_count, MANY);
    for (int i = 0; i < MANY; i++) assert_int_equal(list.labels[i], (int64_t)i * 7919 % MANY);
    image_list_free(&list);
    free(file);
    free(text);
}

/* ---- Archives ---- */

/* Writes an archive of members, from "NAME=CONTENT"; without '=' the content is "x". */
static void put_archive(const char *name, const char *const *members)
{
    char command[512], *directory = path_join(work, "members");
    assert_int_equal(file_remove_tree(directory, NULL), 0);
    for (; *members; members++) {
        char *member = xasprintf("members/%s", *members), *value = strchr(member, '=');
        if (value) *value++ = 0;
        PUT(member);
        put_text(member, value ? value : "x");
        free(member);
    }
    snprintf(command, sizeof command, "tar -C '%s' -cf '%s/%s' . && rm -r '%s'", directory, work, name,
             directory);
    assert_int_equal(system(command), 0);
    free(directory);
}
#define ARCHIVE(name, ...) put_archive(name, (const char *const[]){__VA_ARGS__, NULL})

static void archives_are_labelled(void **state)
{
    struct data_options o = options_of(work);
    struct image_list list;
    struct error err = {0};
    ARCHIVE("0.tar", "x/1.jpg", "x/1.cls=2\n", "x/2.left.png", "x/2.cls= 0", "x/2.json={}");
    ARCHIVE("1.tar", "1.webp", "1.cls=3\r\n");
    if (image_list_open(&list, &o, &err)) fail_msg("%s: %s", err.file, err.what);
    expect_labels(&list, "0 1 2 3", "2 0 3");
    assert_true(mentions(list.outside, "1 |training|1"));
    image_list_free(&list);
    ARCHIVE("0.tar", "cat/1.jpg", "dog/1.jpg");
    ARCHIVE("1.tar", "cat/1.jpg", "ant/3.jpg");
    if (image_list_open(&list, &o, &err)) fail_msg("%s: %s", err.file, err.what);
    expect_labels(&list, "ant cat dog", "1 2 0 1");
    image_list_free(&list);
}

static void bad_archives_are_refused(void **state)
{
    struct data_options o = options_of(work);
    static const char *const rows[][5] = {
        {"2.jpg", "2.jpg|2.cls", NULL},      /* no label */
        {"2.cls=1", "2.cls|no image", NULL}, /* no image */
        {"2.jpg", "2.cls=cat", "cat"},       /* a name */
        {"2.jpg", "2.cls=-1", "-1"},           {"2.jpg", "2.cls=", "''"},
        {"2.jpg", "2.cls=1048576", "1048576"}, {"2.jpg", "2.cls=1 2 3 4 5 6 7 8 9 10 11 12 13 14 15", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct image_list list;
        struct error err = {0};
        bool pair = i >= 2;
        if (pair) ARCHIVE("a.tar", "1.jpg", "1.cls=0", rows[i][0], rows[i][1]);
        else ARCHIVE("a.tar", "1.jpg", "1.cls=0", rows[i][0]);
        int code = image_list_open(&list, &o, &err);
        if (i + 1 == sizeof rows / sizeof *rows) { /* the first word counts */
            assert_int_equal(code, 0);
            image_list_free(&list);
            continue;
        }
        assert_int_equal(code, EXIT_FAILED);
        if (!mentions(err.what, pair ? rows[i][2] : rows[i][1])) fail_msg("%zu: %s", i, err.what);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {TEST(classes_are_sorted_like_imagefolder),
                                       TEST(a_part_is_no_class),
                                       TEST(directories_above_are_no_classes),
                                       TEST(classes_are_in_the_order_of_a_classifier),
                                       TEST(what_data_val_lists_is_not_trained_on),
                                       TEST(validation_has_the_classes_of_training),
                                       TEST(batches_have_labels),
                                       TEST(images_without_directories_are_refused),
                                       TEST(lists_are_read),
                                       TEST(bad_lists_are_refused),
                                       TEST(many_classes),
                                       TEST(archives_are_labelled),
                                       TEST(bad_archives_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
