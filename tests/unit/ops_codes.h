/* Values in 8 bits for tests/unit/ops.c: as an operation of its table (what is read back is within half a
 * scale of
 * what was kept), and what the table cannot say: the bits of codes and words, their mean, what is not finite.
 */
#ifndef MEOPT_TESTS_UNIT_OPS_CODES_H
#define MEOPT_TESTS_UNIT_OPS_CODES_H

#include "tests/unit/ops_reference.h"

enum { CODED_GROUP = 64 };

/* Of n values the first of the largest ones (of floats: up to six bits), and the largest of the others. */
static int64_t group_top(const double *x, int64_t n, double *others)
{
    int64_t top = 0;
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        float f = (float)fabs(x[i]);
        uint32_t bits;
        memcpy(&bits, &f, 4);
        if (bits >> 6 > most >> 6) top = i;
        if (bits >> 6 > most >> 6) most = bits;
    }
    *others = 0;
    for (int64_t i = 0; i < n; i++) *others = fmax(*others, i == top ? 0 : fabs(x[i]));
    return top;
}

/* encode, decode: R D; 0 x, 1 codes, 2 words, 3 what is read back, 4 tops */
static void coded_setup(struct trial *T)
{
    SIZES(R, D, c_, d_);
    operand_add(T, IN, T->t, R * D, 1);
    operand_add(T, OUT, DTYPE_I8, R * D, 1);
    operand_add(T, OUT, F32, R * ((D + CODED_GROUP - 1) / CODED_GROUP), 1);
    operand_add(T, OUT, T->t, R * D, 1);
    operand_add(T, OUT, DTYPE_BF16, R * ((D + CODED_GROUP - 1) / CODED_GROUP), 1);
    for (int64_t i = 0; i < R * D; i += 7) T->o[0].x[i] *= 1 << i % 11; /* some are much larger */
}
static void coded_call(struct trial *T)
{
    struct coded o = {T->t, P(0), P(1), P(2), P(4), T->s[0], T->s[1]};
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
            double scale;
            int64_t top = at + group_top(X(0) + at, n, &scale);
            scale /= 127;
            W(2)[r * in_row + g] = scale; /* up to a bf16, and the seed below */
            S(2)[r * in_row + g] = scale * 0x1p-6;
            for (int64_t i = at; i < at + n; i++) {
                W(1)[i] = i == top ? -128 : X(0)[i] / scale;
                S(1)[i] = i == top ? 0 : 2; /* up or down, and a larger scale */
                W(3)[i] = X(0)[i];
                S(3)[i] = i == top ? u16 * fabs(X(0)[i]) : scale * (1 + 0x1p-7) * (0.5 + 0x1p-15);
            }
            W(4)[r * in_row + g] = X(0)[top];
        }
}

/* As kernels/codes8.h says it, in doubles and words: the codes of a group, what they are read back as, its
 * top, and the group's word. */
