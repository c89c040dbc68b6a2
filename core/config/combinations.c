/* Combinations of keys that do not go together, as far as the configuration alone shows them: see
 * combinations.h. A new one is a row here, or in core/experiment/combinations.c. */
#include "core/base/translate.h"
#include "core/config/combinations.h"
#include "core/config/value.h"
#include "kernels/optim_rules.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void combination(const struct combinations *walk, bool fatal, const char *key, const char *hint,
                 const char *sentence, ...)
{
    char text[240], named[320];
    size_t n = 0;
    va_list args;
    va_start(args, sentence);
    if (walk->list) {
        for (const char *p = translation(sentence); *p && n < sizeof text - 4; p++) {
            if (*p != '%') text[n++] = *p;
            else {
                if (n < 3 || memcmp(text + n - 3, "...", 3) != 0) n += (size_t)sprintf(text + n, "...");
                p += strcspn(p, "dsg");
            }
        }
        text[n] = 0;
    } else text_format(text, sizeof text, sentence, args);
    va_end(args);
    const char *shown = walk->list ? "" : config_key_here(walk->config, key);
    bool names_it = walk->list || strstr(text, strchr(key, '.')); /* model.width stands for model_s.width */
    snprintf(named, sizeof named, "%s%s%s", names_it ? "" : shown, names_it ? "" : ": ", text);
    walk->bad(walk->context, key, fatal, hint, named);
}

/* ---- Rows ---- */

/* Scores of features (train.eval). */
static void evaluation_rows(const struct combinations *w, const struct config *c)
{
    const char *eval = train_eval_names[c->train.eval];
    bool features = c->train.eval != TRAIN_EVAL_LOSS, probe = config_eval_has(c, TRAIN_EVAL_PROBE);
    REFUSE(w, features && c->train.objective != TRAIN_OBJECTIVE_DISTILL, "train.eval", "leave it out",
           "train.eval %s is for a distillation: a classifier's top-1 is measured without it", eval);
    REFUSE(w, features && !c->data.val[0], "train.eval", "set data.val",
           "train.eval %s requires images in data.val", eval);
    NOTE(w, !features && config_changed(c, "train.knn_bank"), "train.knn_bank", "set train.eval: knn",
         "train.knn_bank has no effect: train.eval is loss");
    static const char *const of_probe[] = {"train.probe_l2", "train.probe_classes"};
    for (size_t i = 0; i < sizeof of_probe / sizeof *of_probe; i++)
        NOTE(w, !probe && config_changed(c, of_probe[i]), of_probe[i], "set train.eval: probe",
             "%s has no effect: train.eval is %s", of_probe[i], eval);
}

/* Keys that the objective does not read: of the teacher, of labels, of images or of tokens. The first row of
 * a key counts. */
enum {
    D = 1 << TRAIN_OBJECTIVE_DISTILL,
    C = 1 << TRAIN_OBJECTIVE_CLASSIFY,
    L = 1 << TRAIN_OBJECTIVE_LANGUAGE,
    M = 1 << TRAIN_OBJECTIVE_MASKED,
    T = 1 << TRAIN_OBJECTIVE_COUNT /* classify, of text */
};
static const struct {
    const char *prefix;
    int objectives;
} objectives_of[] = {{"model_t.", D}, /* of a list, every item */
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
                     {"model_s.registers", D | C},
                     {"model_s.layerscale", D | C},
                     {"model_s.pos_", D | C},
                     {"model_s.pool", D | C},
                     {"model_s.out", D | C}};

/* Returns the objectives that read a key. */
static int objectives_reading(const char *name)
{
    char plain[80]; /* without the number of an item of a list */
    size_t dot = strcspn(name, "."), n = strcspn(name, ".0123456789");
    snprintf(plain, sizeof plain, "%.*s%s", (int)n, name, name + dot);
    for (size_t i = 0; i < sizeof objectives_of / sizeof *objectives_of; i++)
        if (strncmp(plain, objectives_of[i].prefix, strlen(objectives_of[i].prefix)) == 0)
            return objectives_of[i].objectives;
    return ~0;
}

