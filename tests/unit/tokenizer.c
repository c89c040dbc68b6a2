/* Tokenizers equal Hugging Face's (tests/make/tokenizer_files.py). Damaged and hostile files are refused. */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/json.h"
#include "core/text/tokenizer.h"
#include "tests/mentions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct tokenizer *open_named(const char *name)
{
    struct error err;
    struct tokenizer *t;
    char *path = xasprintf("%s/tests/data/tokenizers/%s.json", MEOPT_SOURCE_DIR, name);
    if (tokenizer_open(&t, path, &err)) fail_msg("%s: %s", path, err.what);
    free(path);
    return t;
}

/* Encodes as Hugging Face's encode. */
static void encode_all(struct encoder *e, const struct tokenizer *t, const char *text, size_t bytes,
                       struct token_list *to)
{
    struct error err;
    int count;
    const int32_t *added = tokenizer_added(t, false, &count);
    to->count = 0;
    for (int i = 0; i < count; i++) token_list_append(to, added[i]);
    if (encoder_encode(e, text, bytes, true, to, &err)) fail_msg("%s", err.what);
    added = tokenizer_added(t, true, &count);
    for (int i = 0; i < count; i++) token_list_append(to, added[i]);
}

static void check_decoded(const struct tokenizer *t, const struct token_list *list, json_t *expected,
                          const char *name, int line)
{
    struct text_buffer text = {0};
    for (int64_t i = 0; i < list->count; i++) tokenizer_decode(t, list->ids[i], i == 0, true, &text);
    if (text.count != json_string_length(expected) ||
        (text.count && memcmp(text.data, json_string_value(expected), text.count) != 0))
        fail_msg("%s.cases:%d: decoded '%.*s', expected '%s'", name, line, (int)text.count, text.data,
                 json_string_value(expected));
    text_free(&text);
}

static void check_case(struct encoder *e, const struct tokenizer *t, json_t *expected, const char *name,
                       int line)
{
    struct token_list list = {0};
    json_t *source = json_object_get(expected, "text"), *ids = json_object_get(expected, "ids"),
           *decoded = json_object_get(expected, "decoded");
    encode_all(e, t, json_string_value(source), json_string_length(source), &list);
    for (size_t i = 0; i < json_array_size(ids) || i < (size_t)list.count; i++)
        if (i >= (size_t)list.count || json_integer_value(json_array_get(ids, i)) != list.ids[i])
            fail_msg("%s.cases:%d: token %zu of '%s' is %d, expected %lld", name, line, i,
                     json_string_value(source), i < (size_t)list.count ? list.ids[i] : -1,
                     (long long)json_integer_value(json_array_get(ids, i)));
    check_decoded(t, &list, decoded, name, line);
    token_list_free(&list);
}

/* A text that ends with an added token and the rest that continues it have the tokens of the whole text. */
static void check_spans(const struct tokenizer *t, const char *name, const char *token)
{
    static const char *const after[] = {"Hi", " Hi", "  Hi ", "\nHi", "", "\n \n", "\u5e8a\u524d"};
    struct encoder *e = encoder_create(t);
    assert_true(tokenizer_id(t, token) >= 0);
    for (size_t i = 0; i < sizeof after / sizeof *after; i++) {
        struct token_list whole = {0}, spans = {0};
        struct error err;
        char *text = xasprintf("ab%s%s", token, after[i]);
        size_t bytes = strlen(text), first = 2 + strlen(token);
        assert_int_equal(encoder_encode(e, text, bytes, true, &whole, &err), 0);
        assert_int_equal(encoder_encode(e, text, first, true, &spans, &err), 0);
        assert_int_equal(encoder_encode(e, text + first, bytes - first, false, &spans, &err), 0);
        if (spans.count != whole.count ||
            memcmp(spans.ids, whole.ids, (size_t)whole.count * sizeof *whole.ids) != 0)
            fail_msg("%s: '%s'", name, text);
        token_list_free(&whole);
        token_list_free(&spans);
        free(text);
    }
    encoder_free(e);
}

