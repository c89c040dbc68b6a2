/* libmeopt returns an error value and a message for every kind of misuse. */
#include "core/optim/optim.h"
#include "tests/optim/optim_table.h"
#include "tests/mentions.h"

#include <math.h>
#include <stdbool.h>

#define REFUSED(call)                                                                                        \
    do {                                                                                                     \
        memset(&err, 0, sizeof err);                                                                         \
        assert_int_equal(call, MEOPT_BAD_ARGUMENT);                                                          \
        assert_true(strlen(err.message) > 8);                                                                \
    } while (0)

static int reduce_nothing(void *context, double *values, size_t count)
{
    (void)context, (void)values, (void)count;
    return 0;
}
static int combine_nothing(void *context, void *values, size_t bytes)
{
    (void)context, (void)values, (void)bytes;
    return 0;
}

/* Parts that others hold the rest of, where norms stay on cards: in whole chunks of 32768 elements. */
static void parts_to_combine_are_whole_chunks(void **state)
{
    enum { CHUNK = 32768, ALL = 2 * CHUNK + 640 };
    static const struct {
        int64_t first, count;
        int flags, status;
    } parts[] = {{0, CHUNK, MEOPT_PART, MEOPT_OK},
                 {CHUNK, CHUNK, MEOPT_PART, MEOPT_OK},
                 {CHUNK, CHUNK + 640, MEOPT_PART, MEOPT_OK},
                 {CHUNK, 0, MEOPT_PART, MEOPT_OK},
                 {64, CHUNK, MEOPT_PART, MEOPT_BAD_ARGUMENT},
                 {0, 64, MEOPT_PART, MEOPT_BAD_ARGUMENT},
                 {0, 0, 0, MEOPT_BAD_ARGUMENT}};
    struct meopt_options o;
    struct meopt_error err;
    meopt_options_init(&o, sizeof o, MEOPT_LAMB);
    o.reduce = reduce_nothing;
    o.combine = combine_nothing;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct meopt *opt = NULL;
        struct meopt_tensor t = {.name = "w",
                                 .ndim = 1,
                                 .shape = {ALL},
                                 .first = parts[i].first,
                                 .count = parts[i].count,
                                 .flags = parts[i].flags};
        if (meopt_create(&opt, &o, &t, 1, &err) != parts[i].status) fail_msg("part %zu: %s", i, err.message);
        meopt_destroy(opt);
    }
    o.reduce = NULL;
    struct meopt *opt;
    REFUSED(meopt_create(&opt, &o, table, COUNT, &err));
}

/* A trust ratio of all tensors, or two points of all: such a rule is that of the whole handle. */
static void rules_that_go_with_no_other_are_refused_by_name(void **state)
{
    static const bool alone[MEOPT_RULE_COUNT] = {[MEOPT_LAMB] = true, [MEOPT_SCHEDULE_FREE] = true};
    for (int rule = 0; rule < MEOPT_RULE_COUNT; rule++)
        for (int own = 0; own < MEOPT_RULE_COUNT; own++) {
            struct meopt_options o;
            struct meopt_error err;
            struct meopt *opt = NULL;
            struct meopt_tensor t = {
                .name = "w", .ndim = 2, .shape = {70, 66}, .flags = MEOPT_OWN_RULE, .rule = own};
            bool refused = own != rule && (alone[own] || alone[rule]);
            meopt_options_init(&o, sizeof o, rule);
            assert_int_equal(meopt_create(&opt, &o, &t, 1, &err), refused ? MEOPT_BAD_ARGUMENT : MEOPT_OK);
            if (refused) assert_non_null(strstr(err.message, meopt_rule_name(alone[own] ? own : rule)));
            else assert_int_equal(meopt_tensor_rule(opt, 0), own);
            meopt_destroy(opt);
        }
}

