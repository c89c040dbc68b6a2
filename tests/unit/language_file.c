/* Checkpoints of language models: shapes from tensors and config.json, values in transformers' layout and
 * back, refusals by model type. */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/model/metadata.h"
#include "core/model/parameters.h"
#include "core/model/rename_keys.h"
#include "core/weights/weights.h"
#include "tests/mentions.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/unit/language_put.h"

#define LLAMA_SIZES                                                                                          \
    "\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":8,\"num_key_value_heads\":2,"        \
    "\"intermediate_size\":96,\"vocab_size\":80,\"max_position_embeddings\":512"
#define GPT2_SIZES                                                                                           \
    "\"n_embd\":64,\"n_layer\":2,\"n_head\":8,\"n_positions\":32,\"vocab_size\":80,\"n_inner\":null"

static char directory[64];

static int make_directory(void **state)
{
    strcpy(directory, "/tmp/meopt-language-XXXXXX");
    return mkdtemp(directory) == NULL;
}
static int remove_directory(void **state) { return file_remove_tree(directory, NULL); }

static char *path_of(const char *name) { return path_join(directory, name); }

static void put_config(const char *text)
{
    char *path = path_of("config.json");
    if (!text) unlink(path);
    else assert_int_equal(file_write_atomic(path, text, strlen(text), NULL), 0);
    free(path);
}

static struct model_shape small(enum family family)
{
    struct model_shape g = {.family = family,
                            .vocabulary = 80,
                            .positions = 32,
                            .width = 64,
                            .depth = 2,
                            .heads = 8,
                            .hidden = 96,
                            .parts = PARTS_KNOWN};
    if (family == FAMILY_GPT2) {
        g.hidden = 256;
        g.tied = true;
        g.parts |= PART_QKV_BIAS;
    } else g.kv_heads = 2;
    return g;
}

/* Value i of a parameter; different in all. */
static float value_of(int parameter, int64_t i) { return (float)(parameter + 1) + (float)i / 65536; }

/* Writes a model as meopt's checkpoints have it. */
static float numbered(const struct parameter *p, int parameter, int64_t i)
{
    (void)p;
    return value_of(parameter, i);
}

static void put_own(struct model_shape *g, const char *name)
{
    struct error err = {0};
    if (model_shape_check(g, 0, &err)) fail_msg("%s", err.what);
    char *path = path_of(name);
    put_model(g, path, numbered);
    free(path);
}

static struct weights *open_named(const char *name)
{
    struct weights *w = NULL;
    struct error err = {0};
    char *path = path_of(name);
    if (weights_open(&w, path, &err)) fail_msg("%s: %s", name, err.what);
    free(path);
    return w;
}

/* Writes own.safetensors as transformers has it. */
static void put_renamed(const struct model_shape *g, const char *name)
{
    struct rename_keys *r;
    struct error err = {0};
    struct weights *own = open_named("own.safetensors");
    char *path = path_of(name);
    rename_keys_open(&r, own, DTYPE_F32);
    if (rename_keys_library(r, g, LIBRARY_TRANSFORMERS, &err) ||
        weights_write_safetensors(path, rename_keys_rows(r), rename_keys_count(r), NULL, &err))
        fail_msg("%s", err.what);
    rename_keys_close(r);
    weights_close(own);
    free(path);
}

/* The exit code of everything that is asked of names, shapes and config.json. */
static int infer(struct model_shape *g, const char *name, struct error *err)
{
    struct weights *w = open_named(name);
    *err = (struct error){0};
    int code = model_shape_infer(g, w, 0, err);
    if (!code) code = model_shape_fits(g, NULL, w, err);
    weights_close(w);
    return code;
}

static float *read_all(const struct weights *w, const char *name, const int64_t shape[2])
{
    int64_t i = weights_find(w, name);
    if (i < 0) fail_msg("no tensor %s", name);
    const struct weights_tensor *t = weights_tensor(w, i);
    assert_int_equal(t->ndim, 2);
    assert_int_equal(t->shape[0], shape[0]);
    assert_int_equal(t->shape[1], shape[1]);
    float *values = xcalloc((size_t)t->count, sizeof *values);
    assert_int_equal(weights_read(w, i, values, DTYPE_F32, NULL), 0);
    return values;
}

