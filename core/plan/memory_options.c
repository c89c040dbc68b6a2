/* Memory options: see memory_options.h. */
#include "core/plan/memory_options.h"
#include "core/model/model_files.h"
#include "core/experiment/objective.h"
#include "core/base/memory.h"
#include "core/config/value.h"
#include "core/experiment/experiment.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The table ---- */

/* A baseline has no streaming and no offloading. */
#define HELD       "model_t.place=resident model_s.place=resident optim.offload=none "
#define MEOPT      "optim.use_meopt=true optim.pure_bf16=false "
#define CACHED     "train.cache_teacher=true"
#define OF_TEACHER .teacher = true
#define RECOMPUTED "train.recompute=block train.save_activations=minimal"
#define STREAMED_T "model_t.place=streamed"
#define STREAMED_S "model_s.place=streamed"
#define FIXED_CROPS                                                                                          \
    .with = "data.augment=false data.flip=auto data.randaugment=0 data.erasing=0 "                           \
            "data.crops=1 data.local_crops=0"
#define ANY_CLIPPING .with = "optim.clip_mode=auto"

#define LOGITS(size)                                                                                         \
    AXIS_LOGITS, .keys = "loss.chunk=" size, .language = true,                                               \
                 .note = " (other parts of the logits: rounded differently)"

/* In the order of --what-if; an axis begins with the setting that is not an option. */
const struct memory_setting memory_settings[] = {
    {N_("baseline (AMP + AdamW)"), .keys = HELD "optim.use_meopt=false optim.pure_bf16=false"},
    {"pure_bf16", .keys = HELD "optim.use_meopt=false optim.pure_bf16=true"},
    {"quality", .keys = MEOPT "optim.preset=quality"},
    {"balanced", .keys = MEOPT "optim.preset=balanced"},
    {"minimal", .keys = MEOPT "optim.preset=minimal"},
    {"+ gradients: keep", .keys = "model_s.place=resident optim.gradients=keep"},
    {.axis = AXIS_CACHE, .keys = "train.cache_teacher=false"},
    {N_("+ cached teacher"), AXIS_CACHE, .keys = CACHED, FIXED_CROPS, OF_TEACHER},
    {.axis = AXIS_TEACHER, .keys = "model_t.place=resident"},
    {N_("+ streamed teacher"), AXIS_TEACHER, .keys = STREAMED_T, OF_TEACHER},
    {.axis = AXIS_STUDENT, .keys = "model_s.place=resident"},
    {N_("+ streamed student"), AXIS_STUDENT, .keys = STREAMED_S},
    {N_("+ streamed weights of both"), .keys = STREAMED_T " " STREAMED_S, .combined = true, OF_TEACHER},
    {.axis = AXIS_MICRO, .keys = "train.micro_batch=0"},
    {N_("+ half micro-batch"), AXIS_MICRO, .keys = "train.micro_batch=@2", ANY_CLIPPING},
    {N_("+ quarter micro-batch"), AXIS_MICRO, .keys = "train.micro_batch=@4", ANY_CLIPPING},
    {.axis = AXIS_MICRO, .keys = "train.micro_batch=@8"},
    {.axis = AXIS_MICRO, .keys = "train.micro_batch=@16"},
    {.axis = AXIS_ROUNDS, .keys = "train.rounds=auto train.wave=0"},
    {"+ rounds: breadth", AXIS_ROUNDS, .keys = "train.rounds=breadth train.wave=0"},
    {N_("+ breadth in waves of 2"), AXIS_ROUNDS, .keys = "train.rounds=breadth train.wave=2"},
    {.axis = AXIS_ROUNDS, .keys = "train.rounds=breadth train.wave=4"},
    {.axis = AXIS_ROUNDS, .keys = "train.rounds=breadth train.wave=8"},
    {N_("+ quarter micro-batch, breadth"), .keys = "train.micro_batch=@4 train.rounds=breadth train.wave=0",
     ANY_CLIPPING, .combined = true},
    {.axis = AXIS_ACTIVATIONS, .keys = "train.save_activations=minimal train.recompute=none"},
    {"+ activations: 8bit", AXIS_ACTIVATIONS, .keys = "train.save_activations=8bit train.recompute=none",
     .note = " (8-bit activations change the numbers of the run)"},
    {"+ recompute: block", AXIS_ACTIVATIONS, .keys = RECOMPUTED},
    {NULL, LOGITS("128M")},
    {NULL, LOGITS("1G")},
    {N_("+ logits of 32 MiB"), LOGITS("32M")},
    {.axis = AXIS_OFFLOAD, .keys = "optim.offload=none"},
    {"+ offload: host", AXIS_OFFLOAD, .keys = "optim.offload=host"},
    {"+ offload: nvme", AXIS_OFFLOAD, .keys = "optim.offload=nvme"},
    {.axis = AXIS_SHARD, .keys = "dist.shard=none"},
    {"+ shard: optimizer", AXIS_SHARD, .keys = "dist.shard=optimizer", .several_ranks = true},
    {"+ shard: gradients", .keys = "dist.shard=gradients", .several_ranks = true}, /* its alias */
    {"+ shard: parameters", AXIS_SHARD, .keys = "dist.shard=parameters", .several_ranks = true},
    {N_("+ cached, recompute"), .keys = RECOMPUTED " " CACHED, FIXED_CROPS, .combined = true, OF_TEACHER},
    {N_("+ adapters (LoRA)"), .keys = "lora.rank=16", .adapters = true, .combined = true},
};
const int memory_setting_count = sizeof memory_settings / sizeof *memory_settings;

