/* The configuration beside a checkpoint: see beside.h. */
#include "core/nn/beside.h"
#include "core/base/file.h"
#include "core/base/log.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NOT_ITS = -1, ANY_WIDTH = -2 }; /* in place of the width of the tower that a file is of */
enum { MAX_BYTES = 1 << 20 };          /* the largest published one has 20 kB */

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value ? value : "";
}

static void copy(char *to, size_t size, const char *from) { name_printable(to, size, from); }

static void take_activation(struct beside *b, const char *name)
{
    copy(b->activation, sizeof b->activation, name);
    b->ffn = strcmp(name, "quick_gelu") == 0                            ? 1 + ACTIVATION_QUICK_GELU
             : strcmp(name, "gelu") == 0 || strcmp(name, "swiglu") == 0 ? 1 + ACTIVATION_GELU
                                                                        : 0;
}

static void take_pool(struct beside *b, const char *name)
{
    copy(b->pool, sizeof b->pool, name);
    b->pool_kind = strcmp(name, "tok") == 0 || strcmp(name, "token") == 0 || strcmp(name, "cls") == 0
                       ? POOL_CLS
                   : strcmp(name, "avg") == 0 ? POOL_AVG
                                              : POOL_USUAL;
}

/* A tower of timm inside a model of open_clip: of any width, its name says what else it is. */
static int64_t open_clip_timm(struct beside *b, const json_t *vision, const char *name)
{
    const char *pool = text(vision, "timm_pool");
    if (*pool) take_pool(b, pool);
    b->norms = strstr(name, "eva02_enormous") ? NORMS_BEHIND : NORMS_USUAL;
    b->pos_resize = POS_RESIZE_TIMM;
    return ANY_WIDTH;
}

/* open_clip: model_cfg, or the model configuration alone. Its defaults are those of CLIPVisionCfg. */
static int64_t open_clip(struct beside *b, const json_t *root)
{
    const json_t *model = json_object_get(root, "model_cfg") ? json_object_get(root, "model_cfg") : root;
    const json_t *vision = json_object_get(model, "vision_cfg");
    int64_t width = json_integer_value(json_object_get(vision, "width"));
    int64_t head = json_integer_value(json_object_get(vision, "head_width"));
    const char *trunk = text(vision, "timm_model_name");
    if (!json_is_object(vision)) return NOT_ITS;
    if (*trunk) return open_clip_timm(b, vision, trunk);
    if (!width) width = 768;
    if (!head) head = 64;
    if (head > 0 && width > 0) b->heads = width / head;
    const json_t *quick = json_object_get(model, "quick_gelu");
    take_activation(b, json_is_true(quick) ? "quick_gelu" : "gelu");
    const char *kind = text(json_object_get(vision, "act_kwargs"), "approximate");
    if (*kind && strcmp(kind, "none") != 0 && !json_is_true(quick)) {
        copy(b->activation, sizeof b->activation, kind);
        b->ffn = 0;
    }
    const char *pool = text(vision, "pool_type");
    if (json_is_true(json_object_get(vision, "attentional_pool"))) {
        const json_t *pool_heads = json_object_get(vision, "attn_pooler_heads");
        bool first = !*pool || strcmp(pool, "tok") == 0; /* of the queries */
        take_pool(b, first ? "attentional_pool" : "attentional_pool of all queries");
        if (first) b->pool_heads = pool_heads ? json_integer_value(pool_heads) : 8;
    } else if (json_is_true(json_object_get(vision, "global_average_pool"))) take_pool(b, "avg");
    else take_pool(b, *pool ? pool : "tok");
    if (b->pool_kind == POOL_AVG && json_is_true(json_object_get(vision, "final_ln_after_pool")))
        b->pool_kind = POOL_AVG_FIRST;
    b->norm_eps = json_number_value(json_object_get(json_object_get(vision, "norm_kwargs"), "eps"));
    if (json_is_true(json_object_get(vision, "postnorm"))) b->norms = NORMS_BEHIND; /* EVA-CLIP's */
    return width;
}

/* transformers: vision_config of a CLIPModel, or the model itself. What its classes take for granted is not
 * always written down. */
