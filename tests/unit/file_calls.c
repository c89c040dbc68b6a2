/* Calls that are interrupted by a signal, or that transfer less than requested, are repeated, and fail if
 * they are interrupted every time. This program defines fsync, ftruncate, read, pread, write and pwrite in
 * front of the C library's. */
#include "core/base/file.h"
#include "core/base/path.h"
#include "core/weights/weights.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cmocka.h>

enum { INTERRUPTIONS = 3, SHORT_BYTES = 7 };

static int interrupt, calls, directory_syncs;
static bool cut;
static char synced[16][256]; /* directories, in the order of their syncs */

/* One call of a kind: whether it is interrupted. */
static bool interrupted(void)
{
    calls++;
    if (interrupt <= 0) return false;
    interrupt--;
    errno = EINTR;
    return true;
}

int fsync(int fd)
{
    struct stat st;
    if (interrupted()) return -1;
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode) && directory_syncs < 16) {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, synced[directory_syncs], sizeof synced[0] - 1);
        synced[directory_syncs++][n > 0 ? n : 0] = 0;
    }
    return (int)syscall(SYS_fsync, fd);
}

int ftruncate(int fd, off_t bytes) { return interrupted() ? -1 : (int)syscall(SYS_ftruncate, fd, bytes); }

ssize_t read(int fd, void *to, size_t bytes) { return interrupted() ? -1 : syscall(SYS_read, fd, to, bytes); }

ssize_t pread(int fd, void *to, size_t bytes, off_t at)
{
    return interrupted() ? -1 : syscall(SYS_pread64, fd, to, bytes, at);
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    if (fd > 2 && interrupted()) return -1;
    return syscall(SYS_write, fd, data, cut && fd > 2 && bytes > SHORT_BYTES ? (size_t)SHORT_BYTES : bytes);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at)
{
    if (interrupted()) return -1;
    return syscall(SYS_pwrite64, fd, data, cut && bytes > SHORT_BYTES ? (size_t)SHORT_BYTES : bytes, at);
}

static int unread; /* calls of readdir that fail */

struct dirent *readdir(DIR *dir)
{
    struct dirent *(*real)(DIR *);
    *(void **)&real = dlsym(RTLD_NEXT, "readdir");
    if (unread-- <= 0) return real(dir);
    errno = EIO;
    return NULL;
}

static char directory[64];

