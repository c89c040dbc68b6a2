/* The preprocessing of a tower's images: see preprocess.h. */
#include "core/experiment/preprocess.h"
#include "core/base/json.h"
#include "core/base/json_members.h"
#include "core/config/value.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)DATA_INTERPOLATION_BICUBIC == 1 + (int)RESAMPLE_BICUBIC &&
                   (int)DATA_INTERPOLATION_BILINEAR == 1 + (int)RESAMPLE_BILINEAR &&
                   (int)DATA_INTERPOLATION_NEAREST == 1 + (int)RESAMPLE_NEAREST &&
                   (int)DATA_INTERPOLATION_LANCZOS == 1 + (int)RESAMPLE_LANCZOS &&
                   (int)DATA_INTERPOLATION_BOX == 1 + (int)RESAMPLE_BOX &&
                   (int)DATA_INTERPOLATION_HAMMING == 1 + (int)RESAMPLE_HAMMING,
               "enum data_interpolation is auto, then enum resample");
_Static_assert((int)DATA_RESIZE_SHORTEST == 1 + (int)RESIZE_SHORTEST &&
                   (int)DATA_RESIZE_SQUASH == 1 + (int)RESIZE_SQUASH &&
                   (int)DATA_RESIZE_EXACT == 1 + (int)RESIZE_EXACT &&
                   (int)DATA_RESIZE_AS_PIL == 1 + (int)RESIZE_AS_PIL &&
                   (int)DATA_RESIZE_AS_HF == 1 + (int)RESIZE_AS_HF &&
                   (int)DATA_RESIZE_AS_HF_PIL == 1 + (int)RESIZE_AS_HF_PIL &&
                   (int)DATA_RESIZE_AS_HF_FLOAT == 1 + (int)RESIZE_AS_HF_FLOAT,
               "enum data_resize is auto, then enum resize; enum data_resize_as too");

enum { MAX_SIDE = 16384 };

static const double imagenet_mean[3] = {0.485, 0.456, 0.406}, imagenet_std[3] = {0.229, 0.224, 0.225},
                    clip_mean[3] = {0.48145466, 0.4578275, 0.40821073},
                    clip_std[3] = {0.26862954, 0.26130258, 0.27577711}, half[3] = {0.5, 0.5, 0.5};

/* ---- Values of the files ---- */

__attribute__((format(printf, 2, 3))) static void set_unsupported(struct preprocess_found *f,
                                                                  const char *format, ...)
{
    char text[sizeof f->odd];
    va_list args;
    if (f->odd[0]) return;
    va_start(args, format);
    text_format(text, sizeof text, format, args);
    va_end(args);
    name_printable(f->odd, sizeof f->odd, text);
}

static const json_t *value_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static bool bool_of(const json_t *object, const char *key, bool standard)
{
    const json_t *value = value_of(object, key);
    return value ? json_is_true(value) : standard;
}

/* Reads three numbers, or one for all channels. */
static void read_numbers(struct preprocess_found *f, const json_t *object, const char *name,
                         const double standard[3], double to[3])
{
    const json_t *value = value_of(object, name);
    size_t count = json_array_size(value);
    bool fine = !value || json_is_number(value) || count == 1 || count == 3;
    for (size_t c = 0; c < 3; c++) {
        const json_t *one = json_is_number(value) ? value : json_array_get(value, count == 3 ? c : 0);
        to[c] = value ? json_number_value(one) : standard[c];
        fine = fine && (!value || json_is_number(one)) && isfinite(to[c]) && fabs(to[c]) < 1e6;
    }
    if (!fine) set_unsupported(f, "%s is not three numbers", name);
}

static void read_normalisation(struct preprocess_found *f, const double mean[3], const double std[3])
{
    for (int c = 0; c < 3; c++) {
        f->how.mean[c] = (float)mean[c];
        f->how.std[c] = (float)std[c];
        if (!(std[c] > 1e-6)) set_unsupported(f, "a standard deviation is %g", std[c]);
    }
}

static int64_t side_of(struct preprocess_found *f, const json_t *value, const char *name)
{
    int64_t side = json_integer_value(value);
    if (!json_is_number(value) || side < 1 || side > MAX_SIDE || json_number_value(value) != (double)side) {
        set_unsupported(f, "%s is not a number of pixels", name);
        return 0;
    }
    return side;
}

