/* State of the dashboard, and its drawing (dash_draw.c). Data comes from core/run/follow.h, keys from
 * dash.c. */
#ifndef MEOPT_CLI_DASHBOARD_DASH_DRAW_H
#define MEOPT_CLI_DASHBOARD_DASH_DRAW_H

#include "cli/dashboard/dash.h"
#include "cli/dashboard/dash_layout.h"
#include "cli/terminal/keys.h"
#include "core/run/change.h"
#include "core/run/follow.h"
#include "core/plan/memory_explain.h"

#include <wchar.h>

enum { DASH_SMOOTHING = 9 };
extern const double dash_weights[DASH_SMOOTHING]; /* weight of the past, by degree of smoothing */

enum dash_axis { AXIS_STEP, AXIS_EPOCH, AXIS_TIME, AXIS_COUNT };

struct dash {
    const struct dash_options *options;
    struct follow *run, *baselines[DASH_BASELINES];
    int baseline_count;
    bool baselines_chosen; /* with key b: saved in the settings */
    struct follow *past;   /* the run at the cursor's step; NULL: no cursor */
    double past_step;
    enum dash_tab tab;
    enum dash_glyphs glyphs;
    enum dash_axis axis;
    double steps,
        end; /* range of the charts: number of steps (INFINITY: all), and the last step (INFINITY: newest) */
    double cursor; /* step; NAN: none */
    int smoothing; /* a degree, 0: none */
    bool log_scale, raw, zoomed, paused, outliers;
    struct keys_question asks; /* confirmation of stop or resume */
    bool resumes, branches;
    int64_t resume_step; /* step of the checkpoint */
    struct {
        bool open;
        int row, count;
        char **names; /* of other runs in the same directory */
    } others;
    struct {
        bool open, made;
        enum memory_class class;
        int top; /* row */
        struct explanation what;
    } why;
    struct {
        bool open, typing;
        int row; /* index in change_keys */
        struct change_values values;
        char typed[CHANGE_TEXT];
    } edit;
    struct {
        bool typing;
        char word[64];     /* search text; "": none */
        int column, found; /* first visible column; line of the match, counted back from the newest */
    } log;
    int selected, top;         /* card */
    int chart, charts_at_once; /* the selected one; charts per page */
    int scroll;                /* lines back in the log */
    char message[200];
};

/* Returns the default state, before dash_settings_load. */
struct dash dash_begin(const struct dash_options *options);

/* Returns whether the run is still training; false in a replay. */
bool dash_alive(const struct dash *d);
/* Returns the run at the cursor, or the current one. */
const struct follow *dash_shown(const struct dash *d);
/* Handles a key of keys_get. Returns whether to leave. */
bool dash_key(struct dash *d, int kind, wint_t c);

void dash_draw_start(void); /* defines colours; after the screen is open */
void dash_draw(struct dash *d);

#endif
