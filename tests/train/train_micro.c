/* Micro-batches: accumulated gradients give the step of the whole batch. In fp32 up to rounding, for every
 * rule that is smooth in the gradient; with released gradients up to the errors of bf16 and compressed
 * accumulators. Three families, tiny towers with random weights. */
#include "core/base/log.h"
#include "core/config/config.h"
#include "core/train/trainer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { BATCH = 4, STEPS = 2, SIDE = 28 };

static float pixels[BATCH * 3 * SIDE * SIDE];
static int64_t ids[BATCH];

/* Every image is a function of its place in the batch alone, so all cuts of the batch see the same ones. */
static int some_images(void *context, int64_t index, struct batch *batch, const int64_t **image_ids,
                       struct error *err)
{
    const struct trainer *t = context;
    int64_t count = batch->count;
    (void)err;
    for (int64_t i = 0; i < count; i++) {
        ids[i] = index * t->micro + i;
        uint32_t random = (uint32_t)ids[i] * 2654435761u + 1;
        for (int64_t k = 0; k < 3 * SIDE * SIDE; k++) {
            random = random * 1664525u + 1013904223u;
            pixels[i * 3 * SIDE * SIDE + k] = (float)(random >> 16) / 32768.0f - 1.0f;
        }
    }
    batch->input = pixels;
    *image_ids = ids;
    return 0;
}

struct outcome {
    double loss[STEPS], norm[STEPS];
    float *before, *after;
    int64_t count;
};

static const char *const shapes[][16] = {
    {"eva_clip", "model_t.width=176", "model_t.depth=2", "model_t.hidden=352", "model_t.out=64",
     "model_t.patch=14", "model_s.width=88", "model_s.depth=2", "model_s.hidden=176", "model_s.out=64",
     "model_s.patch=14"},
    {"open_clip", "model_t.width=176", "model_t.depth=2", "model_t.hidden=352", "model_t.out=64",
     "model_t.patch=14", "model_s.width=160", "model_s.depth=2", "model_s.hidden=320", "model_s.out=64",
     "model_s.patch=14"},
    {"dinov2", "model_t.width=192", "model_t.depth=2", "model_t.hidden=128", "model_t.ffn=swiglu",
     "model_t.patch=14", "model_t.pos_grid=5", "model_s.width=128", "model_s.depth=2", "model_s.hidden=512",
     "model_s.patch=14", "model_s.pos_grid=5"},
};

static float *parameters(const struct trainer *t, int64_t *count)
{
    struct error err;
    *count = 0;
    for (int i = 0; i < t->student->parameter_count; i++) *count += t->student->parameters[i].count;
    float *values = malloc((size_t)*count * sizeof *values), *at = values;
    for (int i = 0; i < t->student->parameter_count; at += t->student->parameters[i++].count)
        if (trainer_export(t, i, at, &err)) fail_msg("%s", err.what);
    return values;
}

static struct outcome train(size_t shape, const char *const *more, int micro)
{
    char *overrides[40], micro_text[40];
    int count = 0;
    static const char *const common[] = {"model_t.arch=custom",      "model_s.arch=custom",
                                         "data.image_size=28",       "train.batch_size=4",
                                         "optim.clip_grad_norm=0.5", NULL};
    for (const char *const *o = common; *o; o++) overrides[count++] = (char *)(uintptr_t)*o;
    for (const char *const *o = shapes[shape] + 1; *o; o++) overrides[count++] = (char *)(uintptr_t)*o;
    for (const char *const *o = more; *o; o++) overrides[count++] = (char *)(uintptr_t)*o;
    snprintf(micro_text, sizeof micro_text, "train.micro_batch=%d", micro);
    overrides[count++] = micro_text;
    char path[1024];
    snprintf(path, sizeof path, "%s/configs/%s.yaml", MEOPT_SOURCE_DIR, shapes[shape][0]);
    struct config config;
    struct error err = {0};
    struct device *device = NULL;
    struct trainer *trainer = NULL;
    struct outcome out = {0};
    int code = config_load(&config, path, overrides, count, &err);
    if (!code) code = device_open(&device, "cpu", 0, &err);
    if (!code) code = trainer_create(&trainer, &config, device, true, NULL, NULL, &err);
    if (code) fail_msg("%s", err.what);
    out.before = parameters(trainer, &out.count);
    for (int step = 1; step <= STEPS; step++) {
        struct step_result result;
        if (trainer_step(trainer, step, 1e-3,
                         &(struct batch_source){.fetch = some_images, .context = trainer}, &result, &err))
            fail_msg("%s", err.what);
        out.loss[step - 1] = result.loss;
        out.norm[step - 1] = result.grad_norm;
    }
    out.after = parameters(trainer, &out.count);
    trainer_close(trainer);
    device_close(device);
    config_free(&config);
    return out;
}

static void outcome_free(struct outcome *o)
{
    free(o->before);
    free(o->after);
}

