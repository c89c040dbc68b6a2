/* Lines of a growing file: see tail.h. */
#include "core/run/tail.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/retry.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FIRST_BUFFER = 256 << 10, LARGEST_BUFFER = 2 * TAIL_LINE_BYTES };

void tail_init(struct tail *t, const char *directory, const char *name)
{
    *t = (struct tail){.directory = xstrdup(directory), .name = xstrdup(name), .fd = -1};
}

void tail_free(struct tail *t)
{
    if (t->directory && t->fd >= 0) close(t->fd); /* a zeroed tail was never initialized */
    free(t->buffer);
    free(t->name);
    free(t->directory);
    *t = (struct tail){.fd = -1};
}

void tail_moved(struct tail *t, const char *directory)
{
    free(t->directory);
    t->directory = xstrdup(directory);
}

void tail_seek(struct tail *t, int64_t at, bool inside)
{
    t->at = at;
    t->begin = t->end = t->line = 0;
    t->inside = inside;
}

int64_t tail_poll(struct tail *t, bool *anew)
{
    struct stat st;
    if (anew) *anew = false;
    /* non-blocking: another user may have put a pipe there */
    if (t->fd < 0) t->fd = file_at(t->directory, t->name, O_RDONLY);
    if (t->fd < 0 || fstat(t->fd, &st) != 0 || !S_ISREG(st.st_mode)) return -1;
    if (st.st_size < t->at) {
        tail_seek(t, 0, false);
        if (anew) *anew = true;
    }
    return st.st_size;
}

/* Reads more bytes after those in the buffer; false: there are none. */
static bool tail_fill(struct tail *t)
{
    if (t->fd < 0) return false;
    if (t->begin < t->end) memmove(t->buffer, t->buffer + t->begin, t->end - t->begin);
    t->end -= t->begin;
    t->begin = t->line = 0;
    if (t->end > t->capacity / 2 && t->capacity < LARGEST_BUFFER)
        t->buffer = xrealloc(t->buffer, t->capacity *= 2);
    ssize_t n = retry_read(t->fd, t->buffer + t->end, t->capacity - t->end, t->at);
    if (n < 0) t->failed = errno;
    if (n <= 0) return false;
    t->end += (size_t)n;
    t->at += n;
    return true;
}

const char *tail_line(struct tail *t, size_t *bytes)
{
    size_t looked = 0; /* bytes without a newline */
    if (!t->buffer) t->buffer = xmalloc(t->capacity = FIRST_BUFFER);
    do {
        char *from = t->buffer + t->begin, *newline;
        while (t->end - t->begin > looked &&
               (newline = memchr(from + looked, '\n', t->end - t->begin - looked)) != NULL) {
            bool whole = !t->inside;
            t->inside = false;
            t->line = t->begin;
            t->begin = (size_t)(newline + 1 - t->buffer);
            *bytes = (size_t)(newline - from);
            if (whole && *bytes <= TAIL_LINE_BYTES) return from;
            t->skipped += whole;
            from = t->buffer + t->begin;
            looked = 0;
        }
        looked = t->end - t->begin;
        if (looked > TAIL_LINE_BYTES) {
            t->skipped += !t->inside;
            t->inside = true;
            t->begin = t->end;
            looked = 0;
        }
    } while (tail_fill(t));
    return NULL;
}

int64_t tail_offset(const struct tail *t) { return t->at - (int64_t)(t->end - t->begin); }

void tail_unread(struct tail *t) { t->begin = t->line; }
