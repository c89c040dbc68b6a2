/* Adafactor: sums of rows and columns that are exact, so that threads and parts keep their bits; low-bit
 * weights and first moments against float64, with the tolerance that their rounding allows; bytes; resumed
 * states; gradients that are not finite. Its equation: tests/golden/golden_optim.c. */
#include "core/optim/optim.h"
#include "kernels/optim_factor.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { ROWS = 300, COLUMNS = 333, N = ROWS * COLUMNS, STEPS = 20 };
static const double LR = 1e-3;
static float start[N], gradients[STEPS][N], now[N], other[N];

static double uniform(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(*seed >> 11) * 0x1p-53;
}

/* Normal numbers, with outliers of 100 to 3,000 times. */
static int setup(void **state)
{
    uint64_t seed = 58;
    for (int s = -1; s < STEPS; s++)
        for (int i = 0; i < N; i++) {
            double x = sqrt(-2 * log(1 - uniform(&seed))) * cos(6.283185307179586 * uniform(&seed));
            if (s >= 0 && uniform(&seed) < 1e-3) x *= 100 * pow(30, uniform(&seed));
            if (s < 0) start[i] = (float)(x * 0.02);
            else gradients[s][i] = (float)(x * 1e-4);
        }
    return 0;
}

static struct meopt_options options_of(const char *preset, double beta1)
{
    struct meopt_options o;
    assert_int_equal(meopt_options_init(&o, sizeof o, MEOPT_ADAFACTOR), MEOPT_OK);
    assert_int_equal(meopt_options_preset(&o, preset, NULL), MEOPT_OK);
    o.beta1 = beta1;
    o.seed = 3;
    return o;
}

static struct meopt *made(const struct meopt_options *o)
{
    struct meopt_tensor tensor = {.name = "w", .ndim = 2, .shape = {ROWS, COLUMNS}};
    struct meopt *opt;
    struct meopt_error err;
    if (meopt_create(&opt, o, &tensor, 1, &err)) fail_msg("%s", err.message);
    assert_int_equal(meopt_import(opt, 0, 0, N, start, NULL), MEOPT_OK);
    return opt;
}

static void steps(struct meopt *opt, int first, int last)
{
    for (int s = first; s <= last; s++) {
        struct meopt_gradient g = {gradients[s - 1], MEOPT_F32};
        struct meopt_error err;
        if (meopt_step(opt, s, LR, 1, &g, NULL, &err)) fail_msg("%s", err.message);
    }
}

static void a_total_is_that_of_the_exact_sum(void **state)
{
    enum { MANY = 5000 };
    static double x[MANY];
    uint64_t seed = 1;
    for (int scale = -140; scale <= 100; scale += 30) {
        double levels[2][FACTOR_LEVELS] = {{0}}, exact = 0;
        for (int i = 0; i < MANY; i++) {
            float g = (float)ldexp(uniform(&seed) + 0.1, (int)(scale / 2 - 20 * uniform(&seed)));
            x[i] = (double)g * (double)g;
        }
        for (int pass = 0; pass < 2;
             pass++) /* forward from the highest level, and backward from each square's own */
            for (int i = 0; i < MANY; i++) {
                double left = x[pass ? MANY - 1 - i : i];
                uint64_t bits;
                memcpy(&bits, &left, sizeof bits);
                int from = pass ? factor_level(bits) : FACTOR_LEVELS - 1;
                for (int l = from; l >= 0; l--) {
                    double units = (left + factor_rounder(l)) - factor_rounder(l);
                    levels[pass][l] += units;
                    left -= units;
                }
            }
        for (int i = 0; i < MANY; i++) exact += x[i];
        double total = factor_total(levels[0], 1);
        assert_true(total == factor_total(levels[1], 1));
        assert_true(fabs(total - exact) <= 1e-11 * exact + MANY * 0x1p-151);
    }
}

static void threads_keep_the_bits(void **state)
{
    for (int threads = 1; threads <= 7; threads += 2) {
        struct meopt_options o = options_of("minimal", 0.9);
        o.threads = threads;
        o.scale_parameter = 1;
        struct meopt *opt = made(&o);
        steps(opt, 1, 5);
        assert_int_equal(meopt_export(opt, 0, 0, N, threads == 1 ? now : other, NULL), MEOPT_OK);
        if (threads > 1) assert_memory_equal(now, other, sizeof now);
        meopt_destroy(opt);
    }
}

/* The equation in float64; *spread: the root of the sum over steps of the mean square of |m| + largest |m| /
 * 16. */
