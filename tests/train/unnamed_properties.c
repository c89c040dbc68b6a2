/* Properties that no tensor of a checkpoint shows (heads, activation, pooling): from the keys, from the
 * sidecar config of open_clip, transformers or timm, or assumed, with a message. */
#include "core/step/trainer.h"
#include "core/experiment/experiment.h"
#include "tests/golden/golden.h"
#include "tests/mentions.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

enum { QUICK = 1 + ACTIVATION_QUICK_GELU, GELU = 1 + ACTIVATION_GELU, TANH = 1 + ACTIVATION_GELU_TANH };

static const char *metadata_of; /* of the file, as the first member of its header; NULL: none */

static void add_metadata(char **bytes, size_t *count)
{
    size_t n = strlen(metadata_of), pad = (8 - n % 8) % 8;
    uint64_t header;
    char *more = xcalloc(*count + n + pad, 1);
    memcpy(&header, *bytes, sizeof header);
    header += n + pad;
    memcpy(more, &header, sizeof header);
    more[8] = '{';
    memcpy(more + 9, metadata_of, n);
    memset(more + 9 + n, ' ', pad);
    memcpy(more + 9 + n + pad, *bytes + 9, *count - 9);
    free(*bytes);
    *bytes = more;
    *count += n + pad;
}

/* The teacher's model shape for a tower 32 wide, with the sidecar config `json` in file `name` (NULL: none)
 * and one more key=value (or NULL). */
static const char *file_name = "model.safetensors", *directory_of = "openclip-quick";
static int teacher(struct model_shape *g, const char *name, const char *json, const char *more,
                   struct error *err)
{
    char directory[] = "/tmp/meopt-untold-XXXXXX", *bytes = NULL;
    size_t count = 0;
    assert_non_null(mkdtemp(directory));
    char *from = golden_path("towers", directory_of, file_name),
         *model = xasprintf("%s/model.safetensors", directory),
         *weight_t = xasprintf("model_t.weight=%s", model), *weight_s = xasprintf("model_s.weight=%s", model);
    assert_int_equal(file_read(from, 1 << 20, &bytes, &count, err), 0);
    if (metadata_of) add_metadata(&bytes, &count);
    assert_int_equal(file_write_atomic(model, bytes, count, err), 0);
    if (name) {
        char *path = xasprintf("%s/%s", directory, name);
        assert_int_equal(file_write_atomic(path, json, strlen(json), err), 0);
        free(path);
    }
    char *overrides[] = {weight_t,
                         weight_s,
                         (char[]){"model_s.heads=2"},
                         (char[]){"model_s.activation=gelu"},
                         (char[]){"model_s.pool=cls"},
                         (char *)(uintptr_t)more};
    struct config c;
    struct experiment_towers towers;
    *err = (struct error){0};
    int code = config_load_text(&c, "untold.yaml", "{}\n", 3, overrides, more ? 6 : 5, err);
    assert_int_equal(code, 0);
    code = experiment_towers(&c, false, &towers, err);
    *g = towers.teachers[0];
    experiment_close_towers(&towers);
    config_free(&c);
    file_remove_tree(directory, NULL);
    free(bytes);
    free(from);
    free(model);
    free(weight_t);
    free(weight_s);
    return code;
}

static struct model_shape known(const char *name, const char *json, const char *more)
{
    struct model_shape g;
    struct error err;
    if (teacher(&g, name, json, more, &err)) fail_msg("%s: %s", json ? json : more, err.what);
    return g;
}

#define OPEN_CLIP(quick, vision)                                                                             \
    "{\"model_cfg\": {\"embed_dim\": 16, \"quick_gelu\": " quick                                             \
    ", \"vision_cfg\": {\"width\": 32, \"head_width\": 16" vision "}}, \"preprocess_cfg\": {}}"

