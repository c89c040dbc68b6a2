/* Conversations: see conversation.h. */
#include "core/text/conversation.h"
#include "core/base/memory.h"
#include "core/base/json_members.h"
#include "core/text/json_python.h"
#include "core/text/text_internal.h"

#include <stdlib.h>
#include <string.h>

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

/* A conversation that is being written. */
struct writer {
    struct text_record *r;
    const struct chat_template *c;
    const struct conversation *of;
    size_t count, question; /* messages; the number of the last question */
    size_t first;           /* the number of the first message but the system's */
    size_t user, answer; /* the numbers of the last message of the user and the assistant; SIZE_MAX: none */
    struct text_buffer parts; /* content of a list of parts, of the current message */
    json_t *system;           /* a message that is to begin a question; NULL: none */
    bool results;             /* the last message is a result of a tool, in a group that is open */
    bool ask;                 /* an answer follows */
    bool learnt;              /* the current message is an answer that is a label */
};

struct turn {
    enum chat_role kind;
    const char *role, *content, *thought; /* thought: reasoning_content; NULL: none */
    size_t bytes, thought_bytes;
    const json_t *calls;
    bool learnt;        /* an answer that is a label */
    bool answers, last; /* it follows the last question; it is the last message */
    const char *cut;    /* no_thought of the template, if it is to be written */
    size_t number;
};

/* ---- Texts of a turn ---- */

/* Adds a text of the template. */
static void writer_text(struct writer *w, const char *text, const char *role, bool label)
{
    const struct chat_template *c = w->c;
    const struct {
        const char *mark, *text;
    } marks[] = {{"{role}", role},
                 {"{bos}", c->bos},
                 {"{eos}", c->eos},
                 {"{date}", w->of->date ? w->of->date : c->date}};
    for (const char *p = text ? text : ""; *p;) {
        size_t n = 1 + strcspn(p + 1, "{");
        const char *found = NULL;
        for (size_t i = 0; i < sizeof marks / sizeof *marks && !found; i++)
            if (strncmp(p, marks[i].mark, strlen(marks[i].mark)) == 0) {
                found = marks[i].text ? marks[i].text : "";
                n = strlen(marks[i].mark);
            }
        text_record_add(w->r, found ? found : p, found ? strlen(found) : n, label);
        p += n;
    }
}

/* As Python's lstrip(), rstrip() and strip(). Text that is not UTF-8, which is refused later, stays. */
static bool is_space(const char *text)
{
    uint32_t p;
    utf8_read(text, &p);
    return point_is_space(p) || (p >= 0x1C && p <= 0x1F);
}

static void trim_left(const char **text, size_t *bytes)
{
    uint32_t p;
    if (utf8_invalid(*text, *bytes) < *bytes) return;
    while (*bytes && is_space(*text)) {
        size_t n = utf8_read(*text, &p);
        *text += n;
        *bytes -= n;
    }
}

static void trim_right(const char *const *text, size_t *bytes)
{
    if (utf8_invalid(*text, *bytes) < *bytes) return;
    while (*bytes) {
        size_t at = *bytes - 1;
        while (((uint8_t)(*text)[at] & 0xC0) == 0x80) at--;
        if (!is_space(*text + at)) break;
        *bytes = at;
    }
}

