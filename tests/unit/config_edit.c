/* Editing changes only the target: chosen documents, each with the expected text, or the refusal with its
 * line. Random documents: config_edit_random.c. */
#include "core/base/file.h"
#include "core/base/path.h"
#include "core/config/config.h"
#include "core/config/edit.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static int fstat_errno; /* of every fstat() of this program; 0: the system's */

int fstat(int fd, struct stat *status)
{
    if (!fstat_errno) return fstatat(fd, "", status, AT_EMPTY_PATH);
    errno = fstat_errno;
    return -1;
}
int __fxstat(int version, int fd, struct stat *status);
int __fxstat(int version, int fd, struct stat *status) /* fstat() before glibc 2.33 */
{
    return (void)version, fstat(fd, status);
}

static void expect(const char *before, const char *key, const char *value, const char *expected)
{
    struct edit edit = {key, value};
    struct error err = {0};
    char *after = NULL;
    size_t bytes = 0;
    int code = edit_apply("x.yaml", before, strlen(before), &edit, 1, &after, &bytes, &err);
    if (!expected) {
        assert_int_equal(code, EXIT_CONFIG);
        assert_true(err.line > 0 && err.column > 0);
        return;
    }
    if (code) fprintf(stderr, "%s\n", err.what);
    assert_int_equal(code, 0);
    assert_string_equal(after, expected);
    free(after);
}

static void every_byte_but_the_scalar_survives(void **state)
{
    expect("optim:\r\n  # 学习率\r\n  lr: 1.0e-3   # 不要改\r\n", "optim.lr", "2.0e-5",
           "optim:\r\n  # 学习率\r\n  lr: 2.0e-5   # 不要改\r\n");
    expect("\xEF\xBB\xBFmodel: {weight_t: '中.pt' , weight_s: \"b\"}", "model_t.weight", "it's",
           "\xEF\xBB\xBFmodel: {weight_t: 'it''s' , weight_s: \"b\"}");
    expect("data:\n  root: /a\n", "data.root", "/a: b", "data:\n  root: \"/a: b\"\n");
    expect("data:\n  root:   # nothing yet\n", "data.root", "/a", "data:\n  root: /a   # nothing yet\n");
    expect("optim:\n  lr: &x 1.0 # c\n", "optim.lr", "2.0", "optim:\n  lr: &x 2.0 # c\n");
    expect("optim:\n  lr: !!float 1.0 # c\n", "optim.lr", "2.0", "optim:\n  lr: !!float 2.0 # c\n");
    expect("optim:\n    lr: 1.0 # c\n# end\n", "optim.name", "lion",
           "optim:\n    lr: 1.0 # c\n    name: lion\n# end\n");
    expect("optim:\n    lr: 1.0", "optim.name", "lion", "optim:\n    lr: 1.0\n    name: lion");
    expect("optim: {lr: 1.0}\n", "optim.name", "lion", "optim: {lr: 1.0, name: lion}\n");
    expect("optim: {}\n", "optim.name", "lion", "optim: {name: lion}\n");
    expect("optim:  # later\ndata:\n   root: a\n", "optim.name", "lion",
           "optim:  # later\n   name: lion\ndata:\n   root: a\n");
    expect("optim:\n   lr: 1.0\n\n# end\n", "data.root", "x",
           "optim:\n   lr: 1.0\n\n# end\ndata:\n   root: x\n");
    expect("---\noptim:\n  lr: 1.0\n...\n", "data.root", "x",
           "---\noptim:\n  lr: 1.0\ndata:\n  root: x\n...\n");
    expect("", "data.root", "x", "data:\n  root: x\n");
    expect("# 只有注释\n", "data.root", "x", "# 只有注释\ndata:\n  root: x\n");
    expect("{optim: {lr: 1.0}}\n", "data.root", "a,b", "{optim: {lr: 1.0}, data: {root: \"a,b\"}}\n");
}

static void unset_takes_the_line_and_nothing_more(void **state)
{
    expect("optim:\n  lr: 1.0 # c\n  # d\n  name: lion\n", "optim.lr", NULL, "optim:\n  # d\n  name: lion\n");
    expect("optim:\n  lr: 1.0\n  name: lion", "optim.name", NULL, "optim:\n  lr: 1.0");
    expect("optim:\n  lr: 1.0\ndata:\n  root: a\n", "data.root", NULL, "optim:\n  lr: 1.0\n");
    expect("optim:\n  lr: 1.0\ndata: # keep\n  root: a\n", "data.root", NULL,
           "optim:\n  lr: 1.0\ndata: # keep\n");
    expect("optim: {lr: 1.0, name: lion, beta1: 0.5}", "optim.name", NULL, "optim: {lr: 1.0, beta1: 0.5}");
    expect("optim: {lr: 1.0, name: lion}", "optim.name", NULL, "optim: {lr: 1.0}");
    expect("optim: {lr: 1.0}", "optim.lr", NULL, "optim: {}");
    expect("optim:\n  lr: 1.0\n", "optim.name", NULL, "optim:\n  lr: 1.0\n");
}