static uint32_t expected_codes(const float *x, int64_t n, int8_t *codes, float *values, int64_t *top)
{
    uint32_t sum = 0, scale;
    double most = 0, wide[CODED_GROUP];
    float s;
    for (uint32_t i = 0; i < (uint32_t)n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], 4);
        sum += (bits ^ bits >> 16) * ((2 * i + 1) * 2654435761u);
        wide[i] = (double)x[i];
    }
    *top = group_top(wide, n, &most);
    s = (float)(most / 127.0);
    memcpy(&scale, &s, 4);
    scale = (scale + 65535) / 65536 * 65536;
    memcpy(&s, &scale, 4);
    uint32_t seed = ((sum ^ sum >> 15) * 0x21F0AAADu) >> 16;
    float step = (float)(65536.0 / (double)s);
    for (uint32_t i = 0; i < (uint32_t)n; i++) {
        uint32_t z = (seed + i * 65536) * 2654435761u;
        z = (z ^ z >> 15) * 0xD35A2D97u;
        double u = z >> 16, whole = trunc((double)(float)((double)x[i] * (double)step));
        if (i == *top) {
            uint32_t bits = (uint32_t)to_bf16(wide[i]) << 16;
            codes[i] = -128;
            memcpy(&values[i], &bits, 4);
            continue;
        }
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
    enum { R = 41, D = 457, IN_ROW = 8, N = R * D, OTHERS = N - R * IN_ROW };
    struct error err;
    float *x = malloc(N * sizeof *x), value[CODED_GROUP];
    uint32_t words[R * IN_ROW];
    uint16_t tops[R * IN_ROW];
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
                      device_alloc(device, MEMORY_DATA, sizeof tops, "tops", &err),
                      R,
                      D};
    assert_true(x && half && codes && o.x && o.codes && o.words && o.tops);
    device->upload(device, o.x, t == DTYPE_BF16 ? (void *)half : x, bytes);
    device->ops->encode(device, &o);
    device->sync(device);
    device->download(device, codes, o.codes, N);
    device->download(device, words, o.words, sizeof words);
    device->download(device, tops, o.tops, sizeof tops);
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
            int64_t top;
            uint32_t word = expected_codes(x + at, n, want, value, &top), scale = word & 0xFFFF0000u;
            float s;
            memcpy(&s, &scale, 4);
            assert_memory_equal(codes + at, want, (size_t)n);
            assert_int_equal(words[r * IN_ROW + g], word);
            assert_int_equal(tops[r * IN_ROW + g], to_bf16((double)x[at + top]));
            for (int64_t i = 0; i < n; i++) {
                double e = ((double)value[i] - (double)x[at + i]) / (double)s;
                uint16_t rounded = to_bf16((double)value[i]);
                assert_memory_equal(back + (size_t)(at + i) * dtype_bytes(t),
                                    t == DTYPE_BF16 ? (void *)&rounded : &value[i], dtype_bytes(t));
                if (i == top) continue;
                sum[x[at + i] > 0] += e;
                count[x[at + i] > 0]++;
                squares += e * e;
            }
        }
    for (int sign = 0; sign < 2; sign++)
        assert_true(fabs(sum[sign]) / (double)count[sign] < 5 / sqrt(12.0 * (double)count[sign]) + 0x1p-16);
    assert_true(fabs(squares / OTHERS - 1 / 12.0) < 5 / sqrt(180.0 * OTHERS) + 0x1p-16);
    device_free(device, o.x);
    device_free(device, o.codes);
    device_free(device, o.words);
    device_free(device, o.tops);
    free(x);
    free(half);
    free(codes);
    free(back);
}

/* A value that is not finite makes its group unreadable, and no other; others that are tiny are read as zero,
 * and the largest numbers as themselves, in bf16 and finite. */
static void check_codes_at_the_ends(struct device *device, enum dtype t)
{
    if (t != F32) return;
    enum { R = 8, D = 100 };
    static const float odd[R] = {NAN, INFINITY, -INFINITY, -NAN, 0, 1e-38f, 3e38f, -3.4e38f};
    struct error err;
    float x[R * D];
    for (int i = 0; i < R * D; i++)
        x[i] = i % D == 70 ? odd[i / D] : i / D < 4 || i % D < 64 ? (float)(i % 5) - 2 : 1e-33f;
    struct coded o = {F32,
                      device_alloc(device, MEMORY_DATA, sizeof x, "x", &err),
                      device_alloc(device, MEMORY_DATA, sizeof x, "codes", &err),
                      device_alloc(device, MEMORY_DATA, R * 2 * 4, "words", &err),
                      device_alloc(device, MEMORY_DATA, R * 2 * 2, "tops", &err),
                      R,
                      D};
    assert_true(o.x && o.codes && o.words && o.tops);
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
        else if (r >= 6 && i % D == 70) assert_true(fabsf(x[i] - odd[r]) <= fabsf(odd[r]) / 256);
        else if (r < 6 && i % D == 64) assert_true(fabsf(x[i] - 1e-33f) <= 1e-33f / 256); /* the top */
        else assert_true(x[i] == 0);
    }
    device_free(device, o.x);
    device_free(device, o.codes);
    device_free(device, o.words);
    device_free(device, o.tops);
}

static const struct operation codes_operations[] = {
    {OP(coded), NULL, {-1}, {{1, 1}, {3, 67}, {7, 64}, {5, 600}, {70, 130}}, {2056, 6144}, NULL},
};

#endif
