/* TensorBoard and Prometheus of a run: see metric_export.h. */
#include "cli/supervisor/metric_export.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/log.h"
#include "core/run/memory.h"
#include "core/run/metric_line.h"
#include "core/run/prometheus.h"
#include "core/run/tail.h"
#include "core/run/tensorboard.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TEXT_SECONDS = 5 };

struct metric_export {
    char *directory, *name;
    const char *metrics_file;
    struct tensorboard *tensorboard;
    struct tail metrics;
    int64_t from, until; /* steps after `from` are written, to `until` */
    struct scalars last;
    double scores[SCORE_COUNT]; /* the newest, also of evaluations */
    struct scalar_memory memory[MEMORY_CLASS_COUNT + 1];
    int memory_count;
    double written;
    bool warned;
};

static void complain(struct metric_export *o, const struct error *err)
{
    if (!o->warned) log_warn("%s", err->what); /* only once; training continues */
    o->warned = true;
}

static void export_memory(struct metric_export *o, const char *text, size_t bytes)
{
    json_t *cards = json_loadb(text, bytes, 0, NULL);
    struct run_memory memory = memory_parse(NULL);
    const json_t *card;
    size_t i;
    json_array_foreach(cards, i, card)
    {
        struct run_memory own = memory_parse(card);
        if (own.peak_bytes > memory.peak_bytes) memory = own;
    }
    o->memory_count = 0;
    if (memory.peak_bytes >= 0)
        o->memory[o->memory_count++] = (struct scalar_memory){"total", (double)memory.peak_bytes};
    for (int c = 0; c < MEMORY_CLASS_COUNT; c++)
        if (memory.class_bytes[c] >= 0)
            o->memory[o->memory_count++] =
                (struct scalar_memory){memory_class_names[c], (double)memory.class_bytes[c]};
    json_decref(cards);
}

static void export_line(struct metric_export *o, const char *text, size_t bytes)
{
    struct metric_line l;
    struct error err = {0};
    if (!metric_line_parse(&l, text, bytes) || l.step <= o->from || l.step <= o->last.step ||
        l.step > o->until)
        return;
    if (l.cards_bytes) export_memory(o, text + l.cards_at, l.cards_bytes);
    o->last = (struct scalars){.step = l.step,
                               .time_s = NAN,
                               .epoch = l.epoch < 0 ? NAN : (double)l.epoch,
                               .loss = l.loss,
                               .lr = l.lr,
                               .grad_norm = l.grad_norm,
                               .images_per_s = l.images_per_s,
                               .step_ms = l.step_ms,
                               .data_wait_ms = l.data_wait_ms,
                               .memory = o->memory,
                               .memory_count = l.cards_bytes ? o->memory_count : 0};
    memcpy(o->last.scores, l.scores, sizeof o->last.scores);
    scores_update(o->scores, l.scores);
    if (o->tensorboard && tensorboard_write(o->tensorboard, &o->last, &err) != 0) complain(o, &err);
}

static void take_lines(struct metric_export *o)
{
    size_t bytes;
    if (tail_poll(&o->metrics, NULL) >= 0)
        for (const char *line; (line = tail_line(&o->metrics, &bytes)) != NULL;) export_line(o, line, bytes);
}

/* Writes the steps up to `from` that the event files lack: they were trained without --tensorboard, or a
 * killed process had not written them. */
static void write_past(struct metric_export *o, int64_t from)
{
    o->until = from;
    take_lines(o);
    tail_free(&o->metrics);
    tail_init(&o->metrics, o->directory, "metrics.jsonl");
    o->until = INT64_MAX;
    o->from = from;
}

int metric_export_open(struct metric_export **out, const char *directory, int64_t from, bool tensorboard,
                       const char *metrics_file, struct error *err)
{
    struct metric_export *o = xcalloc(1, sizeof *o);
    int code = 0;
    o->directory = xstrdup(directory);
    while (strlen(o->directory) > 1 && o->directory[strlen(o->directory) - 1] == '/')
        o->directory[strlen(o->directory) - 1] = 0;
    o->name = strrchr(o->directory, '/') ? strrchr(o->directory, '/') + 1 : o->directory;
    o->metrics_file = metrics_file;
    tail_init(&o->metrics, o->directory, "metrics.jsonl");
    o->from = from;
    o->until = INT64_MAX;
    o->last.step = -1;
    memcpy(o->scores, metric_line_unknown.scores, sizeof o->scores);
    if (tensorboard) {
        char *path = path_join(directory, "tensorboard");
        code = file_make_dirs_below(directory, "tensorboard", err); /* follows no link */
        int64_t last = from;
        if (!code) code = tensorboard_last_step(path, &last, err);
        if (last < from) o->from = last;
        if (!code) code = tensorboard_open(&o->tensorboard, path, o->from + 1, err);
        if (!code && last < from) write_past(o, from);
        free(path);
    }
    if (code) metric_export_close(o);
    else *out = o;
    return code;
}

static double value_of(const struct monitor_value *v) { return v->valid ? v->value : NAN; }

static void write_text(struct metric_export *o, const char *state, int64_t total,
                       const struct monitor_snapshot *s)
{
    struct prometheus_card *cards = xcalloc(MONITOR_CARDS, sizeof *cards);
    static char labels[MONITOR_CARDS][4];
    struct scalars last = o->last;
    struct error err = {0};
    int count = s ? s->card_count : 0;
    for (int i = 0; i < count; i++) {
        const struct monitor_card *c = &s->cards[i];
        labels[i][0] = (char)('0' + i / 10);
        labels[i][1] = (char)('0' + i % 10);
        cards[i] = (struct prometheus_card){.card = labels[i] + (i < 10),
                                            .name = c->name,
                                            .pci = c->pci,
                                            .mem_used_bytes = value_of(&c->mem_used_bytes),
                                            .mem_total_bytes = value_of(&c->mem_total_bytes),
                                            .busy_percent = value_of(&c->busy_percent),
                                            .temp_c = value_of(&c->temp_c),
                                            .power_w = value_of(&c->power_w),
                                            .age_s = c->busy_percent.valid ? c->busy_percent.age_s : NAN};
    }
    memcpy(last.scores, o->scores, sizeof last.scores);
    last.memory = o->memory;
    last.memory_count = o->memory_count;
    struct prometheus_run run = {.run = o->name,
                                 .state = state,
                                 .total_steps = total,
                                 .last = last.step < 0 ? NULL : &last,
                                 .cards = cards,
                                 .card_count = count};
    if (prometheus_write(o->metrics_file, &run, &err) != 0) complain(o, &err);
    free(cards);
}

void metric_export_update(struct metric_export *o, const char *state, int64_t total,
                          const struct monitor_snapshot *cards, bool end)
{
    take_lines(o);
    if (!o->metrics_file || (!end && clock_seconds() - o->written < TEXT_SECONDS)) return;
    o->written = clock_seconds();
    write_text(o, state, total, cards);
}

void metric_export_close(struct metric_export *o)
{
    if (!o) return;
    tensorboard_close(o->tensorboard);
    tail_free(&o->metrics);
    free(o->directory);
    free(o);
}
