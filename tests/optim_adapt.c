/* Adaptive precision: the error that is measured is what all roundings since the first step have come to, a
 * tensor goes back to fewer bits when they are enough again, and none of it depends on where a run was cut.
 */
#include "core/optim/optim.h"
#include "tests/optim_numbers.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { ROWS = 64, COLUMNS = 128, COUNT = ROWS * COLUMNS, MOST = 1200 };

static double normal(void) { return sqrt(-2 * log(uniform() + 1e-12)) * cos(6.283185307 * uniform()); }

/* What was reported, in order. */
struct heard {
    int count;
    struct meopt_report reports[MOST];
};
static void hear(void *context, const struct meopt_report *r)
{
    struct heard *h = context;
    h->reports[h->count] = *r;
    h->reports[h->count++].tensor = NULL;
}

static float gradient[COUNT];
static double exact_m[COUNT], exact_v[COUNT];

/* Spikes: elements of a group that differ by more than 8 bits of v hold. */
static void gradient_make(bool spikes)
{
    for (int k = 0; k < COUNT; k++) {
        double x = normal();
        if (spikes && k % 64 < 32) x *= 1e14;
        gradient[k] = (float)x;
    }
}

static struct meopt *made(int format, double beta2, int every, double threshold, struct heard *heard)
{
    struct meopt_options o;
    struct meopt_error err;
    struct meopt *opt;
    meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
    meopt_options_preset(&o, "minimal", &err);
    o.first_moment = o.second_moment = format;
    o.beta2 = beta2;
    o.eps = 1e-30;
    o.adapt_every = every;
    o.adapt_threshold = threshold;
    o.report = hear;
    o.context = heard;
    struct meopt_tensor t = {.name = "w", .ndim = 2, .shape = {ROWS, COLUMNS}};
    memset(heard, 0, sizeof *heard);
    assert_int_equal(meopt_create(&opt, &o, &t, 1, &err), 0);
    return opt;
}

static void stepped(struct meopt *opt, int step)
{
    struct meopt_error err;
    struct meopt_gradient g = {gradient, MEOPT_F32};
    assert_int_equal(meopt_step(opt, step, 1e-3, 1, &g, NULL, &err), 0);
}

/* Of all elements, beside averages in double. */
static double error_now(const struct meopt *opt, int t, double beta2)
{
    static float m[COUNT], v[COUNT];
    double differences = 0, sizes = 0;
    assert_int_equal(meopt_moments_export(opt, 0, 0, COUNT, m, v, NULL), 0);
    for (int k = 0; k < COUNT; k++) {
        double root = 1 / sqrt(1 - pow(beta2, t)), u = exact_m[k] / (sqrt(exact_v[k]) * root + 1e-30),
               d = (double)m[k] / (sqrt((double)v[k]) * root + 1e-30) - u;
        differences += d * d;
        sizes += u * u;
    }
    return sqrt(differences / sizes);
}

static void the_error_is_what_all_steps_have_left(void **state)
{
    (void)state;
    static struct heard heard;
    static const int formats[] = {MEOPT_STATE_8BIT, MEOPT_STATE_4BIT};
    for (int f = 0; f < 2; f++) {
        struct meopt *opt = made(formats[f], 0.99, 25, 1e9, &heard);
        memset(exact_m, 0, sizeof exact_m);
        memset(exact_v, 0, sizeof exact_v);
        double first = 0;
        for (int t = 1; t <= 500; t++) {
            gradient_make(false);
            for (int k = 0; k < COUNT; k++) {
                double g = (double)gradient[k];
                exact_m[k] = 0.9 * exact_m[k] + 0.1 * g;
                exact_v[k] = 0.99 * exact_v[k] + 0.01 * g * g;
            }
            stepped(opt, t);
            if (t % 25) continue;
            double error = error_now(opt, t, 0.99), told = heard.reports[t / 25 - 1].error;
            if (t == 25) first = told;
            if (t == 500)
                print_message("%s: %.4f after 25 steps, %.4f after 500; of all elements %.4f\n",
                              meopt_state_format_name(formats[f]), first, told, error);
            assert_true(fabs(told / error - 1) < 0.25); /* a sample: 1024 of 8192 */
        }
        assert_int_equal(heard.count, 20);
        if (formats[f] == MEOPT_STATE_4BIT) assert_true(heard.reports[19].error > 1.15 * first);
        meopt_destroy(opt);
    }
}

/* A tensor is widened while its groups span too much, and goes back when their average has forgotten that; 4
 * bits are never enough, and it stays with 8. */
