/* Lists of runs: a run that cannot be read in time is left for the next call, the run written last comes
 * first, other directories are skipped, and losses are read on demand. */
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/run/run_summary.h"

#include <math.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

enum { RUNS = 40 };

static char root[] = "/tmp/meopt-brief-XXXXXX";

static void write_text(const char *directory, const char *name, const char *text)
{
    char *path = path_join(directory, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    free(path);
}

/* Every second one is a run; the later in the alphabet, the older. */
static void make(struct run_brief briefs[RUNS])
{
    memset(briefs, 0, RUNS * sizeof *briefs);
    for (int i = 0; i < RUNS; i++) {
        char name[16];
        snprintf(name, sizeof name, "r%02d", i);
        briefs[i] = (struct run_brief){.name = xstrdup(name), .directory = path_join(root, name)};
        if (mkdir(briefs[i].directory, 0777) != 0) continue; /* it was made before */
        if (i % 2) continue;
        write_text(briefs[i].directory, "config.yaml", "train:\n");
        write_text(briefs[i].directory, "state.json",
                   "{\"state\":\"done\",\"step\":2,\"total_steps\":2,\"epoch\":0,\"pid\":1,\"host\":\"h\","
                   "\"time\":5,"
                   "\"exit_code\":0}");
        write_text(briefs[i].directory, "metrics.jsonl",
                   "{\"step\":1,\"epoch\":0,\"loss\":2.0}\n{\"step\":2,\"epoch\":0,\"loss\":1.5}\n");
        const struct timespec times[2] = {{.tv_sec = 1000000 - i}, {.tv_sec = 1000000 - i}};
        assert_int_equal(utimensat(AT_FDCWD, briefs[i].directory, times, 0), 0);
    }
}

static void free_all(struct run_brief briefs[RUNS])
{
    for (int i = 0; i < RUNS; i++) run_brief_free(&briefs[i]);
}

static void what_is_late_is_left_for_the_next_time(void **state)
{
    struct run_brief briefs[RUNS];
    int unread = -1;
    make(briefs);
    assert_int_equal(run_briefs_read(briefs, RUNS, clock_seconds() - 1, &unread), 0);
    assert_int_equal(unread, RUNS); /* nothing is known of any */
    assert_true(run_briefs_read(briefs, RUNS, INFINITY, &unread) >= RUNS / 2);
    assert_int_equal(unread, 0);
    for (int i = 0; i < RUNS; i++) {
        assert_int_equal(briefs[i].foreign, i % 2);
        if (i % 2) continue;
        assert_string_equal(briefs[i].status.state, "done");
        assert_true(briefs[i].step == 2 && briefs[i].last.loss == 1.5);
        assert_int_equal(briefs[i].bound_by, BOTTLENECK_UNKNOWN);
    }
    assert_int_equal(run_briefs_read(briefs, RUNS, INFINITY, &unread), 0); /* nothing is new */
    write_text(briefs[1].directory, "config.yaml", "train:\n");
    write_text(briefs[1].directory, "state.json", "{");
    assert_true(run_briefs_read(briefs, RUNS, INFINITY, &unread) > 0);
    assert_true(!briefs[1].foreign && briefs[1].damaged);
    free_all(briefs);
}

static void losses_are_read_where_they_are_asked_for(void **state)
{
    struct run_brief briefs[RUNS], *some[] = {&briefs[2], &briefs[4]};
    make(briefs);
    run_briefs_read(briefs, RUNS, INFINITY, NULL);
    assert_int_equal(briefs[2].losses_mark, 0);
    run_briefs_losses(some, 2);
    assert_true(briefs[2].losses_mark != 0 && briefs[6].losses_mark == 0);
    assert_true(briefs[4].losses[0] == 2.0F && briefs[4].losses[BRIEF_LOSSES - 1] == 1.5F);
    free_all(briefs);
}

/* A run that is resumed in another job, while a list of runs stays open. */
static void a_resumed_run_has_its_new_job(void **state)
{
    struct run_brief briefs[RUNS];
    make(briefs);
    write_text(briefs[2].directory, "plan.json", "{\"peak_bytes\":7}");
    write_text(briefs[2].directory, "meta.json", "{\"started\":5.0,\"job\":{\"id\":\"11\"}}");
    run_briefs_read(briefs, RUNS, INFINITY, NULL);
    assert_string_equal(briefs[2].job, "11");
    assert_true(briefs[2].started == 5 && briefs[2].peak_bytes == 7);
    write_text(briefs[2].directory, "meta.json", "{\"started\":600.0,\"job\":{\"id\":\"1234\"}}");
    write_text(briefs[2].directory, "state.json",
               "{\"state\":\"stopped\",\"step\":2,\"total_steps\":9,\"epoch\":0,\"pid\":12,\"host\":\"h\","
               "\"time\":600,\"exit_code\":10}");
    assert_true(run_briefs_read(briefs, RUNS, INFINITY, NULL) > 0);
    assert_string_equal(briefs[2].job, "1234");
    assert_true(briefs[2].started == 600);
    free_all(briefs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_late_is_left_for_the_next_time),
                                       cmocka_unit_test(losses_are_read_where_they_are_asked_for),
                                       cmocka_unit_test(a_resumed_run_has_its_new_job)};
    if (!mkdtemp(root)) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    file_remove_tree(root, NULL);
    return failed;
}
