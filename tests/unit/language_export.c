/* Language models exported for transformers: the directory, read again, is the same model. With a directory
 * as argument the exports stay there (tests/cli/real_language.sh). */
#include "cli/export/export_language.h"
#include "cli/export/export_shards.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/model/metadata.h"
#include "core/model/parameters.h"
#include "core/model/rename_keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/unit/language_put.h"

static char directory[256], *kept;

static int make_directory(void **state)
{
    if (kept) return snprintf(directory, sizeof directory, "%s", kept) < 1;
    strcpy(directory, "/tmp/meopt-language-XXXXXX");
    return mkdtemp(directory) == NULL;
}
static int remove_directory(void **state) { return kept ? 0 : file_remove_tree(directory, NULL); }

#define SIZES                                                                                                \
    .vocabulary = 80, .positions = 64, .width = 64, .depth = 2, .heads = 8, .hidden = 96, .norm_eps = 1e-6f

static const struct {
    const char *name;
    struct model_shape shape;
} models[] = {
    {"gpt2", {SIZES, .family = FAMILY_GPT2, .tied = true}},
    {"gpt2-gelu", {SIZES, .family = FAMILY_GPT2, .ffn = 1 + ACTIVATION_GELU}},
    {"llama", {SIZES, .family = FAMILY_LLAMA, .parts = PARTS_KNOWN, .kv_heads = 2}},
    {"llama3",
     {SIZES, .family = FAMILY_LLAMA, .parts = PARTS_KNOWN, .kv_heads = 4, .tied = true,
      .rope = {500000, ROPE_LLAMA3, 8, 32, 1, 4, 0}}},
    {"mistral", {SIZES, .family = FAMILY_LLAMA, .parts = PARTS_KNOWN, .kv_heads = 2, .window = 16}},
    {"qwen2",
     {SIZES, .family = FAMILY_LLAMA, .parts = PARTS_KNOWN | PART_QKV_BIAS, .kv_heads = 1,
      .rope = {1000000, ROPE_YARN, 4, 32, 1, 32, 1.25}}},
    {"qwen2-window",
     {SIZES, .family = FAMILY_LLAMA, .parts = PARTS_KNOWN | PART_QKV_BIAS, .window = 16, .tied = true}},
    {"qwen3",
     {SIZES, .family = FAMILY_LLAMA, .parts = PARTS_KNOWN | PART_QK_NORM, .kv_heads = 2, .head_dim = 16,
      .rope = {1000000, ROPE_LINEAR, 2, 0, 0, 0, 0}}},
    {"bert", {SIZES, .family = FAMILY_BERT, .tied = true}},
    {"bert-gelu_new", {SIZES, .family = FAMILY_BERT, .tied = true, .ffn = 1 + ACTIVATION_GELU_TANH}},
    {"bert-one-type", {SIZES, .family = FAMILY_BERT, .tied = true, .types = 1}},
    {"distilbert",
     {.vocabulary = 80,
      .positions = 64,
      .width = 64,
      .depth = 2,
      .heads = 8,
      .hidden = 96,
      .norm_eps = 1e-12f,
      .family = FAMILY_DISTILBERT,
      .tied = true}},
    {"roberta", {SIZES, .family = FAMILY_ROBERTA, .tied = true}},
    {"big_bird", {SIZES, .family = FAMILY_BIG_BIRD, .tied = true, .block = 2, .random = 1}},
    {"big_bird-full", {SIZES, .family = FAMILY_BIG_BIRD, .tied = true, .block = BLOCK_NONE, .random = 3}},
    {"electra", {SIZES, .family = FAMILY_ELECTRA, .tied = true}},
    {"electra-narrow", {SIZES, .family = FAMILY_ELECTRA, .tied = true, .embedding = 24}},
    {"electra-wide",
     {SIZES, .family = FAMILY_ELECTRA, .tied = true, .embedding = 96, .ffn = 1 + ACTIVATION_GELU_TANH}},
};

/* Writes a checkpoint of meopt with values that differ, small enough for a forward pass. */
static float random_value(const struct parameter *p, int parameter, int64_t i)
{
    static uint32_t random;
    if (parameter == 0 && i == 0) random = 1;
    random = random * 1664525 + 1013904223;
    return ((float)(random >> 8) / (1 << 24) - 0.5f) / 4 + (p->initial == INITIAL_ONE);
}

static void export_to(const struct model_shape *g, const char *from, const char *original, const char *to,
                      double most)
{
    struct error err = {0};
    struct weights *w = NULL;
    struct rename_keys *r;
    if (weights_open(&w, from, &err)) fail_msg("%s", err.what);
    rename_keys_open(&r, w, DTYPE_F32);
    int code = rename_keys_library(r, g, LIBRARY_TRANSFORMERS, &err);
    if (!code) code = file_make_dirs(to, &err);
    if (!code)
        code = export_shards_write(to, rename_keys_rows(r), rename_keys_count(r),
                                   (const char *const[]){"format", "pt", NULL}, most, &err);
    if (!code) code = export_language_write(to, g, NULL, original, false, &err);
    if (code) fail_msg("%s: %s", to, err.what);
    rename_keys_close(r);
    weights_close(w);
}

