/* Texts of conversations: see conversation_internal.h. */
#include "core/base/file.h"
#include "core/base/json_members.h"
#include "core/text/conversation_internal.h"
#include "core/text/json_python.h"
#include "core/text/text_internal.h"

#include <stdlib.h>
#include <string.h>

void writer_text(struct writer *w, const char *text, const char *role, bool label)
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

void text_strip(const char **text, size_t *bytes)
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

int writer_refuse(const struct writer *w, size_t number, const char *what, struct error *err)
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

int writer_system(struct writer *w, const char *content, size_t bytes, struct error *err)
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

int writer_turn(struct writer *w, struct turn t, const char *joined, size_t joined_bytes, struct error *err)
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

void writer_result(struct writer *w, const struct turn *t)
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
