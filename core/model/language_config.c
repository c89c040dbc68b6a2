/* The config.json of a language model: see language_config.h. Defaults are those of transformers' classes. */
#include "core/model/language_config.h"
#include "core/base/json.h"
#include "core/base/json_members.h"
#include "core/model/config_members.h"
#include "core/model/family.h"
#include "core/model/sidecar.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUPPORTED                                                                                            \
    "supported: gpt2, llama, mistral, qwen2, qwen3; bert, distilbert, roberta, xlm-roberta, camembert, "     \
    "electra and big_bird"
#define CHECK N_("remove it if it changes nothing; else use another model")

#define LLAMA_MEMBERS                                                                                        \
    {"hidden_size", NULL}, {"intermediate_size", NULL}, {"num_hidden_layers", NULL},                         \
        {"num_attention_heads", NULL}, {"num_key_value_heads", NULL}, {"head_dim", NULL},                    \
        {"hidden_act", NULL}, {"max_position_embeddings", NULL}, {"rms_norm_eps", NULL},                     \
        {"rope_parameters", NULL}, {"rope_scaling", NULL}, {"rope_theta", NULL},                             \
        {"partial_rotary_factor", "1"}, {"rope_interleaved", "false"}, {"attention_bias", "false"},          \
        {"mlp_bias", "false"}, {"attention_dropout", NULL}, {"layer_types", NULL},                           \
    {                                                                                                        \
        "max_window_layers", NULL                                                                            \
    }
static const struct json_member llama_members[] = {
    LLAMA_MEMBERS, {"use_sliding_window", "false"}, {"sliding_window", "null"}, {NULL, NULL}};
static const struct json_member mistral_members[] = {
    LLAMA_MEMBERS, {"use_sliding_window", "false"}, {"sliding_window", NULL}, {NULL, NULL}};
static const struct json_member qwen_members[] = {
    LLAMA_MEMBERS, {"use_sliding_window", NULL}, {"sliding_window", NULL}, {NULL, NULL}};

static const struct json_member gpt2_members[] = {
    {"n_embd", NULL},
    {"hidden_size", NULL},
    {"n_layer", NULL},
    {"num_hidden_layers", NULL},
    {"n_head", NULL},
    {"num_attention_heads", NULL},
    {"n_positions", NULL},
    {"max_position_embeddings", NULL},
    {"n_inner", NULL},
    {"intermediate_size", NULL}, /* the class has n_inner alone */
    {"n_ctx", NULL},             /* the class has n_positions */
    {"activation_function", NULL},
    {"layer_norm_epsilon", NULL},
    {"resid_pdrop", NULL},
    {"embd_pdrop", NULL},
    {"attn_pdrop", NULL},
    {"scale_attn_weights", "true"},
    {"scale_attn_by_inverse_layer_idx", "false"},
    {"reorder_and_upcast_attn", NULL}, /* of a product in half precision */
    {"n_special", "0"},
    {"predict_special_tokens", NULL},
    {NULL, NULL},
};

#define BERT_MEMBERS                                                                                         \
    {"hidden_size", NULL}, {"num_hidden_layers", NULL}, {"num_attention_heads", NULL},                       \
        {"intermediate_size", NULL}, {"max_position_embeddings", NULL}, {"type_vocab_size", NULL},           \
        {"hidden_act", NULL}, {"layer_norm_eps", NULL}, {"hidden_dropout_prob", NULL},                       \
        {"attention_probs_dropout_prob", NULL}, {"classifier_dropout", NULL},                                \
        {"position_embedding_type", "\"absolute\""},                                                         \
    {                                                                                                        \
        "output_past", NULL                                                                                  \
    }
static const struct json_member bert_members[] = {
    BERT_MEMBERS,
    {"directionality", "\"bidi\""},
    {"pooler_*", NULL}, /* of TensorFlow's files, no class reads them */
    {NULL, NULL},
};
/* The class counts the padding's number before the first position. */
static const struct json_member roberta_members[] = {BERT_MEMBERS, {"pad_token_id", "1"}, {NULL, NULL}};
static const struct json_member electra_members[] = {BERT_MEMBERS, {"embedding_size", NULL}, {NULL, NULL}};

