/* meopt eval: evaluates a student on the images of data.val, as training does after an epoch. */
#include "cli/command.h"
#include "cli/config/cmd_config.h"
#include "cli/run_average.h"
#include "cli/run_weights.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/compare/output.h"
#include "core/data/list.h"
#include "core/run/scores.h"
#include "core/train/target_maps.h"
#include "core/experiment/class_order.h"
#include "core/step/evaluate.h"
#include "core/experiment/experiment.h"
#include "core/train/trainer_checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct eval {
    struct config config;
    char *run;    /* NULL: a configuration */
    int64_t step; /* of the run's checkpoint */
    bool average; /* its average of the weights, instead of the weights */
    struct device *device;
    struct trainer *trainer;
    struct class_names order; /* of the run, or of the checkpoint; none: count 0 */
    struct data *train;       /* images of data.root; NULL: not needed */
    struct validation_data data;
    const struct data *labelled; /* the images whose classes count */
    struct class_count *classes;
    struct evaluation found;
    double seconds;
};

static int read_config(struct eval *e, const struct arguments *args, struct error *err)
{
    const char *which = argument_text(args, "checkpoint", NULL);
    struct config *c = &e->config;
    int code = run_weights_config(c, &e->run, args->operands, args->operand_count, err);
    if (code) return code;
    if (argument_text(args, "per-class", NULL) && !objective_of(c)->classes &&
        c->train.eval == TRAIN_EVAL_LOSS)
        return error_set(err, EXIT_CONFIG, "leave --per-class out", "train.objective %s has no classes",
                         objective_of(c)->name);
    e->average = argument_flag(args, "ema");
    if ((which || e->average) && !e->run)
        return error_set(err, EXIT_USAGE, "see 'meopt eval --help'", "%s requires a run",
                         which ? "--checkpoint" : "--ema");
    if (!c->data.val[0])
        return error_set(err, EXIT_CONFIG, "add data.val=DIRECTORY", "data.val is not set: %s",
                         args->operands[0]);
    if (!e->run && c->model_s.init == TOWER_INIT_RANDOM)
        return error_set(err, EXIT_USAGE, "train first, or name the run: meopt eval RUN",
                         "the student's weights are random (model_s.init): %s", args->operands[0]);
    return e->run ? run_weights_use(c, e->run, run_checkpoint_asked(which), &e->step, err) : 0;
}

struct averaging {
    struct trainer *trainer;
    const struct weights *model; /* of the checkpoint */
};

static int use_average(void *context, int64_t tensor, float *values, struct error *err)
{
    const struct averaging *a = context;
    const struct weights_tensor *from = weights_tensor(a->model, tensor);
    int parameter = trainer_parameter_named(a->trainer, from->name);
    int code = parameter < 0 || a->trainer->student->parameters[parameter].count != from->count
                   ? error_set(err, EXIT_CONFIG, "evaluate with the run's own configuration",
                               "the student has no tensor %.100s of the average", from->name)
                   : trainer_import(a->trainer, parameter, values, err);
    free(values);
    return code;
}

/* Replaces the student's weights by their average in the run's checkpoint. */
static int use_averages(struct eval *e, struct error *err)
{
    struct checkpoint c;
    int code = checkpoint_scan(&c, e->run, e->step, NULL, err);
    if (!code) code = run_average_each(&c, use_average, &(struct averaging){e->trainer, c.model}, err);
    checkpoint_close(&c);
    return code;
}

/* Returns whether data.root is read: for the images whose features train.eval reads, for the paths of a list,
 * and for the classes where neither the run nor the checkpoint names them. */
static bool needs_root(const struct eval *e)
{
    const struct config *c = &e->config;
    struct stat st;
    bool list = !config_reads_tokens(c) && stat(c->data.val, &st) == 0 && S_ISREG(st.st_mode),
         named = e->order.count && (e->run || (e->order.classifier && !config_trains_adapters(c)));
    return c->train.eval != TRAIN_EVAL_LOSS || list || (objective_of(c)->classes && !named);
}

