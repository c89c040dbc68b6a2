/* The cards on the dashboard: memory by class, other processes, sensor readings and their history, and
 * savings. See dash_draw.h. */
#include "cli/dashboard/dash_internal.h"
#include "cli/terminal/screen.h"
#include "core/base/memory.h"

#include <math.h>
#include <ncurses.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STALE_SECONDS = 5, GROWTH_READINGS = 24 };

static const char class_letters[MEMORY_CLASS_COUNT + 1] =
    "WGOATSCD"; /* weights gradients optimizer activations teacher workspace(S) comm data */

/* ---- one card ---- */

static double ours(const struct follow_card *c)
{
    return c->memory.now_bytes >= 0 ? (double)c->memory.now_bytes : NAN;
}

/* Returns memory that the driver counts in addition to the run's tensors: other processes, the driver,
 * contexts. NAN: unknown. */
static double others(const struct follow_card *c)
{
    double own = isfinite(ours(c)) ? ours(c) : 0;
    return isfinite(c->used_bytes) ? fmax(0, c->used_bytes - own) : NAN;
}

/* Returns the peak of the card's rank; <= 0: unknown. */
static double planned(const struct follow *f, const struct follow_card *c)
{
    return (double)follow_plan(f, c->rank)->peak_bytes;
}

/* Returns the bytes of the whole bar: the card's memory. On the CPU a run may use a thousandth of the
 * memory; then the bar is the planned memory and *card is false. */
static double scale_of(const struct follow *f, const struct follow_card *c, bool *card)
{
    double needs = fmax(fmax((double)c->memory.peak_bytes, planned(f, c)), (double)f->baseline.peak_bytes);
    *card = c->total_bytes > 0 && (c->pci[0] || needs >= c->total_bytes / 20);
    return *card ? c->total_bytes : needs * 1.05;
}

static void draw_bar(const struct follow *f, const struct follow_card *c, int y, int x, int w)
{
    enum { OTHER = MEMORY_CLASS_COUNT, PARTS };
    double parts[PARTS];
    int cells[PARTS], at = x;
    bool card;
    double total = scale_of(f, c, &card), rest = others(c);
    for (int i = 0; i < MEMORY_CLASS_COUNT; i++)
        parts[i] = c->rank >= 0 ? (double)c->memory.class_bytes[i] : 0;
    parts[OTHER] = card && isfinite(rest) ? rest : 0;
    dash_split(parts, PARTS, total, w, cells);
    for (int i = 0; i < PARTS; i++)
        for (int k = 0; k < cells[i]; k++, at++) {
            int pair = i == OTHER ? PAIR_DIM : PAIR_CLASS + i;
            const char letter[2] = {i == OTHER ? 'X' : class_letters[i], 0};
            bool block = screen_colours && !screen_ascii;
            dash_put(y, at, 1, dash_paint(pair), !block ? letter : i == OTHER ? "▒" : "█");
        }
    for (; at < x + w; at++) dash_put(y, at, 1, dash_paint(PAIR_DIM), screen_ascii ? "." : "·");
    if (c->rank < 0) return;
    int mark = dash_mark(planned(f, c), total, w), held = dash_mark((double)c->memory.peak_bytes, total, w);
    if (mark >= 0) dash_put(y, x + mark, 1, A_BOLD, screen_ascii ? "!" : "┊");
    if (held >= 0) dash_put(y, x + held, 1, A_BOLD, screen_ascii ? "|" : "▏");
}

static void reading(char *dst, size_t size, double value, const char *format, double age)
{
    char text[24] = "-";
    if (isfinite(value)) snprintf(text, sizeof text, format, value);
    if (isfinite(value) && age > STALE_SECONDS) snprintf(dst, size, "(%s)", text); /* stale */
    else snprintf(dst, size, "%s", text);
}

