/* Settings of the dashboard, stored in $XDG_STATE_HOME/meopt/dashboard.json. */
#include "cli/dashboard/dash_internal.h"
#include "cli/terminal/screen.h"
#include "core/base/file.h"
#include "core/base/path.h"
#include "core/base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 64 << 10 };

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

/* The fonts of Linux consoles lack braille. */
static enum dash_glyphs usual_glyphs(void)
{
    const char *term = getenv("TERM");
    return term && strcmp(term, "linux") == 0 ? GLYPHS_BLOCK : GLYPHS_BRAILLE;
}

/* Loads the stored baselines that exist in this run's directory. */
static void take_baselines(struct dash *d, const json_t *list)
{
    char *own = realpath(d->run->directory, NULL), *parent = own ? path_dirname(own) : NULL;
    const json_t *text;
    size_t i;
    json_array_foreach(list, i, text)
    {
        const char *path = json_string_value(text);
        if (!path || !own || strcmp(path, own) == 0) continue;
        char *within = path_dirname(path);
        if (strcmp(within, parent) == 0) (void)dash_baseline_add(d, path, NULL);
        free(within);
    }
    free(parent);
    free(own);
}

/* Baselines of the command line are not stored. */
static json_t *baselines_json(const struct dash *d, const json_t *kept)
{
    json_t *list = json_array(), *before = json_object_get(kept, "baselines");
    if (!d->baselines_chosen) {
        if (json_is_array(before)) json_array_extend(list, before);
        return list;
    }
    for (int i = 0; i < d->baseline_count; i++) {
        char *path = realpath(d->baselines[i]->directory, NULL);
        if (path) json_array_append_new(list, json_string(path));
        free(path);
    }
    return list;
}

void dash_settings_load(struct dash *d)
{
    char *path = settings_path();
    json_t *kept = path ? json_read(path, MOST_BYTES, NULL) : NULL;
    d->glyphs = (enum dash_glyphs)choice(kept, "glyphs", usual_glyphs(), 3);
    if (screen_ascii) d->glyphs = GLYPHS_ASCII;
    d->axis = (enum dash_axis)choice(kept, "axis", AXIS_STEP, AXIS_COUNT);
    d->smoothing = choice(kept, "smoothing", d->smoothing, DASH_SMOOTHING);
    d->log_scale = flag(kept, "log", d->log_scale);
    d->raw = flag(kept, "raw", d->raw);
    d->outliers = flag(kept, "outliers", d->outliers);
    if (!d->baseline_count) take_baselines(d, json_object_get(kept, "baselines"));
    json_decref(kept);
    free(path);
}

/* Ignores errors: without a home directory the defaults apply each time. */
void dash_settings_save(const struct dash *d)
{
    char *path = settings_path(), *directory = path ? path_dirname(path) : NULL;
    json_t *kept = path ? json_read(path, MOST_BYTES, NULL) : NULL;
    json_t *now =
        json_pack("{s:i, s:i, s:b, s:b, s:b, s:o}", "axis", (int)d->axis, "smoothing", d->smoothing, "log",
                  d->log_scale, "raw", d->raw, "outliers", d->outliers, "baselines", baselines_json(d, kept));
    if (!screen_ascii && d->glyphs != usual_glyphs())
        json_object_set_new(now, "glyphs", json_integer((json_int_t)d->glyphs));
    if (path && !json_equal(now, kept) && file_make_dirs(directory, NULL) == 0)
        json_write(path, now, JSON_INDENT(1) | JSON_PRESERVE_ORDER, NULL);
    json_decref(kept);
    json_decref(now);
    free(directory);
    free(path);
}
