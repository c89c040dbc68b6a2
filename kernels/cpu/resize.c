/* The two passes of PIL's resize: plain C and AVX2. */
#include "kernels/cpu/resize.h"
#include "kernels/cpu/select.h"

#include <stdlib.h>
#include <string.h>

enum { LOW_BITS = 11, HALF = 1 << (RESIZE_BITS - 1) };

static uint8_t clip8(int x)
{
    x >>= RESIZE_BITS;
    return (uint8_t)(x < 0 ? 0 : x > 255 ? 255 : x);
}

static void across_plain(const struct resize_axis *a, const uint8_t *in, uint8_t *out)
{
    for (int i = 0; i < a->count; i++, out += 3) {
        const int *w = a->weights + (int64_t)i * a->size;
        const uint8_t *p = in + 3 * a->first[i];
        int r = HALF, g = HALF, b = HALF;
        for (int k = 0; k < a->length[i]; k++, p += 3) {
            r += w[k] * p[0];
            g += w[k] * p[1];
            b += w[k] * p[2];
        }
        out[0] = clip8(r);
        out[1] = clip8(g);
        out[2] = clip8(b);
    }
}

static void down_plain(const struct resize_axis *a, int i, const uint8_t *rows, int row_bytes, int from,
                       int to, uint8_t *out)
{
    enum { STRIP = 256 };
    int sums[STRIP];
    for (int x = from; x < to; x += STRIP) {
        int n = to - x < STRIP ? to - x : STRIP;
        for (int j = 0; j < n; j++) sums[j] = HALF;
        for (int k = 0; k < a->length[i]; k++) {
            int w = a->weights[(int64_t)i * a->size + k];
            const uint8_t *p = rows + (int64_t)(a->first[i] + k) * row_bytes + x;
            for (int j = 0; j < n; j++) sums[j] += w * p[j];
        }
        for (int j = 0; j < n; j++) out[x + j] = clip8(sums[j]);
    }
}

#if defined(__x86_64__)
#include <immintrin.h>
#define AVX2 __attribute__((target("avx2")))

bool resize_vector(void) { return cpu_isa_taken() != SET_PLAIN; }

/* Packs groups of four taps of one output pixel: the lower lane has taps 0 and 1, the upper 2 and 3, as pairs
 * of words for red, green and blue. Near the end of the row the taps move right in their group, with zeros
 * before them. A group reads four bytes more than its taps. */
void resize_pack(struct resize_axis *a, int in)
{
    int longest = 0;
    for (int i = 0; i < a->count; i++) longest = a->length[i] > longest ? a->length[i] : longest;
    int groups = (longest + 3) / 4;
    if (!resize_vector() || in < 4 * groups) return;
    a->start = malloc((size_t)a->count * sizeof(int));
    a->packed = aligned_alloc(64, (size_t)a->count * (size_t)groups * 64);
    if (!a->start || !a->packed) return;
    memset(a->packed, 0, (size_t)a->count * (size_t)groups * 64);
    a->groups = groups;
    for (int i = 0; i < a->count; i++) {
        int last = in - 4 * groups;
        a->start[i] = a->first[i] < last ? a->first[i] : last;
        for (int k = 0; k < a->length[i]; k++) {
            int at = a->first[i] - a->start[i] + k, w = a->weights[(int64_t)i * a->size + k];
            int16_t *group = a->packed + ((int64_t)i * groups + at / 4) * 32 + at % 4 / 2 * 8 + at % 2;
            for (int c = 0; c < 3; c++) {
                group[2 * c] = (int16_t)(w >> LOW_BITS);
                group[2 * c + 16] = (int16_t)(w & ((1 << LOW_BITS) - 1));
            }
        }
    }
}

/* (red, green, blue, 0) as words of one row's pixel */
AVX2 static inline __m128i join(__m256i high, __m256i low)
{
    __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(high, LOW_BITS), low);
    __m128i one = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    return _mm_srai_epi32(_mm_add_epi32(one, _mm_set1_epi32(HALF)), RESIZE_BITS);
}

AVX2 static inline __m256i spread(const uint8_t *p)
{
    const __m256i order =
        _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, /* taps 0, 1 */
                         6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p)),
                               order);
}

