/* The loss of a language model's head (core/nn/lm_loss.h) in its three forms against float64; scratch
 * as the layout says; values only; labels -1; dW added to. */
#include "core/nn/lm_loss.h"
#include "kernels/bf16.h"
#include "tests/unit/isas.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const double u32 = 0x1p-24, u16 = 0x1p-8;

static uint64_t random_state;
static double random_value(void) /* mean 0, deviation 1 */
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(random_state >> 40) * 0x1p-24 - 0.5) * sqrt(12);
}
static void encode(enum dtype type, double x, void *p)
{
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    uint16_t h = bf16_of_bits(bits);
    memcpy(p,
           type == DTYPE_F64    ? (void *)&x
           : type == DTYPE_BF16 ? (void *)&h
                                : (void *)&f,
           dtype_bytes(type));
}
static double decode(enum dtype type, const void *p)
{
    double x = 0;
    float f = 0;
    uint16_t h = 0;
    memcpy(type == DTYPE_F64    ? (void *)&x
           : type == DTYPE_BF16 ? (void *)&h
                                : (void *)&f,
           p, dtype_bytes(type));
    uint32_t bits = (uint32_t)h << 16;
    if (type == DTYPE_BF16) memcpy(&f, &bits, 4);
    return type == DTYPE_F64 ? x : (double)f;
}

struct problem {
    enum dtype type;
    int64_t R, D, V;
    float smoothing;
    double *x, *w, *dx, *dw, sums[2]; /* values, and what float64 makes of them */
    double *dx_slack, *dw_slack, loss_slack;
    int32_t *labels;
};
static double *numbers(int64_t n) { return calloc((size_t)n + 1, sizeof(double)); }

/* Rounds to the type, so that the reference reads the device's values. */
static double stored(enum dtype type, double x)
{
    uint8_t bytes[8];
    encode(type, x, bytes);
    return decode(type, bytes);
}

static double norm(const double *x, int64_t n, int64_t stride)
{
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += x[i * stride] * x[i * stride];
    return sqrt(squares);
}

/* Computes the logits of a row; returns their error. `codes`: the error of an integer GEMM
 * (kernels/cpu/bfp.h) over the norms of its operands, several deviations of a rounding to 2^-14 of a norm. */
static double logits_of_row(const struct problem *p, int64_t r, double codes, double *z)
{
    double off = 0, row = norm(p->x + r * p->D, p->D, 1);
    for (int64_t v = 0; v < p->V; v++) {
        double size = 0;
        z[v] = 0;
        for (int64_t d = 0; d < p->D; d++) {
            double term = p->x[r * p->D + d] * p->w[v * p->D + d];
            z[v] += term;
            size += fabs(term);
        }
        off = fmax(off,
                   (8 + 2 * sqrt((double)p->D)) * u32 * size + codes * row * norm(p->w + v * p->D, p->D, 1));
    }
    return off;
}

/* g (R, V): the gradients of the logits; slack: their errors. bf16: they are rounded once. */
static void solve_rows(struct problem *p, double codes, double *g, double *slack)
{
    double *z = numbers(p->V), unit = p->type == DTYPE_F32 ? u32 : u16;
    double weight = (double)0.01f, smooth = (double)p->smoothing;
    for (int64_t r = 0; r < p->R; r++) {
        if (p->labels[r] < 0) continue;
        double top = -INFINITY, sum = 0, total = 0, off = logits_of_row(p, r, codes, z);
        int64_t best = 0;
        for (int64_t v = 0; v < p->V; v++) {
            if (z[v] > top) top = z[v], best = v;
            total += z[v];
        }
        for (int64_t v = 0; v < p->V; v++) sum += exp(z[v] - top);
        double lse = top + log(sum), even = lse - total / (double)p->V;
        p->sums[0] += weight * ((1 - smooth) * (lse - z[p->labels[r]]) + smooth * even);
        p->sums[1] += best == p->labels[r];
        p->loss_slack += weight * (2 * off + 60 * u32);
        for (int64_t v = 0; v < p->V; v++) {
            double prob = exp(z[v] - lse), q = (v == p->labels[r] ? 1 - smooth : 0) + smooth / (double)p->V;
            int64_t i = r * p->V + v;
            g[i] = weight * (prob - q);
            slack[i] = weight * (prob * (2 * off + 100 * u32) + 2 * u32 * q) + (unit + 8 * u32) * fabs(g[i]);
        }
    }
    free(z);
}

