/* Every operation of a device against plain float64 arithmetic: one table of operations and shapes, run in
 * both element types on every back end and instruction set that this machine has. Each trial also demands
 * that
 *   - nothing is written outside an operand, and outputs are written whole;
 *   - another number of threads gives the same bits;
 *   - the dry device asks for the same scratch;
 * and each backward operation that its reference is the gradient of the forward one, by central differences.
 *
 * test_ops --time [filter] times the operations at the size of a real tower instead, ops_reference.h has the
 * arithmetic. A device that must be there: MEOPT_TEST_DEVICE=hip:0.
 */
#include "tests/unit/ops_attention.h"
#include "tests/unit/ops_codes.h"
#include "tests/unit/ops_elements.h"
#include "tests/unit/ops_embed.h"
#include "tests/unit/ops_issue.h"
#include "tests/unit/ops_language.h"
#include "tests/unit/ops_logits.h"
#include "tests/unit/ops_products.h"
#include "tests/unit/ops_reference.h"
#include "tests/unit/ops_rows.h"
#include "tests/unit/ops_stream.h"
#include "tests/unit/ops_time.h"
#include "tests/card.h"
#include "tests/unit/isas.h"

#include <fnmatch.h>
#include <stdio.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* A header's rows are at its end, next to the functions that they name. */
#define ROWS(of)                                                                                             \
    {                                                                                                        \
        of##_operations, sizeof of##_operations / sizeof *of##_operations                                    \
    }
static const struct {
    const struct operation *rows;
    size_t count;
} tables[] = {ROWS(products),  ROWS(embed), ROWS(reference), ROWS(stream),   ROWS(rows),
              ROWS(attention), ROWS(codes), ROWS(elements),  ROWS(language), ROWS(logits)};
enum { MOST = 128 };
static struct operation operations[MOST];
static int operation_count;

static void collect(void)
{
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        assert_true((size_t)operation_count + tables[i].count <= MOST);
        memcpy(operations + operation_count, tables[i].rows, tables[i].count * sizeof *operations);
        operation_count += (int)tables[i].count;
    }
}

static void describe(const struct trial *T, const struct operation *op, char *text, size_t size)
{
    snprintf(text, size, "%s %s %s %s (%lld %lld %lld %lld)", device_kind_names[T->device->kind],
             getenv("MEOPT_CPU_ISA") ? getenv("MEOPT_CPU_ISA") : "", op->name, dtype_name(T->t),
             (long long)T->s[0], (long long)T->s[1], (long long)T->s[2], (long long)T->s[3]);
}

static void check_operand(struct trial *T, const struct operation *op, int i)
{
    struct operand *o = &T->o[i];
    char text[160];
    describe(T, op, text, sizeof text);
    uint8_t *image = operand_download(T, i);
    for (size_t g = 0; g < GUARD; g++)
        if (image[g] != MARK || image[GUARD + operand_bytes(o) + g] != MARK)
            fail_msg("%s: wrote outside operand %d", text, i);
    double roundoff = o->type == DTYPE_BF16  ? u16
                      : o->type == DTYPE_F16 ? 0x1p-11
                      : o->type == DTYPE_F64 ? 0x1p-53
                                             : u32;
    for (int64_t j = 0; j < o->count; j++) {
        double got = decode(o->type, image + GUARD + (size_t)j * dtype_bytes(o->type)), want = o->want[j];
        if (isnan(got) && isnan(want)) continue;
        if (got == want) continue;
        double slack = o->slack[j] + (T->bfp && o->bfp ? o->bfp[j] : 0),
               allowed = o->role == IN ? 0
                                       : roundoff * (fabs(want) + slack) + slack +
                                             (o->type == DTYPE_F16 ? 0x1p-24 : 1e-37);
        if (!(fabs(got - want) <= allowed))
            fail_msg("%s: operand %d element %lld of %lld is %.9g, should be %.9g +- %.2g", text, i,
                     (long long)j, (long long)o->count, got, want, allowed);
    }
    free(image);
}

/* The reference gradient against central differences of the objective, on up to 24 elements of each operand.
 */
static void check_gradients(struct trial *T, const struct operation *op)
{
    for (const int *g = op->gradients; op->objective && *g >= 0; g += 2) {
        struct operand *at = &T->o[g[0]], *gradient = &T->o[g[1]];
        for (int64_t n = 0; n < 24 && n < at->count; n++) {
            int64_t j = at->count <= 24 ? n : n * (at->count - 1) / 23;
            double old = at->x[j], h = 1e-5,
                   want = gradient->want[j] - (gradient->role == ADD ? gradient->x[j] : 0);
            at->x[j] = old + h;
            double up = op->objective(T);
            at->x[j] = old - h;
            double down = op->objective(T);
            at->x[j] = old;
            double difference = (up - down) / (2 * h),
                   allowed = 1e-6 * (1 + fabs(want)) + 1e-10 * fabs(up) / h;
            if (!(fabs(difference - want) <= allowed))
                fail_msg("%s: reference gradient of operand %d element %lld is %.9g, differences say %.9g",
                         op->name, g[0], (long long)j, want, difference);
        }
    }
}