/* Returns the side of a square size: [height, width], [channels, height, width], or one number. */
static int64_t square_of(struct preprocess_found *f, const json_t *value, const char *name)
{
    size_t n = json_array_size(value);
    if (!value) return 0;
    if (!n) return side_of(f, value, name);
    int64_t width = side_of(f, json_array_get(value, n - 1), name),
            height = n > 1 ? side_of(f, json_array_get(value, n - 2), name) : width;
    if (width != height)
        set_unsupported(f, "%s is %lld x %lld, no square", name, (long long)height, (long long)width);
    return width;
}

/* Returns the index of a name in a list whose first one is auto, without that one. */
static int choice_of(struct preprocess_found *f, const char *const *names, const char *what, const char *name)
{
    for (int i = 1; names[i]; i++)
        if (strcmp(names[i], name) == 0) return i - 1;
    set_unsupported(f, "%s is %s", what, name);
    return 0;
}

static void read_filter(struct preprocess_found *f, const char *name)
{
    f->how.resample = (enum resample)choice_of(f, data_interpolation_names, "the interpolation", name);
}

/* Returns crop_pct for a crop of `side` from an image resized to `resized`. */
static double share_of(int64_t side, int64_t resized)
{
    double share = (double)side / (double)resized;
    while (floor((double)side / share) < (double)resized) share = nextafter(share, 0);
    return share;
}

/* ---- The libraries ---- */

/* Reads pretrained_cfg; before timm 0.9 its keys were in config.json itself. Defaults are those of
 * resolve_data_config. */
static void read_timm(struct preprocess_found *f, const json_t *root)
{
    const json_t *o = json_object_get(root, "pretrained_cfg");
    double mean[3], std[3];
    if (!json_is_object(o)) o = root;
    const json_t *share = value_of(o, "crop_pct");
    const char *mode = json_word(o, "crop_mode"), *filter = json_word(o, "interpolation");
    f->side = value_of(o, "input_size") ? square_of(f, value_of(o, "input_size"), "input_size") : 224;
    read_numbers(f, o, "mean", imagenet_mean, mean);
    read_numbers(f, o, "std", imagenet_std, std);
    read_normalisation(f, mean, std);
    read_filter(f, *filter ? filter : "bicubic");
    f->how.crop_pct = share && json_number_value(share) != 0 ? json_number_value(share) : 0.875;
    if (!(f->how.crop_pct >= 0.1 && f->how.crop_pct <= 1))
        set_unsupported(f, "crop_pct is %g", f->how.crop_pct);
    f->how.resize = strcmp(mode, "squash") == 0 ? RESIZE_SQUASH : RESIZE_SHORTEST;
    if (*mode && strcmp(mode, "squash") != 0 && strcmp(mode, "center") != 0)
        set_unsupported(f, "crop_mode is %s", mode);
}

/* Reads preprocess_cfg; defaults are those of PreprocessCfg. The size is the tower's. */
static void read_open_clip(struct preprocess_found *f, const json_t *root)
{
    const json_t *o = value_of(root, "preprocess_cfg"),
                 *model = json_object_get(root, "model_cfg") ? json_object_get(root, "model_cfg") : root,
                 *size = value_of(json_object_get(model, "vision_cfg"), "image_size");
    const char *mode = json_word(o, "resize_mode"), *filter = json_word(o, "interpolation");
    double mean[3], std[3];
    if (!size) size = value_of(o, "size");
    f->side = size ? square_of(f, size, "image_size") : 224;
    read_numbers(f, o, "mean", clip_mean, mean);
    read_numbers(f, o, "std", clip_std, std);
    read_normalisation(f, mean, std);
    f->how.resample =
        strcmp(filter, "bilinear") == 0 ? RESAMPLE_BILINEAR : RESAMPLE_BICUBIC; /* as open_clip */
    f->how.crop_pct = 1;
    f->how.resize = strcmp(mode, "squash") == 0 ? RESIZE_SQUASH : RESIZE_SHORTEST;
    if (*mode && strcmp(mode, "squash") != 0 && strcmp(mode, "shortest") != 0)
        set_unsupported(f, "resize_mode is %s", mode);
}

