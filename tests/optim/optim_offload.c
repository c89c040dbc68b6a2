/* States in a file: every rule and preset is bit-identical to the resident one, with any fraction of the
 * states in the file, any ring size, and any way to move the file. A file that is full or fails is reported,
 * and no later tensor is stepped. */
#include "core/device/device.h"
#include "core/meopt.h"
#include "tests/optim/optim_numbers.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

enum { TENSORS = 7, STEPS = 5, ELEMENTS = (1 << 19) + 1024 };
/* Several pieces, one piece, an unaligned tail, one that stays for its size, norms. */
static struct {
    const char *name;
    int64_t rows, columns;
} shapes[TENSORS] = {{"qkv", 320, 1024}, {"proj", 250, 294}, {"fc1", 512, 1024}, {"norm", 1, 768},
                     {"fc2", 129, 127},  {"tiny", 8, 8},     {"head", 300, 1000}};

static struct device *card;  /* $MEOPT_TEST_DEVICE, or this machine */
static void *on_card[STEPS]; /* gradients there */
static float weights[ELEMENTS], gradients[STEPS][ELEMENTS];
static char directory[] = "/tmp/meopt-offload-XXXXXX";

struct saved {
    uint8_t *data;
    size_t bytes, capacity;
};
static int save(void *context, const void *data, size_t bytes)
{
    struct saved *s = context;
    if (s->bytes + bytes > s->capacity) s->data = realloc(s->data, s->capacity = (s->bytes + bytes) * 2);
    memcpy(s->data + s->bytes, data, bytes);
    s->bytes += bytes;
    return 0;
}

static struct meopt_options options_of(int rule, const char *preset)
{
    struct meopt_options o;
    struct meopt_error err;
    assert_int_equal(meopt_options_init(&o, sizeof o, rule), MEOPT_OK);
    assert_int_equal(meopt_options_preset(&o, preset, &err), MEOPT_OK);
    o.weight_decay = 0.02;
    o.beta1 = 0.9;
    o.seed = 7;
    o.threads = 2;
    return o;
}

static struct meopt_options offloaded(struct meopt_options o, double fraction, size_t ring)
{
    o.device = (struct meopt_device *)card;
    o.offload = card && ring % 2 ? MEOPT_OFFLOAD_HOST : MEOPT_OFFLOAD_FILE;
    o.offload_dir = directory;
    o.offload_fraction = fraction;
    o.offload_ring_bytes = ring;
    return o;
}

static struct meopt *create(const struct meopt_options *o, int count)
{
    struct meopt_tensor table[TENSORS] = {{0}};
    struct meopt *opt;
    struct meopt_error err = {0};
    for (int i = 0; i < count; i++) {
        table[i].name = shapes[i].name;
        table[i].ndim = 2;
        table[i].shape[0] = shapes[i].rows;
        table[i].shape[1] = shapes[i].columns;
    }
    if (meopt_create(&opt, o, table, (size_t)count, &err)) fail_msg("%s", err.message);
    for (int i = 0; i < count; i++)
        assert_int_equal(
            meopt_import(opt, (size_t)i, 0, shapes[i].rows * shapes[i].columns, weights + i * 100, &err), 0);
    return opt;
}

enum way { TOGETHER, RELEASED, ACCUMULATED, SOME_LEFT_OUT, WAYS };

/* Blocks of two tensors, last first, as gradient release has them. */
static void step(struct meopt *opt, bool there, int64_t number, enum way way)
{
    struct meopt_error err = {0};
    struct meopt_gradient g[TENSORS];
    for (int i = 0; i < TENSORS; i++)
        g[i] = (struct meopt_gradient){
            (there ? (float *)on_card[number - 1] : gradients[number - 1]) + i * 64, MEOPT_F32};
    if (way == SOME_LEFT_OUT) g[number % TENSORS].data = g[2].data = NULL;
    if (way == TOGETHER || way == SOME_LEFT_OUT) {
        if (meopt_step(opt, number, 1e-2, 0.5, g, NULL, &err)) fail_msg("%s", err.message);
        return;
    }
    if (way == ACCUMULATED)
        for (size_t i = 0; i < TENSORS; i++)
            assert_int_equal(meopt_accumulate(opt, i, g[i].data, MEOPT_F32, 1, &err), 0);
    assert_int_equal(meopt_step_begin(opt, number, 1e-2, 1, &err), 0);
    for (size_t last = TENSORS; last > 0; last -= last > 1 ? 2 : 1) {
        size_t first = last > 1 ? last - 2 : 0, tensors[2] = {first, last - 1};
        struct meopt_gradient given[2] = {g[first], g[last - 1]};
        if (way == ACCUMULATED) given[0].data = given[1].data = NULL;
        if (meopt_step_tensors(opt, tensors, given, last - first, 0.5, &err)) fail_msg("%s", err.message);
    }
    assert_int_equal(meopt_step_end(opt, NULL, &err), 0);
}