/* Writes "15.4G+46.6G/64.0G": own memory, other processes, total. */
static void memory_text(char *dst, size_t size, double own, double rest, double total, bool narrow)
{
    char b1[24], b2[24], b3[24];
    dash_bytes(b3, sizeof b3, isfinite(total) ? total : -1);
    if (narrow || !isfinite(own)) {
        double used = isfinite(own) ? own + (isfinite(rest) ? rest : 0) : rest;
        snprintf(dst, size, "%s/%s", dash_bytes(b1, sizeof b1, isfinite(used) ? used : -1), b3);
    } else if (isfinite(rest)) {
        snprintf(dst, size, "%s+%s/%s", dash_bytes(b1, sizeof b1, own), dash_bytes(b2, sizeof b2, rest), b3);
    } else {
        snprintf(dst, size, "%s/%s", dash_bytes(b1, sizeof b1, own), b3);
    }
}

/* Writes "4711 python 18.2G, 99 Xorg 512M": the other processes that fit; without any, `otherwise`. */
static char *holders_text(char *dst, size_t size, const struct follow_card *c, const char *otherwise)
{
    char bytes[24];
    size_t n = 0;
    snprintf(dst, size, "%s", c->holder_count ? "" : translation(otherwise));
    for (int i = 0; i < c->holder_count && n + 64 < size; i++)
        n += (size_t)snprintf(dst + n, size - n, "%s%d%s%s %s", i ? ", " : "", c->holders[i].pid,
                              c->holders[i].name[0] ? " " : "", c->holders[i].name,
                              dash_bytes(bytes, sizeof bytes, c->holders[i].bytes));
    return dst;
}

/* ---- the lines of cards ---- */

struct columns {
    bool wide, middle;
    int rank, text, bar; /* rank: number and mark */
};

static struct columns columns_of(const struct follow *f, int w)
{
    int places = (f->layout.stages > 1) + (f->layout.tensor > 1);
    struct columns c = {
        .wide = w >= 100, .middle = w >= 60, .rank = (f->rank_count ? 5 : 3) + (places ? 2 + 2 * places : 0)};
    c.text = c.wide ? 60 : c.middle ? 39 : 20;
    c.bar = w - c.rank - c.text - 1;
    return c;
}

struct figures {
    double own, rest, total, busy, temp, power, speed, wait, age;
};

static void draw_figures(const struct columns *col, const struct figures *v, int y, int x, int attributes)
{
    char line[256], memory[80], busy[32], temp[32], power[32], speed[24], wait[24];
    memory_text(memory, sizeof memory, v->own, v->rest, v->total, !col->middle);
    reading(busy, sizeof busy, v->busy, "%.0f%%", v->age);
    reading(temp, sizeof temp, v->temp, screen_ascii ? "%.0fC" : "%.0f°", v->age);
    reading(power, sizeof power, v->power, "%.0fW", v->age);
    dash_number(speed, sizeof speed, v->speed);
    reading(wait, sizeof wait, v->wait, "%.1f%%", 0);
    int degree = (int)strlen(temp) - screen_width(temp); /* printf counts bytes */
    if (col->wide)
        snprintf(line, sizeof line, "%20s %6s %*s %7s %9s %7s", memory, busy, 6 + degree, temp, power, speed,
                 wait);
    else if (col->middle)
        snprintf(line, sizeof line, "%19s %6s %*s %6s", memory, busy, 5 + degree, temp, power);
    else snprintf(line, sizeof line, "%13s %6s", memory, busy);
    dash_put(y, x + col->rank + col->bar + 1, col->text, attributes, line);
}

/* Returns the tokens of a sample; 1: it is an image. */
static double units_of_sample(const struct follow *f)
{
    double tokens = f->last.scores[SCORE_TOKENS_PER_S] / f->last.images_per_s;
    return isfinite(tokens) ? tokens : 1;
}

