/* The next token: the likeliest one, or drawn in proportion to e to the logits, from the likeliest alone. */
#include "core/nn/sample_token.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { V = 4, DRAWS = 20000 };
static const float logits[V] = {0, 2, 1, -1};

/* Draws many tokens, and returns the share of each. */
static void draw(const struct token_sampling *how, double share[V])
{
    for (int v = 0; v < V; v++) share[v] = 0;
    for (int i = 0; i < DRAWS; i++) share[token_sample(logits, V, how, i)] += 1.0 / DRAWS;
}

static void the_likeliest_token(void **state)
{
    struct token_sampling greedy = {.temperature = 0, .top_p = 1, .seed = 3};
    assert_int_equal(token_sample(logits, V, &greedy, 0), 1);
    assert_int_equal(token_sample((const float[]){5, 1, 5, 0}, V, &greedy, 0), 0);
    assert_int_equal(token_sample((const float[]){5, NAN, 5, 0}, V, &greedy, 0), -1);
    assert_int_equal(token_sample((const float[]){5, 1, 5, INFINITY}, V, &greedy, 0), -1);
}

static void draws_follow_the_logits(void **state)
{
    double share[V];
    for (int k = 0; k < 2; k++) {
        double temperature = k ? 0.5 : 1, sum = 0;
        draw(&(struct token_sampling){.temperature = temperature, .top_p = 1, .seed = 7}, share);
        for (int v = 0; v < V; v++) sum += exp(logits[v] / temperature);
        for (int v = 0; v < V; v++) assert_true(fabs(share[v] - exp(logits[v] / temperature) / sum) < 0.02);
    }
    struct token_sampling how = {.temperature = 1, .top_p = 1, .seed = 7},
                          other = {.temperature = 1, .top_p = 1, .seed = 8};
    int same = 0;
    for (int i = 0; i < 100; i++) {
        assert_int_equal(token_sample(logits, V, &how, i), token_sample(logits, V, &how, i));
        same += token_sample(logits, V, &how, i) == token_sample(logits, V, &other, i);
    }
    assert_true(same < 90);
}

/* Probabilities .64, .24, .09, .03: the fewest whose sum reaches top_p. */
static void top_p_keeps_the_likeliest(void **state)
{
    static const struct {
        double top_p;
        bool kept[V];
    } rows[] = {{0, {false, true, false, false}},
                {0.6, {false, true, false, false}},
                {0.7, {false, true, true, false}},
                {0.95, {true, true, true, false}}};
    double share[V];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        draw(&(struct token_sampling){.temperature = 1, .top_p = rows[i].top_p, .seed = 1}, share);
        for (int v = 0; v < V; v++) assert_int_equal(share[v] > 0, rows[i].kept[v]);
    }
}

/* Shares in the order of transformers, in double precision: temperature, top-k with those equal to the last
 * one, top-p of what is left. */
static void reference(const float *x, int n, double temperature, int top_k, double top_p, double *share)
{
    double p[8], sum = 0, before;
    bool kept[8];
    for (int v = 0; v < n; v++) {
        int larger = 0;
        for (int w = 0; w < n; w++) larger += x[w] > x[v];
        kept[v] = !top_k || larger < top_k;
        sum += p[v] = kept[v] ? exp(x[v] / temperature) : 0;
    }
    for (int v = 0; v < n; v++) p[v] /= sum;
    sum = 0;
    for (int v = 0; v < n; v++) {
        before = 0;
        for (int w = 0; w < n; w++)
            if (p[w] > p[v] || (p[w] == p[v] && w < v)) before += p[w];
        share[v] = kept[v] && (before == 0 || before < top_p) ? p[v] : 0;
        sum += share[v];
    }
    for (int v = 0; v < n; v++) share[v] /= sum;
}

static void top_k_comes_before_top_p(void **state)
{
    enum { N = 8 };
    static const float x[N] = {0.5f, 2, 1, -1, 2, 0.25f, 1, 1.5f};
    static const struct {
        double temperature, top_p;
        int top_k;
    } rows[] = {{1, 1, 3}, {1, 1, 4}, {0.7, 0.9, 4}, {2, 0.6, 5}, {1, 0.5, 1}, {1.3, 0.95, 0}, {1, 1, 100}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double share[N], count[N] = {0};
        struct token_sampling how = {
            .temperature = rows[i].temperature, .top_p = rows[i].top_p, .top_k = rows[i].top_k, .seed = 5};
        reference(x, N, how.temperature, rows[i].top_k, how.top_p, share);
        for (int d = 0; d < DRAWS; d++) count[token_sample(x, N, &how, d)] += 1.0 / DRAWS;
        for (int v = 0; v < N; v++) {
            assert_int_equal(share[v] > 0, count[v] > 0);
            double sigma = sqrt(share[v] * (1 - share[v]) / DRAWS);
            assert_true(fabs(share[v] - count[v]) <= 5 * sigma + 1e-9);
        }
    }
    struct token_sampling one = {.temperature = 3, .top_p = 1, .top_k = 1}, greedy = {.top_p = 1};
    for (int d = 0; d < 100; d++)
        assert_int_equal(token_sample(logits, V, &one, d), token_sample(logits, V, &greedy, d));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_likeliest_token),
        cmocka_unit_test(draws_follow_the_logits),
        cmocka_unit_test(top_p_keeps_the_likeliest),
        cmocka_unit_test(top_k_comes_before_top_p),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
