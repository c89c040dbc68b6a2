/* A tensor divided between two handles takes a step bit-identical to that of the whole tensor. Random
 * numbers are keyed by elements of the whole tensor (meopt_tensor.first). LAMB's trust ratio, norms and
 * clipping use sums over both handles (meopt_options.reduce). Two threads are the two ranks, and sums are
 * taken in their order. Each part is one chunk of the optimizer's own sums, so that these are the same,
 * too. */
#include "core/base/crc32c.h"
#include "core/optim/state.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum {
    RANKS = 2,
    PART = 32768,
    WHOLE = RANKS * PART,
    STEPS = 6,
    MOST = 294 * 250
}; /* muon gathers a matrix */
/* With MEOPT_PART the tensor's shape is known, and parts may be unequal, and nothing: three ranks. */
enum { PARTS = 3, ROWS = 294, COLUMNS = 250, ODD = ROWS * COLUMNS, MOST_RECORD = 2 << 20 };
static int64_t cut_at[PARTS + 1] = {0, 2 * PART, 2 * PART, ODD};

static float weights[ODD], gradients[STEPS][ODD];

static struct {
    pthread_barrier_t barrier;
    double values[PARTS][MOST];
    int calls, ranks;
    bool fails;
} sum;

struct rank {
    int number;
    const struct meopt_options *options; /* of the whole */
    float out[ODD], second[ODD];         /* second: of a tensor of AdamW in the same handle */
    bool part;                           /* MEOPT_PART */
    char record[MOST_RECORD];
    size_t record_bytes;
    double norm[STEPS], global[STEPS];
    int64_t bad[STEPS];
    int status[STEPS], finite[STEPS];
    char message[252];
};

static int reduce(void *context, double *values, size_t count)
{
    const struct rank *rank = context;
    assert_true(count <= MOST);
    memcpy(sum.values[rank->number], values, count * sizeof *values);
    pthread_barrier_wait(&sum.barrier);
    for (size_t i = 0; i < count; i++) {
        values[i] = sum.values[0][i];
        for (int r = 1; r < sum.ranks; r++) values[i] += sum.values[r][i];
    }
    if (rank->number == 0) sum.calls++;
    pthread_barrier_wait(&sum.barrier);
    return sum.fails ? -1 : 0;
}

static struct meopt_options options_of(int rule, const char *preset)
{
    struct meopt_options o;
    struct meopt_error err;
    assert_int_equal(meopt_options_init(&o, sizeof o, rule), MEOPT_OK);
    assert_int_equal(meopt_options_preset(&o, preset, &err), MEOPT_OK);
    o.weight_decay = 0.02;
    if (rule == MEOPT_APSGD) o.momentum = 0.9;
    if (rule == MEOPT_ADAFACTOR) {
        o.beta1 = strcmp(preset, "balanced") == 0 ? 0.9 : 0;
        o.scale_parameter = 1;
    }
    o.seed = 7;
    o.threads = 1;
    return o;
}

static bool with_second;

