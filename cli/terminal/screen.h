/* The terminal of full-screen commands. It is restored when the command ends, and by handlers of fatal
 * signals, which then call the previous handlers (a core, a sanitizer's report). */
#ifndef MEOPT_CLI_TERMINAL_SCREEN_H
#define MEOPT_CLI_TERMINAL_SCREEN_H

#include "core/base/error.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <wchar.h>

extern bool screen_ascii;   /* ASCII characters only: requested, or the locale is not UTF-8 */
extern bool screen_colours; /* supported by the terminal, and neither NO_COLOR nor MEOPT_NO_COLOR is set */
extern volatile sig_atomic_t
    screen_signal; /* SIGTERM, SIGHUP or SIGINT if it was received: the command must end */

/* Returns whether stdin and stdout are a terminal that ncurses can draw on. If this machine does not know
 * TERM, sets it to xterm-256color and logs that. */
bool screen_possible(void);
/* Returns whether TERM has the sequences of ANSI to move the cursor. */
bool screen_ansi(void);
/* Returns the error of `what`, which requires a terminal, with the reason. `alternative`: the hint, or "". */
int screen_refused(const char *what, const char *alternative, struct error *err);
/* Opens the screen; EXIT_USAGE without a usable terminal. Reading a key waits at most timeout_ms. */
int screen_open(bool ascii, int timeout_ms, struct error *err);
/* Reports clicks and the wheel as KEY_MOUSE. Without this call the terminal's own selection works. */
void screen_mouse(void);
void screen_close(void);
/* Sets the title of the terminal's window until screen_close restores it. Does nothing if the terminal is not
 * known to have titles. */
void screen_title(const char *text);
/* Draws text in at most `columns` columns, with `fill` the rest blank. Control characters are drawn as '?'.
 * Returns the number of columns used. */
int screen_put(int y, int x, int columns, const char *text, bool fill);
/* Shortens a text to `columns` columns, with an ellipsis at the end. */
void screen_cut(char *dst, size_t size, const char *text, int columns);
/* Returns the columns of the first line of a text. */
int screen_width(const char *text);
/* Encodes a typed character as UTF-8, in any locale; returns its number of bytes. */
int screen_utf8(char dst[5], wchar_t wide);
/* Prints a line on stdout: on a terminal in the locale's encoding, else in UTF-8. */
void screen_line(const char *text);

#endif
