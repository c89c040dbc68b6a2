/* Records of .jsonl: see text_record.h. */
#include "core/text/text_record.h"
#include "core/base/file.h"
#include "core/base/json_members.h"
#include "core/text/text_internal.h"

#include <stdlib.h>

/* ---- spans ---- */

static void add_span(struct text_record *r, const char *text, size_t bytes, bool label)
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

static void add_text(struct text_record *r, const char *text, bool label)
{
    add_span(r, text, strlen(text), label);
}

void text_record_free(struct text_record *r)
{
    text_free(&r->text);
    text_free(&r->class);
    free(r->spans);
    *r = (struct text_record){0};
}

/* ---- conversations ---- */

/* As Python's strip(). Text that is not UTF-8, which is refused later, stays. */
static void trim(const char **text, size_t *bytes)
{
    uint32_t p;
    if (utf8_invalid(*text, *bytes) < *bytes) return;
    while (*bytes) {
        size_t n = utf8_read(*text, &p);
        if (!point_is_space(p) && (p < 0x1C || p > 0x1F)) break;
        *text += n;
        *bytes -= n;
    }
    while (*bytes) {
        size_t at = *bytes - 1;
        while (((uint8_t)(*text)[at] & 0xC0) == 0x80) at--;
        utf8_read(*text + at, &p);
        if (!point_is_space(p) && (p < 0x1C || p > 0x1F)) break;
        *bytes = at;
    }
}

static void trim_lines(const char **text, size_t *bytes, bool right)
{
    while (*bytes && **text == '\n') ++*text, --*bytes;
    while (right && *bytes && (*text)[*bytes - 1] == '\n') --*bytes;
}

/* Returns what follows the last `mark` in the text, NULL: there is none. */
static const char *after_last(const char *text, size_t bytes, const char *mark)
{
    const char *last = NULL, *end = text + bytes;
    for (const char *p = text; (p = memmem(p, (size_t)(end - p), mark, strlen(mark))) != NULL;)
        last = p += strlen(mark);
    return last;
}

struct turn {
    const char *role, *content, *thought; /* thought: reasoning_content; NULL: none */
    size_t bytes, thought_bytes;
    bool learnt;        /* an answer that is a label */
    bool answers, last; /* it follows the last question; it is the last message */
};

/* Takes the thought from the answer, and writes it where the template keeps it: a given one in one form, as a
 * label, or an empty one. */
static void add_thought(struct text_record *r, const struct chat_template *c, struct turn *t)
{
    const char *close = t->thought ? NULL : memmem(t->content, t->bytes, "</think>", 8),
               *thought = t->thought;
    size_t length = t->thought_bytes;
    bool after = c->thoughts == THOUGHTS_AFTER;
    if (close) {
        const char *end = t->content + t->bytes, *open;
        length = (size_t)(close - t->content);
        thought = t->content;
        if ((open = after_last(thought, length, "<think>")) != NULL)
            thought = open, length = (size_t)(close - open);
        trim_lines(&thought, &length, true);
        t->content = after_last(t->content, t->bytes, "</think>");
        t->bytes = (size_t)(end - t->content);
        trim_lines(&t->content, &t->bytes, false);
    }
    if (!t->answers || (!after && !t->last && !length)) return;
    bool label = t->learnt && (close || length);
    if (after) trim(&thought, &length);
    else trim_lines(&thought, &length, true);
    add_text(r, "<think>\n", label);
    add_span(r, thought, length, label);
    add_text(r, "\n</think>\n\n", label);
    if (!after) trim_lines(&t->content, &t->bytes, false);
}

static void add_turn(struct text_record *r, const struct chat_template *c, struct turn t)
{
    if (c->trims) trim(&t.content, &t.bytes);
    add_text(r, c->before, false);
    add_text(r, t.role, false);
    add_text(r, c->after, false);
    if (strcmp(t.role, "assistant") == 0 && c->thoughts != THOUGHTS_STAY) add_thought(r, c, &t);
    add_span(r, t.content, t.bytes, t.learnt);
    add_text(r, c->end, t.learnt);
    add_text(r, c->between, false);
}

