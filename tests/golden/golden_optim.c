/* The rules in fp32 against torch.optim, timm's LAMB, Google's Lion and transformers' Adafactor: every
 * trajectory of tests/data/optim, on every instruction set, through the step of all tensors and through per-
 * tensor steps. */
#include "tests/golden/golden.h"
#include "core/base/file.h"
#include "core/optim/optim.h"
#include "kernels/optim_rules.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <cmocka.h>

struct tensors {
    struct file_map map;
    json_t *header;
};

static const char *fixture(const char *name)
{
    static char path[4096];
    const char *dir = getenv("MEOPT_FIXTURES");
    snprintf(path, sizeof path, "%s/optim/%s", dir ? dir : MEOPT_SOURCE_DIR "/tests/data", name);
    return path;
}

static struct tensors tensors_open(const char *name)
{
    struct tensors t;
    struct error err;
    assert_int_equal(file_map_open(&t.map, fixture(name), &err), 0);
    uint64_t bytes;
    memcpy(&bytes, t.map.data, 8);
    t.header = json_loadb((const char *)t.map.data + 8, bytes, 0, NULL);
    assert_non_null(t.header);
    return t;
}

/* Values of a tensor as double (F32 or F64) in new memory; *count its elements. */
static double *values_of(const struct tensors *t, const char *name, int64_t *count)
{
    json_t *entry = json_object_get(t->header, name), *offsets = json_object_get(entry, "data_offsets");
    assert_non_null(entry);
    uint64_t header;
    memcpy(&header, t->map.data, 8);
    size_t begin = (size_t)json_integer_value(json_array_get(offsets, 0)),
           end = (size_t)json_integer_value(json_array_get(offsets, 1));
    bool wide = strcmp(json_string_value(json_object_get(entry, "dtype")), "F64") == 0;
    const uint8_t *data = t->map.data + 8 + header + begin;
    *count = (int64_t)((end - begin) / (wide ? 8 : 4));
    double *values = malloc((size_t)(*count + 1) * 8);
    for (int64_t i = 0; i < *count; i++) {
        float f;
        if (wide) memcpy(&values[i], data + i * 8, 8);
        else {
            memcpy(&f, data + i * 4, 4);
            values[i] = (double)f;
        }
    }
    return values;
}

static void tensors_close(struct tensors *t)
{
    json_decref(t->header);
    file_map_close(&t->map);
}

static double relative(const float *x, const double *reference, int64_t count)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        double d = (double)x[i] - reference[i];
        difference += d * d;
        size += reference[i] * reference[i];
    }
    return sqrt(difference / size);
}

static struct meopt_options options_of(json_t *config)
{
    struct meopt_options o = {0};
    const char *name = json_string_value(json_object_get(config, "optimizer"));
    for (int i = 0; i < RULE_COUNT; i++)
        if (strcasecmp(optim_rules[i].name, name) == 0 || strcasecmp(optim_rules[i].alias, name) == 0)
            meopt_options_init(&o, sizeof o, i);
    assert_int_not_equal(o.size, 0);
    json_t *betas = json_object_get(config, "betas");
    if (betas) {
        o.beta1 = json_number_value(json_array_get(betas, 0));
        o.beta2 = json_number_value(json_array_get(betas, 1));
    }
    o.beta1 = golden_number(config, "beta1", o.beta1);
    o.eps = golden_number(config, "eps", o.eps);
    o.weight_decay = golden_number(config, "weight_decay", 0);
    o.momentum = golden_number(config, "momentum", 0);
    o.dampening = golden_number(config, "dampening", 0);
    o.nesterov = (int)golden_number(config, "nesterov", 0);
    o.trust_clip = (int)golden_number(config, "trust_clip", 0);
    o.always_adapt = (int)golden_number(config, "always_adapt", 0);
    o.decoupled_decay = (int)golden_number(config, "decoupled_decay", 0);
    o.eps2 = golden_number(config, "eps2", o.eps2);
    o.clip_threshold = golden_number(config, "clip_threshold", o.clip_threshold);
    o.decay_rate = golden_number(config, "decay_rate", o.decay_rate);
    o.scale_parameter = (int)golden_number(config, "scale_parameter", 0);
    o.relative_step = (int)golden_number(config, "relative_step", 0);
    o.warmup_init = (int)golden_number(config, "warmup_init", 0);
    o.torch_form = (int)golden_number(config, "torch_form", 0);
    return o;
}

enum { MAX = 8 };