static void a_sidecar_config_sets_activation_and_heads(void **state)
{
    static const struct {
        const char *name, *json;
        int ffn;
        int64_t heads;
    } rows[] = {
        {"open_clip_config.json", OPEN_CLIP("true", ""), QUICK, 2},
        {"open_clip_config.json", OPEN_CLIP("false", ", \"pool_type\": \"tok\""), GELU, 2},
        {"open_clip_config.json",
         "{\"embed_dim\": 16, \"quick_gelu\": true, \"vision_cfg\": {\"width\": 32, \"head_width\": 8}}",
         QUICK, 4},
        {"config.json",
         "{\"model_type\": \"clip\", \"vision_config\": {\"hidden_size\": 32, \"num_attention_heads\": 4}}",
         QUICK, 4},
        {"config.json",
         "{\"model_type\": \"clip_vision_model\", \"hidden_size\": 32, \"num_attention_heads\": 8, "
         "\"hidden_act\": \"gelu\", \"layer_norm_eps\": 1e-05}",
         GELU, 8},
        {"open_clip_config.json", OPEN_CLIP("false", ", \"act_kwargs\": {\"approximate\": \"tanh\"}"), TANH,
         2},
        {"config.json",
         "{\"model_type\": \"clip_vision_model\", \"hidden_size\": 32, \"num_attention_heads\": 2, "
         "\"hidden_act\": \"gelu_pytorch_tanh\"}",
         TANH, 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct model_shape g = known(rows[i].name, rows[i].json, NULL);
        assert_int_equal(g.ffn, rows[i].ffn);
        assert_int_equal(g.heads, rows[i].heads);
        assert_false(fact_assumed(&g, FACT_HEADS) || fact_assumed(&g, FACT_ACTIVATION));
    }
    struct model_shape g =
        known("config.json",
              "{\"architecture\": \"vit_base_patch32_clip_quickgelu_224\", \"num_features\": 32, "
              "\"global_pool\": \"token\"}",
              "model_t.heads=2");
    assert_int_equal(g.ffn, QUICK);
    assert_false(fact_assumed(&g, FACT_ACTIVATION) || fact_assumed(&g, FACT_POOL));
}

static void a_key_stands_above_the_file_and_nothing_is_assumed_then(void **state)
{
    struct model_shape g = known("open_clip_config.json", OPEN_CLIP("true", ""), "model_t.activation=gelu");
    assert_int_equal(g.ffn, GELU);
    assert_false(fact_assumed(&g, FACT_ACTIVATION));
    g = known("open_clip_config.json", OPEN_CLIP("true", ", \"pool_type\": \"avg\""), "model_t.pool=cls");
    assert_false(fact_assumed(&g, FACT_POOL));
    assert_int_equal(g.pool, POOL_CLS);
    g = known("open_clip_config.json", OPEN_CLIP("true", ""), "model_t.heads=4");
    assert_int_equal(g.heads, 4);
}

#define HEADS_4                                                                                              \
    "{\"embed_dim\": 16, \"quick_gelu\": false, \"vision_cfg\": {\"width\": 32, \"head_width\": 8}}"

static void a_sidecar_config_that_contradicts_the_metadata_is_refused(void **state)
{
    static const struct {
        const char *json, *key, *text; /* of the error; NULL: none */
        enum fact_source heads;
    } rows[] = {
        {OPEN_CLIP("false", ""), NULL, NULL, SOURCE_METADATA},
        {HEADS_4, NULL, "heads|4|2", SOURCE_FAMILY},
        {HEADS_4, "model_t.heads=4", NULL, SOURCE_KEY},
        {OPEN_CLIP("true", ""), NULL, "activation|quick_gelu|gelu", SOURCE_FAMILY},
        {OPEN_CLIP("true", ""), "model_t.activation=gelu", NULL, SOURCE_METADATA},
        {OPEN_CLIP("false", ", \"norm_kwargs\": {\"eps\": 1e-6}"), NULL, "norm_eps|1e-06|1e-05",
         SOURCE_FAMILY},
        {OPEN_CLIP("false", ", \"postnorm\": true"), NULL, "norm|post|pre", SOURCE_FAMILY},
        {OPEN_CLIP("false", ", \"pool_type\": \"avg\""), NULL, NULL, SOURCE_METADATA},
    };
    metadata_of =
        "\"__metadata__\": {\"meopt.heads\": \"2\", \"meopt.activation\": \"gelu\", \"meopt.pool\": "
        "\"cls\", \"meopt.norm\": \"pre\", \"meopt.norm_eps\": \"1e-05\"},";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct model_shape g;
        struct error err;
        int code = teacher(&g, "open_clip_config.json", rows[i].json, rows[i].key, &err);
        if (code != (rows[i].text ? EXIT_CONFIG : 0))
            fail_msg("%s: exit %d, %s", rows[i].json, code, err.what);
        if (rows[i].text && !mentions(err.what, rows[i].text)) fail_msg("%s: %s", rows[i].json, err.what);
        if (rows[i].text) continue;
        assert_int_equal(g.facts.from[FACT_HEADS], rows[i].heads);
        assert_int_equal(g.pool, POOL_CLS);
    }
    metadata_of = NULL;
}

