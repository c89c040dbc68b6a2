/* meopt bench optim: measures optimizer steps, and the memory bandwidth of this machine in the same run.
 *
 * The reference is the STREAM triad (McCalpin 1995: a = b + s c, 24 bytes per element) with the same number
 * of threads, measured before and after each combination. Of each, the best of several repetitions counts.
 * Bytes moved are those that the format must move: each array is read once and, if it changes, written
 * once. On a card the reference is a copy of 1 GiB in its memory (less if that does not fit), which moves 2
 * bytes per byte copied. */
#include "cli/command.h"
#include "cli/language.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/device/bench.h"
#include "core/meopt.h"
#include "kernels/optim_rules.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#define TENSOR_ROWS    1024
#define TENSOR_COLUMNS 4096
#define TENSOR_COUNT   ((int64_t)TENSOR_ROWS * TENSOR_COLUMNS)

struct combination {
    int rule, weights, states;
};
struct result {
    double held, moved, seconds, triad, error, products;
    int64_t parameters;
};

/* ---- STREAM triad ---- */

struct triad {
    struct device *card; /* NULL: the CPU */
    char *block;         /* card: two halves */
    size_t bytes;        /* card: of one half */
    double *a, *b, *c;
    int64_t count;
    int threads;
};

static int triad_open(struct triad *t, int threads, struct error *err)
{
    t->count = (int64_t)32 << 20; /* 256 MB each, larger than any cache */
    t->threads = threads;
    t->a = malloc((size_t)t->count * 8);
    t->b = malloc((size_t)t->count * 8);
    t->c = malloc((size_t)t->count * 8);
    if (!t->a || !t->b || !t->c)
        return error_set(err, EXIT_HOST_MEMORY, "end other programs",
                         "out of memory for the 768 MB of the STREAM triad");
    memory_large_pages(t->a, (size_t)t->count * 8);
    memory_large_pages(t->b, (size_t)t->count * 8);
    memory_large_pages(t->c, (size_t)t->count * 8);
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads)
#endif
    for (int64_t i = 0; i < t->count; i++) {
        t->a[i] = 0;
        t->b[i] = 1;
        t->c[i] = 2;
    }
    return 0;
}

static int card_open(struct triad *t, const char *spec, struct error *err)
{
    int code = device_open(&t->card, spec, 0, err);
    for (t->bytes = (size_t)1 << 30; !code && t->bytes >= (size_t)1 << 20; t->bytes /= 2)
        if ((t->block = device_alloc(t->card, MEMORY_WORKSPACE, 2 * t->bytes, "measurement", err)) != NULL)
            break;
    return code || t->block ? code : EXIT_CARD_MEMORY;
}

static double triad_gb_per_s(struct triad *t)
{
    double best = 1e9;
    if (t->card) return device_copy_rate(t->card, t->block, t->bytes) * 1e-9;
    for (int round = 0; round < 5; round++) {
        double begin = clock_seconds();
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(t->threads)
#endif
        for (int64_t i = 0; i < t->count; i++) t->a[i] = t->b[i] + 3 * t->c[i];
        best = fmin(best, clock_seconds() - begin);
    }
    return 24e-9 * (double)t->count / best;
}

static void triad_close(struct triad *t)
{
    if (t->card) device_free(t->card, t->block);
    device_close(t->card);
    free(t->a);
    free(t->b);
    free(t->c);
}

/* Copies gradients to the card. */
static void *upload_gradient(const struct triad *t, const void *host, size_t bytes, struct error *err)
{
    void *p = device_alloc(t->card, MEMORY_GRADIENTS, bytes, "gradients", err);
    if (p) t->card->upload(t->card, p, host, bytes);
    return p;
}

/* ---- One combination ---- */

static int library_error(struct error *err, const struct meopt_error *from, const struct triad *place)
{
    int memory = place->card ? EXIT_CARD_MEMORY : EXIT_HOST_MEMORY;
    int code = from->status == MEOPT_BAD_ARGUMENT ? EXIT_USAGE : EXIT_FAILED;
    return error_set(err, from->status == MEOPT_NO_MEMORY ? memory : code,
                     from->status == MEOPT_NO_MEMORY ? N_("use fewer --params") : NULL, "%s", from->message);
}

