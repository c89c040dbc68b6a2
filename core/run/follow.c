/* The reader of a run: see follow.h. */
#include "core/run/follow.h"
#include "core/run/follow_internal.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/message.h"
#include "core/base/retry.h"
#include "core/config/document.h"
#include "core/run/checkpoint.h"
#include "core/config/value.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum {
    END = 256 << 10,
    SAMPLED_FROM = 4 << 20,
    SAMPLES = FOLLOW_POINTS / 2,
    REFRESH_BYTES = 8 << 20,
    TAIL = 64 << 10,
    LAST_LINES = 8,              /* the smallest number of lines to read at the end */
    LEAST_FREE_BYTES = 64 << 10, /* bytes; less counts as a full disk */
    GLANCES = 32
};

/* ---- points ---- */

const struct score_row *follow_score(enum follow_metric metric)
{
    bool score = metric >= METRIC_SCORES && metric < METRIC_SCORES + SCORE_COUNT;
    return score ? &score_rows[metric - METRIC_SCORES] : NULL;
}

double follow_metric(const struct metric_line *l, enum follow_metric metric)
{
    const struct score_row *score = follow_score(metric);
    if (score) return (score->percent ? 100 : 1) * l->scores[score - score_rows];
    const double values[METRIC_COUNT] = {
        [METRIC_LOSS] = l->loss,       [METRIC_GRAD_NORM] = l->grad_norm,
        [METRIC_LR] = l->lr,           [METRIC_IMAGES_PER_S] = l->images_per_s,
        [METRIC_STEP_MS] = l->step_ms, [METRIC_DATA_WAIT_MS] = l->data_wait_ms};
    return values[metric];
}

static void merge(struct follow_point *into, const struct follow_point *p)
{
    double n = into->lines, m = p->lines;
    for (int k = 0; k < METRIC_COUNT; k++) {
        const struct score_row *score = follow_score((enum follow_metric)k);
        bool rare = score && score->rare;
        if (rare && isnan(p->values[k])) continue;
        into->values[k] = rare && isnan(into->values[k]) ? p->values[k]
                                                         : (into->values[k] * n + p->values[k] * m) / (n + m);
    }
    into->last_step = p->last_step;
    into->seconds = p->seconds;
    into->lines += p->lines;
}

static void add_point(struct follow *f, const struct metric_line *l)
{
    struct follow_point p = {
        .first_step = (double)l->step, .last_step = (double)l->step, .seconds = f->seconds, .lines = 1};
    for (int k = 0; k < METRIC_COUNT; k++) p.values[k] = follow_metric(l, (enum follow_metric)k);
    scores_update(f->scores, l->scores);
    for (int i = 0; i < SCORE_COUNT; i++) f->scored[i] |= !isnan(l->scores[i]);
    if (f->point_count && f->points[f->point_count - 1].lines < f->stride) {
        merge(&f->points[f->point_count - 1], &p);
        return;
    }
    if (f->point_count == FOLLOW_POINTS) {
        for (int i = 0; i < FOLLOW_POINTS / 2; i++) {
            f->points[i] = f->points[2 * i];
            merge(&f->points[i], &f->points[2 * i + 1]);
        }
        f->point_count = FOLLOW_POINTS / 2;
        f->stride *= 2;
    }
    f->points[f->point_count++] = p;
}

static void add_line(struct follow *f, const struct metric_line *l, const char *text)
{
    f->last = *l;
    if (isfinite(l->bubble)) f->bubble = l->bubble;
    if (isfinite(l->step_ms)) f->seconds += l->step_ms * 1e-3;
    add_point(f, l);
    f->recent[f->recent_count++ % FOLLOW_RECENT] = *l;
    if (isfinite(l->loss)) f->best_loss = fmin(f->best_loss, l->loss);
    if (l->cards_bytes) follow_take_cards(f, l, text);
}

/* ---- meta.json, plan.json ---- */

/* Finds a slower alternative in the start's table (core/train/start_table.h) that has a remedy. */
static void read_fallback(struct follow *f, const json_t *meta)
{
    size_t i;
    json_t *row;
    f->fallback[0] = 0;
    json_array_foreach(json_object_get(meta, "start"), i, row)
    {
        char name[32], is[120], cost[120], remedy[8];
        json_member_name(name, sizeof name, row, "name");
        json_member_name(is, sizeof is, row, "is");
        json_member_name(cost, sizeof cost, row, "cost");
        json_member_name(remedy, sizeof remedy, row, "mend");
        bool computes = strcmp(name, "collectives") != 0 && strcmp(name, "telemetry") != 0;
        if (computes && cost[0] && remedy[0] && !f->fallback[0])
            snprintf(f->fallback, sizeof f->fallback, "%.24s: %.80s: %.80s", name, cost, is);
    }
}

