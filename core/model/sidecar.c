/* The sidecar config of a checkpoint: see sidecar.h. */
#include "core/model/sidecar.h"
#include "core/base/file.h"
#include "core/base/path.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/model/config_members.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_BYTES = 1 << 20 }; /* the largest published one has 20 kB */

static int64_t integer(const json_t *object, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(object, key));
}

static bool is_true(const json_t *object, const char *key)
{
    return json_is_true(json_object_get(object, key));
}

static bool begins(const char *name, const char *with) { return strstr(name, with) == name; }

static bool ends_with(const char *name, const char *with)
{
    size_t n = strlen(name), m = strlen(with);
    return n >= m && strcmp(name + n - m, with) == 0;
}

static void copy(char *to, size_t size, const char *from) { name_printable(to, size, from); }

/* Reads the side of an image or of a patch: N or [N, N]. */
static int64_t side(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return (int64_t)json_integer_value(json_is_array(value) ? json_array_get(value, 0) : value);
}

/* Records a member whose value no tower here has. */
static void set_odd(struct sidecar *b, const char *key, const json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY), whole[64];
    snprintf(whole, sizeof whole, "%s %s", key, text ? text : "");
    copy(b->odd, sizeof b->odd, whole);
    free(text);
}

static void read_epsilon(struct sidecar *b, const json_t *object, const char *key, float usual)
{
    const json_t *value = json_object_get(object, key);
    float eps = (float)json_number_value(value);
    if (value && !json_is_null(value) && !(eps > 0 && eps < 1)) set_odd(b, key, value);
    b->says.norm_eps = eps > 0 ? eps : usual;
}

/* Images and patches are squares. */
static void check_square(struct sidecar *b, const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    size_t n = json_array_size(value);
    if (n > 2 || (n == 2 && !json_equal(json_array_get(value, 0), json_array_get(value, 1))))
        set_odd(b, key, value);
}

static void set_activation(struct sidecar *b, const char *name)
{
    copy(b->activation, sizeof b->activation, name);
    b->says.ffn = activation_named(strcmp(name, "swiglu") == 0 ? "gelu" : name);
}

static void set_pool(struct sidecar *b, const char *name)
{
    copy(b->pool, sizeof b->pool, name);
    b->map = strcmp(name, "map") == 0;
    b->says.pool = strcmp(name, "tok") == 0 || strcmp(name, "token") == 0 || strcmp(name, "cls") == 0
                       ? POOL_CLS
                   : strcmp(name, "avg") == 0 ? POOL_AVG
                                              : POOL_USUAL;
}

static int64_t grid_of(int64_t image, int64_t patch) { return image > 0 && patch > 0 ? image / patch : 0; }

/* Returns whether the arguments of an architecture are known: vit_SIZE_patchN_PIXELS, dino*, clip*, reg*,
 * gap*, siglip*; eva*, deit*, flexivit*. */
static bool known_architecture(const char *name)
{
    static const char *const kinds[] = {"dino", "clip", "reg", "gap", "siglip"};
    const char *at = strstr(name, "_patch");
    if (begins(name, "eva") || begins(name, "deit") || begins(name, "flexivit")) return true;
    if (!at) return false;
    at += strlen("_patch");
    at += strspn(at, "0123456789_");
    bool known = !*at || at[-1] != '_';
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) known |= begins(at, kinds[i]);
    return known;
}

/* Some SigLIP towers of timm have the activation that they were trained with. */
static bool siglip_tanh(const char *name)
{
    static const char *const sizes[] = {"base_patch32_", "giantopt_", "so400m_patch16_"};
    bool tanh = strstr(name, "large_patch16_") && ends_with(name, "_512");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) tanh |= strstr(name, sizes[i]) != NULL;
    return tanh && strstr(name, "_siglip_");
}

/* Properties from the name of an architecture of timm. */
static void timm_architecture(struct sidecar *b, const char *name)
{
    bool eva = begins(name, "eva"), dinov3 = strstr(name, "dinov3") != NULL;
    if (strstr(name, "_rope_")) copy(b->odd, sizeof b->odd, "rotary positions of another kind");
    b->says.pos_resize = POS_RESIZE_TIMM;
    if (!known_architecture(name)) return;
    b->says.norms = strstr(name, "eva02_enormous") ? POST_NORM : NORMS_BEFORE;
    set_activation(b, strstr(name, "quickgelu") ? "quick_gelu" : siglip_tanh(name) ? "gelu_tanh" : "gelu");
    bool pe = begins(name, "vit_pe_");
    b->rotary = eva || dinov3 || pe;
    b->says.norm_eps = dinov3 || pe || (strstr(name, "_clip_") && !eva) ? 1e-5f : 1e-6f;
}

