/* Distillation by the trainer against PyTorch: class tokens, patches, their mean and tokens of blocks, of two
 * teachers of different families, sizes and patches; each form of the loss, and heads without, with one and
 * with two layers. Loss and weights of six steps of torch.optim.AdamW in float64 (tests/make/targets.py). */
#include "core/base/file.h"
#include "core/step/trainer.h"
#include "core/train/target_maps.h"
#include "tests/golden/golden_training.h"

#include <stdio.h>

enum { BATCH = 2, STEPS = 6, TOWERS = 3 };

static const char yaml[] =
    "model_t: [{heads: 2, init: checkpoint}, {heads: 2, image_size: 40}]\n"
    "model_s: {init: checkpoint, heads: 2}\n"
    "data: {image_size: 28}\n"
    "data_s: {image_size: 21}\n"
    "train: {batch_size: 2, precision: fp32, seed: 5}\n"
    "optim: {use_meopt: false, lr: 1.0e-2, beta2: 0.95, eps: 1.0e-3, clip_grad_norm: 0, head_lr_scale: 1}\n"
    "device: {type: cpu}\n";

/* The images of each tower, of the student last. */
struct source {
    const struct trainer *t;
    float *images[TOWERS];
    char *chunk; /* as the loader lays them out */
};

static int fetch(void *context, int64_t index, struct batch *batch, const int64_t **ids, struct error *err)
{
    static const int64_t numbers[BATCH] = {0, 1};
    static const int64_t sides[TOWERS] = {28, 40, 21};
    struct source *s = context;
    (void)err;
    for (int i = 0; i < TOWERS; i++) {
        size_t at = i < 2 ? s->t->teachers[i].input_at : s->t->in.student_at;
        int64_t pixels = 3 * sides[i] * sides[i];
        memcpy(s->chunk + at, s->images[i] + index * s->t->micro * pixels,
               (size_t)(batch->count * pixels) * sizeof(float));
    }
    batch->input = s->chunk;
    *ids = numbers + index * s->t->micro;
    return 0;
}

static void train(const char *dir, const char *more)
{
    static const char *const files[TOWERS] = {"teacher", "teacher2", "student"}, *const keys[TOWERS] = {
                                                                                     "model_t.weight",
                                                                                     "model_t2.weight",
                                                                                     "model_s.weight"};
    struct error err = {0};
    struct config c;
    struct device *device;
    struct trainer *t;
    json_t *settings = golden_json("targets", dir, "settings.json");
    char *overrides[40], *weights[TOWERS];
    int count = 0;
    for (int i = 0; i < TOWERS; i++) {
        char *file = xasprintf("%s.safetensors", files[i]), *path = golden_path("targets", dir, file);
        overrides[count++] = weights[i] = xasprintf("%s=%s", keys[i], path);
        free(path), free(file);
    }
    for (size_t i = 0; i < json_array_size(settings); i++)
        overrides[count++] = (char *)(uintptr_t)json_string_value(json_array_get(settings, i));
    char *words = xasprintf("%s", more), *at;
    for (char *word = strtok_r(words, " ", &at); word; word = strtok_r(NULL, " ", &at))
        overrides[count++] = word;
    if (config_load_text(&c, "targets.yaml", yaml, sizeof yaml - 1, overrides, count, &err) ||
        device_open(&device, "cpu", 0, &err) || trainer_create(&t, &c, device, false, NULL, NULL, &err))
        fail_msg("%s: %s", dir, err.what);
    char *maps = golden_path("targets", dir, "targets.safetensors");
    if (!file_absent(maps) && target_maps_load(t, maps, &err)) fail_msg("%s: %s", dir, err.what);
    free(maps);
    struct weights *golden = golden_open("targets", dir, "golden.safetensors");
    struct source s = {.t = t, .chunk = xcalloc(1, trainer_input_bytes(t, t->micro))};
    for (int i = 0; i < TOWERS; i++) {
        char name[] = {'i', 'm', 'a', 'g', 'e', 's', (char)('0' + i), 0};
        int64_t n;
        double *values = golden_tensor(golden, name, &n);
        s.images[i] = xmalloc((size_t)n * sizeof(float));
        for (int64_t k = 0; k < n; k++) s.images[i][k] = (float)values[k];
        free(values);
    }
    double *loss = golden_tensor(golden, "loss", NULL), worst_loss = 0, worst = 0;
    for (int step = 1; step <= STEPS; step++) {
        struct step_result result;
        if (trainer_step(t, step, c.optim.lr, &(struct batch_source){.fetch = fetch, .context = &s}, &result,
                         &err))
            fail_msg("%s: %s", dir, err.what);
        worst_loss = fmax(worst_loss, fabs(result.loss / loss[step - 1] - 1));
    }
    float *ours[160] = {NULL};
    for (int i = 0; i < t->student->parameter_count; i++) {
        ours[i] = xmalloc((size_t)t->student->parameters[i].count * sizeof(float));
        assert_int_equal(trainer_export(t, i, ours[i], &err), 0);
    }
    struct reference final = reference_of(t->student);
    reference_read(&final, "targets", dir, "final.safetensors");
    const char *name = "";
    for (int i = 0; i < t->student->parameter_count; i++) {
        const struct parameter *p = &t->student->parameters[i];
        assert_true(final.values[i] || !p->trained); /* no file has the mask_token */
        for (int64_t k = 0; final.values[i] && k < p->count; k++) {
            double error = fabs((double)ours[i][k] - (double) final.values[i][k]);
            if (!(error <= worst)) worst = error, name = p->name;
        }
    }
    printf("%-10s loss %.1e weights %.1e %s %s\n", dir, worst_loss, worst, name, more);
    if (!(worst_loss <= 1e-6 && worst <= 1e-5)) fail_msg("%s: outside the fp32 tolerance", dir);
    for (int i = 0; i < t->student->parameter_count; i++) free(ours[i]);
    reference_free(&final);
    for (int i = 0; i < TOWERS; i++) free(s.images[i]), free(weights[i]);
    free(s.chunk), free(loss), free(words);
    weights_close(golden);
    trainer_close(t);
    device_close(device);
    config_free(&c);
    json_decref(settings);
}

static void each_case(const char *dir)
{
    train(dir, "");
    train(dir, "train.micro_batch=1 optim.gradients=keep");
    train(dir, "train.recompute=block");
}

static void targets_equal_pytorch(void **state) { golden_each("targets", each_case); }

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(targets_equal_pytorch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
