/* Layout of plots: see plot.h. */
#include "core/compare/plot.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const plot_colors[PLOT_COLORS] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                              "#e69f00", "#56b4e9", "#999999", "#b8a800"};
const char *const plot_dashes[PLOT_COLORS] = {"", "7 3", "2 2", "8 3 2 3", "4 4", "1 3", "12 3", "6 2 2 2"};

/* ---- Data ---- */

static double step_x(const struct record *r, int64_t i) { return (double)r->step[i]; }
static double loss_y(const struct record *r, int64_t i) { return r->loss[i]; }
static double rate_y(const struct record *r, int64_t i) { return (double)r->rate[i]; }
static double epoch_x(const struct record *r, int64_t i) { return (double)r->epoch[i] + 1; }
static double epoch_y(const struct record *r, int64_t i) { return r->epoch_loss[i]; }

static void add_series(struct plot *p, const struct record *r, int64_t count, int color, bool repeat,
                       const char *name, double (*x)(const struct record *, int64_t),
                       double (*y)(const struct record *, int64_t))
{
    if (count <= 0) return;
    int bins = count < PLOT_POINTS ? (int)count : PLOT_POINTS;
    p->series = xrealloc(p->series, (size_t)(p->series_count + 1) * sizeof *p->series);
    struct series *s = &p->series[p->series_count++];
    *s = (struct series){.name = name,
                         .color = color % PLOT_COLORS,
                         .repeat = repeat,
                         .count = bins,
                         .x = xcalloc((size_t)bins, sizeof(double)),
                         .y = xcalloc((size_t)bins, sizeof(double))};
    for (int b = 0; b < bins; b++) {
        int64_t from = count * b / bins, to = count * (b + 1) / bins, n = 0;
        double sx = 0, sy = 0;
        for (int64_t i = from; i < to; i++) {
            sx += x(r, i);
            double value = y(r, i);
            if (!isfinite(value)) continue;
            sy += value;
            n++;
        }
        s->x[b] = sx / (double)(to - from);
        s->y[b] = n ? sy / (double)n : NAN;
    }
}

/* Adds the loss of `r` minus that of `base` at the steps of both. */
static void add_difference(struct plot *p, const struct record *r, const struct record *base, int color,
                           bool repeat, const char *name)
{
    int64_t capacity = r->count < base->count ? r->count : base->count;
    struct record both = {.step = xcalloc((size_t)capacity + 1, sizeof *both.step),
                          .loss = xcalloc((size_t)capacity + 1, sizeof *both.loss)};
    for (int64_t i = 0, j = 0; i < r->count && j < base->count;) {
        if (r->step[i] < base->step[j]) i++;
        else if (r->step[i] > base->step[j]) j++;
        else {
            both.step[both.count] = r->step[i];
            both.loss[both.count++] = r->loss[i++] - base->loss[j++];
        }
    }
    add_series(p, &both, both.count, color, repeat, name, step_x, loss_y);
    free(both.step);
    free(both.loss);
}

/* Sets the range of bars: the longest one with space for its figure. */
static void set_lengths(struct plot *p)
{
    p->x_min = p->x_max = p->y_min = 0;
    p->y_max = 1;
    for (int b = 0; b < p->bar_count; b++) {
        double sum = 0;
        for (int c = 0; c < MEMORY_CLASS_COUNT; c++)
            sum += isnan(p->bars[b].parts[c]) ? 0 : p->bars[b].parts[c];
        p->x_max = fmax(p->x_max, 1.12 * sum);
    }
    if (!(p->x_max > 0)) p->x_max = 1;
}