static void solve(struct problem *p)
{
    bool by_codes = p->type == DTYPE_BF16 && !getenv("MEOPT_TEST_DEVICE") && isa_has_bfp();
    double *g = numbers(p->R * p->V), *slack = numbers(p->R * p->V), codes = by_codes ? 0x1p-13 : 0;
    solve_rows(p, codes, g, slack);
    for (int64_t r = 0; r < p->R; r++)
        for (int64_t v = 0; v < p->V; v++)
            for (int64_t d = 0; d < p->D; d++) {
                double a = p->x[r * p->D + d], b = p->w[v * p->D + d];
                p->dx[r * p->D + d] += g[r * p->V + v] * b;
                p->dx_slack[r * p->D + d] += slack[r * p->V + v] * fabs(b);
                p->dw[v * p->D + d] += g[r * p->V + v] * a;
                p->dw_slack[v * p->D + d] += slack[r * p->V + v] * fabs(a);
            }
    for (int64_t i = 0; by_codes && i < p->R * p->D; i++)
        p->dx_slack[i] += codes * norm(g + i / p->D * p->V, p->V, 1) * norm(p->w + i % p->D, p->V, p->D);
    for (int64_t i = 0; by_codes && i < p->V * p->D; i++)
        p->dw_slack[i] += codes * norm(g + i / p->D, p->R, p->V) * norm(p->x + i % p->D, p->R, p->D);
    free(g);
    free(slack);
}

/* x and W such that logits are a few units; `outliers` makes one column of x 300 times as large. */
static struct problem problem_of(enum dtype type, int64_t R, int64_t D, int64_t V, double smoothing,
                                 bool outliers)
{
    struct problem p = {.type = type, .R = R, .D = D, .V = V, .smoothing = (float)smoothing};
    random_state = 7;
    p.x = numbers(R * D), p.w = numbers(V * D), p.dx = numbers(R * D), p.dw = numbers(V * D);
    p.dx_slack = numbers(R * D), p.dw_slack = numbers(V * D);
    p.labels = malloc((size_t)R * sizeof *p.labels);
    assert_true(p.x && p.w && p.dx && p.dw && p.dx_slack && p.dw_slack && p.labels);
    for (int64_t i = 0; i < R * D; i++)
        p.x[i] = stored(type, random_value() * (outliers && i % D == 3 ? 300 : 1));
    for (int64_t i = 0; i < V * D; i++)
        p.w[i] = stored(type, random_value() * (outliers && i % D == 3 ? 0.01 : 0.3));
    for (int64_t r = 0; r < R; r++) p.labels[r] = r % 6 == 5 ? -1 : (int32_t)(r * 7919 % V);
    solve(&p);
    return p;
}
static void problem_free(struct problem *p)
{
    double *all[] = {p->x, p->w, p->dx, p->dw, p->dx_slack, p->dw_slack};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    free(p->labels);
}

static void *to_device(struct device *device, enum dtype type, const double *values, int64_t n)
{
    struct error err;
    size_t element = dtype_bytes(type);
    uint8_t *host = malloc((size_t)n * element + 1);
    void *p = device_alloc(device, MEMORY_DATA, (size_t)n * element, "values", &err);
    assert_true(host && p);
    for (int64_t i = 0; i < n; i++) encode(type, values ? values[i] : 0.5, host + (size_t)i * element);
    device->upload(device, p, host, (size_t)n * element);
    device->sync(device);
    free(host);
    return p;
}
static double *from_device(struct device *device, enum dtype type, const void *p, int64_t n)
{
    size_t element = dtype_bytes(type);
    uint8_t *host = malloc((size_t)n * element + 1);
    double *values = numbers(n);
    assert_true(host && values);
    device->sync(device);
    device->download(device, host, p, (size_t)n * element);
    for (int64_t i = 0; i < n; i++) values[i] = decode(type, host + (size_t)i * element);
    free(host);
    return values;
}

/* `parts`: roundings of an element of dW; `before`: its value before the call. */
static void check(const char *what, const double *got, const double *want, const double *slack, int64_t n,
                  double unit, int64_t parts, double before)
{
    for (int64_t i = 0; i < n; i++) {
        double expected = want[i] + before,
               allowed = slack[i] + (double)parts * unit * (fabs(expected) + slack[i] + before) + 1e-30;
        if (!(fabs(got[i] - expected) <= allowed))
            fail_msg("%s: element %lld is %.9g, should be %.9g +- %.2g", what, (long long)i, got[i], expected,
                     allowed);
    }
}

static const char *spec(void) { return getenv("MEOPT_TEST_DEVICE") ? getenv("MEOPT_TEST_DEVICE") : "cpu"; }

/* Returns the error of n elements over their size: of norms. */
static double error_of(const double *got, const double *want, int64_t n)
{
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += (got[i] - want[i]) * (got[i] - want[i]);
    return sqrt(squares) / norm(want, n, 1);
}

/* Slices of the vocabulary in run; their chunk is that many times as large. */
static int slices = 1;

