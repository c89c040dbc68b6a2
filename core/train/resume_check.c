/* Checks of a resumed run: see resume_check.h. */
#include "core/train/resume_check.h"
#include "core/base/crc32c.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/data/labels.h"
#include "core/run/change.h"
#include "core/experiment/class_order.h"
#include "core/experiment/experiment.h"
#include "core/train/loop.h"
#include "core/train/meta.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { META_BYTES = 1 << 24, NAMED = 4 /* images that a message names */ };
#define LIST_BYTES ((size_t)1 << 32)

/* Keys that affect the numbers of a run and may nevertheless change on resume; all other such keys may
 * not. The batch size may not, because the global batch would change; its split (train.micro_batch) may.
 * Cards, threads and paths do not affect the numbers (schema.c). */
static const char image_size[] = N_("images have another size from here on");
static const struct {
    const char *key, *word; /* the effect; NULL: the numbers do not change */
} may_change[] = {
    {"train.epochs", N_("the schedule of the learning rate ends elsewhere")},
    {"train.steps", N_("the schedule of the learning rate ends elsewhere")},
    {"optim.lr", N_("the learning rate differs from here on")},
    {"optim.min_lr", N_("the learning rate differs from here on")},
    {"train.micro_batch", N_("the batch is the same, but summed in a different order")},
    {"train.recompute", NULL},
    {"train.rounds", NULL},
    {"train.wave", NULL},
    {"dist.reduce", N_("sums over ranks are rounded differently from here on")},
    {"train.save_activations",
     N_("gradients are computed from activations in a different format from here on")},
    {"train.cache_teacher", NULL},
    {"data.image_size", image_size},
    {"data_s.image_size", image_size},
    {"model_t.image_size", image_size},
    {"model_t2.image_size", image_size},
    {"model_t3.image_size", image_size},
    {"model_t4.image_size", image_size},
    {"data.max_bad", NULL},
    {"data.root", NULL},   /* images are compared by name and size */
    {"data.labels", NULL}, /* classes are compared */
    {"data.val", NULL},
    {"model_s.weight",
     NULL}, /* the checkpoint has the student's weights; with adapters, values are compared */
    {"lora.adapter", NULL},
};
enum { MAY_CHANGE = sizeof may_change / sizeof *may_change };

json_t *resume_check_config(const struct config *config)
{
    json_t *values = json_object();
    for (int i = 0; i < config_key_count; i++) {
        if (strncmp(config_keys[i].name, "run.", 4) == 0 || !config_key_used(config, i))
            continue; /* where the run is stored */
        char *text = config_value_text(config, i);
        if (values && json_object_set_new(values, config_keys[i].name, json_string(text))) {
            json_decref(values);
            values = NULL;
        }
        free(text);
    }
    return values;
}

static bool is_forced(const char *force, const char *key)
{
    size_t n = strlen(key);
    for (const char *p = force; p && *p; p += strcspn(p, ",") + (p[strcspn(p, ",")] == ','))
        if (strcspn(p, ",") == n && memcmp(p, key, n) == 0) return true;
    return false;
}

/* Returns the key's row of may_change; -1: none. */
static int may_row(const char *key)
{
    for (int i = 0; i < MAY_CHANGE; i++)
        if (strcmp(may_change[i].key, key) == 0) return i;
    return -1;
}

bool resume_check_may_change(const char *key, const char *force)
{
    return !config_keys[config_key_index(key)].numbers || may_row(key) >= 0 || is_forced(force, key);
}

/* Appends to a list of findings. Frees `piece`. */
static void add_text(char **text, const char *separator, char *piece)
{
    char *longer = *text ? xasprintf("%s%s%s", *text, separator, piece) : xstrdup(piece);
    free(*text);
    free(piece);
    *text = longer;
}

/* ---- the configuration ---- */

