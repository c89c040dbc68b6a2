/* Drawing the dashboard: see dash_draw.h.
 * One erase and one refresh a frame; text from the run is clean already (follow.c). */
#include "cli/dash_draw.h"

#include "cli/screen.h"
#include "core/base/file.h"

#include <math.h>
#include <ncurses.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAIR_CLASS = 1, PAIR_GOOD = 10, PAIR_BAD, PAIR_DIM, PAIR_RAW, PAIR_SMOOTH, PAIR_BASELINE, PAIR_SPEED };
enum { SERIES_RAW = 1, SERIES_BASELINE, SERIES_SMOOTH };
enum { Y_LABELS = 9, STALE_SECONDS = 5, SILENT_SECONDS = 10 };

static const char class_letters[MEMORY_CLASS_COUNT + 1] =
    "WGOATSCD"; /* weights gradients optimizer activations teacher workspace(S) comm data */

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

static int paint(int pair) { return screen_colours ? COLOR_PAIR(pair) : 0; }

static void put(int y, int x, int w, int attributes, const char *text)
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

static void draw_header(const struct dash *d, const struct dash_rect *r)
{
    const struct follow *f = d->run;
    const struct metric_line *l = &f->last;
    char state[160], name[256], line[512], t1[24], t2[24], n1[24], n2[24], n3[24], n4[24], n5[24];
    int pair;
    const char *base = strrchr(f->directory, '/');
    name_printable(name, sizeof name, base && base[1] ? base + 1 : f->directory);
    state_text(d, state, sizeof state, &pair);
    int64_t step = l->step > 0 ? l->step : f->status.step, total = f->status.total;
    double left = total > step ? (double)(total - step) * step_ms(f) * 1e-3 : total ? 0 : NAN;
    bool wide = r->h == 2;
    int used = screen_width(state);
    put(r->y, r->x, r->w, A_BOLD, name);
    int x = r->x + screen_width(name);
    if (wide && (f->teacher[0] || f->student[0])) {
        snprintf(line, sizeof line, "  %s %s %s%s", f->teacher[0] ? f->teacher : "teacher",
                 screen_ascii ? "->" : "→", f->student[0] ? f->student : "student",
                 f->use_meopt ? "  meopt" : "");
        put(r->y, x, r->w - x - used - 1, paint(PAIR_DIM), line);
    }
    put(r->y, used < r->w ? r->x + r->w - used : r->x, used < r->w ? used : r->w, paint(pair) | A_BOLD,
        state);
    if (total)
        snprintf(line, sizeof line, "step %lld/%lld %.0f%%", (long long)step, (long long)total,
                 100.0 * (double)step / (double)total);
    else snprintf(line, sizeof line, "step %lld", (long long)step);
    size_t n = strlen(line);
    dash_duration(t1, sizeof t1, f->seconds);
    dash_duration(t2, sizeof t2, f->status.ended && !d->options->replay ? NAN : left);
    dash_number(n1, sizeof n1, l->loss);
    dash_number(n2, sizeof n2, l->cosine);
    dash_number(n3, sizeof n3, l->lr);
    dash_number(n4, sizeof n4, l->grad_norm);
    dash_number(n5, sizeof n5, l->images_per_s);
    if (wide) {
        snprintf(line + n, sizeof line - n, "  epoch %lld  %s, %s left  loss %s  cosine %s  lr %s  norm %s",
                 (long long)(l->epoch < 0 ? 0 : l->epoch), t1, t2, n1, n2, n3, n4);
        put(r->y + 1, r->x, r->w, 0, line);
    } else {
        snprintf(line + n, sizeof line - n, "  %s left", t2);
        put(r->y + 1, r->x, r->w, 0, line);
        snprintf(line, sizeof line, "loss %s  %s images/s", n1, n5);
        put(r->y + 2, r->x, r->w, 0, line);
    }
}

/* ---- cards ---- */

