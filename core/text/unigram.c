/* The model Unigram (Kudo 2018): a word becomes the pieces whose scores have the largest sum, as in
 * tokenizers' models/unigram/model.rs. Characters without a piece are one unknown token, or their bytes'. */
#include "core/base/memory.h"
#include "core/text/text_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const double UNKNOWN_PENALTY = 10;

/* ---- scores ---- */

/* Returns a score as serde_json reads it, which rounds the digits, and then their product with a power of
 * ten: a last bit decides between equal sums. */
static double library_number(double value)
{
    char text[40];
    int digits = 15;
    do snprintf(text, sizeof text, "%.*e", digits - 1, value);
    while (strtod(text, NULL) != value && ++digits <= 17);
    char *e = strchr(text, 'e'), *last = e - 1;
    int exponent = (int)strtol(e + 1, NULL, 10);
    while (last > text && *last == '0') last--;
    uint64_t number = 0;
    for (const char *c = text, *point = NULL; c <= last; c++) {
        if (*c == '.') point = c;
        if (*c < '0' || *c > '9') continue;
        number = number * 10 + (uint64_t)(*c - '0');
        exponent -= point != NULL;
    }
    char power[16];
    snprintf(power, sizeof power, "1e%d", abs(exponent));
    double of = strtod(power, NULL), result = exponent < 0 ? (double)number / of : (double)number * of;
    return isfinite(of) ? copysign(result, value) : value;
}

/* ---- the trie ---- */

struct piece {
    const char *text;
    int32_t id;
};

static int by_text(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    int order = strcmp(x->text, y->text);
    return order ? order : (x->id < y->id) - (x->id > y->id); /* of equal pieces the last comes first */
}

/* Makes the nodes level by level; each stands for the pieces from `from` to `to` that share its bytes. */
static struct piece_node *make_trie(const struct piece *pieces, int32_t count)
{
    struct span {
        int32_t from, to, depth;
    } *spans = xmalloc(sizeof *spans);
    struct piece_node *nodes = xmalloc(sizeof *nodes);
    int32_t made = 1, capacity = 1;
    spans[0] = (struct span){0, count, 0};
    nodes[0] = (struct piece_node){.id = -1};
    for (int32_t i = 0; i < made; i++) {
        struct span s = spans[i];
        nodes[i].child = made;
        for (; s.from < s.to && !pieces[s.from].text[s.depth]; s.from++)
            if (nodes[i].id < 0 && s.depth) nodes[i].id = pieces[s.from].id;
        while (s.from < s.to) {
            char byte = pieces[s.from].text[s.depth];
            int32_t end = s.from;
            while (end < s.to && pieces[end].text[s.depth] == byte) end++;
            if (made == capacity) {
                capacity = capacity * 3 / 2 + 256;
                nodes = xrealloc(nodes, (size_t)capacity * sizeof *nodes);
                spans = xrealloc(spans, (size_t)capacity * sizeof *spans);
            }
            nodes[made] = (struct piece_node){.id = -1, .byte = (uint8_t)byte};
            spans[made++] = (struct span){s.from, end, s.depth + 1};
            nodes[i].children++;
            s.from = end;
        }
    }
    free(spans);
    return nodes;
}

static const struct piece_node *step(const struct unigram *u, const struct piece_node *node, uint8_t byte)
{
    int from = 0, to = node->children;
    const struct piece_node *children = u->nodes + node->child;
    while (from < to) {
        int middle = (from + to) / 2;
        if (byte > children[middle].byte) from = middle + 1;
        else to = middle;
    }
    return from < node->children && children[from].byte == byte ? &children[from] : NULL;
}

/* ---- reading ---- */

static int read_piece(struct tokenizer *t, json_t *row, size_t i, struct error *err)
{
    json_t *text = json_array_get(row, 0), *score = json_array_get(row, 1);
    if (json_array_size(row) != 2 || !json_is_string(text) || !json_is_number(score))
        return error_set(err, EXIT_INTEGRITY, NULL,
                         "model Unigram: piece %zu is no pair of a text and a score", i);
    t->unigram->scores[i] = library_number(json_number_value(score));
    if (t->unigram->scores[i] < t->unigram->unknown) t->unigram->unknown = t->unigram->scores[i];
    return token_add(t, json_string_value(text), json_string_length(text), (int64_t)i, err);
}

static int read_unknown(struct tokenizer *t, json_t *id, struct error *err)
{
    if (!id || json_is_null(id)) return 0;
    int64_t number = json_is_integer(id) ? (int64_t)json_integer_value(id) : -1;
    if (number < 0 || number >= t->count)
        return error_set(err, EXIT_INTEGRITY, NULL, "model Unigram: unk_id is %lld, expected 0 to %lld",
                         (long long)number, (long long)t->count - 1);
    t->unknown = (int32_t)number;
    return 0;
}

