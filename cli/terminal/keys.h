/* Reads keys for full-screen commands, and distinguishes typed keys from pasted text.
 *
 * A terminal with bracketed paste (xterm's mode 2004) encloses pasted text in two sequences: its characters
 * are KEYS_PASTED, which only text fields accept. Other terminals send pasted text like typed text, but
 * many characters at once: a key that changes a run or a file requires keys_alone. Ending a run requires a
 * typed word (keys_confirm). */
#ifndef MEOPT_CLI_TERMINAL_KEYS_H
#define MEOPT_CLI_TERMINAL_KEYS_H

#include <stdbool.h>
#include <wchar.h>

enum { KEYS_PASTED = 1 }; /* a kind of key, in addition to OK, ERR and KEY_CODE_YES */

/* Reads a key like get_wch; for KEYS_PASTED, *c is a character. */
int keys_get(wint_t *c);
/* Returns whether more input is queued after the last key, so that drawing can wait. */
bool keys_waiting(void);
/* Returns whether no other key was queued before or after the last one. */
bool keys_alone(void);

/* For screen.c. keys_begin: after the screen is opened. keys_paste_mode: when the terminal is restored or
 * used again; async-signal-safe. */
void keys_begin(void);
void keys_paste_mode(bool on);

/* A question that requires a typed word and Enter. */
enum keys_answer { KEYS_ASKING, KEYS_CONFIRMED, KEYS_CANCELLED };
struct keys_question {
    const char *word; /* NULL: no question */
    char typed[12];
};
/* Handles a key; KEYS_CONFIRMED and KEYS_CANCELLED end the question. */
enum keys_answer keys_confirm(struct keys_question *question, int kind, wint_t c);

#endif
