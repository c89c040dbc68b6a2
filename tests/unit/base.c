/* core/base: errors, files, checksums. */
#include "core/base/error.h"
#include "core/base/platform.h"
#include "core/base/crc32c.h"
#include "core/base/file.h"
#include "core/base/path.h"
#include "core/base/json.h"

#include <signal.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static void errors_escape_control_characters(void **state)
{
    struct error e;
    assert_int_equal(error_set(&e, EXIT_CONFIG, NULL, "name '%s'",
                               "a\033]0;x\a\xff"
                               "\xc2\x9b"),
                     EXIT_CONFIG);
    assert_string_equal(e.what, "name 'a\\x1b]0;x\\x07\\xff\\xc2\\x9b'");
    error_set(&e, EXIT_CONFIG, NULL, "%s", "\xe4\xb8\xad\xe6\x96\x87");
    assert_string_equal(e.what, "\xe4\xb8\xad\xe6\x96\x87");
    char cut[6];
    assert_string_equal(text_printable(cut, sizeof cut, "\xe4\xb8\xad\xe6\x96\x87"), "\xe4\xb8\xad");
}

static void names_of_files_forge_no_line(void **state)
{
    struct error err = {0};
    char *data;
    size_t bytes;
    assert_int_equal(file_read("/nowhere/a\nmeopt: all is well\x1b[2J", 1, &data, &bytes, &err), EXIT_FAILED);
    assert_null(strpbrk(err.what, "\n\x1b"));
    assert_null(strpbrk(err.file, "\n\x1b"));
    assert_non_null(strstr(err.what, "/nowhere/a\\x0ameopt"));
}

static void crc32c_equals_rfc3720(void **state)
{
    uint8_t data[32] = {0};
    assert_int_equal(crc32c(0, data, 32), 0x8A9136AAu);
    memset(data, 0xFF, 32);
    assert_int_equal(crc32c(0, data, 32), 0x62A8AB43u);
    for (int i = 0; i < 32; i++) data[i] = (uint8_t)i;
    assert_int_equal(crc32c(0, data, 32), 0x46DD794Eu);
    assert_int_equal(crc32c(crc32c(0, data, 13), data + 13, 19), 0x46DD794Eu);
}

static void crc32c_of_much_is_that_of_its_bytes_one_by_one(void **state)
{
    enum { BYTES = 100003 };
    uint8_t *data = malloc(BYTES);
    uint32_t crc = 0;
    assert_non_null(data);
    for (size_t i = 0; i < BYTES; i++) {
        data[i] = (uint8_t)(i * 2654435761u >> 13);
        crc = crc32c(crc, data + i, 1);
        if (i % 12287 == 12286 || i % 9999 == 0) assert_int_equal(crc32c(0, data, i + 1), crc);
    }
    assert_int_equal(crc32c(0, data, BYTES), crc);
    assert_int_equal(crc32c(crc32c(0, data, 50001), data + 50001, BYTES - 50001), crc);
    free(data);
}

static void atomic_write_keeps_mode_and_symlink(void **state)
{
    char dir[] = "/tmp/meopt-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *file = path_join(dir, "f"), *link = path_join(dir, "l");
    struct error e;
    assert_int_equal(file_write_atomic(file, "one", 3, &e), 0);
    assert_int_equal(chmod(file, 0640), 0);
    assert_int_equal(symlink("f", link), 0);
    assert_int_equal(file_write_atomic(link, "two!", 4, &e), 0);
    struct stat st;
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0640);
    char *data;
    size_t bytes;
    assert_int_equal(file_read(file, 100, &data, &bytes, &e), 0);
    assert_string_equal(data, "two!");
    free(data);
    assert_int_equal(file_read(file, 3, &data, &bytes, &e), EXIT_FAILED);
    assert_int_equal(file_remove_tree(dir, &e), 0);
    assert_int_not_equal(access(dir, F_OK), 0);
    free(file);
    free(link);
}

static void *take_mask(void *mask)
{
    pthread_sigmask(SIG_SETMASK, NULL, mask);
    return NULL;
}

static void threads_of_our_own_leave_signals_to_the_program(void **state)
{
    sigset_t inside, before, after;
    pthread_t thread;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    assert_int_equal(thread_start(&thread, take_mask, &inside), 0);
    pthread_join(thread, NULL);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int s = 1; s < 32; s++) assert_int_equal(sigismember(&before, s), sigismember(&after, s));
    assert_true(sigismember(&inside, SIGTERM) && sigismember(&inside, SIGINT) &&
                sigismember(&inside, SIGUSR1));
}

/* What Python's json writes of 1e30; integers that fit stay integers, texts stay as they are. */
static void long_integers_of_json_are_real(void **state)
{
    static const char text[] =
        "{\"a\":1000000000000000019884624838656,\"b\":-1000000000000000019884624838656,"
        "\"c\":9223372036854775807,\"d\":9223372036854775808,\"e\":\"\\\"1000000000000000019884\","
        "\"f\":[0.1000000000000000019884624838656,1e5,true,null,12],\"g\":-9223372036854775807}";
    json_t *root = json_parse(text, strlen(text), 0, NULL);
    assert_non_null(root);
    assert_true(json_real_value(json_object_get(root, "a")) == 1e30);
    assert_true(json_real_value(json_object_get(root, "b")) == -1e30);
    assert_true(json_integer_value(json_object_get(root, "c")) == INT64_MAX);
    assert_true(json_real_value(json_object_get(root, "d")) == 9223372036854775808.0);
    assert_string_equal(json_string_value(json_object_get(root, "e")), "\"1000000000000000019884");
    assert_true(json_real_value(json_array_get(json_object_get(root, "f"), 0)) ==
                0.1000000000000000019884624838656);
    assert_true(json_is_integer(json_array_get(json_object_get(root, "f"), 4)));
    assert_true(json_integer_value(json_object_get(root, "g")) == -INT64_MAX);
    json_decref(root);
    json_error_t why;
    assert_null(json_parse("[1e999]", 7, 0, &why)); /* no double */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_of_our_own_leave_signals_to_the_program),
        cmocka_unit_test(errors_escape_control_characters),
        cmocka_unit_test(names_of_files_forge_no_line),
        cmocka_unit_test(crc32c_equals_rfc3720),
        cmocka_unit_test(long_integers_of_json_are_real),
        cmocka_unit_test(crc32c_of_much_is_that_of_its_bytes_one_by_one),
        cmocka_unit_test(atomic_write_keeps_mode_and_symlink),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
