/* Drawing the dashboard: see dash_draw.h.
 * One erase and one refresh a frame; text from the run is clean already (follow.c). */
#include "cli/dash_draw.h"
#include "cli/dash_parts.h"
#include "cli/screen.h"
#include "core/base/file.h"

#include <math.h>
#include <ncurses.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SERIES_RAW = 1, SERIES_BASELINE, SERIES_SMOOTH };
enum { SILENT_SECONDS = 10 };

void dash_draw_start(void)
{
    /* Okabe and Ito's palette, told apart by colour-blind eyes; eight-colour terminals get the nearest. */
    static const short fine[] = {32, 214, 166, 74, 36, 227, 175, 245},
                       coarse[] = {COLOR_BLUE,  COLOR_YELLOW, COLOR_RED,     COLOR_CYAN,
                                   COLOR_GREEN, COLOR_WHITE,  COLOR_MAGENTA, COLOR_WHITE};
    if (!screen_colours) return;
    const short *c = COLORS >= 256 ? fine : coarse;
    for (int i = 0; i < MEMORY_CLASS_COUNT; i++) init_pair((short)(PAIR_CLASS + i), c[i], -1);
    init_pair(PAIR_GOOD, c[4], -1);
    init_pair(PAIR_BAD, c[2], -1);
    init_pair(PAIR_DIM, COLORS >= 256 ? 245 : COLOR_WHITE, -1);
    init_pair(PAIR_RAW, c[3], -1);
    init_pair(PAIR_SMOOTH, c[1], -1);
    init_pair(PAIR_BASELINE, c[6], -1);
    init_pair(PAIR_SPEED, c[4], -1);
}

int dash_paint(int pair) { return screen_colours ? COLOR_PAIR(pair) : 0; }

void dash_put(int y, int x, int w, int attributes, const char *text)
{
    if (w < 1) return;
    attron(attributes);
    screen_put(y, x, w, text, false);
    attroff(attributes);
}

/* ---- head ---- */

/* What the run is doing, in a few words; *pair colours it. */
static void state_text(const struct dash *d, char *dst, size_t size, int *pair)
{
    const struct follow *f = d->run;
    const struct run_status *s = &f->status;
    char silent[24];
    *pair = PAIR_GOOD;
    if (d->options->replay) {
        snprintf(dst, size, "replay%s", d->paused ? ", paused" : f->replay_end ? ", end" : "");
        return;
    }
    if (run_status_over(s)) {
        if (s->exit_code > 0 && strcmp(s->state, "stopped") != 0)
            snprintf(dst, size, "%s (exit %d)", s->state, s->exit_code);
        else snprintf(dst, size, "%s", s->state);
        if (strcmp(s->state, "done") != 0 && strcmp(s->state, "stopped") != 0) *pair = PAIR_BAD;
        return;
    }
    if (f->worker[0] && strcmp(f->worker, "running") != 0) {
        *pair = PAIR_BAD;
        snprintf(dst, size, "%s for %s, while %s", f->worker,
                 dash_duration(silent, sizeof silent, f->silent_s), f->phase);
    } else if (f->live_time > 0 && (double)time(NULL) - f->live_time > SILENT_SECONDS) {
        *pair = PAIR_BAD;
        snprintf(dst, size, "no sign for %s",
                 dash_duration(silent, sizeof silent, (double)time(NULL) - f->live_time));
    } else {
        snprintf(dst, size, "%s",
                 f->phase[0] && strcmp(f->phase, "waiting for images") != 0 ? f->phase : s->state);
    }
    if (d->paused) snprintf(dst + strlen(dst), size - strlen(dst), ", drawing paused");
}

/* Milliseconds of a step of late, for the time left. */
static double step_ms(const struct follow *f)
{
    double sum = 0;
    int64_t n = f->recent_count < 50 ? f->recent_count : 50;
    for (int64_t i = 1; i <= n; i++) sum += f->recent[(f->recent_count - i) % FOLLOW_RECENT].step_ms;
    return n ? sum / (double)n : NAN;
}

