/* The user's language: the locale, the translations next to the program, and the encoding of the terminal. */
#ifndef MEOPT_CLI_LANGUAGE_H
#define MEOPT_CLI_LANGUAGE_H

#include <stdio.h>

/* Sets LC_CTYPE and LC_MESSAGES, never LC_NUMERIC, and opens the translations unless the command line has
 * --json or -j: what programs read is English. If the terminal's encoding is not UTF-8, stdout and stderr
 * convert what they write to it; files and pipes get UTF-8. */
void language_open(int argc, char **argv);

/* Prints a text and a newline. On a terminal, lines break between words at its width; further lines begin at
 * column `indent`. at: column at which the text begins. */
void print_wrapped(int at, int indent, const char *text);
/* The same of a printf text, whose format is translated. */
void print_line(int indent, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* In the environment: stdout and stderr lead to a terminal through a pager, and are converted as for it. */
#define LANGUAGE_OF_TERMINAL "MEOPT_PAGED"

/* stdout without conversion, for ncurses, which converts by itself. */
FILE *language_plain_stdout(void);

#endif
