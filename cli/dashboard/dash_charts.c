/* Charts of all metrics of a run: a single one or pages of a grid, over steps, epochs or time, with a
 * cursor. See dash_draw.h. */
#include "cli/dashboard/dash_internal.h"
#include "cli/terminal/screen.h"
#include "core/base/memory.h"

#include <math.h>
#include <ncurses.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SERIES_RAW = 1, SERIES_SMOOTH, SERIES_BASELINE, SERIES_COUNT = SERIES_BASELINE + DASH_BASELINES };

const double dash_weights[DASH_SMOOTHING] = {0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998};
enum { CHART_WIDTH = 42, CHART_HEIGHT = 7 }; /* minimum */

struct kind {
    const char *name, *unit;
    bool smooth; /* draw a smoothed curve */
    int pair;
};

/* Returns how a chart is drawn. */
static struct kind kind_of(int which)
{
    static const struct kind kinds[CHART_COUNT] = {
        [METRIC_LOSS] = {N_("loss"), "", true, PAIR_RAW},
        [METRIC_GRAD_NORM] = {N_("grad norm"), "", true, PAIR_RAW},
        [METRIC_LR] = {"lr", "", false, PAIR_RAW},
        [METRIC_IMAGES_PER_S] = {"images/s", "", false, PAIR_SPEED},
        [METRIC_STEP_MS] = {N_("step time"), " ms", false, PAIR_SPEED},
        [METRIC_DATA_WAIT_MS] = {N_("wait for data"), " ms", false, PAIR_BAD},
        [CHART_CARDS + READING_USED] = {N_("used memory"), " GiB", false, PAIR_RAW},
        [CHART_CARDS + READING_BUSY] = {N_("busy"), "%", false, PAIR_GOOD},
        [CHART_CARDS + READING_TEMP] = {N_("temperature"), " C", false, PAIR_BAD},
        [CHART_CARDS + READING_POWER] = {N_("power"), " W", false, PAIR_SMOOTH},
    };
    const struct score_row *score = follow_score((enum follow_metric)which);
    if (!score) return kinds[which];
    return (struct kind){score->label, score->percent ? "%" : "", !score->rare && !score->speed,
                         score->speed  ? PAIR_SPEED
                         : score->rare ? PAIR_GOOD
                                       : PAIR_RAW};
}

/* ---- what is shown ---- */

struct curve {
    double *step, *x, *y; /* x: along the axis */
    int n, capacity;
};

static void curve_free(struct curve *c)
{
    free(c->step);
    free(c->x);
    free(c->y);
}

static struct curve curve_new(int64_t capacity)
{
    size_t n = (size_t)capacity + 1;
    return (struct curve){xcalloc(n, sizeof(double)), xcalloc(n, sizeof(double)), xcalloc(n, sizeof(double)),
                          0, (int)capacity};
}

static double along(const struct dash *d, const struct follow *f, double step, double seconds)
{
    if (d->axis == AXIS_TIME) return seconds / 60;
    return d->axis == AXIS_EPOCH && f->epoch_steps > 0 ? step / (double)f->epoch_steps : step;
}

static void curve_add(struct curve *c, double step, double x, double y)
{
    c->step[c->n] = step;
    c->x[c->n] = x;
    c->y[c->n++] = y;
}

/* Computes the first and the last visible step. */
static void window_of(const struct dash *d, double *from, double *to)
{
    double newest = (double)d->run->last.step;
    *to = fmin(d->end, newest);
    *from = isfinite(d->steps) ? fmax(*to - d->steps, 0) : -INFINITY;
}

/* Adds a value of a step; lines without an evaluation are no gaps in its curve. */
static void curve_add_value(struct curve *c, double step, double x, double y, enum follow_metric metric)
{
    const struct score_row *score = follow_score(metric);
    if (!score || !score->rare || !isnan(y)) curve_add(c, step, x, y);
}

