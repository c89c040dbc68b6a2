/* Pre-tokenizers: how a text is split into words. Each is one or two stages of a pattern. */
#include "core/base/memory.h"
#include "core/text/text_internal.h"

#include <stdlib.h>

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
/* \w of Rust has two joiners. */
#define WHITESPACE  "[\\w\\x{200c}\\x{200d}]+|[^\\w\\s\\x{200c}\\x{200d}]+"
#define PUNCTUATION "[\\p{P}!-/:-@\\[-`{-~\\x{166d}\\x{111c9}]"
/* Rust's is_numeric, which knows Unicode 17. */
#define DIGITS "[\\p{N}\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}]"

/* ---- reading ---- */

static struct stage *add_split(struct tokenizer *t, const char *pattern, bool literal,
                               enum split_behaviour behaviour, struct error *err)
{
    struct stage *s = stage_add(&t->splitters, STAGE_SPLIT, err);
    if (!s || pattern_compile(&s->pattern, pattern, literal, err)) return NULL;
    s->behaviour = behaviour;
    s->from = xstrdup(pattern);
    return s;
}

static int read_behaviour(json_t *o, const char *part, enum split_behaviour *behaviour, struct error *err)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                        "Contiguous"};
    const char *name = json_string_value(json_object_get(o, "behavior"));
    for (int i = 0; name && i < 5; i++) {
        *behaviour = (enum split_behaviour)i;
        if (strcmp(names[i], name) == 0) return 0;
    }
    return error_set(err, EXIT_INTEGRITY,
                     "supported: Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous",
                     "%s: behavior '%.40s' is not supported", part, name ? name : "");
}

static int read_byte_level(struct tokenizer *t, json_t *o, struct error *err)
{
    const char *part = "pre_tokenizer ByteLevel";
    bool space, regex;
    int code = part_keys(o, part, "type add_prefix_space trim_offsets use_regex", err);
    if (!code) code = part_flag(o, part, "add_prefix_space", true, &space, err);
    if (!code) code = part_flag(o, part, "use_regex", true, &regex, err);
    if (code) return code;
    if (space && !stage_add(&t->splitters, STAGE_PREFIX_SPACE, err)) return err->code;
    if (regex && !add_split(t, GPT2, false, SPLIT_ISOLATED, err)) return err->code;
    t->byte_level = true;
    return 0;
}

static int read_split(struct tokenizer *t, json_t *o, struct error *err)
{
    const char *part = "pre_tokenizer Split";
    char *text;
    int code = part_keys(o, part, "type pattern behavior invert", err);
    struct stage *s = code ? NULL : stage_add(&t->splitters, STAGE_SPLIT, err);
    if (!s) return err->code;
    code = pattern_read(&s->pattern, json_object_get(o, "pattern"), part, &text, err);
    if (!code) code = read_behaviour(o, part, &s->behaviour, err);
    if (!code) code = part_flag(o, part, "invert", false, &s->invert, err);
    const char *regex = json_string_value(json_object_get(json_object_get(o, "pattern"), "Regex"));
    if (!code) s->from = xstrdup(text ? text : regex);
    free(text);
    return code;
}

static int read_sequence(struct tokenizer *t, json_t *o, struct error *err)
{
    json_t *list = json_object_get(o, "pretokenizers"), *item;
    size_t i;
    int code = part_keys(o, "pre_tokenizer Sequence", "type pretokenizers", err);
    if (!code && !json_is_array(list))
        code = error_set(err, EXIT_INTEGRITY, NULL, "pre_tokenizer Sequence has no pretokenizers");
    json_array_foreach(list, i, item) if (!code) code = splitter_read(t, item, err);
    return code;
}

static int read_digits(struct tokenizer *t, json_t *o, struct error *err)
{
    bool each;
    int code = part_keys(o, "pre_tokenizer Digits", "type individual_digits", err);
    if (!code) code = part_flag(o, "pre_tokenizer Digits", "individual_digits", false, &each, err);
    if (code) return code;
    return add_split(t, DIGITS, false, each ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, err) ? 0 : err->code;
}

static int add_punctuation(struct tokenizer *t, enum split_behaviour behaviour, struct error *err)
{
    struct stage *s = add_split(t, PUNCTUATION, false, behaviour, err);
    if (s) s->letters = true;
    return s ? 0 : err->code;
}

