/* Decoding, resizing and cropping against PIL and torchvision, byte for byte. */
#include "core/config/choices.h"
#include "core/data/data.h"
#include "tests/golden/golden.h"
#include "tests/mentions.h"

#include <stdio.h>

static bool listed(json_t *image, const char *name)
{
    json_t *array = json_object_get(image, "golden"), *item;
    size_t i;
    json_array_foreach(array, i, item) if (strcmp(json_string_value(item), name) == 0) return true;
    return false;
}

static void same_bytes(const char *set, const char *file, const uint8_t *mine, int64_t count)
{
    char name[64];
    snprintf(name, sizeof name, "%s.safetensors", set);
    struct weights *w = golden_open("preprocess", name, NULL);
    int64_t at = weights_find(w, file);
    assert_true(at >= 0);
    assert_int_equal(weights_tensor(w, at)->count, count);
    uint8_t *expected = xmalloc((size_t)count);
    struct error err;
    assert_int_equal(weights_read(w, at, expected, DTYPE_U8, &err), 0);
    int64_t differ = 0;
    for (int64_t i = 0; i < count; i++) differ += expected[i] != mine[i];
    if (differ) fail_msg("%s: %s: %lld of %lld bytes differ", file, set, (long long)differ, (long long)count);
    free(expected);
    weights_close(w);
}

static int side_of(const char *set)
{
    char name[64];
    snprintf(name, sizeof name, "%s.safetensors", set);
    struct weights *w = golden_open("preprocess", name, NULL);
    int side = (int)weights_tensor(w, 0)->shape[0];
    weights_close(w);
    return side;
}

static void images_equal_pil(void **state)
{
    json_t *index = golden_json("preprocess", "index.json", NULL), *image;
    size_t i;
    int good = 0, refused = 0;
    json_array_foreach(json_object_get(index, "images"), i, image)
    {
        const char *file = json_string_value(json_object_get(image, "file"));
        char *path = golden_path("preprocess", "images", file), *bytes;
        size_t size;
        struct error err = {0};
        struct image decoded;
        assert_int_equal(file_read(path, 1 << 28, &bytes, &size, &err), 0);
        int code = image_decode(&decoded, (const uint8_t *)bytes, size, &err);
        if (strcmp(json_string_value(json_object_get(image, "expect")), "ok") != 0) {
            if (!code) fail_msg("%s was accepted", file);
            assert_true(err.what[0]);
            printf("%s: %s\n", file, err.what);
            refused++;
        } else {
            if (code) fail_msg("%s: %s", file, err.what);
            if (listed(image, "decoded"))
                same_bytes("decoded", file, decoded.rgb, (int64_t)decoded.width * decoded.height * 3);
            for (int p = 0; p < 2; p++) {
                const char *set = p ? "dinov2" : "clip";
                if (!listed(image, set)) continue;
                int side = side_of(set);
                uint8_t *rgb = xmalloc((size_t)side * (size_t)side * 3);
                assert_int_equal(
                    image_prepare(&decoded, p ? &preprocess_dinov2 : &preprocess_clip, side, rgb, &err), 0);
                same_bytes(set, file, rgb, (int64_t)side * side * 3);
                free(rgb);
            }
            good++;
        }
        image_free(&decoded);
        free(bytes);
        free(path);
    }
    printf("%d images equal, %d refused\n", good, refused);
    assert_true(good > 0);
    json_decref(index);
}

static void short_files_that_claim_many_pixels_are_refused(void **state)
{
    char *bytes;
    size_t size;
    struct error err = {0};
    struct image decoded;
    assert_int_equal(file_read(MEOPT_SOURCE_DIR "/tests/fuzz/corpus/image/claims_185_million_pixels.jpg",
                               1 << 20, &bytes, &size, &err),
                     0);
    assert_int_equal(image_decode(&decoded, (const uint8_t *)bytes, size, &err), EXIT_FAILED);
    assert_true(mentions(err.what, "11294|16404|20000|89478485"));
    image_free(&decoded);
    free(bytes);
}

