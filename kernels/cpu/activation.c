/* GELU (exact with erf, tanh, quick) and SwiGLU: see ops.h. The AVX-512 code uses intrinsics: it avoids the
 * division that dominates the plain loops, and the buffer for bf16 (2056 x 6144 bf16, two threads: GELU 5.0
 * -> 4.0 ms, its gradient 8.4 -> 4.9 ms).
 *
 *   GELU:   y = h cdf(h), cdf of the standard normal; cdf' = density / sqrt(2 pi), density = exp(-h^2/2)
 *           dh = dy (cdf + h cdf')
 *   quick:  y = h s, s = 1 / (1 + exp(-1.702 h)), the GELU of OpenAI's CLIP (Hendrycks and Gimpel 2016,
 *           section 2)
 *           dh = dy s (1 + 1.702 h (1 - s))
 *   tanh:   y = h s, s = 1 / (1 + exp(-z)) = (1 + tanh(z / 2)) / 2, z = 2 sqrt(2 / pi) (h + 0.044715 h^3)
 *           dh = dy (s + h s (1 - s) z'), z' = 2 sqrt(2 / pi) (1 + 3 * 0.044715 h^2)
 *   SwiGLU: y = silu(x1) x2, silu(x) = x s, s = 1 / (1 + exp(-x)), s' = s (1 - s)
 *           dx1 = dy x2 (s + x1 s (1 - s)), dx2 = dy x1 s
 */
#include "kernels/cpu/table.h"
#include "kernels/cpu/vector.h"

#include <assert.h>
#include <pthread.h>

/* bf16 has 65,536 values, so functions of one value are tabulated once, with the code for floats. The few
 * thousand values of a tensor stay in the first-level cache. With 12.6 million values and one thread: GELU
 * with AVX2 17.4 -> 7.3 ms, its gradient 21.3 -> 11.6; GELU with AVX-512 8.3 -> 6.3, with gathers 5.7. The
 * gradient with AVX-512 is as fast without a table. */
enum { VALUES = 65536 };

/* Fills a table with `function` of each value, in pieces. */
static void fill_values(void (*function)(const uint16_t *h, void *out, int64_t n), void *table,
                        size_t element)
{
    for (int64_t at = 0; at < VALUES; at += PIECE) {
        uint16_t h[PIECE];
        for (int64_t i = 0; i < PIECE; i++) h[i] = (uint16_t)(at + i);
        function(h, (char *)table + (size_t)at * element, PIECE);
    }
}

