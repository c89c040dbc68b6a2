/* Trials of a GEMM library's algorithms: see gemm_choices.h.
 *
 * The heuristic's first result is an estimate, and its next ones are often faster. Each of the first eight is
 * timed on the operands of the first GEMM of a shape. The winner must be 3 % faster than the first one, give
 * the same bits twice, and agree with the first one's result. A GEMM that adds to its result (beta) changes
 * it at each trial: the result is kept in host memory meanwhile. */
#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/device/gpu_lt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double worth = 0.97;         /* of the first one's time */
static const double agreement = 1.0 / 64; /* relative difference of norms: two roundings to bf16 */
static const double run_seconds = 1e-3;   /* of one measurement */
enum {
    MOST_RUNS = 20,
    WINDOW_BYTES = 4 << 20, /* compared at the begin and at the end of the result */
    BUFFER = LT_TRIED * LT_RESULT_BYTES
};

/* ---- results of the heuristic ---- */

/* Returns the number of results in `all`, of the size in the table; 0: the library writes another layout. */
static int list_results(struct lt *lt, const struct lt_plan *p, unsigned char *all)
{
    enum { MARK = 0xA5 };
    size_t each = (size_t)lt->is->result_bytes;
    int found = 0, again = 0;
    memset(all, MARK, BUFFER);
    if (lt_heuristic(lt, p, LT_TRIED, all, &found) || found < 1 || found > LT_TRIED) return 0;
    size_t used = BUFFER;
    while (used > 0 && all[used - 1] == MARK) used--;
    if (used > (size_t)found * each || used + each <= (size_t)found * each + (size_t)lt->is->algorithm_bytes)
        return 0;
    memset(all, 0, BUFFER);
    return lt_heuristic(lt, p, LT_TRIED, all, &again) || again != found ? 0 : found;
}

static bool is_offered(const struct lt *lt, const unsigned char *result)
{
    int state;
    memcpy(&state, result + lt->is->state_at, sizeof state);
    return state == 0;
}

/* ---- choices ---- */

static const struct gemm_choice *find_choice(const struct gemm_choices *all, const struct gemm_key *key)
{
    for (int i = 0; all && i < all->count; i++)
        if (memcmp(&all->list[i].key, key, sizeof *key) == 0) return &all->list[i];
    return NULL;
}

static void look_up(struct device *dev, struct lt *lt, struct lt_plan *p)
{
    unsigned char all[BUFFER];
    const struct gemm_choice *choice = find_choice(lt->used, &p->key);
    p->looked_up = true;
    int count = choice ? list_results(lt, p, all) : 0;
    for (int i = 0; i < count; i++) {
        const unsigned char *result = all + (size_t)i * (size_t)lt->is->result_bytes;
        if (memcmp(result, choice->algorithm, (size_t)lt->is->algorithm_bytes) != 0 ||
            !is_offered(lt, result))
            continue;
        memcpy(p->result, result, (size_t)lt->is->result_bytes);
        return;
    }
    if (choice)
        log_warn(
            "%s: the run's algorithm for a GEMM of %lld x %lld x %lld is not offered by %s here: its first "
            "one is used",
            dev->name, (long long)p->key.m, (long long)p->key.n, (long long)p->key.k, lt->version);
}

/* ---- trials ---- */

struct trial {
    struct device *dev;
    struct lt *lt;
    const struct lt_plan *plan;
    const struct gemm *gemm;
    size_t bytes; /* of C */
    char *kept;   /* C before the trials, if beta is not 0 */
};

static void restore(const struct trial *t)
{
    if (t->kept) gpu_upload(t->dev, t->gemm->c, t->kept, t->bytes);
}

/* Returns the seconds of `runs` GEMMs, infinity if the library refuses or the card fails. */
static double seconds_of(const struct trial *t, const unsigned char *result, int runs)
{
    double begin = clock_seconds();
    for (int i = 0; i < runs; i++)
        if (lt_multiply(gpu_of(t->dev), t->plan, t->gemm, result)) return INFINITY;
    gpu_sync(t->dev);
    return t->dev->pending.code ? INFINITY : clock_seconds() - begin;
}

/* Returns the seconds of one GEMM: the shorter of two means. One that is clearly slower than `best` is not
 * measured further. */
static double measure(const struct trial *t, const unsigned char *result, double best)
{
    double once = seconds_of(t, result, 1); /* loads the kernel */
    if (isfinite(once)) once = seconds_of(t, result, 1);
    if (!isfinite(once) || once > 2 * best) return once;
    int runs = once * MOST_RUNS < run_seconds ? MOST_RUNS : (int)(run_seconds / once) + 1;
    double a = seconds_of(t, result, runs), b = seconds_of(t, result, runs);
    return (a < b ? a : b) / runs;
}

static double value_at(const struct trial *t, const char *p, size_t i)
{
    float x;
    uint32_t bits;
    if (t->plan->key.out16) bits = (uint32_t)((const uint16_t *)(const void *)p)[i] << 16;
    else memcpy(&bits, p + 4 * i, sizeof bits);
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}