static const struct json_member big_bird_members[] = {BERT_MEMBERS,
                                                      {"attention_type", NULL},
                                                      {"block_size", NULL},
                                                      {"num_random_blocks", NULL},
                                                      {"use_bias", "true"},
                                                      {"rescale_embeddings", "false"},
                                                      {"norm_type", "\"postnorm\""}, /* no class reads it */
                                                      {NULL, NULL}};

static const struct json_member distilbert_members[] = {
    {"dim", NULL},
    {"hidden_size", NULL},
    {"n_layers", NULL},
    {"num_hidden_layers", NULL},
    {"n_heads", NULL},
    {"num_attention_heads", NULL},
    {"hidden_dim", NULL},
    {"max_position_embeddings", NULL},
    {"activation", NULL},
    {"dropout", NULL},
    {"attention_dropout", NULL},
    {"qa_dropout", NULL}, /* of another head */
    {"seq_classif_dropout", NULL},
    {"sinusoidal_pos_embds", "false"}, /* else its table of positions is not trained */
    {"tie_weights_", "true"},
    {"output_past", NULL},
    {NULL, NULL},
};

#define ENCODER(type, members, heads, family)                                                                \
    {                                                                                                        \
        type, "layer_norm_eps", "hidden_act", members, 1e-12, heads, 0, 0, family, PART_QKV_BIAS, true,      \
            false                                                                                            \
    }
/* Model types that are read, and the defaults of their classes. A Llama 2 or 3, TinyLlama, SmolLM or Yi is a
 * llama. */
static const struct type {
    const char *type, *eps, *act; /* its members for the epsilon of the norms, and the activation */
    const struct json_member *members;
    double norm_eps;
    int64_t heads, positions, window;
    enum family family;
    int parts;
    bool tied, windows; /* sliding_window is in use unless it is null */
} types[] = {
    {"gpt2", "layer_norm_epsilon", "activation_function", gpt2_members, 1e-5, 12, 0, 0, FAMILY_GPT2,
     PART_QKV_BIAS, true, false},
    {"llama", "rms_norm_eps", "hidden_act", llama_members, 1e-6, 32, 2048, 0, FAMILY_LLAMA, 0, false, false},
    {"mistral", "rms_norm_eps", "hidden_act", mistral_members, 1e-6, 32, 131072, 4096, FAMILY_LLAMA, 0, false,
     true},
    {"qwen2", "rms_norm_eps", "hidden_act", qwen_members, 1e-6, 32, 32768, 4096, FAMILY_LLAMA, PART_QKV_BIAS,
     false, false},
    {"qwen3", "rms_norm_eps", "hidden_act", qwen_members, 1e-6, 32, 32768, 4096, FAMILY_LLAMA, PART_QK_NORM,
     false, false},
    ENCODER("bert", bert_members, 12, FAMILY_BERT),
    ENCODER("roberta", roberta_members, 12, FAMILY_ROBERTA),
    ENCODER("xlm-roberta", roberta_members, 12, FAMILY_ROBERTA),
    ENCODER("camembert", roberta_members, 12, FAMILY_ROBERTA),
    ENCODER("electra", electra_members, 4, FAMILY_ELECTRA),
    ENCODER("big_bird", big_bird_members, 12, FAMILY_BIG_BIRD),
    {"distilbert", "", "activation", distilbert_members, 1e-12, 12, 0, 0, FAMILY_DISTILBERT, PART_QKV_BIAS,
     true, false},
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
    {"gptj", PARALLEL},
    {"falcon", PARALLEL},
    {"phi", PARALLEL},
    {"cohere*", PARALLEL},
    {"persimmon", N_("rotary positions in a part of each head")},
    {"nemotron", N_("rotary positions in a part of each head")},
    {"glm*", N_("rotary positions in a part of each head")},
    {"chatglm", N_("rotary positions in a part of each head")},
    {"minicpm3", N_("latent attention")},
    {"minicpm", N_("scales of the embedding and of each branch")},
    {"granite", N_("scales of the embedding and of each branch")},
    {"olmo", N_("norms without weights")},
    {"olmo2", N_("norms after the branches")},
    {"olmo3", N_("norms after the branches")},
    {"exaone*", N_("other names or norms")},
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
    {"roberta-*", N_("norms before the branches")},
    {"xlm-roberta-*", N_("norms before the branches")},
    {"mpnet", N_("relative positions in the attention")},
    {"albert", N_("blocks that share their weights")},
    {"deberta*", N_("relative positions in the attention")},
    {"modernbert*", N_("pre-norm, and rotary positions")},
    {"mistral3", IMAGES},
    {"mllama", IMAGES},
    {"llava*", IMAGES},
    {"qwen2_vl", IMAGES},
    {"qwen2_5_vl", IMAGES},
    {"qwen3_vl*", IMAGES},
};

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