/* Defines name(), which returns the table that `function` fills, and fills it at the first call. */
#define VALUES_OF(name, type, function)                                                                      \
    static type name##_table[VALUES];                                                                        \
    static void name##_fill(void) { fill_values(function, name##_table, sizeof(type)); }                     \
    static const type *name(void)                                                                            \
    {                                                                                                        \
        static pthread_once_t once = PTHREAD_ONCE_INIT;                                                      \
        pthread_once(&once, name##_fill);                                                                    \
        return name##_table;                                                                                 \
    }

static inline void look_up(const uint16_t *table, const void *h, void *y, int64_t at, int64_t end)
{
    const uint16_t *x = (const uint16_t *)h;
    uint16_t *v = y;
    for (int64_t i = at; i < end; i++) v[i] = table[x[i]];
}

/* 2 sqrt(2 / pi), and that times 0.044715 */
#define TANH_ONE  1.59576912161f
#define TANH_CUBE 0.07135481627f

#ifdef __AVX512F__

#include "kernels/cpu/avx512.h"

static inline void gelu_compute(int bf16, const void *h, void *y, int64_t at, int64_t end)
{
    for (int64_t i = at; i < end; i += 16) {
        __mmask16 mask = mask16(end - i);
        __m512 density, x = load16(bf16, h, i, mask);
        store16(bf16, y, i, mask, _mm512_mul_ps(not_below16(x), normal_cdf16(x, &density)));
    }
}
static inline void gelu_gradient_piece(int bf16, const void *dy, const void *h, void *dh, void *act,
                                       int64_t at, int64_t end)
{
    for (int64_t i = at; i < end; i += 16) {
        __mmask16 mask = mask16(end - i);
        __m512 density, x = load16(bf16, h, i, mask), g = load16(bf16, dy, i, mask),
                        cdf = normal_cdf16(x, &density);
        __m512 slope = _mm512_fmadd_ps(_mm512_mul_ps(within16(x), constant16(0.39894228f)), density,
                                       cdf); /* 1 / sqrt(2 pi) */
        store16(bf16, dh, i, mask, _mm512_mul_ps(g, slope));
        if (act) store16(bf16, act, i, mask, _mm512_mul_ps(not_below16(x), cdf));
    }
}
static inline void quick_gelu_compute(int bf16, const void *h, void *y, int64_t at, int64_t end)
{
    for (int64_t i = at; i < end; i += 16) {
        __mmask16 mask = mask16(end - i);
        __m512 x = load16(bf16, h, i, mask);
        store16(bf16, y, i, mask,
                _mm512_mul_ps(not_below16(x), sigmoid16(_mm512_mul_ps(x, constant16(1.702f)))));
    }
}
static inline void quick_gelu_gradient_piece(int bf16, const void *dy, const void *h, void *dh, void *act,
                                             int64_t at, int64_t end)
{
    for (int64_t i = at; i < end; i += 16) {
        __mmask16 mask = mask16(end - i);
        __m512 v = load16(bf16, h, i, mask), x = _mm512_mul_ps(v, constant16(1.702f)),
               g = load16(bf16, dy, i, mask), s = sigmoid16(x);
        __m512 slope = _mm512_fmadd_ps(_mm512_mul_ps(within16(x), s), _mm512_sub_ps(constant16(1.0f), s), s);
        store16(bf16, dh, i, mask, _mm512_mul_ps(g, slope));
        if (act) store16(bf16, act, i, mask, _mm512_mul_ps(not_below16(v), s));
    }
}
/* s of tanh's GELU for -100 <= x <= 100; square: x^2 */
AVX512 __m512 gelu_tanh_sigmoid16(__m512 x, __m512 square)
{
    return sigmoid16(_mm512_mul_ps(x, _mm512_fmadd_ps(square, constant16(TANH_CUBE), constant16(TANH_ONE))));
}
static inline void gelu_tanh_compute(int bf16, const void *h, void *y, int64_t at, int64_t end)
{
    for (int64_t i = at; i < end; i += 16) {
        __mmask16 mask = mask16(end - i);
        __m512 v = load16(bf16, h, i, mask), x = within16(v);
        store16(bf16, y, i, mask, _mm512_mul_ps(not_below16(v), gelu_tanh_sigmoid16(x, _mm512_mul_ps(x, x))));
    }
}
static inline void gelu_tanh_gradient_piece(int bf16, const void *dy, const void *h, void *dh, void *act,
                                            int64_t at, int64_t end)
{
    for (int64_t i = at; i < end; i += 16) {
        __mmask16 mask = mask16(end - i);
        __m512 v = load16(bf16, h, i, mask), g = load16(bf16, dy, i, mask), x = within16(v),
               square = _mm512_mul_ps(x, x), s = gelu_tanh_sigmoid16(x, square);
        __m512 rate = _mm512_fmadd_ps(square, constant16(3 * TANH_CUBE), constant16(TANH_ONE));
        __m512 slope =
            _mm512_fmadd_ps(_mm512_mul_ps(_mm512_mul_ps(x, s), rate), _mm512_sub_ps(constant16(1.0f), s), s);
        store16(bf16, dh, i, mask, _mm512_mul_ps(g, slope));
        if (act) store16(bf16, act, i, mask, _mm512_mul_ps(not_below16(v), s));
    }
}
/* n outputs at `at` of y from x1 at `left` of h and x2 at left + F */
static inline void swiglu_piece(int bf16, const void *h, void *y, int64_t left, int64_t F, int64_t at,
                                int64_t n)
{
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 mask = mask16(n - i);
        __m512 x1 = load16(bf16, h, left + i, mask), x2 = load16(bf16, h, left + F + i, mask);
        store16(bf16, y, at + i, mask, _mm512_mul_ps(_mm512_mul_ps(not_below16(x1), sigmoid16(x1)), x2));
    }
}
static inline void swiglu_gradient_piece(int bf16, const void *dy, const void *h, void *dh, void *act,
                                         int64_t left, int64_t F, int64_t at, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 mask = mask16(n - i);
        __m512 x1 = load16(bf16, h, left + i, mask), x2 = load16(bf16, h, left + F + i, mask),
               d = load16(bf16, dy, at + i, mask);
        __m512 s = sigmoid16(x1), silu = _mm512_mul_ps(not_below16(x1), s);
        __m512 slope = _mm512_fmadd_ps(_mm512_mul_ps(within16(x1), s), _mm512_sub_ps(constant16(1.0f), s), s);
        store16(bf16, dh, left + i, mask, _mm512_mul_ps(_mm512_mul_ps(d, x2), slope));
        store16(bf16, dh, left + F + i, mask, _mm512_mul_ps(d, silu));
        if (act) store16(bf16, act, at + i, mask, _mm512_mul_ps(silu, x2));
    }
}

