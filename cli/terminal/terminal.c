/* Checks the terminal: see screen.h. In a file of its own because <term.h> defines many macros. */
#include "cli/terminal/screen.h"
#include "core/base/error.h"
#include "core/base/log.h"

#include <ncurses.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <term.h>
#include <unistd.h>

/* A type that nearly all terminal emulators implement. */
#define TERMINAL_FALLBACK "xterm-256color"

static bool can_draw(const char *term)
{
    int known = 0;
    if (setupterm(term, STDOUT_FILENO, &known) != OK || known != 1) return false;
    bool moves = cursor_address != NULL;
    del_curterm(cur_term);
    return moves;
}

bool screen_possible(void)
{
    const char *term = getenv("TERM");
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || !term || strcmp(term, "dumb") == 0) return false;
    if (can_draw(term)) return true;
    if (!term[0] || !can_draw(TERMINAL_FALLBACK)) return false;
    char shown[256];
    log_warn("TERM=%s is unknown on this machine; drawing for %s", name_printable(shown, sizeof shown, term),
             TERMINAL_FALLBACK);
    return setenv("TERM", TERMINAL_FALLBACK, 1) == 0;
}

bool screen_ansi(void)
{
    int known = 0;
    const char *term = getenv("TERM");
    if (!term || setupterm(term, STDIN_FILENO, &known) != OK || known != 1) return false;
    bool ansi = cursor_address && strncmp(cursor_address, "\033[", 2) == 0;
    del_curterm(cur_term);
    return ansi;
}

int screen_refused(const char *what, const char *alternative, struct error *err)
{
    const char *term = getenv("TERM"), *remedy = "export TERM=xterm-256color";
    char hint[320], shown[256];
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
        return error_set(err, EXIT_USAGE, alternative, "%s requires a terminal", what);
    snprintf(hint, sizeof hint, "%s%s%s", remedy, alternative[0] ? "; " : "", alternative);
    if (!term || !term[0])
        return error_set(err, EXIT_USAGE, hint, "%s requires TERM, which is not set", what);
    return error_set(err, EXIT_USAGE, hint, "%s requires a terminal with cursor movement; TERM is '%s'", what,
                     name_printable(shown, sizeof shown, term));
}