/* A tower of timm inside a model of open_clip: of any size; its name gives the other properties. */
static bool open_clip_timm(struct sidecar *b, const json_t *vision, const char *name)
{
    const char *pool = json_word(vision, "timm_pool");
    timm_architecture(b, name);
    if (*pool) set_pool(b, pool);
    return true;
}

static const json_t *open_clip_model(const json_t *root)
{
    const json_t *model = json_object_get(root, "model_cfg");
    return model ? model : root;
}

/* open_clip: model_cfg, or the model configuration alone. Its defaults are those of CLIPVisionCfg. */
static bool open_clip(struct sidecar *b, const json_t *root)
{
    const json_t *model = open_clip_model(root), *vision = json_object_get(model, "vision_cfg"),
                 *ratio = json_object_get(vision, "mlp_ratio");
    int64_t width = integer(vision, "width"), head = integer(vision, "head_width");
    const char *trunk = json_word(vision, "timm_model_name");
    if (!json_is_object(vision)) return false;
    if (*trunk) return open_clip_timm(b, vision, trunk);
    if (!*json_word(vision, "eva_model_name")) b->says.family = FAMILY_OPENCLIP;
    if (!width) width = 768;
    if (!head) head = 64;
    if (head > 0 && width > 0) b->says.heads = width / head;
    b->says.width = width;
    b->says.depth = integer(vision, "layers");
    b->says.patch = side(vision, "patch_size");
    b->says.pos_grid = grid_of(side(vision, "image_size"), b->says.patch);
    double hidden = (double)width * json_number_value(ratio);
    if (hidden >= 1 && hidden < 1e9) b->says.hidden = (int64_t)hidden;
    const json_t *quick = json_object_get(model, "quick_gelu");
    set_activation(b, json_is_true(quick) ? "quick_gelu" : "gelu");
    const char *kind = json_word(json_object_get(vision, "act_kwargs"), "approximate");
    if (*kind && strcmp(kind, "none") != 0 && !json_is_true(quick))
        set_activation(b, strcmp(kind, "tanh") == 0 ? "gelu_tanh" : kind);
    const char *pool = json_word(vision, "pool_type");
    if (is_true(vision, "attentional_pool")) {
        const json_t *pool_heads = json_object_get(vision, "attn_pooler_heads");
        bool first = !*pool || strcmp(pool, "tok") == 0; /* of the queries */
        set_pool(b, first ? "attentional_pool" : "attentional_pool of all queries");
        if (first) b->says.pool_heads = pool_heads ? json_integer_value(pool_heads) : 8;
    } else if (is_true(vision, "global_average_pool")) set_pool(b, "avg");
    else set_pool(b, *pool ? pool : "tok");
    if (b->says.pool == POOL_AVG && is_true(vision, "final_ln_after_pool")) b->says.pool = POOL_AVG_FIRST;
    read_epsilon(b, json_object_get(vision, "norm_kwargs"), "eps",
                 *json_word(vision, "eva_model_name") ? 1e-6f : 1e-5f);
    check_square(b, vision, "image_size");
    check_square(b, vision, "patch_size");
    b->says.norms = is_true(vision, "postnorm") ? POST_NORM : NORMS_BEFORE; /* EVA-CLIP's */
    return true;
}

/* Defaults of the classes of transformers: a nested configuration omits them. */
static const struct hf_defaults {
    const char *type; /* prefix of model_type */
    enum family family;
    int64_t width, heads;
    const char *act;
    float norm_eps;
} hf_defaults[] = {
    {"clip", FAMILY_OPENCLIP, 768, 12, "quick_gelu", 1e-5f},
    {"chinese_clip", FAMILY_OPENCLIP, 768, 12, "quick_gelu", 1e-5f},
    {"dinov2", FAMILY_DINOV2, 768, 12, "gelu", 1e-6f},
    {"dinov3", FAMILY_DINOV3, 384, 6, "gelu", 1e-5f},
    {"siglip", FAMILY_UNKNOWN, 768, 12, "gelu_pytorch_tanh", 1e-6f}, /* without its head a plain ViT */
    {"vit_msn", FAMILY_DINOV2, 768, 12, "gelu", 1e-6f},
    {"vit", FAMILY_DINOV2, 768, 12, "gelu", 1e-12f},
    {"deit", FAMILY_DINOV2, 768, 12, "gelu", 1e-12f},
};

