/* Preprocessing of a tower's images: from the keys, from the sidecar configs of timm, open_clip and
 * transformers, or assumed, with a message. */
#include "core/experiment/preprocess.h"
#include "core/base/path.h"
#include "core/experiment/experiment.h"
#include "core/step/trainer.h"
#include "tests/golden/golden.h"
#include "tests/mentions.h"

#include <stdio.h>
#include <unistd.h>

/* A checkpoint of tests/data with sidecar files, {name, text} pairs, and keys; NULL ends both. */
static int settled(struct config *c, struct model_shape *g, const char *tower, const char *const *files,
                   char *const *keys, struct error *err)
{
    char directory[] = "/tmp/meopt-preprocess-XXXXXX", *bytes = NULL, *overrides[16];
    size_t count = 0;
    int n = 0;
    struct weights *weights = NULL;
    assert_non_null(mkdtemp(directory));
    char *from = golden_path(tower, "model.safetensors", NULL),
         *model = path_join(directory, "model.safetensors");
    if (file_read(from, 1 << 20, &bytes, &count, err)) fail_msg("%s: %s", from, err->what);
    assert_int_equal(file_write_atomic(model, bytes, count, err), 0);
    for (; files && files[0]; files += 2) {
        char *path = path_join(directory, files[0]);
        assert_int_equal(file_write_atomic(path, files[1], strlen(files[1]), err), 0);
        free(path);
    }
    overrides[n++] = xasprintf("model_t.weight=%s", model);
    overrides[n++] = (char[]){"model_t.heads=2"};
    while (keys && *keys) overrides[n++] = *keys++;
    *err = (struct error){0};
    int code = config_load_text(c, "preprocess.yaml", "{}\n", 3, overrides, n, err);
    if (!code) code = experiment_tower_shape(c, 0, g, &weights, err);
    weights_close(weights);
    file_remove_tree(directory, NULL);
    free(overrides[0]);
    free(bytes);
    free(model);
    free(from);
    return code;
}

#define CLIP "towers/openclip-quick"
#define HALF "\"image_mean\": [0.5, 0.5, 0.5], \"image_std\": [0.5, 0.5, 0.5]"
#define TIMM(more)                                                                                           \
    "{\"architecture\": \"vit_small_patch16_224\", \"num_features\": 32, \"pretrained_cfg\": {" more "}}"
#define OPEN_CLIP(more)                                                                                      \
    "{\"model_cfg\": {\"embed_dim\": 16, \"vision_cfg\": {\"width\": 32, \"head_width\": 16, "               \
    "\"image_size\": 56}}, "                                                                                 \
    "\"preprocess_cfg\": {" more "}}"

#define CLIP_MEAN "mean 0.48145467 0.4578275 0.40821072, std 0.26862955 0.2613026 0.2757771, "
#define IMAGENET  "mean 0.485 0.456 0.406, std 0.229 0.224 0.225, "
#define HALVES    "mean 0.5 0.5 0.5, std 0.5 0.5 0.5, "
#define PROCESSOR "preprocessor_config.json"

