/* Records of .jsonl: see text_record.h. */
#include "core/text/text_record.h"
#include "core/base/memory.h"
#include "core/base/json_members.h"
#include "core/text/conversation.h"
#include "core/text/text_internal.h"

#include <stdlib.h>

void text_record_free(struct text_record *r)
{
    text_free(&r->text);
    text_free(&r->class);
    free(r->spans);
    *r = (struct text_record){0};
}

static int read_messages(struct text_record *r, const struct text_record_options *o, const json_t *root,
                         const json_t *messages, struct error *err)
{
    const json_t *tools = json_object_get(root, "tools"),
                 *date = json_object_get(json_object_get(root, "chat_template_kwargs"), "date_string");
    bool none = json_is_false(tools) || (json_is_string(tools) && !json_string_length(tools)) ||
                (json_is_object(tools) && !json_object_size(tools));
    const struct conversation of = {
        .messages = messages, .tools = none ? NULL : tools, .date = json_string_value(date)};
    if (!o->chat && o->no_chat) *err = *o->no_chat;
    if (!o->chat)
        return o->no_chat ? err->code
                          : error_set(err, EXIT_FAILED, "give --template, or the tokenizer of a chat model",
                                      "messages require a chat template");
    if (of.tools && !json_is_array(tools) && !json_is_null(tools))
        return error_set(err, EXIT_FAILED, "write an array of objects", "tools is no array");
    if (date && (!of.date || !o->chat->date))
        return error_set(err, EXIT_FAILED, "remove it from the record",
                         "date_string is no text, or template %s writes no date", o->chat->name);
    int code = conversation_read(r, o->chat, &of, err);
    for (int64_t i = 0; i < r->count && !code; i++)
        if (r->spans[i].label) return 0;
    return code ? code
                : error_set(err, EXIT_FAILED, "remove the record",
                            "no message is an answer of the assistant to learn");
}

/* Reads a class: a name, a number from 0 on, or true or false. */
static int read_class(struct text_record *r, const json_t *root, const char *key, struct error *err)
{
    const json_t *value = json_object_get(root, key);
    char number[32] = "";
    const char *text = json_is_boolean(value) ? (json_is_true(value) ? "true" : "false") : number;
    size_t bytes;
    if (json_is_integer(value) && json_integer_value(value) >= 0)
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
    if (json_is_string(value)) text = json_string_value(value);
    bytes = json_is_string(value) ? json_string_length(value) : strlen(text);
    r->class.count = 0;
    text_append(&r->class, text, bytes);
    if (bytes && !memchr(text, 0, bytes)) return 0;
    if (json_is_integer(value))
        return error_set(err, EXIT_FAILED, "classes are numbered from 0; remove records without a class",
                         "\"%.40s\" is %lld", key, (long long)json_integer_value(value));
    return error_set(err, EXIT_FAILED,
                     "a string or an integer, as in {\"text\": \"...\", \"label\": \"good\"}",
                     "a record has no class under \"%.40s\"", key);
}

int text_record_read(struct text_record *r, const char *line, size_t bytes,
                     const struct text_record_options *o, struct error *err)
{
    json_error_t why;
    json_t *root = json_parse(line, bytes, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &why);
    struct record_content c = {.form = FORM_TEXT};
    r->text.count = 0;
    r->count = 0;
    record_ignore(root, o->ignore);
    int code = root
                   ? record_form_read(&c, root, o->label, err)
                   : error_set(err, EXIT_FAILED, "one JSON object per line", "is not JSON: %.200s", why.text);
    r->form = c.form;
    r->plain = !c.messages;
    if (!code && o->hashes) r->hash = record_hash(root);
    if (code) r->count = 0;
    else if (c.messages) code = read_messages(r, o, root, c.messages, err);
    else {
        text_record_add(r, json_string_value(c.prompt), json_string_length(c.prompt), false);
        text_record_add(r, json_string_value(c.text), json_string_length(c.text), true);
        if (o->label) code = read_class(r, root, o->label, err);
    }
    json_decref(c.messages);
    json_decref(root);
    return code;
}