static const struct hf_defaults *defaults_of(const char *type)
{
    static const struct hf_defaults none = {"", FAMILY_UNKNOWN, 0, 0, "", 0};
    for (size_t i = 0; i < sizeof hf_defaults / sizeof *hf_defaults; i++)
        if (begins(type, hf_defaults[i].type)) return &hf_defaults[i];
    return &none;
}

bool sidecar_type_known(const char *type) { return *defaults_of(type)->type; }

static int64_t or_else(int64_t value, int64_t usual) { return value ? value : usual; }

/* transformers: vision_config of a CLIPModel, or the model itself. */
static const json_t *transformers_model(const json_t *root)
{
    const json_t *vision = json_object_get(root, "vision_config");
    return json_is_object(vision) ? vision : root;
}

static const char *transformers_type(const json_t *root)
{
    const char *type = json_word(transformers_model(root), "model_type");
    return *type ? type : json_word(root, "model_type");
}

static bool transformers(struct sidecar *b, const json_t *root)
{
    const json_t *model = transformers_model(root);
    const char *type = transformers_type(root), *act = json_word(model, "hidden_act");
    const struct hf_defaults *usual = defaults_of(type);
    b->says.width = or_else(integer(model, fact_rows[FACT_WIDTH].member), usual->width);
    if (!b->says.width) return false;
    b->says.family = usual->family;
    b->says.depth = integer(model, fact_rows[FACT_DEPTH].member);
    b->says.patch = side(model, "patch_size");
    b->says.hidden = integer(model, fact_rows[FACT_HIDDEN].member);
    b->says.heads = or_else(integer(model, fact_rows[FACT_HEADS].member), usual->heads);
    read_epsilon(b, model, "layer_norm_eps", usual->norm_eps);
    check_square(b, model, "image_size");
    check_square(b, model, "patch_size");
    if (!*act) act = usual->act;
    if (*act) set_activation(b, act);
    if (begins(type, "dinov3")) {
        const json_t *rope = json_object_get(model, "rope_parameters");
        b->says.rope.theta = json_number_value(json_object_get(model, "rope_theta"));
        if (!(b->says.rope.theta > 0))
            b->says.rope.theta = json_number_value(json_object_get(rope, "rope_theta"));
        if (!(b->says.rope.theta > 0)) b->says.rope.theta = 100;
        b->rotary = true;
        b->says.image = side(model, "image_size");
        if (is_true(model, "use_gated_mlp") && strcmp(act, "silu") != 0)
            copy(b->odd, sizeof b->odd, "a feed-forward gated by another function than silu");
        return true; /* no positions to resize */
    }
    double ratio = json_number_value(json_object_get(model, "mlp_ratio"));
    if (ratio > 0 && ratio < 1e3) b->says.hidden = (int64_t)((double)b->says.width * ratio);
    b->says.pos_grid = grid_of(side(model, "image_size"), b->says.patch);
    b->says.pos_resize = strstr(type, "registers") ? POS_RESIZE_TIMM : POS_RESIZE_HF;
    return true;
}

/* Arguments of timm's classes that show in the names or shapes of the tensors, or change no output. */
static const char *const timm_shown[] = {
    "img_size",         "patch_size",      "embed_dim",       "depth",
    "in_chans",         "num_classes",     "mlp_ratio",       "init_values",
    "class_token",      "reg_tokens",      "num_reg_tokens",  "no_embed_class",
    "fc_norm",          "use_fc_norm",     "pre_norm",        "use_pre_transformer_norm",
    "qkv_bias",         "qkv_fused",       "swiglu_mlp",      "scale_mlp",
    "scale_attn_inner", "use_abs_pos_emb", "drop_rate",       "pos_drop_rate",
    "patch_drop_rate",  "proj_drop_rate",  "attn_drop_rate",  "drop_path_rate",
    "weight_init",      "fix_init",        "strict_img_size", "dynamic_img_size",
    "dynamic_img_pad",  "num_heads",       "act_layer",       "global_pool",
    "use_post_norm",    "norm_layer",
};

