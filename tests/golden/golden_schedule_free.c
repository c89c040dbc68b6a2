/* schedule_free in fp32 against schedulefree.AdamWScheduleFree, each option (tests/make/schedule_free.py), on
 * every instruction set: y after each step, and x; then its points, its records, and few bits against fp32. */
#include "core/base/file.h"
#include "core/optim/optim.h"
#include "core/weights/weights.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { TENSORS = 2, STEPS = 20 };

static const char *fixture(const char *name)
{
    static char path[4096];
    const char *dir = getenv("MEOPT_FIXTURES");
    snprintf(path, sizeof path, "%s/optim/schedule_free/%s", dir ? dir : MEOPT_SOURCE_DIR "/tests/data",
             name);
    return path;
}

static struct weights *golden;
static json_t *configs;
static int64_t counts[TENSORS];

/* Returns a tensor of the file; the caller frees. */
static float *values_of(const char *prefix, const char *kind, int i)
{
    char name[96];
    snprintf(name, sizeof name, "%s%s%s.p%d", prefix, *prefix ? "." : "", kind, i);
    int64_t at = weights_find(golden, name);
    assert_true(at >= 0);
    float *values = malloc((size_t)weights_tensor(golden, at)->count * sizeof *values);
    assert_int_equal(weights_read(golden, at, values, DTYPE_F32, NULL), 0);
    return values;
}

static double number(const json_t *config, const char *key, double missing)
{
    const json_t *v = json_object_get(config, key);
    return json_is_number(v) ? json_number_value(v) : missing;
}

static struct meopt_options options_of(const json_t *config)
{
    struct meopt_options o;
    meopt_options_init(&o, sizeof o, MEOPT_SCHEDULE_FREE);
    const json_t *betas = json_object_get(config, "betas");
    if (betas) {
        o.beta1 = json_number_value(json_array_get(betas, 0));
        o.beta2 = json_number_value(json_array_get(betas, 1));
    }
    o.eps = number(config, "eps", o.eps);
    o.weight_decay = number(config, "weight_decay", 0);
    o.warmup_steps = (int64_t)number(config, "warmup_steps", 0);
    o.r = number(config, "r", o.r);
    o.weight_lr_power = number(config, "weight_lr_power", o.weight_lr_power);
    return o;
}

static struct meopt *create(const struct meopt_options *o)
{
    static const char *const names[TENSORS] = {"p0", "p1"};
    struct meopt_tensor table[TENSORS] = {{.name = names[0], .ndim = 1, .shape = {7}},
                                          {.name = names[1], .ndim = 2, .shape = {33, 17}}};
    struct meopt *opt;
    struct meopt_error err;
    if (meopt_create(&opt, o, table, TENSORS, &err)) fail_msg("%s", err.message);
    for (int i = 0; i < TENSORS; i++) {
        float *init = values_of("", "init", i);
        assert_int_equal(meopt_import(opt, (size_t)i, 0, counts[i], init, &err), 0);
        free(init);
    }
    return opt;
}

static void step(struct meopt *opt, const json_t *config, int64_t k, float *const grads[TENSORS])
{
    double lr = number(config, "lr", 0.0025);
    struct meopt_gradient g[TENSORS];
    struct meopt_error err;
    if (k >= 10) lr = number(config, "lr_late", lr);
    for (int i = 0; i < TENSORS; i++) g[i] = (struct meopt_gradient){grads[i] + k * counts[i], MEOPT_F32};
    if (meopt_step(opt, k + 1, lr, 1, g, NULL, &err)) fail_msg("%s", err.message);
}

static double relative(const float *x, const float *reference, int64_t count)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        double d = (double)x[i] - (double)reference[i];
        difference += d * d;
        size += (double)reference[i] * (double)reference[i];
    }
    return sqrt(difference / size);
}

static void exported(struct meopt *opt, int i, enum meopt_point point, float *values)
{
    assert_int_equal(meopt_export_point(opt, (size_t)i, point, 0, counts[i], values, NULL), 0);
}

static void one_config(const char *name, const json_t *config, const char *kernels)
{
    struct meopt_options o = options_of(config);
    struct meopt *opt = create(&o);
    float *grads[TENSORS], *y[TENSORS], *x[TENSORS], now[33 * 17];
    opt->kernels = optim_kernels_find(kernels);
    for (int i = 0; i < TENSORS; i++) {
        grads[i] = values_of("", "grad", i);
        y[i] = values_of(name, "y", i);
        x[i] = values_of(name, "x", i);
    }
    for (int64_t k = 0; k < STEPS; k++) {
        step(opt, config, k, grads);
        exported(opt, 0, MEOPT_POINT_TRAIN, now);
        double error = relative(now, y[0] + k * counts[0], counts[0]);
        if (!(error <= 1e-5)) fail_msg("%s y step %d on %s: %.3g", name, (int)k + 1, kernels, error);
    }
    for (int i = 0; i < TENSORS; i++)
        for (int point = 0; point < 2; point++) {
            const float *reference = point ? x[i] : i ? y[i] : y[0] + (STEPS - 1) * counts[0];
            exported(opt, i, (enum meopt_point)point, now);
            double error = relative(now, reference, counts[i]);
            if (!(error <= 1e-5))
                fail_msg("%s %c p%d on %s: %.3g", name, point ? 'x' : 'y', i, kernels, error);
        }
    for (int i = 0; i < TENSORS; i++) {
        free(grads[i]);
        free(y[i]);
        free(x[i]);
    }
    meopt_destroy(opt);
}

static void every_option_follows_the_class(void **state)
{
    (void)state;
    static const char *const variants[] = {"avx512", "avx2", "plain"};
    const char *name;
    json_t *config;
    json_object_foreach(configs, name, config) for (int v = 0; v < 3;
                                                    v++) if (optim_kernels_find(variants[v]))
        one_config(name, config, variants[v]);
}

static int open_all(void **state)
{
    (void)state;
    json_t *index = json_load_file(fixture("index.json"), 0, NULL);
    assert_non_null(index);
    configs = json_incref(json_object_get(index, "configs"));
    json_decref(index);
    assert_int_equal(weights_open(&golden, fixture("trajectories.safetensors"), NULL), 0);
    counts[0] = 7;
    counts[1] = 33 * 17;
    return 0;
}
static int close_all(void **state)
{
    (void)state;
    weights_close(golden);
    json_decref(configs);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_option_follows_the_class)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
