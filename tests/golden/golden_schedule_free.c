/* schedule_free in fp32 against schedulefree.AdamWScheduleFree, each option (tests/make/schedule_free.py), on
 * every instruction set: y after each step, and x; then points, records, and a z - y of few bits. */
#include "tests/golden/golden.h"
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

static struct meopt_options options_of(const json_t *config)
{
    struct meopt_options o;
    meopt_options_init(&o, sizeof o, MEOPT_SCHEDULE_FREE);
    const json_t *betas = json_object_get(config, "betas");
    if (betas) {
        o.beta1 = json_number_value(json_array_get(betas, 0));
        o.beta2 = json_number_value(json_array_get(betas, 1));
    }
    o.eps = golden_number(config, "eps", o.eps);
    o.weight_decay = golden_number(config, "weight_decay", 0);
    o.warmup_steps = (int64_t)golden_number(config, "warmup_steps", 0);
    o.r = golden_number(config, "r", o.r);
    o.weight_lr_power = golden_number(config, "weight_lr_power", o.weight_lr_power);
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
    double lr = golden_number(config, "lr", 0.0025);
    struct meopt_gradient g[TENSORS];
    struct meopt_error err;
    if (k >= 10) lr = golden_number(config, "lr_late", lr);
    for (int i = 0; i < TENSORS; i++) g[i] = (struct meopt_gradient){grads[i] + k * counts[i], MEOPT_F32};
    if (meopt_step(opt, k + 1, lr, 1, g, NULL, &err)) fail_msg("%s", err.message);
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
        double error = golden_relative(now, y[0] + k * counts[0], counts[0]);
        if (!(error <= 1e-5)) fail_msg("%s y step %d on %s: %.3g", name, (int)k + 1, kernels, error);
    }
    for (int i = 0; i < TENSORS; i++)
        for (int point = 0; point < 2; point++) {
            const float *reference = point ? x[i] : i ? y[i] : y[0] + (STEPS - 1) * counts[0];
            exported(opt, i, (enum meopt_point)point, now);
            double error = golden_relative(now, reference, counts[i]);
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
    static const char *const variants[] = {"avx512", "avx2", "plain"};
    const char *name;
    json_t *config;
    json_object_foreach(configs, name, config) for (int v = 0; v < 3;
                                                    v++) if (optim_kernels_find(variants[v]))
        one_config(name, config, variants[v]);
}

/* ---- Points, records, few bits ---- */

static const char *const presets[] = {"quality", "balanced", "minimal", "fp32", "amp"};
enum { PRESETS = sizeof presets / sizeof *presets };

static struct meopt *trained(const char *preset, int64_t from, int64_t to, struct meopt *opt)
{
    struct meopt_options o = options_of(json_object_get(configs, "warmup"));
    float *grads[TENSORS];
    o.small_count = 0;
    o.seed = 3;
    assert_int_equal(meopt_options_preset(&o, preset, NULL), 0);
    if (!opt) opt = create(&o);
    for (int i = 0; i < TENSORS; i++) grads[i] = values_of("", "grad", i);
    for (int64_t k = from; k < to; k++) step(opt, json_object_get(configs, "warmup"), k, grads);
    for (int i = 0; i < TENSORS; i++) free(grads[i]);
    return opt;
}

struct bytes {
    char data[64 << 10];
    size_t count;
};
static int append(void *context, const void *data, size_t count)
{
    struct bytes *b = context;
    assert_true(b->count + count <= sizeof b->data);
    memcpy(b->data + b->count, data, count);
    b->count += count;
    return 0;
}
static void saved(const struct meopt *opt, struct bytes *b)
{
    b->count = 0;
    assert_int_equal(meopt_save(opt, append, b, NULL), 0);
}
static void same_state(const struct meopt *a, const struct meopt *b)
{
    static struct bytes of_a, of_b;
    saved(a, &of_a);
    saved(b, &of_b);
    assert_int_equal(of_a.count, of_b.count);
    assert_memory_equal(of_a.data, of_b.data, of_a.count);
}

