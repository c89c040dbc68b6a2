/* Checkpoints with failing calls, damaged files and killed saves. The good one is never removed, never
 * skipped for an older one, and never reported as absent. This file defines renameat, open, fdopendir and
 * pread in front of the C library's. */
#include "tests/train/checkpoint.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>

static struct fault {
    int after, times, error; /* calls that pass first, that fail then (-1: all), with which errno */
} renames, opens, listings, reads;
static void (*at_open)(const char *path);
static const char *unreadable; /* part of a path */

static bool fails(struct fault *f)
{
    if (f->after > 0) {
        f->after--;
        return false;
    }
    if (f->times == 0) return false;
    if (f->times > 0) f->times--;
    errno = f->error;
    return true;
}

static bool ours(const char *path)
{
    return strncmp(path, directory, strlen(directory)) == 0 && directory[0];
}

int renameat(int from_at, const char *from, int to_at, const char *to)
{
    static int (*real)(int, const char *, int, const char *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "renameat");
    return (from_at != AT_FDCWD || ours(from)) && fails(&renames) ? -1 : real(from_at, from, to_at, to);
}

int open(const char *path, int flags, ...)
{
    static int (*real)(const char *, int, ...);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "open");
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (ours(path) && !(flags & O_CREAT)) {
        errno = EIO;
        if ((unreadable && strstr(path, unreadable)) || fails(&opens)) return -1;
        if (at_open) at_open(path);
    }
    return real(path, flags, mode);
}

/* A checkpoint's files, which are opened in its directory. */
int openat(int at, const char *name, int flags, ...)
{
    static int (*real)(int, const char *, int, ...);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "openat");
    char link[40], path[1024];
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    ssize_t n = at < 0 ? 0 : readlink(link, path, sizeof path / 2);
    snprintf(path + (n > 0 ? n : 0), sizeof path / 2, "%s%s", n > 0 ? "/" : "", name);
    if (ours(path) && strstr(path, "/step-") && !(flags & (O_CREAT | O_DIRECTORY))) {
        errno = EIO;
        if ((unreadable && strstr(path, unreadable)) || fails(&opens)) return -1;
        if (at_open) at_open(path);
    }
    return real(at, name, flags, mode);
}

DIR *fdopendir(int fd)
{
    static DIR *(*real)(int);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "fdopendir");
    char link[40], path[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    bool list = n > 5 && memcmp(path + n - 5, "/ckpt", 5) == 0;
    return list && fails(&listings) ? NULL : real(fd);
}

ssize_t pread(int fd, void *dst, size_t bytes, off_t at)
{
    static ssize_t (*real)(int, void *, size_t, off_t);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pread");
    return fails(&reads) ? -1 : real(fd, dst, bytes, at);
}

static int begin(void **state)
{
    renames = opens = listings = reads = (struct fault){0};
    at_open = NULL;
    unreadable = NULL;
    return setup(state);
}

static bool there(const char *name)
{
    char *path = xasprintf("%s/ckpt/%s", directory, name);
    bool found = access(path, F_OK) == 0;
    free(path);
    return found;
}

static void a_damaged_newest_never_displaces_the_good(void **state)
{
    struct error err = {0};
    struct checkpoint c;
    assert_int_equal(save(5, 2, 5, &err), 0);
    assert_int_equal(save(10, 2, 10, &err), 0);
    damage(10, "model.safetensors");
    expect(5, 5);
    assert_false(there("step-00000010.damaged")); /* a reader renames nothing */
    assert_int_equal(checkpoint_newest(&c, directory, true, &err), 0);
    assert_int_equal(c.step, 5);
    checkpoint_close(&c);
    assert_true(there("step-00000010.damaged"));
    assert_int_equal(save(7, 1, 7, &err), 0);
    expect(7, 7);
    assert_int_equal(count_steps(), 1);
    assert_true(there("step-00000010.damaged"));
}

static void one_under_the_name_of_another_step_is_damaged(void **state)
{
    struct error err = {0};
    struct checkpoint c;
    assert_int_equal(save(5, 2, 5, &err), 0);
    assert_int_equal(save(6, 2, 6, &err), 0);
    char *right = xasprintf("%s/ckpt/step-00000006", directory),
         *wrong = xasprintf("%s/ckpt/step-99999999", directory);
    assert_int_equal(rename(right, wrong), 0);
    free(right);
    free(wrong);
    assert_int_equal(checkpoint_newest(&c, directory, true, &err), 0);
    assert_int_equal(c.step, 5);
    checkpoint_close(&c);
    assert_int_equal(save(7, 2, 7, &err), 0);
    assert_true(there("step-99999999.damaged") && there("step-00000005") && there("step-00000007"));
}

