/* Errors are values.
 *
 * A function that can fail returns an exit code of enum meopt_exit (0 is success) and fills the caller's
 * struct error. `what` is one sentence with the object, the value found and the value expected; `hint` is the
 * next step. Only main() prints it and exits with the code. The codes are a contract for scripts (man meopt,
 * EXIT STATUS) and never change their meaning.
 */
#ifndef MEOPT_BASE_ERROR_H
#define MEOPT_BASE_ERROR_H

#include "core/base/translate.h"

#include <stdarg.h>
#include <stddef.h>

enum meopt_exit {
    EXIT_OK = 0,
    EXIT_FAILED = 1,       /* any failure without a code of its own */
    EXIT_USAGE = 2,        /* command line */
    EXIT_INTEGRITY = 3,    /* checksum, refused archive or checkpoint */
    EXIT_NETWORK = 4,      /* network gave up */
    EXIT_DISK = 5,         /* disk space */
    EXIT_NO_CARD = 6,      /* no usable card */
    EXIT_CONFIG = 7,       /* config invalid */
    EXIT_THRESHOLD = 8,    /* compare threshold exceeded */
    EXIT_LOCKED = 9,       /* locked by another process */
    EXIT_STOPPED = 10,     /* stopped on request, state saved */
    EXIT_CARD_MEMORY = 11, /* card out of memory */
    EXIT_HOST_MEMORY = 12, /* host out of memory */
    EXIT_DIVERGED = 13,    /* NaN or infinity in the loss or the gradient */
    EXIT_RANK_LOST = 14,   /* a rank was lost */
    EXIT_SIGNAL = 128      /* + signal number */
};

struct error {
    int code;         /* enum meopt_exit */
    char file[256];   /* the user's file that the error concerns; "" if none */
    int line, column; /* position in that file, from 1; 0 when unknown */
    char what[640];
    char hint[320];
};

/* Fills `e` (which may be NULL) and returns `code`, so that a caller can write `return error_set(...)`.
 * `hint` may be NULL. Text longer than the field is cut at a UTF-8 boundary. Control characters of text from
 * outside are escaped, so that an error can be printed on a terminal as it is. */
int error_set(struct error *e, int code, const char *hint, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Like error_set, with errno's text appended. ENOSPC, EDQUOT and EFBIG become EXIT_DISK, ENOMEM becomes
 * EXIT_HOST_MEMORY, whatever `code` is. */
int error_errno(struct error *e, int code, const char *hint, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Sets the file (and position) that the error concerns. Returns e->code. */
int error_at(struct error *e, const char *file, int line, int column);

/* Prints "meopt: FILE:LINE:COLUMN: WHAT" to stderr, and the hint on the next line. */
void error_print(const struct error *e);

/* Length of the character at `text` if it would control a terminal instead of being shown, else 0: C0 and
 * DEL, C1 (U+0080 to U+009F), and bidirectional controls (U+202A to U+202E, U+2066 to U+2069), which can make
 * a text look different from its content. */
size_t text_control(const char *text);
/* Copies text from outside into dst (size bytes with the NUL). Control characters (text_control) and invalid
 * UTF-8 become \xNN; the text is cut at a character boundary. Returns dst. */
char *text_printable(char *dst, size_t size, const char *text);
/* Like text_printable for a name, which has no lines: newline and tab are escaped, too. */
char *name_printable(char *dst, size_t size, const char *name);

#endif
