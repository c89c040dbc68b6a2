/* CIFAR's archives: both forms give the same images and labels; damaged ones are refused. tests/data/cifar:
 * see tests/make/cifar.py. */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/data/cifar.h"
#include "core/data/data.h"
#include "core/data/labels.h"
#include "core/data/unpacked.h"
#include "tests/mentions.h"
#include "tests/work_directory.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static void put_fixture(const char *name, const char *fixture)
{
    char *path = path_join(MEOPT_SOURCE_DIR "/tests/data/cifar", fixture), *bytes;
    size_t size;
    assert_int_equal(file_read(path, 1 << 20, &bytes, &size, NULL), 0);
    put_file(name, bytes, size);
    free(bytes);
    free(path);
}

/* The pixels of tests/make/cifar.py, in their planes. */
static uint8_t pixel(int image, int at)
{
    int i = image * CIFAR_PIXELS + at;
    return (uint8_t)(i * 7 + i / 1024 * 11);
}

/* Writes two images with their labels in the binary form; labels bytes before each. */
static void put_binary(const char *name, int labels, const uint8_t *values)
{
    uint8_t file[2 * (2 + CIFAR_PIXELS)], *to = file;
    for (int image = 0; image < 2; image++) {
        for (int i = 0; i < labels; i++) *to++ = values[image * labels + i];
        for (int i = 0; i < CIFAR_PIXELS; i++) *to++ = pixel(image, i);
    }
    put_file(name, file, (size_t)(to - file));
}

static void put_ten_binary(void)
{
    char name[64];
    for (int i = 1; i <= 5; i++) {
        snprintf(name, sizeof name, "data_batch_%d.bin", i);
        put_binary(name, 1, (const uint8_t[]){1, 0});
    }
    put_binary("test_batch.bin", 1, (const uint8_t[]){0, 1});
    put_file("batches.meta.txt", "airplane\nfrog\n\n", 15);
}

static void put_ten_python(const char *form)
{
    char name[64], batch[64], meta[64];
    snprintf(batch, sizeof batch, "%s.batch", form);
    snprintf(meta, sizeof meta, "%s.meta", form);
    for (int i = 1; i <= 5; i++) {
        snprintf(name, sizeof name, "cifar-10-batches-py/data_batch_%d", i);
        put_fixture(name, batch);
    }
    put_fixture("cifar-10-batches-py/test_batch", batch);
    put_fixture("cifar-10-batches-py/batches.meta", meta);
}

static struct data_options options_of(void)
{
    return (struct data_options){
        .root = work,
        .image_size = CIFAR_SIDE,
        .preprocess = {.resample = RESAMPLE_BICUBIC, .crop_pct = 1, .mean = {0, 0, 0}, .std = {1, 1, 1}},
        .batch = 2,
        .ranks = 1,
        .workers = 1,
        .whole = true,
        .labels = true};
}

/* Compares names of the classes, labels of the first two images, their number, and all pixels. */
static void expect(struct data_options o, const char *classes, int first, int second, int64_t images)
{
    struct data *d;
    struct data_batch b;
    struct error err = {0};
    char text[64] = "";
    if (data_open(&d, &o, &err)) fail_msg("%s: %s", err.file, err.what);
    for (int i = 0; i < data_classes(d); i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i ? " " : "",
                 data_class_name(d, i));
    assert_string_equal(text, classes);
    assert_int_equal(data_images(d), images);
    assert_int_equal(data_start(d, 0, &err), 0);
    assert_int_equal(data_next(d, &b, &err), 0);
    assert_int_equal(b.labels[0], first);
    assert_int_equal(b.labels[1], second);
    for (int image = 0; image < 2; image++)
        for (int i = 0; i < CIFAR_PIXELS; i++)
            assert_true(b.images[image * CIFAR_PIXELS + i] == (float)pixel(image, i) / 255.0f);
    data_close(d);
}

