/* meopt embed: writes a tower's output for every image, with the names of the images, for example to
 * compare it with PyTorch or to search images. Row i belongs to name i. An image that cannot be decoded has
 * a row of NaN; with --skip-bad it has neither row nor name. */
#include "cli/config/cmd_config.h"
#include "cli/command.h"
#include "cli/run_weights.h"
#include "core/base/log.h"
#include "core/device/facts.h"
#include "core/experiment/adapters.h"
#include "core/experiment/experiment.h"
#include "core/experiment/preprocess.h"
#include "core/step/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct embed {
    struct config config;
    int role; /* TOWER_STUDENT, or a teacher from 0 */
    bool skip_bad;
    struct model_shape model_shape;
    struct weights *weights;
    struct device *device;
    struct tower *tower;
    void *scratch;
    float *input; /* (batch, 3, S, S) on the device */
    struct data *data;
    float *values; /* (rows, out_width) */
    char *names;   /* names of the rows, each with its NUL */
    size_t names_bytes;
    int64_t rows, bad;
};

static const char *role_of(const struct embed *e) { return config_tower_name(e->role); }

static const struct config_tower *config_of(const struct embed *e)
{
    return e->role == TOWER_STUDENT ? &e->config.model_s : &e->config.model_t[e->role];
}

static int read_config(struct embed *e, const struct arguments *args, struct error *err)
{
    const char *role = argument_text(args, "role", NULL);
    char *run;
    int64_t step;
    int code = run_weights_config(&e->config, &run, args->operands, args->operand_count, err);
    if (!role && !run)
        code = error_set(err, EXIT_USAGE, "see 'meopt embed --help'",
                         "meopt embed requires --role teacher|student, or a run");
    if (!code && objective_of(&e->config)->tokens)
        code = error_set(err, EXIT_CONFIG, "continue a text with it: meopt generate",
                         "meopt embed requires images, but train.objective is language");
    for (e->role = role ? 0 : TOWER_STUDENT; role && strcmp(role, role_of(e)) != 0;) e->role++;
    if (!code && e->role != TOWER_STUDENT && e->role >= config_teachers(&e->config))
        code = error_set(err, EXIT_USAGE, "leave it out, or add it to model_t",
                         "there is no %s: the number of teachers is %d", role, config_teachers(&e->config));
    e->skip_bad = argument_flag(args, "skip-bad");
    if (!code && run && e->role == TOWER_STUDENT)
        code = run_weights_use(&e->config, run, RUN_NEWEST, &step, err);
    free(run);
    return code;
}

static int open_tower(struct embed *e, struct error *err)
{
    struct config *c = &e->config;
    char images[320];
    bool student = e->role == TOWER_STUDENT;
    char key[32];
    snprintf(key, sizeof key, "%s.weight", config_tower_section(e->role));
    int code = experiment_check_file(c, key, err);
    if (!code) code = experiment_tower_shape(c, e->role, &e->model_shape, &e->weights, err);
    if (!code) code = experiment_open_device(&e->device, c, true, err);
    if (code) return code;
    char text[512];
    model_shape_text(&e->model_shape, text, sizeof text);
    fprintf(stderr, "%s  %s\n", _(role_of(e)), text);
    preprocess_text(c, e->role, images, sizeof images);
    log_info("images: %s", images);
    device_facts_warn(e->device);
    enum dtype type = experiment_tower_type(config_of(e));
    struct tower_options options = {.batch = c->train.batch_size,
                                    .compute = type,
                                    .weight_type = type,
                                    .weights_class = MEMORY_TEACHER,
                                    .activations_class = MEMORY_TEACHER};
    if (student && (code = adapters_options(c, &e->model_shape, &options.lora, err)) != 0) return code;
    if ((code = tower_create(&e->tower, e->device, &e->model_shape, &options, err)) != 0) return code;
    if ((code = tower_load(e->tower, e->weights, NULL, NULL, err)) != 0) {
        if (!err->file[0]) error_at(err, config_of(e)->weight, 0, 0);
        return code;
    }
    if (student && (code = run_load_adapters(c, e->tower, err)) != 0) return code;
    size_t input_bytes = model_shape_input_bytes(&e->model_shape, options.batch);
    e->scratch = device_alloc(e->device, MEMORY_WORKSPACE, e->tower->scratch_bytes, "scratch", err);
    if (!e->scratch) return err->code;
    e->input = device_alloc(e->device, MEMORY_DATA, input_bytes, "images", err);
    if (!e->input) return err->code;
    tower_bind_scratch(e->tower, e->scratch);
    return 0;
}

static int open_images(struct embed *e, struct error *err)
{
    struct data_options images = experiment_tower_images(&e->config, e->role);
    images.whole = true;
    images.shuffle = images.augment = false;
    images.apart = NULL; /* images of data.val have embeddings, too */
    int code = data_open(&e->data, &images, err);
    if (code) return code;
    data_report(e->data);
    int64_t count = data_images(e->data);
    size_t bytes = 0;
    for (int64_t i = 0; i < count; i++) bytes += strlen(data_name(e->data, i)) + 1;
    e->values = malloc((size_t)(count * e->tower->out_width) * sizeof *e->values);
    e->names = malloc(bytes);
    if (!e->values || !e->names)
        return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for %lld embeddings", (long long)count);
    return data_start(e->data, 0, err);
}