int unigram_read(struct tokenizer *t, json_t *object, struct error *err)
{
    json_t *vocabulary = json_object_get(object, "vocab"), *row;
    size_t count = json_array_size(vocabulary), i;
    int code = part_keys(object, "model Unigram", "type unk_id vocab byte_fallback", err);
    if (!code) code = part_flag(object, "model Unigram", "byte_fallback", false, &t->byte_fallback, err);
    if (!code && !json_is_array(vocabulary))
        code = error_set(err, EXIT_INTEGRITY, NULL, "model Unigram: vocab is no array");
    if (!code && t->byte_level)
        code = error_set(err, EXIT_INTEGRITY, "use a tokenizer without it",
                         "model Unigram: pre_tokenizer ByteLevel is not supported");
    if (code) return code;
    t->unigram = xcalloc(1, sizeof *t->unigram);
    t->unigram->unknown = INFINITY;
    t->unigram->scores = xcalloc(count + 1, sizeof *t->unigram->scores);
    json_array_foreach(vocabulary, i, row) if (!code) code = read_piece(t, row, i, err);
    if (!code) code = read_unknown(t, json_object_get(object, "unk_id"), err);
    if (code) return code;
    t->unigram->unknown -= UNKNOWN_PENALTY;
    token_maps(t);
    token_bytes(t);
    struct piece *pieces = xcalloc(count + 1, sizeof *pieces);
    for (i = 0; i < count; i++) pieces[i] = (struct piece){t->tokens[i].text, (int32_t)i};
    qsort(pieces, count, sizeof *pieces, by_text);
    t->unigram->nodes = make_trie(pieces, (int32_t)count);
    free(pieces);
    return 0;
}

void unigram_free(struct unigram *u)
{
    if (!u) return;
    free(u->nodes);
    free(u->scores);
    free(u);
}

/* ---- encoding ---- */

/* Takes a piece if it ends a better path; of equal ones the first. */
static void offer(struct path *end, double score, int32_t from, int32_t id)
{
    if (end->from < 0 || score > end->score) *end = (struct path){score, id, from, 0};
}

/* Finds the best pieces to each place of a word. */
static int find_paths(struct encoder *e, const char *word, size_t bytes)
{
    const struct tokenizer *t = e->t;
    const struct unigram *u = t->unigram;
    for (size_t i = 0; i <= bytes; i++) e->paths[i] = (struct path){.from = -1};
    for (size_t i = 0, n; i < bytes; i += n) {
        n = utf8_length(word + i);
        double here = e->paths[i].score;
        bool single = false;
        const struct piece_node *node = u->nodes;
        for (size_t k = i; k < bytes && (node = step(u, node, (uint8_t)word[k])) != NULL; k++) {
            if (node->id < 0) continue;
            offer(&e->paths[k + 1], u->scores[node->id] + here, (int32_t)i, node->id);
            single |= k + 1 - i == n;
        }
        if (single) continue;
        if (t->unknown < 0)
            return error_set(e->err, EXIT_INTEGRITY, "use a tokenizer with unk_id",
                             "the tokenizer has no token for '%.*s', and no unk_id", (int)n, word + i);
        offer(&e->paths[i + n], u->unknown + here, (int32_t)i, t->unknown);
    }
    return 0;
}

/* Appends the tokens of characters without a piece. */
static void append_unknown(struct encoder *e, const char *text, size_t bytes)
{
    const struct tokenizer *t = e->t;
    int32_t id = token_find(t, &t->by_bytes, text, bytes);
    bool all = id < 0 && t->byte_fallback;
    for (size_t i = 0; i < bytes && all; i++) all = t->byte_ids[(uint8_t)text[i]] >= 0;
    if (!all) token_list_append(e->to, id < 0 ? t->unknown : id);
    for (size_t i = 0; i < bytes && all; i++) token_list_append(e->to, t->byte_ids[(uint8_t)text[i]]);
}

int encode_unigram(struct encoder *e, const char *word, size_t bytes)
{
    int code = word_check(e, bytes);
    if (!code && bytes >= e->path_capacity) {
        e->path_capacity = bytes + bytes / 2 + 64;
        free(e->paths);
        e->paths = malloc(e->path_capacity * sizeof *e->paths);
        if (!e->paths) {
            e->path_capacity = 0;
            code = error_set(e->err, EXIT_HOST_MEMORY, NULL, "out of memory for a word of %zu bytes", bytes);
        }
    }
    if (!code) code = find_paths(e, word, bytes);
    if (code) return code;
    struct path *p = e->paths;
    for (int32_t at = (int32_t)bytes; at > 0; at = p[at].from) p[p[at].from].to = at;
    for (int32_t at = 0, end; at < (int32_t)bytes; at = end) {
        int32_t id = p[p[at].to].id;
        end = p[at].to;
        if (id != e->t->unknown) {
            token_list_append(e->to, id);
            continue;
        }
        while (end < (int32_t)bytes && p[p[end].to].id == id) end = p[end].to;
        append_unknown(e, word + at, (size_t)(end - at));
    }
    return 0;
}
