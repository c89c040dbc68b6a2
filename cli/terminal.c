/* Whether there is a terminal that curses can draw on;
 * apart from the rest because <term.h> takes so many names. */
#include "cli/dash.h"

#include <ncurses.h>
#include <stdlib.h>
#include <string.h>
#include <term.h>
#include <unistd.h>

bool dash_possible(void)
{
    int known = 0;
    const char *term = getenv("TERM");
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || !term || strcmp(term, "dumb") == 0) return false;
    if (setupterm(term, STDOUT_FILENO, &known) != OK || known != 1) return false;
    bool moves = cursor_address != NULL;
    del_curterm(cur_term);
    return moves;
}
