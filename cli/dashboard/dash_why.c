/* The tensors of a memory class, with the keys that reduce them (core/plan/memory_explain.h), planned from
 * the run's config.yaml. */
#include "cli/dashboard/dash_internal.h"
#include "cli/terminal/screen.h"
#include "core/base/path.h"

#include <ncurses.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void open_explanation(struct dash *d)
{
    char *path = path_join(d->run->directory, "config.yaml");
    int count = d->run->rank_count ? d->run->rank_count : d->run->card_count;
    struct comm_options ranks = {.size = count > 1 ? count : 1};
    struct memory_planner p;
    struct error err = {0};
    if (!d->why.made && memory_planner_open(&p, path, NULL, 0, &ranks, &err) == 0) {
        explain(&d->why.what, &p, 0);
        memory_planner_close(&p);
        d->why.made = true;
    }
    d->why.open = d->why.made;
    const char *file = strrchr(err.file, '/') ? strrchr(err.file, '/') + 1 : err.file;
    char line[16] = "";
    if (err.line > 0) snprintf(line, sizeof line, ":%d", err.line);
    if (!d->why.open)
        snprintf(d->message, sizeof d->message, _("cannot plan this run: %.60s%s%s%.100s"), file, line,
                 file[0] ? ": " : "", err.what);
    free(path);
}

static int rows_of(const struct dash *d)
{
    int n = 0;
    for (int i = 0; i < d->why.what.row_count; i++) n += d->why.what.rows[i].class == d->why.class;
    return n;
}

static void select_class(struct dash *d, int by)
{
    int c = (int)d->why.class;
    do {
        c = (c + by + MEMORY_CLASS_COUNT) % MEMORY_CLASS_COUNT;
    } while (!d->why.what.use.peak_bytes[c] && c != (int)d->why.class);
    d->why.class = (enum memory_class)c;
    d->why.top = 0;
}

bool dash_why_key(struct dash *d, int kind, wint_t c)
{
    bool enter = (kind == OK && (c == '\n' || c == '\r')) || (kind == KEY_CODE_YES && c == KEY_ENTER),
         special = kind == KEY_CODE_YES;
    if (d->tab != TAB_MEMORY) return false;
    if (!d->why.open) {
        if (enter) open_explanation(d);
        return enter;
    }
    int last = rows_of(d) - 1;
    if (enter || (!special && c == 27)) d->why.open = false;
    else if (special ? c == KEY_DOWN : c == 'j') select_class(d, 1);
    else if (special ? c == KEY_UP : c == 'k') select_class(d, -1);
    else if (special && c == KEY_NPAGE) d->why.top = d->why.top + 8 < last ? d->why.top + 8 : last;
    else if (special && c == KEY_PPAGE) d->why.top = d->why.top > 8 ? d->why.top - 8 : 0;
    else return false;
    return true;
}

/* Draws a tensor and the keys that reduce it, on separate lines if they do not fit. Returns the number of
 * lines. */
static int draw_row(const struct dash *d, const struct explain_row *row, int y, const struct dash_rect *r)
{
    char line[400], bytes[24], saved[24], count[24] = "";
    int name = r->w >= 100 ? 44 : 26, x = r->x + name + 14, lines = 1, bottom = r->y + r->h;
    const struct memory_option *remedy = row->remedy < 0 ? NULL : &d->why.what.settings.options[row->remedy];
    char advice[400] = "";
    if (remedy)
        snprintf(advice, sizeof advice, "-%s x%.2f %s", dash_bytes(saved, sizeof saved, row->saved),
                 remedy->compute, remedy->keys);
    if (x + screen_width(advice) > r->x + r->w) {
        x = r->x + 13;
        lines++;
    }
    if (!remedy || lines > 1) name = r->w - 13;
    if (row->count > 1) snprintf(count, sizeof count, "x%lld", (long long)row->count);
    snprintf(line, sizeof line, "%7s %-4s %.*s", dash_bytes(bytes, sizeof bytes, row->bytes), count, name,
             row->name);
    dash_put(y, r->x, r->w, 0, line);
    for (const char *rest = advice; *rest && y + lines <= bottom;) {
        int space = r->x + r->w - x, n = (int)strlen(rest);
        if (n > space)
            for (n = space; n > 0 && rest[n] != ' ';) n--; /* between two keys */
        if (n <= 0) n = space;
        char part[400];
        snprintf(part, sizeof part, "%.*s", n, rest);
        dash_put(y + lines - 1, x, space, dash_paint(PAIR_GOOD), part);
        rest += n + strspn(rest + n, " ");
        if (*rest) lines++;
    }
    return lines;
}

void dash_why_draw(struct dash *d, const struct dash_rect *r)
{
    const struct explanation *e = &d->why.what;
    char line[200], bytes[24];
    int y = r->y, x = r->x, skip = d->why.top;
    if (!e->use.peak_bytes[d->why.class]) select_class(d, 1);
    for (int c = 0; c < MEMORY_CLASS_COUNT; c++) {
        if (!e->use.peak_bytes[c]) continue;
        const char *name = _(memory_class_names[c]);
        snprintf(line, sizeof line, "%.*s %s", (int)text_line(name, r->w >= 100 ? 20 : 5), name,
                 dash_bytes(bytes, sizeof bytes, (double)e->use.peak_bytes[c]));
        dash_put(y, x, r->x + r->w - x, c == (int)d->why.class ? (int)A_REVERSE : dash_paint(PAIR_CLASS + c),
                 line);
        x += screen_width(line) + 1;
    }
    dash_put(++y, r->x, r->w, dash_paint(PAIR_DIM),
             "planned, blocks together: what shrinks it, compute x, its key. up down Esc");
    y++;
    for (int i = 0; i < e->row_count && y < r->y + r->h; i++)
        if (e->rows[i].class == d->why.class && skip-- <= 0) y += draw_row(d, &e->rows[i], y, r);
}

void dash_why_end(struct dash *d)
{
    if (d->why.made) explanation_free(&d->why.what);
}
