/* Conversations are written as transformers renders them, and the labels are the assistant's parts
 * (tests/make/chat_templates.py). */
#include "core/text/text_record.h"
#include "core/base/file.h"
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
            fail_msg("chats.jsonl:%d: label %zu is '%.*s', expected '%s'", line, label,
                     (int)(s->end - s->begin), r->text.data + s->begin, json_string_value(expected));
        label++;
    }
    if (label != json_array_size(labels)) fail_msg("chats.jsonl:%d: %zu labels", line, label);
}

/* Returns the template of the line. A null text: the template refuses the conversation. */
static const struct chat_template *check_line(const char *text, size_t bytes, int line)
{
    struct text_record r = {0};
    struct error err;
    json_t *row = json_parse(text, bytes, JSON_ALLOW_NUL, NULL), *whole = json_object_get(row, "text");
    const struct chat_template *c = chat_template_named(json_string_value(json_object_get(row, "template")));
    assert_non_null(c);
    struct chat_template chat = *c;
    if (!chat.begin) chat.begin = "<|begin_of_text|>";
    const struct text_record_options o = {.chat = &chat};
    const char *question = json_string_value(json_object_get(row, "question"));
    json_t *record = json_pack("{s:O*}", "messages", json_object_get(row, "messages"));
    char *written = json_dumps(record, JSON_COMPACT);
    int code = 0;
    if (question)
        code = text_record_ask(&r, &chat, json_string_value(json_object_get(row, "system")), question, &err);
    else code = text_record_read(&r, written, strlen(written), &o, &err);
    if (!code == json_is_null(whole)) fail_msg("chats.jsonl:%d: %s", line, code ? err.what : "not refused");
    if (!code && (r.text.count != json_string_length(whole) ||
                  memcmp(r.text.data, json_string_value(whole), r.text.count) != 0))
        fail_msg("chats.jsonl:%d: %s: '%.*s', expected '%s'", line, c->name, (int)r.text.count, r.text.data,
                 json_string_value(whole));
    if (!code && !question) check_labels(&r, json_object_get(row, "labels"), line);
    free(written);
    json_decref(record);
    json_decref(row);
    text_record_free(&r);
    return c;
}

static void test_conversations(void **state)
{
    char *path = xasprintf("%s/tests/data/tokenizers/chats.jsonl", MEOPT_SOURCE_DIR), *text;
    size_t bytes;
    struct error err;
    int line = 0, templates = 0;
    const struct chat_template *last = NULL;
    (void)state;
    assert_int_equal(file_read(path, 1 << 24, &text, &bytes, &err), 0);
    for (char *p = text, *end; (end = strchr(p, '\n')) != NULL; p = end + 1) {
        const struct chat_template *c = check_line(p, (size_t)(end - p), ++line);
        templates += c != last;
        last = c;
    }
    for (const struct chat_template *c = chat_templates; c->name; c++) templates--;
    assert_int_equal(templates, 0); /* each has conversations */
    free(text);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_conversations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