static int read_punctuation(struct tokenizer *t, json_t *o, struct error *err)
{
    enum split_behaviour behaviour = SPLIT_ISOLATED;
    int code = part_keys(o, "pre_tokenizer Punctuation", "type behavior", err);
    if (!code && json_object_get(o, "behavior"))
        code = read_behaviour(o, "pre_tokenizer Punctuation", &behaviour, err);
    return code ? code : add_punctuation(t, behaviour, err);
}

static int read_whitespace(struct tokenizer *t, json_t *o, struct error *err)
{
    int code = part_keys(o, "pre_tokenizer Whitespace", "type", err);
    struct stage *s = code ? NULL : add_split(t, WHITESPACE, false, SPLIT_REMOVED, err);
    if (s) s->invert = true;
    return s ? 0 : err->code;
}

static int read_whitespace_split(struct tokenizer *t, json_t *o, struct error *err)
{
    int code = part_keys(o, "pre_tokenizer WhitespaceSplit", "type", err);
    return code ? code : add_split(t, "\\s", false, SPLIT_REMOVED, err) ? 0 : err->code;
}

static int read_bert(struct tokenizer *t, json_t *o, struct error *err)
{
    int code = part_keys(o, "pre_tokenizer BertPreTokenizer", "type", err);
    if (!code && !add_split(t, "\\s", false, SPLIT_REMOVED, err)) code = err->code;
    return code ? code : add_punctuation(t, SPLIT_ISOLATED, err);
}

/* Reads the prefix of Metaspace, whose older form is add_prefix_space. */
int metaspace_read(json_t *o, const char *part, struct stage *s, bool *split, struct error *err)
{
    static const char *const schemes[] = {"always", "first", "never"};
    const char *scheme = json_string_value(json_object_get(o, "prepend_scheme")),
               *replacement = json_string_value(json_object_get(o, "replacement"));
    bool space;
    int code = part_keys(o, part, "type replacement prepend_scheme split add_prefix_space str_rep", err);
    if (!code) code = part_flag(o, part, "add_prefix_space", true, &space, err);
    if (!code) code = part_flag(o, part, "split", true, split, err);
    if (code) return code;
    s->at = space ? AT_EACH : AT_NEVER;
    for (int i = 0; scheme && i <= 3; i++) {
        if (i == 3)
            return error_set(err, EXIT_INTEGRITY, "supported: always, first, never",
                             "%s: prepend_scheme '%.40s' is not supported", part, scheme);
        s->at = i;
        if (strcmp(schemes[i], scheme) == 0) break;
    }
    if (!replacement) replacement = "\xE2\x96\x81";
    if (!*replacement || strlen(replacement) != utf8_length(replacement))
        return error_set(err, EXIT_INTEGRITY, NULL, "%s: replacement '%.40s' is not one character", part,
                         replacement);
    if (!space && s->at != AT_NEVER)
        return error_set(err, EXIT_INTEGRITY, NULL, "%s: add_prefix_space and prepend_scheme disagree", part);
    s->content = xstrdup(replacement);
    return 0;
}

static int read_metaspace(struct tokenizer *t, json_t *o, struct error *err)
{
    struct stage *s = stage_add(&t->splitters, STAGE_METASPACE, err);
    bool split;
    if (!s || metaspace_read(o, "pre_tokenizer Metaspace", s, &split, err)) return err->code;
    return !split || add_split(t, s->content, true, SPLIT_NEXT, err) ? 0 : err->code;
}

int splitter_read(struct tokenizer *t, json_t *o, struct error *err)
{
    static const char *const names[] = {"ByteLevel",        "Split",      "Sequence",  "Digits",
                                        "Punctuation",      "Whitespace", "Metaspace", "WhitespaceSplit",
                                        "BertPreTokenizer", NULL};
    static int (*const read[])(struct tokenizer *, json_t *, struct error *) = {
        read_byte_level, read_split,     read_sequence,         read_digits, read_punctuation,
        read_whitespace, read_metaspace, read_whitespace_split, read_bert};
    if (t->byte_level)
        return error_set(err, EXIT_INTEGRITY, NULL,
                         "pre_tokenizer ByteLevel is not the last of its sequence");
    int row = part_type(o, "pre_tokenizer", names, err);
    return row < 0 ? err->code : read[row](t, o, err);
}

