/* Images in tar archives: the same samples as from single files, in the order of their names, also after a
 * resume. Archives next to images are skipped; a damaged one is an error of the list. */
#include "core/base/file.h"
#include "core/base/path.h"
#include "core/data/data.h"
#include "tests/unit/list_images.h"
#include "tests/mentions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { IMAGES = 10, SIDE = 28, BATCH = 3, STEPS = 7, VALUES = BATCH * 3 * SIDE * SIDE };

static char work[64];

static void shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void shell(const char *format, ...)
{
    char command[2048], line[2200];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    snprintf(line, sizeof line, "cd %s && { %s; }", work, command);
    if (system(line) != 0) fail_msg("%s", line);
}

/* loose/s0, loose/s1: directories of images and of other files, one name longer than a header has room for.
 */
static int setup(void **state)
{
    strcpy(work, "/tmp/meopt-tar-XXXXXX");
    if (!mkdtemp(work)) return -1;
    shell(
        "mkdir -p loose/s0 loose/s1 shards; n=0; for f in '%s'/tests/data/preprocess/images/0[0-9]*.jpg; do "
        "n=$((n + 1)); cp \"$f\" loose/s$((n %% 2))/00$n.jpg; echo $n >loose/s$((n %% 2))/00$n.cls; done; "
        "cp '%s'/tests/data/webp/lossy.webp loose/s1/%0150d.webp; printf x >loose/s0/._mac.jpg",
        MEOPT_SOURCE_DIR, MEOPT_SOURCE_DIR, 7);
    return 0;
}

static int teardown(void **state) { return file_remove_tree(work, NULL); }

static void take(const char *root, int64_t from, float out[][VALUES], int64_t ids[][BATCH])
{
    char *path = path_join(work, root);
    struct data_options o = {.root = path,
                             .image_size = SIDE,
                             .preprocess = preprocess_clip,
                             .augment = true, /* decoded anew each time */
                             .crop_scale_min = 0.5,
                             .crop_scale_max = 1,
                             .shuffle = true,
                             .seed = 5,
                             .batch = BATCH,
                             .ranks = 1,
                             .workers = 2,
                             .prefetch = 2};
    struct data *d;
    struct data_batch b;
    struct error err = {0};
    if (data_open(&d, &o, &err)) fail_msg("%s", err.what);
    assert_int_equal(data_images(d), IMAGES);
    assert_int_equal(data_start(d, from, &err), 0);
    for (int64_t i = from; i < STEPS; i++) {
        if (data_next(d, &b, &err)) fail_msg("%s", err.what);
        memcpy(out[i], b.images, sizeof out[i]);
        memcpy(ids[i], b.ids, sizeof ids[i]);
    }
    data_close(d);
    free(path);
}

static void samples_are_those_of_loose_files(void **state)
{
    static const char *const formats[] = {"gnu", "posix", "gnu --sort=name", "posix --sort=name"};
    static float loose[STEPS][VALUES], shards[STEPS][VALUES];
    int64_t ids[2][STEPS][BATCH];
    take("loose", 0, loose, ids[0]);
    for (size_t k = 0; k < sizeof formats / sizeof *formats; k++) {
        for (int s = 0; s < 2; s++)
            shell("tar --format=%s -C loose/s%d -cf shards/s%d.tar .", formats[k], s, s);
        for (int64_t from = 0; from < STEPS; from += 3) {
            memset(shards, 0xff, sizeof shards);
            take("shards", from, shards, ids[1]);
            assert_memory_equal(shards[from], loose[from], sizeof *loose * (size_t)(STEPS - from));
            assert_memory_equal(ids[1][from], ids[0][from], sizeof *ids[0] * (size_t)(STEPS - from));
        }
    }
}

static void names_and_choice_are_of_paths_in_archives(void **state)
{
    struct image_list list;
    struct error err = {0};
    char *root = path_join(work, "shards");
    shell("tar --format=ustar -C loose -cf shards/set-train-00.tar s0 && "
          "tar --format=v7 -C loose -cf shards/set-val-00.tar s0");
    assert_int_equal(list_images(&list, root, NULL, NULL, &err), 0);
    assert_int_equal(list.count, 4);
    assert_string_equal(list.names[0], "set-train-00.tar/s0/002.jpg");
    assert_true(mentions(list.chosen, " 4 |training|4 for validation"));
    assert_string_equal(list.unread, "8 .cls");
    image_list_free(&list);
    assert_int_equal(list_images(&list, root, "set-val*", "*/006.jpg", &err), 0);
    assert_int_equal(list.count, 3);
    assert_string_equal(list.names[2], "set-val-00.tar/s0/008.jpg");
    image_list_free(&list);
    shell("cp loose/s1/001.jpg shards/"); /* these may be the same images */
    assert_int_equal(list_images(&list, root, NULL, NULL, &err), 0);
    assert_int_equal(list.count, 1);
    assert_string_equal(list.unread, "2 .tar");
    image_list_free(&list);
    free(root);
}

static void a_damaged_archive_is_an_error(void **state)
{
    static const char *const damage[] = {"gzip -c whole >shards/a.tar",
                                         "head -c 20000 whole >shards/a.tar",
                                         "head -c 100 whole >shards/a.tar",
                                         "head -c 512 whole >shards/a.tar",
                                         ": >shards/a.tar",
                                         "{ head -c 512 whole; yes | head -c 2000; } >shards/a.tar",
                                         "printf 'text\\n%01000d' 5 >shards/a.tar"};
    char *root = path_join(work, "shards");
    shell("tar --format=gnu -C loose/s0 --sort=name -cf whole .");
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        struct image_list list;
        struct error err = {0};
        shell("%s", damage[i]);
        assert_int_equal(list_images(&list, root, NULL, NULL, &err), EXIT_INTEGRITY);
        assert_non_null(strstr(err.file, "/shards/a.tar"));
        assert_true(mentions(err.what, "tar|byte"));
    }
    free(root);
}

/* A key of webdataset ends at the first dot: KEY.seg.png belongs to the sample of KEY.jpg. */
static void a_part_of_a_sample_is_no_image(void **state)
{
    struct image_list list;
    struct error err = {0};
    char *root = path_join(work, "keys");
    shell("mkdir -p keys s/__MACOSX/d s/d; for k in s/d/1 s/2; do echo x >$k.jpg; echo y >$k.seg.png; echo 0 "
          ">$k.cls; done; echo z >s/3.img.png; echo m >s/__MACOSX/d/1.jpg; tar -C s -cf keys/a.tar .");
    assert_int_equal(list_images(&list, root, NULL, NULL, &err), 0);
    assert_int_equal(list.count, 3);
    assert_string_equal(list.names[0], "a.tar/2.jpg");
    assert_string_equal(list.names[1], "a.tar/3.img.png");
    assert_string_equal(list.names[2], "a.tar/d/1.jpg");
    assert_true(mentions(list.unread, "2 .cls|2 .png"));
    image_list_free(&list);
    free(root);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(samples_are_those_of_loose_files), TEST(names_and_choice_are_of_paths_in_archives),
        TEST(a_part_of_a_sample_is_no_image), TEST(a_damaged_archive_is_an_error)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