/* All steps of `count` elements from `first`, as one handle; rank NULL: alone. */
static void train(const struct meopt_options *options, int64_t first, int64_t count, struct rank *rank,
                  float *out)
{
    struct meopt_options o = *options;
    struct meopt_tensor tensor = {
        .name = "w", .ndim = 2, .shape = {count / 256, 256}, .first = first, .lr_scale = 1};
    if (rank->part)
        tensor = (struct meopt_tensor){.name = "w",
                                       .ndim = 2,
                                       .shape = {ROWS, COLUMNS},
                                       .first = first,
                                       .count = count,
                                       .flags = rank->number < 0 ? 0 : MEOPT_PART,
                                       .lr_scale = 1};
    struct meopt *opt;
    struct meopt_error err = {0};
    if (rank->number >= 0) {
        o.reduce = reduce;
        o.context = rank;
    }
    struct meopt_tensor both[2] = {tensor, tensor};
    both[1].name = "x";
    both[1].rule = MEOPT_APADAMW;
    both[1].flags |= MEOPT_OWN_RULE;
    if (meopt_create(&opt, &o, both, 1 + with_second, &err)) fail_msg("%s", err.message);
    for (size_t i = 0; i < 1 + (size_t)with_second; i++)
        assert_int_equal(meopt_import(opt, i, 0, count, weights + first, &err), MEOPT_OK);
    for (int s = 0; s < STEPS; s++) {
        struct meopt_gradient gradient[2] = {{gradients[s] + first, MEOPT_F32},
                                             {gradients[0] + first, MEOPT_F32}};
        struct meopt_step_stats stats = {0};
        rank->status[s] = meopt_gradient_norm(opt, gradient, &rank->global[s], &rank->finite[s], &err);
        if (!rank->status[s]) rank->status[s] = meopt_step(opt, s + 1, 1e-2, 1, gradient, &stats, &err);
        rank->norm[s] = stats.grad_norm;
        rank->bad[s] = stats.bad_groups;
        memcpy(rank->message, err.message, sizeof rank->message);
    }
    assert_int_equal(meopt_export(opt, 0, 0, count, out, &err), MEOPT_OK);
    if (with_second) assert_int_equal(meopt_export(opt, 1, 0, count, rank->second, &err), MEOPT_OK);
    rank->record_bytes = meopt_state_bytes(opt, 0);
    assert_true(rank->record_bytes <= MOST_RECORD);
    assert_int_equal(meopt_state_save(opt, 0, rank->record, rank->record_bytes, &err), MEOPT_OK);
    meopt_destroy(opt);
}

static void *rank_main(void *context)
{
    struct rank *rank = context;
    int64_t first = rank->part ? cut_at[rank->number] : (int64_t)rank->number * PART;
    int64_t count = rank->part ? cut_at[rank->number + 1] - first : PART;
    train(rank->options, first, count, rank, rank->out);
    return NULL;
}

static void train_ranks(const struct meopt_options *options, struct rank *ranks, int count)
{
    pthread_t threads[PARTS];
    pthread_barrier_init(&sum.barrier, NULL, (unsigned)count);
    sum.calls = 0;
    sum.ranks = count;
    memset(ranks, 0, (size_t)count * sizeof *ranks);
    for (int r = 0; r < count; r++) {
        ranks[r].number = r;
        ranks[r].part = count == PARTS;
        ranks[r].options = options;
        assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &ranks[r]), 0);
    }
    for (int r = 0; r < count; r++) pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&sum.barrier);
}

static struct rank ranks[PARTS], alone;
static float whole[ODD];

static void compare(const char *what, int count)
{
    for (int r = 0; r < count; r++) {
        int64_t first = count == PARTS ? cut_at[r] : (int64_t)r * PART;
        size_t bytes = (size_t)(count == PARTS ? cut_at[r + 1] - first : PART) * sizeof(float);
        if (memcmp(ranks[r].out, whole + first, bytes)) fail_msg("%s: other weights", what);
        for (int s = 0; s < STEPS; s++)
            if (ranks[r].norm[s] != alone.norm[s] || ranks[r].global[s] != alone.global[s] ||
                ranks[r].bad[s] != alone.bad[s] || ranks[r].status[s] != alone.status[s] ||
                ranks[r].finite[s] != alone.finite[s])
                fail_msg(
                    "%s, rank %d, step %d: norm %.17g, bad %lld, status %d; of the whole %.17g, %lld, %d",
                    what, r, s + 1, ranks[r].norm[s], (long long)ranks[r].bad[s], ranks[r].status[s],
                    alone.norm[s], (long long)alone.bad[s], alone.status[s]);
    }
}

static void needs_the_whole_shape(const struct meopt_options *options)
{
    struct meopt_options o = *options;
    struct meopt_tensor tensor = {.name = "w", .ndim = 2, .shape = {128, 256}, .first = PART};
    struct meopt *opt;
    o.reduce = reduce;
    assert_int_equal(meopt_create(&opt, &o, &tensor, 1, NULL), MEOPT_BAD_ARGUMENT);
}