static struct figures figures_of(const struct follow *f, const struct follow_card *c)
{
    struct figures v = {ours(c), others(c), c->total_bytes, c->busy_percent, c->temp_c, c->power_w,
                        NAN,     NAN,       c->age_s};
    if (c->rank < 0) return v.own = NAN, v;
    v.speed = isfinite(c->images_per_s) ? c->images_per_s : f->card_count == 1 ? f->last.images_per_s : NAN;
    v.speed *= units_of_sample(f);
    if (f->card_count == 1 && f->last.step_ms > 0) v.wait = 100 * f->last.data_wait_ms / f->last.step_ms;
    else v.wait = c->waiting_percent; /* for the other ranks */
    return v;
}

/* Marks a rank next to its number: "<" is the slowest, "?" is silent. */
static void draw_rank_mark(const struct follow *f, const struct follow_card *c, int y, int x)
{
    if (c->silent) dash_put(y, x, 1, A_BOLD | dash_paint(PAIR_BAD), "?");
    else if (c->rank >= 0 && c->rank == f->slowest_rank)
        dash_put(y, x, 1, A_BOLD | dash_paint(PAIR_BAD), "<");
}

static void add(double *sum, double x)
{
    if (isfinite(x)) *sum = (isfinite(*sum) ? *sum : 0) + x;
}

/* Aggregates the run's cards: sums, mean utilization, highest temperature. */
static struct figures sum_of(const struct follow *f)
{
    struct figures v = {NAN, NAN, NAN, NAN, NAN, NAN, f->last.images_per_s * units_of_sample(f), NAN, NAN};
    int busy = 0;
    for (int i = 0; i < f->card_count; i++) {
        const struct follow_card *c = &f->cards[i];
        add(&v.own, ours(c));
        add(&v.rest, others(c));
        add(&v.total, c->total_bytes);
        add(&v.busy, c->busy_percent);
        busy += isfinite(c->busy_percent) ? 1 : 0;
        v.temp = fmax(v.temp, c->temp_c);
        add(&v.power, c->power_w);
        v.age = fmax(v.age, c->age_s);
    }
    if (busy) v.busy /= busy;
    if (f->last.step_ms > 0) v.wait = 100 * f->last.data_wait_ms / f->last.step_ms;
    return v;
}

static void draw_titles(const struct dash *d, const struct columns *col, const struct dash_rect *r)
{
    const struct follow *f = dash_shown(d);
    char line[256], name[200], some[48] = "";
    bool card = true;
    if (f->card_count) scale_of(f, &f->cards[0], &card);
    if (f->rank_count) snprintf(some, sizeof some, _("worst %d of %d: "), f->card_count, f->rank_count);
    snprintf(name, sizeof name, "%s%s%s", some,
             f->card_count && f->cards[0].device[0] ? f->cards[0].device : _("card"),
             card ? "" : _("; bar: of the plan"));
    if (col->wide)
        snprintf(line, sizeof line, "%*s %*s %*s %*s %9s %*s", PAD(20, _("ours+others/total")),
                 PAD(6, _("busy")), PAD(6, _("temp")), PAD(7, _("power")),
                 _(unit_of(f->scored[SCORE_TOKENS_PER_S])->rate), PAD(7, _("wait")));
    else if (col->middle)
        snprintf(line, sizeof line, "%*s %*s %*s %*s", PAD(19, _("ours+others/total")), PAD(6, _("busy")),
                 PAD(5, _("temp")), PAD(6, _("power")));
    else snprintf(line, sizeof line, "%*s %*s", PAD(13, _("used/total")), PAD(6, _("busy")));
    dash_put(r->y, r->x, col->rank + col->bar, dash_paint(PAIR_DIM), name);
    dash_put(r->y, r->x + col->rank + col->bar + 1, col->text, dash_paint(PAIR_DIM), line);
}

