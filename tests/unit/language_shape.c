/* Shapes of decoder language models: parameters, work and rotary positions of the published ones. */
#include "core/model/parameters.h"
#include "core/model/positions.h"
#include "tests/mentions.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct model_shape shape_of(const char *name)
{
    struct model_shape g;
    struct error err = {0};
    if (model_shape_preset(name, &g, &err) || model_shape_check(&g, 0, &err))
        fail_msg("%s: %s", name, err.what);
    return g;
}

/* As transformers' num_parameters() counts them. */
static void presets_have_the_published_parameters(void **state)
{
    static const struct {
        const char *name;
        int64_t count;
    } published[] = {
        {"gpt2_small", 124439808},       {"gpt2_medium", 354823168},       {"gpt2_large", 774030080},
        {"gpt2_xl", 1557611200},         {"gpt_1_3b", 1313722368},         {"tinyllama_1_1b", 1100048384},
        {"llama2_7b", 6738415616},       {"llama3_8b", 8030261248},        {"llama3_1_8b", 8030261248},
        {"llama3_2_1b", 1235814400},     {"llama3_2_3b", 3212749824},      {"mistral_7b", 7241732096},
        {"qwen2_5_0_5b", 494032768},     {"qwen2_5_1_5b", 1543714304},     {"qwen2_5_3b", 3085938688},
        {"qwen2_5_7b", 7615616512},      {"qwen3_0_6b", 596049920},        {"qwen3_1_7b", 1720574976},
        {"qwen3_4b", 4022468096},        {"qwen3_8b", 8190735360},         {"smollm_135m", 134515008},
        {"smollm_360m", 361821120},      {"bert_base", 109514298},         {"bert_large", 335174458},
        {"distilbert_base", 66985530},   {"roberta_base", 124697433},      {"roberta_large", 355412057},
        {"xlm_roberta_base", 278295186}, {"xlm_roberta_large", 560142482}, {"electra_small", 13546682},
        {"electra_base", 109514298},     {"electra_large", 335174458},     {"bigbird_base", 128111286},
        {"bigbird_large", 360225974},
    };
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        struct model_shape g = shape_of(published[i].name);
        if (model_shape_parameters(&g) != published[i].count)
            fail_msg("%s has %lld parameters, expected %lld", published[i].name,
                     (long long)model_shape_parameters(&g), (long long)published[i].count);
    }
}

static const struct parameter *find(const struct parameter *list, int count, enum role role)
{
    for (int i = 0; i < count; i++)
        if (list[i].role == (int)role) return &list[i];
    return NULL;
}

static void heads_may_be_wider_than_the_stream(void **state)
{
    struct model_shape g = shape_of("qwen3_0_6b");
    struct parameter *list;
    int count = parameters_list(&g, NULL, &list);
    const struct parameter *qkv = find(list, count, ROLE_QKV_W), *proj = find(list, count, ROLE_PROJ_W),
                           *norm = find(list, count, ROLE_K_NORM_W), *table = find(list, count, ROLE_TOKENS);
    assert_int_equal(qkv->shape[0], (16 + 2 * 8) * 128);
    assert_int_equal(qkv->shape[1], 1024);
    assert_int_equal(proj->shape[1], 16 * 128);
    assert_int_equal(norm->count, 128);
    assert_true(table->matrix && table->group == 0);
    assert_null(find(list, count, ROLE_LM_HEAD));
    assert_null(find(list, count, ROLE_QKV_B));
    assert_null(find(list, count, ROLE_NORM_B));
    free(list);
    g.tied = false;
    count = parameters_list(&g, NULL, &list);
    assert_int_equal(find(list, count, ROLE_LM_HEAD)->group, g.depth + 1);
    free(list);
}

/* 2 FLOPs per parameter of a GEMM and token, and half of the scores. */
static void work_is_that_of_the_matrices_and_the_mask(void **state)
{
    struct model_shape g = shape_of("gpt2_small");
    double N = 1024, matrices = 12.0 * 12 * 768 * 768 + 50257.0 * 768, scores = N * (N + 1) / 2;
    assert_true(fabs(model_shape_attention_flops(&g) - 12 * 4 * scores * 768) < 1);
    assert_true(fabs(model_shape_forward_flops(&g) - (2 * N * matrices + 12 * 4 * scores * 768)) < 1);
    g.window = 256;
    scores = 256 * 257 / 2.0 + 768 * 256.0;
    assert_true(fabs(model_shape_attention_flops(&g) - 12 * 4 * scores * 768) < 1);
    assert_int_equal(model_shape_tokens(&g), 1024);
    assert_int_equal(model_shape_input_bytes(&g, 2), 2 * 1024 * 4);
}

