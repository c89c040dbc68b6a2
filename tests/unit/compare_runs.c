/* Runs of every kind are read correctly or refused clearly, and the table has the values of a reference
 * computation. */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/compare/gap.h"
#include "core/compare/table.h"
#include "tests/mentions.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static char root[] = "/tmp/compare_runs_XXXXXX";

static const char meta[] =
    "{\"version\":1,\"host\":\"h\",\"device\":\"CPU\",\"images\":160,\"total_steps\":4,\"student_"
    "parameters\":1000,\"teacher_parameters\":2000,"
    "\"family\":\"eva\",\"code_version\":\"0.1.0\",\"program_crc32c\":\"11111111\",\"data_crc32c\":"
    "\"22222222\",\"seed\":1,\"batch_images\":8,"
    "\"ranks\":1,\"epoch_steps\":2,\"optimizer_bytes_per_param\":14,\"checkpoint_bytes\":4000}";
static const char done[] =
    "{\"state\":\"done\",\"step\":4,\"total_steps\":4,\"pid\":1,\"host\":\"h\",\"exit_code\":0}";
static const char config[] = "train:\n  seed: 1\nloss:\n  type: mse\noptim:\n  use_meopt: false\n";

static void put(const char *run, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, run);
    mkdir(path, 0777);
    if (!name) return;
    snprintf(path, sizeof path, "%s/%s/%s", root, run, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

static void make(const char *run, const char *metrics)
{
    put(run, "meta.json", meta);
    put(run, "state.json", done);
    put(run, "config.yaml", config);
    if (metrics) put(run, "metrics.jsonl", metrics);
}

static struct record get(const char *run)
{
    char path[512];
    struct error err = {0};
    struct record r;
    snprintf(path, sizeof path, "%s/%s", root, run);
    int code = record_read(&r, path, &err);
    if (code) fail_msg("%s: %s", run, err.what);
    return r;
}

static void refuse(const char *run, int expected, const char *found)
{
    char path[512];
    struct error err = {0};
    struct record r;
    snprintf(path, sizeof path, "%s/%s", root, run);
    assert_int_equal(record_read(&r, path, &err), expected);
    assert_true(err.hint[0] && strstr(err.file, run) && strstr(err.what, found));
}

#define LINE(step, epoch, loss, cosine, rate, ms)                                                            \
    "{\"step\":" #step ",\"epoch\":" #epoch ",\"loss\":" #loss ",\"cosine\":" #cosine                        \
    ",\"lr\":1e-3,\"grad_norm\":1,\"images_per_s\":" #rate ",\"step_ms\":" #ms ",\"data_wait_ms\":1}\n"
#define CARD(peak)                                                                                           \
    ",\"cards\":[{\"rank\":0,\"device\":\"CPU\",\"mem_bytes\":1,\"peak_bytes\":" #peak                       \
    ",\"classes\":{\"weights\":600,\"optimizer\":400}}]}\n"

static void short_runs(void **state)
{
    make("none", "");
    struct record r = get("none");
    assert_int_equal(r.count, 0);
    assert_true(isnan(r.final_loss) && isnan(r.time_s) && isnan(r.peak_bytes) && !r.torn);
    record_free(&r);
    make("absent", NULL);
    r = get("absent");
    assert_int_equal(r.count, 0);
    record_free(&r);
    make("one", LINE(1, 0, 0.5, 0.1, 80, 100));
    r = get("one");
    assert_int_equal(r.count, 1);
    assert_true(r.first_loss == 0.5 && r.final_loss == 0.5 && r.best_loss == 0.5 && r.tail_loss == 0.5 &&
                r.median_rate == 80 && r.median_step_ms == 100);
    assert_true(fabs(r.time_s - 0.1) < 1e-15 && fabs(r.wait_share - 0.01) < 1e-15);
    record_free(&r);
    make("two", LINE(1, 0, 0.5, 0.1, 80, 100) LINE(2, 0, 0.25, 0.2, 40, 200));
    r = get("two");
    assert_int_equal(r.count, 2);
    assert_true(r.final_loss == 0.25 && r.median_rate == 60 && r.median_step_ms == 150 &&
                r.best_scores[SCORE_COSINE] == 0.2 && r.epochs == 1 && r.epoch_loss[0] == 0.375);
    record_free(&r);
}

static void torn_and_foreign_lines(void **state)
{
    make("torn", LINE(1, 0, 0.5, 0.1, 80, 100) "{\"step\":2,\"loss\":0.2");
    struct record r = get("torn");
    assert_int_equal(r.count, 1);
    assert_true(r.torn && r.bad_lines == 0);
    record_free(&r);
    make("junk",
         "not json\n" LINE(1, 0, 0.5, 0.1, 80, 100) "{\"other\":1}\n\n" LINE(2, 0, 0.4, 0.1, 80, 100));
    r = get("junk");
    assert_int_equal(r.count, 2);
    assert_int_equal(r.bad_lines, 2);
    assert_false(r.torn);
    record_free(&r);
    make("again", LINE(1, 0, 0.5, 0.1, 80, 100) LINE(2, 0, 0.4, 0.1, 80, 100) LINE(3, 0, 0.3, 0.1, 80, 100)
                      LINE(2, 0, 0.45, 0.1, 80, 100));
    r = get("again"); /* resumed: the last word counts */
    assert_int_equal(r.count, 2);
    assert_true(r.final_loss == 0.45 && fabs(r.time_s - 0.2) < 1e-12);
    record_free(&r);
}

static void not_a_number_and_missing_fields(void **state)
{
    make("nan", LINE(1, 0, 0.5, 0.1, 80, 100)
                    LINE(2, 0, NaN, null, 80, 100) "{\"step\":3}\n" LINE(4, 1, 0.25, 0.4, 80, 100));
    struct record r = get("nan");
    assert_int_equal(r.count, 4);
    assert_int_equal(r.nan_steps, 2);
    assert_int_equal(r.first_nan_step, 2);
    assert_true(r.best_loss == 0.25 && r.final_loss == 0.25 && r.best_scores[SCORE_COSINE] == 0.4 &&
                r.epochs == 2 && r.epoch_loss[0] == 0.5);
    record_free(&r);
    put("old", "metrics.jsonl", LINE(1, 0, 0.5, 0.1, 80, 100)); /* nothing but metrics */
    r = get("old");
    assert_int_equal(r.seed, -1);
    assert_true(r.device[0] == 0 && isnan(r.checkpoint_bytes) && r.setting_count == 0);
    record_free(&r);
}

static void states(void **state)
{
    char text[300], host[128] = "";
    gethostname(host, sizeof host - 1);
    make("running", LINE(1, 0, 0.5, 0.1, 80, 100));
    snprintf(text, sizeof text, "{\"state\":\"training\",\"pid\":%d,\"host\":\"%s\",\"exit_code\":null}",
             (int)getpid(), host);
    put("running", "state.json", text);
    char *path = path_join(root, "running/.lock");
    int lock = open(path, O_RDWR | O_CREAT, 0666);
    assert_int_equal(flock(lock, LOCK_EX), 0); /* as who trains there does */
    struct record r = get("running");
    assert_string_equal(r.state, "running");
    record_free(&r);
    close(lock);
    free(path);
    r = get("running"); /* the number is another process's by now */
    assert_string_equal(r.state, "broken off");
    record_free(&r);
    snprintf(text, sizeof text, "{\"state\":\"training\",\"pid\":%d,\"host\":\"%s\",\"exit_code\":null}",
             0x3ffffff, host);
    put("running", "state.json", text);
    r = get("running");
    assert_string_equal(r.state, "broken off");
    record_free(&r);
}

static void what_is_no_run_is_refused(void **state)
{
    put("foreign", "notes.txt", "x");
    put("foreign", "config.yaml", "a: 1\n");
    refuse("foreign", EXIT_USAGE, "");
    refuse("foreign/notes.txt", EXIT_USAGE, "");
    refuse("nowhere", EXIT_USAGE, "");
    make("newer", LINE(1, 0, 0.5, 0.1, 80, 100));
    put("newer", "meta.json", "{\"version\":2}");
    refuse("newer", EXIT_INTEGRITY, "2");
}

static void hostile_text_is_made_printable(void **state)
{
    make("hostile", LINE(1, 0, 0.5, 0.1, 80, 100));
    put("hostile", "meta.json", "{\"version\":1,\"device\":\"a\\u001b[31m<b>\"}");
    put("hostile", "config.yaml", "a: \"x\\e]0;y\\a\"\n");
    struct record r = get("hostile");
    assert_null(strchr(r.device, 27));
    assert_null(strchr(record_setting(&r, "a"), 27));
    record_free(&r);
}

/* ---- The table ---- */

enum { REPEATS = 3 };
struct side {
    const char *name, *runs[REPEATS]; /* NULL: fewer */
};

/* The first is what the other is compared with. */
static struct table *table_of(struct side one, struct side other)
{
    struct side sides[] = {one, other};
    struct column *columns = xcalloc(2, sizeof *columns);
    for (int s = 0; s < 2; s++) {
        columns[s] =
            (struct column){.name = xstrdup(sides[s].name), .runs = xcalloc(REPEATS, sizeof *columns->runs)};
        for (int i = 0; i < REPEATS && sides[s].runs[i]; i++)
            columns[s].runs[columns[s].run_count++] = get(sides[s].runs[i]);
    }
    return table_make(columns, 2, 0);
}

static void expect(const struct table *t, const char *key, int column, double value, const char *text,
                   const char *change)
{
    char dst[CELL_TEXT];
    const struct row *row = table_row(t, key);
    if (!row) fail_msg("no row %s", key);
    const struct cell *cell = &row->cells[column];
    if (!(fabs(cell->mean - value) <= 1e-12 * fmax(1, fabs(value))))
        fail_msg("%s: %.17g, expected %.17g", key, cell->mean, value);
    if (text) assert_string_equal(cell_text(dst, row, cell, "+-"), text);
    if (change) assert_string_equal(cell_change(dst, row, cell, "+-"), change);
}

/* Three repeats of two columns: step times 100, 110, 90 ms without and 80, 84, 82 ms with. By numpy: mean
 * 100, sd 10; mean 82, sd 2; ratio .82, propagated .82 * sqrt(.1^2 + (2/82)^2) = 0.08440379; by scipy Welch:
 * t = -3.057148, df = 2.159744, p = 0.08399388. */
static void a_golden_table(void **state)
{
    make("a1", LINE(1, 0, 1.0, 0.1, 80, 100) "{\"step\":2,\"epoch\":0,\"loss\":0.5,\"cosine\":0.5,\"images_"
                                             "per_s\":80,\"step_ms\":100" CARD(1000));
    make("a2", LINE(1, 0, 1.0, 0.1, 80, 110) "{\"step\":2,\"epoch\":0,\"loss\":0.52,\"cosine\":0.5,\"images_"
                                             "per_s\":80,\"step_ms\":110" CARD(1000));
    make("a3", LINE(1, 0, 1.0, 0.1, 80, 90) "{\"step\":2,\"epoch\":0,\"loss\":0.48,\"cosine\":0.5,\"images_"
                                            "per_s\":80,\"step_ms\":90" CARD(1000));
    make("b1", LINE(1, 0, 1.1, 0.1, 100, 80) "{\"step\":2,\"epoch\":0,\"loss\":0.5,\"cosine\":0.5,\"images_"
                                             "per_s\":100,\"step_ms\":80" CARD(400));
    make("b2", LINE(1, 0, 1.2, 0.1, 100, 84) "{\"step\":2,\"epoch\":0,\"loss\":0.5,\"cosine\":0.5,\"images_"
                                             "per_s\":100,\"step_ms\":84" CARD(400));
    make("b3", LINE(1, 0, 1.0, 0.1, 100, 82) "{\"step\":2,\"epoch\":0,\"loss\":0.5,\"cosine\":0.5,\"images_"
                                             "per_s\":100,\"step_ms\":82" CARD(400));
    put("b1", "config.yaml", "train:\n  seed: 1\nloss:\n  type: mse\noptim:\n  use_meopt: true\n");
    put("b2", "config.yaml", "train:\n  seed: 1\nloss:\n  type: mse\noptim:\n  use_meopt: true\n");
    put("b3", "config.yaml", "train:\n  seed: 1\nloss:\n  type: mse\noptim:\n  use_meopt: true\n");
    struct table *t =
        table_of((struct side){"without", {"a1", "a2", "a3"}}, (struct side){"with", {"b1", "b2", "b3"}});
    expect(t, "step_ms", 0, 100, "100.0 +- 10.0 ms", "");
    expect(t, "step_ms", 1, 82, "82.00 +- 2.00 ms", "-18.0 +- 8.4 %");
    const struct cell *step = &table_row(t, "step_ms")->cells[1];
    assert_true(fabs(step->ratio - 0.82) < 1e-12 && fabs(step->ratio_sd - 0.08440379138) < 1e-10);
    assert_true(fabs(step->p - 0.08399387894) < 1e-9);
    expect(t, "peak_bytes", 0, 1000, "1000 B", "");
    expect(t, "peak_bytes", 1, 400, "400 B", "-60.0 %");
    expect(t, "peak_drop_percent", 1, 60, "60.0 %", "");
    expect(t, "weights_bytes", 1, 600, "600 B", "");
    expect(t, "final_loss", 0, 0.5, "0.5 +- 0.02", "");
    expect(t, "final_loss", 1, 0.5, "0.5", "");
    expect(t, "max_loss_gap", 1, 0.32 / 3, "0.10667 +- 0.09",
           ""); /* 0.1, 0.2, 0.02 at steps 1, 1, 2; sd 0.0902 */
    expect(t, "final_loss_gap", 1, 0, NULL, "");
    expect(t, "epochs", 1, 1, "1", "");
    assert_true(t->comparable);
    int changed = 0;
    for (int r = 0; r < t->row_count; r++)
        if (t->rows[r].section == SECTION_CONFIG && t->rows[r].changed) {
            changed++;
            assert_string_equal(t->rows[r].key, "optim.use_meopt");
            assert_string_equal(t->rows[r].cells[1].text, "true");
        }
    assert_int_equal(changed, 1);
    struct threshold threshold;
    struct error err = {0};
    double change;
    static const struct {
        const char *expression;
        bool passed;
    } cases[] = {{"peak_bytes:-20%", true},    {"peak_bytes:-60%", true},      {"peak_bytes:-61%", false},
                 {"final_loss:+1%", true},     {"final_loss:0.001", true},     {"images_per_s:+25%", true},
                 {"images_per_s:+26%", false}, {"peak_drop_percent:59", true}, {"max_loss_gap:0.05", false},
                 {"peak_bytes:-700", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(threshold_parse(&threshold, t, cases[i].expression, &err), 0);
        if (threshold_passed(&threshold, &threshold.row->cells[0], &threshold.row->cells[1], &change) !=
            cases[i].passed)
            fail_msg("%s: %g", cases[i].expression, change);
    }
    static const char *const wrong[] = {
        "",           ":1%",     "peak_bytes",    "peak_bytes:", "peak_bytes:x%", "peak_bytes:1%%",
        "nothing:1%", "state:1", "peak_bytes:nan"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(threshold_parse(&threshold, t, wrong[i], &err), EXIT_USAGE);
    table_free(t);
}

static void a_rank_has_its_share_of_a_step(void **state)
{
    make("many", LINE(1, 0, 1.0, 0.1, 80, 100));
    put("many", "meta.json", "{\"version\":1,\"batch_images\":32,\"ranks\":4}");
    struct record r = get("many");
    assert_int_equal(r.batch, 8);
    assert_int_equal(r.step_images, 32);
    record_free(&r);
}

static void what_stands_in_the_way_is_said(void **state)
{
    make("c1", LINE(1, 0, 1.0, 0.1, 80, 100) LINE(2, 0, 0.5, 0.1, 80, 100));
    make("c2", LINE(1, 0, 1.0, 0.1, 80, 100));
    put("c2", "meta.json",
        "{\"version\":1,\"device\":\"another\",\"seed\":2,\"batch_images\":4,\"data_crc32c\":\"33333333\","
        "\"code_version\":\"0.2\",\"student_parameters\":1}");
    put("c2", "config.yaml", "loss:\n  type: cosine\n");
    struct table *t = table_of((struct side){"c1", {"c1"}}, (struct side){"c2", {"c2"}});
    static const char *const expected[] = {"steps",
                                           "seed",
                                           "data_crc32c",
                                           "device",
                                           "code_version",
                                           "batch_images",
                                           "ranks",
                                           "student_parameters",
                                           "teacher_parameters",
                                           "loss.type"};
    size_t found = 0;
    for (int r = 0; r < t->row_count; r++)
        if (t->rows[r].section == SECTION_COMPARABLE) {
            assert_true(found < sizeof expected / sizeof *expected);
            assert_string_equal(t->rows[r].key, expected[found++]);
            assert_non_null(t->rows[r].why);
        }
    assert_int_equal(found, sizeof expected / sizeof *expected);
    assert_false(t->comparable);
    table_free(t);
}

static void memory_in_files_and_on_the_host_is_listed_by_class(void **state)
{
    make("held", "{\"step\":1,\"epoch\":0,\"loss\":1" CARD(1000));
    make("away",
         "{\"step\":1,\"epoch\":0,\"loss\":1,\"cards\":[{\"rank\":0,\"device\":\"CPU\",\"mem_bytes\":1,"
         "\"peak_bytes\":400,\"classes\":{\"weights\":400},\"host_classes\":{\"comm\":7},"
         "\"file_classes\":{\"teacher\":500,\"optimizer\":100}}]}\n");
    struct table *t = table_of((struct side){"held", {"held"}}, (struct side){"away", {"away"}});
    expect(t, "file_bytes", 1, 600, "600 B", "");
    expect(t, "file_teacher_bytes", 1, 500, "500 B", "");
    expect(t, "file_optimizer_bytes", 1, 100, "100 B", "");
    assert_true(isnan(table_row(t, "file_teacher_bytes")->cells[0].mean));
    expect(t, "host_comm_bytes", 1, 7, "7 B", "");
    assert_null(table_row(t, "file_weights_bytes")); /* a row with nothing in it says nothing */
    assert_null(table_row(t, "host_teacher_bytes"));
    table_free(t);
}

/* Steps whose norm is 1, a limit, and how each run clips. */
static int warnings_of_clipping(const char *limit, const char *one, const char *other)
{
    static const char *const names[] = {"k1", "k2"};
    const char *modes[] = {one, other};
    for (int c = 0; c < 2; c++) {
        char text[256];
        snprintf(text, sizeof text, "train:\n  seed: 1\noptim:\n  clip_grad_norm: %s\n  clip_mode: %s\n",
                 limit, modes[c]);
        make(names[c], LINE(1, 0, 1.0, 0.1, 80, 100) LINE(2, 0, 0.5, 0.1, 80, 100));
        put(names[c], "config.yaml", text);
    }
    struct table *t = table_of((struct side){"k1", {"k1"}}, (struct side){"k2", {"k2"}});
    int count = t->warning_count;
    assert_true(t->comparable);
    if (count) {
        assert_true(mentions(t->warnings[0], "k2|optim.clip_mode| previous|k1| exact|optim.clip_mode=exact"));
    }
    table_free(t);
    return count;
}

static void runs_with_different_clipping_norms_are_reported(void **state)
{
    assert_int_equal(warnings_of_clipping("0.5", "exact", "previous"), 1);
    assert_int_equal(warnings_of_clipping("0.5", "exact", "exact"), 0);
    assert_int_equal(warnings_of_clipping("1.5", "exact", "previous"), 0); /* no step was over the limit */
    assert_int_equal(warnings_of_clipping("0", "exact", "previous"), 0);
    /* what is in effect counts: gradients that are kept or added up are clipped by their own norm */
    assert_int_equal(warnings_of_clipping("0.5", "previous\n  gradients: keep", "previous"), 1);
    assert_int_equal(warnings_of_clipping("0.5", "exact", "previous\n  gradients: keep"), 0);
}

/* By hand: at equal steps .2 - .4 (step 2) is the largest difference, at the last common step 3 it is .1. */
static void gaps_join_by_step_and_by_time(void **state)
{
    make("g1", LINE(1, 0, 1.0, 0, 1, 100) LINE(2, 0, 0.4, 0, 1, 100) LINE(3, 0, 0.2, 0, 1, 100)
                   LINE(4, 0, 0.1, 0, 1, 100));
    make("g2", LINE(2, 0, 0.2, 0, 1, 50) LINE(3, 0, 0.3, 0, 1, 50) LINE(5, 0, 0.15, 0, 1, 50));
    struct record a = get("g1"), b = get("g2");
    struct gap gap = gap_measure(&b, &a);
    assert_true(fabs(gap.max + 0.2) < 1e-12 && fabs(gap.final - 0.1) < 1e-12);
    /* times of g2: .05 .10 .15; g1 has taken step 1 (1.0) at .10 and .15: -.7, then -.85 */
    assert_true(fabs(gap.time_max + 0.85) < 1e-12 && fabs(gap.time_final + 0.85) < 1e-12);
    record_free(&a);
    record_free(&b);
}

static int remove_all(void **state) { return file_remove_tree(root, NULL); }

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(short_runs),
                                       cmocka_unit_test(torn_and_foreign_lines),
                                       cmocka_unit_test(not_a_number_and_missing_fields),
                                       cmocka_unit_test(states),
                                       cmocka_unit_test(what_is_no_run_is_refused),
                                       cmocka_unit_test(hostile_text_is_made_printable),
                                       cmocka_unit_test(a_golden_table),
                                       cmocka_unit_test(a_rank_has_its_share_of_a_step),
                                       cmocka_unit_test(what_stands_in_the_way_is_said),
                                       cmocka_unit_test(memory_in_files_and_on_the_host_is_listed_by_class),
                                       cmocka_unit_test(runs_with_different_clipping_norms_are_reported),
                                       cmocka_unit_test(gaps_join_by_step_and_by_time)};
    if (!mkdtemp(root)) return 1;
    return cmocka_run_group_tests(tests, NULL, remove_all);
}