static void bad_options_and_tensors_are_refused_with_a_sentence(void **state)
{
    struct meopt_options o, bad;
    struct meopt_error err;
    struct meopt *opt;
    struct meopt_bytes bytes;
    static float x[A];
    meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
    assert_int_equal(meopt_options_init(NULL, sizeof o, 0), MEOPT_BAD_ARGUMENT);
    assert_int_equal(meopt_options_init(&bad, 3, 0), MEOPT_BAD_ARGUMENT);
    assert_int_equal(meopt_options_init(&bad, sizeof bad, 99), MEOPT_BAD_ARGUMENT);
    REFUSED(meopt_options_preset(&o, "fastest", &err));
    REFUSED(meopt_create(NULL, &o, table, COUNT, &err));
    REFUSED(meopt_create(&opt, NULL, table, COUNT, &err));
    REFUSED(meopt_create(&opt, &o, NULL, COUNT, &err));
    REFUSED(meopt_query(&o, table, COUNT, NULL, &err));
#define BAD_OPTION(field, v)                                                                                 \
    do {                                                                                                     \
        bad = o;                                                                                             \
        bad.field = v;                                                                                       \
        REFUSED(meopt_create(&opt, &bad, table, COUNT, &err));                                               \
        assert_null(opt);                                                                                    \
        REFUSED(meopt_query(&bad, table, COUNT, &bytes, &err));                                              \
    } while (0)
    BAD_OPTION(size, 0);
    BAD_OPTION(tensor_size, 4);
    BAD_OPTION(rule, MEOPT_RULE_COUNT);
    BAD_OPTION(weights, -1);
    BAD_OPTION(first_moment, 9);
    BAD_OPTION(beta1, 1);
    BAD_OPTION(beta2, NAN);
    BAD_OPTION(eps, -1);
    BAD_OPTION(weight_decay, INFINITY);
    BAD_OPTION(threads, -1);
    BAD_OPTION(accumulator, 7);
    BAD_OPTION(reserved[4], 1);
    BAD_OPTION(clip_threshold, 0);
    BAD_OPTION(decay_rate, 0.1);
    BAD_OPTION(eps2, -1);
    BAD_OPTION(relative_step, 2);
    bad = o;
    bad.second_moment = MEOPT_STATE_8BIT;
    bad.beta2 = 0.5;
    REFUSED(meopt_create(&opt, &bad, table, COUNT, &err));
#define BAD_TENSOR(field, v)                                                                                 \
    do {                                                                                                     \
        struct meopt_tensor t = table[0];                                                                    \
        t.field = v;                                                                                         \
        REFUSED(meopt_create(&opt, &o, &t, 1, &err));                                                        \
    } while (0)
    BAD_TENSOR(name, NULL);
    BAD_TENSOR(name, "");
    BAD_TENSOR(ndim, 9);
    BAD_TENSOR(ndim, -1);
    BAD_TENSOR(shape[0], -1);
    BAD_TENSOR(shape[0], INT64_MAX);
    BAD_TENSOR(first, -1);
    BAD_TENSOR(flags, 256);
    BAD_TENSOR(flags, 1u << 31);
    BAD_TENSOR(lr_scale, -1);
    BAD_TENSOR(weights, (char *)x + 1);
    struct meopt_tensor twins[2] = {table[0], table[0]};
    REFUSED(meopt_create(&opt, &o, twins, 2, &err));
}