/* See above. */
static void objective_rows(const struct combinations *w, const struct config *c)
{
    const char *objective = train_objective_names[c->train.objective];
    bool text = c->train.objective == TRAIN_OBJECTIVE_CLASSIFY && config_reads_tokens(c);
    int read_by = text ? T : 1 << c->train.objective;
    for (int key = 0; key < (w->list ? 1 : config_key_count); key++) {
        const char *name = config_keys[key].name;
        REFUSE(w, c->train.objective == TRAIN_OBJECTIVE_DISTILL && c->origins[key].of_model,
               w->list ? "model." : name,
               "use model_t and model_s, or set train.objective: classify or language",
               "model.%s: a distillation has two models", strchr(name, '.') + 1);
    }
    static const char no_effect[] = N_("%s has no effect: train.objective is %s%s");
    const size_t count = sizeof objectives_of / sizeof *objectives_of;
    for (size_t i = 0; w->list && i < count; i++) {
        char only[120];
        int n = snprintf(only, sizeof only, "%s", _("it is for")), listed = 0;
        for (int o = 0; o < TRAIN_OBJECTIVE_COUNT; o++)
            if (objectives_of[i].objectives & 1 << o)
                n += snprintf(only + n, sizeof only - (size_t)n, "%s %s", listed++ ? "," : "",
                              train_objective_names[o]);
        if (listed < TRAIN_OBJECTIVE_COUNT)
            combination(w, true, objectives_of[i].prefix, only, no_effect, "", "", "");
    }
    for (int key = 0; !w->list && key < config_key_count; key++) {
        const char *name = config_keys[key].name;
        int readers = objectives_reading(name);
        if (readers & read_by || !config_changed(c, name)) continue;
        if (c->train.eval != TRAIN_EVAL_LOSS && strcmp(name, "data.labels") == 0) continue;
        bool of_text = read_by == C && readers & T;
        combination(w, true, name,
                    of_text ? N_("leave it out; a classifier of texts has model.family: bert, or its kin")
                            : N_("leave it out, or set train.objective"),
                    no_effect, config_key_here(c, name), objective, text ? _(", of text") : "");
    }
}

static void preprocess_rows(const struct combinations *w, const char *section,
                            const struct config_images *images)
{
    const struct {
        const char *name, *text, *hint;
        double above; /* the lower bound of each of the three */
    } lists[] = {{"mean", images->mean, "as in 0.485, 0.456, 0.406", -HUGE_VAL},
                 {"std", images->std, "as in 0.229, 0.224, 0.225", 0}};
    char key[64];
    for (size_t i = 0; i < 2; i++) {
        double v[3], above = lists[i].above;
        const char *text = lists[i].text;
        bool fine = config_three(text, v) && v[0] > above && v[1] > above && v[2] > above;
        snprintf(key, sizeof key, "%s.%s", section, lists[i].name);
        REFUSE(w, *text && !fine, key, lists[i].hint, "%s is '%.60s', expected three numbers%s", key, text,
               above < 0 ? "" : " above 0");
    }
    snprintf(key, sizeof key, "%s.crop_pct", section);
    REFUSE(w, images->crop_pct > 0 && images->crop_pct < 0.1, key,
           "0.875 resizes 224 pixels to 256 before the crop", "%s is %g, expected 0.1 to 1", key,
           images->crop_pct);
    snprintf(key, sizeof key, "%s.resize_as", section);
    enum data_interpolation filter = images->interpolation;
    bool tensors = images->resize_as == DATA_RESIZE_AS_HF || images->resize_as == DATA_RESIZE_AS_HF_FLOAT;
    REFUSE(w, tensors && filter > DATA_INTERPOLATION_BILINEAR && filter != DATA_INTERPOLATION_LANCZOS, key,
           "pil and hf_pil have all filters", "%s is %s, which has no filter %s", key,
           data_resize_as_names[images->resize_as], data_interpolation_names[filter]);
}

