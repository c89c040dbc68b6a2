/* Clipping, in each variant of a step. LAMB's own (max_grad_norm) works from the first step, also alone. A
 * gradient that is not finite is reported with the tensors that did not step. The rules are configured so
 * that a step is as long as the gradient: no trust ratio, and an eps that makes sqrt(v) negligible. */
#include "core/train/trainer.h"
#include "tests/train/tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

enum { BATCH = 2, PIXELS = 3 * 28 * 28 };
#define LR    1.0
#define EPS   1.0
#define LIMIT 1e-3 /* far below the norm of any of these gradients */
static const char lamb[] = "train.precision=fp32 optim.preset=quality optim.weights=fp32 optim.state_m=fp32 "
                           "optim.state_v=fp32 optim.name=lamb optim.weight_decay=0 optim.eps=1 "
                           "optim.clip_grad_norm=0";

static float image[BATCH * PIXELS];
static const int64_t ids[BATCH] = {0, 1};

static int give(void *context, int64_t index, struct batch *batch, const int64_t **image_ids,
                struct error *err)
{
    const struct trainer *t = context;
    (void)err;
    batch->input = image + index * t->micro * PIXELS;
    *image_ids = ids + index * t->micro;
    return 0;
}

static float *weights_of(const struct trainer *t, int64_t *count)
{
    struct error err = {0};
    *count = 0;
    for (int i = 0; i < t->student->parameter_count; i++) *count += t->student->parameters[i].count;
    float *weights = xmalloc((size_t)*count * sizeof *weights), *at = weights;
    for (int i = 0; i < t->student->parameter_count; at += t->student->parameters[i++].count)
        assert_int_equal(trainer_export(t, i, at, &err), 0);
    return weights;
}

/* How far the weights move in the first step, in units of the gradient's norm; *norm: the reported one. */
static double moved(const char *way, const char *limit, double *norm)
{
    struct error err = {0};
    struct tiny tiny = {.directory = "/nowhere"};
    struct step_result result;
    int64_t count;
    char *settings = xasprintf("%s %s %s", lamb, way, limit);
    if (tiny_open(&tiny, settings, NULL, NULL, &err)) fail_msg("%s: %s", settings, err.what);
    float *before = weights_of(tiny.trainer, &count);
    if (trainer_step(tiny.trainer, 1, LR, &(struct batch_source){.fetch = give, .context = tiny.trainer},
                     &result, &err))
        fail_msg("%s: %s", settings, err.what);
    float *after = weights_of(tiny.trainer, &count);
    double squares = 0;
    for (int64_t i = 0; i < count; i++) {
        double d = (double)after[i] - (double)before[i];
        squares += d * d;
    }
    free(before);
    free(after);
    free(settings);
    tiny_close(&tiny);
    *norm = result.grad_norm;
    return sqrt(squares) * EPS / LR;
}

static void lamb_clips_its_first_step(void **state)
{
    (void)state;
    static const char *const ways[] = {
        "optim.gradients=keep", "optim.gradients=release optim.clip_mode=exact",
        "optim.gradients=release optim.clip_mode=previous", "optim.gradients=release optim.clip_mode=block",
        "optim.gradients=release train.micro_batch=1"};
    char limit[64];
    snprintf(limit, sizeof limit, "optim.max_grad_norm=%g", LIMIT);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        double norm, free_norm, free_way = moved(ways[w], "", &free_norm), way = moved(ways[w], limit, &norm);
        bool block = strstr(ways[w], "previous") || strstr(ways[w], "block");
        printf("%s: norm %.4g, moved %.4g, with the limit %.4g\n", ways[w], free_norm, free_way, way);
        assert_true(free_norm > 100 * LIMIT && free_way > 10 * LIMIT); /* else this shows nothing */
        assert_true(fabs(norm - free_norm) <= 1e-3 * free_norm);       /* told as it was, before clipping */
        /* sqrt(v) next to eps only shortens it; rounding of the weights is a thousandth of it */
        if (way > 1.01 * LIMIT) fail_msg("%s: moved by %g, the limit is %g", ways[w], way, LIMIT);
        if (!block && way < 0.5 * LIMIT) fail_msg("%s: moved by %g of %g", ways[w], way, LIMIT);
    }
}

/* The device's own slots, but that the `left`-th gradient that is measured or stepped with is not finite. */
static const struct device_ops *own_ops;
static const struct device_optim *own_optim;
static int left;

/* One NaN in fp32, two in bf16. */
static void poison(const void *gradient)
{
    if (--left == 0) memset((void *)(uintptr_t)gradient, 0xff, 4);
}

static void poisoned_squares(struct device *dev, const void *p, enum dtype type, int64_t n, double *sum,
                             int *finite)
{
    poison(p);
    own_ops->sum_squares(dev, p, type, n, sum, finite);
}

static void poisoned_step(struct device *dev, struct optim_work *work, struct optim_sweep *sweep)
{
    for (size_t i = 0; i < sweep->count; i++) poison(sweep->tasks[i].gradient);
    own_optim->step(dev, work, sweep);
}

/* The report says whether weights have changed. */
static bool diverges(const char *settings, int tensor)
{
    struct error err = {0};
    struct tiny tiny = {.directory = "/nowhere"};
    struct step_result result;
    int64_t count;
    if (tiny_open(&tiny, settings, NULL, NULL, &err)) fail_msg("%s: %s", settings, err.what);
    struct device_ops ops = *(own_ops = tiny.device->ops);
    struct device_optim optim = *(own_optim = tiny.device->optim);
    ops.sum_squares = poisoned_squares;
    optim.step = poisoned_step;
    tiny.device->ops = &ops;
    tiny.device->optim = &optim;
    float *before = weights_of(tiny.trainer, &count);
    left = tensor;
    assert_int_equal(trainer_step(tiny.trainer, 1, 1e-3,
                                  &(struct batch_source){.fetch = give, .context = tiny.trainer}, &result,
                                  &err),
                     EXIT_DIVERGED);
    float *after = weights_of(tiny.trainer, &count);
    bool changed = memcmp(before, after, (size_t)count * sizeof *before) != 0;
    printf("%s, tensor %d: %s\n", settings, tensor, err.what);
    if (changed != !!strstr(err.what, "partly")) /* meopt-train(1): the message says so */
        fail_msg("%s: the weights %s, told: %s", settings, changed ? "have changed" : "are as before",
                 err.what);
    free(before);
    free(after);
    tiny_close(&tiny);
    return changed;
}

static void an_update_that_was_not_applied_is_reported(void **state)
{
    (void)state;
    static const char *const ways[] = {"optim.gradients=keep",
                                       "optim.gradients=release optim.clip_mode=exact",
                                       "optim.gradients=release optim.clip_mode=previous",
                                       "optim.gradients=release optim.clip_mode=block",
                                       "optim.gradients=release optim.clip_grad_norm=0",
                                       "optim.gradients=release train.micro_batch=1"};
    static const int tensors[] = {1, 4, 12, 20};
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        bool changed = false;
        for (int i = 0; i < 4; i++) changed |= diverges(ways[w], tensors[i]);
        bool known_late =
            strstr(ways[w], "previous") || strstr(ways[w], "block") || strstr(ways[w], "norm=0");
        assert_int_equal(changed, known_late);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lamb_clips_its_first_step),
                                       cmocka_unit_test(an_update_that_was_not_applied_is_reported)};
    for (int i = 0; i < BATCH * PIXELS; i++) image[i] = (float)((i * 37) % 101) / 50 - 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
