/* Normalizers: changes of a text before it is split. */
#include "core/base/memory.h"
#include "core/text/text_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

/* ---- reading ---- */

static int read_bert(struct tokenizer *t, json_t *o, struct error *err)
{
    const char *part = "normalizer BertNormalizer";
    bool clean, chinese, lowercase, strip;
    int code = part_keys(o, part, "type clean_text handle_chinese_chars strip_accents lowercase", err);
    if (!code) code = part_flag(o, part, "clean_text", true, &clean, err);
    if (!code) code = part_flag(o, part, "handle_chinese_chars", true, &chinese, err);
    if (!code) code = part_flag(o, part, "lowercase", true, &lowercase, err);
    if (!code) code = part_flag(o, part, "strip_accents", lowercase, &strip, err);
    if (code) return code;
    const struct {
        bool used;
        enum stage_kind kind;
    } rows[] = {{clean, STAGE_CLEAN},
                {chinese, STAGE_CHINESE},
                {strip, STAGE_NFD},
                {strip, STAGE_STRIP_NONSPACING},
                {lowercase, STAGE_LOWERCASE}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].used && !stage_add(&t->normalizers, rows[i].kind, err)) return err->code;
    return 0;
}

static int read_sequence(struct tokenizer *t, json_t *o, struct error *err)
{
    json_t *list = json_object_get(o, "normalizers"), *item;
    size_t i;
    int code = part_keys(o, "normalizer Sequence", "type normalizers", err);
    if (!code && !json_is_array(list))
        code = error_set(err, EXIT_INTEGRITY, NULL, "normalizer Sequence has no normalizers");
    json_array_foreach(list, i, item) if (!code) code = normalizer_read(t, item, err);
    return code;
}

/* The normalizers that are one stage. */
static const struct {
    enum stage_kind kind;
    const char *keys;
} simple[] = {{STAGE_NFC, "type"},
              {STAGE_NFD, "type"},
              {STAGE_NFKC, "type"},
              {STAGE_NFKD, "type"},
              {STAGE_LOWERCASE, "type"},
              {STAGE_STRIP_ACCENTS, "type"},
              {STAGE_PREPEND, "type prepend"},
              {STAGE_REPLACE, "type pattern content"},
              {STAGE_STRIP, "type strip_left strip_right"},
              {STAGE_NMT, "type"},
              {STAGE_CHARSMAP, "type precompiled_charsmap"}};
enum { SIMPLE = sizeof simple / sizeof *simple };
static const char *const names[] = {"NFC",          "NFD",      "NFKC",           "NFKD",  "Lowercase",
                                    "StripAccents", "Prepend",  "Replace",        "Strip", "Nmt",
                                    "Precompiled",  "Sequence", "BertNormalizer", NULL};

int normalizer_read(struct tokenizer *t, json_t *o, struct error *err)
{
    char part[64];
    int row = part_type(o, "normalizer", names, err);
    if (row < 0) return err->code;
    if (row >= SIMPLE) return row == SIMPLE ? read_sequence(t, o, err) : read_bert(t, o, err);
    snprintf(part, sizeof part, "normalizer %s", names[row]);
    int code = part_keys(o, part, simple[row].keys, err);
    struct stage *s = code ? NULL : stage_add(&t->normalizers, simple[row].kind, err);
    if (!s) return err->code;
    const char *content =
        json_string_value(json_object_get(o, s->kind == STAGE_PREPEND ? "prepend" : "content"));
    if (s->kind == STAGE_PREPEND || s->kind == STAGE_REPLACE) {
        if (!content) return error_set(err, EXIT_INTEGRITY, NULL, "%s has no content", part);
        s->content = xstrdup(content);
    }
    if (s->kind == STAGE_REPLACE) {
        code = pattern_read(&s->pattern, json_object_get(o, "pattern"), part, &s->from, err);
        if (!code && !s->from)
            s->from = xstrdup(json_string_value(json_object_get(json_object_get(o, "pattern"), "Regex")));
    }
    if (s->kind == STAGE_STRIP) {
        code = part_flag(o, part, "strip_left", true, &s->left, err);
        if (!code) code = part_flag(o, part, "strip_right", true, &s->right, err);
    }
    if (!code && s->kind == STAGE_CHARSMAP) code = charsmap_read(&s->charsmap, o, err);
    return code;
}

/* ---- stages ---- */

static bool is_ascii(const char *text, size_t bytes)
{
    uint64_t any = 0, eight;
    for (; bytes >= 8; text += 8, bytes -= 8) {
        memcpy(&eight, text, 8);
        any |= eight;
    }
    for (; bytes; bytes--) any |= (uint8_t)*text++;
    return !(any & 0x8080808080808080ull);
}

static const utf8proc_option_t forms[] = {[STAGE_NFC] = UTF8PROC_COMPOSE | UTF8PROC_STABLE,
                                          [STAGE_NFD] = UTF8PROC_DECOMPOSE | UTF8PROC_STABLE,
                                          [STAGE_NFKC] = UTF8PROC_COMPOSE | UTF8PROC_STABLE | UTF8PROC_COMPAT,
                                          [STAGE_NFKD] =
                                              UTF8PROC_DECOMPOSE | UTF8PROC_STABLE | UTF8PROC_COMPAT};

