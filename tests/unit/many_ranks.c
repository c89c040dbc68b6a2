/* A thousand ranks: lines of metrics.jsonl and live.json stay short and name the worst ranks. The dashboard
 * and compare read them. Up to 64 ranks every rank is listed. */
#include "cli/supervisor/supervise_internal.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/compare/record.h"
#include "core/run/follow.h"
#include "core/run/many_ranks.h"
#include "core/train/metrics.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

enum {
    RANKS = 1000,
    FULLEST = 777,
    SLOW = 13,
    SILENT = 501,
    NODE = 8,
    STAGES = 4,
    WAITS = 333,
    LINE_BYTES = 32768
};
static char directory[] = "/tmp/meopt-many-XXXXXX";
static struct card_report reports[RANKS];
static struct rank_now ranks[RANKS];

static int remove_directory(void **state) { return file_remove_tree(directory, NULL); }

static bool lists(const json_t *list, int rank)
{
    size_t i;
    const json_t *row;
    json_array_foreach(list, i,
                       row) if (json_integer_value(json_object_get(row, "rank")) == rank) return true;
    return false;
}

static void put(const char *name, const char *text)
{
    assert_int_equal(file_write_below(directory, name, text, strlen(text), NULL), 0);
}

/* Writes an object as one line; returns its bytes. */
static size_t put_json(const char *name, const json_t *object)
{
    char *text = json_dumps(object, JSON_COMPACT), *line = xasprintf("%s\n", text);
    size_t bytes = strlen(line);
    put(name, line);
    free(text);
    free(line);
    return bytes;
}

static int make(void **state)
{
    for (int r = 0; r < RANKS; r++) {
        reports[r].use.current_total_bytes = 1000000000u + (size_t)r;
        reports[r].use.peak_total_bytes = 2000000000u + (size_t)(r == FULLEST ? 500000000 : r);
        reports[r].images_per_s = r == SLOW ? 31.5 : 32;
        strcpy(reports[r].name, "K100 AI");
        reports[r].layout.stages = STAGES;
        reports[r].bubble = r == WAITS ? 0.9 : 0.1;
        ranks[r] = (struct rank_now){.joined = true, .silent = r == SILENT ? 9 : 0.5};
        ranks[r].rank.waiting = r == SLOW ? 0.01 : 0.4;
        ranks[r].rank.beat.peak_bytes = 2000000000;
        snprintf(ranks[r].rank.facts.host, sizeof ranks[r].rank.facts.host, "node%d", r / NODE);
    }
    if (!mkdtemp(directory)) return -1;
    put("config.yaml", "train: {seed: 1, batch_size: 4}\n");
    put("state.json", "{\"state\": \"training\", \"step\": 1, \"total_steps\": 20, \"host\": \"another\"}");
    put("meta.json", "{\"version\": 1, \"seed\": 1}");
    return 0;
}

static void up_to_64_ranks_are_all_listed(void **state)
{
    json_t *fields = metrics_cards_json(reports, RANKS_LISTED), *live = json_object();
    assert_int_equal(json_array_size(json_object_get(fields, "cards")), RANKS_LISTED);
    assert_null(json_object_get(fields, "cards_summary"));
    ranks_list(live, ranks, RANKS_LISTED, (struct comm_layout){.stages = STAGES});
    assert_int_equal(json_array_size(json_object_get(live, "ranks")), RANKS_LISTED);
    assert_null(json_object_get(live, "ranks_summary"));
    assert_null(json_object_get(live, "hosts"));
    json_decref(fields);
    json_decref(live);
}

/* Returns the member of the list's rank, -1 without it. */
static int place_of(const json_t *list, size_t rank, const char *member)
{
    const json_t *value = json_object_get(json_array_get(list, rank), member);
    return value ? (int)json_integer_value(value) : -1;
}

