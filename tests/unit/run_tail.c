/* The lines of a file that grows: each whole one once, whatever the writer does to it. */
#include "core/base/file.h"
#include "core/base/path.h"
#include "core/run/tail.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static char directory[64], *path;

static int setup(void **state)
{
    strcpy(directory, "/tmp/meopt-tail-XXXXXX");
    if (!mkdtemp(directory)) return -1;
    path = path_join(directory, "lines");
    return 0;
}

static int teardown(void **state)
{
    free(path);
    return file_remove_tree(directory, NULL);
}

static void add(const char *text, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    assert_true(fd >= 0);
    assert_int_equal(file_write_all(fd, text, bytes, path, NULL), 0);
    close(fd);
}

static void expect(struct tail *t, const char *text)
{
    size_t bytes = 0;
    const char *line = tail_line(t, &bytes);
    if (!text) {
        assert_null(line);
        return;
    }
    assert_non_null(line);
    assert_int_equal(bytes, strlen(text));
    assert_memory_equal(line, text, bytes);
}

static void a_line_is_given_once_and_when_it_is_whole(void **state)
{
    struct tail t;
    tail_init(&t, directory, "lines");
    assert_int_equal(tail_poll(&t, NULL), -1);
    expect(&t, NULL);
    add("one\ntwo\nthr", 11);
    assert_int_equal(tail_poll(&t, NULL), 11);
    expect(&t, "one");
    expect(&t, "two");
    expect(&t, NULL);
    add("ee\n\n", 4);
    expect(&t, "three");
    tail_unread(&t);
    expect(&t, "three");
    expect(&t, "");
    expect(&t, NULL);
    tail_free(&t);
}

static void a_file_made_anew_is_read_anew(void **state)
{
    struct tail t;
    bool anew;
    tail_init(&t, directory, "lines");
    add("one\ntwo\n", 8);
    assert_int_equal(tail_poll(&t, &anew), 8);
    assert_false(anew);
    expect(&t, "one");
    expect(&t, "two");
    assert_int_equal(truncate(path, 4), 0);
    assert_int_equal(tail_poll(&t, &anew), 4);
    assert_true(anew);
    expect(&t, "one");
    add("2\n", 2);
    tail_poll(&t, &anew);
    assert_false(anew);
    expect(&t, "2");
    tail_seek(&t, 1, true);
    expect(&t, "2");
    tail_free(&t);
}

static void a_line_that_is_none_is_skipped(void **state)
{
    struct tail t;
    char *text = malloc(10 * TAIL_LINE_BYTES);
    tail_init(&t, directory, "lines");
    /* lengths on both sides of the limit and of the buffer's ends; pieces come in between */
    static const size_t lengths[] = {TAIL_LINE_BYTES,     TAIL_LINE_BYTES + 1,     3 * TAIL_LINE_BYTES,
                                     4 * TAIL_LINE_BYTES, 4 * TAIL_LINE_BYTES - 1, 9 * TAIL_LINE_BYTES};
    int64_t too_long = 0;
    add("first\n", 6);
    tail_poll(&t, NULL);
    expect(&t, "first");
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        size_t bytes, half = lengths[i] / 2 + 1;
        memset(text, 'a' + (int)i, lengths[i]);
        text[lengths[i]] = '\n';
        add(text, half);
        expect(&t, NULL);
        add(text + half, lengths[i] + 1 - half);
        add("next\n", 5);
        if (lengths[i] <= TAIL_LINE_BYTES) {
            const char *line = tail_line(&t, &bytes);
            assert_non_null(line);
            assert_int_equal(bytes, lengths[i]);
            assert_memory_equal(line, text, bytes);
        } else {
            too_long++;
        }
        expect(&t, "next");
        expect(&t, NULL);
    }
    assert_int_equal(t.skipped, too_long);
    tail_free(&t);
    free(text);
}

static void nothing_but_a_file_is_read(void **state)
{
    struct tail t;
    assert_int_equal(mkfifo(path, 0666), 0);
    tail_init(&t, directory, "lines");
    assert_int_equal(tail_poll(&t, NULL), -1); /* and does not wait for a writer */
    tail_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_line_is_given_once_and_when_it_is_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_made_anew_is_read_anew, setup, teardown),
        cmocka_unit_test_setup_teardown(a_line_that_is_none_is_skipped, setup, teardown),
        cmocka_unit_test_setup_teardown(nothing_but_a_file_is_read, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
