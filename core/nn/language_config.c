/* The config.json of a language model: see language_config.h. Defaults are those of transformers' classes. */
#include "core/nn/language_config.h"
#include "core/base/file.h"
#include "core/nn/sidecar.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define SUPPORTED "supported: gpt2, llama, mistral, qwen2, qwen3 and bert"

/* Model types that are read. A Llama 2 or 3, TinyLlama, SmolLM or Yi is a llama. */
static const struct type {
    const char *type;
    enum family family;
    double norm_eps;
    bool tied, windows; /* sliding_window is in use unless it is null */
} types[] = {
    {"gpt2", FAMILY_GPT2, 1e-5, true, false},     {"llama", FAMILY_LLAMA, 1e-6, false, false},
    {"mistral", FAMILY_LLAMA, 1e-6, false, true}, {"qwen2", FAMILY_LLAMA, 1e-6, false, false},
    {"qwen3", FAMILY_LLAMA, 1e-6, false, false},  {"bert", FAMILY_BERT, 1e-12, true, false},
};

#define EXPERTS  "a mixture of experts"
#define PARALLEL "attention and feed-forward in parallel"
#define LINEAR   "linear attention or a state space in some blocks"
#define IMAGES   "a language model with images"

/* Others that people bring, and what is different in them. A name that ends in * stands for all that begin
 * so. */
static const struct {
    const char *type, *is;
} refused[] = {
    {"mixtral", EXPERTS},
    {"qwen2_moe", EXPERTS},
    {"qwen3_moe", EXPERTS},
    {"qwen3_next", LINEAR},
    {"qwen3_5*", LINEAR},
    {"deepseek*", EXPERTS N_(", with latent attention")},
    {"kimi*", EXPERTS},
    {"gpt_oss", EXPERTS},
    {"glm4_moe*", EXPERTS},
    {"ernie4_5_moe", EXPERTS},
    {"granitemoe*", EXPERTS},
    {"olmoe", EXPERTS},
    {"phimoe", EXPERTS},
    {"dbrx", EXPERTS},
    {"jetmoe", EXPERTS},
    {"minimax*", EXPERTS},
    {"hunyuan*", EXPERTS},
    {"llama4*", EXPERTS},
    {"jamba", LINEAR},
    {"mamba*", LINEAR},
    {"bamba", LINEAR},
    {"zamba*", LINEAR},
    {"falcon_mamba", LINEAR},
    {"falcon_h1", LINEAR},
    {"nemotron_h", LINEAR},
    {"rwkv*", LINEAR},
    {"recurrent_gemma", LINEAR},
    {"lfm2*", LINEAR},
    {"gemma*", N_("norms of weight + 1, and heads of 256 values")},
    {"gpt_neox*", PARALLEL},
    {"gptj", PARALLEL},
    {"falcon", PARALLEL},
    {"phi", PARALLEL},
    {"cohere*", PARALLEL},
    {"stablelm", N_("rotary positions in a part of each head")},
    {"persimmon", N_("rotary positions in a part of each head")},
    {"nemotron", N_("rotary positions in a part of each head")},
    {"glm*", N_("rotary positions in a part of each head")},
    {"chatglm", N_("rotary positions in a part of each head")},
    {"minicpm3", N_("latent attention")},
    {"minicpm", N_("scales of the embedding and of each branch")},
    {"granite", N_("scales of the embedding and of each branch")},
    {"phi3", N_("other names, and rotary scaling of the kind longrope")},
    {"smollm3", N_("blocks without rotary positions")},
    {"olmo", N_("norms without weights")},
    {"olmo2", N_("norms after the branches")},
    {"olmo3", N_("norms after the branches")},
    {"exaone*", N_("other names or norms")},
    {"internlm*", N_("other names of queries, keys and values")},
    {"baichuan", N_("other names of queries, keys and values")},
    {"qwen", N_("other names: it is the first Qwen")},
    {"gpt_neo", N_("local attention in every second block")},
    {"gpt_bigcode", N_("one key and value for all heads in another layout")},
    {"starcoder2", N_("norms and a feed-forward of another kind")},
    {"codegen", PARALLEL},
    {"opt", N_("other positions and names")},
    {"bloom", N_("ALiBi positions")},
    {"mpt", N_("ALiBi positions")},
    {"xglm", N_("sinusoidal positions")},
    {"t5", N_("an encoder and a decoder")},
    {"bart", N_("an encoder and a decoder")},
    {"roberta*", N_("positions that begin at 2, and another head")},
    {"xlm-roberta*", N_("positions that begin at 2, and another head")},
    {"camembert", N_("positions that begin at 2, and another head")},
    {"mpnet", N_("relative positions in the attention")},
    {"distilbert", N_("other names, and no token types")},
    {"albert", N_("blocks that share their weights")},
    {"electra*", N_("an embedding narrower than the blocks")},
    {"deberta*", N_("relative positions in the attention")},
    {"modernbert*", N_("pre-norm, and rotary positions")},
    {"mistral3", IMAGES},
    {"mllama", IMAGES},
    {"llava*", IMAGES},
    {"qwen2_vl", IMAGES},
    {"qwen2_5_vl", IMAGES},
    {"qwen3_vl*", IMAGES},
};

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value ? value : "";
}

