/* Characters, buffers and lists of core/text. */
#include "core/base/memory.h"
#include "core/text/text_internal.h"

#include <stdlib.h>
#include <utf8proc.h>

void text_append(struct text_buffer *b, const char *bytes, size_t count)
{
    if (b->count + count > b->capacity) {
        b->capacity = (b->count + count) * 3 / 2 + 64;
        b->data = xrealloc(b->data, b->capacity);
    }
    if (count) memcpy(b->data + b->count, bytes, count);
    b->count += count;
}

void text_append_text(struct text_buffer *b, const char *text) { text_append(b, text, strlen(text)); }

void text_free(struct text_buffer *b)
{
    free(b->data);
    *b = (struct text_buffer){0};
}

void token_list_append(struct token_list *l, int32_t id)
{
    if (l->count == l->capacity) {
        l->capacity = l->capacity * 3 / 2 + 256;
        l->ids = xrealloc(l->ids, (size_t)l->capacity * sizeof *l->ids);
    }
    l->ids[l->count++] = id;
}

void token_list_free(struct token_list *l)
{
    free(l->ids);
    *l = (struct token_list){0};
}

void text_append_point(struct text_buffer *b, uint32_t p)
{
    char c[4];
    size_t n = p < 0x80 ? 1 : p < 0x800 ? 2 : p < 0x10000 ? 3 : 4;
    static const uint8_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n - 1; i > 0; i--, p >>= 6) c[i] = (char)(0x80 | (p & 63));
    c[0] = (char)(lead[n] | p);
    text_append(b, c, n);
}

bool point_is_letter(uint32_t p)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)p);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool point_is_space(uint32_t p)
{
    return (p >= 9 && p <= 13) || p == ' ' || p == 0x85 || p == 0xA0 || p == 0x1680 ||
           (p >= 0x2000 && p <= 0x200A) || p == 0x2028 || p == 0x2029 || p == 0x202F || p == 0x205F ||
           p == 0x3000;
}

size_t utf8_invalid(const char *text, size_t bytes)
{
    const uint8_t *u = (const uint8_t *)text;
    size_t i = 0;
    while (i < bytes) {
        uint64_t eight;
        if (bytes - i >= 8 && (memcpy(&eight, u + i, 8), !(eight & 0x8080808080808080ull))) {
            i += 8;
            continue;
        }
        uint8_t c = u[i];
        size_t n = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
        if (!n || n > bytes - i) return i;
        for (size_t k = 1; k < n; k++)
            if ((u[i + k] & 0xC0) != 0x80) return i;
        bool overlong = (c == 0xE0 && u[i + 1] < 0xA0) || (c == 0xF0 && u[i + 1] < 0x90),
             outside = (c == 0xED && u[i + 1] > 0x9F) || (c == 0xF4 && u[i + 1] > 0x8F);
        if (overlong || outside) return i;
        i += n;
    }
    return bytes;
}

/* The characters of GPT-2's bytes_to_unicode: a printable character of Latin-1 is its own, the other bytes
 * follow from U+0100 on. */
static bool stands_for_itself(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

int byte_level_byte(uint32_t point)
{
    if (point < 0x100) return stands_for_itself((int)point) ? (int)point : -1;
    for (int b = 0, next = 0x100; b < 256; b++)
        if (!stands_for_itself(b) && next++ == (int)point) return b;
    return -1;
}
