/* Resolves "auto", checks combinations of values, and writes the whole configuration as text. */
#include "core/base/file.h"
#include "core/config/document.h"
#include "core/config/value.h"
#include "core/base/hash.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* QLoRA's learning rate of 7B and 13B (arXiv:2305.14314, table 9), as in PEFT's and TRL's examples. */
static const double LORA_LR = 2e-4;

/* The usual settings of a family, and the keys that apply to its towers. */
static const struct family_usual {
    bool normalize; /* loss.normalize */
    enum data_pipeline pipeline;
    bool patch_tokens, gated; /* loss.tokens cls+patch, ffn swiglu */
    bool crops;               /* an image may have pixels after its last whole patch */
} usual[] = {
#define NORMALIZED   .normalize = true
#define PATCH_TOKENS .patch_tokens = true
#define GATED        .gated = true
#define CROPS        .crops = true
#define USUAL(c, number, name, aliases, pipe, ...)                                                           \
    [FAMILY_##number] = {.pipeline = DATA_PIPELINE_##pipe, __VA_ARGS__},
    ALL_FAMILIES(USUAL, )};

static enum family arch_family(enum tower_arch arch)
{
#define FAMILY_OF(c, name, family, ...) [TOWER_ARCH_##name] = FAMILY_##family,
    static const enum family families[] = {PRESETS(FAMILY_OF, )
                                               LANGUAGE_PRESETS(FAMILY_OF, )}; /* custom: AUTO */
    return families[arch];
}

/* Returns the family of a tower, as far as the keys determine it; else AUTO. */
static enum family tower_family(const struct config *c, const struct config_tower *t)
{
    if (t->family) return t->family;
    enum family family = arch_family(t->arch);
    return family ? family : c->model.family;
}

bool config_given(const struct config *c, const char *key)
{
    const struct config_origin *origin = &c->origins[config_key_index(key)];
    return origin->from == ORIGIN_FILE || origin->from == ORIGIN_OVERRIDE;
}

bool config_reads_tokens(const struct config *c)
{
    static const bool known[] = {[TRAIN_OBJECTIVE_LANGUAGE] = true, [TRAIN_OBJECTIVE_MASKED] = true};
    return known[c->train.objective] ||
           (c->train.objective == TRAIN_OBJECTIVE_CLASSIFY && tower_family(c, &c->model_s) == FAMILY_BERT);
}

bool config_changed(const struct config *c, const char *name)
{
    int key = config_key_index(name);
    char *text = config_value_text(c, key);
    bool differs = config_given(c, name) && strcmp(text, config_keys[key].standard) != 0;
    free(text);
    return differs;
}

enum data_pipeline config_usual_pipeline(enum family family) { return usual[family].pipeline; }

bool config_accumulates(const struct config *c)
{
    return c->train.micro_batch > 0 && c->train.micro_batch < c->train.batch_size;
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
    return strcmp(text, "auto") == 0 ? -1 : config_bytes(text); /* refused by resolve_check */
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
    factored_settle(c);
    if (c->model.family == FAMILY_UNKNOWN) c->model.family = arch_family(c->model_t.arch);
    if (c->model.family == FAMILY_UNKNOWN && (!c->model_t.weight[0] || c->model_t.init == TOWER_INIT_RANDOM))
        c->model.family = tower_family(c, &c->model_s);
    bool teacher = c->train.objective == TRAIN_OBJECTIVE_DISTILL;
    struct config_tower *towers[] = {&c->model_t, &c->model_s};
    for (int i = teacher ? 0 : 1; i < 2; i++)
        if (towers[i]->dtype == TOWER_DTYPE_AUTO)
            towers[i]->dtype =
                c->train.precision == TRAIN_PRECISION_BF16 ? TOWER_DTYPE_BF16 : TOWER_DTYPE_FP32;
    if (c->optim.use_meopt && c->optim.pure_bf16 && c->optim.weights == OPTIM_WEIGHTS_AUTO)
        c->optim.weights = OPTIM_WEIGHTS_BF16_SR;
    if (c->optim.gradients == OPTIM_GRADIENTS_AUTO)
        c->optim.gradients = c->optim.use_meopt ? OPTIM_GRADIENTS_RELEASE : OPTIM_GRADIENTS_KEEP;
    if (c->optim.clip_mode == OPTIM_CLIP_MODE_AUTO) {
        bool costs = c->optim.gradients == OPTIM_GRADIENTS_RELEASE && !config_accumulates(c) &&
                     c->dist.pipeline <= 1; /* it accumulates: the bits of one rank */
        c->optim.clip_mode = costs && config_clips(c) ? OPTIM_CLIP_MODE_PREVIOUS : OPTIM_CLIP_MODE_EXACT;
    }
    if (RULE_HAS(c->optim.name, WITH_MATRICES) && !config_given(c, "optim.momentum"))
        c->optim.momentum = optim_rules[c->optim.name].momentum;
    if (RULE_HAS(c->optim.name, WITH_MATRICES) && !config_given(c, "optim.nesterov"))
        c->optim.nesterov = true;
    if ((c->lora.rank || c->lora.adapter[0]) && !config_given(c, "optim.lr")) c->optim.lr = LORA_LR;
    if (!teacher && !config_given(c, "optim.head_lr_scale")) c->optim.head_lr_scale = 1;
    if (c->optim.min_lr > c->optim.lr && !config_given(c, "optim.min_lr")) c->optim.min_lr = c->optim.lr / 20;
    if (config_reads_tokens(c)) return; /* the rest is of images */
    if (!c->data.augment && c->data.flip < 0) c->data.flip = 0;
    if (c->model.family == FAMILY_UNKNOWN) return;
    if (c->loss.normalize < 0 && teacher) c->loss.normalize = usual[c->model.family].normalize;
    if (c->data.pipeline == DATA_PIPELINE_AUTO) c->data.pipeline = usual[c->model.family].pipeline;
    bool wide = c->data.pipeline == DATA_PIPELINE_DINOV2;
    if (c->data.flip < 0) c->data.flip = wide;
    if (c->data.crop_scale_min <= 0) {
        c->data.crop_scale_min = wide ? 0.32 : 0.9;
        if (c->data.crop_scale_min > c->data.crop_scale_max) c->data.crop_scale_min = c->data.crop_scale_max;
    }
}

static void check_tower(const struct config *c, const struct config_tower *t, const char *section,
                        combination_bad bad, void *context)
{
    char key[64], sentence[200];
    bool student = t == &c->model_s && c->train.objective == TRAIN_OBJECTIVE_DISTILL;
    enum family family = arch_family(t->arch), is = tower_family(c, t),
                said = t->family || student ? t->family : c->model.family;
    snprintf(key, sizeof key, "%s.arch", section);
    if (family && said && said != family) {
        snprintf(sentence, sizeof sentence, _("%s is %s, of family %s, but %s says %s"), key,
                 tower_arch_names[t->arch], family_names[family],
                 t->family ? "model_s.family" : "model.family", family_names[said]);
        bad(context, key, true, "leave the family out", sentence);
    }
    bool apart = config_reads_tokens(c); /* heads times head_dim is not the width */
    int64_t heads = apart ? 0 : t->heads, head_dim = t->head_dim, width = t->width;
    snprintf(key, sizeof key, "%s.heads", section);
    if (heads && width && width % heads) {
        snprintf(sentence, sizeof sentence, _("%s.width %lld is not a multiple of %lld heads"), section,
                 (long long)width, (long long)heads);
        bad(context, key, true, "heads must divide the width", sentence);
    } else if (heads && head_dim && width && heads * head_dim != width) {
        snprintf(sentence, sizeof sentence, _("%lld heads of %lld are not %s.width %lld"), (long long)heads,
                 (long long)head_dim, section, (long long)width);
        bad(context, key, true, "leave head_dim out", sentence);
    }
    snprintf(key, sizeof key, "%s.ffn", section);
    if (t->ffn == TOWER_FFN_SWIGLU && is && !usual[is].gated)
        bad(context, key, true, "leave it out", "no tower of that family has swiglu");
    snprintf(key, sizeof key, "%s.activation", section);
    if (t->ffn == TOWER_FFN_SWIGLU && t->activation != TOWER_ACTIVATION_AUTO)
        bad(context, key, true, "leave it out", "swiglu has an activation of its own");
    snprintf(key, sizeof key, "%s.patch", section);
    bool own = t == &c->model_s && c->data_s.image_size;
    const char *size_key = own ? "data_s.image_size" : "data.image_size";
    long long size = own ? c->data_s.image_size : c->data.image_size;
    if (t->patch && size && size % t->patch && !usual[is].crops) {
        snprintf(sentence, sizeof sentence, _("%s %lld is not a multiple of %s %lld"), size_key, size, key,
                 (long long)t->patch);
        bad(context, size_key, true, "choose a multiple of the patch", sentence);
    }
}

int config_cards(const struct config *config, int *first)
{
    int count = 0;
    if (first) *first = 0;
    if (strcmp(config->device.cards, "all") == 0) return 0;
    for (const char *p = config->device.cards;; p++) {
        size_t n = strspn(p, "0123456789");
        if (n == 0 || n > 4) return -1; /* refused by resolve_check */
        if (count++ == 0 && first) *first = atoi(p);
        p += n;
        if (*p == 0) return count;
        if (*p != ',') return -1;
    }
}

void rules_with(unsigned trait, char *text, size_t size)
{
    size_t n = (size_t)snprintf(text, size, _("it is for"));
    for (int rule = 0, count = 0; rule < RULE_COUNT && n < size; rule++)
        if (optim_rules[rule].traits & trait)
            n += (size_t)snprintf(text + n, size - n, "%s %s", count++ ? "," : "", optim_rules[rule].name);
}

/* Reports options of the optimizer that have no effect with its rule, or with another option. */
static void check_rule(const struct config *c, combination_bad bad, void *context)
{
    char sentence[240];
    const struct rule_info *rule = &optim_rules[c->optim.name];
    if (rule->traits & WITH_MOMENTUM && c->optim.nesterov &&
        (c->optim.momentum <= 0 || c->optim.dampening > 0))
        bad(context, "optim.nesterov", true, "as in torch.optim.SGD",
            "nesterov needs a momentum and no dampening");
    static const struct {
        const char *key;
        unsigned trait;
    } only[] = {{"optim.momentum", WITH_MOMENTUM | WITH_MATRICES},
                {"optim.nesterov", WITH_MOMENTUM | WITH_MATRICES},
                {"optim.dampening", WITH_MOMENTUM},
                {"optim.trust_clip", WITH_TRUST},
                {"optim.always_adapt", WITH_TRUST},
                {"optim.max_grad_norm", WITH_TRUST},
                {"optim.decoupled_decay", WITH_TRUST},
                {"optim.ns_steps", WITH_MATRICES},
                {"optim.ns_schedule", WITH_MATRICES},
                {"optim.ns_form", WITH_MATRICES},
                {"optim.ns_precision", WITH_MATRICES},
                {"optim.adjust_lr", WITH_MATRICES},
                {"optim.r", WITH_POINTS},
                {"optim.weight_lr_power", WITH_POINTS}};
    for (size_t i = 0; i < sizeof only / sizeof *only; i++)
        if (config_changed(c, only[i].key) && !(rule->traits & only[i].trait)) {
            char hint[80];
            rules_with(only[i].trait, hint, sizeof hint);
            snprintf(sentence, sizeof sentence, _("%s has no effect on %s"), only[i].key, rule->name);
            bad(context, only[i].key, false, hint, sentence);
        }
    if (config_changed(c, "optim.state_v") && !(rule->traits & (WITH_V | WITH_MATRICES | WITH_FACTORS))) {
        snprintf(sentence, sizeof sentence, _("optim.state_v has no effect: %s has no second moment"),
                 rule->name);
        bad(context, "optim.state_v", false, "leave it out", sentence);
    }
    if (!c->optim.offload &&
        (config_changed(c, "optim.offload_fraction") || config_changed(c, "optim.offload_dir")))
        bad(context, config_changed(c, "optim.offload_dir") ? "optim.offload_dir" : "optim.offload_fraction",
            false, "set optim.offload", "it has no effect: optim.offload is none");
}

/* Reports keys that the objective does not read: of the teacher, of labels, of images or of tokens. The first
 * row of a key counts. */
static void check_objective(const struct config *c, combination_bad bad, void *context)
{
    enum {
        D = 1 << TRAIN_OBJECTIVE_DISTILL,
        C = 1 << TRAIN_OBJECTIVE_CLASSIFY,
        L = 1 << TRAIN_OBJECTIVE_LANGUAGE,
        M = 1 << TRAIN_OBJECTIVE_MASKED,
        T = M << 1 /* classify, of text */
    };
    static const struct {
        const char *prefix;
        int objectives;
    } rows[] = {{"model_t.", D},
                {"data_s.", D},
                {"loss.chunk", L | M},
                {"loss.", D},
                {"lora.", D | C | L},
                {"train.cache_teacher", D},
                {"model_s.family", D},
                {"train.label_smoothing", C | T | L | M},
                {"model_s.classes", C | T},
                {"data.labels", C},
                {"data.class_order", C | T},
                {"data.mixup", C},
                {"data.cutmix", C},
                {"data.tokens", L | M},
                {"data.documents", L | M},
                {"data.too_long", L},
                {"data.end", L | M},
                {"data.mask_token", M},
                {"data.special_tokens", M},
                {"data.root", D | C | T | L | M},
                {"data.include", D | C | T | L | M},
                {"data.exclude", D | C | T | L | M},
                {"data.val", D | C | T | L | M},
                {"data.shuffle", D | C | T | L | M},
                {"data.", D | C}, /* of images */
                {"model_s.vocabulary", T | L | M},
                {"model_s.context", T | L | M},
                {"model_s.kv_heads", L},
                {"model_s.tied", L},
                {"model_s.window", L},
                {"model_s.rope_theta", L},
                {"model_s.norm_eps", D | C | T | L | M},
                {"model_s.norm", D | C | T | M},
                {"model_s.patch", D | C},
                {"model_s.pos_", D | C},
                {"model_s.pool", D | C},
                {"model_s.out", D | C}};
    char sentence[240];
    const char *objective = train_objective_names[c->train.objective];
    bool text = c->train.objective == TRAIN_OBJECTIVE_CLASSIFY && config_reads_tokens(c);
    int read_by = text ? T : 1 << c->train.objective;
    bool knn = c->train.eval == TRAIN_EVAL_KNN;
    if (knn && c->train.objective != TRAIN_OBJECTIVE_DISTILL)
        bad(context, "train.eval", true, "leave it out",
            "train.eval knn is for a distillation: a classifier's top-1 is measured without it");
    if (knn && !c->data.val[0])
        bad(context, "train.eval", true, "set data.val", "train.eval knn requires images in data.val");
    if (!knn && config_changed(c, "train.knn_bank"))
        bad(context, "train.knn_bank", false, "set train.eval: knn",
            "train.knn_bank has no effect: train.eval is loss");
    for (int key = 0; key < config_key_count; key++) {
        const char *name = config_keys[key].name;
        if (c->train.objective == TRAIN_OBJECTIVE_DISTILL && c->origins[key].of_model) {
            snprintf(sentence, sizeof sentence, _("model.%s: a distillation has two models"),
                     strchr(name, '.') + 1);
            bad(context, name, true, "use model_t and model_s, or set train.objective: classify or language",
                sentence);
        }
        size_t i = 0, count = sizeof rows / sizeof *rows;
        while (i < count && strncmp(name, rows[i].prefix, strlen(rows[i].prefix)) != 0) i++;
        if (i == count || rows[i].objectives & read_by || !config_changed(c, name)) continue;
        if (knn && strcmp(name, "data.labels") == 0) continue;
        snprintf(sentence, sizeof sentence, _("%s has no effect: train.objective is %s%s"),
                 config_key_here(c, name), objective, text ? _(", of text") : "");
        bool of_text = read_by == C && rows[i].objectives & T;
        bad(context, name, true,
            of_text ? N_("leave it out; a classifier of texts has model.family: bert")
                    : N_("leave it out, or set train.objective"),
            sentence);
    }
}

/* Keys that have no use with adapters, or do not go with them. */
static void check_lora(const struct config *c, combination_bad bad, void *context)
{
    static const char *const of_adapters[] = {"lora.alpha", "lora.targets"};
    if (!c->lora.rank && !c->lora.adapter[0])
        for (size_t i = 0; i < sizeof of_adapters / sizeof *of_adapters; i++)
            if (config_changed(c, of_adapters[i]))
                bad(context, of_adapters[i], false, "set lora.rank", "it has no effect: lora.rank is 0");
    if (!c->lora.rank && !c->lora.adapter[0]) return;
    if (config_changed(c, "model_s.freeze"))
        bad(context, "model_s.freeze", true, "leave it out",
            "lora.rank trains adapters alone: all else is frozen already");
    if (c->train.ema > 0)
        bad(context, "train.ema", true, "leave one of the two out",
            "train.ema averages weights, but lora.rank trains adapters alone");
}

/* Keys of whole documents where there are none. */
static void check_documents(const struct config *c, combination_bad bad, void *context)
{
    if (c->data.documents == DATA_DOCUMENTS_WHOLE && c->train.objective == TRAIN_OBJECTIVE_MASKED)
        bad(context, "data.documents", true, "leave it out: masked tokens are drawn from windows",
            "data.documents whole is for train.objective language");
    if (config_changed(c, "data.too_long") &&
        (c->data.documents == DATA_DOCUMENTS_APART || c->data.documents == DATA_DOCUMENTS_JOINED))
        bad(context, "data.too_long", true, "set data.documents: whole",
            "data.too_long has no effect: documents are cut by windows");
}

void resolve_check(const struct config *c, combination_bad bad, void *context)
{
    char sentence[240];
    check_objective(c, bad, context);
    images_check("data", &c->data.images, bad, context);
    images_check("data_s", &c->data_s.images, bad, context);
    check_tower(c, &c->model_t, "model_t", bad, context);
    check_tower(c, &c->model_s, c->train.objective == TRAIN_OBJECTIVE_DISTILL ? "model_s" : "model", bad,
                context);
    enum family teacher = c->model.family, student = tower_family(c, &c->model_s);
    if (c->loss.tokens == LOSS_TOKENS_CLS_PATCH &&
        ((teacher && !usual[teacher].patch_tokens) || (student && !usual[student].patch_tokens)))
        bad(context, "loss.tokens", true, "use cls", "only dinov2 and dinov3 give patch tokens");
    if (c->loss.type == LOSS_TYPE_COSINE && c->loss.reduction == LOSS_REDUCTION_SUM_DIM)
        bad(context, "loss.reduction", true, "use mean", "a cosine has no dimensions to sum over");
    if (c->device.type == DEVICE_TYPE_CPU && config_cards(c, NULL) > 1)
        bad(context, "device.cards", false, "--workers N trains N ranks on the processor",
            "device.cards has no effect: device.type is cpu, which trains one rank");
    if (c->data.crop_scale_min > c->data.crop_scale_max)
        bad(context, "data.crop_scale_min", true, "swap them",
            "data.crop_scale_min is above data.crop_scale_max");
    if (c->data.flip == 1 && !c->data.augment)
        bad(context, "data.flip", true, "set data.augment: true, or leave flip out",
            "data.flip needs data.augment");
    if (c->data.randaugment && !c->data.augment)
        bad(context, "data.randaugment", true, "set data.augment: true",
            "data.randaugment needs data.augment");
    if (c->data.erasing > 0 && !c->data.augment)
        bad(context, "data.erasing", true, "set data.augment: true", "data.erasing needs data.augment");
    check_documents(c, bad, context);
    if (c->train.cache_teacher && c->data.augment)
        bad(context, "train.cache_teacher", true, "set data.augment: false",
            "train.cache_teacher requires fixed crops, but data.augment draws new ones");
    if (c->train.cache_teacher && c->data.val[0])
        bad(context, "data.val", true, "set train.cache_teacher: false",
            "data.val requires the teacher, which train.cache_teacher frees");
    if (config_memory(c) == INT64_MIN)
        bad(context, "train.memory", true, "as in 8GiB, or auto", "train.memory is not a number of bytes");
    if (c->model_s.place == TOWER_PLACE_STREAMED) {
        bool masters =
            c->model_s.dtype == TOWER_DTYPE_BF16 &&
            ((!c->optim.use_meopt && !c->optim.pure_bf16) || c->optim.weights == OPTIM_WEIGHTS_FP32 ||
             c->optim.weights == OPTIM_WEIGHTS_FP32_COPY);
        if (c->optim.gradients != OPTIM_GRADIENTS_RELEASE)
            bad(context, "model_s.place", true, "set optim.gradients: release",
                "streamed weights are updated block by block, but optim.gradients is keep");
        if (masters)
            bad(context, "model_s.place", true, "set optim.use_meopt: true, and optim.weights: auto",
                "weights in fp32 in addition to bf16 cannot be streamed");
    }
    int groups;
    bool end;
    if (!config_frozen(c, 1024, &groups, &end)) {
        snprintf(sentence, sizeof sentence, _("%s is neither a part of the model nor a number of blocks"),
                 config_key_here(c, "model_s.freeze"));
        bad(context, "model_s.freeze", true, "none, embed, 6, -2 or all_but_head", sentence);
    }
    check_lora(c, bad, context);
    if (c->train.micro_batch > c->train.batch_size ||
        (c->train.micro_batch && c->train.batch_size % c->train.micro_batch)) {
        snprintf(sentence, sizeof sentence,
                 _("train.batch_size %lld is not a multiple of train.micro_batch %lld"),
                 (long long)c->train.batch_size, (long long)c->train.micro_batch);
        bad(context, config_given(c, "train.micro_batch") ? "train.micro_batch" : "train.batch_size", true,
            "choose a divisor", sentence);
    }
    if (c->optim.pure_bf16 && c->model_s.dtype == TOWER_DTYPE_FP32) {
        bool by_precision = c->train.precision == TRAIN_PRECISION_FP32;
        bad(context, "optim.pure_bf16", true,
            by_precision ? N_("set train.precision: bf16") : N_("set model_s.dtype: bf16"),
            by_precision ? N_("optim.pure_bf16 with train.precision fp32")
                         : N_("optim.pure_bf16 with model_s.dtype fp32"));
    }
    enum tower_dtype precision =
        c->train.precision == TRAIN_PRECISION_BF16 ? TOWER_DTYPE_BF16 : TOWER_DTYPE_FP32;
    if (config_given(c, "train.precision") && c->model_t.dtype != precision && c->model_s.dtype != precision)
        bad(context, "train.precision", false, "set model_t.dtype and model_s.dtype",
            "train.precision has no effect: each model has a dtype of its own");
    if (c->optim.min_lr > c->optim.lr)
        bad(context, "optim.min_lr", true, "min_lr is where the schedule ends",
            "optim.min_lr is above optim.lr");
    warmup_check(c, bad, context);
    check_rule(c, bad, context);
    factored_check(c, bad, context);
    if (config_cards(c, NULL) < 0)
        bad(context, "device.cards", true, "as in 0, or 0,1,3, or [0, 1, 3]; or all",
            "device.cards is not a list of card numbers");
    if (strchr(c->run.name, '/') || c->run.name[0] == '.' || c->run.name[0] == '-')
        bad(context, "run.name", true, "the directory is run.dir",
            "run.name has a '/', or begins with '.' or '-'");
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
        if (numbers_only && !k->numbers) continue;
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
