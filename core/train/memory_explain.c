/* Explains the memory of an experiment: see memory_explain.h. All figures are those of the plan (plan.h). */
#include "core/train/memory_explain.h"
#include "core/base/file.h"
#include "core/config/value.h"
#include "core/device/account.h"
#include "core/nn/tower_memory.h"
#include "core/train/trainer.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- rows ---- */

struct rows {
    struct explain_row *all;
    int count, capacity;
};

/* "blocks.12.attn.proj.weight" -> "blocks.*.attn.proj.weight" */
static void without_block(char *dst, size_t size, const char *name)
{
    size_t n = 0;
    for (const char *p = name; *p && n + 2 < size;) {
        bool number = isdigit((unsigned char)*p) && p > name && p[-1] == '.';
        size_t digits = number ? strspn(p, "0123456789") : 0;
        if (digits && p[digits] == '.') {
            dst[n++] = '*';
            p += digits;
        } else {
            dst[n++] = *p++;
        }
    }
    dst[n] = 0;
}

static void add_row(void *context, enum memory_class class, const char *name, size_t bytes)
{
    struct rows *rows = context;
    char plain[EXPLAIN_NAME];
    if (!bytes) return;
    without_block(plain, sizeof plain, name);
    for (int i = 0; i < rows->count; i++) {
        struct explain_row *r = &rows->all[i];
        if (r->class != class || strcmp(r->name, plain) != 0) continue;
        r->bytes += (double)bytes;
        r->count++;
        return;
    }
    if (rows->count == rows->capacity)
        rows->all = xrealloc(rows->all, (size_t)(rows->capacity = rows->capacity ? 2 * rows->capacity : 64) *
                                            sizeof *rows->all);
    struct explain_row *r = &rows->all[rows->count++];
    *r = (struct explain_row){.class = class, .count = 1, .bytes = (double)bytes, .remedy = -1};
    snprintf(r->name, sizeof r->name, "%s", plain);
}

static void add_allocation(void *context, enum memory_class class, const char *name, size_t bytes)
{
    if (!tower_explains(name) && strcmp(name, "optimizer") != 0) add_row(context, class, name, bytes);
}

static void collect_rows(void *context, const struct trainer *t)
{
    tower_tensor callback = add_row;
    if (t->teacher) tower_explain(t->teacher, callback, context);
    tower_explain(t->student, callback, context);
    for (int i = 0; i < t->tensor_count; i++) {
        struct meopt_tensor_info info;
        char name[EXPLAIN_NAME + 32];
        if (meopt_info(t->opt, (size_t)i, &info)) continue;
        snprintf(name, sizeof name, "residual bits of %s", info.name);
        bool here = !meopt_tensor_offloaded(t->opt, (size_t)i);
        if (here) add_row(context, MEMORY_WEIGHTS, name, info.bytes.correction);
        snprintf(name, sizeof name, "fp32 copy of %s", info.name);
        size_t own = info.bytes.weights + info.bytes.copy, callers = info.bytes.callers;
        add_row(context, MEMORY_WEIGHTS, name, own > callers ? own - callers : 0);
        snprintf(name, sizeof name, "moments of %s", info.name);
        if (here) add_row(context, MEMORY_OPTIMIZER, name, info.bytes.moments);
        snprintf(name, sizeof name, "accumulator of %s", info.name);
        add_row(context, MEMORY_GRADIENTS, name, info.bytes.accumulators);
    }
    device_each(t->device, add_allocation, context);
}

/* Adds rows for bytes without a tensor: padding, headers of the optimizer's blocks. */
static void add_rest(struct rows *rows, const struct memory_use *use)
{
    for (int c = 0; c < MEMORY_CLASS_COUNT; c++) {
        double explained = 0;
        for (int i = 0; i < rows->count; i++)
            if (rows->all[i].class == (enum memory_class)c) explained += rows->all[i].bytes;
        if ((double)use->peak_bytes[c] > explained)
            add_row(rows, (enum memory_class)c, "padding and the rest",
                    use->peak_bytes[c] - (size_t)explained);
    }
}

