/* The text of a file: see text_source.h. */
#include "core/text/text_source.h"
#include "core/base/memory.h"
#include "core/base/file_kind.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { STEP = 1 << 20, PASSED = 64 << 20 };

int text_source_open(struct text_source *s, const char *path, const struct text_unpacker *unpacker,
                     struct error *err)
{
    *s = (struct text_source){.unpacker = unpacker, .ended = true};
    int code = file_map_open(&s->map, path, err);
    const struct file_kind *kind = code ? NULL : file_kind(s->map.data, s->map.bytes, false);
    if (!kind || !kind->packed || !unpacker) return code;
    s->ended = false;
    code = unpacker->open(&s->stream, path, err);
    if (code) text_source_close(s);
    return code;
}

void text_source_close(struct text_source *s)
{
    if (s->stream) s->unpacker->close(s->stream);
    file_map_close(&s->map);
    free(s->window);
    *s = (struct text_source){0};
}

/* Appends a block to the window. */
static int fill(struct text_source *s, struct error *err)
{
    const void *data;
    ssize_t n = s->unpacker->read(s->stream, &data, err);
    if (n < 0) return err->code;
    if (n == 0) s->ended = true;
    if (s->end + (size_t)n > s->capacity) {
        if (s->begin) memmove(s->window, s->window + s->begin, s->end - s->begin);
        s->end -= s->begin;
        s->begin = 0;
        if (s->end + (size_t)n > s->capacity) {
            s->capacity = 2 * s->capacity + (size_t)n + STEP;
            s->window = xrealloc(s->window, s->capacity);
        }
    }
    if (n) memcpy(s->window + s->end, data, (size_t)n);
    s->end += (size_t)n;
    return 0;
}

int text_source_view(struct text_source *s, size_t want, const char **text, size_t *bytes, bool *all,
                     struct error *err)
{
    int code = 0;
    if (!s->stream) {
        *text = s->map.bytes ? (const char *)s->map.data + s->offset : "";
        *bytes = s->map.bytes - (size_t)s->offset;
    } else {
        while (!code && !s->ended && s->end - s->begin < want) code = fill(s, err);
        *text = s->end ? s->window + s->begin : "";
        *bytes = s->end - s->begin;
    }
    *all = s->ended;
    return code;
}

static int64_t count_lines(const char *text, size_t bytes)
{
    int64_t lines = 0;
    for (const char *p = text, *end = text + bytes; (p = memchr(p, '\n', (size_t)(end - p))) != NULL; p++)
        lines++;
    return lines;
}

void text_source_advance(struct text_source *s, size_t bytes)
{
    if (s->stream && bytes) {
        s->lines += count_lines(s->window + s->begin, bytes);
        s->begin += bytes;
        if (s->begin == s->end) s->begin = s->end = 0;
    }
    int64_t before = s->offset / PASSED * PASSED, after = (s->offset += (int64_t)bytes) / PASSED * PASSED;
    if (!s->stream && after > before) /* read again from the file where a job still needs it */
        madvise((void *)(uintptr_t)(s->map.data + before), (size_t)(after - before), MADV_DONTNEED);
}

int text_source_skip(struct text_source *s, int64_t offset, struct error *err)
{
    const char *text;
    size_t bytes;
    bool all;
    if (!s->stream) {
        if (offset > (int64_t)s->map.bytes) offset = (int64_t)s->map.bytes;
        s->offset = offset;
        return 0;
    }
    for (int code; s->offset < offset;) {
        size_t left = offset - s->offset < STEP ? (size_t)(offset - s->offset) : STEP;
        if ((code = text_source_view(s, left, &text, &bytes, &all, err)) != 0) return code;
        if (!bytes)
            return error_set(err, EXIT_INTEGRITY, "remove the unfinished files, then begin again",
                             "has less text than before");
        if (bytes > left) bytes = left;
        text_source_advance(s, bytes);
    }
    return 0;
}

int64_t text_source_lines(struct text_source *s, int64_t offset)
{
    if (s->stream) return s->lines;
    if (offset < s->counted) s->counted = s->lines = 0;
    if (offset > s->counted) /* from the last place that was asked for */
        s->lines += count_lines((const char *)s->map.data + s->counted, (size_t)(offset - s->counted));
    s->counted = offset;
    return s->lines;
}

int text_line_at(int64_t before, const char *text, size_t at)
{
    int64_t line = before + count_lines(text, at) + 1;
    return line < INT_MAX ? (int)line : INT_MAX;
}