/* PIL reads CMYK as Adobe stores it, also in a file that does not say so. */
static void cmyk_is_inverted_without_the_marker_too(void **state)
{
    char *path = golden_path("preprocess", "images", "13_cmyk.jpg"), *bytes;
    size_t size;
    struct error err = {0};
    struct image marked, bare;
    assert_int_equal(file_read(path, 1 << 28, &bytes, &size, &err), 0);
    assert_int_equal(image_decode(&marked, (const uint8_t *)bytes, size, &err), 0);
    char *adobe = memmem(bytes, size, "Adobe", 5) ? (char *)memmem(bytes, size, "Adobe", 5) - 4 : NULL;
    assert_true(adobe && (uint8_t)adobe[1] == 0xee);
    size_t length = 2 + (size_t)(uint8_t)adobe[3], after = (size_t)(adobe - bytes) + length;
    memmove(adobe, adobe + length, size - after);
    assert_int_equal(image_decode(&bare, (const uint8_t *)bytes, size - length, &err), 0);
    assert_memory_equal(marked.rgb, bare.rgb, (size_t)(3 * marked.width * marked.height));
    image_free(&marked);
    image_free(&bare);
    free(bytes);
    free(path);
}

/* As tests/make/resizes.py makes it. */
static struct image picture(int width, int height)
{
    struct image image = {xmalloc((size_t)width * (size_t)height * 3), width, height};
    uint32_t value = 12345;
    for (int i = 0; i < width * height * 3; i++) {
        value = value * 1664525u + 1013904223u;
        image.rgb[i] = (uint8_t)(i / 3 % width % 7 ? value >> 24 : (value >> 30) * 85);
    }
    return image;
}

static int number_of(const char *const names[], const char *name)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], name) == 0) return i;
    fail_msg("%s is not among the names", name);
    return -1;
}

static void resizes_equal_pillow_and_torchvision(void **state)
{
    enum { SIDE = 16, VALUES = SIDE * SIDE * 3 };
    struct weights *w = golden_open("preprocess", "resizes.safetensors", NULL);
    for (int64_t i = 0; i < weights_count(w); i++) {
        const struct weights_tensor *t = weights_tensor(w, i);
        char library[16], resize[16], filter[16];
        int width, height;
        assert_int_equal(
            sscanf(t->name, "%dx%d.%15[^.].%15[^.].%15s", &width, &height, library, resize, filter), 5);
        struct preprocess how = {.resample = (enum resample)(number_of(data_interpolation_names, filter) - 1),
                                 .resize = (enum resize)(number_of(data_resize_names, resize) - 1),
                                 .as = (enum resize_as)(number_of(data_resize_as_names, library) - 1),
                                 .crop_pct = 0.9};
        struct image image = picture(width, height);
        float expected[VALUES], floats[VALUES];
        struct error err;
        bool exact = how.as != RESIZE_AS_HF_FLOAT;
        assert_int_equal(t->count, VALUES);
        assert_int_equal(weights_read(w, i, expected, DTYPE_F32, &err), 0);
        assert_int_equal(image_prepare(&image, &how, SIDE, floats, &err), 0);
        const uint8_t *bytes = (const uint8_t *)floats;
        for (int k = 0; k < VALUES; k++) {
            double mine = exact ? (double)bytes[k] : (double)floats[k];
            if (!(fabs(mine - (double)expected[k]) <= (exact ? 0 : 5e-6)))
                fail_msg("%s: value %d is %g, expected %g", t->name, k, mine, (double)expected[k]);
        }
        free(image.rgb);
    }
    assert_true(weights_count(w) == 128);
    weights_close(w);
}

/* Sizes before the crop: rounded down, as timm does. */
static void sizes_before_the_crop_are_rounded_down(void **state)
{
    static const int sides[][2] = {{160, 182}, {224, 256}, {256, 292}, {320, 365}, {384, 438}, {518, 592}};
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++)
        assert_int_equal(preprocess_resized(&preprocess_dinov2, sides[i][0]), sides[i][1]);
}

static void a_smaller_image_is_bad_where_none_is_resized(void **state)
{
    struct preprocess how = preprocess_clip;
    struct image image = picture(17, 16);
    uint8_t out[16 * 16 * 3];
    struct error err = {0};
    how.resize = RESIZE_EXACT;
    assert_int_equal(image_prepare(&image, &how, 16, out, &err), 0);
    for (int y = 0; y < 16; y++) assert_memory_equal(out + y * 48, image.rgb + y * 51, 48);
    assert_int_equal(image_prepare(&image, &how, 17, out, &err), EXIT_FAILED);
    free(image.rgb);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(resizes_equal_pillow_and_torchvision),
                                       cmocka_unit_test(sizes_before_the_crop_are_rounded_down),
                                       cmocka_unit_test(a_smaller_image_is_bad_where_none_is_resized),
                                       cmocka_unit_test(images_equal_pil),
                                       cmocka_unit_test(cmyk_is_inverted_without_the_marker_too),
                                       cmocka_unit_test(short_files_that_claim_many_pixels_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
