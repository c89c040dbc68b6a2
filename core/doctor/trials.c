/* Tests attention and the optimizer of a device against the CPU's results for the same inputs. */
#include "core/doctor/work.h"
#include "core/base/clock.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- attention ---- */

enum { QKV, OUT, LSE, DOUT, DQKV, PARTS };

struct side {
    struct device *device;
    char *block, *part[PARTS];
    struct attention_gradient attention;
};

static void part_sizes(const struct doctor_shape *s, int64_t images, int64_t counts[PARTS])
{
    int64_t rows = images * s->tokens * s->width;
    counts[QKV] = counts[DQKV] = 3 * rows;
    counts[OUT] = counts[DOUT] = rows;
    counts[LSE] = images * s->heads * s->tokens;
}

/* Allocates one side's arrays: NaN, except the inputs. */
static bool side_open(struct work *w, struct side *side, struct device *dev, const struct doctor_shape *s,
                      int64_t images)
{
    struct error err;
    size_t at[PARTS], bytes = 0;
    int64_t counts[PARTS];
    part_sizes(s, images, counts);
    for (int i = 0; i < PARTS; i++) {
        at[i] = bytes;
        bytes += ((size_t)counts[i] * (i == LSE ? 4 : dtype_bytes(s->type)) + 255) & ~(size_t)255;
    }
    side->device = dev;
    side->block = dev == w->device ? work_memory(w, "attention", bytes)
                                   : device_alloc(dev, MEMORY_WORKSPACE, bytes, "measurement", &err);
    if (!side->block) return false;
    dev->ops->fill(dev, side->block, 0xFF, bytes);
    for (int i = 0; i < PARTS; i++) side->part[i] = side->block + at[i];
    work_fill(dev, side->part[QKV], s->type, counts[QKV], 4);
    work_fill(dev, side->part[DOUT], s->type, counts[DOUT], 5);
    side->attention = (struct attention_gradient){{.type = s->type,
                                                   .qkv = side->part[QKV],
                                                   .out = side->part[OUT],
                                                   .lse = (float *)(void *)side->part[LSE],
                                                   .B = images,
                                                   .N = s->tokens,
                                                   .H = s->heads,
                                                   .G = s->heads,
                                                   .dh = s->width / s->heads},
                                                  .dout = side->part[DOUT],
                                                  .dqkv = side->part[DQKV]};
    return true;
}

static void forward(void *context)
{
    struct side *s = context;
    s->device->ops->attention_forward(s->device, &s->attention.forward);
}
static void backward(void *context)
{
    struct side *s = context;
    s->device->ops->attention_backward(s->device, &s->attention);
}

/* Compares results of different rounding and summation order: 2^-5 of the norm for bf16, 2^-12 for fp32. A
 * single element may differ by 4 times that share of the largest one. */
static bool near(const float *x, const float *want, int64_t count, enum dtype type)
{
    double error = 0, size = 0, worst = 0, largest = 0, share = type == DTYPE_BF16 ? 0x1p-5 : 0x1p-12;
    for (int64_t i = 0; i < count; i++) {
        double e = fabs((double)x[i] - (double)want[i]), v = fabs((double)want[i]);
        if (!(e < 1e30)) return false;
        error += e * e, size += v * v;
        worst = fmax(worst, e), largest = fmax(largest, v);
    }
    return error <= share * share * size && worst <= 4 * share * largest;
}

static bool part_near(const struct side *a, const struct side *b, int part, int64_t count, enum dtype type)
{
    enum dtype t = part == LSE ? DTYPE_F32 : type;
    float *x = xmalloc((size_t)count * sizeof *x), *y = xmalloc((size_t)count * sizeof *y);
    work_fetch(a->device, a->part[part], t, count, x);
    work_fetch(b->device, b->part[part], t, count, y);
    bool right = near(x, y, count, type);
    free(x);
    free(y);
    return right;
}

static void compare(struct work *w, const struct doctor_shape *s, int64_t images, struct side sides[2])
{
    static const char *const names[PARTS] = {NULL, "outputs", N_("sums of rows"), NULL, "gradients"};
    int64_t counts[PARTS];
    part_sizes(s, images, counts);
    for (int i = 0; i < 2; i++) {
        forward(&sides[i]);
        backward(&sides[i]);
        sides[i].device->sync(sides[i].device);
    }
    for (int part = OUT; part < PARTS; part++) {
        if (!names[part]) continue;
        bool right = !w->device->pending.code && part_near(&sides[0], &sides[1], part, counts[part], s->type);
        if (right) {
            w->checks++;
            continue;
        }
        work_result(w, work_add(w, "attention", FINDING_OK, "%s: the %s are WRONG", _(s->of), _(names[part])),
                    false, NULL);
    }
}

