/* Words to tokens: merges of byte pair encoding, by a heap over a linked list of symbols. */
#include "core/base/memory.h"
#include "core/text/text_internal.h"

#include <stdlib.h>

static const struct merge *find_merge(const struct tokenizer *t, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | (uint32_t)right;
    if (left < 0 || right < 0) return NULL;
    for (size_t at = (pair * 0x9E3779B97F4A7C15ull >> 20) & t->merge_mask;; at = (at + 1) & t->merge_mask) {
        if (t->merges[at].pair == pair) return &t->merges[at];
        if (t->merges[at].pair == UINT64_MAX) return NULL;
    }
}

/* ---- heap ---- */

static void push(struct encoder *e, int32_t left)
{
    const struct symbol *a = &e->symbols[left];
    if (left < 0 || a->next < 0) return;
    const struct merge *m = find_merge(e->t, a->id, e->symbols[a->next].id);
    if (!m) return;
    if (e->heap_count == e->heap_capacity) {
        e->heap_capacity = e->heap_capacity * 2 + 64;
        e->heap = xrealloc(e->heap, e->heap_capacity * sizeof *e->heap);
    }
    struct candidate c = {(uint64_t)m->rank << 32 | (uint32_t)left, m->id};
    size_t at = e->heap_count++;
    for (; at && e->heap[(at - 1) / 2].key > c.key; at = (at - 1) / 2) e->heap[at] = e->heap[(at - 1) / 2];
    e->heap[at] = c;
}

static struct candidate pop(struct encoder *e)
{
    struct candidate top = e->heap[0], last = e->heap[--e->heap_count];
    size_t at = 0, child;
    while ((child = 2 * at + 1) < e->heap_count) {
        if (child + 1 < e->heap_count && e->heap[child + 1].key < e->heap[child].key) child++;
        if (last.key <= e->heap[child].key) break;
        e->heap[at] = e->heap[child];
        at = child;
    }
    e->heap[at] = last;
    return top;
}

/* ---- symbols ---- */

static void add_symbol(struct encoder *e, int32_t *count, int32_t id)
{
    e->symbols[*count] = (struct symbol){.id = id, .prev = *count - 1, .next = *count + 1, .length = 1};
    ++*count;
}

/* Splits a word into the symbols that are merged: bytes, or characters. */
static int32_t first_symbols(struct encoder *e, const char *word, size_t bytes)
{
    const struct tokenizer *t = e->t;
    int32_t count = 0;
    bool waits = false; /* an unknown token, which is written before the next known one, but after bytes */
    for (size_t i = 0, n; i < bytes; i += n) {
        n = t->byte_level ? 1 : utf8_length(word + i);
        int32_t id = t->byte_level ? t->byte_ids[(uint8_t)word[i]] : token_find(t, &t->by_bytes, word + i, n);
        bool all = id < 0 && t->byte_fallback;
        for (size_t k = 0; k < n && all; k++) all = t->byte_ids[(uint8_t)word[i + k]] >= 0;
        bool unknown = id < 0 && !all && t->unknown >= 0;
        if (waits && (id >= 0 || (unknown && !t->fuse_unknown)))
            add_symbol(e, &count, t->unknown), waits = false;
        if (id >= 0) add_symbol(e, &count, id);
        for (size_t k = 0; k < n && all; k++) add_symbol(e, &count, t->byte_ids[(uint8_t)word[i + k]]);
        waits |= unknown;
    }
    if (waits) add_symbol(e, &count, t->unknown);
    if (count) e->symbols[count - 1].next = -1;
    return count;
}

int word_check(struct encoder *e, size_t bytes)
{
    if (bytes <= MOST_WORD) return 0;
    return error_set(e->err, EXIT_INTEGRITY, "does the text have spaces? see --documents",
                     "a word has %zu bytes, expected at most %d", bytes, MOST_WORD);
}