static int contradiction(struct error *err, const char *key, double value, const char *other, double its)
{
    return error_set(err, EXIT_CONFIG, "remove the one that is not meant",
                     "config.json: %s is %.9g, but %s is %.9g", key, value, other, its);
}

/* Reads an integer of `least` to 2^31 - 1; `usual` if it is absent, 0 if it is null. */
static int read_integer(const json_t *root, const char *key, int64_t least, int64_t usual, int64_t *value,
                        struct error *err)
{
    const json_t *found = json_object_get(root, key);
    *value = found ? 0 : usual;
    if (!found || json_is_null(found)) return 0;
    *value = (int64_t)json_integer_value(found);
    if (json_is_integer(found) && *value >= least && *value <= INT32_MAX) return 0;
    return error_set(err, EXIT_CONFIG, "is the file whole?", "config.json: %s is not %lld to %d", key,
                     (long long)least, INT32_MAX);
}

/* Reads a positive number; `usual` if it is absent or null. */
static int read_number(const json_t *root, const char *key, double usual, double *value, struct error *err)
{
    const json_t *found = json_object_get(root, key);
    *value = usual;
    if (!found || json_is_null(found)) return 0;
    *value = json_number_value(found);
    if (json_is_number(found) && (float)*value > 0 && *value < 1e15) return 0;
    return error_set(err, EXIT_CONFIG, "is the file whole?", "config.json: %s is not a number above 0", key);
}

static double yarn_scale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static int read_yarn(struct language_config *c, const json_t *rope, struct error *err)
{
    struct rope_of_tokens *r = &c->says.rope;
    double mscale, all;
    int code = read_number(rope, "beta_slow", 1, &r->low, err);
    if (!code) code = read_number(rope, "beta_fast", 32, &r->high, err);
    if (!code) code = read_number(rope, "mscale", 0, &mscale, err);
    if (!code) code = read_number(rope, "mscale_all_dim", 0, &all, err);
    if (code) return code;
    double usual = mscale > 0 && all > 0 ? yarn_scale(r->factor, mscale) / yarn_scale(r->factor, all)
                                         : yarn_scale(r->factor, 1);
    return read_number(rope, "attention_factor", usual, &r->attention, err);
}

static const char *const rope_types[] = {
    [ROPE_UNSCALED] = "default", [ROPE_LINEAR] = "linear", [ROPE_LLAMA3] = "llama3", [ROPE_YARN] = "yarn"};

const char *language_rope_type(enum rope_scaling scaling) { return rope_types[scaling]; }

/* Reads rope_parameters or rope_scaling, but for its rope_theta. */
static int read_scaling(struct language_config *c, const json_t *rope, const char *key, struct error *err)
{
    static const struct json_member members[] = {
        {"rope_theta", NULL},
        {"rope_type", NULL},
        {"type", NULL},
        {"factor", NULL},
        {"original_max_position_embeddings", NULL},
        {"low_freq_factor", NULL},
        {"high_freq_factor", NULL},
        {"beta_fast", NULL},
        {"beta_slow", NULL},
        {"attention_factor", NULL},
        {"mscale", NULL},
        {"mscale_all_dim", NULL},
        {"truncate", "true"},
        {"partial_rotary_factor", "1"},
        {"finetuned", NULL}, /* says how the weights were made */
        {NULL, NULL},
    };
    struct rope_of_tokens *r = &c->says.rope;
    int code = json_members_check(rope, members, NULL, key, CHECK, err);
    const char *type = json_word(rope, "rope_type"), *old = json_word(rope, "type");
    if (!code && *type && *old && strcmp(type, old) != 0)
        code = error_set(err, EXIT_CONFIG, "remove the one that is not meant",
                         "config.json: rope_type is %.40s, but type is %.40s", type, old);
    if (code) return code;
    if (!*type) type = old;
    size_t kind = 0, kinds = sizeof rope_types / sizeof *rope_types;
    while (*type && kind < kinds && strcmp(type, rope_types[kind]) != 0) kind++;
    if (kind == kinds)
        return error_set(err, EXIT_CONFIG, "use a model without it",
                         "config.json of a %s model: %s of type %.40s is not supported", c->type, key, type);
    *r = (struct rope_of_tokens){.scaling = (enum rope_scaling)kind};
    static const char *const needed[] = {"factor", "low_freq_factor", "high_freq_factor"};
    for (size_t i = 0; kind && i < (kind == ROPE_LLAMA3 ? 3 : 1); i++)
        if (!json_is_number(json_object_get(rope, needed[i])))
            return error_set(err, EXIT_CONFIG, "is the file whole?",
                             "config.json: %s of type %s has no number %s", key, type, needed[i]);
    code = read_number(rope, "factor", 1, &r->factor, err);
    if (!code && !kind && r->factor > 1)
        return error_set(err, EXIT_CONFIG, "add its rope_type, or remove the factor",
                         "config.json: %s has factor %g, but no scaling of a known type", key, r->factor);
    if (!kind) r->factor = 0;
    if (!code && kind > ROPE_LINEAR)
        code = read_number(rope, "original_max_position_embeddings", (double)c->says.positions, &r->original,
                           err);
    if (!code && kind == ROPE_YARN) code = read_yarn(c, rope, err);
    if (!code && kind == ROPE_LLAMA3) code = read_number(rope, "low_freq_factor", 1, &r->low, err);
    if (!code && kind == ROPE_LLAMA3) code = read_number(rope, "high_freq_factor", 4, &r->high, err);
    return code;
}

