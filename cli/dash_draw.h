/* The dashboard on the screen (dash_draw.c), from what was read
 * (core/run/follow.h) and what the user chose (dash.c). */
#ifndef MEOPT_CLI_DASH_DRAW_H
#define MEOPT_CLI_DASH_DRAW_H

#include "cli/dash.h"
#include "cli/dash_layout.h"
#include "core/run/follow.h"

#include <wchar.h>

enum dash_range_choice { RANGE_ALL, RANGE_2000, RANGE_200, RANGE_COUNT };

struct dash {
    const struct dash_options *options;
    struct follow *run, *baseline; /* baseline may be NULL */
    enum dash_tab tab;
    enum dash_glyphs glyphs;
    enum dash_range_choice range;
    bool log_scale, raw, smooth, overlay, zoomed, paused;
    bool asks_to_stop; /* "stop? y/n" */
    int selected, top; /* card */
    int scroll;        /* lines back in the log */
    char message[200];
};

/* The run goes on, and this is no replay of it. */
bool dash_alive(const struct dash *d);
/* What get_wch gave: kind OK or KEY_CODE_YES. Whether to leave. */
bool dash_key(struct dash *d, int kind, wint_t c);

void dash_draw_start(void); /* colours, once the screen is open */
void dash_draw(struct dash *d);

#endif
