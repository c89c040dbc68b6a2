/* Memory options: see memory_options.h. */
#include "core/train/memory_options.h"
#include "core/base/file.h"
#include "core/config/value.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AXES = 6, CHOICES = 6, WORDS = 2 };

/* An axis of the search: its choices, cheapest first, as key=value words. @N: the batch divided by N. */
static const struct axis {
    const char *choices[CHOICES][WORDS];
} axes[AXES] = {
    {{{"model_t.place=resident", "train.cache_teacher=false"},
      {"model_t.place=resident", "train.cache_teacher=true"},
      {"model_t.place=streamed", "train.cache_teacher=false"},
      {"model_t.place=streamed", "train.cache_teacher=true"}}},
    {{{"train.save_activations=minimal", "train.recompute=none"},
      {"train.save_activations=8bit", "train.recompute=none"},
      {"train.save_activations=minimal", "train.recompute=block"}}},
    {{{"model_s.place=resident"}, {"model_s.place=streamed"}}},
    {{{"optim.offload=none"}, {"optim.offload=host"}, {"optim.offload=nvme"}}},
    {{{"dist.shard=none"}, {"dist.shard=optimizer"}, {"dist.shard=parameters"}}},
    {{{"train.micro_batch=0"},
      {"train.micro_batch=@2"},
      {"train.micro_batch=@4"},
      {"train.micro_batch=@8"},
      {"train.micro_batch=@16"}}},
};

struct search {
    struct memory_options *options;
    const char *path;
    char *text;
    size_t bytes;
    char **overrides; /* the given ones, with space for those of a combination */
    int count;
    const struct comm_options *ranks;
    struct config now;
    int capacity;
};

struct memory_options_speed memory_options_assumed(const struct config *c)
{
    bool card = device_is_card(device_type_names[c->device.type]);
    return (struct memory_options_speed){card ? 50000 : 200, card ? 12 : 1, true, CARRY_ASSUMED, NULL};
}

static double step_seconds(const struct search *c, const struct config *config, const struct plan *p)
{
    const struct memory_options_speed *speed = &c->options->speed;
    double teacher = (double)p->batch * model_shape_forward_flops(&p->teacher), rate = speed->gflops * 1e9,
           carried = speed->carried_gb_per_s * 1e9, halvings = log2((double)p->batch / (double)p->micro);
    double student =
        (p->first_epoch_step_flops - teacher) / rate * (1 + 0.02 * halvings) + p->coding_flops / rate;
    double reading = (double)p->streamed_teacher_bytes / carried;
    int ranks = c->ranks ? c->ranks->size : 1;
    double moving = ((double)p->streamed_student_bytes + (double)p->offload_read_bytes +
                     (double)p->offload_written_bytes + plan_sent_bytes(p, ranks)) /
                    carried;
    teacher /= rate;
    double teachers = fmax(teacher, reading);
    if (config->train.cache_teacher) teachers /= config->train.steps > 0 ? 1 : (double)config->train.epochs;
    return teachers + fmax(student, moving) + 0.05 * (reading + moving);
}

/* Returns whether the experiment already has this key=value. */
static bool is_current(const struct config *now, const char *word)
{
    char *key = strndup(word, strcspn(word, "=")), *value = config_value_text(now, config_key_index(key));
    bool same = strcmp(value, strchr(word, '=') + 1) == 0;
    free(value);
    free(key);
    return same;
}

/* Returns whether an override gives the key a different value, which is not varied. */
static bool conflicts_with_override(const struct search *c, const char *word)
{
    char *key = strndup(word, strcspn(word, "="));
    bool other = c->now.origins[config_key_index(key)].from == ORIGIN_OVERRIDE && !is_current(&c->now, word);
    free(key);
    return other;
}

/* Appends the words of a choice to the overrides. Returns false if the choice does not apply here. */
static bool add_words(struct search *c, const struct axis *axis, int choice, int *n)
{
    for (int i = 0; i < WORDS && axis->choices[choice][i]; i++) {
        const char *word = axis->choices[choice][i], *part = strchr(word, '@');
        int64_t batch = c->now.train.batch_size, by = part ? atoi(part + 1) : 1;
        if (strncmp(word, "dist.", 5) == 0 && choice && (!c->ranks || c->ranks->size < 2)) return false;
        if (batch % by || by > batch) return false;
        c->overrides[(*n)++] =
            part ? xasprintf("%.*s%lld", (int)(part - word), word, (long long)(batch / by)) : xstrdup(word);
        if (conflicts_with_override(c, c->overrides[*n - 1])) return false;
    }
    return true;
}