/* Returns the loss. dw_error: NULL, or where to write the error of dW. */
static double run(struct problem *p, size_t chunk, enum lm_loss_form form, bool add, bool values_only,
                  double *dw_error)
{
    struct device *device;
    struct error err;
    assert_int_equal(device_open(&device, spec(), 0, &err), 0);
    chunk *= (size_t)slices;
    struct lm_loss_layout layout = lm_loss_layout(p->R, p->V, chunk, slices, slices);
    int64_t states = slices > 1 ? slices + 1 : 1, each = (p->V + slices - 1) / slices;
    assert_int_equal(layout.form, form);
    assert_true(layout.bytes <= chunk + (size_t)(p->R * states * LOGIT_STATE) * sizeof(double));
    double zero[2] = {0, 0};
    struct lm_loss o = {.type = p->type,
                        .weight = 0.01f,
                        .smoothing = p->smoothing,
                        .dweights_type = p->type,
                        .add = add,
                        .R = p->R,
                        .D = p->D,
                        .V = p->V};
    o.x = to_device(device, p->type, p->x, p->R * p->D);
    o.head.weights = to_device(device, p->type, p->w, p->V * p->D);
    void *dx = to_device(device, DTYPE_F32, NULL, p->R * p->D),
         *dw = to_device(device, p->type, NULL, p->V * p->D);
    int32_t *labels = device_alloc(device, MEMORY_DATA, (size_t)p->R * sizeof *labels, "labels", &err);
    device->upload(device, labels, p->labels, (size_t)p->R * sizeof *labels);
    o.labels = labels;
    o.sums = to_device(device, DTYPE_F64, zero, 2);
    o.scratch = device_alloc(device, MEMORY_WORKSPACE, layout.bytes, "logits", &err);
    if (!values_only) o.dx = dx, o.head.dweights = dw;
    struct lm_loss_head heads[8];
    struct slice_sums sums_of_slices = {.device = device, .own = slices, .each = p->R * p->D, .width = p->D};
    sums_of_slices.buffers = to_device(device, DTYPE_F32, NULL, slice_buffers(slices) * p->R * p->D);
    for (int i = 0; i < slices; i++) {
        size_t at = (size_t)(i * each * p->D) * dtype_bytes(p->type);
        heads[i] = o.head;
        heads[i].weights = (const char *)o.head.weights + at;
        if (!values_only) heads[i].dweights = (char *)dw + at;
    }
    if (slices > 1) {
        o.slices = o.own = slices;
        o.heads = heads;
        o.sums_of_slices = &sums_of_slices;
    }
    lm_loss(device, &o, &layout);
    assert_int_equal(device_check(device, &err), 0);
    double *sums = from_device(device, DTYPE_F64, o.sums, 2),
           *got_dx = from_device(device, DTYPE_F32, dx, p->R * p->D),
           *got_dw = from_device(device, p->type, dw, p->V * p->D);
    check("loss", sums, p->sums, &p->loss_slack, 1, 0, 0, 0);
    assert_true(sums[1] == p->sums[1]);
    double unit = p->type == DTYPE_F32 ? u32 : u16;
    if (!values_only)
        check("dx", got_dx, p->dx, p->dx_slack, p->R * p->D, u32, layout.columns < each ? 64 : slices, 0);
    if (!values_only)
        check("dW", got_dw, p->dw, p->dw_slack, p->V * p->D, unit, (p->R + layout.rows - 1) / layout.rows,
              add ? 0.5 : 0);
    for (int64_t i = 0; i < (values_only ? p->V * p->D : 0); i++) assert_true(got_dw[i] == 0.5);
    if (dw_error) *dw_error = error_of(got_dw, p->dw, p->V * p->D);
    double value = sums[0];
    free(sums);
    free(got_dx);
    free(got_dw);
    device_close(device);
    return value;
}

/* The logits of all forms are the same, in fp32 to the bit: their losses differ by the order of sums. */
static void all_forms(struct problem *p)
{
    int64_t each = (p->V + slices - 1) / slices;
    size_t row = (size_t)(each + 63) / 64 * 64 * sizeof(float), rows = (size_t)p->R;
    const size_t chunks[] = {rows * row, (rows + 2) / 3 * row, rows * 64 * 2 * sizeof(float)};
    double whole = 0;
    for (int form = LM_LOSS_WHOLE; form <= LM_LOSS_SLABS; form++)
        for (int how = 0; how < 3; how++) { /* written, added to, values only */
            double value = run(p, chunks[form], (enum lm_loss_form)form, how == 1, how == 2, NULL);
            if (form == LM_LOSS_WHOLE) whole = value;
            if (p->type == DTYPE_F32) assert_true(fabs(value - whole) <= 1e-6 * fabs(whole));
        }
    problem_free(p);
}