static void a_sidecar_config_sets_the_pooling(void **state)
{
    static const struct {
        const char *name, *json;
        enum pool pool;
    } rows[] = {
        {"open_clip_config.json", OPEN_CLIP("false", ", \"pool_type\": \"avg\""), POOL_AVG},
        {"open_clip_config.json", OPEN_CLIP("false", ", \"global_average_pool\": true"), POOL_AVG},
        {"open_clip_config.json",
         OPEN_CLIP("false", ", \"pool_type\": \"avg\", \"final_ln_after_pool\": true"), POOL_AVG_FIRST},
        {"config.json", "{\"architecture\": \"vit_x\", \"num_features\": 32, \"global_pool\": \"avg\"}",
         POOL_AVG},
        {"open_clip_config.json",
         "{\"vision_cfg\": {\"timm_model_name\": \"vit_x\", \"timm_pool\": \"avg\"}}", POOL_AVG},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct model_shape g = known(rows[i].name, rows[i].json, "model_t.heads=2");
        assert_int_equal(g.pool, rows[i].pool);
        assert_false(fact_assumed(&g, FACT_POOL));
    }
    assert_int_equal(known("open_clip_config.json", OPEN_CLIP("true", ""), "model_t.pool=avg_first").pool,
                     POOL_AVG_FIRST);
}

static void positions_are_resized_as_the_library_does_that_wrote_the_checkpoint(void **state)
{
    static const char *const hf =
        "{\"model_type\": \"clip\", \"vision_config\": {\"hidden_size\": 32, \"num_attention_heads\": 2}}";
    static const char *const timm = "{\"architecture\": \"vit_small_patch14_dinov2\", \"num_features\": 32}";
    assert_int_equal(known("config.json", hf, NULL).pos_resize, POS_RESIZE_HF);
    assert_int_equal(known("config.json", hf, "model_t.pos_resize=dinov2").pos_resize, POS_RESIZE_DINOV2);
    assert_int_equal(known("config.json", timm, "model_t.heads=2").pos_resize, POS_RESIZE_TIMM);
    assert_int_equal(known(NULL, NULL, "model_t.heads=2").pos_resize, POS_RESIZE_USUAL);
}

static void unknown_properties_are_assumed_with_a_message(void **state)
{
    struct model_shape g = known(NULL, NULL, "model_t.heads=2");
    char text[512];
    assert_true(!fact_assumed(&g, FACT_HEADS) && fact_assumed(&g, FACT_ACTIVATION) &&
                fact_assumed(&g, FACT_POOL));
    model_shape_text(&g, text, sizeof text);
    assert_true(strstr(text, "gelu (assumed)") && strstr(text, "cls token (assumed)") &&
                strstr(text, "1e-05 (assumed)"));
    /* of another tower */
    g = known("config.json", "{\"model_type\": \"clip\", \"vision_config\": {\"hidden_size\": 768}}",
              "model_t.heads=2");
    assert_true(fact_assumed(&g, FACT_ACTIVATION) && g.ffn == GELU);
    /* of another depth, of another patch; with heads and head_dim that do not make the width */
    static const char *const others[] = {OPEN_CLIP("true", ", \"layers\": 24"),
                                         OPEN_CLIP("true", ", \"patch_size\": 32")};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        g = known("open_clip_config.json", others[i], "model_t.heads=2");
        assert_true(fact_assumed(&g, FACT_ACTIVATION) && g.ffn == GELU);
    }
    struct error err;
    assert_int_equal(teacher(&g, "open_clip_config.json", OPEN_CLIP("true", ""), "model_t.head_dim=5", &err),
                     EXIT_CONFIG);
}