static void set_threads(int n)
{
#ifdef _OPENMP
    omp_set_num_threads(n);
#else
    (void)n;
#endif
}

static void check_threads(struct trial *T, const struct operation *op)
{
    uint8_t *first[OPERANDS];
    for (int i = 0; i < T->count; i++) first[i] = operand_download(T, i);
    trial_upload(T);
    set_threads(3);
    op->call(T);
    set_threads(2);
    for (int i = 0; i < T->count; i++) {
        uint8_t *second = operand_download(T, i);
        char text[160];
        describe(T, op, text, sizeof text);
        if (memcmp(first[i], second, operand_bytes(&T->o[i]) + 2 * GUARD) != 0)
            fail_msg("%s: operand %d depends on the number of threads", text, i);
        free(first[i]);
        free(second);
    }
}

static void check_dry(struct trial *T, const struct operation *op)
{
    struct device *cpu = T->device, *dry;
    struct error err;
    assert_int_equal(device_open(&dry, "dry", 0, &err), 0);
    for (int i = 0; i < T->count; i++)
        T->o[i].device = device_alloc(dry, MEMORY_DATA, operand_bytes(&T->o[i]), "operand", &err);
    T->device = dry;
    op->call(T);
    assert_int_equal(device_check(dry, &err), 0);
    size_t planned = dry->use.peak_bytes[MEMORY_WORKSPACE];
    for (int i = 0; i < T->count; i++) T->o[i].device = NULL;
    device_close(dry);

    assert_int_equal(device_open(&T->device, "cpu", 0, &err), 0);
    trial_upload(T);
    op->call(T);
    if (T->device->use.peak_bytes[MEMORY_WORKSPACE] != planned)
        fail_msg("%s: plans %zu bytes of scratch, takes %zu", op->name, planned,
                 T->device->use.peak_bytes[MEMORY_WORKSPACE]);
    for (int i = 0; i < T->count; i++) T->o[i].device = NULL;
    device_close(T->device);
    T->device = cpu;
}

static struct device *open_selected(void)
{
    const char *card = getenv("MEOPT_TEST_DEVICE");
    struct device *device;
    struct error err;
    assert_int_equal(device_open(&device, card ? card : "cpu", 0, &err), 0);
    return device;
}

static bool is_small(const struct trial *T) { return T->o[0].count < 5000; }

static void check_on(struct trial *T, const struct operation *op, struct device *device)
{
    struct error err;
    T->device = device;
    T->bfp = device->kind == DEVICE_CPU && T->t == DTYPE_BF16 && isa_has_bfp();
    trial_upload(T);
    op->call(T);
    assert_int_equal(device_check(device, &err), 0);
    for (int i = 0; i < T->count; i++) check_operand(T, op, i);
    if (device->kind == DEVICE_CPU) check_threads(T, op);
    trial_leave(T);
    if (device->kind == DEVICE_CPU && is_small(T)) check_dry(T, op);
    T->device = NULL;
}

/* The reference is computed before there is a device: it is that of every ISA. */
static void operation_equals_its_reference(void **state)
{
    const struct operation *op = *state;
    struct device *devices[ISAS] = {NULL};
    set_threads(2);
    for (int shape = 0; shape < SHAPES && op->shapes[shape][0]; shape++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            struct trial T;
            trial_open(&T, op, NULL, bf16 ? DTYPE_BF16 : F32, op->shapes[shape]);
            op->reference(&T);
            if (T.t == F32 && is_small(&T)) check_gradients(&T, op);
            for (int isa = 0; isa < ISAS; isa++) {
                if (!isa_has_own(isa, op->name, bf16)) continue;
                if (!isa_select(isa)) continue;
                if (!devices[isa]) devices[isa] = open_selected();
                check_on(&T, op, devices[isa]);
            }
            trial_close(&T);
        }
    for (int isa = 0; isa < ISAS; isa++)
        if (devices[isa]) device_close(devices[isa]);
    isas_restore();
}