static struct meopt_options options_of(const struct combination *c, const struct triad *place, int threads)
{
    struct meopt_options o;
    meopt_options_init(&o, sizeof o, c->rule);
    o.weights = c->weights;
    o.first_moment = o.second_moment = c->states;
    o.weight_decay = 0.01;
    o.threads = threads;
    o.device = (struct meopt_device *)place->card;
    o.seed = 1;
    return o;
}

static int gradient_dtype(int weights) { return weights <= MEOPT_WEIGHTS_F32_COPY ? MEOPT_F32 : MEOPT_BF16; }

static double moved_bytes(const struct combination *c)
{
    static const double weight[] = {4, 4, 2, 2, 2.5, 3, 4}, state[] = {4, 2, 2, 1, 0.5};
    double moments = state[c->states] * (RULE_HAS(c->rule, WITH_V) ? 2 : 1) +
                     (c->states == MEOPT_STATE_8BIT   ? (RULE_HAS(c->rule, WITH_V) ? 4.0 / 64 : 2.0 / 64)
                      : c->states == MEOPT_STATE_4BIT ? 1.0 / 64
                                                      : 0);
    bool factored = RULE_HAS(c->rule, WITH_FACTORS); /* rows and columns are few */
    double gradient = gradient_dtype(c->weights) == MEOPT_F32 ? 4 : 2,
           once = weight[c->weights] + (factored ? 0 : moments);
    double copy = c->weights == MEOPT_WEIGHTS_F32_COPY ? 2 : 0;
    return 2 * once + gradient + copy +
           (RULE_HAS(c->rule, WITH_MATRICES) ? 2 * 2 : 0) +  /* the matrix, in bf16 */
           (RULE_HAS_NORMS(c->rule) ? once + gradient : 0) + /* reads all arrays twice, for its norms */
           (factored ? gradient : 0);                        /* and sums over rows and columns before */
}

/* The roots of the second moment after the first step, of a matrix of SIDE rows and columns. */
enum { SIDE = 256, ERROR_COUNT = SIDE * SIDE };
static void first_roots(const struct meopt_options *o, const float *g, double *root)
{
    double rows[SIDE] = {0}, columns[SIDE] = {0}, all = 0;
    for (int i = 0; i < ERROR_COUNT; i++) {
        double square = (double)g[i] * (double)g[i];
        root[i] = sqrt(square);
        rows[i / SIDE] += square;
        columns[i % SIDE] += square;
        all += square;
    }
    for (int i = 0; i < ERROR_COUNT && RULE_HAS(o->rule, WITH_FACTORS); i++)
        root[i] = sqrt(rows[i / SIDE] * columns[i % SIDE] / all);
}

/* Operations of muon's products per matrix of the benchmark. */
static double products_flop(const struct meopt_options *o, int64_t rows, int64_t columns)
{
    int64_t longer = rows > columns ? rows : columns, shorter = rows + columns - longer;
    bool gram = matrix_uses_gram(o->ns_form, longer, shorter, o->device != NULL);
    return RULE_HAS(o->rule, WITH_MATRICES) ? matrix_flops(gram, o->ns_steps, (double)longer, (double)shorter)
                                            : 0;
}