/* Uses the ring of recent steps if it covers the range, otherwise the points of the whole run. */
static struct curve metric_curve(const struct dash *d, const struct follow *f, enum follow_metric metric,
                                 double from, double to)
{
    int64_t kept = f->recent_count < FOLLOW_RECENT ? f->recent_count : FOLLOW_RECENT,
            first = f->recent_count - kept;
    bool each = kept && (double)f->recent[first % FOLLOW_RECENT].step <= from;
    struct curve c = curve_new(each ? kept : f->point_count);
    double seconds = f->seconds;
    if (each) {
        for (int64_t i = f->recent_count - 1; i > first; i--) {
            double ms = f->recent[i % FOLLOW_RECENT].step_ms;
            seconds -= isfinite(ms) ? ms * 1e-3 : 0;
        }
        for (int64_t i = first; i < f->recent_count; i++) {
            const struct metric_line *l = &f->recent[i % FOLLOW_RECENT];
            double step = (double)l->step;
            if (i > first && isfinite(l->step_ms)) seconds += l->step_ms * 1e-3;
            if (step >= from && step <= to)
                curve_add_value(&c, step, along(d, f, step, seconds), follow_metric(l, metric), metric);
        }
        return c;
    }
    for (int i = 0; i < f->point_count; i++) {
        const struct follow_point *p = &f->points[i];
        double step = p->lines > 1 ? (p->first_step + p->last_step) / 2 : p->last_step;
        if (p->last_step >= from && p->first_step <= to)
            curve_add_value(&c, step, along(d, f, step, p->seconds), p->values[metric], metric);
    }
    return c;
}