/* Reads the classes, and leaves out the keys of training's images unless they are needed. */
static int read_classes(struct eval *e, struct image_list *list, struct error *err)
{
    struct config *c = &e->config;
    char count[24];
    int code = class_order_read(&e->order, c, e->run, err);
    if (code || needs_root(e)) return code ? code : experiment_list_classes(c, list, err);
    code = config_assign(c, "data.root", "", err);
    if (!code && strcmp(path_basename(c->data.labels), "coarse") != 0)
        code = config_assign(c, "data.labels", "", err);
    snprintf(count, sizeof count, "%lld", (long long)e->order.count);
    bool known = c->model_s.classes || !objective_of(c)->classes;
    return code || known ? code : config_assign(c, "model_s.classes", count, err);
}

/* Opens the images of training for their classes: no batch of them is read. */
static int open_root(struct eval *e, struct image_list *list, struct error *err)
{
    struct data_options options = experiment_data_options(&e->config);
    options.list = list;
    options.whole = true;
    options.batch = 1;
    return e->config.data.root[0] ? experiment_open_data(&e->train, &e->config, e->run, &options, err) : 0;
}

/* Refuses classes of data.val without a known order, unless the classifier has as many. */
static int check_classes(const struct eval *e, struct error *err)
{
    int64_t classes = e->trainer->student->out_width, found = data_classes(e->data.val);
    bool known = !e->trainer->objective->classes || e->train || e->order.count;
    if (known || classes == found || (data_list(e->data.val)->numbered && found < classes)) return 0;
    error_set(err, EXIT_CONFIG, "set data.root to the images of training",
              "data.val has %lld classes and the classifier %lld, whose names are not known",
              (long long)found, (long long)classes);
    return error_at(err, e->config.data.val, 0, 0);
}

/* Reads what standardizes the teachers' outputs, which a training has estimated. */
static int read_maps(struct eval *e, struct error *err)
{
    bool mapped = false;
    for (int i = 0; i < config_losses(&e->config); i++)
        mapped |= e->config.loss[i].standardize != LOSS_STANDARDIZE_NONE;
    if (!mapped || !objective_of(&e->config)->teacher) return 0;
    if (!e->run)
        return error_set(err, EXIT_USAGE, "meopt eval RUN",
                         "loss.standardize requires a run, which has mean and covariance");
    char *path = path_join(e->run, "targets.safetensors");
    int code = target_maps_load(e->trainer, path, err);
    free(path);
    return code;
}

static int open_all(struct eval *e, bool by_class, struct error *err)
{
    struct config *c = &e->config;
    struct image_list list = {0};
    int code = read_classes(e, &list, err);
    if (!code) code = experiment_check_files(c, NULL, NULL, err);
    if (!code) code = experiment_open_device(&e->device, c, true, err);
    if (!code) code = trainer_create_evaluation(&e->trainer, c, e->device, false, err);
    if (!code) model_shape_log_assumed(&e->trainer->student_shape);
    if (!code) code = read_maps(e, err);
    if (!code && e->average) code = use_averages(e, err);
    if (!code) code = open_root(e, &list, err);
    image_list_free(&list);
    if (!code)
        code =
            experiment_open_validation(&e->data, c, e->train, &e->order, 0, 1, true, e->trainer->micro, err);
    if (!code) code = check_classes(e, err);
    e->labelled = e->data.bank ? e->data.bank : e->train ? e->train : e->data.val;
    if (!code && by_class) {
        int64_t width = e->trainer->student->out_width, classes = data_classes(e->labelled);
        e->classes = xcalloc((size_t)(width > classes ? width : classes), sizeof *e->classes);
    }
    return code;
}

static int evaluate(struct eval *e, struct error *err)
{
    double begin = clock_seconds();
    int code = trainer_evaluate(e->trainer, &e->data, &e->found, e->classes, err);
    e->seconds = clock_seconds() - begin;
    if (code || isfinite(e->found.metrics[0].value)) return code;
    error_set(err, EXIT_DIVERGED, "check the weights for NaN and infinities", "the loss is not finite");
    return error_at(err, e->config.model_s.weight, 0, 0);
}