/* Run, towers and state. A name that does not fit ends in dots. */
static void draw_title(const struct dash *d, const struct dash_rect *r)
{
    const struct follow *f = d->run;
    char state[160], name[256], line[512];
    int pair;
    const char *base = strrchr(f->directory, '/');
    name_printable(name, sizeof name, base && base[1] ? base + 1 : f->directory);
    state_text(d, state, sizeof state, &pair);
    int used = screen_width(state), room = r->w - used - 2, x = r->x + screen_width(name);
    if (screen_width(name) > room && room > 4) {
        dash_put(r->y, r->x, room - 1, A_BOLD, name);
        dash_put(r->y, r->x + room - (screen_ascii ? 3 : 1), 3, A_BOLD, screen_ascii ? "..." : "…");
    } else dash_put(r->y, r->x, room, A_BOLD, name);
    snprintf(line, sizeof line, "  %s %s %s%s", f->teacher[0] ? f->teacher : "teacher",
             screen_ascii ? "->" : "→", f->student[0] ? f->student : "student",
             f->use_meopt ? "  meopt" : "");
    if ((f->teacher[0] || f->student[0]) && x + screen_width(line) <= r->x + room)
        dash_put(r->y, x, r->w, dash_paint(PAIR_DIM), line);
    else if (f->use_meopt && x + 7 <= r->x + room) dash_put(r->y, x, 7, dash_paint(PAIR_DIM), "  meopt");
    dash_put(r->y, used < r->w ? r->x + r->w - used : r->x, used < r->w ? used : r->w,
             dash_paint(pair) | A_BOLD, state);
}

static void draw_header(const struct dash *d, const struct dash_rect *r)
{
    const struct follow *f = d->run;
    const struct metric_line *l = &f->last;
    char line[512], t1[24], t2[24], n1[24], n2[24], n3[24], n4[24], n5[24];
    int64_t step = l->step > 0 ? l->step : f->status.step, total = f->status.total;
    double left = total > step ? (double)(total - step) * step_ms(f) * 1e-3 : total ? 0 : NAN;
    bool over = f->status.ended && !d->options->replay;
    draw_title(d, r);
    if (total)
        snprintf(line, sizeof line, "step %lld/%lld %.0f%%", (long long)step, (long long)total,
                 100.0 * (double)step / (double)total);
    else snprintf(line, sizeof line, "step %lld", (long long)step);
    size_t n = strlen(line);
    snprintf(line + n, sizeof line - n, "  epoch %lld  trained %s", (long long)(l->epoch < 0 ? 0 : l->epoch),
             dash_duration(t1, sizeof t1, f->seconds));
    n = strlen(line);
    if (!over) snprintf(line + n, sizeof line - n, ", %s left", dash_duration(t2, sizeof t2, left));
    n = strlen(line);
    dash_number(n1, sizeof n1, l->loss);
    dash_number(n2, sizeof n2, l->cosine);
    dash_number(n3, sizeof n3, l->lr);
    dash_number(n4, sizeof n4, l->grad_norm);
    dash_number(n5, sizeof n5, l->images_per_s);
    if (r->h == 2) {
        snprintf(line + n, sizeof line - n, "  loss %s  cosine %s  lr %s  norm %s", n1, n2, n3, n4);
        dash_put(r->y + 1, r->x, r->w, 0, line);
        return;
    }
    dash_put(r->y + 1, r->x, r->w, 0, line);
    if (r->w >= 66)
        snprintf(line, sizeof line, "loss %s  cosine %s  lr %s  norm %s  %s images/s", n1, n2, n3, n4, n5);
    else snprintf(line, sizeof line, "loss %s  %s images/s  lr %s", n1, n5, n3);
    dash_put(r->y + 2, r->x, r->w, 0, line);
}

/* ---- plots ---- */

struct curve {
    double *x, *y;
    int n;
};

static void free_curve(struct curve *c)
{
    free(c->x);
    free(c->y);
}