/* Returns the next of the words, malloc'ed, and moves to its end; NULL after the last. */
static char *next_word(const char **words)
{
    *words += strspn(*words, " ");
    size_t n = strcspn(*words, " ");
    char *word = n ? strndup(*words, n) : NULL;
    *words += n;
    return word;
}

bool memory_options_has_key(const char *key)
{
    size_t n = strlen(key);
    for (int i = 0; i < memory_setting_count; i++) {
        const char *found = memory_settings[i].axis ? strstr(memory_settings[i].keys, key) : NULL;
        if (found && found[n] == '=') return true;
    }
    return false;
}

const char *memory_option_note(const struct memory_option *option)
{
    for (int i = 0; i < memory_setting_count; i++) {
        const char *keys = memory_settings[i].note ? memory_settings[i].keys : " ";
        char first[64];
        snprintf(first, sizeof first, "%.*s", (int)strcspn(keys, " "), keys);
        if (first[0] && strstr(option->keys, first)) return memory_settings[i].note;
    }
    return "";
}

/* ---- The planner ---- */

static void append_override(char ***all, int *count, char *word)
{
    *all = xrealloc(*all, (size_t)(*count + 1) * sizeof **all);
    (*all)[(*count)++] = word;
}

void memory_option_append(const struct memory_option *option, char ***overrides, int *count)
{
    const char *words = option->keys;
    for (char *word; (word = next_word(&words)) != NULL;) append_override(overrides, count, word);
}

static int load(struct config *config, const struct memory_planner *p, char **overrides, int count,
                struct error *err)
{
    int code = config_examine(config, p->path, p->text, p->bytes, overrides, count, NULL, NULL, err);
    if (code) config_free(config);
    else config->model_files = p->model_files;
    return code;
}

int memory_planner_load(struct memory_planner *p, const char *path, char *const *overrides, int count,
                        struct error *err)
{
    *p = (struct memory_planner){.path = path, .model_files = model_files_create()};
    int code = config_read_file(path, &p->text, &p->bytes, err);
    for (int i = 0; i < count; i++) append_override(&p->overrides, &p->count, xstrdup(overrides[i]));
    if (!code) code = load(&p->config, p, p->overrides, p->count, err);
    bool unknown = !code && !p->config.model_s.classes;
    if (!code) code = experiment_set_classes(&p->config, err);
    if (code) {
        memory_planner_close(p);
        return code;
    }
    if (unknown && p->config.model_s.classes) /* the other plans need not list the images again */
        append_override(&p->overrides, &p->count,
                        xasprintf("model_s.classes=%lld", (long long)p->config.model_s.classes));
    bool card = device_is_card(device_type_names[p->config.device.type]);
    p->speed = (struct memory_options_speed){card ? 50000 : 200, card ? 12 : 1, true, CARRY_ASSUMED, NULL};
    return 0;
}

int memory_planner_plan(struct memory_planner *p, const struct comm_options *ranks, struct error *err)
{
    p->ranks = ranks;
    return plan_make_distributed(&p->plan, &p->config, ranks, err);
}

int memory_planner_open(struct memory_planner *p, const char *path, char *const *overrides, int count,
                        const struct comm_options *ranks, struct error *err)
{
    int code = memory_planner_load(p, path, overrides, count, err);
    if (!code && (code = memory_planner_plan(p, ranks, err)) != 0) memory_planner_close(p);
    return code;
}

int memory_planner_apply(struct memory_planner *p, const struct memory_option *option, struct error *err)
{
    memory_option_append(option, &p->overrides, &p->count);
    config_free(&p->config);
    int code = load(&p->config, p, p->overrides, p->count, err);
    return code ? code : memory_planner_plan(p, p->ranks, err);
}