/* All steps, with a save and a load into another handle in the middle of them. */
static struct saved train(const struct meopt_options *o, enum way way, bool stops)
{
    struct meopt *opt = create(o, TENSORS);
    struct saved all = {0};
    struct meopt_error err = {0};
    for (int64_t s = 1; s <= STEPS; s++) {
        step(opt, o->device != NULL, s, way);
        if (!stops || s != 3) continue;
        assert_int_equal(meopt_save(opt, save, &all, &err), 0);
        meopt_destroy(opt);
        opt = create(o, TENSORS);
        assert_int_equal(meopt_load(opt, all.data, all.bytes, &err), 0);
        all.bytes = 0;
    }
    assert_int_equal(meopt_save(opt, save, &all, &err), 0);
    meopt_destroy(opt);
    return all;
}

static void assert_same(struct saved *a, const struct saved *resident, const char *what)
{
    if (a->bytes != resident->bytes || memcmp(a->data, resident->data, a->bytes) != 0)
        fail_msg("%s: other bits than resident", what);
    free(a->data);
}

static void every_rule_and_preset_has_the_resident_bits(void **state)
{
    static const char *const presets[] = {"quality", "balanced", "minimal", "fp32", "amp", "pure_bf16"};
    for (int rule = 0; rule < MEOPT_RULE_COUNT; rule++)
        for (size_t p = 0; p < sizeof presets / sizeof *presets; p++) {
            char what[100];
            if (card && ((size_t)rule + p) % 3) continue; /* emulated kernels take time */
            struct meopt_options o = options_of(rule, presets[p]), f = offloaded(o, 1, card && p % 2 ? 1 : 2);
            if (rule != MEOPT_SCHEDULE_FREE) o.average_decay = f.average_decay = 0.9;
            if (rule == MEOPT_MUON) {
                o.device = f.device; /* whose products have other bits */
                o.ns_steps = f.ns_steps = 1;
            }
            enum way way = (enum way)((size_t)rule + p) % WAYS;
            if (way == ACCUMULATED) o.accumulator = f.accumulator = MEOPT_STATE_8BIT;
            struct saved resident = train(&o, way, false), other = train(&f, way, true);
            snprintf(what, sizeof what, "%s %s way %d", meopt_rule_name(rule), presets[p], way);
            assert_same(&other, &resident, what);
            free(resident.data);
        }
}

static void any_fraction_ring_and_engine_has_the_resident_bits(void **state)
{
    static const int rules[] = {MEOPT_APADAMW, MEOPT_LAMB, MEOPT_ADAFACTOR};
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
        int rule = rules[r];
        struct meopt_options o = options_of(rule, "balanced");
        struct saved resident = train(&o, RELEASED, false);
        for (int c = 0; c < 8; c++) {
            static const double fractions[] = {0, 0.3, 0.7, 1};
            static const size_t rings[] = {1, 3 << 20};
            char what[100];
            struct meopt_options f = offloaded(o, fractions[c % 4], rings[c / 4]);
            snprintf(what, sizeof what, "%s fraction %g ring %zu", meopt_rule_name(rule), f.offload_fraction,
                     f.offload_ring_bytes);
            struct saved other = train(&f, RELEASED, true);
            assert_same(&other, &resident, what);
        }
        free(resident.data);
    }
}