static int compare_config(const json_t *before, const struct config *config, const char *force, bool report,
                          json_t **changed, struct error *err)
{
    json_t *now = resume_check_config(config), *value;
    const char *key, *first = NULL;
    char *wrong = NULL;
    if (!now) return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory comparing with the run");
    json_object_foreach(now, key, value)
    {
        const json_t *old = json_object_get(before, key);
        const char *is = json_string_value(value), *word = NULL, *was = json_string_value(old);
        bool may = resume_check_may_change(key, force), numbers = config_keys[config_key_index(key)].numbers;
        if (!old && numbers && config->origins[config_key_index(key)].from != ORIGIN_DEFAULT)
            was = _("unknown to the version that began the run");
        if (!was || !is || strcmp(was, is) == 0) continue;
        if (may_row(key) >= 0) word = may_change[may_row(key)].word;
        else if (is_forced(force, key)) word = _("accepted by --force-resume");
        if (!may) {
            if (!first) first = key;
            add_text(&wrong, "; ", xasprintf(_("%s was %s and is now %s"), key, was, is));
            continue;
        }
        if (!*changed) *changed = json_object();
        json_object_set_new(*changed, key, json_pack("[s, s]", was, is));
        if (!report) continue;
        if (word) log_warn("%s was %s and is now %s: %s", key, was, is, word);
        else log_info("%s was %s and is now %s", key, was, is);
    }
    int code = 0;
    if (wrong) {
        char hint[320];
        snprintf(hint, sizeof hint,
                 _("restore the value in config.yaml, or accept it with: --force-resume %s"), first);
        code = error_set(err, EXIT_CONFIG, hint, "configuration differs from the run's original: %s", wrong);
    }
    free(wrong);
    json_decref(now);
    return code;
}

/* ---- the images ---- */

/* Parses data.list in place: names point into `text`. */
static bool parse_list(struct image_list *list, char *text, size_t bytes)
{
    *list = (struct image_list){0};
    for (size_t at = 0; at < bytes;) {
        char *end = memchr(text + at, 0, bytes - at);
        if (!end || bytes - (size_t)(end - text) < 9) return false;
        if (list->count % 1024 == 0)
            list->names = xrealloc(list->names, (size_t)(list->count + 1024) * sizeof *list->names);
        list->names[list->count++] = text + at;
        at = (size_t)(end - text) + 9;
    }
    return true;
}

struct finding {
    const char *what;
    int64_t count;
    char *names;
};

static void add_finding(struct finding *f, const char *name)
{
    if (f->count++ < NAMED) add_text(&f->names, ", ", xstrdup(name));
}

/* Describes the differences of two lists, which are sorted by the bytes of their names. */
static char *differences(const struct image_list *before, const struct image_list *now)
{
    struct finding found[] = {{"gone", 0, NULL}, {"new", 0, NULL}, {N_("of different size"), 0, NULL}};
    char *text = NULL;
    for (int64_t i = 0, k = 0; i < before->count || k < now->count;) {
        const char *a = i < before->count ? before->names[i] : NULL,
                   *b = k < now->count ? now->names[k] : NULL;
        int order = !a ? 1 : !b ? -1 : strcmp(a, b);
        if (order < 0) add_finding(&found[0], a);
        else if (order > 0) add_finding(&found[1], b);
        else if (memcmp(a + strlen(a) + 1, b + strlen(b) + 1, 8) != 0) add_finding(&found[2], a);
        i += order <= 0;
        k += order >= 0;
    }
    for (size_t i = 0; i < sizeof found / sizeof *found; i++) {
        if (found[i].count)
            add_text(&text, "; ",
                     xasprintf("%lld %s: %s%s", (long long)found[i].count, found[i].what, found[i].names,
                               found[i].count > NAMED ? ", ..." : ""));
        free(found[i].names);
    }
    return text;
}

static const char LIST[] = "data.list";

/* Describes how the images of training differ; the caller frees it. */
static char *describe(const struct run *run, const struct image_list *now, uint32_t crc, long long images)
{
    struct image_list before = {0};
    char *text = NULL, *words = NULL;
    size_t bytes = 0;
    if (file_read_below(run->directory, LIST, LIST_BYTES, &text, &bytes, NULL) == 0 &&
        crc32c(0, text, bytes) == crc && parse_list(&before, text, bytes))
        words = differences(&before, now);
    free(before.names);
    free(text);
    const char *which = words ? words : _("the run has no list of them");
    text = now->tokens ? xasprintf(_("token files differ from the run's: %s"), which)
                       : xasprintf(_("images differ from the run's: %lld before, %lld now (%s)"), images,
                                   (long long)now->count, which);
    free(words);
    return text;
}

