/* Roles of special tokens: see token_roles.h. */
#include "core/text/token_roles.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/path.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 16 << 20, MOST_CLASS = 64 };

static const char *const keys[TOKEN_ROLES] = {
    [SPECIAL_MASK] = "mask_token", [SPECIAL_PAD] = "pad_token", [SPECIAL_CLS] = "cls_token",
    [SPECIAL_SEP] = "sep_token",   [SPECIAL_UNK] = "unk_token", [SPECIAL_BOS] = "bos_token",
    [SPECIAL_EOS] = "eos_token"};

/* Tokens of transformers' classes, which their files need not name. */
static const struct {
    const char *class, *mask, *pad;
} classes[] = {
    {"bert", "[MASK]", "[PAD]"},       {"distilbert", "[MASK]", "[PAD]"}, {"electra", "[MASK]", "[PAD]"},
    {"mobilebert", "[MASK]", "[PAD]"}, {"convbert", "[MASK]", "[PAD]"},   {"modernbert", "[MASK]", "[PAD]"},
    {"deberta", "[MASK]", "[PAD]"},    {"debertav2", "[MASK]", "[PAD]"},  {"albert", "[MASK]", "<pad>"},
    {"bigbird", "[MASK]", "<pad>"},    {"roberta", "<mask>", "<pad>"},    {"xlmroberta", "<mask>", "<pad>"},
    {"camembert", "<mask>", "<pad>"},  {"longformer", "<mask>", "<pad>"}, {"mpnet", "<mask>", "<pad>"},
    {"bart", "<mask>", "<pad>"},       {"mbart", "<mask>", "<pad>"},      {"xlnet", "<mask>", "<pad>"},
};

static int read_file(json_t **root, const char *directory, const char *name, struct error *err)
{
    char *path = path_join(directory, name);
    int code = json_read_optional(path, MOST_BYTES, root, err);
    free(path);
    return code;
}

/* Sets the roles that a file names by texts. */
static int read_texts(struct token_roles *roles, const json_t *file, const char *name,
                      const struct tokenizer *t, struct error *err)
{
    for (int i = 0; i < TOKEN_ROLES; i++) {
        const json_t *value = json_object_get(file, keys[i]);
        const char *text =
            json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
        int32_t id = text && *text ? tokenizer_id(t, text) : -1, *role = &roles->ids[i];
        if (!text || !*text) continue;
        if (id < 0)
            return error_set(err, EXIT_CONFIG, "transformers' save_pretrained writes both files alike",
                             "%s: %s '%.60s' is no token of tokenizer.json", name, keys[i], text);
        if (*role >= 0 && *role != id)
            return error_set(err, EXIT_CONFIG, "transformers' save_pretrained writes both files alike",
                             "%s: %s is '%.60s', but tokenizer_config.json says '%.60s'", name, keys[i], text,
                             tokenizer_text(t, *role));
        *role = id;
    }
    return 0;
}

/* Sets roles that no file names by texts from the numbers of config.json. */
static void read_numbers(struct token_roles *roles, const json_t *model, const struct tokenizer *t)
{
    char key[40];
    for (int i = 0; i < TOKEN_ROLES; i++) {
        snprintf(key, sizeof key, "%s_id", keys[i]);
        const json_t *value = json_object_get(model, key);
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (roles->ids[i] < 0 && id >= 0 && id < tokenizer_vocabulary(t) && tokenizer_text(t, (int32_t)id))
            roles->ids[i] = (int32_t)id;
    }
}

/* Sets mask and pad from the name of a class: BigBirdTokenizerFast, big_bird. */
static void read_class(struct token_roles *roles, const char *name, const struct tokenizer *t)
{
    char class[MOST_CLASS] = "";
    size_t n = 0;
    for (const char *p = name ? name : ""; *p && strncmp(p, "Tokenizer", 9) != 0 && n + 1 < sizeof class; p++)
        if (isalnum((unsigned char)*p)) class[n++] = (char)tolower((unsigned char)*p);
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        if (strcmp(class, classes[i].class) != 0) continue;
        if (roles->ids[SPECIAL_MASK] < 0) roles->ids[SPECIAL_MASK] = tokenizer_id(t, classes[i].mask);
        if (roles->ids[SPECIAL_PAD] < 0) roles->ids[SPECIAL_PAD] = tokenizer_id(t, classes[i].pad);
    }
}

/* Sets the mask to the only special token that is called so. */
static void assume_mask(struct token_roles *roles, const struct tokenizer *t)
{
    int32_t found = -1;
    int count = 0;
    for (int32_t id = 0; id < tokenizer_vocabulary(t); id++)
        if (tokenizer_special(t, id) && strcasestr(tokenizer_text(t, id), "mask")) found = id, count++;
    if (count != 1 || roles->ids[SPECIAL_MASK] >= 0) return;
    roles->ids[SPECIAL_MASK] = found;
    log_info("the mask is assumed to be '%s', token %d: no file names mask_token", tokenizer_text(t, found),
             found);
}

int token_roles_read(struct token_roles *roles, const char *directory, const json_t *config,
                     const struct tokenizer *t, struct error *err)
{
    json_t *map = NULL, *model = NULL;
    *roles = (struct token_roles){0};
    for (int i = 0; i < TOKEN_ROLES; i++) roles->ids[i] = -1;
    int code = read_file(&map, directory, "special_tokens_map.json", err);
    if (!code) code = read_file(&model, directory, "config.json", err);
    if (!code) code = read_texts(roles, config, "tokenizer_config.json", t, err);
    if (!code) code = read_texts(roles, map, "special_tokens_map.json", t, err);
    if (!code) {
        read_numbers(roles, model, t);
        read_class(roles, json_string_value(json_object_get(config, "tokenizer_class")), t);
        read_class(roles, json_string_value(json_object_get(model, "model_type")), t);
        assume_mask(roles, t);
    }
    for (int32_t id = 0; id < tokenizer_vocabulary(t) && !code; id++) {
        bool special = tokenizer_special(t, id);
        for (int i = 0; i < TOKEN_ROLES; i++) special |= roles->ids[i] == id;
        if (special) token_list_append(&roles->special, id);
    }
    json_decref(map);
    json_decref(model);
    return code;
}

void token_roles_free(struct token_roles *roles) { token_list_free(&roles->special); }
