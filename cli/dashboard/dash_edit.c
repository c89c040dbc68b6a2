/* The editor of keys that can change during training (core/run/change.h). */
#include "cli/dashboard/dash_internal.h"

#include <ncurses.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void dash_edit_open(struct dash *d)
{
    struct error err = {0};
    char word[120];
    if (!dash_alive(d))
        snprintf(d->message, sizeof d->message, _("it has ended; use meopt train --resume %s KEY=VALUE"),
                 run_word(word, sizeof word, d->run->directory));
    else if (change_read(&d->edit.values, d->run->directory, &err))
        snprintf(d->message, sizeof d->message, "%.190s", err.what);
    else d->edit.open = true;
}

static void request_change(struct dash *d)
{
    struct error err = {0};
    const char *key = change_keys[d->edit.row];
    if (change_request(d->run->directory, key, d->edit.typed, &err)) {
        snprintf(d->message, sizeof d->message, "%.190s", err.what);
        return; /* keeps the typed text */
    }
    d->edit.typing = false;
    snprintf(d->message, sizeof d->message, _("requested %s %s from the next step on"), key, d->edit.typed);
    d->edit.open = false;
}

static void type(struct dash *d, int kind, wint_t c)
{
    char *typed = d->edit.typed;
    size_t n = strlen(typed);
    if (kind == OK && (c == '\n' || c == '\r')) {
        if (dash_key_alone(d)) request_change(d);
    } else if (kind == OK && c == 27) d->edit.typing = false;
    else if ((kind == KEY_CODE_YES && c == KEY_BACKSPACE) || (kind == OK && (c == 127 || c == 8)))
        typed[n ? n - 1 : 0] = 0;
    else if (kind == OK && c == 21) typed[0] = 0;
    else if (kind != KEY_CODE_YES && c > ' ' && c < 127 && n + 1 < sizeof d->edit.typed) {
        typed[n] = (char)c;
        typed[n + 1] = 0;
    }
}

void dash_edit_key(struct dash *d, int kind, wint_t c)
{
    if (d->edit.typing) {
        type(d, kind, c);
        return;
    }
    if (kind == KEY_CODE_YES) {
        if (c == KEY_UP && d->edit.row > 0) d->edit.row--;
        if (c == KEY_DOWN && d->edit.row + 1 < CHANGE_KEYS) d->edit.row++;
        return;
    }
    if (c == 'k' && d->edit.row > 0) d->edit.row--;
    else if (c == 'j' && d->edit.row + 1 < CHANGE_KEYS) d->edit.row++;
    else if (c == 'e' || c == 'q' || c == 27) d->edit.open = false;
    else if (c == '\n' || c == '\r') {
        d->edit.typing = true;
        snprintf(d->edit.typed, sizeof d->edit.typed, "%s", d->edit.values.text[d->edit.row]);
    }
}

void dash_edit_draw(const struct dash *d, int rows, int columns)
{
    char line[200];
    int y = rows - CHANGE_KEYS - 3;
    dash_put(y, 0, columns, A_REVERSE,
             d->edit.typing ? "Enter applies, Ctrl-U clears, Esc cancels"
                            : N_("what may change while it trains: Enter edits, Esc closes"));
    for (int i = 0; i < CHANGE_KEYS; i++) {
        bool chosen = i == d->edit.row;
        const char *help = config_keys[config_key_index(change_keys[i])].help;
        move(y + 1 + i, 0);
        clrtoeol();
        snprintf(line, sizeof line, "%c %-26s %s%s", chosen ? '>' : ' ', change_keys[i],
                 chosen && d->edit.typing ? d->edit.typed : d->edit.values.text[i],
                 chosen && d->edit.typing ? "_" : "");
        dash_put(y + 1 + i, 0, columns, chosen ? (int)A_BOLD : 0, line);
        if (columns >= 100) dash_put(y + 1 + i, 46, columns - 46, dash_paint(PAIR_DIM), help);
    }
    move(y + 1 + CHANGE_KEYS, 0);
    clrtoeol();
}
