/* The form under random keys and sizes, without a terminal: the text is always a valid configuration, undo
 * returns to the saved bytes, and nothing is accessed out of bounds (ASan). 2 s; MEOPT_LONG=1: 60 s. */
#include "cli/form/form.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/log.h"
#include "core/config/value.h"

#include <locale.h>
#include <ncurses.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

static uint32_t draw(uint32_t n)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % n;
}

static int fake_plan(const struct config *config, struct memory_use *use, struct error *err)
{
    if (config->train.batch_size % 7 == 3)
        return error_set(err, EXIT_CONFIG, NULL, "no plan for batches of %lld 张图",
                         (long long)config->train.batch_size);
    memset(use, 0, sizeof *use);
    for (int c = 0; c < MEMORY_CLASS_COUNT; c++)
        use->peak_total_bytes += use->peak_bytes[c] = (size_t)config->train.batch_size << (20 + c);
    return 0;
}

static void press(struct form *form, const char *keys)
{
    for (; *keys; keys++) form_input(form, (wint_t)(unsigned char)*keys);
}

static char *open_copy(const char *name, struct form *form)
{
    char *source = xasprintf("%s/configs/%s.yaml", MEOPT_SOURCE_DIR, name),
         *path = xasprintf("/tmp/meopt-form-%d.yaml", (int)getpid());
    char *text;
    size_t bytes;
    assert_int_equal(file_read(source, 1 << 20, &text, &bytes, NULL), 0);
    assert_int_equal(file_write_atomic(path, text, bytes, NULL), 0);
    struct error err = {0};
    assert_int_equal(form_open(form, path, fake_plan, 64ull << 30, &err), 0);
    free(text);
    free(source);
    return path;
}

static void keys_change_search_undo_and_save(void **state)
{
    struct form form;
    char *path = open_copy("eva_clip", &form);
    press(&form, "/batch_size\n");
    assert_string_equal(config_keys[form.rows[form.selected].key].name, "train.batch_size");
    size_t before = form.use.peak_total_bytes;
    press(&form, "\n\x15"
                 "64\n");
    assert_int_equal(form.mode, FORM_BROWSE);
    assert_int_equal(form.config.train.batch_size, 64);
    assert_int_equal(form.use.peak_total_bytes, 2 * before); /* the plan moves with the value */
    press(&form, "\n\x15"
                 "0");
    assert_true(form.input_problem[0]); /* said while it is typed */
    press(&form, "\n");
    assert_int_equal(form.mode, FORM_TEXT); /* and not taken */
    press(&form, "\x1b/use_meopt\n ");
    assert_false(form.config.optim.use_meopt);
    press(&form, "d");
    assert_non_null(strstr(form.diff, "train.batch_size: 32 -> 64\n"));
    assert_non_null(strstr(form.diff, "optim.use_meopt: true -> false\n"));
    press(&form, "x"
                 "uuu");
    assert_false(form_changed(&form));
    press(&form, "u");
    assert_true(form.message[0]);
    press(&form, "/lr\n\n\x15"
                 "1.0e-3\nq");
    assert_int_equal(form.mode, FORM_QUIT);
    press(&form, "y");
    assert_int_equal(form.mode, FORM_DONE);
    char *text;
    size_t bytes;
    assert_int_equal(file_read(path, 1 << 20, &text, &bytes, NULL), 0);
    assert_non_null(strstr(text, "  lr: 1.0e-3\n"));
    assert_non_null(strstr(text, "关闭即为基线"));
    free(text);
    form_close(&form);
    unlink(path);
    free(path);
}

static void a_file_changed_meanwhile_is_not_overwritten(void **state)
{
    struct form form;
    char *path = open_copy("quickstart", &form);
    press(&form, "/batch_size\n\n\x15"
                 "8\n");
    assert_int_equal(file_write_atomic(path, "# other\n", 8, NULL), 0);
    press(&form, "sy");
    assert_true(form.message[0]);
    assert_true(form_changed(&form));
    char *text;
    size_t bytes;
    assert_int_equal(file_read(path, 1 << 20, &text, &bytes, NULL), 0);
    assert_string_equal(text, "# other\n");
    free(text);
    form_close(&form);
    unlink(path);
    free(path);
}

static void random_keys_never_break_it(void **state)
{
    static const wint_t special[] = {INPUT_UP,
                                     INPUT_DOWN,
                                     INPUT_LEFT,
                                     INPUT_RIGHT,
                                     INPUT_PAGE_UP,
                                     INPUT_PAGE_DOWN,
                                     INPUT_HOME,
                                     INPUT_END,
                                     INPUT_DELETE,
                                     INPUT_BACK_TAB,
                                     '\n',
                                     '\n',
                                     '\n',
                                     ' ',
                                     ' ',
                                     27,
                                     '\t',
                                     'x',
                                     'u',
                                     '/',
                                     'n',
                                     's',
                                     'y',
                                     'd',
                                     '?',
                                     127,
                                     21,
                                     0x4E2D,
                                     0x1F600,
                                     'q',
                                     '0',
                                     '1',
                                     '2',
                                     '.',
                                     'e',
                                     '-'};
    setlocale(LC_ALL, "C.UTF-8");
    FILE *nowhere = fopen("/dev/null", "r+");
    assert_non_null(nowhere);
    SCREEN *screen = newterm("xterm-256color", nowhere, nowhere);
    if (!screen) skip();
    form_draw_start();
    time_t end = time(NULL) + (getenv("MEOPT_LONG") ? 60 : 2);
    long pressed = 0, drawn = 0, changes = 0;
    struct form form;
    char *path = open_copy("eva_clip", &form);
    while (time(NULL) < end) {
        for (int i = 0; i < 50; i++) {
            wint_t c = draw(3) ? special[draw((uint32_t)(sizeof special / sizeof *special))]
                               : (wint_t)(1 + draw(126));
            form_input(&form, c);
            if (draw(40) == 0) form_click(&form, form_row_at(&form, (int)draw(60), (int)draw(200)));
            pressed++;
            assert_true(form.selected >= 0 && form.selected < form.row_count &&
                        form.rows[form.selected].key >= 0);
            if (draw(20) == 0) {
                resizeterm(1 + (int)draw(60), 1 + (int)draw(200));
                form_draw(&form);
                drawn++;
            }
            if (form.mode == FORM_DONE) break;
        }
        form_draw(&form);
        drawn++;
        changes += form.undo_count;
        struct config config;
        assert_int_equal(config_examine(&config, path, form.text, form.bytes, NULL, 0, NULL, NULL, NULL), 0);
        config_free(&config);
        if (form.mode == FORM_DONE || form.undo_count > 200) {
            form_close(&form);
            free(path);
            path = open_copy(draw(2) ? "eva_clip" : "dinov2", &form);
        }
    }
    endwin();
    delscreen(screen);
    fclose(nowhere);
    printf("%ld keys, %ld screens\n", pressed, drawn);
    assert_true(pressed > 500 && changes > 0);
    form_close(&form);
    unlink(path);
    free(path);
}

int main(void)
{
    log_level = LOG_QUIET;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_change_search_undo_and_save),
        cmocka_unit_test(a_file_changed_meanwhile_is_not_overwritten),
        cmocka_unit_test(random_keys_never_break_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
