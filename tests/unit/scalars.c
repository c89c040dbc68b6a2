/* core/train/tensorboard, core/train/prometheus: what others read of a run. The event file is read back by
 * the definition of its format. */
#include "core/base/crc32c.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/run/prometheus.h"
#include "core/run/tensorboard.h"
#include "tests/work_directory.h"

#include <dirent.h>
#include <glob.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static const struct scalar_memory memory[] = {{"weights", 5e9}, {"optimizer", 16777217}, {"comm", NAN}};
static const struct scalars values = {.step = 300,
                                      .time_s = 1700000000.25,
                                      .epoch = NAN,
                                      .loss = 0.5,
                                      .scores = {[SCORE_COSINE] = -0.25,
                                                 [SCORE_LOSS_1... SCORE_LOSS_8] = NAN,
                                                 [SCORE_TOP1] = NAN,
                                                 [SCORE_TOP5] = NAN,
                                                 [SCORE_VAL_LOSS] = NAN,
                                                 [SCORE_VAL_TOP1] = 0.75,
                                                 [SCORE_VAL_TOP5] = NAN,
                                                 [SCORE_VAL_COSINE] = NAN,
                                                 [SCORE_KNN_TOP1] = NAN,
                                                 [SCORE_KNN_TOP5] = NAN,
                                                 [SCORE_PROBE_TOP1] = NAN,
                                                 [SCORE_PROBE_TOP5] = NAN,
                                                 [SCORE_ACCURACY] = NAN,
                                                 [SCORE_TOKENS_PER_S] = NAN,
                                                 [SCORE_MFU] = NAN,
                                                 [SCORE_VAL_ACCURACY] = NAN,
                                                 [SCORE_VAL_PERPLEXITY] = NAN},
                                      .lr = 1e-30,
                                      .grad_norm = INFINITY,
                                      .images_per_s = 812.5,
                                      .step_ms = 40,
                                      .data_wait_ms = NAN,
                                      .memory = memory,
                                      .memory_count = 3};

struct event {
    double time_s;
    int64_t step;
    char version[32];
    int session, values;
    char tags[16][64];
    float value[16];
};

static uint64_t fixed(const uint8_t *p, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++) v |= (uint64_t)p[i] << 8 * i;
    return v;
}

static uint64_t varint(const uint8_t **p)
{
    uint64_t v = 0;
    for (int shift = 0;; shift += 7) {
        v |= (uint64_t)(**p & 127) << shift;
        if (*(*p)++ < 128) return v;
    }
}

/* Calls itself for messages in a message: `level` 0 Event, 5 Summary, 1 Value, 7 SessionLog. */
static void decode(struct event *e, int level, const uint8_t *p, size_t bytes)
{
    for (const uint8_t *end = p + bytes; p < end;) {
        uint64_t key = varint(&p), number = 0;
        int field = (int)(key >> 3), wire = (int)(key & 7);
        const uint8_t *data = p;
        if (wire == 0) number = varint(&p);
        else if (wire == 1 || wire == 5) number = fixed(p, wire == 1 ? 8 : 4), p += wire == 1 ? 8 : 4;
        else if (wire == 2) number = varint(&p), data = p, p += number;
        else fail_msg("wire type %d", wire);
        assert_true(p <= end);
        if (level == 0 && field == 1) memcpy(&e->time_s, &number, 8);
        else if (level == 0 && field == 2) e->step = (int64_t)number;
        else if (level == 0 && field == 3)
            snprintf(e->version, sizeof e->version, "%.*s", (int)number, (const char *)data);
        else if (level == 0) decode(e, field, data, number);
        else if (level == 5) decode(e, 1, data, number), e->values++;
        else if (level == 7) e->session = (int)number;
        else if (field == 1) snprintf(e->tags[e->values], 64, "%.*s", (int)number, (const char *)data);
        else if (field == 2) memcpy(&e->value[e->values], data, 4);
        else fail_msg("field %d of level %d", field, level);
    }
}

static uint32_t unmask(uint64_t masked)
{
    uint32_t rotated = (uint32_t)masked - 0xa282ead8u;
    return rotated >> 17 | rotated << 15;
}

static int read_events(const char *path, struct event *events, int most, char **raw)
{
    struct error err;
    size_t bytes, at = 0;
    int n = 0;
    assert_int_equal(file_read(path, 1 << 20, raw, &bytes, &err), 0);
    const uint8_t *p = (const uint8_t *)*raw;
    while (at < bytes) {
        assert_true(at + 16 <= bytes && n < most);
        size_t length = fixed(p + at, 8);
        assert_int_equal(unmask(fixed(p + at + 8, 4)), crc32c(0, p + at, 8));
        assert_true(at + 16 + length <= bytes);
        assert_int_equal(unmask(fixed(p + at + 12 + length, 4)), crc32c(0, p + at + 12, length));
        memset(&events[n], 0, sizeof *events);
        decode(&events[n++], 0, p + at + 12, length);
        at += 16 + length;
    }
    return n;
}