/* Draws the line below the worst of many ranks. */
static void draw_many(const struct follow *f, int hidden, int y, const struct dash_rect *r)
{
    char line[256], b1[24], b2[24], b3[24], speed[24];
    int n = 0, size = (int)sizeof line, lost = f->rank_count - f->running_count;
    if (hidden > 0) n += snprintf(line, sizeof line, _("+%d more, "), hidden);
    n += snprintf(line + n, (size_t)(size - n), _("all %d"), f->rank_count);
    if (f->host_count > 0) n += snprintf(line + n, (size_t)(size - n), _(" on %d hosts"), f->host_count);
    if (f->host_count > 0 && lost > 0)
        n += snprintf(line + n, (size_t)(size - n), _(", %d not running"), lost);
    if (f->slowest_rank >= 0)
        n += snprintf(line + n, (size_t)(size - n), _(", slowest: %d"), f->slowest_rank);
    if (isfinite(f->peak_bytes.max))
        n += snprintf(line + n, (size_t)(size - n), _("; peak %s to %s (rank %d), median %s"),
                      dash_bytes(b1, sizeof b1, f->peak_bytes.min),
                      dash_bytes(b2, sizeof b2, f->peak_bytes.max), f->peak_bytes.max_rank,
                      dash_bytes(b3, sizeof b3, f->peak_bytes.median));
    snprintf(line + n, (size_t)(size - n), "; %s %s",
             dash_number(speed, sizeof speed, f->last.images_per_s * units_of_sample(f)),
             units_of_sample(f) > 1 ? "tokens/s" : "images/s");
    dash_put(y, r->x, r->w, A_BOLD, line);
}

void dash_cards(struct dash *d, const struct dash_layout *l)
{
    const struct follow *f = dash_shown(d);
    const struct dash_rect *r = &l->cards;
    struct columns col = columns_of(f, r->w);
    char line[64];
    int count = f->card_count + f->other_count, y = r->y, rows = l->card_rows;
    bool sum = count > 1 && rows > 1;
    if (sum) rows--;
    if (d->selected >= count) d->selected = count > 0 ? count - 1 : 0;
    if (d->top > count - rows) d->top = count - rows;
    if (d->selected < d->top) d->top = d->selected;
    if (d->selected >= d->top + rows) d->top = d->selected - rows + 1;
    if (d->top < 0) d->top = 0;
    if (l->card_titles) draw_titles(d, &col, &(struct dash_rect){y++, r->x, 1, r->w});
    if (count == 0) {
        dash_put(y, r->x, r->w, dash_paint(PAIR_DIM), "no step yet");
        return;
    }
    for (int i = d->top; i < count && i < d->top + rows; i++, y++) {
        const struct follow_card *c = i < f->card_count ? &f->cards[i] : &f->others[i - f->card_count];
        struct figures v = figures_of(f, c);
        int dim = c->rank < 0 ? dash_paint(PAIR_DIM) | A_DIM : 0;
        if (c->rank < 0) snprintf(line, sizeof line, "-");
        else if (f->layout.stages > 1 && f->layout.tensor > 1)
            snprintf(line, sizeof line, "%d s%dt%d", c->rank, comm_place_of(f->layout, c->rank).stage,
                     comm_place_of(f->layout, c->rank).tensor);
        else if (f->layout.stages > 1)
            snprintf(line, sizeof line, "%d s%d", c->rank, comm_place_of(f->layout, c->rank).stage);
        else if (f->layout.tensor > 1)
            snprintf(line, sizeof line, "%d t%d", c->rank, comm_place_of(f->layout, c->rank).tensor);
        else snprintf(line, sizeof line, "%d", c->rank);
        dash_put(y, r->x, col.rank - 1, i == d->selected && count > 1 ? (int)A_REVERSE : dim, line);
        draw_rank_mark(f, c, y, r->x + screen_width(line));
        draw_bar(f, c, y, r->x + col.rank, col.bar);
        draw_figures(&col, &v, y, r->x, dim);
    }
    if (!sum) return;
    int hidden = count - rows;
    if (f->rank_count) {
        draw_many(f, hidden, y, r);
        return;
    }
    if (hidden > 0) snprintf(line, sizeof line, _("+%d more"), hidden);
    else line[0] = 0;
    dash_put(y, r->x, 3 + col.bar, A_BOLD, line);
    int slow = f->slowest_rank;
    if (slow < 0) snprintf(line, sizeof line, _("all %d of the run"), f->card_count);
    else snprintf(line, sizeof line, _("all %d, slowest: %d"), f->card_count, slow);
    if (3 + col.bar >= 30) dash_put(y, r->x + (hidden > 0 ? 12 : 3), col.bar, A_BOLD, line);
    struct figures v = sum_of(f);
    draw_figures(&col, &v, y, r->x, A_BOLD);
}

