/* Device, images and files of an experiment: see experiment.h. */
#include "core/experiment/experiment.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/log.h"
#include "core/data/labels.h"
#include "core/data/mask_tokens.h"
#include "core/data/token_documents.h"
#include "core/device/threads.h"
#include "core/run/checkpoint.h"
#include "core/experiment/class_order.h"
#include "core/experiment/preprocess.h"
#include "core/experiment/objective.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct data_options experiment_tower_images(const struct config *c, int tower)
{
    struct stat st;
    bool list = stat(c->data.val, &st) == 0 && S_ISREG(st.st_mode),
         classes = objective_of(c)->classes || c->train.eval != TRAIN_EVAL_LOSS;
    return (struct data_options){.root = c->data.root,
                                 .include = c->data.include,
                                 .exclude = c->data.exclude,
                                 .apart = list && !classes ? NULL : c->data.val, /* a list is of classes */
                                 .image_size = train_image_size(c, tower),
                                 .preprocess = train_preprocess(c, tower),
                                 .augment = c->data.augment,
                                 .flip = c->data.flip == 1,
                                 .crop_scale_min = c->data.crop_scale_min,
                                 .crop_scale_max = c->data.crop_scale_max,
                                 .crops = c->data.crops,
                                 .local_crops = c->data.local_crops,
                                 .local_scale_min = c->data.local_scale_min,
                                 .local_scale_max = c->data.local_scale_max,
                                 .randaugment = (int)c->data.randaugment,
                                 .erasing = c->data.erasing,
                                 .shuffle = c->data.shuffle,
                                 .seed = (uint64_t)c->train.seed,
                                 .batch = c->train.batch_size,
                                 .rank = 0,
                                 .ranks = 1,
                                 .workers = c->data.workers,
                                 .prefetch = c->data.prefetch,
                                 .max_bad = c->data.max_bad};
}

/* enum data_tokens of the schema follows enum token_form, which begins with "none". */
_Static_assert((int)TOKENS_AUTO == 1 + (int)DATA_TOKENS_AUTO &&
                   (int)TOKENS_BYTES == 1 + (int)DATA_TOKENS_BYTES &&
                   (int)TOKENS_LLMC == 1 + (int)DATA_TOKENS_LLMC,
               "enum data_tokens is enum token_form");
_Static_assert((int)DOCUMENTS_APART == (int)DATA_DOCUMENTS_APART &&
                   (int)DOCUMENTS_WHOLE == (int)DATA_DOCUMENTS_WHOLE &&
                   (int)DOCUMENTS_LONG_SKIP == (int)DATA_TOO_LONG_SKIP,
               "enum data_documents is enum documents_as, enum data_too_long is enum documents_long");

/* Returns the token files; context and vocabulary are 0 until the model's shape is known. */
static struct data_options token_options(const struct config *c)
{
    return (struct data_options){.root = c->data.root,
                                 .include = c->data.include,
                                 .exclude = c->data.exclude,
                                 .apart = c->data.val,
                                 .shuffle = c->data.shuffle,
                                 .seed = (uint64_t)c->train.seed,
                                 .batch = c->train.batch_size,
                                 .ranks = 1,
                                 .tokens = 1 + (enum token_form)c->data.tokens,
                                 .labels = objective_of(c)->classes,
                                 .context = c->model_s.context,
                                 .vocabulary = c->model_s.vocabulary,
                                 .documents = (enum documents_as)c->data.documents,
                                 .too_long = (enum documents_long)c->data.too_long,
                                 .end = c->data.end,
                                 .masked = objective_of(c)->masked ? masked_rows(c->model_s.context) : 0,
                                 .mask_token = c->data.mask_token,
                                 .special = c->data.special_tokens};
}

struct data_options experiment_data_options(const struct config *c)
{
    if (objective_of(c)->tokens) return token_options(c);
    bool student = !objective_of(c)->teacher || c->train.cache_teacher;
    struct data_options options =
        student ? experiment_tower_images(c, TOWER_STUDENT) : experiment_images(c, true);
    options.labels = objective_of(c)->classes;
    options.label_file = c->data.labels;
    options.mixup = c->data.mixup;
    options.cutmix = c->data.cutmix;
    return options;
}

