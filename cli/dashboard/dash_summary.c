/* A summary of an ended run, printed after the dashboard has closed. */
#include "cli/dashboard/dash_internal.h"
#include "cli/terminal/screen.h"
#include "core/run/checkpoint.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { EVENTS = 6, ROW_COLUMNS = 44 };

static void row(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void row(const char *name, const char *format, ...)
{
    char text[600], line[700];
    va_list args;
    va_start(args, format);
    text_format(text, sizeof text, format, args);
    va_end(args);
    snprintf(line, sizeof line, "  %*s %s", PAD(-11, translation(name)), text);
    screen_line(line);
}

static void memory_rows(const struct follow *f)
{
    const struct run_memory *m = f->card_count ? &f->cards[0].memory : &f->plan;
    char peak[24], planned[24], without[24], text[400] = "", bytes[24];
    size_t n = 0;
    if (m->peak_bytes <= 0) return;
    dash_bytes(peak, sizeof peak, (double)m->peak_bytes);
    if (f->plan.peak_bytes > 0)
        n = (size_t)snprintf(text, sizeof text, _(", planned %s"),
                             dash_bytes(planned, sizeof planned, (double)f->plan.peak_bytes));
    if (f->baseline.peak_bytes > 0 && f->use_meopt)
        snprintf(text + n, sizeof text - n, _(", without meopt %s: %+.0f%%"),
                 dash_bytes(without, sizeof without, (double)f->baseline.peak_bytes),
                 100 * ((double)m->peak_bytes / (double)f->baseline.peak_bytes - 1));
    row(N_("peak memory"), "%s%s", peak, text);
    n = 0;
    for (int c = 0; c <= MEMORY_CLASS_COUNT; c++) {
        if (n > 0 && (c == MEMORY_CLASS_COUNT || n > ROW_COLUMNS)) {
            row("", "%s", text);
            n = 0;
        }
        if (c < MEMORY_CLASS_COUNT && m->class_bytes[c] > 0)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%s %s", n ? ", " : "",
                                  _(memory_class_names[c]),
                                  dash_bytes(bytes, sizeof bytes, (double)m->class_bytes[c]));
    }
}

void dash_summary(const struct follow *f)
{
    const struct run_status *s = &f->status;
    const struct metric_line *l = &f->last;
    char n1[24], n2[24], n3[24], word[200];
    int64_t saved = -1;
    printf(_("%s: %s, step %lld/%lld, loss %s, %s"), f->directory, _(s->state), (long long)l->step,
           (long long)s->total, dash_number(n1, sizeof n1, l->loss),
           dash_duration(n2, sizeof n2, f->seconds));
    if (f->card_count && f->cards[0].memory.peak_bytes > 0)
        printf(_(", peak %s"), dash_bytes(n3, sizeof n3, (double)f->cards[0].memory.peak_bytes));
    printf("\n");
    if (s->message[0]) row(N_("message"), "%s", s->message);
    if (s->hint[0]) row(N_("hint"), "%s", s->hint);
    if (f->point_count && l->step > 0) {
        row(N_("loss"), "first %s, best %s, last %s%s",
            dash_number(n1, sizeof n1, f->points[0].values[METRIC_LOSS]),
            dash_number(n2, sizeof n2, f->best_loss), dash_number(n3, sizeof n3, l->loss),
            dash_scores(word, sizeof word, f, false));
        if (dash_scores(word, sizeof word, f, true)[0]) row(N_("evaluated"), "%s", word + strspn(word, " "));
        const struct unit *unit;
        double rate = metric_rate(l, &unit);
        row(unit->rate, "%s; epoch %lld", dash_number(n1, sizeof n1, rate), (long long)l->epoch + 1);
    }
    memory_rows(f);
    if (checkpoint_before(f->directory, INT64_MAX, &saved, NULL) == 0 && saved >= 0)
        row(N_("checkpoint"), "step %lld; meopt export %s writes the model", (long long)saved,
            run_word(word, sizeof word, f->directory));
    int64_t from = f->event_count > EVENTS ? f->event_count - EVENTS : 0;
    for (int64_t i = from; i < f->event_count; i++)
        row(i == from ? N_("events") : "", "%s", f->events[i % FOLLOW_LINES]);
}