static void text_strip(const char **text, size_t *bytes)
{
    trim_left(text, bytes);
    trim_right((const char *const *)text, bytes);
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

/* Refuses a message because of `what` it has. */
static int writer_refuse(const struct writer *w, size_t number, const char *what, struct error *err)
{
    return error_set(err, EXIT_FAILED, "remove the record, or write it into the texts of the messages",
                     "message %zu: %s, which template %s does not write", number, what, w->c->name);
}

/* ---- thoughts ---- */

/* Cuts the content after the last end of a thought. Returns whether it has one. */
static bool cut_thought(struct turn *t)
{
    const char *end = t->content + t->bytes, *after = after_last(t->content, t->bytes, "</think>");
    if (!after) return false;
    t->content = after;
    t->bytes = (size_t)(end - after);
    return true;
}

/* Leaves the thought of an answer out where the template does so. */
static void cut_answer(const struct writer *w, struct turn *t)
{
    const struct chat_template *c = w->c;
    const bool cuts[] = {true, w->user != SIZE_MAX && t->number < w->user, !t->last, t->number != w->answer};
    if (c->thoughts != THOUGHTS_CUT) return;
    bool keeps = !cuts[c->cut] && after_last(t->content, t->bytes, "</think>"),
         cut = cuts[c->cut] && cut_thought(t);
    if (cuts[c->cut] && c->cut_trim == CUT_LINES) trim_lines(&t->content, &t->bytes, false);
    if (cut && c->cut_trim == CUT_SPACE) text_strip(&t->content, &t->bytes);
    if (keeps && c->no_thought) trim_left(&t->content, &t->bytes);
    if (!keeps) t->cut = c->no_thought;
}

/* Returns the thought in front of its end, without its begin. */
static const char *thought_before(const struct turn *t, const char *close, size_t *length)
{
    size_t n = (size_t)(close - t->content);
    const char *open = after_last(t->content, n, "<think>"), *thought = open ? open : t->content;
    *length = (size_t)(close - thought);
    return thought;
}

/* Takes the thought from the answer, and writes it where the template keeps it: a given one in one form, as a
 * label, or an empty one. */
static void add_thought(struct writer *w, struct turn *t)
{
    const char *close = t->thought ? NULL : memmem(t->content, t->bytes, "</think>", 8),
               *thought = t->thought;
    size_t length = t->thought_bytes;
    bool after = w->c->thoughts == THOUGHTS_AFTER, always = w->c->thoughts == THOUGHTS_ALWAYS,
         trims = w->c->trims & 1U << CHAT_ANSWER;
    if (close) {
        thought = thought_before(t, close, &length);
        trim_lines(&thought, &length, true);
        (void)cut_thought(t);
        trim_lines(&t->content, &t->bytes, false);
    }
    bool later = w->c->thoughts == THOUGHTS_LATER;
    if (!always && (!t->answers || (later && !length) || (!after && !t->last && !length))) return;
    bool label = t->learnt && (close || length || always);
    if (trims) text_strip(&thought, &length);
    else trim_lines(&thought, &length, true);
    writer_text(w, "<think>\n", NULL, label);
    text_record_add(w->r, thought, length, label);
    writer_text(w, "\n</think>\n\n", NULL, label);
    if (!trims) trim_lines(&t->content, &t->bytes, false);
}

/* Writes a thought that is given, in its one form. */
static void add_given(struct writer *w, struct turn *t)
{
    const char *close = memmem(t->content, t->bytes, "</think>", 8), *thought = t->thought;
    size_t length = t->thought_bytes;
    if (!length && close && memmem(t->content, t->bytes, "<think>", 7)) {
        const char *end = t->content + t->bytes;
        thought = thought_before(t, close, &length);
        t->content = close + 8;
        t->bytes = (size_t)(end - t->content);
    }
    if (length) {
        text_strip(&thought, &length);
        writer_text(w, "<think>\n", NULL, t->learnt);
        text_record_add(w->r, thought, length, t->learnt);
        writer_text(w, "\n</think>\n", NULL, t->learnt);
    }
    trim_left(&t->content, &t->bytes);
}

/* ---- turns ---- */

static int add_calls(struct writer *w, const struct turn *t, bool content, struct error *err)
{
    static const struct json_member members[] = {
        {"name", NULL},     {"arguments", NULL}, {"id", NULL}, {"type", "\"function\""},
        {"function", NULL}, {"index", NULL},     {0}};
    const struct chat_tools *tools = w->c->tools;
    const json_t *call;
    size_t i;
    if (!json_array_size(t->calls)) return 0;
    if (tools->single && (json_array_size(t->calls) != 1 || content))
        return writer_refuse(w, t->number, N_("an answer with a content or several calls"), err);
    writer_text(w, tools->calls, NULL, t->learnt);
    json_array_foreach(t->calls, i, call)
    {
        json_t *function = json_object_get(call, "function"),
               *from = function ? function : (json_t *)(uintptr_t)call,
               *arguments = json_object_get(from, "arguments");
        const char *name = json_string_value(json_object_get(from, "name"));
        if (json_members_check(call, members, NULL, "tool_calls", N_("remove it"), err) ||
            json_members_check(function, members, NULL, "tool_calls", N_("remove it"), err))
            return err->code = EXIT_FAILED;
        if (!name || !(json_is_object(arguments) || (json_is_string(arguments) && tools->texts)))
            return error_set(
                err, EXIT_FAILED, "write {\"function\": {\"name\": \"...\", \"arguments\": {...}}}",
                "message %zu: call %zu has no name, or arguments that are no object", t->number, i);
        if (i || content) writer_text(w, tools->gap, NULL, t->learnt);
        writer_text(w, tools->call[0], NULL, t->learnt);
        text_record_add(w->r, name, strlen(name), t->learnt);
        writer_text(w, tools->call[1], NULL, t->learnt);
        struct text_buffer json = {0};
        bool written = json_is_string(arguments) || json_python(&json, arguments, 0);
        if (json_is_string(arguments))
            text_append(&json, json_string_value(arguments), json_string_length(arguments));
        text_record_add(w->r, json.data, json.count, t->learnt);
        text_free(&json);
        if (!written) return writer_refuse(w, t->number, N_("a number has more than 18 digits"), err);
        writer_text(w, tools->call[2], NULL, t->learnt);
    }
    writer_text(w, tools->calls_end, NULL, t->learnt);
    return 0;
}

/* Adds the list of tools to a system message. */
static int add_tools(struct writer *w, bool joint, struct error *err)
{
    const struct chat_tools *tools = w->c->tools;
    const json_t *tool;
    size_t i;
    if (joint) writer_text(w, tools->joint, NULL, false);
    writer_text(w, tools->before, NULL, false);
    json_array_foreach(w->of->tools, i, tool)
    {
        struct text_buffer json = {0};
        bool written = json_is_object(tool) && json_python(&json, tool, tools->indent);
        writer_text(w, i ? tools->each : tools->first, NULL, false);
        if (written) text_record_add(w->r, json.data, json.count, false);
        text_free(&json);
        if (!written)
            return error_set(err, EXIT_FAILED, "write each as an object, with numbers of at most 18 digits",
                             "tools: %zu is no object, or has a number of more digits", i);
    }
    writer_text(w, tools->end, NULL, false);
    return 0;
}

/* Writes the system message at the beginning, which has the tools. content NULL: there is none. */
static int writer_system(struct writer *w, const char *content, size_t bytes, struct error *err)
{
    const struct chat_turn *turn = &w->c->turns[CHAT_SYSTEM];
    bool tools = json_array_size(w->of->tools) > 0;
    const char *text = content;
    size_t length = bytes;
    if (content && w->c->trims_right & 1U << CHAT_SYSTEM) trim_right(&text, &length);
    if (!length && w->c->drops_system) {
        content = w->c->system;
        bytes = content ? strlen(content) : 0;
    }
    if (!content && !tools) return 0;
    if (w->c->trims & 1U << CHAT_SYSTEM) text_strip(&content, &bytes);
    if (w->c->trims_right & 1U << CHAT_SYSTEM) trim_right(&content, &bytes);
    writer_text(w, turn->before, "system", false);
    writer_text(w, turn->lead, NULL, false);
    bool asked = tools && w->c->tools->asked;
    if (asked) writer_text(w, w->c->tools->preface, NULL, false);
    writer_text(w, w->c->preface, NULL, false);
    text_record_add(w->r, content, bytes, false);
    int code = tools && !asked ? add_tools(w, content || w->c->tools->joint_always, err) : 0;
    writer_text(w, turn->end, NULL, false);
    writer_text(w, turn->between, NULL, false);
    return code;
}

/* Writes a turn. joined: the system message that begins it; NULL: none. */
static int writer_turn(struct writer *w, struct turn t, const char *joined, size_t joined_bytes,
                       struct error *err)
{
    const struct chat_template *c = w->c;
    const struct chat_turn *turn = &c->turns[t.kind], *system = &c->turns[CHAT_SYSTEM];
    bool answer = t.kind == CHAT_ANSWER;
    if (t.kind == CHAT_SYSTEM && !t.bytes && c->drops_later) return 0;
    if (answer) cut_answer(w, &t);
    if (answer && c->thoughts == THOUGHTS_LINES) trim_lines(&t.content, &t.bytes, false);
    if (c->trims & 1U << t.kind && !(joined && c->joins_whole)) text_strip(&t.content, &t.bytes);
    if (c->trims_right & 1U << t.kind) trim_right(&t.content, &t.bytes);
    writer_text(w, turn->before, t.role, false);
    if (joined) {
        writer_text(w, system->before, "system", false);
        text_record_add(w->r, joined, joined_bytes, false);
        writer_text(w, system->end, NULL, false);
    }
    int code = 0;
    if (c->tools && c->tools->asked && json_array_size(w->of->tools) && t.number == w->first) {
        if (t.kind != CHAT_USER) return writer_refuse(w, t.number, N_("tools before an answer"), err);
        code = add_tools(w, false, err);
    }
    writer_text(w, t.cut, NULL, t.learnt);
    writer_text(w, turn->lead, t.role, t.learnt);
    bool content = t.bytes > 0;
    if (answer && (c->thoughts == THOUGHTS_LAST || c->thoughts == THOUGHTS_AFTER ||
                   c->thoughts == THOUGHTS_ALWAYS || c->thoughts == THOUGHTS_LATER))
        add_thought(w, &t);
    if (answer && c->thoughts == THOUGHTS_GIVEN) add_given(w, &t);
    text_record_add(w->r, t.content, t.bytes, t.learnt);
    if (answer && !code) code = add_calls(w, &t, content, err);
    writer_text(w, turn->end, t.role, t.learnt);
    writer_text(w, turn->between, t.role, t.learnt && turn->between && strcmp(turn->between, "\n") == 0);
    return code;
}

/* Writes a result of a tool, and what begins or ends its group. */
static void writer_result(struct writer *w, const struct turn *t)
{
    const struct chat_tools *tools = w->c->tools;
    const json_t *next = json_array_get(w->of->messages, t->number + 1);
    const char *role = json_string_value(json_object_get(next, "role"));
    bool ends = tools->apart || !role || strcmp(role, "tool") != 0;
    if (!w->results) writer_text(w, tools->result[0], NULL, false);
    writer_text(w, tools->result[1], NULL, false);
    struct text_buffer json = {0};
    json_t *content = tools->quoted ? json_stringn_nocheck(t->content, t->bytes) : NULL;
    if (content) (void)json_python(&json, content, 0);
    else text_append(&json, t->content, t->bytes);
    text_record_add(w->r, json.data, json.count, false);
    text_free(&json);
    json_decref(content);
    writer_text(w, tools->result[2], NULL, false);
    if (ends) writer_text(w, tools->result[3], NULL, false);
    w->results = !ends;
}

/* ---- Messages ---- */

/* Reads a content: a text, or a list of texts where the template joins them. */
static int read_content(struct writer *w, const json_t *message, struct turn *t, struct error *err)
{
    static const struct json_member members[] = {{"type", "\"text\""}, {"text", NULL}, {0}};
    json_t *content = json_object_get(message, "content"), *part;
    size_t i;
    const struct chat_template *c = w->c;
    bool lists = c->parts == PARTS_ONLY || c->parts == PARTS_ONE,
         one = c->parts == PARTS_ONE || c->parts == PARTS_TRIMMED || c->parts == PARTS_SINGLE;
    t->content = json_string_value(content);
    t->bytes = json_string_length(content);
    if (t->content && lists) return writer_refuse(w, t->number, N_("content is no list of parts"), err);
    if (t->content) return 0;
    if (json_is_null(content) && json_array_size(t->calls)) {
        t->content = "";
        return 0;
    }
    if (!json_is_array(content))
        return error_set(err, EXIT_FAILED, "write the message as text", "message %zu: content is no string",
                         t->number);
    if (c->parts == PARTS_NONE) return writer_refuse(w, t->number, N_("content is a list of parts"), err);
    bool trims = c->trims & 1U << t->kind;
    if (one && (t->kind == CHAT_SYSTEM || c->parts == PARTS_ONE) && json_array_size(content) != 1)
        return writer_refuse(w, t->number, N_("content is a list of more than one part"), err);
    w->parts.count = 0;
    json_array_foreach(content, i, part)
    {
        json_t *value = json_object_get(part, "text");
        const char *text = json_string_value(value);
        size_t bytes = json_string_length(value);
        if (json_members_check(part, members, NULL, "content", N_("supported: parts that are texts"), err))
            return err->code = EXIT_FAILED;
        if (!text || !json_object_get(part, "type"))
            return error_set(err, EXIT_FAILED, "supported: parts that are texts",
                             "message %zu: part %zu of content is no text", t->number, i);
        if (c->parts == PARTS_TRIMMED && trims) text_strip(&text, &bytes);
        text_append(&w->parts, text, bytes);
    }
    t->content = w->parts.count ? w->parts.data : "";
    t->bytes = w->parts.count;
    return 0;
}

/* Returns the number of the last question, no result of a tool; if there is none, the number of messages. */
static size_t last_question(const struct chat_template *c, const json_t *messages)
{
    static const char begin[] = "<tool_response>", end[] = "</tool_response>";
    size_t b = sizeof begin - 1, e = sizeof end - 1, i = json_array_size(messages), k;
    bool found = false;
    while (!found && i-- > 0) {
        const json_t *message = json_array_get(messages, i), *content = json_object_get(message, "content"),
                     *part;
        const char *role = json_string_value(json_object_get(message, "role")), *text;
        struct text_buffer joined = {0};
        text_append(&joined, json_string_value(content), json_string_length(content));
        json_array_foreach(content, k, part)
        {
            const json_t *value = json_object_get(part, "text");
            text_append(&joined, json_string_value(value), json_string_length(value));
        }
        size_t n = joined.count;
        text = joined.data;
        if (c->trims & 1U << CHAT_USER) text_strip(&text, &n);
        bool tool = n >= b && n >= e && memcmp(text, begin, b) == 0 && memcmp(text + n - e, end, e) == 0;
        found = role && strcmp(role, "user") == 0 && !tool;
        text_free(&joined);
    }
    return found ? i : json_array_size(messages);
}

/* Reads whether an answer is learnt: "weight": 0 (OpenAI) or "train": false takes its labels away. */
static int read_learnt(struct turn *t, const json_t *message, struct error *err)
{
    json_t *weight = json_object_get(message, "weight"), *train = json_object_get(message, "train");
    bool answer = t->kind == CHAT_ANSWER, set = !json_is_null(weight) && weight,
         chosen = !json_is_null(train) && train;
    double value = set ? json_number_value(weight) : answer;
    if ((set && (!json_is_number(weight) || (value != 0 && value != 1))) ||
        (chosen && !json_is_boolean(train)))
        return error_set(err, EXIT_FAILED, "an answer is learnt as a whole or not: \"weight\": 0 or 1",
                         "message %zu: %s is neither 0 nor 1, nor true or false", t->number,
                         set ? "weight" : "train");
    if (!answer && ((set && value != 0) || json_is_true(train)))
        return error_set(err, EXIT_FAILED, "write the texts to learn as answers of the assistant",
                         "message %zu: %s is set, but only the assistant's are learnt", t->number,
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
    {"tool_calls", NULL}, {"tool_call_id", NULL}, {"function_call", NONE},
    {"refusal", NONE},    {"audio", NONE},        {0}};

static int read_role(const struct writer *w, struct turn *t, const json_t *message, struct error *err)
{
    static const struct {
        const char *name;
        enum chat_role kind;
    } roles[] = {{"system", CHAT_SYSTEM},
                 {"user", CHAT_USER},
                 {"assistant", CHAT_ANSWER},
                 {"tool", CHAT_OTHER},
                 {"developer", CHAT_OTHER}};
    size_t i = 0;
    t->role = json_string_value(json_object_get(message, "role"));
    while (i < 5 && !(t->role && strcmp(roles[i].name, t->role) == 0)) i++;
    t->kind = i < 5 ? roles[i].kind : CHAT_OTHER;
    bool result = i == 3 && w->c->tools && w->c->tools->result[0];
    if (i < 5 && (w->c->turns[t->kind].before || result)) return 0;
    if (t->kind == CHAT_OTHER)
        return error_set(err, EXIT_FAILED,
                         w->c->tools ? "supported: system, user, assistant, tool"
                                     : "supported: system, user, assistant",
                         "message %zu has the role '%.40s'", t->number, t->role ? t->role : "");
    char what[64];
    snprintf(what, sizeof what, _("role %s"), t->role);
    return writer_refuse(w, t->number, what, err);
}

/* Checks a message's place among the others. */
static int check_place(const struct writer *w, const struct turn *t, struct error *err)
{
    const struct chat_template *c = w->c;
    const json_t *first = json_array_get(w->of->messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    size_t at = t->number - (role && strcmp(role, "system") == 0);
    bool alternates = c->order == ORDER_ALTERNATES && t->kind != CHAT_SYSTEM;
    if (t->kind == CHAT_SYSTEM && t->number && c->place != SYSTEM_TURN)
        return error_set(err, EXIT_FAILED, "begin the conversation with it",
                         "message %zu is the system's, which template %s permits first only", t->number,
                         c->name);
    if (alternates && (t->kind == CHAT_USER) != (at % 2 == 0))
        return error_set(err, EXIT_FAILED, "remove the record, or join the messages of one role",
                         "message %zu has the role '%.40s', where template %s has user and assistant in turn",
                         t->number, t->role, c->name);
    const json_t *before = t->number ? json_array_get(w->of->messages, t->number - 1) : NULL;
    role = json_string_value(json_object_get(before, "role"));
    if (c->order == ORDER_ANSWERS && t->kind == CHAT_ANSWER && !(role && strcmp(role, "user") == 0))
        return error_set(err, EXIT_FAILED, "remove the record, or join the messages of one role",
                         "message %zu has the role '%.40s', which template %s permits after the user's only",
                         t->number, t->role, c->name);
    bool all = !c->refuses_in || c->refuses_in & 1U << t->kind;
    for (const char *p = c->refuses && all ? c->refuses : ""; *p; p += strspn(p, " ")) {
        size_t n = strcspn(p, " ");
        if (memmem(t->content, t->bytes, p, n))
            return error_set(err, EXIT_FAILED, "remove it from the text",
                             "message %zu has %.*s, which template %s does not take as text", t->number,
                             (int)n, p, c->name);
        p += n;
    }
    bool open = memmem(t->content, t->bytes, "<think>", 7),
         close = memmem(t->content, t->bytes, "</think>", 8);
    if (c->no_thought && t->kind == CHAT_ANSWER && open != close)
        return writer_refuse(w, t->number, N_("a thought without its begin or end"), err);
    if (t->thought_bytes &&
        (t->kind != CHAT_ANSWER || c->thoughts <= THOUGHTS_LINES || c->thoughts == THOUGHTS_CUT))
        return error_set(err, EXIT_FAILED, "remove it, or write it into content",
                         "message %zu has reasoning_content, which template %s does not write", t->number,
                         c->name);
    if (json_array_size(t->calls) && (t->kind != CHAT_ANSWER || !c->tools || !c->tools->call[0]))
        return writer_refuse(w, t->number, "tool_calls", err);
    return 0;
}

static int read_message(struct writer *w, size_t i, struct error *err)
{
    const struct chat_template *c = w->c;
    json_t *message = json_array_get(w->of->messages, i),
           *thought = json_object_get(message, "reasoning_content"),
           *calls = json_object_get(message, "tool_calls");
    struct turn t = {.thought = json_string_value(thought),
                     .thought_bytes = json_string_length(thought),
                     .calls = calls,
                     .answers = i > w->question,
                     .last = i + 1 == w->count,
                     .number = i};
    char what[32];
    int code = read_role(w, &t, message, err);
    if (code) return code;
    snprintf(what, sizeof what, "message %zu", i);
    if (json_members_check(message, message_members, NULL, what,
                           N_("write it into content, or leave it out: --ignore MEMBER"), err))
        return err->code = EXIT_FAILED;
    if (calls && !json_is_array(calls) && !json_is_null(calls))
        return error_set(err, EXIT_FAILED, "write an array of calls", "message %zu: tool_calls is no array",
                         i);
    if ((code = read_content(w, message, &t, err)) || (code = check_place(w, &t, err)) ||
        (code = read_learnt(&t, message, err)))
        return code;
    w->learnt = t.learnt;
    bool joins = c->place == SYSTEM_JOINED || c->place == SYSTEM_ASKED;
    if (i == 0 && t.kind == CHAT_SYSTEM && joins) {
        w->system = message;
        return 0;
    }
    if (i == 0 && t.kind == CHAT_SYSTEM) return writer_system(w, t.content, t.bytes, err);
    if (t.kind == CHAT_OTHER && strcmp(t.role, "tool") == 0 && c->tools) {
        writer_result(w, &t);
        return 0;
    }
    if (!w->system || (c->place == SYSTEM_ASKED && !(t.last && w->ask)))
        return writer_turn(w, t, NULL, 0, err);
    /* the system message begins this question */
    struct turn first = {.kind = CHAT_SYSTEM};
    char *content = xmalloc(t.bytes + 1); /* the buffer of parts is used again */
    memcpy(content, t.content, t.bytes);
    t.content = content;
    code = read_content(w, w->system, &first, err);
    if (!code && t.kind != CHAT_USER)
        code = writer_refuse(w, 0, N_("a system message before an answer"), err);
    if (c->trims & 1U << CHAT_SYSTEM) text_strip(&first.content, &first.bytes);
    if (!code) code = writer_turn(w, t, first.content, first.bytes, err);
    w->system = NULL;
    free(content);
    return code;
}

static int write_messages(struct writer *w, struct error *err)
{
    const struct chat_template *c = w->c;
    const json_t *first = json_array_get(w->of->messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    bool system = role && strcmp(role, "system") == 0, tools = json_array_size(w->of->tools) > 0;
    int code = 0;
    if (w->question == w->count && c->asks)
        return error_set(err, EXIT_FAILED, "remove the record",
                         "no message is a question of the user, which template %s requires", c->name);
    if (w->question == w->count) w->question = w->count - 1;
    if (tools && !(c->tools && c->tools->before))
        return error_set(err, EXIT_FAILED, "remove the record, or write them into a system message",
                         "the record has tools, which template %s does not write", c->name);
    if (!system && c->dated)
        return error_set(err, EXIT_FAILED, "begin the conversation with a system message",
                         "template %s writes a system message with the date of the day", c->name);
    w->first = system;
    writer_text(w, c->begin, NULL, false);
    if (!system) code = writer_system(w, c->system, c->system ? strlen(c->system) : 0, err);
    for (size_t i = 0; i < w->count && !code; i++) code = read_message(w, i, err);
    if (!code && w->system)
        code = writer_refuse(w, 0,
                             w->ask ? N_("a system message without a question")
                                    : N_("the system message of a conversation with its answer"),
                             err);
    return code;
}

static size_t last_of(const json_t *messages, const char *kind)
{
    size_t i = json_array_size(messages);
    while (i-- > 0) {
        const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));
        if (role && strcmp(role, kind) == 0) return i;
    }
    return SIZE_MAX;
}

int conversation_read(struct text_record *r, const struct chat_template *c, const struct conversation *of,
                      struct error *err)
{
    struct writer w = {.r = r,
                       .c = c,
                       .of = of,
                       .count = json_array_size(of->messages),
                       .question = last_question(c, of->messages),
                       .user = last_of(of->messages, "user"),
                       .answer = last_of(of->messages, "assistant")};
    int code = write_messages(&w, err);
    if (!code) writer_text(&w, c->finish, NULL, w.learnt);
    text_free(&w.parts);
    return code;
}

int conversation_ask(struct text_record *r, const struct chat_template *c, const json_t *messages,
                     struct error *err)
{
    const struct conversation of = {.messages = messages};
    struct writer w = {.r = r,
                       .c = c,
                       .of = &of,
                       .count = json_array_size(messages),
                       .question = last_question(c, messages),
                       .user = last_of(messages, "user"),
                       .answer = last_of(messages, "assistant"),
                       .ask = true};
    const json_t *last = json_array_get(messages, w.count - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    r->text.count = 0;
    r->count = 0;
    r->plain = false;
    if (!role || strcmp(role, "assistant") == 0)
        return error_set(err, EXIT_FAILED, "end with a message of the user",
                         "no message is there that an answer follows");
    int code = write_messages(&w, err);
    if (!code) writer_text(&w, c->turns[CHAT_ANSWER].before, "assistant", false);
    if (!code) writer_text(&w, c->opens, NULL, false);
    text_free(&w.parts);
    return code;
}