static void both_forms_of_ten(void **state)
{
    static const char *const forms[] = {"python2", "protocol4", "protocol5"};
    struct data_options o = options_of();
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        put_ten_python(forms[i]);
        expect(o, "airplane frog", 1, 0, 10);
    }
    o.validation = true;
    expect(o, "airplane frog", 1, 0, 2);
    put_ten_binary();
    expect(o, "airplane frog", 0, 1, 2);
    o.validation = false;
    expect(o, "airplane frog", 1, 0, 10);
    o.exclude = "data_batch_5.bin";
    expect(o, "airplane frog", 1, 0, 8);
    o.exclude = NULL;
    o.labels = false; /* distillation */
    struct image_list list;
    struct error err = {0};
    assert_int_equal(image_list_open(&list, &o, &err), 0);
    assert_string_equal(list.names[9], "data_batch_5.bin/000001");
    image_list_free(&list);
}

static void fine_and_coarse_labels_of_a_hundred(void **state)
{
    struct data_options o = options_of();
    put_fixture("train", "python2.batch");
    put_fixture("test", "protocol4.batch");
    put_fixture("meta", "python2.meta");
    expect(o, "apple bee", 1, 0, 2);
    o.label_file = "coarse";
    expect(o, "fruit insects", 0, 1, 2);
    assert_int_equal(file_remove_tree(work, NULL), 0);
    assert_int_equal(file_make_dirs(work, NULL), 0);
    put_binary("train.bin", 2, (const uint8_t[]){1, 0, 0, 1});
    put_file("fine_label_names.txt", "apple\r\nbee\r\n", 12);
    put_file("coarse_label_names.txt", "fruit\ninsects", 13);
    expect(o, "fruit insects", 1, 0, 2);
    o.label_file = NULL;
    expect(o, "apple bee", 0, 1, 2);
}

static void put_published(void)
{
    char name[64];
    for (int i = 1; i <= 5; i++) {
        snprintf(name, sizeof name, "cifar-10-batches-py/data_batch_%d", i);
        put_fixture(name, "published.batch");
    }
    put_fixture("cifar-10-batches-py/test_batch", "published.batch");
    put_fixture("cifar-10-batches-py/batches.meta", "cifar10.meta");
}

static const char ten[] = "airplane automobile bird cat deer dog frog horse ship truck";

/* Packs the directory like the published archives, and removes it. */
static void pack(const char *archive, const char *directory, const char *options)
{
    char *command =
        xasprintf("cd %s && tar %s %s %s && rm -r %s", work, options, archive, directory, directory);
    assert_int_equal(system(command), 0);
    free(command);
}

static void the_published_files_are_read(void **state)
{
    char **names, *bytes;
    int32_t count;
    size_t size;
    put_published();
    expect(options_of(), ten, 6, 9, 10);
    assert_int_equal(
        file_read(MEOPT_SOURCE_DIR "/tests/data/cifar/cifar100.meta", 1 << 20, &bytes, &size, NULL), 0);
    static const char *const keys[] = {"fine_label_names", "coarse_label_names"};
    static const char *const last[] = {"worm", "vehicles_2"};
    for (int i = 0; i < 2; i++) {
        struct error err;
        assert_int_equal(cifar_parse_names(&names, &count, (uint8_t *)bytes, size, keys[i], &err), 0);
        assert_int_equal(count, i ? 20 : 100);
        assert_string_equal(names[count - 1], last[i]);
        while (count) free(names[--count]);
        free(names);
    }
    free(bytes);
}

