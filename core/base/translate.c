/* Translations: see translate.h. */
#include "core/base/translate.h"

#include <libintl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

/* The catalogue as msgfmt writes it, little-endian: gettext's manual, "The Format of GNU MO Files". It is
 * read here, because dgettext requires the user's locale to be installed: glibc 2.41 ignores LANGUAGE in
 * C.UTF-8, which 2.36 did not. */
enum { MO_MAGIC = 0x950412de, MO_HEAD = 20 };
static struct {
    char *data; /* NULL: none */
    size_t bytes;
    uint32_t count, texts, translations; /* offsets of two tables of (length, offset), sorted by text */
} mo;

static uint32_t mo_number(size_t at)
{
    uint32_t number;
    memcpy(&number, mo.data + at, sizeof number);
    return number;
}

/* Returns entry i of a table; NULL: not a text inside the file. */
static const char *mo_text(uint32_t table, uint32_t i)
{
    size_t at = (size_t)table + 8 * (size_t)i, length = mo_number(at), offset = mo_number(at + 4);
    return offset < mo.bytes && length < mo.bytes - offset && mo.data[offset + length] == 0 ? mo.data + offset
                                                                                            : NULL;
}

bool translate_use(char *data, size_t bytes)
{
    free(mo.data);
    mo.data = data;
    mo.bytes = bytes;
    if (data && bytes >= MO_HEAD && mo_number(0) == MO_MAGIC) {
        mo.count = mo_number(8);
        mo.texts = mo_number(12);
        mo.translations = mo_number(16);
        size_t table = 8 * (size_t)mo.count;
        if (mo.texts <= mo.bytes && table <= mo.bytes - mo.texts && mo.translations <= mo.bytes &&
            table <= mo.bytes - mo.translations) {
            bind_textdomain_codeset("libc", "UTF-8"); /* strerror, dlerror */
            return true;
        }
    }
    free(mo.data);
    mo.data = NULL;
    return false;
}

