/* Reads each complete line of a growing file once: metrics.jsonl, events.jsonl, a log.
 *
 *     tail_init(&t, directory, "metrics.jsonl");
 *     for each refresh:
 *         if (tail_poll(&t, &anew) >= 0) while ((line = tail_line(&t, &bytes))) ...
 *     tail_free(&t);
 *
 * The file may not exist yet, belong to another user, or become shorter (a resumed run writes its last
 * steps again). A torn last line is returned after its newline was written.
 */
#ifndef MEOPT_RUN_TAIL_H
#define MEOPT_RUN_TAIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TAIL_LINE_BYTES = 2 << 20 }; /* a line with 4,096 ranks; longer ones are skipped */

struct tail {
    char *directory, *name;
    int fd;
    int64_t at;   /* offset in the file of the buffer's end */
    char *buffer; /* (capacity) */
    size_t capacity;
    size_t begin, end, line; /* bytes not returned yet; start of the last returned line */
    bool inside;             /* the bytes up to the next newline are not a complete line */
    int64_t skipped;         /* too long lines, since tail_init */
    int failed;              /* errno of a failed read; 0: none */
};

void tail_init(struct tail *t, const char *directory, const char *name);
void tail_free(struct tail *t);

/* Sets a new path of the directory; the open file stays. */
void tail_moved(struct tail *t, const char *directory);

/* Returns the file's size, -1 if there is no regular file. *anew (may be NULL): the file is shorter than
 * the part already read, and is read again from the beginning. */
int64_t tail_poll(struct tail *t, bool *anew);
/* Continues at this offset; inside: the line there began before it, and is skipped. */
void tail_seek(struct tail *t, int64_t at, bool inside);
/* Returns the next complete line, without its newline, valid until the next call; NULL if there is none
 * yet. */
const char *tail_line(struct tail *t, size_t *bytes);
/* Returns the file offset of the next line. */
int64_t tail_offset(const struct tail *t);
/* Makes tail_line return the last line again. */
void tail_unread(struct tail *t);

#endif