static void test_spans(void **state)
{
    static const char *const names[] = {"gpt2", "roberta", "llama3", "qwen", "llama2"};
    static const char *const tokens[] = {"<|endoftext|>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>",
                                         "</s>"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        struct tokenizer *t = open_named(names[n]);
        check_spans(t, names[n], tokens[n]);
        tokenizer_close(t);
    }
    struct tokenizer *t; /* whose token takes the spaces after it */
    struct error err;
    char *path = xasprintf("%s/tests/data/tokenizers/llama2.json", MEOPT_SOURCE_DIR);
    json_t *root = json_read(path, 1 << 24, &err), *token;
    size_t i;
    json_array_foreach(json_object_get(root, "added_tokens"), i, token)
        json_object_set_new(token, "rstrip", json_true());
    char *text = json_dumps(root, JSON_COMPACT);
    assert_int_equal(tokenizer_parse(&t, text, strlen(text), &err), 0);
    check_spans(t, "rstrip", "</s>");
    tokenizer_close(t);
    json_decref(root);
    free(text);
    free(path);
}

static void test_equal(void **state)
{
    static const char *const names[] = {"gpt2", "roberta", "llama3", "qwen", "llama2", "bert"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        struct error err;
        struct tokenizer *t = open_named(names[n]);
        struct encoder *e = encoder_create(t);
        char *path = xasprintf("%s/tests/data/tokenizers/%s.cases", MEOPT_SOURCE_DIR, names[n]), *text;
        size_t bytes;
        assert_int_equal(file_read(path, 1 << 24, &text, &bytes, &err), 0);
        int line = 0;
        for (char *p = text, *end; (end = strchr(p, '\n')) != NULL; p = end + 1) {
            json_t *expected = json_parse(p, (size_t)(end - p), JSON_ALLOW_NUL, NULL);
            assert_non_null(expected);
            check_case(e, t, expected, names[n], ++line);
            json_decref(expected);
        }
        assert_true(line > 50);
        free(text);
        free(path);
        encoder_free(e);
        tokenizer_close(t);
    }
}

/* Checks rows of a tokenizer and its tokens. Texts are those of the row, or of the one before. */
static int check_forms(const char *name)
{
    char *path = xasprintf("%s/tests/data/tokenizers/%s.cases", MEOPT_SOURCE_DIR, name), *text;
    size_t bytes;
    int line = 0;
    struct error err;
    json_t *texts = NULL;
    assert_int_equal(file_read(path, 1 << 24, &text, &bytes, &err), 0);
    for (char *p = text, *end; (end = strchr(p, '\n')) != NULL; p = end + 1) {
        json_t *row = json_parse(p, (size_t)(end - p), JSON_ALLOW_NUL, NULL), *source,
               *decoded = json_object_get(row, "decoded");
        char *form = json_dumps(json_object_get(row, "tokenizer"), JSON_COMPACT);
        struct tokenizer *t;
        size_t i;
        line++;
        if (json_object_get(row, "texts")) {
            json_decref(texts);
            texts = json_incref(json_object_get(row, "texts"));
        }
        if (tokenizer_parse(&t, form, strlen(form), &err)) fail_msg("%s:%d: %s", name, line, err.what);
        struct encoder *e = encoder_create(t);
        json_array_foreach(texts, i, source)
        {
            struct token_list list = {0};
            json_t *ids = json_array_get(json_object_get(row, "ids"), i);
            encode_all(e, t, json_string_value(source), json_string_length(source), &list);
            for (size_t k = 0; k < json_array_size(ids) || k < (size_t)list.count; k++)
                if (k >= (size_t)list.count || json_integer_value(json_array_get(ids, k)) != list.ids[k])
                    fail_msg("%s.cases:%d: token %zu of '%s'", name, line, k, json_string_value(source));
            if (decoded) check_decoded(t, &list, json_array_get(decoded, i), name, line);
            token_list_free(&list);
        }
        encoder_free(e);
        tokenizer_close(t);
        free(form);
        json_decref(row);
    }
    json_decref(texts);
    free(text);
    free(path);
    return line;
}

/* Forms of parts, each with a vocabulary that shows where words begin. */
static void test_forms(void **state) { assert_true(check_forms("forms") > 70); }

/* Models of SentencePiece as transformers converts them, and parts around small ones
 * (tests/make/unigram_files.py). */
static void test_unigram(void **state) { assert_true(check_forms("unigram") > 15); }

/* Long texts are encoded in parts by tokenizers in the form of published ones, and not where a match could
 * have a letter and a break. */
