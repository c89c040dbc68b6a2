/* Configurations for transformers: of towers (CLIPVisionConfig, Dinov2Config, Dinov2WithRegistersConfig,
 * ...) and of images (CLIPImageProcessor, BitImageProcessor, ...). See export_hf.h. */
#include "cli/export/export_hf.h"
#include "cli/export/export_language.h"
#include "core/base/file.h"
#include "core/base/path.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/model/names.h"
#include "core/experiment/preprocess.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int write_object(const char *directory, const char *name, json_t *object, struct error *err)
{
    char *path = path_join(directory, name);
    int code = json_write(path, object, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(16), err);
    free(path);
    json_decref(object);
    return code;
}

/* Returns the hidden width that Dinov2Config computes from its ratio: width * ratio, and for SwiGLU two
 * thirds of that, rounded up to a multiple of 8. */
static int64_t hidden_of(const struct model_shape *g, int ratio)
{
    int64_t hidden = g->width * ratio;
    return g->ffn == 1 + ACTIVATION_SWIGLU ? ((int64_t)((double)hidden * 2 / 3) + 7) / 8 * 8 : hidden;
}

/* Returns the ratio that gives the tower's hidden width; 0: none does. Dinov2Config accepts integers only. */
static int ratio_of(const struct model_shape *g)
{
    enum { MOST = 64 };
    for (int ratio = 1; ratio <= MOST; ratio++)
        if (hidden_of(g, ratio) == g->hidden) return ratio;
    return 0;
}

/* Returns the name of the activation in transformers. */
static const char *activation_of(const struct model_shape *g)
{
    return g->ffn == 1 + ACTIVATION_SWIGLU      ? "gelu"
           : g->ffn == 1 + ACTIVATION_GELU_TANH ? "gelu_pytorch_tanh"
                                                : model_shape_activation(g);
}

/* Returns the epsilon rounded to 7 decimal digits: 1e-06, not the nearest float. */
static double norm_eps(const struct model_shape *g)
{
    char text[32];
    snprintf(text, sizeof text, "%.7g", (double)model_shape_norm_eps(g));
    return strtod(text, NULL);
}

static json_t *dinov2(const struct model_shape *g, int ratio)
{
    static const char *const names[2][2] = {
        {"Dinov2Model", "Dinov2ForImageClassification"},
        {"Dinov2WithRegistersModel", "Dinov2WithRegistersForImageClassification"}};
    bool registers = g->registers > 0;
    json_t *o = json_pack("{s:[s], s:s, s:b, s:s, s:b, s:f, s:f, s:i}", "architectures",
                          names[registers][g->classes > 0], "model_type",
                          registers ? "dinov2_with_registers" : "dinov2", "use_swiglu_ffn",
                          g->ffn == 1 + ACTIVATION_SWIGLU, "hidden_act", activation_of(g), "qkv_bias", 1,
                          "layer_norm_eps", norm_eps(g), "layerscale_value", 1.0, "mlp_ratio", ratio);
    if (o && registers) json_object_set_new(o, "num_register_tokens", json_integer((json_int_t)g->registers));
    return o;
}

static json_t *vit(const struct model_shape *g)
{
    return json_pack("{s:[s], s:s, s:I, s:s, s:b, s:f}", "architectures", "ViTForImageClassification",
                     "model_type", "vit", "intermediate_size", (json_int_t)g->hidden, "hidden_act",
                     activation_of(g), "qkv_bias", 1, "layer_norm_eps", norm_eps(g));
}

/* Returns in *theta the base of DINOv3's periods, base^(i / count). Periods in Meta's files are rounded to
 * bfloat16, those of transformers are not. */
