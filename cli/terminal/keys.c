/* Reads keys: see keys.h. */
#include "cli/terminal/keys.h"
#include "core/base/clock.h"

#include <ncurses.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Additional key codes, above those of ncurses. */
enum { PASTE_BEGIN = KEY_MAX + 1, PASTE_END };
/* Seconds without input after which a paste ends whose end sequence was lost. */
static const double PASTE_SILENCE = 1;

static bool waiting, crowded, pasting, ansi;
static double last_key;

void keys_begin(void)
{
    const char *moves = tigetstr("cup");
    ansi = moves && moves != (const char *)-1 && strncmp(moves, "\033[", 2) == 0;
    define_key("\033[200~", PASTE_BEGIN);
    define_key("\033[201~", PASTE_END);
    waiting = crowded = pasting = false;
    keys_paste_mode(true);
}

void keys_paste_mode(bool on)
{
    if (!ansi) return; /* other terminals would print the sequence */
    ssize_t ignored = write(STDOUT_FILENO, on ? "\033[?2004h" : "\033[?2004l", 8);
    (void)ignored;
}

int keys_get(wint_t *c)
{
    for (;;) {
        int kind = get_wch(c), bytes = 0;
        bool queued = waiting; /* at the previous key */
        double now = clock_seconds();
        waiting = kind != ERR && ioctl(STDIN_FILENO, FIONREAD, &bytes) == 0 && bytes > 0;
        if (kind == ERR) return ERR;
        crowded = queued || waiting;
        if (now - last_key > PASTE_SILENCE) pasting = false;
        last_key = now;
        if (kind == KEY_CODE_YES && (*c == PASTE_BEGIN || *c == PASTE_END)) pasting = *c == PASTE_BEGIN;
        else if (!pasting || (kind == KEY_CODE_YES && *c == KEY_RESIZE)) return kind;
        else if (kind == OK) return KEYS_PASTED;
    }
}

bool keys_waiting(void) { return waiting; }

bool keys_alone(void) { return !crowded; }

enum keys_answer keys_confirm(struct keys_question *q, int kind, wint_t c)
{
    size_t n = strlen(q->typed);
    bool enter = (kind == OK && (c == '\n' || c == '\r')) || (kind == KEY_CODE_YES && c == KEY_ENTER),
         erase = (kind == OK && (c == 127 || c == 8)) || (kind == KEY_CODE_YES && c == KEY_BACKSPACE);
    enum keys_answer answer = KEYS_ASKING;
    if (kind == KEYS_PASTED || (kind == KEY_CODE_YES && c == KEY_RESIZE)) return KEYS_ASKING;
    if (enter) answer = strcmp(q->typed, q->word) == 0 ? KEYS_CONFIRMED : KEYS_CANCELLED;
    else if (erase && n > 0) q->typed[n - 1] = 0;
    else if (kind != OK || c < ' ' || c > '~') answer = KEYS_CANCELLED;
    else if (n + 1 < sizeof q->typed) {
        q->typed[n] = (char)c;
        q->typed[n + 1] = 0;
    }
    if (answer != KEYS_ASKING) *q = (struct keys_question){0};
    return answer;
}