/* Lists the towers whose images are versions of their own; returns their number. */
static int list_views(const struct config *c, int towers[1 + MOST_MORE_VIEWS])
{
    int count = 0;
    for (int i = 0; i <= TOWER_STUDENT; i++) {
        int same = 0;
        if (i < TOWER_STUDENT && i >= config_teachers(c)) continue;
        while (same < count && preprocess_differs(c, towers[same], i)) same++;
        if (same == count) towers[count++] = i;
    }
    return count;
}

int experiment_view(const struct config *c, int tower)
{
    int towers[1 + MOST_MORE_VIEWS], view = 0;
    (void)list_views(c, towers);
    while (preprocess_differs(c, towers[view], tower)) view++;
    return view;
}

struct data_options experiment_images(const struct config *c, bool student)
{
    int towers[1 + MOST_MORE_VIEWS], count = list_views(c, towers);
    struct data_options options = experiment_tower_images(c, 0);
    for (int i = 1; i < count && (student || towers[i] != TOWER_STUDENT); i++)
        options.more[options.more_views++] =
            (struct data_view){train_image_size(c, towers[i]), train_preprocess(c, towers[i])};
    return options;
}

int experiment_open_data(struct data **data, const struct config *c, const char *run,
                         struct data_options *options, struct error *err)
{
    struct class_names order;
    int code = class_order_read(&order, c, run, err);
    *data = NULL;
    options->order = &order;
    if (!code) code = data_open(data, options, err);
    options->order = NULL;
    class_order_free(&order);
    return code;
}

/* Returns the images for validation, in one pass: with the resize and the centre crop of the towers. */
static struct data_options validation_options(const struct config *c, const struct data *train)
{
    struct data_options o = experiment_data_options(c);
    struct stat st;
    bool list = stat(c->data.val, &st) == 0 && S_ISREG(st.st_mode);
    list = list && !o.tokens;
    o.augment = o.shuffle = false;
    o.mixup = o.cutmix = 0;
    o.include = NULL;
    o.whole = o.validation = true;
    o.labels = o.labels || c->train.eval != TRAIN_EVAL_LOSS;
    o.classes = train ? data_list(train) : NULL;
    o.apart = list ? NULL : c->data.root;
    if (!list) o.root = c->data.val;
    if (list || !data_labels_coarse(&o)) o.label_file = list ? c->data.val : NULL;
    return o;
}

int experiment_validation_list(struct image_list *list, const struct config *c, struct error *err)
{
    struct data_options options = validation_options(c, NULL);
    struct stat st;
    if (stat(c->data.val, &st) != 0) {
        error_errno(err, EXIT_FAILED, NULL, "cannot examine this file");
        return error_at(err, c->data.val, 0, 0);
    }
    options.labels = false; /* the names of the directories are in the list */
    if (options.tokens || !S_ISREG(st.st_mode)) return image_list_open(list, &options, err);
    *list = (struct image_list){.tokens = true};
    image_list_add(list, xstrdup(path_basename(c->data.val)), (struct image_place){.bytes = st.st_size});
    return 0;
}

/* Opens the labelled images of data.root for the student, without augmentation. */
static int open_bank(struct data **bank, const struct config *c, int rank, int ranks, int64_t batch,
                     struct error *err)
{
    struct data_options o = experiment_tower_images(c, TOWER_STUDENT);
    o.augment = o.shuffle = false;
    o.whole = o.labels = true;
    o.label_file = c->data.labels;
    o.rank = rank;
    o.ranks = ranks;
    o.batch = o.micro = batch;
    o.prefetch = 1;
    int code = data_open(bank, &o, err);
    if (!code && rank == 0) data_report(*bank);
    if (code || !config_eval_has(c, TRAIN_EVAL_PROBE) || data_classes(*bank) <= c->train.probe_classes)
        return code;
    error_set(err, EXIT_CONFIG, "raise train.probe_classes, or set train.eval: knn",
              "train.probe_classes is %lld, but data.root has %d classes", (long long)c->train.probe_classes,
              data_classes(*bank));
    return error_at(err, c->data.root, 0, 0);
}

