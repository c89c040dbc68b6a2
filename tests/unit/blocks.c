/* The lists of block-sparse attention: the random blocks of transformers' class (tests/make/big_bird.py), the
 * others of a row, and queries that are keys the other way round. */
#include "core/model/blocks.h"
#include "tests/golden/golden.h"
#include "tests/mentions.h"

#include <stdio.h>

static struct model_shape shape_named(const char *name, int64_t *layer)
{
    struct model_shape g = {.depth = 12};
    long long n[6];
    assert_int_equal(
        sscanf(name, "%9lld.%9lld.%9lld.%9lld.%9lld.%9lld", n, n + 1, n + 2, n + 3, n + 4, n + 5), 6);
    g.context = n[0];
    g.block = n[1];
    g.random = n[2];
    g.heads = n[3];
    g.positions = n[4];
    *layer = n[5];
    return g;
}

/* Checks the lists of keys; random NULL: of evaluation. */
static void check_rows(const struct model_shape *g, const int32_t *keys, const int32_t *random)
{
    int64_t nb = (g->context + g->block - 1) / g->block, r = g->random, listed = 0;
    for (int64_t l = 0; l < g->heads * nb; l++) {
        int64_t i = l % nb, count = keys[l + 1] - keys[l], own = 0;
        const int32_t *list = keys + keys[l];
        listed += count;
        for (int64_t k = 0; k < count; k++) own += list[k] == i;
        assert_true(own >= 1);
        if (i == 0 || i == nb - 1) {
            assert_int_equal(count, nb);
            for (int64_t k = 0; k < nb; k++) assert_int_equal(list[k], k);
            continue;
        }
        assert_int_equal(count, (i == 1 || i == nb - 2 ? 4 : 5) + r);
        assert_int_equal(list[0], 0);
        assert_int_equal(list[count - 1], nb - 1);
        for (int64_t k = 0; k < r; k++)
            assert_int_equal(list[count - 1 - r + k],
                             random ? random[(l / nb * (nb - 2) + i - 1) * r + k] : 0);
    }
    assert_int_equal(listed, blocks_listed(g));
    assert_int_equal(keys[g->heads * nb], blocks_list_numbers(g));
}

static void check_inverse(const struct model_shape *g, const int32_t *keys, const int32_t *queries)
{
    int64_t nb = (g->context + g->block - 1) / g->block;
    int *pairs = calloc((size_t)(nb * nb), sizeof *pairs);
    assert_non_null(pairs);
    for (int64_t h = 0; h < g->heads; h++) {
        const int32_t *k = keys + h * nb, *q = queries + h * nb;
        for (int64_t i = 0; i < nb; i++) {
            for (int32_t e = k[i]; e < k[i + 1]; e++) pairs[i * nb + keys[e]]++;
            for (int32_t e = q[i]; e < q[i + 1]; e++) pairs[queries[e] * nb + i]--;
        }
        for (int64_t i = 0; i < nb * nb; i++) assert_int_equal(pairs[i], 0);
    }
    free(pairs);
}

static void random_blocks_are_those_of_the_class(void **state)
{
    (void)state;
    struct weights *drawn = golden_open("blocks", "", "drawn.safetensors");
    struct error err = {0};
    for (int64_t t = 0; t < weights_count(drawn); t++) {
        const struct weights_tensor *tensor = weights_tensor(drawn, t);
        int64_t layer;
        struct model_shape g = shape_named(tensor->name, &layer);
        size_t numbers = (size_t)blocks_list_numbers(&g);
        int32_t *random = calloc((size_t)tensor->count, sizeof *random),
                *keys = calloc(numbers, sizeof *keys), *queries = calloc(numbers, sizeof *queries);
        assert_true(random && keys && queries && blocks_used(&g));
        assert_int_equal(blocks_check(&g, &err), 0);
        assert_int_equal(weights_read(drawn, t, random, DTYPE_I32, &err), 0);
        blocks_lists(&g, layer, true, keys, queries);
        check_rows(&g, keys, random);
        check_inverse(&g, keys, queries);
        blocks_lists(&g, layer, false, keys, NULL);
        check_rows(&g, keys, NULL);
        free(queries);
        free(keys);
        free(random);
    }
    assert_true(weights_count(drawn) >= 8);
    weights_close(drawn);
}

static void short_contexts_have_no_lists(void **state)
{
    (void)state;
    struct model_shape g = {.context = 704, .block = 64, .random = 3, .heads = 2, .positions = 4096};
    assert_int_equal(blocks_dense_context(&g), 704);
    assert_false(blocks_used(&g));
    g.context++;
    assert_true(blocks_used(&g));
    g.block = 0;
    assert_false(blocks_used(&g));
}

/* Where the class fails, too. */
static void impossible_lists_are_refused(void **state)
{
    (void)state;
    struct error err = {0};
    struct model_shape g = {.context = 1000, .block = 64, .random = 3, .heads = 2, .positions = 1000};
    assert_int_equal(blocks_check(&g, &err), EXIT_CONFIG);
    assert_true(mentions(err.what, "1024") && mentions(err.what, "1000"));
    g = (struct model_shape){.context = 3072, .block = 256, .random = 3, .heads = 2, .positions = 4096};
    assert_int_equal(blocks_check(&g, &err), EXIT_CONFIG);
    assert_true(mentions(err.what, "256") && mentions(err.what, "3072"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_blocks_are_those_of_the_class),
                                       cmocka_unit_test(short_contexts_have_no_lists),
                                       cmocka_unit_test(impossible_lists_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
