/* Where things stand on the dashboard, how a curve becomes characters, and how numbers are written: pure
 * functions, tested over all sizes without a terminal. */
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

/* Rectangles lie inside the screen and do not overlap. `zoomed`: one plot takes the place of both. */
struct dash_layout dash_layout(int rows, int columns, int cards, enum dash_tab tab, bool zoomed);

/* ---- plots ---- */

enum dash_glyphs { GLYPHS_BRAILLE, GLYPHS_BLOCK, GLYPHS_ASCII };

/* A grid of cells, each of dots_x by dots_y dots: braille 2 by 4, blocks and ASCII 1 by 2. */
struct dash_plot {
    int w, h, dots_x, dots_y;
    enum dash_glyphs glyphs;
    double x_min, x_max, y_min, y_max; /* y in the plotted scale (log10 when log) */
    bool log, empty, flat;             /* flat: one value, which stands in the middle */
    uint8_t *cells;                    /* dots of a cell, bit dx + dy * dots_x */
    uint8_t *series;                   /* which series a cell belongs to: the one drawn last */
};

/* Range of n values (NAN skipped), grown over what it was: start with min = INFINITY, max = -INFINITY. */
void dash_range(const double *values, int n, double *min, double *max);
/* log: only when every value is above 0. NULL-free cells of w by h; free with dash_plot_end. */
void dash_plot_begin(struct dash_plot *p, int w, int h, enum dash_glyphs glyphs, double x_min, double x_max,
                     double y_min, double y_max, bool log);
/* A curve through points in order of x; NAN breaks it. */
void dash_plot_curve(struct dash_plot *p, int series, const double *x, const double *y, int n);
/* UTF-8 of a cell, at most 4 bytes and a NUL. */
void dash_plot_cell(const struct dash_plot *p, int y, int x, char out[8]);
void dash_plot_end(struct dash_plot *p);

/* Exponential moving average over points, bias-corrected; NAN is passed by. weight 0..1 of the past. */
void dash_smooth(const double *in, double *out, int n, double weight);

/* ---- a bar split by class ---- */

/* Cells of `w` for each of n parts of `total`; largest remainders, so that they add up to the rounded whole
 * and no part above half a cell vanishes while another has two. */
void dash_split(const double *parts, int n, double total, int w, int *cells);
/* Cell of a mark at value of total: 0..w-1, or -1. */
int dash_mark(double value, double total, int w);

/* ---- numbers: into dst of size bytes, "-" when not known (NAN, negative) ---- */

char *dash_bytes(char *dst, size_t size, double bytes);      /* 12.3G in 1024s */
char *dash_duration(char *dst, size_t size, double seconds); /* 7s  4:05  1:02:03  2d03h */
char *dash_number(char *dst, size_t size, double x);         /* four significant digits */
char *dash_count(char *dst, size_t size, double x);          /* 1.2k 3.4M */

#endif