int experiment_open_validation(struct validation_data *d, const struct config *c, const struct data *train,
                               const struct class_names *order, int rank, int ranks, bool report,
                               int64_t batch, struct error *err)
{
    int code = 0;
    *d = (struct validation_data){0};
    if (!c->data.val[0]) return 0;
    if (c->train.eval != TRAIN_EVAL_LOSS) code = open_bank(&d->bank, c, rank, ranks, batch, err);
    if (code) return code;
    struct data_options options = validation_options(c, d->bank ? d->bank : train);
    options.rank = rank;
    options.ranks = ranks;
    options.batch = options.micro = batch;
    options.order = order;
    options.partly = order && order->count;
    if (!options.labels && options.label_file && options.label_file[0]) {
        code = error_set(err, EXIT_CONFIG, "name a directory, or set train.eval: knn or probe",
                         "data.val is a list, which requires classes");
        error_at(err, c->data.val, 0, 0);
    }
    if (!code) code = data_open(&d->val, &options, err);
    if (!code && d->bank) data_subset(d->bank, c->train.knn_bank); /* data.val has read the classes of all */
    if (!code && report) data_report(d->val);
    if (!code && report && train && data_hash(d->val) == data_hash(train))
        log_warn("data.val has the same %s as data.root: %s", options.tokens ? "tokens" : "images",
                 c->data.val);
    if (!code && report && d->bank)
        log_info("train.eval %s: features of %lld images of data.root, scored on %lld of data.val",
                 train_eval_names[c->train.eval], (long long)data_images(d->bank),
                 (long long)data_images(d->val));
    return code;
}

void experiment_close_validation(struct validation_data *d)
{
    data_close(d->val);
    data_close(d->bank);
    *d = (struct validation_data){0};
}

int experiment_settle_mask(struct config *c, bool *settled, struct error *err)
{
    struct mask_tokens mask = {0};
    struct data_options options = token_options(c);
    char text[24];
    *settled = false;
    if (config_given(c, "data.mask_token")) return 0;
    if (!options.root[0]) options.root = c->data.val;
    int code = mask_tokens_find(&mask, &options, err);
    snprintf(text, sizeof text, "%lld", (long long)mask.token);
    bool found = !code && mask.described && mask.token >= 0;
    if (!code && mask.described && !found) {
        code = error_set(err, EXIT_CONFIG, "set data.mask_token, or use a tokenizer that has a mask_token",
                         "the tokenizer of the token files names no mask_token");
        error_at(err, c->data.root, 0, 0);
    }
    if (found) code = config_assign(c, "data.mask_token", text, err);
    int64_t first = 0; /* those after these are listed */
    while (first < mask.count && mask.apart[first] == first) first++;
    snprintf(text, sizeof text, "%lld", (long long)first);
    if (found && !code && !config_given(c, "data.special_tokens"))
        code = config_assign(c, "data.special_tokens", text, err);
    mask_tokens_free(&mask);
    *settled = found;
    return code;
}

int experiment_list_classes(struct config *c, struct image_list *list, struct error *err)
{
    char text[24];
    struct class_names order;
    *list = (struct image_list){0};
    if (!objective_of(c)->classes || !c->data.root[0] || file_absent(c->data.root)) return 0;
    int code = class_order_read(&order, c, NULL, err);
    if (code || (c->model_s.classes && !order.count)) return code;
    struct data_options options = experiment_data_options(c);
    char *index = token_file_index(c->data.root); /* NULL: not of a token file */
    options.order = &order;
    code = image_list_open(list, &options, err);
    class_order_free(&order);
    if (code && !options.tokens && index && !file_absent(index)) {
        code = error_set(err, EXIT_CONFIG, "set model.family to that of the weights: bert, roberta, ...",
                         "data.root is a token file, but without model.family images are classified");
        error_at(err, c->data.root, 0, 0);
    }
    free(index);
    if (code || c->model_s.classes) return code;
    snprintf(text, sizeof text, "%d", list->class_count);
    return config_assign(c, "model_s.classes", text, err);
}

int experiment_set_classes(struct config *c, struct error *err)
{
    struct image_list list;
    int code = experiment_list_classes(c, &list, err);
    if (!code) image_list_report_classes(&list, c->data.root);
    image_list_free(&list);
    return code;
}

int experiment_check_classes(const struct config *c, const struct data *data, int64_t classes,
                             struct error *err)
{
    if (!objective_of(c)->classes || data_classes(data) <= classes) return 0;
    error_set(err, EXIT_CONFIG, "leave model.classes out",
              "model.classes is %lld, but data.root has %d classes", (long long)classes, data_classes(data));
    return error_at(err, c->data.root, 0, 0);
}

