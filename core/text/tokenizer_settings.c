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

/* Returns the Jinja template, malloc'ed; NULL: none. A model with several names the usual one "default". */
static int read_jinja(char **jinja, const char *directory, json_t *config, struct error *err)
{
    json_t *at = json_object_get(config, "chat_template"), *entry;
    char *path = path_join(directory, "chat_template.jinja");
    size_t bytes, i;
    int code = 0;
    *jinja = NULL;
    if (!file_absent(path)) code = file_read(path, MOST_SETTINGS, jinja, &bytes, err);
    free(path);
    if (code || *jinja) return code;
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

static int choose_template(struct tokenizer_settings *s, const char *jinja, const char *name,
                           const struct tokenizer *tokenizer, struct error *err)
{
    s->chat = name ? chat_template_named(name) : jinja ? chat_template_like(jinja) : NULL;
    if (!s->chat) return 0;
    const char *const tokens[] = {s->chat->begin, s->chat->before, s->chat->end};
    for (int i = 0; i < 3; i++)
        if (tokens[i][0] && tokenizer_id(tokenizer, tokens[i]) < 0) {
            s->chat = NULL;
            return !name ? 0
                         : error_set(err, EXIT_USAGE, "give the tokenizer of a chat model",
                                     "--template %s: the tokenizer has no token '%s'", name, tokens[i]);
        }
    add_end(s, tokenizer_id(tokenizer, s->chat->end));
    return 0;
}

static void read_ends(struct tokenizer_settings *s, json_t *config, json_t *generation,
                      const struct tokenizer *tokenizer)
{
    json_t *token = json_object_get(config, "eos_token"), *ids = json_object_get(generation, "eos_token_id");
    const char *text = json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
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
    json_t *config = NULL, *generation = NULL;
    *s = (struct tokenizer_settings){.end = -1};
    int code = directory ? 0 : err->code;
    if (!code) code = read_object(&config, directory, "tokenizer_config.json", err);
    if (!code) code = read_object(&generation, directory, "generation_config.json", err);
    if (!code) code = read_jinja(&jinja, directory, config, err);
    if (!code) code = choose_template(s, jinja, name, tokenizer, err);
    if (!code) read_ends(s, config, generation, tokenizer);
    json_decref(config);
    json_decref(generation);
    free(jinja);
    free(directory);
    return code;
}