static void two_parts_step_as_the_whole(void **state)
{
    static const char *const presets[] = {"fp32", "quality", "balanced", "minimal"};
    for (int rule = 0; rule < MEOPT_RULE_COUNT; rule++)
        for (size_t p = 0; p < sizeof presets / sizeof *presets; p++) {
            if (rule == MEOPT_MUON) continue; /* its parts are of a known matrix */
            struct meopt_options o = options_of(rule, presets[p]);
            char what[64];
            if (rule == MEOPT_ADAFACTOR) { /* its rows and columns are those of the whole */
                needs_the_whole_shape(&o);
                continue;
            }
            snprintf(what, sizeof what, "%s %s", meopt_rule_name(rule), presets[p]);
            alone = (struct rank){.number = -1};
            train(&o, 0, WHOLE, &alone, whole);
            train_ranks(&o, ranks, RANKS);
            compare(what, RANKS);
            assert_true(sum.calls >= STEPS * (rule == MEOPT_LAMB ? 3 : 2));
        }
}

/* Makes the record of `count` elements from the whole tensor's. */
static int cut_out(const void *from, size_t from_bytes, int64_t first, int64_t count, void *to, size_t *bytes,
                   struct meopt_error *err)
{
    return meopt_state_range(&from, &from_bytes, 1, first, count, to, bytes, err);
}

/* The record of the whole from those of the parts, and back, byte by byte. */
static void check_records(const char *what)
{
    static char joined[MOST_RECORD], cut[MOST_RECORD];
    const void *records[PARTS];
    size_t sizes[PARTS], bytes = 0;
    struct meopt_error err = {0};
    for (int r = 0; r < PARTS; r++) {
        records[r] = ranks[r].record;
        sizes[r] = ranks[r].record_bytes;
    }
    assert_int_equal(meopt_state_join(records, sizes, PARTS, NULL, &bytes, &err), MEOPT_OK);
    assert_int_equal(bytes, alone.record_bytes);
    bytes = sizeof joined;
    if (meopt_state_join(records, sizes, PARTS, joined, &bytes, &err)) fail_msg("%s: %s", what, err.message);
    if (bytes != alone.record_bytes || memcmp(joined, alone.record, bytes))
        fail_msg("%s: other records", what);
    for (int r = 0; r < PARTS; r++) {
        bytes = sizeof cut;
        assert_int_equal(
            cut_out(joined, alone.record_bytes, cut_at[r], cut_at[r + 1] - cut_at[r], cut, &bytes, &err),
            MEOPT_OK);
        assert_int_equal(bytes, sizes[r]);
        assert_memory_equal(cut, records[r], bytes);
    }
}

static void parts_of_a_known_shape_step_as_the_whole(void **state)
{
    static const char *const presets[] = {"fp32", "quality", "balanced", "minimal"};
    for (int rule = 0; rule < MEOPT_RULE_COUNT; rule++)
        for (size_t p = 0; p <= sizeof presets / sizeof *presets; p++) {
            bool four_bits = p == sizeof presets / sizeof *presets;
            struct meopt_options o = options_of(rule, presets[four_bits ? 2 : p]);
            if (four_bits) o.second_moment = MEOPT_STATE_4BIT;
            if (four_bits) o.first_moment = rule == MEOPT_SCHEDULE_FREE ? MEOPT_STATE_BF16 : MEOPT_STATE_4BIT;
            char what[64];
            snprintf(what, sizeof what, "%s %s", meopt_rule_name(rule), four_bits ? "4bit" : presets[p]);
            alone = (struct rank){.number = -1, .part = true};
            train(&o, 0, ODD, &alone, whole);
            train_ranks(&o, ranks, PARTS);
            compare(what, PARTS);
            check_records(what);
        }
}