static void read_rank_plans(struct follow *f, const json_t *ranks)
{
    size_t i;
    const json_t *one;
    json_array_foreach(ranks, i, one)
    {
        if (i == FOLLOW_CARDS || json_member_count(one, "rank") != (int64_t)i) break;
        f->rank_plans[i] = memory_parse(one);
        f->rank_plan_count = (int)i + 1;
    }
}

const struct run_memory *follow_plan(const struct follow *f, int rank)
{
    bool own = rank >= 0 && rank < f->rank_plan_count && f->rank_plans[rank].peak_bytes > 0;
    return own ? &f->rank_plans[rank] : &f->plan;
}

static void read_meta(struct follow *f)
{
    json_t *meta = f->has_meta ? NULL : json_read_below(f->directory, "meta.json", FOLLOW_FILE_BYTES, NULL),
           *plan = f->has_plan ? NULL : json_read_below(f->directory, "plan.json", FOLLOW_FILE_BYTES, NULL);
    if (meta) {
        f->has_meta = true;
        json_member_name(f->family, sizeof f->family, meta, "family");
        json_member_name(f->device, sizeof f->device, meta, "device");
        f->started = json_member_number(meta, "started");
        f->student_parameters = json_member_count(meta, "student_parameters");
        f->teacher_parameters = json_member_count(meta, "teacher_parameters");
        f->epoch_steps = json_member_count(meta, "epoch_steps");
        read_fallback(f, meta);
    }
    if (plan) {
        f->has_plan = true;
        f->plan = memory_parse(plan);
        f->baseline = memory_parse(json_object_get(plan, "baseline"));
        double stages = json_member_number(plan, "stages");
        f->layout.stages = stages > 1 && stages <= 4096 ? (int)stages : 0;
        double tensor = json_member_number(plan, "tensor");
        f->layout.tensor = tensor > 1 && tensor <= 4096 ? (int)tensor : 0;
        f->planned_bubble = json_member_number(plan, "bubble");
        read_rank_plans(f, json_object_get(plan, "ranks"));
    }
    json_decref(meta);
    json_decref(plan);
}

/* ---- config.yaml: values for the header ---- */

static const char *value_of(const struct document *d, const char *section, const char *key)
{
    int node = document_follow(d, document_find(d, d->root, section, NULL));
    node = document_follow(d, document_find(d, node, key, NULL));
    return node >= 0 && d->nodes[node].kind == NODE_SCALAR ? d->nodes[node].text : "";
}

static bool is_true(const char *key, const char *text)
{
    struct value value;
    char message[320], hint[320];
    return value_read(config_key_index(key), text, strlen(text), false, &value, message, hint,
                      sizeof message) != VALUE_BAD &&
           value.integer;
}

static void name_of(char *dst, size_t size, const char *weight, const char *arch)
{
    const char *slash = strrchr(weight, '/');
    char run[96], text[128];
    int64_t step;
    if (checkpoint_named(weight, run, sizeof run, &step)) {
        snprintf(text, sizeof text, _("%s at step %lld"), run, (long long)step);
        name_printable(dst, size, text);
        return;
    }
    name_printable(dst, size, weight[0] ? (slash ? slash + 1 : weight) : arch);
}

static void read_config(struct follow *f)
{
    char *path = path_join(f->directory, "config.yaml"), *text = NULL;
    size_t bytes = 0;
    struct document d;
    if (file_read_below(f->directory, "config.yaml", 1 << 20, &text, &bytes, NULL) == 0 &&
        document_parse(&d, path, text, bytes, NULL) == 0) {
        name_of(f->teacher, sizeof f->teacher - 4, value_of(&d, "model_t", "weight"),
                value_of(&d, "model_t", "arch"));
        int more = 1;
        while (more < MOST_TEACHERS && document_find(&d, d.root, config_tower_section(more), NULL) >= 0)
            more++;
        size_t end = strlen(f->teacher);
        if (more > 1) snprintf(f->teacher + end, sizeof f->teacher - end, " +%d", more - 1);
        name_of(f->student, sizeof f->student, value_of(&d, "model_s", "weight"),
                value_of(&d, "model_s", "arch"));
        const char *objective = value_of(&d, "train", "objective");
        f->has_teacher = !objective[0] || strcmp(objective, "distill") == 0;
        f->use_meopt = is_true("optim.use_meopt", value_of(&d, "optim", "use_meopt"));
        f->batch = strtoll(value_of(&d, "train", "batch_size"), NULL, 10);
        f->data_workers = strtoll(value_of(&d, "data", "workers"), NULL, 10);
        document_free(&d);
    }
    free(text);
    free(path);
}

