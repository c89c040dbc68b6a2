/* meopt bench speedup: one optimizer iteration on one core, on all cores and on a card, as ratios with their spread.
 *
 * The original's test of card against CPU. Every place takes the same step of the same tensors; the places take turns, so that a slow
 * moment of the machine falls on all of them.
 */
#include "cli/command.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/compare/statistics.h"
#include "core/device/device.h"
#include "core/meopt.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { TENSOR = 4 << 20, PLACES = 2 };

static const struct format {
    const char *name;
    int weights, states, gradient;
} formats[] = {
    {"AdamW, fp32", MEOPT_WEIGHTS_F32_COPY, MEOPT_STATE_F32, MEOPT_F32},
    {"MEOpt, bf16+8 and 8 bits", MEOPT_WEIGHTS_24, MEOPT_STATE_8BIT, MEOPT_BF16},
};
enum { FORMATS = sizeof formats / sizeof *formats };

struct measured {
    double *ms; /* (repeat) */
    double mean, sd;
};

static int library_error(struct error *err, const struct meopt_error *from)
{
    return error_set(err, from->status == MEOPT_NO_MEMORY ? EXIT_HOST_MEMORY : EXIT_FAILED, "fewer --params", "%s", from->message);
}

static int measure(const struct format *f, int64_t parameters, const int threads[PLACES], int repeat, struct measured places[PLACES], struct error *err)
{
    int64_t tensors = (parameters + TENSOR - 1) / TENSOR;
    struct meopt *opt[PLACES] = {NULL};
    struct meopt_error library = {0};
    struct meopt_tensor *table = xcalloc((size_t)tensors, sizeof *table);
    struct meopt_gradient *gradients = xcalloc((size_t)tensors, sizeof *gradients);
    char *names = xcalloc((size_t)tensors, 24);
    size_t bytes = (size_t)TENSOR * (f->gradient == MEOPT_F32 ? 4 : 2);
    unsigned char *gradient = malloc(bytes); /* one for all tensors: read anew for each */
    int code = gradient ? 0 : error_set(err, EXIT_HOST_MEMORY, "close other programs", "no memory for a gradient of %zu bytes", bytes);
    for (int64_t i = 0; i < tensors && !code; i++) {
        snprintf(names + 24 * i, 24, "t%lld", (long long)i);
        table[i] = (struct meopt_tensor){.name = names + 24 * i, .ndim = 2, .shape = {1024, TENSOR / 1024}};
        gradients[i] = (struct meopt_gradient){gradient, f->gradient};
    }
    for (size_t i = 0; i < bytes && !code; i++) gradient[i] = (unsigned char)((i % (f->gradient == MEOPT_F32 ? 4 : 2)) == (f->gradient == MEOPT_F32 ? 3u : 1u) ? 0x3b : i * 37);
    for (int p = 0; p < PLACES && !code; p++) {
        struct meopt_options o;
        meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
        o.weights = f->weights;
        o.first_moment = o.second_moment = f->states;
        o.beta2 = 0.98;
        o.threads = threads[p];
        o.seed = 1;
        if (meopt_create(&opt[p], &o, table, (size_t)tensors, &library)) code = library_error(err, &library);
    }
    for (int step = 0; step <= repeat && !code; step++) /* the first is for the caches and the pages */
        for (int p = 0; p < PLACES && !code; p++) {
            double begin = clock_seconds();
            if (meopt_step(opt[p], step + 1, 1e-4, 1, gradients, NULL, &library)) code = library_error(err, &library);
            if (step) places[p].ms[step - 1] = (clock_seconds() - begin) * 1e3;
        }
    for (int p = 0; p < PLACES; p++) {
        places[p].mean = statistics_mean(places[p].ms, repeat);
        places[p].sd = statistics_sd(places[p].ms, repeat);
        meopt_destroy(opt[p]);
    }
    free(gradient);
    free(names);
    free(gradients);
    free(table);
    return code;
}

/* The card that a training on this machine would take; "" for none. */
static void find_card(char *name, size_t size)
{
    static const char *const kinds[] = {"hip:0", "cuda:0"};
    name[0] = 0;
    for (int i = 0; i < 2 && !name[0]; i++) {
        struct device *device = NULL;
        struct error ignored;
        if (device_open(&device, kinds[i], 0, &ignored)) continue;
        name_printable(name, size, device->name);
        device_close(device);
    }
}

