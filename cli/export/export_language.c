/* Files next to the weights of a language model: see export_language.h. */
#include "cli/export/export_language.h"
#include "core/base/file.h"
#include "core/base/path.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/model/family.h"
#include "core/model/language_config.h"
#include "core/model/sidecar.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_BYTES = 256 << 20 };
static const char generation[] = "generation_config.json";

static const char *const tokens[] = {"bos_token_id", "eos_token_id", "pad_token_id"};

/* The first is not the tokenizer's. */
static const char *const names[] = {generation,          "tokenizer.json",      "tokenizer_config.json",
                                    "vocab.json",        "merges.txt",          "tokenizer.model",
                                    "vocab.txt",         "spiece.model",        "special_tokens_map.json",
                                    "added_tokens.json", "chat_template.jinja", "chat_template.json"};

bool export_language_file(const char *name)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

/* Copies a file that may be absent; *found: it was there. */
static int copy_file(const char *from, const char *directory, const char *name, bool *found,
                     struct error *err)
{
    char *path = path_join(from, name), *to = path_join(directory, name), *data = NULL;
    size_t bytes = 0;
    *found = !file_absent(path);
    int code = *found ? file_read(path, MOST_BYTES, &data, &bytes, err) : 0;
    if (!code && *found) code = file_write_atomic(to, data, bytes, err);
    free(data);
    free(to);
    free(path);
    return code;
}

static int copy_from(const char *directory, const char *original, size_t first, size_t end, bool *found,
                     struct error *err)
{
    int code = 0;
    *found = false;
    if (!original[0] || file_absent(original)) return 0;
    char *from = path_directory(original, err);
    if (!from) return err->code;
    for (size_t i = first; i < end && !code; i++) code = copy_file(from, directory, names[i], found, err);
    free(from);
    return code;
}

int export_language_tokenizer(const char *directory, const char *original, struct error *err)
{
    bool found;
    return copy_from(directory, original, 1, sizeof names / sizeof *names, &found, err);
}

/* Returns whether two files have other bytes. A file that cannot be read has. */
static bool differ(const char *a, const char *b)
{
    char *texts[2] = {NULL, NULL};
    size_t bytes[2] = {0, 0};
    bool same = file_read(a, MOST_BYTES, &texts[0], &bytes[0], NULL) == 0 &&
                file_read(b, MOST_BYTES, &texts[1], &bytes[1], NULL) == 0 && bytes[0] == bytes[1] &&
                memcmp(texts[0], texts[1], bytes[0]) == 0;
    free(texts[0]);
    free(texts[1]);
    return !same;
}

int export_language_keep(const char *directory, const char *earlier, struct error *err)
{
    int code = 0;
    for (size_t i = 1; i < sizeof names / sizeof *names && !code; i++) {
        char *old = path_join(earlier, names[i]), *new = path_join(directory, names[i]);
        bool found;
        if (file_absent(old)) found = false;
        else if (file_absent(new)) {
            code = copy_file(earlier, directory, names[i], &found, err);
            if (!code) log_info("kept %s of the earlier export: the model of the run has none", old);
        } else if (differ(old, new)) log_warn("replaced %s, which differed from the model's own", old);
        free(new);
        free(old);
    }
    return code;
}

void export_set_classes(json_t *o, int64_t count, const json_t *classes)
{
    json_t *names_of = json_object(), *numbers = json_object();
    for (int64_t i = 0; i < count; i++) {
        char number[24], usual[32];
        const char *name = json_string_value(json_array_get(classes, (size_t)i));
        snprintf(number, sizeof number, "%lld", (long long)i);
        snprintf(usual, sizeof usual, "LABEL_%lld", (long long)i);
        if (!name) name = usual;
        json_object_set_new(names_of, number, json_string(name));
        json_object_set_new(numbers, name, json_integer((json_int_t)i));
    }
    json_object_set_new(o, "id2label", names_of);
    json_object_set_new(o, "label2id", numbers);
}

/* A class of transformers: its model_type, and its name without the end that says its head. */
struct class_of {
    const char *type, *name;
    enum family family;
    bool windows; /* sliding_window needs no further key */
};

/* Returns the class for a language model; NULL: there is none. preferred: the model_type that the
 * run began with. */
