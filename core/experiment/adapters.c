/* Adapters of the student: see adapters.h. */
#include "core/experiment/adapters.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/json_members.h"
#include "core/base/log.h"
#include "core/model/lora.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int adapters_options(const struct config *c, const struct model_shape *g, struct lora_options *o,
                     struct error *err)
{
    *o = (struct lora_options){
        .rank = c->lora.rank, .scale = c->lora.alpha > 0 ? (float)(c->lora.alpha / (double)c->lora.rank) : 1};
    if (!c->lora.rank) return 0;
    return lora_targets(g, c->lora.targets, &o->targets, err);
}

/* One that cannot be examined now is opened as a directory, which says why. */
static bool is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? S_ISDIR(st.st_mode) : errno != ENOENT && errno != ENOTDIR;
}

/* Members of adapter_config.json, PEFT's LoraConfig. */
static const struct json_member members[] = {
    {"r", NULL},
    {"lora_alpha", NULL},
    {"target_modules", NULL},
    {"lora_dropout", NULL}, /* reported */
    {"peft_type", "\"LORA\""},
    /* names, and how PEFT stores and shares out */
    {"task_type", NULL},
    {"auto_mapping", NULL},
    {"peft_version", NULL},
    {"base_model_name_or_path", NULL},
    {"revision", NULL},
    {"inference_mode", NULL},
    {"fan_in_fan_out", NULL},
    {"modules_to_save", NULL}, /* its tensors are checked by name */
    {"megatron_core", NULL},
    {"runtime_config", NULL},
    /* at the start of a training; the other values take a part from the base's weights */
    {"init_lora_weights", "true|false|\"gaussian\"|\"eva\"|\"orthogonal\""},
    {"eva_config", NULL},
    {"qalora_group_size", NULL}, /* of use_qalora */
    /* other computations */
    {"bias", "\"none\""},
    {"use_dora", "false"},
    {"use_rslora", "false"},
    {"use_qalora", "false"},
    {"use_bdlora", "false"},
    {"lora_bias", "false"},
    {"ensure_weight_tying", "false"},
    {"rank_pattern", "{}"},
    {"alpha_pattern", "{}"},
    {"loftq_config", "{}"},
    {"layer_replication", "[]"},
    {"layers_to_transform", "[]"},
    {"layers_pattern", "[]|\"\""},
    {"exclude_modules", "[]|\"\""},
    {"target_parameters", "[]"},
    {"trainable_token_indices", "[]|{}"},
    {"alora_invocation_tokens", "[]"},
    {NULL, NULL},
};

/* Returns the targets of adapter_config.json as in lora.targets, malloc'ed. Whole names, as PEFT writes all-
 * linear, lose the prefix and number of the block. NULL: a regular expression. */
static char *targets_of(const json_t *o, const struct model_shape *g)
{
    const json_t *list = json_object_get(o, "target_modules"), *value;
    const char *text = json_string_value(list);
    struct lora_module modules[LORA_MODULES];
    int count = lora_modules(g, modules);
    size_t i;
    unsigned found = 0, targets;
    char names[400];
    if (text) return strcmp(text, "all-linear") == 0 ? xstrdup(text) : NULL;
    json_array_foreach(list, i, value)
    {
        const char *name = json_string_value(value);
        for (int k = 0; name && k < count; k++) {
            size_t n = strlen(name), m = strlen(modules[k].name);
            if (n > m && name[n - m - 1] == '.' && strcmp(name + n - m, modules[k].name) == 0)
                found |= 1u << k;
        }
        if (name && lora_targets(g, name, &targets, NULL) == 0) found |= targets;
    }
    lora_target_names(g, found, names, sizeof names);
    return found ? xstrdup(names) : NULL;
}

/* Sets a key to the file's value, or compares. */
static int take(struct config *c, const char *key, const char *is, bool same, struct error *err)
{
    if (!config_given(c, key)) return config_assign(c, key, is, err);
    return same ? 0
                : error_set(err, EXIT_CONFIG, "leave the key out", "%s is not %.200s, as in the adapter", key,
                            is);
}

