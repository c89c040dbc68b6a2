/* Tokens to bytes, and the tokens that a post-processor adds. Every decoder works on one token at a time,
 * so that an answer can be shown while it is made. */
#include "core/base/memory.h"
#include "core/text/text_internal.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- post-processors ---- */

/* Adds a token outside of those that are there. */
static int add_outside(struct tokenizer *t, bool end, int32_t id, struct error *err)
{
    int32_t *list = end ? t->after : t->before;
    int *count = end ? &t->after_count : &t->before_count;
    if (*count == MOST_ADDED)
        return error_set(err, EXIT_INTEGRITY, NULL, "post_processor adds more than %d tokens", MOST_ADDED);
    if (id < 0 || id >= t->count || !t->tokens[id].text)
        return error_set(err, EXIT_INTEGRITY, NULL, "post_processor adds token %d, which does not exist", id);
    if (!end) memmove(list + 1, list, (size_t)*count * sizeof *list);
    list[end ? *count : 0] = id;
    ++*count;
    return 0;
}

static int add_special(struct tokenizer *t, json_t *o, const char *name, bool end, struct error *err)
{
    json_t *ids = json_object_get(json_object_get(json_object_get(o, "special_tokens"), name), "ids");
    size_t n = json_array_size(ids);
    int code = 0;
    if (!n) return error_set(err, EXIT_INTEGRITY, NULL, "post_processor: no ids of '%.60s'", name);
    for (size_t i = 0; i < n && !code; i++)
        code =
            add_outside(t, end, (int32_t)json_integer_value(json_array_get(ids, end ? i : n - 1 - i)), err);
    return code;
}

static int read_template(struct tokenizer *t, json_t *o, struct error *err)
{
    json_t *single = json_object_get(o, "single");
    t->templated = true;
    size_t n = json_array_size(single), middle = n;
    int code = part_keys(o, "post_processor TemplateProcessing", "type single pair special_tokens", err);
    size_t texts = 0;
    for (size_t i = 0; i < n; i++)
        if (json_object_get(json_array_get(single, i), "Sequence")) middle = i, texts++;
    if (!code && texts != 1)
        code = error_set(err, EXIT_INTEGRITY, NULL,
                         "post_processor TemplateProcessing has %zu texts ($A), expected 1", texts);
    for (size_t k = 0; k + 1 < n && !code; k++) { /* from the sequence to the left, then to the right */
        size_t i = k < middle ? middle - 1 - k : k + 1;
        json_t *special = json_object_get(json_array_get(single, i), "SpecialToken");
        const char *name = json_string_value(json_object_get(special, "id"));
        if (!name)
            code = error_set(err, EXIT_INTEGRITY, NULL, "post_processor: part %zu is no SpecialToken", i);
        else code = add_special(t, o, name, i > middle, err);
    }
    return code;
}

/* Reads BertProcessing and RobertaProcessing: sep and cls are pairs of text and number. */
static int read_bert(struct tokenizer *t, json_t *o, struct error *err)
{
    json_t *sep = json_object_get(o, "sep"), *cls = json_object_get(o, "cls");
    int code = part_keys(o, "post_processor", "type sep cls trim_offsets add_prefix_space", err);
    if (!code && (!json_is_integer(json_array_get(sep, 1)) || !json_is_integer(json_array_get(cls, 1))))
        code = error_set(err, EXIT_INTEGRITY, NULL, "post_processor has no sep or cls");
    if (!code) code = add_outside(t, false, (int32_t)json_integer_value(json_array_get(cls, 1)), err);
    return code ? code : add_outside(t, true, (int32_t)json_integer_value(json_array_get(sep, 1)), err);
}