static int write_classes(const struct eval *e, const char *path, struct error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for the table of classes");
    fputs("class,images,correct,top1\n", out);
    for (int32_t i = 0; i < data_classes(e->labelled); i++) {
        const struct class_count *n = &e->classes[i];
        output_csv_text(out, data_class_name(e->labelled, i));
        fprintf(out, ",%lld,%lld,", (long long)n->images, (long long)n->correct);
        if (n->images) fprintf(out, "%.6g", (double)n->correct / (double)n->images);
        fputc('\n', out);
    }
    fclose(out);
    int code = file_write_atomic(path, text, bytes, err);
    free(text);
    return code;
}

/* What the figures are means over, and the key of their speed. */
static const char *const *units(const struct eval *e)
{
    static const char *const rows[][2] = {
        {N_("images"), "images_per_s"}, {N_("tokens"), "tokens_per_s"}, {N_("documents"), "documents_per_s"}};
    const struct objective *o = e->trainer->objective;
    return rows[!o->tokens ? 0 : o->classes ? 2 : 1];
}

static void print_text(const struct eval *e)
{
    char value[32];
    printf("%s", e->run ? e->run : e->config.path);
    if (e->run)
        printf(_(", step %lld%s"), (long long)e->step, e->average ? _(", average of the weights") : "");
    const char *unit = _(units(e)[0]);
    printf(_(": %lld %s"), (long long)e->found.images, unit);
    for (int i = 0; i < EVALUATION_METRICS && e->found.metrics[i].name; i++) {
        const struct score_row *row = score_named(e->found.metrics[i].name);
        printf(_(", %s %s"), _(row->label),
               score_text(value, sizeof value, row, e->found.metrics[i].value, "%.6f"));
    }
    printf(_(", %.1f %s/s, %.1f MiB\n"), (double)e->found.images / e->seconds, unit,
           (double)e->device->use.peak_total_bytes / (1 << 20));
}

static void print_found(const struct eval *e)
{
    json_int_t count = (json_int_t)e->found.images;
    json_t *root = json_pack("{s:o, s:o, s:I}", "weight", path_json(e->config.model_s.weight), "step",
                             e->run ? json_integer((json_int_t)e->step) : json_null(), units(e)[0], count);
    if (!e->trainer->objective->tokens)
        json_object_set_new(root, "bad", json_integer(data_images(e->data.val) - count));
    json_object_set_new(root, units(e)[1], json_real((double)count / e->seconds));
    json_object_set_new(root, "peak_bytes", json_integer((json_int_t)e->device->use.peak_total_bytes));
    for (int i = 0; i < EVALUATION_METRICS && e->found.metrics[i].name; i++)
        json_object_set_new(root, e->found.metrics[i].name, json_real(e->found.metrics[i].value));
    print_json(root);
}

static int eval_run(const struct arguments *args, struct error *err)
{
    const char *table = argument_text(args, "per-class", NULL);
    struct eval e = {0};
    int code = read_config(&e, args, err);
    if (!code) code = open_all(&e, table != NULL, err);
    if (!code) code = evaluate(&e, err);
    if (!code && table) code = write_classes(&e, table, err);
    if (!code) (argument_flag(args, "json") ? print_found : print_text)(&e);
    free(e.classes);
    class_order_free(&e.order);
    experiment_close_validation(&e.data);
    data_close(e.train);
    trainer_close(e.trainer);
    device_close(e.device);
    config_free(&e.config);
    free(e.run);
    return code;
}

static const struct option options[] = {
    {"checkpoint", .type = OPTION_TEXT, .value = "WHICH", .choices = "best|last",
     .help = "checkpoint of the run (default: the best one, else the last)"},
    {"ema", .help = "evaluate the average of the run's weights (train.ema)"},
    {"per-class", .type = OPTION_TEXT, .value = "FILE",
     .help = "write a CSV table: class, images (of a text classifier: documents), correct, top1 (a share)"},
    {"json", .help = "machine-readable output"},
    {0},
};

const struct command cmd_eval = {
    .name = "eval",
    .operands = "CONFIG|RUN|MODEL [key=value ...]",
    .summary = "evaluate a student, a classifier or a language model on data.val",
    .options = options,
    .min_operands = 1,
    .max_operands = -1,
    .run = eval_run,
};
