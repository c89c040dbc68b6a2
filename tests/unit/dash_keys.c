/* Random keys and sizes on the dashboard of a run that grows, shrinks and is torn. Memory stays small over
 * a long run. */
#include "cli/dashboard/dash_draw.h"
#include "cli/dashboard/dash_internal.h"
#include "cli/terminal/screen.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"

#include <locale.h>
#include <math.h>
#include <ncurses.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

static uint32_t seed = 7;
static uint32_t draw(uint32_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(seed >> 1) * n) >> 31);
}

static char *make_run(void)
{
    char template[] = "/tmp/meopt-dash-XXXXXX";
    assert_non_null(mkdtemp(template));
    char *path = path_join(template, "config.yaml");
    assert_int_equal(file_write_atomic(path, "train: {batch_size: 4}\n", 23, NULL), 0);
    free(path);
    return xstrdup(template);
}

static FILE *open_in(const char *run, const char *name, const char *mode)
{
    char *path = path_join(run, name);
    FILE *f = fopen(path, mode);
    free(path);
    assert_non_null(f);
    return f;
}

static void write_lines(const char *run, const char *mode, int64_t from, int64_t count, int cards)
{
    FILE *f = open_in(run, "metrics.jsonl", mode);
    for (int64_t i = from; i < from + count; i++) {
        fprintf(f,
                "{\"step\":%lld,\"epoch\":%lld,\"loss\":%s,\"cosine\":0.5,\"lr\":1e-4,\"grad_norm\":1.0,"
                "\"images_per_s\":%.1f,\"step_ms\":100.0,\"data_wait_ms\":1.0",
                (long long)i, (long long)i / 100,
                i % 97 == 5   ? "NaN"
                : i % 89 == 3 ? "null"
                              : "0.25",
                10.0 + (double)(i % 7));
        if (cards && i % 10 == 0) {
            fprintf(f, ",\"cards\":[");
            for (int c = 0; c < cards; c++)
                fprintf(f,
                        "%s{\"rank\":%d,\"device\":\"x\\u001b[2J\",\"mem_bytes\":%d,\"peak_bytes\":1000000,"
                        "\"classes\":{\"weights\":5000}}",
                        c ? "," : "", c, 1000 * c);
            fprintf(f, "]");
        }
        fprintf(f, "}\n");
    }
    fclose(f);
}