static void bad_calls_are_refused_with_a_sentence(void **state)
{
    struct meopt_options o;
    struct meopt_error err;
    struct meopt *opt, *none = NULL;
    static float x[A + 1];
    meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
    assert_int_equal(meopt_create(&opt, &o, table, COUNT, &err), 0);
    REFUSED(meopt_import(opt, 2, 0, 64, x, &err));
    REFUSED(meopt_import(opt, 0, 1, 64, x, &err));
    REFUSED(meopt_import(opt, 0, 0, 65, x, &err));
    REFUSED(meopt_import(opt, 0, 0, A + 64, x, &err));
    REFUSED(meopt_import(opt, 0, -64, 64, x, &err));
    REFUSED(meopt_export(opt, 0, 0, A, NULL, &err));
    REFUSED(meopt_export(none, 0, 0, A, x, &err));
    x[5] = NAN;
    assert_int_equal(meopt_import(opt, 0, 0, A, x, &err), MEOPT_NOT_FINITE);
    REFUSED(meopt_step_begin(none, 1, 1, 0, &err));
    REFUSED(meopt_step_begin(opt, 0, 1, 0, &err));
    REFUSED(meopt_step_begin(opt, 1, NAN, 0, &err));
    REFUSED(meopt_step_begin(opt, 1, 1e-3, 3, &err));
    assert_int_equal(meopt_step_tensor(opt, 0, gradient, MEOPT_F32, 1, &err), MEOPT_BAD_ORDER);
    assert_int_equal(meopt_step_end(opt, NULL, &err), MEOPT_BAD_ORDER);
    assert_int_equal(meopt_step_begin(opt, 1, 1e-3, 0, &err), 0);
    assert_int_equal(meopt_step_begin(opt, 2, 1e-3, 0, &err), MEOPT_BAD_ORDER);
    assert_int_equal(meopt_import(opt, 1, 0, 64, x, &err), MEOPT_BAD_ORDER);
    REFUSED(meopt_step_tensor(opt, 5, gradient, MEOPT_F32, 1, &err));
    REFUSED(meopt_step_tensor(opt, 0, NULL, MEOPT_F32, 1, &err));
    REFUSED(meopt_step_tensor(opt, 0, (char *)gradient + 2, MEOPT_F32, 1, &err));
    REFUSED(meopt_step_tensor(opt, 0, gradient, 3, 1, &err));
    REFUSED(meopt_step_tensor(opt, 0, gradient, MEOPT_F32, NAN, &err));
    struct meopt_gradient two[] = {{gradient, MEOPT_F32}, {gradient, 3}};
    REFUSED(meopt_step_tensors(opt, NULL, two, 2, 1, &err));
    REFUSED(meopt_step_tensors(opt, (size_t[]){0, 9}, two, 2, 1, &err));
    /* the second one's dtype: the first has not stepped */
    REFUSED(meopt_step_tensors(opt, (size_t[]){0, 1}, two, 2, 1, &err));
    two[1] = two[0];
    assert_int_equal(meopt_step_tensors(opt, (size_t[]){0, 0}, two, 2, 1, &err), MEOPT_BAD_ORDER);
    assert_int_equal(meopt_step_tensors(opt, NULL, NULL, 0, 1, &err), 0);
    assert_int_equal(meopt_step_tensor(opt, 0, gradient, MEOPT_F32, 1, &err), 0);
    assert_int_equal(meopt_step_tensor(opt, 0, gradient, MEOPT_F32, 1, &err), MEOPT_BAD_ORDER);
    assert_int_equal(meopt_accumulate(opt, 0, gradient, MEOPT_F32, 1, &err), MEOPT_BAD_ORDER);
    assert_int_equal(meopt_accumulate_tensors(opt, (size_t[]){0, 1}, two, 2, 1, &err), MEOPT_BAD_ORDER);
    REFUSED(meopt_accumulate_tensors(opt, NULL, two, 2, 1, &err));
    REFUSED(meopt_accumulate_tensors(opt, (size_t[]){0, 9}, two, 2, 1, &err));
    assert_int_equal(meopt_accumulate_tensors(opt, NULL, NULL, 0, 1, &err), 0);
    assert_int_equal(meopt_step_end(opt, NULL, &err), 0);
    REFUSED(meopt_step(opt, 2, 1e-3, 1, NULL, NULL, &err));
    REFUSED(meopt_save(opt, NULL, NULL, &err));
    REFUSED(meopt_state_save(opt, 0, x, 10, &err));
    REFUSED(meopt_state_write(opt, 0, NULL, x, &err));
    assert_int_equal(meopt_state_load(opt, 0, x, 10, NULL), MEOPT_BAD_STATE);
    assert_int_equal(meopt_state_bytes(none, 0), 0);
    assert_int_equal(meopt_find(opt, "nothing"), -1);
    assert_null(meopt_rule_name(17));
    assert_int_equal(meopt_state_format_from_name("9bit"), -1);
    meopt_destroy(opt);
    meopt_destroy(NULL);
}

/* How many weights of tensor 0 are no longer what they were at the start. */
static int moved_of_first(struct meopt *opt)
{
    struct meopt_error err;
    static float now[A];
    int moved = 0;
    assert_int_equal(meopt_export(opt, 0, 0, A, now, &err), 0);
    for (int i = 0; i < A; i++) moved += now[i] < start[i] || now[i] > start[i];
    return moved;
}

