/* Which files below a root are the images: cycles of links end, training images are not mixed with
 * validation and test images, patterns override that, and skipped files are counted. */
#include "core/base/path.h"
#include "tests/unit/list_images.h"
#include "tests/mentions.h"
#include "tests/work_directory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static void put(const char *name) { put_file(name, name, strlen(name)); }

static void link_to(const char *target, const char *name)
{
    char *path = path_join(work, name);
    assert_int_equal(symlink(target, path), 0);
    free(path);
}

/* `names`: those expected, in order, each followed by a space. */
static void expect(const char *include, const char *exclude, const char *names, const char *chosen,
                   const char *unread)
{
    struct image_list list;
    struct error err = {0};
    char found[1024] = "";
    if (list_images(&list, work, include, exclude, &err)) fail_msg("%s", err.what);
    for (int64_t i = 0; i < list.count; i++) {
        strcat(found, list.names[i]);
        strcat(found, " ");
    }
    assert_string_equal(found, names);
    assert_int_equal(list.chosen != NULL, *chosen != 0);
    if (list.chosen && !mentions(list.chosen, chosen)) fail_msg("'%s' lacks '%s'", list.chosen, chosen);
    assert_int_equal(list.unread != NULL, *unread != 0);
    if (list.unread && !mentions(list.unread, unread)) fail_msg("'%s' lacks '%s'", list.unread, unread);
    image_list_free(&list);
}

static void links_that_lead_back_end(void **state)
{
    put("d/1.jpg");
    put("e/2.png");
    link_to("..", "d/up");
    link_to(".", "self");
    link_to(".", "d/same");
    link_to("../e", "d/loop"); /* leads nowhere back */
    link_to(work, "e/whole");
    /* under d/loop, which is e, the whole is above as well */
    expect(NULL, NULL, "d/1.jpg d/loop/2.png e/2.png ", "", "5 links");
}

static void deep_directories_are_read_to_their_end(void **state)
{
    char name[256] = "";
    for (int i = 0; i < 60; i++) strcat(name, "a/");
    strcat(name, "x.jpg");
    put(name);
    strcat(name, " ");
    expect(NULL, NULL, name, "", "");
}

static void training_is_not_mixed_with_the_rest(void **state)
{
    put("train2017/a.jpg");
    put("val2017/b.jpg");
    put("test2017/c.jpg");
    put("unlabeled2017/d.jpg");
    expect(NULL, NULL, "train2017/a.jpg ", " 1 |training|1 elsewhere, 1 for validation, 1 for test", "");
    expect("*", NULL, "test2017/c.jpg train2017/a.jpg unlabeled2017/d.jpg val2017/b.jpg ", "", "");
    expect("train2017, unlabeled2017/", NULL, "train2017/a.jpg unlabeled2017/d.jpg ", "", "");
    expect(NULL, "val2017,test2017", "train2017/a.jpg unlabeled2017/d.jpg ", "", "");
    expect(NULL, "train2017", "test2017/c.jpg unlabeled2017/d.jpg val2017/b.jpg ",
           "1 elsewhere, 1 for validation, 1 for test", "");
    /* images of 2014 next to them count alone, as they always did */
    put("train2014/a.jpg");
    expect(NULL, NULL, "train2014/a.jpg ", " 1 |train2014|2 elsewhere, 1 for validation, 1 for test", "");
}

static void a_class_may_be_called_train(void **state)
{
    put("Train/bus/a.jpg");
    put("Train/train/b.jpg");
    put("Val/bus/c.jpg");
    put("Val/train/d.jpg");
    expect(NULL, NULL, "Train/bus/a.jpg Train/train/b.jpg ", " 2 |training|2 for validation", "");
    expect(NULL, "Val", "Train/bus/a.jpg Train/train/b.jpg ", "", "");
    put("bus/e.jpg");
    put("train/f.jpg");
    expect(NULL, "Train,Val", "bus/e.jpg train/f.jpg ", "", "");
}

static void directories_of_other_programs_are_not_read(void **state)
{
    put("cat/a.jpg");
    put("cat/@eaDir/a.jpg/thumb.jpg");
    put("@eaDir/b.jpg");
    put("__MACOSX/cat/c.jpg");
    put(".cache/d.jpg");
    expect(NULL, NULL, "cat/a.jpg ", "", "3 ");
}