static void warn_outliers(const struct format *f, const char *place, const struct measured *m, int repeat)
{
    int count = 0;
    for (int i = 0; i < repeat; i++) count += statistics_outlier(m->ms, repeat, i);
    if (count) log_warn("%s, %s: %d of %d steps are far from the rest: is the machine busy?", f->name, place, count, repeat);
}

static int speedup(const struct arguments *args, struct error *err)
{
    int64_t parameters = argument_int(args, "params", (int64_t)64 << 20);
    int repeat = (int)argument_int(args, "repeat", 10), threads[PLACES] = {1, 1}, code = 0;
#ifdef _OPENMP
    threads[1] = omp_get_max_threads();
#endif
    threads[1] = (int)argument_int(args, "threads", threads[1]);
    bool json = argument_flag(args, "json");
    static const char *const places[PLACES] = {"one core", "all cores"};
    char card[128];
    json_t *results = json_array();
    find_card(card, sizeof card);
    if (card[0]) log_warn("%s: the optimizer of this command runs on cores; 'meopt bench train' measures the card", card);
    else log_info("no card on this machine: one core against all %d", threads[1]);
    if (!json) printf("%-26s %-10s %7s %20s %18s\n", "one iteration of", "on", "threads", "ms", "speed-up");
    for (int f = 0; f < FORMATS && !code; f++) {
        struct measured m[PLACES];
        for (int p = 0; p < PLACES; p++) m[p] = (struct measured){.ms = xcalloc((size_t)repeat, sizeof(double))};
        code = measure(&formats[f], parameters, threads, repeat, m, err);
        for (int p = 0; p < PLACES && !code; p++) {
            double ratio = m[0].mean / m[p].mean, sd = p ? statistics_ratio_sd(m[0].mean, m[0].sd, m[p].mean, m[p].sd) : NAN;
            if (json) {
                json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:i, s:f, s:i, s:f}", "optimizer", formats[f].name, "weights", meopt_weight_format_name(formats[f].weights),
                                        "states", meopt_state_format_name(formats[f].states), "on", places[p], "threads", threads[p], "step_ms", m[p].mean, "n", repeat,
                                        "speedup", ratio);
                json_object_set_new(row, "step_ms_sd", isnan(m[p].sd) ? json_null() : json_real(m[p].sd));
                json_object_set_new(row, "speedup_sd", isnan(sd) ? json_null() : json_real(sd));
                json_array_append_new(results, row);
            } else {
                char spread[64] = "", ratio_spread[64] = "";
                if (!isnan(m[p].sd)) snprintf(spread, sizeof spread, " +- %.2f", m[p].sd);
                if (!isnan(sd)) snprintf(ratio_spread, sizeof ratio_spread, " +- %.2f", sd);
                printf("%-26s %-10s %7d %9.2f%11s %7.2f%11s\n", formats[f].name, places[p], threads[p], m[p].mean, spread, ratio, ratio_spread);
                fflush(stdout);
            }
            warn_outliers(&formats[f], places[p], &m[p], repeat);
        }
        for (int p = 0; p < PLACES; p++) free(m[p].ms);
    }
    if (!code && json) {
        json_t *all = json_pack("{s:I, s:i, s:O}", "params", (json_int_t)parameters, "threads", threads[1], "results", results);
        json_object_set_new(all, "card", card[0] ? json_string(card) : json_null());
        json_dumpf(all, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(8) | JSON_PRESERVE_ORDER);
        printf("\n");
        json_decref(all);
    }
    json_decref(results);
    return code;
}

static const struct option options[] = {
    {"params", 'n', OPTION_INT, "N", NULL, 1, 1e11, "parameters (default 67108864)"},
    {"threads", 't', OPTION_INT, "N", NULL, 1, 4096, "threads of 'all cores' (default: one for each core)"},
    {"repeat", 0, OPTION_INT, "N", NULL, 1, 1000, "iterations measured (default 10)"},
    {"json", 'j', OPTION_FLAG, NULL, NULL, 0, 0, "print JSON"},
    {0},
};

const struct command cmd_bench_speedup = {"bench speedup", "", "one optimizer iteration: one core, all cores, card",
                                          "Examples:\n  meopt bench speedup\n  meopt bench speedup -n 1000000000 --repeat 5\n", options, 0, 0, false, speedup};
