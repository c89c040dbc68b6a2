/* A table of runs: see run_table.h. */
#include "cli/dashboard/run_table.h"
#include "cli/dashboard/dash_layout.h"
#include "cli/run_name.h"
#include "cli/terminal/screen.h"
#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/path.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const run_order_names[ORDER_COUNT + 1] = {N_("age"),  N_("name"), N_("state"), N_("step"),
                                                      N_("loss"), N_("peak"), NULL};

/* ---- the directory ---- */

bool run_table_refresh(struct run_table *t, double seconds, bool *changed)
{
    int count, old = 0, differs = 0;
    char **names = run_names(t->directory, false, &count);
    if (count < 0) return false;
    struct run_brief *briefs = xcalloc((size_t)count + 1, sizeof *briefs);
    for (int i = 0; i < count; i++) { /* both are sorted by name */
        while (old < t->entries && strcmp(t->briefs[old].name, names[i]) < 0)
            run_brief_free(&t->briefs[old++]), differs++;
        if (old < t->entries && strcmp(t->briefs[old].name, names[i]) == 0) briefs[i] = t->briefs[old++];
        else {
            briefs[i] = (struct run_brief){.name = xstrdup(names[i]),
                                           .directory = path_join(t->directory, names[i]),
                                           .peak_bytes = -1,
                                           .without_bytes = -1};
            differs++;
        }
    }
    for (; old < t->entries; old++) run_brief_free(&t->briefs[old]), differs++;
    run_names_free(names, count);
    free(t->briefs);
    t->briefs = briefs;
    t->entries = count;
    differs += run_briefs_read(briefs, count, clock_seconds() + seconds, &t->unread);
    t->count = 0;
    for (int i = 0; i < count; i++) t->count += !briefs[i].foreign;
    if (changed) *changed = differs > 0;
    run_table_choose(t);
    return true;
}

/* ---- filter and order ---- */

/* Writes the state of a run for people: "done", "silent 5m". */
static char *state_text(char *dst, size_t size, const struct run_brief *b)
{
    char state[32], word[32];
    size_t n = strcspn(run_brief_state(b, state, sizeof state), " ");
    snprintf(word, sizeof word, "%.*s", (int)n, state);
    snprintf(dst, size, "%s%s", _(word), state + n);
    return dst;
}

static bool passes(const struct run_table *t, const struct run_brief *b)
{
    char state[32], shown[64], words[sizeof t->filter], job[sizeof b->job + sizeof b->cluster], *save = NULL;
    run_brief_state(b, state, sizeof state);
    if (t->state && strncmp(state, t->state, strlen(t->state)) != 0) return false;
    snprintf(words, sizeof words, "%s", t->filter);
    snprintf(job, sizeof job, "%s%s%s", b->job, b->cluster[0] ? "@" : "", b->cluster);
    for (char *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save))
        if (!strcasestr(b->name, w) && !strcasestr(state, w) &&
            !strstr(state_text(shown, sizeof shown, b), w) && !strcasestr(b->device, w) &&
            !strcasestr(job, w) && !strcasestr(bottleneck_names[b->bound_by], w) &&
            !strstr(_(bottleneck_names[b->bound_by]), w))
            return false;
    return true;
}

static int by_number(double a, double b)
{
    if (isnan(a) || isnan(b)) return (isnan(a) ? 1 : 0) - (isnan(b) ? 1 : 0); /* unknown ones last */
    return a < b ? -1 : a > b;
}

static int compare(const void *x, const void *y, void *context)
{
    const struct run_table *t = context;
    const struct run_brief *a = &t->briefs[*(const int *)x], *b = &t->briefs[*(const int *)y];
    int c = 0;
    switch (t->order) {
    case ORDER_AGE: /* the newest first */
        c = by_number(b->started > 0 ? b->started : b->last_sign, a->started > 0 ? a->started : a->last_sign);
        break;
    case ORDER_STATE: c = strcmp(a->status.state, b->status.state); break;
    case ORDER_STEP: c = by_number((double)b->step, (double)a->step); break;
    case ORDER_LOSS: c = by_number(a->last.loss, b->last.loss); break;
    case ORDER_PEAK:
        c = by_number(a->peak_bytes > 0 ? (double)a->peak_bytes : NAN,
                      b->peak_bytes > 0 ? (double)b->peak_bytes : NAN);
        break;
    default: break;
    }
    if (c == 0) c = strcmp(a->name, b->name);
    return t->reversed ? -c : c;
}

void run_table_choose(struct run_table *t)
{
    t->shown = xrealloc(t->shown, ((size_t)t->entries + 1) * sizeof *t->shown);
    t->shown_count = 0;
    for (int i = 0; i < t->entries; i++)
        if (!t->briefs[i].foreign && passes(t, &t->briefs[i])) t->shown[t->shown_count++] = i;
    qsort_r(t->shown, (size_t)t->shown_count, sizeof *t->shown, compare, t);
}