static const struct class_of *class_of(const struct model_shape *g, const char *preferred)
{
    static const struct class_of classes[] = {{"llama", "Llama", FAMILY_LLAMA, false},
                                              {"mistral", "Mistral", FAMILY_LLAMA, true},
                                              {"qwen2", "Qwen2", FAMILY_LLAMA, false},
                                              {"qwen3", "Qwen3", FAMILY_LLAMA, false},
                                              {"gpt2", "GPT2", FAMILY_GPT2, false},
                                              {"bert", "Bert", FAMILY_BERT, false},
                                              {"distilbert", "DistilBert", FAMILY_DISTILBERT, false},
                                              {"roberta", "Roberta", FAMILY_ROBERTA, false},
                                              {"xlm-roberta", "XLMRoberta", FAMILY_ROBERTA, false},
                                              {"camembert", "Camembert", FAMILY_ROBERTA, false},
                                              {"electra", "Electra", FAMILY_ELECTRA, false},
                                              {"big_bird", "BigBird", FAMILY_BIG_BIRD, false}};
    enum { LLAMA, MISTRAL, QWEN2, QWEN3 };
    int parts = model_shape_parts(g);
    bool norms = parts & PART_QK_NORM, biases = parts & PART_QKV_BIAS;
    bool plain = !g->window && model_shape_kv_heads(g) == g->heads && model_shape_attn_width(g) == g->width;
    if (family_row(g->family)->members == MEMBERS_DISTILBERT) /* its epsilon is a constant */
        plain &= !(fabsf(model_shape_norm_eps(g) - family_row(g->family)->norm_eps) > 0);
    if (!family_row(g->family)->rms) {
        const struct class_of *usual = NULL;
        for (size_t i = sizeof classes / sizeof *classes; i-- > 0;)
            if (classes[i].family == g->family && (!usual || strcmp(usual->type, preferred) != 0))
                usual = &classes[i];
        return plain ? usual : NULL;
    }
    if (norms && biases) return NULL;
    if (norms) return &classes[QWEN3];
    if (biases) return &classes[QWEN2];
    return &classes[g->window || strcmp(preferred, "mistral") == 0 ? MISTRAL : LLAMA];
}

/* Writes the name of its class. */
static void class_name(const struct class_of *class, const struct model_shape *g, char *text, size_t size)
{
    bool encoder = family_encoder(family_row(g->family));
    snprintf(text, size, "%s%s", class->name,
             encoder && g->classes > 0  ? "ForSequenceClassification"
             : encoder                  ? "ForMaskedLM"
             : g->family == FAMILY_GPT2 ? "LMHeadModel"
                                        : "ForCausalLM");
}

/* Sets the probabilities of dropout of the original, or 0: meopt applies none. */
static void set_dropout(json_t *o, const struct model_shape *g, const json_t *from)
{
    static const char *const keys[][4] = {
        {"attention_dropout"},
        {"hidden_dropout_prob", "attention_probs_dropout_prob"},
        [1 + MEMBERS_GPT2] = {"resid_pdrop", "embd_pdrop", "attn_pdrop"},
        [1 + MEMBERS_DISTILBERT] = {"dropout", "attention_dropout", "seq_classif_dropout"}};
    const struct family_row *row = family_row(g->family);
    const char *const *list = keys[row->members ? 1 + (int)row->members : family_encoder(row)];
    for (; *list; list++) {
        json_t *value = json_object_get(from, *list);
        if (value) json_object_set(o, *list, value);
        else json_object_set_new(o, *list, json_real(0));
    }
}

/* Returns a number rounded to 7 digits: 1e-06, not the nearest float. */
static double rounded(double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.7g", value);
    return strtod(text, NULL);
}

static json_t *rope_scaling(const struct rope_of_tokens *r)
{
    json_t *o = NULL;
    if (r->scaling == ROPE_LINEAR) return json_pack("{s:s, s:f}", "rope_type", "linear", "factor", r->factor);
    if (r->scaling == ROPE_LLAMA3)
        o = json_pack("{s:s, s:f, s:f, s:f}", "rope_type", "llama3", "factor", r->factor, "low_freq_factor",
                      r->low, "high_freq_factor", r->high);
    if (r->scaling == ROPE_YARN)
        o = json_pack("{s:s, s:f, s:f, s:f, s:f}", "rope_type", "yarn", "factor", r->factor, "beta_slow",
                      r->low, "beta_fast", r->high, "attention_factor", r->attention);
    if (!o) return json_null();
    json_object_set_new(o, "original_max_position_embeddings", json_integer((json_int_t)r->original));
    return o;
}

void export_set_sizes(json_t *o, const struct model_shape *g, const enum fact *sizes)
{
    const struct family_row *row = family_row(g->family);
    for (; *sizes != FACT_COUNT; sizes++) {
        int64_t before = *sizes == FACT_POSITIONS ? row->first_position : 0,
                value = (int64_t)fact_value(g, *sizes) + before;
        if (value) json_object_set_new(o, fact_member(*sizes, row->members), json_integer((json_int_t)value));
    }
}

static json_t *llama(const struct model_shape *g, const struct class_of *class)
{
    json_t *o = json_pack("{s:s, s:f, s:f, s:o, s:b, s:b}", "hidden_act", "silu", "rms_norm_eps",
                          rounded((double)model_shape_norm_eps(g)), "rope_theta", g->rope.theta,
                          "rope_scaling", rope_scaling(&g->rope), "attention_bias", 0, "mlp_bias", 0);
    if (!class->windows) {
        json_object_set_new(o, "use_sliding_window", json_boolean(g->window > 0));
        json_object_set_new(o, "max_window_layers", json_integer(g->window ? 0 : (json_int_t)g->depth));
    }
    json_object_set_new(o, "sliding_window", g->window ? json_integer((json_int_t)g->window) : json_null());
    return o;
}