static void what_was_widened_goes_back(void **state)
{
    (void)state;
    static struct heard heard;
    struct meopt *opt = made(MEOPT_STATE_8BIT, 0.97, 10, 0.1, &heard);
    int widened = 0, back = 0;
    for (int t = 1; t <= 2000 && !back; t++) {
        struct meopt_tensor_info info;
        gradient_make(t <= 100);
        stepped(opt, t);
        meopt_info(opt, 0, &info);
        if (!widened && info.first_moment != MEOPT_STATE_8BIT) widened = t;
        if (widened && info.first_moment == MEOPT_STATE_8BIT) back = t;
    }
    print_message("widened after %d steps, back after %d\n", widened, back);
    assert_true(widened && widened <= 100 && back > 133);
    const struct meopt_report *last = &heard.reports[heard.count - 1];
    assert_int_equal(last->new_second_moment, MEOPT_STATE_8BIT);
    assert_true(last->narrower_error >= 0 && last->narrower_error <= 0.05 && last->error <= 0.05);
    meopt_destroy(opt);

    opt = made(MEOPT_STATE_4BIT, 0.97, 10, 0.1, &heard);
    struct meopt_tensor_info info;
    for (int t = 1; t <= 300; t++) {
        gradient_make(false);
        stepped(opt, t);
    }
    meopt_info(opt, 0, &info);
    assert_int_equal(info.first_moment, MEOPT_STATE_8BIT);
    assert_true(heard.reports[heard.count - 1].narrower_error > 0.1);
    meopt_destroy(opt);
}

/* Saved and loaded at any step: the same weights, states and reports, widened or not, trial or not. */
static void a_run_that_was_cut_measures_the_same(void **state)
{
    (void)state;
    static struct heard whole_heard, cut_heard;
    enum { STEPS = 260 };
    for (int cut = 20; cut < STEPS; cut += 60) {
        uint64_t seed = 99;
        struct meopt_error err;
        struct meopt *whole = made(MEOPT_STATE_8BIT, 0.97, 10, 0.1, &whole_heard),
                     *opt = made(MEOPT_STATE_8BIT, 0.97, 10, 0.1, &cut_heard);
        for (int t = 1; t <= STEPS; t++) {
            random_state = seed + (uint64_t)t;
            gradient_make(t <= 60);
            stepped(whole, t);
            stepped(opt, t);
            if (t != cut) continue;
            size_t bytes = meopt_state_bytes(opt, 0);
            void *record = malloc(bytes), *values = malloc(COUNT * 4);
            assert_int_equal(meopt_state_save(opt, 0, record, bytes, &err), 0);
            assert_int_equal(meopt_export(opt, 0, 0, COUNT, values, &err), 0);
            struct heard before = cut_heard;
            meopt_destroy(opt);
            opt = made(MEOPT_STATE_8BIT, 0.97, 10, 0.1, &cut_heard);
            cut_heard = before;
            assert_int_equal(meopt_import(opt, 0, 0, COUNT, values, &err), 0);
            assert_int_equal(meopt_state_load(opt, 0, record, bytes, &err), 0);
            free(record);
            free(values);
        }
        size_t bytes = meopt_state_bytes(whole, 0);
        assert_int_equal(bytes, meopt_state_bytes(opt, 0));
        void *a = calloc(1, bytes), *b = calloc(1, bytes);
        assert_int_equal(meopt_state_save(whole, 0, a, bytes, &err), 0);
        assert_int_equal(meopt_state_save(opt, 0, b, bytes, &err), 0);
        assert_memory_equal(a, b, bytes);
        assert_int_equal(whole_heard.count, cut_heard.count);
        assert_memory_equal(whole_heard.reports, cut_heard.reports,
                            (size_t)whole_heard.count * sizeof *whole_heard.reports);
        free(a);
        free(b);
        meopt_destroy(whole);
        meopt_destroy(opt);
    }
}

/* A record of a run that was not watched has no sample: what is stored counts as exact from there on, and so
 * does each load of it into a handle that has seen other steps. */
