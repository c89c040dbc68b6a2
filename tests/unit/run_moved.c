/* A run directory that is moved, removed, or replaced by another run while its process holds it. */
#include "core/base/file.h"
#include "core/base/path.h"
#include "core/run/run.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

static void make_run(const char *path, struct run *run)
{
    struct error err = {0};
    assert_int_equal(mkdir(path, 0777), 0);
    if (run_open(run, path, &err)) fail_msg("%s", err.what);
}

static void a_run_follows_a_move_and_not_a_successor(void **state)
{
    char parent[] = "/tmp/meopt-moved-XXXXXX";
    assert_non_null(mkdtemp(parent));
    char *here = path_join(parent, "run"), *there = path_join(parent, "elsewhere");
    struct run run, other;
    struct error err = {0};
    make_run(here, &run);
    assert_int_equal(run_follow(&run, &err), 0);
    assert_true(run_is_here(&run));

    assert_int_equal(rename(here, there), 0);
    assert_false(run_is_here(&run));
    assert_int_equal(errno, 0);
    assert_int_equal(run_follow(&run, &err), 0);
    assert_string_equal(run.directory, there);
    assert_true(run_is_here(&run));

    assert_int_equal(file_remove_tree(there, &err), 0);
    make_run(there, &other); /* under the same name */
    assert_false(run_is_here(&run));
    assert_int_not_equal(run_follow(&run, &err), 0);
    assert_true(run_is_here(&other));
    run_close(&other);

    assert_int_equal(file_remove_tree(there, &err), 0);
    assert_int_not_equal(run_follow(&run, &err), 0);
    run_close(&run);
    file_remove_tree(parent, NULL);
    free(here);
    free(there);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_run_follows_a_move_and_not_a_successor)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