/* ---- lines ---- */

static void add_to_ring(char **ring, int64_t *count, const char *text)
{
    char **slot = &ring[(*count)++ % FOLLOW_LINES];
    free(*slot);
    *slot = xstrdup(text);
}

/* Writes "optim.lr 1.0e-4 -> 1.0e-5" for each changed key. */
static void changes_text(char *dst, size_t size, const json_t *changed)
{
    const char *key;
    json_t *values;
    char raw[300] = "";
    json_object_foreach((json_t *)(uintptr_t)changed, key, values)
    {
        const char *was = json_string_value(json_array_get(values, 0)),
                   *is = json_string_value(json_array_get(values, 1));
        size_t n = strlen(raw);
        snprintf(raw + n, sizeof raw - n, "%s%.40s %.60s -> %.60s", n ? ", " : "", key, was ? was : "?",
                 is ? is : "?");
    }
    if (raw[0]) name_printable(dst, size, raw);
}

/* Adds a mark for events that change a curve; frequent events have none. */
static void add_mark(struct follow *f, int64_t step, const char *event, const char *message)
{
    static const char *const kinds[] = {"changed", N_("resumed"), "branched", "diverged"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && step > 0; i++) {
        if (strcmp(kinds[i], event) != 0) continue;
        struct follow_mark *m = &f->marks[f->mark_count++ % FOLLOW_MARKS];
        m->step = (double)step;
        snprintf(m->text, sizeof m->text, "%.24s%s%.64s", _(event), message[0] ? _(": ") : "", message);
    }
}

void follow_take_event(struct follow *f, const char *text, size_t bytes)
{
    json_t *object = json_loadb(text, bytes, 0, NULL);
    if (!json_is_object(object)) {
        json_decref(object);
        return;
    }
    char event[64], message[300], when[32], line[480];
    json_member_name(event, sizeof event, object, "event");
    json_member_name(message, sizeof message, object, "message");
    message_translated(message, sizeof message, message);
    changes_text(message, sizeof message, json_object_get(object, "changed"));
    add_mark(f, json_member_count(object, "step"), event, message);
    run_time_text(when, sizeof when, "%m-%d %H:%M:%SZ", json_member_number(object, "time"));
    int64_t step = json_member_count(object, "step");
    snprintf(line, sizeof line, _("%s  step %lld  %s%s%s"), when, (long long)(step < 0 ? 0 : step), _(event),
             message[0] ? _(": ") : "", message);
    add_to_ring(f->events, &f->event_count, line);
    json_decref(object);
}

void follow_take_log(struct follow *f, const char *text, size_t bytes)
{
    char raw[400], line[1700];
    snprintf(raw, sizeof raw, "%.*s", (int)(bytes < sizeof raw ? bytes : sizeof raw - 1), text);
    name_printable(line, sizeof line, raw);
    add_to_ring(f->log, &f->log_count, line);
}

/* Reads a small file completely, and only the end of a large one. */
static void read_lines(struct follow *f, struct tail *t, void (*take)(struct follow *, const char *, size_t))
{
    int64_t size = tail_poll(t, NULL);
    size_t bytes;
    if (size - t->at > TAIL) tail_seek(t, size - TAIL, true);
    if (size >= 0)
        for (const char *line; (line = tail_line(t, &bytes)) != NULL;) take(f, line, bytes);
}

/* ---- metrics ---- */

static void forget(struct follow *f)
{
    f->point_count = 0;
    f->stride = 1;
    f->recent_count = 0;
    f->seconds = 0;
    f->best_loss = INFINITY;
    f->last = metric_line_unknown;
    f->bubble = NAN;
    memcpy(f->scores, metric_line_unknown.scores, sizeof f->scores);
    memset(f->scored, 0, sizeof f->scored);
}

/* Samples a long file: one line at each of f->places, then all lines of its end. */
static void sample(struct follow *f, int64_t size)
{
    int64_t end = size - f->end_bytes, line_bytes = 0, lines = 0;
    int64_t seen = -1;
    double ms = 0;
    for (int i = 0; i < f->places; i++) {
        struct metric_line l;
        int64_t bytes = metric_line_at(f->metrics.fd, end / f->places * i, &l);
        if (!bytes || l.step <= seen) continue;
        seen = l.step;
        line_bytes += bytes;
        lines++;
        if (isfinite(l.step_ms)) ms += l.step_ms;
        add_point(f, &l);
        if (isfinite(l.loss)) f->best_loss = fmin(f->best_loss, l.loss);
    }
    if (lines == 0) return;
    double all = (double)end / ((double)line_bytes / (double)lines);
    for (int i = 0; i < f->point_count; i++) f->points[i].lines = (int)(all / f->point_count) + 1;
    f->stride = (int)(all / f->point_count) + 1;
    f->seconds = ms / (double)lines * all * 1e-3;
    for (int i = 0; i < f->point_count; i++) f->points[i].seconds = f->seconds * (i + 1) / f->point_count;
    int64_t last = LAST_LINES * line_bytes / lines; /* lines of many ranks are long */
    if (last >= size) forget(f);                    /* few of them: all are read */
    else tail_seek(&f->metrics, last > f->end_bytes ? size - last : end, true);
}

