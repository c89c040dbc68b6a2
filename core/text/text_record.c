/* Records of .jsonl: see text_record.h. */
#include "core/text/text_record.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/text/text_internal.h"

#include <stdlib.h>

#define TURN "<|im_start|>", "\n", "<|im_end|>", "\n"
const struct chat_template chat_templates[] = {
    {"chatml", "<|im_start|>", "</think>|You are", "", TURN, NULL, false, false},
    {"qwen2", "<|im_start|>|You are a helpful assistant", "</think>|You are Qwen", "", TURN,
     "You are a helpful assistant.", false, false},
    {"qwen2.5", "<|im_start|>|You are Qwen, created by Alibaba Cloud", "</think>", "", TURN,
     "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", false, false},
    {"qwen3", "<|im_start|>|</think>|enable_thinking", "You are", "", TURN, NULL, false, true},
    {"llama3", "<|start_header_id|>|<|eot_id|>", "Cutting Knowledge Date", "<|begin_of_text|>",
     "<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>", "", NULL, true, false},
    {0},
};

const struct chat_template *chat_template_named(const char *name)
{
    for (const struct chat_template *c = chat_templates; c->name; c++)
        if (strcmp(c->name, name) == 0) return c;
    return NULL;
}

/* Returns how many of the parts, separated by '|', the text has; *all is their number. */
static int count_parts(const char *text, const char *parts, int *all)
{
    int found = 0;
    *all = 0;
    for (const char *p = parts; *p; ++*all) {
        char part[64];
        size_t n = 0;
        /* the bars of a token are inside <| |> */
        while (p[n] && !(p[n] == '|' && (n == 0 || p[n - 1] != '<') && p[n + 1] != '>')) n++;
        snprintf(part, sizeof part, "%.*s", (int)n, p);
        found += strstr(text, part) != NULL;
        p += n + (p[n] == '|');
    }
    return found;
}

const struct chat_template *chat_template_like(const char *jinja)
{
    int all, none;
    for (const struct chat_template *c = chat_templates; c->name; c++)
        if (count_parts(jinja, c->has, &all) == all && count_parts(jinja, c->lacks, &none) == 0) return c;
    return NULL;
}

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

/* Takes the thought from the answer, and writes it if the answer follows the last question: a given one in
 * one form, as a label; else an empty one if the answer is the last. */
static void add_thought(struct text_record *r, const char **content, size_t *bytes, bool answers, bool last)
{
    const char *close = memmem(*content, *bytes, "</think>", 8), *thought = *content;
    size_t length = close ? (size_t)(close - *content) : 0;
    if (close) {
        const char *end = *content + *bytes, *open = after_last(thought, length, "<think>");
        if (open) thought = open, length = (size_t)(close - open);
        trim_lines(&thought, &length, true);
        *content = after_last(*content, *bytes, "</think>");
        *bytes = (size_t)(end - *content);
        trim_lines(content, bytes, false);
    }
    if (!answers || (!last && !length)) return;
    add_text(r, "<think>\n", close != NULL);
    add_span(r, thought, length, close != NULL);
    add_text(r, "\n</think>\n\n", close != NULL);
    trim_lines(content, bytes, false);
}

/* answers: the turn follows the last question. */
static void add_turn(struct text_record *r, const struct chat_template *c, const char *role,
                     const char *content, size_t bytes, bool answers, bool last)
{
    bool label = strcmp(role, "assistant") == 0;
    if (c->trims) trim(&content, &bytes);
    add_text(r, c->before, false);
    add_text(r, role, false);
    add_text(r, c->after, false);
    if (label && c->thinks) add_thought(r, &content, &bytes, answers, last);
    add_span(r, content, bytes, label);
    add_text(r, c->end, label);
    add_text(r, c->between, false);
}

void text_record_ask(struct text_record *r, const struct chat_template *c, const char *system,
                     const char *question)
{
    r->text.count = 0;
    r->count = 0;
    r->plain = false;
    if (!system) system = c->system;
    add_text(r, c->begin, false);
    if (system) add_turn(r, c, "system", system, strlen(system), false, false);
    add_turn(r, c, "user", question, strlen(question), false, false);
    add_text(r, c->before, false);
    add_text(r, "assistant", false);
    add_text(r, c->after, false);
    if (c->thinks) add_text(r, "<think>\n\n</think>\n\n", false);
}

