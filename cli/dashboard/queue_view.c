/* The screen of a queued job: see queue_view.h. */
#include "cli/dashboard/queue_view.h"
#include "cli/terminal/keys.h"
#include "cli/terminal/screen.h"
#include "core/base/clock.h"

#include <ncurses.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEY_WAIT_MS = 100, REDRAW_SECONDS = 1, FAR = 1 << 20, INDENT = 9 };

/* Draws one line, broken between words; further parts begin where the values of a plan do. Returns the number
 * of parts. */
static int draw_line(const char *text, int y, int rows, int columns)
{
    int parts = 0, indent = 0;
    do {
        int space = columns - indent > 10 ? columns - indent : columns;
        size_t n = text_columns(text, SIZE_MAX) > space ? text_line(text, space) : strlen(text);
        char *part = strndup(text, n);
        if (y + parts >= 0 && y + parts < rows - 1) screen_put(y + parts, indent, space, part, false);
        free(part);
        text += n + strspn(text + n, " ");
        parts++;
        indent = INDENT;
    } while (*text);
    return parts;
}

/* Draws the text from its line `top` on; returns the number of lines. */
static int draw(const struct slurm_queue *q, int top)
{
    char *text = NULL;
    size_t bytes = 0;
    int rows, columns, line = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return 0;
    slurm_queue_print(out, q);
    fclose(out);
    getmaxyx(stdscr, rows, columns);
    erase();
    curs_set(0);
    for (char *p = text; *p;) {
        char *end = p + strcspn(p, "\n"), *next = end + (*end == '\n');
        *end = 0;
        attron(line == 0 ? A_BOLD : 0);
        line += draw_line(p, line - top, rows, columns);
        attroff(A_BOLD);
        p = next;
    }
    attron(A_DIM);
    screen_put(rows - 1, 0, columns, "q leave, the job stays queued   up down scroll", false);
    attroff(A_DIM);
    refresh();
    free(text);
    return line;
}

/* Moves the first shown line by a key. */
static int scroll_by(int kind, wint_t c, int top, int lines)
{
    static const struct {
        wint_t special, letter;
        int by;
    } keys[] = {{KEY_UP, 'k', -1},    {KEY_DOWN, 'j', 1},    {KEY_PPAGE, 0, -10},
                {KEY_NPAGE, ' ', 10}, {KEY_HOME, 'g', -FAR}, {KEY_END, 'G', FAR}};
    int last = lines - LINES + 1;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (c == (kind == KEY_CODE_YES ? keys[i].special : keys[i].letter)) top += keys[i].by;
    if (top > last) top = last;
    return top > 0 ? top : 0;
}

int queue_view(struct slurm_queue *q, bool ascii, bool *begun, struct error *err)
{
    enum slurm_queue_state state = QUEUE_WAITS;
    char title[560], head[512];
    double drawn = 0;
    int top = 0, lines = 0, code = screen_open(ascii, KEY_WAIT_MS, err);
    if (code) return code;
    for (bool leave = false, changed = true; !leave && !screen_signal;) {
        state = slurm_queue_step(q, true, &changed, err);
        if (state != QUEUE_WAITS) break;
        if ((changed || clock_seconds() - drawn >= REDRAW_SECONDS) && !keys_waiting()) {
            lines = draw(q, top);
            drawn = clock_seconds();
            changed = false;
            snprintf(title, sizeof title, "%s - meopt", slurm_queue_head(q, head, sizeof head));
            screen_title(title);
        }
        wint_t c = 0;
        int kind = keys_get(&c);
        if (kind == ERR && !isatty(STDIN_FILENO)) break; /* the terminal was closed */
        if (kind == ERR || kind == KEYS_PASTED) continue;
        leave = kind == OK && (c == 'q' || c == 'd') && !keys_waiting();
        if (kind == OK && c == 12) clearok(stdscr, TRUE); /* Ctrl-L */
        top = scroll_by(kind, c, top, lines);
        changed = true;
    }
    int signal_number = screen_signal;
    screen_close();
    *begun = state == QUEUE_BEGUN;
    if (signal_number) {
        fflush(NULL);
        raise(signal_number); /* so that the shell sees it */
    }
    return state == QUEUE_FAILED ? err->code : 0;
}
