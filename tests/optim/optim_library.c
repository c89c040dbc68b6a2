/* libmeopt as documented in its header: state that survives a restart bit by bit and converts between
 * formats, gradient accumulation, shards, threads. */
#include "core/base/crc32c.h"
#include "core/optim/state.h"
#include "tests/mentions.h"
#include "tests/optim/optim_table.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>

static void resume_is_bit_identical(void **state)
{
    for (int rule = 0; rule < MEOPT_RULE_COUNT; rule++)
        for (size_t p = 0; p < sizeof presets / sizeof *presets; p++) {
            struct meopt_error err;
            struct meopt *whole = make(rule, presets[p], 7), *first = make(rule, presets[p], 7),
                         *second = make(rule, presets[p], 7);
            steps(whole, 1, 8);
            steps(first, 1, 4);
            if (p % 2) { /* through the stream, or record by record with exported weights */
                struct buffer b = saved(first);
                assert_int_equal(meopt_load(second, b.data, b.bytes, &err), 0);
                free(b.data);
            } else
                for (size_t i = 0; i < COUNT; i++) {
                    size_t bytes = meopt_state_bytes(first, i);
                    char *record = malloc(bytes);
                    float values[A];
                    int64_t n = i ? B : A;
                    assert_int_equal(meopt_state_save(first, i, record, bytes, &err), 0);
                    assert_int_equal(meopt_state_load(second, i, record, bytes, &err), 0);
                    assert_int_equal(meopt_export(first, i, 0, n, values, &err), 0);
                    assert_int_equal(meopt_import(second, i, 0, n, values, &err), 0);
                    free(record);
                }
            steps(second, 5, 8);
            struct buffer x = saved(whole), y = saved(second);
            assert_int_equal(x.bytes, y.bytes);
            if (memcmp(x.data, y.data, x.bytes) != 0)
                fail_msg("%s %s: resumed run differs", meopt_rule_name(rule), presets[p]);
            free(x.data);
            free(y.data);
            meopt_destroy(whole);
            meopt_destroy(first);
            meopt_destroy(second);
        }
}

enum { GROUPS = (A + 63) / 64 };

/* The version is a digit of its first bytes. */
static void records_of_another_version_are_refused(void **state)
{
    static const struct {
        int rule;
        const char *preset;
        char version;
    } rows[] = {
        {MEOPT_APADAMW, "balanced", '3'}, {MEOPT_LION, "balanced", '4'}, {MEOPT_APADAMW, "fp32", '1'}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct meopt_error err;
        struct meopt *x = make(rows[i].rule, rows[i].preset, 7);
        steps(x, 1, 3);
        size_t bytes = meopt_state_bytes(x, 0), joined;
        char *record = malloc(bytes), names[8];
        assert_int_equal(meopt_state_save(x, 0, record, bytes, &err), 0);
        assert_int_equal(record[7], rows[i].version);
        for (char version = '0'; version <= '9'; version++) {
            bool same = version == rows[i].version;
            record[7] = version;
            uint32_t crc = crc32c(0, record, bytes - 4);
            memcpy(record + bytes - 4, &crc, 4);
            const void *whole = record;
            int expected = same ? MEOPT_OK : MEOPT_BAD_STATE;
            assert_int_equal(meopt_state_join(&whole, &bytes, 1, NULL, &joined, &err), expected);
            assert_int_equal(meopt_state_load(x, 0, record, bytes, &err), expected);
            snprintf(names, sizeof names, "%c|%c", version, rows[i].version);
            if (!same && version > '0') assert_true(mentions(err.message, names));
        }
        free(record);
        meopt_destroy(x);
    }
}

