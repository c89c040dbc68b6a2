/* libmeopt's memory: bytes known before allocation, and the bytes of each preset. */
#include "tests/optim/optim_table.h"

#include <stdio.h>

struct account {
    size_t bytes[MEOPT_MEMORY_KINDS];
    int fail_at;
};
static void *account_get(void *context, int kind, size_t bytes, const char *tensor)
{
    struct account *a = context;
    assert_non_null(tensor);
    if (a->fail_at && --a->fail_at == 0) return NULL;
    a->bytes[kind] += bytes;
    return aligned_alloc(64, (bytes + 63) / 64 * 64);
}
static void account_put(void *context, int kind, void *p, size_t bytes)
{
    ((struct account *)context)->bytes[kind] -= bytes;
    free(p);
}

static void query_equals_what_is_allocated(void **state)
{
    for (int rule = 0; rule < MEOPT_RULE_COUNT; rule++)
        for (size_t p = 0; p < sizeof presets / sizeof *presets; p++) {
            struct account account = {0};
            struct meopt_options o;
            struct meopt_error err;
            struct meopt *opt;
            struct meopt_bytes query, held;
            meopt_options_init(&o, sizeof o, rule);
            meopt_options_preset(&o, presets[p], &err);
            o.accumulator = MEOPT_STATE_BF16;
            o.allocate = account_get;
            o.release = account_put;
            o.context = &account;
            assert_int_equal(meopt_query(&o, table, COUNT, &query, &err), 0);
            assert_int_equal(meopt_create(&opt, &o, table, COUNT, &err), 0);
            assert_int_equal(meopt_held(opt, &held), 0);
            assert_memory_equal(&query, &held, sizeof query);
            assert_int_equal(account.bytes[MEOPT_MEMORY_WEIGHTS], query.weights);
            assert_int_equal(account.bytes[MEOPT_MEMORY_COPY], query.copy);
            assert_int_equal(account.bytes[MEOPT_MEMORY_CORRECTION], query.correction);
            assert_int_equal(account.bytes[MEOPT_MEMORY_MOMENTS], query.moments);
            assert_int_equal(account.bytes[MEOPT_MEMORY_ACCUMULATOR], query.accumulators);
            assert_int_equal(account.bytes[MEOPT_MEMORY_WORKSPACE], query.workspace);
            meopt_destroy(opt);
            for (int k = 0; k < MEOPT_MEMORY_KINDS; k++) assert_int_equal(account.bytes[k], 0);
            /* each allocation fails once: an error value, no leak */
            for (int k = 1; k < 12; k++) {
                account.fail_at = k;
                int status = meopt_create(&opt, &o, table, COUNT, &err);
                if (status == 0) meopt_destroy(opt);
                else assert_int_equal(status, MEOPT_NO_MEMORY);
                for (int j = 0; j < MEOPT_MEMORY_KINDS; j++) assert_int_equal(account.bytes[j], 0);
            }
        }
}

/* A ViT of width 768, depth 14: 100 M parameters with norms, biases, tokens and positions. Gradients are
 * released. */
static void presets_hold_the_promised_bytes_at_100_million_parameters(void **state)
{
    static const double limits[] = {5.15, 4.65, 4.10};
    static struct meopt_tensor vit[14 * 12 + 8];
    static char names[14 * 12 + 8][32];
    size_t n = 0;
#define ADD(...)                                                                                             \
    do {                                                                                                     \
        snprintf(names[n], 32, "t%zu", n);                                                                   \
        vit[n] = (struct meopt_tensor){.name = names[n], __VA_ARGS__};                                       \
        n++;                                                                                                 \
    } while (0)
    for (int block = 0; block < 14; block++) {
        for (int k = 0; k < 4; k++) ADD(.ndim = 1, .shape = {768});
        ADD(.ndim = 2, .shape = {2304, 768});
        ADD(.ndim = 1, .shape = {2304});
        ADD(.ndim = 2, .shape = {768, 768});
        ADD(.ndim = 1, .shape = {768});
        ADD(.ndim = 2, .shape = {3072, 768});
        ADD(.ndim = 1, .shape = {3072});
        ADD(.ndim = 2, .shape = {768, 3072});
        ADD(.ndim = 1, .shape = {768});
    }
    ADD(.ndim = 4, .shape = {768, 3, 14, 14});
    ADD(.ndim = 3, .shape = {1, 257, 768}, .flags = MEOPT_KEEP_F32);
    ADD(.ndim = 3, .shape = {1, 1, 768}, .flags = MEOPT_KEEP_F32);
    for (int rule = 0; rule < MEOPT_RULE_COUNT; rule++)
        for (int p = 0; p < 3; p++) {
            struct account account = {0};
            struct meopt_options o;
            struct meopt_error err;
            struct meopt *opt;
            struct meopt_bytes held;
            meopt_options_init(&o, sizeof o, rule);
            meopt_options_preset(&o, presets[p], &err);
            o.allocate = account_get;
            o.release = account_put;
            o.context = &account;
            o.dry = 1; /* allocated, not touched */
            assert_int_equal(meopt_create(&opt, &o, vit, n, &err), 0);
            meopt_held(opt, &held);
            size_t total = 0;
            for (int k = 0; k < MEOPT_MEMORY_KINDS; k++) total += account.bytes[k];
            double each = (double)total / (double)held.parameters;
            if (rule == MEOPT_APADAMW || rule == MEOPT_LION || rule == MEOPT_MUON)
                print_message("%s %s: %.1f M parameters, %.3f bytes each\n", meopt_rule_name(rule),
                              presets[p], (double)held.parameters * 1e-6, each);
            assert_true(held.parameters > 99000000 && held.parameters < 101000000);
            assert_true(each <= limits[p] - (rule == MEOPT_APSGD || rule == MEOPT_LION ? 1 : 0));
            if (rule == MEOPT_MUON) /* all but the matrix that steps */
                assert_true((double)(held.total - held.workspace) / (double)held.parameters <= limits[p] - 1);
            meopt_destroy(opt);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(query_equals_what_is_allocated),
        cmocka_unit_test(presets_hold_the_promised_bytes_at_100_million_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
