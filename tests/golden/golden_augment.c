/* RandAugment's operations, erasing, mixup and cutmix against torchvision and PIL, byte for byte
 * (tests/make/augment.py). */
#include "core/data/augment.h"
#include "core/data/data.h"
#include "tests/golden/golden.h"

#include <stdio.h>

static void *tensor(struct weights *w, const char *name, enum dtype type)
{
    int64_t at = weights_find(w, name);
    struct error err;
    if (at < 0) fail_msg("no tensor %s", name);
    void *values = xmalloc((size_t)weights_tensor(w, at)->count * sizeof(float));
    assert_int_equal(weights_read(w, at, values, type, &err), 0);
    return values;
}

static void operations_equal_torchvision(void **state)
{
    struct weights *w = golden_open("augment", "augment.safetensors", NULL);
    int compared = 0;
    bool seen[AUGMENT_OPS] = {false};
    for (int64_t i = 0; i < weights_count(w); i++) {
        int side, op, magnitude;
        char sign, input[64];
        const char *name = weights_tensor(w, i)->name;
        if (sscanf(name, "%d/%d/%d/%c", &side, &op, &magnitude, &sign) != 4) continue;
        snprintf(input, sizeof input, "image/%d", side);
        uint8_t *image = tensor(w, input, DTYPE_U8), *expected = tensor(w, name, DTYPE_U8);
        struct error err;
        assert_int_equal(image_augment(image, side, (enum augment_op)op, magnitude, sign == '-', &err), 0);
        int differ = 0;
        for (int k = 0; k < 3 * side * side; k++) differ += image[k] != expected[k];
        if (differ) fail_msg("%s: %d of %d bytes differ", name, differ, 3 * side * side);
        seen[op] = true;
        compared++;
        free(image);
        free(expected);
    }
    for (int op = 0; op < AUGMENT_OPS; op++) assert_true(seen[op]);
    assert_true(compared > 60);
    weights_close(w);
}

static void erasing_and_mixing_equal_torchvision(void **state)
{
    enum { SIDE = 32, VALUES = 3 * SIDE * SIDE };
    struct weights *w = golden_open("augment", "augment.safetensors", NULL);
    float *values = tensor(w, "values", DTYPE_F32), *partner = tensor(w, "partner", DTYPE_F32),
          *erased = tensor(w, "erased", DTYPE_F32), mine[VALUES];
    memcpy(mine, values, sizeof mine);
    image_erase(mine, SIDE, (struct pixel_box){20, 3, 32, 12});
    assert_memory_equal(mine, erased, sizeof mine);
    free(erased);
    int compared = 0;
    for (int64_t i = 0; i < weights_count(w); i++) {
        const char *name = weights_tensor(w, i)->name;
        struct mix mix = {.cut = name[0] == 'c'};
        int x = 0, y = 0;
        if (sscanf(name, "mixup/%lf", &mix.share) != 1 &&
            sscanf(name, "cutmix/%lf/%d/%d", &mix.share, &x, &y) != 3)
            continue;
        mix.centre_x = (x + 0.5) / SIDE;
        mix.centre_y = (y + 0.5) / SIDE;
        float *expected = tensor(w, name, DTYPE_F32);
        memcpy(mine, values, sizeof mine);
        mix_images(mine, partner, SIDE, &mix);
        if (memcmp(mine, expected, sizeof mine) != 0) fail_msg("%s differs", name);
        if (mix.cut) {
            char share_name[64];
            float share;
            snprintf(share_name, sizeof share_name, "share%s", strchr(name, '/'));
            float *shares = tensor(w, share_name, DTYPE_F32);
            mix_box(&mix, SIDE, &share);
            assert_true(share == shares[0]);
            free(shares);
        }
        free(expected);
        compared++;
    }
    assert_int_equal(compared, 6);
    free(values);
    free(partner);
    weights_close(w);
}

/* Draws of many images and rows: their shares, ranges and means. */
static void draws_have_their_distributions(void **state)
{
    enum { DRAWS = 20000, SIDE = 224 };
    int erased = 0;
    double area = 0, sum = 0, square = 0;
    int cuts = 0, used[AUGMENT_OPS] = {0};
    for (uint64_t i = 0; i < DRAWS; i++) {
        struct image_draw draw = {5, i % 7, i, 0};
        struct pixel_box b = image_erasing(SIDE, 0.25, &draw);
        assert_true(b.left >= 0 && b.top >= 0 && b.right <= SIDE && b.bottom <= SIDE);
        double part = (double)(b.right - b.left) * (b.bottom - b.top) / SIDE / SIDE;
        if (part > 0) assert_true(part > 0.017 && part < 0.34);
        erased += part > 0;
        area += part;
        used[(int)(image_uniform(&draw, 80) * AUGMENT_OPS)]++;
        struct mix mix = mix_draw(0.8, 1.0, 7, (int64_t)(i / 100), (int64_t)(i % 100));
        assert_true(mix.share >= 0 && mix.share <= 1 && mix.centre_x >= 0 && mix.centre_x < 1);
        cuts += mix.cut;
        mix = mix_draw(0.2, 0, 7, (int64_t)i, 3);
        assert_false(mix.cut);
        sum += mix.share;
        square += mix.share * mix.share;
    }
    assert_true(abs(erased - DRAWS / 4) < 300 && area / erased > 0.15 && area / erased < 0.19);
    assert_true(abs(cuts - DRAWS / 2) < 300);
    for (int op = 0; op < AUGMENT_OPS; op++) assert_true(abs(used[op] - DRAWS / AUGMENT_OPS) < 200);
    /* Beta(a, a): mean 1/2, variance 1 / (4 (2a + 1)) = 0.1786 */
    double mean = sum / DRAWS, variance = square / DRAWS - mean * mean;
    assert_true(fabs(mean - 0.5) < 0.01 && fabs(variance - 0.25 / 1.4) < 0.005);
    struct mix tiny = mix_draw(1e-4, 0, 1, 2, 3), large = mix_draw(0, 1e4, 1, 2, 3),
               off = mix_draw(0, 0, 1, 2, 3);
    assert_true(tiny.share >= 0 && tiny.share <= 1 && fabs(large.share - 0.5) < 0.05 && off.share == 1);
    assert_true(mix_partner(4, 7) == 5 && mix_partner(5, 7) == 4 && mix_partner(6, 7) == 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(operations_equal_torchvision),
                                       cmocka_unit_test(erasing_and_mixing_equal_torchvision),
                                       cmocka_unit_test(draws_have_their_distributions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