/* A comparison of the images of training or of validation with meta.json. */
struct image_comparison {
    const char *prefix, *key; /* of the members of meta.json; that accepts others */
    const char *count;        /* member with their number */
    const char *root;
    const json_t *meta;
    const char *force;
    bool report;
    json_t **changed;
};

/* Handles a difference in a member: accepted and recorded, or the error `what`. */
static int accept_or_refuse(const struct image_comparison *c, const char *member, const char *is,
                            const char *what, struct error *err)
{
    char hint[160];
    if (is_forced(c->force, c->key)) {
        const char *was = json_string_value(json_object_get(c->meta, member));
        if (c->report) log_warn("%s: %s; accepted by --force-resume", c->root, what);
        if (!*c->changed) *c->changed = json_object();
        json_object_set_new(*c->changed, member, json_pack("[s, s]", was, is));
        return 0;
    }
    snprintf(hint, sizeof hint, _("restore them, or accept them with: --force-resume %s"), c->key);
    error_set(err, EXIT_CONFIG, hint, "%s", what);
    return error_at(err, c->root, 0, 0), EXIT_CONFIG;
}

/* Compares the bytes of sampled images, whose names and sizes are equal. */
static int compare_samples(const struct image_comparison *c, const struct image_list *list, struct error *err)
{
    char member[CONTENT_MEMBER];
    const char *was =
        json_string_value(json_object_get(c->meta, content_samples_member(member, c->prefix, list)));
    int code = 0;
    if (!was) return 0; /* written by a version without samples */
    char *is = content_samples(list, c->root);
    const char *name = content_changed_sample(list, was, is);
    if (name) {
        char *what = xasprintf(_("%s has different bytes than when the run began, and the same size"), name);
        code = accept_or_refuse(c, member, is, what, err);
        free(what);
    }
    free(is);
    return code;
}

/* Compares the names of the classes and the label of each image. */
static int compare_classes(const struct image_comparison *c, const struct image_list *list, struct error *err)
{
    static const char member[] = "classes_crc32c";
    const char *was = json_string_value(json_object_get(c->meta, member));
    char is[16], what[256];
    snprintf(is, sizeof is, "%08x", (unsigned)image_list_classes_hash(list));
    if (!was || !list->labels || strcmp(was, is) == 0) return 0;
    snprintf(what, sizeof what, _("classes or labels differ from the run's: checksum %s before, %s now"), was,
             is);
    return accept_or_refuse(c, member, is, what, err);
}

/* run: has data.list; NULL: the images are not listed there. */
static int compare_list(const struct image_comparison *c, const struct run *run,
                        const struct image_list *list, struct error *err)
{
    char member[CONTENT_MEMBER], is[16];
    snprintf(member, sizeof member, "%s_crc32c", c->prefix);
    const char *was = json_string_value(json_object_get(c->meta, member));
    snprintf(is, sizeof is, "%08x", (unsigned)image_list_hash(list));
    if (!was) return 0; /* written by a version without checksums */
    if (strcmp(was, is) == 0) return compare_samples(c, list, err);
    long long before = (long long)json_integer_value(json_object_get(c->meta, c->count));
    char *text = run ? describe(run, list, (uint32_t)strtoul(was, NULL, 16), before)
                 : list->tokens
                     ? xstrdup(_("is not what the run was evaluated with"))
                     : xasprintf(_("validation images differ from the run's: %lld before, %lld now"), before,
                                 (long long)list->count);
    int code = accept_or_refuse(c, member, is, text, err);
    free(text);
    return code;
}