static void momentum_of_the_largest_gradients_is_saved_and_loaded(void **state)
{
    struct meopt_error err;
    struct meopt *x = make(MEOPT_APSGD, "balanced", 7), *y = make(MEOPT_APSGD, "balanced", 7);
    for (int i = 0; i < A; i++) gradient[i] = i % 2 ? 0x1.fp61f : -0x1.8p61f;
    for (int step = 1; step <= 40; step++) {
        struct meopt_gradient g[COUNT] = {{gradient, MEOPT_F32}, {gradient, MEOPT_F32}};
        assert_int_equal(meopt_step(x, step, 1e-25, 1, g, NULL, &err), 0);
    }
    assert_int_equal(x->tensors[0].layout.m, STATE_8BIT);
    struct buffer b = saved(x);
    if (meopt_load(y, b.data, b.bytes, &err)) fail_msg("%s", err.message);
    struct optim_task now = task_of(y, &y->tensors[0]);
    static float m[GROUPS * 64];
    y->kernels->state_out(&now, 0, GROUPS, m, NULL);
    for (int i = 0; i < A; i++) /* ten gradients */
        assert_true(fabs((double)m[i] / (10 * (1 - pow(0.9, 40)) * (double)gradient[i]) - 1) < 0.05);
    free(b.data);
    meopt_destroy(x);
    meopt_destroy(y);
}

static double distance(const struct meopt *x, const struct meopt *y)
{
    static float a[A], b[A];
    struct meopt_error err;
    double sum = 0;
    meopt_export(x, 0, 0, A, a, &err);
    meopt_export(y, 0, 0, A, b, &err);
    for (int i = 0; i < A; i++) sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum / A);
}

static void state_goes_from_one_format_to_another(void **state)
{
    for (int rule = 0; rule < MEOPT_RULE_COUNT; rule++)
        for (int from = 0; from < 4; from++)
            for (int to = 0; to < 4; to++) {
                struct meopt_error err;
                struct meopt *x = make(rule, presets[from], 7), *y = make(rule, presets[to], 7);
                steps(x, 1, 5);
                struct buffer b = saved(x);
                assert_int_equal(meopt_load(y, b.data, b.bytes, &err), 0);
                free(b.data);
                struct meopt_tensor_info info;
                assert_int_equal(meopt_info(y, 0, &info), 0);
                assert_int_equal(info.updates, 5);
                steps(x, 6, 6);
                steps(y, 6, 6);
                /* bf16 weights: half an ulp of 1; else a fraction of a step */
                double limit = from == 2 || to == 2 ? 3e-3 : 4e-4;
                if (distance(x, y) > limit)
                    fail_msg("%s %s -> %s: %g", meopt_rule_name(rule), presets[from], presets[to],
                             distance(x, y));
                meopt_destroy(x);
                meopt_destroy(y);
            }
}

static void damaged_state_is_refused_and_changes_nothing(void **state)
{
    struct meopt_error err;
    struct meopt *opt = make(MEOPT_APADAMW, "balanced", 7);
    steps(opt, 1, 3);
    struct buffer good = saved(opt);
    for (size_t at = 0; at < good.bytes; at += 137) {
        char *bad = malloc(good.bytes);
        memcpy(bad, good.data, good.bytes);
        bad[at] = (char)(bad[at] ^ 0x10);
        assert_int_equal(meopt_load(opt, bad, good.bytes, &err), MEOPT_BAD_STATE);
        assert_true(strlen(err.message) > 10);
        free(bad);
    }
    for (size_t bytes = 0; bytes < good.bytes; bytes += 501)
        assert_int_equal(meopt_load(opt, good.data, bytes, &err), MEOPT_BAD_STATE);
    struct buffer still = saved(opt);
    assert_memory_equal(good.data, still.data, good.bytes);
    struct meopt *lion = make(MEOPT_LION, "balanced", 7);
    assert_int_equal(meopt_load(lion, good.data, good.bytes, &err), MEOPT_BAD_STATE); /* other moments */
    meopt_destroy(lion);
    free(still.data);
    free(good.data);
    meopt_destroy(opt);
}