void memory_planner_close(struct memory_planner *p)
{
    for (int i = 0; i < p->count; i++) free(p->overrides[i]);
    free(p->overrides);
    free(p->text);
    config_free(&p->config);
    model_files_free(p->model_files);
    *p = (struct memory_planner){0};
}

/* ---- One option ---- */

static int rank_count(const struct memory_planner *p) { return p->ranks ? p->ranks->size : 1; }

static double step_seconds(const struct memory_planner *c, const struct config *config, const struct plan *p)
{
    double teacher = (double)p->batch * plan_teacher_flops(p), rate = c->speed.gflops * 1e9,
           carried = c->speed.carried_gb_per_s * 1e9, halvings = log2((double)p->batch / (double)p->micro);
    double student = (p->first_epoch_step_flops - teacher) / rate * (1 + 0.02 * halvings) +
                     (p->coding_flops + p->update_flops) / rate;
    double reading = (double)p->streamed_teacher_bytes / carried;
    double moving = ((double)p->streamed_student_bytes + (double)p->offload_read_bytes +
                     (double)p->offload_written_bytes + plan_sent_bytes(p, rank_count(c))) /
                    carried;
    teacher /= rate;
    double teachers = fmax(teacher, reading);
    if (config->train.cache_teacher) teachers /= config->train.steps > 0 ? 1 : (double)config->train.epochs;
    return teachers + fmax(student, moving) + 0.05 * (reading + moving);
}

/* Replaces key=@N by the batch divided by N, and frees the word. Returns NULL if N does not divide the
 * batch. */
static char *expand(const struct memory_planner *p, char *word)
{
    const char *part = strchr(word, '@');
    if (!part) return word;
    long long batch = p->config.train.batch_size, by = atoll(part + 1);
    char *full = batch % by ? NULL : xasprintf("%.*s%lld", (int)(part - word), word, batch / by);
    free(word);
    return full;
}

/* Returns whether the experiment already has this key=value. *given: an override sets the key. */
static bool is_current(const struct memory_planner *p, const char *word, bool *given)
{
    char *key = strndup(word, strcspn(word, "=")), wanted[32], ignored[256];
    int index = config_key_index(key);
    char *value = config_value_text(&p->config, index);
    struct value read;
    snprintf(wanted, sizeof wanted, "%s", strchr(word, '=') + 1);
    if (config_keys[index].type == CONFIG_BYTES && value_read(index, wanted, strlen(wanted), false, &read,
                                                              ignored, ignored, sizeof ignored) == VALUE_GOOD)
        snprintf(wanted, sizeof wanted, "%lld", (long long)read.integer);
    bool same = strcmp(value, wanted) == 0;
    *given = p->config.origins[index].from == ORIGIN_OVERRIDE;
    free(value);
    free(key);
    return same;
}

/* Returns whether a wave has all micro-batches of a rank, as without train.wave. */
static bool wave_has_all(const struct memory_planner *p, const struct config *c)
{
    int64_t replicas = config_replicas(c, rank_count(p)),
            images = c->train.global_batch > 0 ? (c->train.global_batch + replicas - 1) / replicas
                                               : c->train.batch_size,
            micro = c->train.micro_batch > 0 ? c->train.micro_batch : c->train.batch_size;
    return c->train.wave * micro >= images;
}

void memory_option_plan(struct memory_option *o, const struct memory_planner *p, const char *keys,
                        plan_inspect *inspect, void *context)
{
    struct config config;
    struct plan plan;
    struct error why = {0};
    char **all = NULL, *word;
    int count = 0, code = 0;
    bool given;
    *o = (struct memory_option){0};
    for (int i = 0; i < p->count; i++) append_override(&all, &count, xstrdup(p->overrides[i]));
    while (!code && (word = next_word(&keys)) != NULL) {
        if ((word = expand(p, word)) == NULL) {
            code = error_set(&why, EXIT_CONFIG, NULL, "%lld images cannot be divided into such micro-batches",
                             (long long)p->config.train.batch_size);
            break;
        }
        append_override(&all, &count, word);
        size_t n = strlen(o->keys);
        if (!is_current(p, word, &given))
            snprintf(o->keys + n, sizeof o->keys - n, "%s%s", n ? " " : "", word);
    }
    if (!code && (code = load(&config, p, all, count, &why)) == 0) {
        if (strstr(o->keys, "train.wave=") && config.train.wave && wave_has_all(p, &config))
            code = error_set(&why, EXIT_CONFIG, NULL, "a wave of %lld has all micro-batches",
                             (long long)config.train.wave);
        else code = plan_make_inspect(&plan, &config, p->ranks, inspect, context, &why);
        o->possible = !code;
        if (!code) {
            o->peak_bytes = plan.use.peak_total_bytes;
            o->step_s = step_seconds(p, &config, &plan);
            o->compute = (plan.step_flops + plan.coding_flops + plan.update_flops) /
                         (p->plan.step_flops + p->plan.coding_flops + p->plan.update_flops);
            o->sent = plan_sent_bytes(&plan, rank_count(p));
        }
        config_free(&config);
    }
    snprintf(o->why, sizeof o->why, "%.*s", (int)strcspn(why.what, "\n"), why.what);
    for (int i = 0; i < count; i++) free(all[i]);
    free(all);
}