static void evaluation_leaves_no_trace(void **state)
{
    for (int p = 0; p < PRESETS; p++) {
        struct meopt *opt = trained(presets[p], 0, 9, NULL), *plain = trained(presets[p], 0, 9, NULL);
        struct meopt_bytes held, before;
        struct meopt_error err;
        float x[33 * 17], now[33 * 17], y[33 * 17];
        assert_int_equal(meopt_held(opt, &before), 0);
        assert_int_equal(meopt_set_point(opt, MEOPT_POINT_EVAL, &err), 0);
        assert_int_equal(meopt_set_point(opt, MEOPT_POINT_EVAL, &err), 0); /* again: nothing */
        exported(opt, 1, MEOPT_POINT_EVAL, x);
        exported(opt, 1, MEOPT_POINT_TRAIN, y);
        assert_int_equal(meopt_export(opt, 1, 0, counts[1], now, &err), 0);
        assert_true(golden_relative(now, x, counts[1]) <= 0x1p-8); /* half a unit of bf16 at most */
        assert_true(golden_relative(y, x, counts[1]) > 1e-4);
        assert_int_equal(meopt_held(opt, &held), 0);
        assert_true(held.point > 0 && held.total == before.total + held.point && before.point == 0);
        same_state(opt, plain); /* what is saved is the training */
        assert_int_equal(meopt_step_begin(opt, 10, 1e-3, 0, &err), MEOPT_BAD_ORDER);
        assert_int_equal(meopt_moments_import(opt, 0, 0, 0, NULL, NULL, 3, &err), MEOPT_BAD_ORDER);
        assert_int_equal(meopt_set_point(opt, MEOPT_POINT_TRAIN, &err), 0);
        same_state(opt, plain);
        trained(presets[p], 9, 14, opt);
        trained(presets[p], 9, 14, plain);
        same_state(opt, plain);
        meopt_destroy(opt);
        meopt_destroy(plain);
    }
}

static void values_written_at_evaluation_are_the_new_average(void **state)
{
    for (int p = 0; p < PRESETS; p++) {
        struct meopt *opt = trained(presets[p], 0, 9, NULL);
        float x[33 * 17], m[33 * 17], v[33 * 17], now[33 * 17];
        assert_int_equal(meopt_set_point(opt, MEOPT_POINT_EVAL, NULL), 0);
        for (int i = 0; i < counts[1]; i++) x[i] = (float)(i % 64) / 64 - 0.25f; /* exact in bf16 */
        assert_int_equal(meopt_import(opt, 1, 0, counts[1], x, NULL), 0);
        assert_int_equal(meopt_set_point(opt, MEOPT_POINT_TRAIN, NULL), 0);
        exported(opt, 1, MEOPT_POINT_EVAL, now);
        assert_true(golden_relative(now, x, counts[1]) <= 0x1p-8);
        exported(opt, 1, MEOPT_POINT_TRAIN, now);
        assert_int_equal(meopt_moments_export(opt, 1, 0, counts[1], m, v, NULL), 0);
        for (int i = 0; i < counts[1]; i++) m[i] = x[i] + m[i] / 9;
        assert_true(golden_relative(now, m, counts[1]) <= 0x1p-8);
        meopt_destroy(opt);
    }
}

