/* The log tab: events above, worker.log below, with scrolling and search. */
#include "cli/dashboard/dash_internal.h"
#include "cli/terminal/screen.h"

#include <ncurses.h>
#include <stdlib.h>
#include <string.h>

enum { SIDEWAYS = 16 }; /* columns per key press */

static int64_t lines_kept(const struct follow *f)
{
    return f->log_count < FOLLOW_LINES ? f->log_count : FOLLOW_LINES;
}

/* Returns the line at distance `back` from the newest. */
static const char *line_back(const struct follow *f, int64_t back)
{
    return f->log[(f->log_count - 1 - back) % FOLLOW_LINES];
}

static bool matches(const struct dash *d, const char *line)
{
    return d->log.word[0] && strcasestr(line, d->log.word) != NULL;
}

/* Scrolls to the next older (by 1) or newer (by -1) line that contains the word. */
static void search(struct dash *d, int by)
{
    const struct follow *f = dash_shown(d);
    int64_t kept = lines_kept(f);
    for (int64_t back = d->log.found + by; back >= 0 && back < kept; back += by) {
        if (!matches(d, line_back(f, back))) continue;
        d->log.found = d->scroll = (int)back;
        return;
    }
    snprintf(d->message, sizeof d->message,
             by > 0 ? _("no older line has '%.60s'") : _("no newer line has '%.60s'"), d->log.word);
}

static void type(struct dash *d, int kind, wint_t c)
{
    size_t n = strlen(d->log.word);
    char bytes[5];
    if (kind == OK && (c == '\n' || c == '\r')) {
        d->log.typing = false;
        d->log.found = -1;
        if (n) search(d, 1);
    } else if (kind == OK && c == 27) {
        d->log.typing = false;
        d->log.word[0] = 0;
    } else if ((kind == KEY_CODE_YES && c == KEY_BACKSPACE) || (kind == OK && (c == 127 || c == 8))) {
        while (n && (d->log.word[n - 1] & 0xC0) == 0x80) n--;
        d->log.word[n ? n - 1 : 0] = 0;
    } else if (kind == OK && c == 21) {
        d->log.word[0] = 0;
    } else if (kind != KEY_CODE_YES && c >= ' ') {
        size_t length = (size_t)screen_utf8(bytes, (wchar_t)c);
        if (n + length < sizeof d->log.word) memcpy(d->log.word + n, bytes, length + 1);
    }
}

bool dash_log_key(struct dash *d, int kind, wint_t c)
{
    if (d->tab != TAB_LOG) return false;
    if (d->log.typing) {
        type(d, kind, c);
        return true;
    }
    if (kind == KEY_CODE_YES) {
        if (c == KEY_LEFT) d->log.column -= d->log.column >= SIDEWAYS ? SIDEWAYS : d->log.column;
        else if (c == KEY_RIGHT) d->log.column += SIDEWAYS;
        else if (c == KEY_HOME) d->scroll = FOLLOW_LINES;
        else if (c == KEY_END) d->scroll = d->log.column = 0;
        else return false;
        return true;
    }
    if (c == '/') {
        d->log.typing = true;
        d->log.word[0] = 0;
    } else if (c == 'n' && d->log.word[0]) search(d, 1);
    else if (c == 'N' && d->log.word[0]) search(d, -1);
    else return false;
    return true;
}

/* Returns the rest of a line after `columns` columns; characters are one or two columns wide. */
static const char *skip(const char *line, int columns)
{
    int used = 0;
    while (*line && *line != '\n' && used < columns) {
        char one[8];
        size_t n = 1;
        while ((line[n] & 0xC0) == 0x80 && n < sizeof one - 1) n++;
        snprintf(one, sizeof one, "%.*s", (int)n, line);
        used += screen_width(one);
        line += n;
    }
    return line;
}

void dash_log_draw(struct dash *d, const struct dash_rect *r)
{
    const struct follow *f = dash_shown(d);
    int y = r->y;
    char title[200];
    int64_t events = f->event_count < r->h / 2 ? f->event_count : r->h / 2, kept = lines_kept(f), longest = 0;
    if (events > FOLLOW_LINES) events = FOLLOW_LINES;
    dash_put(y++, r->x, r->w, A_BOLD, _("events"));
    for (int64_t i = f->event_count - events; i < f->event_count; i++)
        dash_put(y++, r->x, r->w, 0, f->events[i % FOLLOW_LINES]);
    int64_t space = r->y + r->h - y - 1;
    if (d->scroll > kept - space) d->scroll = (int)(kept > space ? kept - space : 0);
    int64_t last = d->scroll, first = last + space < kept ? last + space - 1 : kept - 1;
    for (int64_t back = first; back >= last && back >= 0; back--) {
        int w = screen_width(line_back(f, back));
        longest = w > longest ? w : longest;
    }
    if (d->log.column > 0 && d->log.column >= longest)
        d->log.column = (int)(longest > 0 ? (longest - 1) / SIDEWAYS * SIDEWAYS : 0);
    size_t n = (size_t)snprintf(title, sizeof title, "worker.log");
    if (d->scroll)
        n += (size_t)snprintf(title + n, sizeof title - n, _(", %d line%s back (End: newest)"), d->scroll,
                              d->scroll == 1 ? "" : "s");
    if (d->log.column)
        n += (size_t)snprintf(title + n, sizeof title - n, _(", from column %d"), d->log.column + 1);
    if (d->log.typing) snprintf(title + n, sizeof title - n, _("  search: %s_"), d->log.word);
    else if (d->log.word[0])
        snprintf(title + n, sizeof title - n, _("  /%s (n older, N newer)"), d->log.word);
    dash_put(y++, r->x, r->w, A_BOLD, title);
    for (int64_t back = first; back >= last && back >= 0; back--) {
        const char *line = line_back(f, back);
        int how = !matches(d, line) ? 0 : back == d->log.found ? (int)A_REVERSE : (int)A_BOLD;
        dash_put(y++, r->x, r->w, how, skip(line, d->log.column));
    }
}
