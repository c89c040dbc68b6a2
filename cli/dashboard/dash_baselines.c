/* Curves of other runs, drawn under those of this run: from --baseline, or chosen from the same directory.
 * */
#include "cli/dashboard/dash_internal.h"
#include "cli/run_name.h"
#include "core/base/path.h"

#include <ncurses.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_ROWS = 8 };

int dash_baselines_given(char **list, const struct arguments *args, struct error *err)
{
    const char *word;
    int code = 0;
    memset(list, 0, DASH_BASELINES * sizeof *list);
    for (int i = 0; (word = argument_list(args, "baseline", i)) != NULL && !code; i++) {
        if (i == DASH_BASELINES)
            code =
                error_set(err, EXIT_USAGE, "name fewer runs", "--baseline: at most %d runs", DASH_BASELINES);
        else list[i] = run_named(word, argument_text(args, "run-dir", NULL), &code, err);
    }
    if (code) dash_baselines_free(list);
    return code;
}

void dash_baselines_free(char **list)
{
    for (int i = 0; i < DASH_BASELINES; i++) {
        free(list[i]);
        list[i] = NULL;
    }
}

void dash_baselines_end(struct dash *d)
{
    for (int i = 0; i < d->baseline_count; i++) follow_close(d->baselines[i]);
    d->baseline_count = 0;
    run_names_free(d->others.names, d->others.count);
    d->others.names = NULL;
}

/* Returns the directory that contains this run. */
static char *parent_directory(const struct dash *d)
{
    char *real = realpath(d->run->directory, NULL), *parent = path_dirname(real ? real : d->run->directory);
    free(real);
    return parent;
}

static int chosen(const struct dash *d, const char *name)
{
    for (int i = 0; i < d->baseline_count; i++)
        if (strcmp(dash_baseline_name(d, i), name) == 0) return i;
    return -1;
}

static void toggle(struct dash *d, const char *name)
{
    struct error err = {0};
    int at = chosen(d, name);
    d->baselines_chosen = true;
    if (at >= 0) {
        follow_close(d->baselines[at]);
        memmove(&d->baselines[at], &d->baselines[at + 1],
                (size_t)(--d->baseline_count - at) * sizeof d->baselines[0]);
        return;
    }
    char *parent = parent_directory(d), *directory = path_join(parent, name);
    if (dash_baseline_add(d, directory, &err)) snprintf(d->message, sizeof d->message, "%.190s", err.what);
    free(directory);
    free(parent);
}

void dash_others_open(struct dash *d)
{
    char *parent = parent_directory(d), *real = realpath(d->run->directory, NULL);
    run_names_free(d->others.names, d->others.count);
    d->others.names = run_names(parent, true, &d->others.count);
    for (int i = 0; i < d->others.count; i++) { /* exclude this run */
        if (strcmp(d->others.names[i], path_basename(real ? real : d->run->directory)) != 0) continue;
        free(d->others.names[i]);
        memmove(&d->others.names[i], &d->others.names[i + 1],
                (size_t)(--d->others.count - i) * sizeof *d->others.names);
    }
    d->others.open = d->others.count > 0;
    if (d->others.row >= d->others.count) d->others.row = 0;
    if (!d->others.open)
        snprintf(d->message, sizeof d->message, _("there is no other run in this directory"));
    free(real);
    free(parent);
}

void dash_others_key(struct dash *d, int kind, wint_t c)
{
    bool special = kind == KEY_CODE_YES;
    int by = special ? (c == KEY_UP      ? -1
                        : c == KEY_DOWN  ? 1
                        : c == KEY_PPAGE ? -LIST_ROWS
                        : c == KEY_NPAGE ? LIST_ROWS
                                         : 0)
                     : (c == 'k'   ? -1
                        : c == 'j' ? 1
                                   : 0);
    d->others.row += by;
    if (d->others.row >= d->others.count) d->others.row = d->others.count - 1;
    if (d->others.row < 0) d->others.row = 0;
    if (special) return;
    if (c == ' ' || c == '\n' || c == '\r') toggle(d, d->others.names[d->others.row]);
    else if (c == 'b' || c == 'q' || c == 27) d->others.open = false;
}

void dash_others_draw(const struct dash *d, int rows, int columns)
{
    char line[300], name[256];
    int shown = d->others.count < LIST_ROWS ? d->others.count : LIST_ROWS, y = rows - shown - 2,
        top = d->others.row - shown / 2;
    if (top > d->others.count - shown) top = d->others.count - shown;
    if (top < 0) top = 0;
    dash_put(y, 0, columns, A_REVERSE, "runs to compare with: space selects, up to 4, Esc closes");
    for (int i = 0; i < shown; i++) {
        const char *run = d->others.names[top + i];
        int at = chosen(d, run);
        move(y + 1 + i, 0);
        clrtoeol();
        snprintf(line, sizeof line, "%c %c %s", top + i == d->others.row ? '>' : ' ', at >= 0 ? '*' : ' ',
                 name_printable(name, sizeof name, run));
        dash_put(y + 1 + i, 0, columns, at >= 0 ? dash_paint(PAIR_BASELINE + at) : 0, line);
    }
}