static bool same_scaling(const struct rope_of_tokens *a, const struct rope_of_tokens *b)
{
    double differ = fabs(a->factor - b->factor) + fabs(a->original - b->original) + fabs(a->low - b->low) +
                    fabs(a->high - b->high) + fabs(a->attention - b->attention);
    return a->scaling == b->scaling && !(differ > 0);
}

/* Reads rope_theta and rope_scaling, or both in rope_parameters, as transformers 5 writes them. Two different
 * values are refused: transformers' versions differ in which they take. */
static int read_rope(struct language_config *c, const json_t *root, struct error *err)
{
    static const char *const keys[] = {"rope_parameters", "rope_scaling"};
    struct rope_of_tokens first = {0};
    bool found = false;
    double theta, own;
    int code = read_number(root, "rope_theta", 0, &theta, err);
    for (size_t i = 0; i < 2 && !code; i++) {
        const json_t *rope = json_object_get(root, keys[i]);
        if (!rope || json_is_null(rope)) continue;
        if (!json_is_object(rope))
            return error_set(err, EXIT_CONFIG, "is the file whole?", "config.json: %s is no object", keys[i]);
        code = read_number(rope, "rope_theta", theta, &own, err);
        if (!code && theta > 0 && fabs(own - theta) > 0)
            return contradiction(err, "rope_theta", theta, _("rope_theta of the rotary positions"), own);
        theta = own;
        if (!code) code = read_scaling(c, rope, keys[i], err);
        if (!code && found && !same_scaling(&first, &c->says.rope))
            return error_set(err, EXIT_CONFIG, "remove the one that is not meant",
                             "config.json: %s has type %s and factor %g, but %s type %s and factor %g",
                             keys[0], rope_types[first.scaling], first.factor, keys[1],
                             rope_types[c->says.rope.scaling], c->says.rope.factor);
        first = c->says.rope;
        found = true;
    }
    c->says.rope.theta = theta > 0 ? theta : 10000;
    return code;
}

/* Counts the blocks with a window in layer_types, all of them: *kinds -1 without the member. */
static int count_windows(const struct language_config *c, const json_t *root, int64_t *sliding,
                         struct error *err)
{
    const json_t *kinds = json_object_get(root, "layer_types"), *kind;
    size_t i;
    *sliding = -1;
    if (!kinds || json_is_null(kinds)) return 0;
    *sliding = 0;
    json_array_foreach((json_t *)(uintptr_t)kinds, i, kind)
    {
        const char *name = json_string_value(kind);
        bool slides = name && strcmp(name, "sliding_attention") == 0;
        if (!slides && (!name || strcmp(name, "full_attention") != 0))
            return unsupported(err, c->type, "layer_types:", name ? name : "a block of another kind");
        *sliding += slides;
    }
    if (c->says.depth && json_array_size(kinds) != (size_t)c->says.depth)
        return contradiction(err, "num_hidden_layers", (double)c->says.depth, _("the length of layer_types"),
                             (double)json_array_size(kinds));
    if (*sliding && *sliding < c->says.depth)
        return unsupported(err, c->type, "sliding_window in only some blocks:", "layer_types");
    return 0;
}

