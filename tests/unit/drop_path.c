/* Factors of drop path: functions of seed, step, row of the global batch, block and branch; shares of kept
 * branches. */
#include "core/nn/nn.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { DEPTH = 5, ROWS = 20000, BRANCHES = 2 * DEPTH };

static float *draw(uint64_t seed, int64_t step, int64_t first, int64_t count)
{
    float *keep = calloc((size_t)(BRANCHES * count), sizeof *keep);
    assert_non_null(keep);
    drop_path_factors(0.4, DEPTH, seed, step, first, count, keep);
    return keep;
}

/* 5 standard deviations of a binomial share */
static void branches_are_kept_with_their_probability(void **state)
{
    float *keep = draw(7, 1, 0, ROWS);
    for (int64_t b = 0; b < BRANCHES; b++) {
        double p = 0.1 * (double)(b / 2), kept = 0;
        for (int64_t i = 0; i < ROWS; i++) {
            float k = keep[b * ROWS + i];
            assert_true(k == 0 || k == (float)(1 / (1 - p)));
            kept += k != 0;
        }
        assert_true(fabs(kept / ROWS - (1 - p)) <= 5 * sqrt(p * (1 - p) / ROWS));
    }
    free(keep);
}

static void parts_of_a_batch_equal_the_whole(void **state)
{
    enum { COUNT = 12, PART = 5 };
    float *all = draw(7, 3, 100, COUNT), *part = draw(7, 3, 104, PART), *next = draw(7, 4, 100, COUNT),
          *other = draw(8, 3, 100, COUNT);
    for (int64_t b = 0; b < BRANCHES; b++)
        assert_memory_equal(all + b * COUNT + 4, part + b * PART, PART * sizeof *all);
    assert_true(memcmp(all, next, sizeof *all * BRANCHES * COUNT) != 0);
    assert_true(memcmp(all, other, sizeof *all * BRANCHES * COUNT) != 0);
    free(all);
    free(part);
    free(next);
    free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(branches_are_kept_with_their_probability),
                                       cmocka_unit_test(parts_of_a_batch_equal_the_whole)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
