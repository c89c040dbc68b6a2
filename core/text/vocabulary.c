/* The model of a tokenizer: tokens by number and text, merges. */
#include "core/base/memory.h"
#include "core/text/text_internal.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- tokens ---- */

static const char *key_of(const struct tokenizer *t, const struct token_map *map, int32_t id, size_t *length)
{
    const struct token *token = &t->tokens[id];
    *length = map->of_text ? strlen(token->text) : token->length;
    return map->of_text ? token->text : token->bytes;
}

int32_t token_find(const struct tokenizer *t, const struct token_map *map, const char *key, size_t length)
{
    if (!map->ids) return -1;
    for (size_t at = hash_bytes(key, length) & map->mask;; at = (at + 1) & map->mask) {
        int32_t id = map->ids[at];
        size_t n;
        if (id < 0) return -1;
        const char *found = key_of(t, map, id, &n);
        if (n == length && memcmp(found, key, n) == 0) return id;
    }
}

static void map_insert(const struct tokenizer *t, struct token_map *map, int32_t id)
{
    size_t n;
    const char *key = key_of(t, map, id, &n);
    if (!key || token_find(t, map, key, n) >= 0) return;
    size_t at = hash_bytes(key, n) & map->mask;
    while (map->ids[at] >= 0) at = (at + 1) & map->mask;
    map->ids[at] = id;
}

static void map_build(const struct tokenizer *t, struct token_map *map, size_t tokens, bool of_text)
{
    size_t slots = 64;
    while (slots < 2 * tokens) slots *= 2;
    free(map->ids);
    *map =
        (struct token_map){.ids = xmalloc(slots * sizeof *map->ids), .mask = slots - 1, .of_text = of_text};
    memset(map->ids, 0xff, slots * sizeof *map->ids);
    for (int64_t i = t->count - 1; i >= 0; i--) /* of equal ones the last */
        if (t->tokens[i].text && (of_text || !t->tokens[i].added)) map_insert(t, map, (int32_t)i);
}

int token_add(struct tokenizer *t, const char *text, size_t length, int64_t id, struct error *err)
{
    if (id < 0 || id >= MOST_TOKENS)
        return error_set(err, EXIT_INTEGRITY, NULL, "token '%.60s' has number %lld, expected 0 to %d", text,
                         (long long)id, MOST_TOKENS - 1);
    if (strlen(text) != length)
        return error_set(err, EXIT_INTEGRITY, NULL, "token %lld has a NUL character", (long long)id);
    if (id >= t->capacity) {
        int64_t capacity = id < 2 * t->capacity ? 2 * t->capacity : id + 1024;
        t->tokens = xrealloc(t->tokens, (size_t)capacity * sizeof *t->tokens);
        memset(t->tokens + t->capacity, 0, (size_t)(capacity - t->capacity) * sizeof *t->tokens);
        t->capacity = capacity;
    }
    if (id >= t->count) t->count = id + 1;
    if (t->tokens[id].text)
        return error_set(err, EXIT_INTEGRITY, NULL, "tokens '%.60s' and '%.60s' have number %lld",
                         t->tokens[id].text, text, (long long)id);
    t->tokens[id] = (struct token){.text = xstrdup(text), .length = (uint32_t)length};
    t->tokens[id].bytes = t->tokens[id].text;
    return 0;
}

void token_map_all(struct tokenizer *t) { map_build(t, &t->by_text, (size_t)t->count, true); }

void token_maps(struct tokenizer *t)
{
    map_build(t, &t->by_text, (size_t)t->count, true);
    map_build(t, &t->by_bytes, (size_t)t->count, false);
}

char *byte_level_bytes(const char *text, uint32_t *length)
{
    char *bytes = xmalloc(strlen(text) + 1);
    *length = 0;
    for (uint32_t point; *text;) {
        text += utf8_read(text, &point);
        int byte = byte_level_byte(point);
        if (byte < 0) {
            free(bytes);
            return NULL;
        }
        bytes[(*length)++] = (char)byte;
    }
    return bytes;
}

static int read_vocabulary(struct tokenizer *t, json_t *vocabulary, struct error *err)
{
    const char *text;
    json_t *id;
    int64_t largest = -1;
    int code = 0;
    if (!json_is_object(vocabulary))
        return error_set(err, EXIT_INTEGRITY, NULL, "the model's vocab is no object");
    json_object_foreach(vocabulary, text, id)
    {
        if (!json_is_integer(id))
            return error_set(err, EXIT_INTEGRITY, NULL, "token '%.60s' has no number", text);
        if (json_integer_value(id) > largest) largest = (int64_t)json_integer_value(id);
    }
    if (largest > 64 * (int64_t)json_object_size(vocabulary) + 65536)
        return error_set(err, EXIT_INTEGRITY, NULL, "%zu tokens have numbers up to %lld",
                         json_object_size(vocabulary), (long long)largest);
    json_object_foreach(vocabulary, text, id)
    {
        if (!code) code = token_add(t, text, strlen(text), (int64_t)json_integer_value(id), err);
    }
    for (int64_t i = 0; i < t->count && !code && t->byte_level; i++) {
        struct token *token = &t->tokens[i];
        if (token->text) token->bytes = byte_level_bytes(token->text, &token->length);
    }
    token_maps(t);
    return code;
}

/* ---- merges ---- */

static void merge_insert(struct tokenizer *t, uint64_t pair, uint32_t rank, int32_t id)
{
    size_t at = (pair * 0x9E3779B97F4A7C15ull >> 20) & t->merge_mask;
    while (t->merges[at].pair != UINT64_MAX && t->merges[at].pair != pair) at = (at + 1) & t->merge_mask;
    t->merges[at] = (struct merge){.pair = pair, .rank = rank, .id = id}; /* the last of equal ones counts */
}

