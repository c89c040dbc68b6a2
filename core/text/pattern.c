/* Patterns: from Oniguruma's syntax, which `tokenizers` uses, to PCRE2's. The classes \s, \w and \d are
 * written out, because the libraries disagree about a few characters. */
#include "core/base/memory.h"
#include "core/text/text_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

enum { MATCH_LIMIT = 10000000, HEAP_LIMIT_KIB = 65536, DEPTH_LIMIT = 10000 };

#define WORD_MEMBERS                                                                                         \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}"                                                   \
    "\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"
#define WORD_ALONE "\\xb2\\xb3\\xb9\\xbc-\\xbe"
#define WORD       "[" WORD_MEMBERS WORD_ALONE "]"

static const struct {
    char letter;
    const char *members, *alone; /* alone: outside [] there are these, too */
} classes[] = {
    {'s',
     "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}",
     ""},
    {'w', WORD_MEMBERS, WORD_ALONE},
    {'d', "\\p{Nd}", ""},
};

#define BOUNDARY(is, not ) "(?:(?<=" WORD ")(?" is WORD ")|(?<!" WORD ")(?" not WORD "))"

/* Appends \b or \B: between characters of \w, which has more of them than PCRE2's. */
static bool append_boundary(struct text_buffer *to, char c)
{
    text_append_text(to, c == 'b' ? BOUNDARY("!", "=") : BOUNDARY("=", "!"));
    return true;
}

/* Returns whether PCRE2 compiles the pattern. */
static bool compiles(const char *pattern)
{
    int number;
    PCRE2_SIZE at;
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &number, &at, NULL);
    pcre2_code_free(code);
    return code != NULL;
}

/* Appends \p{NAME}, \P{NAME} or \p{^NAME}: of a category, or of a script (not of its extensions, which PCRE2
 * takes without sc: since 10.40). Returns the bytes of {NAME}; 0: another property. */
static size_t append_property(struct text_buffer *to, const char *p)
{
    const char *brace = p[1] == '{' ? p + 2 : NULL, *end = brace ? strchr(brace, '}') : NULL;
    char name[40], script[64];
    bool negated = brace && *brace == '^';
    size_t length = end ? (size_t)(end - brace) - negated : 0;
    if (!length || length >= sizeof name) return 0;
    memcpy(name, brace + negated, length);
    name[length] = 0;
    snprintf(script, sizeof script, "\\p{sc:%s}", name);
    bool scripts = compiles("\\p{sc:Han}"), is_script = scripts && compiles(script);
    if (scripts && !is_script && length > 2 && strcasecmp(name, "any") != 0) return 0;
    snprintf(script, sizeof script, "\\%c{%s%s%s}", *p, negated ? "^" : "", is_script ? "sc:" : "", name);
    text_append_text(to, script);
    return (size_t)(end - p);
}

/* Appends the escape at p, after its backslash. Returns its bytes; 0: it has another meaning in PCRE2. */
static size_t append_escape(struct text_buffer *to, const char *p, bool in_class)
{
    char c = *p;
    if (!in_class && (c == 'b' || c == 'B')) return append_boundary(to, c);
    if ((c == 'p' || c == 'P') && p[1] == '{') {
        size_t length = append_property(to, p);
        return length ? length + 1 : 0;
    }
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        bool negated = c == classes[i].letter - 'a' + 'A';
        if (c != classes[i].letter && !negated) continue;
        if (negated && in_class) return 0;
        if (!in_class) text_append(to, negated ? "[^" : "[", negated ? 2 : 1);
        text_append(to, classes[i].members, strlen(classes[i].members));
        if (in_class) return 1;
        text_append(to, classes[i].alone, strlen(classes[i].alone));
        text_append(to, "]", 1);
        return 1;
    }
    if (strchr("hHRXONKCGyYQEgkzZ", c) && c) return 0;
    text_append(to, (char[]){'\\', c}, 2);
    return 1;
}

static int translate(struct text_buffer *to, const char *pattern, struct error *err)
{
    bool in_class = false;
    for (const char *p = pattern; *p; p++) {
        bool same = *p != '\\',
             verb = !in_class && p[0] == '(' && (p[1] == '*' || (p[1] == '?' && p[2] == 'C')),
             nested = in_class && (*p == '[' || (p[0] == '&' && p[1] == '&'));
        if (same && !verb && !nested) {
            text_append(to, p, 1);
            bool negated = *p == '[' && p[1] == '^';
            if (negated) text_append(to, ++p, 1);
            in_class = *p == '[' || negated || (in_class && *p != ']');
            continue;
        }
        if (same && in_class && *p == '[' && p[1] != ':') {
            text_append(to, "\\[", 2); /* a bracket within a class */
            continue;
        }
        size_t length = same || !p[1] ? 0 : append_escape(to, p + 1, in_class);
        if (!length)
            return error_set(err, EXIT_INTEGRITY, "use a tokenizer without it",
                             "the pattern '%.80s' has '%.20s', which is not supported", pattern, p);
        p += length;
    }
    text_append(to, "", 1);
    return 0;
}