static void ranks_of_tensor_groups_have_their_place(void **state)
{
    static const struct {
        struct comm_layout layout;
        int tensor, stage, replica; /* of rank 11 */
    } rows[] = {{{2, 4}, 3, 0, 1}, {{1, 4}, 3, -1, 2}, {{4, 1}, -1, 3, 2}, {{1, 1}, -1, -1, -1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static struct card_report own[16];
        json_t *live = json_object();
        for (int r = 0; r < 16; r++) own[r] = reports[r], own[r].layout = rows[i].layout;
        json_t *fields = metrics_cards_json(own, 16);
        ranks_list(live, ranks, 16, rows[i].layout);
        const json_t *lists[] = {json_object_get(fields, "cards"), json_object_get(live, "ranks")};
        for (int k = 0; k < 2; k++) {
            assert_int_equal(place_of(lists[k], 11, "tensor"), rows[i].tensor);
            assert_int_equal(place_of(lists[k], 11, "stage"), rows[i].stage);
            assert_int_equal(place_of(lists[k], 11, "replica"), rows[i].replica);
        }
        json_decref(fields);
        json_decref(live);
    }
}

/* Writes the files of a run for the following tests. */
static void a_thousand_are_summarized(void **state)
{
    json_t *line = metrics_cards_json(reports, RANKS), *live = json_object();
    json_t *summary = json_object_get(line, "cards_summary"), *list = json_object_get(line, "cards");
    struct many_range peak = many_ranks_parse(summary, "peak_bytes");
    assert_int_equal(json_integer_value(json_object_get(summary, "ranks")), RANKS);
    assert_true(peak.min == 2e9 && peak.max == 2.5e9 && peak.max_rank == FULLEST && peak.min_rank == 0);
    assert_true(peak.median > 2e9 && peak.median < 2000001000);
    assert_int_equal(many_ranks_parse(summary, "images_per_s").min_rank, SLOW);
    assert_true(lists(list, 0) && lists(list, FULLEST) && lists(list, SLOW) && lists(list, RANKS - 1));
    assert_true(json_array_size(list) <= 4 * RANKS_WORST + 1 && lists(list, WAITS));
    assert_true(many_ranks_parse(summary, "bubble").max == 0.9);
    assert_true(fabs(json_real_value(json_object_get(line, "bubble")) - 0.1008) < 1e-9);
    json_object_set_new(line, "step", json_integer(1));
    assert_true(put_json("metrics.jsonl", line) < LINE_BYTES);

    ranks_list(live, ranks, RANKS, (struct comm_layout){.stages = STAGES});
    list = json_object_get(live, "ranks");
    assert_true(lists(list, 0) && lists(list, SILENT) && lists(list, SLOW) && !lists(list, RANKS - 1));
    summary = json_object_get(live, "ranks_summary");
    assert_int_equal(json_integer_value(json_object_get(summary, "running")), RANKS - 1);
    assert_int_equal(json_integer_value(json_object_get(summary, "hosts")), RANKS / NODE);
    list = json_object_get(live, "hosts");
    assert_int_equal(json_array_size(list), HOSTS_LISTED);
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 0), "host")), "node62");
    json_object_set_new(live, "time", json_real((double)time(NULL)));
    assert_true(put_json("live.json", live) < LINE_BYTES);
    json_decref(line);
    json_decref(live);
}

static void the_dashboard_and_compare_read_them(void **state)
{
    struct follow *f;
    struct record record;
    struct error err;
    assert_int_equal(follow_open(&f, directory, false, &err), 0);
    for (int i = 0; i < 3; i++) follow_refresh(f);
    assert_int_equal(f->rank_count, RANKS);
    assert_int_equal(f->running_count, RANKS - 1);
    assert_int_equal(f->host_count, RANKS / NODE);
    assert_int_equal(f->hosts_listed, HOSTS_LISTED);
    assert_int_equal(f->hosts[0].running, NODE - 1);
    assert_int_equal(f->slowest_rank, SLOW);
    assert_true(f->slowest_costs > 38 && f->slowest_costs < 40);
    assert_int_equal(f->cards[0].rank, SILENT); /* the worst first */
    assert_int_equal(f->cards[1].rank, FULLEST);
    assert_true(f->card_count > 8 && f->card_count <= FOLLOW_CARDS);
    follow_close(f);
    assert_int_equal(record_read(&record, directory, &err), 0);
    assert_true(record.peak_bytes == 2.5e9);
    record_free(&record);
}

/* Ranks that are listed no longer give their space to others. */
static void the_list_may_change_with_each_line(void **state)
{
    struct follow *f;
    struct error err;
    char *path = path_join(directory, "metrics.jsonl");
    assert_int_equal(follow_open(&f, directory, false, &err), 0);
    follow_refresh(f);
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    for (int i = 2; i < 40; i++)
        fprintf(file,
                "{\"step\":%d,\"cards\":[{\"rank\":0},{\"rank\":%d},{\"rank\":-5},{\"rank\":99999}],"
                "\"cards_summary\":{\"ranks\":1000}}\n",
                i, 20 * i);
    assert_int_equal(fclose(file), 0);
    for (int i = 0; i < 3; i++) follow_refresh(f);
    bool last = false;
    for (int i = 0; i < f->card_count; i++) {
        last |= f->cards[i].rank == 780;
        assert_int_not_equal(f->cards[i].rank, 760);
    }
    assert_true(last);
    follow_close(f);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(up_to_64_ranks_are_all_listed),
        cmocka_unit_test(ranks_of_tensor_groups_have_their_place),
        cmocka_unit_test(a_thousand_are_summarized),
        cmocka_unit_test(the_dashboard_and_compare_read_them),
        cmocka_unit_test(the_list_may_change_with_each_line),
    };
    return cmocka_run_group_tests(tests, make, remove_directory);
}