/* Splits a merge, "left right" or ["left", "right"], at *right. */
static int read_merge(json_t *row, const char **left, size_t *left_bytes, const char **right)
{
    const char *text = json_string_value(row), *space = text ? strchr(text, ' ') : NULL;
    if (json_array_size(row) == 2) {
        *left = json_string_value(json_array_get(row, 0));
        *right = json_string_value(json_array_get(row, 1));
        if (!*left || !*right) return -1;
        *left_bytes = strlen(*left);
        return 0;
    }
    if (!space || strchr(space + 1, ' ')) return -1;
    *left = text;
    *left_bytes = (size_t)(space - text);
    *right = space + 1;
    return 0;
}

static int read_merges(struct tokenizer *t, json_t *merges, struct error *err)
{
    size_t count = json_array_size(merges), slots = 64;
    struct text_buffer both = {0};
    if (!json_is_array(merges))
        return error_set(err, EXIT_INTEGRITY, NULL, "the model's merges are no array");
    while (slots < 2 * count) slots *= 2;
    t->merge_mask = slots - 1;
    t->merges = xmalloc(slots * sizeof *t->merges);
    memset(t->merges, 0xff, slots * sizeof *t->merges);
    int code = 0;
    for (size_t i = 0; i < count && !code; i++) {
        const char *left, *right;
        size_t n;
        if (read_merge(json_array_get(merges, i), &left, &n, &right)) {
            code = error_set(err, EXIT_INTEGRITY, NULL, "merge %zu has no two parts", i);
            break;
        }
        both.count = 0;
        text_append(&both, left, n);
        text_append(&both, right, strlen(right));
        int32_t a = token_find(t, &t->by_text, left, n), b = token_find(t, &t->by_text, right, strlen(right)),
                ab = token_find(t, &t->by_text, both.data, both.count);
        if (a < 0 || b < 0 || ab < 0)
            code = error_set(err, EXIT_INTEGRITY, NULL, "merge %zu: '%.40s' is not in the vocabulary", i,
                             a < 0   ? left
                             : b < 0 ? right
                                     : _("the merged token"));
        else merge_insert(t, (uint64_t)a << 32 | (uint32_t)b, (uint32_t)i, ab);
    }
    text_free(&both);
    return code;
}

void token_bytes(struct tokenizer *t)
{
    for (int b = 0; b < 256; b++) {
        char name[8] = {(char)b};
        if (!t->byte_level) snprintf(name, sizeof name, "<0x%02X>", (unsigned)b);
        t->byte_ids[b] = token_find(t, &t->by_bytes, name, t->byte_level ? 1 : strlen(name));
    }
}

/* ---- the models ---- */

static int read_unknown(struct tokenizer *t, json_t *object, const char *missing, struct error *err)
{
    json_t *unknown = json_object_get(object, "unk_token");
    const char *text = json_is_string(unknown) ? json_string_value(unknown) : missing;
    if (!text) return 0;
    t->unknown = token_find(t, &t->by_text, text, strlen(text));
    return t->unknown >= 0
               ? 0
               : error_set(err, EXIT_INTEGRITY, NULL, "unk_token '%.60s' is not in the vocabulary", text);
}

static int read_bpe(struct tokenizer *t, json_t *object, struct error *err)
{
    int code =
        part_keys(object, "model BPE",
                  "type dropout=0 unk_token continuing_subword_prefix=\"\" end_of_word_suffix=\"\" fuse_unk "
                  "byte_fallback ignore_merges vocab merges",
                  err);
    if (!code) code = part_flag(object, "model BPE", "fuse_unk", false, &t->fuse_unknown, err);
    if (!code) code = part_flag(object, "model BPE", "byte_fallback", false, &t->byte_fallback, err);
    if (!code) code = part_flag(object, "model BPE", "ignore_merges", false, &t->ignore_merges, err);
    if (!code) code = read_vocabulary(t, json_object_get(object, "vocab"), err);
    if (!code) code = read_merges(t, json_object_get(object, "merges"), err);
    if (!code) code = read_unknown(t, object, NULL, err);
    if (!code) token_bytes(t);
    return code;
}

static int read_wordpiece(struct tokenizer *t, json_t *object, struct error *err)
{
    json_t *longest = json_object_get(object, "max_input_chars_per_word");
    const char *prefix = json_string_value(json_object_get(object, "continuing_subword_prefix"));
    int code = part_keys(object, "model WordPiece",
                         "type unk_token continuing_subword_prefix max_input_chars_per_word vocab", err);
    if (!code) code = read_vocabulary(t, json_object_get(object, "vocab"), err);
    if (!code) code = read_unknown(t, object, "[UNK]", err);
    t->wordpiece = true;
    t->longest = longest ? (int64_t)json_integer_value(longest) : 100;
    t->prefix = xstrdup(prefix ? prefix : "##");
    return code;
}

int model_read(struct tokenizer *t, json_t *object, struct error *err)
{
    static const char *const names[] = {"BPE", "WordPiece", "Unigram", NULL};
    static int (*const read[])(struct tokenizer *, json_t *, struct error *) = {read_bpe, read_wordpiece,
                                                                                unigram_read};
    static const char *const has[] = {"merges", "max_input_chars_per_word",
                                      "unk_id"}; /* once without a type */
    int row = -1;
    for (int i = 0; i < 3 && row < 0 && !json_object_get(object, "type"); i++)
        if (json_object_get(object, has[i])) row = i;
    if (row < 0) row = part_type(object, "the model", names, err);
    return row < 0 ? err->code : read[row](t, object, err);
}