static glob_t event_files(const char *directory)
{
    glob_t files;
    char *pattern = xasprintf("%s/events.*", directory);
    assert_int_equal(glob(pattern, 0, NULL, &files), 0);
    free(pattern);
    return files;
}

static void event_files_are_read_back(void **state)
{
    struct error err;
    struct tensorboard *t, *resumed;
    char *dir = xasprintf("%s/run/tensorboard", work), *raw;
    struct event e[4];
    assert_int_equal(tensorboard_open(&t, dir, 1, &err), 0);
    assert_int_equal(tensorboard_write(t, &values, &err), 0);
    assert_int_equal(tensorboard_open(&resumed, dir, 200, &err), 0);
    glob_t files = event_files(dir); /* in the order of their times and numbers */
    assert_int_equal(files.gl_pathc, 2);
    assert_int_equal(read_events(files.gl_pathv[0], e, 4, &raw), 2);
    /* Every event file of TensorFlow begins with these bytes (the time after them differs). */
    assert_memory_equal(raw, "\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22\x09", 13);
    assert_string_equal(e[0].version, "brain.Event:2");
    assert_int_equal(e[1].step, 300);
    assert_true(e[1].time_s >= 1700000000.25 && e[1].time_s <= 1700000000.25);
    static const char *const tags[] = {"loss",         "cosine",         "val_top1",
                                       "lr",           "grad_norm",      "throughput/images_per_s",
                                       "time/step_ms", "memory/weights", "memory/optimizer"};
    static const float expected[] = {0.5f, -0.25f, 75, 1e-30f, INFINITY, 812.5f, 40, 5e9f, 16777216};
    assert_int_equal(e[1].values, 9);
    for (int i = 0; i < 9; i++) {
        assert_string_equal(e[1].tags[i], tags[i]);
        assert_memory_equal(&e[1].value[i], &expected[i], sizeof(float));
    }
    free(raw);
    assert_int_equal(read_events(files.gl_pathv[1], e, 4, &raw), 2);
    assert_int_equal(e[1].step, 200);
    assert_int_equal(e[1].session, 1);
    free(raw);
    globfree(&files);
    tensorboard_close(t);
    tensorboard_close(resumed);
    free(dir);
}

static void a_full_disk_leaves_whole_records(void **state)
{
    struct error err;
    struct tensorboard *t;
    struct event e[4];
    struct rlimit before, small;
    char *raw;
    assert_int_equal(tensorboard_open(&t, work, 1, &err), 0);
    assert_int_equal(tensorboard_write(t, &values, &err), 0);
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    struct stat st;
    glob_t files = event_files(work);
    const char *path = files.gl_pathv[0];
    assert_int_equal(stat(path, &st), 0);
    small.rlim_cur = (rlim_t)st.st_size + 20; /* the next record goes in by half */
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    int code = tensorboard_write(t, &values, &err);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(code, EXIT_DISK);
    assert_int_equal(read_events(path, e, 4, &raw), 2);
    free(raw);
    assert_int_equal(tensorboard_write(t, &values, &err), 0);
    assert_int_equal(read_events(path, e, 4, &raw), 3);
    free(raw);
    globfree(&files);
    tensorboard_close(t);
    char *file = xasprintf("%s/file", work);
    assert_int_equal(file_write_atomic(file, "x", 1, &err), 0);
    assert_int_not_equal(tensorboard_open(&t, file, 1, &err), 0);
    assert_null(t);
    free(file);
}