#else

/* x times the sigmoid of z, 0 below -87 */
static inline float silu_of(float x, float z)
{
    float product = x / (1.0f + exp_one(-z));
    return z < -87.0f ? 0.0f : product;
}
static inline void gelu_compute(int bf16, const void *h, void *y, int64_t at, int64_t end)
{
    float in[PIECE], out[PIECE];
    int64_t count = end - at;
    const float *x = read_piece(bf16, h, at, count, in);
    float *v = piece_for(bf16, y, at, out);
    SIMD for (int64_t i = 0; i < count; i++)
    {
        float density;
        v[i] = not_below(x[i]) * normal_cdf(x[i], &density);
    }
    write_piece(bf16, y, at, count, v);
}
static inline void quick_gelu_compute(int bf16, const void *h, void *y, int64_t at, int64_t end)
{
    float in[PIECE], out[PIECE];
    int64_t count = end - at;
    const float *x = read_piece(bf16, h, at, count, in);
    float *v = piece_for(bf16, y, at, out);
    SIMD for (int64_t i = 0; i < count; i++) v[i] = silu_of(x[i], 1.702f * x[i]);
    write_piece(bf16, y, at, count, v);
}

/* z of tanh's GELU; for |x| above 100, s is 0 or 1 */
static inline float gelu_tanh_argument(float x)
{
    return within(x) * (TANH_ONE + TANH_CUBE * (within(x) * within(x)));
}
static inline void gelu_tanh_compute(int bf16, const void *h, void *y, int64_t at, int64_t end)
{
    float in[PIECE], out[PIECE];
    int64_t count = end - at;
    const float *x = read_piece(bf16, h, at, count, in);
    float *v = piece_for(bf16, y, at, out);
    SIMD for (int64_t i = 0; i < count; i++) v[i] = silu_of(x[i], gelu_tanh_argument(x[i]));
    write_piece(bf16, y, at, count, v);
}

static inline void gelu_tanh_slopes(const float *x, float *slope, int64_t n)
{
    SIMD for (int64_t i = 0; i < n; i++)
    {
        float a = within(x[i]), s = silu_of(1.0f, gelu_tanh_argument(x[i]));
        slope[i] = s + a * s * (1.0f - s) * (TANH_ONE + 3 * TANH_CUBE * (a * a));
    }
}
static inline void gelu_slopes(const float *x, float *slope, int64_t n)
{
    SIMD for (int64_t i = 0; i < n; i++)
    {
        float density, cdf = normal_cdf(x[i], &density);
        slope[i] = cdf + within(x[i]) * 0.39894228f * density; /* 1 / sqrt(2 pi) */
    }
}
static inline void silus(const float *x, float *silu, int64_t n)
{
    SIMD for (int64_t i = 0; i < n; i++) silu[i] = silu_of(x[i], x[i]);
}
/* s and 1 + x (1 - s), s the sigmoid of x: quick GELU's of 1.702 h */
static inline void sigmoids(const float *x, float *s, float *rest, int64_t n)
{
    SIMD for (int64_t i = 0; i < n; i++)
    {
        s[i] = silu_of(1.0f, x[i]);
        rest[i] = 1.0f + within(x[i]) * (1.0f - s[i]);
    }
}