/* A window of all blocks or of none; others are refused. */
static int read_window(struct language_config *c, const struct type *type, const json_t *root,
                       struct error *err)
{
    enum { FIRST = 28 }; /* of Qwen's classes: the first block with a window */
    int64_t from, sliding;
    int code = read_integer(root, "sliding_window", 1, type->window, &c->says.window, err);
    if (!code) code = read_integer(root, "max_window_layers", 0, FIRST, &from, err);
    if (!code) code = count_windows(c, root, &sliding, err);
    if (code) return code;
    if (!type->windows && !is_true(root, "use_sliding_window")) c->says.window = 0;
    bool some = c->says.window && !type->windows && from > 0 && from < c->says.depth;
    if (c->says.window && !type->windows && sliding < 0 && from >= c->says.depth) c->says.window = 0;
    if (sliding < 0 && some)
        return unsupported(err, c->type, "sliding_window in only some blocks:", "max_window_layers");
    if (sliding > 0 && !c->says.window)
        return unsupported(err, c->type, "layer_types:", _("sliding_attention without a window in use"));
    if (sliding == 0 && c->says.window && type->windows)
        return unsupported(err, c->type, "layer_types:", _("full_attention with a sliding_window"));
    if (sliding == 0) c->says.window = 0;
    return 0;
}

static int read_sizes(struct language_config *c, const struct type *type, const json_t *root,
                      struct error *err)
{
    const struct family_row *family = family_row(c->says.family);
    static const enum fact sizes[] = {FACT_WIDTH,     FACT_DEPTH,      FACT_HEADS,     FACT_HIDDEN,
                                      FACT_POSITIONS, FACT_VOCABULARY, FACT_EMBEDDING, FACT_TYPES,
                                      FACT_KV_HEADS,  FACT_HEAD_DIM};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const struct fact_row *row = &fact_rows[sizes[i]];
        const char *name = fact_member(sizes[i], family->members);
        bool other = name != row->member, second = other && json_object_get(root, name);
        const char *key =
            other && sizes[i] == FACT_HIDDEN ? "" : row->member; /* the class has its own alone */
        int64_t before = sizes[i] == FACT_POSITIONS ? family->first_position : 0, value, own,
                usual = sizes[i] == FACT_HEADS       ? type->heads
                        : sizes[i] == FACT_POSITIONS ? type->positions
                                                     : 0;
        int code = read_integer(root, key, 1 + before, usual, &value, err);
        if (!code && second) code = read_integer(root, name, 1, 0, &own, err);
        if (code) return code;
        if (second && json_object_get(root, key) && value != own)
            return contradiction(err, key, (double)value, name, (double)own);
        if (value) value -= before;
        fact_set(&c->says, sizes[i], (double)(second ? own : value), SOURCE_SIDECAR);
    }
    return 0;
}

/* Reads the largest probability of dropout. */
static void read_dropout(struct language_config *c, const json_t *root)
{
    static const char *const keys[] = {"resid_pdrop",
                                       "embd_pdrop",
                                       "attn_pdrop",
                                       "dropout",
                                       "attention_dropout",
                                       "seq_classif_dropout",
                                       "hidden_dropout_prob",
                                       "classifier_dropout",
                                       "attention_probs_dropout_prob"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        double value = json_number_value(json_object_get(root, keys[i]));
        if (value > c->dropout) c->dropout = value;
    }
}

static int read_activation(struct language_config *c, const char *key, const json_t *root, struct error *err)
{
    const char *name = json_word(root, key);
    bool gated = family_ffn(c->says.family) == 1 + ACTIVATION_SWIGLU;
    if (gated && *name && strcmp(name, "silu") != 0 && strcmp(name, "swish") != 0)
        return unsupported(err, c->type, key, name);
    c->says.ffn = gated || !*name ? family_ffn(c->says.family) : activation_named(name);
    return c->says.ffn ? 0 : unsupported(err, c->type, key, name);
}