static void one_config(const char *name, json_t *config, json_t *index, const char *kernels, bool per_tensor)
{
    char file[128];
    snprintf(file, sizeof file, "%s.safetensors", name);
    const char *inputs = json_string_value(json_object_get(index, "grads"));
    struct tensors grads = tensors_open(inputs ? inputs : "grads.safetensors"), golden = tensors_open(file);
    json_t *shapes = json_object_get(index, "shapes");
    size_t count = json_array_size(shapes);
    int64_t steps = json_integer_value(json_object_get(index, "steps")), n;
    assert_true(count <= MAX);
    struct meopt_options o = options_of(config);
    struct meopt_tensor table[MAX] = {0};
    char names[MAX][24];
    double *gradients[MAX], *reference[MAX];
    float *now[MAX], *gradient[MAX];
    for (size_t i = 0; i < count; i++) {
        json_t *shape = json_array_get(shapes, i);
        snprintf(names[i], sizeof names[i], "p%zu", i);
        table[i].name = names[i];
        table[i].ndim = (int)json_array_size(shape);
        for (int d = 0; d < table[i].ndim; d++)
            table[i].shape[d] = json_integer_value(json_array_get(shape, (size_t)d));
    }
    struct meopt *opt;
    struct meopt_error err;
    assert_int_equal(meopt_create(&opt, &o, table, count, &err), 0);
    opt->kernels = optim_kernels_find(kernels);
    int64_t counts[MAX];
    for (size_t i = 0; i < count; i++) {
        char key[32];
        snprintf(key, sizeof key, "init.p%zu", i);
        double *init = values_of(&grads, key, &counts[i]);
        now[i] = malloc((size_t)counts[i] * 4);
        gradient[i] = malloc((size_t)counts[i] * 4);
        for (int64_t k = 0; k < counts[i]; k++) now[i][k] = (float)init[k];
        free(init);
        assert_int_equal(meopt_import(opt, i, 0, counts[i], now[i], &err), 0);
        snprintf(key, sizeof key, "grad.p%zu", i);
        gradients[i] = values_of(&grads, key, &n);
        assert_int_equal(n, steps * counts[i]);
        snprintf(key, sizeof key, i < 2 ? "f64.p%zu" : "f64.p%zu.last", i);
        reference[i] = values_of(&golden, key, &n);
    }
    for (int64_t step = 0; step < steps; step++) {
        struct meopt_gradient g[MAX];
        double norm, scale = 1;
        int finite;
        for (size_t i = 0; i < count; i++) {
            for (int64_t k = 0; k < counts[i]; k++)
                gradient[i][k] = (float)gradients[i][step * counts[i] + k];
            g[i] = (struct meopt_gradient){gradient[i], MEOPT_F32};
        }
        assert_int_equal(meopt_gradient_norm(opt, g, &norm, &finite, &err), 0);
        double clip = golden_number(config, "clip_grad_norm", 0),
               pre = golden_number(config, "max_grad_norm", 0);
        if (clip > 0) scale = meopt_clip_scale(norm, clip);
        if (pre > 0 && norm > pre) scale = pre / norm;
        double lr = golden_number(config, "lr", 0);
        struct meopt_step_stats stats;
        if (per_tensor) {
            assert_int_equal(meopt_step_begin(opt, step + 1, lr, 1, &err), 0);
            for (size_t i = count; i-- > 0;)
                assert_int_equal(meopt_step_tensor(opt, i, gradient[i], MEOPT_F32, scale, &err), 0);
            assert_int_equal(meopt_step_end(opt, &stats, &err), 0);
        } else assert_int_equal(meopt_step(opt, step + 1, lr, scale, g, &stats, &err), 0);
        assert_true(fabs(stats.grad_norm - norm) <= 1e-6 * norm);
        for (size_t i = 0; i < count; i++) {
            assert_int_equal(meopt_export(opt, i, 0, counts[i], now[i], &err), 0);
            if (i >= 2 && step + 1 < steps) continue;
            double error = relative(now[i], reference[i] + (i < 2 ? step * counts[i] : 0), counts[i]);
            if (!(error <= 2e-6))
                fail_msg("%s p%zu step %d on %s: rel L2 %.3g", name, i, (int)step + 1, kernels, error);
        }
    }
    for (size_t i = 0; i < count; i++) {
        free(now[i]);
        free(gradient[i]);
        free(gradients[i]);
        free(reference[i]);
    }
    meopt_destroy(opt);
    tensors_close(&grads);
    tensors_close(&golden);
}

static void every_rule_follows_its_reference(void **state)
{
    const char *name, *variants[] = {"avx512", "avx2", "plain"}, *files[] = {"index.json", "adafactor.json"};
    json_t *config;
    for (int i = 0; i < 2; i++) {
        json_t *index = json_load_file(fixture(files[i]), 0, NULL);
        assert_non_null(index);
        json_object_foreach(json_object_get(index, "configs"), name, config) for (int v = 0; v < 3; v++)
        {
            if (!optim_kernels_find(variants[v])) continue;
            one_config(name, config, index, variants[v], false);
            one_config(name, config, index, variants[v], true);
        }
        json_decref(index);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_rule_follows_its_reference)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