static void accumulated_gradients_make_the_step_of_their_sum(void **state)
{
    static const double limits[] = {1e-6, 2e-5, 2e-5, 6e-5,
                                    1e-3}; /* rms of weights after one SGD step of size 1e-2 */
    for (int format = 0; format < MEOPT_STATE_FORMAT_COUNT; format++) {
        struct meopt_options o;
        struct meopt_error err;
        struct meopt *x, *y;
        meopt_options_init(&o, sizeof o, MEOPT_APSGD);
        o.accumulator = format;
        assert_int_equal(meopt_create(&x, &o, table, COUNT, &err), 0);
        assert_int_equal(meopt_create(&y, &o, table, COUNT, &err), 0);
        static float sum[A];
        memset(sum, 0, sizeof sum);
        for (int micro = 0; micro < 4; micro++) {
            fill(gradient, A, (uint32_t)micro + 50, 1);
            for (int i = 0; i < A; i++) sum[i] += gradient[i] * 0.25f;
            assert_int_equal(meopt_accumulate(x, 0, gradient, MEOPT_F32, 0.25, &err), 0);
        }
        meopt_step_begin(x, 1, 1e-2, 0, &err);
        assert_int_equal(meopt_step_tensor(x, 0, NULL, MEOPT_F32, 1, &err), 0);
        assert_int_equal(meopt_step_tensor(x, 1, NULL, MEOPT_F32, 1, &err),
                         MEOPT_BAD_ARGUMENT); /* nothing accumulated */
        meopt_step_end(x, NULL, &err);
        meopt_step_begin(y, 1, 1e-2, 0, &err);
        meopt_step_tensor(y, 0, sum, MEOPT_F32, 1, &err);
        meopt_step_end(y, NULL, &err);
        double error = distance(x, y);
        print_message("accumulator %s: rms difference %.2g\n", meopt_state_format_name(format), error);
        assert_true(error <= limits[format]);
        meopt_destroy(x);
        meopt_destroy(y);
    }
}

/* One set after the other: added, measured, discarded, added again, stepped. */
static void sets_share_accumulators_and_change_no_bit(void **state)
{
    for (int format = 0; format < MEOPT_STATE_FORMAT_COUNT; format++) {
        struct meopt_options o;
        struct meopt_error err;
        struct meopt *apart, *shared;
        struct meopt_bytes all, held;
        const size_t order[COUNT] = {1, 0};
        const int sets[COUNT] = {7, 3}, one[COUNT] = {0};
        double norm[2];
        int finite[2];
        meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
        o.accumulator = format;
        assert_int_equal(meopt_create(&apart, &o, table, COUNT, &err), 0);
        o.accumulator_sets = sets;
        assert_int_equal(meopt_create(&shared, &o, table, COUNT, &err), 0);
        meopt_held(apart, &all);
        meopt_held(shared, &held);
        assert_true(held.accumulators < all.accumulators);
        assert_int_equal(all.total - held.total, all.accumulators - held.accumulators);
        for (int step = 1; step <= 2; step++) {
            const struct meopt_gradient none[COUNT] = {{NULL, MEOPT_F32}};
            for (int i = 0; i < COUNT; i++)
                for (uint32_t micro = 0; micro < 3; micro++) {
                    fill(gradient, A, micro + 10 * (uint32_t)i, 1);
                    assert_int_equal(meopt_accumulate(apart, (size_t)i, gradient, MEOPT_F32, 1, &err), 0);
                }
            assert_int_equal(meopt_gradient_norm(apart, NULL, norm, finite, &err), 0);
            meopt_step_begin(apart, step, 1e-2, 0, &err);
            for (size_t i = 0; i < COUNT; i++) meopt_step_tensor(apart, i, NULL, MEOPT_F32, 0.5, &err);
            assert_int_equal(meopt_step_end(apart, NULL, &err), 0);
            for (int pass = 0; pass < 2; pass++) {
                for (int k = 0; k < COUNT; k++) {
                    size_t i = order[k];
                    for (uint32_t micro = 0; micro < 3; micro++) {
                        fill(gradient, A, micro + 10 * (uint32_t)i, 1);
                        assert_int_equal(meopt_accumulate(shared, i, gradient, MEOPT_F32, 1, &err), 0);
                    }
                    assert_int_equal(meopt_accumulate(shared, order[1 - k], gradient, MEOPT_F32, 1, &err),
                                     MEOPT_BAD_ORDER);
                    if (pass) {
                        assert_int_equal(meopt_step_tensor(shared, i, NULL, MEOPT_F32, 0.5, &err), 0);
                        continue;
                    }
                    assert_int_equal(meopt_norms_begin(shared, none, &err), 0);
                    assert_int_equal(meopt_accumulators_clear(shared, &err), 0);
                }
                if (pass) break;
                assert_int_equal(meopt_norms_end(shared, 1, one, &norm[1], &finite[1], &err), 0);
                assert_true(norm[0] == norm[1] && finite[0] && finite[1]);
                meopt_step_begin(shared, step, 1e-2, 0, &err);
            }
            assert_int_equal(meopt_step_end(shared, NULL, &err), 0);
            assert_int_equal(meopt_norms_end(shared, 1, one, &norm[1], &finite[1], &err), 0);
            assert_true(norm[0] == norm[1]); /* the results stay */
        }
        assert_true(distance(apart, shared) == 0);
        meopt_destroy(apart);
        meopt_destroy(shared);
    }
    assert_int_equal(meopt_accumulators_clear(NULL, NULL), MEOPT_BAD_ARGUMENT);
}

