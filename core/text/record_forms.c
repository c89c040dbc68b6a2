/* Forms of records: see record_forms.h. */
#include "core/text/record_forms.h"
#include "core/base/json_members.h"
#include "core/text/text_internal.h"

#include <stdlib.h>

#define NONE "null|false|[]|{}|\"\""

const char *const record_form_names[RECORD_FORMS] = {"messages", "prompt-completion", "alpaca", "sharegpt",
                                                     "text"};

/* What a record says of itself, which no training learns: its number, where, when and by whom it was written,
 * its language and subject. */
static const struct json_member origin_members[] = {{"id", NULL},
                                                    {"_id", NULL},
                                                    {"idx", NULL},
                                                    {"index", NULL},
                                                    {"uuid", NULL},
                                                    {"guid", NULL},
                                                    {"prompt_id", NULL},
                                                    {"dialog_id", NULL},
                                                    {"conversation_id", NULL},
                                                    {"source", NULL},
                                                    {"origin", NULL},
                                                    {"dataset", NULL},
                                                    {"url", NULL},
                                                    {"link", NULL},
                                                    {"license", NULL},
                                                    {"licence", NULL},
                                                    {"author", NULL},
                                                    {"date", NULL},
                                                    {"timestamp", NULL},
                                                    {"created", NULL},
                                                    {"meta", NULL},
                                                    {"metadata", NULL},
                                                    {"lang", NULL},
                                                    {"language", NULL},
                                                    {"category", NULL},
                                                    {"topic", NULL},
                                                    {"created_at", NULL},
                                                    {0}};

/* Members of the forms, in their order; the first two show the form and are required. */
static const struct json_member form_members[RECORD_FORMS][6] = {
    {{"messages", NULL}, {"messages", NULL}, {"tools", NULL}, {"chat_template_kwargs", NULL}, {0}},
    {{"prompt", NULL}, {"completion", NULL}, {"tools", NULL}, {"chat_template_kwargs", NULL}, {0}},
    {{"instruction", NULL}, {"output", NULL}, {"input", NULL}, {"system", NULL}, {"history", NULL}, {0}},
    {{"conversations", NULL}, {"conversations", NULL}, {"system", NULL}, {"tools", NULL}, {0}},
    {{"text", NULL}, {"text", NULL}, {0}},
};
/* Members that would change what is learnt, unless they have these values. */
static const struct json_member other_members[] = {{"tools", NONE},
                                                   {"functions", NONE},
                                                   {"documents", NONE},
                                                   {"system", NONE},
                                                   {"history", NONE},
                                                   {"images", NONE},
                                                   {"image", NONE},
                                                   {"videos", NONE},
                                                   {"audios", NONE},
                                                   {"text_pair", NONE},
                                                   {"weight", "1"},
                                                   {"train", "true"},
                                                   {0}};
static const struct json_member template_arguments[] = {
    {"enable_thinking", NULL}, /* of a question that is asked: no template writes it into a conversation */
    {"tools", NONE},
    {"date_string", NULL},
    {"add_generation_prompt", "false"},
    {0}};

/* Returns a member that is not null. */
static json_t *member(const json_t *root, const char *name)
{
    json_t *value = json_object_get(root, name);
    return json_is_null(value) ? NULL : value;
}

void record_ignore(json_t *root, char *const *names)
{
    for (int i = 0; names && names[i]; i++) {
        const char *name;
        json_t *list, *message;
        size_t k;
        json_object_del(root, names[i]);
        json_object_foreach(root, name, list) json_array_foreach(list, k, message)
            json_object_del(message, names[i]);
    }
}

uint64_t record_hash(const json_t *root)
{
    json_t *content = json_copy((json_t *)(uintptr_t)root);
    for (const struct json_member *row = origin_members; row->name; row++)
        json_object_del(content, row->name);
    char *text = json_text(content, JSON_COMPACT | JSON_SORT_KEYS);
    uint64_t hash = text ? hash_bytes(text, strlen(text)) : 0;
    free(text);
    json_decref(content);
    return hash;
}

/* ---- which form ---- */

/* Refuses a record without a form; members that other programs read have a hint. */
static int refuse_record(const json_t *root, struct error *err)
{
    static const struct {
        const char *key, *hint;
    } keys[] = {
        {"question", N_("rename its members: \"prompt\" and \"completion\"")},
        {"conversation",
         N_("rename it: \"messages\", or \"conversations\" if its members are from and value")},
        {"dialogue", N_("rename it: \"messages\"")},
        {"content", N_("rename it: \"text\"")},
    };
    const char *hint = N_("one object per line, as {\"text\": \"...\"}");
    for (size_t i = sizeof keys / sizeof *keys; i-- > 0;)
        if (member(root, keys[i].key)) hint = keys[i].hint;
    if (!json_is_object(root))
        return error_set(err, EXIT_FAILED, "one object per line, as {\"text\": \"...\"}",
                         "a record is no object");
    return error_set(err, EXIT_FAILED, hint,
                     "a record has none of: text, messages, prompt and completion, instruction and output, "
                     "conversations");
}