/* Replaces the square matrix by its orthogonalized one, in float64. */
static void orthogonalize(const struct meopt_options *o, double *x, int n)
{
    double *a = xcalloc(3 * (size_t)(n * n), sizeof *a), *b = a + n * n, *y = b + n * n, norm = 0;
    const double *k = o->ns_coefficients;
    for (int i = 0; i < n * n; i++) norm += x[i] * x[i];
    for (int i = 0; i < n * n; i++) x[i] /= sqrt(norm);
    for (int step = 0; step < o->ns_steps; step++) {
        memset(a, 0, 3 * (size_t)(n * n) * sizeof *a);
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++)
                for (int p = 0; p < n; p++) a[i * n + j] += x[i * n + p] * x[j * n + p];
        for (int i = 0; i < n; i++)
            for (int p = 0; p < n; p++)
                for (int j = 0; j < n; j++) b[i * n + j] += a[i * n + p] * a[p * n + j];
        for (int i = 0; i < n * n; i++) b[i] = k[1] * a[i] + k[2] * b[i];
        for (int i = 0; i < n; i++)
            for (int p = 0; p < n; p++)
                for (int j = 0; j < n; j++) y[i * n + j] += b[i * n + p] * x[p * n + j];
        for (int i = 0; i < n * n; i++) x[i] = k[0] * x[i] + y[i];
    }
    for (int i = 0; i < n * n; i++) x[i] *= 0.2 * sqrt(n); /* MEOPT_ADJUST_RMS_MATCH */
    free(a);
}

/* Returns the weight after the first step of the rule, in float64, from weight w and moments 0. g: the
 * gradient, of muon the orthogonalized one. */
static double exact_step(const struct meopt_options *o, double w, double g, double root, double lr,
                         double trust, double *update)
{
    const struct rule_info *rule = &optim_rules[o->rule];
    bool apart = RULE_HAS(o->rule, WITH_FACTORS); /* decay has no part in the norm */
    double decay = o->weight_decay * w, u;
    if (rule->decay == DECAY_GRADIENT) g += decay;
    switch (rule->update) {
    case UPDATE_MATRIX:
    case UPDATE_GRADIENT: u = g; break;
    case UPDATE_SIGN: u = (g > 0) - (g < 0); break;
    default: u = g / ((rule->decay == DECAY_GRADIENT ? fabs(g) : root) + o->eps); break;
    }
    if (rule->decay != DECAY_GRADIENT && !apart) u += decay;
    *update = u;
    return w - lr * (trust * u + (apart ? decay : 0));
}

/* Measures the largest relative error of a weight after the first step, over 65536 weights of 0.01 to 1. */
static int measure_error(const struct combination *c, const struct triad *place, double *error,
                         struct error *err)
{
    enum { N = ERROR_COUNT };
    static double root[N];
    const double lr = 1e-3;
    struct meopt_options o = options_of(c, place, 1);
    struct meopt_tensor table = {.name = "error", .ndim = 2, .shape = {SIDE, SIDE}};
    struct meopt *opt;
    struct meopt_error e;
    if (meopt_create(&opt, &o, &table, 1, &e)) return library_error(err, &e, place);
    float *w = malloc(3 * N * sizeof *w), *g = w + N, *after = g + N;
    if (!w) {
        meopt_destroy(opt);
        return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory");
    }
    uint32_t random = 1;
    for (int i = 0; i < N; i++) {
        random = random * 1664525u + 1013904223u;
        w[i] = (float)pow(10, -2.0 * (random >> 8) / 16777216.0) * (i & 1 ? -1.0f : 1.0f);
        random = random * 1664525u + 1013904223u;
        g[i] = (float)((random >> 8) / 16777216.0 - 0.5);
    }
    void *card = place->card ? upload_gradient(place, g, N * sizeof *g, err) : NULL;
    struct meopt_gradient gradient = {place->card ? card : g, MEOPT_F32};
    int status = meopt_import(opt, 0, 0, N, w, &e);
    if (!status)
        status = meopt_export(opt, 0, 0, N, w, &e); /* starts from the weights as rounded by the format */
    if (!status) status = meopt_step(opt, 1, lr, 1, &gradient, NULL, &e);
    if (!status) status = meopt_export(opt, 0, 0, N, after, &e);
    first_roots(&o, g, root);
    double ww = 0, uu = 0, u, worst = 0, *gradients = xcalloc(N, sizeof *gradients);
    for (int i = 0; i < N; i++) gradients[i] = (double)g[i];
    if (RULE_HAS(c->rule, WITH_MATRICES)) orthogonalize(&o, gradients, SIDE);
    for (int i = 0; i < N; i++) {
        exact_step(&o, (double)w[i], gradients[i], root[i], lr, 1, &u);
        ww += (double)w[i] * (double)w[i];
        uu += u * u;
    }
    double trust = RULE_HAS(c->rule, WITH_TRUST)     ? sqrt(ww / uu)
                   : RULE_HAS(c->rule, WITH_FACTORS) ? 1 / fmax(1, sqrt(uu / N))
                                                     : 1;
    for (int i = 0; i < N && !status; i++) {
        double exact = exact_step(&o, (double)w[i], gradients[i], root[i], lr, trust, &u);
        worst = fmax(worst, fabs((double)after[i] - exact) / fmax(fabs(exact), 0.01));
    }
    *error = worst;
    free(gradients);
    if (place->card) device_free(place->card, card);
    free(w);
    meopt_destroy(opt);
    return status ? library_error(err, &e, place) : 0;
}

