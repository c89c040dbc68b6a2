/* For tests of libmeopt: two tensors, an optimizer of them, its steps, and what it saves. */
#ifndef MEOPT_TESTS_OPTIM_OPTIM_TABLE_H
#define MEOPT_TESTS_OPTIM_OPTIM_TABLE_H

#include "core/meopt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { A = 130 * 70, B = 77, COUNT = 2 };
static const char *const presets[] = {"quality", "balanced", "minimal", "fp32", "amp", "pure_bf16"};

static struct meopt_tensor table[COUNT] = {
    {.name = "layer.weight", .ndim = 2, .shape = {130, 70}},
    {.name = "layer.bias", .ndim = 1, .shape = {B}, .flags = MEOPT_NO_DECAY}};
static float start[A], gradient[A];

static inline void fill(float *x, int n, uint32_t seed, float scale)
{
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = ((float)(seed >> 8) / 16777216.0f - 0.5f) * scale;
    }
}

static inline struct meopt *make(int rule, const char *preset, uint64_t seed)
{
    struct meopt_options o;
    struct meopt_error err;
    struct meopt *opt;
    assert_int_equal(meopt_options_init(&o, sizeof o, rule), 0);
    assert_int_equal(meopt_options_preset(&o, preset, &err), 0);
    o.weight_decay = 0.01;
    o.seed = seed;
    assert_int_equal(meopt_create(&opt, &o, table, COUNT, &err), 0);
    fill(start, A, 1, 1);
    assert_int_equal(meopt_import(opt, 0, 0, A, start, &err), 0);
    assert_int_equal(meopt_import(opt, 1, 0, B, start, &err), 0);
    return opt;
}

static inline void steps(struct meopt *opt, int first, int last)
{
    struct meopt_error err;
    for (int step = first; step <= last; step++) {
        fill(gradient, A, (uint32_t)step, 0.1f);
        struct meopt_gradient g[COUNT] = {{gradient, MEOPT_F32}, {gradient, MEOPT_F32}};
        assert_int_equal(meopt_step(opt, step, 1e-3, 1, g, NULL, &err), 0);
    }
}

struct buffer {
    char *data;
    size_t bytes, space;
};
static inline int buffer_write(void *context, const void *data, size_t bytes)
{
    struct buffer *b = context;
    if (b->bytes + bytes > b->space) b->data = realloc(b->data, b->space = (b->bytes + bytes) * 2);
    memcpy(b->data + b->bytes, data, bytes);
    b->bytes += bytes;
    return 0;
}
static inline struct buffer saved(const struct meopt *opt)
{
    struct buffer b = {0};
    struct meopt_error err;
    assert_int_equal(meopt_save(opt, buffer_write, &b, &err), 0);
    return b;
}

#endif
