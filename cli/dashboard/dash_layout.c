/* Layout, plots and numbers of the dashboard: see dash_layout.h. */
#include "cli/dashboard/dash_layout.h"
#include "core/base/translate.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const dash_tab_names[TAB_COUNT] = {N_("overview"), N_("charts"), N_("memory"), N_("log"),
                                               N_("help")};

/* ---- layout ---- */

enum { MEMORY_ROWS = 12 }; /* of the memory tab: the peak, the classes, the others */

static struct dash_rect take(int *y, int left, int h, int columns)
{
    struct dash_rect r = {*y, 0, h < left ? h : left, columns};
    if (r.h < 0) r.h = 0;
    *y += r.h;
    return r;
}

static void place_plots(struct dash_layout *l, int y, int h, int columns, bool zoomed)
{
    if (h < 3) return;
    l->loss = (struct dash_rect){y, 0, h, columns};
    if (zoomed) return;
    if (columns >= 90) {
        int w = columns * 3 / 5;
        l->loss.w = w;
        l->speed = (struct dash_rect){y, w, h, columns - w};
    } else if (h >= 12) {
        l->loss.h = h - h / 3;
        l->speed = (struct dash_rect){y + l->loss.h, 0, h / 3, columns};
    }
}

struct dash_layout dash_layout(int rows, int columns, int cards, enum dash_tab tab, bool zoomed)
{
    struct dash_layout l = {.too_small = rows < DASH_MIN_ROWS || columns < DASH_MIN_COLUMNS};
    if (l.too_small) return l;
    int y = 0, bottom = rows - 1;
    l.header = take(&y, bottom, columns >= 110 ? 2 : 3, columns);
    l.footer = (struct dash_rect){rows - 1, 0, 1, columns};
    if (cards < 1) cards = 1;
    if (tab == TAB_LOG || tab == TAB_HELP) {
        l.log = (struct dash_rect){y, 0, bottom - y, columns};
        return l;
    }
    if (tab == TAB_CHARTS) { /* a grid of its own (dash_charts.c) */
        l.loss = (struct dash_rect){y, 0, bottom - y, columns};
        return l;
    }
    l.card_titles = rows >= 16;
    int space = tab == TAB_MEMORY ? bottom - y - MEMORY_ROWS : (bottom - y) * 2 / 5;
    if (cards > 1) cards++; /* the line of all together */
    l.card_rows = cards < space - l.card_titles ? cards : space - l.card_titles;
    if (l.card_rows < 1) l.card_rows = 1;
    l.cards = take(&y, bottom - y, l.card_rows + l.card_titles, columns);
    l.savings = take(&y, bottom - y, tab == TAB_MEMORY ? bottom - y : rows >= 20 ? 2 : 1, columns);
    if (tab == TAB_MEMORY) return l;
    int log = rows >= 40 ? 8 : rows >= 22 ? 4 : 0;
    place_plots(&l, y, bottom - y - log, columns, zoomed);
    if (log) l.log = (struct dash_rect){bottom - log, 0, log, columns};
    return l;
}

/* ---- plots ---- */

void dash_range(const double *values, int n, double *min, double *max)
{
    for (int i = 0; i < n; i++) {
        if (!isfinite(values[i])) continue;
        *min = fmin(*min, values[i]);
        *max = fmax(*max, values[i]);
    }
}

void dash_plot_begin(struct dash_plot *p, int w, int h, enum dash_glyphs glyphs, double x_min, double x_max,
                     double y_min, double y_max, bool log)
{
    *p = (struct dash_plot){.w = w > 0 ? w : 0,
                            .h = h > 0 ? h : 0,
                            .dots_x = glyphs == GLYPHS_BRAILLE ? 2 : 1,
                            .dots_y = glyphs == GLYPHS_BRAILLE ? 4 : 2,
                            .glyphs = glyphs,
                            .log = log && y_min > 0};
    p->empty = !isfinite(x_min) || !isfinite(x_max) || !isfinite(y_min) || !isfinite(y_max) ||
               x_min > x_max || y_min > y_max;
    if (p->log) y_min = log10(y_min), y_max = log10(y_max);
    p->flat = !p->empty && y_min == y_max;
    if (p->flat) {
        double pad = y_min != 0 ? fabs(y_min) * 0.05 : 1;
        y_min -= pad;
        y_max += pad;
    }
    if (!p->empty && x_min == x_max) x_max = x_min + 1;
    p->x_min = x_min, p->x_max = x_max, p->y_min = y_min, p->y_max = y_max;
    p->cells = xcalloc((size_t)p->w * (size_t)p->h + 1, 1);
    p->series = xcalloc((size_t)p->w * (size_t)p->h + 1, 1);
}

static void dot(struct dash_plot *p, int series, int x, int y)
{
    if (x < 0 || y < 0 || x >= p->w * p->dots_x || y >= p->h * p->dots_y) return;
    size_t cell = (size_t)(y / p->dots_y) * (size_t)p->w + (size_t)(x / p->dots_x);
    if (p->series[cell] != series && p->cells[cell])
        p->cells[cell] = 0; /* the curve drawn later is in front */
    p->cells[cell] |= (uint8_t)(1u << (x % p->dots_x + y % p->dots_y * p->dots_x));
    p->series[cell] = (uint8_t)series;
}