static int merge_word(struct encoder *e, const char *word, size_t bytes)
{
    if (word_check(e, bytes)) return e->err->code;
    if (bytes > e->symbol_capacity) {
        e->symbol_capacity = bytes + bytes / 2 + 64;
        free(e->symbols);
        e->symbols = malloc(e->symbol_capacity * sizeof *e->symbols);
        if (!e->symbols) {
            e->symbol_capacity = 0;
            return error_set(e->err, EXIT_HOST_MEMORY, NULL, "out of memory for a word of %zu bytes", bytes);
        }
    }
    int32_t count = first_symbols(e, word, bytes);
    e->heap_count = 0;
    for (int32_t i = 0; i + 1 < count; i++) push(e, i);
    while (e->heap_count) {
        struct candidate c = pop(e);
        int32_t left = (int32_t)(uint32_t)c.key;
        struct symbol *a = &e->symbols[left];
        if (!a->length || a->next < 0) continue;
        struct symbol *b = &e->symbols[a->next];
        const struct merge *m = find_merge(e->t, a->id, b->id);
        if (!m || m->id != c.id) continue;
        a->id = c.id;
        b->length = 0;
        a->next = b->next;
        if (a->next >= 0) e->symbols[a->next].prev = left;
        if (a->prev >= 0) push(e, a->prev);
        push(e, left);
    }
    for (int32_t i = count ? 0 : -1; i >= 0; i = e->symbols[i].next)
        token_list_append(e->to, e->symbols[i].id);
    return 0;
}

/* Takes the longest token at each position; a word with a part that is no token is unknown as a whole. */
static int encode_wordpiece(struct encoder *e, const char *word, size_t bytes)
{
    const struct tokenizer *t = e->t;
    int64_t before = e->to->count, characters = 0;
    size_t prefix = strlen(t->prefix);
    for (size_t i = 0; i < bytes; i++) characters += ((uint8_t)word[i] & 0xC0) != 0x80;
    bool known = characters <= t->longest;
    for (size_t at = 0; at < bytes && known;) {
        int32_t id = -1;
        size_t end = bytes;
        for (; end > at; end--) {
            if (end < bytes && ((uint8_t)word[end] & 0xC0) == 0x80) continue;
            e->piece.count = 0;
            if (at) text_append(&e->piece, t->prefix, prefix);
            text_append(&e->piece, word + at, end - at);
            id = token_find(t, &t->by_bytes, e->piece.data, e->piece.count);
            if (id >= 0) break;
        }
        if (id >= 0) token_list_append(e->to, id);
        known = id >= 0;
        at = end;
    }
    if (known) return 0;
    e->to->count = before;
    token_list_append(e->to, t->unknown);
    return 0;
}

int encode_word(struct encoder *e, const char *word, size_t bytes)
{
    const struct tokenizer *t = e->t;
    uint64_t hash = hash_bytes(word, bytes);
    struct cached_word *c = &e->cache[hash >> 20 & (CACHE - 1)];
    if (!bytes) return 0;
    e->continues = e->after_token = false;
    if (e->words) {
        text_append(e->words, word, bytes);
        text_append(e->words, "", 1);
        return 0;
    }
    bool fits = bytes <= CACHED_WORD;
    if (fits && c->count && c->hash == (uint32_t)hash && c->length == bytes &&
        memcmp(c->word, word, bytes) == 0) {
        for (int i = 0; i < c->count; i++) token_list_append(e->to, c->ids[i]);
        return 0;
    }
    int64_t before = e->to->count;
    int32_t whole = t->ignore_merges ? token_find(t, &t->by_bytes, word, bytes) : -1;
    int code = 0;
    if (whole >= 0) token_list_append(e->to, whole);
    else if (t->unigram) code = encode_unigram(e, word, bytes);
    else code = t->wordpiece ? encode_wordpiece(e, word, bytes) : merge_word(e, word, bytes);
    int64_t made = e->to->count - before;
    if (code || !fits || made < 1 || made > CACHED_TOKENS) return code;
    *c = (struct cached_word){.hash = (uint32_t)hash, .length = (uint8_t)bytes, .count = (uint8_t)made};
    memcpy(c->word, word, bytes);
    memcpy(c->ids, e->to->ids + before, (size_t)made * sizeof *c->ids);
    return 0;
}