static void records_that_are_no_parts_are_refused(void **state)
{
    struct meopt_error err = {0};
    struct meopt_options o = options_of(MEOPT_APADAMW, "balanced");
    train_ranks(&o, ranks, PARTS);
    const void *records[PARTS] = {ranks[2].record, ranks[1].record, ranks[0].record};
    size_t sizes[PARTS] = {ranks[2].record_bytes, ranks[1].record_bytes, ranks[0].record_bytes};
    static char to[MOST_RECORD];
    size_t bytes = sizeof to;
    assert_int_equal(meopt_state_join(records, sizes, PARTS, to, &bytes, &err), MEOPT_BAD_STATE);
    bytes = sizeof to;
    assert_int_equal(meopt_state_join(records + 2, sizes + 2, 1, to, &bytes, &err), MEOPT_BAD_STATE);
    assert_non_null(strstr(err.message, "groups"));
    ranks[0].record[200] ^= 1;
    bytes = sizeof to;
    assert_int_equal(meopt_state_join(records + 2, sizes + 2, 1, to, &bytes, &err), MEOPT_BAD_STATE);
    assert_non_null(strstr(err.message, "checksum"));
    bytes = sizeof to;
    assert_int_equal(cut_out(ranks[2].record, ranks[2].record_bytes, 0, 64, to, &bytes, &err),
                     MEOPT_BAD_STATE); /* a part itself */
}

/* Replaces a record's header, and makes its checksum match. */
static void reseal(char *record, size_t bytes, const struct record *head)
{
    memcpy(record, head, sizeof *head);
    uint32_t crc = crc32c(0, record, bytes - 4);
    memcpy(record + bytes - 4, &crc, 4);
}

static struct meopt *part_of(const struct meopt_options *o, int64_t count)
{
    struct meopt_tensor tensor = {
        .name = "w", .ndim = 2, .shape = {ROWS, COLUMNS}, .count = count, .flags = MEOPT_PART, .lr_scale = 1};
    struct meopt *opt;
    struct meopt_error err = {0};
    if (meopt_create(&opt, o, &tensor, 1, &err)) fail_msg("%s", err.message);
    return opt;
}

/* Parts with the same first element and number of groups. */
static void a_record_of_a_different_count_is_refused(void **state)
{
    static const int64_t counts[] = {65, 100, 128};
    enum { COUNTS = sizeof counts / sizeof *counts };
    static char record[MOST_RECORD], rest[MOST_RECORD], to[MOST_RECORD];
    struct meopt_error err = {0};
    struct meopt_options o = options_of(MEOPT_APADAMW, "balanced");
    struct meopt *opt[COUNTS];
    struct record head;
    alone = (struct rank){.number = -1, .part = true};
    train(&o, 0, ODD, &alone, whole);
    for (int i = 0; i < COUNTS; i++) opt[i] = part_of(&o, counts[i]);
    size_t bytes = meopt_state_bytes(opt[0], 0), to_bytes = sizeof to, rest_bytes = sizeof rest;
    for (int i = 0; i < COUNTS; i++) {
        assert_int_equal(meopt_state_save(opt[i], 0, record, bytes, &err), MEOPT_OK);
        for (int k = 0; k < COUNTS; k++)
            assert_int_equal(meopt_state_load(opt[k], 0, record, bytes, &err),
                             k == i ? MEOPT_OK : MEOPT_BAD_STATE);
    }
    /* the part of 100 elements, and the rest from 128 */
    assert_int_equal(cut_out(alone.record, alone.record_bytes, 128, ODD - 128, rest, &rest_bytes, &err),
                     MEOPT_OK);
    for (int i = 1; i < COUNTS; i++) {
        assert_int_equal(meopt_state_save(opt[i], 0, record, bytes, &err), MEOPT_OK);
        memcpy(&head, record, sizeof head);
        struct record tail;
        memcpy(&tail, rest, sizeof tail);
        head.updates = tail.updates;
        reseal(record, bytes, &head);
        to_bytes = sizeof to;
        assert_int_equal(meopt_state_join((const void *[]){record, rest}, (size_t[]){bytes, rest_bytes}, 2,
                                          to, &to_bytes, &err),
                         counts[i] == 128 ? MEOPT_OK : MEOPT_BAD_STATE);
    }
    for (int k = 0; k < COUNTS; k++) meopt_destroy(opt[k]);
}

