/* Added tokens, which are found in a text before it is split, and the encoding of a whole text. The rules are
 * those of tokenizers' added_vocabulary.rs. */
#include "core/base/memory.h"
#include "core/text/text_internal.h"

#include <stdlib.h>
#include <utf8proc.h>

/* ---- trie ---- */

static int32_t trie_node(struct trie *t, uint8_t byte)
{
    if (t->count == t->capacity) {
        t->capacity = 2 * t->capacity + 64;
        t->nodes = xrealloc(t->nodes, (size_t)t->capacity * sizeof *t->nodes);
    }
    t->nodes[t->count] = (struct trie_node){.byte = byte, .child = -1, .sibling = -1, .token = -1};
    return t->count++;
}

static void trie_add(struct trie *t, const char *text, size_t bytes, int32_t token)
{
    if (!t->count) trie_node(t, 0);
    t->begins[(uint8_t)text[0]] = true;
    int32_t at = 0;
    for (size_t i = 0; i < bytes; i++) {
        int32_t child = t->nodes[at].child;
        while (child >= 0 && t->nodes[child].byte != (uint8_t)text[i]) child = t->nodes[child].sibling;
        if (child < 0) {
            child = trie_node(t, (uint8_t)text[i]);
            t->nodes[child].sibling = t->nodes[at].child;
            t->nodes[at].child = child;
        }
        at = child;
    }
    if (t->nodes[at].token < 0) t->nodes[at].token = token;
}

/* Finds the longest token at the first position from `from` on that has one; -1: none. */
static int32_t trie_find(const struct trie *t, const char *text, size_t bytes, size_t from, size_t *begin,
                         size_t *end)
{
    int32_t token = -1;
    for (size_t i = from; t->count && i < bytes && token < 0; i++) {
        if (!t->begins[(uint8_t)text[i]]) continue;
        int32_t at = 0;
        for (size_t k = i; k < bytes; k++) {
            at = t->nodes[at].child;
            while (at >= 0 && t->nodes[at].byte != (uint8_t)text[k]) at = t->nodes[at].sibling;
            if (at < 0) break;
            if (t->nodes[at].token < 0) continue;
            token = t->nodes[at].token;
            *begin = i;
            *end = k + 1;
        }
    }
    return token;
}

/* ---- reading ---- */

/* next: number that `tokenizers` gives to a token that the model does not have, whatever the file says. */
static int read_one(struct tokenizer *t, json_t *o, struct added_token *a, int64_t *next, struct error *err)
{
    const char *text = json_string_value(json_object_get(o, "content"));
    json_t *id = json_object_get(o, "id");
    int code = part_keys(o, "added token", "id content single_word lstrip rstrip normalized special", err);
    if (!code && (!text || !*text || !json_is_integer(id)))
        code = error_set(err, EXIT_INTEGRITY, NULL, "an added token has no content or id");
    if (!code) code = part_flag(o, "added token", "single_word", false, &a->single_word, err);
    if (!code) code = part_flag(o, "added token", "lstrip", false, &a->lstrip, err);
    if (!code) code = part_flag(o, "added token", "rstrip", false, &a->rstrip, err);
    if (!code) code = part_flag(o, "added token", "normalized", true, &a->normalized, err);
    if (!code) code = part_flag(o, "added token", "special", false, &a->special, err);
    if (code) return code;
    int64_t number = (int64_t)json_integer_value(id);
    const char *taken = number >= 0 && number < t->count ? t->tokens[number].text : NULL;
    if (number > t->count + 65536)
        return error_set(err, EXIT_INTEGRITY, NULL, "added token '%.60s' has number %lld after %lld tokens",
                         text, (long long)number, (long long)t->count);
    int32_t other = token_find(t, &t->by_text, text, strlen(text));
    if (other >= 0 && other != number)
        return error_set(err, EXIT_INTEGRITY, NULL, "added token '%.60s' has numbers %lld and %d", text,
                         (long long)number, other);
    bool new = !taken || strcmp(taken, text) != 0;
    if (new &&number != *next)
        return error_set(err, EXIT_INTEGRITY, "save the tokenizer again with transformers",
                         "added token '%.60s' has number %lld, but tokenizers gives it %lld", text,
                         (long long)number, (long long)*next);
    if (new) code = token_add(t, text, strlen(text), (*next)++, err);
    if (code) return code;
    a->id = (int32_t)number;
    a->text = xstrdup(text);
    t->tokens[number].added = true;
    t->tokens[number].special = a->special;
    return 0;
}

/* Makes the tries: tokens that are compared with the normalized text are normalized themselves. */
static int make_tries(struct tokenizer *t, struct error *err)
{
    struct encoder *e = encoder_create(t);
    int code = 0;
    e->err = err;
    e->continues = true;
    for (int32_t i = 0; i < t->added_count && !code; i++) {
        const struct added_token *a = &t->added[i];
        const char *text = a->text;
        size_t bytes = strlen(text);
        e->continues = false;
        if (a->normalized) code = normalize(e, text, bytes, &text, &bytes);
        if (!code && bytes) trie_add(a->normalized ? &t->normalized : &t->raw, text, bytes, i);
        if (!code && text != a->text) {
            free(t->tokens[a->id].shown);
            t->tokens[a->id].shown = xasprintf("%.*s", (int)bytes, text);
        }
    }
    encoder_free(e);
    return code;
}