static void sidecar_configs_set_the_preprocessing(void **state)
{
    static const struct {
        const char *name, *text, *says;
    } rows[] = {
        {"open_clip_config.json",
         "{\"embed_dim\": 16, \"vision_cfg\": {\"width\": 32, \"head_width\": 16, \"image_size\": 56}}",
         "56 px|shorter side| 56 |bicubic|PIL|crop|" CLIP_MEAN "|assumed|data.pipeline clip"},
        {"config.json", "{\"architecture\": \"vit_small_patch16_224\", \"num_features\": 32}",
         "28 px|shorter side| 28 |bicubic|PIL|crop|" CLIP_MEAN "|assumed|data.pipeline clip"},
        {NULL, NULL, "28 px|shorter side| 28 |bicubic|PIL|crop|" CLIP_MEAN "|assumed|data.pipeline clip"},
        {"open_clip_config.json", OPEN_CLIP(""),
         "56 px|shorter side| 56 |bicubic|PIL|crop|" CLIP_MEAN "|open_clip_config.json"},
        {"open_clip_config.json",
         OPEN_CLIP(
             "\"interpolation\": \"bilinear\", \"resize_mode\": \"squash\", \"mean\": 0.5, \"std\": [0.5]"),
         "56 px|both sides| 56 |bilinear|PIL|crop|" HALVES "|open_clip_config.json"},
        {"config.json",
         TIMM("\"input_size\": [3, 56, 56], \"crop_pct\": 0.9, \"interpolation\": \"lanczos\""),
         "56 px|shorter side| 62 |lanczos|PIL|crop|" IMAGENET "|config.json"},
        {"config.json",
         TIMM("\"crop_mode\": \"squash\", \"crop_pct\": 1.0, \"mean\": [0.5, 0.5, 0.5], \"std\": [0.5, 0.5, "
              "0.5]"),
         "224 px|both sides| 224 |bicubic|PIL|crop|" HALVES "|config.json"},
        {"config.json",
         "{\"architecture\": \"vit_small_patch16_224\", \"num_features\": 32, \"input_size\": [3, 112, 112]}",
         "112 px|shorter side| 128 |bicubic|PIL|crop|" IMAGENET "|config.json"},
        {PROCESSOR,
         "{\"image_processor_type\": \"BitImageProcessor\", \"size\": {\"shortest_edge\": 64}, "
         "\"crop_size\": "
         "{\"height\": 56, \"width\": 56}, " HALF "}",
         "56 px|shorter side| 64 |bicubic|transformers|crop|" HALVES "|preprocessor_config.json"},
        {PROCESSOR, "{\"feature_extractor_type\": \"ViTFeatureExtractor\", \"size\": 56}",
         "56 px|both sides| 56 |bilinear|transformers|crop|" HALVES "|preprocessor_config.json"},
        {PROCESSOR, "{\"feature_extractor_type\": \"CLIPFeatureExtractor\", \"size\": 56, \"crop_size\": 56}",
         "56 px|shorter side| 56 |bicubic|transformers|crop|" CLIP_MEAN "|preprocessor_config.json"},
        {PROCESSOR,
         "{\"image_processor_type\": \"SiglipImageProcessor\", \"size\": {\"height\": 56, \"width\": 56}, "
         "\"rescale_factor\": 0.00784313725490196, \"image_mean\": [1, 1, 1], \"image_std\": [1, 1, 1]}",
         "56 px|both sides| 56 |bicubic|transformers|crop|" HALVES "|preprocessor_config.json"},
        {PROCESSOR,
         "{\"image_processor_type\": \"CLIPImageProcessor\", \"do_resize\": false, \"do_normalize\": false, "
         "\"crop_size\": 28}",
         "28 px|not resized|crop|mean 0 0 0, std 1 1 1|preprocessor_config.json"},
        {"processor_config.json",
         "{\"processor_class\": \"CLIPProcessor\", \"image_processor\": {\"image_processor_type\": "
         "\"CLIPImageProcessorFast\", \"resample\": 1, \"crop_size\": 56, \"size\": {\"shortest_edge\": "
         "60}}}",
         "56 px|shorter side| 60 |lanczos|transformers|crop|" CLIP_MEAN "|processor_config.json"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *const files[] = {rows[i].name, rows[i].text, NULL};
        char text[320];
        struct config c;
        struct model_shape g;
        struct error err;
        if (settled(&c, &g, CLIP, files, NULL, &err)) fail_msg("%s: %s", rows[i].text, err.what);
        preprocess_text(&c, 0, text, sizeof text);
        if (!mentions(text, rows[i].says)) fail_msg("'%s' lacks '%s'", text, rows[i].says);
        assert_int_equal(g.image, c.data.image_size);
        /* what is written down is read again as the same */
        char *resolved = config_resolved_text(&c);
        struct config again;
        assert_int_equal(config_load_text(&again, "again.yaml", resolved, strlen(resolved), NULL, 0, &err),
                         0);
        struct preprocess was = train_preprocess(&c, 0), is = train_preprocess(&again, 0);
        assert_true(preprocess_same(&was, &is));
        config_free(&again);
        config_free(&c);
        free(resolved);
    }
}

static void what_is_not_known_here_is_refused_unless_keys_say_it(void **state)
{
    static const char *const rows[][3] = {
        {"open_clip_config.json", OPEN_CLIP("\"resize_mode\": \"longest\""), "resize_mode|longest"},
        {"open_clip_config.json", OPEN_CLIP("\"mean\": [0.5, 0.5]"), "mean"},
        {"open_clip_config.json", OPEN_CLIP("\"std\": [0, 0, 0]"), "deviation| 0"},
        {"config.json", TIMM("\"crop_mode\": \"border\""), "crop_mode|border"},
        {"config.json", TIMM("\"interpolation\": \"random\""), "interpolation|random"},
        {"config.json", TIMM("\"input_size\": [3, 56, 28]"), "input_size|56|28"},
        {"config.json", TIMM("\"input_size\": [3, 1e300, 1e300]"), "input_size"},
        {"config.json", TIMM("\"crop_pct\": 1e-9"), "crop_pct|1e-09"},
        {"config.json", TIMM("\"mean\": {\"a\": \"\\u001b[31m\"}"), "mean"},
        {PROCESSOR, "{\"image_processor_type\": \"ConvNextImageProcessor\"}", "ConvNextImageProcessor"},
        {PROCESSOR, "{\"size\": 56}", "class"},
        {PROCESSOR, "{\"image_processor_type\": \"CLIPImageProcessor\", \"made_up\": 1}", "made_up"},
        {PROCESSOR, "{\"image_processor_type\": \"CLIPImageProcessor\", \"size\": {\"longest_edge\": 3}}",
         "size"},
        {PROCESSOR, "{\"image_processor_type\": \"CLIPImageProcessor\", \"size\": 28, \"crop_size\": 56}",
         "28|56"},
        {PROCESSOR, "{\"image_processor_type\": \"CLIPImageProcessor\", \"do_center_crop\": false}", "crop"},
        {PROCESSOR, "{\"image_processor_type\": \"CLIPImageProcessor\", \"resample\": 9}", "resample|0|5"},
        {PROCESSOR, "{\"image_processor_type\": \"CLIPImageProcessor\", \"meopt_resize_as\": \"gd\"}",
         "meopt_resize_as|gd"},
        {PROCESSOR, "{\"image_processor_type\": \"CLIPImageProcessor\", \"rescale_factor\": 0}",
         "rescale_factor| 0"},
        {PROCESSOR, "{\"image_processor_type\": \"CLIPImageProcessor\", \"do_pad\": true}", "do_pad"},
        {PROCESSOR, "[]", ""},
    };
    static char pipeline[] = "data.pipeline=dinov2", size[] = "data.image_size=56",
                mean[] = "data.mean=[0.1, 0.2, 0.3]";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *const files[] = {rows[i][0], rows[i][1], NULL};
        char *const keys[] = {pipeline, size, mean, NULL};
        char text[320];
        struct config c;
        struct model_shape g;
        struct error err;
        assert_int_equal(settled(&c, &g, CLIP, files, NULL, &err), EXIT_CONFIG);
        if (!mentions(err.what, rows[i][2])) fail_msg("%s: %s", rows[i][1], err.what);
        config_free(&c);
        if (rows[i][1][0] == '[') continue; /* no JSON object is refused in any case */
        assert_int_equal(settled(&c, &g, CLIP, files, keys, &err), 0);
        preprocess_text(&c, 0, text, sizeof text);
        assert_true(mentions(text, "56 px|shorter side| 64 |bicubic|PIL|crop|mean 0.1 0.2 0.3, std 0.229 "
                                   "0.224 0.225|configuration"));
        config_free(&c);
    }
}