/* The whole tensor's record has no count of its own. */
static void the_whole_record_is_not_that_of_a_part(void **state)
{
    static char record[MOST_RECORD];
    struct meopt_error err = {0};
    struct meopt_options o = options_of(MEOPT_APADAMW, "balanced");
    struct meopt *all = part_of(&o, ODD), *most = part_of(&o, ODD - 1);
    size_t bytes = meopt_state_bytes(all, 0);
    assert_int_equal(bytes, meopt_state_bytes(most, 0)); /* as many groups */
    assert_int_equal(meopt_state_save(all, 0, record, bytes, &err), MEOPT_OK);
    assert_int_equal(meopt_state_load(most, 0, record, bytes, &err), MEOPT_BAD_STATE);
    assert_int_equal(meopt_state_load(all, 0, record, bytes, &err), MEOPT_OK);
    assert_int_equal(meopt_state_save(most, 0, record, bytes, &err), MEOPT_OK);
    assert_int_equal(meopt_state_load(all, 0, record, bytes, &err), MEOPT_BAD_STATE);
    meopt_destroy(all);
    meopt_destroy(most);
}

/* Shards of rows, as FSDP makes them: exact formats have the bits of the whole, others round other groups. */
static void parts_that_begin_anywhere_step_as_well(void **state)
{
    static const char *const presets[] = {"fp32", "quality", "balanced", "minimal"};
    static float exact[ODD], first[ODD], parts[ODD];
    static char to[MOST_RECORD];
    int64_t groups_at[PARTS + 1];
    memcpy(groups_at, cut_at, sizeof cut_at);
    cut_at[1] = 98 * COLUMNS;
    cut_at[2] = 203 * COLUMNS;
    for (int rule = 0; rule < MEOPT_RULE_COUNT; rule++)
        for (size_t p = 0; p < sizeof presets / sizeof *presets; p++) {
            struct meopt_options o = options_of(rule, presets[p]);
            alone = (struct rank){.number = -1, .part = true};
            train(&o, 0, ODD, &alone, whole);
            if (p == 0) memcpy(exact, whole, sizeof exact);
            for (int again = 0; again < 2; again++) {
                o.threads = 1 + again;
                train_ranks(&o, ranks, PARTS);
                for (int r = 0; r < PARTS; r++)
                    memcpy(parts + cut_at[r], ranks[r].out, (size_t)(cut_at[r + 1] - cut_at[r]) * 4);
                if (again) assert_memory_equal(parts, first, sizeof parts);
                memcpy(first, parts, sizeof parts);
            }
            double off[2] = {0, 0}, most = 0;
            for (int i = 0; i < ODD; i++) {
                off[0] += pow((double)whole[i] - (double)exact[i], 2);
                off[1] += pow((double)parts[i] - (double)exact[i], 2);
                most = fmax(most, fabs((double)parts[i] - (double)whole[i]));
            }
            if (p) assert_true(sqrt(off[1]) <= 1.1 * sqrt(off[0]));
            else if (rule == MEOPT_LAMB || rule == MEOPT_ADAFACTOR)
                assert_true(most < 1e-6); /* the ratio's sums are made otherwise */
            else assert_memory_equal(parts, whole, sizeof parts);
            for (int s = 0; s < STEPS; s++)
                assert_true(fabs(ranks[1].global[s] - alone.global[s]) <= 1e-12 * alone.global[s]);
        }
    struct meopt_options o = options_of(MEOPT_APADAMW, "minimal"); /* has moments in groups */
    alone = (struct rank){.number = -1, .part = true};
    train(&o, 0, ODD, &alone, whole);
    train_ranks(&o, ranks, PARTS);
    struct meopt_error err = {0};
    const void *records[PARTS] = {ranks[0].record, ranks[1].record, ranks[2].record};
    size_t sizes[PARTS] = {ranks[0].record_bytes, ranks[1].record_bytes, ranks[2].record_bytes},
           bytes = sizeof to;
    assert_int_equal(meopt_state_join(records, sizes, PARTS, to, &bytes, &err), MEOPT_BAD_ARGUMENT);
    assert_non_null(strstr(err.message, "24500"));
    bytes = sizeof to;
    assert_int_equal(meopt_state_range(records, sizes, PARTS, 0, 64 * 500, to, &bytes, &err),
                     MEOPT_BAD_ARGUMENT);
    bytes = sizeof to;
    assert_int_equal(cut_out(alone.record, alone.record_bytes, 0, 100, to, &bytes, &err), MEOPT_BAD_ARGUMENT);
    assert_non_null(strstr(err.message, "100"));
    bytes = sizeof to;
    assert_int_equal(cut_out(alone.record, alone.record_bytes, 100, 64, to, &bytes, &err),
                     MEOPT_BAD_ARGUMENT);
    memcpy(cut_at, groups_at, sizeof cut_at);
}