static void test_breaks(void **state)
{
    static const char *const names[] = {"gpt2", "roberta", "llama3", "qwen", "bert"};
    static const char *const patterns[] = {"\\\\w+\\\\s",   "^\\\\s+", "$",
                                           "\\\\p{L}{5,} ", "(?<=a) ", "the end "};
    bool usable[TEXT_BREAK_COUNT];
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        struct tokenizer *t = open_named(names[n]);
        tokenizer_breaks(t, usable);
        for (int i = 0; i < TEXT_BREAK_COUNT; i++)
            if (!usable[i]) fail_msg("%s: break %d", names[n], i);
        tokenizer_close(t);
    }
    for (size_t n = 0; n < sizeof patterns / sizeof *patterns; n++) {
        struct tokenizer *t;
        struct error err;
        char *json = xasprintf(
            "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},"
            "\"behavior\":\"Isolated\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}",
            patterns[n]);
        if (tokenizer_parse(&t, json, strlen(json), &err)) fail_msg("%s: %s", json, err.what);
        tokenizer_breaks(t, usable);
        if (usable[1]) fail_msg("%s", json);
        tokenizer_close(t);
        free(json);
    }
}

struct row {
    const char *json, *named;
};

static void check_refused(const struct row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct error err;
        struct tokenizer *t;
        assert_int_equal(tokenizer_parse(&t, rows[i].json, strlen(rows[i].json), &err), EXIT_INTEGRITY);
        assert_null(t);
        if (!mentions(err.what, rows[i].named)) fail_msg("%s: %s", rows[i].named, err.what);
    }
}

static void test_refused(void **state)
{
    static const struct row rows[] = {
        {"", "JSON"},
        {"{}", "model"},
        {"{\"model\":{\"type\":\"Unigram\"}}", "Unigram"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[],\"colour\":1}}", "colour"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", "merge 0"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"ab\"]}}", "merge 0"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "number 0"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", "-1"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":2000000000},\"merges\":[]}}", "2000000000"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}", "dropout"},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}}", "[UNK]"},
        {"{\"normalizer\":{\"type\":\"Precompiled\"},\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}"
         "}",
         "Precompiled"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a\"},\"behavior\":\"Isolated\"},"
         "\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}",
         "(a"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(*UTF)a\"},\"behavior\":"
         "\"Isolated\"},"
         "\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}",
         "(*"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{Alphabetic}\"},\"behavior\":"
         "\"Isolated\"},"
         "\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}",
         "Alphabetic"},
        {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\"}},"
         "{\"Sequence\":{\"id\":\"A\"}}]},\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}",
         "2 texts"},
        {"{\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"TemplateProcessing\","
         "\"single\":"
         "[{\"Sequence\":{\"id\":\"A\"}}]},{\"type\":\"BertProcessing\",\"sep\":[\"a\",0],\"cls\":[\"a\",0]}]"
         "},"
         "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}",
         "BertProcessing"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\\u0000\":0},\"merges\":[]}}", "U+0000"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[],\"end_of_word_suffix\":\"</w>\"}}",
         "end_of_word_suffix"},
        {"{\"colour\":1,\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}", "colour"},
        {"{\"normalizer\":{\"type\":\"NFC\",\"colour\":1},\"model\":{\"type\":\"BPE\",\"vocab\":{},"
         "\"merges\":[]}}",
         "colour"},
        {"{\"decoder\":{\"type\":\"Fuse\",\"colour\":1},\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":["
         "]}}",
         "colour"},
        {"{\"added_tokens\":[{\"id\":0,\"content\":\"x\",\"colour\":1}],"
         "\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}",
         "colour"},
        {"{\"added_tokens\":[{\"id\":3,\"content\":\"x\"}],"
         "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}",
         "'x'"},
        {"{\"added_tokens\":[{\"id\":9000000,\"content\":\"x\"}],"
         "\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}",
         "9000000"},
    };
    check_refused(rows, sizeof rows / sizeof *rows);
}