/* ---- savings and warnings ---- */

static const struct follow_card *shown_card(const struct dash *d)
{
    const struct follow *f = dash_shown(d);
    if (d->selected < f->card_count) return &f->cards[d->selected];
    return f->card_count ? &f->cards[0] : NULL;
}

/* Writes a warning if the planned peak will not fit next to other processes, or if memory keeps growing.
 * Returns whether there is one. */
static bool forecast(const struct follow *f, char *dst, size_t size)
{
    char b1[24], b2[24], t1[24];
    if (run_status_over(&f->status) || f->replay) return false;
    for (int i = 0; i < f->card_count; i++) {
        const struct follow_card *c = &f->cards[i];
        double peak = fmax((double)c->memory.peak_bytes, planned(f, c)), rest = others(c),
               space = c->total_bytes - rest - peak;
        if (!c->pci[0] || !isfinite(space) || !(peak > 0) || rest <= 0 || ours(c) >= peak) continue;
        if (space < 0) {
            char who[160];
            holders_text(who, sizeof who, c, "");
            snprintf(dst, size, _("card %d: others hold %s, the planned peak of %s will not fit%s%s"),
                     c->rank, dash_bytes(b1, sizeof b1, rest), dash_bytes(b2, sizeof b2, peak),
                     who[0] ? ": " : "", who);
            return true;
        }
        int n = f->reading_count < GROWTH_READINGS ? f->reading_count : GROWTH_READINGS,
            last = f->reading_count - 1;
        if (n < 3 || !c->readings) continue;
        double seconds = f->reading_times[last] - f->reading_times[last - n + 1],
               grown =
                   (double)c->readings[last][READING_USED] - (double)c->readings[last - n + 1][READING_USED],
               until = grown > 0 && seconds > 0 ? space / (grown / seconds) : NAN;
        if (!(until < 3600) || !(grown > c->total_bytes / 200)) continue;
        snprintf(dst, size, _("card %d: memory grows by %s in %s; out of memory in %s"), c->rank,
                 dash_bytes(b1, sizeof b1, grown), dash_duration(b2, sizeof b2, seconds),
                 dash_duration(t1, sizeof t1, until));
        return true;
    }
    return false;
}

/* Writes "; rank 5: stage 1 of replica 2; bubble 12.1% (planned 9.3%)". */
static int place_text(char *dst, size_t size, const struct follow *f, const struct follow_card *c)
{
    char now[24], planned_share[24];
    reading(now, sizeof now, 100 * f->bubble, "%.1f%%", 0);
    reading(planned_share, sizeof planned_share, 100 * f->planned_bubble, "%.1f%%", 0);
    struct comm_place at = comm_place_of(f->layout, c && c->rank > 0 ? c->rank : 0);
    int n = 0;
    if (c && c->rank >= 0 && f->layout.tensor > 1 && f->layout.stages > 1)
        n = snprintf(dst, size, _("; rank %d: tensor %d of stage %d of replica %d"), c->rank, at.tensor,
                     at.stage, at.replica);
    else if (c && c->rank >= 0 && f->layout.tensor > 1)
        n = snprintf(dst, size, _("; rank %d: tensor %d of replica %d"), c->rank, at.tensor, at.replica);
    else if (c && c->rank >= 0)
        n = snprintf(dst, size, _("; rank %d: stage %d of replica %d"), c->rank, at.stage, at.replica);
    if (f->layout.stages <= 1) return n;
    return n + snprintf(dst + n, size - (size_t)n, _("; bubble %s (planned %s)"), now, planned_share);
}