static int index_of(const struct model_shape *g, enum role role, int group)
{
    struct parameter *list;
    int count = parameters_list(g, NULL, &list), found = -1;
    for (int i = 0; i < count; i++)
        if (list[i].role == (int)role && list[i].group == group) found = i;
    free(list);
    return found;
}

static bool equal(float a, float b) { return !(fabsf(a - b) > 0); }

static void values_are_cut_and_transposed(void **state)
{
    struct model_shape g = small(FAMILY_LLAMA);
    put_own(&g, "own.safetensors");
    put_renamed(&g, "hf.safetensors");
    struct weights *w = open_named("hf.safetensors");
    float *k = read_all(w, "model.layers.1.self_attn.k_proj.weight", (int64_t[]){16, 64}),
          *up = read_all(w, "model.layers.0.mlp.up_proj.weight", (int64_t[]){96, 64});
    int qkv = index_of(&g, ROLE_QKV_W, 2), fc = index_of(&g, ROLE_FC1_W, 1);
    for (int64_t i = 0; i < 16 * 64; i++) assert_true(equal(k[i], value_of(qkv, 64 * 64 + i)));
    for (int64_t i = 0; i < 96 * 64; i++) assert_true(equal(up[i], value_of(fc, 96 * 64 + i)));
    free(k);
    free(up);
    weights_close(w);
    g = small(FAMILY_GPT2);
    put_own(&g, "own.safetensors");
    put_renamed(&g, "hf.safetensors");
    w = open_named("hf.safetensors");
    float *c = read_all(w, "transformer.h.1.attn.c_attn.weight", (int64_t[]){64, 192}),
          *wpe = read_all(w, "transformer.wpe.weight", (int64_t[]){32, 64});
    qkv = index_of(&g, ROLE_QKV_W, 2);
    int pos = index_of(&g, ROLE_POS, 0);
    for (int64_t r = 0; r < 64; r++)
        for (int64_t j = 0; j < 192; j++) assert_true(equal(c[r * 192 + j], value_of(qkv, j * 64 + r)));
    for (int64_t i = 0; i < 32 * 64; i++) assert_true(equal(wpe[i], value_of(pos, i)));
    assert_int_equal(weights_find(w, "lm_head.weight"), -1);
    free(c);
    free(wpe);
    weights_close(w);
}

static void own_files_need_no_config(void **state)
{
    struct error err;
    struct model_shape g = small(FAMILY_LLAMA), h = {.family = FAMILY_UNKNOWN};
    g.head_dim = 16;
    g.kv_heads = 4;
    g.norm_eps = 1e-6f;
    g.positions = 4096;
    g.window = 100;
    g.rope = (struct rope_of_tokens){123456.789, ROPE_YARN, 4, 1024, 1, 32, 1.1};
    put_config(NULL);
    put_own(&g, "own.safetensors");
    if (infer(&h, "own.safetensors", &err)) fail_msg("%s", err.what);
    assert_int_equal(h.family, FAMILY_LLAMA);
    assert_int_equal(h.heads, 8);
    assert_int_equal(h.kv_heads, 4);
    assert_int_equal(h.head_dim, 16);
    assert_int_equal(h.positions, 4096);
    assert_int_equal(h.window, 100);
    assert_false(h.tied || facts_assumed(&h));
    assert_true(equal(h.norm_eps, 1e-6f));
    assert_memory_equal(&g.rope, &h.rope, sizeof g.rope);
    g = small(FAMILY_GPT2);
    g.ffn = 1 + ACTIVATION_GELU;
    put_own(&g, "own.safetensors");
    h = (struct model_shape){.family = FAMILY_UNKNOWN};
    if (infer(&h, "own.safetensors", &err)) fail_msg("%s", err.what);
    assert_true(h.tied && h.ffn == 1 + ACTIVATION_GELU && h.heads == 8 && !facts_assumed(&h));
}