static void keys_stand_above_the_files(void **state)
{
    const char *const files[] = {"config.json", TIMM("\"input_size\": [3, 56, 56], \"crop_pct\": 0.9"), NULL};
    static char mean[] = "data.mean=0.5 0.5 0.5", std[] = "data.std=[0.25, 0.25, 0.25]",
                share[] = "data.crop_pct=1", filter[] = "data.interpolation=box",
                resize[] = "data.resize=squash", as[] = "data.resize_as=hf_pil",
                size[] = "data.image_size=112";
    char *const keys[] = {mean, std, share, filter, resize, as, size, NULL};
    char text[320];
    struct config c;
    struct model_shape g;
    struct error err;
    assert_int_equal(settled(&c, &g, CLIP, files, keys, &err), 0);
    preprocess_text(&c, 0, text, sizeof text);
    assert_true(mentions(
        text,
        "112 px|both sides| 112 |box|transformers|crop|mean 0.5 0.5 0.5, std 0.25 0.25 0.25|config.json"));
    config_free(&c);
    char *const wrong[][2] = {{(char[]){"data.mean=0.5, 0.5"}},
                              {(char[]){"data.mean=a,b,c"}},
                              {(char[]){"data.std=0,1,1"}},
                              {(char[]){"data.crop_pct=0.05"}},
                              {(char[]){"data.mean=nan,0,0"}},
                              {(char[]){"data.std=1,1,1,1"}},
                              {(char[]){"data.resize_as=hf"}, (char[]){"data.interpolation=box"}}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(config_load_text(&c, "wrong.yaml", "{}\n", 3, (char **)(uintptr_t)wrong[i],
                                          wrong[i][1] ? 2 : 1, &err),
                         EXIT_CONFIG);
}

/* Where nothing says the size it is that of the positions; the 37 x 37 of DINOv2's own files stand for 224
 * pixels. */
static void the_size_is_that_of_the_positions(void **state)
{
    static const char *const towers[] = {"names/timm-vit-avg", "names/torchvision", "names/dinov2",
                                         "towers/vit-plain"};
    for (size_t i = 0; i < sizeof towers / sizeof *towers; i++) {
        struct config c;
        struct model_shape g;
        struct error err;
        if (settled(&c, &g, towers[i], NULL, NULL, &err)) fail_msg("%s: %s", towers[i], err.what);
        assert_int_equal(g.image, g.pos_grid * g.patch);
        assert_int_equal(c.data.image_size, g.image);
        config_free(&c);
    }
    static const int64_t sizes[][3] = {
        {37, 14, 224}, {14, 16, 224}, {7, 32, 224}, {28, 8, 224}, {24, 16, 384}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct model_shape g = {
            .family = FAMILY_DINOV2, .width = 64, .depth = 1, .pos_grid = sizes[i][0], .patch = sizes[i][1]};
        struct error err;
        assert_int_equal(model_shape_check(&g, 0, &err), 0);
        assert_int_equal(g.image, sizes[i][2]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sidecar_configs_set_the_preprocessing),
                                       cmocka_unit_test(what_is_not_known_here_is_refused_unless_keys_say_it),
                                       cmocka_unit_test(keys_stand_above_the_files),
                                       cmocka_unit_test(the_size_is_that_of_the_positions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
