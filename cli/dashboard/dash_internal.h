/* Private to the dashboard: drawing primitives and the functions of each view. A view uses the state
 * (dash_state.c) and the primitives (dash_paint.c); only dash.c (keys) and dash_draw.c (frames) call views.
 */
#ifndef MEOPT_CLI_DASHBOARD_DASH_INTERNAL_H
#define MEOPT_CLI_DASHBOARD_DASH_INTERNAL_H

#include "cli/dashboard/dash_draw.h"

enum {
    PAIR_CLASS = 1,
    PAIR_GOOD = 10,
    PAIR_BAD,
    PAIR_DIM,
    PAIR_RAW,
    PAIR_SMOOTH,
    PAIR_SPEED,
    PAIR_BASELINE /* and DASH_BASELINES - 1 more */
};
enum { PLOT_LABELS = 9 }; /* columns left of a plot */

/* ---- dash_paint.c ---- */

/* Returns the attribute of a colour pair; 0 without colours. */
int dash_paint(int pair);
/* Draws text, truncated to w columns. */
void dash_put(int y, int x, int w, int attributes, const char *text);
/* Draws a plot of r->w - PLOT_LABELS by r->h - 2 cells and its labels, below the title line of r. pairs:
 * colour pair of each series. */
void dash_plot_draw(const struct dash_rect *r, struct dash_plot *p, const int *pairs);

/* ---- dash_state.c ---- */

/* Returns whether the last key was typed alone, not pasted; otherwise sets a message that it is ignored. */
bool dash_key_alone(struct dash *d);
/* Opens one more run whose curves are drawn; DASH_BASELINES at most. */
int dash_baseline_add(struct dash *d, const char *directory, struct error *err);
const char *dash_baseline_name(const struct dash *d, int i);

/* Writes "  cosine 0.9706" for each metric of the run's objective: those of the last step, or those of the
 * last evaluation. Returns dst. */
char *dash_scores(char *dst, size_t size, const struct follow *run, bool evaluated);

/* ---- dash_summary.c ---- */

/* Prints a summary of an ended run to stdout. */
void dash_summary(const struct follow *run);

/* ---- dash_settings.c ---- */

/* Load and save the user's settings; load after the screen is open. */
void dash_settings_load(struct dash *d);
void dash_settings_save(const struct dash *d);

/* ---- dash_charts.c ---- */

enum { CHART_CARDS = METRIC_COUNT, CHART_COUNT = METRIC_COUNT + READING_COUNT };

/* Draws chart `which`: a follow_metric, or CHART_CARDS + a follow_reading of the selected card. */
void dash_chart(const struct dash *d, int which, const struct dash_rect *r, bool selected);
/* Draws a page of charts. */
void dash_charts(struct dash *d, const struct dash_rect *r);
/* Handles a key of the charts; returns false for other keys. */
bool dash_chart_key(struct dash *d, int kind, wint_t c);

/* ---- dash_edit.c ---- */

void dash_edit_open(struct dash *d);
void dash_edit_key(struct dash *d, int kind, wint_t c);
void dash_edit_draw(const struct dash *d, int rows, int columns);

/* ---- dash_baselines.c ---- */

void dash_baselines_end(struct dash *d);
void dash_others_open(struct dash *d);
void dash_others_key(struct dash *d, int kind, wint_t c);
void dash_others_draw(const struct dash *d, int rows, int columns);

/* ---- dash_log.c ---- */

/* Handles a key of the log tab; returns false for other keys. */
bool dash_log_key(struct dash *d, int kind, wint_t c);
void dash_log_draw(struct dash *d, const struct dash_rect *r);

/* ---- dash_why.c ---- */

/* Handles a key of the memory tab, which can list the tensors of a class; returns false for other keys. */
bool dash_why_key(struct dash *d, int kind, wint_t c);
void dash_why_draw(struct dash *d, const struct dash_rect *r);
void dash_why_end(struct dash *d);

/* ---- dash_cards.c ---- */

void dash_cards(struct dash *d, const struct dash_layout *l);
void dash_savings(const struct dash *d, const struct dash_rect *r);
void dash_memory(const struct dash *d, const struct dash_rect *r);

#endif
