/* The files next to a tokenizer.json: see tokenizer_settings.h. */
#include "core/text/tokenizer_settings.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/json_members.h"
#include "core/base/log.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_SETTINGS = 16 << 20 };

#define ANY(name)                                                                                            \
    {                                                                                                        \
        name, NULL                                                                                           \
    }
#define NONE(name)                                                                                           \
    {                                                                                                        \
        name, "null|false|[]|{}"                                                                             \
    }

/* tokenizer_config.json: what transformers' AutoTokenizer makes of it. */
static const struct json_member config_members[] = {
    /* read here, and compared with tokenizer.json */
    ANY("chat_template"),
    ANY("eos_token"),
    ANY("bos_token"),
    ANY("add_bos_token"),
    ANY("add_eos_token"),
    ANY("add_prefix_space"),
    ANY("do_lower_case"),
    ANY("added_tokens_decoder"),
    /* special tokens, which must be tokens of tokenizer.json */
    ANY("unk_token"),
    ANY("pad_token"),
    ANY("sep_token"),
    ANY("cls_token"),
    ANY("mask_token"),
    ANY("additional_special_tokens"),
    ANY("extra_special_tokens"),
    ANY("model_specific_special_tokens"),
    /* they would change the tokens */
    NONE("split_special_tokens"),
    NONE("fix_mistral_regex"),
    NONE("never_split"),
    NONE("sanitize_control_tokens"),
    /* of tokenizer.json for the classes that have them: normalizer, model */
    ANY("strip_accents"),
    ANY("tokenize_chinese_chars"),
    ANY("handle_chinese_chars"),
    ANY("clean_text"),
    ANY("do_basic_tokenize"),
    ANY("legacy"),
    ANY("remove_space"),
    ANY("keep_accents"),
    ANY("split_by_punct"),
    ANY("vocab_type"),
    ANY("extra_ids"),
    ANY("unk_id"),
    ANY("sp_model_kwargs"),
    ANY("wordpieces_prefix"),
    ANY("add_dummy_prefix_space"),
    ANY("trim_offsets"),
    /* of batches and cut texts: meopt cuts samples by model.context */
    ANY("model_max_length"),
    ANY("max_length"),
    ANY("max_len"),
    ANY("stride"),
    ANY("truncation*"),
    ANY("padding*"),
    ANY("pad_token_type_id"),
    ANY("pad_to_multiple_of"),
    ANY("model_input_names"),
    ANY("return_token_type_ids"),
    /* of decoding by transformers: meopt shows the text of the tokens */
    ANY("clean_up_tokenization*"),
    ANY("spaces_between_special_tokens"),
    ANY("errors"),
    ANY("decode_with_prefix_space"),
    /* of the older form of Llama's templates, of tools and of other modalities: no text has them */
    ANY("use_default_system_prompt"),
    ANY("response_schema"),
    ANY("image_*"),
    ANY("video_*"),
    ANY("audio_*"),
    ANY("vision_*"),
    ANY("boi_token"),
    ANY("eoi_token"),
    ANY("boa_token"),
    ANY("eoa_token"),
    ANY("processor_class"),
    /* where the files come from and which class reads them */
    ANY("tokenizer_class"),
    ANY("tokenizer_type"),
    ANY("tokenizer_file"),
    ANY("vocab_file"),
    ANY("merges_file"),
    ANY("special_tokens_map_file"),
    ANY("name_or_path"),
    ANY("auto_map"),
    ANY("backend"),
    ANY("is_local"),
    ANY("from_slow"),
    ANY("use_fast"),
    ANY("local_files_only"),
    ANY("trust_remote_code"),
    ANY("device_map"),
    ANY("transformers_version"),
    ANY("vocab_size"),
    ANY("init_inputs"),
    ANY("bos_token_id"),
    ANY("eos_token_id"),
    ANY("pad_token_id"),
    ANY("unk_token_id"),
    ANY("_*"),
    {0}};

/* generation_config.json: the answer ends at eos_token_id; meopt generate chooses tokens by its own options,
 * and without what would forbid or force some. */