static void config_says_what_no_tensor_shows(void **state)
{
    struct error err;
    struct model_shape g = small(FAMILY_LLAMA), h = {.family = FAMILY_UNKNOWN};
    put_own(&g, "own.safetensors");
    put_renamed(&g, "hf.safetensors");
    put_config("{\"model_type\":\"llama\"," LLAMA_SIZES ",\"rms_norm_eps\":1e-5,\"rope_theta\":500000.0,"
               "\"tie_word_embeddings\":false,\"hidden_act\":\"silu\",\"rope_scaling\":{\"rope_type\":"
               "\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
               "\"original_max_position_embeddings\":128}}");
    if (infer(&h, "hf.safetensors", &err)) fail_msg("%s", err.what);
    assert_true(h.heads == 8 && h.kv_heads == 2 && h.head_dim == 8 && !h.tied && !facts_assumed(&h));
    assert_true(h.positions == 512 && h.context == 512 && h.window == 0);
    assert_true(h.rope.scaling == ROPE_LLAMA3 && fabs(h.rope.theta - 500000) < 1e-6 &&
                fabs(h.rope.original - 128) < 1e-9);
    assert_true(equal(h.norm_eps, 1e-5f));
    put_config("{\"model_type\":\"mistral\"," LLAMA_SIZES ",\"sliding_window\":77,\"rope_parameters\":"
               "{\"rope_type\":\"default\",\"rope_theta\":1e6}}");
    h = (struct model_shape){.family = FAMILY_UNKNOWN};
    if (infer(&h, "hf.safetensors", &err)) fail_msg("%s", err.what);
    assert_true(h.window == 77 && h.rope.scaling == ROPE_UNSCALED && fabs(h.rope.theta - 1e6) < 1e-6);
    g = small(FAMILY_LLAMA);
    g.tied = true;
    g.parts |= PART_QKV_BIAS;
    put_own(&g, "own.safetensors");
    put_renamed(&g, "hf.safetensors");
    put_config("{\"model_type\":\"qwen2\"," LLAMA_SIZES ",\"sliding_window\":77,\"use_sliding_window\":false,"
               "\"max_window_layers\":1,\"tie_word_embeddings\":true}");
    h = (struct model_shape){.family = FAMILY_UNKNOWN};
    if (infer(&h, "hf.safetensors", &err)) fail_msg("%s", err.what);
    assert_true(h.window == 0 && h.tied);
    put_config("{\"model_type\":\"qwen2\"," LLAMA_SIZES
               ",\"use_sliding_window\":true,\"max_window_layers\":0,"
               "\"tie_word_embeddings\":true}");
    h = (struct model_shape){.family = FAMILY_UNKNOWN};
    if (infer(&h, "hf.safetensors", &err)) fail_msg("%s", err.what);
    assert_true(h.window == 4096); /* the class's */
    /* what people edit in an export: config.json is newer than the metadata */
    g = small(FAMILY_LLAMA);
    g.norm_eps = 1e-6f;
    g.window = 9;
    put_own(&g, "own.safetensors");
    put_config("{\"model_type\":\"mistral\"," LLAMA_SIZES ",\"rms_norm_eps\":0.01,\"sliding_window\":null,"
               "\"rope_theta\":500000,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}");
    h = (struct model_shape){.family = FAMILY_UNKNOWN};
    if (infer(&h, "own.safetensors", &err)) fail_msg("%s", err.what);
    assert_true(equal(h.norm_eps, .01f) && h.window == 0 && fabs(h.rope.theta - 500000) < 1e-6);
    assert_true(h.rope.scaling == ROPE_LINEAR && fabs(h.rope.factor - 2) < 1e-9 && h.positions == 512);
    assert_int_equal(h.facts.from[FACT_NORM_EPS], SOURCE_SIDECAR);
    assert_string_equal(h.facts.replaced, "");
    /* the caller's values replace those of the file, which are listed */
    h = (struct model_shape){.window = 5, .rope.theta = 20000, .norm_eps = 1e-5f};
    if (infer(&h, "own.safetensors", &err)) fail_msg("%s", err.what);
    assert_true(equal(h.norm_eps, 1e-5f) && h.window == 5 && fabs(h.rope.theta - 20000) < 1e-6);
    assert_true(h.rope.scaling == ROPE_LINEAR && h.facts.from[FACT_WINDOW] == SOURCE_KEY);
    assert_true(mentions(h.facts.replaced, "window|rope_theta 500000|norm_eps 0.01"));
    g = small(FAMILY_GPT2);
    put_own(&g, "own.safetensors");
    put_renamed(&g, "hf.safetensors");
    put_config("{\"model_type\":\"gpt2\"," GPT2_SIZES ",\"activation_function\":\"gelu\"}");
    h = (struct model_shape){.family = FAMILY_UNKNOWN};
    if (infer(&h, "hf.safetensors", &err)) fail_msg("%s", err.what);
    assert_true(h.tied && h.ffn == 1 + ACTIVATION_GELU && h.positions == 32 && h.heads == 8);
    put_config(NULL);
    h = (struct model_shape){.family = FAMILY_UNKNOWN};
    if (infer(&h, "hf.safetensors", &err)) fail_msg("%s", err.what);
    assert_true(h.heads == 1 && fact_assumed(&h, FACT_HEADS) && h.ffn == 1 + ACTIVATION_GELU_TANH);
}