/* ||difference of the movements|| / ||movement|| */
static double apart(const struct outcome *a, const struct outcome *b)
{
    double difference = 0, size = 0;
    assert_true(a->count == b->count);
    assert_memory_equal(a->before, b->before, (size_t)a->count * sizeof *a->before);
    for (int64_t i = 0; i < a->count; i++) {
        double moved = (double)a->after[i] - (double)a->before[i],
               d = (double)b->after[i] - (double)a->after[i];
        size += moved * moved;
        difference += d * d;
    }
    assert_true(size > 0);
    return sqrt(difference / size);
}

static void compare(const char *const *more, double loss_tolerance, double norm_tolerance,
                    double moved_tolerance)
{
    static const int micros[] = {2, 1};
    for (size_t shape = 0; shape < sizeof shapes / sizeof *shapes; shape++) {
        struct outcome whole = train(shape, more, BATCH);
        for (size_t k = 0; k < sizeof micros / sizeof *micros; k++) {
            struct outcome cut = train(shape, more, micros[k]);
            double loss = 0, norm = 0, moved = apart(&whole, &cut);
            for (int s = 0; s < STEPS; s++) {
                loss = fmax(loss, fabs(cut.loss[s] - whole.loss[s]) / whole.loss[s]);
                norm = fmax(norm, fabs(cut.norm[s] - whole.norm[s]) / whole.norm[s]);
            }
            printf("%s, %s, %d x %d: loss %.1e, norm %.1e, movement %.1e apart\n", shapes[shape][0], more[0],
                   BATCH / micros[k], micros[k], loss, norm, moved);
            if (!(loss <= loss_tolerance && norm <= norm_tolerance && moved <= moved_tolerance))
                fail_msg("micro-batches are not the batch");
            outcome_free(&cut);
        }
        outcome_free(&whole);
    }
}

static void kept_in_fp32_equal_the_batch(void **state)
{
    (void)state;
    static const char *const sgd[] = {"optim.name=apsgd", "train.precision=fp32", "optim.use_meopt=false",
                                      NULL};
    static const char *const adam[] = {"optim.name=apadamw", "train.precision=fp32", "optim.use_meopt=false",
                                       "optim.eps=1e-4", NULL};
    compare(sgd, 1e-5, 1e-4, 1e-4);
    compare(adam, 1e-5, 1e-4, 1e-3);
}

static void released_stay_near_the_batch(void **state)
{
    (void)state;
    static const char *const kept[] = {"optim.name=apsgd", "optim.preset=balanced", "optim.gradients=keep",
                                       NULL};
    static const char *const released[] = {"optim.name=apsgd", "optim.preset=balanced",
                                           "optim.gradients=release", "optim.clip_mode=exact", NULL};
    compare(kept, 1e-3, 1e-3, 0.05);
    compare(released, 1e-3, 2e-3, 0.05);
}

/* Clipping by LAMB's own bound is exact as well where it is asked for. */
static void two_backward_passes_equal_kept_gradients(void **state)
{
    (void)state;
    static const char *const kept[] = {"optim.name=lamb", "optim.gradients=keep", "optim.max_grad_norm=0.01",
                                       "optim.clip_grad_norm=0", NULL};
    static const char *const released[] = {"optim.name=lamb",        "optim.gradients=release",
                                           "optim.clip_mode=exact",  "optim.max_grad_norm=0.01",
                                           "optim.clip_grad_norm=0", NULL};
    for (size_t shape = 0; shape < sizeof shapes / sizeof *shapes; shape++) {
        struct outcome a = train(shape, kept, BATCH), b = train(shape, released, BATCH);
        for (int s = 0; s < STEPS; s++) {
            assert_true(a.norm[s] > 0.01);
            assert_true(fabs(a.norm[s] - b.norm[s]) <= 1e-5 * a.norm[s]);
            assert_true(fabs(a.loss[s] - b.loss[s]) <= 1e-5 * a.loss[s]);
        }
        outcome_free(&a);
        outcome_free(&b);
    }
}

/* To half a unit of the last bit: fp32 has 23 bits of mantissa, as has bf16 with 16 residual bits; the other
 * formats have 15, 11 and 7. */
static void what_is_loaded_is_what_the_format_can_hold(void **state)
{
    (void)state;
    static const struct {
        const char *weights;
        int bits;
    } formats[] = {{"optim.weights=bf16+16", 24},
                   {"optim.weights=bf16+8", 15},
                   {"optim.weights=bf16+4", 11},
                   {"optim.weights=bf16", 7}};
    const char *const wide[] = {"train.precision=fp32", NULL};
    struct outcome exact = train(0, wide, BATCH);
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        const char *const more[] = {formats[f].weights, NULL};
        struct outcome held = train(0, more, BATCH);
        for (int64_t i = 0; i < exact.count; i++) {
            float off = fabsf(held.before[i] - exact.before[i]);
            if (off > ldexpf(fabsf(exact.before[i]), -1 - formats[f].bits))
                fail_msg("%s: value %lld is %.9g instead of %.9g", formats[f].weights, (long long)i,
                         (double)held.before[i], (double)exact.before[i]);
        }
        outcome_free(&held);
    }
    outcome_free(&exact);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_loaded_is_what_the_format_can_hold),
                                       cmocka_unit_test(kept_in_fp32_equal_the_batch),
                                       cmocka_unit_test(released_stay_near_the_batch),
                                       cmocka_unit_test(two_backward_passes_equal_kept_gradients)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