/* Defaults of transformers' image processor classes. */
static const struct processor {
    const char *name;  /* before "ImageProcessor" */
    const char *model; /* prefix of model_type, if the file does not name its class */
    int resample;      /* PIL's number */
    bool shortest;     /* a plain number as size is the shorter side */
    int size, crop;    /* crop 0: none */
    const double *mean, *std;
    enum resize_as as;
} processors[] = {
    {"CLIP", "clip", 3, true, 224, 224, clip_mean, clip_std, RESIZE_AS_HF},
    {"Bit", "dinov2", 3, true, 224, 224, clip_mean, clip_std, RESIZE_AS_HF},
    {"ViT", "vit", 2, false, 224, 0, half, half, RESIZE_AS_HF},
    {"DeiT", "deit", 3, false, 256, 224, half, half, RESIZE_AS_HF},
    {"Beit", "beit", 3, false, 224, 0, half, half, RESIZE_AS_HF},
    {"Siglip", "siglip", 3, false, 224, 0, half, half, RESIZE_AS_HF},
    {"DINOv3ViT", "dinov3", 2, false, 224, 0, imagenet_mean, imagenet_std, RESIZE_AS_HF_FLOAT},
};

/* Returns the row of a class. "CLIPFeatureExtractor" and "CLIPImageProcessorFast" are "CLIP". */
static const struct processor *processor_of(struct preprocess_found *f, const json_t *o, const char *model)
{
    const char *type = json_word(o, "image_processor_type");
    if (!*type) type = json_word(o, "feature_extractor_type");
    for (size_t i = 0; i < sizeof processors / sizeof *processors; i++) {
        size_t n = strlen(processors[i].name);
        if (strncmp(type, processors[i].name, n) == 0 &&
            (strncmp(type + n, "ImageProcessor", 14) == 0 || strcmp(type + n, "FeatureExtractor") == 0))
            return &processors[i];
        if (!*type && strncmp(model, processors[i].model, strlen(processors[i].model)) == 0)
            return &processors[i];
    }
    set_unsupported(f, "the class is %s", *type ? type : N_("not said"));
    return &processors[0];
}

/* Reads {"shortest_edge": n}, {"height": n, "width": n}, or a number, whose meaning depends on the class. */
static int64_t read_size(struct preprocess_found *f, const json_t *value, const char *name, bool *shortest)
{
    const json_t *edge = value_of(value, "shortest_edge"), *height = value_of(value, "height"),
                 *width = value_of(value, "width");
    if (!json_is_object(value)) return square_of(f, value, name);
    *shortest = edge && !height;
    if (edge && !height && !value_of(value, "longest_edge")) return side_of(f, edge, name);
    if (!height || !width || edge) {
        set_unsupported(f, "%s is neither the shorter side nor height and width", name);
        return 0;
    }
    int64_t h = side_of(f, height, name), w = side_of(f, width, name);
    if (h != w) set_unsupported(f, "%s is %lld x %lld, no square", name, (long long)h, (long long)w);
    return h;
}

static const struct json_member members[] = {
    {"image_processor_type", NULL},
    {"feature_extractor_type", NULL},
    {"do_resize", NULL},
    {"size", NULL},
    {"resample", NULL},
    {PREPROCESS_RESIZE_AS, NULL},
    {"do_center_crop", NULL},
    {"crop_size", NULL},
    {"do_rescale", NULL},
    {"rescale_factor", NULL},
    {"rescale_offset", NULL},
    {"do_normalize", NULL},
    {"image_mean", NULL},
    {"image_std", NULL},
    {"do_pad", NULL},
    {"do_convert_rgb", NULL},   /* images here always are RGB */
    {"do_reduce_labels", NULL}, /* of the pixels' labels */
    /* names; how it is computed and returned */
    {"processor_class", NULL},
    {"_processor_class", NULL},
    {"auto_map", NULL},
    {"_valid_processor_keys", NULL},
    {"data_format", NULL},
    {"input_data_format", NULL},
    {"return_tensors", NULL},
    {"device", NULL},
    {"disable_grouping", NULL},
    {"use_fast", NULL},
    {"image_seq_length", NULL},
    {NULL, NULL},
};

