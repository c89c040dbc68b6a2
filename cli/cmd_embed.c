/* meopt embed: a tower's output for every image,
 * in file order, so that anybody can check it against PyTorch. */
#include "cli/command.h"
#include "core/base/file.h"
#include "core/train/experiment.h"
#include "core/train/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int embed_run(const struct arguments *args, struct error *err)
{
    const char *role = argument_text(args, "role", NULL), *out = argument_text(args, "out", NULL);
    if (!role || !out)
        return error_set(err, EXIT_USAGE, "see 'meopt embed --help'",
                         "meopt embed needs --role teacher|student and --out FILE");
    bool student = strcmp(role, "student") == 0;
    struct config c;
    struct geometry geometry[2];
    struct weights *weights[2] = {NULL, NULL};
    struct device *device = NULL;
    struct tower *tower = NULL;
    struct data *data = NULL;
    float *values = NULL;
    int code = config_load(&c, args->operands[0], args->operands + 1, args->operand_count - 1, err);
    if (code) return code;
    code = trainer_geometry(&c, false, &geometry[0], &geometry[1], &weights[0], &weights[1], err);
    if (!code && !weights[student])
        code = error_set(err, EXIT_CONFIG, NULL, "the %s has no checkpoint", role);
    if (!code) code = train_device_open(&device, &c, true, err);
    enum dtype type = trainer_tower_type(student ? &c.model_s : &c.model_t);
    struct tower_options options = {.batch = c.train.batch_size,
                                    .compute = type,
                                    .weight_type = type,
                                    .weights_class = MEMORY_TEACHER,
                                    .activations_class = MEMORY_TEACHER};
    if (!code) code = tower_create(&tower, device, &geometry[student], &options, err);
    if (!code && (code = tower_load(tower, weights[student], NULL, NULL, err)) != 0 && !err->file[0])
        error_at(err, student ? c.model_s.weight : c.model_t.weight, 0, 0);
    struct data_options images = {0};
    if (!code) {
        images = train_data_options(&c);
        images.whole = true;
        images.shuffle = images.augment = false;
        code = data_open(&data, &images, err);
    }
    if (!code) code = data_start(data, 0, err);
    int64_t count = 0;
    void *scratch = NULL;
    float *input = NULL;
    if (!code) {
        scratch = device_alloc(device, MEMORY_WORKSPACE, tower->scratch_bytes, "scratch", err);
        input = scratch ? device_alloc(device, MEMORY_DATA,
                                       geometry_input_bytes(&tower->geometry, options.batch), "images", err)
                        : NULL;
        values = malloc((size_t)(data_images(data) * tower->out_width) * sizeof *values);
        if (!scratch || !input) code = err->code;
        else if (!values)
            code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for %lld embeddings",
                             (long long)data_images(data));
        else tower_bind_scratch(tower, scratch);
    }
    struct data_batch batch;
    while (!code && (code = data_next(data, &batch, err)) == 0 && batch.count > 0) {
        device->upload(device, input, batch.images, geometry_input_bytes(&tower->geometry, batch.count));
        tower_forward(tower, &(struct batch){input, batch.count});
        device->sync(device);
        code = device_check(device, err);
        device->download(device, values + count * tower->out_width, tower->out,
                         (size_t)(batch.count * tower->out_width) * sizeof(float));
        count += batch.count;
    }
    if (!code) {
        struct weights_row table = {.name = "embeddings",
                                    .dtype = DTYPE_F32,
                                    .ndim = 2,
                                    .shape = {count, tower->out_width},
                                    .data = values};
        code = weights_write_safetensors(out, &table, 1, NULL, err);
        if (!code)
            printf("%s: embeddings [%lld, %lld] of the %s\n", out, (long long)count,
                   (long long)tower->out_width, role);
    }
    free(values);
    data_close(data);
    tower_close(tower);
    device_close(device);
    weights_close(weights[0]);
    weights_close(weights[1]);
    config_free(&c);
    return code;
}

static const struct option options[] = {
    {"role", 0, OPTION_TEXT, "ROLE", "teacher|student", 0, 0, "which tower"},
    {"out", 'o', OPTION_TEXT, "FILE", NULL, 0, 0,
     "safetensors file to write: embeddings (images, width), fp32"},
    {0},
};

const struct command cmd_embed = {"embed",
                                  "CONFIG [key=value ...]",
                                  "a tower's output for every image, in the order of their names",
                                  NULL,
                                  options,
                                  1,
                                  -1,
                                  false,
                                  embed_run};
