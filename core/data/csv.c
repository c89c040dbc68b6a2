/* Comma-separated values: see csv.h. */
#include "core/data/csv.h"
#include "core/base/memory.h"

#include <stdlib.h>
#include <string.h>

int csv_open(struct csv *csv, char *text, size_t bytes, struct error *err)
{
    *csv = (struct csv){.at = text, .end = text + bytes, .line = 1, .begin = 1};
    const unsigned char *p = (const unsigned char *)text;
    if (bytes >= 2 && ((p[0] == 0xff && p[1] == 0xfe) || (p[0] == 0xfe && p[1] == 0xff)))
        return error_set(err, EXIT_FAILED, "save it as CSV in UTF-8", "is UTF-16, expected UTF-8");
    if (bytes >= 3 && memcmp(p, "\xef\xbb\xbf", 3) == 0) csv->at += 3;
    const char *nul = memchr(csv->at, 0, (size_t)(csv->end - csv->at));
    if (!nul) return 0;
    for (const char *c = csv->at; c < nul; c++) csv->line += *c == '\n';
    return error_set(err, EXIT_FAILED, "save it as CSV in UTF-8", "contains a NUL byte, expected text");
}

/* Skips the line end at c->at, if there is one, and counts it. */
static void skip_line_end(struct csv *c)
{
    if (c->at == c->end) return;
    if (*c->at == '\r' && c->at + 1 < c->end && c->at[1] == '\n') c->at++;
    c->at++;
    c->line++;
}

/* Reads a field in quotes, of which c->at is the first; "" is one quote. */
static int quoted(struct csv *c, char **field, struct error *err)
{
    int64_t opened = c->line;
    char *to = *field = ++c->at;
    for (; c->at < c->end; c->at++) {
        if (*c->at == '"' && (c->at + 1 == c->end || c->at[1] != '"')) break;
        if (*c->at == '"') c->at++;
        c->line += *c->at == '\n';
        *to++ = *c->at;
    }
    if (c->at == c->end) {
        c->line = opened;
        return error_set(err, EXIT_FAILED, "close it, or write \"\" for a quote in a field",
                         "a quote is opened and never closed");
    }
    c->at++;
    *to = 0;
    if (c->at < c->end && !strchr(",\r\n", *c->at))
        return error_set(err, EXIT_FAILED, "write \"\" for a quote in a field",
                         "text after a closing quote, expected a comma or the end of the line");
    return 0;
}

static void add(struct csv *c, char *field)
{
    if (c->count == c->capacity) {
        c->capacity = c->capacity ? 2 * c->capacity : 4;
        c->fields = xrealloc(c->fields, (size_t)c->capacity * sizeof *c->fields);
    }
    c->fields[c->count++] = field;
}

int csv_row(struct csv *c, int *more, struct error *err)
{
    c->count = 0;
    while (c->at < c->end && (*c->at == '\n' || *c->at == '\r')) skip_line_end(c);
    *more = c->at < c->end;
    c->begin = c->line;
    for (bool next = *more; next;) {
        char *field = c->at;
        if (c->at < c->end && *c->at == '"') {
            int code = quoted(c, &field, err);
            if (code) return code;
        } else {
            while (c->at < c->end && !strchr(",\r\n", *c->at)) c->at++;
        }
        add(c, field);
        next = c->at < c->end && *c->at == ',';
        char *stop = c->at;
        if (next) c->at++;
        else skip_line_end(c);
        *stop = 0; /* after the line end was read */
    }
    return 0;
}

void csv_close(struct csv *c)
{
    free(c->fields);
    *c = (struct csv){0};
}