static void read_transformers(struct preprocess_found *f, const json_t *o, const char *model)
{
    static const enum resample filters[] = {RESAMPLE_NEAREST, RESAMPLE_LANCZOS, RESAMPLE_BILINEAR,
                                            RESAMPLE_BICUBIC, RESAMPLE_BOX,     RESAMPLE_HAMMING};
    const struct processor *class = processor_of(f, o, model);
    struct error unknown;
    if (json_members_check(o, members, NULL, _("the class"), NULL, &unknown))
        set_unsupported(f, "%s", unknown.what);
    const json_t *filter = value_of(o, "resample");
    double mean[3], std[3], factor = 1.0 / 255, zero[3] = {0, 0, 0}, one[3] = {1, 1, 1};
    bool shortest = class->shortest, square = false, resizes = bool_of(o, "do_resize", true),
         crops = bool_of(o, "do_center_crop", class->crop > 0);
    int64_t size = value_of(o, "size") ? read_size(f, value_of(o, "size"), "size", &shortest) : class->size,
            crop = value_of(o, "crop_size") ? read_size(f, value_of(o, "crop_size"), "crop_size", &square)
                   : class->crop            ? class->crop
                                            : 224;
    int64_t number = filter ? json_integer_value(filter) : class->resample;
    if (filter && (!json_is_integer(filter) || number < 0 || number > 5))
        set_unsupported(f, "resample is %s", json_is_integer(filter) ? "not 0 to 5" : N_("no number"));
    else f->how.resample = filters[number];
    const char *as = json_word(o, PREPROCESS_RESIZE_AS);
    f->how.as = class->as;
    if (*as) f->how.as = (enum resize_as)choice_of(f, data_resize_as_names, PREPROCESS_RESIZE_AS, as);
    if (f->how.as == RESIZE_AS_HF && (number == 0 || number > 3)) f->how.as = RESIZE_AS_HF_PIL;
    f->how.resize = !resizes ? RESIZE_EXACT : shortest ? RESIZE_SHORTEST : RESIZE_SQUASH;
    f->how.crop_pct = 1;
    f->side = crops ? crop : resizes ? size : 0;
    if (resizes && shortest && !crops) set_unsupported(f, "images keep their shape, without a crop");
    if (resizes && crops && crop > size)
        set_unsupported(f, "images are padded from %lld to %lld pixels", (long long)size, (long long)crop);
    else if (resizes && crops && crop > 0) f->how.crop_pct = share_of(crop, size);
    if (f->how.crop_pct < 0.1) set_unsupported(f, "the crop keeps %g of a side", f->how.crop_pct);
    if (bool_of(o, "do_pad", false)) set_unsupported(f, "images are padded (do_pad)");
    if (!bool_of(o, "do_rescale", true)) factor = 1;
    else if (value_of(o, "rescale_factor")) factor = json_number_value(value_of(o, "rescale_factor"));
    if (bool_of(o, "rescale_offset", false) && bool_of(o, "do_rescale", true))
        set_unsupported(f, "values are moved by 1 (rescale_offset)");
    if (!(factor > 1e-9 && factor < 1e9)) set_unsupported(f, "rescale_factor is %g", factor);
    bool normal = bool_of(o, "do_normalize", true);
    read_numbers(f, normal ? o : NULL, "image_mean", normal ? class->mean : zero, mean);
    read_numbers(f, normal ? o : NULL, "image_std", normal ? class->std : one, std);
    if (fabs(factor * 255 - 1) > 1e-9) /* x factor - mean = 255 factor (x / 255 - mean / (255 factor)) */
        for (int c = 0; c < 3; c++) {
            mean[c] /= 255 * factor;
            std[c] /= 255 * factor;
        }
    read_normalisation(f, mean, std);
}

/* ---- Choice of the file ---- */

static bool transformers_names(const struct weights *weights)
{
    for (int64_t i = 0; i < weights_count(weights); i++)
        if (strstr(weights_tensor(weights, i)->name, "embeddings.patch_embedding")) return true;
    return false;
}

