/* meopt bench optim: measures optimizer steps, and the memory bandwidth of this machine in the same run; and
 * meopt bench speedup, the same steps on one core, all cores and a card.
 *
 * The reference is the STREAM triad (McCalpin 1995: a = b + s c, 24 bytes per element) with the same number
 * of threads, measured before and after each combination. Of each, the best of several repetitions counts.
 * Bytes moved are those that the format must move: each array is read once and, if it changes, written
 * once. On a card the reference is a copy of 1 GiB in its memory (less if that does not fit), which moves 2
 * bytes per byte copied. */
#include "cli/command.h"
#include "cli/language.h"
#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/compare/statistics.h"
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

/* ---- Steps ---- */

static int library_error(struct error *err, const struct meopt_error *from, const struct device *card)
{
    int memory = card ? EXIT_CARD_MEMORY : EXIT_HOST_MEMORY;
    int code = from->status == MEOPT_BAD_ARGUMENT ? EXIT_USAGE : EXIT_FAILED;
    return error_set(err, from->status == MEOPT_NO_MEMORY ? memory : code,
                     from->status == MEOPT_NO_MEMORY ? N_("use fewer --params") : NULL, "%s", from->message);
}

/* Copies gradients to the card. */
static void *upload_gradient(struct device *card, const void *host, size_t bytes, struct error *err)
{
    void *p = device_alloc(card, MEMORY_GRADIENTS, bytes, "gradients", err);
    if (p) card->upload(card, p, host, bytes);
    return p;
}

static int gradient_dtype(int weights) { return weights <= MEOPT_WEIGHTS_F32_COPY ? MEOPT_F32 : MEOPT_BF16; }

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

/* An optimizer of tensors of 1024 x 4096, and their gradients. */
struct steps {
    struct device *card; /* NULL: the CPU */
    struct meopt *opt;
    struct meopt_tensor *table;
    struct meopt_gradient *gradients;
    char *names, *gradient, *on_card;
    int64_t count, rows;
};

static void steps_close(struct steps *s)
{
    meopt_destroy(s->opt);
    if (s->on_card) device_free(s->card, s->on_card);
    free(s->gradient);
    free(s->names);
    free(s->gradients);
    free(s->table);
}

/* one: all tensors have the same gradient. The caller closes, also after an error. */
static int steps_open(struct steps *s, const struct meopt_options *o, int64_t parameters, bool one,
                      struct error *err)
{
    int64_t count = (parameters + TENSOR_COUNT - 1) / TENSOR_COUNT,
            rows =
                parameters < TENSOR_COUNT ? (parameters + TENSOR_COLUMNS - 1) / TENSOR_COLUMNS : TENSOR_ROWS;
    int dtype = gradient_dtype(o->weights);
    size_t each = (size_t)(rows * TENSOR_COLUMNS) * (dtype == MEOPT_F32 ? 4 : 2),
           bytes = one ? each : each * (size_t)count;
    struct meopt_error e = {0};
    *s = (struct steps){.card = (struct device *)o->device,
                        .table = xcalloc((size_t)count, sizeof *s->table),
                        .gradients = xcalloc((size_t)count, sizeof *s->gradients),
                        .names = xcalloc((size_t)count, 24),
                        .gradient = malloc(bytes),
                        .count = count,
                        .rows = rows};
    if (!s->gradient)
        return error_set(err, EXIT_HOST_MEMORY, "use fewer --params",
                         "out of memory for %zu bytes of gradients", bytes);
    memory_large_pages(s->gradient, bytes);
    gradient_fill(s->gradient, dtype, (int64_t)(bytes / (dtype == MEOPT_F32 ? 4 : 2)));
    if (s->card && !(s->on_card = upload_gradient(s->card, s->gradient, bytes, err))) return EXIT_CARD_MEMORY;
    for (int64_t i = 0; i < count; i++) {
        char *name = s->names + i * 24, *from = s->card ? s->on_card : s->gradient;
        snprintf(name, 24, "t%lld", (long long)i);
        s->table[i] = (struct meopt_tensor){.name = name, .ndim = 2, .shape = {rows, TENSOR_COLUMNS}};
        s->gradients[i] = (struct meopt_gradient){from + (one ? 0 : (size_t)i * each), dtype};
    }
    return meopt_create(&s->opt, o, s->table, (size_t)count, &e) ? library_error(err, &e, s->card) : 0;
}