/* Block-sparse attention of the class, or all tokens see all. */
static int read_blocks(struct language_config *c, const json_t *root, struct error *err)
{
    const struct family_row *row = family_row(c->says.family);
    const char *type = json_word(root, "attention_type");
    int code = read_integer(root, "block_size", 1, row->block, &c->says.block, err);
    if (!code) code = read_integer(root, "num_random_blocks", 0, row->random, &c->says.random, err);
    if (code) return code;
    if (strcmp(type, "original_full") == 0) c->says.block = BLOCK_NONE;
    else if (*type && strcmp(type, "block_sparse") != 0)
        return unsupported(err, c->type, "attention_type", type);
    if (c->says.block) return 0;
    return error_set(err, EXIT_CONFIG, "is the file whole?", "config.json: %s is null", "block_size");
}

static int read_model(struct language_config *c, const struct type *type, const json_t *root,
                      struct error *err)
{
    const json_t *tied = json_object_get(root, "tie_word_embeddings");
    char what[80];
    double norm_eps = 0;
    c->says.family = type->family;
    c->says.parts = type->parts;
    c->says.tied = json_is_boolean(tied) ? json_is_true(tied) : type->tied;
    if (json_is_object(json_object_get(root, "quantization_config")))
        return unsupported(err, c->type, "quantization_config of method",
                           json_word(json_object_get(root, "quantization_config"), "quant_method"));
    snprintf(what, sizeof what, _("config.json of a %s model"), c->type);
    int code = json_members_check(root, type->members, config_every_class, what, CHECK, err);
    if (!code) code = read_sizes(c, type, root, err);
    if (!code) code = read_activation(c, type->act, root, err);
    if (!code) code = read_number(root, type->eps, type->norm_eps, &norm_eps, err);
    c->says.norm_eps = (float)norm_eps;
    if (!code && family_row(c->says.family)->rms) code = read_window(c, type, root, err);
    if (!code && family_row(c->says.family)->block) code = read_blocks(c, root, err);
    read_dropout(c, root);
    return code || !family_row(c->says.family)->rms ? code : read_rope(c, root, err);
}

int language_config_arguments(struct language_config *c, const struct weights *weights, struct error *err)
{
    static const struct {
        enum fact fact;
        const char *key;
    } fields[] = {{FACT_HEADS, "model_args.n_head"},
                  {FACT_WIDTH, "model_args.n_embd"},
                  {FACT_DEPTH, "model_args.n_layer"},
                  {FACT_POSITIONS, "model_args.block_size"},
                  {FACT_VOCABULARY, "model_args.vocab_size"}};
    if (!weights_metadata(weights, fields[0].key)) return 0;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const char *value = weights_metadata(weights, fields[i].key);
        char printed[64];
        if (value && !fact_read(&c->says, fields[i].fact, value))
            return error_set(err, EXIT_CONFIG, "use a checkpoint of another architecture",
                             "%s is %s, expected 1 to %lld", fields[i].key,
                             name_printable(printed, sizeof printed, value),
                             (long long)fact_rows[fields[i].fact].most);
    }
    c->says.family = FAMILY_GPT2;
    c->says.parts = PART_QKV_BIAS;
    c->says.ffn = 1 + ACTIVATION_GELU; /* torch.nn.GELU() */
    c->says.norm_eps = 1e-5f;
    c->says.tied = true;
    return 0;
}

int language_config_read(struct language_config *c, const char *checkpoint, struct error *err)
{
    struct error local;
    json_t *root = NULL;
    *c = (struct language_config){.type = ""};
    int code = sidecar_object(&root, checkpoint, "config.json", err ? err : &local);
    const char *type = json_word(root, "model_type"), *is = refused_for(type);
    name_printable(c->type, sizeof c->type, type);
    if (!code && is)
        code = error_set(err, EXIT_CONFIG, SUPPORTED, "config.json: a model of type %s is not supported: %s",
                         c->type, is);
    for (size_t i = 0; i < sizeof types / sizeof *types && !code; i++)
        if (strcmp(type, types[i].type) == 0) code = read_model(c, &types[i], root, err);
    json_decref(root);
    return code;
}

int language_config_check(const struct language_config *c, enum family family, struct error *err)
{
    if (!c->type[0] || c->says.family == family) return 0;
    return error_set(err, EXIT_CONFIG, SUPPORTED, "config.json: a model of type %s is not supported%s",
                     c->type, c->says.family ? _(" with these tensors") : "");
}
