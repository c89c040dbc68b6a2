/* Lines that a person types at a terminal: with editing, earlier lines (up and down), and pasted text.
 *
 * Text that is pasted with several lines is one text: with bracketed paste (xterm's mode 2004), and without
 * it where more characters are queued after a line break, unless they were typed before the line was asked.
 * The terminal is in its usual mode before line_input_open and after line_input_close, and while the process
 * is stopped by Ctrl-Z. Between two lines characters are not shown, and Ctrl-C is a signal. */
#ifndef MEOPT_CLI_TERMINAL_LINE_INPUT_H
#define MEOPT_CLI_TERMINAL_LINE_INPUT_H

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>

/* Opens standard input. out: where lines are shown, a terminal. Returns false if standard input is none, or
 * TERM has no sequences of ANSI. */
bool line_input_open(FILE *out);
void line_input_close(void);
/* Restores the terminal; async-signal-safe. */
void line_input_restore(void);

enum line_input_end { LINE_READ, LINE_END_OF_INPUT, LINE_INTERRUPTED };
/* Reads a text in UTF-8 without its final line break, malloc'ed. stopped: set by the handlers of signals. Of
 * SIGINT the first one removes what was typed, and sets it to 0. */
enum line_input_end line_input_read(const char *prompt, volatile sig_atomic_t *stopped, char **text);

#endif
