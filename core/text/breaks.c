/* Places where a long text can be encoded in parts: see tokenizer.h. */
#include "core/text/text_internal.h"

#include <stdlib.h>

static bool is_letter_at(const char *text)
{
    uint32_t point;
    utf8_read(text, &point);
    return point_is_letter(point);
}

/* Returns whether a token has a letter, or the rest of one, before `end`. */
static bool has_join(const char *text, size_t bytes, const char *end)
{
    size_t n = strlen(end);
    for (const char *p = text; n && (p = memmem(p, (size_t)(text + bytes - p), end, n)) != NULL; p++) {
        const char *before = p;
        do before--;
        while (before > text && ((uint8_t)*before & 0xC0) == 0x80);
        if (before < text) continue;
        bool rest = ((uint8_t)*before & 0xC0) == 0x80, whole = before + utf8_length(before) == p;
        if (rest || (whole && is_letter_at(before))) return true;
    }
    return false;
}

/* Returns whether a token joins a letter and a break, as it is or as normalizers and Metaspace write it. */
static bool token_joins(const struct tokenizer *t, const char *text, size_t bytes, const char *end)
{
    const struct stages *const all[] = {&t->normalizers, &t->splitters};
    if (has_join(text, bytes, end)) return true;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < all[k]->count; i++) {
            const struct stage *s = &all[k]->rows[i];
            bool compatible = s->kind == STAGE_NFKC || s->kind == STAGE_NFKD,
                 replaced = s->kind == STAGE_METASPACE || s->kind == STAGE_REPLACE;
            if (compatible && has_join(text, bytes, ",")) return true;
            if (replaced && has_join(text, bytes, s->content)) return true;
        }
    return false;
}

/* Returns whether a normalizer changes the parts of a text as it changes the whole. */
static bool is_local(const struct stage *s)
{
    if (s->kind == STAGE_STRIP) return false;
    return s->kind != STAGE_REPLACE || (s->from && s->from[0] && strlen(s->from) == utf8_length(s->from));
}

/* Returns whether matches of a pattern depend on no text before them and on little of what follows: no
 * anchor, look-around but (?!\S), reference, long literal or count. */
static bool is_memoryless(const char *pattern)
{
    static const char after_spaces[] = "(?!\\S)";
    bool in_class = false;
    int letters = 0;
    for (const char *p = pattern; *p; p++) {
        bool letter = !in_class && ((uint8_t)*p >= 0x80 || (*p | 32) - 'a' + 0u < 26u);
        letters = letter ? letters + 1 : 0;
        if (letters > 2) return false;
        if (*p == '\\' && p[1]) {
            if (!in_class && strchr("bBAzZG123456789kg", p[1])) return false;
            if ((p[1] == 'p' || p[1] == 'P' || p[1] == 'x') && p[2] == '{' && strchr(p, '}'))
                p = strchr(p, '}');
            else p++;
        } else if (in_class) in_class = *p != ']';
        else if (*p == '[') in_class = true, p += p[1] == '^';
        else if (*p == '^' || *p == '$' || (*p == '{' && p[1] > '1')) return false;
        else if (strncmp(p, after_spaces, sizeof after_spaces - 1) == 0) p += sizeof after_spaces - 2;
        else if (*p == '(' && p[1] == '?') {
            if (strncmp(p, "(?:", 3) != 0 && strncmp(p, "(?i:", 4) != 0) return false;
            p = strchr(p, ':');
        }
    }
    return true;
}

/* What a pattern does between a letter and a break, in every text of up to five of these characters. */
static const char *const probes[] = {"", "a", "A", "\xE4\xB8\xAD", "1", "'", "!", " ", "\n", "\xCC\x81", "_"};
enum { PROBES = sizeof probes / sizeof *probes, LETTERS = 3 };

/* Looks at one text with the letter before `cut`. *local: no match has both; *splits: a match begins or ends
 * there. */
static void probe(struct encoder *e, const struct stage *s, const char *text, size_t bytes, size_t cut,
                  bool *local, bool *splits)
{
    struct pattern_match m = {0};
    bool here = false;
    int found;
    while ((found = pattern_find(e, s->pattern, text, bytes, &m)) == 1 && m.begin <= cut) {
        *local &= m.begin >= cut || m.end <= cut;
        here |= m.end > m.begin && (m.begin == cut || m.end == cut);
    }
    *local &= found >= 0;
    *splits &= here;
}

static void probe_all(struct encoder *e, const struct stage *s, const char *end, bool *local, bool *splits)
{
    for (int i = 0; i < PROBES * PROBES * PROBES * LETTERS && *local; i++) {
        char text[64];
        int n = snprintf(text, sizeof text, "%s%s%s", probes[i % PROBES], probes[i / PROBES % PROBES],
                         probes[1 + i / PROBES / PROBES / PROBES]),
            all = n + snprintf(text + n, sizeof text - (size_t)n, "%s%s", end,
                               probes[i / PROBES / PROBES % PROBES]);
        probe(e, s, text, (size_t)all, (size_t)n, local, splits);
    }
}

void tokenizer_breaks(const struct tokenizer *t, bool usable[TEXT_BREAK_COUNT])
{
    static const char *const breaks[] = TEXT_BREAKS;
    bool local[TEXT_BREAK_COUNT], splits[TEXT_BREAK_COUNT] = {0}, normal = true;
    struct encoder *e = encoder_create(t);
    struct error err;
    e->err = &err;
    for (int i = 0; i < t->normalizers.count; i++) normal &= is_local(&t->normalizers.rows[i]);
    for (int i = 0; i < TEXT_BREAK_COUNT; i++) local[i] = normal;
    for (int k = 0; k < t->splitters.count; k++) {
        const struct stage *s = &t->splitters.rows[k];
        for (int i = 0; i < TEXT_BREAK_COUNT && s->kind == STAGE_SPLIT; i++) {
            bool between = s->behaviour <= SPLIT_ISOLATED;
            local[i] &= is_memoryless(s->from);
            probe_all(e, s, breaks[i], &local[i], &between);
            splits[i] |= between;
        }
    }
    encoder_free(e);
    for (int i = 0; i < TEXT_BREAK_COUNT; i++) {
        usable[i] = local[i] && (splits[i] || (!t->wordpiece && !t->ignore_merges));
        /* added tokens are found before the text is split */
        for (int64_t k = 0; k < t->count && usable[i]; k++) {
            const struct token *token = &t->tokens[k];
            if (token->bytes && (token->added || !splits[i]))
                usable[i] = !token_joins(t, token->bytes, token->added ? strlen(token->text) : token->length,
                                         breaks[i]);
        }
    }
    for (int32_t i = 0; i < t->added_count; i++) { /* it takes the spaces after it */
        const char *text = t->added[i].text, *last = text + strlen(text);
        while (last > text && ((uint8_t) * --last & 0xC0) == 0x80) continue;
        if (t->added[i].rstrip && is_letter_at(last)) usable[0] = usable[1] = false;
    }
}