AVX2 static void across_four(const struct resize_axis *a, const uint8_t *in, int64_t stride, uint8_t *out)
{
    const __m256i *weights = (const __m256i *)(const void *)a->packed;
    int64_t across = (int64_t)a->count * 3;
    for (int i = 0; i < a->count; i++, out += 3) {
        const uint8_t *p = in + 3 * a->start[i];
        __m256i high[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                           _mm256_setzero_si256()};
        __m256i low[4] = {high[0], high[0], high[0], high[0]};
        for (int g = 0; g < a->groups; g++, p += 12, weights += 2)
            for (int r = 0; r < 4; r++) {
                __m256i taps = spread(p + r * stride);
                high[r] = _mm256_add_epi32(high[r], _mm256_madd_epi16(taps, weights[0]));
                low[r] = _mm256_add_epi32(low[r], _mm256_madd_epi16(taps, weights[1]));
            }
        uint8_t pixels[16];
        __m128i upper = _mm_packs_epi32(join(high[0], low[0]), join(high[1], low[1]));
        __m128i lower = _mm_packs_epi32(join(high[2], low[2]), join(high[3], low[3]));
        _mm_storeu_si128((__m128i *)(void *)pixels, _mm_packus_epi16(upper, lower));
        for (int r = 0; r < 4; r++) memcpy(out + r * across, pixels + 4 * r, 3);
    }
}

/* Computes 32 bytes of a row. Interleaving two rows of taps, and packing, work within 128-bit lanes. */
AVX2 static void down_strip(const struct resize_axis *a, int i, const uint8_t *rows, int row_bytes,
                            uint8_t *out)
{
    const int *w = a->weights + (int64_t)i * a->size;
    const uint8_t *p = rows + (int64_t)a->first[i] * row_bytes;
    const __m256i zero = _mm256_setzero_si256();
    __m256i high[4] = {zero, zero, zero, zero}, low[4] = {zero, zero, zero, zero};
    for (int k = 0, n = a->length[i]; k < n; k += 2, p += 2 * (int64_t)row_bytes) {
        int w0 = w[k], w1 = k + 1 < n ? w[k + 1] : 0;
        uint32_t highs = (uint32_t)(w0 >> LOW_BITS & 0xFFFF) | (uint32_t)(w1 >> LOW_BITS) << 16;
        uint32_t lows = (uint32_t)(w0 & ((1 << LOW_BITS) - 1)) | (uint32_t)(w1 & ((1 << LOW_BITS) - 1)) << 16;
        __m256i wh = _mm256_set1_epi32((int)highs), wl = _mm256_set1_epi32((int)lows);
        __m256i r0 = _mm256_loadu_si256((const __m256i *)(const void *)p);
        __m256i r1 = _mm256_loadu_si256((const __m256i *)(const void *)(k + 1 < n ? p + row_bytes : p));
        __m256i lower = _mm256_unpacklo_epi8(r0, r1), upper = _mm256_unpackhi_epi8(r0, r1);
        __m256i pairs[4] = {_mm256_unpacklo_epi8(lower, zero), _mm256_unpackhi_epi8(lower, zero),
                            _mm256_unpacklo_epi8(upper, zero), _mm256_unpackhi_epi8(upper, zero)};
        for (int j = 0; j < 4; j++) {
            high[j] = _mm256_add_epi32(high[j], _mm256_madd_epi16(pairs[j], wh));
            low[j] = _mm256_add_epi32(low[j], _mm256_madd_epi16(pairs[j], wl));
        }
    }
    for (int j = 0; j < 4; j++) {
        __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(high[j], LOW_BITS), low[j]);
        high[j] = _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(HALF)), RESIZE_BITS);
    }
    __m256i bytes =
        _mm256_packus_epi16(_mm256_packs_epi32(high[0], high[1]), _mm256_packs_epi32(high[2], high[3]));
    _mm256_storeu_si256((__m256i *)(void *)out, bytes);
}
#else
bool resize_vector(void) { return false; }
void resize_pack(struct resize_axis *axis, int in)
{
    (void)axis;
    (void)in;
}
#endif

void resize_across(const struct resize_axis *axis, const uint8_t *in, int64_t stride, int rows, uint8_t *out)
{
    int r = 0;
#if defined(__x86_64__) /* the vector form would read beyond the last row */
    for (; axis->groups && r + 4 < rows; r += 4)
        across_four(axis, in + r * stride, stride, out + (int64_t)r * axis->count * 3);
#endif
    for (; r < rows; r++) across_plain(axis, in + r * stride, out + (int64_t)r * axis->count * 3);
}

void resize_down(const struct resize_axis *axis, int i, const uint8_t *rows, int row_bytes, bool vector,
                 uint8_t *out)
{
    int x = 0;
#if defined(__x86_64__)
    for (; vector && x + 32 <= row_bytes; x += 32) down_strip(axis, i, rows + x, row_bytes, out + x);
#else
    (void)vector;
#endif
    down_plain(axis, i, rows, row_bytes, x, row_bytes, out);
}