static void gradient_fill(void *gradient, int dtype, int64_t count)
{
#ifdef _OPENMP
#pragma omp parallel for schedule(static)
#endif
    for (int64_t i = 0; i < count; i++) {
        uint32_t x = (uint32_t)i * 2654435761u,
                 bits = (x & 0x80000000u) | (0x38000000u + (x >> 6 & 0x3ffffffu)); /* up to 2^-7 */
        if (dtype == MEOPT_F32) memcpy((float *)gradient + i, &bits, 4);
        else ((uint16_t *)gradient)[i] = (uint16_t)(bits >> 16);
    }
}

static int run_combination(const struct combination *c, int64_t parameters, int threads, int repeat,
                           struct triad *triad, struct result *r, struct error *err)
{
    int64_t count = (parameters + TENSOR_COUNT - 1) / TENSOR_COUNT,
            rows =
                parameters < TENSOR_COUNT ? (parameters + TENSOR_COLUMNS - 1) / TENSOR_COLUMNS : TENSOR_ROWS,
            all = count * rows * TENSOR_COLUMNS;
    int dtype = gradient_dtype(c->weights);
    size_t gradient_bytes = (size_t)all * (dtype == MEOPT_F32 ? 4 : 2);
    struct meopt_options o = options_of(c, triad, threads);
    struct meopt_tensor *table = xcalloc((size_t)count, sizeof *table);
    struct meopt_gradient *gradients = xcalloc((size_t)count, sizeof *gradients);
    char *names = xcalloc((size_t)count, 24), *gradient = malloc(gradient_bytes);
    struct meopt *opt = NULL;
    struct meopt_error e = {0};
    void *card = NULL;
    int code = gradient ? 0
                        : error_set(err, EXIT_HOST_MEMORY, "use fewer --params",
                                    "out of memory for %zu bytes of gradients", gradient_bytes);
    for (int64_t i = 0; !code && i < count; i++) {
        snprintf(names + i * 24, 24, "t%lld", (long long)i);
        table[i] = (struct meopt_tensor){.name = names + i * 24, .ndim = 2, .shape = {rows, TENSOR_COLUMNS}};
    }
    if (!code) memory_large_pages(gradient, gradient_bytes);
    if (!code) gradient_fill(gradient, dtype, all);
    if (!code && triad->card && !(card = upload_gradient(triad, gradient, gradient_bytes, err)))
        code = EXIT_CARD_MEMORY;
    char *from = card ? card : gradient;
    for (int64_t i = 0; !code && i < count; i++)
        gradients[i] = (struct meopt_gradient){from + (size_t)i * (gradient_bytes / (size_t)count), dtype};
    if (!code && meopt_create(&opt, &o, table, (size_t)count, &e)) code = library_error(err, &e, triad);
    if (!code) {
        struct meopt_bytes bytes;
        meopt_held(opt, &bytes);
        *r = (struct result){.held = (double)bytes.total / (double)bytes.parameters,
                             .moved = moved_bytes(c),
                             .seconds = 1e9,
                             .products = (double)count * products_flop(&o, rows, TENSOR_COLUMNS),
                             .parameters = bytes.parameters};
        r->triad = triad_gb_per_s(triad);
        for (int step = 1; !code && step <= repeat + 1; step++) {
            double begin = clock_seconds();
            if (meopt_step(opt, step, 1e-4, 1, gradients, NULL, &e)) code = library_error(err, &e, triad);
            if (step > 1) r->seconds = fmin(r->seconds, clock_seconds() - begin);
        }
        r->triad = fmax(r->triad, triad_gb_per_s(triad));
    }
    meopt_destroy(opt);
    if (card) device_free(triad->card, card);
    free(gradient);
    free(names);
    free(gradients);
    free(table);
    return code ? code : measure_error(c, triad, &r->error, err);
}