/* Runs one step and waits for it. */
static int steps_run(struct steps *s, int number, double *seconds, struct error *err)
{
    struct meopt_error e = {0};
    double begin = clock_seconds();
    if (meopt_step(s->opt, number, 1e-4, 1, s->gradients, NULL, &e)) return library_error(err, &e, s->card);
    if (s->card) s->card->sync(s->card);
    *seconds = clock_seconds() - begin;
    return s->card ? device_check(s->card, err) : 0;
}

/* ---- One combination ---- */

static struct meopt_options options_of(const struct combination *c, struct device *card, int threads)
{
    struct meopt_options o;
    meopt_options_init(&o, sizeof o, c->rule);
    o.weights = c->weights;
    o.first_moment = o.second_moment = c->states;
    o.weight_decay = 0.01;
    o.threads = threads;
    o.device = (struct meopt_device *)card;
    o.seed = 1;
    return o;
}

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
static int measure_error(const struct combination *c, struct device *card, double *error, struct error *err)
{
    enum { N = ERROR_COUNT };
    static double root[N];
    const double lr = 1e-3;
    struct meopt_options o = options_of(c, card, 1);
    struct meopt_tensor table = {.name = "error", .ndim = 2, .shape = {SIDE, SIDE}};
    struct meopt *opt;
    struct meopt_error e;
    if (meopt_create(&opt, &o, &table, 1, &e)) return library_error(err, &e, card);
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
    void *on_card = card ? upload_gradient(card, g, N * sizeof *g, err) : NULL;
    struct meopt_gradient gradient = {card ? on_card : g, MEOPT_F32};
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
    if (card) device_free(card, on_card);
    free(w);
    meopt_destroy(opt);
    return status ? library_error(err, &e, card) : 0;
}