/* Draws the nonempty classes by name or letter. Returns the number of columns. */
static int put_classes(const struct follow_card *c, int y, int left, int w, bool names, bool draw)
{
    char line[64], b[24];
    int x = left;
    for (int i = 0; i < MEMORY_CLASS_COUNT; i++) {
        const char letter[2] = {class_letters[i], 0};
        if (c->memory.class_bytes[i] <= 0) continue;
        dash_bytes(b, sizeof b, (double)c->memory.class_bytes[i]);
        snprintf(line, sizeof line, "%s%s%s ", names ? _(memory_class_names[i]) : "", names ? " " : "", b);
        if (draw && x < left + w) dash_put(y, x, 1, dash_paint(PAIR_CLASS + i) | A_BOLD, letter);
        if (draw && x + 2 < left + w) dash_put(y, x + 2, left + w - x - 2, 0, line);
        x += 3 + screen_width(line);
    }
    return x - left - 2;
}

void dash_savings(const struct dash *d, const struct dash_rect *r)
{
    const struct follow *f = dash_shown(d);
    const struct follow_card *c = shown_card(d);
    char line[300], b1[24], b2[24];
    const struct run_memory *plan = follow_plan(f, c ? c->rank : -1);
    int64_t peak = c && c->memory.peak_bytes > 0 ? c->memory.peak_bytes : plan->peak_bytes,
            without = f->baseline.peak_bytes;
    bool measured = c && c->memory.peak_bytes > 0, alarm = forecast(f, line, sizeof line);
    int y = r->y;
    if (alarm) dash_put(y++, r->x, r->w, A_BOLD | dash_paint(PAIR_BAD), line);
    if (peak <= 0 || y >= r->y + r->h) return;
    int n = snprintf(line, sizeof line, _("peak %s%s"), dash_bytes(b1, sizeof b1, (double)peak),
                     measured ? "" : " planned");
    if (measured && plan->peak_bytes > 0 && r->w >= 60)
        n += snprintf(line + n, sizeof line - (size_t)n, _(", planned %s"),
                      dash_bytes(b2, sizeof b2, (double)plan->peak_bytes));
    if (comm_layout_ranks(f->layout) > 1)
        n += place_text(line + n, sizeof line - (size_t)n, f, r->w >= 100 ? c : NULL);
    if (without > 0 && f->use_meopt)
        snprintf(line + n, sizeof line - (size_t)n, _(", without meopt %s: %+.0f%%"),
                 dash_bytes(b2, sizeof b2, (double)without), 100.0 * ((double)peak / (double)without - 1));
    else if (without > 0) snprintf(line + n, sizeof line - (size_t)n, _(", meopt is off"));
    dash_put(y++, r->x, r->w, A_BOLD | dash_paint(PAIR_GOOD), line);
    if (y >= r->y + r->h || !c) return;
    bool names = put_classes(c, y, r->x, r->w, true, false) <= r->w;
    put_classes(c, y, r->x, r->w, names, true);
}

/* ---- memory, and the history of a card ---- */