static void a_bad_group_of_one_part_is_known_to_both(void **state)
{
    struct meopt_options o = options_of(MEOPT_LAMB, "fp32");
    float kept = gradients[2][PART + 100];
    gradients[2][PART + 100] = NAN;
    alone = (struct rank){.number = -1};
    train(&o, 0, WHOLE, &alone, whole);
    train_ranks(&o, ranks, RANKS);
    gradients[2][PART + 100] = kept;
    assert_int_equal(alone.bad[2], 1);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(ranks[r].bad[2], 1);
        assert_int_equal(ranks[r].finite[2], 0);
        assert_int_equal(ranks[r].status[2], MEOPT_NOT_FINITE);
    }
}

/* With all_or_nothing the means of adafactor, which every part has, stay the same everywhere, and so does a
 * tensor of another rule in the same handle. */
static void what_one_part_refuses_all_refuse(void **state)
{
    struct meopt_options o = options_of(MEOPT_ADAFACTOR, "fp32");
    float kept = gradients[2][cut_at[2] + 100];
    o.all_or_nothing = 1;
    gradients[2][cut_at[2] + 100] = NAN;
    for (int second = 0; second < 2; second++) {
        with_second = second;
        alone = (struct rank){.number = -1, .part = true};
        train(&o, 0, ODD, &alone, whole);
        train_ranks(&o, ranks, PARTS);
        for (int r = 0; r < PARTS; r++) {
            size_t bytes = (size_t)(cut_at[r + 1] - cut_at[r]) * sizeof(float);
            for (int s = 0; s < STEPS; s++)
                assert_int_equal(ranks[r].status[s], s == 2 ? MEOPT_NOT_FINITE : MEOPT_OK);
            assert_memory_equal(ranks[r].out, whole + cut_at[r], bytes);
            if (second) assert_memory_equal(ranks[r].second, alone.second + cut_at[r], bytes);
        }
        check_records("refused");
    }
    gradients[2][cut_at[2] + 100] = kept;
    with_second = false;
}

/* Matrices of several handles: rows of each on the first, second and third one. */
enum { MATRICES = 5 };
static const struct {
    int64_t columns, rows[PARTS], fused[4];
} matrices[MATRICES] = {{64, {32, 0, 32}, {0}},
                        {128, {16, 16, 16}, {16, 32}},
                        {64, {40, 40, 16}, {0}},
                        {192, {20, 20, 0}, {0}},
                        {64, {64, 64, 64}, {64, 64, 64}}};

struct divided {
    struct rank reduces;
    const struct meopt_options *options;
    bool alone;
    int number;
    float out[MATRICES][64 * 192];
    int64_t matrices[STEPS];
    int status[STEPS];
};