static void a_step_has_figures_by_sets_of_tensors(void **state)
{
    enum { VALUES = 4096 };
    static float weights[3][VALUES], gradients[3][VALUES];
    static const char *const names[3] = {"a", "b", "c"};
    static const int of[3] = {1, 0, 1}, beyond[3] = {0, 2, 0};
    struct meopt_tensor t[3];
    struct meopt_gradient given[3];
    struct meopt_step_stats stats;
    struct meopt_options o;
    struct meopt_error err;
    struct meopt *opt;
    double norms[2], expected[2];
    int finite[2];
    int64_t wide[2];
    meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
    for (int i = 0; i < 3; i++) {
        t[i] = (struct meopt_tensor){
            .name = names[i], .ndim = 2, .shape = {64, VALUES / 64}, .weights = weights[i]};
        for (int k = 0; k < VALUES; k++) gradients[i][k] = (float)((k * 7 + i) % 13 - 6);
        given[i] = (struct meopt_gradient){gradients[i], MEOPT_F32};
    }
    meopt_options_preset(&o, "fp32", &err);
    assert_int_equal(meopt_create(&opt, &o, t, 3, &err), 0);
    for (int set = 0; set < 2; set++) {
        struct meopt_gradient some[3] = {{0}};
        for (int i = 0; i < 3; i++) some[i] = of[i] == set ? given[i] : some[i];
        assert_int_equal(meopt_gradient_norm(opt, some, &expected[set], &finite[set], &err), 0);
    }
    assert_int_equal(meopt_step(opt, 1, 1e-3, 1, given, &stats, &err), 0);
    assert_int_equal(meopt_step_sets(opt, 2, of, norms, finite, wide, &err), 0);
    for (int set = 0; set < 2; set++)
        assert_true(norms[set] == expected[set] && finite[set] && wide[set] == 0);
    assert_true(fabs(hypot(norms[0], norms[1]) - stats.grad_norm) < 1e-9 * stats.grad_norm);
    gradients[1][100] = NAN;
    assert_int_equal(meopt_step(opt, 2, 1e-3, 1, given, &stats, &err), MEOPT_NOT_FINITE);
    assert_int_equal(meopt_step_sets(opt, 2, of, norms, finite, wide, &err), 0);
    assert_true(!finite[0] && finite[1] && norms[1] == expected[1]);
    assert_int_equal(meopt_step_sets(opt, 2, beyond, norms, finite, wide, &err), MEOPT_BAD_ARGUMENT);
    assert_int_equal(meopt_step_sets(opt, 2, of, norms, finite, NULL, &err), MEOPT_BAD_ARGUMENT);
    assert_int_equal(meopt_step_begin(opt, 3, 1e-3, 0, &err), 0);
    assert_int_equal(meopt_step_sets(opt, 2, of, norms, finite, wide, &err), MEOPT_BAD_ORDER);
    meopt_destroy(opt);
}