struct sigmoid {
    float s, rest;
};
static void slopes_of_values(const uint16_t *h, void *out, int64_t n)
{
    float in[PIECE];
    gelu_slopes(read_piece(1, h, 0, n, in), out, n);
}
static void tanh_slopes_of_values(const uint16_t *h, void *out, int64_t n)
{
    float in[PIECE];
    gelu_tanh_slopes(read_piece(1, h, 0, n, in), out, n);
}
static void silus_of_values(const uint16_t *h, void *out, int64_t n)
{
    float in[PIECE];
    silus(read_piece(1, h, 0, n, in), out, n);
}
static void pairs_of_values(const uint16_t *h, float factor, struct sigmoid *out, int64_t n)
{
    float in[PIECE], s[PIECE], rest[PIECE];
    read_piece(1, h, 0, n, in);
    for (int64_t i = 0; i < n; i++) in[i] *= factor;
    sigmoids(in, s, rest, n);
    for (int64_t i = 0; i < n; i++) out[i] = (struct sigmoid){s[i], rest[i]};
}
static void sigmoids_of_values(const uint16_t *h, void *out, int64_t n) { pairs_of_values(h, 1.0f, out, n); }
static void quick_of_values(const uint16_t *h, void *out, int64_t n) { pairs_of_values(h, 1.702f, out, n); }
VALUES_OF(slope_table, float, slopes_of_values)
VALUES_OF(tanh_slope_table, float, tanh_slopes_of_values)
VALUES_OF(silu_table, float, silus_of_values)
VALUES_OF(sigmoid_table, struct sigmoid, sigmoids_of_values)
VALUES_OF(quick_table, struct sigmoid, quick_of_values)

/* Computes dh of n elements from `at` on, with the slopes of h, for bf16 from a table. */
static inline void slope_piece(int bf16, const float *table, void (*slopes)(const float *, float *, int64_t),
                               const void *dy, const void *h, void *dh, int64_t at, int64_t n)
{
    float b[PIECE], slope[PIECE], out[PIECE];
    const float *g = read_piece(bf16, dy, at, n, b);
    float *v = piece_for(bf16, dh, at, out);
    if (!bf16) slopes((const float *)h + at, slope, n);
    else
        for (int64_t i = 0; i < n; i++) slope[i] = table[((const uint16_t *)h)[at + i]];
    SIMD for (int64_t i = 0; i < n; i++) v[i] = g[i] * slope[i];
    write_piece(bf16, dh, at, n, v);
}
static inline void silus_at(int bf16, const void *h, int64_t at, float *silu, int64_t n)
{
    if (!bf16) {
        silus((const float *)h + at, silu, n);
        return;
    }
    const float *table = silu_table();
    for (int64_t i = 0; i < n; i++) silu[i] = table[((const uint16_t *)h)[at + i]];
}
static inline void sigmoids_at(const struct sigmoid *table, const void *h, int64_t at, float *s, float *rest,
                               int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        struct sigmoid pair = table[((const uint16_t *)h)[at + i]];
        s[i] = pair.s;
        rest[i] = pair.rest;
    }
}

/* Computes f(h) before dh overwrites h, and stores it after dy is read, because it may overwrite dy. */
static inline void gelu_piece(int bf16, const void *h, void *y, int64_t at, int64_t end);
static inline void gelu_tanh_piece(int bf16, const void *h, void *y, int64_t at, int64_t end);
static inline void quick_gelu_piece(int bf16, const void *h, void *y, int64_t at, int64_t end);
static inline const void *element(int bf16, const void *x, int64_t at)
{
    return (const char *)x + at * (bf16 ? 2 : 4);
}
static inline void put(int bf16, void *act, int64_t at, int64_t n, const void *made)
{
    if (act) memcpy((char *)act + at * (bf16 ? 2 : 4), made, (size_t)n * (bf16 ? 2 : 4));
}