static int rope_theta(const struct model_shape *g, double *theta, struct error *err)
{
    enum { EXACT, ROUNDED, DIFFERENT } periods = EXACT;
    int n = g->rope_count;
    *theta = 100;
    if (n > 1) *theta = pow((double)g->rope_periods[n - 1], (double)n / (n - 1));
    if (fabs(*theta - 100) < 2) *theta = 100;
    for (int i = 0; i < n; i++) {
        double usual = pow(*theta, (double)i / n), off = fabs((double)g->rope_periods[i] / usual - 1);
        if (off > 1e-6 && periods < ROUNDED) periods = ROUNDED;
        if (off > 1.0 / 128) periods = DIFFERENT;
    }
    if (periods == DIFFERENT)
        return error_set(err, EXIT_CONFIG, "use --format pt or safetensors",
                         "transformers' DINOv3 does not support the rotary periods of this tower");
    if (periods == ROUNDED)
        log_warn(
            "transformers computes rotary periods from the base %g, this file has them rounded to bfloat16: "
            "embeddings may differ slightly",
            *theta);
    return 0;
}

static json_t *dinov3(const struct model_shape *g, double theta)
{
    bool gated = g->ffn == 1 + ACTIVATION_SWIGLU, bias = model_shape_parts(g) & PART_QKV_BIAS;
    return json_pack("{s:[s], s:s, s:I, s:b, s:s, s:b, s:b, s:b, s:I, s:f, s:f}", "architectures",
                     "DINOv3ViTModel", "model_type", "dinov3_vit", "intermediate_size", (json_int_t)g->hidden,
                     "use_gated_mlp", gated, "hidden_act", gated ? "silu" : activation_of(g), "query_bias",
                     bias, "key_bias", 0, "value_bias", bias, "num_register_tokens", (json_int_t)g->registers,
                     "layer_norm_eps", norm_eps(g), "rope_theta", theta);
}

static json_t *clip(const struct model_shape *g)
{
    return json_pack("{s:[s], s:s, s:I, s:s, s:I, s:f, s:f}", "architectures",
                     g->unprojected ? "CLIPVisionModel" : "CLIPVisionModelWithProjection", "model_type",
                     "clip_vision_model", "intermediate_size", (json_int_t)g->hidden, "hidden_act",
                     activation_of(g), "projection_dim", (json_int_t)g->out, "layer_norm_eps", norm_eps(g),
                     "attention_dropout", 0.0);
}

static json_t *siglip(const struct model_shape *g)
{
    return json_pack("{s:[s], s:s, s:I, s:s, s:f, s:f}", "architectures", "SiglipVisionModel", "model_type",
                     "siglip_vision_model", "intermediate_size", (json_int_t)g->hidden, "hidden_act",
                     activation_of(g), "layer_norm_eps", norm_eps(g), "attention_dropout", 0.0);
}

static json_t *three(const float values[3])
{
    json_t *list = json_array();
    for (int c = 0; c < 3; c++) {
        char text[24];
        json_array_append_new(list, json_real(strtod(float_text(text, sizeof text, values[c]), NULL)));
    }
    return list;
}

/* Warns if transformers crops a square image at a different pixel: it rounds half a margin down, PIL half to
 * even. */
static void report_crop(const struct preprocess *how, json_int_t side, json_int_t resized)
{
    if (how->as == RESIZE_AS_PIL && how->resize != RESIZE_EXACT && (resized - side) % 4 == 3)
        log_warn(
            "transformers crops %lld of %lld px from pixel %lld on, the run from %lld on: embeddings differ",
            (long long)side, (long long)resized, (long long)(resized - side) / 2,
            (long long)(resized - side) / 2 + 1);
}

