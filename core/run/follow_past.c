/* A run as it was at an earlier step: see follow.h, follow_at. Files are searched by bisection over steps,
 * so that one of millions is found with a few reads. */
#include "core/run/follow_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    NEAR = 256 << 10, /* bytes that are read instead of bisected further */
    BEFORE = 1 << 20, /* metrics before the step: some of them have the memory of the cards */
    EVENT_BYTES = 4 << 20,
    LOG_BYTES = 8 << 20
};

/* Returns an offset at most `before` bytes before the first line after `step`. Lines there begin after the
 * next newline, except at offset 0. */
static int64_t place_of(struct tail *t, int64_t size, double step, int64_t before)
{
    int64_t low = 0, high = size;
    while (high - low > NEAR) {
        int64_t middle = low + (high - low) / 2;
        size_t bytes;
        tail_seek(t, middle, true);
        const char *line = tail_line(t, &bytes);
        double found = line ? metric_step(line, bytes) : INFINITY;
        if (found >= 0 && found <= step) low = middle;
        else high = middle;
    }
    return low > before ? low - before : 0;
}

static double seconds_at(const struct follow *now, double step)
{
    double seconds = 0;
    for (int i = 0; i < now->point_count && now->points[i].first_step <= step; i++)
        seconds = now->points[i].seconds;
    return seconds;
}

static void read_past_metrics(struct follow *f, double step)
{
    struct tail *t = &f->metrics;
    int64_t size = tail_poll(t, NULL);
    char *cards = NULL;
    struct metric_line with_cards;
    size_t bytes;
    if (size < 0) return;
    int64_t at = place_of(t, size, step, BEFORE);
    tail_seek(t, at, at > 0);
    for (const char *line; (line = tail_line(t, &bytes)) != NULL;) {
        struct metric_line l;
        if (!metric_line_parse(&l, line, bytes)) continue;
        if ((double)l.step > step) break;
        f->last = l;
        scores_update(f->scores, l.scores);
        f->recent[f->recent_count++ % FOLLOW_RECENT] = l;
        if (!l.cards_bytes) continue;
        free(cards);
        cards = strndup(line, bytes);
        with_cards = l;
    }
    if (cards) follow_take_cards(f, &with_cards, cards);
    free(cards);
}

static void read_past_readings(struct follow *f, double step)
{
    struct tail *t = &f->card_tail;
    int64_t size = tail_poll(t, NULL);
    json_t *last = NULL;
    size_t bytes;
    if (size < 0) return;
    int64_t at = place_of(t, size, step, CARDS_LINE_BYTES);
    tail_seek(t, at, at > 0);
    for (const char *text; (text = tail_line(t, &bytes)) != NULL && metric_step(text, bytes) <= step;) {
        json_decref(last);
        last = json_loadb(text, bytes, 0, NULL);
    }
    follow_take_readings(f, json_object_get(last, "cards"), 0);
    json_decref(last);
}

/* Reads the worker's log up to the line "step N/..."; after a resume earlier steps appear again. */
static void read_past_log(struct follow *f, double step)
{
    struct tail *t = &f->log_tail;
    int64_t size = tail_poll(t, NULL);
    size_t bytes;
    bool skip = false;
    if (size < 0) return;
    tail_seek(t, size > LOG_BYTES ? size - LOG_BYTES : 0, size > LOG_BYTES);
    for (const char *line; (line = tail_line(t, &bytes)) != NULL;) {
        if (bytes > 5 && memcmp(line, "step ", 5) == 0)
            skip =
                metric_number(line + 5 + strspn(line + 5, " "), line + bytes, &(const char *){NULL}) > step;
        if (!skip) follow_take_log(f, line, bytes);
    }
}

static void read_past_events(struct follow *f, double step)
{
    struct tail *t = &f->event_tail;
    int64_t size = tail_poll(t, NULL);
    size_t bytes;
    if (size < 0) return;
    tail_seek(t, size > EVENT_BYTES ? size - EVENT_BYTES : 0, size > EVENT_BYTES);
    for (const char *line; (line = tail_line(t, &bytes)) != NULL;)
        if (metric_step(line, bytes) <= step) follow_take_event(f, line, bytes);
}

int follow_at(struct follow **past, const struct follow *now, double step, struct error *err)
{
    int code = follow_open(past, now->directory, true, err);
    if (code) return code;
    struct follow *f = *past;
    f->plan = now->plan;
    f->baseline = now->baseline;
    memcpy(f->rank_plans, now->rank_plans, sizeof f->rank_plans);
    f->rank_plan_count = now->rank_plan_count;
    f->has_plan = now->has_plan;
    f->layout = now->layout;
    f->planned_bubble = now->planned_bubble;
    f->epoch_steps = now->epoch_steps;
    f->status = now->status;
    read_past_metrics(f, step);
    read_past_readings(f, step);
    read_past_events(f, step);
    read_past_log(f, step);
    f->seconds = seconds_at(now, step);
    f->best_loss = NAN;
    return 0;
}