int processor_read(struct tokenizer *t, json_t *o, struct error *err)
{
    static const char *const names[] = {"ByteLevel",         "TemplateProcessing", "BertProcessing",
                                        "RobertaProcessing", "Sequence",           NULL};
    int row = part_type(o, "post_processor", names, err), code = 0;
    json_t *item;
    size_t i;
    if (row < 0) return err->code;
    if (row == 0)
        return part_keys(o, "post_processor ByteLevel", "type add_prefix_space trim_offsets use_regex", err);
    if (row == 1) return read_template(t, o, err);
    if (row < 4) return read_bert(t, o, err);
    code = part_keys(o, "post_processor Sequence", "type processors", err);
    json_array_foreach(json_object_get(o, "processors"), i, item)
    {
        const char *type = json_string_value(json_object_get(item, "type"));
        bool adds = !type || strcmp(type, "ByteLevel") != 0;
        if (!code && adds && t->templated) /* after a template the library has several texts */
            code = error_set(err, EXIT_INTEGRITY, NULL,
                             "post_processor Sequence: %.40s after TemplateProcessing is not supported",
                             type ? type : "");
        if (!code) code = processor_read(t, item, err);
    }
    return code;
}

/* ---- decoders ---- */

static int read_sequence(struct tokenizer *t, json_t *o, struct error *err)
{
    json_t *item;
    size_t i;
    int code = part_keys(o, "decoder Sequence", "type decoders", err);
    json_array_foreach(json_object_get(o, "decoders"), i, item) if (!code) code = decoder_read(t, item, err);
    return code;
}

static const struct {
    enum stage_kind kind;
    const char *keys;
} rows[] = {{STAGE_BYTES, "type add_prefix_space trim_offsets use_regex"},
            {STAGE_FALLBACK, "type"},
            {STAGE_FUSE, "type"},
            {STAGE_REPLACE, "type pattern content"},
            {STAGE_STRIP, "type content start stop=0"},
            {STAGE_METASPACE, "type replacement prepend_scheme split add_prefix_space str_rep"},
            {STAGE_WORDPIECE, "type prefix cleanup"}};
static const char *const names[] = {"ByteLevel", "ByteFallback", "Fuse",     "Replace", "Strip",
                                    "Metaspace", "WordPiece",    "Sequence", NULL};

int decoder_read(struct tokenizer *t, json_t *o, struct error *err)
{
    char part[64];
    bool split;
    int row = part_type(o, "decoder", names, err);
    if (row < 0) return err->code;
    if (row == 7) return read_sequence(t, o, err);
    snprintf(part, sizeof part, "decoder %s", names[row]);
    int code = part_keys(o, part, rows[row].keys, err);
    struct stage *s = code ? NULL : stage_add(&t->decoders, rows[row].kind, err);
    if (!s) return err->code;
    if (s->kind == STAGE_METASPACE) return metaspace_read(o, part, s, &split, err);
    if (s->kind == STAGE_REPLACE)
        code = pattern_read(&s->pattern, json_object_get(o, "pattern"), part, &s->from, err);
    if (!code && s->kind == STAGE_REPLACE && !s->from)
        code = error_set(err, EXIT_INTEGRITY, NULL, "%s: Regex is not supported, expected String", part);
    const char *content =
        json_string_value(json_object_get(o, s->kind == STAGE_WORDPIECE ? "prefix" : "content"));
    if (content) s->content = xstrdup(content);
    if (!code && !content &&
        (s->kind == STAGE_REPLACE || s->kind == STAGE_STRIP || s->kind == STAGE_WORDPIECE))
        code = error_set(err, EXIT_INTEGRITY, NULL, "%s has no content", part);
    s->start = (int64_t)json_integer_value(json_object_get(o, "start"));
    for (int i = 0; i < t->decoders.count && s->kind == STAGE_STRIP; i++)
        if (t->decoders.rows[i].kind == STAGE_FUSE) s->left = true; /* of the whole text */
    if (!code && s->kind == STAGE_WORDPIECE) code = part_flag(o, part, "cleanup", true, &s->left, err);
    return code;
}

