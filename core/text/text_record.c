/* Records of .jsonl: see text_record.h. */
#include "core/text/text_record.h"
#include "core/base/file.h"
#include "core/base/json_members.h"
#include "core/text/conversation.h"
#include "core/text/text_internal.h"

#include <stdlib.h>

/* ---- spans ---- */

void text_record_add(struct text_record *r, const char *text, size_t bytes, bool label)
{
    struct text_span *last = r->count ? &r->spans[r->count - 1] : NULL;
    text_append(&r->text, text, bytes);
    if (!bytes) return;
    if (last && last->label == label) {
        last->end = r->text.count;
        return;
    }
    if (r->count == r->capacity) {
        r->capacity = 2 * r->capacity + 16;
        r->spans = xrealloc(r->spans, (size_t)r->capacity * sizeof *r->spans);
    }
    r->spans[r->count++] = (struct text_span){r->text.count - bytes, r->text.count, label};
}

void text_record_free(struct text_record *r)
{
    text_free(&r->text);
    text_free(&r->class);
    free(r->spans);
    *r = (struct text_record){0};
}

int text_record_ask(struct text_record *r, const struct chat_template *c, const char *system,
                    const char *question, struct error *err)
{
    json_t *messages = json_array();
    if (system)
        json_array_append_new(
            messages, json_pack("{s:s,s:o}", "role", "system", "content", json_string_nocheck(system)));
    json_array_append_new(messages,
                          json_pack("{s:s,s:o}", "role", "user", "content", json_string_nocheck(question)));
    int code = conversation_ask(r, c, messages, err);
    json_decref(messages);
    return code;
}

#define NONE "null|false|[]|{}|\"\""

/* A record of messages, or of prompt and completion: what else it has is where it comes from (id, source),
 * which no training learns; but not these. */
static const struct json_member record_members[] = {
    {"functions", NONE}, {"documents", NONE}, {"system", NONE},  {"history", NONE}, {"images", NONE},
    {"image", NONE},     {"videos", NONE},    {"audios", NONE},  {"chosen", NONE},  {"text_pair", NONE},
    {"rejected", NONE},  {"weight", "1"},     {"train", "true"}, {"*", NULL},       {0}};
static const struct json_member no_tools[] = {{"tools", NONE}, {"*", NULL}, {0}};
static const struct json_member template_arguments[] = {
    {"enable_thinking", NULL}, /* of a question that is asked: no template writes it into a conversation */
    {"tools", NONE},
    {"date_string", NULL},
    {"add_generation_prompt", "false"},
    {0}};

static int check_record(const json_t *root, bool messages, struct error *err)
{
    int code = json_members_check(root, record_members, NULL, "record",
                                  N_("write it into the texts, or remove it"), err);
    if (!code && !messages)
        code = json_members_check(root, no_tools, NULL, "record", N_("write it into the texts, or remove it"),
                                  err);
    if (!code)
        code = json_members_check(json_object_get(root, "chat_template_kwargs"), template_arguments, NULL,
                                  "chat_template_kwargs", N_("remove it from the record"), err);
    return code ? err->code = EXIT_FAILED : 0;
}

static int read_messages(struct text_record *r, const struct text_record_options *o, const json_t *root,
                         const json_t *messages, struct error *err)
{
    const json_t *tools = json_object_get(root, "tools"),
                 *date = json_object_get(json_object_get(root, "chat_template_kwargs"), "date_string");
    const struct conversation of = {.messages = messages, .tools = tools, .date = json_string_value(date)};
    if (!o->chat && o->no_chat) *err = *o->no_chat;
    if (!o->chat)
        return o->no_chat ? err->code
                          : error_set(err, EXIT_FAILED, "give --template, or the tokenizer of a chat model",
                                      "messages require a chat template");
    if (tools && !json_is_array(tools) && !json_is_null(tools))
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

/* Returns the messages of a prompt and its completion, of which the completion's answers alone are learnt. */
static json_t *join_messages(json_t *prompt, json_t *completion)
{
    json_t *both = json_deep_copy(prompt), *message;
    size_t i;
    json_array_foreach(both, i, message)
    {
        const char *role = json_string_value(json_object_get(message, "role"));
        if (role && strcmp(role, "assistant") == 0) json_object_set_new(message, "train", json_false());
    }
    json_array_extend(both, completion);
    return both;
}

/* Reads a prompt and its completion, which are texts. */
static int read_completion(struct text_record *r, const json_t *prompt, const json_t *completion,
                           struct error *err)
{
    text_record_add(r, json_string_value(prompt), json_string_length(prompt), false);
    text_record_add(r, json_string_value(completion), json_string_length(completion), true);
    if (json_string_length(completion)) return 0;
    return error_set(err, EXIT_FAILED, "remove the record", "the completion is empty: nothing to learn");
}

/* Refuses a record without what is learnt; forms that other programs read have a hint. */
static int refuse_record(const json_t *root, struct error *err)
{
    static const struct {
        const char *key, *hint;
    } forms[] = {
        {"conversations", N_("rename its members: \"messages\" for \"conversations\", role for from (user, "
                             "assistant), content for value")},
        {"instruction", N_("write instruction and input as \"prompt\", output as \"completion\"")},
        {"question", N_("rename its members: \"prompt\" and \"completion\"")},
        {"content", N_("rename it: \"text\"")},
    };
    const char *hint = N_("one object per line, as {\"text\": \"...\"}");
    for (size_t i = sizeof forms / sizeof *forms; i-- > 0;)
        if (json_object_get(root, forms[i].key)) hint = forms[i].hint;
    return error_set(err, EXIT_FAILED, hint,
                     "a record has no \"text\", \"messages\" or \"prompt\" and \"completion\"");
}

int text_record_read(struct text_record *r, const char *line, size_t bytes,
                     const struct text_record_options *options, struct error *err)
{
    const char *label = options->label;
    json_error_t why;
    json_t *root = json_parse(line, bytes, JSON_ALLOW_NUL, &why), *text = json_object_get(root, "text"),
           *prompt = json_object_get(root, "prompt"), *completion = json_object_get(root, "completion"),
           *messages = json_array_size(prompt) && json_array_size(completion)
                           ? join_messages(prompt, completion)
                           : json_incref(json_object_get(root, "messages"));
    bool plain = label || !json_is_array(messages);
    int code = 0;
    r->text.count = 0;
    r->count = 0;
    r->plain = plain;
    if (!root)
        code = error_set(err, EXIT_FAILED, "one JSON object per line", "is not JSON: %.200s", why.text);
    else if (label && !json_is_string(text))
        code = error_set(err, EXIT_FAILED, "one object per line, as {\"text\": \"...\", \"label\": \"good\"}",
                         "a record has no \"text\", which --label requires");
    else if (label || !plain || json_is_string(completion)) code = check_record(root, !plain, err);
    if (code) r->count = 0;
    else if (label) {
        text_record_add(r, json_string_value(text), json_string_length(text), true);
        code = read_class(r, root, label, err);
    } else if (!plain) code = read_messages(r, options, root, messages, err);
    else if (json_is_string(prompt) && json_is_string(completion))
        code = read_completion(r, prompt, completion, err);
    else if (json_is_string(text))
        text_record_add(r, json_string_value(text), json_string_length(text), true);
    else code = refuse_record(root, err);
    json_decref(messages);
    json_decref(root);
    return code;
}
