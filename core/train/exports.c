/* From metrics.jsonl, state.json and live.json to TensorBoard and Prometheus. */
#include "core/train/exports.h"
#include "core/base/file.h"
#include "core/device/device.h"
#include "core/train/metric_line.h"
#include "core/train/prometheus.h"
#include "core/train/status.h"
#include "core/train/tensorboard.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    CHUNK_BYTES = 1 << 20, /* taken at a time; no line is longer */
    OVERLAP_STEPS = 1000,  /* a process that was killed wrote all but the last second's steps: fewer than these */
    MEMORY_ROWS = MEMORY_CLASS_COUNT + 2,
    CARDS = 64
};

struct exports {
    char *directory, *metrics_file;
    bool tensorboard, failed;
    struct tensorboard *events;
    int64_t at;      /* in metrics.jsonl: everything before has been taken */
    int64_t written; /* the last step in the event files */
    struct scalars last;
    bool any, memory_known;
    struct scalar_memory memory[MEMORY_ROWS];
    char *buffer;
};

static char *inside(const struct exports *e, const char *name)
{
    return path_join(e->directory, name);
}

/* Where a reader begins who wants the newest lines only. */
static int64_t tail_of(int64_t size)
{
    return size > CHUNK_BYTES ? size - CHUNK_BYTES : 0;
}

/* First and last step of the tail; false when there is none. */
static bool tail_steps(struct exports *e, int fd, int64_t at, int64_t *first, int64_t *last)
{
    ssize_t n = pread(fd, e->buffer, CHUNK_BYTES, (off_t)at);
    char *end = n > 0 ? memrchr(e->buffer, '\n', (size_t)n) : NULL;
    struct metric_line l;
    bool any = false;
    for (char *p = e->buffer, *next; end && p <= end; p = next + 1) {
        next = memchr(p, '\n', (size_t)(end - p) + 1);
        if (!metric_line_parse(&l, p, (size_t)(next - p))) continue;
        if (!any) *first = l.step;
        *last = l.step;
        any = true;
    }
    return any;
}

/* Without event files yet the whole history goes into the first. */
static void find_beginning(struct exports *e, const char *events)
{
    char *path = inside(e, "metrics.jsonl");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    int64_t first, last;
    free(path);
    if (fd < 0) return;
    if ((!e->tensorboard || access(events, F_OK) == 0) && fstat(fd, &st) == 0) {
        e->at = tail_of(st.st_size);
        if (tail_steps(e, fd, e->at, &first, &last)) e->written = last - OVERLAP_STEPS > first - 1 ? last - OVERLAP_STEPS : first - 1;
    }
    close(fd);
}

int exports_open(struct exports **out, const char *run_directory, bool tensorboard, const char *metrics_file, struct error *err)
{
    struct exports *e = xcalloc(1, sizeof *e);
    *out = NULL;
    e->directory = xstrdup(run_directory);
    for (size_t n = strlen(e->directory); n > 1 && e->directory[n - 1] == '/'; n--) e->directory[n - 1] = 0;
    e->metrics_file = metrics_file ? xstrdup(metrics_file) : NULL;
    e->tensorboard = tensorboard;
    e->buffer = xmalloc(CHUNK_BYTES);
    char *events = inside(e, "tensorboard");
    find_beginning(e, events);
    int code = tensorboard ? tensorboard_open(&e->events, events, e->written + 1, err) : 0;
    free(events);
    if (code) exports_close(e);
    else *out = e;
    return code;
}

static void take_cards(struct exports *e, const char *text, size_t bytes)
{
    json_t *cards = json_loadb(text, bytes, 0, NULL), *card;
    size_t i;
    e->last.memory_count = MEMORY_ROWS;
    e->memory_known = true;
    for (int c = 0; c < MEMORY_ROWS; c++)
        e->memory[c] = (struct scalar_memory){c < MEMORY_CLASS_COUNT ? memory_class_names[c] : c == MEMORY_CLASS_COUNT ? "total" : "peak_total", NAN};
    json_array_foreach(cards, i, card) for (int c = 0; c < MEMORY_ROWS; c++)
    {
        const json_t *value = c < MEMORY_CLASS_COUNT ? json_object_get(json_object_get(card, "classes"), memory_class_names[c])
                                                     : json_object_get(card, c == MEMORY_CLASS_COUNT ? "mem_bytes" : "peak_bytes");
        /* Of several cards the fullest counts: that is where memory ends. */
        if (json_is_number(value)) e->memory[c].bytes = fmax(e->memory[c].bytes, json_number_value(value));
    }
    json_decref(cards);
}

