/* meopt bench speedup: measures one optimizer step on one core, all cores and a card, as ratios with their
 * spread.
 *
 * This is the original's test of a card against the CPU. All places run the same step of the same tensors,
 * in round-robin order, so that a slow period of the machine affects all of them. */
#include "cli/command.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/json.h"
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

enum { TENSOR = 4 << 20, PLACES = 3 };

/* A place that runs steps; card NULL: the CPU. */
struct place {
    const char *name;
    int threads;
    struct device *card;
};

static const struct format {
    const char *name;
    int weights, states, gradient;
} formats[] = {
    {N_("AdamW, fp32"), MEOPT_WEIGHTS_F32_COPY, MEOPT_STATE_F32, MEOPT_F32},
    {N_("MEOpt, bf16+8 and 8 bits"), MEOPT_WEIGHTS_24, MEOPT_STATE_8BIT, MEOPT_BF16},
};
enum { FORMATS = sizeof formats / sizeof *formats };

struct measured {
    double *ms; /* (repeat) */
    double mean, sd;
};

static int library_error(struct error *err, const struct meopt_error *from, const struct place *place)
{
    int memory = place->card ? EXIT_CARD_MEMORY : EXIT_HOST_MEMORY;
    return error_set(err, from->status == MEOPT_NO_MEMORY ? memory : EXIT_FAILED, "use fewer --params",
                     "%s: %s", place->name, from->message);
}

/* Tensors of one optimizer, and the gradient shared by all of them. */
struct work {
    struct meopt_tensor *table;
    struct meopt_gradient *gradients;
    char *names;
    size_t count, gradient_bytes;
    unsigned char *gradient;
};

static void work_make(struct work *w, const struct format *f, int64_t parameters)
{
    size_t element = f->gradient == MEOPT_F32 ? 4 : 2;
    w->count = (size_t)((parameters + TENSOR - 1) / TENSOR);
    w->gradient_bytes = (size_t)TENSOR * element;
    w->table = xcalloc(w->count, sizeof *w->table);
    w->gradients = xcalloc(w->count, sizeof *w->gradients);
    w->names = xcalloc(w->count, 24);
    w->gradient = xmalloc(w->gradient_bytes);
    for (size_t i = 0; i < w->count; i++) {
        snprintf(w->names + 24 * i, 24, "t%zu", i);
        w->table[i] =
            (struct meopt_tensor){.name = w->names + 24 * i, .ndim = 2, .shape = {1024, TENSOR / 1024}};
    }
    for (size_t i = 0; i < w->gradient_bytes; i++)
        w->gradient[i] = (unsigned char)(i % element == element - 1 ? 0x3b : i * 37);
}

static void work_free(struct work *w)
{
    free(w->gradient);
    free(w->names);
    free(w->gradients);
    free(w->table);
}

static int create(struct meopt **opt, const struct format *f, const struct place *place, const struct work *w,
                  struct error *err)
{
    struct meopt_error library = {0};
    struct meopt_options o;
    meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
    o.weights = f->weights;
    o.first_moment = o.second_moment = f->states;
    o.beta2 = 0.98;
    o.threads = place->threads;
    o.device = (struct meopt_device *)place->card;
    o.seed = 1;
    return meopt_create(opt, &o, w->table, w->count, &library) ? library_error(err, &library, place) : 0;
}

/* Runs one step and waits for it. */
static int run_step(struct meopt *opt, int64_t number, const struct place *place, const struct work *w,
                    const void *gradient, int type, double *ms, struct error *err)
{
    struct meopt_error library = {0};
    for (size_t i = 0; i < w->count; i++) w->gradients[i] = (struct meopt_gradient){gradient, type};
    double begin = clock_seconds();
    if (meopt_step(opt, number, 1e-4, 1, w->gradients, NULL, &library))
        return library_error(err, &library, place);
    if (place->card) place->card->sync(place->card);
    *ms = (clock_seconds() - begin) * 1e3;
    return place->card ? device_check(place->card, err) : 0;
}

static int measure(const struct format *f, int64_t parameters, const struct place *places, int count,
                   int repeat, struct measured *measured, struct error *err)
{
    struct meopt *opt[PLACES] = {NULL};
    const void *gradient[PLACES] = {NULL};
    void *on_card = NULL;
    struct work w;
    int code = 0;
    work_make(&w, f, parameters);
    for (int p = 0; p < count && !code; p++) {
        struct device *card = places[p].card;
        gradient[p] = w.gradient;
        if (card) {
            gradient[p] = on_card = device_alloc(card, MEMORY_GRADIENTS, w.gradient_bytes, "gradient", err);
            if (!on_card) code = err->code;
            else card->upload(card, on_card, w.gradient, w.gradient_bytes);
        }
        if (!code) code = create(&opt[p], f, &places[p], &w, err);
    }
    for (int i = 0; i <= repeat && !code; i++) /* the first step warms up caches and pages */
        for (int p = 0; p < count && !code; p++)
            code = run_step(opt[p], i + 1, &places[p], &w, gradient[p], f->gradient,
                            &measured[p].ms[i ? i - 1 : 0], err);
    for (int p = 0; p < count; p++) {
        measured[p].mean = statistics_mean(measured[p].ms, repeat);
        measured[p].sd = statistics_sd(measured[p].ms, repeat);
        meopt_destroy(opt[p]);
        if (places[p].card) device_free(places[p].card, on_card);
    }
    work_free(&w);
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

static const struct option options[] = {
    {"params", 'n', OPTION_INT, "N", NULL, 1, 1e11, "number of parameters (default 67108864)"},
    {"threads", 't', OPTION_INT, "N", NULL, 1, 4096,
     "number of threads of 'all cores' (default: one per core)"},
    {"device", 'd', OPTION_TEXT, "DEVICE", NULL, 0, 0,
     "the card: hip:N, cuda:N, auto (the default), or cpu for none"},
    {"repeat", 0, OPTION_INT, "N", NULL, 1, 1000, "number of measured iterations (default 10)"},
    {"json", 'j', OPTION_FLAG, NULL, NULL, 0, 0, "print JSON"},
    {0},
};

const struct command cmd_bench_speedup = {
    .name = "bench speedup",
    .operands = "",
    .summary = "measure one optimizer step: one core, all cores, card",
    .details =
        "Examples:\n  meopt bench speedup\n  meopt bench speedup --device cuda:0 -n 1000000000 --repeat 5\n",
    .options = options,
    .run = speedup,
};
