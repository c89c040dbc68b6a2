/* core/weights: numbers are converted exactly, each rounded once; the checksum is zip's. */
#include "core/weights/weights_internal.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static uint32_t next_random(uint32_t *state) { return *state = *state * 1664525u + 1013904223u; }

static float half_value(uint16_t h)
{
    int exponent = h >> 10 & 31, sign = h >> 15;
    double m = h & 1023, v = exponent == 31 ? (m != 0 ? NAN : INFINITY)
                             : exponent     ? ldexp(1024 + m, exponent - 25)
                                            : ldexp(m, -24);
    return (float)(sign ? -v : v);
}

static float bf16_value(uint16_t b)
{
    uint32_t u = (uint32_t)b << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static void every_16_bit_number_survives(void **state)
{
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t in = (uint16_t)i, out;
        float f, expected = half_value(in);
        weights_convert(&f, DTYPE_F32, &in, DTYPE_F16, 1);
        if (isnan(expected) ? !isnan(f) : memcmp(&f, &expected, 4) != 0)
            fail_msg("half %04x becomes %a", i, (double)f);
        weights_convert(&out, DTYPE_F16, &f, DTYPE_F32, 1);
        if (isnan(expected) ? !isnan(half_value(out)) : out != in)
            fail_msg("half %04x comes back as %04x", i, out);
        expected = bf16_value(in);
        weights_convert(&f, DTYPE_F32, &in, DTYPE_BF16, 1);
        assert_memory_equal(&f, &expected, 4);
        weights_convert(&out, DTYPE_BF16, &f, DTYPE_F32, 1);
        if (isnan(expected) ? !isnan(bf16_value(out)) : out != in)
            fail_msg("bf16 %04x comes back as %04x", i, out);
    }
}

/* The nearest of two neighbours a <= v <= b that differ in their last bit; on a tie the even one. */
static uint16_t nearest(double v, uint16_t a, float (*value)(uint16_t), double infinity_at)
{
    uint16_t b = (uint16_t)(a + 1);
    double low = (double)value(a), high = isinf(value(b)) ? infinity_at : (double)value(b);
    if (v - low == high - v) return a & 1 ? b : a;
    return v - low < high - v ? a : b;
}

static void doubles_and_integers_are_rounded_once(void **state)
{
    /* around the middle between each two neighbours: exactly on it, and off it by less than a float
     * resolves */
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16};
    for (int t = 0; t < 2; t++) {
        float (*value)(uint16_t) = t ? half_value : bf16_value;
        for (uint16_t a = 0; a < (t ? 0x7c00 : 0x7f80); a++) {
            double low = (double)value(a), infinity_at = t ? 65536.0 : ldexp(1, 128);
            double high = isinf(value((uint16_t)(a + 1))) ? infinity_at : (double)value((uint16_t)(a + 1)),
                   middle = low + (high - low) / 2;
            const double tries[] = {middle, middle * (1 + 1e-12), middle * (1 - 1e-12), low,
                                    low + (high - low) * 0.3};
            for (size_t k = 0; k < sizeof tries / sizeof *tries; k++) {
                uint16_t got, want = nearest(tries[k], a, value, infinity_at);
                weights_convert(&got, types[t], &tries[k], DTYPE_F64, 1);
                if (got != want) fail_msg("%a becomes %04x, expected %04x", tries[k], got, want);
                float f = (float)tries[k];
                if ((double)f != tries[k]) continue;
                weights_convert(&got, types[t], &f, DTYPE_F32, 1);
                if (got != want) fail_msg("float %a becomes %04x, expected %04x", tries[k], got, want);
            }
        }
    }
    /* 2^62 + 2^54 is a tie between two bf16 (8 bits); one more is above it */
    const int64_t integers[] = {(INT64_C(1) << 62) + (INT64_C(1) << 54),
                                (INT64_C(1) << 62) + (INT64_C(1) << 54) + 1,
                                -(INT64_C(1) << 62) - (INT64_C(1) << 54) - 1, INT64_MIN, 0};
    static const float rounded[] = {0x1p62f, 0x1.02p62f, -0x1.02p62f, -0x1p63f, 0};
    for (size_t k = 0; k < 5; k++) {
        uint16_t got;
        weights_convert(&got, DTYPE_BF16, &integers[k], DTYPE_I64, 1);
        assert_true(bf16_value(got) == rounded[k]);
    }
}