/* Returns the configuration of the student's preprocessing. */
static json_t *images(const struct config *config)
{
    static const int filters[] = {[RESAMPLE_BICUBIC] = 3, [RESAMPLE_BILINEAR] = 2, [RESAMPLE_NEAREST] = 0,
                                  [RESAMPLE_LANCZOS] = 1, [RESAMPLE_BOX] = 4,      [RESAMPLE_HAMMING] = 5};
    struct preprocess how = train_preprocess(config, TOWER_STUDENT);
    json_int_t side = (json_int_t)train_image_size(config, TOWER_STUDENT),
               resized = preprocess_resized(&how, side);
    const char *name = how.as == RESIZE_AS_HF_FLOAT                    ? "DINOv3ViTImageProcessor"
                       : config->data.pipeline == DATA_PIPELINE_SIGLIP ? "SiglipImageProcessor"
                       : config->data.pipeline == DATA_PIPELINE_DINOV2 ? "BitImageProcessor"
                                                                       : "CLIPImageProcessor";
    report_crop(&how, side, resized);
    json_t *o = json_pack(
        "{s:s, s:b, s:b, s:b, s:b, s:b, s:i, s:f, s:{s:I, s:I}, s:s}", "image_processor_type", name,
        "do_convert_rgb", 1, "do_resize", how.resize != RESIZE_EXACT, "do_center_crop", 1, "do_rescale", 1,
        "do_normalize", 1, "resample", filters[how.resample], "rescale_factor", 1.0 / 255, "crop_size",
        "height", side, "width", side, PREPROCESS_RESIZE_AS, data_resize_as_names[1 + how.as]);
    if (!o) return NULL;
    json_object_set_new(o, "size",
                        how.resize == RESIZE_SQUASH
                            ? json_pack("{s:I, s:I}", "height", resized, "width", resized)
                            : json_pack("{s:I}", "shortest_edge", resized));
    json_object_set_new(o, "image_mean", three(how.mean));
    json_object_set_new(o, "image_std", three(how.std));
    return o;
}

int export_hf_write(const char *directory, const struct model_shape *g, const json_t *classes,
                    const struct config *config, bool bf16, struct error *err)
{
    if (model_shape_language(g))
        return export_language_write(directory, g, classes, config->model_s.weight, bf16, err);
    int ratio = ratio_of(g);
    struct key_map as;
    bool plain = names_library(&as, LIBRARY_TRANSFORMERS, g) && names_plain(&as),
         family = g->family == FAMILY_DINOV2 && !plain,
         positions = family_has(family_row(g->family), ROLE_POS);
    double theta;
    int code = rope_theta(g, &theta, err);
    if (code) return code;
    if (family && !ratio)
        return error_set(err, EXIT_CONFIG, "use --format pt, safetensors or timm",
                         "transformers' DINOv2 expects an integer mlp_ratio, found hidden width %lld of %lld",
                         (long long)g->hidden, (long long)g->width);
    json_t *o = plain                        ? vit(g)
                : family                     ? dinov2(g, ratio)
                : g->family == FAMILY_DINOV3 ? dinov3(g, theta)
                : g->family == FAMILY_SIGLIP ? siglip(g)
                                             : clip(g);
    json_int_t seen = (json_int_t)train_image_size(config, TOWER_STUDENT);
    bool whole = g->pos_grid == seen / g->patch;
    if (o) {
        static const enum fact sizes[] = {FACT_WIDTH, FACT_DEPTH, FACT_HEADS, FACT_COUNT};
        export_set_sizes(o, g, sizes);
        json_object_set_new(o, "num_channels", json_integer(3));
        json_object_set_new(o, "image_size",
                            json_integer(positions && !whole ? g->pos_grid * g->patch : seen));
        json_object_set_new(o, "patch_size", json_integer((json_int_t)g->patch));
        json_object_set_new(o, "torch_dtype", json_string(bf16 ? "bfloat16" : "float32"));
    }
    if (o && g->classes > 0) export_set_classes(o, g->classes, classes);
    code = write_object(directory, "config.json", o, err);
    return code ? code : write_object(directory, "preprocessor_config.json", images(config), err);
}

int export_hf_copy(const char *directory, const char *original, struct error *err)
{
    static const char *const names[] = {"config.json", "preprocessor_config.json"};
    char *from = path_directory(original, err);
    int code = from ? 0 : err->code;
    for (size_t i = 0; i < sizeof names / sizeof *names && !code; i++) {
        enum { MOST_BYTES = 16 << 20 };
        char *path = path_join(from, names[i]), *to = path_join(directory, names[i]), *data = NULL;
        size_t bytes = 0;
        if (i == 0 || !file_absent(path)) {
            code = file_read(path, MOST_BYTES, &data, &bytes, err);
            if (!code) code = file_write_atomic(to, data, bytes, err);
        }
        free(data);
        free(to);
        free(path);
    }
    free(from);
    return code ? code : export_language_tokenizer(directory, original, err);
}