static void a_torchscript_archive_of_clip_has_quick_gelu(void **state)
{
    file_name = "archive.pt";
    struct model_shape g = known(NULL, NULL, "model_t.heads=2");
    char text[256];
    assert_int_equal(g.ffn, QUICK);
    model_shape_text(&g, text, sizeof text);
    assert_non_null(strstr(text, "quick_gelu (assumed)"));
    file_name = "model.safetensors";
}

static void what_is_not_known_or_not_readable_is_refused(void **state)
{
    static const struct {
        const char *json, *text;
    } rows[] = {
        {OPEN_CLIP("false", ", \"pool_type\": \"none\""), "none"},
        {"{\"architecture\": \"vit_small_patch16_rope_ape_224\", \"num_features\": 32}", "rotary"},
        {OPEN_CLIP("false", ", \"attentional_pool\": true"), "attentional_pool"},
        {OPEN_CLIP("false", ", \"act_kwargs\": {\"approximate\": \"poly\"}"), "poly"},
        {"{\"architecture\": \"vit_base_patch16_224\", \"num_features\": 32, \"model_args\": {\"qk_norm\": "
         "true}}",
         "qk_norm"},
        {"{\"architecture\": \"vit_base_patch16_224\", \"num_features\": 32, \"model_args\": {\"act_layer\": "
         "\"silu\"}}",
         "silu"},
        {"{\"model_type\": \"clip\", \"vision_config\": {\"hidden_size\": 32, \"num_attention_heads\": 2, "
         "\"hidden_act\": \"mish\"}}",
         "mish"},
        {OPEN_CLIP("false", ", \"postnorm\": true"), "post-norm"},
        {OPEN_CLIP("false", ", \"made_up\": 1"), "made_up"},
        {"{\"architecture\": \"vit_base_patch16_224\", \"num_features\": 32, \"made_up\": 1}", "made_up"},
        {"{\"model_type\": \"clip\", \"vision_config\": {\"hidden_size\": 32, \"num_attention_heads\": 2, "
         "\"made_up\": 1}}",
         "made_up"},
        {"{\"model_type\": \"mine\", \"hidden_size\": 32, \"num_attention_heads\": 2}", "mine"},
        {"{\"model_cfg\": ", "JSON"},
        {"[1, 2]", "JSON"},
        {"{\"a\": 1, \"a\": 2}", "JSON"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct model_shape g;
        struct error err;
        assert_int_equal(teacher(&g, "open_clip_config.json", rows[i].json, "model_t.heads=2", &err),
                         EXIT_CONFIG);
        if (!strstr(err.what, rows[i].text)) fail_msg("%s: %s", rows[i].json, err.what);
        assert_true(err.hint[0] && err.file[0]);
    }
}

static void heads_of_attention_pooling_are_set_or_assumed(void **state)
{
    static const struct {
        const char *json, *key, *text;
    } refused[] = {
        {OPEN_CLIP("false", ", \"norm_kwargs\": {\"eps\": 1e-50}"), NULL, "eps 1"},
        {OPEN_CLIP("false", ", \"image_size\": [64, 96]"), NULL, "image_size [64, 96]"},
        {OPEN_CLIP("false", ", \"attentional_pool\": true, \"attn_pooler_heads\": 3"), "model_t.heads=2",
         "3 heads"},
        {OPEN_CLIP("false", ", \"attentional_pool\": true, \"pool_type\": \"avg\""), "model_t.heads=2",
         "attentional_pool"},
        {OPEN_CLIP("false", ", \"attentional_pool\": true"), "model_t.pool=avg", "avg"},
    };
    char text[256];
    directory_of = "openclip-coca";
    struct model_shape g = known(NULL, NULL, "model_t.heads=2");
    model_shape_text(&g, text, sizeof text);
    assert_int_equal(g.pool_heads, 8);
    assert_non_null(strstr(text, "8 heads (assumed)"));
    g = known("open_clip_config.json",
              OPEN_CLIP("false", ", \"attentional_pool\": true, \"attn_pooler_heads\": 2"), NULL);
    assert_int_equal(g.pool_heads, 2);
    assert_false(fact_assumed(&g, FACT_POOL));
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct error err;
        assert_int_equal(teacher(&g, "open_clip_config.json", refused[i].json, refused[i].key, &err),
                         EXIT_CONFIG);
        if (!strstr(err.what, refused[i].text)) fail_msg("%s: %s", refused[i].json, err.what);
    }
    directory_of = "openclip-quick";
}