/* Runs all forms in both types on each instruction set, or on the card. */
static void on_each(int64_t D, int64_t V, double smoothing, bool outliers)
{
    for (int isa = 0; isa < ISAS; isa++) {
        if (!isa_select(isa)) continue;
        for (int bf16 = 0; bf16 < 2; bf16++) {
            struct problem p = problem_of(bf16 ? DTYPE_BF16 : DTYPE_F32, 40, D, V, smoothing, outliers);
            all_forms(&p);
        }
    }
    isas_restore();
}
static void forms_equal_float64(void **state) { on_each(67, 2011, 0, false); }
static void slices_equal_float64(void **state)
{
    for (slices = 2; slices <= 4; slices *= 2)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            struct problem p =
                problem_of(bf16 ? DTYPE_BF16 : DTYPE_F32, 20, 17, 4203, slices == 4 ? 0.1 : 0, bf16);
            all_forms(&p);
        }
    slices = 1;
}
static void outliers_and_smoothing(void **state) { on_each(64, 1999, 0.1, true); }

/* dW in bf16 is rounded once per part of rows: the error is below twice that of one rounding. */
static void roundings_of_parts_are_bounded(void **state)
{
    enum { R = 128, V = 1024 };
    struct problem p = problem_of(DTYPE_BF16, R, 64, V, 0, false);
    const size_t row = V * sizeof(float);
    double whole, rows, slabs;
    run(&p, R * row, LM_LOSS_WHOLE, false, false, &whole);
    run(&p, R / LM_LOSS_ROW_PARTS * row, LM_LOSS_ROWS, false, false, &rows);
    run(&p, R * 64 * sizeof(float), LM_LOSS_SLABS, false, false, &slabs);
    print_message("error of dW: whole %.2e, rows %.2e, slabs %.2e\n", whole, rows, slabs);
    assert_true(whole < 0x1p-8 && rows < 2 * whole && slabs < 1.1 * whole);
    problem_free(&p);
}

/* One NaN or infinity in x: the loss is not finite, so that a diverged run is recognized. */
static void a_row_that_is_not_finite_shows(void **state)
{
    static const float bad[] = {NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        struct device *device;
        struct error err;
        assert_int_equal(device_open(&device, spec(), 0, &err), 0);
        enum { R = 3, D = 5, V = 70 };
        struct lm_loss_layout layout = lm_loss_layout(R, V, i / 2 ? R * 64 * sizeof(float) : 1 << 20, 1, 1);
        double values[V * D] = {0.25, -0.5, 0.125}, x[R * D] = {1, 2, 3}, zero[2] = {0};
        x[7] = (double)bad[i % 2];
        int32_t host[R] = {0, 1, 2}, *labels = device_alloc(device, MEMORY_DATA, sizeof host, "labels", &err);
        device->upload(device, labels, host, sizeof host);
        struct lm_loss o = {.type = DTYPE_F32, .labels = labels, .weight = 1, .R = R, .D = D, .V = V};
        o.x = to_device(device, DTYPE_F32, x, R * D);
        o.head.weights = to_device(device, DTYPE_F32, values, V * D);
        o.sums = to_device(device, DTYPE_F64, zero, 2);
        o.scratch = device_alloc(device, MEMORY_WORKSPACE, layout.bytes, "logits", &err);
        lm_loss(device, &o, &layout);
        double *sums = from_device(device, DTYPE_F64, o.sums, 2);
        assert_false(isfinite(sums[0]));
        free(sums);
        device_close(device);
    }
}

static void layouts_keep_within_the_chunk(void **state)
{
    static const struct {
        int64_t R, V;
        size_t chunk;
        enum lm_loss_form form;
    } rows[] = {
        {512, 50257, LM_LOSS_CHUNK, LM_LOSS_WHOLE},   {1024, 50257, LM_LOSS_CHUNK, LM_LOSS_ROWS},
        {1024, 50257, 25755648, LM_LOSS_ROWS},        {4096, 50257, LM_LOSS_CHUNK, LM_LOSS_ROWS},
        {8192, 151936, LM_LOSS_CHUNK, LM_LOSS_SLABS}, {8, 256, LM_LOSS_CHUNK, LM_LOSS_WHOLE},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct lm_loss_layout l = lm_loss_layout(rows[i].R, rows[i].V, rows[i].chunk, 1, 1);
        assert_int_equal(l.form, rows[i].form);
        assert_true((size_t)(l.rows * l.stride) * sizeof(float) <= rows[i].chunk);
        assert_true(l.columns <= l.stride && l.rows <= rows[i].R);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_keep_within_the_chunk),  cmocka_unit_test(forms_equal_float64),
        cmocka_unit_test(outliers_and_smoothing),         cmocka_unit_test(roundings_of_parts_are_bounded),
        cmocka_unit_test(a_row_that_is_not_finite_shows), cmocka_unit_test(slices_equal_float64),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("lm_loss", tests, NULL, NULL);
}