static void shards_make_the_bits_of_the_whole(void **state)
{
    enum { ROWS = 128, COLUMNS = 64, CUT = 48 };
    struct meopt_options o;
    struct meopt_error err;
    struct meopt *whole, *part[2];
    meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
    meopt_options_preset(&o, "balanced", &err);
    o.small_count = 0;
    struct meopt_tensor t = {.name = "w", .ndim = 2, .shape = {ROWS, COLUMNS}}, half[2] = {t, t};
    half[0].shape[0] = CUT;
    half[1].shape[0] = ROWS - CUT;
    half[1].first = CUT * COLUMNS;
    assert_int_equal(meopt_create(&whole, &o, &t, 1, &err), 0);
    for (int k = 0; k < 2; k++) assert_int_equal(meopt_create(&part[k], &o, &half[k], 1, &err), 0);
    for (int step = 1; step < 6; step++) {
        fill(gradient, A, (uint32_t)step, 1);
        struct meopt_gradient g = {gradient, MEOPT_F32}, g1 = {gradient + CUT * COLUMNS, MEOPT_F32};
        meopt_step(whole, step, 1e-2, 1, &g, NULL, &err);
        meopt_step(part[0], step, 1e-2, 1, &g, NULL, &err);
        meopt_step(part[1], step, 1e-2, 1, &g1, NULL, &err);
    }
    static float a[ROWS * COLUMNS], b[ROWS * COLUMNS];
    meopt_export(whole, 0, 0, ROWS * COLUMNS, a, &err);
    meopt_export(part[0], 0, 0, CUT * COLUMNS, b, &err);
    meopt_export(part[1], 0, 0, (ROWS - CUT) * COLUMNS, b + CUT * COLUMNS, &err);
    assert_memory_equal(a, b, sizeof a);
    meopt_destroy(whole);
    for (int k = 0; k < 2; k++) meopt_destroy(part[k]);
}

struct worker {
    struct meopt *opt;
    size_t tensor;
};
static void *worker_step(void *argument)
{
    struct worker *w = argument;
    struct meopt_error err;
    return (void *)(intptr_t)meopt_step_tensor(w->opt, w->tensor, gradient, MEOPT_F32, 1, &err);
}

static void tensors_may_be_stepped_from_several_threads(void **state)
{
    enum { N = 6 };
    struct meopt_options o;
    struct meopt_error err;
    struct meopt *opt[2];
    struct meopt_tensor many[N] = {0};
    char names[N][16];
    double norms[2];
    meopt_options_init(&o, sizeof o, MEOPT_LAMB);
    meopt_options_preset(&o, "balanced", &err);
    o.weight_decay = 0.1;
    o.threads = 1;
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "t%d", i);
        many[i] = (struct meopt_tensor){.name = names[i], .ndim = 2, .shape = {130, 70 - i}};
    }
    for (int k = 0; k < 2; k++) {
        assert_int_equal(meopt_create(&opt[k], &o, many, N, &err), 0);
        for (int step = 1; step < 4; step++) {
            struct meopt_step_stats stats;
            fill(gradient, A, (uint32_t)step, 1);
            assert_int_equal(meopt_step_begin(opt[k], step, 1e-2, 0, &err), 0);
            pthread_t threads[N];
            struct worker workers[N];
            for (size_t i = 0; i < N; i++) {
                workers[i] = (struct worker){opt[k], k ? N - 1 - i : i};
                if (k) assert_int_equal(pthread_create(&threads[i], NULL, worker_step, &workers[i]), 0);
                else assert_null(worker_step(&workers[i]));
            }
            for (int i = 0; k && i < N; i++) {
                void *status;
                pthread_join(threads[i], &status);
                assert_null(status);
            }
            assert_int_equal(meopt_step_end(opt[k], &stats, &err), 0);
            norms[k] = stats.grad_norm;
        }
    }
    struct buffer x = saved(opt[0]), y = saved(opt[1]);
    assert_memory_equal(x.data, y.data, x.bytes);
    assert_true(norms[0] == norms[1]);
    free(x.data);
    free(y.data);
    for (int k = 0; k < 2; k++) meopt_destroy(opt[k]);
}