void run_table_free(struct run_table *t)
{
    for (int i = 0; i < t->entries; i++) run_brief_free(&t->briefs[i]);
    free(t->briefs);
    free(t->shown);
    t->briefs = NULL;
    t->shown = NULL;
}

/* ---- columns ---- */

enum column {
    COLUMN_STATE,
    COLUMN_STEP,
    COLUMN_LOSS,
    COLUMN_LEFT,
    COLUMN_PEAK,
    COLUMN_SAVED,
    COLUMN_BOUND,
    COLUMN_CURVE,
    COLUMN_BEST,
    COLUMN_RATE,
    COLUMN_SIGN,
    COLUMN_JOB,
    COLUMN_DEVICE,
    COLUMN_COUNT
};
static const struct {
    const char *title;
    int width;
    bool left;
} columns[COLUMN_COUNT] = {
    [COLUMN_STATE] = {N_("state"), 10, true},         [COLUMN_STEP] = {N_("step"), 13, false},
    [COLUMN_LOSS] = {N_("loss"), 8, false},           [COLUMN_LEFT] = {N_("left"), 8, false},
    [COLUMN_PEAK] = {N_("peak"), 6, false},           [COLUMN_SAVED] = {N_("saved"), 5, false},
    [COLUMN_BOUND] = {N_("bound by"), 15, true},      [COLUMN_CURVE] = {N_("loss"), 16, true},
    [COLUMN_BEST] = {N_("best"), 7, false},           [COLUMN_RATE] = {N_("rate"), 12, false},
    [COLUMN_SIGN] = {N_("last sign, UTC"), 20, true}, [COLUMN_JOB] = {N_("job"), 12, true},
    [COLUMN_DEVICE] = {N_("device"), 16, true}};
enum { NAME_LEAST = 20 };

/* Returns the number of columns that fit, and the width left for the name. */
static int fitting(int width, int name_width, int *name)
{
    int count = 0, used = 0, least = name_width > NAME_LEAST ? name_width : NAME_LEAST;
    while (count < COLUMN_COUNT && used + columns[count].width + 1 + least <= width)
        used += columns[count++].width + 1;
    *name = name_width > 0 ? name_width : width - used;
    return count;
}

void run_table_ready(const struct run_table *t, int from, int count, int width, int name_width)
{
    int name, last = from + count < t->shown_count ? from + count : t->shown_count, n = 0;
    if (fitting(width, name_width, &name) <= COLUMN_CURVE) return;
    struct run_brief **some = xcalloc((size_t)count + 1, sizeof(struct run_brief *));
    for (int i = from; i < last; i++) some[n++] = &t->briefs[t->shown[i]];
    run_briefs_losses(some, n);
    free(some);
}

/* Appends a text to the line, padded or truncated to its column. */
static size_t put_column(char dst[RUN_LINE], size_t at, const char *text, int width, bool left, bool ascii)
{
    int w = screen_width(text);
    char cut[512];
    if (w > width) { /* keep the start and the end of a name, which differ most */
        int half = (width - 1) / 2, tail = width - 1 - half;
        size_t n = strlen(text);
        bool plain = (size_t)w == n;
        if (plain && !ascii) snprintf(cut, sizeof cut, "%.*s…%s", half, text, text + n - (size_t)tail);
        else if (plain) snprintf(cut, sizeof cut, "%.*s~%s", half, text, text + n - (size_t)tail);
        else screen_cut(cut, sizeof cut, text, width);
        text = cut;
        w = screen_width(text);
    }
    int pad = width > w ? width - w : 0;
    if (at + strlen(text) + (size_t)pad + 2 >= RUN_LINE) return at;
    at += (size_t)snprintf(dst + at, RUN_LINE - at, "%*s%s%*s", left ? 0 : pad, "", text, left ? pad : 0, "");
    return at;
}

static size_t finish(char dst[RUN_LINE], size_t at)
{
    while (at && dst[at - 1] == ' ') at--;
    dst[at] = 0;
    return at;
}

void run_table_head(char dst[RUN_LINE], int width, int name_width)
{
    int name, count = fitting(width, name_width, &name);
    size_t at = put_column(dst, 0, _("run"), name, true, true);
    for (int c = 0; c < count; c++) {
        at += (size_t)snprintf(dst + at, RUN_LINE - at, " ");
        at = put_column(dst, at, translation(columns[c].title), columns[c].width, columns[c].left, true);
    }
    finish(dst, at);
}