/* ---- The command ---- */

static const struct combination usual[] = {
    {0, MEOPT_WEIGHTS_F32, MEOPT_STATE_F32},           {0, MEOPT_WEIGHTS_F32_COPY, MEOPT_STATE_F32},
    {0, MEOPT_WEIGHTS_BF16, MEOPT_STATE_BF16_NEAREST}, {0, MEOPT_WEIGHTS_BF16_SR, MEOPT_STATE_BF16},
    {0, MEOPT_WEIGHTS_24, MEOPT_STATE_8BIT},           {0, MEOPT_WEIGHTS_20, MEOPT_STATE_8BIT},
    {0, MEOPT_WEIGHTS_BF16_SR, MEOPT_STATE_8BIT},      {0, MEOPT_WEIGHTS_BF16_SR, MEOPT_STATE_4BIT},
};

/* Returns the preset with these formats; NULL: none. */
static const char *preset_of(const struct combination *c)
{
    static const char *const presets[] = {"quality", "balanced", "minimal", "fp32", "amp", "pure_bf16"};
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        struct meopt_options o;
        meopt_options_init(&o, sizeof o, c->rule);
        if (meopt_options_preset(&o, presets[i], NULL) == 0 && o.weights == c->weights &&
            o.first_moment == c->states)
            return presets[i];
    }
    return NULL;
}

static json_t *result_json(const struct combination *c, const struct result *r)
{
    double gb = r->moved * (double)r->parameters / r->seconds * 1e-9;
    return json_pack("{s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:s?}", "rule",
                     meopt_rule_name(c->rule), "weights", meopt_weight_format_name(c->weights), "states",
                     meopt_state_format_name(c->states), "bytes_held_per_param", r->held,
                     "bytes_moved_per_param", r->moved, "step_ms", r->seconds * 1e3, "gb_per_s", gb,
                     "triad_gb_per_s", r->triad, "bandwidth_ratio", gb / r->triad, "params_per_s",
                     (double)r->parameters / r->seconds, "max_rel_error", r->error, "products_gflop",
                     r->products * 1e-9, "preset", preset_of(c));
}

static void result_print(const struct combination *c, const struct result *r)
{
    double gb = r->moved * (double)r->parameters / r->seconds * 1e-9;
    printf("%-13s %-9s %-12s %6.2f %6.2f %9.2f %8.2f %6.2f %9.3g %9.2g\n", meopt_rule_name(c->rule),
           meopt_weight_format_name(c->weights), meopt_state_format_name(c->states), r->held, r->moved,
           r->seconds * 1e3, gb, gb / r->triad, (double)r->parameters / r->seconds, r->error);
    fflush(stdout);
}