static void reference(double beta1, double *w, double *spread)
{
    static double rows[ROWS], columns[COLUMNS], u[N], m[N];
    double sum = 0;
    memset(rows, 0, sizeof rows);
    memset(columns, 0, sizeof columns);
    memset(m, 0, sizeof m);
    for (int i = 0; i < N; i++) w[i] = (double)start[i];
    for (int s = 1; s <= STEPS; s++) {
        double rest = pow(s, -0.8), mean = 0, squares = 0, largest = 0, of_m = 0;
        for (int i = 0; i < ROWS; i++) rows[i] *= 1 - rest;
        for (int j = 0; j < COLUMNS; j++) columns[j] *= 1 - rest;
        for (int i = 0; i < N; i++) {
            double g = (double)gradients[s - 1][i], square = (g * g + 1e-30) * rest;
            rows[i / COLUMNS] += square / COLUMNS;
            columns[i % COLUMNS] += square / ROWS;
        }
        for (int i = 0; i < ROWS; i++) mean += rows[i] / ROWS;
        for (int i = 0; i < N; i++) {
            u[i] = (double)gradients[s - 1][i] / sqrt(rows[i / COLUMNS] / mean * columns[i % COLUMNS]);
            squares += u[i] * u[i];
        }
        for (int i = 0; i < N; i++) {
            m[i] = beta1 * m[i] + (1 - beta1) * LR * u[i] / fmax(1, sqrt(squares / N));
            w[i] -= m[i];
            largest = fmax(largest, fabs(m[i]));
        }
        for (int i = 0; i < N; i++) of_m += pow(fabs(m[i]) + largest / 16, 2) / N;
        sum += of_m;
    }
    *spread = sqrt(sum);
}

/* Stochastic rounding of a weight errs by at most half a unit in the mean square, 2^-8 of it. A code of the
 * first moment is one of 127 steps over four to eight binades, 4.5 percent of |m| + c, and what it errs
 * enters beta1 / (1 - beta1) later updates. */
static void low_bits_follow_float64(void **state)
{
    static double w[N];
    static const struct {
        const char *preset;
        double beta1;
    } rows[] = {{"fp32", 0}, {"fp32", 0.9}, {"minimal", 0}, {"balanced", 0.9}, {"minimal", 0.9}};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        double spread, size = 0, off = 0, bias = 0, beta1 = rows[r].beta1;
        struct meopt_options o = options_of(rows[r].preset, beta1);
        struct meopt *opt = made(&o);
        reference(beta1, w, &spread);
        steps(opt, 1, STEPS);
        assert_int_equal(meopt_export(opt, 0, 0, N, now, NULL), MEOPT_OK);
        for (int i = 0; i < N; i++) {
            double d = (double)now[i] - w[i];
            size += w[i] * w[i] / N;
            off += d * d / N;
            bias += d / N;
        }
        double weight = o.weights == MEOPT_WEIGHTS_F32       ? 1e-6
                        : o.weights == MEOPT_WEIGHTS_BF16_SR ? 0x1p-8 * sqrt(STEPS + 1)
                                                             : 0x1p-12 * sqrt(STEPS + 1),
               moment = o.first_moment == MEOPT_STATE_F32 ? 0 : 0.045 * beta1 / (1 - beta1) * spread;
        double most = hypot(weight * sqrt(size), moment);
        if (!(sqrt(off) <= most) || !(fabs(bias) <= 6 * most / sqrt(N)))
            fail_msg("%s beta1 %g: off %.3g of %.3g, bias %.3g", rows[r].preset, beta1, sqrt(off), most,
                     bias);
        meopt_destroy(opt);
    }
}

static void minimal_holds_two_bytes(void **state)
{
    static const struct meopt_tensor layers[] = {{.name = "fc", .ndim = 2, .shape = {4096, 4096}},
                                                 {.name = "bias", .ndim = 1, .shape = {4096}},
                                                 {.name = "patch", .ndim = 4, .shape = {1024, 3, 14, 14}}};
    struct meopt_options o = options_of("minimal", 0);
    struct meopt_bytes planned, held;
    struct meopt *opt;
    assert_int_equal(meopt_query(&o, layers, 3, &planned, NULL), MEOPT_OK);
    assert_int_equal(meopt_create(&opt, &o, layers, 3, NULL), MEOPT_OK);
    assert_int_equal(meopt_held(opt, &held), MEOPT_OK);
    assert_memory_equal(&planned, &held, sizeof held);
    assert_true((double)(held.total - held.workspace) <= 2.1 * (double)held.parameters);
    assert_true(held.workspace > 0);
    meopt_destroy(opt);
}

