/* One line of metrics.jsonl: see metric_line.h. */
#include "core/run/metric_line.h"
#include "core/base/memory.h"
#include "core/base/retry.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* m * 10^e for 0 < m and |e| <= 27: 5^27 fits in 64 bits, so the product, or the quotient with its remainder,
 * is exact before the one rounding (to nearest, ties to even). */
static double scale(uint64_t m, int e)
{
    static const uint64_t five[] = {1ull,
                                    5ull,
                                    25ull,
                                    125ull,
                                    625ull,
                                    3125ull,
                                    15625ull,
                                    78125ull,
                                    390625ull,
                                    1953125ull,
                                    9765625ull,
                                    48828125ull,
                                    244140625ull,
                                    1220703125ull,
                                    6103515625ull,
                                    30517578125ull,
                                    152587890625ull,
                                    762939453125ull,
                                    3814697265625ull,
                                    19073486328125ull,
                                    95367431640625ull,
                                    476837158203125ull,
                                    2384185791015625ull,
                                    11920928955078125ull,
                                    59604644775390625ull,
                                    298023223876953125ull,
                                    1490116119384765625ull,
                                    7450580596923828125ull};
    int exponent = e, up = __builtin_clzll(m);
    uint64_t high, rest;
    m <<= up; /* value: m * 5^e * 2^(e - up) */
    exponent -= up;
    if (e < 0) {
        int divisor_up = __builtin_clzll(five[-e]);
        uint64_t divisor = five[-e] << divisor_up;
        unsigned __int128 numerator = (unsigned __int128)m << 63;
        high = (uint64_t)(numerator / divisor);
        rest = (uint64_t)(numerator % divisor);
        exponent += divisor_up - 63;
    } else {
        unsigned __int128 product = (unsigned __int128)m * five[e];
        high = (uint64_t)(product >> 64);
        rest = (uint64_t)product;
        exponent += 64;
        if (!high) { /* 5^0 */
            high = rest;
            rest = 0;
            exponent -= 64;
        }
    }
    int lead = __builtin_clzll(
        high); /* high keeps 64 - lead bits; 53 are wanted, one more decides, the rest is sticky */
    int drop = 11 - lead;
    uint64_t kept;
    if (drop > 0) {
        uint64_t below = high & ((1ull << drop) - 1), half = 1ull << (drop - 1);
        kept = high >> drop;
        if (below > half || (below == half && (rest || (kept & 1)))) kept++;
    } else { /* a short product: bits of rest come up */
        int more = -drop;
        kept = more ? high << more | rest >> (64 - more) : high;
        uint64_t below = more ? rest << more : rest, half = 1ull << 63;
        if (below > half || (below == half && (kept & 1))) kept++;
    }
    return ldexp((double)kept, exponent + drop);
}

static double slow_number(const char *text, const char *end, const char **after)
{
    char copy[512];
    size_t n = (size_t)(end - text) < sizeof copy - 1 ? (size_t)(end - text) : sizeof copy - 1;
    memcpy(copy, text, n);
    copy[n] = 0;
    char *stop;
    double value = strtod(copy, &stop);
    *after = text + (stop - copy);
    return value;
}

static bool word(const char *text, const char *end, const char *expected, const char **after)
{
    size_t n = strlen(expected);
    if ((size_t)(end - text) < n || memcmp(text, expected, n) != 0) return false;
    *after = text + n;
    return true;
}