/* Of several crops of each image. */
static void crop_rows(const struct combinations *w, const struct config *c)
{
    bool global = c->train.global_batch > 0;
    const char *key = global ? "train.global_batch" : "train.batch_size";
    int64_t crops = c->data.crops, batch = global ? c->train.global_batch : c->train.batch_size;
    REFUSE(w, crops > 1 && !c->data.augment, "data.crops", "set data.augment: true",
           "data.crops needs data.augment");
    REFUSE(w, crops > 1 && batch % crops, "data.crops", "choose a multiple of data.crops",
           "%s %lld is not a multiple of data.crops %lld", key, (long long)batch, (long long)crops);
    REFUSE(w, crops > 1 && (c->data.mixup > 0 || c->data.cutmix > 0), "data.crops",
           "leave data.mixup and data.cutmix out",
           "data.crops cannot be used with data.mixup or data.cutmix, which would mix crops of one image");
    REFUSE(w, c->data.local_crops > 0 && !c->data.augment, "data.local_crops", "set data.augment: true",
           "data.local_crops needs data.augment");
    REFUSE(w, c->data.local_crops > crops, "data.local_crops", "raise data.crops, which counts them",
           "data.local_crops %lld is more than data.crops %lld", (long long)c->data.local_crops,
           (long long)crops);
    REFUSE(w, c->data.local_scale_min > c->data.local_scale_max, "data.local_scale_min", "swap them",
           "data.local_scale_min is above data.local_scale_max");
    static const char *const of_local[] = {"data.local_scale_min", "data.local_scale_max"};
    for (size_t i = 0; i < sizeof of_local / sizeof *of_local; i++)
        NOTE(w, !c->data.local_crops && config_changed(c, of_local[i]), of_local[i], "set data.local_crops",
             "%s has no effect: data.local_crops is 0", of_local[i]);
}

static void data_rows(const struct combinations *w, const struct config *c)
{
    REFUSE(w, c->data.crop_scale_min > c->data.crop_scale_max, "data.crop_scale_min", "swap them",
           "data.crop_scale_min is above data.crop_scale_max");
    REFUSE(w, c->data.flip == 1 && !c->data.augment, "data.flip", "set data.augment: true, or leave flip out",
           "data.flip needs data.augment");
    REFUSE(w, c->data.randaugment && !c->data.augment, "data.randaugment", "set data.augment: true",
           "data.randaugment needs data.augment");
    REFUSE(w, c->data.erasing > 0 && !c->data.augment, "data.erasing", "set data.augment: true",
           "data.erasing needs data.augment");
    REFUSE(w, c->data.documents == DATA_DOCUMENTS_WHOLE && c->train.objective == TRAIN_OBJECTIVE_MASKED,
           "data.documents", "leave it out: masked tokens are drawn from windows",
           "data.documents whole is for train.objective language");
    REFUSE(w,
           config_changed(c, "data.too_long") &&
               (c->data.documents == DATA_DOCUMENTS_APART || c->data.documents == DATA_DOCUMENTS_JOINED),
           "data.too_long", "set data.documents: whole",
           "data.too_long has no effect: documents are cut by windows");
    REFUSE(w, c->train.cache_teacher && c->data.augment, "train.cache_teacher", "set data.augment: false",
           "train.cache_teacher requires fixed crops, but data.augment draws new ones");
    REFUSE(w, c->train.cache_teacher && c->data.val[0], "data.val", "set train.cache_teacher: false",
           "data.val requires the teacher, which train.cache_teacher frees");
}