int added_read(struct tokenizer *t, json_t *array, struct error *err)
{
    json_t *item;
    size_t i;
    int64_t next = 0;
    int code = 0;
    if (!json_is_array(array)) return error_set(err, EXIT_INTEGRITY, NULL, "added_tokens is no array");
    t->added = xcalloc(json_array_size(array) + 1, sizeof *t->added);
    for (int64_t id = 0; id < t->count; id++) next += t->tokens[id].text != NULL;
    json_array_foreach(array, i, item)
    {
        if (code) return code;
        code = read_one(t, item, &t->added[t->added_count], &next, err);
        if (!code) t->added_count++;
    }
    if (code) return code;
    token_map_all(t);
    return make_tries(t, err);
}

/* ---- encoding ---- */

struct encoder *encoder_create(const struct tokenizer *t)
{
    struct encoder *e = xcalloc(1, sizeof *e);
    e->t = t;
    e->cache = xcalloc(CACHE, sizeof *e->cache);
    e->stage_text = xcalloc((size_t)t->splitters.count + 1, sizeof *e->stage_text);
    return e;
}

void encoder_free(struct encoder *e)
{
    if (!e) return;
    for (int i = 0; i < e->t->splitters.count; i++) text_free(&e->stage_text[i]);
    free(e->stage_text);
    text_free(&e->normal);
    text_free(&e->other);
    text_free(&e->piece);
    pcre2_match_data_free(e->match);
    pcre2_match_context_free(e->limits);
    pcre2_jit_stack_free(e->stack);
    free(e->cache);
    free(e->symbols);
    free(e->paths);
    free(e->heap);
    free(e);
}

static bool is_word(uint32_t p) /* \w */
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)p);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_ND) || c == UTF8PROC_CATEGORY_PC;
}

static size_t character_before(const char *text, size_t at)
{
    do at--;
    while (((uint8_t)text[at] & 0xC0) == 0x80);
    return at;
}

/* Returns whether a token may be there. Extends it by the spaces that it strips. */
static bool accept(const struct added_token *a, const char *text, size_t bytes, size_t from, size_t *begin,
                   size_t *end)
{
    uint32_t p;
    if (a->single_word) {
        if (*begin && (utf8_read(text + character_before(text, *begin), &p), is_word(p))) return false;
        if (*end < bytes && (utf8_read(text + *end, &p), is_word(p))) return false;
    }
    while (a->lstrip && *begin > from) {
        size_t at = character_before(text, *begin);
        utf8_read(text + at, &p);
        if (!point_is_space(p)) break;
        *begin = at;
    }
    while (a->rstrip && *end < bytes) {
        size_t n = utf8_read(text + *end, &p);
        if (!point_is_space(p)) break;
        *end += n;
    }
    return true;
}

typedef int segment_encode(struct encoder *e, const char *text, size_t bytes);

/* Calls `encode` for each part of a text between the tokens of a trie, which are appended. */
static int between_tokens(struct encoder *e, const struct trie *trie, const char *text, size_t bytes,
                          segment_encode *encode)
{
    size_t from = 0, search = 0, begin = 0, end = 0, head = e->head;
    int32_t i;
    int code = 0;
    while (!code && (i = trie_find(trie, text, bytes, search, &begin, &end)) >= 0) {
        const struct added_token *a = &e->t->added[i];
        size_t after = end;
        if (accept(a, text, bytes, from, &begin, &end)) {
            if (begin > from) code = encode(e, text + from, begin - from);
            token_list_append(e->to, a->id);
            e->continues = false;
            e->after_token = true;
            e->strips = a->rstrip;
            from = end;
            e->head = head > from ? head - from : 0;
        }
        search = after > from ? after : from;
    }
    return !code && from < bytes ? encode(e, text + from, bytes - from) : code;
}

static int encode_normalized(struct encoder *e, const char *text, size_t bytes)
{
    return split_text(e, 0, text, bytes);
}

static int encode_raw(struct encoder *e, const char *text, size_t bytes)
{
    const char *normal;
    size_t n;
    int code = normalize(e, text, bytes, &normal, &n);
    return code ? code : between_tokens(e, &e->t->normalized, normal, n, encode_normalized);
}

int encoder_encode(struct encoder *e, const char *text, size_t bytes, bool begins, struct token_list *to,
                   struct error *err)
{
    bool after = !begins && e->end == text; /* a text after an added token is one of its own */
    e->to = to;
    e->err = err;
    e->head = begins && bytes ? utf8_length(text) : 0;
    e->continues = !begins && !after;
    e->after_token = after;
    for (size_t n; after && e->strips && bytes; text += n, bytes -= n) {
        uint32_t p;
        n = utf8_read(text, &p);
        if (!point_is_space(p)) break;
    }
    int code = between_tokens(e, &e->t->raw, text, bytes, encode_raw);
    e->end = e->after_token ? text + bytes : NULL;
    return code;
}