int experiment_check_samples(const struct config *c, struct error *err)
{
    struct data *data = NULL;
    struct validation_data val = {0};
    struct data_options options = experiment_data_options(c);
    if (!options.labels && !options.tokens) return 0;
    if (!options.image_size) options.image_size = 1; /* of the checkpoint: no image is loaded */
    int code = experiment_open_data(&data, c, NULL, &options, err);
    if (!code && data_documents(data)) document_facts_report(data_documents(data), &options);
    if (!code && c->model_s.classes) code = experiment_check_classes(c, data, c->model_s.classes, err);
    if (!code) code = experiment_open_validation(&val, c, data, NULL, 0, 1, true, c->train.batch_size, err);
    experiment_close_validation(&val);
    data_close(data);
    return code;
}

bool experiment_mostly_warmup(const struct config *c, int64_t images, struct error *note)
{
    int64_t batch = c->train.global_batch > 0 ? c->train.global_batch : c->train.batch_size,
            total = c->train.steps > 0 ? c->train.steps : c->train.epochs * (images * c->data.crops / batch),
            steps = config_warmup(c, total);
    const char *key = c->optim.warmup_ratio > 0 ? "optim.warmup_ratio" : "optim.warmup_steps";
    if (total < 2 || steps <= total / 2) return false;
    error_set(note, EXIT_CONFIG, "leave it out for a tenth of the steps",
              "%lld of %lld steps are warm-up (%s): the learning rate peaks late", (long long)steps,
              (long long)total, key);
    return true;
}

void experiment_warn_warmup(const struct config *c, int64_t images)
{
    struct error note = {0};
    if (experiment_mostly_warmup(c, images, &note)) log_warn("%s; %s", note.what, note.hint);
    if (RULE_HAS(c->optim.name, WITH_POINTS))
        log_info(
            "schedule_free: constant learning rate after the warm-up; evaluation and checkpoints use the "
            "average of the weights");
}

int experiment_open_device(struct device **device, const struct config *c, bool limited, struct error *err)
{
    char spec[64];
    int first, named = config_cards(c, &first); /* 0: all */
    bool card = c->device.type != DEVICE_TYPE_CPU;
    if (card && named) snprintf(spec, sizeof spec, "%s:%d", device_type_names[c->device.type], first);
    else snprintf(spec, sizeof spec, "%s", device_type_names[c->device.type]);
    *device = NULL;
    if (card && named > 1)
        return error_set(err, EXIT_CONFIG, "one number, as in --cards 0, or all for the first that works",
                         "device.cards %s: one process trains on one card", c->device.cards);
    int code = device_open(device, spec, limited ? (size_t)c->device.memory_limit : 0, err);
    if (!code && (*device)->kind == DEVICE_CPU) threads_settle("");
    if (!code && !named && device_count(*device) > 1)
        log_info("using the first of %d cards; 'meopt train --cards 0,1' uses several, one rank per card",
                 device_count(*device));
    return code;
}

/* Returns an absolute path, which need not exist, quoted for a shell; relative if it is in the working
 * directory. The caller frees. */
static char *shell_path(const char *path)
{
    char *clean = xasprintf("/%s", path), *here = realpath(".", NULL), *to = clean;
    for (const char *p = path; *p;) { /* remove "a/../" and "./" */
        size_t n = strcspn(p, "/");
        bool up = n == 2 && p[0] == '.' && p[1] == '.';
        if (up)
            while (to > clean && *--to != '/')
                ;
        else if (n && !(n == 1 && p[0] == '.')) {
            *to++ = '/';
            memmove(to, p, n);
            to += n;
        }
        p += n + (p[n] == '/');
    }
    *to = 0;
    size_t n = here ? strlen(here) : 0;
    const char *seen = clean[0] ? clean : "/";
    if (here && strcmp(clean, here) == 0) seen = ".";
    else if (n > 1 && strncmp(clean, here, n) == 0 && clean[n] == '/') seen = clean + n + 1;
    char *shown = strpbrk(seen, " '\"\\$") ? xasprintf("'%s'", seen) : xstrdup(seen);
    free(here);
    free(clean);
    return shown;
}

