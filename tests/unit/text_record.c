/* Conversations are written as transformers renders them, and the labels are the assistant's parts
 * (tests/make/chat_templates.py). */
#include "core/text/conversation.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check_labels(const struct text_record *r, json_t *labels, int line)
{
    size_t label = 0;
    for (int64_t i = 0; i < r->count; i++) {
        const struct text_span *s = &r->spans[i];
        json_t *expected = json_array_get(labels, label);
        if (!s->label) continue;
        if (s->end - s->begin != json_string_length(expected) ||
            memcmp(r->text.data + s->begin, json_string_value(expected), s->end - s->begin) != 0)
            fail_msg("line %d: label %zu is '%.*s', expected '%s'", line, label, (int)(s->end - s->begin),
                     r->text.data + s->begin, json_string_value(expected));
        label++;
    }
    if (label != json_array_size(labels)) fail_msg("line %d: %zu labels", line, label);
}

/* Compares what is learnt with the marks of trl. */
static void check_learnt(const struct text_record *r, const char *learnt, int line)
{
    struct text_buffer all = {0};
    for (int64_t i = 0; i < r->count; i++)
        if (r->spans[i].label)
            text_append(&all, r->text.data + r->spans[i].begin, r->spans[i].end - r->spans[i].begin);
    if (all.count != strlen(learnt) || memcmp(all.data, learnt, all.count) != 0)
        fail_msg("line %d: learnt is '%.*s', expected '%s'", line, (int)all.count, all.data, learnt);
    text_free(&all);
}

static json_t *messages_of(json_t *system, const char *question)
{
    json_t *messages = json_array();
    if (json_is_string(system))
        json_array_append_new(messages, json_pack("{s:s,s:O}", "role", "system", "content", system));
    json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "user", "content", question));
    return messages;
}

/* Returns the template of the line. A null text: the template refuses the conversation. own: a template of
 * one's own with the parts of mistral-v1, which writes the same. */
static const struct chat_template *check_line(const char *text, size_t bytes, int line,
                                              const struct chat_template *own)
{
    struct text_record r = {0};
    struct error err;
    json_t *row = json_parse(text, bytes, JSON_ALLOW_NUL, NULL), *whole = json_object_get(row, "text");
    const struct chat_template *c = chat_template_named(json_string_value(json_object_get(row, "template")));
    assert_non_null(c);
    struct chat_template chat = own && strcmp(c->name, "mistral-v1") == 0 ? *own : *c;
    chat.bos = json_string_value(json_object_get(row, "bos"));
    if (!chat.bos) chat.bos = "<|begin_of_text|>";
    chat.eos = "<|endoftext|>";
    const struct text_record_options o = {.chat = &chat};
    const char *question = json_string_value(json_object_get(row, "question"));
    json_t *ask = json_object_get(row, "ask"), *labels = json_object_get(row, "labels");
    json_t *record = json_pack("{s:O*,s:O*}", "messages", json_object_get(row, "messages"), "tools",
                               json_object_get(row, "tools"));
    char *written = json_dumps(record, JSON_COMPACT);
    int code = 0;
    if (ask) code = conversation_ask(&r, &chat, ask, &err);
    else if (question) {
        json_t *messages = messages_of(json_object_get(row, "system"), question);
        code = conversation_ask(&r, &chat, messages, &err);
        json_decref(messages);
    } else code = text_record_read(&r, written, strlen(written), &o, &err);
    if (!code == json_is_null(whole)) fail_msg("line %d: %s", line, code ? err.what : "not refused");
    if (!code && (r.text.count != json_string_length(whole) ||
                  memcmp(r.text.data, json_string_value(whole), r.text.count) != 0))
        fail_msg("line %d: %s: '%.*s', expected '%s'", line, c->name, (int)r.text.count, r.text.data,
                 json_string_value(whole));
    const char *learnt = json_string_value(json_object_get(row, "learnt"));
    if (!code && learnt) check_learnt(&r, learnt, line);
    if (!code && labels) check_labels(&r, labels, line);
    free(written);
    json_decref(record);
    json_decref(row);
    text_record_free(&r);
    return c;
}

static int check_file(const char *name, const struct chat_template *own)
{
    char *path = xasprintf("%s/tests/data/tokenizers/%s", MEOPT_SOURCE_DIR, name), *text;
    size_t bytes;
    struct error err;
    int line = 0, templates = 0;
    const struct chat_template *last = NULL;
    assert_int_equal(file_read(path, 1 << 24, &text, &bytes, &err), 0);
    for (char *p = text, *end; (end = strchr(p, '\n')) != NULL; p = end + 1) {
        const struct chat_template *c = check_line(p, (size_t)(end - p), ++line, own);
        templates += c != last;
        last = c;
    }
    free(text);
    free(path);
    return templates;
}

