/* Translates whole messages in both directions: see message.h. */
#include "core/base/message.h"
#include "core/base/error.h"
#include "core/base/memory.h"
#include "core/base/translate.h"

#include <ctype.h>
#include <locale.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ARGUMENTS = 16,   /* of a message */
    DEPTH = 4,        /* of messages in arguments */
    FEWEST = 6,       /* bytes of a format besides its arguments: shorter ones match by chance */
    STEPS = 3000,     /* of the search per format */
    ERRNO_COUNT = 134 /* of Linux, with 0 */
};

struct span {
    const char *at;
    size_t bytes;
};

/* One comparison of a format with a text. */
struct match {
    struct span found[ARGUMENTS]; /* the arguments, in the order of the English format */
    const char *end;              /* of the text */
    int steps;
};

/* A part of a translation, growing. */
struct output {
    char *text;
    size_t bytes;
};

static void append(struct output *o, const char *text, size_t bytes)
{
    o->text = xrealloc(o->text, o->bytes + bytes + 1);
    memcpy(o->text + o->bytes, text, bytes);
    o->text[o->bytes += bytes] = 0;
}

/* Returns the bytes of the conversion at a '%', with its letter and the number of its argument ("%2$s": 1,
 * else `next`). */
static size_t conversion(const char *at, int next, char *letter, int *argument)
{
    size_t digits = strspn(at + 1, "0123456789"),
           bytes = 1 + strcspn(at + 1, "diouxXcsaefgAEFGp"); /* the '%' itself, flags and precision */
    *letter = at[bytes];
    *argument = at[1 + digits] == '$' ? atoi(at + 1) - 1 : next;
    return bytes + (*letter != 0);
}

/* Returns the bytes of a format besides its conversions. */
static size_t literal_bytes(const char *format)
{
    size_t bytes = 0;
    char letter;
    int argument;
    for (const char *p = format; *p;) {
        if (*p == '%' && p[1] != '%') p += conversion(p, 0, &letter, &argument);
        else p += 1 + (*p == '%'), bytes++;
    }
    return bytes;
}

/* Returns whether a number has this character: 1.5e-3, 0x7f, -inf, nan, and blanks of a width. */
static bool is_numeric(char c)
{
    return isdigit((unsigned char)c) || (c && strchr("abcdefinxABCDEFINX+-. ", c));
}

static bool match_here(struct match *m, const char *format, const char *p, int next)
{
    for (; *format != '%' || format[1] == '%'; format++, p++) {
        if (m->steps-- <= 0 || p > m->end) return false;
        if (!*format) return p == m->end;
        if (p == m->end || *p != *format) return false;
        format += *format == '%';
    }
    char letter;
    int argument;
    const char *rest = format + conversion(format, next, &letter, &argument);
    if (!letter || argument < 0 || argument >= ARGUMENTS) return false;
    size_t left = (size_t)(m->end - p);
    if (letter == 's' && strncmp(rest - 3, ".0", 2) == 0) left = 0;
    /* Of texts without a separator, the first one is as long as all: the others are often empty. */
    while (letter == 's' && rest[0] == '%' && rest[1] != '%') {
        char other;
        int empty;
        size_t bytes = conversion(rest, next + 1, &other, &empty);
        if (other != 's' || empty < 0 || empty >= ARGUMENTS) break;
        m->found[empty] = (struct span){p, 0};
        rest += bytes;
        next++;
    }
    for (size_t n = letter != 's'; n <= left && m->steps > 0; n++) {
        if (letter != 's' && letter != 'c' && !is_numeric(p[n - 1])) return false;
        m->found[argument] = (struct span){p, n};
        if (match_here(m, rest, p + n, next + 1)) return true;
        if (letter == 'c') return false;
    }
    return false;
}

static void translate_part(struct output *o, struct span text, bool to_english, int depth);

/* Appends a format with the arguments that were found. */
static void put_message(struct output *o, const char *format, const struct match *m, bool to_english,
                        int depth)
{
    int next = 0, argument;
    char letter;
    for (const char *p = format; *p;) {
        if (*p != '%' || p[1] == '%') {
            append(o, p, 1);
            p += 1 + (*p == '%');
            continue;
        }
        p += conversion(p, next++, &letter, &argument);
        if (argument < 0 || argument >= ARGUMENTS || !m->found[argument].at) continue;
        if (letter == 's' && strncmp(p - 3, ".0", 2) == 0) continue; /* an ending of English words */
        if (letter == 's') translate_part(o, m->found[argument], to_english, depth + 1);
        else append(o, m->found[argument].at, m->found[argument].bytes);
    }
}