/* zero: the axis includes 0. */
static void set_ranges(struct plot *p, bool zero)
{
    p->x_min = p->y_min = INFINITY;
    p->x_max = p->y_max = -INFINITY;
    for (int k = 0; k < p->series_count; k++)
        for (int i = 0; i < p->series[k].count; i++) {
            double x = p->series[k].x[i], y = p->series[k].y[i];
            p->x_min = fmin(p->x_min, x);
            p->x_max = fmax(p->x_max, x);
            if (isnan(y)) continue;
            p->y_min = fmin(p->y_min, y);
            p->y_max = fmax(p->y_max, y);
        }
    if (!isfinite(p->y_min)) p->y_min = 0, p->y_max = 1; /* no values, or only NAN */
    if (!isfinite(p->x_min)) p->x_min = 0, p->x_max = 1;
    if (p->x_max <= p->x_min) p->x_min -= 0.5, p->x_max += 0.5;
    p->log_y = !zero && p->y_min > 0 && p->y_max / p->y_min > 30;
    if (zero) p->y_min = fmin(p->y_min, 0), p->y_max = fmax(p->y_max, 0);
    double span = p->log_y ? log(p->y_max / p->y_min) : p->y_max - p->y_min;
    if (!(span > 0)) {
        p->y_max += fabs(p->y_max) * 0.5 + 1e-12;
        p->y_min -= zero ? 0 : fabs(p->y_min) * 0.5;
    } else if (p->log_y) {
        p->y_min *= exp(-0.04 * span);
        p->y_max *= exp(0.04 * span);
    } else {
        bool below = p->y_min < 0;
        if (!zero || p->y_max > 0) p->y_max += 0.04 * span;
        if (!zero || below) p->y_min -= 0.04 * span;
        if (!below) p->y_min = fmax(p->y_min, 0); /* no negative axis for values that are never negative */
    }
}

static void add_bar(struct plot *p, const struct table *t, int c)
{
    struct bar bar = {.name = t->columns[c].name};
    bool any = false;
    for (int k = 0; k < MEMORY_CLASS_COUNT; k++) {
        char key[48];
        snprintf(key, sizeof key, "%s_bytes", memory_class_names[k]);
        const struct row *row = table_row(t, key);
        bar.parts[k] = row ? row->cells[c].mean / 1048576.0 : NAN;
        any |= bar.parts[k] > 0;
    }
    if (!any) return;
    p->bars = xrealloc(p->bars, (size_t)(p->bar_count + 1) * sizeof bar);
    p->bars[p->bar_count++] = bar;
}

void plots_make(struct plot plots[PLOT_COUNT], const struct table *t)
{
    const struct plot frames[PLOT_COUNT] = {
        {.id = "memory", .title = N_("Peak memory of one card by class"), .x_label = "MiB", .y_label = ""},
        {.id = "iteration-loss",
         .title = N_("Loss by iteration"),
         .x_label = N_("step"),
         .y_label = N_("loss")},
        {.id = "loss-difference",
         .title = N_("Loss less the reference's at equal step"),
         .x_label = "step",
         .y_label = N_("difference")},
        {.id = "epoch-loss",
         .title = N_("Loss by epoch"),
         .x_label = N_("epoch"),
         .y_label = N_("mean loss")},
        {.id = "throughput", .title = N_("Throughput"), .x_label = "step", .y_label = t->unit->rate},
    };
    for (int k = 0; k < PLOT_COUNT; k++) {
        plots[k] = frames[k];
        plots[k].left = k == PLOT_MEMORY ? 16 : 78;
        plots[k].right = PLOT_WIDTH - 16;
        plots[k].top = k == PLOT_MEMORY ? 56 : 66;
        plots[k].bottom = PLOT_HEIGHT - 44;
    }
    const struct column *base = &t->columns[t->reference];
    for (int c = 0; c < t->column_count; c++) {
        const struct column *column = &t->columns[c];
        for (int i = 0; i < column->run_count; i++) {
            const struct record *r = &column->runs[i];
            add_series(&plots[PLOT_LOSS], r, r->count, c, i > 0, column->name, step_x, loss_y);
            add_series(&plots[PLOT_EPOCHS], r, r->epochs, c, i > 0, column->name, epoch_x, epoch_y);
            if (record_unit(r) == t->unit)
                add_series(&plots[PLOT_RATE], r, r->count, c, i > 0, column->name, step_x, rate_y);
            if (c != t->reference && record_same_objective(r, &base->runs[0]))
                add_difference(&plots[PLOT_DIFFERENCE], r, &base->runs[i % base->run_count], c, i > 0,
                               column->name);
        }
        add_bar(&plots[PLOT_MEMORY], t, c);
    }
    set_lengths(&plots[PLOT_MEMORY]);
    for (int k = PLOT_LOSS; k < PLOT_COUNT; k++)
        set_ranges(&plots[k], k == PLOT_DIFFERENCE || k == PLOT_RATE);
}