static void other_models_are_refused_by_name(void **state)
{
    static const struct {
        const char *config, *names;
    } rows[] = {
        {NULL, "config.json"},
        {"{\"model_type\":\"mixtral\"," LLAMA_SIZES "}", "mixtral|experts"},
        {"{\"model_type\":\"deepseek_v3\"," LLAMA_SIZES "}", "deepseek_v3|experts"},
        {"{\"model_type\":\"gemma2\"," LLAMA_SIZES "}", "gemma2"},
        {"{\"model_type\":\"yours\\u001b[2J\"," LLAMA_SIZES "}", "yours"},
        {"{\"model_type\":\"gpt2\"," GPT2_SIZES "}", "gpt2"},
        {"{\"model_type\":\"llama\"," LLAMA_SIZES ",\"tie_word_embeddings\":3,\"rope_scaling\":{\"type\":"
         "\"dynamic\",\"factor\":2}}",
         "dynamic"},
        {"{\"model_type\":\"llama\"," LLAMA_SIZES ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":-2}}",
         "factor"},
        {"{\"model_type\":\"llama\"," LLAMA_SIZES ",\"hidden_act\":\"gelu\"}", "hidden_act|gelu"},
        {"{\"model_type\":\"llama\"," LLAMA_SIZES ",\"partial_rotary_factor\":0.5}", "partial_rotary_factor"},
        {"{\"model_type\":\"llama\"," LLAMA_SIZES ",\"rope_interleaved\":true}", "rope_interleaved"},
        {"{\"model_type\":\"llama\"," LLAMA_SIZES ",\"quantization_config\":{\"quant_method\":\"gptq\"}}",
         "quantization_config|gptq"},
        {"{\"model_type\":\"qwen2\"," LLAMA_SIZES ",\"use_sliding_window\":true,\"sliding_window\":64,"
         "\"max_window_layers\":1}",
         "max_window_layers"},
        {"{\"model_type\":\"qwen3\"," LLAMA_SIZES ",\"sliding_window\":64,\"layer_types\":"
         "[\"full_attention\",\"sliding_attention\"]}",
         "layer_types"},
        {"{\"model_type\":\"qwen3\"," LLAMA_SIZES ",\"layer_types\":[\"linear_attention\"]}",
         "layer_types|linear_attention"},
        {"{\"model_type\":\"llama\",\"num_attention_heads\":-8}", "num_attention_heads"},
        {"{\"model_type\":\"llama\",\"num_attention_heads\":\"8\"}", "num_attention_heads"},
        {"{\"model_type\":\"llama\",\"num_attention_heads\":1e300}", "num_attention_heads"},
        {"{\"model_type\":\"llama\",\"num_attention_heads\":7}", "7 heads"},
        {"{\"model_type\":\"llama\",\"num_attention_heads\":8,\"head_dim\":3}", "heads|3"},
        {"{\"model_type\":\"llama\",\"num_attention_heads\":8,\"num_key_value_heads\":8}",
         "num_key_value_heads"},
        {"{\"model_type\":\"llama\",\"num_attention_heads\":8,\"hidden_size\":4096}", "hidden_size|4096"},
        {"{\"model_type\":\"llama\",\"num_attention_heads\":8,\"rms_norm_eps\":\"x\"}", "rms_norm_eps"},
        {"[]", "object"},
        {"{\"model_type\":\"llama\"," LLAMA_SIZES ",\"made_up\":1}", "made_up"},
        {"{\"model_type\":\"llama\"," LLAMA_SIZES ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,"
         "\"made_up\":1}}",
         "rope_scaling|made_up"},
        {"{\"model_type\":\"llama\"," LLAMA_SIZES ",\"layer_norm_eps\":1e-2}", "layer_norm_eps"},
        {"{\"model_type\":\"llama\"," LLAMA_SIZES ",\"use_sliding_window\":true}", "use_sliding_window"},
        {"{\"model_type\":\"llama\"," LLAMA_SIZES ",\"sliding_window\":16}", "sliding_window|16"},
        {"{\"model_type\":\"mistral\"," LLAMA_SIZES ",\"sliding_window\":0}", "sliding_window"},
        {"{\"model_type\":\"llama\"," LLAMA_SIZES ",\"attention_bias\":true}", "attention_bias"},
        {"{\"model_type\":\"llama\"," LLAMA_SIZES ",\"original_max_position_embeddings\":64}",
         "original_max_position_embeddings"},
        {"{\"model_type\":\"llama\"," LLAMA_SIZES ",\"rope_theta\":5000,\"rope_parameters\":{\"rope_type\":"
         "\"default\",\"rope_theta\":10000}}",
         "rope_theta|5000|10000"},
        {"{\"model_type\":\"llama\"," LLAMA_SIZES ",\"rope_parameters\":{\"rope_type\":\"default\"},"
         "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4}}",
         "rope_parameters|default|rope_scaling|yarn"},
        {"{\"model_type\":\"llama\"," LLAMA_SIZES ",\"rope_scaling\":{\"type\":\"yarn\"}}", "yarn|factor"},
        {"{\"model_type\":\"llama\"," LLAMA_SIZES ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,"
         "\"low_freq_factor\":1}}",
         "llama3|high_freq_factor"},
        {"{\"model_type\":\"llama\"," LLAMA_SIZES ",\"layer_types\":[\"full_attention\"]}", "layer_types"},
        {"{\"model_type\":\"llama\",\"num_attention_heads\":0}", "num_attention_heads"},
        {"{\"model_type\":\"qwen2\"," LLAMA_SIZES "}", "qwen2|q_proj.bias"},
        {"{\"model_type\":\"qwen3\"," LLAMA_SIZES "}", "qwen3|q_norm.weight"},
        {"{\"model_type\":\"llama\"," LLAMA_SIZES ",\"tie_word_embeddings\":true}",
         "lm_head.weight|embed_tokens.weight"},
    };
    struct model_shape g = small(FAMILY_LLAMA);
    put_own(&g, "own.safetensors");
    put_renamed(&g, "hf.safetensors");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct error err;
        struct model_shape h = {.family = FAMILY_UNKNOWN};
        put_config(rows[i].config);
        int code = infer(&h, "hf.safetensors", &err);
        if (code != EXIT_CONFIG || !mentions(err.what, rows[i].names))
            fail_msg("row %zu: exit %d, %s", i, code, err.what);
        for (const char *p = err.what; *p; p++) assert_true((unsigned char)*p >= 0x20);
    }
}