static int read_processor(struct preprocess_found *f, const char *checkpoint, struct error *err)
{
    static const char *const names[] = {"preprocessor_config.json", "processor_config.json"};
    for (size_t i = 0; i < 2 && !f->from[0]; i++) {
        json_t *root;
        int code = sidecar_object(&root, checkpoint, names[i], err);
        if (code) return code;
        const json_t *o = i == 0 ? root : json_object_get(root, "image_processor");
        if (json_is_object(o)) {
            snprintf(f->from, sizeof f->from, "%s", names[i]);
            char model[64] = "";
            sidecar_model(checkpoint, model, sizeof model);
            read_transformers(f, o, model);
        }
        json_decref(root);
    }
    return 0;
}

static int read_files(struct preprocess_found *f, const struct sidecar *b, const char *checkpoint,
                      const struct weights *weights, struct error *err)
{
    *f = (struct preprocess_found){.from = ""};
    int code = 0;
    bool other_library = b->library == SIDECAR_OPEN_CLIP || b->library == SIDECAR_TIMM;
    if (!other_library || transformers_names(weights)) code = read_processor(f, checkpoint, err);
    if (code || f->from[0] || !other_library) return code;
    json_t *root;
    code = sidecar_object(&root, checkpoint, b->name, err);
    if (code || !root) return code;
    snprintf(f->from, sizeof f->from, "%s", b->name);
    if (b->library == SIDECAR_TIMM) read_timm(f, root);
    else read_open_clip(f, root);
    /* a configuration of the model only gives the size */
    bool says = b->library == SIDECAR_TIMM ? value_of(root, "pretrained_cfg") ||
                                                 value_of(root, "input_size") || value_of(root, "mean")
                                           : value_of(root, "preprocess_cfg") != NULL;
    if (!says) *f = (struct preprocess_found){.side = b->library == SIDECAR_TIMM ? 0 : f->side};
    json_decref(root);
    return 0;
}

/* ---- The keys ---- */

static void read_three(const char *text, float to[3])
{
    double values[3];
    for (int c = 0; config_three(text, values) && c < 3; c++) to[c] = (float)values[c];
}

static void read_keys(struct preprocess *how, const struct config_images *images)
{
    read_three(images->mean, how->mean);
    read_three(images->std, how->std);
    if (images->interpolation) how->resample = (enum resample)(images->interpolation - 1);
    if (images->resize) how->resize = (enum resize)(images->resize - 1);
    if (images->resize_as) how->as = (enum resize_as)(images->resize_as - 1);
    if (images->crop_pct > 0) how->crop_pct = images->crop_pct;
}

/* Returns the given keys of a section, without those that were assigned. */
static struct config_images given_of(const struct config *c, const char *section,
                                     const struct config_images *all)
{
    static char none[] = "";
    struct config_images given = *all;
    char key[32];
#define DROP(name, empty)                                                                                    \
    snprintf(key, sizeof key, "%s." #name, section);                                                         \
    if (!config_given(c, key)) given.name = empty
    DROP(mean, none);
    DROP(std, none);
    DROP(interpolation, DATA_INTERPOLATION_AUTO);
    DROP(resize, DATA_RESIZE_AUTO);
    DROP(resize_as, DATA_RESIZE_AS_AUTO);
    DROP(crop_pct, 0);
#undef DROP
    return given;
}

static const struct preprocess *pipeline(enum data_pipeline pipeline)
{
    return pipeline == DATA_PIPELINE_DINOV2   ? &preprocess_dinov2
           : pipeline == DATA_PIPELINE_SIGLIP ? &preprocess_siglip
                                              : &preprocess_clip;
}

/* Reads three numbers of C-RADIO's input conditioner, which normalizes images inside the model; *found false:
 * the weights have none. */
static int read_conditioner(const struct weights *weights, const char *name, float values[3], bool *found,
                            struct error *err)
{
    static const char *const prefixes[] = {"radio_model.input_conditioner.", "input_conditioner."};
    *found = false;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        char full[64];
        snprintf(full, sizeof full, "%s%s", prefixes[i], name);
        int64_t at = weights_find(weights, full);
        if (at < 0) continue;
        *found = true;
        if (weights_tensor(weights, at)->count == 3) return weights_read(weights, at, values, DTYPE_F32, err);
        error_set(err, EXIT_CONFIG, "use a version of the model with three",
                  "tensor %s has %lld values, but images have 3 channels", full,
                  (long long)weights_tensor(weights, at)->count);
        return error_at(err, weights_path(weights), 0, 0);
    }
    return 0;
}