/* Archives as they are downloaded, and gunzipped; an unpacked directory comes first. */
static void archives_are_read_in_place(void **state)
{
    struct data_options o = options_of();
    put_published();
    pack("cifar-10-python.tar.gz", "cifar-10-batches-py", "-czf");
    expect(o, ten, 6, 9, 10);
    o.validation = true;
    expect(o, ten, 6, 9, 2);
    o.validation = false;
    o.exclude = "cifar-10-python.tar.gz/cifar-10-batches-py/data_batch_5";
    expect(o, ten, 6, 9, 8);
    struct image_list list;
    o.exclude = NULL;
    assert_int_equal(image_list_open(&list, &o, NULL), 0);
    assert_string_equal(list.names[9], "cifar-10-python.tar.gz/cifar-10-batches-py/data_batch_5/000001");
    int64_t count;
    struct image_sample *samples = image_list_sample(&list, work, &count);
    assert_int_equal(count, 10);
    assert_true(samples[0].crc32c && samples[0].crc32c == samples[2].crc32c);
    free(samples);
    image_list_free(&list);
    put_ten_binary();
    expect(o, "airplane frog", 1, 0, 10); /* the root itself */
    file_remove_tree(work, NULL);
    put_fixture("cifar-100-python/train", "python2.batch");
    put_fixture("cifar-100-python/test", "python2.batch");
    put_fixture("cifar-100-python/meta", "python2.meta");
    pack("cifar-100-python.tar", "./cifar-100-python", "-cf");
    expect(o, "apple bee", 1, 0, 2);
    o.label_file = "coarse";
    expect(o, "fruit insects", 0, 1, 2);
}

static int open_list(void)
{
    struct data_options o = options_of();
    struct image_list list;
    struct error err;
    int code = image_list_open(&list, &o, &err);
    if (!code) image_list_free(&list);
    return code;
}

/* The archive's content is replaced, its size and time are not: a process that decompresses it itself fails,
 * one that shares it does not. */
static void processes_share_an_archive(void **state)
{
    struct stat st;
    put_published();
    pack("cifar-10-python.tar.gz", "cifar-10-batches-py", "-czf");
    assert_int_equal(open_list(), 0);
    char *path = path_join(work, "cifar-10-python.tar.gz");
    int fd = open(path, O_RDWR);
    free(path);
    assert_int_equal(fstat(fd, &st), 0);
    char zeros[64] = {0};
    assert_int_equal(pwrite(fd, zeros, sizeof zeros, st.st_size / 2), sizeof zeros);
    assert_int_equal(futimens(fd, (struct timespec[]){st.st_atim, st.st_mtim}), 0);
    close(fd);
    for (int shared = 0; shared < 2; shared++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            if (shared) unpacked_inherit();
            execl("/proc/self/exe", "test_data_cifar", work, (char *)NULL);
            _exit(99);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(WEXITSTATUS(status), shared ? 0 : EXIT_INTEGRITY);
    }
}

static void expect_refused(int code, const char *file, const char *words)
{
    struct data_options o = options_of();
    struct image_list list;
    struct error err = {0};
    assert_int_equal(image_list_open(&list, &o, &err), code);
    assert_string_equal(path_basename(err.file), file);
    if (!mentions(err.what, words)) fail_msg("%s", err.what);
}

static void damaged_files_are_refused(void **state)
{
    uint8_t bytes[3 * CIFAR_PIXELS] = {0};
    put_ten_binary();
    put_file("data_batch_3.bin", bytes, 6000);
    expect_refused(EXIT_INTEGRITY, "data_batch_3.bin", "6000|3073");
    put_binary("data_batch_3.bin", 1, (const uint8_t[]){0, 2});
    expect_refused(EXIT_INTEGRITY, "data_batch_3.bin", "1 |2|1");
    char *path = path_join(work, "data_batch_3.bin");
    assert_int_equal(unlink(path), 0);
    free(path);
    expect_refused(EXIT_FAILED, "data_batch_3.bin", "");
    put_file("batches.meta.txt", "one", 3);
    expect_refused(EXIT_INTEGRITY, "batches.meta.txt", "1 |2");
}