struct parts {
    struct saved all;
    size_t largest;
};
static int save_part(void *context, const void *data, size_t bytes)
{
    struct parts *p = context;
    if (bytes > p->largest) p->largest = bytes;
    return save(&p->all, data, bytes);
}

static int refuse_part(void *context, const void *data, size_t bytes)
{
    (void)data, (void)bytes;
    return --*(int *)context == 0;
}

/* meopt_state_write passes the record of meopt_state_save in parts that are smaller than a large state. */
static void records_are_written_in_parts(void **state)
{
    static const char *const presets[] = {"fp32", "balanced", "minimal"};
    for (size_t p = 0; p < sizeof presets / sizeof *presets; p++) {
        struct meopt_options o = offloaded(options_of(MEOPT_APADAMW, presets[p]), 1, 0);
        o.average_decay = 0.9;
        struct meopt *opt = create(&o, TENSORS);
        struct meopt_error err = {0};
        step(opt, o.device != NULL, 1, TOGETHER);
        for (size_t i = 0; i < TENSORS; i++) {
            struct parts parts = {0};
            size_t bytes = meopt_state_bytes(opt, i);
            void *record = malloc(bytes);
            assert_int_equal(meopt_state_write(opt, i, save_part, &parts, &err), 0);
            assert_int_equal(meopt_state_save(opt, i, record, bytes, &err), 0);
            assert_int_equal(parts.all.bytes, bytes);
            assert_memory_equal(parts.all.data, record, bytes);
            assert_true(parts.largest <= 1 << 20);
            for (int calls = 1; calls <= 3; calls++) {
                int left = calls;
                assert_int_equal(meopt_state_write(opt, i, refuse_part, &left, &err), MEOPT_IO);
                assert_int_equal(left, 0);
            }
            free(record);
            free(parts.all.data);
        }
        meopt_destroy(opt);
    }
}

/* #1070 of another system: of a file of that size the last 512,448 bytes were lost. */
static void a_state_of_28824000_bytes_keeps_its_tail(void **state)
{
    enum { COUNT = 28824000 / 8 };
    struct meopt_options resident = options_of(MEOPT_APADAMW, "fp32"), file = offloaded(resident, 1, 0);
    struct meopt_tensor table = {.name = "w", .ndim = 2, .shape = {COUNT / 1000, 1000}};
    struct saved saved[2] = {{0}};
    float *values = calloc(COUNT, sizeof *values);
    for (int i = 0; i < COUNT; i++) values[i] = (float)uniform() - 0.5f;
    for (int f = 0; f < 2; f++) {
        struct meopt *opt;
        struct meopt_error err = {0};
        struct meopt_offload_info info = {.size = sizeof info};
        if (meopt_create(&opt, f ? &file : &resident, &table, 1, &err)) fail_msg("%s", err.message);
        for (int s = 1; s <= 2; s++) {
            struct meopt_gradient g = {values, MEOPT_F32};
            if (meopt_step(opt, s, 1e-2, 1, &g, NULL, &err)) fail_msg("%s", err.message);
        }
        assert_int_equal(meopt_offloaded(opt, &info, &err), 0);
        assert_in_range(info.moments, f ? 28824000 : 0, f ? 28824000 + 512 : 0); /* whole groups */
        assert_int_equal(meopt_save(opt, save, &saved[f], &err), 0);
        meopt_destroy(opt);
    }
    assert_same(&saved[1], &saved[0], "28,824,000 bytes in a file");
    free(saved[0].data);
    free(values);
}

static void moments_go_in_and_out_and_weights_are_synced(void **state)
{
    struct meopt_options o = options_of(MEOPT_APADAMW, "quality"), f = offloaded(o, 1, 1);
    struct saved saved[2] = {{0}};
    static float m[ELEMENTS], v[ELEMENTS];
    for (int c = 0; c < 2; c++) {
        struct meopt *opt = create(c ? &f : &o, TENSORS);
        struct meopt_error err = {0};
        for (int64_t s = 1; s <= 3; s++) step(opt, false, s, RELEASED);
        int64_t count = shapes[0].rows * shapes[0].columns;
        assert_int_equal(meopt_moments_export(opt, 0, 0, count, m, v, &err), 0);
        for (int i = 0; i < 6400; i++) m[i] /= 2;
        assert_int_equal(meopt_moments_import(opt, 0, 64000, 6400, m, v, -1, &err), 0);
        assert_int_equal(meopt_sync(opt, 2, &err), 0);
        for (int64_t s = 4; s <= STEPS; s++) step(opt, false, s, RELEASED);
        assert_int_equal(meopt_save(opt, save, &saved[c], &err), 0);
        meopt_destroy(opt);
    }
    assert_same(&saved[1], &saved[0], "moments and sync");
    free(saved[0].data);
}