static int form_part(struct encoder *e, enum stage_kind kind, const char *text, size_t bytes,
                     struct text_buffer *to)
{
    if (!bytes) return 0;
    utf8proc_uint8_t *formed = NULL;
    utf8proc_ssize_t n =
        utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, &formed, forms[kind]);
    if (n < 0) {
        free(formed);
        return error_set(e->err, EXIT_HOST_MEMORY, NULL, "cannot normalize a text: %s", utf8proc_errmsg(n));
    }
    text_append(to, (const char *)formed, (size_t)n);
    free(formed);
    return 0;
}

/* A character that version 9 of Unicode has not assigned stays, and neighbours do not join across it. */
static int form_all(struct encoder *e, enum stage_kind kind, const char *text, size_t bytes,
                    struct text_buffer *to)
{
    int code = 0;
    for (size_t from = 0, at; from < bytes && !code;) {
        uint32_t like;
        at = recent_next(text, bytes, from, &like);
        code = form_part(e, kind, text + from, at - from, to);
        from = at < bytes ? at + utf8_length(text + at) : bytes;
        text_append(to, text + at, from - at);
    }
    return code;
}

static int to_form(struct encoder *e, enum stage_kind kind, const char *text, size_t bytes,
                   struct text_buffer *to)
{
    struct text_buffer head = {0};
    size_t n = e->head < bytes ? e->head : bytes;
    while (n < bytes && ((uint8_t)text[n] & 0xC0) == 0x80) n++; /* marks may have changed their order */
    int code = form_all(e, kind, text, n, &head);
    if (!code) code = form_all(e, kind, text, bytes, to);
    e->head = head.count;
    text_free(&head);
    return code;
}

static bool is_control(uint32_t p)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)p);
    return p != '\t' && p != '\n' && p != '\r' &&
           (c == UTF8PROC_CATEGORY_CC || (c == UTF8PROC_CATEGORY_CF && !recent_like(p) && p != 0x8E2) ||
            c == UTF8PROC_CATEGORY_CO);
}

struct range {
    uint32_t first, last;
};

static bool in_ranges(const struct range *ranges, size_t count, uint32_t p)
{
    for (size_t i = 0; i < count; i++)
        if (p >= ranges[i].first && p <= ranges[i].last) return true;
    return false;
}

static bool is_chinese(uint32_t p)
{
    static const struct range ranges[] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF},
                                          {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF},
                                          {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
    return in_ranges(ranges, sizeof ranges / sizeof *ranges, p);
}

/* Marks that BertNormalizer does not know: its crate unicode_categories has version 8 of Unicode. */
static const struct range late_marks[] = {{0x8D4, 0x8E1},     {0x1885, 0x1886},   {0x1DFB, 0x1DFB},
                                          {0xA8C5, 0xA8C5},   {0xA9BD, 0xA9BD},   {0x1123E, 0x1123E},
                                          {0x11438, 0x11446}, {0x11C30, 0x11C3F}, {0x11C92, 0x11CB6},
                                          {0x1E000, 0x1E02A}, {0x1E944, 0x1E94A}};

/* Characters after version 9 of Unicode are no accents for tokenizers, and a few were marks then alone. */
static bool is_accent(enum stage_kind kind, uint32_t p)
{
    bool nonspacing = kind == STAGE_STRIP_NONSPACING;
    if (nonspacing && (p == 0x1734 || in_ranges(late_marks, sizeof late_marks / sizeof *late_marks, p)))
        return p == 0x1734;
    if (p == 0x1CF2 || p == 0x1CF3) return !nonspacing;
    if (p == 0x111C9) return false;
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)p),
                        last = kind == STAGE_STRIP_ACCENTS ? UTF8PROC_CATEGORY_ME : UTF8PROC_CATEGORY_MN;
    return c >= UTF8PROC_CATEGORY_MN && c <= last && !recent_like(p);
}

/* Returns whether a stage removes a character. */
static bool is_removed(enum stage_kind kind, uint32_t p)
{
    if (kind == STAGE_STRIP_ACCENTS || kind == STAGE_STRIP_NONSPACING) return is_accent(kind, p);
    if (kind == STAGE_NMT)
        return (p && p < 0x20 && p != '\t' && p != '\n' && p != '\f' && p != '\r') || p == 0x7F ||
               p == 0x8F || p == 0x9F;
    return kind == STAGE_CLEAN && (p == 0 || p == 0xFFFD || is_control(p));
}

/* Returns whether a stage writes a space for a character. */
static bool is_spaced(enum stage_kind kind, uint32_t p)
{
    if (kind != STAGE_NMT) return kind == STAGE_CLEAN && point_is_space(p);
    return p == '\t' || p == '\n' || p == '\f' || p == '\r' || p == 0x1680 || (p >= 0x200B && p <= 0x200F) ||
           p == 0x2028 || p == 0x2029 || p == 0x2581 || p == 0xFEFF || p == 0xFFFD;
}

