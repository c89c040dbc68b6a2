/* The optimizer on a card ($MEOPT_TEST_DEVICE) is bit-identical to that on the CPU: all rules and formats,
 * shards that begin at an odd group, short and misaligned ends, gradients that are not finite,
 * accumulators, saving and loading. */
#include "core/base/memory.h"
#include "core/device/device.h"
#include "core/meopt.h"
#include "kernels/f16.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <cmocka.h>

enum { TENSORS = 6, STEPS = 3 };
static const int64_t shapes[TENSORS][2] = {{1, 1}, {7, 9}, {8, 16}, {40, 41}, {130, 255}, {64, 1030}};
static const int64_t firsts[TENSORS] = {0, 0, 100, 0, 192, 64 * 7 + 5};

static struct device *card;

struct bytes {
    char *data;
    size_t used;
};
static int collect(void *context, const void *data, size_t n)
{
    struct bytes *b = context;
    b->data = xrealloc(b->data, b->used + n);
    memcpy(b->data + b->used, data, n);
    b->used += n;
    return 0;
}

static float value(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    float x = (float)(int32_t)*seed * 0x1p-31f;
    *seed = *seed * 1664525u + 1013904223u;
    return x * x * x * ((*seed >> 28) == 0 ? 30.0f : 1.0f); /* some large ones */
}
static float *values_new(int64_t count, float scale, uint32_t *seed)
{
    float *values = xmalloc((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++) values[i] = value(seed) * scale;
    return values;
}
static uint16_t half(float x, int type)
{
    uint32_t bits;
    if (type == MEOPT_F16) return f16_of(x);
    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

struct side {
    struct meopt *opt;
    struct device *device; /* NULL: this machine */
    void *gradients[TENSORS], *blocks[TENSORS];
};

static bool tables; /* of adafactor, next to the tensors of the options' rule */

static void side_open(struct side *s, struct device *device, struct meopt_options options)
{
    struct meopt_error err = {0};
    struct error why = {0};
    struct meopt_tensor table[TENSORS] = {{0}};
    static const char *const names[TENSORS] = {"a", "b", "c", "d", "e", "f"};
    options.device = (struct meopt_device *)device;
    s->device = device;
    for (int i = 0; i < TENSORS; i++) {
        table[i] = (struct meopt_tensor){.name = names[i],
                                         .ndim = 2,
                                         .first = firsts[i],
                                         .lr_scale = 1,
                                         .flags = i == 3                       ? MEOPT_NO_DECAY
                                                  : i == 1                     ? MEOPT_KEEP_BF16
                                                  : i == 4 && options.maximize ? MEOPT_COPY_F16
                                                                               : 0};
        memcpy(table[i].shape, shapes[i], sizeof shapes[i]);
        if (i == 1) { /* a vector, and matrices, to adafactor; the same to others */
            table[i].ndim = 1;
            table[i].shape[0] = shapes[i][0] * shapes[i][1];
        } else if (i == 4) {
            table[i].ndim = 3;
            memcpy(table[i].shape, (int64_t[]){5, shapes[i][0] / 5, shapes[i][1]}, 3 * sizeof(int64_t));
        }
        if (tables && i % 2 == 0) table[i].flags |= MEOPT_OWN_RULE, table[i].rule = MEOPT_ADAFACTOR;
        size_t bytes = (size_t)(shapes[i][0] * shapes[i][1]) * 4 + 64;
        s->blocks[i] =
            device ? device_alloc(device, MEMORY_GRADIENTS, bytes, "gradient", &why) : calloc(1, bytes);
        assert_non_null(s->blocks[i]);
        s->gradients[i] = (char *)s->blocks[i] + (i == 4 ? 4 : 0); /* not aligned to a pair */
    }
    if (device) { /* the library's own blocks on the card, too */
        options.allocate = NULL;
        options.release = NULL;
    }
    if (meopt_create(&s->opt, &options, table, TENSORS, &err)) fail_msg("%s", err.message);
}

static void side_close(struct side *s)
{
    meopt_destroy(s->opt);
    for (int i = 0; i < TENSORS; i++)
        if (s->device) device_free(s->device, s->blocks[i]);
        else free(s->blocks[i]);
}

static void give(struct side *s, int i, const float *values, int type)
{
    int64_t count = shapes[i][0] * shapes[i][1];
    uint16_t *halves = xmalloc((size_t)count * 2);
    for (int64_t j = 0; j < count; j++) halves[j] = half(values[j], type);
    const void *from = type ? (const void *)halves : (const void *)values;
    size_t bytes = (size_t)count * (type ? 2 : 4);
    if (s->device) s->device->upload(s->device, s->gradients[i], from, bytes);
    else memcpy(s->gradients[i], from, bytes);
    free(halves);
}

static void saved(const struct side *s, struct bytes *b)
{
    struct meopt_error err = {0};
    if (meopt_save(s->opt, collect, b, &err)) fail_msg("%s", err.message);
}

/* What forward and backward read, to the host */
static void forward_weights(const struct side *s, int i, char *to, size_t bytes)
{
    void *p;
    enum meopt_dtype dtype;
    assert_int_equal(meopt_weights(s->opt, (size_t)i, &p, &dtype), 0);
    if (s->device) s->device->download(s->device, to, p, bytes);
    else memcpy(to, p, bytes);
}

static void same(struct side sides[2], const char *what)
{
    struct bytes a = {0}, b = {0};
    for (int i = 0; i < TENSORS; i++) {
        size_t bytes = (size_t)(shapes[i][0] * shapes[i][1]) * 2;
        char *here = xmalloc(2 * bytes), *there = here + bytes;
        forward_weights(&sides[0], i, here, bytes);
        forward_weights(&sides[1], i, there, bytes);
        if (memcmp(here, there, bytes) != 0) fail_msg("%s: weights of tensor %d differ", what, i);
        free(here);
    }
    saved(&sides[0], &a);
    saved(&sides[1], &b);
    if (a.used != b.used) fail_msg("%s: %zu bytes on the CPU, %zu on the card", what, a.used, b.used);
    for (size_t i = 0; i < a.used; i++)
        if (a.data[i] != b.data[i]) fail_msg("%s: byte %zu of %zu differs", what, i, a.used);
    free(a.data);
    free(b.data);
}

/* Squares by hand: what some other kernel would have found. */
static struct meopt_grad_stats found_of(const struct meopt_gradient *gradients, const size_t *tensors,
                                        size_t count, int type)
{
    struct meopt_grad_stats found = {0, 1, 0};
    for (size_t k = 0; k < count; k++)
        for (int64_t i = 0; i < shapes[tensors[k]][0] * shapes[tensors[k]][1]; i++) {
            uint16_t h = type ? ((const uint16_t *)gradients[tensors[k]].data)[i] : 0;
            uint32_t bits = (uint32_t)h << 16;
            float x = ((const float *)gradients[tensors[k]].data)[type ? 0 : i];
            if (type == MEOPT_BF16) memcpy(&x, &bits, sizeof x);
            if (type == MEOPT_F16) x = f16_value(h);
            found.squares += (double)x * (double)x;
            found.finite &= isfinite(x) != 0;
        }
    return found;
}

/* Groups that are clipped by their own norms. */
static int step_clipped(struct side *s, const struct meopt_gradient *gradients,
                        const struct meopt_gradient *here, int type, struct meopt_error *err)
{
    static const size_t groups[][3] = {{0, 4}, {5, 1, 3}, {2}}, counts[] = {2, 3, 1};
    struct error why = {0};
    int status = 0;
    void *place = s->device ? device_alloc(s->device, MEMORY_DATA, 64, "found", &why) : NULL;
    for (int k = 0; k < 3; k++) {
        struct meopt_gradient given[3];
        struct meopt_grad_stats found = found_of(here, groups[k], counts[k], type);
        struct meopt_clip clip = {&found, 0.5 / (k + 1), k == 1 ? 0.7 : 0};
        for (size_t i = 0; i < counts[k]; i++) given[i] = gradients[groups[k][i]];
        if (s->device) {
            s->device->upload(s->device, place, &found, sizeof found);
            clip.found = place;
        }
        int ended = meopt_step_clipped(s->opt, groups[k], given, counts[k], &clip, err);
        if (!status) status = ended;
    }
    if (s->device) device_free(s->device, place);
    return status;
}

/* mode 0: gradients, 1: accumulated ones, 2: one group that is not finite, 3: released, tensor by tensor,
 * checked, 4: 3 with one that is not finite, which the card reports at the end of the step, 5: several at
 * once on one side and one by one on the other, 6: several at once with one that is not finite, which
 * suppresses the update of the others, 7: clipped by group, 8: 7 with one that is not finite, which
 * suppresses the update of its group and of later ones */
static int step_several(struct side *s, const struct meopt_gradient *gradients, struct meopt_error *err)
{
    static const size_t groups[][3] = {{5, 1, 3}, {0, 4}, {2}}, counts[] = {3, 2, 1};
    int status = 0;
    for (int k = 0; k < 3; k++) {
        struct meopt_gradient given[3];
        for (size_t i = 0; i < counts[k]; i++) given[i] = gradients[groups[k][i]];
        int ended = meopt_step_tensors(s->opt, groups[k], given, counts[k], 0.75, err);
        if (!status) status = ended;
    }
    return status;
}

/* At the point of evaluation, and back. */
static void evaluated(struct side sides[2], const char *what)
{
    uint32_t seed = 1;
    for (int d = 0; d < 2; d++) assert_int_equal(meopt_set_point(sides[d].opt, MEOPT_POINT_EVAL, NULL), 0);
    for (int i = 0; i < TENSORS; i++) {
        int64_t count = shapes[i][0] * shapes[i][1];
        float *x = values_new(2 * count, 1, &seed);
        for (int d = 0; d < 2; d++)
            assert_int_equal(meopt_export(sides[d].opt, (size_t)i, 0, count, x + d * count, NULL), 0);
        if (memcmp(x, x + count, (size_t)count * sizeof *x) != 0)
            fail_msg("%s: other weights to evaluate", what);
        free(x);
    }
    for (int d = 0; d < 2; d++) assert_int_equal(meopt_set_point(sides[d].opt, MEOPT_POINT_TRAIN, NULL), 0);
    same(sides, what);
}

static void trial(struct meopt_options options, enum meopt_dtype type, int mode, const char *what)
{
    struct side sides[2] = {{0}};
    struct meopt_error err = {0};
    uint32_t seed = 1;
    bool bad = mode == 2 || mode == 4 || mode == 6 || mode == 8;
    for (int d = 0; d < 2; d++) side_open(&sides[d], d ? card : NULL, options);
    for (int i = 0; i < TENSORS; i++) {
        int64_t count = shapes[i][0] * shapes[i][1];
        float *w = values_new(count, 1, &seed);
        for (int d = 0; d < 2; d++)
            if (meopt_import(sides[d].opt, (size_t)i, 0, count, w, &err)) fail_msg("%s", err.message);
        free(w);
    }
    for (int step = 1; step <= STEPS; step++) {
        struct meopt_gradient gradients[2][TENSORS];
        struct meopt_step_stats stats[2];
        double norm[2];
        int status[2] = {0, 0}, finite[2];
        for (int i = 0; i < TENSORS; i++) {
            int64_t count = shapes[i][0] * shapes[i][1];
            float *g = values_new(count, 0.01f, &seed);
            if (i == 2) memset(g, 0, 64 * 4);
            if (bad && i == 3) g[70] = step == 2 ? INFINITY : -NAN;
            for (int d = 0; d < 2; d++) {
                give(&sides[d], i, g, (int)type);
                gradients[d][i] = (struct meopt_gradient){sides[d].gradients[i], type};
                if (mode == 1 && (step % 2 == 0 || d == 0))
                    for (int again = 0; again < 2; again++)
                        if (meopt_accumulate(sides[d].opt, (size_t)i, gradients[d][i].data, type, 0.5, &err))
                            fail_msg("%s", err.message);
            }
            free(g);
        }
        for (int again = 0; again < 2 && mode == 1 && step % 2 == 1; again++) /* several at once */
            if (meopt_accumulate_tensors(sides[1].opt, (size_t[]){3, 0, 5, 1, 4, 2},
                                         (struct meopt_gradient[]){gradients[1][3], gradients[1][0],
                                                                   gradients[1][5], gradients[1][1],
                                                                   gradients[1][4], gradients[1][2]},
                                         TENSORS, 0.5, &err))
                fail_msg("%s", err.message);
        for (int d = 0; d < 2; d++) {
            if (meopt_gradient_norm(sides[d].opt, mode == 1 ? NULL : gradients[d], &norm[d], &finite[d],
                                    &err))
                fail_msg("%s", err.message);
            if (mode == 0 || mode == 2) {
                status[d] = meopt_step(sides[d].opt, step, 1e-2, 0.75, gradients[d], &stats[d], &err);
                continue;
            }
            assert_int_equal(meopt_step_begin(sides[d].opt, step, 1e-2, 1, &err), 0);
            bool several = mode == 6 || (mode == 5 && step % 2 == d), clipped = mode >= 7;
            if (clipped && step_clipped(&sides[d], gradients[d], gradients[0], (int)type, &err) !=
                               (mode == 8 && !d ? MEOPT_NOT_FINITE : 0))
                fail_msg("%s", err.message);
            if (several &&
                step_several(&sides[d], gradients[d], &err) != (mode == 6 && !d ? MEOPT_NOT_FINITE : 0))
                fail_msg("%s", err.message);
            for (int i = 0; i < TENSORS && !several && !clipped; i++)
                if (meopt_step_tensor(sides[d].opt, (size_t)i, mode == 1 ? NULL : gradients[d][i].data, type,
                                      0.75, &err) &&
                    (mode != 4 || i != 3 || d))
                    fail_msg("%s", err.message);
            status[d] = meopt_step_end(sides[d].opt, &stats[d], &err);
        }
        assert_int_equal(status[0], bad ? MEOPT_NOT_FINITE : 0);
        assert_int_equal(status[1], status[0]);
        assert_int_equal(finite[0], finite[1]);
        if (!bad && norm[0] != norm[1]) fail_msg("%s: norm %.17g, on the card %.17g", what, norm[0], norm[1]);
        assert_int_equal(stats[0].bad_groups, stats[1].bad_groups);
        if (stats[0].grad_norm != stats[1].grad_norm)
            fail_msg("%s: norm of the step %.17g, on the card %.17g", what, stats[0].grad_norm,
                     stats[1].grad_norm);
        same(sides, what);
    }
    evaluated(sides, what);
    /* a state saved by the card loads on the card and on the CPU with equal bits */
    struct bytes state = {0};
    saved(&sides[1], &state);
    struct side fresh[2];
    for (int d = 0; d < 2; d++) {
        side_open(&fresh[d], d ? card : NULL, options);
        if (meopt_load(fresh[d].opt, state.data, state.used, &err)) fail_msg("%s: %s", what, err.message);
    }
    same(fresh, what);
    free(state.data);
    for (int d = 0; d < 2; d++) {
        side_close(&sides[d]);
        side_close(&fresh[d]);
    }
}

static void every_rule_and_format_has_the_cpu_s_bits(void **unused)
{
    (void)unused;
    static const int states[][2] = {
        {MEOPT_STATE_F32, MEOPT_STATE_F32},   {MEOPT_STATE_BF16, MEOPT_STATE_BF16},
        {MEOPT_STATE_8BIT, MEOPT_STATE_8BIT}, {MEOPT_STATE_4BIT, MEOPT_STATE_4BIT},
        {MEOPT_STATE_4BIT, MEOPT_STATE_8BIT}, {MEOPT_STATE_8BIT, MEOPT_STATE_BF16},
        {MEOPT_STATE_BF16, MEOPT_STATE_8BIT}, {MEOPT_STATE_BF16_NEAREST, MEOPT_STATE_F32}};
    int number = 0, tried = 0;
    for (int rule = 0; rule < MEOPT_RULE_COUNT; rule++)
        for (int weights = MEOPT_WEIGHTS_F32; weights <= MEOPT_WEIGHTS_32; weights++)
            for (size_t s = 0; s < sizeof states / sizeof *states; s++, number++) {
                if (rule == MEOPT_MUON) continue; /* its products are those of the card's GEMM: below */
                bool zeros = rule == MEOPT_SCHEDULE_FREE && number % 9 == 2; /* of both signs */
                if (!getenv("MEOPT_LONG") && (number * 5 + number / 8) % 11 && !zeros) continue;
                tried++;
                struct meopt_options o;
                char what[128];
                meopt_options_init(&o, sizeof o, rule);
                o.weights = weights;
                o.first_moment = states[s][0];
                o.second_moment = states[s][1];
                o.weight_decay = 0.05;
                o.small_count = 64;
                o.seed = 12345678901234ull;
                if (rule == MEOPT_APSGD) o.momentum = s % 3 ? 0.9 : 0, o.nesterov = s % 3 == 2;
                o.maximize = number % 2;
                bool points = rule == MEOPT_SCHEDULE_FREE;
                if (points && o.first_moment == MEOPT_STATE_4BIT) o.first_moment = MEOPT_STATE_8BIT;
                if (points && o.second_moment == MEOPT_STATE_4BIT) o.second_moment = MEOPT_STATE_BF16;
                if (rule == MEOPT_ADAFACTOR) {
                    o.beta1 = s % 3 ? 0.9 : 0;
                    o.scale_parameter = number % 5 > 1;
                    o.torch_form = number % 7 > 3;
                    if (o.torch_form) o.eps = 1e-5;
                }
                bool moment = !points && (rule == MEOPT_APSGD ? o.momentum > 0 : o.beta1 > 0);
                o.average_decay = number % 3 && moment ? 0.99 : 0;
                int mode = number % 9;
                if (mode == 1) o.accumulator = s % 2 ? MEOPT_STATE_BF16 : MEOPT_STATE_8BIT;
                tables = number % 2 && rule != MEOPT_LAMB && !points;
                snprintf(what, sizeof what, "%s, weights %s, states %d %d, mode %d%s", meopt_rule_name(rule),
                         meopt_weight_format_name(weights), states[s][0], states[s][1], mode,
                         tables ? ", tables" : "");
                trial(o, (enum meopt_dtype)(number / 4 % 3), mode, what);
            }
    tables = false;
    printf("%d of %d combinations of rule, formats and kind of gradient: same bits\n", tried, number);
}

/* The CPU reports it at once. A card runs asynchronously and reports it when the norm is read, and at the end
 * of the step. */
static void a_bad_accumulated_gradient_is_reported_by_norm_and_step(void **unused)
{
    (void)unused;
    struct meopt_options o;
    struct meopt_error err = {0};
    meopt_options_init(&o, sizeof o, MEOPT_LAMB);
    o.first_moment = o.second_moment = MEOPT_STATE_8BIT;
    o.small_count = 64;
    o.accumulator = MEOPT_STATE_BF16;
    for (int bad_at = 0; bad_at < 3; bad_at++) { /* 2: not at all */
        struct side side = {0};
        double norm;
        int finite;
        side_open(&side, card, o);
        int64_t count = shapes[4][0] * shapes[4][1];
        float *values = xcalloc((size_t)count, sizeof *values);
        for (int micro = 0; micro < 2; micro++) {
            for (int64_t i = 0; i < count; i++) values[i] = 0.01f;
            if (micro == bad_at) values[count / 2] = INFINITY;
            give(&side, 4, values, 0);
            assert_int_equal(meopt_accumulate(side.opt, 4, side.gradients[4], MEOPT_F32, 0.5, &err), 0);
        }
        for (int again = 0; again < 2; again++) {
            assert_int_equal(meopt_gradient_norm(side.opt, NULL, &norm, &finite, &err), 0);
            assert_int_equal(finite, bad_at == 2);
        }
        struct meopt_step_stats stats;
        assert_int_equal(meopt_step_begin(side.opt, 1, 1e-2, 1, &err), 0);
        assert_int_equal(meopt_step_tensor(side.opt, 4, NULL, MEOPT_F32, 1, &err), 0);
        assert_int_equal(meopt_step_end(side.opt, &stats, &err), bad_at == 2 ? 0 : MEOPT_NOT_FINITE);
        assert_int_equal(stats.bad_groups, bad_at == 2 ? 0 : 1);
        /* and what is accumulated next is another matter */
        for (int64_t i = 0; i < count; i++) values[i] = 0.01f;
        give(&side, 4, values, 0);
        assert_int_equal(meopt_accumulate(side.opt, 4, side.gradients[4], MEOPT_F32, 1, &err), 0);
        assert_int_equal(meopt_gradient_norm(side.opt, NULL, &norm, &finite, &err), 0);
        assert_int_equal(finite, 1);
        free(values);
        side_close(&side);
    }
}

/* Muon's momentum has the CPU's bits; its products are those of the card's GEMM, and near the CPU's. */
static void matrix_steps(struct device *device, const struct meopt_options *options, float *weights,
                         struct bytes *records)
{
    enum { FIRST = 130 * 70, SECOND = 16 * 640, VECTOR = 90, MOST = SECOND };
    static const int64_t counts[] = {FIRST, SECOND, VECTOR};
    const struct meopt_tensor table[] = {{.name = "a", .ndim = 2, .shape = {130, 70}, .rows = {60, 40, 30}},
                                         {.name = "b", .ndim = 2, .shape = {16, 640}},
                                         {.name = "c", .ndim = 1, .shape = {VECTOR}}};
    struct meopt_options o = *options;
    struct meopt_error err = {0};
    struct error why = {0};
    struct meopt *opt;
    o.device = (struct meopt_device *)device;
    if (meopt_create(&opt, &o, table, 3, &err)) fail_msg("%s", err.message);
    void *block =
        device ? device_alloc(device, MEMORY_GRADIENTS, 4 * MOST, "gradient", &why) : xmalloc(4 * MOST);
    uint32_t seed = 5;
    for (size_t i = 0; i < 3; i++) {
        float *values = values_new(counts[i], 1, &seed);
        assert_int_equal(meopt_import(opt, i, 0, counts[i], values, &err), 0);
        free(values);
    }
    for (int step = 1; step <= 4; step++) {
        int status = meopt_step_begin(opt, step, 1e-2, 0, &err);
        for (size_t i = 0; i < 3; i++) {
            float *values = values_new(counts[i], 0.1f, &seed);
            if (step == 2 && i == 0) values[1000] = NAN; /* no weight of the first 60 rows changes */
            if (step == 3 && i == 1) values[1000] *= 3000;
            if (device) device->upload(device, block, values, (size_t)counts[i] * 4);
            else memcpy(block, values, (size_t)counts[i] * 4);
            free(values);
            status = meopt_step_tensor(opt, i, block, MEOPT_F32, 0.5, &err);
            if (device) assert_int_equal(status, 0); /* it reports at the end of the step */
        }
        struct meopt_step_stats stats;
        status = meopt_step_end(opt, &stats, &err);
        assert_int_equal(status, step == 2 ? MEOPT_NOT_FINITE : MEOPT_OK);
        if (step == 2) assert_int_equal(stats.bad_groups, (60 * 70 + 63) / 64);
    }
    for (size_t i = 0; i < 3; weights += counts[i++]) {
        size_t bytes = meopt_state_bytes(opt, i);
        records->data = xrealloc(records->data, records->used + bytes);
        assert_int_equal(meopt_state_save(opt, i, records->data + records->used, bytes, &err), 0);
        records->used += bytes;
        assert_int_equal(meopt_export(opt, i, 0, counts[i], weights, &err), 0);
    }
    meopt_destroy(opt);
    if (device) device_free(device, block);
    else free(block);
}

static void matrices_step_as_on_the_cpu(void **unused)
{
    (void)unused;
    enum { ALL = 130 * 70 + 16 * 640 + 90 };
    static float here[ALL], there[ALL];
    static const char *const presets[] = {"fp32", "quality", "balanced", "minimal"};
    for (int k = 0; k < 4; k++) {
        struct meopt_options o;
        struct meopt_error err;
        struct bytes ours = {0}, theirs = {0};
        meopt_options_init(&o, sizeof o, MEOPT_MUON);
        assert_int_equal(meopt_options_preset(&o, presets[k], &err), 0);
        o.small_count = 64;
        o.ns_form = k % 2 ? MEOPT_NS_GRAM : MEOPT_NS_DIRECT;
        o.ns_dtype = k < 2 ? MEOPT_F32 : MEOPT_BF16;
        o.average_decay = k == 3 ? 0.9 : 0;
        if (k != 3) o.weights = MEOPT_WEIGHTS_F32;
        matrix_steps(NULL, &o, here, &ours);
        matrix_steps(card, &o, there, &theirs);
        assert_int_equal(ours.used, theirs.used);
        if (k != 3) assert_memory_equal(ours.data, theirs.data, ours.used); /* averages are of weights */
        double off = 0, size = 0;
        for (int i = 0; i < ALL; i++) {
            off += pow((double)here[i] - (double)there[i], 2);
            size += pow((double)here[i], 2);
        }
        double most = k < 2 ? 1e-5 : 5e-3; /* of the weights, which move by a few hundredths a step */
        if (!(sqrt(off / size) <= most)) fail_msg("%s: weights differ by %.3g", presets[k], sqrt(off / size));
        free(ours.data);
        free(theirs.data);
    }
}

/* Half of the rows of two matrices, on a card of its own. */
enum { HALVES = 2, HALF_ROWS = 64, HALF = HALF_ROWS * 70 };
struct half_side {
    struct device *device;
    int rank, ranks;
    float out[HALVES][HALF];
    int64_t matrices;
};
static struct {
    pthread_barrier_t barrier;
    double *values[HALVES];
} exchanged;

static int reduce(void *context, double *values, size_t count)
{
    const struct half_side *s = context;
    exchanged.values[s->rank] = values;
    pthread_barrier_wait(&exchanged.barrier);
    for (size_t i = 0; i < count && s->rank == 0; i++)
        values[i] = exchanged.values[1][i] = values[i] + exchanged.values[1][i];
    pthread_barrier_wait(&exchanged.barrier);
    return 0;
}

static void *half_steps(void *context)
{
    struct half_side *s = context;
    struct meopt_options o;
    struct meopt_error err = {0};
    struct error why = {0};
    struct meopt *opt;
    struct meopt_tensor table[HALVES] = {{0}};
    struct meopt_step_stats stats = {0};
    uint32_t seed = 3 + (uint32_t)s->rank;
    meopt_options_init(&o, sizeof o, MEOPT_MUON);
    assert_int_equal(meopt_options_preset(&o, "balanced", &err), 0);
    o.device = (struct meopt_device *)s->device;
    o.reduce = reduce;
    o.context = s;
    o.rank = s->ranks ? s->rank : 0;
    o.ranks = s->ranks;
    for (int i = 0; i < HALVES; i++)
        table[i] = (struct meopt_tensor){.name = i ? "b" : "a",
                                         .ndim = 2,
                                         .shape = {2 * HALF_ROWS, 70},
                                         .first = s->rank * HALF,
                                         .count = HALF,
                                         .flags = MEOPT_PART,
                                         .lr_scale = 1};
    if (meopt_create(&opt, &o, table, HALVES, &err)) fail_msg("%s", err.message);
    float *block = device_alloc(s->device, MEMORY_GRADIENTS, sizeof s->out, "gradients", &why);
    for (int step = 1; step <= STEPS; step++) {
        struct meopt_gradient given[HALVES] = {{block, MEOPT_F32}, {block + HALF, MEOPT_F32}};
        float *values = values_new(HALVES * HALF, 0.01f, &seed);
        for (int i = 0; i < HALVES && step == 1; i++)
            assert_int_equal(meopt_import(opt, (size_t)i, 0, HALF, values, &err), 0);
        s->device->upload(s->device, block, values, sizeof s->out);
        assert_int_equal(meopt_step(opt, step, 1e-2, 1, given, &stats, &err), 0);
        free(values);
    }
    s->matrices = stats.matrices;
    for (int i = 0; i < HALVES; i++)
        assert_int_equal(meopt_export(opt, (size_t)i, 0, HALF, s->out[i], &err), 0);
    meopt_destroy(opt);
    device_free(s->device, block);
    return NULL;
}

/* Each of two handles orthogonalizes one of two matrices, with the bits of both orthogonalizing both. */
static void handles_divide_matrices(void **unused)
{
    (void)unused;
    static struct half_side sides[2][HALVES];
    struct device *devices[HALVES] = {card};
    struct error err = {0};
    pthread_barrier_init(&exchanged.barrier, NULL, HALVES);
    assert_int_equal(device_open(&devices[1], getenv("MEOPT_TEST_DEVICE"), 0, &err), 0);
    for (int k = 0; k < 2; k++) {
        pthread_t ids[HALVES];
        for (int r = 0; r < HALVES; r++) {
            sides[k][r] = (struct half_side){.device = devices[r], .rank = r, .ranks = k ? HALVES : 0};
            assert_int_equal(pthread_create(&ids[r], NULL, half_steps, &sides[k][r]), 0);
        }
        for (int r = 0; r < HALVES; r++) pthread_join(ids[r], NULL);
        for (int r = 0; r < HALVES; r++) {
            assert_int_equal(sides[k][r].matrices, k ? 1 : 2);
            assert_memory_equal(sides[k][r].out, sides[0][r].out, sizeof sides[k][r].out);
        }
    }
    device_close(devices[1]);
    pthread_barrier_destroy(&exchanged.barrier);
}

static int open_card(void **unused)
{
    (void)unused;
    struct error err = {0};
    if (device_open(&card, getenv("MEOPT_TEST_DEVICE"), 0, &err)) {
        error_print(&err);
        return 1;
    }
    return 0;
}
struct stepper {
    struct side *side;
    size_t first;
    int status;
};
static void *steps(void *context)
{
    struct stepper *s = context;
    for (size_t i = s->first; i < TENSORS && !s->status; i += 3)
        s->status = meopt_step_tensor(s->side->opt, i, s->side->gradients[i], MEOPT_F32, 1, NULL);
    return NULL;
}

/* As meopt.h promises, whatever card the calling thread has had until then. */
static void threads_step_the_tensors_of_one_handle(void **unused)
{
    (void)unused;
    struct meopt_options o;
    struct meopt_error err = {0};
    struct side sides[2];
    struct stepper threads[2][3];
    uint32_t seed = 5;
    meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
    o.first_moment = o.second_moment = MEOPT_STATE_8BIT;
    o.small_count = 64;
    side_open(&sides[0], NULL, o);
    side_open(&sides[1], card, o);
    for (int step = 1; step <= STEPS; step++) {
        for (int i = 0; i < TENSORS; i++) {
            int64_t count = shapes[i][0] * shapes[i][1];
            float *g = values_new(count, 0.01f, &seed);
            for (int d = 0; d < 2; d++) give(&sides[d], i, g, 0);
            free(g);
        }
        for (int d = 0; d < 2; d++) {
            pthread_t ids[3];
            assert_int_equal(meopt_step_begin(sides[d].opt, step, 1e-2, 0, &err), 0);
            for (size_t k = 0; k < 3; k++) {
                threads[d][k] = (struct stepper){&sides[d], k, 0};
                assert_int_equal(pthread_create(&ids[k], NULL, steps, &threads[d][k]), 0);
            }
            for (int k = 0; k < 3; k++) pthread_join(ids[k], NULL);
            for (int k = 0; k < 3; k++) assert_int_equal(threads[d][k].status, 0);
            assert_int_equal(meopt_step_end(sides[d].opt, NULL, &err), 0);
        }
    }
    same(sides, "threads");
    for (int d = 0; d < 2; d++) side_close(&sides[d]);
}

static int close_card(void **unused)
{
    (void)unused;
    struct error err = {0};
    if (!card) return 0; /* the card could not be opened, which was reported */
    int code = device_check(card, &err);
    if (code) error_print(&err);
    for (int c = 0; c < MEMORY_CLASS_COUNT; c++)
        if (c != MEMORY_WORKSPACE && card->use.current_bytes[c]) code = 1; /* the device keeps its scratch */
    device_close(card);
    return code;
}

int main(void)
{
    if (!getenv("MEOPT_TEST_DEVICE")) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rule_and_format_has_the_cpu_s_bits),
        cmocka_unit_test(matrices_step_as_on_the_cpu), cmocka_unit_test(handles_divide_matrices),
        cmocka_unit_test(threads_step_the_tensors_of_one_handle),
        cmocka_unit_test(a_bad_accumulated_gradient_is_reported_by_norm_and_step)};
    return cmocka_run_group_tests(tests, open_card, close_card);
}