/* Tensors of several rules in one handle have the bits of handles of one rule; lamb goes with no other. */
static void rules_share_a_handle(void **state)
{
    enum { RULES = 6 };
    static const int rules[RULES] = {MEOPT_APADAMW, MEOPT_LION,   MEOPT_MUON,
                                     MEOPT_APSGD,   MEOPT_APADAM, MEOPT_ADAFACTOR};
    static const char *const names[RULES] = {"a", "b", "c", "d", "e", "f"};
    static float together[A], apart[A];
    struct meopt_error err;
    for (size_t p = 0; p < sizeof presets / sizeof *presets; p++) {
        struct meopt_options o;
        struct meopt_tensor rows[RULES] = {{0}};
        struct meopt_gradient g[RULES];
        struct meopt *all, *one;
        meopt_options_init(&o, sizeof o, MEOPT_MUON);
        meopt_options_preset(&o, presets[p], &err);
        o.weight_decay = 0.1;
        fill(start, A, 3, 1);
        for (int i = 0; i < RULES; i++)
            rows[i] = (struct meopt_tensor){
                .name = names[i], .ndim = 2, .shape = {130, 70}, .flags = MEOPT_OWN_RULE, .rule = rules[i]};
        assert_int_equal(meopt_create(&all, &o, rows, RULES, &err), 0);
        for (size_t i = 0; i < RULES; i++) {
            assert_int_equal(meopt_tensor_rule(all, i), rules[i]);
            assert_int_equal(meopt_import(all, i, 0, A, start, &err), 0);
            g[i] = (struct meopt_gradient){gradient, MEOPT_F32};
        }
        for (int step = 1; step <= 3; step++) {
            fill(gradient, A, (uint32_t)step, 0.1f);
            assert_int_equal(meopt_step(all, step, 1e-3, 1, g, NULL, &err), 0);
        }
        for (size_t i = 0; i < RULES; i++) {
            struct meopt_tensor row = rows[i];
            row.flags = 0;
            o.rule = rules[i];
            o.eps = rules[i] == MEOPT_ADAFACTOR ? 1e-30 : 1e-8;
            assert_int_equal(meopt_create(&one, &o, &row, 1, &err), 0);
            assert_int_equal(meopt_import(one, 0, 0, A, start, &err), 0);
            for (int step = 1; step <= 3; step++) {
                fill(gradient, A, (uint32_t)step, 0.1f);
                assert_int_equal(meopt_step(one, step, 1e-3, 1, g, NULL, &err), 0);
            }
            assert_int_equal(meopt_export(all, i, 0, A, together, &err), 0);
            assert_int_equal(meopt_export(one, 0, 0, A, apart, &err), 0);
            assert_memory_equal(together, apart, sizeof apart);
            meopt_destroy(one);
        }
        meopt_destroy(all);
        o.rule = MEOPT_MUON;
        rows[1].rule = MEOPT_LAMB;
        assert_int_equal(meopt_create(&all, &o, rows, RULES, &err), MEOPT_BAD_ARGUMENT);
        assert_non_null(strstr(err.message, "tensor b"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_share_a_handle),
        cmocka_unit_test(resume_is_bit_identical),
        cmocka_unit_test(state_goes_from_one_format_to_another),
        cmocka_unit_test(records_of_another_version_are_refused),
        cmocka_unit_test(momentum_of_the_largest_gradients_is_saved_and_loaded),
        cmocka_unit_test(damaged_state_is_refused_and_changes_nothing),
        cmocka_unit_test(accumulated_gradients_make_the_step_of_their_sum),
        cmocka_unit_test(sets_share_accumulators_and_change_no_bit),
        cmocka_unit_test(a_step_has_figures_by_sets_of_tensors),
        cmocka_unit_test(shards_make_the_bits_of_the_whole),
        cmocka_unit_test(tensors_may_be_stepped_from_several_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