/* check = 2: a bad gradient keeps all of its tensor from moving, but only until another has moved. */
static void what_is_bad_moves_nothing_until_something_moved(void **state)
{
    struct meopt_error err;
    for (int after = 0; after < 2; after++) {
        struct meopt *opt = make(MEOPT_APADAMW, "fp32", 1);
        fill(gradient, A, 3, 0.1f);
        assert_int_equal(meopt_step_begin(opt, 1, 1e-2, 2, &err), 0);
        if (after) assert_int_equal(meopt_step_tensor(opt, 1, gradient, MEOPT_F32, 1, &err), 0);
        gradient[70] = NAN;
        assert_int_equal(meopt_step_tensor(opt, 0, gradient, MEOPT_F32, 1, &err), MEOPT_NOT_FINITE);
        int moved = moved_of_first(opt);
        assert_true(after ? moved > A - 2 * 64 && moved <= A - 64 : moved == 0);
        meopt_destroy(opt);
    }
}

static int number(struct meopt *opt, int64_t step, struct meopt_error *err)
{
    struct meopt_gradient g[COUNT] = {{gradient, MEOPT_F32}, {gradient, MEOPT_F32}};
    return meopt_step(opt, step, 1e-3, 1, g, NULL, err);
}

/* A number keys the random bits of a step: it rises, but for steps that failed and states that come back. */
static void numbers_of_steps_rise(void **state)
{
    struct meopt_error err;
    static char record[A * 9];
    for (size_t p = 0; p < sizeof presets / sizeof *presets; p++) {
        struct meopt *opt = make(MEOPT_APADAMW, presets[p], 1);
        size_t bytes = meopt_state_bytes(opt, 0);
        fill(gradient, A, 3, 0.1f);
        assert_int_equal(number(opt, 1, &err), 0);
        REFUSED(number(opt, 1, &err));
        assert_true(mentions(err.message, "layer.weight|step| 1"));
        assert_int_equal(number(opt, 7, &err), 0); /* numbers may be left out */
        REFUSED(number(opt, 6, &err));
        gradient[3] = NAN;
        assert_int_equal(number(opt, 8, &err), MEOPT_NOT_FINITE);
        gradient[3] = 0;
        assert_int_equal(meopt_step_begin(opt, 8, 1e-3, 0, &err), 0);
        assert_int_equal(meopt_step_tensor(opt, 0, gradient, MEOPT_F32, 1, &err), 0);
        assert_int_equal(meopt_step_end(opt, NULL, &err), 0);
        assert_int_equal(meopt_step_begin(opt, 8, 1e-3, 0, &err), 0); /* the other tensor's turn */
        REFUSED(meopt_step_tensor(opt, 0, gradient, MEOPT_F32, 1, &err));
        assert_int_equal(meopt_step_end(opt, NULL, &err), 0);
        assert_true(bytes <= sizeof record);
        assert_int_equal(meopt_state_save(opt, 0, record, bytes, &err), 0);
        assert_int_equal(meopt_state_load(opt, 0, record, bytes, &err), 0);
        assert_int_equal(meopt_import(opt, 1, 0, B, start, &err), 0);
        assert_int_equal(number(opt, 2, &err), 0); /* from an earlier checkpoint */
        meopt_destroy(opt);
    }
}

static void what_would_become_infinite_is_refused(void **state)
{
    struct meopt_error err;
    static float v[A];
    for (size_t p = 0; p < sizeof presets / sizeof *presets; p++) {
        bool exact = strcmp(presets[p], "fp32") == 0, moments = exact || strcmp(presets[p], "amp") == 0;
        struct meopt *opt = make(MEOPT_APADAMW, presets[p], 1);
        start[5] = -3.4e38f;
        assert_int_equal(meopt_import(opt, 0, 0, A, start, &err), exact ? MEOPT_OK : MEOPT_NOT_FINITE);
        start[5] = 3.3895e38f;
        assert_int_equal(meopt_import(opt, 0, 0, A, start, &err), MEOPT_OK);
        void *weights;
        enum meopt_dtype dtype;
        assert_int_equal(meopt_weights(opt, 0, &weights, &dtype), 0);
        assert_true(dtype == MEOPT_F32 || ((uint16_t *)weights)[5] == 0x7f7f);
        memset(v, 0, sizeof v);
        v[9] = 3.4e38f;
        assert_int_equal(meopt_moments_import(opt, 0, 0, A, gradient, v, 1, &err),
                         moments ? MEOPT_OK : MEOPT_NOT_FINITE);
        v[9] = 0x1p126f;
        assert_int_equal(meopt_moments_import(opt, 0, 0, A, gradient, v, 1, &err), MEOPT_OK);
        assert_int_equal(meopt_moments_export(opt, 0, 0, A, gradient, v, &err), MEOPT_OK);
        assert_true(isfinite(v[9]));
        meopt_destroy(opt);
    }
}