static int take_members(struct config *c, const json_t *o, const struct model_shape *g, struct error *err)
{
    int64_t rank = (int64_t)json_integer_value(json_object_get(o, "r"));
    double alpha = json_number_value(json_object_get(o, "lora_alpha"));
    char text[40], *targets = targets_of(o, g);
    double dropout = json_number_value(json_object_get(o, "lora_dropout"));
    int code =
        json_members_check(o, members, NULL, ADAPTER_CONFIG, "merge it in PEFT: merge_and_unload()", err);
    if (!code && dropout > 0) log_info("lora_dropout %g of the adapter is not applied", dropout);
    if (!code && !targets)
        code = error_set(err, EXIT_CONFIG, "list the names: q_proj, v_proj",
                         "target_modules names no matrix of the model");
    if (!code && (rank < 1 || !(alpha > 0)))
        code = error_set(err, EXIT_CONFIG, NULL, "r or lora_alpha is missing or not above 0");
    snprintf(text, sizeof text, "%lld", (long long)rank);
    if (!code) code = take(c, "lora.rank", text, c->lora.rank == rank, err);
    snprintf(text, sizeof text, "%.17g", alpha);
    double own = c->lora.alpha > 0 ? c->lora.alpha : (double)rank;
    if (!code) code = take(c, "lora.alpha", text, own == alpha, err);
    unsigned want = 0, has = 0;
    if (!code) code = lora_targets(g, targets, &has, err);
    if (!code) code = lora_targets(g, c->lora.targets, &want, err);
    if (!code) code = take(c, "lora.targets", targets, want == has, err);
    free(targets);
    return code;
}

/* Refuses an adapter in the directory of the whole model: transformers applies both. */
static int check_directory(const char *weight, struct error *err)
{
    if (!weight[0] || !is_directory(weight)) return 0;
    char *path = path_join(weight, ADAPTER_CONFIG);
    int code = file_absent(path) ? 0 : EXIT_CONFIG;
    if (code)
        error_set(err, code, "set lora.adapter to the directory, or name the model's file, not the directory",
                  "%s has an adapter next to the model: %s", weight, ADAPTER_CONFIG);
    free(path);
    return code;
}

int adapters_settle(struct config *c, const struct model_shape *g, struct error *err)
{
    const char *from = c->lora.adapter;
    if (!from[0]) {
        int code = check_directory(c->model_t[0].weight, err);
        return code ? code : check_directory(c->model_s.weight, err);
    }
    if (!is_directory(from)) {
        if (c->lora.rank) return 0;
        error_set(err, EXIT_CONFIG, "name the directory with adapter_config.json, or set lora.rank",
                  "lora.adapter is a file, and lora.rank is not set");
        return error_at(err, from, 0, 0), EXIT_CONFIG;
    }
    char *path = path_join(from, ADAPTER_CONFIG);
    json_t *o = json_read(path, 1 << 20, err);
    int code = o ? 0 : EXIT_CONFIG;
    if (!code) code = take_members(c, o, g, err);
    if (code && err && !err->file[0]) error_at(err, path, 0, 0);
    json_decref(o);
    free(path);
    return code;
}

/* Returns the path of the values, malloc'ed. PEFT before 0.7, and safe_serialization=False, write .bin. */
static char *values_path(const char *adapter)
{
    if (!is_directory(adapter)) return xstrdup(adapter);
    char *path = path_join(adapter, ADAPTER_VALUES), *old = path_join(adapter, "adapter_model.bin");
    bool older = file_absent(path) && !file_absent(old);
    free(older ? path : old);
    return older ? old : path;
}

int adapters_open(const struct config *c, struct weights **weights, struct error *err)
{
    char *path = values_path(c->lora.adapter);
    int code = weights_open(weights, path, err);
    free(path);
    return code;
}

json_t *adapters_base(const struct config *c, uint32_t crc32c)
{
    const char *path = c->model_s.weight;
    struct stat st;
    char crc[16];
    json_t *base = json_object(), *name = json_string(path); /* NULL: not UTF-8 */
    if (name) json_object_set_new(base, "path", name);
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode))
        json_object_set_new(base, "bytes", json_integer((json_int_t)st.st_size));
    snprintf(crc, sizeof crc, "%08x", (unsigned)crc32c);
    json_object_set_new(base, "crc32c", json_string(crc));
    return base;
}
