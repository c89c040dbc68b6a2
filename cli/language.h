/* The user's language: the locale, the translations next to the program, and the encoding of the terminal. */
#ifndef MEOPT_CLI_LANGUAGE_H
#define MEOPT_CLI_LANGUAGE_H

#include <stdio.h>

/* Sets LC_CTYPE and LC_MESSAGES, never LC_NUMERIC, and opens the translations unless the command line has
 * --json: what programs read is English. If the terminal's encoding is not UTF-8, stdout and stderr convert
 * what they write to it; files and pipes get UTF-8. */
void language_open(int argc, char **argv);

/* stdout without conversion, for ncurses, which converts by itself. */
FILE *language_plain_stdout(void);

#endif