/* Returns the lower case of a character but U+0130, also of those that Unicode 16 and 17 added. */
static uint32_t to_lower(uint32_t p)
{
    static const struct {
        uint32_t first, last;
        int32_t difference;
    } rows[] = {{0x1C89, 0x1C89, 1},      {0xA7CB, 0xA7CB, 0x264 - 0xA7CB},
                {0xA7CC, 0xA7CC, 1},      {0xA7CE, 0xA7CE, 1},
                {0xA7D2, 0xA7D2, 1},      {0xA7D4, 0xA7D4, 1},
                {0xA7DA, 0xA7DA, 1},      {0xA7DC, 0xA7DC, 0x19B - 0xA7DC},
                {0x10D50, 0x10D65, 0x20}, {0x16EA0, 0x16EB8, 0x1B}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows && p >= rows[0].first; i++)
        if (p >= rows[i].first && p <= rows[i].last) return (uint32_t)((int32_t)p + rows[i].difference);
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)p);
}

/* Applies a stage that looks at one character at a time. */
static void each_character(struct encoder *e, enum stage_kind kind, const char *text, size_t bytes,
                           struct text_buffer *to)
{
    size_t head = e->head;
    uint32_t p;
    e->head = 0;
    for (size_t i = 0, n; i < bytes; i += n) {
        n = utf8_read(text + i, &p);
        if (is_removed(kind, p)) continue;
        bool chinese = kind == STAGE_CHINESE && is_chinese(p);
        if (chinese) text_append(to, " ", 1);
        if (kind == STAGE_LOWERCASE && p == 0x130) text_append(to, "i\xCC\x87", 3); /* its full mapping */
        else if (kind == STAGE_LOWERCASE) text_append_point(to, to_lower(p));
        else if (is_spaced(kind, p)) text_append(to, " ", 1);
        else text_append(to, text + i, n);
        if (chinese) text_append(to, " ", 1);
        if (i < head) e->head = to->count;
    }
}

static int replace(struct encoder *e, const struct stage *s, const char *text, size_t bytes,
                   struct text_buffer *to)
{
    struct text_buffer changed = {0};
    const char *known = pattern_text(s->pattern, text, bytes, &changed);
    struct pattern_match m = {0};
    size_t at = 0, head = e->head;
    int found;
    e->head = 0;
    while ((found = pattern_find(e, s->pattern, known, bytes, &m)) == 1) {
        if (at < head) e->head = to->count + (m.begin < head ? m.begin : head) - at;
        text_append(to, text + at, m.begin - at);
        text_append(to, s->content, strlen(s->content));
        if (m.end <= head) e->head = to->count;
        at = m.end;
    }
    if (at < head) e->head = to->count + head - at;
    text_append(to, text + at, bytes - at);
    text_free(&changed);
    return found < 0 ? e->err->code : 0;
}

static void strip(struct encoder *e, const struct stage *s, const char *text, size_t bytes,
                  struct text_buffer *to)
{
    size_t begin = 0, end = bytes;
    uint32_t p;
    while (s->left && begin < end) {
        size_t n = utf8_read(text + begin, &p);
        if (!point_is_space(p)) break;
        begin += n;
    }
    while (s->right && end > begin) {
        size_t at = end - 1;
        while (((uint8_t)text[at] & 0xC0) == 0x80) at--;
        utf8_read(text + at, &p);
        if (!point_is_space(p)) break;
        end = at;
    }
    text_append(to, text + begin, end - begin);
    e->head = e->head > begin ? e->head - begin : 0;
}

static int apply(struct encoder *e, const struct stage *s, const char *text, size_t bytes,
                 struct text_buffer *to)
{
    switch (s->kind) {
    case STAGE_NFC:
    case STAGE_NFD:
    case STAGE_NFKC:
    case STAGE_NFKD: return to_form(e, s->kind, text, bytes, to);
    case STAGE_PREPEND:
        if (bytes && !e->continues) text_append(to, s->content, strlen(s->content));
        if (e->head) e->head += to->count;
        text_append(to, text, bytes);
        return 0;
    case STAGE_REPLACE: return replace(e, s, text, bytes, to);
    case STAGE_STRIP: strip(e, s, text, bytes, to); return 0;
    case STAGE_CHARSMAP: return charsmap_apply(e, s->charsmap, text, bytes, to);
    default: each_character(e, s->kind, text, bytes, to); return 0;
    }
}

int normalize(struct encoder *e, const char *text, size_t bytes, const char **out, size_t *out_bytes)
{
    *out = text;
    *out_bytes = bytes;
    for (int i = 0; i < e->t->normalizers.count; i++) {
        const struct stage *s = &e->t->normalizers.rows[i];
        if (s->kind <= STAGE_NFKD && is_ascii(*out, *out_bytes)) continue;
        struct text_buffer *to = *out == e->normal.data ? &e->other : &e->normal;
        to->count = 0;
        text_append(to, "", 0);
        if (!to->data) text_append(to, "", 1), to->count = 0;
        int code = apply(e, s, *out, *out_bytes, to);
        if (code) return code;
        *out = to->data;
        *out_bytes = to->count;
    }
    return 0;
}
