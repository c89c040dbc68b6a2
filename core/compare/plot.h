/* One description of a plot for all output formats: SVG, the HTML page and the terminal. */
#ifndef MEOPT_COMPARE_PLOT_H
#define MEOPT_COMPARE_PLOT_H

#include "core/compare/table.h"

#include <stdio.h>

/* In reading order: the saved memory first. */
enum { PLOT_MEMORY, PLOT_LOSS, PLOT_DIFFERENCE, PLOT_EPOCHS, PLOT_RATE, PLOT_COUNT };
enum { PLOT_POINTS = 600, PLOT_WIDTH = 720, PLOT_HEIGHT = 340, PLOT_COLORS = 8, PLOT_HEAD = 44 };

struct series {
    const char *name;
    int color;   /* index into plot_colors and plot_dashes */
    bool repeat; /* not the first run of its column: not in the legend */
    int count;
    double *x, *y; /* y may be NAN: a gap */
};

struct bar {
    const char *name;
    double parts[MEMORY_CLASS_COUNT]; /* NAN: none */
};

struct plot {
    const char *id, *title, *x_label, *y_label;
    struct series *series;
    int series_count;
    struct bar *bars; /* instead of series: memory by class */
    int bar_count;
    bool log_y;
    double x_min, x_max, y_min, y_max;
    double left, top, right, bottom; /* the plot area, in a picture of PLOT_WIDTH x PLOT_HEIGHT */
};

extern const char
    *const plot_colors[PLOT_COLORS]; /* by Okabe and Ito, distinguishable with all kinds of colour vision */
extern const char *const plot_dashes[PLOT_COLORS]; /* of stroke-dasharray, "" for a solid line */

/* Makes all plots. Curves are means over at most PLOT_POINTS bins. The difference is a run's loss minus
 * its reference's at equal step. A plot without data has neither series nor bars. */
void plots_make(struct plot plots[PLOT_COUNT], const struct table *table);
void plots_free(struct plot plots[PLOT_COUNT]);

/* Drawing functions of a picture. Coordinates start at the upper left corner. */
enum ink { INK_AXIS, INK_GRID };
enum anchor { ANCHOR_START, ANCHOR_MIDDLE, ANCHOR_END };
struct canvas {
    void *context;
    bool bare; /* without title and legend, which fill the upper PLOT_HEAD: the page has its own */
    void (*line)(void *context, enum ink ink, double x1, double y1, double x2, double y2);
    void (*curve)(void *context, int color, const double *xy, int count); /* count points */
    void (*box)(void *context, int color, double x, double y, double w, double h, const char *tip);
    void (*text)(void *context, enum anchor anchor, double x, double y, const char *text);
};
void plot_draw(const struct plot *plot, const struct canvas *canvas);

/* Returns the pixel of a value. */
double plot_px(const struct plot *plot, double x);
double plot_py(const struct plot *plot, double y);

/* Writes SVG. alone: with its own style, for a file; else for a page that has one. */
void plot_svg(FILE *out, const struct plot *plot, bool alone);
/* Whether the plot has content: one epoch has no curve, one run no difference. */
bool plot_worthwhile(const struct plot *plot);
/* Whether any bar has this class, so that the legend includes it. */
bool plot_has_class(const struct plot *plot, int class);
/* Draws curves in columns x rows characters, braille or ASCII; bars in one line each. ANSI colours if
 * requested. */
void plot_terminal(FILE *out, const struct plot *plot, int columns, int rows, bool braille, bool color);

/* Writes text for SVG and HTML with & < > " ' escaped. */
void html_text(FILE *out, const char *text);

#endif
