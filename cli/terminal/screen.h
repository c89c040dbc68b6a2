/* A terminal for full-screen commands: opened, drawn on by columns, and given back whatever happens: on the
 * way out and in the handlers of the signals that end a process, which then take their ordinary course (a
 * core, a sanitizer's report). */
#ifndef MEOPT_CLI_TERMINAL_SCREEN_H
#define MEOPT_CLI_TERMINAL_SCREEN_H

#include "core/base/error.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <wchar.h>

extern bool screen_ascii;   /* ASCII characters only: asked for, or the locale is not UTF-8 */
extern bool screen_colours; /* the terminal has them, and neither NO_COLOR nor MEOPT_NO_COLOR forbids them */
extern volatile sig_atomic_t
    screen_signal; /* SIGTERM, SIGHUP or SIGINT has come: leave, unless you know better */

/* Whether stdin and stdout are a terminal that can be drawn on. One whose TERM this machine does not know is
 * drawn on as xterm-256color, which is said, and TERM is set so. */
bool screen_possible(void);
/* The error of a command that needs one, and why there is none; `elsewhere`: what tells the same. */
int screen_refused(const char *what, const char *elsewhere, struct error *err);
/* EXIT_USAGE when there is no such terminal.
 * Keys come within timeout_ms or not. */
int screen_open(bool ascii, int timeout_ms, struct error *err);
/* Have clicks and the wheel as KEY_MOUSE; without, the terminal's own selection works. */
void screen_mouse(void);
void screen_close(void);
/* The title of the terminal's window, until screen_close gives back the one of before; nothing where the
 * terminal is not known to have one. */
void screen_title(const char *text);
/* Text in `columns` columns at most; the rest of them blank when `fill`.
 * Control characters are shown as '?'. Returns columns used. */
int screen_put(int y, int x, int columns, const char *text, bool fill);
/* The beginning of a text that takes more, with an ellipsis, in `columns` columns. */
void screen_cut(char *dst, size_t size, const char *text, int columns);
/* Columns that a text takes. */
int screen_width(const char *text);
/* A character that was typed, as UTF-8 whatever the locale says, since all text of ours is; its bytes. */
int screen_utf8(char dst[5], wchar_t wide);
/* A line for people on stdout: in the locale's encoding on a terminal, as it is elsewhere. */
void screen_line(const char *text);

#endif