static bool is_true(const json_t *object, const char *key)
{
    return json_is_true(json_object_get(object, key));
}

static const char *refused_for(const char *type)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        size_t n = strlen(refused[i].type);
        bool all = refused[i].type[n - 1] == '*';
        if (all ? strncmp(type, refused[i].type, n - 1) == 0 : strcmp(type, refused[i].type) == 0)
            return refused[i].is;
    }
    return NULL;
}

static int unsupported(struct error *err, const char *type, const char *key, const char *value)
{
    char printed[64];
    return error_set(err, EXIT_CONFIG, "use a model without it",
                     "config.json of a %s model: %s %s is not supported", type, key,
                     name_printable(printed, sizeof printed, value));
}

/* Reads an integer of at most 2^31 - 1 under the first of two keys that exists; null and 0 are absent. */
static int read_integer(const json_t *root, const char *key, const char *other, int64_t *value,
                        struct error *err)
{
    const json_t *found = json_object_get(root, key);
    *value = 0;
    if (!found && other) found = json_object_get(root, key = other);
    if (!found || json_is_null(found)) return 0;
    if (json_is_integer(found) && json_integer_value(found) >= 0 && json_integer_value(found) <= INT32_MAX) {
        *value = (int64_t)json_integer_value(found);
        return 0;
    }
    return error_set(err, EXIT_CONFIG, "is the file whole?", "config.json: %s is not 0 to %d", key,
                     INT32_MAX);
}

/* Reads a positive number; `usual` if it is absent or null. */
static int read_number(const json_t *root, const char *key, double usual, double *value, struct error *err)
{
    const json_t *found = json_object_get(root, key);
    *value = usual;
    if (!found || json_is_null(found)) return 0;
    *value = json_number_value(found);
    if (json_is_number(found) && *value > 0 && *value < 1e15) return 0;
    return error_set(err, EXIT_CONFIG, "is the file whole?", "config.json: %s is not a number above 0", key);
}

static double yarn_scale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static int read_yarn(struct language_config *c, const json_t *rope, struct error *err)
{
    struct rope_of_tokens *r = &c->rope;
    double mscale, all;
    int code = read_number(rope, "beta_slow", 1, &r->low, err);
    if (!code) code = read_number(rope, "beta_fast", 32, &r->high, err);
    if (!code) code = read_number(rope, "mscale", 0, &mscale, err);
    if (!code) code = read_number(rope, "mscale_all_dim", 0, &all, err);
    if (code) return code;
    double usual = mscale > 0 && all > 0 ? yarn_scale(r->factor, mscale) / yarn_scale(r->factor, all)
                                         : yarn_scale(r->factor, 1);
    if (json_is_false(json_object_get(rope, "truncate")))
        return unsupported(err, c->type, "truncate of yarn:", "false");
    return read_number(rope, "attention_factor", usual, &r->attention, err);
}

/* rope_theta and rope_scaling, or both in rope_parameters, as transformers 5 writes them. */
static int read_rope(struct language_config *c, const json_t *root, struct error *err)
{
    static const char *const names[] = {[ROPE_UNSCALED] = "default",
                                        [ROPE_LINEAR] = "linear",
                                        [ROPE_LLAMA3] = "llama3",
                                        [ROPE_YARN] = "yarn"};
    const json_t *rope = json_object_get(root, "rope_parameters");
    struct rope_of_tokens *r = &c->rope;
    double whole;
    if (!json_is_object(rope)) rope = json_object_get(root, "rope_scaling");
    int code = read_number(root, "rope_theta", 10000, &r->theta, err);
    if (!code) code = read_number(rope, "rope_theta", r->theta, &r->theta, err);
    if (!code) code = read_number(root, "partial_rotary_factor", 1, &whole, err);
    if (!code) code = read_number(rope, "partial_rotary_factor", whole, &whole, err);
    if (code) return code;
    if (whole < 1) return unsupported(err, c->type, "partial_rotary_factor", "below 1");
    const char *type = text(rope, "rope_type");
    if (!*type) type = text(rope, "type");
    size_t kind = 0;
    while (*type && kind < sizeof names / sizeof *names && strcmp(type, names[kind]) != 0) kind++;
    if (kind == sizeof names / sizeof *names)
        return unsupported(err, c->type, "rotary scaling of type", type);
    r->scaling = (enum rope_scaling)kind;
    if (!kind) return 0;
    code = read_number(rope, "factor", 1, &r->factor, err);
    if (!code && kind != ROPE_LINEAR)
        code = read_number(rope, "original_max_position_embeddings", (double)c->positions, &r->original, err);
    if (!code && kind == ROPE_YARN) return read_yarn(c, rope, err);
    if (!code && kind == ROPE_LLAMA3) {
        code = read_number(rope, "low_freq_factor", 1, &r->low, err);
        if (!code) code = read_number(rope, "high_freq_factor", 4, &r->high, err);
    }
    return code;
}