static int run_combination(const struct combination *c, int64_t parameters, int threads, int repeat,
                           struct triad *triad, struct result *r, struct error *err)
{
    struct meopt_options o = options_of(c, triad->card, threads);
    struct steps s;
    int code = steps_open(&s, &o, parameters, false, err);
    if (!code) {
        struct meopt_bytes bytes;
        meopt_held(s.opt, &bytes);
        *r = (struct result){.held = (double)bytes.total / (double)bytes.parameters,
                             .moved = moved_bytes(c),
                             .seconds = 1e9,
                             .products = (double)s.count * products_flop(&o, s.rows, TENSOR_COLUMNS),
                             .parameters = bytes.parameters};
        r->triad = triad_gb_per_s(triad);
        for (int step = 1; !code && step <= repeat + 1; step++) {
            double seconds = 0;
            code = steps_run(&s, step, &seconds, err);
            if (step > 1) r->seconds = fmin(r->seconds, seconds);
        }
        r->triad = fmax(r->triad, triad_gb_per_s(triad));
    }
    steps_close(&s);
    return code ? code : measure_error(c, triad->card, &r->error, err);
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
    {"rule", .letter = 'r', .type = OPTION_TEXT, .value = "RULE", .choices = OPTIM_RULES(RULE_OPTION, ) "all",
     .help = "update rule (default apadamw)"},
    {"weights", .letter = 'w', .type = OPTION_TEXT, .value = "FORMAT",
     .choices = "fp32|fp32+copy|bf16|bf16_sr|bf16+4|bf16+8|bf16+16", .help = "only this weight format"},
    {"states", .letter = 's', .type = OPTION_TEXT, .value = "FORMAT",
     .choices = "fp32|bf16|bf16_nearest|8bit|4bit", .help = "only this state format"},
    {"params", .letter = 'n', .type = OPTION_INT, .value = "N", .min = 1, .max = 1e11,
     .help = "number of parameters (default 67108864)"},
    {"threads", .letter = 't', .type = OPTION_INT, .value = "N", .min = 1, .max = 4096,
     .help = "number of threads (default: one per core)"},
    {"device", .letter = 'd', .type = OPTION_TEXT, .value = "DEVICE",
     .help = "cpu, hip:N or cuda:N (default cpu)"},
    {"repeat", .type = OPTION_INT, .value = "N", .min = 1, .max = 1000,
     .help = "number of measured steps, of which the best counts (default 5)"},
    {"json", .letter = 'j', .help = "print JSON"},
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

/* ---- meopt bench speedup: one step on one core, all cores and a card, as ratios with their spread ---- */

/* A place that runs steps; card NULL: the CPU. */
struct place {
    const char *name;
    int threads;
    struct device *card;
};

static const struct format {
    const char *name;
    int weights, states;
} formats[] = {
    {N_("AdamW, fp32"), MEOPT_WEIGHTS_F32_COPY, MEOPT_STATE_F32},
    {N_("MEOpt, bf16+8 and 8 bits"), MEOPT_WEIGHTS_24, MEOPT_STATE_8BIT},
};
enum { PLACES = 3, FORMATS = sizeof formats / sizeof *formats };

struct measured {
    double *ms; /* (repeat) */
    double mean, sd;
};

/* Runs the steps of all places in round-robin order, so that a slow period of the machine affects all. */
static int measure(const struct format *f, int64_t parameters, const struct place *places, int count,
                   int repeat, struct measured *measured, struct error *err)
{
    struct steps steps[PLACES] = {0};
    int code = 0;
    for (int p = 0; p < count && !code; p++) {
        struct meopt_options o;
        meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
        o.weights = f->weights;
        o.first_moment = o.second_moment = f->states;
        o.beta2 = 0.98;
        o.threads = places[p].threads;
        o.device = (struct meopt_device *)places[p].card;
        o.seed = 1;
        code = steps_open(&steps[p], &o, parameters, true, err);
    }
    for (int i = 0; i <= repeat && !code; i++) /* the first step warms up caches and pages */
        for (int p = 0; p < count && !code; p++) {
            double seconds = 0;
            code = steps_run(&steps[p], i + 1, &seconds, err);
            measured[p].ms[i ? i - 1 : 0] = seconds * 1e3;
        }
    for (int p = 0; p < count; p++) {
        measured[p].mean = statistics_mean(measured[p].ms, repeat);
        measured[p].sd = statistics_sd(measured[p].ms, repeat);
        steps_close(&steps[p]);
    }
    return code;
}

/* Opens the card; with "auto" the card that training on this machine would use, else none. */
static int find_card(struct device **card, const char *spec, struct error *err)
{
    *card = NULL;
    if (strcmp(spec, "cpu") == 0) return 0;
    int code = device_open(card, spec, 0, err);
    if (code || (*card)->kind != DEVICE_CPU) return code;
    device_close(*card);
    *card = NULL;
    return 0;
}

static void warn_outliers(const struct format *f, const char *place, const struct measured *m, int repeat)
{
    int count = 0;
    for (int i = 0; i < repeat; i++) count += statistics_outlier(m->ms, repeat, i);
    if (count)
        log_warn("%s, %s: %d of %d steps are outliers; other processes may use the machine", f->name, place,
                 count, repeat);
}

static json_t *row_json(const struct format *f, const struct place *place, const struct measured *m,
                        int repeat, double ratio, double sd)
{
    json_t *row =
        json_pack("{s:s, s:s, s:s, s:s, s:o, s:f, s:i, s:f}", "optimizer", f->name, "weights",
                  meopt_weight_format_name(f->weights), "states", meopt_state_format_name(f->states), "on",
                  place->name, "threads", place->card ? json_null() : json_integer(place->threads), "step_ms",
                  m->mean, "n", repeat, "speedup", ratio);
    json_object_set_new(row, "step_ms_sd", isnan(m->sd) ? json_null() : json_real(m->sd));
    json_object_set_new(row, "speedup_sd", isnan(sd) ? json_null() : json_real(sd));
    return row;
}

static void row_print(const struct format *f, const struct place *place, const struct measured *m,
                      double ratio, double sd)
{
    char threads[16] = "-", spread[64] = "", ratio_spread[64] = "";
    if (!place->card) snprintf(threads, sizeof threads, "%d", place->threads);
    if (!isnan(m->sd)) snprintf(spread, sizeof spread, " +- %.2f", m->sd);
    if (!isnan(sd)) snprintf(ratio_spread, sizeof ratio_spread, " +- %.2f", sd);
    printf("%*s %*s %7s %9.2f%11s %7.2f%11s\n", PAD(-26, _(f->name)), PAD(-10, _(place->name)), threads,
           m->mean, spread, ratio, ratio_spread);
    fflush(stdout);
}

static int speedup(const struct arguments *args, struct error *err)
{
    int64_t parameters = argument_int(args, "params", (int64_t)64 << 20);
    int repeat = (int)argument_int(args, "repeat", 10), all_threads = 1;
#ifdef _OPENMP
    all_threads = omp_get_max_threads();
#endif
    all_threads = (int)argument_int(args, "threads", all_threads);
    bool json = argument_flag(args, "json");
    struct place places[PLACES] = {
        {N_("one core"), 1, NULL}, {N_("all cores"), all_threads, NULL}, {"card", 1, NULL}};
    char card[128] = "";
    int code = find_card(&places[2].card, argument_text(args, "device", "auto"), err);
    if (code) return code;
    int count = places[2].card ? PLACES : PLACES - 1;
    if (places[2].card) log_info("card: %s", name_printable(card, sizeof card, places[2].card->name));
    else log_info("no card: one core against all %d", all_threads);
    json_t *results = json_array();
    if (!json)
        printf("%*s %*s %*s %20s %*s\n", PAD(-26, _("one iteration of")), PAD(-10, _("on")),
               PAD(7, _("threads")), "ms", PAD(18, _("speed-up")));
    for (int f = 0; f < FORMATS && !code; f++) {
        struct measured m[PLACES] = {0};
        for (int p = 0; p < count; p++) m[p].ms = xcalloc((size_t)repeat, sizeof(double));
        code = measure(&formats[f], parameters, places, count, repeat, m, err);
        for (int p = 0; p < count && !code; p++) {
            double ratio = m[0].mean / m[p].mean,
                   sd = p ? statistics_ratio_sd(m[0].mean, m[0].sd, m[p].mean, m[p].sd) : NAN;
            if (json)
                json_array_append_new(results, row_json(&formats[f], &places[p], &m[p], repeat, ratio, sd));
            else row_print(&formats[f], &places[p], &m[p], ratio, sd);
            warn_outliers(&formats[f], places[p].name, &m[p], repeat);
        }
        for (int p = 0; p < count; p++) free(m[p].ms);
    }
    if (!code && json) {
        json_t *all = json_pack("{s:I, s:i, s:O}", "params", (json_int_t)parameters, "threads", all_threads,
                                "results", results);
        json_object_set_new(all, "card", card[0] ? json_string(card) : json_null());
        json_print(stdout, all, JSON_INDENT(1) | JSON_REAL_PRECISION(8) | JSON_PRESERVE_ORDER);
        json_decref(all);
    }
    json_decref(results);
    device_close(places[2].card);
    return code;
}

static const struct option speedup_options[] = {
    {"params", .letter = 'n', .type = OPTION_INT, .value = "N", .min = 1, .max = 1e11,
     .help = "number of parameters (default 67108864)"},
    {"threads", .letter = 't', .type = OPTION_INT, .value = "N", .min = 1, .max = 4096,
     .help = "number of threads of 'all cores' (default: one per core)"},
    {"device", .letter = 'd', .type = OPTION_TEXT, .value = "DEVICE",
     .help = "the card: hip:N, cuda:N, auto (the default), or cpu for none"},
    {"repeat", .type = OPTION_INT, .value = "N", .min = 1, .max = 1000,
     .help = "number of measured iterations (default 10)"},
    {"json", .letter = 'j', .help = "print JSON"},
    {0},
};

const struct command cmd_bench_speedup = {
    .name = "bench speedup",
    .operands = "",
    .summary = "measure one optimizer step: one core, all cores, card",
    .details =
        "Examples:\n  meopt bench speedup\n  meopt bench speedup --device cuda:0 -n 1000000000 --repeat 5\n",
    .options = speedup_options,
    .run = speedup,
};
