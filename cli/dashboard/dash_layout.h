/* Layout of the dashboard, plots of curves in characters, and formatting of numbers. Pure functions, tested
 * for all sizes without a terminal. */
#ifndef MEOPT_CLI_DASHBOARD_DASH_LAYOUT_H
#define MEOPT_CLI_DASHBOARD_DASH_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- layout ---- */

enum dash_tab { TAB_OVERVIEW, TAB_CHARTS, TAB_MEMORY, TAB_LOG, TAB_HELP, TAB_COUNT };
extern const char *const dash_tab_names[TAB_COUNT];

struct dash_rect {
    int y, x, h, w; /* h 0: not shown */
};

struct dash_layout {
    bool too_small; /* nothing else is valid */
    struct dash_rect header, cards, savings, loss, speed, log, footer;
    int card_rows;    /* cards visible at once */
    bool card_titles; /* the first line of `cards` names the columns */
};

enum { DASH_MIN_ROWS = 10, DASH_MIN_COLUMNS = 36 };

/* Returns rectangles inside the screen that do not overlap. zoomed: one plot instead of two. */
struct dash_layout dash_layout(int rows, int columns, int cards, enum dash_tab tab, bool zoomed);

/* ---- plots ---- */

enum dash_glyphs { GLYPHS_BRAILLE, GLYPHS_BLOCK, GLYPHS_ASCII };

/* A grid of cells, each of dots_x by dots_y dots: braille 2 by 4, blocks and ASCII 1 by 2. */
struct dash_plot {
    int w, h, dots_x, dots_y;
    enum dash_glyphs glyphs;
    double x_min, x_max, y_min, y_max; /* y in the plotted scale (log10 when log) */
    bool log, empty, flat;             /* flat: a single value, plotted in the middle */
    uint8_t *cells;                    /* dots of a cell, bit dx + dy * dots_x */
    uint8_t *series;                   /* series of each cell: the last one drawn */
};

/* Extends the range [*min, *max] by n values, without NAN. Start with min = INFINITY, max = -INFINITY. */
void dash_range(const double *values, int n, double *min, double *max);
/* Allocates a plot of w by h cells; free it with dash_plot_end. log: requires y_min > 0. */
void dash_plot_begin(struct dash_plot *p, int w, int h, enum dash_glyphs glyphs, double x_min, double x_max,
                     double y_min, double y_max, bool log);
/* Draws a curve through points with ascending x; NAN interrupts it. */
void dash_plot_curve(struct dash_plot *p, int series, const double *x, const double *y, int n);
/* Writes the UTF-8 character of a cell, at most 4 bytes and a NUL. */
void dash_plot_cell(const struct dash_plot *p, int y, int x, char out[8]);
void dash_plot_end(struct dash_plot *p);

/* Computes a bias-corrected exponential moving average; skips NAN. weight: of the past, 0..1. */
void dash_smooth(const double *in, double *out, int n, double weight);

/* ---- a bar split by class ---- */

/* Distributes w cells to n parts of `total` by largest remainders: the sum is the rounded whole, and no
 * part above half a cell gets none while another gets two. */
void dash_split(const double *parts, int n, double total, int w, int *cells);
/* Returns the cell of a mark at `value` of `total`: 0..w-1, or -1. */
int dash_mark(double value, double total, int w);

/* ---- numbers: into dst of size bytes, "-" when not known (NAN, negative) ---- */

char *dash_bytes(char *dst, size_t size, double bytes);      /* 12.3G in 1024s */
char *dash_duration(char *dst, size_t size, double seconds); /* 7s  4:05  1:02:03  2d03h */
char *dash_number(char *dst, size_t size, double x);         /* four significant digits */

#endif