static void what_is_not_safe_is_refused_with_its_place(void **state)
{
    expect("x-a: &a 1.0\noptim:\n  lr: *a\n", "optim.lr", "2.0", NULL);
    expect("optim:\n  lr: &a 1.0\n  min_lr: *a\n", "optim.lr", "2.0", NULL);
    expect("x-a: &a {lr: 1.0}\noptim: *a\n", "optim.lr", "2.0", NULL);
    expect("x-a: &a {lr: 1.0}\noptim:\n  <<: *a\n", "optim.lr", NULL, NULL);
    expect("data:\n  root: |\n    /a\n", "data.root", "/b", NULL);
    expect("data:\n  root: [a]\n", "data.root", "/b", NULL);
    expect("a: 1\n---\nb: 2\n", "data.root", "/b", NULL);
    expect("data:\n\troot: a\n", "data.root", "/b", NULL);
    expect("data:\n  root: a\n  root: b\n", "data.root", "/b", NULL);
    expect("optim: {lr: 1.0, # why\n  name: lion}", "optim.name", "apsgd",
           "optim: {lr: 1.0, # why\n  name: apsgd}");
    expect("optim: {lr: 1.0, # why\n  name: lion}", "optim.name", NULL, NULL);
}

static void several_changes_are_one_atomic_write(void **state)
{
    char dir[] = "/tmp/meopt-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    static const char original[] = "# 注释\ntrain:\n  batch_size: 32\n";
    char *file = path_join(dir, "real.yaml"), *link = path_join(dir, "link.yaml");
    assert_int_equal(file_write_atomic(file, original, strlen(original), NULL), 0);
    assert_int_equal(chmod(file, 0640), 0);
    assert_int_equal(symlink("real.yaml", link), 0);
    struct edit edits[] = {{"train.batch_size", "16"}, {"optim.lr", "1.0e-3"}, {"train.micro_batch", "4"}};
    struct error err = {0};
    char *before, *after, *text;
    size_t before_bytes, after_bytes, bytes;
    assert_int_equal(edit_file(link, edits, 3, 0, &before, &before_bytes, &after, &after_bytes, &err), 0);
    assert_int_equal(file_read(file, 1000, &text, &bytes, &err), 0);
    assert_string_equal(text, "# 注释\ntrain:\n  batch_size: 16\n  micro_batch: 4\noptim:\n  lr: 1.0e-3\n");
    struct stat st;
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    struct edit bad[] = {{"train.batch_size", "8"}, {"train.micro_batch", "3"}};
    assert_int_equal(edit_file(link, bad, 2, 0, NULL, NULL, NULL, NULL, &err),
                     EXIT_CONFIG); /* 3 does not divide 8 */
    free(before);
    free(after);
    free(text);
    assert_int_equal(file_remove_tree(dir, NULL), 0);
    free(file);
    free(link);
}

static void an_unreadable_file_is_reported_as_such(void **state)
{
    char file[] = "/tmp/meopt-test-XXXXXX";
    struct edit edit = {"train.seed", "2"};
    struct error err = {0};
    int fd = mkstemp(file);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(file_write_atomic(file, "train: {seed: 1}\n", 17, NULL), 0);
    fstat_errno = EIO;
    int code = edit_file(file, &edit, 1, 0, NULL, NULL, NULL, NULL, &err);
    fstat_errno = 0;
    assert_int_equal(code, EXIT_CONFIG);
    assert_non_null(strstr(err.what, strerror(EIO)));
    assert_string_equal(err.file, file);
    assert_int_equal(edit_file(file, &edit, 1, 0, NULL, NULL, NULL, NULL, &err), 0);
    assert_int_equal(unlink(file), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unreadable_file_is_reported_as_such),
        cmocka_unit_test(every_byte_but_the_scalar_survives),
        cmocka_unit_test(unset_takes_the_line_and_nothing_more),
        cmocka_unit_test(what_is_not_safe_is_refused_with_its_place),
        cmocka_unit_test(several_changes_are_one_atomic_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