/* With check nothing of a call moves when one of its gradients is bad, wherever the states are. */
static void a_bad_gradient_moves_nothing(void **state)
{
    struct meopt_options o = options_of(MEOPT_APADAMW, "balanced"), f = offloaded(o, 0.5, 1);
    o.all_or_nothing = f.all_or_nothing = 1;
    struct saved saved[2] = {{0}};
    for (int c = 0; c < 2; c++) {
        struct meopt *opt = create(c ? &f : &o, TENSORS);
        struct meopt_error err = {0};
        struct meopt_gradient g[TENSORS];
        step(opt, false, 1, TOGETHER);
        float *bad = malloc(sizeof gradients[0]);
        memcpy(bad, gradients[0], sizeof gradients[0]);
        bad[shapes[6].rows * shapes[6].columns - 1] = NAN;
        for (int i = 0; i < TENSORS; i++)
            g[i] = (struct meopt_gradient){i == 6 ? bad : gradients[0], MEOPT_F32};
        assert_int_equal(meopt_step(opt, 2, 1e-2, 1, g, NULL, &err), MEOPT_NOT_FINITE);
        step(opt, false, 3, TOGETHER);
        assert_int_equal(meopt_save(opt, save, &saved[c], &err), 0);
        meopt_destroy(opt);
        free(bad);
    }
    assert_same(&saved[1], &saved[0], "a bad gradient");
    free(saved[0].data);
}

static void memory_holds_the_ring_and_not_the_states(void **state)
{
    struct meopt_options o = offloaded(options_of(MEOPT_APADAMW, "balanced"), 1, 1);
    struct meopt_error err = {0};
    struct meopt_offload_info info = {.size = sizeof info};
    struct meopt *opt = create(&o, TENSORS);
    for (int64_t s = 1; s <= 3; s++) step(opt, false, s, RELEASED);
    assert_int_equal(meopt_offloaded(opt, &info, &err), 0);
    int64_t large = 0; /* elements of the tensors that go */
    for (int i = 0; i < TENSORS; i++)
        large +=
            shapes[i].rows * shapes[i].columns >= 8192 && i != 3 ? shapes[i].rows * shapes[i].columns : 0;
    assert_in_range(info.moments, 2 * large, 2 * large + large / 8);
    assert_in_range(info.corrections, large / 2, large / 2 + 1000);
    assert_in_range(info.ring, 1, 5 << 20);
    assert_true(info.written > 3 * (info.moments + info.corrections));
    assert_true(info.read >= 2 * (info.moments + info.corrections) - 8 * (1 << 20));
    assert_non_null(info.how);
    meopt_destroy(opt);
    assert_int_equal(rmdir(directory), 0); /* nothing is left in it */
    assert_int_equal(mkdir(directory, 0700), 0);
}

static void what_cannot_be_is_refused(void **state)
{
    struct meopt_tensor table = {.name = "w", .ndim = 2, .shape = {1024, 1024}};
    struct meopt_error err = {0};
    struct meopt *opt;
    struct meopt_options o = offloaded(options_of(MEOPT_APADAMW, "balanced"), 1, 0);
    struct meopt_options wrong[] = {o, o, o};
    wrong[0].offload_dir = NULL;
    wrong[1].offload_fraction = 1.5;
    wrong[2].offload = 7;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(meopt_create(&opt, &wrong[i], &table, 1, &err), MEOPT_BAD_ARGUMENT);
    o.offload_dir = "/dev/null/no";
    assert_int_equal(meopt_create(&opt, &o, &table, 1, &err), MEOPT_IO);
    assert_non_null(strstr(err.message, "/dev/null/no"));
}