/* Stores the row of an image; row NULL: it cannot be decoded. */
static int store_row(struct embed *e, int64_t image, const float *row, struct error *err)
{
    const char *name = data_name(e->data, image);
    int64_t width = e->tower->out_width;
    float *to = e->values + e->rows * width;
    if (!row) e->bad++;
    if (!row && e->skip_bad) return 0;
    for (int64_t k = 0; k < width; k++) to[k] = row ? row[k] : NAN;
    for (int64_t k = 0; row && k < width; k++) {
        if (isfinite(row[k])) continue;
        char clean[256];
        error_set(err, EXIT_DIVERGED, "check its weights for NaN and infinities",
                  "the %s's output for %s is not finite", _(role_of(e)),
                  name_printable(clean, sizeof clean, name));
        return error_at(err, config_of(e)->weight, 0, 0);
    }
    size_t bytes = strlen(name) + 1;
    memcpy(e->names + e->names_bytes, name, bytes);
    e->names_bytes += bytes;
    e->rows++;
    return 0;
}

static int embed_all(struct embed *e, struct error *err)
{
    int64_t width = e->tower->out_width, at = 0;
    size_t out_bytes = (size_t)(e->config.train.batch_size * width) * sizeof(float);
    float *out = malloc(out_bytes);
    struct data_batch batch;
    int code = out ? 0 : error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for a batch of embeddings");
    while (!code && (code = data_next(e->data, &batch, err)) == 0 && batch.count > 0) {
        e->device->upload(e->device, e->input, batch.images,
                          model_shape_input_bytes(&e->model_shape, batch.count));
        tower_forward(e->tower, &(struct batch){.input = e->input, .count = batch.count});
        e->device->sync(e->device);
        code = device_check(e->device, err);
        e->device->download(e->device, out, e->tower->out, (size_t)(batch.count * width) * sizeof(float));
        for (int64_t i = 0; i < batch.count && !code; i++)
            code = store_row(e, at + i, batch.ids[i] < 0 ? NULL : out + i * width, err);
        at += batch.count;
    }
    free(out);
    return code;
}

static int write_all(const struct embed *e, const char *out, bool json, struct error *err)
{
    char images[24], bad[24], weight[4096];
    snprintf(images, sizeof images, "%lld", (long long)e->rows);
    snprintf(bad, sizeof bad, "%lld", (long long)e->bad);
    name_printable(weight, sizeof weight, config_of(e)->weight);
    const char *const metadata[] = {
        "role", role_of(e), "weight", weight,       "images",
        images, "bad",      bad,      "bad_images", e->skip_bad ? "left out" : "nan",
        NULL};
    const struct weights_row tensors[] = {{.name = "embeddings",
                                           .dtype = DTYPE_F32,
                                           .ndim = 2,
                                           .shape = {e->rows, e->tower->out_width},
                                           .data = e->values},
                                          {.name = "names",
                                           .dtype = DTYPE_U8,
                                           .ndim = 1,
                                           .shape = {(int64_t)e->names_bytes},
                                           .data = e->names}};
    int code = weights_write_safetensors(out, tensors, 2, metadata, err);
    if (code) return code;
    if (json)
        print_json(json_pack("{s:o, s:s, s:I, s:I, s:I}", "path", path_json(out), "role", role_of(e),
                             "images", (json_int_t)e->rows, "width", (json_int_t)e->tower->out_width, "bad",
                             (json_int_t)e->bad));
    else
        printf(_("%s: embeddings [%lld, %lld] of the %s, and the names of the images\n"), out,
               (long long)e->rows, (long long)e->tower->out_width, _(role_of(e)));
    if (!e->bad || e->skip_bad) return 0;
    error_set(err, EXIT_FAILED, "repair them, or omit them with --skip-bad",
              "cannot decode %lld of %lld images: their rows are NaN", (long long)e->bad, (long long)e->rows);
    return error_at(err, out, 0, 0);
}

static int embed_run(const struct arguments *args, struct error *err)
{
    const char *out = argument_text(args, "out", NULL);
    if (!out)
        return error_set(err, EXIT_USAGE, "see 'meopt embed --help'", "meopt embed requires --out FILE");
    struct embed e = {0};
    int code = read_config(&e, args, err);
    if (!code) code = open_tower(&e, err);
    if (!code) code = open_images(&e, err);
    if (!code) code = embed_all(&e, err);
    if (!code) code = write_all(&e, out, argument_flag(args, "json"), err);
    free(e.values);
    free(e.names);
    data_close(e.data);
    tower_close(e.tower);
    device_close(e.device);
    weights_close(e.weights);
    config_free(&e.config);
    return code;
}

static const struct option options[] = {
    {"role", .type = OPTION_TEXT, .value = "ROLE", .choices = "student|teacher|teacher2|teacher3|teacher4",
     .help = "tower (default for a run: student)"},
    {"out", .letter = 'o', .type = OPTION_TEXT, .value = "FILE",
     .help = "output file, safetensors: embeddings (images, width), fp32, and names"},
    {"skip-bad", .help = "leave out images that cannot be decoded (default: their rows are NaN)"},
    {"json", .help = "machine-readable output"},
    {0},
};

const struct command cmd_embed = {
    .name = "embed",
    .operands = "CONFIG|RUN [key=value ...]",
    .summary = "write the embeddings of a tower for all images",
    .options = options,
    .min_operands = 1,
    .max_operands = -1,
    .run = embed_run,
};