/* The part of the history that is shown, of loss or throughput. */
static struct curve curve_of(const struct follow *f, enum dash_range_choice range, bool speed)
{
    int64_t wanted = range == RANGE_2000 ? 2000 : 200;
    struct curve c = {0};
    if (range == RANGE_ALL) {
        c.x = xcalloc((size_t)f->point_count + 1, sizeof *c.x);
        c.y = xcalloc((size_t)f->point_count + 1, sizeof *c.y);
        for (; c.n < f->point_count; c.n++) {
            const struct follow_point *p = &f->points[c.n];
            c.x[c.n] = p->lines > 1 ? (p->first_step + p->last_step) / 2 : p->last_step;
            c.y[c.n] = speed ? p->images_per_s : p->loss;
        }
        return c;
    }
    if (wanted > f->recent_count) wanted = f->recent_count;
    if (wanted > FOLLOW_RECENT) wanted = FOLLOW_RECENT;
    c.x = xcalloc((size_t)wanted + 1, sizeof *c.x);
    c.y = xcalloc((size_t)wanted + 1, sizeof *c.y);
    for (; c.n < wanted; c.n++) {
        const struct metric_line *l = &f->recent[(f->recent_count - wanted + c.n) % FOLLOW_RECENT];
        c.x[c.n] = (double)l->step;
        c.y[c.n] = speed ? l->images_per_s : l->loss;
    }
    return c;
}

void dash_plot_draw(const struct dash_rect *r, struct dash_plot *p, const int pairs[4])
{
    char label[24], cell[8];
    int top = r->y + 1, labels = p->h;
    for (int y = 0; y < p->h; y++) {
        if (y == 0 || y == p->h - 1 || (p->h >= 7 && y == p->h / 2)) {
            double v = p->h > 1 ? p->y_max - (p->y_max - p->y_min) * y / (p->h - 1) : p->y_max;
            if (!p->empty)
                dash_put(top + y, r->x, PLOT_LABELS - 1, dash_paint(PAIR_DIM),
                         dash_number(label, sizeof label, p->log ? pow(10, v) : v));
        }
        for (int x = 0; x < p->w; x++) {
            if (!p->cells[(size_t)y * (size_t)p->w + (size_t)x]) continue;
            dash_plot_cell(p, y, x, cell);
            dash_put(top + y, r->x + PLOT_LABELS + x, 1,
                     dash_paint(pairs[p->series[(size_t)y * (size_t)p->w + (size_t)x]]), cell);
        }
    }
    if (p->empty) return;
    snprintf(label, sizeof label, "%.0f", p->x_min);
    dash_put(top + labels, r->x + PLOT_LABELS, 12, dash_paint(PAIR_DIM), label);
    snprintf(label, sizeof label, "%.0f", p->x_max);
    int w = (int)strlen(label);
    if (p->w > w + 8) dash_put(top + labels, r->x + PLOT_LABELS + p->w - w, w, dash_paint(PAIR_DIM), label);
}

static void draw_loss(const struct dash *d, const struct dash_rect *r)
{
    static const int pairs[4] = {0, PAIR_RAW, PAIR_BASELINE, PAIR_SMOOTH};
    static const char *const ranges[] = {"all steps", "last 2000", "last 200"};
    struct curve raw = curve_of(d->run, d->range, false), base = {0};
    double x_min = INFINITY, x_max = -INFINITY, y_min = INFINITY, y_max = -INFINITY;
    double *smooth = xcalloc((size_t)raw.n + 1, sizeof *smooth);
    char line[200], best[24];
    struct dash_plot p;
    dash_smooth(raw.y, smooth, raw.n, 0.9);
    dash_range(raw.x, raw.n, &x_min, &x_max);
    if (d->raw || !d->smooth) dash_range(raw.y, raw.n, &y_min, &y_max);
    else dash_range(smooth, raw.n, &y_min, &y_max);
    if (d->baseline && d->overlay) {
        base = curve_of(d->baseline, RANGE_ALL, false);
        for (int i = 0; i < base.n; i++) {
            if (base.x[i] < x_min || base.x[i] > x_max)
                base.y[i] = NAN; /* of the steps that this run has had */
        }
        dash_range(base.y, base.n, &y_min, &y_max);
    }
    dash_plot_begin(&p, r->w - PLOT_LABELS, r->h - 2, d->glyphs, x_min, x_max, y_min, y_max, d->log_scale);
    if (d->raw) dash_plot_curve(&p, SERIES_RAW, raw.x, raw.y, raw.n);
    if (base.n) dash_plot_curve(&p, SERIES_BASELINE, base.x, base.y, base.n);
    if (d->smooth) dash_plot_curve(&p, SERIES_SMOOTH, raw.x, smooth, raw.n);
    snprintf(line, sizeof line, "loss, %s%s  best %s", ranges[d->range], p.log ? ", log" : "",
             dash_number(best, sizeof best, d->run->best_loss));
    dash_put(r->y, r->x, r->w, A_BOLD, line);
    int x = r->x + screen_width(line) + 2;
    static const char *const names[] = {"raw", "smooth", "baseline"};
    const bool on[] = {d->raw, d->smooth, d->baseline && d->overlay};
    static const int colours[] = {PAIR_RAW, PAIR_SMOOTH, PAIR_BASELINE};
    for (int i = 0; i < 3; i++)
        if (on[i] && x + (int)strlen(names[i]) <= r->x + r->w) {
            dash_put(r->y, x, (int)strlen(names[i]), dash_paint(colours[i]), names[i]);
            x += (int)strlen(names[i]) + 1;
        }
    dash_plot_draw(r, &p, pairs);
    dash_plot_end(&p);
    free_curve(&raw);
    free_curve(&base);
    free(smooth);
}