static void draw_bar(const struct follow *f, const struct follow_card *c, int y, int x, int w)
{
    double parts[MEMORY_CLASS_COUNT];
    int cells[MEMORY_CLASS_COUNT], at = x;
    double peak = (double)c->memory.peak_bytes, planned = (double)f->plan.peak_bytes,
           without = (double)f->baseline.peak_bytes, total = c->total_bytes;
    /* against the card's memory, or where that would show nothing, against what is planned */
    double needs = fmax(fmax(peak, planned), without);
    if (!(total > 0) || needs < total / 20) total = needs * 1.05;
    for (int i = 0; i < MEMORY_CLASS_COUNT; i++) parts[i] = (double)c->memory.class_bytes[i];
    dash_split(parts, MEMORY_CLASS_COUNT, total, w, cells);
    for (int i = 0; i < MEMORY_CLASS_COUNT; i++)
        for (int k = 0; k < cells[i]; k++, at++) {
            if (screen_colours && !screen_ascii) put(y, at, 1, paint(PAIR_CLASS + i), "█");
            else {
                const char letter[2] = {class_letters[i], 0};
                put(y, at, 1, paint(PAIR_CLASS + i), letter);
            }
        }
    for (; at < x + w; at++) put(y, at, 1, paint(PAIR_DIM), screen_ascii ? "." : "·");
    int mark = dash_mark(planned, total, w), held = dash_mark(peak, total, w);
    if (mark >= 0) put(y, x + mark, 1, A_BOLD, screen_ascii ? "!" : "┊");
    if (held >= 0) put(y, x + held, 1, A_BOLD, screen_ascii ? "|" : "▏");
}

static void reading(char *dst, size_t size, double value, const char *format, double age)
{
    char text[24] = "-";
    if (isfinite(value)) snprintf(text, sizeof text, format, value);
    if (isfinite(value) && age > STALE_SECONDS) snprintf(dst, size, "(%s)", text); /* stale */
    else snprintf(dst, size, "%s", text);
}

static void draw_cards(struct dash *d, const struct dash_layout *l)
{
    const struct follow *f = d->run;
    const struct dash_rect *r = &l->cards;
    char line[256], b1[24], b2[24], busy[32], temp[32], power[32], speed[24], wait[24];
    bool wide = r->w >= 84, middle = r->w >= 60;
    int text = wide ? 58 : middle ? 33 : 21, bar = r->w - 3 - text - 1;
    if (d->selected >= f->card_count) d->selected = f->card_count > 0 ? f->card_count - 1 : 0;
    if (d->selected < d->top) d->top = d->selected;
    if (d->selected >= d->top + l->card_rows) d->top = d->selected - l->card_rows + 1;
    int y = r->y;
    if (l->card_titles) {
        snprintf(line, sizeof line,
                 wide     ? "%15s %7s %6s %6s %9s %8s"
                 : middle ? "%15s %7s %8s"
                          : "%13s %6s",
                 "memory", "busy", wide ? "temp" : "images/s", "power", "images/s", "wait");
        put(y, r->x, r->w, paint(PAIR_DIM),
            f->card_count == 1 && f->cards[0].device[0] ? f->cards[0].device : "card");
        put(y++, r->x + 3 + bar + 1, text, paint(PAIR_DIM), line);
    }
    if (f->card_count == 0) {
        put(y, r->x, r->w, paint(PAIR_DIM), "no step yet");
        return;
    }
    for (int i = d->top; i < f->card_count && i < d->top + l->card_rows; i++, y++) {
        const struct follow_card *c = &f->cards[i];
        snprintf(line, sizeof line, "%d", c->rank);
        put(y, r->x, 2, i == d->selected && f->card_count > 1 ? A_REVERSE : 0, line);
        draw_bar(f, c, y, r->x + 3, bar);
        char memory[56];
        dash_bytes(b1, sizeof b1, c->memory.now_bytes >= 0 ? (double)c->memory.now_bytes : c->used_bytes);
        dash_bytes(b2, sizeof b2, isfinite(c->total_bytes) ? c->total_bytes : -1);
        snprintf(memory, sizeof memory, "%s/%s", b1, b2);
        reading(busy, sizeof busy, c->busy_percent, "%.0f%%", c->age_s);
        reading(temp, sizeof temp, c->temp_c, screen_ascii ? "%.0fC" : "%.0f°", c->age_s);
        reading(power, sizeof power, c->power_w, "%.0fW", c->age_s);
        dash_number(speed, sizeof speed, f->last.images_per_s / (f->card_count > 0 ? f->card_count : 1));
        if (isfinite(f->last.data_wait_ms) && f->last.step_ms > 0)
            snprintf(wait, sizeof wait, "%.1f%%", 100 * f->last.data_wait_ms / f->last.step_ms);
        else snprintf(wait, sizeof wait, "-");
        int degree = (int)strlen(temp) - screen_width(temp); /* printf counts bytes */
        if (wide)
            snprintf(line, sizeof line, "%15s %7s %*s %6s %9s %8s", memory, busy, 6 + degree, temp, power,
                     speed, wait);
        else if (middle) snprintf(line, sizeof line, "%15s %7s %8s", memory, busy, speed);
        else snprintf(line, sizeof line, "%13s %6s", memory, busy);
        put(y, r->x + 3 + bar + 1, text, 0, line);
    }
}