bool plot_worthwhile(const struct plot *p)
{
    bool epochs = strcmp(p->id, "epoch-loss") == 0;
    return p->bar_count > 0 || (p->series_count > 0 && (!epochs || p->x_max - p->x_min > 1));
}

bool plot_has_class(const struct plot *p, int class)
{
    for (int b = 0; b < p->bar_count; b++)
        if (p->bars[b].parts[class] > 0) return true;
    return false;
}

void plots_free(struct plot plots[PLOT_COUNT])
{
    for (int k = 0; k < PLOT_COUNT; k++) {
        for (int i = 0; i < plots[k].series_count; i++) {
            free(plots[k].series[i].x);
            free(plots[k].series[i].y);
        }
        free(plots[k].series);
        free(plots[k].bars);
    }
}

/* ---- Drawing ---- */

double plot_px(const struct plot *p, double x)
{
    return p->left + (x - p->x_min) / (p->x_max - p->x_min) * (p->right - p->left);
}

double plot_py(const struct plot *p, double y)
{
    double share =
        p->log_y ? log(y / p->y_min) / log(p->y_max / p->y_min) : (y - p->y_min) / (p->y_max - p->y_min);
    return p->bottom - share * (p->bottom - p->top);
}

static double nice_step(double span, int wanted)
{
    double raw = span / wanted, power = pow(10, floor(log10(raw))), share = raw / power;
    return power * (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10);
}

static void tick_text(char *dst, size_t size, double value, double step)
{
    double size_of = fmax(fabs(value), step);
    if (size_of >= 1e6 || size_of < 1e-3) snprintf(dst, size, "%.4g", fabs(value) < step * 1e-9 ? 0 : value);
    else snprintf(dst, size, "%.*f", step >= 1 ? 0 : (int)ceil(-log10(step) - 1e-9), value);
}

static void y_tick(const struct plot *p, const struct canvas *c, double value, double step)
{
    char text[48];
    double y = plot_py(p, value);
    c->line(c->context, INK_GRID, p->left, y, p->right, y);
    if (p->log_y) snprintf(text, sizeof text, "%g", value);
    else tick_text(text, sizeof text, value, step);
    c->text(c->context, ANCHOR_END, p->left - 6, y + 4, text);
}

/* Draws the ticks of the x axis; for bars, full-height lines. */
static void x_ticks(const struct plot *p, const struct canvas *c)
{
    char text[48];
    double step = nice_step(p->x_max - p->x_min, 7);
    if (step < 1 && !p->bars) step = 1;
    for (double x = ceil(p->x_min / step) * step; x <= p->x_max + 1e-9 * step; x += step) {
        double px = plot_px(p, x);
        if (p->bars) c->line(c->context, INK_GRID, px, p->top, px, p->bottom);
        else c->line(c->context, INK_AXIS, px, p->bottom, px, p->bottom + 4);
        tick_text(text, sizeof text, x, step);
        c->text(c->context, ANCHOR_MIDDLE, px, p->bottom + 18, text);
    }
    c->text(c->context, ANCHOR_MIDDLE, 0.5 * (p->left + p->right), p->bottom + 36,
            c->bare ? _(p->x_label) : p->x_label);
}

static void axes(const struct plot *p, const struct canvas *c)
{
    if (p->log_y) {
        bool few = p->y_max / p->y_min < 300;
        for (double decade = pow(10, floor(log10(p->y_min))); decade <= p->y_max; decade *= 10)
            for (int m = 1; m < 10; m = m == 1 ? 2 : m == 2 ? 5 : 10)
                if (decade * m >= p->y_min && decade * m <= p->y_max && (m == 1 || few))
                    y_tick(p, c, decade * m, 0);
    } else if (!p->bars) {
        double step = nice_step(p->y_max - p->y_min, 5);
        for (double y = ceil(p->y_min / step) * step; y <= p->y_max + 1e-9 * step; y += step)
            y_tick(p, c, y, step);
        if (p->y_min < 0 && p->y_max > 0)
            c->line(c->context, INK_AXIS, p->left, plot_py(p, 0), p->right, plot_py(p, 0));
    }
    x_ticks(p, c);
    c->line(c->context, INK_AXIS, p->left, p->bottom, p->right, p->bottom);
    c->line(c->context, INK_AXIS, p->left, p->top, p->left, p->bottom);
    c->text(c->context, ANCHOR_START, 8, p->top - 8, c->bare && p->y_label[0] ? _(p->y_label) : p->y_label);
}