static void draw_history(const struct dash *d, const struct follow_card *c, enum follow_reading which,
                         const struct dash_rect *r)
{
    static const struct {
        const char *name, *unit;
        int pair;
        double top; /* minimum of the axis' upper end */
    } kinds[READING_COUNT] = {[READING_USED] = {N_("used memory"), "GiB", PAIR_RAW, 0},
                              [READING_BUSY] = {N_("busy"), "%", PAIR_GOOD, 100},
                              [READING_TEMP] = {N_("temperature"), "C", PAIR_BAD, 0},
                              [READING_POWER] = {N_("power"), "W", PAIR_SMOOTH, 0}};
    const struct follow *f = d->run;
    const int pairs[4] = {0, kinds[which].pair, 0, 0};
    int n = c->readings ? f->reading_count : 0;
    double *x = xcalloc((size_t)n + 1, sizeof *x), *y = xcalloc((size_t)n + 1, sizeof *y);
    double x_min = INFINITY, x_max = -INFINITY, low = INFINITY, high = -INFINITY, last = NAN;
    char line[96], number[24];
    struct dash_plot p;
    for (int i = 0; i < n; i++) {
        x[i] = (f->reading_times[i] - f->reading_times[0]) / 60;
        y[i] = (double)c->readings[i][which] / (which == READING_USED ? 1073741824.0 : 1);
        if (isfinite(y[i])) last = y[i];
    }
    dash_range(x, n, &x_min, &x_max);
    dash_range(y, n, &low, &high);
    if (isfinite(high)) high = fmax(high, kinds[which].top);
    if (isfinite(low) && which != READING_TEMP) low = 0;
    dash_plot_begin(&p, r->w - PLOT_LABELS, r->h - 2, d->glyphs, x_min, x_max, low, high, false);
    dash_plot_curve(&p, 1, x, y, n);
    snprintf(line, sizeof line, _("%s, %s, by minute  %s"), _(kinds[which].name), kinds[which].unit,
             dash_number(number, sizeof number, last));
    dash_put(r->y, r->x, r->w, A_BOLD, line);
    dash_plot_draw(r, &p, pairs);
    dash_plot_end(&p);
    free(x);
    free(y);
}

/* Draws the hosts of many ranks, the worst first. */
static void draw_hosts(const struct follow *f, const struct dash_rect *r)
{
    char line[160], peak[24];
    snprintf(line, sizeof line, "%*s %*s %*s %*s %*s", PAD(-24, _("host")), PAD(5, _("ranks")),
             PAD(7, _("running")), PAD(10, _("first rank")), PAD(9, _("peak")));
    if (r->h > 1) dash_put(r->y, r->x, r->w, dash_paint(PAIR_DIM), line);
    for (int i = 0; i < f->hosts_listed && i + 1 < r->h; i++) {
        const struct follow_host *h = &f->hosts[i];
        snprintf(line, sizeof line, "%-24.24s %5d %7d %10d %9s", h->name[0] ? h->name : _("not joined"),
                 h->ranks, h->running, h->first_rank, dash_bytes(peak, sizeof peak, (double)h->peak_bytes));
        dash_put(r->y + 1 + i, r->x, r->w, h->running < h->ranks ? A_BOLD | dash_paint(PAIR_BAD) : 0, line);
    }
}

static void draw_histories(const struct dash *d, const struct follow_card *c, const struct dash_rect *r)
{
    int columns = r->w >= 60 ? 2 : 1, rows = r->h / (columns == 2 ? 2 : 4), w = r->w / columns;
    if (rows < 5) rows = r->h, columns = r->w >= 60 ? 2 : 1;
    int shown = r->h / rows * columns;
    if (!c || !c->readings || r->h < 5) return;
    static const enum follow_reading order[] = {READING_USED, READING_BUSY, READING_TEMP, READING_POWER};
    for (int i = 0; i < READING_COUNT && i < shown; i++)
        draw_history(d, c, order[i],
                     &(struct dash_rect){r->y + i / columns * rows, r->x + i % columns * w, rows, w - 1});
}

/* Writes "in files     teacher 2.12G, optimizer 0.6G": memory outside the card. Returns false if there is
 * none. */
static bool places_line(char *line, size_t size, const struct run_memory *m, enum memory_place place)
{
    size_t n = (size_t)snprintf(line, size, "%*s",
                                PAD(-12, place == PLACE_HOST ? _("in the host") : _("in files"))),
           begin = n;
    char bytes[24];
    for (int i = 0; i < MEMORY_CLASS_COUNT && n < size; i++)
        if (m->offloaded_bytes[place][i] > 0)
            n += (size_t)snprintf(line + n, size - n, "%s %9s %s", n > begin ? "," : "",
                                  dash_bytes(bytes, sizeof bytes, (double)m->offloaded_bytes[place][i]),
                                  _(memory_class_names[i]));
    return n > begin;
}