static void a_state_goes_on_with_the_same_bits(void **state)
{
    for (int k = 0; k < 6; k++) {
        static const char *const presets[] = {"minimal", "balanced", "fp32"};
        struct meopt_options o = options_of(presets[k / 2], k % 2 ? 0.9 : 0);
        struct meopt *from = made(&o), *to = made(&o);
        steps(from, 1, 7);
        size_t bytes = meopt_state_bytes(from, 0);
        char *record = malloc(bytes);
        assert_int_equal(meopt_state_save(from, 0, record, bytes, NULL), MEOPT_OK);
        assert_int_equal(meopt_export(from, 0, 0, N, now, NULL), MEOPT_OK);
        assert_int_equal(meopt_import(to, 0, 0, N, now, NULL), MEOPT_OK);
        assert_int_equal(meopt_state_load(to, 0, record, bytes, NULL), MEOPT_OK);
        steps(from, 8, 10);
        steps(to, 8, 10);
        assert_int_equal(meopt_export(from, 0, 0, N, now, NULL), MEOPT_OK);
        assert_int_equal(meopt_export(to, 0, 0, N, other, NULL), MEOPT_OK);
        assert_memory_equal(now, other, sizeof now);
        record[bytes - 7] ^= 0x40; /* of a column mean */
        assert_int_equal(meopt_state_load(to, 0, record, bytes, NULL), MEOPT_BAD_STATE);
        free(record);
        meopt_destroy(from);
        meopt_destroy(to);
    }
}

static void a_gradient_that_is_not_finite_changes_nothing(void **state)
{
    struct meopt_options o = options_of("minimal", 0);
    struct meopt *opt = made(&o);
    size_t bytes = meopt_state_bytes(opt, 0);
    char *before = malloc(bytes), *after = malloc(bytes);
    steps(opt, 1, 2);
    meopt_state_save(opt, 0, before, bytes, NULL);
    meopt_export(opt, 0, 0, N, now, NULL);
    memcpy(other, gradients[2], sizeof other);
    other[N / 2] = INFINITY;
    assert_int_equal(meopt_step_begin(opt, 3, LR, 1, NULL), MEOPT_OK);
    assert_int_equal(meopt_step_tensor(opt, 0, other, MEOPT_F32, 1, NULL), MEOPT_NOT_FINITE);
    assert_int_equal(meopt_step_end(opt, NULL, NULL), MEOPT_NOT_FINITE);
    meopt_state_save(opt, 0, after, bytes, NULL);
    assert_memory_equal(before, after, bytes);
    /* without the check, one group of 64 keeps its weights */
    assert_int_equal(meopt_step_begin(opt, 4, LR, 0, NULL), MEOPT_OK);
    assert_int_equal(meopt_step_tensor(opt, 0, other, MEOPT_F32, 1, NULL), MEOPT_NOT_FINITE);
    meopt_step_end(opt, NULL, NULL);
    meopt_export(opt, 0, 0, N, other, NULL);
    int64_t group = N / 2 / 64 * 64;
    for (int64_t i = 0; i < N; i++) {
        assert_true(isfinite(other[i]));
        if (i >= group && i < group + 64) assert_true(other[i] == now[i]);
    }
    free(before);
    free(after);
    meopt_destroy(opt);
}

/* A table and a matrix of muon in one handle: the table's record is that of a handle of its own, also after a
 * step that one of the two refuses, in which neither changes. */
static void a_table_next_to_muon_has_the_bits_of_its_own_handle(void **state)
{
    static const char *const presets[] = {"balanced", "minimal", "fp32"};
    struct meopt_tensor both[2] = {
        {.name = "w", .ndim = 2, .shape = {ROWS, COLUMNS}, .flags = MEOPT_OWN_RULE, .rule = MEOPT_ADAFACTOR},
        {.name = "m", .ndim = 2, .shape = {ROWS, 64}}};
    for (int k = 0; k < 6; k++) {
        struct meopt_options alone = options_of(presets[k / 2], 0.9), o = alone;
        struct meopt *opt, *own = made(&alone);
        struct meopt_error err;
        meopt_options_init(&o, sizeof o, MEOPT_MUON);
        meopt_options_preset(&o, presets[k / 2], NULL);
        o.seed = 3;
        o.all_or_nothing = 1;
        if (meopt_create(&opt, &o, both, 2, &err)) fail_msg("%s", err.message);
        assert_int_equal(meopt_import(opt, 0, 0, N, start, NULL), MEOPT_OK);
        assert_int_equal(meopt_import(opt, 1, 0, (int64_t)ROWS * 64, start, NULL), MEOPT_OK);
        size_t bytes[2] = {meopt_state_bytes(own, 0), meopt_state_bytes(opt, 1)};
        assert_int_equal(meopt_state_bytes(opt, 0), bytes[0]);
        char *record = malloc(2 * (bytes[0] + bytes[1]));
        char *mine = record + bytes[0], *matrix = mine + bytes[0], *after = matrix + bytes[1];
        for (int s = 1; s <= 6; s++) {
            struct meopt_gradient g[2] = {{gradients[s - 1], MEOPT_F32}, {gradients[s - 1], MEOPT_F32}};
            if (s == 4) { /* of the table, or of the matrix */
                memcpy(other, gradients[s - 1], sizeof other);
                other[5] = NAN;
                g[k % 2].data = other;
                meopt_state_save(opt, 1, matrix, bytes[1], NULL);
                assert_int_equal(meopt_step(opt, s, LR, 1, g, NULL, NULL), MEOPT_NOT_FINITE);
                meopt_state_save(opt, 1, after, bytes[1], NULL);
                assert_memory_equal(matrix, after, bytes[1]);
                continue;
            }
            if (meopt_step(opt, s, LR, 1, g, NULL, &err)) fail_msg("%s", err.message);
            steps(own, s, s);
        }
        assert_int_equal(meopt_state_save(opt, 0, record, bytes[0], &err), MEOPT_OK);
        assert_int_equal(meopt_state_save(own, 0, mine, bytes[0], &err), MEOPT_OK);
        assert_memory_equal(record, mine, bytes[0]);
        assert_int_equal(meopt_state_load(own, 0, record, bytes[0], &err), MEOPT_OK);
        assert_int_equal(meopt_export(opt, 0, 0, N, now, NULL), MEOPT_OK);
        assert_int_equal(meopt_export(own, 0, 0, N, other, NULL), MEOPT_OK);
        assert_memory_equal(now, other, sizeof now);
        free(record);
        meopt_destroy(opt);
        meopt_destroy(own);
    }
}