static const struct json_member generation_members[] = {ANY("eos_token_id"),
                                                        ANY("bos_token_id"),
                                                        ANY("pad_token_id"),
                                                        ANY("decoder_start_token_id"),
                                                        ANY("do_sample"),
                                                        ANY("temperature"),
                                                        ANY("top_*"),
                                                        ANY("min_p"),
                                                        ANY("typical_p"),
                                                        ANY("epsilon_cutoff"),
                                                        ANY("eta_cutoff"),
                                                        ANY("penalty_alpha"),
                                                        ANY("repetition_penalty"),
                                                        ANY("length_penalty"),
                                                        ANY("num_*"),
                                                        ANY("diversity_penalty"),
                                                        ANY("early_stopping"),
                                                        ANY("max_*"),
                                                        ANY("min_*"),
                                                        ANY("output_*"),
                                                        ANY("return_*"),
                                                        ANY("use_*"),
                                                        ANY("cache_*"),
                                                        ANY("compile_config"),
                                                        ANY("disable_compile"),
                                                        ANY("continuous_batching_config"),
                                                        ANY("assistant_*"),
                                                        ANY("is_assistant"),
                                                        ANY("target_lookbehind"),
                                                        ANY("prompt_lookup_num_tokens"),
                                                        ANY("prefill_chunk_size"),
                                                        ANY("low_memory"),
                                                        ANY("speculation_type"),
                                                        ANY("dola_layers"),
                                                        ANY("renormalize_logits"),
                                                        ANY("remove_invalid_values"),
                                                        ANY("token_healing"),
                                                        ANY("transformers_version"),
                                                        ANY("trust_remote_code"),
                                                        ANY("chat_format"),
                                                        ANY("_*"),
                                                        NONE("bad_words_ids"),
                                                        NONE("begin_suppress_tokens"),
                                                        NONE("suppress_tokens"),
                                                        NONE("constraints"),
                                                        NONE("force_words_ids"),
                                                        NONE("forced_bos_token_id"),
                                                        NONE("forced_eos_token_id"),
                                                        NONE("sequence_bias"),
                                                        NONE("stop_strings"),
                                                        NONE("watermarking_config"),
                                                        NONE("exponential_decay_length_penalty"),
                                                        {"no_repeat_ngram_size", "0"},
                                                        {"encoder_no_repeat_ngram_size", "0"},
                                                        {"encoder_repetition_penalty", "1"},
                                                        {"guidance_scale", "1"},
                                                        {0}};

/* Reads a JSON object of the directory, and refuses members that are not in the table; *root NULL: the file
 * is absent. */
