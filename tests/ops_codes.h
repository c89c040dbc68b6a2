/* Values in 8 bits for tests/ops.c: as an operation of its table (what is read back is within half a scale of
 * what was kept), and what the table cannot say: the bits of codes and words, their mean, what is not finite.
 */
#ifndef MEOPT_TESTS_OPS_CODES_H
#define MEOPT_TESTS_OPS_CODES_H

#include "tests/ops_reference.h"

enum { CODED_GROUP = 64 };

static double group_largest(const double *x, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(x[i]));
    return most;
}

/* encode, decode: R D; 0 x, 1 codes, 2 words, 3 what is read back */
static void coded_setup(struct trial *T)
{
    SIZES(R, D, c_, d_);
    operand_add(T, IN, T->t, R * D, 1);
    operand_add(T, OUT, DTYPE_I8, R * D, 1);
    operand_add(T, OUT, F32, R * ((D + CODED_GROUP - 1) / CODED_GROUP), 1);
    operand_add(T, OUT, T->t, R * D, 1);
    for (int64_t i = 0; i < R * D; i += 7) T->o[0].x[i] *= 1 << i % 11; /* some are much larger */
}
static void coded_call(struct trial *T)
{
    struct coded o = {T->t, P(0), P(1), P(2), T->s[0], T->s[1]};
    OPS->encode(T->device, &o);
    o.x = P(3);
    OPS->decode(T->device, &o);
}
static void coded_reference(struct trial *T)
{
    SIZES(R, D, c_, d_);
    int64_t in_row = (D + CODED_GROUP - 1) / CODED_GROUP;
    for (int64_t r = 0; r < R; r++)
        for (int64_t g = 0; g < in_row; g++) {
            int64_t at = r * D + g * CODED_GROUP, left = D - g * CODED_GROUP,
                    n = left < CODED_GROUP ? left : CODED_GROUP;
            double scale = group_largest(X(0) + at, n) / 127;
            W(2)[r * in_row + g] = scale; /* up to a bf16, and the seed below */
            S(2)[r * in_row + g] = scale * 0x1p-6;
            for (int64_t i = at; i < at + n; i++) {
                W(1)[i] = X(0)[i] / scale;
                S(1)[i] = 2; /* up or down, and a larger scale */
                W(3)[i] = X(0)[i];
                S(3)[i] = scale * (1 + 0x1p-7) * (0.5 + 0x1p-15);
            }
        }
}

/* As kernels/codes8.h says it, in doubles and words: the codes of a group, what they are read back as, and
 * the group's word. */
static uint32_t expected_codes(const float *x, int64_t n, int8_t *codes, float *values)
{
    uint32_t sum = 0, scale;
    float most = 0, s;
    for (uint32_t i = 0; i < (uint32_t)n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], 4);
        sum += (bits ^ bits >> 16) * ((2 * i + 1) * 2654435761u);
        most = fmaxf(most, fabsf(x[i]));
    }
    s = (float)((double)most / 127.0);
    memcpy(&scale, &s, 4);
    scale = (scale + 65535) / 65536 * 65536;
    memcpy(&s, &scale, 4);
    uint32_t seed = ((sum ^ sum >> 15) * 0x21F0AAADu) >> 16;
    float step = (float)(65536.0 / (double)s);
    for (uint32_t i = 0; i < (uint32_t)n; i++) {
        uint32_t z = (seed + i * 65536) * 2654435761u;
        z = (z ^ z >> 15) * 0xD35A2D97u;
        double u = z >> 16, whole = trunc((double)(float)((double)x[i] * (double)step));
        codes[i] = (int8_t)floor((whole + u) / 65536);
        values[i] = (float)((codes[i] + 0.5 - u / 65536) * (double)s);
    }
    return scale | seed;
}

/* The same bits on every device; and unbiased: of values of each sign the mean of what is read back less what
 * was kept, in scales, is off by less than 5 standard errors, of an error uniform in +- 1/2, and what cutting
 * takes, and so is the mean of its square from 1/12 (whose standard deviation is 1/sqrt(180)). */