static void a_state_that_was_not_watched_is_measured_from_its_load(void **state)
{
    (void)state;
    static struct heard unwatched, heard;
    static const int formats[] = {MEOPT_STATE_8BIT, MEOPT_STATE_4BIT};
    static float m[COUNT], v[COUNT];
    for (int f = 0; f < 2; f++) {
        struct meopt_error err;
        struct meopt *from = made(formats[f], 0.99, 0, 0.1, &unwatched),
                     *to = made(formats[f], 0.99, 1, 1e9, &heard);
        int t = 0;
        while (t < 100) {
            gradient_make(false);
            stepped(from, ++t);
        }
        size_t bytes = meopt_state_bytes(from, 0);
        void *record = malloc(bytes);
        assert_int_equal(meopt_state_save(from, 0, record, bytes, &err), 0);
        assert_int_equal(meopt_moments_export(from, 0, 0, COUNT, m, v, &err), 0);
        for (int times = 0; times < 2; times++) {
            for (int k = 0; k < COUNT; k++) exact_m[k] = (double)m[k], exact_v[k] = (double)v[k];
            assert_int_equal(meopt_state_load(to, 0, record, bytes, &err), 0);
            for (int since = 1; since <= 20; since++) {
                gradient_make(false);
                for (int k = 0; k < COUNT; k++) {
                    double g = (double)gradient[k];
                    exact_m[k] = 0.9 * exact_m[k] + 0.1 * g;
                    exact_v[k] = 0.99 * exact_v[k] + 0.01 * g * g;
                }
                stepped(to, times * 20 + since);
                double error = error_now(to, t + since, 0.99), told = heard.reports[heard.count - 1].error;
                if (since % 19 == 1)
                    print_message("%s, %d steps after its load: %.4f; of all elements %.4f\n",
                                  meopt_state_format_name(formats[f]), since, told, error);
                assert_true(fabs(told / error - 1) < 0.25); /* a sample: 1024 of 8192 */
            }
        }
        assert_int_equal(unwatched.count, 0);
        assert_int_equal(heard.count, 40);
        free(record);
        meopt_destroy(from);
        meopt_destroy(to);
    }
}

/* What a refused step leaves: nothing, in the sample neither. */
static void a_refused_step_is_none(void **state)
{
    (void)state;
    static struct heard heard;
    struct meopt_error err;
    struct meopt *opt = made(MEOPT_STATE_8BIT, 0.99, 1000, 0.1, &heard);
    for (int t = 1; t <= 5; t++) {
        gradient_make(false);
        stepped(opt, t);
    }
    size_t bytes = meopt_state_bytes(opt, 0);
    void *before = calloc(1, bytes), *after = calloc(1, bytes);
    assert_int_equal(meopt_state_save(opt, 0, before, bytes, &err), 0);
    gradient[COUNT - 1] = NAN;
    assert_int_equal(meopt_step_begin(opt, 6, 1e-3, 1, &err), 0);
    assert_int_equal(meopt_step_tensor(opt, 0, gradient, MEOPT_F32, 1, &err), MEOPT_NOT_FINITE);
    meopt_step_end(opt, NULL, &err);
    assert_int_equal(meopt_state_save(opt, 0, after, bytes, &err), 0);
    assert_memory_equal(before, after, bytes);
    ((char *)after)[bytes - 8] ^= 1; /* the sample is behind the checksum, too */
    assert_int_equal(meopt_state_load(opt, 0, after, bytes, &err), MEOPT_BAD_STATE);
    free(before);
    free(after);
    meopt_destroy(opt);
}

static size_t asked_for;
static void *counted(void *context, int kind, size_t bytes, const char *tensor)
{
    (void)context;
    (void)kind;
    (void)tensor;
    asked_for += bytes;
    return aligned_alloc(64, bytes);
}
static void released(void *context, int kind, void *p, size_t bytes)
{
    (void)context;
    (void)kind;
    asked_for -= bytes;
    free(p);
}

static void its_bytes_are_planned(void **state)
{
    (void)state;
    struct meopt_error err;
    for (int every = 0; every < 2; every++) {
        struct meopt_options o;
        struct meopt_bytes planned, held;
        struct meopt *opt;
        meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
        meopt_options_preset(&o, "balanced", &err);
        o.adapt_every = every;
        o.allocate = counted;
        o.release = released;
        struct meopt_tensor t[2] = {{.name = "w", .ndim = 2, .shape = {ROWS, COLUMNS}},
                                    {.name = "b", .ndim = 1, .shape = {COLUMNS}}};
        assert_int_equal(meopt_query(&o, t, 2, &planned, &err), 0);
        assert_int_equal(meopt_create(&opt, &o, t, 2, &err), 0);
        assert_int_equal(meopt_held(opt, &held), 0);
        assert_int_equal(planned.total, asked_for);
        assert_int_equal(held.total, asked_for);
        print_message("adapt_every %d: %zu bytes\n", every, asked_for);
        meopt_destroy(opt);
        assert_int_equal(asked_for, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_error_is_what_all_steps_have_left),
        cmocka_unit_test(what_was_widened_goes_back),
        cmocka_unit_test(a_run_that_was_cut_measures_the_same),
        cmocka_unit_test(a_state_that_was_not_watched_is_measured_from_its_load),
        cmocka_unit_test(a_refused_step_is_none),
        cmocka_unit_test(its_bytes_are_planned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
