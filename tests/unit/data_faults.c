/* A failed system call is not a bad image: the loader with files that cannot be opened or read, once or
 * always. This program defines open(), read() and nanosleep() in front of the C library's. */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/data/data.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

enum { IMAGES = 4, SIDE = 28, PIXELS = 3 * SIDE * SIDE };

static struct {
    int reason; /* errno */
    bool at_read;
    _Atomic int left, fd; /* times; the descriptor whose read fails */
} fault;

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    bool wanted = strstr(path, "/c.jpg") && fault.left > 0;
    if (wanted && !fault.at_read) {
        fault.left--;
        errno = fault.reason;
        return -1;
    }
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (wanted) fault.fd = fd;
    return fd;
}

ssize_t read(int fd, void *to, size_t bytes)
{
    if (fault.left > 0 && fault.at_read && fd == fault.fd) {
        fault.left--;
        fault.fd = -1; /* the number goes to another file */
        errno = fault.reason;
        return -1;
    }
    return syscall(SYS_read, fd, to, bytes);
}

static _Atomic int64_t paused_ms;

/* Takes no time: pauses between attempts are counted. */
int nanosleep(const struct timespec *pause, struct timespec *rest)
{
    (void)rest;
    paused_ms += pause->tv_sec * 1000 + pause->tv_nsec / 1000000;
    return 0;
}

static char root[64];

static int setup(void **state)
{
    static const char *const files[IMAGES] = {"01_base444.jpg", "02_base422.jpg", "05_gray.jpg",
                                              "14_rgb.png"};
    memset(&fault, 0, sizeof fault);
    fault.fd = -1;
    strcpy(root, "/tmp/meopt-faults-XXXXXX");
    assert_non_null(mkdtemp(root));
    for (int i = 0; i < IMAGES; i++) {
        char *bytes, *from = path_join(MEOPT_SOURCE_DIR "/tests/data/preprocess/images", files[i]),
                     *to = xasprintf("%s/%c.jpg", root, 'a' + i);
        size_t size;
        assert_int_equal(file_read(from, 1 << 24, &bytes, &size, NULL), 0);
        assert_int_equal(file_write_atomic(to, bytes, size, NULL), 0);
        free(bytes);
        free(from);
        free(to);
    }
    return 0;
}

static int teardown(void **state) { return file_remove_tree(root, NULL); }

static struct data_options options_of(bool whole)
{
    return (struct data_options){.root = root,
                                 .image_size = SIDE,
                                 .preprocess = preprocess_clip,
                                 .whole = whole,
                                 .batch = IMAGES,
                                 .ranks = 1,
                                 .workers = 2,
                                 .prefetch = 1,
                                 .max_bad = 1};
}

/* The first batch: its code; ids and pixels where it is there. whole: not decoded ahead. */
static int load(bool whole, int64_t ids[IMAGES], float pixels[IMAGES * PIXELS], struct error *err)
{
    struct data_options options = options_of(whole);
    struct data *d;
    struct data_batch batch;
    assert_int_equal(data_open(&d, &options, err), 0);
    assert_int_equal(data_start(d, 0, err), 0);
    int code = data_next(d, &batch, err);
    if (!code) {
        assert_int_equal(batch.count, IMAGES);
        memcpy(ids, batch.ids, IMAGES * sizeof *ids);
        memcpy(pixels, batch.images, IMAGES * PIXELS * sizeof *pixels);
    }
    data_close(d);
    return code;
}

static void what_fails_once_changes_no_sample(void **state)
{
    static const int reasons[] = {EIO, EMFILE, ENFILE, ENOMEM, ESTALE};
    static float right[IMAGES * PIXELS], found[IMAGES * PIXELS];
    int64_t ids[IMAGES], again[IMAGES];
    struct error err;
    for (int whole = 0; whole < 2; whole++) {
        assert_int_equal(load(whole, ids, right, &err), 0);
        for (int i = 0; i < IMAGES; i++) assert_int_equal(ids[i], i);
        for (size_t i = 0; i < 2 * sizeof reasons / sizeof *reasons; i++) {
            fault.reason = reasons[i / 2];
            fault.at_read = i % 2;
            fault.left = 2;
            assert_int_equal(load(whole, again, found, &err), 0);
            assert_int_equal(fault.left, 0);
            assert_memory_equal(ids, again, sizeof ids);
            assert_memory_equal(right, found, sizeof right);
        }
    }
}

static void a_permanent_failure_is_reported_with_its_file(void **state)
{
    static const struct {
        int reason, code;
    } rows[] = {{EIO, EXIT_FAILED}, {ENOMEM, EXIT_HOST_MEMORY}, {EMFILE, EXIT_FAILED}};
    static float pixels[IMAGES * PIXELS];
    int64_t ids[IMAGES];
    for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
        struct error err = {0};
        fault.reason = rows[i / 2].reason;
        fault.at_read = i % 2;
        fault.left = 1000000;
        paused_ms = 0;
        assert_int_equal(load(i & 2, ids, pixels, &err), rows[i / 2].code);
        assert_true(paused_ms >= 1000); /* it may pass meanwhile */
        assert_non_null(strstr(err.file, "/c.jpg"));
        assert_non_null(strstr(err.what, strerror(rows[i / 2].reason)));
        fault.left = 0;
    }
}

static void put(const char *name, const char *text)
{
    char *path = path_join(root, name);
    assert_int_equal(file_write_atomic(path, text, strlen(text), NULL), 0);
    free(path);
}

/* In a whole pass no other image replaces it. */
static void what_cannot_be_decoded_is_left_out_the_same_each_time(void **state)
{
    static float pixels[IMAGES * PIXELS];
    int64_t ids[IMAGES];
    struct error err;
    put("c.jpg", "no image");
    for (int i = 0; i < 4; i++) {
        assert_int_equal(load(i & 1, ids, pixels, &err), 0);
        assert_int_equal(ids[1], 1);
        assert_int_equal(ids[2], i & 1 ? -1 : 3);
        for (int k = 0; k < PIXELS && i & 1; k++) assert_true(pixels[2 * PIXELS + k] == 0);
        assert_int_equal(ids[3], 3);
    }
}

static void no_batch_is_made_of_nothing(void **state)
{
    static float pixels[IMAGES * PIXELS];
    int64_t ids[IMAGES];
    for (int whole = 0; whole < 2; whole++) {
        struct error err = {0};
        for (int i = 0; i < IMAGES; i++) put((char[]){(char)('a' + i), '.', 'j', 'p', 'g', 0}, "no image");
        assert_int_equal(load(whole, ids, pixels, &err), EXIT_FAILED);
        assert_non_null(strstr(err.what, " 4 "));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_fails_once_changes_no_sample, setup, teardown),
        cmocka_unit_test_setup_teardown(a_permanent_failure_is_reported_with_its_file, setup, teardown),
        cmocka_unit_test_setup_teardown(what_cannot_be_decoded_is_left_out_the_same_each_time, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(no_batch_is_made_of_nothing, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