void dash_plot_curve(struct dash_plot *p, int series, const double *x, const double *y, int n)
{
    int last_x = -1, last_y = -1, columns = p->w * p->dots_x, rows = p->h * p->dots_y;
    if (p->empty || columns < 1 || rows < 1) return;
    for (int i = 0; i < n; i++) {
        double v = p->log ? (y[i] > 0 ? log10(y[i]) : NAN) : y[i];
        if (!isfinite(v) || !isfinite(x[i])) {
            last_x = -1;
            continue;
        }
        if (x[i] < p->x_min || x[i] > p->x_max) continue;
        double fx = (x[i] - p->x_min) / (p->x_max - p->x_min), fy = (p->y_max - v) / (p->y_max - p->y_min);
        fy = fy < 0 ? 0 : fy > 1 ? 1 : fy;
        int dx = (int)lround(fx * (columns - 1)), dy = (int)lround(fy * (rows - 1));
        if (last_x < 0) {
            dot(p, series, dx, dy);
        } else {
            int steps = dx - last_x > abs(dy - last_y) ? dx - last_x : abs(dy - last_y);
            for (int s = steps ? 1 : 0; s <= steps; s++)
                dot(p, series, last_x + (steps ? (int)lround((double)(dx - last_x) * s / steps) : 0),
                    last_y + (steps ? (int)lround((double)(dy - last_y) * s / steps) : 0));
        }
        last_x = dx;
        last_y = dy;
    }
}

void dash_plot_cell(const struct dash_plot *p, int y, int x, char out[8])
{
    static const char *const block[] = {" ", "\xe2\x96\x80", "\xe2\x96\x84", "\xe2\x96\x88"},
                             *const ascii[] = {" ", "'", ".", ":"};
    unsigned dots = p->cells[(size_t)y * (size_t)p->w + (size_t)x];
    if (p->glyphs == GLYPHS_ASCII) snprintf(out, 8, "%s", ascii[dots & 3]);
    else if (p->glyphs == GLYPHS_BLOCK) snprintf(out, 8, "%s", block[dots & 3]);
    else if (dots == 0) snprintf(out, 8, " ");
    else {
        static const uint8_t bit[8] = {0, 3, 1, 4,
                                       2, 5, 6, 7}; /* ours, row by row -> Unicode's, column by column */
        unsigned code = 0;
        for (int i = 0; i < 8; i++)
            if (dots >> i & 1) code |= 1u << bit[i];
        code += 0x2800;
        out[0] = (char)(0xE0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3F));
        out[2] = (char)(0x80 | (code & 0x3F));
        out[3] = 0;
    }
}

void dash_plot_end(struct dash_plot *p)
{
    free(p->cells);
    free(p->series);
    *p = (struct dash_plot){0};
}

void dash_smooth(const double *in, double *out, int n, double weight)
{
    double sum = 0, mass = 0;
    for (int i = 0; i < n; i++) {
        if (isfinite(in[i])) {
            sum = weight * sum + (1 - weight) * in[i];
            mass = weight * mass + (1 - weight);
        }
        out[i] = isfinite(in[i]) && mass > 0 ? sum / mass : NAN;
    }
}

/* ---- bars ---- */

void dash_split(const double *parts, int n, double total, int w, int *cells)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        cells[i] = 0;
        if (parts[i] > 0 && isfinite(parts[i])) sum += parts[i];
    }
    if (!(total > 0) || w < 1 || sum <= 0) return;
    int filled = (int)lround(fmin(1, sum / total) * w), given = 0;
    if (filled == 0) filled = 1;
    double scale = filled / sum;
    for (int i = 0; i < n; i++) {
        if (parts[i] > 0 && isfinite(parts[i])) cells[i] = (int)(parts[i] * scale);
        given += cells[i];
    }
    for (; given < filled; given++) {
        int best = -1;
        double most = -1;
        for (int i = 0; i < n; i++) {
            double rest = parts[i] > 0 && isfinite(parts[i]) ? parts[i] * scale - cells[i] : -1;
            if (rest > most) most = rest, best = i;
        }
        if (best < 0) break;
        cells[best]++;
    }
}

int dash_mark(double value, double total, int w)
{
    if (!(total > 0) || !(value >= 0) || !isfinite(value) || w < 1) return -1;
    int at = (int)(value / total * w);
    return at >= w ? w - 1 : at;
}

/* ---- numbers ---- */

char *dash_bytes(char *dst, size_t size, double bytes)
{
    static const char units[] = "KMGTP";
    if (!(bytes >= 0) || !isfinite(bytes)) return snprintf(dst, size, "-"), dst;
    if (bytes == 0) return snprintf(dst, size, "0"), dst;
    int unit = 0;
    double x = bytes / 1024;
    while (x >= 999.5 && unit < 4) x /= 1024, unit++;
    snprintf(dst, size, x < 9.995 ? "%.2f%c" : x < 99.95 ? "%.1f%c" : "%.0f%c", x, units[unit]);
    return dst;
}

char *dash_duration(char *dst, size_t size, double seconds)
{
    if (!(seconds >= 0) || seconds >= 10000 * 86400.0) return snprintf(dst, size, "-"), dst;
    long long s = (long long)(seconds + 0.5);
    if (s < 60) snprintf(dst, size, "%llds", s);
    else if (s < 3600) snprintf(dst, size, "%lld:%02lld", s / 60, s % 60);
    else if (s < 86400) snprintf(dst, size, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else snprintf(dst, size, "%lldd%02lldh", s / 86400, s / 3600 % 24);
    return dst;
}

char *dash_number(char *dst, size_t size, double x)
{
    if (!isfinite(x)) return snprintf(dst, size, isnan(x) ? "-" : x > 0 ? "inf" : "-inf"), dst;
    double a = fabs(x);
    if (a != 0 && (a < 1e-3 || a >= 1e5)) snprintf(dst, size, "%.2e", x);
    else
        snprintf(dst, size,
                 a == 0     ? "%.0f"
                 : a < 0.1  ? "%.5f"
                 : a < 10   ? "%.4f"
                 : a < 100  ? "%.3f"
                 : a < 1000 ? "%.2f"
                            : "%.1f",
                 x);
    return dst;
}