static void test_conversations(void **state)
{
    assert_int_equal(check_file("chats.jsonl", NULL), 10);
    int templates = check_file("chat_rows.jsonl", NULL);
    for (const struct chat_template *c = chat_templates; c->name; c++) templates--;
    assert_int_equal(templates, 0); /* each has conversations */
}

static void write_template(const char *text)
{
    struct error err;
    assert_int_equal(file_write_atomic("own.json", text, strlen(text), &err), 0);
}

static const char own_text[] = "{\"begin\": \"{bos}\", \"place\": \"joined\", \"alternates\": true,"
                               " \"system\": {\"before\": \"\", \"end\": \"\\n\\n\"}, \"user\": {\"before\": "
                               "\" [INST] \", \"end\": \" [/INST]\"},"
                               " \"assistant\": {\"before\": \"\", \"lead\": \" \", \"end\": \"{eos}\"}}";

static void test_own(void **state)
{
    struct chat_template own, other;
    struct error err;
    json_t *root, *second;
    write_template(own_text);
    assert_int_equal(chat_template_read(&own, &root, "own.json", &err), 0);
    check_file("chat_rows.jsonl", &own);
    char *changed = xstrdup(own_text);
    *strstr(changed, "INST") = 'J';
    write_template(changed);
    assert_int_equal(chat_template_read(&other, &second, "own.json", &err), 0);
    assert_string_not_equal(own.name, other.name);
    json_decref(root);
    json_decref(second);
    free(changed);
    static const char *const wrong[] = {
        "",
        "[]",
        "{}",
        "{\"user\": {\"before\": \"\"}}",
        "{\"user\": \"a\"}",
        "{\"usr\": 1}",
        "{\"user\": {\"before\": 1}, \"assistant\": {}}",
        "{\"user\": {\"after\": \"\"}, \"assistant\": {}}",
        "{\"user\": {}, \"assistant\": {}, \"trims\": 1}",
        "{\"user\": {}, \"assistant\": {}, \"place\": \"last\"}",
        "{\"user\": {}, \"assistant\": {}, \"system\": {}, \"place\": \"joined\", \"default\": \"a\"}",
        "{\"user\": {}, \"assistant\": {}, \"begin\": \"a\\u0000\"}",
        "{\"user\": {}, \"user\": {}, \"assistant\": {}}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_template(wrong[i]);
        if (chat_template_read(&other, &root, "own.json", &err) != EXIT_CONFIG) fail_msg("own %zu", i);
        json_decref(root);
    }
    remove("own.json");
}

/* Prints what each line of a file becomes, an object with a record, or an array of messages to ask, the name
 * or the Jinja text of its template, bos and eos: for tests/tools/compare_templates.py. */
static int print(const char *path)
{
    char *text;
    size_t bytes;
    struct error err;
    if (file_read(path, (size_t)1 << 30, &text, &bytes, &err)) return 1;
    for (char *p = text, *end; (end = strchr(p, '\n')) != NULL; p = end + 1) {
        struct text_record r = {0};
        json_t *row = json_parse(p, (size_t)(end - p), JSON_ALLOW_NUL, NULL),
               *ask = json_object_get(row, "ask"), *labels = json_array();
        const char *jinja = json_string_value(json_object_get(row, "jinja"));
        struct chat_template chat = {0};
        if (!jinja) chat = *chat_template_named(json_string_value(json_object_get(row, "template")));
        else if (!chat_template_like(&chat, jinja)) chat.name = NULL;
        chat.bos = json_string_value(json_object_get(row, "bos"));
        chat.eos = json_string_value(json_object_get(row, "eos"));
        const struct text_record_options o = {.chat = &chat};
        char *record = json_dumps(json_object_get(row, "record"), JSON_COMPACT);
        int code = !chat.name ? error_set(&err, EXIT_FAILED, NULL, "unknown")
                   : ask      ? conversation_ask(&r, &chat, ask, &err)
                              : text_record_read(&r, record, strlen(record), &o, &err);
        for (int64_t i = 0; i < r.count && !code; i++)
            if (r.spans[i].label)
                json_array_append_new(
                    labels, json_stringn(r.text.data + r.spans[i].begin, r.spans[i].end - r.spans[i].begin));
        json_t *result = code ? json_pack("{s:s}", "error", err.what)
                              : json_pack("{s:s%,s:O}", "text", r.text.data ? r.text.data : "", r.text.count,
                                          "labels", labels);
        json_dumpf(result, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(labels);
        json_decref(result);
        json_decref(row);
        free(record);
        text_record_free(&r);
    }
    free(text);
    return 0;
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_conversations), cmocka_unit_test(test_own)};
    return count > 1 ? print(arguments[1]) : cmocka_run_group_tests(tests, NULL, NULL);
}