#define ENCODER_SIZES                                                                                        \
    "\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":8,\"intermediate_size\":96,"         \
    "\"vocab_size\":80"

/* The kin of BERT: what their config.json says, and what it cannot say. names NULL: it is read. */
static void config_says_which_encoder(void **state)
{
    static const struct {
        enum family family;
        const char *config, *names;
    } rows[] = {
        {FAMILY_ROBERTA, "{\"model_type\":\"roberta\"," ENCODER_SIZES ",\"max_position_embeddings\":34}",
         NULL},
        {FAMILY_ROBERTA, "{\"model_type\":\"xlm-roberta\"," ENCODER_SIZES "}", NULL},
        {FAMILY_ROBERTA, NULL, NULL},
        {FAMILY_ROBERTA, "{\"model_type\":\"roberta\"," ENCODER_SIZES ",\"max_position_embeddings\":32}",
         "max_position_embeddings"},
        {FAMILY_ROBERTA, "{\"model_type\":\"roberta\"," ENCODER_SIZES ",\"max_position_embeddings\":2}",
         "max_position_embeddings"},
        {FAMILY_ROBERTA, "{\"model_type\":\"roberta\"," ENCODER_SIZES ",\"pad_token_id\":0}", "pad_token_id"},
        {FAMILY_ROBERTA, "{\"model_type\":\"roberta\"," ENCODER_SIZES ",\"type_vocab_size\":2}",
         "type_vocab_size"},
        {FAMILY_ROBERTA, "{\"model_type\":\"roberta\"," ENCODER_SIZES ",\"is_decoder\":true}", "is_decoder"},
        {FAMILY_ROBERTA, "{\"model_type\":\"roberta\"," ENCODER_SIZES ",\"hidden_act\":\"relu\"}",
         "hidden_act|relu"},
        {FAMILY_ROBERTA, "{\"model_type\":\"xlm-roberta-xl\"," ENCODER_SIZES "}", "xlm-roberta-xl"},
        {FAMILY_ROBERTA, "{\"model_type\":\"roberta\"," ENCODER_SIZES ",\"tie_word_embeddings\":false}",
         "tie_word_embeddings"},
        {FAMILY_BIG_BIRD, "{\"model_type\":\"big_bird\"," ENCODER_SIZES "}", NULL},
        {FAMILY_BIG_BIRD,
         "{\"model_type\":\"big_bird\"," ENCODER_SIZES ",\"block_size\":2,\"num_random_blocks\":1}", NULL},
        {FAMILY_BIG_BIRD,
         "{\"model_type\":\"big_bird\"," ENCODER_SIZES ",\"attention_type\":\"original_full\"}", NULL},
        {FAMILY_BIG_BIRD, "{\"model_type\":\"big_bird\"," ENCODER_SIZES ",\"attention_type\":\"sparse\"}",
         "attention_type|sparse"},
        {FAMILY_BIG_BIRD, "{\"model_type\":\"big_bird\"," ENCODER_SIZES ",\"block_size\":0}", "block_size"},
        {FAMILY_BIG_BIRD, "{\"model_type\":\"big_bird\"," ENCODER_SIZES ",\"block_size\":null}",
         "block_size"},
        {FAMILY_BIG_BIRD, "{\"model_type\":\"big_bird\"," ENCODER_SIZES ",\"num_random_blocks\":-1}",
         "num_random_blocks"},
        {FAMILY_BIG_BIRD, "{\"model_type\":\"big_bird\"," ENCODER_SIZES ",\"use_bias\":false}", "use_bias"},
        {FAMILY_BIG_BIRD, "{\"model_type\":\"big_bird\"," ENCODER_SIZES ",\"rescale_embeddings\":true}",
         "rescale_embeddings"},
        {FAMILY_BIG_BIRD, "{\"model_type\":\"big_bird\"," ENCODER_SIZES ",\"norm_type\":\"prenorm\"}",
         "norm_type"},
        {FAMILY_BIG_BIRD, NULL, NULL},
        {FAMILY_BIG_BIRD, "{\"model_type\":\"bert\"," ENCODER_SIZES "}", "bert.pooler"},
        {FAMILY_ELECTRA, "{\"model_type\":\"electra\"," ENCODER_SIZES ",\"embedding_size\":24}", NULL},
        {FAMILY_ELECTRA, "{\"model_type\":\"electra\"," ENCODER_SIZES ",\"embedding_size\":64}",
         "embedding_size"},
        {FAMILY_ELECTRA, "{\"model_type\":\"roberta\"," ENCODER_SIZES "}", "roberta"},
        {FAMILY_DISTILBERT, "{\"model_type\":\"distilbert\",\"n_heads\":8,\"dim\":64,\"hidden_dim\":96}",
         NULL},
        {FAMILY_DISTILBERT, "{\"model_type\":\"distilbert\",\"num_attention_heads\":8}", NULL},
        {FAMILY_DISTILBERT, "{\"model_type\":\"distilbert\",\"n_heads\":8,\"hidden_dim\":95}", "95"},
        {FAMILY_DISTILBERT, "{\"model_type\":\"distilbert\",\"n_heads\":8,\"sinusoidal_pos_embds\":true}",
         "sinusoidal_pos_embds"},
        {FAMILY_DISTILBERT, "{\"model_type\":\"distilbert\",\"n_heads\":8,\"tie_weights_\":false}",
         "tie_weights_"},
        {FAMILY_DISTILBERT, "{\"model_type\":\"distilbert\",\"n_heads\":8,\"layer_norm_eps\":1e-5}",
         "layer_norm_eps"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct error err;
        struct model_shape g = small(rows[i].family), h = {.family = FAMILY_UNKNOWN};
        g.kv_heads = 0;
        g.parts = 0;
        g.tied = true;
        if (rows[i].family == FAMILY_ELECTRA) g.embedding = 24;
        put_own(&g, "own.safetensors");
        put_renamed(&g, "hf.safetensors");
        put_config(rows[i].config);
        int code = infer(&h, "hf.safetensors", &err);
        if (code != (rows[i].names ? EXIT_CONFIG : 0) ||
            !mentions(err.what, rows[i].names ? rows[i].names : ""))
            fail_msg("row %zu: exit %d, %s", i, code, err.what);
        if (code) continue;
        assert_true(h.family == g.family && h.tied && h.positions == 32);
        assert_true(rows[i].config ? h.heads == 8 : fact_assumed(&h, FACT_HEADS));
        assert_int_equal(h.embedding, g.embedding);
        assert_int_equal(h.types, g.types);
        bool full = rows[i].config && strstr(rows[i].config, "original_full"),
             two = rows[i].config && strstr(rows[i].config, "block_size");
        assert_int_equal(h.block, g.family != FAMILY_BIG_BIRD ? 0 : full ? BLOCK_NONE : two ? 2 : 64);
        assert_int_equal(h.random, g.family != FAMILY_BIG_BIRD ? 0 : two ? 1 : 3);
    }
}

/* A llama whose tensors have other names, or lack one, is refused by the tensor's name. */
static void names_that_are_no_llamas_are_refused(void **state)
{
    static const struct {
        const char *from, *to, *names; /* to "": the tensor is left out */
    } rows[] = {
        {"model.", "llm.model.", "llama|llm.model.embed_tokens.weight|model.embed_tokens.weight"},
        {"model.", "transformer.", "llama|transformer.embed_tokens.weight|model.embed_tokens.weight"},
        {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.q_proj.qweight",
         "llama|qweight"},
        {"model.layers.0.self_attn.q_proj.weight", "", "layers.0.self_attn.q_proj.weight"},
        {"model.layers.1.input_layernorm.weight", "", "layers.1.input_layernorm.weight"},
        {"model.embed_tokens.weight", "", "model.embed_tokens.weight"},
    };
    struct model_shape g = small(FAMILY_LLAMA);
    put_own(&g, "own.safetensors");
    put_config("{\"model_type\":\"llama\"," LLAMA_SIZES "}");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct weights *own = open_named("own.safetensors");
        struct rename_keys *r;
        struct error err = {0};
        struct model_shape h = {.family = FAMILY_UNKNOWN};
        char *path = path_of("changed.safetensors");
        rename_keys_open(&r, own, DTYPE_F32);
        if (rename_keys_library(r, &g, LIBRARY_TRANSFORMERS, &err)) fail_msg("%s", err.what);
        int count = (int)rename_keys_count(r), kept = 0;
        struct weights_row *changed = xcalloc((size_t)count, sizeof *changed);
        char(*names)[160] = xcalloc((size_t)count, sizeof *names);
        for (int k = 0; k < count; k++) {
            const struct weights_row *row = &rename_keys_rows(r)[k];
            bool match = strncmp(row->name, rows[i].from, strlen(rows[i].from)) == 0;
            if (match && !rows[i].to[0]) continue;
            snprintf(names[kept], sizeof names[kept], "%s%s", match ? rows[i].to : "",
                     row->name + (match ? strlen(rows[i].from) : 0));
            changed[kept] = *row;
            changed[kept].name = names[kept];
            kept++;
        }
        if (weights_write_safetensors(path, changed, kept, NULL, &err)) fail_msg("%s", err.what);
        rename_keys_close(r);
        weights_close(own);
        free(path);
        free(names);
        free(changed);
        int code = infer(&h, "changed.safetensors", &err);
        if (code != EXIT_CONFIG || !mentions(err.what, rows[i].names))
            fail_msg("row %zu: exit %d, %s", i, code, err.what);
    }
}