static void tower_rows(const struct combinations *w, const struct config *c, const struct config_tower *t,
                       const char *section)
{
    char key[64], own_family[64];
    bool own = t != c->model_t && c->train.objective == TRAIN_OBJECTIVE_DISTILL; /* not model.family */
    enum family family = config_arch_family(t->arch), is = config_tower_family(c, t),
                said = t->family || own ? t->family : c->model.family;
    snprintf(key, sizeof key, "%s.arch", section);
    snprintf(own_family, sizeof own_family, "%s.family", section);
    REFUSE(w, family && said && said != family, key, "leave the family out",
           "%s is %s, of family %s, but %s says %s", key, tower_arch_names[t->arch], family_names[family],
           t->family ? own_family : "model.family", family_names[said]);
    bool apart = config_reads_tokens(c); /* heads times head_dim is not the width */
    int64_t heads = apart ? 0 : t->heads, head_dim = t->head_dim, width = t->width;
    bool divides = !heads || !width || width % heads == 0;
    snprintf(key, sizeof key, "%s.heads", section);
    REFUSE(w, !divides, key, "heads must divide the width", "%s.width %lld is not a multiple of %lld heads",
           section, (long long)width, (long long)heads);
    REFUSE(w, divides && heads && head_dim && width && heads * head_dim != width, key, "leave head_dim out",
           "%lld heads of %lld are not %s.width %lld", (long long)heads, (long long)head_dim, section,
           (long long)width);
    snprintf(key, sizeof key, "%s.ffn", section);
    REFUSE(w, t->ffn == TOWER_FFN_SWIGLU && is && !config_usual(is)->gated, key, "leave it out",
           "no tower of that family has swiglu");
    snprintf(key, sizeof key, "%s.activation", section);
    REFUSE(w, t->ffn == TOWER_FFN_SWIGLU && t->activation != TOWER_ACTIVATION_AUTO, key, "leave it out",
           "swiglu has an activation of its own");
    snprintf(key, sizeof key, "%s.patch", section);
    char own_size[64];
    snprintf(own_size, sizeof own_size, "%s.image_size", section);
    bool of_student = t == &c->model_s && c->data_s.image_size;
    const char *size_key = t->image_size ? own_size : of_student ? "data_s.image_size" : "data.image_size";
    long long size = t->image_size ? t->image_size : of_student ? c->data_s.image_size : c->data.image_size;
    REFUSE(w, t->patch && size && size % t->patch && !config_usual(is)->crops, size_key,
           "choose a multiple of the patch", "%s %lld is not a multiple of %s %lld", size_key, size, key,
           (long long)t->patch);
}

/* Returns the first given key of a section, or NULL. */
static const char *given_of(const struct config *c, const char *section)
{
    size_t n = strlen(section);
    for (int key = 0; key < config_key_count; key++)
        if (strncmp(config_keys[key].name, section, n) == 0 && config_keys[key].name[n] == '.' &&
            c->origins[key].from != ORIGIN_DEFAULT)
            return config_keys[key].name;
    return NULL;
}

/* A section between the first and the last of a list has a key. */
static void gap_rows(const struct combinations *w, const struct config *c, const char *section,
                     const char *last)
{
    const char *key = given_of(c, last);
    REFUSE(w, !given_of(c, section), key, "number them without a gap", "%s has no key, but %s is given",
           section, key);
}