static json_t *gpt2(const struct model_shape *g)
{
    const char *act = g->ffn == 1 + ACTIVATION_GELU_TANH ? "gelu_new" : model_shape_activation(g);
    return json_pack("{s:I, s:s, s:f}", "n_ctx", (json_int_t)g->positions, "activation_function", act,
                     "layer_norm_epsilon", rounded((double)model_shape_norm_eps(g)));
}

static json_t *encoder(const struct model_shape *g)
{
    const char *act = g->ffn == 1 + ACTIVATION_GELU_TANH ? "gelu_new" : model_shape_activation(g);
    if (family_row(g->family)->members == MEMBERS_DISTILBERT) return json_pack("{s:s}", "activation", act);
    json_t *o = json_pack("{s:s, s:f}", "hidden_act", act, "layer_norm_eps",
                          rounded((double)model_shape_norm_eps(g)));
    if (!family_row(g->family)->block) return o;
    bool sparse = g->block > 0;
    json_object_set_new(o, "attention_type", json_string(sparse ? "block_sparse" : "original_full"));
    json_object_set_new(o, "block_size",
                        json_integer((json_int_t)(sparse ? g->block : family_row(g->family)->block)));
    json_object_set_new(o, "num_random_blocks", json_integer((json_int_t)g->random));
    return o;
}

/* Writes an object and frees it. */
static int write_object(const char *directory, const char *name, json_t *object, struct error *err)
{
    char *path = path_join(directory, name);
    int code = json_write(path, object, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(16), err);
    free(path);
    json_decref(object);
    return code;
}

/* Writes the file with the special tokens of a config.json, null if there is none. */
static int write_generation(const char *directory, const json_t *config, struct error *err)
{
    json_t *o = json_pack("{s:b}", "_from_model_config", 1);
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        json_t *token = json_object_get(config, tokens[i]);
        if (token && !json_is_null(token)) json_object_set(o, tokens[i], token);
    }
    return write_object(directory, generation, o, err);
}

int export_language_write(const char *directory, const struct model_shape *g, const json_t *classes,
                          const char *original, bool bf16, struct error *err)
{
    struct language_config began;
    struct error ignored = {0};
    json_t *from = NULL;
    bool found = false;
    if (!original[0] || language_config_read(&began, original, &ignored))
        began = (struct language_config){.type = ""};
    const struct class_of *class = class_of(g, began.type);
    if (!class)
        return error_set(err, EXIT_CONFIG, "use --format pt or safetensors",
                         "transformers has no class for a %s model with these parts", family_name(g->family));
    if (began.says.family) (void)sidecar_object(&from, original, "config.json", &ignored);
    if (original[0] && file_absent(original))
        log_warn("%s is gone: its tokenizer and special tokens are not exported", original);
    char name[48];
    class_name(class, g, name, sizeof name);
    json_t *o = json_pack("{s:[s], s:s, s:I, s:b, s:s}", "architectures", name, "model_type", class->type,
                          "vocab_size", (json_int_t)g->vocabulary, "tie_word_embeddings", g->tied,
                          "torch_dtype", bf16 ? "bfloat16" : "float32");
    static const enum fact sizes[] = {FACT_WIDTH,     FACT_DEPTH,     FACT_HEADS, FACT_HIDDEN,
                                      FACT_POSITIONS, FACT_EMBEDDING, FACT_TYPES, FACT_COUNT},
                           groups[] = {FACT_WIDTH,    FACT_DEPTH,  FACT_HEADS,     FACT_KV_HEADS,
                                       FACT_HEAD_DIM, FACT_HIDDEN, FACT_POSITIONS, FACT_COUNT};
    const struct family_row *row = family_row(g->family);
    json_t *others = family_encoder(row) ? encoder(g) : row->rms ? llama(g, class) : gpt2(g);
    export_set_sizes(o, g, row->rms ? groups : sizes);
    json_object_update(o, others);
    json_decref(others);
    if (g->classes > 0) {
        export_set_classes(o, g->classes, classes);
        json_object_set_new(o, "problem_type", json_string("single_label_classification"));
    }
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        json_t *token = json_object_get(from, tokens[i]);
        json_object_set(o, tokens[i], token ? token : json_null());
    }
    if (row->first_position) /* the class counts the padding's number before the first position */
        json_object_set_new(o, "pad_token_id", json_integer((json_int_t)row->first_position - 1));
    set_dropout(o, g, from);
    json_decref(from);
    json_incref(o);
    int code = write_object(directory, "config.json", o, err);
    bool generates = !family_encoder(row) || g->classes <= 0;
    if (!code && generates) code = copy_from(directory, original, 0, 1, &found, err);
    if (!code && generates && !found) code = write_generation(directory, o, err);
    json_decref(o);
    return code ? code : export_language_tokenizer(directory, original, err);
}
