/* Messages in the user's language: gettext's catalogues, whose texts are in po/.
 *
 * error_set, log_info and the other functions that po/extract.sh names translate their texts themselves.
 * Other texts for people are marked: _("text") where it is used, N_("text") in a table, whose reader
 * translates it.
 * Texts that programs read (JSON, CSV, YAML, names of files and keys) are never translated. Everything inside
 * the program is UTF-8. Without translate_open (any program that uses the library) all texts are English. */
#ifndef MEOPT_BASE_TRANSLATE_H
#define MEOPT_BASE_TRANSLATE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define _(text)  translation(text)
#define N_(text) text

/* Returns the translation of a text, or the text itself; NULL for NULL. */
const char *translation(const char *text) __attribute__((format_arg(1)));

/* Translates from now on with a catalogue (meopt.mo). Returns false if the file is missing or is none:
 * texts are English. */
bool translate_open(const char *path);
/* The same with its content, malloc'ed, which it keeps or frees; NULL: none. */
bool translate_use(char *data, size_t bytes);

/* Sets message i of the catalogue and its translation, from 0 on. Returns false after the last. */
bool translation_pair(uint32_t i, const char **text, const char **translated);

/* vsnprintf with the translation of a format. An argument of %s with several words is translated, too, if it
 * is a message. */
int text_format(char *dst, size_t size, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

/* Columns of a terminal that a UTF-8 text occupies, at most `bytes` bytes of it. */
int text_columns(const char *text, size_t bytes);
/* Returns the bytes of the longest line of at most `columns` columns at the start of a text, up to a blank,
 * between two characters of a script that has none, or in a list such as "best|last". */
size_t text_line(const char *text, int columns);
/* Returns the width for printf's "%*s" with which a text occupies `columns` columns: negative, as columns,
 * for a text at the left. PAD: both arguments of "%*s". */
int text_pad(int columns, const char *text);
#define PAD(columns, text) text_pad(columns, text), text

#endif
