/* Labels of a step: the loss is a mean over the labelled images of the whole batch, images without a label
 * change nothing, and labels that the classifier does not have are refused before the step. */
#include "core/step/trainer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 6, SIDE = 14, VALUES = 3 * SIDE * SIDE, CLASSES = 7 };

static const char yaml[] = "model: {family: dinov2, init: random, width: 64, depth: 1, heads: 1, hidden: 64, "
                           "patch: 7, pos_grid: 2}\n"
                           "data: {image_size: 14}\n"
                           "train: {objective: classify, batch_size: 6}\n"
                           "optim: {lr: 1.0e-2, warmup_steps: 0, schedule: constant, clip_grad_norm: 0}\n"
                           "device: {type: cpu}\n";

struct source {
    float images[BATCH][VALUES];
    int32_t labels[BATCH], labels2[BATCH];
    float share[BATCH];
    bool labelled, mixed;
    int64_t micro;
};

static int fetch(void *context, int64_t index, struct batch *batch, const int64_t **ids, struct error *err)
{
    static const int64_t none[BATCH];
    struct source *s = context;
    int64_t at = index * s->micro;
    (void)err;
    batch->input = s->images[at];
    batch->labels = s->labelled ? s->labels + at : NULL;
    batch->labels2 = s->mixed ? s->labels2 + at : NULL;
    batch->share = s->mixed ? s->share + at : NULL;
    *ids = none;
    return 0;
}

/* Images whose pixels depend on `seed` in the rows without a label only. */
static void fill(struct source *s, const int32_t labels[BATCH], unsigned seed)
{
    *s = (struct source){.labelled = true};
    for (int i = 0; i < BATCH; i++) {
        unsigned x = 2463534242u + (unsigned)i + (labels[i] < 0 ? seed : 0);
        s->labels[i] = labels[i];
        s->labels2[i] = (labels[i] + 1) % CLASSES;
        s->share[i] = 1;
        for (int k = 0; k < VALUES; k++) {
            x ^= x << 13, x ^= x >> 17, x ^= x << 5;
            s->images[i][k] = (float)(x % 2001) * 1e-3f - 1;
        }
    }
}

/* Runs `steps` steps; the results of each. Returns the code of the last one. */
static int train(struct source *s, int steps, struct step_result *results, struct error *err,
                 const char *more)
{
    struct config c;
    struct device *device;
    struct trainer *t;
    char *overrides[] = {(char[]){"model.classes=7"}, (char *)(uintptr_t)more};
    int code = config_load_text(&c, "labels.yaml", yaml, sizeof yaml - 1, overrides, more ? 2 : 1, err);
    if (code) fail_msg("%s", err->what);
    assert_int_equal(device_open(&device, "cpu", 0, err), 0);
    if (trainer_create(&t, &c, device, false, NULL, NULL, err)) fail_msg("%s", err->what);
    s->micro = t->micro;
    for (int i = 0; i < steps && !code; i++)
        code = trainer_step(t, i + 1, c.optim.lr, &(struct batch_source){.fetch = fetch, .context = s},
                            &results[i], err);
    trainer_close(t);
    device_close(device);
    config_free(&c);
    return code;
}

static const int32_t some[BATCH] = {3, -1, 0, -1, -1, 6}, none[BATCH] = {-1, -1, -1, -1, -1, -1};
static struct source source;

static void the_loss_is_a_mean_over_labelled_images(void **state)
{
    struct step_result whole[3], parts[3];
    struct error err;
    fill(&source, some, 0);
    assert_int_equal(train(&source, 3, whole, &err, NULL), 0);
    assert_int_equal(train(&source, 3, parts, &err, "train.micro_batch=2"), 0); /* 1, 1 and 1 of 2 */
    assert_true(fabs(whole[0].loss - log(CLASSES)) < 1e-6 && fabs(parts[0].loss - log(CLASSES)) < 1e-6);
    assert_string_equal(whole[0].metrics[0].name, "top1");
    assert_true(fabs(3 * whole[0].metrics[0].value - 1) <
                1e-9); /* all logits are equal: the first class of three labels */
    assert_true(fabs(parts[2].loss - whole[2].loss) < 1e-2 * whole[2].loss);
    fill(&source, (const int32_t[BATCH]){3, 0, 6, -1, -1, -1}, 0);
    assert_int_equal(train(&source, 1, parts, &err, "train.micro_batch=3"),
                     0); /* the last part has no labels */
    assert_true(fabs(parts[0].loss - log(CLASSES)) < 1e-6);
}

static void images_without_a_label_change_nothing(void **state)
{
    struct step_result a[3], b[3];
    struct error err;
    /* in bf16 the integer GEMM of some instruction sets has one scale for several images */
    static const char fp32[] = "train.precision=fp32";
    fill(&source, some, 1);
    assert_int_equal(train(&source, 3, a, &err, fp32), 0);
    fill(&source, some, 2);
    assert_int_equal(train(&source, 3, b, &err, fp32), 0);
    for (int i = 0; i < 3; i++) assert_true(a[i].loss == b[i].loss && a[i].grad_norm == b[i].grad_norm);
    source.mixed = true; /* with a share of 1 */
    assert_int_equal(train(&source, 3, b, &err, fp32), 0);
    for (int i = 0; i < 3; i++) assert_true(a[i].loss == b[i].loss && a[i].grad_norm == b[i].grad_norm);
    fill(&source, none, 0);
    assert_int_equal(train(&source, 2, a, &err, fp32), 0);
    assert_true(isnan(a[1].loss) && isnan(a[1].metrics[0].value) && a[1].grad_norm <= 0);
}

static void labels_are_checked(void **state)
{
    struct step_result result;
    struct error err;
    fill(&source, (const int32_t[BATCH]){0, 1, 2, 3, 4, CLASSES}, 0);
    assert_int_equal(train(&source, 1, &result, &err, "train.micro_batch=2"), EXIT_CONFIG);
    assert_non_null(strstr(err.hint, "classes"));
    fill(&source, (const int32_t[BATCH]){0, 1, 2, 3, 4, -2}, 0);
    assert_int_equal(train(&source, 1, &result, &err, NULL), EXIT_CONFIG);
    fill(&source, some, 0);
    source.labelled = false;
    assert_int_equal(train(&source, 1, &result, &err, NULL), EXIT_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_loss_is_a_mean_over_labelled_images),
                                       cmocka_unit_test(images_without_a_label_change_nothing),
                                       cmocka_unit_test(labels_are_checked)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