static inline void gelu_gradient_piece(int bf16, const void *dy, const void *h, void *dh, void *act,
                                       int64_t at, int64_t end)
{
    float made[PIECE];
    if (act) gelu_piece(bf16, element(bf16, h, at), made, 0, end - at);
    slope_piece(bf16, bf16 ? slope_table() : NULL, gelu_slopes, dy, h, dh, at, end - at);
    put(bf16, act, at, end - at, made);
}
static inline void gelu_tanh_gradient_piece(int bf16, const void *dy, const void *h, void *dh, void *act,
                                            int64_t at, int64_t end)
{
    float made[PIECE];
    if (act) gelu_tanh_piece(bf16, element(bf16, h, at), made, 0, end - at);
    slope_piece(bf16, bf16 ? tanh_slope_table() : NULL, gelu_tanh_slopes, dy, h, dh, at, end - at);
    put(bf16, act, at, end - at, made);
}
static inline void quick_gelu_gradient_piece(int bf16, const void *dy, const void *h, void *dh, void *act,
                                             int64_t at, int64_t end)
{
    float scaled[PIECE], b[PIECE], s[PIECE], rest[PIECE], out[PIECE], made[PIECE];
    int64_t count = end - at;
    if (act) quick_gelu_piece(bf16, element(bf16, h, at), made, 0, count);
    const float *x = h, *g = read_piece(bf16, dy, at, count, b);
    float *v = piece_for(bf16, dh, at, out);
    if (bf16) sigmoids_at(quick_table(), h, at, s, rest, count);
    else {
        SIMD for (int64_t i = 0; i < count; i++) scaled[i] = 1.702f * x[at + i];
        sigmoids(scaled, s, rest, count);
    }
    SIMD for (int64_t i = 0; i < count; i++) v[i] = g[i] * s[i] * rest[i];
    write_piece(bf16, dh, at, count, v);
    put(bf16, act, at, count, made);
}
/* n outputs at `at` of y from x1 at `left` of h and x2 at left + F */
static inline void swiglu_piece(int bf16, const void *h, void *y, int64_t left, int64_t F, int64_t at,
                                int64_t n)
{
    float silu[PIECE], b2[PIECE], out[PIECE];
    const float *x2 = read_piece(bf16, h, left + F, n, b2);
    float *v = piece_for(bf16, y, at, out);
    silus_at(bf16, h, left, silu, n);
    SIMD for (int64_t i = 0; i < n; i++) v[i] = silu[i] * x2[i];
    write_piece(bf16, y, at, n, v);
}
static inline void swiglu_gradient_piece(int bf16, const void *dy, const void *h, void *dh, void *act,
                                         int64_t left, int64_t F, int64_t at, int64_t n)
{
    float b1[PIECE], b2[PIECE], b3[PIECE], s[PIECE], rest[PIECE], o1[PIECE], o2[PIECE], made[PIECE];
    if (act) swiglu_piece(bf16, element(bf16, h, left), made, 0, F, 0, n);
    const float *x1 = read_piece(bf16, h, left, n, b1), *x2 = read_piece(bf16, h, left + F, n, b2),
                *g = read_piece(bf16, dy, at, n, b3);
    if (bf16) sigmoids_at(sigmoid_table(), h, left, s, rest, n);
    else sigmoids(x1, s, rest, n);
    SIMD for (int64_t i = 0; i < n; i++)
    {
        o1[i] = g[i] * x2[i] * s[i] * rest[i];
        o2[i] = g[i] * not_below(x1[i]) * s[i];
    }
    if (bf16) {
        write_piece(1, dh, left, n, o1);
        write_piece(1, dh, left + F, n, o2);
    } else {
        memcpy((float *)dh + left, o1, (size_t)n * 4);
        memcpy((float *)dh + left + F, o2, (size_t)n * 4);
    }
    put(bf16, act, at, n, made);
}

#endif

static void gelu_of_values(const uint16_t *h, void *out, int64_t n) { gelu_compute(1, h, out, 0, n); }
static void quick_gelu_of_values(const uint16_t *h, void *out, int64_t n)
{
    quick_gelu_compute(1, h, out, 0, n);
}
static void gelu_tanh_of_values(const uint16_t *h, void *out, int64_t n)
{
    gelu_tanh_compute(1, h, out, 0, n);
}
VALUES_OF(gelu_values, uint16_t, gelu_of_values)
VALUES_OF(gelu_tanh_values, uint16_t, gelu_tanh_of_values)
VALUES_OF(quick_gelu_values, uint16_t, quick_gelu_of_values)