static void *train_matrices(void *context)
{
    struct divided *d = context;
    struct meopt_options o = *d->options;
    struct meopt_tensor tensors[MATRICES] = {0};
    struct meopt_gradient given[MATRICES];
    struct meopt_error err = {0};
    struct meopt *opt;
    char names[MATRICES][8];
    d->reduces.number = d->number;
    if (!d->alone) o.reduce = reduce;
    o.context = &d->reduces;
    o.rank = o.ranks ? d->number : 0;
    for (int i = 0; i < MATRICES; i++) {
        const int64_t *rows = matrices[i].rows, columns = matrices[i].columns;
        snprintf(names[i], sizeof names[i], "w%d", i);
        tensors[i] = (struct meopt_tensor){.name = names[i], .ndim = 2, .lr_scale = 1};
        tensors[i].shape[0] = rows[0] + rows[1] + rows[2];
        tensors[i].shape[1] = columns;
        memcpy(tensors[i].rows, matrices[i].fused, sizeof tensors[i].rows);
        tensors[i].count = tensors[i].shape[0] * columns;
        if (d->alone) continue;
        tensors[i].flags = MEOPT_PART;
        for (int r = 0; r < d->number; r++) tensors[i].first += rows[r] * columns;
        tensors[i].count = rows[d->number] * columns;
    }
    if (meopt_create(&opt, &o, tensors, MATRICES, &err)) fail_msg("%s", err.message);
    for (int i = 0; i < MATRICES; i++)
        assert_int_equal(
            meopt_import(opt, (size_t)i, 0, tensors[i].count, weights + 1000 * i + tensors[i].first, &err),
            MEOPT_OK);
    for (int s = 0; s < STEPS; s++) {
        struct meopt_step_stats stats = {0};
        for (int i = 0; i < MATRICES; i++)
            given[i] = (struct meopt_gradient){gradients[s] + 1000 * i + tensors[i].first, MEOPT_F32};
        d->status[s] = meopt_step(opt, s + 1, 1e-2, 1, given, &stats, &err);
        d->matrices[s] = stats.matrices;
    }
    for (int i = 0; i < MATRICES; i++)
        assert_int_equal(
            meopt_export(opt, (size_t)i, 0, tensors[i].count, d->out[i] + tensors[i].first, &err), MEOPT_OK);
    meopt_destroy(opt);
    return NULL;
}

static struct divided divided[PARTS], undivided;

/* Handles divide the products, and the bits are those of whole matrices; also where one is not finite. */
static void handles_divide_matrices(void **state)
{
    /* of 8; by size: tensors 4 (three), 3, 1 (two), then 2 and 0. Ranks without rows need no result */
    static const int64_t counts[][PARTS] = {{8, 7, 7}, {3 + 1, 1 + 1, 2}};
    float kept = gradients[2][4000 + 70 * 64];
    gradients[2][4000 + 70 * 64] = NAN;
    for (int form = 0; form < 6; form++) {
        struct meopt_options o = options_of(MEOPT_MUON, form < 3 ? "balanced" : "fp32");
        pthread_t threads[PARTS];
        o.ns_dtype = form % 2 ? MEOPT_F32 : MEOPT_BF16;
        o.all_or_nothing = form == 2;
        undivided = (struct divided){.options = &o, .alone = true};
        train_matrices(&undivided);
        o.ranks = form ? PARTS : 0;
        pthread_barrier_init(&sum.barrier, NULL, PARTS);
        sum.ranks = PARTS;
        for (int r = 0; r < PARTS; r++) {
            divided[r] = (struct divided){.options = &o, .number = r};
            assert_int_equal(pthread_create(&threads[r], NULL, train_matrices, &divided[r]), 0);
        }
        for (int r = 0; r < PARTS; r++) pthread_join(threads[r], NULL);
        pthread_barrier_destroy(&sum.barrier);
        for (int r = 0; r < PARTS; r++) {
            for (int s = 0; s < STEPS; s++)
                assert_int_equal(divided[r].status[s], s == 2 ? MEOPT_NOT_FINITE : MEOPT_OK);
            assert_int_equal(divided[r].matrices[0], counts[form > 0][r]);
            for (int i = 0; i < MATRICES; i++) {
                int64_t first = 0, columns = matrices[i].columns;
                for (int q = 0; q < r; q++) first += matrices[i].rows[q] * columns;
                size_t bytes = (size_t)(matrices[i].rows[r] * columns) * sizeof(float);
                assert_memory_equal(divided[r].out[i] + first, undivided.out[i] + first, bytes);
            }
        }
    }
    gradients[2][4000 + 70 * 64] = kept;
}

