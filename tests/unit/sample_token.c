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
    (void)state;
    struct token_sampling greedy = {0, 1, 3};
    assert_int_equal(token_sample(logits, V, &greedy, 0), 1);
    assert_int_equal(token_sample((const float[]){5, 1, 5, 0}, V, &greedy, 0), 0);
    assert_int_equal(token_sample((const float[]){5, NAN, 5, 0}, V, &greedy, 0), -1);
    assert_int_equal(token_sample((const float[]){5, 1, 5, INFINITY}, V, &greedy, 0), -1);
}

static void draws_follow_the_logits(void **state)
{
    (void)state;
    double share[V];
    for (int k = 0; k < 2; k++) {
        double temperature = k ? 0.5 : 1, sum = 0;
        draw(&(struct token_sampling){temperature, 1, 7}, share);
        for (int v = 0; v < V; v++) sum += exp(logits[v] / temperature);
        for (int v = 0; v < V; v++) assert_true(fabs(share[v] - exp(logits[v] / temperature) / sum) < 0.02);
    }
    struct token_sampling how = {1, 1, 7}, other = {1, 1, 8};
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
    (void)state;
    static const struct {
        double top_p;
        bool kept[V];
    } rows[] = {{0, {false, true, false, false}},
                {0.6, {false, true, false, false}},
                {0.7, {false, true, true, false}},
                {0.95, {true, true, true, false}}};
    double share[V];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        draw(&(struct token_sampling){1, rows[i].top_p, 1}, share);
        for (int v = 0; v < V; v++) assert_int_equal(share[v] > 0, rows[i].kept[v]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_likeliest_token),
        cmocka_unit_test(draws_follow_the_logits),
        cmocka_unit_test(top_p_keeps_the_likeliest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