/* Finds the one form of which the record has a member. */
static int find_form(const json_t *root, enum record_form *form, struct error *err)
{
    static const char *const preference[] = {"chosen", "rejected"};
    const char *found = NULL;
    for (int i = 0; i < 2; i++)
        if (member(root, preference[i]))
            return error_set(err, EXIT_FAILED,
                             "to learn the better answer: write it as \"completion\", or as \"messages\"",
                             "\"%s\" is of a preference pair; preferences are not trained", preference[i]);
    for (int f = 0; f < RECORD_FORMS; f++) {
        const struct json_member *rows = form_members[f];
        const char *here = member(root, rows[0].name)   ? rows[0].name
                           : member(root, rows[1].name) ? rows[1].name
                                                        : NULL;
        if (here && found)
            return error_set(err, EXIT_FAILED, "name the one that is not learnt: --ignore MEMBER",
                             "a record has \"%s\" and \"%s\": two forms", found, here);
        if (here) *form = (enum record_form)f;
        if (here) found = here;
    }
    if (!found) return refuse_record(root, err);
    for (int i = 0; i < 2; i++)
        if (!member(root, form_members[*form][i].name))
            return error_set(err, EXIT_FAILED, "a record of this form has both",
                             "a record has \"%s\", but no \"%s\"", found, form_members[*form][i].name);
    return 0;
}

static int check_members(const json_t *root, enum record_form form, const char *label, struct error *err)
{
    static const char hint[] = N_("write it into the texts, or leave it out: --ignore MEMBER");
    json_t *rest = json_copy((json_t *)(uintptr_t)root);
    bool texts = json_is_string(json_object_get(root, "prompt")); /* no template writes tools before them */
    if (label) json_object_del(rest, label);
    for (const struct json_member *row = form_members[form]; row->name; row++)
        if (!texts || strcmp(row->name, "tools") != 0) json_object_del(rest, row->name);
    int code = json_members_check(rest, other_members, origin_members, "record", hint, err);
    if (!code)
        code = json_members_check(json_object_get(root, "chat_template_kwargs"), template_arguments, NULL,
                                  "chat_template_kwargs", N_("remove it from the record"), err);
    json_decref(rest);
    return code ? err->code = EXIT_FAILED : 0;
}

/* ---- conversations of other forms ---- */

static int refuse_type(const char *name, const char *expected, struct error *err)
{
    return error_set(err, EXIT_FAILED, NULL, "\"%s\" of a record is not %s", name, _(expected));
}

/* Adds a message; text: a JSON string, which is copied. */
static void add_message(json_t *messages, const char *role, const json_t *text)
{
    json_t *message = json_object();
    json_object_set_new(message, "role", json_string(role));
    json_object_set_new(message, "content", json_copy((json_t *)(uintptr_t)text));
    json_array_append_new(messages, message);
}

/* Adds the system message of a record, which may be null or empty. */
static int add_system(json_t *messages, const json_t *root, struct error *err)
{
    const json_t *system = member(root, "system");
    if (!system) return 0;
    if (!json_is_string(system)) return refuse_type("system", N_("a text"), err);
    if (json_string_length(system)) add_message(messages, "system", system);
    return 0;
}

/* Reads the questions and answers before the instruction: pairs of texts. */
static int add_history(json_t *messages, const json_t *history, struct error *err)
{
    json_t *pair;
    size_t i;
    if (history && !json_is_array(history))
        return refuse_type("history", N_("a list of pairs of texts"), err);
    json_array_foreach((json_t *)(uintptr_t)history, i, pair)
    {
        const json_t *question = json_array_get(pair, 0), *answer = json_array_get(pair, 1);
        if (json_array_size(pair) != 2 || !json_is_string(question) || !json_is_string(answer))
            return refuse_type("history", N_("a list of pairs of texts"), err);
        add_message(messages, "user", question);
        add_message(messages, "assistant", answer);
    }
    return 0;
}

static int read_alpaca(json_t *messages, const json_t *root, struct error *err)
{
    static const char *const names[] = {"instruction", "input", "output"};
    for (int i = 0; i < 3; i++) {
        const json_t *text = member(root, names[i]);
        if (text && !json_is_string(text)) return refuse_type(names[i], N_("a text"), err);
    }
    const json_t *instruction = member(root, "instruction"), *input = member(root, "input"),
                 *output = member(root, "output");
    if (!json_string_length(output))
        return error_set(err, EXIT_FAILED, "remove the record", "\"%s\" is empty: nothing to learn",
                         "output");
    int code = add_system(messages, root, err);
    if (!code) code = add_history(messages, member(root, "history"), err);
    if (code) return code;
    struct text_buffer both = {0};
    text_append(&both, json_string_value(instruction), json_string_length(instruction));
    if (both.count && json_string_length(input)) text_append(&both, "\n", 1);
    if (json_string_length(input)) text_append(&both, json_string_value(input), json_string_length(input));
    json_t *question = json_stringn(both.count ? both.data : "", both.count);
    add_message(messages, "user", question);
    add_message(messages, "assistant", output);
    json_decref(question);
    text_free(&both);
    return 0;
}

