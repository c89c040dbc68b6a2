/* Decoding, resizing and cropping against PIL and torchvision, byte for byte. */
#include "core/data/data.h"
#include "tests/golden.h"

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
    (void)state;
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
                    image_prepare(&decoded, p ? PIPELINE_DINOV2 : PIPELINE_CLIP, side, rgb, &err), 0);
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
    (void)state;
    char *bytes;
    size_t size;
    struct error err = {0};
    struct image decoded;
    assert_int_equal(file_read(MEOPT_SOURCE_DIR "/tests/fuzz/corpus/image/claims_185_million_pixels.jpg",
                               1 << 20, &bytes, &size, &err),
                     0);
    assert_int_equal(image_decode(&decoded, (const uint8_t *)bytes, size, &err), EXIT_FAILED);
    assert_string_equal(err.what,
                        "is 11294 x 16404 pixels, expected at most 20000 a side and 89478485 in all");
    image_free(&decoded);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(images_equal_pil),
                                       cmocka_unit_test(short_files_that_claim_many_pixels_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