static void heads_without_a_table_are_refused(void **state)
{
    struct error err;
    struct model_shape g = small(FAMILY_LLAMA), h = {.family = FAMILY_UNKNOWN};
    g.tied = true;
    put_own(&g, "own.safetensors");
    put_renamed(&g, "hf.safetensors");
    put_config("{\"model_type\":\"llama\"," LLAMA_SIZES "}");
    assert_int_equal(infer(&h, "hf.safetensors", &err), EXIT_CONFIG);
    assert_true(mentions(err.what, "lm_head.weight"));
    h = (struct model_shape){.family = FAMILY_UNKNOWN};
    put_config("{\"model_type\":\"llama\"," LLAMA_SIZES ",\"tie_word_embeddings\":true}");
    if (infer(&h, "hf.safetensors", &err)) fail_msg("%s", err.what);
    assert_true(h.tied);
}

static void edited_metadata_is_refused(void **state)
{
    static const struct {
        const char *language, *rope;
        int code;
    } rows[] = {
        {"head_dim 8 window 0 positions 32", "none 10000 0 0 0 0 0", 0},
        {"head_dim 8 window 0 positions 32 ", "none 10000 0 0 0 0 0", EXIT_CONFIG},
        {"head_dim 0 window 0 positions 32", "none 10000 0 0 0 0 0", EXIT_CONFIG},
        {"head_dim 8 window -1 positions 32", "none 10000 0 0 0 0 0", EXIT_CONFIG},
        {"head_dim 8 window 0 positions 99999999999", "none 10000 0 0 0 0 0", EXIT_CONFIG},
        {"head_dim 3 window 0 positions 32", "none 10000 0 0 0 0 0", EXIT_CONFIG},
        {"", "none 10000 0 0 0 0 0", EXIT_CONFIG},
        {"head_dim 8 window 0 positions 32", "", EXIT_CONFIG},
        {"head_dim 8 window 0 positions 32", "dynamic 10000 0 0 0 0 0", EXIT_CONFIG},
        {"head_dim 8 window 0 positions 32", "none 10000 0 0 0 0", EXIT_CONFIG},
        {"head_dim 8 window 0 positions 32", "none nan 0 0 0 0 0", EXIT_CONFIG},
        {"head_dim 8 window 0 positions 32", "llama3 10000 inf 1 1 4 0", EXIT_CONFIG},
        {"head_dim 8 window 0 positions 32", "llama3 10000 8 0 1 4 0", EXIT_CONFIG},
        {"head_dim 8 window 0 positions 32", "yarn 10000 8 32 2 1 1", EXIT_CONFIG},
    };
    struct model_shape g = small(FAMILY_LLAMA);
    put_config(NULL);
    put_own(&g, "own.safetensors");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct error err = {0};
        struct weights *own = open_named("own.safetensors");
        struct rename_keys *r;
        struct model_shape h = {.family = FAMILY_UNKNOWN};
        const char *metadata[] = {"meopt.heads",    "8",          "meopt.language",
                                  rows[i].language, "meopt.rope", rows[i].rope,
                                  "meopt.norm_eps", "1e-05",      NULL};
        char *path = path_of("edited.safetensors");
        rename_keys_open(&r, own, DTYPE_F32);
        rename_keys_as_is(r, false);
        assert_int_equal(
            weights_write_safetensors(path, rename_keys_rows(r), rename_keys_count(r), metadata, &err), 0);
        rename_keys_close(r);
        weights_close(own);
        free(path);
        int code = infer(&h, "edited.safetensors", &err);
        if (code != rows[i].code) fail_msg("row %zu: exit %d, %s", i, code, err.what);
    }
}