static void model_rows(const struct combinations *w, const struct config *c)
{
    for (int i = 0; i < (w->list ? 1 : config_losses(c)); i++) {
        const struct config_loss *l = &c->loss[i];
        const char *section = config_loss_section(i);
        char key[48];
        snprintf(key, sizeof key, "%s.reduction", section);
        REFUSE(w, l->type == LOSS_TYPE_COSINE && l->reduction == LOSS_REDUCTION_SUM_DIM, key, "use mean",
               "a cosine has no dimensions to sum over");
        snprintf(key, sizeof key, "%s.teacher", section);
        REFUSE(w, l->teacher > config_teachers(c), key, "1 is the first of model_t",
               "%s is %lld, but the number of teachers is %d", key, (long long)l->teacher,
               config_teachers(c));
        snprintf(key, sizeof key, "%s.head_hidden", section);
        REFUSE(w, l->head_hidden && l->head != LOSS_HEAD_MLP, key, "set head: mlp",
               "%s has no effect: the head has no hidden layer", key);
        const struct config_loss *before = i ? &c->loss[i - 1] : l;
        snprintf(key, sizeof key, "%s.head", section);
        if (i && !w->list) gap_rows(w, c, section, config_loss_section(config_losses(c) - 1));
        REFUSE(w, l->head == LOSS_HEAD_PREVIOUS && !i, key, "auto, none, linear or mlp",
               "%s is previous, but it is of the first part", key);
        REFUSE(w,
               l->head == LOSS_HEAD_PREVIOUS &&
                   (l->tokens != before->tokens || l->block_s != before->block_s ||
                    l->block_t != before->block_t || l->standardize != before->standardize),
               key, "give it the tokens, blocks and standardize of the part before",
               "%s is previous, but the part before compares other tokens", key);
        snprintf(key, sizeof key, "%s.block_s", section);
        REFUSE(w, (l->block_s > 0) != (l->block_t > 0), key, "set block_t and block_s, or neither",
               "tokens of a block are compared with those of a block");
    }
    bool streamed = c->model_s.place == TOWER_PLACE_STREAMED,
         masters = c->model_s.dtype == TOWER_DTYPE_BF16 &&
                   ((!c->optim.use_meopt && !c->optim.pure_bf16) || c->optim.weights == OPTIM_WEIGHTS_FP32 ||
                    c->optim.weights == OPTIM_WEIGHTS_FP32_COPY);
    REFUSE(w, streamed && c->optim.gradients != OPTIM_GRADIENTS_RELEASE, "model_s.place",
           "set optim.gradients: release",
           "streamed weights are updated block by block, but optim.gradients is keep");
    REFUSE(w, streamed && masters, "model_s.place", "set optim.use_meopt: true, and optim.weights: auto",
           "weights in fp32 in addition to bf16 cannot be streamed");
    int groups;
    bool end, adapters = config_trains_adapters(c);
    REFUSE(w, !config_frozen(c, 1024, &groups, &end), "model_s.freeze", "none, embed, 6, -2 or all_but_head",
           "%s is neither a part of the model nor a number of blocks", config_key_here(c, "model_s.freeze"));
    static const char *const of_adapters[] = {"lora.alpha", "lora.targets"};
    for (size_t i = 0; i < sizeof of_adapters / sizeof *of_adapters; i++)
        NOTE(w, !adapters && config_changed(c, of_adapters[i]), of_adapters[i], "set lora.rank",
             "%s has no effect: lora.rank is 0", of_adapters[i]);
    REFUSE(w, adapters && config_changed(c, "model_s.freeze"), "model_s.freeze", "leave it out",
           "lora.rank trains adapters alone: all else is frozen already");
    REFUSE(w, adapters && c->train.ema > 0, "train.ema", "leave one of the two out",
           "train.ema averages weights, but lora.rank trains adapters alone");
}

/* Of slices, and of the ranks that share them. */
static void slice_rows(const struct combinations *w, const struct config *c)
{
    int64_t slices = c->model_s.slices, tensor = c->dist.tensor;
    bool sliced = slices > 1;
    const char *key = config_key_here(c, "model_s.slices"), one[] = "model.slices: 1";
    REFUSE(w, slices & (slices - 1), "model_s.slices", "1, 2, 4, 8, 16, 32 or 64",
           "%s %lld is not a power of 2", key, (long long)slices);
    REFUSE(w, tensor & (tensor - 1), "dist.tensor", "1, 2, 4 or 8", "dist.tensor %lld is not a power of 2",
           (long long)tensor);
    REFUSE(w, tensor > 1 && slices % tensor, "dist.tensor", "a multiple of dist.tensor",
           "dist.tensor %lld does not divide %s %lld", (long long)tensor, key, (long long)slices);
    REFUSE(w, sliced && c->lora.rank > 0, "model_s.slices", one, "%s cannot be used with lora.rank", key);
    REFUSE(w, sliced && c->train.save_activations == TRAIN_SAVE_ACTIVATIONS_8BIT, "model_s.slices",
           "train.save_activations: minimal", "%s cannot be used with train.save_activations 8bit", key);
    REFUSE(w, sliced && c->train.ema > 0, "model_s.slices", "train.ema: 0, or model.slices: 1",
           "%s cannot be used with train.ema", key);
}

