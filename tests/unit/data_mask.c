/* Masked tokens: how many, which ones, what they become; a function of seed, epoch and sample. */
#include "core/data/mask.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

enum { CONTEXT = 512, ROWS = 77, SPECIAL = 10, MASK = 9, VOCABULARY = 1000, SAMPLES = 400 };

static int32_t original[CONTEXT], tokens[CONTEXT], labels[CONTEXT];
static uint64_t order[CONTEXT];

static void make(struct mask m, int64_t count)
{
    for (int i = 0; i < CONTEXT; i++)
        original[i] = i % 8 ? SPECIAL + (i * 7) % (VOCABULARY - SPECIAL) : i % 3;
    memcpy(tokens, original, sizeof tokens);
    m.chosen = ROWS;
    m.context = CONTEXT;
    m.token = MASK;
    m.special = SPECIAL;
    m.vocabulary = VOCABULARY;
    mask_sample(&m, tokens, labels, count, order);
}

static void fifteen_percent_are_chosen(void **state)
{
    int chosen = 0, masked = 0, kept = 0, times[CONTEXT] = {0};
    for (int s = 0; s < SAMPLES; s++) {
        int here = 0;
        make((struct mask){.seed = 3, .sample = s * CONTEXT}, CONTEXT);
        for (int i = 0; i < CONTEXT; i++) {
            if (labels[i] < 0) {
                assert_int_equal(tokens[i], original[i]);
                continue;
            }
            assert_true(original[i] >= SPECIAL && labels[i] == original[i]);
            assert_true(tokens[i] == MASK || (tokens[i] >= SPECIAL && tokens[i] < VOCABULARY));
            here++;
            times[i]++;
            masked += tokens[i] == MASK;
            kept += tokens[i] == original[i];
        }
        assert_int_equal(here, (448 * ROWS + CONTEXT / 2) / CONTEXT); /* 448 may be */
        chosen += here;
    }
    assert_in_range(masked, chosen * 0.79, chosen * 0.81);
    assert_in_range(kept, chosen * 0.09, chosen * 0.11);
    for (int i = 0; i < CONTEXT; i++)
        if (i % 8) assert_in_range(times[i], SAMPLES * 0.07, SAMPLES * 0.25);
}

/* Tokens apart are neither chosen nor drawn, and the others are drawn as often as each other. */
static void tokens_apart_stay(void **state)
{
    static const int32_t apart[] = {3, SPECIAL, SPECIAL + 1, 500, VOCABULARY - 1};
    int drawn = 0, low = 0;
    for (int s = 0; s < SAMPLES; s++) {
        make((struct mask){.seed = 3, .sample = s * CONTEXT, .apart = apart, .apart_count = 5}, CONTEXT);
        for (int i = 0; i < CONTEXT; i++)
            for (int k = 0; k < 5; k++) {
                assert_true(original[i] != apart[k] || labels[i] < 0);
                assert_true(tokens[i] != apart[k] || original[i] == apart[k]);
            }
        for (int i = 0; i < CONTEXT; i++) {
            bool other = labels[i] >= 0 && tokens[i] != MASK && tokens[i] != original[i];
            drawn += other;
            low += other && tokens[i] < VOCABULARY / 2;
        }
    }
    assert_in_range(low, drawn * 0.46, drawn * 0.52); /* 488 of 986 */
}

static void same_seed_epoch_and_sample_are_the_same(void **state)
{
    static const struct {
        uint64_t seed;
        int64_t epoch, sample;
    } all[] = {{1, 0, 0}, {2, 0, 0}, {1, 1, 0}, {1, 0, CONTEXT}, {1ull << 40, 0, 0}, {1, 0, 1ll << 40}};
    int32_t first[CONTEXT], first_tokens[CONTEXT];
    for (int k = 0; k < 6; k++) {
        make((struct mask){.seed = all[k].seed, .epoch = all[k].epoch, .sample = all[k].sample}, CONTEXT);
        if (k) assert_int_not_equal(memcmp(first, labels, sizeof labels), 0);
        else memcpy(first, labels, sizeof labels);
        if (!k) memcpy(first_tokens, tokens, sizeof tokens);
    }
    make((struct mask){.seed = all[0].seed}, CONTEXT);
    assert_memory_equal(first, labels, sizeof labels);
    assert_memory_equal(first_tokens, tokens, sizeof tokens);
}

static void short_samples_have_at_least_one(void **state)
{
    static const int counts[][2] = {{2, 1}, {8, 1}, {20, 3}, {1, 0}}; /* the first token is special */
    for (int k = 0; k < 4; k++) {
        int chosen = 0;
        make((struct mask){.seed = 5}, counts[k][0]);
        for (int i = 0; i < counts[k][0]; i++) chosen += labels[i] >= 0;
        assert_int_equal(chosen, counts[k][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(fifteen_percent_are_chosen),
                                       cmocka_unit_test(tokens_apart_stay),
                                       cmocka_unit_test(same_seed_epoch_and_sample_are_the_same),
                                       cmocka_unit_test(short_samples_have_at_least_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
