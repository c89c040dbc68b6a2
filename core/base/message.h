/* Messages that pass through files of a run: written in English, shown in the reader's language.
 *
 * A message is a format of the catalogue (translate.h) with its arguments, which may contain other messages,
 * or several such parts after each other. A part that is not in the catalogue stays as it is. */
#ifndef MEOPT_BASE_MESSAGE_H
#define MEOPT_BASE_MESSAGE_H

#include <stddef.h>

/* Writes the English text of a message in the user's language to dst (size bytes with the NUL), as
 * text_printable does. Returns dst, which may be the text itself. */
char *message_english(char *dst, size_t size, const char *text);
/* Writes an English message in the user's language to dst: the reverse. */
char *message_translated(char *dst, size_t size, const char *text);

#endif
