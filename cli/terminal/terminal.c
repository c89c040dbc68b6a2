/* Whether there is a terminal that curses can draw on;
 * apart from the rest because <term.h> takes so many names. */
#include "cli/terminal/screen.h"
#include "core/base/error.h"
#include "core/base/log.h"

#include <ncurses.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <term.h>
#include <unistd.h>

/* What nearly every terminal emulator of today understands, whatever it calls itself. */
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
    log_warn("TERM=%s is not known on this machine: drawing as for " TERMINAL_FALLBACK,
             name_printable(shown, sizeof shown, term));
    return setenv("TERM", TERMINAL_FALLBACK, 1) == 0;
}

int screen_refused(const char *what, const char *elsewhere, struct error *err)
{
    const char *term = getenv("TERM"), *cure = "export TERM=xterm-256color";
    char hint[320], shown[256];
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
        return error_set(err, EXIT_USAGE, elsewhere, "%s needs a terminal", what);
    snprintf(hint, sizeof hint, "%s%s%s", cure, elsewhere[0] ? "; " : "", elsewhere);
    if (!term || !term[0])
        return error_set(err, EXIT_USAGE, hint, "%s needs to know the terminal: TERM is not set", what);
    return error_set(err, EXIT_USAGE, hint, "%s needs a terminal that can move its cursor: TERM is '%s'",
                     what, name_printable(shown, sizeof shown, term));
}