static void draw_speed(const struct dash *d, const struct dash_rect *r)
{
    static const int pairs[4] = {0, PAIR_SPEED, 0, 0};
    struct curve c = curve_of(d->run, d->range, true);
    double x_min = INFINITY, x_max = -INFINITY, y_min = 0, y_max = -INFINITY;
    char line[64], n[24];
    struct dash_plot p;
    dash_range(c.x, c.n, &x_min, &x_max);
    dash_range(c.y, c.n, &y_min, &y_max);
    dash_plot_begin(&p, r->w - PLOT_LABELS, r->h - 2, d->glyphs, x_min, x_max, y_min, y_max, false);
    dash_plot_curve(&p, 1, c.x, c.y, c.n);
    snprintf(line, sizeof line, "images/s  %s", dash_number(n, sizeof n, d->run->last.images_per_s));
    dash_put(r->y, r->x, r->w, A_BOLD, line);
    dash_plot_draw(r, &p, pairs);
    dash_plot_end(&p);
    free_curve(&c);
}

/* ---- log, help, foot ---- */

static void draw_log(struct dash *d, const struct dash_rect *r)
{
    const struct follow *f = d->run;
    int y = r->y, lines = r->h;
    if (d->tab == TAB_LOG && lines > 2) { /* events above, the worker's own words below */
        int64_t events = f->event_count < lines / 2 ? f->event_count : lines / 2, room;
        dash_put(y++, r->x, r->w, A_BOLD, "events");
        for (int64_t i = f->event_count - events; i < f->event_count; i++)
            dash_put(y++, r->x, r->w, 0, f->events[i % FOLLOW_LINES]);
        dash_put(y++, r->x, r->w, A_BOLD, "worker.log");
        room = r->y + r->h - y;
        int64_t kept = f->log_count < FOLLOW_LINES ? f->log_count : FOLLOW_LINES;
        if (d->scroll > kept - room) d->scroll = (int)(kept > room ? kept - room : 0);
        int64_t last = f->log_count - d->scroll,
                first = last - room > f->log_count - kept ? last - room : f->log_count - kept;
        for (int64_t i = first; i < last; i++) dash_put(y++, r->x, r->w, 0, f->log[i % FOLLOW_LINES]);
        return;
    }
    const struct run_status *s = &f->status;
    if (s->message[0] && lines >= 2 && !d->options->replay) {
        char text[600];
        name_printable(text, sizeof text, s->message);
        dash_put(y++, r->x, r->w, dash_paint(PAIR_BAD) | A_BOLD, text);
        name_printable(text, sizeof text, s->hint);
        dash_put(y++, r->x, r->w, 0, text);
        lines -= 2;
    }
    int64_t n = f->event_count < lines ? f->event_count : lines;
    if (n > FOLLOW_LINES) n = FOLLOW_LINES;
    for (int64_t i = f->event_count - n; i < f->event_count; i++)
        dash_put(y++, r->x, r->w, dash_paint(PAIR_DIM), f->events[i % FOLLOW_LINES]);
}