static void a_record_is_the_whole_training(void **state)
{
    for (int p = 0; p < PRESETS; p++) {
        struct meopt *from = trained(presets[p], 0, 9, NULL), *to = trained(presets[p], 0, 2, NULL);
        struct meopt_error err;
        char record[16 << 10];
        for (size_t i = 0; i < TENSORS; i++) {
            size_t bytes = meopt_state_bytes(from, i);
            assert_true(bytes <= sizeof record);
            if (i) assert_int_equal(meopt_set_point(from, MEOPT_POINT_EVAL, &err), 0);
            assert_int_equal(meopt_state_save(from, i, record, bytes, &err), 0);
            assert_int_equal(meopt_state_load(to, i, record, bytes, &err), 0);
            record[bytes / 2] ^= 1;
            assert_int_equal(meopt_state_load(to, i, record, bytes, &err), MEOPT_BAD_STATE);
        }
        assert_int_equal(meopt_set_point(from, MEOPT_POINT_TRAIN, &err), 0);
        same_state(from, to);
        trained(presets[p], 9, 13, from);
        trained(presets[p], 9, 13, to);
        same_state(from, to);
        meopt_destroy(from);
        meopt_destroy(to);
    }
}

static void exported_whole(struct meopt *opt, int64_t count, float *y, float *x)
{
    assert_int_equal(meopt_export_point(opt, 0, MEOPT_POINT_TRAIN, 0, count, y, NULL), 0);
    assert_int_equal(meopt_export_point(opt, 0, MEOPT_POINT_EVAL, 0, count, x, NULL), 0);
}

/* z - y in bf16, all else in fp32, against doubles: an error e of a stored d = z - y is at most 2^-7 |d|; it
 * moves y by c e of each later step and shrinks with 1 - c, as d itself. */
static void bf16_stays_within_its_rounding(void **state)
{
    enum { N = 33 * 17 };
    const double lr = 0.01, b1 = 0.9, b2 = 0.999, eps = 1e-8;
    struct meopt_options o;
    meopt_options_init(&o, sizeof o, MEOPT_SCHEDULE_FREE);
    o.first_moment = MEOPT_STATE_BF16;
    o.small_count = 0;
    struct meopt *opt = create(&o);
    float *grads[TENSORS] = {values_of("", "grad", 0), values_of("", "grad", 1)};
    float *start = values_of("", "init", 1), now[N], x[N];
    static double y[N], d[N], v[N], off_d[N], off_y[N];
    for (int i = 0; i < N; i++) {
        y[i] = (double)start[i];
        d[i] = v[i] = off_d[i] = off_y[i] = 0;
    }
    json_t *config = json_pack("{s:f}", "lr", lr);
    for (int64_t k = 0; k < STEPS; k++) {
        double c = 1.0 / (double)(k + 1);
        step(opt, config, k, grads);
        for (int i = 0; i < N; i++) {
            double g = (double)grads[1][k * N + i];
            v[i] = b2 * v[i] + (1 - b2) * g * g;
            double u = g / (sqrt(v[i] / (1 - pow(b2, (double)k + 1))) + eps);
            off_y[i] += c * off_d[i];
            y[i] += c * d[i] - lr * (1 - b1 * (1 - c)) * u;
            d[i] = (1 - c) * (d[i] - lr * b1 * u);
            off_d[i] *= 1 - c;
            off_d[i] += 0x1p-7 * (fabs(d[i]) + off_d[i]);
        }
    }
    exported(opt, 1, MEOPT_POINT_TRAIN, now);
    exported(opt, 1, MEOPT_POINT_EVAL, x);
    for (int i = 0; i < N; i++) {
        double fp32 = 1e-5 * (fabs(y[i]) + fabs(d[i]));
        assert_true(fabs((double)now[i] - y[i]) <= off_y[i] + fp32);
        assert_true(fabs((double)x[i] - (y[i] - d[i] / 9)) <= off_y[i] + off_d[i] / 9 + fp32);
    }
    json_decref(config);
    free(grads[0]);
    free(grads[1]);
    free(start);
    meopt_destroy(opt);
}

/* Joint codes, with weights in fp32, of gradients of 1/2 to 1: the roots of a group span one binade, and its
 * grid at most two, with 2 489 2^(-5/3) codes of d, and 65536 by that of v. A stored d is wrong by a code at
 * most, 1.25 max |d| / 153, and a root by its step, 2/210. Bounds of v give those of u. */