/* Returns whether the experiment has the ranks, objective and checkpoint that the setting requires. */
static bool applies(const struct memory_planner *p, const struct memory_setting *s)
{
    const struct objective *objective = objective_of(&p->config);
    return (!s->several_ranks || rank_count(p) > 1) && (!s->language || objective->tokens) &&
           (!s->teacher || objective->teacher) &&
           (!s->adapters || (p->config.model_s.weight[0] && !config_trains_adapters(&p->config)));
}

bool memory_option_plan_setting(struct memory_option *o, const struct memory_planner *p,
                                const struct memory_setting *setting, plan_inspect *inspect, void *context)
{
    char text[512];
    if (!setting->name || !applies(p, setting)) return false;
    snprintf(text, sizeof text, "%s %s", setting->keys, setting->with ? setting->with : "");
    memory_option_plan(o, p, text, inspect, context);
    o->name = setting->name;
    return true;
}

/* ---- The search ---- */

/* Returns whether a setting is among those to combine: it is possible here, and overrides give its keys no
 * other values. */
static bool is_searched(const struct memory_planner *p, const struct memory_setting *s)
{
    const char *words = s->keys;
    bool searched = s->axis && applies(p, s), given;
    for (char *word; searched && (word = next_word(&words)) != NULL; free(word)) {
        word = expand(p, word);
        searched = word && (is_current(p, word, &given) || !given);
    }
    return searched;
}

/* Most memory first, then slowest first. */
static int by_memory(const void *a, const void *b)
{
    const struct memory_option *x = a, *y = b;
    if (x->peak_bytes != y->peak_bytes) return x->peak_bytes > y->peak_bytes ? -1 : 1;
    if (x->step_s != y->step_s) return x->step_s > y->step_s ? -1 : 1;
    int longer = (int)strlen(y->keys) - (int)strlen(x->keys);
    return longer ? longer : y->order - x->order;
}

/* Keeps the Pareto frontier of peak memory and step time, and chooses the fastest that fits. */
static void keep_frontier(struct memory_options *l)
{
    struct memory_option *o = l->options;
    int first = l->count;
    qsort(o, (size_t)l->count, sizeof *o, by_memory);
    for (int i = l->count - 1; i >= 0; i--)
        if (first == l->count || o[i].step_s < o[first].step_s * (1 - 1e-9)) o[--first] = o[i];
    l->count -= first;
    memmove(o, o + first, (size_t)l->count * sizeof *o);
    for (int i = l->count - 1; i >= 0; i--)
        if (!l->limit_bytes || o[i].peak_bytes <= l->limit_bytes) l->chosen = i;
}

void memory_options_find(struct memory_options *l, const struct memory_planner *p, size_t limit_bytes)
{
    enum { MOST = 8 };
    const char *keys[MEMORY_AXES][MOST];
    int count[MEMORY_AXES] = {0}, choice[MEMORY_AXES] = {0}, capacity = 1;
    *l = (struct memory_options){.limit_bytes = limit_bytes, .chosen = -1, .speed = p->speed};
    memory_option_plan(&l->now, p, "", NULL, NULL);
    for (const struct memory_setting *s = memory_settings; s < memory_settings + memory_setting_count; s++)
        if (is_searched(p, s) && count[s->axis] < MOST) keys[s->axis][count[s->axis]++] = s->keys;
    for (int a = 0; a < MEMORY_AXES; a++) capacity *= count[a] ? count[a] : 1;
    l->options = xcalloc((size_t)capacity, sizeof *l->options);
    for (int combination = 0; combination < capacity; combination++) {
        char text[512] = "";
        for (int a = 0; a < MEMORY_AXES; a++) {
            size_t n = strlen(text);
            if (count[a]) snprintf(text + n, sizeof text - n, " %s", keys[a][choice[a]]);
        }
        memory_option_plan(&l->options[l->count], p, text, NULL, NULL);
        l->options[l->count].order = combination;
        l->count += l->options[l->count].possible;
        for (int a = 0; a < MEMORY_AXES && ++choice[a] >= count[a]; a++) choice[a] = 0; /* count up */
    }
    keep_frontier(l);
}

void memory_options_free(struct memory_options *l)
{
    free(l->options);
    *l = (struct memory_options){0};
}