static int setup(void **state)
{
    interrupt = calls = directory_syncs = unread = 0;
    cut = false;
    strcpy(directory, "/tmp/meopt-calls-XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

static int teardown(void **state) { return file_remove_tree(directory, NULL); }

static void an_interrupted_sync_is_asked_again(void **state)
{
    struct error err = {0};
    char *path = path_join(directory, "file"), *text = NULL;
    size_t bytes;
    interrupt = INTERRUPTIONS;
    if (file_write_atomic(path, "whole", 5, &err)) fail_msg("%s", err.what);
    interrupt = INTERRUPTIONS;
    if (file_sync_dir(directory, &err)) fail_msg("%s", err.what);
    int fd = open(path, O_RDWR);
    interrupt = INTERRUPTIONS;
    if (file_sync(fd, path, &err)) fail_msg("%s", err.what);
    interrupt = INTERRUPTIONS;
    if (file_shorten(fd, 3, path, &err)) fail_msg("%s", err.what);
    close(fd);
    assert_int_equal(interrupt, 0); /* each was met */
    assert_int_equal(file_read(path, 100, &text, &bytes, &err), 0);
    assert_string_equal(text, "who");
    free(text);
    free(path);
}

static void both_formats_survive_short_writes(void **state)
{
    struct error err = {0};
    float values[100];
    for (int i = 0; i < 100; i++) values[i] = (float)i;
    const struct weights_row row = {
        .name = "x", .dtype = DTYPE_F32, .ndim = 1, .shape = {100}, .data = values};
    static const char *const names[] = {"whole.safetensors", "short.safetensors", "whole.pt", "short.pt"};
    char *texts[4];
    size_t bytes[4];
    for (int i = 0; i < 4; i++) {
        char *path = path_join(directory, names[i]);
        cut = i % 2;
        interrupt = cut ? INTERRUPTIONS : 0;
        int code = i < 2 ? weights_write_safetensors(path, &row, 1, NULL, &err)
                         : weights_write_pt(path, &row, 1, NULL, &err);
        if (code) fail_msg("%s: %s", names[i], err.what);
        assert_int_equal(interrupt, 0);
        assert_int_equal(file_read(path, 1 << 20, &texts[i], &bytes[i], &err), 0);
        free(path);
    }
    for (int i = 0; i < 4; i += 2) {
        assert_int_equal(bytes[i], bytes[i + 1]);
        assert_memory_equal(texts[i], texts[i + 1], bytes[i]);
    }
    for (int i = 0; i < 4; i++) free(texts[i]);
}

/* SIGALRM ends the test where a call does not end. */
static void a_call_that_is_interrupted_for_ever_ends(void **state)
{
    struct error err = {0};
    float value = 1, got;
    const struct weights_row row = {.name = "x", .dtype = DTYPE_F32, .ndim = 1, .shape = {1}, .data = &value};
    char *path = path_join(directory, "x.safetensors"), *text = NULL;
    size_t bytes;
    struct weights *w = NULL;
    assert_int_equal(weights_write_safetensors(path, &row, 1, NULL, &err), 0);
    if (weights_open(&w, path, &err)) fail_msg("%s", err.what);
    int fd = open(path, O_RDWR);
    alarm(60);
    interrupt = INT_MAX;
    int codes[] = {file_read(path, 1 << 20, &text, &bytes, &err),
                   weights_read(w, 0, &got, DTYPE_F32, &err),
                   file_write_all(fd, "x", 1, path, &err),
                   file_write_all_at(fd, "x", 1, 0, path, &err),
                   file_sync(fd, path, &err),
                   file_shorten(fd, 1, path, &err)};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) assert_int_equal(codes[i], EXIT_FAILED);
    if (!strstr(err.what, strerror(EINTR))) fail_msg("%s", err.what);
    alarm(0);
    interrupt = 0;
    close(fd);
    weights_close(w);
    free(path);
}

/* A directory that is made is there after a power cut: the one that holds it is synced. */
static void new_directories_are_synced_into_their_parents(void **state)
{
    struct error err = {0};
    char *deep = path_join(directory, "a/b"), *a = path_join(directory, "a");
    if (file_make_dirs(deep, &err)) fail_msg("%s", err.what);
    assert_int_equal(directory_syncs, 2);
    assert_string_equal(synced[0], directory);
    assert_string_equal(synced[1], a);
    if (file_make_dirs(deep, &err)) fail_msg("%s", err.what);
    assert_int_equal(directory_syncs, 2); /* nothing new */
    free(a);
    free(deep);
}

static void a_directory_that_cannot_be_read_is_not_said_to_be_full(void **state)
{
    struct error err = {0};
    char *path = path_join(directory, "a/b");
    assert_int_equal(file_make_dirs(path, &err), 0);
    free(path);
    path = path_join(directory, "a");
    unread = 1;
    assert_int_equal(file_remove_tree(path, &err), EXIT_FAILED);
    if (!strstr(err.what, strerror(EIO))) fail_msg("%s", err.what);
    assert_int_equal(file_remove_tree(path, &err), 0);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_interrupted_sync_is_asked_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_call_that_is_interrupted_for_ever_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(both_formats_survive_short_writes, setup, teardown),
        cmocka_unit_test_setup_teardown(new_directories_are_synced_into_their_parents, setup, teardown),
        cmocka_unit_test_setup_teardown(a_directory_that_cannot_be_read_is_not_said_to_be_full, setup,
                                        teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
