/* The dashboard on the screen (dash_draw.c), from what was read
 * (core/run/follow.h) and what the user chose (dash.c). */
#ifndef MEOPT_CLI_DASHBOARD_DASH_DRAW_H
#define MEOPT_CLI_DASHBOARD_DASH_DRAW_H

#include "cli/dashboard/dash.h"
#include "cli/dashboard/dash_layout.h"
#include "cli/terminal/keys.h"
#include "core/run/change.h"
#include "core/run/follow.h"
#include "core/train/memory_explain.h"

#include <wchar.h>

enum { DASH_SMOOTHING = 9 };
extern const double dash_weights[DASH_SMOOTHING]; /* of the past, by degree */

enum dash_axis { AXIS_STEP, AXIS_EPOCH, AXIS_TIME, AXIS_COUNT };

struct dash {
    const struct dash_options *options;
    struct follow *run, *baselines[DASH_BASELINES];
    int baseline_count;
    bool baselines_chosen; /* here, by b: these are kept for the next time */
    struct follow *past;   /* the run at the cursor, NULL without one */
    double past_step;
    enum dash_tab tab;
    enum dash_glyphs glyphs;
    enum dash_axis axis;
    double steps, end; /* steps that the charts show, up to this one; INFINITY: all of them, the newest */
    double cursor;     /* step; NAN: none */
    int smoothing;     /* a degree, 0: none */
    bool log_scale, raw, zoomed, paused, outliers;
    struct keys_question asks; /* to stop the run, or to resume it */
    bool goes_on, branches;
    int64_t go_on_from; /* step of the checkpoint */
    struct {
        bool open;
        int row, count;
        char **names; /* of the runs beside this one */
    } others;
    struct {
        bool open, made;
        enum memory_class class;
        int top; /* row */
        struct explanation what;
    } why;
    struct {
        bool open, typing;
        int row; /* of change_keys */
        struct change_values values;
        char typed[CHANGE_TEXT];
    } edit;
    struct {
        bool typing;
        char word[64];     /* that is searched; "" none */
        int column, found; /* the first column that is shown; lines back */
    } log;
    int selected, top;         /* card */
    int chart, charts_at_once; /* the one that is selected; how many a page has */
    int scroll;                /* lines back in the log */
    char message[200];
};

/* As a dashboard begins, before what was kept. */
struct dash dash_begin(const struct dash_options *options);

/* The run goes on, and this is no replay of it. */
bool dash_alive(const struct dash *d);
/* The run as it is, or was where the cursor is. */
const struct follow *dash_shown(const struct dash *d);
/* A key of keys_get. Whether to leave. */
bool dash_key(struct dash *d, int kind, wint_t c);

void dash_draw_start(void); /* colours, once the screen is open */
void dash_draw(struct dash *d);

#endif