static void a_tower_without_positions_takes_the_size_of_its_configuration(void **state)
{
    directory_of = "dinov3";
    const char *const json = "{\"model_type\": \"dinov3_vit\", \"hidden_size\": 32, "
                             "\"num_attention_heads\": 2, \"image_size\": 35}";
    assert_int_equal(known("config.json", json, NULL).image, 35);
    assert_int_equal(known("config.json", json, "data.image_size=28").image, 28);
    assert_int_equal(known(NULL, NULL, "model_t.heads=2").image, 14 * 7);
    directory_of = "openclip-quick";
}

/* timm has some of its SigLIP towers with the exact GELU, some with the one that they were trained with. */
static void the_activation_of_a_siglip_tower_is_that_of_its_architecture(void **state)
{
    static const struct {
        const char *json;
        int ffn;
    } rows[] = {
        {"{\"architecture\": \"vit_base_patch16_siglip_224\", \"num_features\": 32, \"global_pool\": "
         "\"map\"}",
         GELU},
        {"{\"architecture\": \"vit_so400m_patch16_siglip_256\", \"num_features\": 32}", TANH},
        {"{\"model_cfg\": {\"vision_cfg\": {\"timm_model_name\": \"vit_large_patch16_siglip_512\", "
         "\"timm_pool\": \"map\"}}}",
         TANH},
        {"{\"model_type\": \"siglip\", \"vision_config\": {\"hidden_size\": 32, \"num_attention_heads\": 2, "
         "\"intermediate_size\": 48}}",
         TANH},
    };
    char text[256];
    directory_of = "siglip";
    struct model_shape g = known(NULL, NULL, "model_t.heads=2");
    model_shape_text(&g, text, sizeof text);
    assert_non_null(strstr(text, "gelu_tanh (assumed)"));
    assert_int_equal(g.pool_heads, 2);
    assert_non_null(strstr(text, "pooling with 2 heads,"));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        g = known("config.json", rows[i].json, "model_t.heads=2");
        assert_int_equal(g.ffn, rows[i].ffn);
        assert_false(fact_assumed(&g, FACT_ACTIVATION) || fact_assumed(&g, FACT_POOL));
    }
    directory_of = "openclip-quick";
}

static void a_file_of_any_content_is_bounded(void **state)
{
    struct model_shape g;
    struct error err;
    size_t bytes = 3 << 20;
    char *deep = xmalloc(bytes + 1);
    memset(deep, '[', bytes);
    deep[bytes] = 0;
    assert_int_not_equal(teacher(&g, "config.json", deep, "model_t.heads=2", &err), 0);
    deep[1 << 19] = 0;
    assert_int_equal(teacher(&g, "config.json", deep, "model_t.heads=2", &err), EXIT_CONFIG);
    free(deep);
}

/* Tables of rotary positions show the heads: the sidecar config of another tower does not replace them. */
static void tables_of_rotary_positions_determine_the_heads(void **state)
{
    static const char json[] = "{\"architecture\": \"eva02_base_patch16_clip_224\", \"num_features\": 16, "
                               "\"model_args\": {\"num_heads\": 4}}";
    char directory[] = "/tmp/meopt-tables-XXXXXX", *bytes = NULL;
    size_t count = 0;
    struct error err = {0};
    assert_non_null(mkdtemp(directory));
    char *from = golden_path("names", "eva02-clip", "model.safetensors"),
         *model = xasprintf("%s/model.safetensors", directory),
         *path = xasprintf("%s/config.json", directory), *weight = xasprintf("model_t.weight=%s", model);
    assert_int_equal(file_read(from, 1 << 20, &bytes, &count, &err), 0);
    assert_int_equal(file_write_atomic(model, bytes, count, &err), 0);
    assert_int_equal(file_write_atomic(path, json, strlen(json), &err), 0);
    for (int keys = 1; keys <= 2; keys++) {
        char *overrides[] = {weight, (char[]){"model_t.heads=2"}};
        struct config c;
        struct model_shape g;
        struct weights *weights;
        assert_int_equal(config_load_text(&c, "untold.yaml", "{}\n", 3, overrides, keys, &err), 0);
        if (experiment_tower_shape(&c, 0, &g, &weights, &err)) fail_msg("%s", err.what);
        assert_int_equal(g.heads, 2);
        weights_close(weights);
        config_free(&c);
    }
    file_remove_tree(directory, NULL);
    free(bytes);
    free(from);
    free(model);
    free(path);
    free(weight);
}