static inline void gelu_piece(int bf16, const void *h, void *y, int64_t at, int64_t end)
{
    if (bf16) look_up(gelu_values(), h, y, at, end);
    else gelu_compute(0, h, y, at, end);
}
static inline void gelu_tanh_piece(int bf16, const void *h, void *y, int64_t at, int64_t end)
{
    if (bf16) look_up(gelu_tanh_values(), h, y, at, end);
    else gelu_tanh_compute(0, h, y, at, end);
}
static inline void quick_gelu_piece(int bf16, const void *h, void *y, int64_t at, int64_t end)
{
    if (bf16) look_up(quick_gelu_values(), h, y, at, end);
    else quick_gelu_compute(0, h, y, at, end);
}

/* Calls the variant of `function` for the type, for every piece of n values. */
#define IN_PIECES(function, ...)                                                                             \
    PARALLEL_FOR for (int64_t at = 0; at < n; at += PIECE)                                                   \
    {                                                                                                        \
        if (bf16) function(1, __VA_ARGS__, at, at + piece(n, at));                                           \
        else function(0, __VA_ARGS__, at, at + piece(n, at));                                                \
    }

static void gelu_forward(int bf16, const void *h, void *y, int64_t n) { IN_PIECES(gelu_piece, h, y) }

static void gelu_tanh_forward(int bf16, const void *h, void *y, int64_t n)
{
    IN_PIECES(gelu_tanh_piece, h, y)
}

static void quick_gelu_forward(int bf16, const void *h, void *y, int64_t n)
{
    IN_PIECES(quick_gelu_piece, h, y)
}

static inline void tanh_piece(int bf16, const void *h, void *y, int64_t at, int64_t end)
{
    float in[PIECE], out[PIECE];
    int64_t count = end - at;
    const float *x = read_piece(bf16, h, at, count, in);
    for (int64_t i = 0; i < count; i++) out[i] = tanhf(x[i]);
    store_piece(bf16, y, at, count, out);
}
static void tanh_forward(int bf16, const void *h, void *y, int64_t n) { IN_PIECES(tanh_piece, h, y) }

static void tanh_gradient_piece(int bf16, const void *dy, const void *h, void *dh, void *act, int64_t at,
                                int64_t end)
{
    float in[PIECE], dys[PIECE], out[PIECE], made[PIECE];
    int64_t count = end - at;
    const float *x = read_piece(bf16, h, at, count, in), *g = read_piece(bf16, dy, at, count, dys);
    for (int64_t i = 0; i < count; i++) {
        made[i] = tanhf(x[i]);
        out[i] = g[i] * (1 - made[i] * made[i]);
    }
    store_piece(bf16, dh, at, count, out);
    if (act) store_piece(bf16, act, at, count, made);
}

static inline float relu(float x) { return x <= 0 ? 0 : x; } /* NaN stays */
static inline void relu_piece(int bf16, const void *h, void *y, int64_t at, int64_t end)
{
    float in[PIECE], out[PIECE];
    int64_t count = end - at;
    const float *x = read_piece(bf16, h, at, count, in);
    for (int64_t i = 0; i < count; i++) out[i] = relu(x[i]);
    store_piece(bf16, y, at, count, out);
}
static void relu_forward(int bf16, const void *h, void *y, int64_t n) { IN_PIECES(relu_piece, h, y) }

static void relu_gradient_piece(int bf16, const void *dy, const void *h, void *dh, void *act, int64_t at,
                                int64_t end)
{
    float in[PIECE], dys[PIECE], out[PIECE], made[PIECE];
    int64_t count = end - at;
    const float *x = read_piece(bf16, h, at, count, in), *g = read_piece(bf16, dy, at, count, dys);
    for (int64_t i = 0; i < count; i++) {
        made[i] = relu(x[i]);
        out[i] = x[i] <= 0 ? 0 : x[i] > 0 ? g[i] : x[i];
    }
    store_piece(bf16, dh, at, count, out);
    if (act) store_piece(bf16, act, at, count, made);
}