/* All 2^16 upper halves with lower halves around the ties, infinities, NaNs and denormals among them. */
static void check_bf16_rounding(struct device *device, enum dtype t)
{
    struct error err;
    if (t != DTYPE_BF16) return;
    enum { N = 65536 };
    static const uint32_t low[] = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
    uint32_t *in = malloc(N * 4);
    uint16_t *out = malloc(N * 2);
    void *d_in = device_alloc(device, MEMORY_DATA, N * 4, "in", &err),
         *d_out = device_alloc(device, MEMORY_DATA, N * 2, "out", &err);
    assert_true(in && out && d_in && d_out);
    for (size_t l = 0; l < sizeof low / sizeof *low; l++) {
        for (uint32_t i = 0; i < N; i++) in[i] = i << 16 | low[l];
        device->upload(device, d_in, in, N * 4);
        device->ops->cast(device, d_in, F32, d_out, DTYPE_BF16, N);
        device->sync(device);
        device->download(device, out, d_out, N * 2);
        for (uint32_t i = 0; i < N; i++) {
            float f;
            memcpy(&f, &in[i], 4);
            if (isnan(f)) assert_true((out[i] & 0x7F80) == 0x7F80 && (out[i] & 0x7F));
            else assert_int_equal(out[i], to_bf16((double)f));
        }
    }
    device_free(device, d_in);
    device_free(device, d_out);
    free(in);
    free(out);
}

static void on_each(void (*check)(struct device *, enum dtype))
{
    for (int isa = 0; isa < ISAS; isa++) {
        struct error err;
        if (!isa_select(isa)) continue;
        struct device *device = open_selected();
        check(device, F32);
        check(device, DTYPE_BF16);
        assert_int_equal(device_check(device, &err), 0);
        device_close(device);
    }
    isas_restore();
}

#define ON_EACH(test, check)                                                                                 \
    static void test(void **state)                                                                           \
    {                                                                                                        \
        (void)state;                                                                                         \
        on_each(check);                                                                                      \
    }
ON_EACH(bf16_rounds_to_even_and_keeps_nan, check_bf16_rounding)
ON_EACH(low_scores_have_finite_gradients, low_scores_have_gradients)
ON_EACH(packed_documents_have_the_bits_of_separate_ones, packed_documents_have_their_own_bits)
ON_EACH(codes_of_8_bits_are_the_same_everywhere_and_unbiased, check_codes)
ON_EACH(what_is_not_finite_is_read_back_as_such, check_codes_at_the_ends)
ON_EACH(products_of_what_is_not_finite_are_not, check_ends_of_products)
ON_EACH(outliers_cost_products_no_precision, check_outliers)
ON_EACH(empty_gemms_end, check_empty_gemms)

int main(int argc, char **argv)
{
    const char *card = getenv("MEOPT_TEST_DEVICE");
    bool slow = card_is_emulated() || getenv("MEOPT_TEST_SHORT"); /* under compute-sanitizer */
    collect();
    if (argc > 1 && strcmp(argv[1], "--time") == 0) {
        time_operations(card ? card : "cpu", argc > 2 ? argv[2] : NULL, operations, operation_count);
        return 0;
    }
    struct CMUnitTest tests[MOST + 11];
    size_t count = 0;
    for (int k = 0; k < operation_count; k++) {
        struct operation *op = &operations[k];
        bool many_tokens = strncmp(op->name, "attention", 9) == 0 && op->shapes[0][1] > 512;
        if (many_tokens && slow && !getenv("MEOPT_LONG")) continue; /* takes minutes */
        tests[count++] = (struct CMUnitTest){op->name, operation_equals_its_reference, NULL, NULL, op};
    }
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(bf16_rounds_to_even_and_keeps_nan);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(fp16_rounds_to_even_and_keeps_nan);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(low_scores_have_finite_gradients);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(packed_documents_have_the_bits_of_separate_ones);
    tests[count++] =
        (struct CMUnitTest)cmocka_unit_test(codes_of_8_bits_are_the_same_everywhere_and_unbiased);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(what_is_not_finite_is_read_back_as_such);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(products_of_what_is_not_finite_are_not);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(outliers_cost_products_no_precision);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(empty_gemms_end);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(work_issued_again_is_done_again);
    tests[count++] =
        (struct CMUnitTest)cmocka_unit_test(a_type_without_operations_is_reported_and_nothing_is_done);
    if (argc > 1) {
        size_t matching = 0;
        for (size_t i = 0; i < count; i++) matching += fnmatch(argv[1], tests[i].name, 0) == 0;
        if (!matching) return fprintf(stderr, "no test matches %s\n", argv[1]), 1;
        cmocka_set_test_filter(argv[1]);
    }
    isas_report();
    return _cmocka_run_group_tests("operations", tests, count, NULL, NULL);
}
