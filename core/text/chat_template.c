/* Chat templates: see chat_template.h. The table is in chat_rows.c. */
#include "core/text/chat_template.h"
#include "core/base/crc32c.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/json_members.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 1 << 20 };

const struct chat_template *chat_template_named(const char *name)
{
    for (const struct chat_template *c = chat_templates; c->name; c++)
        if (strcmp(c->name, name) == 0) return c;
    return NULL;
}

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* Returns whether the text has one of Jinja's three marks there: {%- {{- {#-, or -%} -}} -#}. */
static bool is_mark(const char *p, bool opens)
{
    return opens ? p[0] == '{' && p[1] && strchr("%{#", p[1]) && p[2] == '-'
                 : p[0] == '-' && p[1] && strchr("%}#", p[1]) && p[2] == '}';
}

uint64_t chat_template_checksum(const char *jinja)
{
    char *text = xmalloc(strlen(jinja) + 1);
    size_t n = 0;
    for (const char *p = jinja; *p;) {
        const char *next = p;
        while (is_space(*next)) next++;
        bool unseen = next > p && (is_mark(next, true) || (n >= 3 && is_mark(text + n - 3, false)));
        if (unseen) p = next;
        else if (next > p)
            for (; p < next; p++) n += (text[n] = *p) != '\r';
        else text[n++] = *p++;
    }
    n -= n && text[n - 1] == '\n';
    uint64_t sum = (uint64_t)crc32c(0, text, n) << 32 | (uint32_t)n;
    free(text);
    return sum;
}

bool chat_template_like(struct chat_template *chat, const char *jinja)
{
    uint64_t sum = chat_template_checksum(jinja);
    const struct chat_published *p = chat_published;
    while (p->row && p->checksum != sum) p++;
    if (!p->row) return false;
    *chat = *chat_template_named(p->row);
    if (p->opens) chat->opens = p->opens;
    return true;
}

bool chat_template_has(const struct chat_template *c, const char *mark)
{
    const char *const texts[] = {c->begin, c->system, c->preface, c->opens, c->finish, c->no_thought};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i] && strstr(texts[i], mark)) return true;
    for (int i = 0; i < CHAT_ROLES; i++) {
        const struct chat_turn *t = &c->turns[i];
        const char *const parts[] = {t->before, t->end, t->between, t->lead};
        for (int k = 0; k < 4; k++)
            if (parts[k] && strstr(parts[k], mark)) return true;
    }
    return false;
}

/* ---- a template of one's own ---- */

#define ANY(name)                                                                                            \
    {                                                                                                        \
        name, NULL                                                                                           \
    }
#define FLAG(name)                                                                                           \
    {                                                                                                        \
        name, "true|false"                                                                                   \
    }
#define PLACES   "\"turn\"|\"first\"|\"joined\"|\"none\""
#define THOUGHTS "\"stay\"|\"cut\""
static const struct json_member file_members[] = {
    ANY("begin"),  ANY("system"),      ANY("user"),         ANY("assistant"),       ANY("other"),
    ANY("tokens"), ANY("default"),     ANY("opens"),        ANY("finish"),          {"place", PLACES},
    FLAG("trims"), FLAG("alternates"), FLAG("drops_empty"), {"thoughts", THOUGHTS}, {0}};
static const struct json_member turn_members[] = {
    ANY("before"), ANY("lead"), ANY("end"), ANY("between"), {0}};

static int read_text(const char **text, const json_t *object, const char *key, const char *what,
                     struct error *err)
{
    json_t *value = json_object_get(object, key);
    *text = json_string_value(value);
    if (*text ? strlen(*text) == json_string_length(value) : !value || json_is_null(value)) return 0;
    return error_set(err, EXIT_CONFIG, N_("a text without zero bytes"), "%s: %s is no text", what, key);
}