/* Appends a text of the C library in the other language; false if it is none. */
static bool put_library_text(struct output *o, struct span text, bool to_english)
{
    locale_t c = newlocale(LC_ALL_MASK, "C", NULL);
    bool found = false;
    for (int i = 1; c && i < ERRNO_COUNT && !found; i++) {
        char own[256], english[256];
        snprintf(own, sizeof own, "%s", strerror(i));
        snprintf(english, sizeof english, "%s", strerror_l(i, c));
        const char *from = to_english ? own : english, *to = to_english ? english : own;
        found = strlen(from) == text.bytes && memcmp(from, text.at, text.bytes) == 0;
        if (found) append(o, to, strlen(to));
    }
    if (c) freelocale(c);
    return found;
}

/* Appends a text that is one message as a whole; false if it is none. Of several formats that match, the one
 * with the most text of its own is used. */
static bool put_whole(struct output *o, struct span text, bool to_english, int depth)
{
    const char *english, *translated, *to = NULL;
    struct match best = {0};
    size_t most = 0;
    for (uint32_t i = 0; text.bytes && translation_pair(i, &english, &translated); i++) {
        const char *from = to_english ? translated : english;
        if (from[0] != '%' && from[0] != text.at[0]) continue;
        bool plain = !strchr(from, '%');
        if (plain && (strlen(from) != text.bytes || (!to_english && !strchr(from, ' ')))) continue;
        size_t bytes = literal_bytes(from);
        if (bytes <= most || bytes > text.bytes || (!plain && bytes < FEWEST)) continue;
        struct match m = {.end = text.at + text.bytes, .steps = STEPS};
        if (!match_here(&m, from, text.at, 0)) continue;
        best = m;
        most = bytes;
        to = to_english ? english : translated;
    }
    if (to) put_message(o, to, &best, to_english, depth);
    return to || put_library_text(o, text, to_english);
}

/* Appends a text: as a message, or as messages with separators between them. */
static void translate_part(struct output *o, struct span text, bool to_english, int depth)
{
    static const struct {
        const char *text, *english;
    } separators[] = {{": ", ": "}, {"; ", "; "}, {", ", ", "}, {"\n", "\n"},
                      {"：", ": "}, {"；", "; "}, {"，", ", "}};
    if (depth >= DEPTH) {
        append(o, text.at, text.bytes);
        return;
    }
    while (text.bytes && !put_whole(o, text, to_english, depth)) {
        struct span first = {text.at, text.bytes}, part = {NULL, 0};
        const char *english = "";
        size_t skipped = 0;
        bool found = false;
        for (size_t n = text.bytes; n-- > 0 && !found;) /* the longest beginning that is a message */
            for (size_t s = 0; s < sizeof separators / sizeof *separators && !found; s++) {
                size_t bytes = strlen(separators[s].text);
                if (n + bytes > text.bytes || memcmp(text.at + n, separators[s].text, bytes) != 0) continue;
                first.bytes = n;
                skipped = bytes;
                english = separators[s].english;
                part = (struct span){separators[s].text, bytes};
                found = put_whole(o, first, to_english, depth);
            }
        if (!found) append(o, first.at, first.bytes); /* up to the first separator */
        if (!part.at) return;
        if (to_english) append(o, english, strlen(english));
        else append(o, part.at, part.bytes);
        text.at += first.bytes + skipped;
        text.bytes -= first.bytes + skipped;
    }
}

static char *translate_message(char *dst, size_t size, const char *text, bool to_english)
{
    struct output o = {NULL, 0};
    const char *english, *translated;
    if (!translation_pair(0, &english, &translated)) return text_printable(dst, size, text);
    append(&o, "", 0);
    translate_part(&o, (struct span){text, strlen(text)}, to_english, 0);
    text_printable(dst, size, o.text);
    free(o.text);
    return dst;
}

char *message_english(char *dst, size_t size, const char *text)
{
    return translate_message(dst, size, text, true);
}

char *message_translated(char *dst, size_t size, const char *text)
{
    return translate_message(dst, size, text, false);
}