int pattern_compile(pcre2_code **code, const char *pattern, bool literal, struct error *err)
{
    struct text_buffer text = {0};
    int number, failed = literal ? 0 : translate(&text, pattern, err);
    PCRE2_SIZE at;
    *code = NULL;
    if (!failed) {
        uint32_t options =
            PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
        *code = pcre2_compile((PCRE2_SPTR)(literal ? pattern : text.data), PCRE2_ZERO_TERMINATED, options,
                              &number, &at, NULL);
        if (!*code) {
            char why[160] = "";
            pcre2_get_error_message(number, (PCRE2_UCHAR *)why, sizeof why);
            failed = error_set(err, EXIT_INTEGRITY, NULL, "the pattern '%.80s': %s", pattern, why);
        } else pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE); /* without it the interpreter runs */
    }
    text_free(&text);
    return failed;
}

int pattern_read(pcre2_code **code, json_t *object, const char *part, char **text, struct error *err)
{
    const char *literal = json_string_value(json_object_get(object, "String")),
               *regex = json_string_value(json_object_get(object, "Regex"));
    *text = NULL;
    if (!literal == !regex || json_object_size(object) != 1)
        return error_set(err, EXIT_INTEGRITY, NULL, "%s: pattern requires String or Regex", part);
    if (literal && !*literal) return error_set(err, EXIT_INTEGRITY, NULL, "%s: the pattern is empty", part);
    if (literal) *text = xstrdup(literal);
    return pattern_compile(code, literal ? literal : regex, literal != NULL, err);
}

const char *pattern_text(const pcre2_code *code, const char *text, size_t bytes, struct text_buffer *to)
{
    uint32_t options;
    pcre2_pattern_info(code, PCRE2_INFO_ARGOPTIONS, &options);
    return options & PCRE2_LITERAL ? text : recent_as_old(text, bytes, to);
}

/* Finds a match at or after `from`: 1, 0 none, -1 error. */
static int find(struct encoder *e, const pcre2_code *code, const char *text, size_t bytes, size_t from,
                size_t *begin, size_t *end)
{
    if (!e->match) {
        e->match = pcre2_match_data_create(1, NULL);
        e->limits = pcre2_match_context_create(NULL);
        e->stack = pcre2_jit_stack_create(32 << 10, 8 << 20, NULL);
        if (!e->match || !e->limits)
            return error_set(e->err, EXIT_HOST_MEMORY, NULL, "out of memory for a pattern"), -1;
        pcre2_set_match_limit(e->limits, MATCH_LIMIT);
        pcre2_set_depth_limit(e->limits, DEPTH_LIMIT);
        pcre2_set_heap_limit(e->limits, HEAP_LIMIT_KIB);
        if (e->stack) pcre2_jit_stack_assign(e->limits, NULL, e->stack);
    }
    int found = pcre2_match(code, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK, e->match, e->limits);
    if (found == PCRE2_ERROR_NOMATCH) return 0;
    if (found < 0) {
        char why[160] = "";
        pcre2_get_error_message(found, (PCRE2_UCHAR *)why, sizeof why);
        error_set(e->err, EXIT_INTEGRITY, "the tokenizer's pattern backtracks without end on this text",
                  "the tokenizer's pattern failed: %s", why);
        return -1;
    }
    const PCRE2_SIZE *pair = pcre2_get_ovector_pointer(e->match);
    *begin = pair[0];
    *end = pair[1];
    return 1;
}

int pattern_find(struct encoder *e, const pcre2_code *code, const char *text, size_t bytes,
                 struct pattern_match *m)
{
    size_t end = m->end;
    bool before = m->found;
    for (size_t from = end; from <= bytes;) {
        int found = find(e, code, text, bytes, from, &m->begin, &m->end);
        m->found = found == 1;
        if (!m->found || m->end > m->begin || !before || m->end != end) return found;
        from += from < bytes ? utf8_length(text + from) : 1; /* not an empty one where the last one ended */
    }
    return m->found = false;
}