static int by_size(const void *a, const void *b)
{
    const struct explain_row *x = a, *y = b;
    if (x->class != y->class) return x->class < y->class ? -1 : 1;
    return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

/* ---- settings ---- */

/* A baseline has no streaming and no offloading. */
#define HELD "model_t.place=resident", "model_s.place=resident", "optim.offload=none"
static const struct {
    const char *name;
    const char *overrides[REMEDY_KEYS]; /* @N: the batch divided by N */
} settings[REMEDIES] = {
    {"baseline (AMP + AdamW)", {HELD, "optim.use_meopt=false", "optim.pure_bf16=false"}},
    {"pure_bf16", {HELD, "optim.use_meopt=false", "optim.pure_bf16=true"}},
    {"quality", {"optim.use_meopt=true", "optim.pure_bf16=false", "optim.preset=quality"}},
    {"balanced", {"optim.use_meopt=true", "optim.pure_bf16=false", "optim.preset=balanced"}},
    {"minimal", {"optim.use_meopt=true", "optim.pure_bf16=false", "optim.preset=minimal"}},
    {"+ gradients: keep", {"model_s.place=resident", "optim.gradients=keep"}},
    {"+ cached teacher", {"train.cache_teacher=true", "data.augment=false", "data.flip=auto"}},
    {"+ streamed teacher", {"model_t.place=streamed"}},
    {"+ streamed weights of both", {"model_t.place=streamed", "model_s.place=streamed"}},
    {"+ half micro-batch", {"train.micro_batch=@2", "optim.clip_mode=auto"}},
    {"+ quarter micro-batch", {"train.micro_batch=@4", "optim.clip_mode=auto"}},
    {"+ activations: 8bit", {"train.save_activations=8bit", "train.recompute=none"}},
    {"+ recompute: block", {"train.recompute=block", "train.save_activations=minimal"}},
    {"+ offload: host", {"optim.offload=host"}},
    {"+ offload: nvme", {"optim.offload=nvme"}},
    {"+ shard: optimizer", {"dist.shard=optimizer"}},
    {"+ shard: gradients", {"dist.shard=gradients"}},
    {"+ shard: parameters", {"dist.shard=parameters"}},
    {"+ cached, recompute",
     {"train.recompute=block", "train.save_activations=minimal", "train.cache_teacher=true",
      "data.augment=false", "data.flip=auto"}},
};
enum { SHARDS = 3, SHARDS_FROM = REMEDIES - 1 - SHARDS }; /* those before the last require several ranks */

/* Plans the file with the overrides; values "auto" are resolved again. */
static int plan_file(struct plan *plan, struct rows *rows, const char *path, char **overrides, int count,
                     const struct comm_options *ranks, struct config *config, struct error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    *config = (struct config){0};
    int code = config_read_file(path, &text, &bytes, err);
    if (!code) code = config_examine(config, path, text, bytes, overrides, count, NULL, NULL, err);
    free(text);
    if (code) {
        config_free(config);
        return code;
    }
    code = plan_make_inspect(plan, config, ranks, collect_rows, rows, err);
    if (!code) add_rest(rows, &plan->use);
    if (!code) qsort(rows->all, (size_t)rows->count, sizeof *rows->all, by_size);
    return code;
}

/* Returns whether the experiment already has this key=value. */
static bool is_current(const struct config *now, const char *text)
{
    size_t n = strcspn(text, "=");
    char *key = strndup(text, n), *value = config_value_text(now, config_key_index(key));
    bool same = strcmp(value, text + n + 1) == 0;
    free(value);
    free(key);
    return same;
}

static void try_setting(struct explanation *e, int which, const char *path, char **overrides, int count,
                        const struct comm_options *ranks, const struct config *now)
{
    struct remedy *r = &e->remedies[which];
    char **all, micro[48];
    struct rows rows = {0};
    struct plan plan;
    struct config config;
    struct error why = {0};
    int n = count, size = ranks ? ranks->size : 1;
    if (which >= SHARDS_FROM && which < SHARDS_FROM + SHARDS && size < 2) return;
    all = xcalloc((size_t)count + REMEDY_KEYS, sizeof *all);
    r->name = settings[which].name;
    memcpy(all, overrides, (size_t)count * sizeof *all);
    for (int i = 0; i < REMEDY_KEYS && settings[which].overrides[i]; i++) {
        const char *text = settings[which].overrides[i], *part = strchr(text, '@');
        if (part) {
            int64_t images = now->train.batch_size / (part[1] - '0');
            snprintf(micro, sizeof micro, "%.*s%lld", (int)(part - text), text,
                     (long long)(images > 0 ? images : 1));
            text = micro;
        }
        all[n] = xstrdup(text);
        if (!is_current(now, all[n++]))
            snprintf(r->keys + strlen(r->keys), sizeof r->keys - strlen(r->keys), "%s%s",
                     r->keys[0] ? " " : "", text);
    }
    r->possible = plan_file(&plan, &rows, path, all, n, ranks, &config, &why) == 0;
    snprintf(r->why, sizeof r->why, "%.*s", (int)strcspn(why.what, "\n"), why.what);
    r->rows = rows.all;
    r->row_count = rows.count;
    if (r->possible) {
        r->use = plan.use;
        r->cost = (plan.step_flops + plan.coding_flops) / (e->plan.step_flops + e->plan.coding_flops);
        r->sent = plan_sent_bytes(&plan, size);
        config_free(&config);
    }
    for (int i = count; i < n; i++) free(all[i]);
    free(all);
}

/* Chooses the cheapest setting that saves a tenth of the row or more; of equally cheap ones the one that
 * saves most. A setting that increases the total is not a remedy. */
static void choose_remedy(const struct explanation *e, struct explain_row *row)
{
    for (int i = 0; i < REMEDIES; i++) {
        const struct remedy *r = &e->remedies[i];
        double bytes = 0, best = row->remedy >= 0 ? e->remedies[row->remedy].cost : 0;
        if (!r->possible || !r->keys[0] || i == REMEDIES - 1 /* two changes at once */ ||
            r->use.peak_total_bytes >= e->plan.use.peak_total_bytes)
            continue;
        for (int k = 0; k < r->row_count; k++)
            if (r->rows[k].class == row->class && strcmp(r->rows[k].name, row->name) == 0)
                bytes = r->rows[k].bytes;
        double saved = row->bytes - bytes;
        if (saved < row->bytes / 10) continue;
        if (row->remedy >= 0 && (r->cost > best + 1e-3 || (r->cost > best - 1e-3 && saved <= row->saved)))
            continue;
        row->remedy = i;
        row->saved = saved;
    }
}

int explain(struct explanation *e, const char *path, char **overrides, int count,
            const struct comm_options *ranks, size_t limit, struct error *err)
{
    struct rows rows = {0};
    struct config config;
    int best = -1;
    *e = (struct explanation){0};
    int code = plan_file(&e->plan, &rows, path, overrides, count, ranks, &config, err);
    e->rows = rows.all;
    e->row_count = rows.count;
    if (code) {
        explanation_free(e);
        return code;
    }
    for (int i = 0; i < REMEDIES; i++) {
        struct remedy *r = &e->remedies[i];
        try_setting(e, i, path, overrides, count, ranks, &config);
        r->fits = r->possible && limit && r->use.peak_total_bytes <= limit;
        if (r->fits && (best < 0 || r->cost < e->remedies[best].cost - 1e-9)) best = i;
    }
    if (best >= 0) e->remedies[best].cheapest = true;
    for (int i = 0; i < e->row_count; i++) choose_remedy(e, &e->rows[i]);
    config_free(&config);
    return 0;
}

void explanation_free(struct explanation *e)
{
    free(e->rows);
    for (int i = 0; i < REMEDIES; i++) free(e->remedies[i].rows);
    *e = (struct explanation){0};
}