/* Replaces every `from` of a text. */
static void replace_all(struct text_buffer *text, const char *from, const char *to)
{
    struct text_buffer out = {0};
    size_t n = strlen(from);
    for (size_t i = 0; i < text->count;) {
        bool here = text->count - i >= n && memcmp(text->data + i, from, n) == 0;
        if (here) text_append(&out, to, strlen(to));
        else text_append(&out, text->data + i, 1);
        i += here ? n : 1;
    }
    text_free(text);
    *text = out;
}

static void strip_start(struct text_buffer *text, const char *content, int64_t most)
{
    size_t n = strlen(content), at = 0;
    for (; n && most > 0 && text->count - at >= n && memcmp(text->data + at, content, n) == 0; most--)
        at += n;
    text->count -= at;
    if (at) memmove(text->data, text->data + at, text->count);
}

/* Joins WordPiece's tokens with spaces, and removes those before punctuation. */
static void join_wordpiece(struct text_buffer *text, const struct stage *s, bool first)
{
    static const char *const cleaned[][2] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    size_t n = strlen(s->content);
    if (!first) {
        if (text->count >= n && memcmp(text->data, s->content, n) == 0) strip_start(text, s->content, 1);
        else {
            struct text_buffer spaced = {0};
            text_append(&spaced, " ", 1);
            text_append(&spaced, text->data, text->count);
            text_free(text);
            *text = spaced;
        }
    }
    for (size_t i = 0; s->left && i < sizeof cleaned / sizeof *cleaned; i++)
        replace_all(text, cleaned[i][0], cleaned[i][1]);
}

/* Returns the byte of a token <0xNN>; -1: another. */
static int fallback_byte(const char *text, size_t bytes)
{
    unsigned byte;
    char end;
    if (bytes != 6 || memcmp(text, "<0x", 3) != 0) return -1;
    char name[8] = "";
    memcpy(name, text, 6);
    return sscanf(name, "<0x%2X%c", &byte, &end) == 2 && end == '>' ? (int)byte : -1;
}

static void decode_stage(const struct stage *s, bool first, struct text_buffer *text)
{
    int byte = s->kind == STAGE_FALLBACK ? fallback_byte(text->data, text->count) : -1;
    uint32_t length;
    char *bytes;
    switch (s->kind) {
    case STAGE_BYTES:
        text_append(text, "", 1);
        if ((bytes = byte_level_bytes(text->data, &length)) != NULL) {
            text->count = 0;
            text_append(text, bytes, length);
        } else text->count--;
        free(bytes);
        return;
    case STAGE_FALLBACK:
        if (byte >= 0) text->data[0] = (char)byte, text->count = 1;
        return;
    case STAGE_REPLACE: replace_all(text, s->from, s->content); return;
    case STAGE_STRIP:
        if (first || !s->left) strip_start(text, s->content, s->start);
        return;
    case STAGE_METASPACE: replace_all(text, s->content, first && s->at != AT_NEVER ? "" : " "); return;
    case STAGE_WORDPIECE: join_wordpiece(text, s, first); return;
    default: return;
    }
}

void tokenizer_decode(const struct tokenizer *t, int32_t id, bool first, bool special, struct text_buffer *to)
{
    struct text_buffer text = {0};
    if (id < 0 || id >= t->count || !t->tokens[id].text || (t->tokens[id].special && !special)) return;
    text_append_text(&text, t->tokens[id].shown ? t->tokens[id].shown : t->tokens[id].text);
    for (int i = 0; i < t->decoders.count; i++) decode_stage(&t->decoders.rows[i], first, &text);
    if (!t->decoders.count && !first) text_append(to, " ", 1); /* as tokenizers joins them */
    text_append(to, text.data, text.count);
    text_free(&text);
}

bool tokenizer_begins(const struct tokenizer *t, const int32_t *ids, int64_t at, bool special)
{
    for (int64_t i = 0; i < at; i++)
        if (tokenizer_text(t, ids[i]) && (special || !t->tokens[ids[i]].special)) return false;
    return true;
}