/* Formats the command that fetches a file: the archives unpack to directories of these names. */
static void fetch_hint(char *hint, size_t size, const char *key, const char *path)
{
    static const struct {
        const char *directory, *source;
    } archives[] = {{"/ModelWeight", "model-weight"}, {"/COCO2014", "coco2014"}};
    for (size_t i = 0; i < sizeof archives / sizeof *archives; i++) {
        const char *at = NULL, *next = path;
        size_t n = strlen(archives[i].directory);
        while ((next = strstr(next, archives[i].directory)) != NULL) at = next++;
        if (!at || (at[n] && at[n] != '/')) continue;
        char *within = strndup(path, (size_t)(at - path)), *dest = shell_path(within[0] ? within : "/");
        bool sample = strcmp(path_basename(within), "sample") == 0, here = strcmp(dest, ".") == 0;
        snprintf(hint, size, _("get it with: meopt fetch %s%s%s"), sample ? "sample" : archives[i].source,
                 here ? "" : " --dest ", here ? "" : dest);
        free(dest);
        free(within);
        return;
    }
    snprintf(hint, size, _("set %s; 'meopt fetch --list' lists what can be fetched"), key);
}

int experiment_check_file(const struct config *c, const char *name, struct error *err)
{
    int key = config_key_index(name);
    name = config_key_here(c, name);
    const char *path = *(char *const *)((const char *)c + config_keys[key].offset);
    char hint[320], to[256];
    /* other errors are reported when the file is read */
    if (!path[0] || access(path, F_OK) == 0 || (errno != ENOENT && errno != ENOTDIR)) return 0;
    char *bin = xasprintf("%s.bin", path); /* Megatron-LM's --data-path leaves it out */
    if (access(bin, F_OK) == 0) snprintf(hint, sizeof hint, _("set %s: %s"), name, path_basename(bin));
    else fetch_hint(hint, sizeof hint, name, path);
    free(bin);
    if (path_is_dead_link(path, to, sizeof to))
        error_set(err, EXIT_CONFIG, "get the file that it names, as with 'git annex get'",
                  "%s is a symbolic link to %s, which is not there: %s", name, to, path);
    else error_set(err, EXIT_CONFIG, hint, "%s is not there: %s", name, path);
    return error_at(err, c->path, c->origins[key].line, c->origins[key].column);
}

int experiment_check_files(const struct config *c, void (*missing)(void *context, const struct error *),
                           void *context, struct error *err)
{
    static const char *const names[] = {"model_t.weight",  "model_t2.weight", "model_t3.weight",
                                        "model_t4.weight", "model_s.weight",  "data.root",
                                        "data.labels",     "data.val"};
    const bool read[] = {c->model_t[0].init != TOWER_INIT_RANDOM,
                         c->model_t[1].init != TOWER_INIT_RANDOM,
                         c->model_t[2].init != TOWER_INIT_RANDOM,
                         c->model_t[3].init != TOWER_INIT_RANDOM,
                         c->model_s.init != TOWER_INIT_RANDOM,
                         true,
                         strcmp(path_basename(c->data.labels), "coarse") != 0,
                         true};
    int code = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct error e = {0};
        if (!read[i] || experiment_check_file(c, names[i], &e) == 0) continue;
        if (missing) missing(context, &e);
        if (!code && err) *err = e;
        code = EXIT_CONFIG;
    }
    return code;
}

char **experiment_began_with(struct config *c)
{
    return config_trains_adapters(c) ? &c->lora.adapter : &c->model_s.weight;
}

int experiment_fallback_weights(struct config *c, const char *directory, char **path, struct error *err)
{
    char run[256];
    int64_t step;
    bool adapters = config_trains_adapters(c);
    const char *began = *experiment_began_with(c);
    *path = NULL;
    if ((c->model_s.init == TOWER_INIT_RANDOM && !adapters) || !began[0] || access(began, F_OK) == 0 ||
        (errno != ENOENT && errno != ENOTDIR))
        return 0;
    const char *tower = adapters ? "adapter" : objective_tower(objective_of(c), true);
    char *from = checkpoint_named(began, run, sizeof run, &step)
                     ? xasprintf(_("step %lld of run %s"), (long long)step, run)
                     : xstrdup(began);
    int code = checkpoint_before(directory, INT64_MAX, &step, err);
    if (!code && step < 0) {
        code =
            error_set(err, EXIT_CONFIG, "restore that checkpoint, or begin a new run",
                      "the %s begins with the checkpoint %s, which is gone, and this run has none of its own",
                      tower, from);
        error_at(err, began, 0, 0);
    } else if (!code) {
        *path = xasprintf("%s/ckpt/step-%08lld/model.safetensors", directory, (long long)step);
        log_info("the checkpoint %s is gone: the %s is read from the run's own checkpoint of step %lld", from,
                 tower, (long long)step);
    }
    free(from);
    return code;
}
