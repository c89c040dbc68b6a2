/* The files next to a tokenizer.json: see tokenizer_settings.h. */
#include "core/text/tokenizer_settings.h"
#include "core/base/file.h"
#include "core/base/json.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_SETTINGS = 16 << 20 };

/* Reads a JSON object of the directory; *root NULL: the file is absent. */
static int read_object(json_t **root, const char *directory, const char *name, struct error *err)
{
    char *path = path_join(directory, name);
    int code = 0;
    *root = NULL;
    if (!file_absent(path)) {
        *root = json_read(path, MOST_SETTINGS, err);
        if (!*root) code = err->code;
    }
    free(path);
    return code;
}

/* Reads the Jinja template, malloc'ed; NULL: none. A model with several names the usual one "default". *file:
 * the name of the file that has it. */
static int read_jinja(char **jinja, const char **file, const char *directory, json_t *config,
                      struct error *err)
{
    json_t *at = json_object_get(config, "chat_template"), *entry;
    char *path = path_join(directory, *file = "chat_template.jinja");
    size_t bytes, i;
    int code = 0;
    *jinja = NULL;
    if (!file_absent(path)) code = file_read(path, MOST_SETTINGS, jinja, &bytes, err);
    free(path);
    if (code || *jinja) return code;
    *file = "tokenizer_config.json";
    if (json_is_array(at)) {
        json_t *rows = at;
        at = NULL;
        json_array_foreach(rows, i, entry)
        {
            const char *name = json_string_value(json_object_get(entry, "name"));
            if (name && strcmp(name, "default") == 0) at = json_object_get(entry, "template");
        }
    }
    if (json_is_string(at)) *jinja = xstrdup(json_string_value(at));
    return 0;
}

static void add_end(struct tokenizer_settings *s, int64_t id)
{
    for (int i = 0; i < s->end_count; i++)
        if (s->ends[i] == id) return;
    if (id >= 0 && id <= INT32_MAX && s->end_count < TOKENIZER_ENDS) s->ends[s->end_count++] = (int32_t)id;
}

/* Sets the template by its name, or of the published text, or the reason why there is none. */
static int choose_template(struct tokenizer_settings *s, const char *jinja, const char *file,
                           const char *name, const struct tokenizer *tokenizer, struct error *err)
{
    const struct chat_template *row = name    ? chat_template_named(name)
                                      : jinja ? chat_template_like(jinja)
                                              : NULL;
    char hint[sizeof err->hint];
    if (row) s->chat = *row;
    snprintf(hint, sizeof hint, _("if its turns are those of one of these: --template %s"),
             CHAT_TEMPLATE_NAMES);
    if (!row) {
        if (jinja)
            error_set(&s->no_chat, EXIT_FAILED, hint,
                      "the chat template of the tokenizer's %s is no published one that is known", file);
        else
            error_set(&s->no_chat, EXIT_FAILED, "give --template, or the tokenizer of a chat model",
                      "messages require a chat template, and the tokenizer has none");
        return 0;
    }
    if (!s->chat.begin) s->chat.begin = s->bos;
    else if (s->chat.begin[0] && s->bos) s->chat.begin = s->bos;
    const char *const tokens[] = {s->chat.begin, s->chat.before, s->chat.end};
    for (int i = 0; i < 3; i++) {
        if (tokens[i] && (!tokens[i][0] || tokenizer_id(tokenizer, tokens[i]) >= 0)) continue;
        error_set(&s->no_chat, name ? EXIT_USAGE : EXIT_FAILED, "give the tokenizer of a chat model",
                  "template %s: the tokenizer has no token '%s'", row->name,
                  tokens[i] ? tokens[i] : "bos_token");
        s->chat = (struct chat_template){0};
        if (!name) return 0;
        *err = s->no_chat;
        return err->code;
    }
    add_end(s, tokenizer_id(tokenizer, s->chat.end));
    return 0;
}

/* Returns the text of a special token of tokenizer_config.json; NULL: none. */
static const char *special_text(json_t *config, const char *key)
{
    json_t *token = json_object_get(config, key);
    return json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
}

static void read_ends(struct tokenizer_settings *s, json_t *config, json_t *generation,
                      const struct tokenizer *tokenizer)
{
    json_t *ids = json_object_get(generation, "eos_token_id");
    const char *text = special_text(config, "eos_token");
    s->end = text ? tokenizer_id(tokenizer, text) : -1;
    add_end(s, s->end);
    if (json_is_integer(ids)) add_end(s, json_integer_value(ids));
    for (size_t i = 0; i < json_array_size(ids); i++)
        if (json_is_integer(json_array_get(ids, i))) add_end(s, json_integer_value(json_array_get(ids, i)));
}

int tokenizer_settings_read(struct tokenizer_settings *s, const char *path, const char *name,
                            const struct tokenizer *tokenizer, struct error *err)
{
    char *directory = path_directory(path, err), *jinja = NULL;
    const char *file = "";
    json_t *config = NULL, *generation = NULL;
    *s = (struct tokenizer_settings){.end = -1};
    int code = directory ? 0 : err->code;
    if (!code) code = read_object(&config, directory, "tokenizer_config.json", err);
    if (!code) code = read_object(&generation, directory, "generation_config.json", err);
    if (!code) code = read_jinja(&jinja, &file, directory, config, err);
    if (special_text(config, "bos_token")) s->bos = xstrdup(special_text(config, "bos_token"));
    if (!code) code = choose_template(s, jinja, file, name, tokenizer, err);
    if (!code) read_ends(s, config, generation, tokenizer);
    json_decref(config);
    json_decref(generation);
    free(jinja);
    free(directory);
    return code;
}

void tokenizer_settings_free(struct tokenizer_settings *s)
{
    free(s->bos);
    *s = (struct tokenizer_settings){0};
}