/* Computes the result and copies its begin and its end to `window`. */
static bool fetch(const struct trial *t, const unsigned char *result, char *window, size_t part)
{
    restore(t);
    if (!isfinite(seconds_of(t, result, 1))) return false;
    gpu_download(t->dev, window, t->gemm->c, part);
    gpu_download(t->dev, window + part, (const char *)t->gemm->c + t->bytes - part, part);
    return !t->dev->pending.code;
}

/* Whether an algorithm gives the same bits twice, and the first one's result up to rounding. */
static bool agrees(const struct trial *t, const unsigned char *first, const unsigned char *other)
{
    size_t part = t->bytes < WINDOW_BYTES ? t->bytes : WINDOW_BYTES, each = t->plan->key.out16 ? 2 : 4;
    char *a = malloc(4 * part), *b = a ? a + 2 * part : NULL;
    double squares = 0, differ = 0;
    bool right = a && fetch(t, other, a, part) && fetch(t, other, b, part) && memcmp(a, b, 2 * part) == 0 &&
                 fetch(t, first, a, part);
    for (size_t i = 0; right && i < 2 * part / each; i++) {
        double x = value_at(t, a, i), d = value_at(t, b, i) - x;
        squares += x * x, differ += d * d;
    }
    free(a);
    return right && differ <= agreement * agreement * squares; /* false for NaN */
}

static void add_found(struct lt *lt, const struct lt_plan *p, const unsigned char *result, double first,
                      double ms)
{
    struct gemm_choices *found = lt->found;
    if (!found || found->count == GEMM_CHOICES || !isfinite(first)) return;
    struct gemm_choice *c = &found->list[found->count++];
    memset(c, 0, sizeof *c);
    c->key = p->key, c->first_ms = first, c->ms = ms;
    memcpy(c->algorithm, result, (size_t)lt->is->algorithm_bytes);
}

static void try_all(struct device *dev, struct lt *lt, struct lt_plan *p, const struct gemm *g)
{
    unsigned char all[BUFFER];
    struct trial t = {dev, lt, p, g, (size_t)g->m * (size_t)g->n * (p->key.out16 ? 2 : 4), NULL};
    int count = list_results(lt, p, all), best = 0;
    if (count < 1 || !is_offered(lt, all)) return;
    if (g->beta != 0 && g->ldc != g->n)
        return; /* other memory between the rows; its next use may be without */
    if (g->beta != 0 && count > 1) {
        if (!(t.kept = malloc(t.bytes))) return;
        gpu_download(dev, t.kept, g->c, t.bytes);
    }
    p->tried = true;
    double first = count > 1 ? measure(&t, all, INFINITY) : 0, least = first;
    for (int i = 1; i < count && isfinite(first); i++) {
        const unsigned char *result = all + (size_t)i * (size_t)lt->is->result_bytes;
        double seconds = is_offered(lt, result) ? measure(&t, result, least) : INFINITY;
        if (seconds < least && seconds < worth * first) least = seconds, best = i;
    }
    if (best && !agrees(&t, all, all + (size_t)best * (size_t)lt->is->result_bytes)) best = 0, least = first;
    restore(&t);
    free(t.kept);
    add_found(lt, p, all + (size_t)best * (size_t)lt->is->result_bytes, first * 1e3, least * 1e3);
}

void lt_prepare(struct device *dev, struct lt_plan *p, const struct gemm *g)
{
    struct lt *lt = gpu_of(dev)->lt;
    if (lt->used && !p->looked_up) look_up(dev, lt, p);
    if (lt->trying && !p->tried && !gpu_of(dev)->recording && !dev->pending.code) try_all(dev, lt, p, g);
}

/* ---- gemm_choices.h ---- */

static struct lt *lt_of(struct device *dev) { return gpu_is(dev) ? gpu_of(dev)->lt : NULL; }

bool device_gemm_choices(struct device *dev, struct gemm_choices *choices)
{
    const struct lt *lt = lt_of(dev);
    memset(choices, 0, sizeof *choices);
    if (!lt) return false;
    snprintf(choices->card, sizeof choices->card, "%s", gpu_of(dev)->card.name);
    snprintf(choices->library, sizeof choices->library, "%s", lt->version);
    choices->algorithm_bytes = lt->is->algorithm_bytes;
    return true;
}

void device_gemm_try(struct device *dev, bool on)
{
    struct lt *lt = lt_of(dev);
    if (!lt) return;
    if (on && !lt->found) lt->found = calloc(1, sizeof *lt->found);
    lt->trying = on && lt->found;
}

void device_gemm_found(struct device *dev, struct gemm_choices *choices)
{
    const struct lt *lt = lt_of(dev);
    for (int i = 0; lt && lt->found && i < lt->found->count && choices->count < GEMM_CHOICES; i++)
        choices->list[choices->count++] = lt->found->list[i];
}

void device_gemm_use(struct device *dev, const struct gemm_choices *choices)
{
    struct lt *lt = lt_of(dev);
    if (!lt) return;
    if (!lt->used) lt->used = malloc(sizeof *lt->used);
    if (!lt->used) return;
    *lt->used = *choices;
    for (int i = 0; i < lt->count; i++) lt->plans[i].looked_up = false;
    gpu_of(dev)->stale = true; /* graphs have the former algorithms */
}