/* Of memory, ranks and the order of a step. */
static void step_rows(const struct combinations *w, const struct config *c)
{
    REFUSE(w, config_memory(c) == INT64_MIN, "train.memory", "as in 8GiB, or auto",
           "train.memory is not a number of bytes");
    REFUSE(w, config_memory(c) > 0 && config_memory(c) < 100000, "train.memory",
           "with a unit, for example 8GiB", "train.memory is %lld bytes", (long long)config_memory(c));
    REFUSE(w,
           c->train.micro_batch > c->train.batch_size ||
               (c->train.micro_batch && c->train.batch_size % c->train.micro_batch),
           config_given(c, "train.micro_batch") ? "train.micro_batch" : "train.batch_size",
           "choose a divisor", "train.batch_size %lld is not a multiple of train.micro_batch %lld",
           (long long)c->train.batch_size, (long long)c->train.micro_batch);
    bool coded = c->train.save_activations == TRAIN_SAVE_ACTIVATIONS_8BIT,
         keep = c->optim.gradients != OPTIM_GRADIENTS_RELEASE,
         breadth = c->train.rounds == TRAIN_ROUNDS_BREADTH, depth = c->train.rounds == TRAIN_ROUNDS_DEPTH;
    REFUSE(
        w, coded && c->train.recompute == TRAIN_RECOMPUTE_BLOCK, "train.save_activations",
        "one of the two: train.recompute: block needs less memory",
        "train.save_activations 8bit has no use with train.recompute block, which keeps the activations of "
        "one block alone");
    REFUSE(w, depth && c->train.wave, "train.wave", "train.wave: 0, or train.rounds: breadth",
           "train.wave is %lld, but train.rounds is depth", (long long)c->train.wave);
    REFUSE(w, breadth && keep, "train.rounds", "train.rounds: auto",
           "train.rounds is breadth, but gradients are kept: set optim.gradients release");
    REFUSE(w, breadth && coded, "train.rounds", "train.rounds: auto",
           "train.rounds is breadth, but activations are saved in 8 bits, but blocks are recomputed: set "
           "train.save_activations minimal");
    int stages = config_stages(c);
    REFUSE(w, stages > 1 && keep, "dist.pipeline", "optim.gradients: release",
           "dist.pipeline %d cannot be used with optim.gradients keep", stages);
    REFUSE(w, stages > 1 && depth, "dist.pipeline", "train.rounds: breadth",
           "dist.pipeline %d cannot be used with train.rounds depth", stages);
    REFUSE(w, stages > 1 && coded, "dist.pipeline", "train.save_activations: minimal",
           "dist.pipeline %d cannot be used with train.save_activations 8bit", stages);
    enum tower_dtype precision =
        c->train.precision == TRAIN_PRECISION_BF16 ? TOWER_DTYPE_BF16 : TOWER_DTYPE_FP32;
    NOTE(w,
         config_given(c, "train.precision") && c->model_t[0].dtype != precision &&
             c->model_s.dtype != precision,
         "train.precision", "set model_t.dtype and model_s.dtype",
         "train.precision has no effect: each model has a dtype of its own");
    NOTE(w, c->device.type == DEVICE_TYPE_CPU && config_cards(c, NULL) > 1, "device.cards",
         "--workers N trains N ranks on the processor",
         "device.cards has no effect: device.type is cpu, which trains one rank");
    REFUSE(w, config_cards(c, NULL) < 0, "device.cards", "as in 0, or 0,1,3, or [0, 1, 3]; or all",
           "device.cards is not a list of card numbers");
    REFUSE(w, strchr(c->run.name, '/') || c->run.name[0] == '.' || c->run.name[0] == '-', "run.name",
           "the directory is run.dir", "run.name has a '/', or begins with '.' or '-'");
}

/* Writes "it is for lamb", or "it is for lamb, larc": the rules with that trait. */
static void rules_with(unsigned trait, char *text, size_t size)
{
    size_t n = (size_t)snprintf(text, size, _("it is for"));
    for (int rule = 0, count = 0; rule < RULE_COUNT && n < size; rule++)
        if (optim_rules[rule].traits & trait)
            n += (size_t)snprintf(text + n, size - n, "%s %s", count++ ? "," : "", optim_rules[rule].name);
}