static struct curve reading_curve(const struct dash *d, enum follow_reading which, double from, double to)
{
    const struct follow *f = d->run;
    const struct follow_card *card = &f->cards[d->selected < f->card_count ? d->selected : 0];
    int n = f->card_count && card->readings ? f->reading_count : 0;
    struct curve c = curve_new(n);
    for (int i = 0; i < n; i++) {
        double step = f->reading_steps[i], y = (double)card->readings[i][which];
        if (step < from || step > to) continue;
        curve_add(&c, step, along(d, f, step, f->reading_times[i] - f->reading_times[0]),
                  which == READING_USED ? y / 1073741824.0 : y);
    }
    return c;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Computes the range of y. If outliers would take two thirds of it, the range is the 1st to the 99th
 * percentile. */
static int y_range(const struct dash *d, const struct curve *c, double *low, double *high)
{
    double *sorted = xcalloc((size_t)c->n + 1, sizeof *sorted);
    int n = 0, cut = 0;
    for (int i = 0; i < c->n; i++)
        if (isfinite(c->y[i])) sorted[n++] = c->y[i];
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    if (n) {
        *low = fmin(*low, sorted[0]);
        *high = fmax(*high, sorted[n - 1]);
    }
    if (n >= 50 && !d->outliers && !d->log_scale) {
        double a = sorted[n / 100], b = sorted[n - 1 - n / 100], pad = (b - a) * 0.05;
        if (b > a && sorted[n - 1] - sorted[0] > 3 * (b - a)) {
            *low = fmax(a - pad, sorted[0]);
            *high = fmin(b + pad, sorted[n - 1]);
            for (int i = 0; i < n; i++) cut += sorted[i] < *low || sorted[i] > *high;
        }
    }
    free(sorted);
    return cut;
}

static int nearest(const struct curve *c, double step)
{
    int best = -1;
    for (int i = 0; i < c->n; i++)
        if (isfinite(c->y[i]) && (best < 0 || fabs(c->step[i] - step) < fabs(c->step[best] - step))) best = i;
    return best;
}

/* ---- drawing ---- */

static const char *const axis_names[AXIS_COUNT] = {N_("step"), N_("epoch"), N_("minutes of training")};

/* Draws the cursor line, under the curves. */
static void draw_cursor(const struct dash *d, const struct dash_rect *r, const struct dash_plot *p, double x)
{
    if (p->empty || !(x >= p->x_min && x <= p->x_max) || p->w < 2) return;
    int at = (int)lround((x - p->x_min) / (p->x_max - p->x_min) * (p->w - 1));
    for (int y = 0; y < p->h; y++)
        if (!p->cells[(size_t)y * (size_t)p->w + (size_t)at])
            dash_put(r->y + 1 + y, r->x + PLOT_LABELS + at, 1, dash_paint(PAIR_DIM),
                     d->glyphs == GLYPHS_ASCII ? "|" : "│");
}

static int marks_from(const struct follow *f)
{
    return f->mark_count > FOLLOW_MARKS ? f->mark_count - FOLLOW_MARKS : 0;
}

/* Draws events (change, resume, lost rank): a dotted line under the curves and a mark on the axis. */
static void draw_marks(const struct dash *d, const struct dash_rect *r, const struct dash_plot *p,
                       const struct curve *c)
{
    const struct follow *f = d->run;
    for (int i = marks_from(f); i < f->mark_count; i++) {
        double step = f->marks[i % FOLLOW_MARKS].step;
        int at = nearest(c, step);
        if (at < 0 || step < c->step[0] || step > c->step[c->n - 1] || p->empty || p->w < 2) continue;
        int x = (int)lround((c->x[at] - p->x_min) / (p->x_max - p->x_min) * (p->w - 1));
        for (int y = 0; y < p->h; y += 2)
            if (!p->cells[(size_t)y * (size_t)p->w + (size_t)x])
                dash_put(r->y + 1 + y, r->x + PLOT_LABELS + x, 1, dash_paint(PAIR_BAD),
                         d->glyphs == GLYPHS_ASCII ? ":" : "┊");
        dash_put(r->y + 1 + p->h, r->x + PLOT_LABELS + x, 1, dash_paint(PAIR_BAD), "^");
    }
}

/* Returns the event at the cursor, within 2 % of the visible range; NULL: none. */
static const char *marked_at(const struct dash *d, const struct curve *c)
{
    const struct follow *f = d->run;
    const char *text = NULL;
    double best = c->n ? fmax(1, (c->step[c->n - 1] - c->step[0]) / 50) : 0;
    for (int i = marks_from(f); i < f->mark_count; i++) {
        double away = fabs(f->marks[i % FOLLOW_MARKS].step - d->cursor);
        if (away > best) continue;
        best = away;
        text = f->marks[i % FOLLOW_MARKS].text;
    }
    return text;
}

/* Draws a legend entry in the colour of its curve, if it fits. Returns the x of the next one. */
static int legend(const struct dash_rect *r, int x, int pair, const char *word)
{
    int w = screen_width(word);
    if (x + w > r->x + r->w) return x;
    dash_put(r->y, x, w, dash_paint(pair), word);
    return x + w + 1;
}

/* Draws the title: name, value at the cursor or now, range and legend. */
static void draw_title(const struct dash *d, int which, const struct dash_rect *r, const struct curve *c,
                       const struct curve *base, int cut, bool log, bool selected)
{
    char line[400], number[24], name[64];
    int at = isfinite(d->cursor) ? nearest(c, d->cursor) : -1;
    for (int i = c->n - 1; at < 0 && i >= 0; i--)
        if (isfinite(c->y[i])) at = i;
    struct kind kind = kind_of(which);
    int n = snprintf(line, sizeof line, "%s %s%s", _(kind.name),
                     dash_number(number, sizeof number, at < 0 ? NAN : c->y[at]), kind.unit);
    if (isfinite(d->cursor) && at >= 0)
        n += snprintf(line + n, sizeof line - (size_t)n, " @%.0f", c->step[at]);
    const char *mark = isfinite(d->cursor) && which == METRIC_LOSS ? marked_at(d, c) : NULL;
    if (mark) n += snprintf(line + n, sizeof line - (size_t)n, ", %s", mark);
    for (int i = 0; i < d->baseline_count && isfinite(d->cursor) && base[i].n; i++) {
        int b = nearest(&base[i], d->cursor);
        if (b < 0) continue;
        name_printable(name, sizeof name, d->baseline_count > 1 ? dash_baseline_name(d, i) : _("baseline"));
        n += snprintf(line + n, sizeof line - (size_t)n, ", %.24s %s", name,
                      dash_number(number, sizeof number, base[i].y[b]));
    }
    if (which == METRIC_LOSS && !isfinite(d->cursor) && isfinite(d->run->best_loss))
        n += snprintf(line + n, sizeof line - (size_t)n, _("  best %s"),
                      dash_number(number, sizeof number, d->run->best_loss));
    double from, to;
    window_of(d, &from, &to);
    if (which == METRIC_LOSS && isfinite(d->steps))
        n += snprintf(line + n, sizeof line - (size_t)n, _(", steps %.0f to %.0f"), from, to);
    if (log) n += snprintf(line + n, sizeof line - (size_t)n, _(", log"));
    if (cut)
        n += snprintf(line + n, sizeof line - (size_t)n, _(", %d outlier%s cut"), cut, cut == 1 ? "" : "s");
    dash_put(r->y, r->x, r->w, selected ? (int)A_REVERSE : (int)A_BOLD, line);
    if (which != METRIC_LOSS) return;
    int x = r->x + screen_width(line) + 2;
    if (d->raw) x = legend(r, x, PAIR_RAW, _("raw"));
    if (d->smoothing > 0) x = legend(r, x, PAIR_SMOOTH, _("smooth"));
    for (int i = 0; i < d->baseline_count; i++) {
        name_printable(name, sizeof name, d->baseline_count > 1 ? dash_baseline_name(d, i) : _("baseline"));
        x = legend(r, x, PAIR_BASELINE + i, name);
    }
}

void dash_chart(const struct dash *d, int which, const struct dash_rect *r, bool selected)
{
    struct kind kind = kind_of(which);
    int pairs[SERIES_COUNT] = {[SERIES_RAW] = kind.pair, [SERIES_SMOOTH] = PAIR_SMOOTH};
    for (int i = 0; i < DASH_BASELINES; i++) pairs[SERIES_BASELINE + i] = PAIR_BASELINE + i;
    double from, to, x_min = INFINITY, x_max = -INFINITY, low = INFINITY, high = -INFINITY;
    window_of(d, &from, &to);
    bool metric = which < CHART_CARDS, smooths = kind.smooth && d->smoothing > 0;
    struct curve c = metric ? metric_curve(d, d->run, (enum follow_metric)which, from, to)
                            : reading_curve(d, (enum follow_reading)(which - CHART_CARDS), from, to),
                 base[DASH_BASELINES] = {0};
    double *smooth = xcalloc((size_t)c.n + 1, sizeof *smooth);
    struct dash_plot p;
    dash_smooth(c.y, smooth, c.n, dash_weights[d->smoothing]);
    dash_range(c.x, c.n, &x_min, &x_max);
    int cut = 0;
    if (d->raw || !smooths) cut = y_range(d, &c, &low, &high);
    else dash_range(smooth, c.n, &low, &high);
    for (int k = 0; k < d->baseline_count && metric; k++) {
        base[k] = metric_curve(d, d->baselines[k], (enum follow_metric)which, from, to);
        for (int i = 0; i < base[k].n; i++)
            if (base[k].x[i] < x_min || base[k].x[i] > x_max)
                base[k].y[i] = NAN; /* only for the steps that this run has reached */
        if (!cut) dash_range(base[k].y, base[k].n, &low, &high);
    }
    dash_plot_begin(&p, r->w - PLOT_LABELS, r->h - 2, d->glyphs, x_min, x_max, low, high, d->log_scale);
    if (d->raw || !smooths) dash_plot_curve(&p, SERIES_RAW, c.x, c.y, c.n);
    for (int k = 0; k < DASH_BASELINES; k++)
        if (base[k].n) dash_plot_curve(&p, SERIES_BASELINE + k, base[k].x, base[k].y, base[k].n);
    if (smooths) dash_plot_curve(&p, SERIES_SMOOTH, c.x, smooth, c.n);
    draw_title(d, which, r, &c, base, cut, p.log, selected);
    dash_plot_draw(r, &p, pairs);
    if (c.n) draw_marks(d, r, &p, &c);
    if (isfinite(d->cursor)) {
        int at = nearest(&c, d->cursor);
        if (at >= 0) draw_cursor(d, r, &p, c.x[at]);
    }
    dash_plot_end(&p);
    curve_free(&c);
    for (int k = 0; k < DASH_BASELINES; k++) curve_free(&base[k]);
    free(smooth);
}

/* Lists the charts with data, and returns their number. */
static int list_charts(const struct dash *d, int charts[CHART_COUNT])
{
    const struct follow *f = d->run;
    int count = 0, all = f->card_count && f->cards[0].readings ? CHART_COUNT : METRIC_COUNT;
    for (int which = 0; which < all; which++) {
        const struct score_row *score = follow_score((enum follow_metric)which);
        bool of_images = which == METRIC_IMAGES_PER_S && f->scored[SCORE_TOKENS_PER_S];
        if (!of_images && (!score || f->scored[score - score_rows])) charts[count++] = which;
    }
    return count;
}

void dash_charts(struct dash *d, const struct dash_rect *r)
{
    int charts[CHART_COUNT], count = list_charts(d, charts), columns = r->w / CHART_WIDTH,
                             rows = (r->h - 1) / CHART_HEIGHT;
    char line[160];
    if (columns < 1 || d->zoomed) columns = 1;
    if (rows < 1 || d->zoomed) rows = 1;
    if (columns > 4) columns = 4;
    while (rows > 1 && (rows - 1) * columns >= count) rows--;
    if (d->chart >= count) d->chart = count - 1;
    d->charts_at_once = rows * columns;
    int page = d->chart / d->charts_at_once, pages = (count + d->charts_at_once - 1) / d->charts_at_once;
    snprintf(line, sizeof line, _("charts %d to %d of %d%s, by %s"), page * d->charts_at_once + 1,
             page * d->charts_at_once + d->charts_at_once < count
                 ? page * d->charts_at_once + d->charts_at_once
                 : count,
             count, pages > 1 ? " (PgDn, PgUp)" : "",
             d->axis == AXIS_EPOCH && d->run->epoch_steps <= 0 ? _(axis_names[AXIS_STEP])
                                                               : _(axis_names[d->axis]));
    size_t n = strlen(line);
    if (d->smoothing > 0)
        snprintf(line + n, sizeof line - n, _(", smoothed by %.3g"), dash_weights[d->smoothing]);
    dash_put(r->y, r->x, r->w, dash_paint(PAIR_DIM), line);
    int x = r->x + screen_width(line) + 2;
    for (int i = 0; i < d->baseline_count; i++) {
        char name[64];
        x = legend(r, x, PAIR_BASELINE + i, name_printable(name, sizeof name, dash_baseline_name(d, i)));
    }
    int w = r->w / columns, h = (r->h - 1) / rows;
    for (int i = 0; i < d->charts_at_once && page * d->charts_at_once + i < count; i++) {
        int at = page * d->charts_at_once + i;
        dash_chart(
            d, charts[at],
            &(struct dash_rect){r->y + 1 + i / columns * h, r->x + i % columns * w, h, w - (columns > 1)},
            at == d->chart);
    }
}

/* ---- keys ---- */

static void zoom(struct dash *d, double by)
{
    double from, to, newest = (double)d->run->last.step;
    window_of(d, &from, &to);
    if (!isfinite(from)) from = 0;
    double middle = isfinite(d->cursor) ? d->cursor : to, width = (to - from) * by;
    if (width >= newest) {
        d->steps = d->end = INFINITY;
        return;
    }
    d->steps = fmax(width, 10);
    d->end = middle + d->steps / 2 >= newest ? INFINITY : fmax(middle + d->steps / 2, d->steps);
}

static void pan(struct dash *d, double by)
{
    double from, to, newest = (double)d->run->last.step;
    window_of(d, &from, &to);
    if (!isfinite(d->steps)) return;
    to += by * d->steps;
    d->end = to >= newest ? INFINITY : fmax(to, d->steps);
}

/* Moves the cursor by one visible point. */
static void move_cursor(struct dash *d, double by)
{
    double from, to;
    window_of(d, &from, &to);
    if (!isfinite(from)) from = 0;
    double stride = fmax(1, round((to - from) / 100));
    if (!isfinite(by)) d->cursor = by < 0 ? 1 : (double)d->run->last.step;
    else if (!isfinite(d->cursor)) d->cursor = to;
    else d->cursor += by * stride;
    if (d->cursor < from && d->cursor >= 0) pan(d, -0.25);
    if (d->cursor > to) pan(d, 0.25);
    if (d->cursor < 0) d->cursor = 0;
    if (d->cursor > (double)d->run->last.step) d->cursor = (double)d->run->last.step;
}

static bool moves_chart(struct dash *d, int by)
{
    if (d->tab != TAB_CHARTS) return false;
    d->chart += by;
    int charts[CHART_COUNT], count = list_charts(d, charts);
    if (d->chart >= count) d->chart = count - 1;
    if (d->chart < 0) d->chart = 0;
    return true;
}

/* Cycles the range: all, the last 2000, the last 200 steps. */
static void next_range(struct dash *d)
{
    d->end = INFINITY;
    d->steps = !isfinite(d->steps) ? 2000 : d->steps > 200 ? 200 : INFINITY;
}

bool dash_chart_key(struct dash *d, int kind, wint_t c)
{
    if (d->tab == TAB_HELP) return false;
    if (kind == KEY_CODE_YES) {
        int page = d->zoomed || d->charts_at_once < 1 ? 1 : d->charts_at_once;
        if (c == KEY_LEFT) move_cursor(d, -1);
        else if (c == KEY_RIGHT) move_cursor(d, 1);
        else if (c == KEY_SLEFT) move_cursor(d, -10);
        else if (c == KEY_SRIGHT) move_cursor(d, 10);
        else if (c == KEY_HOME) move_cursor(d, -INFINITY);
        else if (c == KEY_END) move_cursor(d, INFINITY);
        else if (c == KEY_UP) return moves_chart(d, -1);
        else if (c == KEY_DOWN) return moves_chart(d, 1);
        else if (c == KEY_PPAGE) return moves_chart(d, -page);
        else if (c == KEY_NPAGE) return moves_chart(d, page);
        else return false;
        return true;
    }
    if (c == 27 && isfinite(d->cursor)) {
        d->cursor = NAN;
        return true;
    }
    if (d->tab != TAB_OVERVIEW && d->tab != TAB_CHARTS) return false;
    switch (c) {
    case 'k': return moves_chart(d, -1);
    case 'j': return moves_chart(d, 1);
    case '+':
    case '=': zoom(d, 0.5); break;
    case '-': zoom(d, 2); break;
    case '[': pan(d, -0.25); break;
    case ']': pan(d, 0.25); break;
    case '0': d->steps = d->end = INFINITY; break;
    case 'z': next_range(d); break;
    case 't':
        d->axis = (enum dash_axis)((d->axis + 1) % AXIS_COUNT);
        if (d->axis == AXIS_EPOCH && d->run->epoch_steps <= 0) d->axis = AXIS_TIME;
        break;
    case '\n':
    case '\r':
    case 'f': d->zoomed = !d->zoomed; break;
    case 'l': d->log_scale = !d->log_scale; break;
    case 'R': d->raw = !d->raw; break;
    case 's': d->smoothing = (d->smoothing + 1) % DASH_SMOOTHING; break;
    case 'S': d->smoothing = (d->smoothing + DASH_SMOOTHING - 1) % DASH_SMOOTHING; break;
    case 'o': d->outliers = !d->outliers; break;
    default: return false;
    }
    return true;
}