/* Writes "waited       for weights 3.1 ms, for states 0.2 ms of the last step". Returns false if all data
 * is on the card. */
static bool waits_line(char *line, size_t size, const struct metric_line *last)
{
    bool weights = last->step >= 0 && isfinite(last->stream_wait_ms),
         states = last->step >= 0 && isfinite(last->offload_wait_ms);
    size_t n = (size_t)snprintf(line, size, "%*s", PAD(-12, _("waited")));
    if (weights) n += (size_t)snprintf(line + n, size - n, _(" for weights %.1f ms"), last->stream_wait_ms);
    if (states)
        n += (size_t)snprintf(line + n, size - n, _("%s for states %.1f ms"), weights ? "," : "",
                              last->offload_wait_ms);
    snprintf(line + n, size - n, _(" of the last step"));
    return weights || states;
}

void dash_memory(const struct dash *d, const struct dash_rect *r)
{
    const struct follow *f = dash_shown(d);
    const struct follow_card *c = shown_card(d);
    const struct run_memory *plan = follow_plan(f, c ? c->rank : -1);
    char line[200], now[24], own[24], base[24];
    int y = r->y;
    struct dash_rect first = {r->y, r->x, 1, r->w};
    dash_savings(d, &first);
    y += 2;
    if (y < r->y + r->h) {
        snprintf(line, sizeof line, "   %*s %*s %*s %*s", PAD(-12, _("class")), PAD(9, _("peak")),
                 PAD(9, _("planned")), PAD(14, _("without meopt")));
        dash_put(y++, r->x, r->w, dash_paint(PAIR_DIM), line);
    }
    for (int i = 0; i < MEMORY_CLASS_COUNT && y < r->y + r->h; i++, y++) {
        const char letter[2] = {class_letters[i], 0};
        dash_put(y, r->x + 1, 1, dash_paint(PAIR_CLASS + i) | A_BOLD, letter);
        snprintf(line, sizeof line, "%*s %9s %9s %14s", PAD(-12, _(memory_class_names[i])),
                 dash_bytes(now, sizeof now, c ? (double)c->memory.class_bytes[i] : -1),
                 dash_bytes(own, sizeof own, plan->peak_bytes > 0 ? (double)plan->class_bytes[i] : -1),
                 dash_bytes(base, sizeof base,
                            f->baseline.peak_bytes > 0 ? (double)f->baseline.class_bytes[i] : -1));
        dash_put(y, r->x + 3, r->w - 3, 0, line);
    }
    for (int place = 0; c && place < PLACE_COUNT && y < r->y + r->h; place++)
        if (places_line(line, sizeof line, &c->memory, (enum memory_place)place))
            dash_put(y++, r->x + 3, r->w - 3, dash_paint(PAIR_DIM), line);
    if (y < r->y + r->h && waits_line(line, sizeof line, &f->last))
        dash_put(y++, r->x + 3, r->w - 3, dash_paint(PAIR_DIM), line);
    if (c && isfinite(others(c)) && y < r->y + r->h) {
        dash_put(y, r->x + 1, 1, dash_paint(PAIR_DIM) | A_BOLD, "X");
        char who[160];
        snprintf(line, sizeof line, _("%*s %9s  now: %s"), PAD(-12, _("others")),
                 dash_bytes(now, sizeof now, others(c)),
                 holders_text(who, sizeof who, c, N_("other processes, the driver, contexts")));
        dash_put(y++, r->x + 3, r->w - 3, 0, line);
    }
    const struct follow_card *history =
        d->run->card_count ? &d->run->cards[d->selected < d->run->card_count ? d->selected : 0] : NULL;
    struct dash_rect rest = {y + 1, r->x, r->y + r->h - y - 1, r->w};
    if (f->hosts_listed) draw_hosts(f, &rest);
    else draw_histories(d, history, &rest);
}