/* ROPE_INIT_FUNCTIONS of transformers 5.1: the frequencies of pairs 0, step, 2 step, ... */
static void rotary_positions_scale_as_in_transformers(void **state)
{
    static const struct {
        struct rope_of_tokens rope;
        int64_t head_dim, step;
        double frequencies[8];
    } rows[] = {
        {{500000, ROPE_LLAMA3, 32, 8192, 1, 4, 0},
         64,
         4,
         {1, .193922758, .0376060307, .00729266508, .000429556705, 8.57025589e-06, 1.66196742e-06,
          3.22293289e-07}},
        {{10000, ROPE_LINEAR, 4, 0, 0, 0, 0},
         64,
         4,
         {.25, .079056941, .0250000004, .00790569466, .00249999994, .000790569466, .000250000012,
          7.90569466e-05}},
        {{1000000, ROPE_YARN, 4, 32768, 1, 32, 1.138629436111989},
         128,
         8,
         {1, .177827939, .0316227786, .00537532149, .000602941145, 4.44569851e-05, 7.90569356e-06,
          1.40585337e-06}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct model_shape g = shape_of("llama3_2_1b");
        g.head_dim = rows[i].head_dim;
        g.context = 2;
        g.rope = rows[i].rope;
        int64_t pairs = g.head_dim / 2;
        double scale = rows[i].rope.attention > 0 ? rows[i].rope.attention : 1;
        float *table = malloc(sizeof *table * (size_t)(4 * pairs));
        assert_non_null(table);
        assert_int_equal(model_shape_check(&g, 0, NULL), 0);
        positions_rotation(&g, table);
        assert_true(fabs((double)table[0] - scale) < 1e-6 && fabs((double)table[pairs]) < 1e-9);
        for (int k = 0; k < 8; k++) {
            double expected = sin(rows[i].frequencies[k]) * scale,
                   is = (double)table[3 * pairs + k * rows[i].step];
            if (fabs(is / expected - 1) > 2e-6)
                fail_msg("row %zu, value %d: %.9g, not %.9g", i, k, is, expected);
        }
        free(table);
    }
}

static void text_names_what_tensors_do_not_show(void **state)
{
    char text[512];
    struct model_shape g = shape_of("llama3_2_1b");
    model_shape_text(&g, text, sizeof text);
    assert_true(mentions(text, "llama|16 blocks|2048|32 heads of 64|8|500000|32|swiglu|128256|tied|131072"));
    g = shape_of("mistral_7b");
    g.facts.from[FACT_ROPE_THETA] = SOURCE_ASSUMED;
    model_shape_text(&g, text, sizeof text);
    assert_true(mentions(text, "window 4096|10000|(assumed)|untied"));
}

static void shapes_without_sense_are_refused(void **state)
{
    struct error err = {0};
    struct model_shape g = shape_of("gpt2_small");
    g.context = 2048;
    assert_int_equal(model_shape_check(&g, 0, &err), EXIT_CONFIG);
    assert_true(mentions(err.what, "1024"));
    g = shape_of("qwen3_8b");
    g.kv_heads = 5;
    assert_int_equal(model_shape_check(&g, 0, &err), EXIT_CONFIG);
    assert_true(mentions(err.what, "kv_heads"));
    g = shape_of("qwen3_8b");
    g.vocabulary = 0;
    assert_int_equal(model_shape_check(&g, 0, &err), EXIT_CONFIG);
    assert_true(mentions(err.what, "vocabulary"));
    g = shape_of("llama3_8b");
    g.rope.scaling = ROPE_LINEAR;
    assert_int_equal(model_shape_check(&g, 0, &err), EXIT_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(presets_have_the_published_parameters),
        cmocka_unit_test(heads_may_be_wider_than_the_stream),
        cmocka_unit_test(work_is_that_of_the_matrices_and_the_mask),
        cmocka_unit_test(rotary_positions_scale_as_in_transformers),
        cmocka_unit_test(text_names_what_tensors_do_not_show),
        cmocka_unit_test(shapes_without_sense_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