/* Draws legend entries side by side from (x, y), in two lines. */
struct legend {
    double left, x, y;
};

static void legend(const struct canvas *c, struct legend *at, int color, const char *name, bool box)
{
    double width = 30 + 6.6 * (double)strlen(name);
    if (at->x + width > PLOT_WIDTH && at->x > at->left) at->x = at->left, at->y += 14;
    if (at->y > 50) return; /* no space for a third line */
    double line[4] = {at->x, at->y - 4, at->x + 20, at->y - 4};
    if (box) c->box(c->context, color, at->x + 4, at->y - 9, 10, 10, NULL);
    else c->curve(c->context, color, line, 2);
    c->text(c->context, ANCHOR_START, at->x + 25, at->y, name);
    at->x += width + 12;
}

static void curve(const struct plot *p, const struct canvas *c, const struct series *s)
{
    double xy[2 * PLOT_POINTS];
    int n = 0;
    for (int i = 0; i <= s->count; i++) {
        if (i < s->count && !isnan(s->y[i])) {
            xy[2 * n] = plot_px(p, s->x[i]);
            xy[2 * n + 1] = plot_py(p, s->y[i]);
            n++;
            continue;
        }
        if (n == 1) { /* a single point is drawn as a short line */
            xy[2] = xy[0] + 2;
            xy[0] -= 2;
            xy[3] = xy[1];
            n = 2;
        }
        if (n) c->curve(c->context, s->color, xy, n);
        n = 0;
    }
}

/* Draws bars below each other, each with its name above and its sum at the end. */
static void bars(const struct plot *p, const struct canvas *c)
{
    double pitch = (p->bottom - p->top) / p->bar_count, height = fmin(44, fmax(4, pitch - 26));
    for (int b = 0; b < p->bar_count; b++) {
        double bottom = p->top + ((double)b + 1) * pitch - 4, y = bottom - height, sum = 0;
        char tip[256];
        for (int k = 0; k < MEMORY_CLASS_COUNT; k++) {
            double part = p->bars[b].parts[k];
            if (!(part > 0)) continue;
            snprintf(tip, sizeof tip, "%s: %s %.1f MiB", p->bars[b].name,
                     c->bare ? _(memory_class_names[k]) : memory_class_names[k], part);
            double x = plot_px(p, sum);
            c->box(c->context, k, x, y, plot_px(p, sum + part) - x, height, tip);
            sum += part;
        }
        snprintf(tip, sizeof tip, "%.1f", sum);
        c->text(c->context, ANCHOR_START, plot_px(p, sum) + 6, y + height / 2 + 4, tip);
        snprintf(tip, sizeof tip, "%.100s", p->bars[b].name);
        c->text(c->context, ANCHOR_START, p->left + 4, y - 6, tip);
    }
}

void plot_draw(const struct plot *p, const struct canvas *c)
{
    struct legend at = {p->left, p->left, 34};
    if (!c->bare) c->text(c->context, ANCHOR_START, 8, 16, p->title);
    axes(p, c);
    for (int k = 0; k < MEMORY_CLASS_COUNT && !c->bare; k++)
        if (plot_has_class(p, k)) legend(c, &at, k, memory_class_names[k], true);
    for (int k = 0; k < p->series_count && !c->bare; k++)
        if (!p->series[k].repeat) legend(c, &at, p->series[k].color, p->series[k].name, false);
    if (p->bars) bars(p, c);
    for (int k = 0; k < p->series_count; k++) curve(p, c, &p->series[k]);
    if (!p->bars && !p->series_count)
        c->text(c->context, ANCHOR_MIDDLE, 0.5 * (p->left + p->right), 0.5 * (p->top + p->bottom), "no data");
}