static void time_attention(struct work *w, const struct doctor_shape *s)
{
    struct side side;
    double ms[2][2];
    if (!side_open(w, &side, w->device, s, s->images)) return;
    for (int call = 0; call < 2; call++) {
        ms[0][call] = work_seconds(w->device, forward, &side) * 1e3;
        ms[1][call] = work_seconds(w->device, backward, &side) * 1e3;
    }
    double pairs = (double)(s->images * s->tokens * s->tokens * s->width);
    struct line *l = work_add(w, "attention", FINDING_OK,
                              "%s, %lld x %lld tokens, %lld heads of %lld, %s: forward %.3f and %.3f ms "
                              "(%.3g TFLOP/s), backward %.3f and %.3f ms (%.3g TFLOP/s)",
                              _(s->of), (long long)s->images, (long long)s->tokens, (long long)s->heads,
                              (long long)(s->width / s->heads), dtype_name(s->type), ms[0][0], ms[0][1],
                              4 * pairs / ms[0][1] * 1e-9, ms[1][0], ms[1][1], 10 * pairs / ms[1][1] * 1e-9);
    line_text(l, "dtype", dtype_name(s->type));
    line_real(l, "forward_ms", ms[0][1]);
    line_real(l, "backward_ms", ms[1][1]);
    device_free(w->device, side.block);
}

void work_attention(struct work *w, const struct doctor_shape *s)
{
    int64_t images = s->images < 2 ? s->images : 2;
    struct operation_shape shape = {OPERATION_ATTENTION, s->type,  0,
                                    s->images,           s->heads, s->width / s->heads};
    struct side sides[2] = {{0}};
    struct device *cpu = NULL;
    struct error err;
    if (w->device->ops->supports(w->device, &shape, &err)) {
        line_advise(work_add(w, "attention", FINDING_MISSING, "%s: %s", _(s->of), err.what),
                    "this experiment cannot run on this device", err.hint);
        return;
    }
    if (w->card && device_open(&cpu, "cpu", 0, &err) == 0 && side_open(w, &sides[0], w->device, s, images) &&
        side_open(w, &sides[1], cpu, s, images))
        compare(w, s, images, sides);
    if (sides[0].block) device_free(w->device, sides[0].block);
    device_close(cpu);
    time_attention(w, s);
}

/* ---- the optimizer: bit-identical to the CPU ---- */

struct saved {
    char *data;
    size_t used;
};
static int collect(void *context, const void *data, size_t n)
{
    struct saved *s = context;
    s->data = xrealloc(s->data, s->used + n + 1);
    memcpy(s->data + s->used, data, n);
    s->used += n;
    return 0;
}

/* Runs one step of one tensor; on an error `library` has the reason. */
static int stepped(struct device *dev, struct meopt_options o, int64_t rows, int64_t columns, struct saved *s,
                   struct meopt_error *library)
{
    struct meopt *opt = NULL;
    struct error err;
    struct meopt_tensor tensor = {.name = "w", .ndim = 2, .shape = {rows, columns}, .lr_scale = 1};
    int64_t count = rows * columns;
    float *values = xmalloc((size_t)count * sizeof *values);
    void *gradient = values;
    o.device = (struct meopt_device *)dev;
    o.accumulator = -1;
    int code = meopt_create(&opt, &o, &tensor, 1, library);
    for (int64_t i = 0; i < count; i++) values[i] = work_value(6, i) * 0.05f;
    if (!code) code = meopt_import(opt, 0, 0, count, values, library);
    for (int64_t i = 0; i < count; i++) values[i] = work_value(7, i) * 1e-3f * (float)(1 + i % 7);
    if (!code && dev) {
        gradient = device_alloc(dev, MEMORY_GRADIENTS, (size_t)count * 4, "measurement", &err);
        if (gradient) dev->upload(dev, gradient, values, (size_t)count * 4);
        else {
            code = MEOPT_NO_MEMORY;
            snprintf(library->message, sizeof library->message, _("no memory for a gradient"));
        }
    }
    if (!code) code = meopt_step_begin(opt, 1, 1e-3, 1, library);
    if (!code) code = meopt_step_tensor(opt, 0, gradient, MEOPT_F32, 1, library);
    if (!code) code = meopt_step_end(opt, NULL, library);
    if (!code) code = meopt_save(opt, collect, s, library);
    meopt_destroy(opt);
    if (dev) device_free(dev, gradient);
    free(values);
    return code;
}

void work_optimizer(struct work *w, const struct doctor_shape *s)
{
    enum { MOST = 4 << 20 };
    struct meopt_options o;
    struct meopt_error why = {0};
    struct saved host = {0}, card = {0};
    int64_t rows = s->hidden < MOST / s->width ? s->hidden : MOST / s->width;
    if (w->doctor->optimizer) o = *w->doctor->optimizer;
    else {
        meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
        meopt_options_preset(&o, "balanced", &why);
    }
    int code = stepped(NULL, o, rows, s->width, &host, &why);
    if (!code) code = stepped(w->device, o, rows, s->width, &card, &why);
    if (code) {
        work_result(w, work_add(w, "optimizer", FINDING_OK, "a step failed: %s", why.message), false, NULL);
    } else {
        size_t differ = 0, n = host.used < card.used ? host.used : card.used;
        for (size_t i = 0; i < n; i++) differ += host.data[i] != card.data[i];
        bool same = host.used == card.used && !differ;
        struct line *l = work_add(w, "optimizer", FINDING_OK, "a step of %s on %lld x %lld %s",
                                  meopt_rule_name(o.rule), (long long)rows, (long long)s->width,
                                  same ? _("is bit-identical to the CPU's") : _("differs from the CPU's"));
        line_text(l, "rule", meopt_rule_name(o.rule));
        line_real(l, "bytes", (double)card.used);
        line_real(l, "bytes_that_differ", (double)differ);
        work_result(w, l, same, NULL);
    }
    free(host.data);
    free(card.data);
}