/* h (R, 2F) = [x1 | x2] */
static void swiglu_forward(int bf16, const void *h, void *y, int64_t R, int64_t F)
{
    PARALLEL_FOR for (int64_t row = 0; row < R; row++) for (int64_t at = 0; at < F; at += PIECE)
    {
        if (bf16) swiglu_piece(1, h, y, row * 2 * F + at, F, row * F + at, piece(F, at));
        else swiglu_piece(0, h, y, row * 2 * F + at, F, row * F + at, piece(F, at));
    }
}

void NAME(activation_forward)(const struct activation_value *o)
{
    int bf16 = o->type == DTYPE_BF16;
    assert(!o->bias);
    int64_t n = o->R * o->F;
    switch (o->kind) {
    case ACTIVATION_SWIGLU: swiglu_forward(bf16, o->h, o->y, o->R, o->F); return;
    case ACTIVATION_QUICK_GELU: quick_gelu_forward(bf16, o->h, o->y, n); return;
    case ACTIVATION_GELU_TANH: gelu_tanh_forward(bf16, o->h, o->y, n); return;
    case ACTIVATION_TANH: tanh_forward(bf16, o->h, o->y, n); return;
    case ACTIVATION_RELU: relu_forward(bf16, o->h, o->y, n); return;
    default: gelu_forward(bf16, o->h, o->y, n);
    }
}

/* Computes dh of `n` columns of a row from `at` on, and f(h). */
static inline void gradient_piece(int bf16, const struct activation_gradient *o, int64_t row, int64_t at,
                                  int64_t n)
{
    int64_t F = o->F, here = row * F + at, end = here + n;
    switch (o->kind) {
    case ACTIVATION_SWIGLU:
        swiglu_gradient_piece(bf16, o->dy, o->h, o->dh, o->act, here + row * F, F, here, n);
        return;
    case ACTIVATION_QUICK_GELU:
        quick_gelu_gradient_piece(bf16, o->dy, o->h, o->dh, o->act, here, end);
        return;
    case ACTIVATION_GELU_TANH: gelu_tanh_gradient_piece(bf16, o->dy, o->h, o->dh, o->act, here, end); return;
    case ACTIVATION_TANH: tanh_gradient_piece(bf16, o->dy, o->h, o->dh, o->act, here, end); return;
    case ACTIVATION_RELU: relu_gradient_piece(bf16, o->dy, o->h, o->dh, o->act, here, end); return;
    default: gelu_gradient_piece(bf16, o->dy, o->h, o->dh, o->act, here, end);
    }
}

/* Columns processed at a time, for all rows of a share: dh is added up while it is in the first-level cache,
 * in the order of column_sums. With fewer columns, every row would touch a new page. */
enum { PANEL = 4 * PIECE };
void NAME(activation_backward)(const struct activation_gradient *o, void *scratch)
{
    assert(!o->bias);
    float *shares = scratch;
    int bf16 = o->type == DTYPE_BF16;
    int64_t R = o->R, F = o->F, columns = o->kind == ACTIVATION_SWIGLU ? 2 * F : F;
    int64_t panels = (F + PANEL - 1) / PANEL, step = (R + ROW_SHARES - 1) / ROW_SHARES;
    PARALLEL_FOR for (int64_t k = 0; k < ROW_SHARES * panels; k++)
    {
        int64_t s = k / panels, from = k % panels * PANEL, to = F - from < PANEL ? F : from + PANEL;
        int64_t summed = o->sums ? columns : 0;
        float *share = shares + s * columns;
        for (int64_t c = 0; c < summed; c += F)
            memset(share + c + from, 0, (size_t)(to - from) * sizeof *share);
        for (int64_t row = s * step; row < (s + 1) * step && row < R; row++)
            for (int64_t at = from; at < to; at += PIECE) {
                int64_t n = piece(to, at);
                if (bf16) gradient_piece(1, o, row, at, n);
                else gradient_piece(0, o, row, at, n);
                for (int64_t c = 0; c < summed; c += F)
                    add_piece(bf16, o->dh, row * columns + c + at, n, share + c + at);
            }
    }
    if (o->sums) NAME(add_shares)(shares, columns, columns, o->sums);
}