static bool is_shown(const char *key)
{
    for (size_t i = 0; i < sizeof timm_shown / sizeof *timm_shown; i++)
        if (strcmp(timm_shown[i], key) == 0) return true;
    return false;
}

/* timm's model_args: changes to the named architecture. */
static void timm_arguments(struct sidecar *b, const json_t *root)
{
    const json_t *args = json_object_get(root, "model_args"), *value;
    const char *key, *act = json_word(args, "act_layer"), *pool = json_word(args, "global_pool");
    b->says.heads = integer(args, "num_heads");
    b->says.depth = integer(args, "depth");
    b->says.patch = side(args, "patch_size");
    b->says.pos_grid = grid_of(side(args, "img_size"), b->says.patch);
    if (*act) set_activation(b, act);
    if (*pool) set_pool(b, pool);
    if (is_true(args, "use_post_norm")) b->says.norms = POST_NORM;
    b->says.rope.theta = json_number_value(json_object_get(args, "rope_temperature"));
    json_object_foreach((json_t *)(uintptr_t)args, key, value)
    {
        bool odd_norm = strcmp(key, "norm_layer") == 0 && json_is_string(value) &&
                        strcmp(json_string_value(value), "layernorm") != 0;
        bool rotates = strstr(key, "rot_pos") || strstr(key, "ref_feat") || strncmp(key, "rope_", 5) == 0;
        if (strcmp(key, "rope_temperature") == 0 && b->says.rope.theta > 0) continue;
        if ((is_shown(key) && !odd_norm) || json_is_null(value) || (json_is_false(value) && !rotates))
            continue;
        char name[64];
        copy(name, sizeof name, key);
        snprintf(b->odd, sizeof b->odd, _("%s in model_args"), name);
    }
}

/* timm: the architecture's name gives its arguments; model_args overrides them. */
static bool timm(struct sidecar *b, const json_t *root)
{
    const char *architecture = json_word(root, "architecture"), *pool = json_word(root, "global_pool");
    if (!begins(architecture, "vit_") && !known_architecture(architecture)) return false;
    b->says.width = integer(root, "num_features");
    timm_architecture(b, architecture);
    if (*pool) set_pool(b, pool);
    timm_arguments(b, root);
    return b->says.width > 0;
}

/* Sets the path of `name` in the checkpoint's directory, malloc'ed; NULL: it does not exist. A file that
 * cannot be examined now is not absent. */
static int path_of(char **path, const char *checkpoint, const char *name, struct error *err)
{
    char *directory = path_directory(checkpoint, err);
    *path = directory ? path_join(directory, name) : NULL;
    free(directory);
    if (!*path) return err->code;
    if (file_absent(*path)) {
        free(*path);
        *path = NULL;
    }
    return 0;
}

static int read_object(json_t **root, const char *path, struct error *err)
{
    char *bytes = NULL;
    size_t count = 0;
    json_error_t error = {0};
    int code = file_read(path, MAX_BYTES, &bytes, &count, err);
    if (code) return code;
    *root = json_loadb(bytes, count, JSON_REJECT_DUPLICATES, &error);
    free(bytes);
    if (json_is_object(*root)) return 0;
    json_decref(*root);
    *root = NULL;
    char printed[JSON_ERROR_TEXT_LENGTH]; /* jansson quotes the file's bytes */
    error_set(err, EXIT_CONFIG, "fix it, or move it out of the checkpoint's directory",
              "this sidecar config of a checkpoint is no JSON object: %s",
              name_printable(printed, sizeof printed, error.text));
    return error_at(err, path, error.line, error.column);
}

int sidecar_object(json_t **root, const char *checkpoint, const char *name, struct error *err)
{
    char *path;
    struct error own;
    if (!err) err = &own;
    *root = NULL;
    int code = path_of(&path, checkpoint, name, err);
    if (!code && path) code = read_object(root, path, err);
    free(path);
    return code;
}