static void read_metrics(struct follow *f)
{
    struct tail *t = &f->metrics;
    bool anew, unread = t->at == 0;
    int64_t size = tail_poll(t, &anew), budget = REFRESH_BYTES, skipped = t->skipped;
    if (size < 0) return;
    if (anew) forget(f);
    if ((unread || anew) && size > (f->places < SAMPLES ? f->end_bytes : SAMPLED_FROM) && !f->replay)
        sample(f, size);
    while (budget > 0) {
        struct metric_line l;
        size_t bytes;
        const char *line = tail_line(t, &bytes);
        if (!line) {
            f->replay_end = true;
            break;
        }
        budget -= (int64_t)bytes + 1;
        if (!metric_line_parse(&l, line, bytes)) {
            f->gaps++;
        } else if (f->replay && isfinite(l.step_ms) && f->seconds + l.step_ms * 1e-3 > f->replay_seconds) {
            tail_unread(t); /* later than the replay's clock */
            break;
        } else {
            add_line(f, &l, line);
        }
    }
    f->gaps += t->skipped - skipped;
}

/* ---- Opening and refreshing ---- */

int follow_open(struct follow **out, const char *directory, bool replay, struct error *err)
{
    struct follow *f = xcalloc(1, sizeof *f);
    f->directory = xstrdup(directory);
    tail_init(&f->metrics, directory, "metrics.jsonl");
    tail_init(&f->event_tail, directory, "events.jsonl");
    tail_init(&f->log_tail, directory, "worker.log");
    tail_init(&f->card_tail, directory, "cards.jsonl");
    f->replay = replay;
    f->places = SAMPLES;
    f->end_bytes = END;
    f->points = xcalloc(FOLLOW_POINTS, sizeof *f->points);
    f->recent = xcalloc(FOLLOW_RECENT, sizeof *f->recent);
    f->plan.peak_bytes = f->baseline.peak_bytes = -1;
    f->slowest_rank = -1;
    f->io_percent = f->slowest_costs = NAN;
    f->student_parameters = f->teacher_parameters = f->epoch_steps = -1;
    f->has_teacher = true;
    forget(f);
    int code = run_status_read(&f->status, directory, err);
    if (code) {
        follow_close(f);
        return code;
    }
    read_config(f);
    *out = f;
    return 0;
}

int follow_glance(struct follow **out, const char *directory, struct error *err)
{
    int code = follow_open(out, directory, false, err);
    if (code) return code;
    (*out)->places = GLANCES;
    (*out)->end_bytes = TAIL;
    follow_refresh(*out);
    return 0;
}

void follow_refresh(struct follow *f)
{
    struct run_status status;
    struct stat st;
    struct statvfs disk;
    f->gone = stat(f->directory, &st) != 0 && errno == ENOENT;
    f->disk_full = !f->replay && statvfs(f->directory, &disk) == 0 && disk.f_blocks > 0 &&
                   (double)disk.f_bavail * (double)disk.f_frsize < LEAST_FREE_BYTES;
    if (run_status_read(&status, f->directory, NULL) == 0) f->status = status;
    read_meta(f);
    read_metrics(f);
    follow_take_telemetry(f);
    if (!f->replay) follow_take_live(f);
    read_lines(f, &f->event_tail, follow_take_event);
    read_lines(f, &f->log_tail, follow_take_log);
}

void follow_replay(struct follow *f, double seconds) { f->replay_seconds = seconds; }

void follow_close(struct follow *f)
{
    if (!f) return;
    for (int i = 0; i < FOLLOW_LINES; i++) {
        free(f->events[i]);
        free(f->log[i]);
    }
    tail_free(&f->metrics);
    tail_free(&f->event_tail);
    tail_free(&f->log_tail);
    tail_free(&f->card_tail);
    for (int i = 0; i < FOLLOW_CARDS; i++) free(f->cards[i].readings);
    free(f->reading_times);
    free(f->reading_steps);
    free(f->recent);
    free(f->points);
    free(f->directory);
    free(f);
}
