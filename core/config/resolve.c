/* Resolves "auto", and writes the whole configuration as text. */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/config/document.h"
#include "core/config/value.h"
#include "core/base/hash.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* QLoRA's learning rate of 7B and 13B (arXiv:2305.14314, table 9), as in PEFT's and TRL's examples. */
static const double LORA_LR = 2e-4;

static const struct family_usual usual[] = {
#define NORMALIZED   .normalize = true
#define PATCH_TOKENS .patch_tokens = true
#define GATED        .gated = true
#define CROPS        .crops = true
#define ENCODER      .encoder = true
#define USUAL(c, number, name, aliases, pipe, ...)                                                           \
    [FAMILY_##number] = {.pipeline = DATA_PIPELINE_##pipe, __VA_ARGS__},
    ALL_FAMILIES(USUAL, )};

enum family config_arch_family(enum tower_arch arch)
{
#define FAMILY_OF(c, name, family, ...) [TOWER_ARCH_##name] = FAMILY_##family,
    static const enum family families[] = {PRESETS(FAMILY_OF, )
                                               LANGUAGE_PRESETS(FAMILY_OF, )}; /* custom: AUTO */
    return families[arch];
}

enum family config_tower_family(const struct config *c, const struct config_tower *t)
{
    if (t->family) return t->family;
    enum family family = config_arch_family(t->arch);
    return family ? family : c->model.family;
}

bool config_reads_tokens(const struct config *c)
{
    return OBJECTIVES_OF_TOKENS >> c->train.objective & 1 ||
           (c->train.objective == TRAIN_OBJECTIVE_CLASSIFY &&
            usual[config_tower_family(c, &c->model_s)].encoder);
}

bool config_changed(const struct config *c, const char *name)
{
    int key = config_key_index(name);
    char *text = config_value_text(c, key);
    bool differs = config_given(c, name) && strcmp(text, config_keys[key].standard) != 0;
    free(text);
    return differs;
}

const struct family_usual *config_usual(enum family family) { return &usual[family]; }

enum data_pipeline config_usual_pipeline(enum family family) { return usual[family].pipeline; }

bool config_trains_adapters(const struct config *c) { return c->lora.rank || c->lora.adapter[0]; }

/* Returns whether a step's gradients come from several forwards. */
static bool accumulates(const struct config *c)
{
    return c->train.micro_batch > 0 && c->train.micro_batch < c->train.batch_size;
}

struct step_division config_divide_step(const struct config *c, int ranks)
{
    int64_t own = c->train.batch_size, micro = c->train.micro_batch > 0 ? c->train.micro_batch : own,
            samples = c->train.global_batch > 0       ? c->train.global_batch
                      : config_shares_steps(c, ranks) ? own * config_replicas(c, ranks)
                                                      : own;
    if (micro > samples) micro = samples;
    return (struct step_division){samples, micro, micro ? (samples + micro - 1) / micro : 0};
}

int64_t config_bytes(const char *text)
{
    struct value value;
    char message[320], hint[320];
    if (value_read(config_key_index("device.memory_limit"), text, strlen(text), false, &value, message, hint,
                   sizeof message) == VALUE_BAD ||
        value.integer <= 0)
        return INT64_MIN;
    return value.integer;
}

int64_t config_memory(const struct config *c)
{
    const char *text = c->train.memory;
    if (!text[0]) return 0;
    return strcmp(text, "auto") == 0 ? -1 : config_bytes(text); /* refused by config_combinations */
}

bool config_three(const char *text, double values[3])
{
    for (int i = 0; i < 3; i++) {
        char *end;
        text += strspn(text, " ");
        values[i] = strtod(text, &end);
        if (end == text || !isfinite(values[i])) return false;
        text = end + strspn(end, " ");
        if (i < 2 && *text == ',') text++;
        else if (i < 2 && text == end) return false;
    }
    return !*text;
}

bool config_clips(const struct config *c)
{
    return c->optim.clip_grad_norm > 0 || (RULE_HAS(c->optim.name, WITH_TRUST) && c->optim.max_grad_norm > 0);
}

bool config_frozen(const struct config *c, int64_t depth, int *groups, bool *end)
{
    const char *text = c->model_s.freeze;
    char *rest;
    long long count = strtoll(text, &rest, 10);
    *groups = 0;
    *end = strcmp(text, "all_but_head") == 0;
    if (!*text || strcmp(text, "none") == 0) return true;
    if (*end) *groups = (int)depth + 1;
    else if (strcmp(text, "embed") == 0) *groups = 1;
    else if (rest == text || *rest || count > depth || count < -depth) return false;
    else *groups = (int)(*text == '-' ? depth + count : count) + 1;
    return true;
}

void resolve_defaults(struct config *c)
{
    warmup_settle(c);
    if (c->model.family == FAMILY_UNKNOWN) c->model.family = config_arch_family(c->model_t[0].arch);
    if (c->model.family == FAMILY_UNKNOWN &&
        (!c->model_t[0].weight[0] || c->model_t[0].init == TOWER_INIT_RANDOM))
        c->model.family = config_tower_family(c, &c->model_s);
    bool teacher = c->train.objective == TRAIN_OBJECTIVE_DISTILL;
    for (int i = teacher ? 0 : MOST_TEACHERS; i <= MOST_TEACHERS; i++) {
        struct config_tower *tower = i < MOST_TEACHERS ? &c->model_t[i] : &c->model_s;
        if (tower->dtype == TOWER_DTYPE_AUTO)
            tower->dtype = c->train.precision == TRAIN_PRECISION_BF16 ? TOWER_DTYPE_BF16 : TOWER_DTYPE_FP32;
    }
    if (c->optim.use_meopt && c->optim.pure_bf16 && c->optim.weights == OPTIM_WEIGHTS_AUTO)
        c->optim.weights = OPTIM_WEIGHTS_BF16_SR;
    if (c->optim.gradients == OPTIM_GRADIENTS_AUTO)
        c->optim.gradients = c->optim.use_meopt ? OPTIM_GRADIENTS_RELEASE : OPTIM_GRADIENTS_KEEP;
    if (c->optim.clip_mode == OPTIM_CLIP_MODE_AUTO) {
        bool costs = c->optim.gradients == OPTIM_GRADIENTS_RELEASE && !accumulates(c) &&
                     config_stages(c) <= 1; /* it accumulates: the bits of one rank */
        c->optim.clip_mode = costs && config_clips(c) ? OPTIM_CLIP_MODE_PREVIOUS : OPTIM_CLIP_MODE_EXACT;
    }
    if (RULE_HAS(c->optim.name, WITH_FACTORS)) {
        if (!config_given(c, "optim.beta1")) c->optim.beta1 = 0;
        if (!config_given(c, "optim.eps")) c->optim.eps = optim_rules[c->optim.name].eps;
    }
    if (RULE_HAS(c->optim.name, WITH_MATRICES) && !config_given(c, "optim.momentum"))
        c->optim.momentum = optim_rules[c->optim.name].momentum;
    if (RULE_HAS(c->optim.name, WITH_MATRICES) && !config_given(c, "optim.nesterov"))
        c->optim.nesterov = true;
    if (config_trains_adapters(c) && !config_given(c, "optim.lr")) c->optim.lr = LORA_LR;
    if (!teacher && !config_given(c, "optim.head_lr_scale")) c->optim.head_lr_scale = 1;
    if (c->optim.min_lr > c->optim.lr && !config_given(c, "optim.min_lr")) c->optim.min_lr = c->optim.lr / 20;
    if (config_reads_tokens(c)) return; /* the rest is of images */
    if (!c->data.augment && c->data.flip < 0) c->data.flip = 0;
    if (c->model.family == FAMILY_UNKNOWN) return;
    for (int i = 0; i < config_losses(c) && teacher; i++)
        if (c->loss[i].normalize < 0) c->loss[i].normalize = usual[c->model.family].normalize;
    if (c->data.pipeline == DATA_PIPELINE_AUTO) c->data.pipeline = usual[c->model.family].pipeline;
    bool wide = c->data.pipeline == DATA_PIPELINE_DINOV2;
    if (c->data.flip < 0) c->data.flip = wide;
    if (c->data.crop_scale_min <= 0) {
        c->data.crop_scale_min = wide ? 0.32 : 0.9;
        if (c->data.crop_scale_min > c->data.crop_scale_max) c->data.crop_scale_min = c->data.crop_scale_max;
    }
}

int config_cards(const struct config *config, int *first)
{
    int count = 0;
    if (first) *first = 0;
    if (strcmp(config->device.cards, "all") == 0) return 0;
    for (const char *p = config->device.cards;; p++) {
        size_t n = strspn(p, "0123456789");
        if (n == 0 || n > 4) return -1; /* refused by config_combinations */
        if (count++ == 0 && first) *first = atoi(p);
        p += n;
        if (*p == 0) return count;
        if (*p != ',') return -1;
    }
}

/* ---- As text ---- */

char *config_value_text(const struct config *config, int key)
{
    const void *field = (const char *)config + config_keys[key].offset;
    char real[40];
    switch (config_keys[key].type) {
    case CONFIG_TEXT:
    case CONFIG_PATH: {
        const char *text = *(char *const *)field;
        if (!text) text = "";
        return value_plain_safe(text, true) && !value_plain_is_not_text(text) ? xstrdup(text)
                                                                              : value_quoted(text);
    }
    case CONFIG_CHOICE: return xstrdup(config_choice(key, (int)*(const unsigned *)field));
    case CONFIG_BOOL: return xstrdup(*(const bool *)field ? "true" : "false");
    case CONFIG_SWITCH:
        return xstrdup(*(const int *)field < 0 ? "auto" : *(const int *)field ? "true" : "false");
    case CONFIG_REAL: value_real_text(real, sizeof real, *(const double *)field); return xstrdup(real);
    default: return xasprintf("%lld", (long long)*(const int64_t *)field);
    }
}

static char *text_of(const struct config *config, bool numbers_only)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return xstrdup("");
    const char *section = "";
    size_t length = 0;
    for (int key = 0; key < config_key_count; key++) {
        const struct config_key *k = &config_keys[key];
        if ((numbers_only && !k->numbers) || !config_key_used(config, key)) continue;
        char *value = config_value_text(config, key);
        if (strcmp(value, "\"\"") != 0) {
            if (strncmp(k->name, section, length) != 0 || k->name[length] != '.' || !length) {
                section = k->name;
                length = strcspn(section, ".");
                fprintf(out, "%.*s:\n", (int)length, section);
            }
            fprintf(out, "  %s: %s\n", k->name + length + 1, value);
        }
        free(value);
    }
    fclose(out);
    return text;
}

char *config_resolved_text(const struct config *config)
{
    char *values = text_of(config, false);
    char name[512];
    text_printable(name, sizeof name, config->path);
    for (char *p = name; *p; p++)
        if (*p == '\n') *p = ' ';
    char *text = xasprintf("# %s, all values resolved.\n%s", name, values);
    free(values);
    return text;
}

int config_write_resolved(const struct config *config, const char *directory, struct error *err)
{
    char *text = config_resolved_text(config);
    struct document
        /* values that could not be read again, for example a path that is not UTF-8, are not written */
        proof;
    int code = document_parse(&proof, config->path, text, strlen(text), err);
    if (!code) {
        document_free(&proof);
        code = file_write_below(directory, "config.yaml", text, strlen(text), err);
    }
    free(text);
    return code;
}

uint64_t config_hash(const struct config *config)
{
    char *text = text_of(config, true);
    uint64_t hash = fnv1a_64(text);
    free(text);
    return hash;
}
