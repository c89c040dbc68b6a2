/* Inside the dashboard's drawing: what its files share. */
#ifndef MEOPT_CLI_DASH_PARTS_H
#define MEOPT_CLI_DASH_PARTS_H

#include "cli/dash_draw.h"

enum { PAIR_CLASS = 1, PAIR_GOOD = 10, PAIR_BAD, PAIR_DIM, PAIR_RAW, PAIR_SMOOTH, PAIR_BASELINE, PAIR_SPEED };
enum { PLOT_LABELS = 9 }; /* columns left of a plot */

/* A pair's attribute; 0 without colours. */
int dash_paint(int pair);
/* Text in w columns at most. */
void dash_put(int y, int x, int w, int attributes, const char *text);
/* Below the title line of r: the plot, which is r->w - PLOT_LABELS by r->h - 2, its labels; pairs by series.
 */
void dash_plot_draw(const struct dash_rect *r, struct dash_plot *p, const int pairs[4]);

/* ---- dash_cards.c ---- */

void dash_cards(struct dash *d, const struct dash_layout *l);
void dash_savings(const struct dash *d, const struct dash_rect *r);
void dash_memory(const struct dash *d, const struct dash_rect *r);

#endif