static void exports_are_the_same_models(void **state)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct model_shape g = models[i].shape, h = {.family = FAMILY_UNKNOWN};
        struct error err = {0};
        struct weights *w = NULL;
        char *to = path_join(directory, models[i].name), *from = xasprintf("%s.safetensors", to),
             *index = path_join(to, EXPORT_INDEX);
        double most = i % 2 ? 40000 : 5e9;
        if (model_shape_check(&g, 0, &err)) fail_msg("%s: %s", models[i].name, err.what);
        put_model(&g, from, random_value);
        export_to(&g, from, "", to, most);
        assert_int_equal(access(index, F_OK) == 0, most < 5e9);
        int code = weights_open(&w, to, &err);
        if (!code) code = model_shape_infer(&h, w, 0, &err);
        if (!code) code = model_shape_fits(&h, NULL, w, &err);
        if (code) fail_msg("%s: %s", models[i].name, err.what);
        assert_int_equal(h.facts.from[FACT_NORM_EPS], SOURCE_SIDECAR);
        assert_string_equal(h.facts.replaced, "");
        h.facts = g.facts;
        h.layerscale = g.layerscale;
        h.parts = model_shape_parts(&h);
        g.parts = model_shape_parts(&g);
        h.positions = h.positions ? h.positions : g.positions;
        if (!model_shape_rotates(&g)) h.rope = g.rope;
        assert_memory_equal(&g, &h, sizeof g);
        weights_close(w);
        free(index);
        free(from);
        free(to);
    }
}

static void put_text(const char *in, const char *name, const char *text)
{
    char *path = path_join(in, name);
    assert_int_equal(file_make_dirs(in, NULL), 0);
    assert_int_equal(file_write_atomic(path, text, strlen(text), NULL), 0);
    free(path);
}

static bool has_text(const char *in, const char *name, const char *text)
{
    char *path = path_join(in, name), *data = NULL;
    size_t bytes = 0;
    bool found =
        file_read(path, 1 << 20, &data, &bytes, NULL) == 0 && memmem(data, bytes, text, strlen(text));
    free(data);
    free(path);
    return found;
}

static void tokenizer_and_special_tokens_come_along(void **state)
{
    struct model_shape g = models[2].shape;
    char *original = path_join(directory, "original"), *to = path_join(directory, "with-tokenizer"),
         *from = path_join(directory, "with-tokenizer.safetensors");
    assert_int_equal(model_shape_check(&g, 0, NULL), 0);
    put_text(
        original, "config.json",
        "{\"model_type\":\"mistral\",\"num_attention_heads\":8,\"eos_token_id\":[2,7],\"bos_token_id\":1}");
    put_text(original, "tokenizer.json", "{\"a\": 1}");
    put_text(original, "chat_template.jinja", "{{ x }}");
    put_text(original, "README.md", "no");
    put_model(&g, from, random_value);
    export_to(&g, from, original, to, 5e9);
    assert_true(has_text(to, "tokenizer.json", "{\"a\": 1}"));
    assert_true(has_text(to, "chat_template.jinja", "{{ x }}"));
    assert_true(has_text(to, "config.json", "MistralForCausalLM"));
    assert_true(has_text(to, "generation_config.json", "7"));
    assert_false(has_text(to, "README.md", "no"));
    put_text(original, "generation_config.json", "{\"top_k\": 20}");
    export_to(&g, from, original, to, 5e9);
    assert_true(has_text(to, "generation_config.json", "top_k"));
    assert_true(export_language_file("tokenizer.json") && !export_language_file("model.safetensors"));
    free(from);
    free(to);
    free(original);
}

static void models_without_a_class_are_refused(void **state)
{
    struct model_shape g = models[7].shape;
    struct error err = {0};
    g.parts |= PART_QKV_BIAS;
    assert_int_equal(model_shape_check(&g, 0, NULL), 0);
    assert_int_equal(export_language_write(directory, &g, NULL, "", false, &err), EXIT_CONFIG);
    g = models[0].shape;
    g.kv_heads = 2;
    assert_int_equal(model_shape_check(&g, 0, NULL), 0);
    assert_int_equal(export_language_write(directory, &g, NULL, "", false, &err), EXIT_CONFIG);
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exports_are_the_same_models),
        cmocka_unit_test(tokenizer_and_special_tokens_come_along),
        cmocka_unit_test(models_without_a_class_are_refused),
    };
    if (count > 1) kept = arguments[1];
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