/* Keys of the optimizer that some rules alone read, by a trait of theirs. */
static void rule_rows(const struct combinations *w, const struct config *c)
{
    static const struct {
        const char *key;
        unsigned trait, except; /* rules without `trait` do not read it; if set, those with `except` */
    } rows[] = {{"optim.momentum", WITH_MOMENTUM | WITH_MATRICES, 0},
                {"optim.nesterov", WITH_MOMENTUM | WITH_MATRICES, 0},
                {"optim.dampening", WITH_MOMENTUM, 0},
                {"optim.trust_clip", WITH_TRUST, 0},
                {"optim.always_adapt", WITH_TRUST, 0},
                {"optim.max_grad_norm", WITH_TRUST, 0},
                {"optim.decoupled_decay", WITH_TRUST, 0},
                {"optim.ns_steps", WITH_MATRICES, 0},
                {"optim.ns_schedule", WITH_MATRICES, 0},
                {"optim.ns_form", WITH_MATRICES, 0},
                {"optim.ns_precision", WITH_MATRICES, 0},
                {"optim.adjust_lr", WITH_MATRICES, 0},
                {"optim.other_rule", WITH_MATRICES, 0},
                {"optim.r", WITH_POINTS, 0},
                {"optim.weight_lr_power", WITH_POINTS, 0},
                {"optim.eps2", WITH_FACTORS, 0},
                {"optim.clip_threshold", WITH_FACTORS, 0},
                {"optim.decay_rate", WITH_FACTORS, 0},
                {"optim.scale_parameter", WITH_FACTORS, 0},
                {"optim.relative_step", WITH_FACTORS, 0},
                {"optim.warmup_init", WITH_FACTORS, 0},
                {"optim.torch_form", WITH_FACTORS, 0},
                {"optim.beta2", WITH_V, WITH_FACTORS},
                {"optim.state_v", WITH_V, WITH_FACTORS}};
    const struct rule_info *rule = &optim_rules[c->optim.name];
    bool tables = RULE_HAS(c->optim.name, WITH_MATRICES) && c->optim.other_rule == OPTIM_OTHER_RULE_ADAFACTOR;
    unsigned traits = rule->traits | (tables ? WITH_FACTORS : 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool reads = rows[i].except ? !(rule->traits & rows[i].except) : traits & rows[i].trait;
        char hint[80];
        rules_with(rows[i].trait, hint, sizeof hint);
        NOTE(w, !reads && config_changed(c, rows[i].key), rows[i].key, hint, "%s has no effect on %s",
             rows[i].key, rule->name);
    }
    NOTE(w, config_changed(c, "optim.state_v") && !(rule->traits & (WITH_V | WITH_MATRICES | WITH_FACTORS)),
         "optim.state_v", "leave it out", "optim.state_v has no effect: %s has no second moment", rule->name);
    REFUSE(w,
           rule->traits & WITH_MOMENTUM && c->optim.nesterov &&
               (c->optim.momentum <= 0 || c->optim.dampening > 0),
           "optim.nesterov", "as in torch.optim.SGD", "nesterov needs a momentum and no dampening");
    bool points = RULE_HAS(c->optim.name, WITH_POINTS);
    REFUSE(w, points && c->optim.schedule != OPTIM_SCHEDULE_CONSTANT, "optim.schedule",
           "set optim.schedule: constant, or optim.name: apadamw",
           "schedule_free averages in place of a schedule: after the warm-up its learning rate is constant");
    REFUSE(w, points && c->train.ema > 0, "train.ema", "leave one of the two out",
           "train.ema averages weights, which schedule_free does already");
    REFUSE(w, points && c->optim.beta1 <= 0, "optim.beta1", "0.9 is usual",
           "optim.beta1 is 0, expected above 0 for schedule_free");
    bool factored = RULE_HAS(c->optim.name, WITH_FACTORS);
    NOTE(w, factored && !c->optim.torch_form && c->optim.eps > 1e-10, "optim.eps",
         "1e-30 is usual, and the default", "adafactor adds optim.eps to squares of gradients");
    REFUSE(w, rule->traits & WITH_MOMENTUM && c->train.ema > 0 && c->optim.momentum == 0, "train.ema",
           "set optim.momentum, for example 0.9, or leave train.ema out",
           "train.ema needs a first moment, which apsgd has with optim.momentum alone");
    bool eight =
        c->optim.state_m == OPTIM_STATE_8BIT || (c->optim.state_m == OPTIM_STATE_AUTO && c->optim.use_meopt);
    REFUSE(w,
           points &&
               (c->optim.state_m == OPTIM_STATE_4BIT || (eight && c->optim.state_v == OPTIM_STATE_4BIT)),
           "optim.state_m", "set optim.state_m: bf16, or 8bit for both moments",
           "optim.state_m %s with optim.state_v %s is too coarse for schedule_free",
           optim_state_names[c->optim.state_m], optim_state_names[c->optim.state_v]);
    factored = factored || tables;
    REFUSE(w, factored && c->optim.warmup_init && !c->optim.relative_step, "optim.warmup_init",
           "set optim.relative_step: true, or leave it out", "optim.warmup_init needs optim.relative_step");
    REFUSE(w, factored && c->optim.scale_parameter && c->optim.eps2 == 0, "optim.eps2", "0.001 is usual",
           "optim.eps2 is 0 with optim.scale_parameter: a weight of zeros would never move");
    REFUSE(w, factored && c->train.ema > 0 && c->optim.beta1 == 0, "train.ema",
           "set optim.beta1, for example 0.9, or leave train.ema out",
           "train.ema needs a first moment, which adafactor has with optim.beta1 alone");
}