static int compare_images(const struct run *run, const json_t *meta, const struct config *config,
                          const char *force, bool report, json_t **changed, struct error *err)
{
    struct data_options options = experiment_data_options(config);
    struct image_list list;
    int code = 0;
    struct image_comparison c = {"data", "data.root", "images", config->data.root,
                                 meta,   force,       report,   changed};
    if (json_object_get(meta, "data_crc32c")) {
        struct class_names order;
        code = class_order_read(&order, config, run->directory, err);
        options.order = &order;
        if (!code) code = image_list_open(&list, &options, err);
        class_order_free(&order);
        if (code) return code;
        code = compare_list(&c, run, &list, err);
        if (!code) code = compare_classes(&c, &list, err);
        image_list_free(&list);
    }
    if (!code && config->data.val[0] && json_object_get(meta, "val_crc32c")) {
        c = (struct image_comparison){"val", "data.val", "val_images", config->data.val,
                                      meta,  force,      report,       changed};
        code = experiment_validation_list(&list, config, err);
        if (code) return code;
        code = compare_list(&c, NULL, &list, err);
        image_list_free(&list);
    }
    return code;
}

/* Compares the images per step, unless a forced key changed them. */
static int compare_step(const json_t *meta, const struct config *c, int ranks, const json_t *changed,
                        struct error *err)
{
    long long was = json_integer_value(json_object_get(meta, "batch_images"));
    long long now =
        c->train.global_batch > 0 ? c->train.global_batch : c->train.batch_size * config_replicas(c, ranks);
    if (was <= 0 || was == now || json_object_get(changed, "train.batch_size") ||
        json_object_get(changed, "train.global_batch"))
        return 0;
    return error_set(err, EXIT_CONFIG,
                     "resume with the same number of ranks; with train.global_batch any number is possible",
                     "the run has %lld images per step; on %d rank%s it would have %lld", was, ranks,
                     ranks == 1 ? "" : "s", now);
}

static void compare_rank_count(int before, int now, json_t **changed)
{
    char was[16], is[16];
    if (before < 1 || before == now) return;
    snprintf(was, sizeof was, "%d", before);
    snprintf(is, sizeof is, "%d", now);
    if (!*changed) *changed = json_object();
    json_object_set_new(*changed, "ranks", json_pack("[s, s]", was, is));
}

/* Reads meta.json; *meta: NULL if it does not exist. */
static int read_meta(const struct run *run, json_t **meta, struct error *err)
{
    char *path = run_path(run, "meta.json"), *text = NULL;
    size_t bytes = 0;
    int code = 0;
    *meta = NULL;
    if (!file_absent(path)) {
        code = file_read_below(run->directory, "meta.json", META_BYTES, &text, &bytes, err);
        json_error_t why = {0};
        if (!code) *meta = json_loadb(text, bytes, 0, &why);
        if (!code && !*meta && !why.text[0]) /* jansson gives no reason */
            code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory reading it");
        else if (!code && !json_is_object(*meta)) {
            code = error_set(err, EXIT_INTEGRITY, "remove it to resume without comparing",
                             "cannot parse the description of the run: %s",
                             *meta ? _("no JSON object") : why.text);
        } else if (!code) code = run_check_layout(*meta, "resume it with the meopt that made it", err);
        if (code) error_at(err, path, why.line, why.column);
    }
    free(text);
    free(path);
    return code;
}

int resume_check_run(const struct run *run, const struct config *config, int ranks, const char *force,
                     bool report, json_t **changed, struct error *err)
{
    json_t *meta;
    *changed = NULL;
    int code = read_meta(run, &meta, err);
    const json_t *before = json_object_get(meta, "config");
    if (!code && before) {
        code = compare_config(before, config, force, report, changed, err);
        if (code) {
            char *file = run_path(run, "config.yaml");
            error_at(err, file, 0, 0);
            free(file);
        }
    }
    if (!code && meta) code = compare_step(meta, config, ranks, *changed, err);
    if (!code) compare_rank_count((int)json_integer_value(json_object_get(meta, "ranks")), ranks, changed);
    if (!code && meta) code = compare_images(run, meta, config, force, report, changed, err);
    if (code && *changed) {
        json_decref(*changed);
        *changed = NULL;
    }
    json_decref(meta);
    return code;
}

/* ---- the learning rate ---- */