static void add_system(struct text_record *r, const struct chat_template *c, const char *content,
                       size_t bytes)
{
    if (content && (bytes || !c->drops_system))
        add_turn(r, c, (struct turn){.role = "system", .content = content, .bytes = bytes});
}

void text_record_ask(struct text_record *r, const struct chat_template *c, const char *system,
                     const char *question)
{
    r->text.count = 0;
    r->count = 0;
    r->plain = false;
    if (!system) system = c->system;
    add_text(r, c->begin, false);
    add_system(r, c, system, system ? strlen(system) : 0);
    add_turn(r, c, (struct turn){.role = "user", .content = question, .bytes = strlen(question)});
    add_text(r, c->before, false);
    add_text(r, "assistant", false);
    add_text(r, c->after, false);
    add_text(r, c->opens, false);
}

/* Returns the number of the last question, no result of a tool; if there is none, the number of messages. */
static size_t last_question(const struct chat_template *c, json_t *messages)
{
    static const char begin[] = "<tool_response>", end[] = "</tool_response>";
    size_t count = json_array_size(messages), b = sizeof begin - 1, e = sizeof end - 1;
    for (size_t i = count; i-- > 0;) {
        json_t *message = json_array_get(messages, i), *content = json_object_get(message, "content");
        const char *role = json_string_value(json_object_get(message, "role")),
                   *text = json_string_value(content);
        size_t n = json_string_length(content);
        if (!role || strcmp(role, "user") != 0 || !text) continue;
        if (c->trims) trim(&text, &n);
        bool tool = n >= b && n >= e && memcmp(text, begin, b) == 0 && memcmp(text + n - e, end, e) == 0;
        if (!tool) return i;
    }
    return count;
}

/* Reads whether an answer is learnt: "weight": 0 (OpenAI) or "train": false takes its labels away. */
static int read_learnt(struct turn *t, json_t *message, size_t i, struct error *err)
{
    json_t *weight = json_object_get(message, "weight"), *train = json_object_get(message, "train");
    bool answer = strcmp(t->role, "assistant") == 0, set = !json_is_null(weight) && weight,
         chosen = !json_is_null(train) && train;
    double value = set ? json_number_value(weight) : answer;
    if ((set && (!json_is_number(weight) || (value != 0 && value != 1))) ||
        (chosen && !json_is_boolean(train)))
        return error_set(err, EXIT_FAILED, "an answer is learnt as a whole or not: \"weight\": 0 or 1",
                         "message %zu: %s is neither 0 nor 1, nor true or false", i,
                         set ? "weight" : "train");
    if (!answer && ((set && value != 0) || json_is_true(train)))
        return error_set(err, EXIT_FAILED, "write the texts to learn as answers of the assistant",
                         "message %zu: %s is set, but only the assistant's are learnt", i,
                         set && value != 0 ? "weight" : "train");
    t->learnt = answer && value != 0 && !json_is_false(train);
    return 0;
}

#define NONE "null|false|[]|{}|\"\""

/* A message: what else it has would be written by no template, or changes what is learnt. */
static const struct json_member message_members[] = {
    {"role", NULL},       {"content", NULL},      {"reasoning_content", NULL},
    {"weight", NULL},     {"train", NULL},        {"name", NULL},
    {"id", NULL}, /* no template of chat_templates writes them */
    {"tool_calls", NONE}, {"tool_call_id", NONE}, {"function_call", NONE},
    {"refusal", NONE},    {"audio", NONE},        {0}};

/* A record of messages, or of prompt and completion: what else it has is where it comes from (id, source),
 * which no training learns; but not these. */
static const struct json_member record_members[] = {
    {"tools", NONE},   {"functions", NONE}, {"documents", NONE}, {"system", NONE},
    {"history", NONE}, {"images", NONE},    {"image", NONE},     {"videos", NONE},
    {"audios", NONE},  {"chosen", NONE},    {"text_pair", NONE}, {"rejected", NONE},
    {"weight", "1"},   {"train", "true"},   {"*", NULL},         {0}};
static const struct json_member template_arguments[] = {
    {"enable_thinking", NULL}, /* of a question that is asked: no template writes it into a conversation */
    {"tools", NONE},
    {"add_generation_prompt", "false"},
    {0}};