static int read_object(json_t **root, const char *directory, const char *name,
                       const struct json_member *members, struct error *err)
{
    char *path = path_join(directory, name);
    int code = json_read_optional(path, MOST_SETTINGS, root, err);
    if (*root &&
        (code = json_members_check(*root, members, NULL, name, N_("remove it if it changes no token"), err)))
        error_at(err, path, 0, 0);
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

/* Refuses a template whose tokens the tokenizer does not have, bos_token and eos_token among them. */
static int check_tokens(const struct chat_template *c, const struct tokenizer *tokenizer, int code,
                        struct error *err)
{
    static const char *const marks[] = {"{bos}", "{eos}"};
    const char *const tokens[] = {c->bos, c->eos};
    const char *what = NULL;
    char name[128];
    for (int i = 0; i < 2; i++)
        if (chat_template_has(c, marks[i]) && (!tokens[i] || tokenizer_id(tokenizer, tokens[i]) < 0))
            what = tokens[i] ? tokens[i] : i ? "eos_token" : "bos_token";
    for (const char *p = c->tokens ? c->tokens : ""; *p && !what; p += strspn(p, " ")) {
        size_t n = strcspn(p, " ");
        snprintf(name, sizeof name, "%.*s", (int)n, p);
        if (tokenizer_id(tokenizer, name) < 0) what = name;
        p += n;
    }
    return what ? error_set(err, code, "give the tokenizer of a chat model",
                            "template %s: the tokenizer has no token '%s'", c->name, what)
                : 0;
}

/* Adds the token with which the assistant's turns end. */
static void add_turn_end(struct tokenizer_settings *s, const struct tokenizer *tokenizer)
{
    const char *end = s->chat.turns[CHAT_ANSWER].end;
    char token[128];
    if (!end || strstr(end, "{eos}")) return; /* eos_token is one */
    for (size_t n = strlen(end) < sizeof token ? strlen(end) : 0; n; n--) {
        snprintf(token, sizeof token, "%.*s", (int)n, end);
        if (tokenizer_id(tokenizer, token) < 0) continue;
        add_end(s, tokenizer_id(tokenizer, token));
        return;
    }
}

/* Sets the template by its name, or of the published text, or the reason why there is none. */
static int choose_template(struct tokenizer_settings *s, const char *jinja, const char *file,
                           const char *name, const struct tokenizer *tokenizer, struct error *err)
{
    const struct chat_template *row = name ? chat_template_named(name) : NULL;
    int code = 0;
    if (row) s->chat = *row;
    else if (name) code = chat_template_read(&s->chat, &s->own, name, err);
    if (code) return code;
    if (!s->chat.name && jinja && chat_template_like(&s->chat, jinja)) jinja = NULL;
    if (!s->chat.name && jinja)
        error_set(
            &s->no_chat, EXIT_FAILED,
            "meopt-tokenize(1) lists them: --template NAME, or --template FILE.json with the parts of a turn",
            "the chat template of the tokenizer's %s is no published one that is known", file);
    else if (!s->chat.name)
        error_set(&s->no_chat, EXIT_FAILED, "give --template, or the tokenizer of a chat model",
                  "messages require a chat template, and the tokenizer has none");
    if (!s->chat.name) return 0;
    if (s->bos) s->chat.bos = s->bos;
    s->chat.eos = s->eos;
    code = check_tokens(&s->chat, tokenizer, name ? EXIT_USAGE : EXIT_FAILED, &s->no_chat);
    if (!code) add_turn_end(s, tokenizer);
    else s->chat = (struct chat_template){0};
    if (!code && s->chat.date)
        log_info("template %s writes the date %s, unless a record has date_string in chat_template_kwargs",
                 s->chat.name, s->chat.date);
    if (!code || !name) return 0;
    *err = s->no_chat;
    return err->code;
}

/* Returns the text of a special token of tokenizer_config.json; NULL: none. */
static const char *special_text(json_t *config, const char *key)
{
    json_t *token = json_object_get(config, key);
    return json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
}

/* ---- what two files say must be the same ---- */

static int contradiction(const char *key, const char *value, const char *other, struct error *err)
{
    return error_set(err, EXIT_CONFIG, "transformers' save_pretrained writes both files alike",
                     "tokenizer_config.json: %s is %s, but tokenizer.json %s", key, value, _(other));
}

static int check_flag(json_t *config, const char *key, bool found, const char *yes, const char *no,
                      struct error *err)
{
    json_t *value = json_object_get(config, key);
    if (!json_is_boolean(value) || json_is_true(value) == found) return 0;
    return contradiction(key, json_is_true(value) ? "true" : "false", found ? yes : no, err);
}

/* Checks that a special token, or each of a list, is one of the tokenizer. */
static int check_special(json_t *value, const char *key, const struct tokenizer *t, struct error *err)
{
    json_t *item, *content = json_is_object(value) ? json_object_get(value, "content") : value;
    const char *text = json_string_value(content);
    size_t i;
    int code = 0;
    if (json_is_array(value))
        json_array_foreach(value, i, item) if (!code) code = check_special(item, key, t, err);
    if (!text || !*text || tokenizer_id(t, text) >= 0) return code;
    return error_set(err, EXIT_CONFIG, "transformers' save_pretrained writes both files alike",
                     "tokenizer_config.json: %s '%.60s' is no token of tokenizer.json", key, text);
}

/* Checks that the added tokens are those of tokenizer.json. */
static int check_added(json_t *tokens, const struct tokenizer *t, struct error *err)
{
    const char *id;
    json_t *token;
    json_object_foreach(tokens, id, token)
    {
        const char *text = json_string_value(json_object_get(token, "content")),
                   *there = tokenizer_text(t, (int32_t)strtol(id, NULL, 10));
        if (!text || (there && strcmp(there, text) == 0)) continue;
        return error_set(err, EXIT_CONFIG, "transformers' save_pretrained writes both files alike",
                         "tokenizer_config.json: added token %.20s is '%.60s', in tokenizer.json '%.60s'", id,
                         text, there ? there : "");
    }
    return 0;
}

static int check_config(json_t *config, const struct tokenizer *t, struct error *err)
{
    static const char *const special[] = {
        "eos_token",           "bos_token", "unk_token",  "pad_token",
        "sep_token",           "cls_token", "mask_token", "additional_special_tokens",
        "extra_special_tokens"};
    int begins, ends, code = 0;
    (void)tokenizer_added(t, false, &begins);
    (void)tokenizer_added(t, true, &ends);
    for (size_t i = 0; i < sizeof special / sizeof *special && !code; i++)
        code = check_special(json_object_get(config, special[i]), special[i], t, err);
    if (!code) code = check_added(json_object_get(config, "added_tokens_decoder"), t, err);
    if (!code && json_is_true(json_object_get(config, "add_bos_token")) &&
        !json_object_get(config, "bos_token"))
        return 0;
    if (!code)
        code = check_flag(config, "add_bos_token", begins > 0, N_("begins texts with a token"),
                          N_("begins texts with none"), err);
    if (!code)
        code = check_flag(config, "add_eos_token", ends > 0, N_("ends texts with a token"),
                          N_("ends texts with none"), err);
    if (!code && tokenizer_has(t, TOKENIZER_BYTES))
        code = check_flag(config, "add_prefix_space", tokenizer_has(t, TOKENIZER_PREFIX_SPACE),
                          N_("begins texts with a space"), N_("begins texts with none"), err);
    if (!code && (tokenizer_has(t, TOKENIZER_WORDPIECE) || tokenizer_has(t, TOKENIZER_UNIGRAM)))
        code = check_flag(config, "do_lower_case", tokenizer_has(t, TOKENIZER_LOWERCASE),
                          N_("has lower case"), N_("has no lower case"), err);
    return code;
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

/* Names how transformers chooses tokens by generation_config.json. */
static void read_sampling(struct tokenizer_settings *s, json_t *generation)
{
    static const struct {
        const char *key, *option; /* option NULL: there is none */
        double usual, without;    /* transformers' default; the value that changes nothing */
        bool greedy;              /* it changes what is not drawn, too */
    } rows[] = {
        {"temperature", "--temperature", 1, -1, false},
        {"top_k", "--top-k", 50, 0, false},
        {"top_p", "--top-p", 1, 1, false},
        {"min_p", NULL, 0, 0, false},
        {"typical_p", NULL, 1, 1, false},
        {"repetition_penalty", NULL, 1, 1, true},
        {"no_repeat_ngram_size", NULL, 0, 0, true},
    };
    bool draws = json_is_true(json_object_get(generation, "do_sample"));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *given = json_object_get(generation, rows[i].key);
        double value = json_is_number(given) ? json_number_value(given) : rows[i].usual;
        bool option = rows[i].option != NULL;
        char *to = option ? s->sampling : s->not_applied;
        size_t size = option ? sizeof s->sampling : sizeof s->not_applied, n = strlen(to);
        if (value == rows[i].without || !(draws || rows[i].greedy)) continue;
        snprintf(to + n, size - n, "%s%s %.6g",
                 !n       ? ""
                 : option ? " "
                          : ", ",
                 option ? rows[i].option : rows[i].key, value);
    }
}

int tokenizer_settings_read(struct tokenizer_settings *s, const char *path, const char *name,
                            const struct tokenizer *tokenizer, struct error *err)
{
    char *directory = path_directory(path, err), *jinja = NULL;
    const char *file = "";
    json_t *config = NULL, *generation = NULL;
    *s = (struct tokenizer_settings){.end = -1};
    int code = directory ? 0 : err->code;
    if (!code) code = read_object(&config, directory, "tokenizer_config.json", config_members, err);
    if (!code) code = check_config(config, tokenizer, err);
    if (!code) code = token_roles_read(&s->roles, directory, config, tokenizer, err);
    if (!code) code = read_object(&generation, directory, "generation_config.json", generation_members, err);
    if (!code) code = read_jinja(&jinja, &file, directory, config, err);
    if (special_text(config, "bos_token")) s->bos = xstrdup(special_text(config, "bos_token"));
    if (special_text(config, "eos_token")) s->eos = xstrdup(special_text(config, "eos_token"));
    if (!code) code = choose_template(s, jinja, file, name, tokenizer, err);
    if (!code) read_ends(s, config, generation, tokenizer);
    if (!code) read_sampling(s, generation);
    json_decref(config);
    json_decref(generation);
    free(jinja);
    free(directory);
    return code;
}

void tokenizer_settings_free(struct tokenizer_settings *s)
{
    free(s->bos);
    free(s->eos);
    json_decref(s->own);
    token_roles_free(&s->roles);
    *s = (struct tokenizer_settings){0};
}