void resume_check_schedule(const struct run *run, const struct config *config, const json_t *changed,
                           int64_t from, int64_t total)
{
    static const char *const rates[] = {"optim.lr", "optim.min_lr"};
    json_t *meta = NULL;
    struct config before;
    struct error ignored = {0};
    if (from <= 0 || from >= total || read_meta(run, &meta, &ignored) || !meta) return;
    int64_t was = json_integer_value(json_object_get(meta, "total_steps"));
    bool differs = was != total;
    config_copy(&before, config);
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        const char *value = json_string_value(json_array_get(json_object_get(changed, rates[i]), 0));
        if (value) (void)config_assign(&before, rates[i], value, NULL);
        differs |= value != NULL;
    }
    double last = schedule_lr(&before, from, was), next = schedule_lr(config, from + 1, total);
    if (was > 0 && differs && fabs(next - last) > 0.5 * last)
        log_warn("%lld steps in all, before %lld: the learning rate jumps from %.3g at step %lld to %.3g",
                 (long long)total, (long long)was, last, (long long)from, next);
    else if (was > 0 && differs)
        log_info("%lld steps in all, before %lld: learning rate %.3g at step %lld, then %.3g",
                 (long long)total, (long long)was, last, (long long)from, next);
    config_free(&before);
    json_decref(meta);
}

/* ---- the weights ---- */

/* Returns whether two texts of a model (struct tower_content) agree in the properties that `was` has: earlier
 * versions wrote fewer. *differs: the first word that differs. */
static bool same_model(const char *was, const char *is, size_t *differs)
{
    size_t at = 0;
    const char *a = strstr(was, " image="), *b = strstr(is, " image="); /* is a key, compared as one */
    if (a && b && a - was == b - is && memcmp(was, is, (size_t)(a - was)) == 0 &&
        strcmp(a + 1 + strcspn(a + 1, " "), b + 1 + strcspn(b + 1, " ")) == 0)
        return true;
    for (*differs = 0; was[at] && was[at] == is[at]; at++)
        if (was[at] == ' ') *differs = at + 1;
    return !was[at] && (!is[at] || is[at] == ' ');
}

int resume_check_weights(const struct run *run, const struct config *config, int number,
                         const struct tower_content *content, const char *force, bool report,
                         json_t **changed, struct error *err)
{
    bool student = number == TOWER_STUDENT;
    char file[40];
    const char *tower = config_tower_name(number), /* in meta.json; for people a model without teacher */
        *name = objective_tower(objective_of(config), student),
               *path = student ? config->model_s.weight : config->model_t[number].weight;
    snprintf(file, sizeof file, "%s.weight", config_tower_section(number));
    char key[2][32], is[2][sizeof content->model];
    json_t *meta;
    int code = read_meta(run, &meta, err);
    snprintf(key[0], sizeof key[0], "%s_crc32c", tower);
    snprintf(key[1], sizeof key[1], "%s_model", tower);
    snprintf(is[0], sizeof is[0], "%08x", content->crc32c);
    snprintf(is[1], sizeof is[1], "%s", content->model);
    bool moved = student && !config_trains_adapters(config) && json_object_get(*changed, file);
    for (int i = 0; i < 2 && !code; i++) {
        const char *was = json_string_value(json_object_get(meta, key[i]));
        size_t at;
        if (!was || !content->crc32c || same_model(was, is[i], &at) || (moved && i == 0)) continue;
        const char *what = i ? "model" : "weights";
        if (!is_forced(force, file)) {
            char hint[160];
            snprintf(hint, sizeof hint,
                     _("restore the original file, or accept this one with: --force-resume %s"), file);
            code = error_set(err, EXIT_CONFIG, hint, "the %s's %s from the run's original: %s was %s, is %s",
                             name, i ? _("model differs") : _("weights differ"), i ? "it" : _("the checksum"),
                             was + at, is[i] + at);
            error_at(err, path, 0, 0);
            continue;
        }
        if (report)
            log_warn("%s: the %s's %s were %s and are now %s; accepted by --force-resume", path, name, what,
                     was, is[i]);
        if (!*changed) *changed = json_object();
        json_object_set_new(*changed, key[i], json_pack("[s, s]", was, is[i]));
    }
    json_decref(meta);
    return code;
}

