/* Places where a long text can be encoded in parts: see tokenizer.h. */
#include "core/base/memory.h"
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
static bool token_joins(const struct tokenizer *t, const char *text, size_t bytes, const char *end,
                        const char *normal)
{
    const struct stages *const all[] = {&t->normalizers, &t->splitters};
    if (has_join(text, bytes, end) || has_join(text, bytes, normal)) return true;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < all[k]->count; i++) {
            const struct stage *s = &all[k]->rows[i];
            bool replaced = s->kind == STAGE_METASPACE || s->kind == STAGE_REPLACE;
            if (replaced && has_join(text, bytes, s->content)) return true;
        }
    return false;
}

/* Returns a break as the normalizers write it, malloc'ed. */
static char *normalized(struct encoder *e, const char *text)
{
    const char *normal;
    size_t bytes;
    e->continues = true;
    return normalize(e, text, strlen(text), &normal, &bytes) ? xstrdup("") : strndup(normal, bytes);
}

/* Returns whether every match of a pattern has one space or more, and nothing else. */
static bool is_of_spaces(const char *pattern)
{
    bool in_class = false;
    int atoms = 0; /* of an alternative */
    for (const char *p = pattern; *p; p++) {
        if (*p == '|' && !in_class && atoms) atoms = 0;
        else if (*p == '{' && !in_class && p[1] >= '1' && p[1] <= '9' && strchr(p, '}')) {
            size_t n = strspn(p + 1, "0123456789,");
            if (p[1 + n] != '}') return false;
            p += 1 + n;
        } else if (*p == '\\' && p[1] && strchr("snrtf", p[1])) p++, atoms++;
        else if (*p == '[' || *p == ']') in_class = *p == '[', atoms += !in_class;
        else if (*p == ' ') atoms++;
        else if (*p != '+' || in_class) return false;
    }
    return atoms > 0;
}

/* Returns whether a normalizer changes the parts of a text, which end with a letter, as it does the whole. */
static bool is_local(const struct stage *s)
{
    const char *from = s->from;
    for (int i = 0; s->kind == STAGE_CHARSMAP && grapheme_prepended(i);
         i++) /* a letter joined with a break */
        if (charsmap_has(s->charsmap, grapheme_prepended(i))) return false;
    if (s->kind == STAGE_STRIP) return !s->left;
    return s->kind != STAGE_REPLACE || (*from && strlen(from) == utf8_length(from)) || is_of_spaces(from);
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

/* Looks at one text with the letter before `cut`. Returns whether no match has both. */
static bool probe(struct encoder *e, const struct stage *s, const char *text, size_t bytes, size_t cut)
{
    struct pattern_match m = {0};
    bool local = true;
    int found;
    while ((found = pattern_find(e, s->pattern, text, bytes, &m)) == 1 && m.begin <= cut)
        local &= m.begin >= cut || m.end <= cut;
    return local && found >= 0;
}

/* Writes the i-th text with the letter before *cut. Returns its bytes; 0: there are fewer texts. */
static size_t probe_text(int i, const char *end, const char *last, char text[64], size_t *cut)
{
    if (i >= PROBES * PROBES * PROBES * LETTERS) return 0;
    *cut = (size_t)snprintf(text, 64, "%s%s%s", probes[i % PROBES], probes[i / PROBES % PROBES],
                            probes[1 + i / PROBES / PROBES / PROBES]);
    return *cut + (size_t)snprintf(text + *cut, 64 - *cut, "%s%s%s", end,
                                   probes[i / PROBES / PROBES % PROBES], last);
}

static bool probe_all(struct encoder *e, const struct stage *s, const char *end)
{
    char text[64];
    size_t cut, bytes;
    bool local = true;
    for (int i = 0; local && (bytes = probe_text(i, end, "", text, &cut)) != 0; i++)
        local = probe(e, s, text, bytes, cut);
    return local;
}

/* Removes the NULs between words. */
static void join_words(struct text_buffer *words)
{
    size_t n = 0;
    for (size_t i = 0; i < words->count; i++)
        if (words->data[i]) words->data[n++] = words->data[i];
    words->count = n;
}

static bool equal(const struct text_buffer *a, const struct text_buffer *b)
{
    return a->count == b->count && (!a->count || memcmp(a->data, b->data, a->count) == 0);
}

enum words { WORDS_DIFFER, WORDS_JOIN, WORDS_SAME };

/* Compares the words of these texts with those of their two parts: WORDS_JOIN if all words' texts together
 * are the same. */
static enum words compare_words(struct encoder *e, const char *end)
{
    struct text_buffer whole = {0}, parts = {0};
    struct token_list tokens = {0};
    struct error err;
    char text[64];
    size_t cut, bytes;
    enum words result = WORDS_SAME;
    for (int i = 0; result && (bytes = probe_text(i, end, "a", text, &cut)) != 0; i++) {
        whole.count = parts.count = 0;
        e->words = &whole;
        bool good = encoder_encode(e, text, bytes, true, &tokens, &err) == 0;
        e->words = &parts;
        good = good && encoder_encode(e, text, cut, true, &tokens, &err) == 0 &&
               encoder_encode(e, text + cut, bytes - cut, false, &tokens, &err) == 0;
        if (good && equal(&whole, &parts)) continue;
        join_words(&whole);
        join_words(&parts);
        result = good && equal(&whole, &parts) ? WORDS_JOIN : WORDS_DIFFER;
    }
    e->words = NULL;
    text_free(&whole);
    text_free(&parts);
    token_list_free(&tokens);
    return result;
}

void tokenizer_breaks(const struct tokenizer *t, bool usable[TEXT_BREAK_COUNT])
{
    static const char *const breaks[] = TEXT_BREAKS;
    bool local[TEXT_BREAK_COUNT], all = true, merges = !t->wordpiece && !t->ignore_merges && !t->unigram;
    struct encoder *e = encoder_create(t);
    struct error err;
    e->err = &err;
    for (int i = 0; i < t->normalizers.count; i++) all &= is_local(&t->normalizers.rows[i]);
    for (int i = 0; i < TEXT_BREAK_COUNT; i++) local[i] = all;
    for (int k = 0; k < t->splitters.count; k++) {
        const struct stage *s = &t->splitters.rows[k];
        for (int i = 0; i < TEXT_BREAK_COUNT && s->kind == STAGE_SPLIT; i++)
            local[i] = local[i] && is_memoryless(s->from) && probe_all(e, s, breaks[i]);
    }
    for (int i = 0; i < TEXT_BREAK_COUNT; i++) {
        enum words words = local[i] ? compare_words(e, breaks[i]) : WORDS_DIFFER;
        bool splits = words == WORDS_SAME;
        char *normal = normalized(e, breaks[i]);
        usable[i] = normal && (splits || (words == WORDS_JOIN && merges));
        /* added tokens are found before the text is split */
        for (int64_t k = 0; k < t->count && usable[i]; k++) {
            const struct token *token = &t->tokens[k];
            if (token->bytes && (token->added || !splits))
                usable[i] = !token_joins(t, token->bytes, token->added ? strlen(token->text) : token->length,
                                         breaks[i], normal);
        }
        free(normal);
    }
    encoder_free(e);
    for (int32_t i = 0; i < t->added_count; i++) { /* it takes the spaces after it */
        const char *text = t->added[i].text, *last = text + strlen(text);
        while (last > text && ((uint8_t) * --last & 0xC0) == 0x80) continue;
        if (t->added[i].rstrip && is_letter_at(last)) usable[0] = usable[1] = false;
    }
}
