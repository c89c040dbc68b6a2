/* Adapters for PEFT: see export_peft.h. */
#include "cli/export/export_peft.h"
#include "cli/config/cmd_config.h"
#include "cli/export/export_language.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/json.h"
#include "core/model/family.h"
#include "core/model/lora.h"
#include "core/experiment/adapters.h"
#include "core/experiment/objective.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Returns the directory of the base, if it has a config.json, else its file. */
static char *base_of(const struct config *c)
{
    struct stat st;
    const char *path = c->model_s.weight;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return xstrdup(path);
    char *directory = path_dirname(path), *config = path_join(directory, "config.json");
    bool model = !file_absent(config);
    free(config);
    if (model) return directory;
    free(directory);
    return xstrdup(path);
}

/* Returns the name of a tensor in PEFT's file, malloc'ed: of the classifier that of timm's. */
static char *peft_name(const char *name)
{
    bool classifier = strncmp(name, "classifier.", 11) == 0;
    return xasprintf("base_model.model.%s%s", classifier ? "head" : "", classifier ? name + 10 : name);
}

/* Returns the modules that are trained as a whole; null: none. */
static json_t *modules_to_save(const struct weights *adapters)
{
    if (weights_find(adapters, "classifier.weight") >= 0) return json_pack("[s]", "head");
    if (weights_find(adapters, HEAD_KEY "weight") >= 0 || weights_find(adapters, HEAD_KEY "fc1.weight") >= 0)
        return json_pack("[s]", "distill_head");
    return json_null();
}

static json_t *target_list(const struct model_shape *g, unsigned targets)
{
    json_t *list = json_array();
    char names[400];
    lora_target_names(g, targets, names, sizeof names);
    for (char *p = names; *p;) {
        size_t length = strcspn(p, ",");
        json_array_append_new(list, json_stringn(p, length));
        p += length + (p[length] == ',');
    }
    return list;
}

static int write_config(const char *directory, const struct config *c, const struct model_shape *g,
                        const struct weights *adapters, struct error *err)
{
    struct lora_options o;
    int code = adapters_options(c, g, &o, err);
    if (code) return code;
    char *base = base_of(c), *path = path_join(directory, ADAPTER_CONFIG);
    double alpha = c->lora.alpha > 0 ? c->lora.alpha : (double)o.rank;
    bool conv1d = g->family == FAMILY_GPT2; /* transformers stores its matrices transposed */
    json_t *root = json_pack(
        "{s:o, s:s, s:s?, s:I, s:f, s:f, s:o, s:s, s:b, s:b, s:b, s:b, s:b, s:o}", "base_model_name_or_path",
        path_json(base), "peft_type", "LORA", "task_type", objective_of(c)->tokens ? "CAUSAL_LM" : NULL, "r",
        (json_int_t)o.rank, "lora_alpha", alpha, "lora_dropout", 0.0, "target_modules",
        target_list(g, o.targets), "bias", "none", "fan_in_fan_out", conv1d, "inference_mode", 1,
        "init_lora_weights", 1, "use_rslora", 0, "use_dora", 0, "modules_to_save", modules_to_save(adapters));
    if (root && alpha == (double)(json_int_t)alpha)
        json_object_set_new(root, "lora_alpha", json_integer((json_int_t)alpha));
    code = json_write(path, root, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(16), err);
    json_decref(root);
    free(path);
    free(base);
    return code;
}

static int write_values(const char *path, const struct weights *adapters, bool bf16, struct error *err)
{
    static const char *const metadata[] = {"format", "pt", "meopt.heads", "", NULL}; /* of an export */
    int64_t count = weights_count(adapters);
    enum dtype dtype = bf16 ? DTYPE_BF16 : DTYPE_F32;
    struct weights_row *rows = xcalloc((size_t)count + 1, sizeof *rows);
    int code = 0;
    for (int64_t i = 0; i < count && !code; i++) {
        const struct weights_tensor *t = weights_tensor(adapters, i);
        void *values = xmalloc((size_t)t->count * dtype_bytes(dtype));
        rows[i] =
            (struct weights_row){.name = peft_name(t->name), .dtype = dtype, .ndim = t->ndim, .data = values};
        memcpy(rows[i].shape, t->shape, sizeof rows[i].shape);
        code = weights_read(adapters, i, values, dtype, err);
    }
    if (!code) code = weights_write_safetensors(path, rows, count, metadata, err);
    for (int64_t i = 0; i < count; i++) {
        free((void *)(uintptr_t)rows[i].name);
        free((void *)(uintptr_t)rows[i].data);
    }
    free(rows);
    return code;
}

int export_peft_write(const char *directory, const struct config *c, const struct model_shape *g,
                      const struct weights *adapters, bool bf16, struct error *err)
{
    char *path = path_join(directory, ADAPTER_VALUES);
    int code = write_config(directory, c, g, adapters, err);
    if (!code) code = write_values(path, adapters, bf16, err);
    if (!code) code = export_language_tokenizer(directory, c->model_s.weight, err);
    free(path);
    return code;
}