static int bench_optim_run(const struct arguments *args, struct error *err)
{
    const char *rule = argument_text(args, "rule", "apadamw"),
               *weights = argument_text(args, "weights", NULL), *states = argument_text(args, "states", NULL);
    int64_t parameters = argument_int(args, "params", (int64_t)64 << 20);
    int threads = (int)argument_int(args, "threads", 0), repeat = (int)argument_int(args, "repeat", 5);
#ifdef _OPENMP
    if (!threads) threads = omp_get_max_threads();
#else
    threads = 1;
#endif
    bool json = argument_flag(args, "json");
    struct triad triad = {0};
    const char *device = argument_text(args, "device", "cpu");
    int code = strcmp(device, "cpu") == 0 ? triad_open(&triad, threads, err) : card_open(&triad, device, err);
    json_t *results = json_array();
    double best_triad = 0;
    if (!code && !json)
        printf("%*s %*s %*s %*s %*s %*s %8s %*s %*s %*s\n", PAD(-13, _("rule")), PAD(-9, _("weights")),
               PAD(-12, _("states")), PAD(6, _("held")), PAD(6, _("moved")), PAD(9, _("ms/step")), "GB/s",
               PAD(6, _("ratio")), PAD(9, _("params/s")), PAD(9, _("error")));
    for (int r = 0; !code && r < MEOPT_RULE_COUNT; r++) {
        if (strcmp(rule, "all") != 0 && strcmp(rule, meopt_rule_name(r)) != 0) continue;
        for (size_t i = 0; !code && i < sizeof usual / sizeof *usual; i++) {
            struct combination c = usual[i];
            c.rule = r;
            /* with one format given: the rows that have it; with both: that combination */
            if (weights && states) {
                if (i) break;
                c.weights = meopt_weight_format_from_name(weights);
                c.states = meopt_state_format_from_name(states);
            } else if ((weights && c.weights != meopt_weight_format_from_name(weights)) ||
                       (states && c.states != meopt_state_format_from_name(states)))
                continue;
            bool coarse = RULE_HAS(r, WITH_POINTS) && c.states == MEOPT_STATE_4BIT; /* refused */
            if (coarse && !states) continue;
            struct result result = {0};
            code = run_combination(&c, parameters, threads, repeat, &triad, &result, err);
            if (code) break;
            best_triad = fmax(best_triad, result.triad);
            if (json) json_array_append_new(results, result_json(&c, &result));
            else result_print(&c, &result);
        }
    }
    if (!code && json) {
        json_t *all = json_pack("{s:f, s:i, s:I, s:O}", "triad_gb_per_s", best_triad, "threads", threads,
                                "params", (json_int_t)parameters, "results", results);
        json_print(stdout, all, JSON_INDENT(2) | JSON_REAL_PRECISION(8));
        json_decref(all);
    } else if (!code)
        print_line(
            0,
            "held, moved: bytes per parameter; ratio: to a %s of %.1f GB/s on %d thread%s; error: largest "
            "relative error of a weight after one step, compared with float64",
            triad.card ? _("copy inside the card") : _("STREAM triad"), best_triad, threads,
            threads == 1 ? "" : "s");
    json_decref(results);
    triad_close(&triad);
    return code;
}

#define RULE_OPTION(c, number, name, ...) name "|"
static const struct option bench_optim_options[] = {
    {"rule", 'r', OPTION_TEXT, "RULE", OPTIM_RULES(RULE_OPTION, ) "all", 0, 0,
     "update rule (default apadamw)"},
    {"weights", 'w', OPTION_TEXT, "FORMAT", "fp32|fp32+copy|bf16|bf16_sr|bf16+4|bf16+8|bf16+16", 0, 0,
     "only this weight format"},
    {"states", 's', OPTION_TEXT, "FORMAT", "fp32|bf16|bf16_nearest|8bit|4bit", 0, 0,
     "only this state format"},
    {"params", 'n', OPTION_INT, "N", NULL, 1, 1e11, "number of parameters (default 67108864)"},
    {"threads", 't', OPTION_INT, "N", NULL, 1, 4096, "number of threads (default: one per core)"},
    {"device", 'd', OPTION_TEXT, "DEVICE", NULL, 0, 0, "cpu, hip:N or cuda:N (default cpu)"},
    {"repeat", 0, OPTION_INT, "N", NULL, 1, 1000,
     "number of measured steps, of which the best counts (default 5)"},
    {"json", 'j', OPTION_FLAG, NULL, NULL, 0, 0, "print JSON"},
    {0},
};

const struct command cmd_bench_optim = {
    .name = "bench optim",
    .operands = "",
    .summary = "measure optimizer steps and memory bandwidth",
    .details =
        "Examples:\n"
        "  meopt bench optim                                    the usual formats with apadamw\n"
        "  meopt bench optim --rule all --weights bf16+4        every rule in one format\n"
        "  meopt bench optim -w bf16+8 -s 8bit -n 1000000000    one combination, a billion parameters\n",
    .options = bench_optim_options,
    .run = bench_optim_run,
};