static void joint_codes_stay_within_their_steps(void **state)
{
    enum { N = 256 };
    const double lr = 0.01, b1 = 0.9, b2 = 0.999, eps = 1e-8, root_step = 1 + 2.0 / 210;
    struct meopt_options o;
    struct meopt *opt;
    struct meopt_error err;
    struct meopt_tensor table = {.name = "w", .ndim = 2, .shape = {16, 16}};
    meopt_options_init(&o, sizeof o, MEOPT_SCHEDULE_FREE);
    o.first_moment = o.second_moment = MEOPT_STATE_8BIT;
    o.small_count = 0;
    assert_int_equal(meopt_create(&opt, &o, &table, 1, &err), 0);
    static double y[N], d[N], v[N], low[N], high[N], off_d[N], off_y[N];
    float g[N], now[N], x[N];
    uint32_t random = 7;
    memset(y, 0, sizeof y);
    for (int i = 0; i < N; i++) d[i] = v[i] = low[i] = high[i] = off_d[i] = off_y[i] = 0;
    for (int64_t k = 0; k < STEPS; k++) {
        double c = 1.0 / (double)(k + 1), most[N / 64] = {0};
        for (int i = 0; i < N; i++) {
            random = random * 1664525u + 1013904223u;
            g[i] = (0.5f + (float)(random >> 9) * 0x1p-24f) * (random >> 8 & 1u || i % 3 == 0 ? 1.0f : -1.0f);
        }
        if (meopt_step(opt, k + 1, lr, 1, &(struct meopt_gradient){g, MEOPT_F32}, NULL, &err))
            fail_msg("%s", err.message);
        for (int i = 0; i < N; i++) {
            double s = (double)g[i], square = (1 - b2) * s * s, correction = 1 - pow(b2, (double)k + 1);
            v[i] = b2 * v[i] + square;
            low[i] = b2 * low[i] + square;
            high[i] = b2 * high[i] + square;
            double u = s / (sqrt(v[i] / correction) + eps),
                   off = fmax(fabs(s) / sqrt(low[i] / correction) - fabs(u),
                              fabs(u) - fabs(s) / (sqrt(high[i] / correction) + eps));
            off_y[i] += c * off_d[i] + lr * (1 - b1 * (1 - c)) * off;
            y[i] += c * d[i] - lr * (1 - b1 * (1 - c)) * u;
            d[i] = (1 - c) * (d[i] - lr * b1 * u);
            off_d[i] = (1 - c) * (off_d[i] + lr * b1 * off);
            low[i] /= root_step * root_step;
            high[i] *= root_step * root_step;
            most[i / 64] = fmax(most[i / 64], fabs(d[i]) + off_d[i]);
        }
        for (int i = 0; i < N; i++) off_d[i] += 1.25 * most[i / 64] / 153;
    }
    exported_whole(opt, N, now, x);
    double bound = 0, travel = 0;
    for (int i = 0; i < N; i++) {
        assert_true(fabs((double)now[i] - y[i]) <= off_y[i] + 1e-6);
        assert_true(fabs((double)x[i] - (y[i] - d[i] / 9)) <= off_y[i] + off_d[i] / 9 + 1e-6);
        bound += off_y[i];
        travel += fabs(y[i]);
    }
    assert_true(bound < travel); /* it is no empty promise */
    meopt_destroy(opt);
}

static void impossible_options_are_refused(void **state)
{
    struct meopt *opt;
    struct meopt_options o, good;
    struct meopt_error err;
    struct meopt_tensor table = {.name = "w", .ndim = 2, .shape = {8, 8}};
    meopt_options_init(&good, sizeof good, MEOPT_SCHEDULE_FREE);
#define REFUSED(change)                                                                                      \
    o = good;                                                                                                \
    change;                                                                                                  \
    assert_int_equal(meopt_create(&opt, &o, &table, 1, &err), MEOPT_BAD_ARGUMENT)
    REFUSED(o.beta1 = 0);
    REFUSED(o.average_decay = 0.99);
    REFUSED(o.first_moment = MEOPT_STATE_4BIT);
    REFUSED(o.first_moment = MEOPT_STATE_8BIT; o.second_moment = MEOPT_STATE_4BIT);
    REFUSED(o.warmup_steps = -1);
    REFUSED(o.r = -0.5);
    REFUSED(o.weight_lr_power = 11);
}

