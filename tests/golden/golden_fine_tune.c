/* Fine-tuning by the trainer against timm: mixed and smoothed labels, drop path with the same branches
 * dropped, layer-wise decay of the learning rate, the average of the weights; each alone and all at once.
 * Loss and weights of six steps of torch.optim.AdamW in float64 (tests/make/fine_tune.py). */
#include "core/step/trainer.h"
#include "tests/golden/golden_training.h"

#include <stdio.h>

enum { BATCH = 4, STEPS = 6 };

static const char yaml[] =
    "model: {init: checkpoint, heads: 1}\n"
    "data: {image_size: 14}\n"
    "train: {objective: classify, batch_size: 4, precision: fp32, seed: 5}\n"
    "optim: {use_meopt: false, lr: 1.0e-2, beta2: 0.95, eps: 1.0e-3, clip_grad_norm: 0}\n"
    "device: {type: cpu}\n";

/* The images, and the labels of each step. */
struct source {
    float *images, *share; /* share, labels2: NULL in cases without mixing */
    int32_t *labels, *labels2;
    int64_t step, micro;
};

static void *read_as(const struct weights *golden, const char *name, enum dtype type)
{
    struct error err = {0};
    int64_t at = weights_find(golden, name);
    if (at < 0) return NULL;
    void *values = xmalloc((size_t)weights_tensor(golden, at)->count * 4);
    assert_int_equal(weights_read(golden, at, values, type, &err), 0);
    return values;
}

static int fetch(void *context, int64_t index, struct batch *batch, const int64_t **ids, struct error *err)
{
    static const int64_t none[BATCH];
    struct source *s = context;
    int64_t row = index * s->micro, at = (s->step - 1) * BATCH + row;
    (void)err;
    batch->input = s->images + row * 3 * 14 * 14;
    batch->labels = s->labels + at;
    batch->labels2 = s->labels2 ? s->labels2 + at : NULL;
    batch->share = s->share ? s->share + at : NULL;
    *ids = none;
    return 0;
}

/* Our average of a parameter. */
static float *average_of(const struct trainer *t, int index)
{
    struct meopt_error library = {0};
    size_t tensor = (size_t)t->tensors.of[index], bytes = meopt_state_bytes(t->opt, tensor);
    int64_t count = t->student->parameters[index].count;
    void *record = xmalloc(bytes);
    float *values = xmalloc((size_t)count * sizeof *values);
    if (meopt_state_save(t->opt, tensor, record, bytes, &library) ||
        meopt_state_average(record, bytes, values, count, &library))
        fail_msg("%s", library.message);
    free(record);
    return values;
}

/* The average is bf16, rounded at random to either side by less than its unit u = 2^-7 of the binade: without
 * bias, with a variance of at most u^2 / 4 for each step, of which the next leaves a share d^2, d the decay.
 * So no error is above u / (1 - d), and the mean of error / u is 0 within 5 standard deviations. Its slope
 * over the way from the average to the last weight, which shows a wrong decay, is 0 within 5 of its own. */
static void compare_averages(struct trainer *t, const char *dir, const struct reference *final, double decay)
{
    struct reference average = reference_of(t->student);
    double sum = 0, along = 0, squares = 0, noise = 0, sigma = 0.5 / sqrt(1 - decay * decay);
    int64_t count = 0;
    reference_read(&average, "fine_tune", dir, "average.safetensors");
    for (int i = 0; i < t->student->parameter_count; i++) {
        const struct parameter *p = &t->student->parameters[i];
        if (!p->trained) continue;
        float *ours = average_of(t, i);
        for (int64_t k = 0; k < p->count; k++, count++) {
            double exact = (double)average.values[i][k], error = (double)ours[k] - exact,
                   way = (double) final->values[i][k] - exact;
            double unit = ldexp(1, ilogb(fabs(exact) + fabs(way) + 1e-30) - 7);
            if (!(fabs(error) <= 1e-5 + unit / (1 - decay)))
                fail_msg("%s: %s[%d]: average %g, should be %g", dir, p->name, (int)k, (double)ours[k],
                         exact);
            sum += error / unit;
            along += error * way;
            squares += way * way;
            noise += sigma * unit * way * sigma * unit * way;
        }
        free(ours);
    }
    double mean = sum / (double)count / (sigma / sqrt((double)count)), slope = along / sqrt(noise);
    printf("%-12s average: mean error %.2f, slope %.2f standard deviations (1 %% of the way: %.2f)\n", dir,
           mean, slope, 0.01 * squares / sqrt(noise));
    assert_true(fabs(mean) <= 5 && fabs(slope) <= 5);
    reference_free(&average);
}