/* `ranks` needs a sum, and a number below it. */
static void numbers_of_handles_are_checked(void **state)
{
    static const int wrong[][3] = {{0, 2, 0}, {2, 2, 1}, {-1, 2, 1}, {0, -1, 1}, {1, 0, 1}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct meopt_options o = options_of(MEOPT_MUON, "fp32");
        struct meopt *opt;
        o.rank = wrong[i][0];
        o.ranks = wrong[i][1];
        o.reduce = wrong[i][2] ? reduce : NULL;
        assert_int_equal(meopt_create(&opt, &o, NULL, 0, NULL), MEOPT_BAD_ARGUMENT);
    }
}

/* A result and a part of another's are more than the matrices in which a narrow tensor steps. */
static void the_query_has_the_workspace_of_divided_matrices(void **state)
{
    struct meopt_options o = options_of(MEOPT_MUON, "fp32");
    struct meopt_tensor narrow = {
        .name = "w", .ndim = 2, .shape = {8192, 8}, .count = 8000 * 8, .flags = MEOPT_PART, .lr_scale = 1};
    struct meopt_bytes planned[2], held;
    struct meopt_error err = {0};
    struct meopt *opt;
    o.reduce = reduce;
    for (int divides = 0; divides < 2; divides++) {
        o.ranks = 2 * divides;
        assert_int_equal(meopt_query(&o, &narrow, 1, &planned[divides], &err), MEOPT_OK);
        if (meopt_create(&opt, &o, &narrow, 1, &err)) fail_msg("%s", err.message);
        assert_int_equal(meopt_held(opt, &held), MEOPT_OK);
        assert_memory_equal(&planned[divides], &held, sizeof held);
        meopt_destroy(opt);
    }
    assert_true(planned[1].workspace > planned[0].workspace);
}

static void a_sum_that_fails_is_an_error_of_the_call(void **state)
{
    struct meopt_options o = options_of(MEOPT_LAMB, "balanced");
    sum.fails = true;
    train_ranks(&o, ranks, RANKS);
    sum.fails = false;
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(ranks[r].status[0], MEOPT_IO);
        assert_true(ranks[r].message[0]);
        for (int i = 0; i < PART; i += 997) /* no step was taken */
            assert_true(fabsf(ranks[r].out[i] - weights[r * PART + i]) <=
                        fabsf(weights[r * PART + i]) * 0x1p-8f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_parts_step_as_the_whole),
                                       cmocka_unit_test(parts_of_a_known_shape_step_as_the_whole),
                                       cmocka_unit_test(records_that_are_no_parts_are_refused),
                                       cmocka_unit_test(a_record_of_a_different_count_is_refused),
                                       cmocka_unit_test(parts_that_begin_anywhere_step_as_well),
                                       cmocka_unit_test(the_whole_record_is_not_that_of_a_part),
                                       cmocka_unit_test(a_bad_group_of_one_part_is_known_to_both),
                                       cmocka_unit_test(what_one_part_refuses_all_refuse),
                                       cmocka_unit_test(handles_divide_matrices),
                                       cmocka_unit_test(numbers_of_handles_are_checked),
                                       cmocka_unit_test(the_query_has_the_workspace_of_divided_matrices),
                                       cmocka_unit_test(a_sum_that_fails_is_an_error_of_the_call)};
    uint32_t random = 1;
    for (int i = 0; i < ODD; i++) {
        random = random * 1664525u + 1013904223u;
        weights[i] = (float)(int32_t)random * 0x1p-33f;
        for (int s = 0; s < STEPS; s++) {
            random = random * 1664525u + 1013904223u;
            gradients[s][i] = (float)(int32_t)random * 0x1p-31f * (i < PART ? 1 : 3);
        }
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
