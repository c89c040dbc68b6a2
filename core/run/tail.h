/* The whole lines of a file that another process appends to, each once: metrics.jsonl, events.jsonl, a log.
 *
 *     tail_init(&t, directory, "metrics.jsonl");
 *     for each refresh:
 *         if (tail_poll(&t, &anew) >= 0) while ((line = tail_line(&t, &bytes))) ...
 *     tail_free(&t);
 *
 * The file may not be there yet, be another user's, become shorter (a resumed run writes its last steps
 * anew), and end in a torn line, which is given once its newline is there.
 */
#ifndef MEOPT_RUN_TAIL_H
#define MEOPT_RUN_TAIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TAIL_LINE_BYTES = 2 << 20 }; /* 4,096 ranks in a line of metrics; a longer one is skipped */

struct tail {
    char *directory, *name;
    int fd;
    int64_t at;   /* in the file, behind the buffer's end */
    char *buffer; /* (room) */
    size_t capacity;
    size_t begin, end, line; /* what is not given yet; where the line given last began */
    bool inside;             /* what comes up to the next newline is not the whole line */
    int64_t skipped;         /* lines too long, since tail_init */
    int failed;              /* errno of a read that failed; 0: none has */
};

void tail_init(struct tail *t, const char *directory, const char *name);
void tail_free(struct tail *t);

/* The directory has another path now; what is open stays. */
void tail_moved(struct tail *t, const char *directory);

/* The file's size now, -1 when there is none (or no regular one). *anew (may be NULL): it is shorter than
 * what was read of it, and will be read from its beginning. */
int64_t tail_poll(struct tail *t, bool *anew);
/* Go on at this place; inside: the line there has begun before it, and is not given. */
void tail_seek(struct tail *t, int64_t at, bool inside);
/* The next whole line, without its newline, valid until the next call; NULL when there is none yet. */
const char *tail_line(struct tail *t, size_t *bytes);
/* Where in the file the line that comes next begins. */
int64_t tail_offset(const struct tail *t);
/* Give the last line again. */
void tail_unread(struct tail *t);

#endif