static void train(const char *dir, const char *more)
{
    struct error err = {0};
    struct config c;
    struct device *device;
    struct trainer *t;
    json_t *settings = golden_json("fine_tune", dir, "settings.json");
    char *path = golden_path("fine_tune", dir, "model.safetensors"),
         *weight = xasprintf("model.weight=%s", path), *overrides[16] = {weight};
    int count = 1;
    for (size_t i = 0; i < json_array_size(settings); i++)
        overrides[count++] = (char *)(uintptr_t)json_string_value(json_array_get(settings, i));
    char *words = xasprintf("%s", more), *at;
    for (char *word = strtok_r(words, " ", &at); word; word = strtok_r(NULL, " ", &at))
        overrides[count++] = word;
    if (config_load_text(&c, "fine_tune.yaml", yaml, sizeof yaml - 1, overrides, count, &err) ||
        device_open(&device, "cpu", 0, &err) || trainer_create(&t, &c, device, false, NULL, NULL, &err))
        fail_msg("%s: %s", dir, err.what);
    struct weights *golden = golden_open("fine_tune", dir, "golden.safetensors");
    struct source s = {.images = read_as(golden, "images", DTYPE_F32),
                       .share = read_as(golden, "share", DTYPE_F32),
                       .labels = read_as(golden, "labels", DTYPE_I32),
                       .labels2 = read_as(golden, "labels2", DTYPE_I32),
                       .micro = t->micro};
    double *loss = golden_tensor(golden, "loss", NULL), worst_loss = 0, worst = 0;
    for (s.step = 1; s.step <= STEPS; s.step++) {
        struct step_result result;
        if (trainer_step(t, s.step, c.optim.lr, &(struct batch_source){.fetch = fetch, .context = &s},
                         &result, &err))
            fail_msg("%s: %s", dir, err.what);
        worst_loss = fmax(worst_loss, fabs(result.loss / loss[s.step - 1] - 1));
    }
    float *ours[128] = {NULL};
    for (int i = 0; i < t->student->parameter_count; i++) {
        ours[i] = xmalloc((size_t)t->student->parameters[i].count * sizeof(float));
        assert_int_equal(trainer_export(t, i, ours[i], &err), 0);
    }
    struct reference final = reference_of(t->student);
    reference_read(&final, "fine_tune", dir, "final.safetensors");
    for (int i = 0; i < t->student->parameter_count; i++) {
        const struct parameter *p = &t->student->parameters[i];
        assert_true(final.values[i] || !p->trained); /* no file has the mask_token */
        for (int64_t k = 0; final.values[i] && k < p->count; k++)
            worst = fmax(worst, fabs((double)ours[i][k] - (double) final.values[i][k]));
        free(ours[i]);
    }
    printf("%-12s loss %.1e weights %.1e %s\n", dir, worst_loss, worst, more);
    if (!(worst_loss <= 1e-5 && worst <= 1e-5)) fail_msg("%s: outside the fp32 tolerance", dir);
    if (c.train.ema > 0) compare_averages(t, dir, &final, c.train.ema);
    reference_free(&final);
    free(s.images), free(s.share), free(s.labels), free(s.labels2), free(loss);
    weights_close(golden);
    trainer_close(t);
    device_close(device);
    config_free(&c);
    json_decref(settings);
    free(path), free(weight), free(words);
}

static void each_case(const char *dir)
{
    train(dir, "");
    train(dir, "train.micro_batch=2 optim.gradients=keep");
}

static void fine_tuning_equals_timm(void **state) { golden_each("fine_tune", each_case); }

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(fine_tuning_equals_timm)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