/* ---- savings ---- */

static const struct follow_card *shown_card(const struct dash *d)
{
    return d->run->card_count > d->selected ? &d->run->cards[d->selected] : NULL;
}

static void draw_savings(const struct dash *d, const struct dash_rect *r)
{
    const struct follow *f = d->run;
    const struct follow_card *c = shown_card(d);
    char line[300], b1[24], b2[24];
    int64_t peak = c && c->memory.peak_bytes > 0 ? c->memory.peak_bytes : f->plan.peak_bytes,
            without = f->baseline.peak_bytes;
    bool measured = c && c->memory.peak_bytes > 0;
    if (peak <= 0) return;
    int n = snprintf(line, sizeof line, "peak %s%s", dash_bytes(b1, sizeof b1, (double)peak),
                     measured ? "" : " planned");
    if (measured && f->plan.peak_bytes > 0 && r->w >= 60)
        n += snprintf(line + n, sizeof line - (size_t)n, ", planned %s",
                      dash_bytes(b2, sizeof b2, (double)f->plan.peak_bytes));
    if (without > 0 && f->use_meopt)
        snprintf(line + n, sizeof line - (size_t)n, ", without meopt %s: %+.0f%%",
                 dash_bytes(b2, sizeof b2, (double)without), 100.0 * ((double)peak / (double)without - 1));
    else if (without > 0) snprintf(line + n, sizeof line - (size_t)n, ", meopt is off");
    put(r->y, r->x, r->w, A_BOLD | paint(PAIR_GOOD), line);
    if (r->h < 2 || !c) return;
    int x = r->x;
    for (int i = 0; i < MEMORY_CLASS_COUNT; i++) {
        if (c->memory.class_bytes[i] <= 0) continue;
        const char letter[2] = {class_letters[i], 0};
        bool names = r->w >= 120;
        snprintf(line, sizeof line, names ? "%s %s  " : "%s%s ", names ? memory_class_names[i] : "",
                 dash_bytes(b1, sizeof b1, (double)c->memory.class_bytes[i]));
        if (x + 2 + screen_width(line) > r->x + r->w) break;
        put(r->y + 1, x, 1, paint(PAIR_CLASS + i) | A_BOLD, letter);
        put(r->y + 1, x + 2, r->w, 0, line);
        x += 2 + screen_width(line);
    }
}