static void only_whole_checkpoints_are_counted(void **state)
{
    struct error err = {0};
    for (int step = 1; step <= 3; step++) assert_int_equal(save(step, 9, step, &err), 0);
    damage(3, "optimizer.bin");
    assert_int_equal(save(4, 2, 4, &err), 0); /* 4 and 2 */
    assert_int_equal(count_steps(), 2);
    assert_true(there("step-00000003.damaged"));
    damage(4, "MANIFEST.json");
    expect(2, 2);
}

static void the_same_step_again_is_no_work(void **state)
{
    struct error err = {0};
    assert_int_equal(save(7, 1, 1, &err), 0);
    renames = (struct fault){0, -1, EIO};
    assert_int_equal(save(7, 1, 2, &err), 0);
    expect(7, 1);
}

static void a_damaged_one_of_the_same_step_is_renamed(void **state)
{
    struct error err = {0};
    for (int k = 0, failed = 1; failed; k++) {
        assert_int_equal(save(5, 9, 5, &err), 0);
        assert_int_equal(save(7, 9, 1, &err), 0);
        damage(7, "model.safetensors");
        renames = (struct fault){k, 1, EIO};
        failed = save(7, 9, 2, &err) != 0;
        renames.times = 0;
        assert_true(there("step-00000005"));
        assert_true(there("step-00000007") || there("step-00000007.damaged"));
        if (failed) assert_int_equal(save(7, 9, 2, &err), 0);
        expect(7, 2);
        teardown(NULL);
        assert_int_equal(mkdir(directory, 0777), 0);
    }
}

static void a_save_whose_rename_fails_keeps_the_one_before(void **state)
{
    static const int errors[] = {EIO, ENOSPC, EDQUOT};
    struct error err = {0};
    assert_int_equal(save(1, 1, 1, &err), 0);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 4; k++) { /* model.safetensors, MANIFEST, the checkpoint, LATEST */
            renames = (struct fault){k, 1, errors[i]};
            int code = save(2, 1, 2, &err);
            assert_int_equal(code, errors[i] == EIO ? EXIT_FAILED : EXIT_DISK);
            assert_false(there("step-00000002.partial"));
            if (k < 3) expect(1, 1);
            else expect(2, 2); /* it stands, unnamed */
            assert_true(there("step-00000001"));
            char *path = within(2, "");
            assert_int_equal(file_remove_tree(path, NULL), 0);
            free(path);
        }
    assert_int_equal(save(2, 1, 2, &err), 0);
    expect(2, 2);
    assert_false(there("step-00000001"));
}

static void what_cannot_be_read_now_is_tried_again(void **state)
{
    static const int errors[] = {EMFILE, EIO, ENOMEM, ESTALE};
    struct error err = {0};
    assert_int_equal(save(1, 9, 1, &err), 0);
    assert_int_equal(save(2, 9, 2, &err), 0);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 3; k++) {
            opens = (struct fault){k, 1, errors[i]};
            expect(2, 2);
        }
    listings = (struct fault){0, 1, ESTALE};
    expect(2, 2);
    reads = (struct fault){1, 1, EIO};
    expect(2, 2);
}

static void what_cannot_be_read_at_all_is_no_older_checkpoint(void **state)
{
    struct error err = {0};
    struct checkpoint c;
    assert_int_equal(save(1, 9, 1, &err), 0);
    assert_int_equal(save(2, 9, 2, &err), 0);
    reads = (struct fault){0, -1, EIO};
    assert_int_equal(checkpoint_newest(&c, directory, true, &err), EXIT_FAILED);
    assert_non_null(strstr(err.file, "step-00000002/MANIFEST.json"));
    assert_non_null(strstr(err.what, strerror(EIO)));
    reads.times = 0;
    listings = (struct fault){0, -1, EACCES};
    assert_int_equal(checkpoint_newest(&c, directory, true, &err), EXIT_FAILED);
    assert_non_null(strstr(err.what, strerror(EACCES)));
    listings.times = 0;
    assert_int_equal(count_steps(), 2); /* nothing was renamed */
    expect(2, 2);
}