/* As meopt-optimizers(7) has it: one gradient of 2^63, or several of 2^62 in a group, count as infinite. */
static void where_gradients_count_as_infinite(void **state)
{
    struct meopt_error err;
    static const struct {
        float one, all;
        int status;
    } cases[] = {{9.1e18f, 0, MEOPT_OK},
                 {-0x1p63f, 0, MEOPT_NOT_FINITE},
                 {4.6e18f, 4.6e18f, MEOPT_OK},
                 {0x1p62f, 0x1p62f, MEOPT_NOT_FINITE},
                 {9.1e18f, 9.1e18f, MEOPT_NOT_FINITE}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct meopt *opt = make(MEOPT_APADAMW, "balanced", 1);
        for (int k = 0; k < A; k++) gradient[k] = k < 64 ? cases[i].all : 0;
        gradient[9] = cases[i].one;
        if (number(opt, 1, &err) != cases[i].status) fail_msg("case %zu", i);
        meopt_destroy(opt);
    }
}

static void memory_belongs_to_one_tensor(void **state)
{
    struct meopt_options o;
    struct meopt_error err;
    struct meopt *opt;
    static float memory[3 * A];
    meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
    struct meopt_tensor rows[] = {table[0], table[0], table[1]};
    rows[1].name = "second";
    static const struct {
        int64_t second, third; /* where they begin; the first at 0 */
        unsigned flags;
        int status;
    } cases[] = {{A, 2 * A, 0, MEOPT_OK},
                 {0, 2 * A, 0, MEOPT_BAD_ARGUMENT},
                 {A - 1, 2 * A, 0, MEOPT_BAD_ARGUMENT},
                 {A, A - 1, 0, MEOPT_BAD_ARGUMENT},
                 {2 * A, A, 0, MEOPT_OK},
                 {0, A, MEOPT_SHARED_MEMORY, MEOPT_OK}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rows[0].weights = memory;
        rows[1].weights = memory + cases[i].second;
        rows[2].weights = memory + cases[i].third;
        rows[0].flags = rows[1].flags = cases[i].flags;
        if (meopt_create(&opt, &o, rows, 3, &err) != cases[i].status)
            fail_msg("case %zu: %s", i, err.message);
        meopt_destroy(opt);
    }
}

/* A count above the number of groups is the card's mistake, not a gradient that is not finite. */
static void a_count_beyond_the_groups_is_a_failure_of_the_device(void **state)
{
    static const int64_t counts[][2] = {{INT64_MAX, 0}, {-1, 0}, {OPTIM_CHUNK + 1, 0}, {0, INT64_MAX}};
    struct meopt_options o;
    struct meopt_error err;
    struct meopt *opt;
    fill(gradient, A, 1, 1);
    meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
    assert_int_equal(meopt_create(&opt, &o, table, 1, &err), MEOPT_OK);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        assert_int_equal(meopt_step_begin(opt, (int64_t)i + 1, 1e-3, 0, &err), MEOPT_OK);
        assert_int_equal(meopt_step_tensor(opt, 0, gradient, MEOPT_F32, 1, &err), MEOPT_OK);
        opt->partials[0].bad_groups = counts[i][0];
        opt->partials[0].wide_groups = counts[i][1];
        assert_int_equal(meopt_step_end(opt, NULL, &err), MEOPT_DEVICE_FAILED);
        assert_true(mentions(err.message, table[0].name));
    }
    meopt_destroy(opt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_that_go_with_no_other_are_refused_by_name),
        cmocka_unit_test(bad_options_and_tensors_are_refused_with_a_sentence),
        cmocka_unit_test(parts_to_combine_are_whole_chunks),
        cmocka_unit_test(bad_calls_are_refused_with_a_sentence),
        cmocka_unit_test(what_is_bad_moves_nothing_until_something_moved),
        cmocka_unit_test(numbers_of_steps_rise),
        cmocka_unit_test(what_would_become_infinite_is_refused),
        cmocka_unit_test(memory_belongs_to_one_tensor),
        cmocka_unit_test(where_gradients_count_as_infinite),
        cmocka_unit_test(a_count_beyond_the_groups_is_a_failure_of_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