/* A window of all blocks or of none; others are refused. */
static int read_window(struct language_config *c, const struct type *type, const json_t *root,
                       struct error *err)
{
    const json_t *kinds = json_object_get(root, "layer_types"), *kind;
    int64_t window, from;
    size_t i, sliding = 0;
    int code = read_integer(root, "sliding_window", NULL, &window, err);
    if (!code) code = read_integer(root, "max_window_layers", NULL, &from, err);
    if (code) return code;
    bool windows = type->windows || is_true(root, "use_sliding_window"),
         none = !windows || (!type->windows && from >= c->depth);
    if (windows && !none && !type->windows && from > 0 && !json_is_array(kinds))
        return unsupported(err, c->type, "sliding_window in only some blocks:", "max_window_layers");
    json_array_foreach((json_t *)(uintptr_t)kinds, i, kind)
    {
        const char *name = json_string_value(kind);
        bool slides = name && strcmp(name, "sliding_attention") == 0;
        if (!slides && (!name || strcmp(name, "full_attention") != 0))
            return unsupported(err, c->type, "layer_types:", name ? name : "a block of another kind");
        sliding += slides;
    }
    if (sliding && sliding < json_array_size(kinds))
        return unsupported(err, c->type, "sliding_window in only some blocks:", "layer_types");
    if (json_array_size(kinds)) none = !sliding;
    c->window = none ? 0 : window;
    return 0;
}

static int read_sizes(struct language_config *c, const json_t *root, struct error *err)
{
    const struct {
        int64_t *field;
        const char *key, *other; /* GPT-2's */
    } sizes[] = {{&c->width, "hidden_size", "n_embd"},
                 {&c->depth, "num_hidden_layers", "n_layer"},
                 {&c->heads, "num_attention_heads", "n_head"},
                 {&c->hidden, "intermediate_size", "n_inner"},
                 {&c->positions, "max_position_embeddings", "n_positions"},
                 {&c->vocabulary, "vocab_size", NULL},
                 {&c->kv_heads, "num_key_value_heads", NULL},
                 {&c->head_dim, "head_dim", NULL}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int code = read_integer(root, sizes[i].key, sizes[i].other, sizes[i].field, err);
        if (code) return code;
    }
    return 0;
}

static int read_activation(struct language_config *c, const json_t *root, struct error *err)
{
    bool gated = family_ffn(c->family) == 1 + ACTIVATION_SWIGLU;
    const char *name = text(root, "hidden_act");
    if (!*name) name = text(root, "activation_function");
    if (gated && *name && strcmp(name, "silu") != 0 && strcmp(name, "swish") != 0)
        return unsupported(err, c->type, "hidden_act", name);
    c->ffn = gated || !*name ? family_ffn(c->family) : activation_named(name);
    return c->ffn ? 0 : unsupported(err, c->type, "activation_function", name);
}

static int read_model(struct language_config *c, const struct type *type, const json_t *root,
                      struct error *err)
{
    static const char *const odd[] = {"scale_attn_by_inverse_layer_idx", "add_cross_attention",
                                      "rope_interleaved", "is_decoder"};
    const json_t *tied = json_object_get(root, "tie_word_embeddings");
    c->family = type->family;
    c->tied = json_is_boolean(tied) ? json_is_true(tied) : type->tied;
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        if (is_true(root, odd[i])) return unsupported(err, c->type, odd[i], "true");
    if (json_is_false(json_object_get(root, "scale_attn_weights")))
        return unsupported(err, c->type, "scale_attn_weights", "false");
    if (json_is_object(json_object_get(root, "quantization_config")))
        return unsupported(err, c->type, "quantization_config of method",
                           text(json_object_get(root, "quantization_config"), "quant_method"));
    int code = read_sizes(c, root, err);
    if (!code) code = read_activation(c, root, err);
    if (!code) code = read_number(root, "rms_norm_eps", type->norm_eps, &c->norm_eps, err);
    if (!code) code = read_number(root, "layer_norm_epsilon", c->norm_eps, &c->norm_eps, err);
    if (!code) code = read_number(root, "layer_norm_eps", c->norm_eps, &c->norm_eps, err);
    const char *kind = text(root, "position_embedding_type");
    if (!code && *kind && strcmp(kind, "absolute") != 0)
        return unsupported(err, c->type, "position_embedding_type", kind);
    if (!code) code = read_window(c, type, root, err);
    return code ? code : read_rope(c, root, err);
}

int language_config_read(struct language_config *c, const char *checkpoint, struct error *err)
{
    struct error local;
    json_t *root = NULL;
    *c = (struct language_config){.family = FAMILY_UNKNOWN};
    int code = sidecar_object(&root, checkpoint, "config.json", err ? err : &local);
    const char *type = text(root, "model_type"), *is = refused_for(type);
    name_printable(c->type, sizeof c->type, type);
    if (!code && is)
        code = error_set(err, EXIT_CONFIG, SUPPORTED, "config.json: a model of type %s is not supported: %s",
                         c->type, is);
    for (size_t i = 0; i < sizeof types / sizeof *types && !code; i++)
        if (strcmp(type, types[i].type) == 0) code = read_model(c, &types[i], root, err);
    json_decref(root);
    return code;
}