static void draw_memory(const struct dash *d, const struct dash_rect *r)
{
    const struct follow *f = d->run;
    const struct follow_card *c = shown_card(d);
    char line[200], now[24], plan[24], base[24];
    int y = r->y;
    struct dash_rect first = {r->y, r->x, 1, r->w};
    draw_savings(d, &first);
    y += 2;
    if (y < r->y + r->h) {
        snprintf(line, sizeof line, "   %-12s %9s %9s %14s", "class", "peak", "planned", "without meopt");
        put(y++, r->x, r->w, paint(PAIR_DIM), line);
    }
    for (int i = 0; i < MEMORY_CLASS_COUNT && y < r->y + r->h; i++, y++) {
        const char letter[2] = {class_letters[i], 0};
        put(y, r->x + 1, 1, paint(PAIR_CLASS + i) | A_BOLD, letter);
        snprintf(line, sizeof line, "%-12s %9s %9s %14s", memory_class_names[i],
                 dash_bytes(now, sizeof now, c ? (double)c->memory.class_bytes[i] : -1),
                 dash_bytes(plan, sizeof plan, f->plan.peak_bytes > 0 ? (double)f->plan.class_bytes[i] : -1),
                 dash_bytes(base, sizeof base,
                            f->baseline.peak_bytes > 0 ? (double)f->baseline.class_bytes[i] : -1));
        put(y, r->x + 3, r->w - 3, 0, line);
    }
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

static void draw_grid(const struct dash_rect *r, struct dash_plot *p, const int pairs[4])
{
    char label[24], cell[8];
    int top = r->y + 1, labels = p->h;
    for (int y = 0; y < p->h; y++) {
        if (y == 0 || y == p->h - 1 || (p->h >= 7 && y == p->h / 2)) {
            double v = p->h > 1 ? p->y_max - (p->y_max - p->y_min) * y / (p->h - 1) : p->y_max;
            if (!p->empty)
                put(top + y, r->x, Y_LABELS - 1, paint(PAIR_DIM),
                    dash_number(label, sizeof label, p->log ? pow(10, v) : v));
        }
        for (int x = 0; x < p->w; x++) {
            if (!p->cells[(size_t)y * (size_t)p->w + (size_t)x]) continue;
            dash_plot_cell(p, y, x, cell);
            put(top + y, r->x + Y_LABELS + x, 1,
                paint(pairs[p->series[(size_t)y * (size_t)p->w + (size_t)x]]), cell);
        }
    }
    if (p->empty) return;
    snprintf(label, sizeof label, "%.0f", p->x_min);
    put(top + labels, r->x + Y_LABELS, 12, paint(PAIR_DIM), label);
    snprintf(label, sizeof label, "%.0f", p->x_max);
    int w = (int)strlen(label);
    if (p->w > w + 8) put(top + labels, r->x + Y_LABELS + p->w - w, w, paint(PAIR_DIM), label);
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
    dash_plot_begin(&p, r->w - Y_LABELS, r->h - 2, d->glyphs, x_min, x_max, y_min, y_max, d->log_scale);
    if (d->raw) dash_plot_curve(&p, SERIES_RAW, raw.x, raw.y, raw.n);
    if (base.n) dash_plot_curve(&p, SERIES_BASELINE, base.x, base.y, base.n);
    if (d->smooth) dash_plot_curve(&p, SERIES_SMOOTH, raw.x, smooth, raw.n);
    snprintf(line, sizeof line, "loss, %s%s  best %s", ranges[d->range], p.log ? ", log" : "",
             dash_number(best, sizeof best, d->run->best_loss));
    put(r->y, r->x, r->w, A_BOLD, line);
    int x = r->x + screen_width(line) + 2;
    static const char *const names[] = {"raw", "smooth", "baseline"};
    const bool on[] = {d->raw, d->smooth, d->baseline && d->overlay};
    static const int colours[] = {PAIR_RAW, PAIR_SMOOTH, PAIR_BASELINE};
    for (int i = 0; i < 3; i++)
        if (on[i] && x + (int)strlen(names[i]) <= r->x + r->w) {
            put(r->y, x, (int)strlen(names[i]), paint(colours[i]), names[i]);
            x += (int)strlen(names[i]) + 1;
        }
    draw_grid(r, &p, pairs);
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
    dash_plot_begin(&p, r->w - Y_LABELS, r->h - 2, d->glyphs, x_min, x_max, y_min, y_max, false);
    dash_plot_curve(&p, 1, c.x, c.y, c.n);
    snprintf(line, sizeof line, "images/s  %s", dash_number(n, sizeof n, d->run->last.images_per_s));
    put(r->y, r->x, r->w, A_BOLD, line);
    draw_grid(r, &p, pairs);
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
        put(y++, r->x, r->w, A_BOLD, "events");
        for (int64_t i = f->event_count - events; i < f->event_count; i++)
            put(y++, r->x, r->w, 0, f->events[i % FOLLOW_LINES]);
        put(y++, r->x, r->w, A_BOLD, "worker.log");
        room = r->y + r->h - y;
        int64_t kept = f->log_count < FOLLOW_LINES ? f->log_count : FOLLOW_LINES;
        if (d->scroll > kept - room) d->scroll = (int)(kept > room ? kept - room : 0);
        int64_t last = f->log_count - d->scroll,
                first = last - room > f->log_count - kept ? last - room : f->log_count - kept;
        for (int64_t i = first; i < last; i++) put(y++, r->x, r->w, 0, f->log[i % FOLLOW_LINES]);
        return;
    }
    const struct run_status *s = &f->status;
    if (s->message[0] && lines >= 2 && !d->options->replay) {
        char text[600];
        name_printable(text, sizeof text, s->message);
        put(y++, r->x, r->w, paint(PAIR_BAD) | A_BOLD, text);
        name_printable(text, sizeof text, s->hint);
        put(y++, r->x, r->w, 0, text);
        lines -= 2;
    }
    int64_t n = f->event_count < lines ? f->event_count : lines;
    if (n > FOLLOW_LINES) n = FOLLOW_LINES;
    for (int64_t i = f->event_count - n; i < f->event_count; i++)
        put(y++, r->x, r->w, paint(PAIR_DIM), f->events[i % FOLLOW_LINES]);
}