/* Returns whether family and sizes match those of the tower; if not, says which differs. */
static bool is_of(const struct sidecar *b, const struct model_shape *g, char *why, size_t size)
{
    static const enum fact sizes[] = {FACT_WIDTH,  FACT_DEPTH,    FACT_PATCH,
                                      FACT_HIDDEN, FACT_POS_GRID, FACT_HEADS};
    if (b->says.family && g->family && b->says.family != g->family) {
        snprintf(why, size, _("it describes a %s tower, the checkpoint has a %s tower"),
                 family_name(b->says.family), family_name(g->family));
        return false;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        bool gated = g->ffn == 1 + ACTIVATION_SWIGLU && sizes[i] == FACT_HIDDEN, /* given in other units */
            open = sizes[i] == FACT_HEADS && g->facts.from[FACT_HEADS] != SOURCE_TENSORS;
        if (gated || open || !fact_differs(&b->says, g, sizes[i])) continue;
        snprintf(why, size, _("its %s is %lld, the checkpoint's %lld"), fact_rows[sizes[i]].name,
                 (long long)fact_value(&b->says, sizes[i]), (long long)fact_value(g, sizes[i]));
        return false;
    }
    bool fits = b->says.heads >= 0 && (!b->says.heads || !g->width || g->width % b->says.heads == 0);
    if (!fits)
        snprintf(why, size, _("width %lld is not a multiple of %lld heads"), (long long)g->width,
                 (long long)b->says.heads);
    return fits;
}

/* Refuses a member that the class, or the library, does not have here. */
static int check_members(enum sidecar_library library, const json_t *root, struct error *err)
{
    static const char hint[] = N_("remove it if it changes nothing; else use another model");
    const char *name = transformers_type(root);
    char type[48];
    switch (library) {
    case SIDECAR_OPEN_CLIP:
        return json_members_check(json_object_get(open_clip_model(root), "vision_cfg"), config_open_clip,
                                  NULL, "vision_cfg", hint, err);
    case SIDECAR_TIMM: return json_members_check(root, config_timm, NULL, "config.json", hint, err);
    case SIDECAR_TRANSFORMERS: break;
    default: return 0;
    }
    if (*name && !sidecar_type_known(name))
        return error_set(err, EXIT_CONFIG, "supported: clip, siglip, dinov2, dinov3, vit and deit",
                         "config.json: a model of type %s is not supported",
                         name_printable(type, sizeof type, name));
    return json_members_check(transformers_model(root), config_vision, config_every_class, "config.json",
                              hint, err);
}

int sidecar_read(struct sidecar *b, const char *checkpoint, const struct model_shape *tower,
                 struct error *err)
{
    static const char *const names[] = {"open_clip_config.json", "config.json"};
    static bool (*const libraries[])(struct sidecar *, const json_t *) = {
        [SIDECAR_OPEN_CLIP] = open_clip, [SIDECAR_TRANSFORMERS] = transformers, [SIDECAR_TIMM] = timm};
    struct error local;
    *b = (struct sidecar){0};
    if (!err) err = &local;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path, why[128] = N_("it describes no supported tower");
        json_t *root = NULL;
        int code = path_of(&path, checkpoint, names[i], err);
        if (!code && !path) continue;
        if (!code) code = read_object(&root, path, err);
        if (code) {
            free(path);
            return code;
        }
        bool found = false;
        for (int k = SIDECAR_OPEN_CLIP; k <= SIDECAR_TIMM && !found; k++) {
            *b = (struct sidecar){.library = (enum sidecar_library)k};
            found = libraries[k](b, root);
        }
        if (found && is_of(b, tower, why, sizeof why)) {
            b->name = names[i];
            code = check_members(b->library, root, err);
            if (code) error_at(err, path, 0, 0);
        } else {
            *b = (struct sidecar){0};
            log_info("%s is not used: %s", path, why);
        }
        json_decref(root);
        free(path);
        if (b->name) return code;
    }
    return 0;
}

bool sidecar_model(const char *checkpoint, char *name, size_t size)
{
    struct error ignored = {0};
    json_t *root = NULL;
    if (sidecar_object(&root, checkpoint, "config.json", &ignored) == 0 && root)
        copy(name, size,
             *json_word(root, "model_type") ? json_word(root, "model_type")
                                            : json_word(root, "architecture"));
    bool found = root && *name;
    json_decref(root);
    return found;
}
