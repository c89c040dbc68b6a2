/* A plot in the terminal: dots of braille characters (2 x 4 each), or one ASCII letter per character. */
#include "core/compare/plot.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct grid {
    int columns, rows, across, down; /* characters; dots per character */
    unsigned char *dots, *owner;     /* owner: series + 1 that last drew in the character */
};

static void dot(struct grid *g, int x, int y, int series)
{
    static const unsigned char bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    if (x < 0 || y < 0 || x >= g->columns * g->across || y >= g->rows * g->down) return;
    int cell = y / g->down * g->columns + x / g->across;
    g->dots[cell] |= bits[y % g->down][x % g->across];
    g->owner[cell] = (unsigned char)(series + 1);
}

/* Draws later curves with gaps, so that curves under them remain visible. */
static void segment(struct grid *g, double x1, double y1, double x2, double y2, int series)
{
    int n = (int)ceil(fmax(fabs(x2 - x1), fabs(y2 - y1)));
    for (int i = 0; i <= n; i++) {
        double t = n ? (double)i / n : 0, x = x1 + t * (x2 - x1);
        if (series && (int)lround(x) / (2 * series) % 2) continue;
        dot(g, (int)lround(x), (int)lround(y1 + t * (y2 - y1)), series);
    }
}

static void print_cell(FILE *out, const struct grid *g, int cell, bool braille, bool color)
{
    static const char letters[] = "*o+x#@%&";
    static const int ansi[PLOT_COLORS] = {34, 33, 32, 35, 93, 36, 37, 93};
    int series = g->owner[cell] - 1;
    if (series < 0) {
        fputc(' ', out);
        return;
    }
    if (color) fprintf(out, "\033[%dm", ansi[series % PLOT_COLORS]);
    if (braille) fprintf(out, "%c%c%c", 0xe2, 0xa0 | g->dots[cell] >> 6, 0x80 | (g->dots[cell] & 0x3f));
    else fputc(letters[series % 8], out);
    if (color) fputs("\033[0m", out);
}

static const char class_letters[MEMORY_CLASS_COUNT + 1] = "WGOATSCD";
static const int class_ansi[PLOT_COLORS] = {34, 33, 32, 35, 93, 36, 37, 93};

static void class_cells(FILE *out, int class, int cells, bool blocks, bool color)
{
    if (color) fprintf(out, "\033[%dm", class_ansi[class % PLOT_COLORS]);
    for (int i = 0; i < cells; i++)
        if (blocks && color) fputs("█", out);
        else fputc(class_letters[class], out);
    if (color) fputs("\033[0m", out);
}

/* Begins a new line of a legend if its next item does not fit. *used: columns of the line so far. */
static void legend_next(FILE *out, int *used, int margin, int item, int columns)
{
    if (*used > margin && *used + item > columns) {
        fprintf(out, "\n%*s", margin, "");
        *used = margin;
    }
    *used += item + 3;
}

/* Prints the name on its own line, then the bar: each class with its share of the longest bar's cells. */
static void bars_terminal(FILE *out, const struct plot *p, int columns, bool blocks, bool color)
{
    double scale = (columns - 12) / (p->x_max / 1.12);
    int used = 0;
    fprintf(out, "%s\n", _(p->title));
    for (int b = 0; b < p->bar_count; b++) {
        double sum = 0;
        fprintf(out, "%s\n", p->bars[b].name);
        for (int k = 0; k < MEMORY_CLASS_COUNT; k++) {
            double part = p->bars[b].parts[k];
            if (!(part > 0)) continue;
            class_cells(out, k, (int)(lround((sum + part) * scale) - lround(sum * scale)), blocks, color);
            sum += part;
        }
        fprintf(out, " %.1f MiB\n", sum);
    }
    for (int k = 0; k < MEMORY_CLASS_COUNT; k++) {
        if (!plot_has_class(p, k)) continue;
        const char *name = _(memory_class_names[k]);
        legend_next(out, &used, 0, 2 + text_columns(name, SIZE_MAX), columns);
        class_cells(out, k, 1, blocks, color);
        fprintf(out, " %s  ", name);
    }
    fputs("\n\n", out);
}

void plot_terminal(FILE *out, const struct plot *p, int columns, int rows, bool braille, bool color)
{
    enum { LABEL = 10, MARGIN = LABEL + 2 }; /* -1.234e-07 */
    if (p->bars) bars_terminal(out, p, columns, braille, color);
    if (p->bars || !p->series_count) return;
    if (columns < MARGIN + 20) columns = MARGIN + 20;
    struct grid g = {
        .columns = columns - MARGIN, .rows = rows, .across = braille ? 2 : 1, .down = braille ? 4 : 1};
    g.dots = xcalloc((size_t)(g.columns * g.rows), 1);
    g.owner = xcalloc((size_t)(g.columns * g.rows), 1);
    double wide = g.columns * g.across - 1, high = g.rows * g.down - 1;
    for (int k = 0; k < p->series_count; k++) {
        const struct series *s = &p->series[k];
        double last_x = 0, last_y = 0;
        bool pen = false;
        for (int i = 0; i < s->count; i++) {
            if (isnan(s->y[i])) {
                pen = false;
                continue;
            }
            double x = (plot_px(p, s->x[i]) - p->left) / (p->right - p->left) * wide,
                   y = (plot_py(p, s->y[i]) - p->top) / (p->bottom - p->top) * high;
            segment(&g, pen ? last_x : x, pen ? last_y : y, x, y, s->color);
            last_x = x;
            last_y = y;
            pen = true;
        }
    }
    fprintf(out, "%s%s\n", _(p->title), p->log_y ? _(" (logarithmic)") : "");
    for (int r = 0; r < rows; r++) {
        double share = rows > 1 ? (double)r / (rows - 1) : 0,
               value = p->y_max - share * (p->y_max - p->y_min);
        if (p->log_y) value = p->y_max * pow(p->y_min / p->y_max, share);
        if (r % 4 == 0 || r == rows - 1) fprintf(out, "%*.4g %s", LABEL, value, braille ? "┤" : "|");
        else fprintf(out, "%*s %s", LABEL, "", braille ? "│" : "|");
        int last = -1;
        for (int c = 0; c < g.columns; c++)
            if (g.owner[r * g.columns + c]) last = c;
        for (int c = 0; c <= last; c++) print_cell(out, &g, r * g.columns + c, braille, color);
        fputc('\n', out);
    }
    fprintf(out, "%*s %s %-*.0f%.0f\n", PAD(LABEL, _(p->x_label)), " ", g.columns - 12, ceil(p->x_min),
            floor(p->x_max));
    fprintf(out, "%*s", MARGIN, "");
    int used = MARGIN;
    for (int k = 0; k < p->series_count; k++) {
        if (p->series[k].repeat) continue;
        legend_next(out, &used, MARGIN, 4 + text_columns(p->series[k].name, SIZE_MAX), columns);
        for (int i = 0; i < 3; i++) {
            struct grid one = {.columns = 1,
                               .rows = 1,
                               .dots = (unsigned char[1]){p->series[k].color ? 0x24 : 0x36},
                               .owner = (unsigned char[1]){(unsigned char)(p->series[k].color + 1)}};
            print_cell(out, &one, 0, braille, color);
        }
        fprintf(out, " %s   ", p->series[k].name);
    }
    fputs("\n\n", out);
    free(g.dots);
    free(g.owner);
}