static int64_t transformers(struct beside *b, const json_t *root)
{
    const json_t *vision = json_object_get(root, "vision_config");
    const json_t *model = json_is_object(vision) ? vision : root;
    int64_t width = json_integer_value(json_object_get(model, "hidden_size"));
    bool clip = strncmp(text(root, "model_type"), "clip", 4) == 0;
    const char *act = text(model, "hidden_act");
    if (!width && clip) width = 768;
    if (!width) return NOT_ITS;
    b->heads = json_integer_value(json_object_get(model, "num_attention_heads"));
    if (!b->heads && clip) b->heads = 12;
    if (*act || clip) take_activation(b, *act ? act : "quick_gelu");
    b->norm_eps = json_number_value(json_object_get(model, "layer_norm_eps"));
    bool registers = strstr(text(root, "model_type"), "registers") != NULL;
    if (strncmp(text(root, "model_type"), "dinov3", 6) == 0) {
        double theta = json_number_value(json_object_get(model, "rope_theta"));
        if (theta > 0 && (theta < 99.9 || theta > 100.1))
            snprintf(b->odd, sizeof b->odd, "a rope_theta of %g", theta);
        if (json_is_true(json_object_get(model, "use_gated_mlp")) && strcmp(act, "silu") != 0)
            copy(b->odd, sizeof b->odd, "a feed-forward gated by another function than silu");
        return width; /* without positions to resize */
    }
    b->pos_resize = registers ? POS_RESIZE_TIMM : POS_RESIZE_HF;
    return width;
}

/* timm: the architecture's name says the activation. */
static int64_t timm(struct beside *b, const json_t *root)
{
    const char *architecture = text(root, "architecture"), *pool = text(root, "global_pool");
    int64_t width = json_integer_value(json_object_get(root, "num_features"));
    if (strncmp(architecture, "vit_", 4) != 0 && strncmp(architecture, "eva", 3) != 0) return NOT_ITS;
    if (strstr(architecture, "_rope_")) copy(b->odd, sizeof b->odd, "rotary positions of another kind");
    if (strstr(architecture, "eva02_enormous")) b->norms = NORMS_BEHIND;
    take_activation(b, strstr(architecture, "quickgelu") ? "quick_gelu" : "gelu");
    if (*pool) take_pool(b, pool);
    b->pos_resize = POS_RESIZE_TIMM;
    return width ? width : NOT_ITS;
}

/* The path of `name` beside the checkpoint, malloc'ed; NULL: it is not there. */
static char *path_of(const char *checkpoint, const char *name)
{
    struct stat status;
    const char *slash = strrchr(checkpoint, '/');
    bool directory = stat(checkpoint, &status) == 0 && S_ISDIR(status.st_mode);
    size_t bytes = slash ? (size_t)(slash - checkpoint) + 1 : 0;
    char *path =
        directory ? xasprintf("%s/%s", checkpoint, name) : xasprintf("%.*s%s", (int)bytes, checkpoint, name);
    if (stat(path, &status) == 0 && S_ISREG(status.st_mode)) return path;
    free(path);
    return NULL;
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
    error_set(err, EXIT_CONFIG, "mend it, or move it away from the checkpoint",
              "it lies beside a checkpoint and may say what that does not tell, but is no JSON object: %s",
              error.text);
    return error_at(err, path, error.line, error.column);
}

int beside_object(json_t **root, const char *checkpoint, const char *name, struct error *err)
{
    char *path = path_of(checkpoint, name);
    *root = NULL;
    int code = path ? read_object(root, path, err) : 0;
    free(path);
    return code;
}

int beside_read(struct beside *b, const char *checkpoint, int64_t width, struct error *err)
{
    static const char *const names[] = {"open_clip_config.json", "config.json"};
    struct error local;
    *b = (struct beside){0};
    if (!err) err = &local;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = path_of(checkpoint, names[i]);
        json_t *root = NULL;
        if (!path) continue;
        int code = read_object(&root, path, err);
        if (code) {
            free(path);
            return code;
        }
        static int64_t (*const readers[])(struct beside *, const json_t *) = {
            [BESIDE_OPEN_CLIP] = open_clip, [BESIDE_TRANSFORMERS] = transformers, [BESIDE_TIMM] = timm};
        int64_t found = NOT_ITS;
        for (int k = BESIDE_OPEN_CLIP; k <= BESIDE_TIMM && found == NOT_ITS; k++) {
            found = readers[k](b, root);
            b->library = (enum beside_library)k;
        }
        json_decref(root);
        if (found == width || found == ANY_WIDTH) b->name = names[i];
        else {
            *b = (struct beside){0};
            log_info("%s says nothing of a tower of width %lld: not used", path, (long long)width);
        }
        free(path);
        if (b->name) return 0;
    }
    return 0;
}

bool beside_model(const char *checkpoint, char *name, size_t size)
{
    struct error ignored = {0};
    char *path = path_of(checkpoint, "config.json");
    json_t *root = NULL;
    if (path && read_object(&root, path, &ignored) == 0)
        copy(name, size, *text(root, "model_type") ? text(root, "model_type") : text(root, "architecture"));
    bool found = root && *name;
    json_decref(root);
    free(path);
    return found;
}