/* Names that differ by the word of a part alone are parts; a class of which one is a word is none. */
static void parts_are_found_inside_names(void **state)
{
    put("seg_train/seg_train/forest/a.jpg");
    put("seg_test/seg_test/forest/b.jpg");
    put("seg_pred/c.jpg");
    expect(NULL, NULL, "seg_train/seg_train/forest/a.jpg ", " 1 |training|1 elsewhere, 1 for test", "");
    put("sea_train/d.jpg"); /* another stem */
    expect(NULL, NULL, "seg_train/seg_train/forest/a.jpg ", " 1 |training|2 elsewhere, 1 for test", "");
    expect(NULL, "seg_test", "sea_train/d.jpg seg_pred/c.jpg seg_train/seg_train/forest/a.jpg ", "", "");
    expect("*", NULL,
           "sea_train/d.jpg seg_pred/c.jpg seg_test/seg_test/forest/b.jpg seg_train/seg_train/forest/a.jpg ",
           "", "");
}

static void data_val_is_left_out(void **state)
{
    struct image_list list;
    char *val = path_join(work, "held");
    struct image_search search = {.root = work, .apart = val};
    put("a/1.jpg");
    put("held/2.jpg");
    put("b/3.jpg");
    link_to("../held", "b/link");
    assert_int_equal(image_list_search(&list, &search, NULL), 0);
    assert_int_equal(list.count, 2);
    assert_string_equal(list.names[1], "b/3.jpg");
    assert_non_null(list.apart);
    image_list_free(&list);
    search.root = val; /* data.root itself is read */
    assert_int_equal(image_list_search(&list, &search, NULL), 0);
    assert_int_equal(list.count, 1);
    image_list_free(&list);
    free(val);
}

static void patterns_are_of_paths(void **state)
{
    put("a/1.jpg");
    put("a/masks/1.png");
    put("b/masks/2.png");
    put("b/2.jpeg");
    put("masks.jpg");
    expect(NULL, "*/masks", "a/1.jpg b/2.jpeg masks.jpg ", "", "");
    expect(NULL, "*.png", "a/1.jpg b/2.jpeg masks.jpg ", "", "");
    expect("a", NULL, "a/1.jpg a/masks/1.png ", "", "");
    expect("?/?.jp*g", NULL, "a/1.jpg b/2.jpeg ", "", "");
    expect(" a , b/*.png ", "a/masks", "a/1.jpg b/masks/2.png ", "", "");
    struct image_list list;
    struct error err = {0};
    assert_int_equal(list_images(&list, work, "A", NULL, &err), EXIT_FAILED);
    assert_true(mentions(err.what, "data.include|data.exclude| 5 "));
    assert_int_equal(list_images(&list, work, NULL, "*", &err), EXIT_FAILED);
    assert_non_null(strstr(err.what, "data.exclude"));
}

static void what_is_left_out_is_not_looked_at(void **state)
{
    put("a.jpg");
    link_to("nowhere", "gone.jpg");
    struct image_list list;
    assert_int_equal(list_images(&list, work, NULL, NULL, NULL), EXIT_FAILED);
    expect(NULL, "gone*", "a.jpg ", "", "");
}

static void endings_that_are_not_read_are_counted(void **state)
{
    static const char *const names[] = {"a.gif",   "b.GIF",    "c.tif",   "README",    "x.annotations",
                                        "d.\x1bz", "e.tar.gz", ".hidden", "deep/f.gif"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) put(names[i]);
    struct image_list list;
    struct error err = {0};
    assert_int_equal(list_images(&list, work, NULL, NULL, &err), EXIT_FAILED);
    assert_true(mentions(err.what, ".jpg, .jpeg, .png|.webp|.tar|3 .gif, "));
    put("z.WebP");
    assert_int_equal(list_images(&list, work, NULL, NULL, &err), 0);
    assert_int_equal(list.count, 1);
    assert_memory_equal(list.unread, "3 .gif, 2 ", 10);
    static const char *const each[] = {"1 .tif", "1 .?z", "1 .gz"};
    for (size_t i = 0; i < 3; i++) assert_non_null(strstr(list.unread, each[i]));
    image_list_free(&list);
    for (int i = 0; i < 40; i++) {
        char name[16] = {'n', '.', (char)('a' + i % 20), (char)('a' + i / 20), 0};
        put(name);
    }
    assert_int_equal(list_images(&list, work, NULL, NULL, &err), 0);
    assert_true(strlen(list.unread) < 160);
    assert_non_null(strstr(list.unread, " others"));
    image_list_free(&list);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {TEST(links_that_lead_back_end),
                                       TEST(deep_directories_are_read_to_their_end),
                                       TEST(training_is_not_mixed_with_the_rest),
                                       TEST(a_class_may_be_called_train),
                                       TEST(directories_of_other_programs_are_not_read),
                                       TEST(parts_are_found_inside_names),
                                       TEST(data_val_is_left_out),
                                       TEST(patterns_are_of_paths),
                                       TEST(what_is_left_out_is_not_looked_at),
                                       TEST(endings_that_are_not_read_are_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
