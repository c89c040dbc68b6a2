/* Errors are values.
 *
 * A function that can fail returns an exit code of enum meopt_exit (0 is success) and fills the caller's
 * struct error: `what` is one sentence that names the object, what was found and what was expected; `hint`
 * is the next thing to do. Only main() prints it and exits with the code. The codes are a contract for
 * scripts (man meopt, EXIT STATUS) and never change their meaning.
 */
#ifndef MEOPT_BASE_ERROR_H
#define MEOPT_BASE_ERROR_H

#include <stdarg.h>
#include <stddef.h>

enum meopt_exit {
    EXIT_OK = 0,
    EXIT_FAILED = 1,       /* anything without a code of its own */
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
    char file[256];   /* the user's file the error is about; "" when none */
    int line, column; /* position in that file, from 1; 0 when unknown */
    char what[640];
    char hint[320];
};

/* Fill `e` (which may be NULL) and return `code`, so that a caller can write `return error_set(...)`.
 * `hint` may be NULL. Text longer than the field is cut at a UTF-8 boundary. Control characters of
 * anything from outside are escaped, so an error can be printed on a terminal as it is. */
int error_set(struct error *e, int code, const char *hint, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The same with errno's text behind the message; ENOSPC, EDQUOT and EFBIG become EXIT_DISK, ENOMEM
 * EXIT_HOST_MEMORY, whatever `code` says. */
int error_errno(struct error *e, int code, const char *hint, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Name the file (and position) that the error is about. Returns e->code. */
int error_at(struct error *e, const char *file, int line, int column);

/* Print to stderr: "meopt: FILE:LINE:COLUMN: WHAT" and, on the next line, the hint. */
void error_print(const struct error *e);

/* One line for each exit code, for the man pages and tests; NULL behind the last. */
const char *exit_code_text(int code);

/* Bytes of the character at `text` when it would steer a terminal instead of being shown: C0 and DEL, C1
 * (U+0080 to U+009F), and what turns the direction of writing (U+202A to U+202E, U+2066 to U+2069), which can
 * make a text read otherwise than it is; else 0. */
size_t text_control(const char *text);
/* Copy text from outside into dst (size bytes with the NUL), control characters (text_control) and invalid
 * UTF-8 as \xNN, cut at a character boundary. Returns dst. */
char *text_printable(char *dst, size_t size, const char *text);
/* The same for a name, which has no lines: newline and tab are escaped, too. */
char *name_printable(char *dst, size_t size, const char *name);

#endif