static void random_keys_never_break_it(void **state)
{
    static const wint_t special[] = {KEY_UP,   KEY_DOWN,   KEY_LEFT,  KEY_RIGHT, KEY_PPAGE, KEY_NPAGE,
                                     KEY_BTAB, KEY_RESIZE, KEY_MOUSE, KEY_HOME,  KEY_END};
    static const char letters[] = "\t1234?hkjlrsbzfgp cxyn\x0c\x1b+-[]0to\n/Ne";
    setlocale(LC_ALL, "C.UTF-8");
    FILE *nowhere = fopen("/dev/null", "r+");
    SCREEN *screen = newterm("xterm-256color", nowhere, nowhere);
    if (!screen) skip();
    screen_colours = has_colors();
    if (screen_colours) {
        start_color();
        use_default_colors();
    }
    dash_draw_start();
    char *run = make_run();
    struct dash_options options = {.directory = run};
    struct dash d = dash_begin(&options);
    struct error err;
    assert_int_equal(follow_open(&d.run, run, false, &err), 0);
    assert_int_equal(dash_baseline_add(&d, run, &err), 0);
    time_t end = time(NULL) + (getenv("MEOPT_LONG") ? 60 : 2);
    int64_t step = 1;
    for (long round = 0; time(NULL) < end; round++) {
        if (round % 20 == 0) {
            int what = (int)draw(12);
            if (what == 0) {
                write_lines(run, "w", 1, 1 + draw(50), (int)draw(70)); /* it was resumed: shorter now */
                step = 60;
            } else if (what == 1) {
                FILE *f = open_in(run, "metrics.jsonl", "a");
                fputs(draw(2) ? "{\"step\":" : "garbage\n\n\xff{}\n[]\n", f);
                fclose(f);
            } else if (what == 2) {
                FILE *f = open_in(run, "events.jsonl", "a");
                fprintf(f, "{\"event\":\"checkpoint\\u001b[31m\",\"time\":1e300,\"step\":%lld}\n",
                        (long long)step);
                fclose(f);
            } else if (what == 3) {
                FILE *f = open_in(run, "live.json", "w");
                fputs(draw(2) ? "{\"time\":5,\"worker\":{\"pid\":1,\"state\":\"hung\",\"phase\":\"training\","
                                "\"silent_s\":99},\"cards\":[{\"rank\":3,\"mem_total_bytes\":1e9},{\"rank\":-"
                                "1},{\"rank\":1000000}]}"
                              : "{",
                      f);
                fclose(f);
            } else if (what == 4) {
                FILE *f = open_in(run, "state.json", "w");
                fputs(draw(2) ? "{\"state\":\"failed\",\"exit_code\":137,\"message\":\"\\u001b]0;x\\u0007 "
                                "killed\",\"hint\":\"again\",\"step\":5,\"total_steps\":100}"
                              : "[]",
                      f);
                fclose(f);
            } else if (what == 5) {
                FILE *f = open_in(run, "worker.log", "a");
                fputs("\x1b[2J a line\n\xc3\n", f);
                fclose(f);
            } else {
                write_lines(run, "a", step, draw(400), (int)draw(3) * 4);
                step += 400;
            }
            follow_refresh(d.run);
            for (int i = 0; i < d.baseline_count; i++) follow_refresh(d.baselines[i]);
        }
        wint_t c = draw(3) ? (wint_t)letters[draw(sizeof letters - 1)]
                           : special[draw(sizeof special / sizeof *special)];
        dash_key(&d, c >= KEY_MIN ? KEY_CODE_YES : draw(8) ? OK : KEYS_PASTED, c);
        if (draw(10) == 0) resizeterm(1 + (int)draw(100), 1 + (int)draw(300));
        dash_draw(&d);
        assert_true(d.run->point_count <= FOLLOW_POINTS && d.run->card_count <= FOLLOW_CARDS &&
                    d.tab < TAB_COUNT);
    }
    follow_close(d.run);
    dash_baselines_end(&d);
    endwin();
    delscreen(screen);
    fclose(nowhere);
    file_remove_tree(run, NULL);
    free(run);
}

/* A file that is sampled and one that is read line by line show the same curve; the end is exact in both. */
static void long_runs_are_sampled(void **state)
{
    char *run = make_run();
    struct follow *f;
    struct timespec a, b;
    int64_t lines = getenv("MEOPT_LONG") ? 5000000 : 200000;
    write_lines(run, "w", 1, lines, 1);
    FILE *torn = open_in(run, "metrics.jsonl", "a");
    fputs("{\"step\":99999999,\"loss\":", torn);
    fclose(torn);
    clock_gettime(CLOCK_MONOTONIC, &a);
    assert_int_equal(follow_open(&f, run, false, NULL), 0);
    follow_refresh(f);
    clock_gettime(CLOCK_MONOTONIC, &b);
    double seconds = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9;
    print_message("%lld lines opened in %.3f s\n", (long long)lines, seconds);
    assert_true(seconds < 1);
    assert_int_equal(f->last.step, lines);
    assert_true(f->point_count > 1000 && f->point_count <= FOLLOW_POINTS);
    assert_true(f->points[0].first_step == 1 &&
                fabs(f->seconds - (double)lines * 0.1) < (double)lines * 0.1 * 0.05);
    for (int i = 1; i < f->point_count; i++)
        assert_true(f->points[i].first_step > f->points[i - 1].last_step);
    torn = open_in(run, "metrics.jsonl", "a");
    fputs("0.5}\n", torn); /* the torn line is whole now */
    fclose(torn);
    follow_refresh(f);
    assert_int_equal(f->last.step, 99999999);
    assert_float_equal(f->last.loss, 0.5, 0);
    follow_close(f);
    file_remove_tree(run, NULL);
    free(run);
}

static void what_is_no_run_is_refused(void **state)
{
    struct follow *f;
    struct error err;
    assert_int_equal(follow_open(&f, "/nonexistent", false, &err), EXIT_FAILED);
    assert_true(err.what[0] && err.hint[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_keys_never_break_it),
                                       cmocka_unit_test(long_runs_are_sampled),
                                       cmocka_unit_test(what_is_no_run_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