static void try_combination(struct search *c, const int choice[AXES])
{
    struct config config;
    struct plan plan;
    struct error why;
    struct memory_option option = {.keys = ""};
    int n = c->count;
    bool exists = true;
    for (int a = 0; a < AXES && exists; a++) exists = add_words(c, &axes[a], choice[a], &n);
    int code =
        exists ? config_examine(&config, c->path, c->text, c->bytes, c->overrides, n, NULL, NULL, &why) : 1;
    if (!code) code = plan_make_distributed(&plan, &config, c->ranks, &why);
    if (!code) {
        option.peak_bytes = plan.use.peak_total_bytes;
        option.step_s = step_seconds(c, &config, &plan);
        for (int i = c->count; i < n; i++)
            if (!is_current(&c->now, c->overrides[i]))
                snprintf(option.keys + strlen(option.keys), sizeof option.keys - strlen(option.keys), "%s%s",
                         option.keys[0] ? " " : "", c->overrides[i]);
        struct memory_options *l = c->options;
        if (l->count == c->capacity)
            l->options =
                xrealloc(l->options, (size_t)(c->capacity = 2 * c->capacity + 64) * sizeof *l->options);
        l->options[l->count++] = option;
    }
    if (exists) config_free(&config);
    for (int i = c->count; i < n; i++) free(c->overrides[i]);
}

static void try_all_combinations(struct search *c)
{
    int choice[AXES];
    memset(choice, 0, sizeof choice);
    for (int a = 0; a < AXES;) {
        try_combination(c, choice);
        for (a = 0; a < AXES; a++) { /* count up like the digits of a number */
            if (choice[a] + 1 < CHOICES && axes[a].choices[choice[a] + 1][0]) {
                choice[a]++;
                break;
            }
            choice[a] = 0;
        }
    }
}

static int by_memory(const void *a, const void *b)
{
    const struct memory_option *x = a, *y = b;
    if (x->peak_bytes != y->peak_bytes) return x->peak_bytes < y->peak_bytes ? -1 : 1;
    if (x->step_s != y->step_s) return x->step_s < y->step_s ? -1 : 1;
    return (int)strlen(x->keys) - (int)strlen(y->keys);
}

/* Keeps the Pareto frontier of peak memory and step time, most memory first. */
static void keep_frontier(struct memory_options *l)
{
    int kept = 0;
    if (l->count) qsort(l->options, (size_t)l->count, sizeof *l->options, by_memory);
    for (int i = 0; i < l->count; i++)
        if (!kept || l->options[i].step_s < l->options[kept - 1].step_s * (1 - 1e-9))
            l->options[kept++] = l->options[i];
    l->count = kept;
    for (int i = 0; i < kept / 2; i++) {
        struct memory_option last = l->options[kept - 1 - i];
        l->options[kept - 1 - i] = l->options[i];
        l->options[i] = last;
    }
    l->chosen = -1;
    for (int i = 0; i < kept && l->chosen < 0; i++)
        if (!l->limit_bytes || l->options[i].peak_bytes <= l->limit_bytes) l->chosen = i;
}

int memory_options_find(struct memory_options *l, const char *path, char **overrides, int count,
                        const struct comm_options *ranks, size_t limit_bytes,
                        const struct memory_options_speed *speed, struct error *err)
{
    struct search c = {.options = l, .path = path, .count = count, .ranks = ranks};
    struct plan plan;
    *l = (struct memory_options){.limit_bytes = limit_bytes, .chosen = -1};
    int code = config_read_file(path, &c.text, &c.bytes, err);
    if (!code) {
        code = config_examine(&c.now, path, c.text, c.bytes, overrides, count, NULL, NULL, err);
        l->speed = speed ? *speed : memory_options_assumed(&c.now);
        if (!code)
            code = plan_make_distributed(&plan, &c.now, ranks, err); /* reports why no plan is possible */
        c.overrides = xcalloc((size_t)count + (size_t)AXES * WORDS, sizeof *c.overrides);
        for (int i = 0; i < count; i++) c.overrides[i] = overrides[i];
        if (!code)
            l->now = (struct memory_option){"", plan.use.peak_total_bytes, step_seconds(&c, &c.now, &plan)};
        if (!code) try_all_combinations(&c);
        if (!code) keep_frontier(l);
        config_free(&c.now);
    }
    free(c.overrides);
    free(c.text);
    return code;
}

const char *memory_options_note(const struct memory_option *option)
{
    bool bits8 = strstr(option->keys, "train.save_activations=8bit") != NULL;
    return bits8 ? " (8-bit activations change the numbers of the run)" : "";
}

bool memory_options_has_key(const char *key)
{
    size_t n = strlen(key);
    for (int a = 0; a < AXES; a++)
        for (int i = 0; i < WORDS && axes[a].choices[0][i]; i++)
            if (strncmp(axes[a].choices[0][i], key, n) == 0 && axes[a].choices[0][i][n] == '=') return true;
    return false;
}

void memory_options_free(struct memory_options *l)
{
    free(l->options);
    *l = (struct memory_options){0};
}