static void optimizer_rows(const struct combinations *w, const struct config *c)
{
    static const char *const of_offload[] = {"optim.offload_fraction", "optim.offload_dir"};
    for (size_t i = 0; i < sizeof of_offload / sizeof *of_offload; i++)
        NOTE(w, !c->optim.offload && config_changed(c, of_offload[i]), of_offload[i], "set optim.offload",
             "%s has no effect: optim.offload is none", of_offload[i]);
    REFUSE(w, c->optim.offload == OPTIM_OFFLOAD_HOST && c->device.type == DEVICE_TYPE_CPU, "optim.offload",
           "leave it out, or set optim.offload: nvme",
           "optim.offload host is for cards: on device.type cpu the states are in host memory already");
    bool low = c->optim.state_v == OPTIM_STATE_8BIT || c->optim.state_v == OPTIM_STATE_4BIT ||
               (c->optim.state_v == OPTIM_STATE_AUTO && c->optim.use_meopt);
    unsigned traits = optim_rules[c->optim.name].traits;
    REFUSE(w,
           low && traits & (WITH_V | WITH_MATRICES) && !(traits & WITH_POINTS) &&
               c->optim.beta1 * c->optim.beta1 >= c->optim.beta2,
           "optim.beta2", "raise optim.beta2, or set optim.state_v: bf16",
           "optim.beta2 is %g, but a second moment of 8 or 4 bits needs more than the square of optim.beta1, "
           "%g",
           c->optim.beta2, c->optim.beta1 * c->optim.beta1);
    bool by_precision = c->train.precision == TRAIN_PRECISION_FP32;
    REFUSE(w, c->optim.pure_bf16 && c->model_s.dtype == TOWER_DTYPE_FP32, "optim.pure_bf16",
           by_precision ? N_("set train.precision: bf16") : N_("set model_s.dtype: bf16"),
           "optim.pure_bf16 with %s fp32", by_precision ? "train.precision" : "model_s.dtype");
    REFUSE(w, c->optim.min_lr > c->optim.lr, "optim.min_lr", "min_lr is where the schedule ends",
           "optim.min_lr is above optim.lr");
    REFUSE(w, c->optim.warmup_steps >= 0 && c->optim.warmup_ratio > 0, "optim.warmup_ratio",
           "leave one of the two out", "optim.warmup_steps and optim.warmup_ratio both give the warm-up");
}

void config_combinations(const struct combinations *w)
{
    const struct config *c = w->config;
    bool teacher = c->train.objective == TRAIN_OBJECTIVE_DISTILL;
    evaluation_rows(w, c);
    objective_rows(w, c);
    preprocess_rows(w, "data", &c->data.images);
    if (!w->list) preprocess_rows(w, "data_s", &c->data_s.images);
    for (int i = 0; !w->list && i < config_teachers(c); i++) {
        if (i) gap_rows(w, c, config_tower_section(i), config_tower_section(config_teachers(c) - 1));
        preprocess_rows(w, config_tower_section(i), &c->model_t[i].images);
        tower_rows(w, c, &c->model_t[i], config_tower_section(i));
    }
    tower_rows(w, c, &c->model_s, teacher && !w->list ? "model_s" : "model");
    model_rows(w, c);
    data_rows(w, c);
    crop_rows(w, c);
    slice_rows(w, c);
    step_rows(w, c);
    optimizer_rows(w, c);
    rule_rows(w, c);
}