static void draw_help(const struct dash_rect *r)
{
    static const char *const lines[] = {
        "1-4, Tab, Shift-Tab   overview, curves, memory, log",
        "up down, k j, PgUp PgDn   select a card; in the log, scroll",
        "l         logarithmic loss",
        "r s b     raw, smoothed, baseline curve",
        "z         range: all, last 2000, last 200 steps",
        "f         loss fills the place of both plots",
        "g         braille, blocks, ASCII",
        "p space   pause drawing",
        "c         checkpoint now",
        "x         stop the run (saves first)",
        "? h       this; any of Esc, q closes it",
        "Ctrl-L    draw anew",
        "q d       leave; the run goes on",
        "Ctrl-C    of meopt train: save and stop; again: at once",
        "",
        "bar: W weights G gradients O optimizer A activations",
        "     T teacher S workspace C comm D data X not the run's",
    };
    int y = r->y;
    for (size_t i = 0; i < sizeof lines / sizeof *lines && y < r->y + r->h; i++)
        dash_put(y++, r->x, r->w, 0, lines[i]);
    if (y < r->y + r->h)
        dash_put(y, r->x, r->w, 0,
                 screen_ascii ? "     | highest so far  ! planned peak  (n) stale"
                              : "     ▏ highest so far  ┊ planned peak  (n) stale");
}

/* The tabs by name, the one that is open marked; then what can be asked, where it fits. */
static void draw_footer(const struct dash *d, const struct dash_rect *r)
{
    int x = r->x;
    char text[32];
    if (d->asks_to_stop) dash_put(r->y, r->x, r->w, A_REVERSE, "stop the run? it saves first. y/n");
    else if (d->message[0]) dash_put(r->y, r->x, r->w, A_REVERSE, d->message);
    if (d->asks_to_stop || d->message[0]) return;
    for (int i = 0; i < TAB_COUNT; i++) {
        if (i == TAB_HELP) snprintf(text, sizeof text, "? help");
        else if (r->w >= 60) snprintf(text, sizeof text, "%d %s", i + 1, dash_tab_names[i]);
        else snprintf(text, sizeof text, "%d %.3s", i + 1, dash_tab_names[i]);
        dash_put(r->y, x, r->x + r->w - x, i == (int)d->tab ? (int)A_REVERSE : dash_paint(PAIR_DIM), text);
        x += (int)strlen(text) + 2;
    }
    const char *all = dash_alive(d) ? "c save  x stop  z range  q leave, the run goes on"
                                    : "z range  p pause  q leave",
               *few = dash_alive(d) ? "c save  x stop  z range  q leave" : "z range  q leave", *hints = all;
    if (x + 1 + (int)strlen(hints) > r->x + r->w) hints = few;
    if (x + 1 + (int)strlen(hints) > r->x + r->w) hints = "q leave";
    int w = (int)strlen(hints);
    if (x + w <= r->x + r->w) dash_put(r->y, r->x + r->w - w, w, dash_paint(PAIR_DIM), hints);
}

void dash_draw(struct dash *d)
{
    int rows, columns;
    getmaxyx(stdscr, rows, columns);
    struct dash_layout l =
        dash_layout(rows, columns, d->run->card_count + d->run->other_count, d->tab, d->zoomed);
    erase();
    curs_set(0);
    if (l.too_small) {
        dash_put(0, 0, columns, 0, "too small");
        refresh();
        return;
    }
    draw_header(d, &l.header);
    if (l.cards.h) dash_cards(d, &l);
    if (l.savings.h && d->tab == TAB_MEMORY) dash_memory(d, &l.savings);
    else if (l.savings.h) dash_savings(d, &l.savings);
    if (l.loss.h) draw_loss(d, &l.loss);
    if (l.speed.h) draw_speed(d, &l.speed);
    if (l.log.h && d->tab == TAB_HELP) draw_help(&l.log);
    else if (l.log.h) draw_log(d, &l.log);
    draw_footer(d, &l.footer);
    refresh();
}