int preprocess_read(struct preprocess_found *f, const struct sidecar *b, const char *checkpoint,
                    const struct weights *weights, struct error *err)
{
    float mean[3], std[3];
    bool has_mean = false, has_std = false;
    int code = read_files(f, b, checkpoint, weights, err);
    if (!code) code = read_conditioner(weights, "norm_mean", mean, &has_mean, err);
    if (!code) code = read_conditioner(weights, "norm_std", std, &has_std, err);
    if (!code && has_mean != has_std) {
        code = error_set(err, EXIT_INTEGRITY, "get the file again",
                         "the input conditioner has only one of norm_mean and norm_std");
        error_at(err, checkpoint, 0, 0);
    }
    if (code || !has_mean) return code;
    if (!f->from[0]) {
        f->how = *pipeline(DATA_PIPELINE_CLIP);
        for (int c = 0; c < 3; c++) f->how.mean[c] = 0, f->how.std[c] = 1;
        snprintf(f->from, sizeof f->from, "input_conditioner");
    }
    for (int c = 0; c < 3; c++) { /* ((x - m) / s - mean) / std */
        f->how.mean[c] += f->how.std[c] * mean[c];
        f->how.std[c] *= std[c];
    }
    return 0;
}

struct preprocess train_preprocess(const struct config *c, int tower)
{
    struct preprocess how = *pipeline(c->data.pipeline);
    read_keys(&how, &c->data.images);
    read_keys(&how, tower == TOWER_STUDENT ? &c->data_s.images : &c->model_t[tower].images);
    return how;
}

int64_t train_image_size(const struct config *c, int tower)
{
    int64_t own = tower == TOWER_STUDENT ? c->data_s.image_size : c->model_t[tower].image_size;
    return own ? own : c->data.image_size;
}

bool preprocess_differs(const struct config *c, int a, int b)
{
    struct preprocess x = train_preprocess(c, a), y = train_preprocess(c, b);
    return train_image_size(c, a) != train_image_size(c, b) || !preprocess_same(&x, &y);
}

bool preprocess_two(const struct config *c)
{
    bool any = preprocess_differs(c, 0, TOWER_STUDENT);
    for (int i = 1; i < config_teachers(c); i++) any = any || preprocess_differs(c, 0, i);
    return any;
}

const char *float_text(char *text, size_t size, float value)
{
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, size, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) break;
    }
    return text;
}

static void three_text(char *text, size_t size, const float values[3], const char *separator)
{
    char a[24], b[24], c[24];
    snprintf(text, size, "%s%s%s%s%s", float_text(a, sizeof a, values[0]), separator,
             float_text(b, sizeof b, values[1]), separator, float_text(c, sizeof c, values[2]));
}

static int assign(struct config *c, const char *section, const struct preprocess *how, struct error *err)
{
    char mean[80], std[80], share[40], key[32];
    three_text(mean, sizeof mean, how->mean, ",");
    three_text(std, sizeof std, how->std, ",");
    value_real_text(share, sizeof share, how->crop_pct);
    const struct {
        const char *name, *value;
    } rows[] = {{"mean", mean},
                {"std", std},
                {"interpolation", data_interpolation_names[1 + how->resample]},
                {"resize", data_resize_names[1 + how->resize]},
                {"crop_pct", share},
                {"resize_as", data_resize_as_names[1 + how->as]}};
    int code = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows && !code; i++) {
        snprintf(key, sizeof key, "%s.%s", section, rows[i].name);
        if (!config_given(c, key)) code = config_assign(c, key, rows[i].value, err);
    }
    return code;
}