static void curve_text(char *dst, size_t size, const struct run_brief *b, bool ascii)
{
    static const char *const blocks[] = {"\u2581", "\u2582", "\u2583", "\u2584",
                                         "\u2585", "\u2586", "\u2587", "\u2588"},
                             *const letters[] = {"_", ".", "-", "~", "=", "+", "*", "#"};
    double low = INFINITY, high = -INFINITY;
    size_t at = 0;
    dst[0] = 0;
    if (!b->losses_mark) return;
    for (int i = 0; i < BRIEF_LOSSES; i++) {
        if (!isfinite(b->losses[i])) continue;
        low = fmin(low, b->losses[i]);
        high = fmax(high, b->losses[i]);
    }
    for (int i = 0; i < BRIEF_LOSSES; i++) {
        int k = high > low ? (int)((b->losses[i] - low) / (high - low) * 7.999) : 3;
        const char *glyph = !isfinite(b->losses[i]) ? " " : ascii ? letters[k] : blocks[k];
        at += (size_t)snprintf(dst + at, size - at, "%s", glyph);
    }
}

/* Writes the best evaluation: "1.4835", "93.75%". */
static void best_text(char *dst, size_t size, const struct checkpoint_best *best)
{
    const struct score_row *row = score_named(best->metric);
    if (row && row->percent) score_text(dst, size, row, best->value, "");
    else snprintf(dst, size, "-");
    if (row && !row->percent && strlen(dash_number(dst, size, best->value)) > 7)
        snprintf(dst, size, "%.1e", best->value);
}

/* Writes "96.25 img/s", "48213 tok/s", "1.25M tok/s". */
static void rate_text(char *dst, size_t size, const struct metric_line *last)
{
    const struct unit *unit;
    double rate = metric_rate(last, &unit);
    if (!isfinite(rate)) snprintf(dst, size, "-");
    else if (rate >= 1e6) snprintf(dst, size, "%.3gM %s", rate * 1e-6, _(unit->short_rate));
    else snprintf(dst, size, rate < 1000 ? "%.4g %s" : "%.0f %s", rate, _(unit->short_rate));
}

static void cell_text(char *dst, size_t size, const struct run_brief *b, enum column column, bool ascii)
{
    const struct run_status *s = &b->status;
    dst[0] = 0;
    if (!b->state_mark) return; /* not read yet */
    switch (column) {
    case COLUMN_STATE: state_text(dst, size, b); break;
    case COLUMN_STEP:
        if (s->total) snprintf(dst, size, "%lld/%lld", (long long)b->step, (long long)s->total);
        else snprintf(dst, size, "%lld", (long long)b->step);
        break;
    case COLUMN_LOSS:
        if (b->last.step < 0) snprintf(dst, size, "-");
        else if (strlen(dash_number(dst, size, b->last.loss)) > (size_t)columns[column].width)
            snprintf(dst, size, "%.1e", b->last.loss);
        if (isnan(b->last.loss)) snprintf(dst, size, "%s", b->last.step < 0 ? "-" : "NaN");
        break;
    case COLUMN_LEFT: dash_duration(dst, size, b->left_s); break;
    case COLUMN_PEAK: dash_bytes(dst, size, b->peak_bytes > 0 ? (double)b->peak_bytes : -1); break;
    case COLUMN_SAVED:
        if (b->peak_bytes > 0 && b->without_bytes > b->peak_bytes)
            snprintf(dst, size, "%+.0f%%", 100 * ((double)b->peak_bytes / (double)b->without_bytes - 1));
        else snprintf(dst, size, "-");
        break;
    case COLUMN_BOUND: snprintf(dst, size, "%s", b->bound_by ? _(bottleneck_names[b->bound_by]) : "-"); break;
    case COLUMN_BEST: best_text(dst, size, &b->best); break;
    case COLUMN_CURVE: curve_text(dst, size, b, ascii); break;
    case COLUMN_RATE: rate_text(dst, size, &b->last); break;
    case COLUMN_SIGN: run_time_text(dst, size, "%Y-%m-%dT%H:%M:%SZ", b->last_sign); break;
    case COLUMN_JOB: snprintf(dst, size, "%s", b->job[0] ? b->job : "-"); break;
    case COLUMN_DEVICE: snprintf(dst, size, "%s", b->device); break;
    default: dst[0] = 0;
    }
}

void run_table_line(char dst[RUN_LINE], const struct run_brief *b, int width, int name_width, bool ascii)
{
    int name, count = fitting(width, name_width, &name);
    char text[512];
    size_t at = put_column(dst, 0, name_printable(text, sizeof text, b->name), name, true, ascii);
    for (int c = 0; c < count; c++) {
        cell_text(text, sizeof text, b, (enum column)c, ascii);
        if (c == COLUMN_STATE && count <= COLUMN_BOUND && b->bound_by && b->bound_by != BOTTLENECK_COMPUTE)
            snprintf(
                text, sizeof text, "%.*s", (int)strcspn(_(bottleneck_names[b->bound_by]), " "),
                _(bottleneck_names[b->bound_by])); /* the column does not fit, and there is a bottleneck */
        at += (size_t)snprintf(dst + at, RUN_LINE - at, " ");
        at = put_column(dst, at, text, columns[c].width, columns[c].left, ascii);
    }
    finish(dst, at);
}