/* Memory that tensors share gets the x of an evaluation; residual bits and moments stay those of y. */
static void shared_memory_gets_the_average(void **state)
{
    enum { N = 100 * 64 };
    static uint16_t own[N], shared[N], y[N];
    static float g[N], values[N];
    static char record[2][16 * N];
    struct meopt *opt[2];
    struct meopt_error err = {0};
    struct meopt_options o;
    meopt_options_init(&o, sizeof o, MEOPT_SCHEDULE_FREE);
    assert_int_equal(meopt_options_preset(&o, "balanced", NULL), 0);
    o.small_count = 0;
    for (int i = 0; i < N; i++) values[i] = sinf((float)i), g[i] = cosf((float)(3 * i));
    for (int k = 0; k < 2; k++) {
        struct meopt_tensor t = {.name = "w", .ndim = 2, .shape = {100, 64}, .weights = k ? shared : own};
        t.flags = k ? MEOPT_SHARED_MEMORY : 0;
        assert_int_equal(meopt_create(&opt[k], &o, &t, 1, &err), 0);
        assert_int_equal(meopt_import(opt[k], 0, 0, N, values, NULL), 0);
        for (int64_t step = 1; step < 5; step++)
            assert_int_equal(
                meopt_step(opt[k], step, 1e-2, 1, &(struct meopt_gradient){g, MEOPT_F32}, NULL, NULL), 0);
    }
    size_t bytes = meopt_state_bytes(opt[0], 0);
    assert_true(bytes <= sizeof *record && bytes == meopt_state_bytes(opt[1], 0));
    memcpy(y, shared, sizeof y);
    assert_memory_equal(own, y, sizeof y);
    assert_int_equal(meopt_average_shared(opt[0], 0, &err), MEOPT_BAD_ARGUMENT);
    assert_int_equal(meopt_average_shared(opt[1], 0, &err), 0);
    assert_int_equal(meopt_set_point(opt[0], MEOPT_POINT_EVAL, &err), 0);
    assert_int_equal(meopt_set_point(opt[1], MEOPT_POINT_EVAL, &err), 0);
    assert_memory_equal(own, shared, sizeof own);
    assert_memory_not_equal(own, y, sizeof own);
    assert_int_equal(meopt_state_save(opt[1], 0, record[1], bytes, &err), MEOPT_BAD_ORDER);
    assert_int_equal(meopt_average_shared(opt[1], 0, &err), MEOPT_BAD_ORDER);
    memcpy(shared, y, sizeof y);
    for (int k = 0; k < 2; k++) {
        assert_int_equal(meopt_set_point(opt[k], MEOPT_POINT_TRAIN, &err), 0);
        assert_int_equal(meopt_state_save(opt[k], 0, record[k], bytes, &err), 0);
        meopt_destroy(opt[k]);
    }
    assert_memory_equal(own, shared, sizeof own);
    assert_memory_equal(record[0], record[1], bytes);
}

static int open_all(void **state)
{
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
    weights_close(golden);
    json_decref(configs);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_option_follows_the_class),
                                       cmocka_unit_test(evaluation_leaves_no_trace),
                                       cmocka_unit_test(values_written_at_evaluation_are_the_new_average),
                                       cmocka_unit_test(a_record_is_the_whole_training),
                                       cmocka_unit_test(bf16_stays_within_its_rounding),
                                       cmocka_unit_test(joint_codes_stay_within_their_steps),
                                       cmocka_unit_test(impossible_options_are_refused),
                                       cmocka_unit_test(shared_memory_gets_the_average)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