double metric_number(const char *text, const char *end, const char **after)
{
    const char *p = text;
    bool negative = p < end && *p == '-';
    uint64_t m = 0;
    int digits = 0, e = 0, seen = 0;
    *after = text;
    if (negative) p++;
    if (word(p, end, "NaN", after) || word(p, end, "nan", after)) return NAN;
    if (word(p, end, "Infinity", after) || word(p, end, "inf", after)) return negative ? -INFINITY : INFINITY;
    for (; p < end && *p >= '0' && *p <= '9'; p++, seen++) {
        m = m * 10 + (uint64_t)(*p - '0');
        digits += digits || m;
    }
    if (seen && p < end && *p == '.') {
        const char *point = ++p;
        for (; p < end && *p >= '0' && *p <= '9'; p++) {
            m = m * 10 + (uint64_t)(*p - '0');
            digits += digits || m;
        }
        if (p == point) seen = 0;
        e = (int)(point - p);
    }
    if (!seen) return NAN;
    if (p < end && (*p == 'e' || *p == 'E')) {
        int sign = 1, ten = 0;
        const char *q = p + 1;
        if (q < end && (*q == '+' || *q == '-')) sign = *q++ == '-' ? -1 : 1;
        if (q == end || *q < '0' || *q > '9') return NAN;
        for (; q < end && *q >= '0' && *q <= '9'; q++)
            if (ten < 10000) ten = ten * 10 + *q - '0';
        e += sign * ten;
        p = q;
    }
    *after = p;
    if (digits <= 19 && m == 0) return negative ? -0.0 : 0.0;
    if (digits > 19 || e < -27 || e > 27) return slow_number(text, p, after);
    double value;
#if FLT_EVAL_METHOD == 0
    /* Clinger: an integer and a power of ten that are both exact doubles require only one rounding */
    static const double ten[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    if (m <= 1ull << 53 && e >= -22 && e <= 22) value = e < 0 ? (double)m / ten[-e] : (double)m * ten[e];
    else
#endif
        value = scale(m, e);
    return negative ? -value : value;
}

/* Returns the end of the string that begins at p (a quote), or NULL. */
static const char *skip_string(const char *p, const char *end)
{
    for (p++; p < end; p++) {
        if (*p == '"') return p + 1;
        if (*p == '\\') p++;
        else if ((unsigned char)*p < 0x20) return NULL;
    }
    return NULL;
}

static const char *skip_space(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n')) p++;
    return p;
}

/* Returns the end of any value, or NULL. In nested values, only strings and the balance of brackets are
 * checked. */
static const char *skip_value(const char *p, const char *end)
{
    if (p == end) return NULL;
    if (*p == '"') return skip_string(p, end);
    if (*p != '{' && *p != '[') {
        const char *after;
        if (word(p, end, "null", &after) || word(p, end, "true", &after) || word(p, end, "false", &after))
            return after;
        (void)metric_number(p, end, &after);
        return after == p ? NULL : after;
    }
    for (int depth = 0; p < end;) {
        if (*p == '"') {
            if (!(p = skip_string(p, end))) return NULL;
            continue;
        }
        if (*p == '{' || *p == '[') depth++;
        if ((*p == '}' || *p == ']') && --depth == 0) return p + 1;
        p++;
    }
    return NULL;
}

struct field {
    const char *name;
    size_t bytes, offset;
};
#define FIELD(name)                                                                                          \
    {                                                                                                        \
#name, sizeof #name - 1, offsetof(struct metric_line, name)                                          \
    }
// clang-format off
#define SCORE(number, name, ...) \
    {#name, sizeof #name - 1, offsetof(struct metric_line, scores) + SCORE_##number * sizeof(double)},
static const struct field fields[] = {FIELD(loss), SCORES(SCORE)
                                      FIELD(lr), FIELD(grad_norm), FIELD(images_per_s), FIELD(step_ms),
                                      FIELD(data_wait_ms), FIELD(stream_wait_ms), FIELD(offload_wait_ms),
                                      FIELD(bubble)};
// clang-format on

const struct metric_line metric_line_unknown = {.step = -1,
                                                .epoch = -1,
                                                .loss = NAN,
                                                .lr = NAN,
                                                .grad_norm = NAN,
                                                .images_per_s = NAN,
                                                .step_ms = NAN,
                                                .data_wait_ms = NAN,
                                                .stream_wait_ms = NAN,
                                                .offload_wait_ms = NAN,
                                                .bubble = NAN,
                                                .scores = SCORES_UNKNOWN};

double metric_rate(const struct metric_line *line, const struct unit **unit)
{
    double tokens = line->scores[SCORE_TOKENS_PER_S];
    *unit = unit_of(!isnan(tokens));
    return isnan(tokens) ? line->images_per_s : tokens;
}

static bool whole(double value, int64_t *out)
{
    if (!(value >= 0 && value < 9007199254740992.0) || value != floor(value)) return false;
    *out = (int64_t)value;
    return true;
}

bool metric_line_parse(struct metric_line *line, const char *text, size_t bytes)
{
    const char *p = text, *end = text + bytes;
    bool has_step = false;
    size_t next = 0; /* fields are usually in the order of the table */
    *line = metric_line_unknown;
    p = skip_space(p, end);
    if (p == end || *p++ != '{') return false;
    for (p = skip_space(p, end);;) {
        if (p == end || *p != '"') return false;
        const char *name = p + 1, *value;
        if (!(p = skip_string(p, end))) return false;
        size_t n = (size_t)(p - 1 - name);
        p = skip_space(p, end);
        if (p == end || *p++ != ':') return false;
        p = value = skip_space(p, end);
        size_t i = 0;
        while (i < sizeof fields / sizeof *fields) {
            const struct field *f = &fields[(next + i) % (sizeof fields / sizeof *fields)];
            if (f->bytes == n && memcmp(f->name, name, n) == 0) break;
            i++;
        }
        if (i < sizeof fields / sizeof *fields) {
            next = (next + i) % (sizeof fields / sizeof *fields);
            double number = metric_number(value, end, &p);
            if (p != value) *(double *)((char *)line + fields[next].offset) = number;
            next++;
        } else if (n == 4 && memcmp(name, "step", 4) == 0) {
            has_step = whole(metric_number(value, end, &p), &line->step);
            if (!has_step) return false;
        } else if (n == 5 && memcmp(name, "epoch", 5) == 0) {
            if (!whole(metric_number(value, end, &p), &line->epoch)) line->epoch = -1;
        }
        const char *after;
        line->no_loss |= n == 4 && memcmp(name, "loss", 4) == 0 && word(value, end, "null", &after);
        if (p == value && !(p = skip_value(value, end))) return false;
        if (n == 5 && memcmp(name, "cards", 5) == 0 && *value == '[') {
            line->cards_at = (size_t)(value - text);
            line->cards_bytes = (size_t)(p - value);
        } else if (n == 13 && memcmp(name, "cards_summary", 13) == 0 && *value == '{') {
            line->summary_at = (size_t)(value - text);
            line->summary_bytes = (size_t)(p - value);
        }
        p = skip_space(p, end);
        if (p == end) return false;
        if (*p == '}') break;
        if (*p++ != ',') return false;
        p = skip_space(p, end);
    }
    return has_step && skip_space(p + 1, end) == end;
}

double metric_step(const char *text, size_t bytes)
{
    const char *at = memmem(text, bytes, "\"step\":", 7);
    return at ? metric_number(at + 7, text + bytes, &(const char *){NULL}) : -1;
}

/* ---- In a file ---- */

enum { FIRST_READ_BYTES = 8192, MOST_READ_BYTES = 4 << 20 /* of one line: thousands of ranks */ };

/* Finds the first complete line in n bytes of a file, or the last one. Returns its size; 0: there is none. */
static int64_t find(struct metric_line *line, const char *buffer, size_t n, bool from_start, bool last)
{
    const char *p = from_start ? buffer : memchr(buffer, '\n', n), *end = buffer + n;
    int64_t found = 0;
    if (p && !from_start) p++;
    for (const char *stop; p && (stop = memchr(p, '\n', (size_t)(end - p))) != NULL && (last || !found);
         p = stop + 1) {
        struct metric_line l;
        if (!metric_line_parse(&l, p, (size_t)(stop - p))) continue;
        *line = l;
        found = stop + 1 - p;
    }
    return found;
}

int64_t metric_line_at(int fd, int64_t at, struct metric_line *line)
{
    int64_t found = 0;
    bool more = true;
    for (size_t capacity = FIRST_READ_BYTES; more && !found && capacity <= MOST_READ_BYTES; capacity *= 8) {
        char *buffer = xmalloc(capacity);
        ssize_t n = retry_read(fd, buffer, capacity, at);
        if (n > 0) found = find(line, buffer, (size_t)n, at == 0, false);
        more = n == (ssize_t)capacity;
        free(buffer);
    }
    return found;
}

int64_t metric_line_last(int fd, int64_t size, struct metric_line *line)
{
    int64_t found = 0, at = 1;
    for (size_t capacity = FIRST_READ_BYTES; at > 0 && !found && capacity <= MOST_READ_BYTES; capacity *= 8) {
        char *buffer = xmalloc(capacity);
        at = size > (int64_t)capacity ? size - (int64_t)capacity : 0;
        ssize_t n = retry_read(fd, buffer, capacity, at);
        if (n > 0) found = find(line, buffer, (size_t)n, at == 0, true);
        free(buffer);
    }
    return found;
}
