/* State of the dashboard: what its keys, its settings and its views ask of it (dash_draw.h). */
#include "cli/dashboard/dash_internal.h"
#include "cli/terminal/keys.h"
#include "core/base/path.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct dash dash_begin(const struct dash_options *options)
{
    return (struct dash){.options = options,
                         .glyphs = GLYPHS_BRAILLE,
                         .steps = INFINITY,
                         .end = INFINITY,
                         .cursor = NAN,
                         .smoothing = 3,
                         .raw = true};
}

bool dash_alive(const struct dash *d)
{
    const struct run_status *s = &d->run->status;
    return !d->options->replay && !run_status_over(s);
}

const struct follow *dash_shown(const struct dash *d) { return d->past ? d->past : d->run; }

bool dash_key_alone(struct dash *d)
{
    if (keys_alone()) return true;
    snprintf(d->message, sizeof d->message, _("ignored: several keys came at once, as in a paste"));
    return false;
}

int dash_baseline_add(struct dash *d, const char *directory, struct error *err)
{
    if (d->baseline_count == DASH_BASELINES)
        return error_set(err, EXIT_USAGE, NULL, "%d baselines at most", DASH_BASELINES);
    int code = follow_open(&d->baselines[d->baseline_count], directory, false, err);
    if (code) return code;
    follow_refresh(d->baselines[d->baseline_count++]);
    return 0;
}

const char *dash_baseline_name(const struct dash *d, int i)
{
    return path_basename(d->baselines[i]->directory);
}

char *dash_scores(char *dst, size_t size, const struct follow *f, bool evaluated)
{
    size_t n = 0;
    char number[24];
    dst[0] = 0;
    for (int i = 0; i < SCORE_COUNT && n < size; i++) {
        const struct score_row *row = &score_rows[i];
        if (row->rare != evaluated || !f->scored[i] || i == SCORE_TOKENS_PER_S) continue;
        n += (size_t)snprintf(dst + n, size - n, "  %s %s", _(row->label),
                              row->percent ? score_text(number, sizeof number, row, f->scores[i], "")
                                           : dash_number(number, sizeof number, f->scores[i]));
    }
    return dst;
}
