/* Conversations: see conversation.h. */
#include "core/text/conversation.h"
#include "core/base/json_members.h"
#include "core/text/text_internal.h"

#include <string.h>

static void add_text(struct text_record *r, const char *text, bool label)
{
    text_record_add(r, text, strlen(text), label);
}

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
    text_record_add(r, thought, length, label);
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
    text_record_add(r, t.content, t.bytes, t.learnt);
    add_text(r, c->end, t.learnt);
    add_text(r, c->between, false);
}

static void add_system(struct text_record *r, const struct chat_template *c, const char *content,
                       size_t bytes)
{
    if (content && (bytes || !c->drops_system))
        add_turn(r, c, (struct turn){.role = "system", .content = content, .bytes = bytes});
}

/* Returns the number of the last question, no result of a tool; if there is none, the number of messages. */
static size_t last_question(const struct chat_template *c, const json_t *messages)
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

static int read_message(struct text_record *r, const struct chat_template *c, const json_t *messages,
                        size_t i, size_t question, struct error *err)
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

int conversation_read(struct text_record *r, const struct chat_template *c, const json_t *messages,
                      struct error *err)
{
    size_t count = json_array_size(messages);
    int code = 0;
    size_t question = last_question(c, messages);
    if (question == count && c->strict)
        return error_set(err, EXIT_FAILED, "remove the record",
                         "no message is a question of the user, which template %s requires", c->name);
    if (question == count) question = count - 1;
    add_text(r, c->begin, false);
    for (size_t i = 0; i < count && !code; i++) code = read_message(r, c, messages, i, question, err);
    return code;
}

int conversation_ask(struct text_record *r, const struct chat_template *c, const json_t *messages,
                     struct error *err)
{
    r->text.count = 0;
    r->count = 0;
    r->plain = false;
    int code = conversation_read(r, c, messages, err);
    if (code) return code;
    add_text(r, c->before, false);
    add_text(r, "assistant", false);
    add_text(r, c->after, false);
    add_text(r, c->opens, false);
    return 0;
}
