/* Error values: see error.h. */
#include "core/base/error.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Length of the valid UTF-8 character at p (1..4), or 0. Overlong forms and surrogates are invalid. */
static size_t utf8_length(const unsigned char *p)
{
    if (p[0] < 0x80) return 1;
    size_t n = p[0] >= 0xF0 && p[0] <= 0xF4  ? 4
               : p[0] >= 0xE0 && p[0] < 0xF0 ? 3
               : p[0] >= 0xC2 && p[0] < 0xE0 ? 2
                                             : 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xC0) != 0x80) return 0;
    if ((p[0] == 0xE0 && p[1] < 0xA0) || (p[0] == 0xED && p[1] > 0x9F) || (p[0] == 0xF0 && p[1] < 0x90) ||
        (p[0] == 0xF4 && p[1] > 0x8F))
        return 0;
    return n;
}

size_t text_control(const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    if (p[0] < 0x20 || p[0] == 0x7F) return 1;
    if (p[0] == 0xC2 && p[1] >= 0x80 && p[1] < 0xA0) return 2;
    bool turns = p[0] == 0xE2 && ((p[1] == 0x80 && p[2] >= 0xAA && p[2] <= 0xAE) ||
                                  (p[1] == 0x81 && p[2] >= 0xA6 && p[2] <= 0xA9));
    return turns ? 3 : 0;
}

static char *printable(char *dst, size_t size, const char *text, int layout)
{
    static const char hex[] = "0123456789abcdef";
    size_t out = 0;
    const unsigned char *p = (const unsigned char *)text;
    while (*p) {
        size_t n = utf8_length(p);
        bool control = text_control((const char *)p) != 0;
        if (layout && (*p == '\n' || *p == '\t'))
            control = false; /* layout of our own messages: a caret line, a table */
        if (n && !control) {
            if (out + n >= size) break;
            memcpy(dst + out, p, n);
            out += n;
        } else {
            n = n ? n : 1;
            if (out + 4 * n >= size) break;
            for (size_t i = 0; i < n; i++) {
                dst[out++] = '\\';
                dst[out++] = 'x';
                dst[out++] = hex[p[i] >> 4];
                dst[out++] = hex[p[i] & 15];
            }
        }
        p += n;
    }
    if (size) dst[out] = 0;
    return dst;
}

char *text_printable(char *dst, size_t size, const char *text) { return printable(dst, size, text, 1); }
char *name_printable(char *dst, size_t size, const char *name) { return printable(dst, size, name, 0); }

static void error_fill(struct error *e, int code, const char *hint, const char *format, va_list args,
                       int saved)
{
    char raw[1024];
    int n = text_format(raw, sizeof raw, format, args);
    if (saved && n >= 0 && (size_t)n < sizeof raw - 3)
        snprintf(raw + n, sizeof raw - (size_t)n, ": %s", strerror(saved));
    e->code = code;
    e->file[0] = 0;
    e->line = e->column = 0;
    text_printable(e->what, sizeof e->what, raw);
    text_printable(e->hint, sizeof e->hint, hint ? translation(hint) : "");
}

int error_set(struct error *e, int code, const char *hint, const char *format, ...)
{
    if (!e) return code;
    va_list args;
    va_start(args, format);
    error_fill(e, code, hint, format, args, 0);
    va_end(args);
    return code;
}

int error_errno(struct error *e, int code, const char *hint, const char *format, ...)
{
    int saved = errno;
    if (saved == ENOSPC || saved == EDQUOT || saved == EFBIG) code = EXIT_DISK;
    if (saved == ENOMEM) code = EXIT_HOST_MEMORY;
    if (!e) return code;
    va_list args;
    va_start(args, format);
    error_fill(e, code, hint, format, args, saved);
    va_end(args);
    errno = saved;
    return code;
}

int error_at(struct error *e, const char *file, int line, int column)
{
    if (!e) return EXIT_FAILED;
    name_printable(e->file, sizeof e->file, file);
    e->line = line > 0 ? line : 0; /* a library's -1 means unknown */
    e->column = column > 0 ? column : 0;
    return e->code;
}

void error_print(const struct error *e)
{
    fputs("meopt: ", stderr);
    if (e->file[0]) {
        fputs(e->file, stderr);
        if (e->line > 0) fprintf(stderr, ":%d", e->line);
        if (e->line > 0 && e->column > 0) fprintf(stderr, ":%d", e->column);
        fputs(": ", stderr);
    }
    fprintf(stderr, "%s\n", e->what);
    if (e->hint[0]) fprintf(stderr, "       %s\n", e->hint);
}
