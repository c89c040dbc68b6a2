/* Adapters of the student: see adapters.h. */
#include "core/train/adapters.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/nn/lora.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int adapters_options(const struct config *c, const struct model_shape *g, struct lora_options *o,
                     struct error *err)
{
    struct lora_module modules[LORA_MODULES];
    *o = (struct lora_options){
        .rank = c->lora.rank, .scale = c->lora.alpha > 0 ? (float)(c->lora.alpha / (double)c->lora.rank) : 1};
    if (!c->lora.rank) return 0;
    int code = lora_targets(g, c->lora.targets, &o->targets, err), count = lora_modules(g, modules);
    for (int i = 0; i < count && !code; i++) {
        int64_t least = modules[i].in < modules[i].out ? modules[i].in : modules[i].out;
        if (o->targets & 1u << i && o->rank > least)
            code = error_set(err, EXIT_CONFIG, "choose a smaller rank",
                             "lora.rank is %lld, but %s is [%lldx%lld]", (long long)o->rank, modules[i].name,
                             (long long)modules[i].out, (long long)modules[i].in);
    }
    return code;
}

static bool is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Refuses members of adapter_config.json that change what is computed. */
static int check_members(const json_t *o, struct error *err)
{
    static const struct {
        const char *name, *is; /* the only value besides null, false, 0 and {} */
    } rows[] = {{"peft_type", "LORA"},     {"bias", "none"},
                {"use_dora", ""},          {"use_rslora", ""},
                {"rank_pattern", ""},      {"alpha_pattern", ""},
                {"layer_replication", ""}, {"layers_to_transform", ""},
                {"exclude_modules", ""},   {"target_parameters", ""},
                {"lora_bias", ""},         {"trainable_token_indices", ""}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const json_t *value = json_object_get(o, rows[i].name);
        const char *text = json_string_value(value);
        bool none = !value || json_is_null(value) || json_is_false(value) ||
                    (json_is_object(value) && !json_object_size(value)) ||
                    (json_is_array(value) && !json_array_size(value));
        if (none || (text && *rows[i].is && strcmp(text, rows[i].is) == 0)) continue;
        char *is = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        int code = error_set(err, EXIT_CONFIG, "merge it in PEFT: merge_and_unload()",
                             "%s is %.80s, which meopt does not have", rows[i].name, is);
        free(is);
        return code;
    }
    return 0;
}

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
    int code = check_members(o, err);
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

int adapters_settle(struct config *c, const struct model_shape *g, struct error *err)
{
    const char *from = c->lora.adapter;
    if (!from[0]) return 0;
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

int adapters_open(const struct config *c, struct weights **weights, struct error *err)
{
    bool directory = is_directory(c->lora.adapter);
    char *path = directory ? path_join(c->lora.adapter, ADAPTER_VALUES) : xstrdup(c->lora.adapter);
    int code = weights_open(weights, path, err);
    free(path);
    return code;
}

int adapters_load(const struct config *c, struct tower *tower, struct error *err)
{
    struct weights *weights = NULL;
    if (!c->lora.adapter[0]) return 0;
    int code = adapters_open(c, &weights, err);
    if (!code) code = tower_load_adapters(tower, weights, NULL, NULL, err);
    weights_close(weights);
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
