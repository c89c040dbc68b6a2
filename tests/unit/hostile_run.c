/* A run directory may be another user's: every reader of it ends, soon and with a message, whatever lies
 * there. open() and openat() of this program stand before the system's. */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/compare/record.h"
#include "core/config/document.h"
#include "core/run/follow.h"
#include "core/run/run.h"
#include "core/run/status.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cmocka.h>

static struct {
    const char *ending; /* of the files that cannot be opened */
    int reason;
} fault;

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    size_t n = strlen(path), k = fault.ending ? strlen(fault.ending) : 0;
    if (k && n >= k && strcmp(path + n - k, fault.ending) == 0) {
        errno = fault.reason;
        return -1;
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int openat(int at, const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (fault.ending && strcmp(path, path_basename(fault.ending)) == 0) {
        errno = fault.reason;
        return -1;
    }
    return at == AT_FDCWD ? open(path, flags, mode) : (int)syscall(SYS_openat, at, path, flags, mode);
}

static char run[64];

static void put(const char *name, const char *text)
{
    char *path = path_join(run, name);
    assert_int_equal(file_write_atomic(path, text, strlen(text), NULL), 0);
    free(path);
}

static const char *const names[] = {"state.json",   "meta.json",   "plan.json",
                                    "live.json",    "config.yaml", "metrics.jsonl",
                                    "events.jsonl", "worker.log",  "ckpt/LATEST"};
enum { NAMES = sizeof names / sizeof *names };

static int setup(void **state)
{
    strcpy(run, "/tmp/meopt-hostile-XXXXXX");
    assert_non_null(mkdtemp(run));
    char *ckpt = path_join(run, "ckpt/step-00000001");
    assert_int_equal(file_make_dirs(ckpt, NULL), 0);
    free(ckpt);
    put("state.json", "{\"state\": \"done\", \"step\": 1, \"pid\": 1, \"host\": \"h\", \"exit_code\": 0}");
    put("meta.json", "{\"version\": 1, \"seed\": 1}");
    put("plan.json", "{}");
    put("live.json", "{}");
    put("config.yaml", "train: {seed: 1, batch_size: 4}\n");
    put("metrics.jsonl", "{\"step\":1,\"epoch\":0,\"loss\":0.5,\"cosine\":0.1,\"lr\":1e-3,\"grad_norm\":1,"
                         "\"images_per_s\":1,\"step_ms\":1,\"data_wait_ms\":0}\n");
    put("events.jsonl", "{}\n");
    put("worker.log", "x\n");
    put("ckpt/LATEST", "step-00000001");
    fault.ending = NULL;
    alarm(60); /* waiting readers are ended */
    return 0;
}

static int teardown(void **state)
{
    alarm(0);
    fault.ending = NULL;
    return file_remove_tree(run, NULL);
}

/* All that the dashboard and compare read. */
static int read_all(struct error *err)
{
    struct follow *f = NULL;
    struct record r;
    if (follow_open(&f, run, false, err) == 0) follow_refresh(f);
    follow_close(f);
    int code = record_read(&r, run, err);
    if (!code) record_free(&r);
    return code;
}

static void what_is_no_file_is_not_waited_for(void **state)
{
    struct error err;
    assert_int_equal(read_all(&err), 0);
    for (int i = 0; i < NAMES; i++) {
        char *path = path_join(run, names[i]), *aside = xasprintf("%s.aside", path);
        assert_int_equal(rename(path, aside), 0);
        assert_int_equal(mkfifo(path, 0600), 0);
        (void)read_all(&err);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(symlink("/dev/tty", path), 0);
        (void)read_all(&err);
        assert_int_equal(rename(aside, path), 0);
        free(aside);
        free(path);
    }
    char *path = path_join(run, "pipe"), *text;
    size_t bytes;
    struct file_map map;
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(file_read(path, 100, &text, &bytes, &err), EXIT_FAILED);
    assert_string_equal(err.file, path);
    assert_int_equal(file_map_open(&map, path, &err), EXIT_FAILED);
    free(path);
}

static void a_writer_is_neither_held_up_nor_led_elsewhere(void **state)
{
    static const char *const written[] = {"metrics.jsonl", "events.jsonl", "worker.log", "cards.jsonl"};
    char *elsewhere = path_join(run, "elsewhere");
    put("elsewhere", "theirs\n");
    for (int i = 0; i < 8; i++) {
        struct error err = {0};
        struct stat st;
        int fd;
        char *path = path_join(run, written[i / 2]);
        unlink(path);
        assert_int_equal(i % 2 ? symlink(elsewhere, path) : mkfifo(path, 0600), 0);
        assert_int_equal(run_append(run, written[i / 2], &fd, &err), EXIT_FAILED);
        assert_string_equal(err.file, path);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(run_append(run, written[i / 2], &fd, &err), 0);
        close(fd);
        assert_int_equal(stat(elsewhere, &st), 0);
        assert_int_equal(st.st_size, 7);
        free(path);
    }
    free(elsewhere);
}

static void what_cannot_be_read_is_not_taken_for_absent(void **state)
{
    static const char *const needed[] = {"meta.json", "state.json", "config.yaml", "metrics.jsonl",
                                         "ckpt/LATEST"};
    static const int reasons[] = {EIO, EMFILE};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        for (size_t k = 0; k < sizeof reasons / sizeof *reasons; k++) {
            struct error err = {0};
            struct record r;
            fault.ending = needed[i];
            fault.reason = reasons[k];
            assert_int_equal(record_read(&r, run, &err), EXIT_FAILED);
            assert_non_null(strstr(err.file, needed[i]));
            assert_non_null(strstr(err.what, strerror(reasons[k])));
            fault.ending = NULL;
        }
    char *path = path_join(run, "meta.json"); /* and what is absent is no error */
    struct error err;
    assert_int_equal(unlink(path), 0);
    assert_int_equal(read_all(&err), 0);
    free(path);
}

/* `levels` mappings of `keys` aliases to the one before. */
static char *nested(int levels, int keys)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    fprintf(out, "a0: &a0 {x: 1}\n");
    for (int l = 1; l <= levels; l++) {
        fprintf(out, "a%d: &a%d {", l, l);
        for (int k = 0; k < keys; k++) fprintf(out, "k%d: *a%d, ", k, l - 1);
        fprintf(out, "}\n");
    }
    fclose(out);
    return text;
}