static int check_record(const json_t *root, struct error *err)
{
    int code = json_members_check(root, record_members, NULL, "record",
                                  N_("write it into the texts, or remove it"), err);
    if (!code)
        code = json_members_check(json_object_get(root, "chat_template_kwargs"), template_arguments, NULL,
                                  "chat_template_kwargs", N_("remove it from the record"), err);
    return code ? err->code = EXIT_FAILED : 0;
}

static int read_message(struct text_record *r, const struct chat_template *c, json_t *messages, size_t i,
                        size_t question, struct error *err)
{
    static const char *const roles[] = {"system", "user", "assistant"};
    json_t *message = json_array_get(messages, i), *content = json_object_get(message, "content"),
           *thought = json_object_get(message, "reasoning_content");
    struct turn t = {.role = json_string_value(json_object_get(message, "role")),
                     .content = json_string_value(content),
                     .bytes = json_string_length(content),
                     .thought = json_string_value(thought),
                     .thought_bytes = json_string_length(thought),
                     .answers = i > question,
                     .last = i + 1 == json_array_size(messages)};
    int role = 0;
    while (role < 3 && !(t.role && strcmp(roles[role], t.role) == 0)) role++;
    if (role == 3)
        return error_set(err, EXIT_FAILED, "supported: system, user, assistant",
                         "message %zu has the role '%.40s'", i, t.role ? t.role : "");
    char what[32];
    snprintf(what, sizeof what, "message %zu", i);
    if (json_members_check(message, message_members, NULL, what, N_("write it into content, or remove it"),
                           err))
        return err->code = EXIT_FAILED;
    if (!t.content)
        return error_set(err, EXIT_FAILED, "write the message as text", "message %zu: content is no string",
                         i);
    if (role == 0 && i && c->strict)
        return error_set(err, EXIT_FAILED, "begin the conversation with it",
                         "message %zu is the system's, which template %s permits first only", i, c->name);
    if (t.thought_bytes && (role != 2 || c->thoughts == THOUGHTS_STAY))
        return error_set(err, EXIT_FAILED, "remove it, or write it into content",
                         "message %zu has reasoning_content, which template %s does not write", i, c->name);
    int code = read_learnt(&t, message, i, err);
    if (code) return code;
    if (i == 0 && role) add_system(r, c, c->system, c->system ? strlen(c->system) : 0);
    if (i == 0 && !role) add_system(r, c, t.content, t.bytes);
    else add_turn(r, c, t);
    return 0;
}

static int read_messages(struct text_record *r, const struct text_record_options *o, json_t *messages,
                         struct error *err)
{
    const struct chat_template *c = o->chat;
    size_t count = json_array_size(messages);
    int code = 0;
    if (!c && o->no_chat) *err = *o->no_chat;
    if (!c)
        return o->no_chat ? err->code
                          : error_set(err, EXIT_FAILED, "give --template, or the tokenizer of a chat model",
                                      "messages require a chat template");
    size_t question = last_question(c, messages);
    if (question == count && c->strict)
        return error_set(err, EXIT_FAILED, "remove the record",
                         "no message is a question of the user, which template %s requires", c->name);
    if (question == count) question = count - 1;
    add_text(r, c->begin, false);
    for (size_t i = 0; i < count && !code; i++) code = read_message(r, c, messages, i, question, err);
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
    add_span(r, json_string_value(prompt), json_string_length(prompt), false);
    add_span(r, json_string_value(completion), json_string_length(completion), true);
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
    else if (label || !plain || json_is_string(completion)) code = check_record(root, err);
    if (code) r->count = 0;
    else if (label) {
        add_span(r, json_string_value(text), json_string_length(text), true);
        code = read_class(r, root, label, err);
    } else if (!plain) code = read_messages(r, options, messages, err);
    else if (json_is_string(prompt) && json_is_string(completion))
        code = read_completion(r, prompt, completion, err);
    else if (json_is_string(text)) add_span(r, json_string_value(text), json_string_length(text), true);
    else code = refuse_record(root, err);
    json_decref(messages);
    json_decref(root);
    return code;
}