/* Gradients from the smallest to the largest that a step takes, also without eps: weights stay finite. */
static void extreme_gradients_leave_finite_weights(void **state)
{
    for (int k = 0; k < 4; k++) {
        struct meopt_options o = options_of("fp32", k % 2 ? 0.9 : 0);
        if (k / 2) o.eps = 0;
        struct meopt *opt = made(&o);
        uint64_t seed = 9;
        for (int s = 1; s <= 3; s++) {
            for (int i = 0; i < N; i++) {
                int scale = i / COLUMNS % 3 == 0   ? -70
                            : i % COLUMNS % 5 == 0 ? 61
                                                   : (int)(120 * uniform(&seed)) - 60;
                other[i] = i % 7 ? (float)ldexp(uniform(&seed) - 0.5, scale) : 0;
            }
            struct meopt_gradient g = {other, MEOPT_F32};
            assert_int_equal(meopt_step(opt, s, LR, 1, &g, NULL, NULL), MEOPT_OK);
            assert_int_equal(meopt_export(opt, 0, 0, N, now, NULL), MEOPT_OK);
            for (int i = 0; i < N; i++) assert_true(fabs((double)now[i]) < 1e3);
        }
        meopt_destroy(opt);
    }
}

static void what_cannot_be_is_refused(void **state)
{
    struct meopt_options o = options_of("minimal", 0);
    struct meopt_tensor wide = {.name = "w", .ndim = 2, .shape = {2, FACTOR_MOST + 1}};
    struct meopt *opt;
    o.dry = 1;
    assert_int_equal(meopt_create(&opt, &o, &wide, 1, NULL), MEOPT_BAD_ARGUMENT);
    wide.shape[1]--;
    o.warmup_init = 1; /* without relative_step */
    assert_int_equal(meopt_create(&opt, &o, &wide, 1, NULL), MEOPT_BAD_ARGUMENT);
    o.warmup_init = 0;
    o.average_decay = 0.9;
    assert_int_equal(meopt_create(&opt, &o, &wide, 1, NULL), MEOPT_BAD_ARGUMENT);
    o.average_decay = 0;
    o.decay_rate = 0.1;
    assert_int_equal(meopt_create(&opt, &o, &wide, 1, NULL), MEOPT_BAD_ARGUMENT);
    o.decay_rate = -0.8;
    assert_int_equal(meopt_create(&opt, &o, &wide, 1, NULL), MEOPT_OK);
    meopt_destroy(opt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_total_is_that_of_the_exact_sum),
                                       cmocka_unit_test(threads_keep_the_bits),
                                       cmocka_unit_test(low_bits_follow_float64),
                                       cmocka_unit_test(minimal_holds_two_bytes),
                                       cmocka_unit_test(a_state_goes_on_with_the_same_bits),
                                       cmocka_unit_test(a_gradient_that_is_not_finite_changes_nothing),
                                       cmocka_unit_test(a_table_next_to_muon_has_the_bits_of_its_own_handle),
                                       cmocka_unit_test(extreme_gradients_leave_finite_weights),
                                       cmocka_unit_test(what_cannot_be_is_refused)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