static char *repeated(const char *line, int count)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    for (int i = 0; i < count; i++) fprintf(out, line, i);
    fclose(out);
    return text;
}

static void a_page_of_aliases_stays_a_page(void **state)
{
    struct error err = {0};
    char *text = nested(9, 40);
    put("config.yaml", text);
    free(text);
    assert_int_equal(read_all(&err), EXIT_INTEGRITY);
    assert_non_null(strstr(err.file, "config.yaml"));
    text = nested(4, 4); /* as much as a person writes */
    put("config.yaml", text);
    free(text);
    assert_int_equal(read_all(&err), 0);
}

static void deep_or_endless_text_is_refused_while_it_is_read(void **state)
{
    struct error err;
    static const struct {
        const char *line;
        int count;
    } rows[] = {{"[", 900000}, {"- &a%d x\n", 70000}, {"- &a x\n- *a\n", 60000}, {"{a: ", 200000}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct document d;
        char *text = repeated(rows[i].line, rows[i].count);
        assert_int_equal(document_parse(&d, "x", text, strlen(text), &err), EXIT_CONFIG);
        put("config.yaml", text);
        (void)read_all(&err);
        free(text);
    }
}

static void control_characters_of_a_state_are_escaped(void **state)
{
    struct run_status s;
    struct error err;
    put("state.json", "{\"state\": \"\\u001b]0;P\\u0007\", \"host\": \"\\u009b31m\", "
                      "\"message\": \"a\\u202eb\\u2066\", \"exit_code\": 1}");
    assert_int_equal(run_status_read(&s, run, &err), 0);
    const char *const texts[] = {s.state, s.host, s.message};
    for (int i = 0; i < 3; i++)
        for (const char *p = texts[i]; *p; p++) assert_int_equal(text_control(p), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_no_file_is_not_waited_for, setup, teardown),
        cmocka_unit_test_setup_teardown(a_writer_is_neither_held_up_nor_led_elsewhere, setup, teardown),
        cmocka_unit_test_setup_teardown(what_cannot_be_read_is_not_taken_for_absent, setup, teardown),
        cmocka_unit_test_setup_teardown(a_page_of_aliases_stays_a_page, setup, teardown),
        cmocka_unit_test_setup_teardown(deep_or_endless_text_is_refused_while_it_is_read, setup, teardown),
        cmocka_unit_test_setup_teardown(control_characters_of_a_state_are_escaped, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
