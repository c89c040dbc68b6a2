/* The normalizer Precompiled: SentencePiece's charsmap, as the crate spm_precompiled applies it. It has the
 * bytes of a trie, the trie as a double array (darts-clone), and texts that end with NUL:
 *
 *     unit: bit 31, 0-7 label, 8 has a leaf, 9 offset in units of 256, 10-30 offset; a leaf: bits 0-30 value
 *
 * A grapheme cluster of less than six bytes becomes the text of its shortest prefix in the trie, else each
 * of its characters does. Characters without a text stay. */
#include "core/base/memory.h"
#include "core/text/text_internal.h"

#include <stdlib.h>

struct charsmap {
    uint32_t *units;
    size_t count;
    char *text;
    size_t bytes;
    bool plain[128]; /* characters that stay */
};

/* ---- reading ---- */

static int digit(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

/* Decodes base64 with its padding (RFC 4648), malloc'ed; NULL: it is none. */
static uint8_t *decode_base64(const char *text, size_t bytes, size_t *count)
{
    size_t padding = bytes >= 2 && text[bytes - 1] == '=' ? 1u + (text[bytes - 2] == '=') : 0, n = 0;
    uint8_t *data = xmalloc(bytes / 4 * 3 + 4);
    uint32_t four = 0;
    bool good = bytes % 4 == 0;
    for (size_t i = 0; i < bytes && good; i++) {
        int d = i < bytes - padding ? digit(text[i]) : 0;
        good = d >= 0;
        four = four << 6 | (uint32_t)d;
        for (int k = 2; k >= 0 && i % 4 == 3; k--) data[n++] = (uint8_t)(four >> 8 * k);
    }
    for (size_t k = 0; k < padding && good; k++) good = data[--n] == 0;
    *count = n;
    if (good) return data;
    free(data);
    return NULL;
}

static uint32_t little_endian(const uint8_t *u)
{
    return u[0] | (uint32_t)u[1] << 8 | (uint32_t)u[2] << 16 | (uint32_t)u[3] << 24;
}

static size_t offset_of(uint32_t unit) { return (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6); }

/* Finds the text of the shortest prefix of a text in the trie: 1, 0 none, -1 the trie is damaged. */
static int find(const struct charsmap *m, const char *text, size_t bytes, const char **found)
{
    size_t at = 0;
    uint32_t unit = m->units[0];
    for (size_t i = 0;; i++) {
        at ^= offset_of(unit);
        if (i && (unit >> 8 & 1)) break;
        if (i == bytes || !text[i]) return 0;
        at ^= (uint8_t)text[i];
        if (at >= m->count) return -1;
        unit = m->units[at];
        if ((unit & (1u << 31 | 0xFF)) != (uint8_t)text[i]) return 0;
    }
    if (at >= m->count) return -1;
    size_t value = m->units[at] & (UINT32_MAX >> 1);
    if (value > m->bytes || ((uint8_t)m->text[value] & 0xC0) == 0x80) return -1;
    *found = m->text + value;
    return 1;
}

static int damaged(const char *what, struct error *err)
{
    return error_set(err, EXIT_INTEGRITY, "copy the file again", "normalizer Precompiled: %s", _(what));
}

int charsmap_read(struct charsmap **map, json_t *o, struct error *err)
{
    json_t *value = json_object_get(o, "precompiled_charsmap");
    size_t n = 0;
    *map = NULL;
    uint8_t *data =
        decode_base64(json_is_string(value) ? json_string_value(value) : "", json_string_length(value), &n);
    size_t count = data && n >= 4 ? little_endian(data) / 4 : 0, texts = 4 + 4 * count;
    const char *what = !data                 ? N_("precompiled_charsmap is not in base64")
                       : !count || texts > n ? N_("precompiled_charsmap is shorter than its trie")
                       : utf8_invalid((char *)data + texts, n - texts) < n - texts
                           ? N_("the texts of precompiled_charsmap are not UTF-8")
                           : NULL;
    if (what) {
        free(data);
        return damaged(what, err);
    }
    struct charsmap *m = *map = xcalloc(1, sizeof *m);
    *m = (struct charsmap){
        .units = xmalloc(4 * count), .count = count, .text = xcalloc(1, n - texts + 1), .bytes = n - texts};
    for (size_t i = 0; i < count; i++) m->units[i] = little_endian(data + 4 + 4 * i);
    memcpy(m->text, data + texts, n - texts);
    free(data);
    for (int c = 0; c < 128; c++) {
        const char character = (char)c, *found;
        m->plain[c] = find(m, &character, 1, &found) == 0;
    }
    return 0;
}

void charsmap_free(struct charsmap *m)
{
    if (!m) return;
    free(m->units);
    free(m->text);
    free(m);
}

bool charsmap_has(const struct charsmap *m, uint32_t point)
{
    struct text_buffer key = {0};
    size_t at = offset_of(m->units[0]);
    bool has = true;
    text_append_point(&key, point);
    for (size_t i = 0; i < key.count && has; i++) {
        at ^= (uint8_t)key.data[i];
        has = at < m->count && (m->units[at] & (1u << 31 | 0xFF)) == (uint8_t)key.data[i];
        if (has) at ^= offset_of(m->units[at]);
    }
    text_free(&key);
    return has;
}

/* ---- applying ---- */

/* Appends what a cluster or a character becomes: 1, 0 it stays, an error -1. */
static int replace(struct encoder *e, const struct charsmap *m, const char *text, size_t bytes,
                   struct text_buffer *to)
{
    const char *found;
    int is = find(m, text, bytes, &found);
    if (is < 0) damaged(N_("the trie of precompiled_charsmap is damaged"), e->err);
    if (is > 0) text_append_text(to, found);
    return is;
}

/* Appends what a grapheme cluster becomes; an error: -1. Sets e->head if its first `head` bytes stand for the
 * first character of the document: each character of a cluster's new text stands for one of the old text. */
static int replace_cluster(struct encoder *e, const struct charsmap *m, const char *text, size_t bytes,
                           size_t head, struct text_buffer *to)
{
    size_t length = utf8_length(text), at = to->count;
    int is = bytes < 6 ? replace(e, m, text, bytes, to) : 0;
    if (is > 0 && head) e->head = length == bytes ? to->count : at;
    for (size_t k = 0; is > 0 && length < bytes && k < head && at < to->count; k += utf8_length(text + k))
        e->head = at += utf8_length(to->data + at);
    if (is) return is;
    for (size_t k = 0; k < bytes; k += length) {
        length = utf8_length(text + k);
        is = length == bytes ? 0 : replace(e, m, text + k, length, to);
        if (is < 0) return is;
        if (!is) text_append(to, text + k, length);
        if (k < head) e->head = to->count;
    }
    return 0;
}

int charsmap_apply(struct encoder *e, const struct charsmap *m, const char *text, size_t bytes,
                   struct text_buffer *to)
{
    size_t head = e->head, n;
    e->head = 0;
    for (size_t i = 0; i < bytes; i += n) {
        size_t before = to->count,
               here = i < head ? head - i : head && !before; /* or the first one that stays */
        for (n = 0; i + n + 1 < bytes && !((text[i + n] | text[i + n + 1]) & 0x80); n++)
            if (!m->plain[(uint8_t)text[i + n]] || text[i + n] == '\r') break;
        if (n) {
            text_append(to, text + i, n);
            if (here) e->head = before + (here < n ? here : n);
            continue;
        }
        n = grapheme_length(text + i, bytes - i);
        if (replace_cluster(e, m, text + i, n, here, to) < 0) return e->err->code;
    }
    return 0;
}