/* Small integers of every type, from aligned and unaligned places, to each floating type. */
static void integers_keep_their_values(void **state)
{
    static const int64_t i64[] = {-3, 0, 100, 1 << 20};
    static const int32_t i32[] = {-3, 0, 100, 1 << 20};
    static const int16_t i16[] = {-3, 0, 100, -32768};
    static const int8_t i8[] = {-3, 0, 100, -128};
    static const uint8_t u8[] = {253, 0, 100, 255}, logical[] = {1, 0, 1, 1};
    static const struct {
        enum dtype type;
        const void *values;
        float expected[4];
    } cases[] = {{DTYPE_I64, i64, {-3, 0, 100, 1 << 20}}, {DTYPE_I32, i32, {-3, 0, 100, 1 << 20}},
                 {DTYPE_I16, i16, {-3, 0, 100, -32768}},  {DTYPE_I8, i8, {-3, 0, 100, -128}},
                 {DTYPE_U8, u8, {253, 0, 100, 255}},      {DTYPE_BOOL, logical, {1, 0, 1, 1}}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (size_t shift = 0; shift < 2; shift++) {
            _Alignas(8) uint8_t in[40], out[20];
            float got[4];
            memcpy(in + shift, cases[c].values, 4 * dtype_bytes(cases[c].type));
            weights_convert(out + shift, DTYPE_F32, in + shift, cases[c].type, 4);
            memcpy(got, out + shift, sizeof got);
            assert_memory_equal(got, cases[c].expected, sizeof got);
            weights_convert(out + shift, DTYPE_BF16, in + shift, cases[c].type, 4);
            weights_convert(got, DTYPE_F32, out + shift, DTYPE_BF16, 4);
            assert_memory_equal(got, cases[c].expected, sizeof got); /* at most 8 bits each: exact in bf16 */
        }
}

/* Every count around the block of the converter, every alignment: the same as element by element. */
static void any_length_and_alignment_gives_the_same(void **state)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F64, DTYPE_I64, DTYPE_I16};
    static uint8_t in[2100 * 8 + 8], whole[2100 * 4 + 8];
    uint32_t random = 3;
    for (size_t i = 0; i < sizeof in; i++) in[i] = (uint8_t)(next_random(&random) >> 24);
    for (size_t from = 0; from < sizeof types / sizeof *types; from++)
        for (size_t to = 0; to < 3; to++)
            for (size_t shift = 0; shift < 4; shift++) {
                size_t in_bytes = dtype_bytes(types[from]), out_bytes = dtype_bytes(types[to]);
                const int64_t counts[] = {1, 7, 1023, 1024, 1025, 2099};
                for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                    weights_convert(whole + (shift & 1), types[to], in + shift, types[from], counts[c]);
                    for (int64_t i = 0; i < counts[c]; i++) {
                        _Alignas(8) uint8_t one[8], out[4];
                        memcpy(one, in + shift + (size_t)i * in_bytes, in_bytes);
                        weights_convert(out, types[to], one, types[from], 1);
                        assert_memory_equal(whole + (shift & 1) + (size_t)i * out_bytes, out, out_bytes);
                    }
                }
            }
}

static void crc32_equals_the_published_check_value(void **state)
{
    assert_int_equal(crc32_zip(0, "123456789", 9), 0xCBF43926u); /* the polynomial's catalogue entry */
    uint8_t data[1000];
    uint32_t random = 7;
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(next_random(&random) >> 24);
    for (size_t n = 0; n <= sizeof data; n++) { /* every length, bit by bit */
        uint32_t crc = ~0u;
        for (size_t i = 0; i < n; i++) {
            crc ^= data[i];
            for (int k = 0; k < 8; k++) crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
        }
        assert_int_equal(crc32_zip(0, data, n), ~crc);
        assert_int_equal(crc32_zip(crc32_zip(0, data, n / 3), data + n / 3, n - n / 3), ~crc);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_16_bit_number_survives),
        cmocka_unit_test(doubles_and_integers_are_rounded_once),
        cmocka_unit_test(integers_keep_their_values),
        cmocka_unit_test(any_length_and_alignment_gives_the_same),
        cmocka_unit_test(crc32_equals_the_published_check_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