/* Returns the number of the last question, no result of a tool; if there is none, of the last message. */
static size_t last_question(json_t *messages)
{
    static const char begin[] = "<tool_response>", end[] = "</tool_response>";
    size_t count = json_array_size(messages), b = sizeof begin - 1, e = sizeof end - 1;
    for (size_t i = count; i-- > 0;) {
        json_t *message = json_array_get(messages, i), *content = json_object_get(message, "content");
        const char *role = json_string_value(json_object_get(message, "role")),
                   *text = json_string_value(content);
        size_t n = json_string_length(content);
        if (!role || strcmp(role, "user") != 0 || !text) continue;
        bool tool = n >= e && strncmp(text, begin, b) == 0 && memcmp(text + n - e, end, e) == 0;
        if (!tool) return i;
    }
    return count - 1;
}

static int read_message(struct text_record *r, const struct chat_template *c, json_t *messages, size_t i,
                        size_t question, struct error *err)
{
    static const char *const roles[] = {"system", "user", "assistant"};
    json_t *message = json_array_get(messages, i), *content = json_object_get(message, "content");
    const char *role = json_string_value(json_object_get(message, "role"));
    bool known = false, ours = i == 0 && role && strcmp(role, "system") == 0;
    for (int k = 0; k < 3; k++) known |= role && strcmp(roles[k], role) == 0;
    if (!known)
        return error_set(err, EXIT_FAILED, "supported: system, user, assistant",
                         "message %zu has the role '%.40s'", i, role ? role : "");
    if (!json_is_string(content) || json_array_size(json_object_get(message, "tool_calls")))
        return error_set(err, EXIT_FAILED, "write the message as text",
                         "message %zu: content is no string, or it has tool_calls", i);
    if (i == 0 && c->system && !ours) add_turn(r, c, "system", c->system, strlen(c->system), false, false);
    add_turn(r, c, role, json_string_value(content), json_string_length(content), i > question,
             i + 1 == json_array_size(messages));
    return 0;
}

static int read_messages(struct text_record *r, const struct chat_template *c, json_t *messages,
                         struct error *err)
{
    size_t question = last_question(messages);
    int code = 0;
    if (!c)
        return error_set(err, EXIT_FAILED, "give --template, or the tokenizer of a chat model",
                         "messages require a chat template");
    add_text(r, c->begin, false);
    for (size_t i = 0; i < json_array_size(messages) && !code; i++)
        code = read_message(r, c, messages, i, question, err);
    for (int64_t i = 0; i < r->count && !code; i++)
        if (r->spans[i].label) return 0;
    return code ? code
                : error_set(err, EXIT_FAILED, "remove the record",
                            "no message is the assistant's: nothing to learn");
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

int text_record_read(struct text_record *r, const char *line, size_t bytes, const struct chat_template *chat,
                     const char *label, struct error *err)
{
    json_error_t why;
    json_t *root = json_parse(line, bytes, JSON_ALLOW_NUL, &why), *text = json_object_get(root, "text"),
           *messages = json_object_get(root, "messages"), *prompt = json_object_get(root, "prompt"),
           *completion = json_object_get(root, "completion");
    int code = 0;
    r->text.count = 0;
    r->count = 0;
    r->plain = label || !json_is_array(messages);
    if (!root)
        code = error_set(err, EXIT_FAILED, "one JSON object per line", "is not JSON: %.200s", why.text);
    else if (label && !json_is_string(text))
        code = error_set(err, EXIT_FAILED, "one object per line, as {\"text\": \"...\", \"label\": \"good\"}",
                         "a record has no \"text\", which --label requires");
    else if (label) {
        add_span(r, json_string_value(text), json_string_length(text), true);
        code = read_class(r, root, label, err);
    } else if (json_is_array(messages)) code = read_messages(r, chat, messages, err);
    else if (json_is_string(prompt) && json_is_string(completion)) {
        add_span(r, json_string_value(prompt), json_string_length(prompt), false);
        add_span(r, json_string_value(completion), json_string_length(completion), true);
        if (!json_string_length(completion))
            code =
                error_set(err, EXIT_FAILED, "remove the record", "the completion is empty: nothing to learn");
    } else if (json_is_string(text)) add_span(r, json_string_value(text), json_string_length(text), true);
    else
        code = error_set(err, EXIT_FAILED, "one object per line, as {\"text\": \"...\"}",
                         "a record has no \"text\", \"messages\" or \"prompt\" and \"completion\"");
    json_decref(root);
    return code;
}