static void parts_of_some_models(void **state)
{
    struct error err;
    struct model_shape g = small(FAMILY_LLAMA), h = {.family = FAMILY_UNKNOWN};
    g.parts |= PART_QK_NORM;
    g.head_dim = 16;
    put_own(&g, "own.safetensors");
    put_renamed(&g, "hf.safetensors");
    put_config("{\"model_type\":\"qwen3\",\"num_attention_heads\":8}");
    if (infer(&h, "hf.safetensors", &err)) fail_msg("%s", err.what);
    assert_true(h.head_dim == 16 && h.kv_heads == 2 && model_shape_parts(&h) == (PARTS_KNOWN | PART_QK_NORM));
    g = small(FAMILY_LLAMA);
    g.parts |= PART_QKV_BIAS;
    put_own(&g, "own.safetensors");
    put_renamed(&g, "hf.safetensors");
    put_config("{\"model_type\":\"qwen2\"," LLAMA_SIZES "}");
    h = (struct model_shape){.family = FAMILY_UNKNOWN};
    if (infer(&h, "hf.safetensors", &err)) fail_msg("%s", err.what);
    assert_true(model_shape_parts(&h) == (PARTS_KNOWN | PART_QKV_BIAS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_cut_and_transposed),
        cmocka_unit_test(own_files_need_no_config),
        cmocka_unit_test(config_says_what_no_tensor_shows),
        cmocka_unit_test(other_models_are_refused_by_name),
        cmocka_unit_test(config_says_which_encoder),
        cmocka_unit_test(names_that_are_no_llamas_are_refused),
        cmocka_unit_test(heads_without_a_table_are_refused),
        cmocka_unit_test(parts_of_some_models),
        cmocka_unit_test(edited_metadata_is_refused),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