static void a_number_that_no_field_holds_is_not_known(void **state)
{
    struct model_shape g = {.heads = 2};
    assert_true(fact_read(&g, FACT_NORM_EPS, "1e-6") && !fact_read(&g, FACT_NORM_EPS, "1e-60"));
    static const double values[] = {NAN, INFINITY, 1e300, 9223372036854775807.0};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        g.heads = 2;
        fact_set(&g, FACT_HEADS, values[i], SOURCE_METADATA);
        assert_int_equal(g.heads, 0);
    }
}

/* A classifier without a known number of classes is refused for that, whatever is frozen. */
static void unknown_classes_are_named_before_a_missing_head(void **state)
{
    static const char text[] =
        "train: {objective: classify}\n"
        "model: {family: bert, init: random, width: 32, depth: 2, heads: 2, hidden: 64, vocabulary: 90, "
        "context: 16, freeze: all_but_head}\n";
    struct config c;
    struct error err = {0};
    struct experiment_towers towers;
    assert_int_equal(config_load_text(&c, "classes.yaml", text, sizeof text - 1, NULL, 0, &err), 0);
    assert_int_equal(experiment_towers(&c, true, &towers, &err), EXIT_CONFIG);
    assert_true(mentions(err.hint, "model.classes"));
    config_free(&c);
}

/* A student that is read alone, as meopt embed does. */
static void adapters_of_a_student_alone_are_checked(void **state)
{
    char *from = golden_path("towers", "dinov2-mlp", "model.pth"),
         *weight = xasprintf("model_s.weight=%s", from);
    char *overrides[] = {weight, (char[]){"data.image_size=28"}, (char[]){"model_s.heads=2"},
                         (char[]){"lora.rank=4096"}};
    struct config c;
    struct error err = {0};
    struct model_shape g;
    struct weights *weights;
    assert_int_equal(config_load_text(&c, "alone.yaml", "{}\n", 3, overrides, 4, &err), 0);
    assert_int_equal(experiment_tower_shape(&c, TOWER_STUDENT, &g, &weights, &err), EXIT_CONFIG);
    assert_true(mentions(err.what, "lora.rank|4096"));
    config_free(&c);
    free(weight);
    free(from);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sidecar_config_sets_activation_and_heads),
        cmocka_unit_test(a_key_stands_above_the_file_and_nothing_is_assumed_then),
        cmocka_unit_test(a_sidecar_config_that_contradicts_the_metadata_is_refused),
        cmocka_unit_test(a_sidecar_config_sets_the_pooling),
        cmocka_unit_test(positions_are_resized_as_the_library_does_that_wrote_the_checkpoint),
        cmocka_unit_test(unknown_properties_are_assumed_with_a_message),
        cmocka_unit_test(a_torchscript_archive_of_clip_has_quick_gelu),
        cmocka_unit_test(the_activation_of_a_siglip_tower_is_that_of_its_architecture),
        cmocka_unit_test(what_is_not_known_or_not_readable_is_refused),
        cmocka_unit_test(heads_of_attention_pooling_are_set_or_assumed),
        cmocka_unit_test(a_tower_without_positions_takes_the_size_of_its_configuration),
        cmocka_unit_test(a_file_of_any_content_is_bounded),
        cmocka_unit_test(tables_of_rotary_positions_determine_the_heads),
        cmocka_unit_test(a_number_that_no_field_holds_is_not_known),
        cmocka_unit_test(unknown_classes_are_named_before_a_missing_head),
        cmocka_unit_test(adapters_of_a_student_alone_are_checked),
    };
    return cmocka_run_group_tests_name("untold", tests, NULL, NULL);
}