static void test_unigram_refused(void **state)
{
    static const struct row rows[] = {
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0],[\"b\"]]}}", "piece 1"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",\"0\"]]}}", "piece 0"},
        {"{\"model\":{\"unk_id\":3,\"vocab\":[[\"a\",0]]}}", "unk_id"},
        {"{\"model\":{\"unk_id\":-1,\"vocab\":[[\"a\",0]]}}", "unk_id"},
        {"{\"model\":{\"unk_id\":0.5,\"vocab\":[[\"a\",0]]}}", "unk_id"},
        {"{\"model\":{\"unk_id\":0,\"vocab\":[[\"a\",0]],\"colour\":1}}", "colour"},
        {"{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAA\"},\"model\":{\"type\":"
         "\"BPE\","
         "\"vocab\":{},\"merges\":[]}}",
         "base64"},
        {"{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA\"},\"model\":{\"type\":"
         "\"BPE\","
         "\"vocab\":{},\"merges\":[]}}",
         "precompiled_charsmap"},
        {"{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"/////"
         "w==\"},\"model\":{\"type\":\"BPE\","
         "\"vocab\":{},\"merges\":[]}}",
         "precompiled_charsmap"},
        {"{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"BAAAAAAAAAD/"
         "\"},\"model\":{\"type\":"
         "\"BPE\",\"vocab\":{},\"merges\":[]}}",
         "UTF-8"},
        {"{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"},\"model\":{\"type\":\"BPE\","
         "\"vocab\":{},"
         "\"merges\":[]}}",
         "replacement"},
        {"{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"add_prefix_space\":false,\"prepend_scheme\":\"first\"}"
         ","
         "\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}",
         "prepend_scheme"},
    };
    check_refused(rows, sizeof rows / sizeof *rows);
}

/* Texts that a damaged trie or a model without an unknown token cannot encode are errors. */
static void test_no_tokens(void **state)
{
    static const struct row rows[] = {
        {"{\"model\":{\"unk_id\":null,\"vocab\":[[\"a\",0]]}}", "'b'"},
        {"{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"BAAAAAAAAAA=\"},"
         "\"model\":{\"unk_id\":0,\"vocab\":[[\"a\",0]]}}",
         "precompiled_charsmap"},
        {"{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"CAAAAACEAQBiAAAA\"},"
         "\"model\":{\"unk_id\":0,\"vocab\":[[\"a\",0]]}}",
         "precompiled_charsmap"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct error err;
        struct tokenizer *t;
        struct token_list list = {0};
        assert_int_equal(tokenizer_parse(&t, rows[i].json, strlen(rows[i].json), &err), 0);
        struct encoder *e = encoder_create(t);
        assert_int_equal(encoder_encode(e, "ab", 2, true, &list, &err), EXIT_INTEGRITY);
        assert_true(mentions(err.what, rows[i].named));
        token_list_free(&list);
        encoder_free(e);
        tokenizer_close(t);
    }
}

/* A pattern that backtracks without end is an error, and so is a word without end. */
static void test_hostile(void **state)
{
    static const char json[] =
        "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a+)+$\"},\"behavior\":\"Isolated\"}"
        ","
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"aa\":2},\"merges\":[\"a a\",\"a a\"]}}";
    struct error err;
    struct tokenizer *t;
    struct token_list list = {0};
    assert_int_equal(tokenizer_parse(&t, json, strlen(json), &err), 0);
    struct encoder *e = encoder_create(t);
    assert_int_equal(encoder_encode(e, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", 42, true, &list, &err),
                     EXIT_INTEGRITY);
    list.count = 0;
    assert_int_equal(encoder_encode(e, "aaaa", 4, true, &list, &err), 0);
    assert_int_equal(list.count, 2);
    assert_int_equal(list.ids[0], 2);
    encoder_free(e);
    tokenizer_close(t);
    t = open_named("llama2");
    e = encoder_create(t);
    size_t bytes = 17 << 20;
    char *word = malloc(bytes);
    assert_non_null(word);
    memset(word, 'x', bytes);
    assert_int_equal(encoder_encode(e, word, bytes, true, &list, &err), EXIT_INTEGRITY);
    free(word);
    token_list_free(&list);
    encoder_free(e);
    tokenizer_close(t);
}

static void test_utf8(void **state)
{
    static const struct {
        const char *text;
        size_t bytes, invalid;
    } rows[] = {{"abc", 3, 3},
                {"ab\xFF", 3, 2},
                {"\xC0\x80", 2, 0},
                {"\xE4\xBD\xA0", 3, 3},
                {"\xE4\xBD", 2, 0},
                {"\xED\xA0\x80", 3, 0},
                {"\xF4\x90\x80\x80", 4, 0},
                {"\xF0\x9F\x98\x80", 4, 4},
                {"12345678\x80", 9, 8},
                {"a\0b", 3, 3}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(utf8_invalid(rows[i].text, rows[i].bytes), rows[i].invalid);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal),           cmocka_unit_test(test_spans),
        cmocka_unit_test(test_forms),           cmocka_unit_test(test_unigram),
        cmocka_unit_test(test_breaks),          cmocka_unit_test(test_refused),
        cmocka_unit_test(test_unigram_refused), cmocka_unit_test(test_no_tokens),
        cmocka_unit_test(test_hostile),         cmocka_unit_test(test_utf8)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