static void one_that_cannot_be_read_now_is_not_removed(void **state)
{
    struct error err = {0};
    assert_int_equal(save(1, 9, 1, &err), 0);
    assert_int_equal(save(2, 9, 2, &err), 0);
    char *file = within(2, "optimizer.bin");
    struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}}; /* it is no more what was written here */
    assert_int_equal(utimensat(AT_FDCWD, file, times, 0), 0);
    free(file);
    unreadable = "step-00000002";
    assert_int_equal(save(3, 2, 3, &err), 0);
    unreadable = NULL;
    assert_int_equal(count_steps(), 3); /* it counts for nothing, and stays */
    expect(3, 3);
    damage(3, "optimizer.bin");
    expect(2, 2);
}

static void rotate_once(const char *path)
{
    struct error err = {0};
    if (!strstr(path, "step-00000001/")) return;
    at_open = NULL;
    assert_int_equal(save(2, 1, 2, &err), 0); /* removes step 1 */
}

static void one_removed_while_it_is_looked_for_is_looked_for_again(void **state)
{
    struct error err = {0};
    assert_int_equal(save(1, 1, 1, &err), 0);
    at_open = rotate_once;
    expect(2, 2);
}

static void one_that_is_open_may_be_removed(void **state)
{
    struct error err = {0};
    struct checkpoint c;
    int seed = 1;
    assert_int_equal(save(1, 1, 1, &err), 0);
    assert_int_equal(checkpoint_newest(&c, directory, false, &err), 0);
    assert_int_equal(save(2, 1, 2, &err), 0);
    assert_false(there("step-00000001"));
    if (checkpoint_tensors(&c, rows, 2, NULL, same_tensor, &seed, &err)) fail_msg("%s", err.what);
    if (checkpoint_records(&c, RECORDS, NULL, same_record, &seed, &err)) fail_msg("%s", err.what);
    checkpoint_close(&c);
}

static void what_a_killed_save_left_is_removed_by_the_next(void **state)
{
    static const char *const left[] = {".trash-3", "step-00000009.partial", ".LATEST.a1B2c3"};
    struct error err = {0};
    assert_int_equal(save(1, 1, 1, &err), 0);
    for (int i = 0; i < 3; i++) {
        char *path = xasprintf("%s/ckpt/%s/deep", directory, left[i]);
        assert_int_equal(file_make_dirs(path, NULL), 0);
        free(path);
    }
    char *other = xasprintf("%s/ckpt/notes", directory);
    assert_int_equal(mkdir(other, 0777), 0);
    free(other);
    assert_int_equal(save(2, 1, 2, &err), 0);
    for (int i = 0; i < 3; i++) assert_false(there(left[i]));
    assert_true(there("notes"));
}

/* After the directory was looked at it is exchanged for a link to another's. */
static void exchange_for_a_link(const char *path)
{
    char was[128], other[128];
    if (!strstr(path, "MANIFEST.json")) return;
    at_open = NULL;
    snprintf(was, sizeof was, "%s/ckpt/step-00000005", directory);
    snprintf(other, sizeof other, "%s/ckpt/elsewhere", directory);
    assert_int_equal(rename(was, other), 0);
    assert_int_equal(symlink("../../etc", was), 0);
}

static void files_are_opened_in_the_directory_that_was_checked(void **state)
{
    struct error err = {0};
    assert_int_equal(save(5, 1, 5, &err), 0);
    at_open = exchange_for_a_link;
    expect(5, 5);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, teardown)
    const struct CMUnitTest tests[] = {TEST(a_damaged_newest_never_displaces_the_good),
                                       TEST(files_are_opened_in_the_directory_that_was_checked),
                                       TEST(one_under_the_name_of_another_step_is_damaged),
                                       TEST(only_whole_checkpoints_are_counted),
                                       TEST(the_same_step_again_is_no_work),
                                       TEST(a_damaged_one_of_the_same_step_is_renamed),
                                       TEST(a_save_whose_rename_fails_keeps_the_one_before),
                                       TEST(what_cannot_be_read_now_is_tried_again),
                                       TEST(what_cannot_be_read_at_all_is_no_older_checkpoint),
                                       TEST(one_that_cannot_be_read_now_is_not_removed),
                                       TEST(one_removed_while_it_is_looked_for_is_looked_for_again),
                                       TEST(one_that_is_open_may_be_removed),
                                       TEST(what_a_killed_save_left_is_removed_by_the_next)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
