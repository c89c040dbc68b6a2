/* Initial values of random towers have the distributions of the real classes: data/initial.json
 * (make/initial.py) has mean, standard deviation, largest magnitude and kurtosis of each parameter. */
#include "tests/golden/golden.h"
#include "tests/train/random_tower.h"

#include <math.h>

static const struct model_shape *shape_now;
static json_t *rows_now;
static struct tower *tower_now;
static int compared;

struct statistics {
    double mean, sd, most, kurtosis;
};

static struct statistics statistics_of(const float *values, int64_t count)
{
    struct statistics s = {0};
    double second = 0, fourth = 0;
    for (int64_t i = 0; i < count; i++) s.mean += (double)values[i] / (double)count;
    for (int64_t i = 0; i < count; i++) {
        double off = (double)values[i] - s.mean, square = off * off;
        s.most = fmax(s.most, fabs((double)values[i]));
        second += square / (double)count;
        fourth += square * square / (double)count;
    }
    s.sd = sqrt(second);
    s.kurtosis = second > 0 ? fourth / (second * second) : 0;
    return s;
}

/* Compares one parameter; both samples are random, and 5 standard errors of their difference pass. */
static int compare(void *context, int index, const float *values, struct error *err)
{
    const struct parameter *p = &tower_now->parameters[index];
    json_t *row = json_object_get(rows_now, p->name);
    (void)context;
    (void)err;
    if (!row) return 0;
    double n = fmin((double)p->count, (double)golden_integer(row, "count")),
           mean = json_number_value(json_object_get(row, "mean")),
           sd = json_number_value(json_object_get(row, "sd")),
           most = json_number_value(json_object_get(row, "most")),
           kurtosis = json_number_value(json_object_get(row, "kurtosis"));
    struct statistics is = statistics_of(values, p->count);
    const char *family = family_name(shape_now->family);
    if (!(sd > 0)) {
        if (is.most - fabs((double)values[0]) > 0 || fabs(mean - (double)values[0]) > 1e-6 * fabs(mean))
            fail_msg("%s %s: %g, expected %g", family, p->name, (double)values[0], mean);
    } else if (fabs(is.sd / sd - 1) > 5 / sqrt(n) || fabs(is.mean - mean) > 5 * sd * sqrt(2 / n) ||
               fabs(is.kurtosis - kurtosis) > 0.12 + 5 * sqrt(48 / n) || is.most > 1.4 * most ||
               (kurtosis < 2.2 && n > 1000 && is.most > 1.001 * most))
        fail_msg("%s %s: mean %g sd %g most %g kurtosis %g, expected %g %g %g %g", family, p->name, is.mean,
                 is.sd, is.most, is.kurtosis, mean, sd, most, kurtosis);
    compared++;
    return 0;
}

static void test_distributions(void **state)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tests/data/initial.json", MEOPT_SOURCE_DIR);
    json_t *cases = json_load_file(path, 0, NULL), *json;
    size_t k;
    assert_non_null(cases);
    json_array_foreach(cases, k, json)
    {
        struct model_shape g = golden_shape(json);
        struct device *device;
        struct error err = {0};
        const char *ffn = json_string_value(json_object_get(json, "ffn"));
        g.ffn = strcmp(ffn, "swiglu") == 0 ? 1 + ACTIVATION_SWIGLU
                : strcmp(ffn, "mlp") == 0  ? 1 + ACTIVATION_GELU
                                           : 1 + ACTIVATION_GELU_TANH;
        g.registers = golden_integer(json, "registers");
        g.pool_heads = golden_integer(json, "pool_heads");
        g.unprojected = true;
        if (json_object_get(json, "parts"))
            g.parts = PARTS_KNOWN | PART_QKV_BIAS | PART_ATTN_NORM | PART_FFN_NORM;
        rows_now = json_object_get(json, "parameters");
        shape_now = &g;
        compared = 0;
        if (device_open(&device, "cpu", 0, &err) || model_shape_check(&g, 0, &err) ||
            tower_create(&tower_now, device, &g, &(struct tower_options){.batch = 1, .compute = DTYPE_F32},
                         &err))
            fail_msg("%s", err.what);
        if (tower_init_random(tower_now, 60, false, compare, NULL, &err)) fail_msg("%s", err.what);
        assert_int_equal(compared, (int)json_object_size(rows_now));
        tower_close(tower_now);
        device_close(device);
    }
    json_decref(cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_distributions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