static void note_origin(struct config *c, int tower, const struct preprocess_found *found,
                        bool pipeline_given, enum data_pipeline usual)
{
    char *text = c->images_from[tower];
    size_t size = sizeof c->images_from[0];
    if (pipeline_given) snprintf(text, size, _("as the configuration says"));
    else if (found->from[0]) snprintf(text, size, _("as %s says"), found->from);
    else snprintf(text, size, _("(assumed: as data.pipeline %s has them)"), data_pipeline_names[usual]);
}

int preprocess_assign(struct config *c, const struct preprocess_found *found, bool pipeline_given,
                      struct error *err)
{
    struct config_images given = given_of(c, "data", &c->data.images);
    struct preprocess usual = *pipeline(c->data.pipeline), is = found->how;
    note_origin(c, 0, found, pipeline_given, c->data.pipeline);
    read_keys(&usual, &given);
    read_keys(&is, &given);
    if (pipeline_given || !found->from[0] || preprocess_same(&usual, &is)) return 0;
    return assign(c, "data", &is, err);
}

/* Writes the keys of a tower in `section` that differ from data's: from its own files, else, if `apart`, the
 * default of its family. */
static int assign_own(struct config *c, int tower, const char *section, const struct config_images *keys,
                      const struct preprocess_found *found, bool pipeline_given, enum family family,
                      bool apart, struct error *err)
{
    struct preprocess before = *pipeline(c->data.pipeline), is;
    read_keys(&before, &c->data.images);
    is = before;
    struct config_images all = given_of(c, "data", &c->data.images), own = given_of(c, section, keys);
    enum data_pipeline usual = config_usual_pipeline(family);
    bool says = found->from[0] && !pipeline_given;
    if (says || (apart && !pipeline_given)) {
        is = says ? found->how : *pipeline(usual);
        read_keys(&is, &all);
        note_origin(c, tower, found, false, usual);
    } else if (tower) memcpy(c->images_from[tower], c->images_from[0], sizeof c->images_from[0]);
    read_keys(&is, &own);
    return preprocess_same(&before, &is) ? 0 : assign(c, section, &is, err);
}

/* Writes the size of a tower's images where it is not data.image_size. */
static int assign_size(struct config *c, const char *key, int64_t given, int64_t side, struct error *err)
{
    char size[24];
    snprintf(size, sizeof size, "%lld", (long long)side);
    return side == c->data.image_size || given ? 0 : config_assign(c, key, size, err);
}

int preprocess_assign_teacher(struct config *c, int teacher, const struct preprocess_found *found,
                              bool pipeline_given, const struct model_shape *first,
                              const struct model_shape *own, struct error *err)
{
    const char *section = config_tower_section(teacher);
    char key[48];
    snprintf(key, sizeof key, "%s.image_size", section);
    int code = assign_size(c, key, c->model_t[teacher].image_size, own->image, err);
    return code ? code
                : assign_own(c, teacher, section, &c->model_t[teacher].images, found, pipeline_given,
                             own->family, first->family != own->family, err);
}

int preprocess_assign_student(struct config *c, const struct preprocess_found *found, bool pipeline_given,
                              const struct model_shape *teacher, const struct model_shape *student, bool file,
                              struct error *err)
{
    int code = assign_size(c, "data_s.image_size", c->data_s.image_size, student->image, err);
    return code ? code
                : assign_own(c, TOWER_STUDENT, "data_s", &c->data_s.images, found, pipeline_given,
                             student->family, file && teacher->family != student->family, err);
}

void preprocess_text(const struct config *c, int tower, char *text, size_t size)
{
    struct preprocess how = train_preprocess(c, tower);
    int64_t side = train_image_size(c, tower);
    char mean[80], std[80], resized[64];
    three_text(mean, sizeof mean, how.mean, " ");
    three_text(std, sizeof std, how.std, " ");
    snprintf(resized, sizeof resized, _("%s %d by %s as %s does, "),
             how.resize == RESIZE_SQUASH ? _("both sides to") : _("shorter side to"),
             preprocess_resized(&how, side), data_interpolation_names[1 + how.resample],
             how.as == RESIZE_AS_PIL ? "PIL" : "transformers");
    snprintf(text, size, _("%lld px, %scrop of the centre, mean %s, std %s, %s"), (long long)side,
             how.resize == RESIZE_EXACT ? _("not resized, ") : resized, mean, std, c->images_from[tower]);
}