static void prometheus_text_has_its_form(void **state)
{
    static const struct prometheus_card cards[] = {
        {"0", "Z100 \"a\\b\"\n\033", "0000:c1:00.0", 5e9, 16e9, 97, 61.5, NAN, 0.25},
        {"1", NULL, "", 6e9, 16e9, NAN, NAN, NAN, NAN},
    };
    const struct prometheus_run run = {.run = "exp \"1\"",
                                       .state = "running",
                                       .total_steps = 1000,
                                       .last = &values,
                                       .cards = cards,
                                       .card_count = 2};
    char *text = prometheus_text(&run);
    static const char *const lines[] = {
        "# HELP meopt_train_loss Loss of the last step.\n# TYPE meopt_train_loss "
        "gauge\nmeopt_train_loss{run=\"exp \\\"1\\\"\"} 0.5\n",
        "meopt_run_state{run=\"exp \\\"1\\\"\",state=\"running\"} 1\n",
        "\nmeopt_train_step{run=\"exp \\\"1\\\"\"} 300\n",
        "\nmeopt_train_gradient_norm{run=\"exp \\\"1\\\"\"} +Inf\n",
        "\nmeopt_val_top1_ratio{run=\"exp \\\"1\\\"\"} 0.75\n",
        "\nmeopt_train_step_duration_seconds{run=\"exp \\\"1\\\"\"} 0.04\n",
        "\nmeopt_train_memory_bytes{run=\"exp \\\"1\\\"\",class=\"optimizer\"} 16777217\n",
        "\nmeopt_card_memory_used_bytes{run=\"exp \\\"1\\\"\",card=\"0\",name=\"Z100 "
        "\\\"a\\\\b\\\"\\\\x0a\\\\x1b\",pci=\"0000:c1:00.0\"} 5000000000\n",
        "\nmeopt_card_memory_used_bytes{run=\"exp \\\"1\\\"\",card=\"1\"} 6000000000\n",
        "} 0.97\n",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (!strstr(text, lines[i])) fail_msg("not found: %s, in:\n%s", lines[i], text);
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "data_wait"));
    assert_null(strstr(text, "power"));
    /* Each metric has one HELP and one TYPE line, directly before its samples. */
    char name[128] = "", *rest = text, *line;
    int heads = 0;
    while ((line = strsep(&rest, "\n")) && *line) {
        size_t n = strcspn(line, "{");
        if (strncmp(line, "# HELP ", 7) == 0) {
            snprintf(name, sizeof name, "%.*s", (int)strcspn(line + 7, " "), line + 7);
            heads++;
        } else if (strncmp(line, "# TYPE ", 7) == 0) assert_memory_equal(line + 7, name, strlen(name));
        else if (n != strlen(name) || strncmp(line, name, n) != 0)
            fail_msg("'%s' below the head of %s", line, name);
    }
    assert_int_equal(heads, 17);
    free(text);
}

static void prometheus_files_are_replaced_whole(void **state)
{
    struct error err;
    char *path = xasprintf("%s/meopt.prom", work), *text;
    size_t bytes;
    struct prometheus_run run = {.run = "a"};
    umask(077);
    assert_int_equal(prometheus_write(path, &run, &err), 0);
    run.last = &values;
    assert_int_equal(prometheus_write(path, &run, &err), 0);
    umask(022);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0644);
    assert_int_equal(file_read(path, 1 << 20, &text, &bytes, &err), 0);
    assert_non_null(strstr(text, "meopt_train_loss{run=\"a\"} 0.5\n"));
    free(text);
    DIR *d = opendir(work);
    int entries = 0;
    while (readdir(d)) entries++;
    closedir(d);
    assert_int_equal(entries, 3); /* . .. and the file */
    free(path);
    path = xasprintf("%s/none/meopt.prom", work);
    assert_int_not_equal(prometheus_write(path, &run, &err), 0);
    free(path);
}

/* `test_scalars write DIR`: files to try TensorBoard and promtool on. */
static int write_both(const char *directory)
{
    struct error err = {0};
    struct tensorboard *t;
    if (tensorboard_open(&t, directory, 1, &err)) return 1;
    for (int64_t i = 1; i <= 300; i++) {
        struct scalars s = values;
        s.step = i, s.loss = 1 / (double)i, s.grad_norm = 2;
        if (tensorboard_write(t, &s, &err)) return 1;
    }
    tensorboard_close(t);
    if (tensorboard_open(&t, directory, 201, &err)) return 1;
    for (int64_t i = 201; i <= 210; i++) {
        struct scalars s = values;
        s.step = i, s.loss = 5;
        if (tensorboard_write(t, &s, &err)) return 1;
    }
    tensorboard_close(t);
    char *path = xasprintf("%s/meopt.prom", directory);
    const struct prometheus_card card = {"0", "Z100 \"x\\y\"", "0000:c1:00.0", 5e9, 16e9, 97, 61.5, 210,
                                         0.25};
    int code = prometheus_write(path,
                                &(struct prometheus_run){.run = "a",
                                                         .state = "running",
                                                         .total_steps = 9,
                                                         .last = &values,
                                                         .cards = &card,
                                                         .card_count = 1},
                                &err);
    free(path);
    return code;
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "write") == 0) return write_both(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(event_files_are_read_back, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_disk_leaves_whole_records, setup, teardown),
        cmocka_unit_test_setup_teardown(prometheus_text_has_its_form, setup, teardown),
        cmocka_unit_test_setup_teardown(prometheus_files_are_replaced_whole, setup, teardown),
    };
    return cmocka_run_group_tests_name("scalars", tests, NULL, NULL);
}