/* ---- splitting ---- */

struct piece {
    size_t begin, end;
    bool match;
};

/* Returns whether a piece belongs to the one before it. */
static bool joins(enum split_behaviour how, const struct piece *before, const struct piece *piece)
{
    switch (how) {
    case SPLIT_PREVIOUS: return !before->match && piece->match;
    case SPLIT_NEXT: return before->match && !piece->match;
    case SPLIT_CONTIGUOUS: return before->match == piece->match;
    default: return false;
    }
}

static int emit(struct encoder *e, int stage, const char *text, const struct piece *p)
{
    const struct stage *s = &e->t->splitters.rows[stage];
    size_t head = e->head;
    if (p->end == p->begin || (s->behaviour == SPLIT_REMOVED && p->match)) return 0;
    if (p->begin) e->continues = false;
    e->head = head > p->begin ? head - p->begin : 0;
    int code = split_text(e, stage + 1, text + p->begin, p->end - p->begin);
    e->head = head;
    return code;
}

static int split_pattern(struct encoder *e, int stage, const char *text, size_t bytes)
{
    const struct stage *s = &e->t->splitters.rows[stage];
    struct text_buffer *to = &e->stage_text[stage];
    const char *known =
        s->letters ? recent_as_letters(text, bytes, to) : pattern_text(s->pattern, text, bytes, to);
    struct piece held = {0};
    struct pattern_match m = {0};
    size_t at = 0;
    bool holds = false;
    int code = 0, found = 1;
    while (found == 1 && !code) {
        found = pattern_find(e, s->pattern, known, bytes, &m);
        if (found < 0) return e->err->code;
        if (!found) m.begin = m.end = bytes;
        struct piece pieces[] = {{at, m.begin, s->invert}, {m.begin, m.end, !s->invert}};
        for (int i = at == m.begin; i < 1 + found && !code; i++) { /* a match may be empty */
            struct piece *p = &pieces[i];
            if (holds && joins(s->behaviour, &held, p)) {
                held.end = p->end;
                held.match = p->match;
                continue;
            }
            if (holds) code = emit(e, stage, text, &held);
            held = *p;
            holds = true;
        }
        at = m.end;
    }
    return code || !holds ? code : emit(e, stage, text, &held);
}

static int split_metaspace(struct encoder *e, int stage, const char *text, size_t bytes)
{
    const struct stage *s = &e->t->splitters.rows[stage];
    struct text_buffer *to = &e->stage_text[stage];
    size_t n = strlen(s->content), head = e->head;
    bool marked = bytes && (text[0] == ' ' || (bytes >= n && memcmp(text, s->content, n) == 0));
    to->count = 0;
    if (!marked && !e->continues && (s->at == AT_EACH || (s->at == AT_FIRST && head)))
        text_append(to, s->content, n);
    for (size_t i = 0, next; i < bytes; i = next) {
        const char *space = memchr(text + i, ' ', bytes - i);
        next = space ? (size_t)(space - text) : bytes;
        text_append(to, text + i, next - i);
        if (i < head) e->head = to->count - (next < head ? 0 : next - head);
        if (space) text_append(to, s->content, n), next++;
    }
    int code = split_text(e, stage + 1, to->data, to->count);
    e->head = head;
    return code;
}

int split_text(struct encoder *e, int stage, const char *text, size_t bytes)
{
    if (stage == e->t->splitters.count) return encode_word(e, text, bytes);
    const struct stage *s = &e->t->splitters.rows[stage];
    if (s->kind == STAGE_SPLIT) return split_pattern(e, stage, text, bytes);
    if (s->kind == STAGE_METASPACE) return split_metaspace(e, stage, text, bytes);
    if (!bytes || text[0] == ' ' || e->continues) return split_text(e, stage + 1, text, bytes);
    struct text_buffer *to = &e->stage_text[stage];
    size_t head = e->head;
    to->count = 0;
    text_append(to, " ", 1);
    text_append(to, text, bytes);
    if (head) e->head++;
    int code = split_text(e, stage + 1, to->data, to->count);
    e->head = head;
    return code;
}
