/* Drawing primitives of the dashboard's views: colours, text and plots (dash_internal.h). */
#include "cli/dashboard/dash_internal.h"
#include "cli/terminal/screen.h"

#include <math.h>
#include <ncurses.h>
#include <stdio.h>
#include <string.h>

void dash_draw_start(void)
{
    /* Okabe and Ito's colour-blind safe palette; eight-colour terminals get the nearest colours. */
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
    static const int others[DASH_BASELINES] = {6, 0, 5, 2};
    for (int i = 0; i < DASH_BASELINES; i++) init_pair((short)(PAIR_BASELINE + i), c[others[i]], -1);
    init_pair(PAIR_SPEED, c[4], -1);
}

int dash_paint(int pair) { return screen_colours ? COLOR_PAIR(pair) : 0; }

void dash_put(int y, int x, int w, int attributes, const char *text)
{
    if (w < 1) return;
    attron(attributes);
    screen_put(y, x, w, text, false);
    attroff(attributes);
}

void dash_plot_draw(const struct dash_rect *r, struct dash_plot *p, const int *pairs)
{
    char label[24], cell[8];
    int top = r->y + 1;
    for (int y = 0; y < p->h; y++) {
        if (p->flat ? y == p->h / 2 : y == 0 || y == p->h - 1 || (p->h >= 7 && y == p->h / 2)) {
            double v = p->flat    ? (p->y_max + p->y_min) / 2
                       : p->h > 1 ? p->y_max - (p->y_max - p->y_min) * y / (p->h - 1)
                                  : p->y_max;
            if (p->log) v = pow(10, v);
            if (strlen(dash_number(label, sizeof label, v)) >= PLOT_LABELS)
                snprintf(label, sizeof label, "%.1e", v);
            if (!p->empty) dash_put(top + y, r->x, PLOT_LABELS - 1, dash_paint(PAIR_DIM), label);
        }
        for (int x = 0; x < p->w; x++) {
            size_t at = (size_t)y * (size_t)p->w + (size_t)x;
            if (!p->cells[at]) continue;
            dash_plot_cell(p, y, x, cell);
            dash_put(top + y, r->x + PLOT_LABELS + x, 1, dash_paint(pairs[p->series[at]]), cell);
        }
    }
    if (p->empty) return;
    bool whole = p->x_max - p->x_min >= 10;
    snprintf(label, sizeof label, whole ? "%.0f" : "%.2f", p->x_min);
    dash_put(top + p->h, r->x + PLOT_LABELS, 12, dash_paint(PAIR_DIM), label);
    snprintf(label, sizeof label, whole ? "%.0f" : "%.2f", p->x_max);
    int w = (int)strlen(label);
    if (p->w > w + 8) dash_put(top + p->h, r->x + PLOT_LABELS + p->w - w, w, dash_paint(PAIR_DIM), label);
}