static int take_line(struct exports *e, const char *text, size_t bytes, double time_s, struct error *err)
{
    struct metric_line l;
    if (!metric_line_parse(&l, text, bytes)) return 0;
    e->last = (struct scalars){.step = l.step, .time_s = time_s, .epoch = l.epoch < 0 ? NAN : (double)l.epoch, .loss = l.loss, .cosine = l.cosine, .lr = l.lr,
        .grad_norm = l.grad_norm, .images_per_s = l.images_per_s, .step_ms = l.step_ms, .data_wait_ms = l.data_wait_ms, .memory = e->memory};
    e->any = true;
    if (l.cards_bytes) take_cards(e, text + l.cards_at, l.cards_bytes);
    if (!e->events || l.step <= e->written) return 0;
    int code = tensorboard_write(e->events, &e->last, err);
    if (code == 0) e->written = l.step;
    return code;
}

/* What has been appended, whole lines only. *more: there is more than one call takes. */
static int take_metrics(struct exports *e, bool *more, struct error *err)
{
    char *path = inside(e, "metrics.jsonl");
    int fd = open(path, O_RDONLY | O_CLOEXEC), code = 0;
    struct stat st;
    free(path);
    *more = false;
    if (fd < 0) return 0;
    /* Shorter than it was: a resumed run writes its last steps anew, the same ones; what is written is passed over. */
    if (fstat(fd, &st) != 0) st.st_size = 0;
    if (st.st_size < e->at) e->at = tail_of(st.st_size);
    ssize_t n = pread(fd, e->buffer, CHUNK_BYTES, (off_t)e->at);
    double ms = 0;
    char *end = n > 0 ? memrchr(e->buffer, '\n', (size_t)n) : NULL;
    struct metric_line l;
    for (char *p = e->buffer, *next; end && p <= end; p = next + 1) {
        next = memchr(p, '\n', (size_t)(end - p) + 1);
        if (metric_line_parse(&l, p, (size_t)(next - p)) && l.step_ms > 0) ms += l.step_ms;
    }
    /* Lines have no time: the last was written when the file was, and those before it at the pace that they tell. */
    double end_s = (double)st.st_mtim.tv_sec + 1e-9 * (double)st.st_mtim.tv_nsec;
    if (n > 0 && st.st_size > e->at + n) end_s -= ms * 1e-3 * (double)(st.st_size - e->at - n) / (double)n;
    for (char *p = e->buffer, *next; !code && end && p <= end; p = next + 1) {
        next = memchr(p, '\n', (size_t)(end - p) + 1);
        if (metric_line_parse(&l, p, (size_t)(next - p)) && l.step_ms > 0) ms -= l.step_ms;
        code = take_line(e, p, (size_t)(next - p), end_s - ms * 1e-3, err);
        if (!code) e->at += next + 1 - p;
    }
    if (n == CHUNK_BYTES && !end) e->at += n; /* no line: not ours */
    *more = !code && n == CHUNK_BYTES;
    close(fd);
    return code;
}

static double number(const json_t *card, const char *key)
{
    const json_t *value = json_object_get(card, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static int put_prometheus(struct exports *e, struct error *err)
{
    struct prometheus_card cards[CARDS];
    char labels[CARDS][16];
    struct run_status status;
    struct scalars last = e->last; /* with the memory that some earlier line told */
    last.memory_count = e->memory_known ? MEMORY_ROWS : 0;
    struct prometheus_run run = {.run = path_basename(e->directory), .last = e->any ? &last : NULL, .cards = cards};
    if (run_status_read(&status, e->directory, NULL) == 0) run.state = status.state, run.total_steps = status.total;
    char *path = inside(e, "live.json");
    json_t *live = json_load_file(path, 0, NULL), *card;
    size_t i;
    free(path);
    json_array_foreach(json_object_get(live, "cards"), i, card)
    {
        if (i >= CARDS) break;
        const json_t *rank = json_object_get(card, "rank");
        snprintf(labels[i], sizeof labels[i], "%lld", json_is_integer(rank) ? (long long)json_integer_value(rank) : (long long)i);
        cards[i] = (struct prometheus_card){labels[i], json_string_value(json_object_get(card, "name")), json_string_value(json_object_get(card, "pci")),
            number(card, "mem_used_bytes"), number(card, "mem_total_bytes"), number(card, "busy_percent"), number(card, "temp_c"), number(card, "power_w"),
            number(card, "age_s")};
        run.card_count++;
    }
    int code = prometheus_write(e->metrics_file, &run, err);
    json_decref(live);
    return code;
}

static int refresh(struct exports *e, bool *more, struct error *err)
{
    struct error first = {0}, second = {0};
    int code = take_metrics(e, more, &first), other = e->metrics_file ? put_prometheus(e, &second) : 0;
    bool told = e->failed;
    e->failed = code || other;
    if (!e->failed || told) return 0;
    if (err) *err = code ? first : second;
    return code ? code : other;
}

int exports_refresh(struct exports *e, struct error *err)
{
    bool more;
    return refresh(e, &more, err);
}

void exports_close(struct exports *e)
{
    if (!e) return;
    bool more = e->events || e->metrics_file;
    while (more) refresh(e, &more, NULL);
    tensorboard_close(e->events);
    free(e->buffer);
    free(e->directory);
    free(e->metrics_file);
    free(e);
}
