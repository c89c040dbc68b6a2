/* A run of 1,100 ranks writes metric lines of hundreds of kilobytes: every reader takes them, and a resume
 * cuts the file where it should. */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/compare/record.h"
#include "core/run/run_summary.h"
#include "core/run/follow.h"
#include "core/run/run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { RANKS = 1100, STEPS = 12 };
static char directory[] = "/tmp/meopt-long-XXXXXX";

static void put(const char *name, const char *text)
{
    assert_int_equal(file_write_below(directory, name, text, strlen(text), NULL), 0);
}

static int make_run(void **state)
{
    char *text = NULL;
    size_t bytes;
    if (!mkdtemp(directory)) return -1;
    put("config.yaml", "train: {seed: 1, batch_size: 4}\n");
    put("state.json", "{\"state\": \"training\", \"step\": 12, \"total_steps\": 20, \"host\": \"another\"}");
    put("meta.json", "{\"version\": 1, \"seed\": 1}");
    FILE *out = open_memstream(&text, &bytes);
    for (int step = 1; step <= STEPS; step++) {
        fprintf(out,
                "{\"step\":%d,\"epoch\":0,\"loss\":%g,\"cosine\":0.1,\"lr\":1e-3,\"grad_norm\":1,"
                "\"images_per_s\":1,\"step_ms\":1,\"data_wait_ms\":0,\"cards\":[",
                step, 1.0 / step);
        for (int r = 0; r < RANKS; r++)
            fprintf(out,
                    "%s{\"rank\":%d,\"device\":\"%0100d\",\"images_per_s\":1.5,\"mem_bytes\":123456789,"
                    "\"peak_bytes\":123456789,\"classes\":{\"weights\":123456789,\"gradients\":123456789,"
                    "\"optimizer\":123456789,\"activations\":123456789,\"teacher\":123456789}}",
                    r ? "," : "", r, r);
        fprintf(out, "]}\n");
    }
    fclose(out);
    assert_true(bytes / STEPS > 256 << 10);
    put("metrics.jsonl", text);
    put("events.jsonl", "{}\n");
    free(text);
    return 0;
}

static int remove_run(void **state) { return file_remove_tree(directory, NULL); }

static void the_table_of_runs_has_its_loss(void **state)
{
    struct run_brief brief = {.name = xstrdup("long"), .directory = xstrdup(directory)};
    struct run_brief *all[] = {&brief};
    run_brief_read(&brief);
    assert_int_equal(brief.last.step, STEPS);
    assert_true(brief.last.loss > 0.08 && brief.last.loss < 0.09);
    run_briefs_losses(all, 1);
    assert_true(brief.losses[0] > 0.9f);
    run_brief_free(&brief);
}

static void the_dashboard_has_every_line(void **state)
{
    struct error err;
    struct follow *f;
    assert_int_equal(follow_open(&f, directory, false, &err), 0);
    for (int i = 0; i < 4; i++) follow_refresh(f);
    assert_int_equal(f->last.step, STEPS);
    assert_int_equal(f->gaps, 0);
    assert_int_equal(f->point_count, STEPS);
    assert_true(f->card_count > 0);
    follow_close(f);
    assert_int_equal(follow_glance(&f, directory, &err), 0);
    assert_int_equal(f->last.step, STEPS);
    follow_close(f);
}

static void compare_has_every_line(void **state)
{
    struct error err;
    struct record r;
    assert_int_equal(record_read(&r, directory, &err), 0);
    assert_int_equal(r.count, STEPS);
    record_free(&r);
}

static void a_resume_truncates_after_its_step(void **state)
{
    struct error err;
    struct run run;
    struct follow *f;
    assert_int_equal(run_open(&run, directory, &err), 0);
    assert_int_equal(run_truncate_metrics(&run, 3, &err), 0);
    run_close(&run);
    assert_int_equal(follow_glance(&f, directory, &err), 0);
    assert_int_equal(f->last.step, 3);
    follow_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_of_runs_has_its_loss), cmocka_unit_test(the_dashboard_has_every_line),
        cmocka_unit_test(compare_has_every_line), cmocka_unit_test(a_resume_truncates_after_its_step)};
    return cmocka_run_group_tests(tests, make_run, remove_run);
}