int resume_check_restore_student_crc(const struct run *run, struct tower_content *content, struct error *err)
{
    json_t *meta;
    int code = read_meta(run, &meta, err);
    const char *was = json_string_value(json_object_get(meta, "student_crc32c"));
    content->crc32c = was ? (uint32_t)strtoul(was, NULL, 16) : 0;
    json_decref(meta);
    return code;
}

/* ---- program and libraries ---- */

static void compare_words(const char *name, const char *was, const char *is, json_t **changed)
{
    if (!was || !is || strcmp(was, is) == 0) return;
    log_info("%s was %s and is now %s", name, was, is);
    if (!*changed) *changed = json_object();
    json_object_set_new(*changed, name, json_pack("[s, s]", was, is));
}

static const json_t *start_row(const json_t *start, const char *name)
{
    size_t i;
    const json_t *row;
    json_array_foreach(start, i, row)
    {
        const char *is = json_string_value(json_object_get(row, "name"));
        if (is && strcmp(is, name) == 0) return row;
    }
    return NULL;
}

/* Compares the values of the ranks that differ from rank 0. */
static void compare_ranks(const char *row, const json_t *before, const json_t *now, json_t **changed)
{
    static const char equal[] = N_("equal on all ranks");
    char name[32], *was = before ? json_dumps(before, JSON_COMPACT | JSON_SORT_KEYS) : NULL,
                   *is = now ? json_dumps(now, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    snprintf(name, sizeof name, _("%s by rank"), row);
    if (was || is) compare_words(name, was ? was : equal, is ? is : equal, changed);
    free(was);
    free(is);
}

static char *program_text(const char *version, const char *crc)
{
    return version && crc ? xasprintf("%s %s", version, crc) : NULL;
}

void resume_check_start(const struct run *run, const json_t *start, json_t **changed)
{
    enum { ROUNDING_ROWS = 3 }; /* the others affect time and memory only */
    static const char *const rows[] = {"kernels", "products", "attention", "device"};
    char crc[16];
    json_t *meta = json_read_below(run->directory, "meta.json", META_BYTES, NULL);
    size_t count = json_object_size(*changed), rounding = 0;
    uint32_t sum = meta_program_crc();
    snprintf(crc, sizeof crc, "%08x", (unsigned)sum);
    char *was = program_text(json_string_value(json_object_get(meta, "code_version")),
                             json_string_value(json_object_get(meta, "program_crc32c"))),
         *is = program_text(meta_version(), sum ? crc : NULL); /* 0: unknown */
    compare_words("program", was, is, changed);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const json_t *before = start_row(json_object_get(meta, "start"), rows[i]);
        compare_words(rows[i], json_string_value(json_object_get(before, "is")),
                      json_string_value(json_object_get(start_row(start, rows[i]), "is")), changed);
        compare_ranks(rows[i], json_object_get(before, "ranks"),
                      json_object_get(start_row(start, rows[i]), "ranks"), changed);
        if (i + 1 == ROUNDING_ROWS) rounding = json_object_size(*changed) - count;
    }
    if (rounding) log_warn("program or kernels changed since the run began; results may differ in rounding");
    json_decref(meta);
    free(is);
    free(was);
}

int resume_check_write_images(const struct run *run, const struct image_list *list, struct error *err)
{
    size_t bytes = 0, at = 0, there = 0;
    for (int64_t i = 0; i < list->count; i++) bytes += strlen(list->names[i]) + 9;
    char *text = malloc(bytes ? bytes : 1), *old = NULL;
    int code = text ? 0 : error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for the names of the images");
    for (int64_t i = 0; i < list->count && text; i++) {
        size_t n = strlen(list->names[i]) + 9;
        memcpy(text + at, list->names[i], n);
        at += n;
    }
    bool same = text && file_read_below(run->directory, LIST, LIST_BYTES, &old, &there, NULL) == 0 &&
                there == bytes && memcmp(old, text, bytes) == 0;
    if (!code && !same) code = file_write_below(run->directory, LIST, text, bytes, err);
    free(old);
    free(text);
    return code;
}