static int read_turn(struct chat_turn *t, const json_t *root, const char *role, struct error *err)
{
    json_t *turn = json_object_get(root, role);
    if (!turn || json_is_null(turn)) return 0;
    if (!json_is_object(turn))
        return error_set(err, EXIT_CONFIG, N_("write {\"before\": ..., \"end\": ...}"),
                         "%s is no object with the parts of a turn", role);
    int code = json_members_check(turn, turn_members, NULL, role, N_("remove it"), err);
    if (!code) code = read_text(&t->before, turn, "before", role, err);
    if (!code) code = read_text(&t->lead, turn, "lead", role, err);
    if (!code) code = read_text(&t->end, turn, "end", role, err);
    if (!code) code = read_text(&t->between, turn, "between", role, err);
    if (!t->before) t->before = "";
    return code;
}

static int read_members(struct chat_template *c, const json_t *root, struct error *err)
{
    static const char *const roles[CHAT_ROLES] = {"system", "user", "assistant", "other"};
    static const char *const places[] = {"turn", "first", "joined"};
    const struct {
        const char *key, **text;
    } texts[] = {{"begin", &c->begin},
                 {"tokens", &c->tokens},
                 {"default", &c->system},
                 {"opens", &c->opens},
                 {"finish", &c->finish}};
    int code = json_members_check(root, file_members, NULL, "template", N_("see meopt-tokenize(1)"), err);
    for (size_t i = 0; i < sizeof texts / sizeof *texts && !code; i++)
        code = read_text(texts[i].text, root, texts[i].key, "template", err);
    for (int i = 0; i < CHAT_ROLES && !code; i++) code = read_turn(&c->turns[i], root, roles[i], err);
    const char *place = json_string_value(json_object_get(root, "place")),
               *thoughts = json_string_value(json_object_get(root, "thoughts"));
    c->place = c->turns[CHAT_SYSTEM].before ? SYSTEM_TURN : SYSTEM_NONE;
    if (place && strcmp(place, "none") == 0) c->place = SYSTEM_NONE;
    for (int i = 0; i < 3; i++)
        if (place && strcmp(place, places[i]) == 0) c->place = (enum chat_system)i;
    if (thoughts && strcmp(thoughts, "cut") == 0) c->thoughts = THOUGHTS_CUT;
    c->trims = json_is_true(json_object_get(root, "trims")) ? CHAT_TRIMS : 0;
    c->order = json_is_true(json_object_get(root, "alternates")) ? ORDER_ALTERNATES : ORDER_ANY;
    c->drops_system = json_is_true(json_object_get(root, "drops_empty"));
    if (!code && c->system && c->place == SYSTEM_JOINED)
        return error_set(err, EXIT_CONFIG, N_("write it into before of user"),
                         "template: default is not written where a system message is joined");
    if (code || (c->turns[CHAT_USER].before && c->turns[CHAT_ANSWER].before)) return code;
    return error_set(err, EXIT_CONFIG, N_("see meopt-tokenize(1)"),
                     "template: user and assistant are required");
}

int chat_template_read(struct chat_template *c, json_t **root, const char *path, struct error *err)
{
    char *text;
    size_t bytes;
    json_error_t why;
    *c = (struct chat_template){0};
    *root = NULL;
    int code = file_read(path, MOST_BYTES, &text, &bytes, err);
    if (code) return code;
    uint64_t sum = (uint64_t)crc32c(0, text, bytes) << 32 | (uint32_t)bytes;
    *root = json_parse(text, bytes, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (!json_is_object(*root))
        code =
            error_set(err, EXIT_CONFIG, N_("one object with the parts of a template, see meopt-tokenize(1)"),
                      "is no JSON object: %.200s", *root ? "" : why.text);
    if (!code) code = read_members(c, *root, err);
    if (code) return error_at(err, path, 0, 0);
    char *name = xasprintf("own-%016llx", (unsigned long long)sum);
    json_object_set_new(*root, "name", json_string(name));
    free(name);
    c->name = json_string_value(json_object_get(*root, "name"));
    return 0;
}