static void hostile_pickles_are_refused(void **state)
{
    static const struct {
        const char *bytes;
        size_t size;
        const char *words;
    } rows[] = {
#define ROW(bytes, words) {bytes, sizeof bytes - 1, words}
        ROW("\x80\x02"
            "cos\nsystem\nU\x04true\x85R.",
            "dict"),
        ROW("\x80\x02}(U\x04"
            "datacos\nsystem\nU\x04true\x85Ru.",
            "data"),
        ROW("\x80\x02}.", "data"),
        ROW("\x80\x02}(U\x04"
            "dataK\x01u.",
            "data"),
        ROW("\x80\x02]q\x01h\x01"
            "a.",
            "dict"),
        ROW("\x80\x02"
            "}(",
            "pickle"),
        ROW("\x80\x02U\xff", "pickle"),
        ROW("version https://git-lfs", "pickle"),
        ROW("", "pickle"),
#undef ROW
    };
    put_ten_python("protocol4");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put_file("cifar-10-batches-py/data_batch_2", rows[i].bytes, rows[i].size);
        expect_refused(EXIT_INTEGRITY, "data_batch_2", rows[i].words);
    }
    put_fixture("cifar-10-batches-py/data_batch_2", "protocol2.batch");
    expect_refused(EXIT_INTEGRITY, "data_batch_2", "protocol 2");
}

/* Writes the archive again, damaged: without its last `less` bytes, or with another byte `at`. */
static void damage(size_t less, size_t at)
{
    char *path = path_join(work, "cifar-10-python.tar.gz"), *bytes;
    size_t size;
    assert_int_equal(file_read(path, 1 << 20, &bytes, &size, NULL), 0);
    if (at) bytes[at] ^= 0x55;
    assert_int_equal(file_write_atomic(path, bytes, size - less, NULL), 0);
    free(bytes);
    free(path);
}

static void damaged_archives_are_refused(void **state)
{
    put_published();
    pack("cifar-10-python.tar.gz", "cifar-10-batches-py", "-czf");
    damage(1, 0); /* the length at the end */
    expect_refused(EXIT_INTEGRITY, "cifar-10-python.tar.gz", "gzip");
    damage(200, 0);
    expect_refused(EXIT_INTEGRITY, "cifar-10-python.tar.gz", "gzip");
    put_published();
    pack("cifar-10-python.tar.gz", "cifar-10-batches-py", "-czf");
    damage(0, 300);
    expect_refused(EXIT_INTEGRITY, "cifar-10-python.tar.gz", "");
    put_published();
    pack("cifar-10-python.tar.gz", "cifar-10-batches-py", "-cf");
    expect_refused(EXIT_INTEGRITY, "cifar-10-python.tar.gz", "gzip");
    put_published();
    char *missing = path_join(work, "cifar-10-batches-py/data_batch_4");
    assert_int_equal(unlink(missing), 0);
    free(missing);
    pack("cifar-10-python.tar.gz", "cifar-10-batches-py", "-czf");
    expect_refused(EXIT_INTEGRITY, "cifar-10-python.tar.gz", "data_batch_4");
    put_file("zeros", "", 0);
    pack("cifar-10-python.tar.gz", "zeros", "-czf"); /* has other files */
    expect_refused(EXIT_INTEGRITY, "cifar-10-python.tar.gz", "batches.meta");
    char *bomb = xasprintf("head -c 600000000 /dev/zero | gzip -1 > %s/cifar-10-python.tar.gz", work);
    assert_int_equal(system(bomb), 0);
    free(bomb);
    expect_refused(EXIT_FAILED, "cifar-10-python.tar.gz", "512");
}

int main(int argc, char **argv)
{
    if (argc > 1) { /* processes_share_an_archive */
        snprintf(work, sizeof work, "%s", argv[1]);
        return open_list();
    }
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {TEST(both_forms_of_ten),
                                       TEST(fine_and_coarse_labels_of_a_hundred),
                                       TEST(damaged_files_are_refused),
                                       TEST(the_published_files_are_read),
                                       TEST(archives_are_read_in_place),
                                       TEST(processes_share_an_archive),
                                       TEST(damaged_archives_are_refused),
                                       TEST(hostile_pickles_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
