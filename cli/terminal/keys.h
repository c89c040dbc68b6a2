/* Keys of full-screen commands, and how pasted text is told from keys that somebody presses.
 *
 * A terminal with bracketed paste (xterm's mode 2004) encloses pasted text in two sequences: its characters
 * come as KEYS_PASTED, which only text fields take. Other terminals send pasted text as if it were typed, but
 * many characters at once: a key that acts on a run or a file is obeyed only when it came alone (keys_alone),
 * and what ends a run needs a typed word (keys_confirm). */
#ifndef MEOPT_CLI_TERMINAL_KEYS_H
#define MEOPT_CLI_TERMINAL_KEYS_H

#include <stdbool.h>
#include <wchar.h>

enum { KEYS_PASTED = 1 }; /* a kind beside OK, ERR and KEY_CODE_YES */

/* Reads a key as get_wch does; *c of KEYS_PASTED is a character. */
int keys_get(wint_t *c);
/* Whether more input is waiting after the last key: a reason not to draw yet. */
bool keys_waiting(void);
/* Whether no other key was waiting before or after the last one. */
bool keys_alone(void);

/* For screen.c: once the screen is open, and whenever the terminal is given back or taken again (callable in
 * a signal handler). */
void keys_begin(void);
void keys_paste_mode(bool on);

/* A question that is answered with a word and Enter. */
enum keys_answer { KEYS_ASKING, KEYS_CONFIRMED, KEYS_CANCELLED };
struct keys_question {
    const char *word; /* NULL: nothing is asked */
    char typed[12];
};
/* Takes a key; KEYS_CONFIRMED and KEYS_CANCELLED end the question. */
enum keys_answer keys_confirm(struct keys_question *question, int kind, wint_t c);

#endif