static void a_card_s_memory_holds_the_ring_and_the_host_the_states(void **state)
{
    size_t before = card->use.current_bytes[MEMORY_OPTIMIZER] + card->use.current_bytes[MEMORY_WEIGHTS];
    for (size_t ring = 1; ring <= 2; ring++) { /* in the host's memory; in a file */
        struct meopt_options o = offloaded(options_of(MEOPT_APADAMW, "fp32"), 1, ring);
        struct meopt_bytes held;
        struct meopt_offload_info info = {.size = sizeof info};
        struct meopt *opt = create(&o, TENSORS);
        enum memory_place place = ring == 1 ? PLACE_HOST : PLACE_FILE;
        const size_t(*offloaded)[MEMORY_CLASS_COUNT] = card->use.offloaded_bytes;
        step(opt, true, 1, RELEASED);
        assert_int_equal(meopt_held(opt, &held), 0);
        assert_int_equal(meopt_offloaded(opt, &info, NULL), 0);
        assert_int_equal(offloaded[place][MEMORY_OPTIMIZER], info.moments);
        if (place == PLACE_FILE) /* through pinned memory */
            assert_in_range(offloaded[PLACE_HOST][MEMORY_OPTIMIZER], 1, info.ring);
        assert_in_range(card->use.current_bytes[MEMORY_OPTIMIZER] + card->use.current_bytes[MEMORY_WEIGHTS] -
                            before,
                        1, held.total - (size_t)info.moments + (size_t)info.ring + 4096);
        assert_true(info.moments > info.ring / 2);
        meopt_destroy(opt);
        assert_int_equal(offloaded[PLACE_HOST][MEMORY_OPTIMIZER], 0);
        assert_int_equal(offloaded[PLACE_FILE][MEMORY_OPTIMIZER], 0);
    }
}

static int before_all(void **state)
{
    for (int i = 0; i < ELEMENTS; i++) weights[i] = (float)uniform() - 0.5f;
    for (int s = 0; s < STEPS; s++)
        for (int i = 0; i < ELEMENTS; i++) gradients[s][i] = ((float)uniform() - 0.5f) / (float)(1 + i % 7);
    const char *spec = getenv("MEOPT_TEST_DEVICE");
    if (!mkdtemp(directory)) return -1;
    if (!spec) return 0;
    struct error why;
    if (device_open(&card, spec, 0, &why)) return -1;
    for (int i = 0; i < TENSORS; i++)
        if (shapes[i].rows > 256) shapes[i].rows /= 4;
    for (int s = 0; s < STEPS; s++) {
        on_card[s] = device_alloc(card, MEMORY_GRADIENTS, sizeof gradients[s], "gradients", &why);
        card->upload(card, on_card[s], gradients[s], sizeof gradients[s]);
    }
    return 0;
}

static int after_all(void **state)
{
    for (int s = 0; s < STEPS; s++)
        if (card) device_free(card, on_card[s]);
    if (card) device_close(card);
    return rmdir(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rule_and_preset_has_the_resident_bits),
        cmocka_unit_test(any_fraction_ring_and_engine_has_the_resident_bits),
        cmocka_unit_test(records_are_written_in_parts),
        cmocka_unit_test(a_state_of_28824000_bytes_keeps_its_tail),
        cmocka_unit_test(moments_go_in_and_out_and_weights_are_synced),
        cmocka_unit_test(a_bad_gradient_moves_nothing),
        cmocka_unit_test(memory_holds_the_ring_and_not_the_states),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    const struct CMUnitTest card_tests[] = {
        cmocka_unit_test(records_are_written_in_parts),
        cmocka_unit_test(every_rule_and_preset_has_the_resident_bits),
        cmocka_unit_test(a_card_s_memory_holds_the_ring_and_the_host_the_states),
    };
    if (getenv("MEOPT_TEST_DEVICE")) return cmocka_run_group_tests(card_tests, before_all, after_all);
    return cmocka_run_group_tests(tests, before_all, after_all);
}