static void draw_help(const struct dash *d, const struct dash_rect *r)
{
    static const char *const lines[] = {
        "Tab 1-4   overview, curves, memory, log",
        "up down   select a card; in the log, scroll",
        "l         logarithmic loss",
        "r s b     raw, smoothed, baseline curve",
        "z         range: all, last 2000, last 200 steps",
        "f         loss fills the place of both plots",
        "g         braille, blocks, ASCII",
        "p space   pause drawing",
        "c         checkpoint now",
        "x         stop the run (saves first)",
        "q d       leave; the run goes on",
        "Ctrl-C    of meopt train: save and stop; again: at once",
        "",
        "bar: W weights G gradients O optimizer A activations",
        "     T teacher S workspace C comm D data",
    };
    int y = r->y;
    for (size_t i = 0; i < sizeof lines / sizeof *lines && y < r->y + r->h; i++)
        put(y++, r->x, r->w, 0, lines[i]);
    if (y < r->y + r->h)
        put(y, r->x, r->w, 0,
            screen_ascii ? "     | highest so far  ! planned peak  (n) stale"
                         : "     ▏ highest so far  ┊ planned peak  (n) stale");
    (void)d;
}

static void draw_footer(const struct dash *d, const struct dash_rect *r)
{
    if (d->asks_to_stop) put(r->y, r->x, r->w, A_REVERSE, "stop the run? it saves first. y/n");
    else if (d->message[0]) put(r->y, r->x, r->w, A_REVERSE, d->message);
    else
        put(r->y, r->x, r->w, paint(PAIR_DIM),
            r->w >= 76
                ? "Tab next  l log  z range  c checkpoint  x stop  p pause  ? help  q leave, the run goes on"
                : "Tab next  x stop  ? help  q leave");
}

void dash_draw(struct dash *d)
{
    int rows, columns;
    getmaxyx(stdscr, rows, columns);
    struct dash_layout l = dash_layout(rows, columns, d->run->card_count, d->tab, d->zoomed);
    erase();
    curs_set(0);
    if (l.too_small) {
        put(0, 0, columns, 0, "too small");
        refresh();
        return;
    }
    draw_header(d, &l.header);
    if (l.cards.h) draw_cards(d, &l);
    if (l.savings.h && d->tab == TAB_MEMORY) draw_memory(d, &l.savings);
    else if (l.savings.h) draw_savings(d, &l.savings);
    if (l.loss.h) draw_loss(d, &l.loss);
    if (l.speed.h) draw_speed(d, &l.speed);
    if (l.log.h && d->tab == TAB_HELP) draw_help(d, &l.log);
    else if (l.log.h) draw_log(d, &l.log);
    draw_footer(d, &l.footer);
    refresh();
}
