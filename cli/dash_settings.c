/* What was chosen on the dashboard, kept for the next one: $XDG_STATE_HOME/meopt/dashboard.json. */
#include "cli/dash_parts.h"
#include "cli/screen.h"
#include "core/base/file.h"
#include "core/base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 64 << 10 };

struct dash dash_begin(const struct dash_options *options)
{
    return (struct dash){.options = options,
                         .glyphs = GLYPHS_BRAILLE,
                         .steps = INFINITY,
                         .end = INFINITY,
                         .cursor = NAN,
                         .smoothing = 1,
                         .raw = true,
                         .overlay = true};
}

static char *settings_path(void) { return path_xdg("XDG_STATE_HOME", ".local/state", "dashboard.json"); }

static int choice(const json_t *object, const char *key, int missing, int count)
{
    const json_t *x = json_object_get(object, key);
    json_int_t value = json_is_integer(x) ? json_integer_value(x) : missing;
    return value >= 0 && value < count ? (int)value : missing;
}

static bool flag(const json_t *object, const char *key, bool missing)
{
    const json_t *x = json_object_get(object, key);
    return json_is_boolean(x) ? json_is_true(x) : missing;
}

/* Consoles have no braille in their fonts. */
static enum dash_glyphs usual_glyphs(void)
{
    const char *term = getenv("TERM");
    return term && strcmp(term, "linux") == 0 ? GLYPHS_BLOCK : GLYPHS_BRAILLE;
}

void dash_settings_load(struct dash *d)
{
    char *path = settings_path();
    json_t *kept = path ? json_read(path, MOST_BYTES, NULL) : NULL;
    d->glyphs = (enum dash_glyphs)choice(kept, "glyphs", usual_glyphs(), 3);
    if (screen_ascii) d->glyphs = GLYPHS_ASCII;
    d->axis = (enum dash_axis)choice(kept, "axis", AXIS_STEP, AXIS_COUNT);
    d->smoothing = choice(kept, "smoothing", d->smoothing, 3);
    d->log_scale = flag(kept, "log", d->log_scale);
    d->raw = flag(kept, "raw", d->raw);
    d->overlay = flag(kept, "baseline", d->overlay);
    d->outliers = flag(kept, "outliers", d->outliers);
    json_decref(kept);
    free(path);
}

/* A user without a home, or a full disk, has them anew each time. */
void dash_settings_save(const struct dash *d)
{
    char *path = settings_path(), *directory = path ? path_dirname(path) : NULL;
    json_t *now =
        json_pack("{s:i, s:i, s:b, s:b, s:b, s:b}", "axis", (int)d->axis, "smoothing", d->smoothing, "log",
                  d->log_scale, "raw", d->raw, "baseline", d->overlay, "outliers", d->outliers);
    if (!screen_ascii && d->glyphs != usual_glyphs())
        json_object_set_new(now, "glyphs", json_integer((json_int_t)d->glyphs));
    json_t *kept = path ? json_read(path, MOST_BYTES, NULL) : NULL;
    if (path && !json_equal(now, kept) && file_make_dirs(directory, NULL) == 0)
        json_write(path, now, JSON_INDENT(1) | JSON_PRESERVE_ORDER, NULL);
    json_decref(kept);
    json_decref(now);
    free(directory);
    free(path);
}