const char *translation(const char *text)
{
    if (!mo.data || !text || !text[0]) return text; /* the text of "" is the catalogue's head */
    for (uint32_t low = 0, high = mo.count; low < high;) {
        uint32_t middle = low + (high - low) / 2;
        const char *found = mo_text(mo.texts, middle), *translated = mo_text(mo.translations, middle);
        int order = found ? strcmp(text, found) : 0;
        if (!found || !translated) return text;
        if (order == 0) return translated[0] ? translated : text;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return text;
}

bool translation_pair(uint32_t i, const char **text, const char **translated)
{
    if (!mo.data || i >= mo.count) return false;
    *text = mo_text(mo.texts, i);
    *translated = mo_text(mo.translations, i);
    return *text && *translated;
}

/* Formats one conversion, `%...` up to its letter, with the next argument. */
#define FORMAT(type)                                                                                         \
    do {                                                                                                     \
        type value = va_arg(*args, type);                                                                    \
        if (star_count == 0) n = snprintf(dst, size, spec, value);                                           \
        else if (star_count == 1) n = snprintf(dst, size, spec, stars[0], value);                            \
        else n = snprintf(dst, size, spec, stars[0], stars[1], value);                                       \
    } while (0)

struct arguments {
    va_list list;
};

static int format_one(char *dst, size_t size, const char *spec, struct arguments *all)
{
    va_list *args = &all->list;
    size_t length = strlen(spec);
    char letter = spec[length - 1], before = spec[length - 2];
    bool twice = length > 3 && spec[length - 3] == 'l';
    int stars[2] = {0}, star_count = 0, n = 0;
    for (const char *p = spec; *p && star_count < 2; p++)
        if (*p == '*') stars[star_count++] = va_arg(*args, int);
    if (letter == 's') {
        const char *value = va_arg(*args, const char *);
        if (value && strchr(value, ' ')) value = translation(value);
        if (star_count == 0) n = snprintf(dst, size, spec, value);
        else if (star_count == 1) n = snprintf(dst, size, spec, stars[0], value);
        else n = snprintf(dst, size, spec, stars[0], stars[1], value);
    } else if (strchr("aefgAEFG", letter)) FORMAT(double);
    else if (letter == 'p') FORMAT(void *);
    else if (before == 'z') FORMAT(size_t);
    else if (before == 'j') FORMAT(intmax_t);
    else if (before == 'l' && twice) FORMAT(long long);
    else if (before == 'l') FORMAT(long);
    else FORMAT(int);
    return n;
}

/* Returns the bytes of a text of that many that are whole characters. */
static size_t whole_characters(const char *text, size_t bytes)
{
    size_t last = bytes;
    while (last > 0 && bytes - last < 4 && (text[last - 1] & 0xC0) == 0x80) last--;
    size_t n = last && (text[last - 1] & 0xC0) == 0xC0 ? (text[last - 1] & 0xE0) == 0xC0   ? 2
                                                         : (text[last - 1] & 0xF0) == 0xE0 ? 3
                                                                                           : 4
                                                       : 0;
    return n > bytes - last + 1 ? last - 1 : bytes;
}

int text_format(char *dst, size_t size, const char *format, va_list args)
{
    struct arguments all;
    size_t used = 0;
    format = translation(format);
    if (!mo.data || strchr(format, '$')) {
        int n = vsnprintf(dst, size, format, args);
        if (n >= 0 && (size_t)n >= size && size) dst[whole_characters(dst, size - 1)] = 0;
        return n;
    }
    va_copy(all.list, args);
    for (const char *p = format; *p && used + 1 < size;) {
        size_t plain = strcspn(p, "%"), length = 0;
        char spec[32] = "";
        if (!plain && p[1] != '%') length = 1 + strcspn(p + 1, "diouxXcsaefgAEFGp") + 1;
        if (length && length < sizeof spec) {
            memcpy(spec, p, length);
            int n = format_one(dst + used, size - used, spec, &all);
            used += n > 0 ? (size_t)n : 0;
            p += length;
            continue;
        }
        if (!plain) plain = 1, p++; /* "%%" */
        for (; plain > 0 && used + 1 < size; plain--) dst[used++] = *p++;
    }
    va_end(all.list);
    if (used >= size) used = whole_characters(dst, size - 1);
    dst[used] = 0;
    return (int)used;
}

int text_columns(const char *text, size_t bytes)
{
    int columns = 0;
    for (const unsigned char *p = (const unsigned char *)text;
         *p && (size_t)((const char *)p - text) < bytes;) {
        int n = *p < 0xC0 ? 0 : *p < 0xE0 ? 1 : *p < 0xF0 ? 2 : 3; /* bytes after the first */
        uint32_t c = n ? *p & (0x3Fu >> n) : *p;
        p++;
        for (; n > 0 && (*p & 0xC0) == 0x80; n--) c = c << 6 | (*p++ & 0x3Fu);
        int width = wcwidth((wchar_t)c);
        columns += width < 0 ? 1 : width;
    }
    return columns;
}

/* Returns whether a line may begin at p: not with a Chinese comma or closing bracket, nor after an opening
 * one. */
static bool may_begin(const char *text, const char *p)
{
    static const char closing[] = "、。，；：）》”！？"; /* three bytes each */
    static const char opening[] = "（《“";
    char before[4] = "", at[4] = "";
    if (p - text >= 3) memcpy(before, p - 3, 3);
    strncat(at, p, 3);
    return !strstr(closing, at) && (!before[0] || !strstr(opening, before));
}

size_t text_line(const char *text, int columns)
{
    size_t best = 0, bytes = 0;
    while (text[bytes]) {
        size_t next = bytes + 1;
        while ((text[next] & 0xC0) == 0x80) next++;
        bool may_break = text[bytes] == ' ' || (bytes && text[bytes - 1] == '|') ||
                         (text[bytes] & 0x80 && may_begin(text, text + bytes));
        if (may_break && text_columns(text, bytes) <= columns) best = bytes;
        if (text_columns(text, next) > columns && text[bytes] != ' ')
            return best ? best : bytes ? bytes : next;
        bytes = next;
    }
    return bytes;
}

int text_pad(int columns, const char *text)
{
    int bytes = (int)strlen(text), spaces = (columns < 0 ? -columns : columns) - text_columns(text, SIZE_MAX);
    bytes += spaces > 0 ? spaces : 0;
    return columns < 0 ? -bytes : bytes;
}
