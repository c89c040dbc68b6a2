/* Memory of a tensor's state as meopt_state_view returns it, with the layout that core/meopt.h describes. */
#include "tests/optim/optim_table.h"

#include <stdbool.h>

static float x[A];

static size_t factors_are_those_of_the_record(struct meopt *opt, size_t i, bool has, const uint8_t *record)
{
    static const size_t values[] = {130, 70};
    struct meopt_error err;
    size_t at = 0;
    for (int which = MEOPT_VIEW_ROWS; which <= MEOPT_VIEW_COLUMNS; which++) {
        void *p;
        size_t bytes;
        int format;
        assert_int_equal(meopt_state_view(opt, i, (enum meopt_view)which, &p, &bytes, &format, &err), 0);
        assert_int_equal(bytes, has ? values[which - MEOPT_VIEW_ROWS] * sizeof(float) : 0);
        assert_int_equal(format, bytes ? MEOPT_STATE_F32 : -1);
        if (p) assert_memory_equal(p, record + at, bytes);
        at += bytes;
    }
    return at;
}

/* Its arrays are those of the record, the residual bits and the accumulator. */
static void views_are_the_memory_of_the_state(void **state)
{
    enum { HEADER = 136, SUMS = 16 };
    static uint8_t record[HEADER + SUMS + 12 * (A + 64) + 4];
    for (int rule = 0; rule < MEOPT_RULE_COUNT; rule++)
        for (int k = 0; k < MEOPT_STATE_FORMAT_COUNT * MEOPT_STATE_FORMAT_COUNT; k++) {
            struct meopt_options o;
            struct meopt_error err;
            struct meopt *opt;
            void *p;
            size_t bytes;
            int format;
            meopt_options_init(&o, sizeof o, rule);
            o.first_moment = k % MEOPT_STATE_FORMAT_COUNT;
            o.second_moment = o.accumulator = k / MEOPT_STATE_FORMAT_COUNT;
            o.weights = MEOPT_WEIGHTS_20 + k % 3;
            bool points = rule == MEOPT_SCHEDULE_FREE,
                 coarse = o.first_moment == MEOPT_STATE_4BIT ||
                          (o.first_moment == MEOPT_STATE_8BIT && o.second_moment == MEOPT_STATE_4BIT);
            assert_int_equal(meopt_create(&opt, &o, table, COUNT, &err),
                             points && coarse ? MEOPT_BAD_ARGUMENT : MEOPT_OK);
            if (points && coarse) continue;
            assert_int_equal(meopt_import(opt, 0, 0, A, start, &err), 0);
            steps(opt, 1, 3);
            for (size_t i = 0; i < COUNT; i++) {
                struct meopt_tensor_info info;
                int64_t groups = ((i ? B : A) + 63) / 64;
                size_t at = HEADER + (points ? SUMS : 0), all = meopt_state_bytes(opt, i);
                assert_int_equal(meopt_info(opt, i, &info), 0);
                assert_int_equal(meopt_state_save(opt, i, record, all, &err), 0);
                for (int which = MEOPT_VIEW_M; which <= MEOPT_VIEW_SCALES; which++) {
                    assert_int_equal(
                        meopt_state_view(opt, i, (enum meopt_view)which, &p, &bytes, &format, &err), 0);
                    assert_int_equal(bytes > 0, p != NULL);
                    if (p) assert_memory_equal(p, record + at, bytes);
                    if (p && which == MEOPT_VIEW_M) assert_int_equal(format, info.first_moment);
                    if (p && which == MEOPT_VIEW_V) assert_int_equal(format, info.second_moment);
                    at += bytes;
                }
                if (points) { /* the weights of training */
                    assert_int_equal(meopt_export(opt, i, 0, i ? B : A, x, &err), 0);
                    assert_memory_equal(x, record + at, (i ? B : A) * sizeof *x);
                    at += (size_t)groups * 64 * sizeof *x;
                }
                at += factors_are_those_of_the_record(opt, i, rule == MEOPT_ADAFACTOR && !i, record + at);
                assert_int_equal(at + 4, all);
                /* residual bits below the half of the weight */
                void *half;
                enum meopt_dtype dtype;
                float weight;
                uint32_t bits;
                assert_int_equal(meopt_state_view(opt, i, MEOPT_VIEW_RESIDUAL, &p, &bytes, &format, &err), 0);
                assert_int_equal(p != NULL, i == 0);
                assert_int_equal(meopt_weights(opt, i, &half, &dtype), 0);
                assert_int_equal(meopt_export(opt, i, 0, 64, x, &err), 0);
                for (int e = 0; e < 64 && p; e++) {
                    int nibble = ((uint8_t *)p)[e % 32] >> (e / 32 * 4) & 15;
                    int below = format == MEOPT_WEIGHTS_20   ? ((nibble ^ 8) - 8) * 4096
                                : format == MEOPT_WEIGHTS_24 ? ((int8_t *)p)[e] * 256
                                                             : ((int16_t *)p)[e];
                    bits = ((uint32_t)((uint16_t *)half)[e] << 16) + (uint32_t)below;
                    memcpy(&weight, &bits, 4);
                    assert_memory_equal(&weight, &x[e], 4);
                }
                if (p) assert_int_equal(bytes, groups * (32 << (o.weights - MEOPT_WEIGHTS_20)));
                static const size_t each[] = {256, 128, 128, 64, 32};
                assert_int_equal(meopt_accumulate(opt, i, gradient, MEOPT_F32, 1, &err), 0);
                assert_int_equal(meopt_state_view(opt, i, MEOPT_VIEW_ACCUMULATOR, &p, &bytes, &format, &err),
                                 0);
                assert_int_equal(format, i ? MEOPT_STATE_F32 : o.accumulator);
                assert_int_equal(bytes, (size_t)groups * each[format]);
                if (format == MEOPT_STATE_F32) assert_memory_equal(p, gradient, (i ? B : A) * 4);
                assert_int_equal(
                    meopt_state_view(opt, i, MEOPT_VIEW_ACCUMULATOR_SCALES, &p, &bytes, &format, &err), 0);
                assert_int_equal(bytes, !i && o.accumulator >= MEOPT_STATE_8BIT ? groups : 0);
            }
            assert_int_equal(meopt_state_view(opt, 2, MEOPT_VIEW_M, &p, &bytes, &format, &err),
                             MEOPT_BAD_ARGUMENT);
            assert_int_equal(meopt_state_view(opt, 0, MEOPT_VIEW_COUNT, &p, &bytes, &format, &err),
                             MEOPT_BAD_ARGUMENT);
            meopt_destroy(opt);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(views_are_the_memory_of_the_state)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