static void check_codes(struct device *device, enum dtype t)
{
    enum { R = 41, D = 457, IN_ROW = 8, N = R * D };
    struct error err;
    float *x = malloc(N * sizeof *x), value[CODED_GROUP];
    uint32_t words[R * IN_ROW];
    uint16_t *half = malloc(N * sizeof *half);
    int8_t *codes = malloc(N), want[CODED_GROUP];
    random_state = 5;
    for (int64_t i = 0; i < N; i++) {
        half[i] = to_bf16(random_normal());
        uint32_t bits = (uint32_t)half[i] << 16;
        if (t == DTYPE_BF16) memcpy(&x[i], &bits, 4);
        else x[i] = (float)random_normal() * ldexpf(1, (int)(i / D) - 20);
    }
    size_t bytes = N * dtype_bytes(t);
    struct coded o = {t,
                      device_alloc(device, MEMORY_DATA, bytes, "x", &err),
                      device_alloc(device, MEMORY_DATA, N, "codes", &err),
                      device_alloc(device, MEMORY_DATA, sizeof words, "words", &err),
                      R,
                      D};
    assert_true(x && half && codes && o.x && o.codes && o.words);
    device->upload(device, o.x, t == DTYPE_BF16 ? (void *)half : x, bytes);
    device->ops->encode(device, &o);
    device->sync(device);
    device->download(device, codes, o.codes, N);
    device->download(device, words, o.words, sizeof words);
    device->ops->decode(device, &o);
    device->sync(device);
    uint8_t *back = malloc(bytes);
    assert_non_null(back);
    device->download(device, back, o.x, bytes);
    double sum[2] = {0, 0}, squares = 0;
    int64_t count[2] = {0, 0};
    for (int64_t r = 0; r < R; r++)
        for (int64_t g = 0; g < IN_ROW; g++) {
            int64_t at = r * D + g * CODED_GROUP, n = g + 1 < IN_ROW ? CODED_GROUP : D - g * CODED_GROUP;
            uint32_t word = expected_codes(x + at, n, want, value), scale = word & 0xFFFF0000u;
            float s;
            memcpy(&s, &scale, 4);
            assert_memory_equal(codes + at, want, (size_t)n);
            assert_int_equal(words[r * IN_ROW + g], word);
            for (int64_t i = 0; i < n; i++) {
                double e = ((double)value[i] - (double)x[at + i]) / (double)s;
                uint16_t rounded = to_bf16((double)value[i]);
                assert_memory_equal(back + (size_t)(at + i) * dtype_bytes(t),
                                    t == DTYPE_BF16 ? (void *)&rounded : &value[i], dtype_bytes(t));
                sum[x[at + i] > 0] += e;
                count[x[at + i] > 0]++;
                squares += e * e;
            }
        }
    for (int sign = 0; sign < 2; sign++)
        assert_true(fabs(sum[sign]) / (double)count[sign] < 5 / sqrt(12.0 * (double)count[sign]) + 0x1p-16);
    assert_true(fabs(squares / N - 1 / 12.0) < 5 / sqrt(180.0 * N) + 0x1p-16);
    device_free(device, o.x);
    device_free(device, o.codes);
    device_free(device, o.words);
    free(x);
    free(half);
    free(codes);
    free(back);
}

/* A value that is not finite makes its group unreadable, and no other; what is tiny is read as zero, and the
 * largest numbers as themselves. */
static void check_codes_at_the_ends(struct device *device, enum dtype t)
{
    if (t != F32) return;
    enum { R = 8, D = 100 };
    static const float odd[R] = {NAN, INFINITY, -INFINITY, -NAN, 0, 1e-38f, 3e38f, -3e38f};
    struct error err;
    float x[R * D];
    for (int i = 0; i < R * D; i++)
        x[i] = i % D == 70 ? odd[i / D] : i / D < 4 || i % D < 64 ? (float)(i % 5) - 2 : 0;
    struct coded o = {F32,
                      device_alloc(device, MEMORY_DATA, sizeof x, "x", &err),
                      device_alloc(device, MEMORY_DATA, sizeof x, "codes", &err),
                      device_alloc(device, MEMORY_DATA, R * 2 * 4, "words", &err),
                      R,
                      D};
    assert_true(o.x && o.codes && o.words);
    device->upload(device, o.x, x, sizeof x);
    device->ops->encode(device, &o);
    device->ops->fill(device, o.x, 0x11, sizeof x);
    device->ops->decode(device, &o);
    device->sync(device);
    device->download(device, x, o.x, sizeof x);
    for (int i = 0; i < R * D; i++) {
        int r = i / D, second = i % D >= 64;
        float near = (float)(i % 5) - 2, step = 2.0f / 127 * (1 + 0x1p-7f);
        if (!second) assert_true(fabsf(x[i] - near) <= step / 2 * 1.001f);
        else if (r < 4) assert_true(isnan(x[i]));
        else if (r >= 6 && i % D == 70) assert_true(fabsf(x[i] - odd[r]) <= fabsf(odd[r]) / 254 * 1.01f);
        else if (r < 6) assert_true(x[i] == 0);
        else assert_true(fabsf(x[i]) <= fabsf(odd[r]) / 254 * 1.01f);
    }
    device_free(device, o.x);
    device_free(device, o.codes);
    device_free(device, o.words);
}

#endif