/* Gives a message of sharegpt (from, value) the names of messages; one with role and content stays. */
static int read_shared(json_t *messages, size_t i, json_t *shared, struct error *err)
{
    static const char *const roles[][2] = {
        {"human", "user"},        {"user", "user"},       {"gpt", "assistant"},
        {"chatgpt", "assistant"}, {"model", "assistant"}, {"assistant", "assistant"},
        {"system", "system"},     {"tool", "tool"},       {"observation", "tool"}};
    const char *from = json_string_value(json_object_get(shared, "from")), *role = NULL;
    bool named = json_object_get(shared, "role") != NULL;
    for (size_t k = 0; k < sizeof roles / sizeof *roles && from; k++)
        if (strcmp(roles[k][0], from) == 0) role = roles[k][1];
    if (!named && !role)
        return error_set(err, EXIT_FAILED, "supported: human, gpt, system, tool",
                         "message %zu of conversations is from '%.40s'", i, from ? from : "");
    if (!named && member(shared, "content"))
        return error_set(err, EXIT_FAILED, "name the one that is not learnt: --ignore MEMBER",
                         "message %zu of conversations has both value and content", i);
    json_t *message = json_copy(shared), *value = json_object_get(shared, "value");
    if (!named) {
        json_object_set_new(message, "role", json_string(role));
        json_object_set(message, "content", value);
        json_object_del(message, "from");
        json_object_del(message, "value");
    }
    json_array_append_new(messages, message);
    return 0;
}

static int read_sharegpt(json_t *messages, const json_t *root, struct error *err)
{
    json_t *list = member(root, "conversations"), *message;
    size_t i;
    if (!json_array_size(list)) return refuse_type("conversations", N_("a list of messages"), err);
    int code = add_system(messages, root, err);
    bool system = json_array_size(messages);
    json_array_foreach(list, i, message) if (!code) code = read_shared(messages, i, message, err);
    const char *role = json_string_value(json_object_get(json_array_get(messages, 1), "role"));
    if (!code && system && role && strcmp(role, "system") == 0)
        code = error_set(err, EXIT_FAILED, "remove one: --ignore system leaves out that of the record",
                         "a record has \"system\", and its conversation begins with one, too");
    return code;
}

/* Joins the messages of a prompt and its completion, of which the completion's answers alone are learnt. */
static void join_messages(json_t *both, json_t *prompt, json_t *completion)
{
    json_t *message;
    size_t i;
    json_array_foreach(prompt, i, message)
    {
        json_t *copy = json_copy(message);
        const char *role = json_string_value(json_object_get(message, "role"));
        if (role && strcmp(role, "assistant") == 0) json_object_set_new(copy, "train", json_false());
        json_array_append_new(both, copy);
    }
    json_array_extend(both, completion);
}

static int read_completion(struct record_content *c, json_t *prompt, json_t *completion, struct error *err)
{
    c->prompt = prompt;
    c->text = completion;
    if (json_is_string(prompt) && json_is_string(completion))
        return json_string_length(completion) ? 0
                                              : error_set(err, EXIT_FAILED, "remove the record",
                                                          "\"%s\" is empty: nothing to learn", "completion");
    if (!json_array_size(prompt) || !json_array_size(completion))
        return error_set(err, EXIT_FAILED, NULL,
                         "\"prompt\" and \"completion\" are not two texts or two lists of messages");
    join_messages(c->messages = json_array(), prompt, completion);
    return 0;
}

int record_form_read(struct record_content *c, json_t *root, const char *label, struct error *err)
{
    *c = (struct record_content){.form = FORM_TEXT};
    if (label && !json_is_string(json_object_get(root, "text")))
        return error_set(err, EXIT_FAILED, "one object per line, as {\"text\": \"...\", \"label\": \"good\"}",
                         "a record has no \"text\", which --label requires");
    int code = label ? 0 : find_form(root, &c->form, err); /* a class may have the name of any member */
    if (!code) code = check_members(root, c->form, label, err);
    if (code) return code;
    json_t *messages = json_object_get(root, "messages");
    switch (c->form) {
    case FORM_TEXT:
        c->text = json_object_get(root, "text");
        return json_is_string(c->text) ? 0 : refuse_type("text", N_("a text"), err);
    case FORM_COMPLETION:
        return read_completion(c, json_object_get(root, "prompt"), json_object_get(root, "completion"), err);
    case FORM_MESSAGES:
        c->messages = json_incref(messages);
        return json_is_array(messages) ? 0 : refuse_type("messages", N_("a list of messages"), err);
    case FORM_ALPACA: return read_alpaca(c->messages = json_array(), root, err);
    default: return read_sharegpt(c->messages = json_array(), root, err);
    }
}
