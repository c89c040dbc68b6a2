/* WebP to RGB, byte-identical to PIL (tests/make/webp.py made the images and PIL's pixels). A damaged WebP is
 * refused, and other file types are named in the message. */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/data/data.h"
#include "core/weights/weights.h"
#include "tests/mentions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define DIRECTORY MEOPT_SOURCE_DIR "/tests/data/webp/"

static uint8_t *read_image(const char *name, size_t *size)
{
    char *bytes, *path = path_join(DIRECTORY, name);
    if (file_read(path, 1 << 20, &bytes, size, NULL)) fail_msg("%s cannot be read", path);
    free(path);
    return (uint8_t *)bytes;
}

static void images_equal_pil(void **state)
{
    struct weights *w;
    struct error err = {0};
    assert_int_equal(weights_open(&w, DIRECTORY "decoded.safetensors", &err), 0);
    assert_true(weights_count(w) >= 14);
    for (int64_t i = 0; i < weights_count(w); i++) {
        const struct weights_tensor *t = weights_tensor(w, i);
        struct image image;
        size_t size;
        uint8_t *bytes = read_image(t->name, &size), *expected = xmalloc((size_t)t->count);
        assert_int_equal(weights_read(w, i, expected, DTYPE_U8, &err), 0);
        if (image_decode(&image, bytes, size, &err)) fail_msg("%s: %s", t->name, err.what);
        assert_int_equal(image.height, t->shape[0]);
        assert_int_equal(image.width, t->shape[1]);
        int64_t differ = 0;
        for (int64_t k = 0; k < t->count; k++) differ += image.rgb[k] != expected[k];
        if (differ)
            fail_msg("%s: %lld of %lld bytes differ", t->name, (long long)differ, (long long)t->count);
        image_free(&image);
        free(expected);
        free(bytes);
    }
    weights_close(w);
}

static void what_ends_too_early_is_refused(void **state)
{
    static const char *const names[] = {"lossy.webp", "lossless.webp", "alpha_lossy.webp", "animated.webp"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t size;
        uint8_t *bytes = read_image(names[i], &size);
        /* frames of an animation after the first may be missing, as for PIL's first frame */
        size_t most = i == 3 ? size / 4 : size - 2;
        for (size_t cut = 0; cut <= most; cut += cut < 64 ? 1 : 37) {
            struct image image;
            struct error err = {0};
            uint8_t *exact = xmalloc(cut + 1);
            memcpy(exact, bytes, cut);
            if (!image_decode(&image, exact, cut, &err)) fail_msg("%s: %zu bytes were taken", names[i], cut);
            assert_int_equal(err.code, EXIT_FAILED);
            assert_null(image.rgb);
            free(exact);
        }
        free(bytes);
    }
}

static void a_frame_outside_its_canvas_is_refused(void **state)
{
    size_t size;
    uint8_t *bytes = read_image("animated_beside.webp", &size), *frame = memmem(bytes, size, "ANMF", 4);
    assert_non_null(frame);
    for (int k = 0; k < 2; k++) {
        struct image image;
        struct error err = {0};
        frame[8 + 3 * k] = 40;
        assert_int_equal(image_decode(&image, bytes, size, &err), EXIT_FAILED);
        assert_memory_equal(err.what, "WebP: ", 6);
        frame[8 + 3 * k] = 2;
    }
    free(bytes);
}

static void other_file_types_are_reported_by_name(void **state)
{
    static const struct {
        const char *bytes;
        size_t size;
        const char *named;
    } rows[] = {{"", 0, "empty"},
                {"GIF89a\1\0\1\0", 10, "GIF|JPEG|PNG|WebP"},
                {"\0\0\0\x20"
                 "ftypavif",
                 12, "AVIF|JPEG|PNG|WebP"},
                {"MM\0*\0\0\0\10", 8, "TIFF|JPEG|PNG|WebP"},
                {"MMmm, text", 10, "JPEG|PNG|WebP"},
                {"<html>", 6, "HTML|JPEG|PNG|WebP"},
                {"\xff\xd8", 2, "JPEG|PNG|WebP"},
                {"RIFF\4\0\0\0WAVE", 12, "JPEG|PNG|WebP"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct image image;
        struct error err = {0};
        assert_int_equal(image_decode(&image, (const uint8_t *)rows[i].bytes, rows[i].size, &err),
                         EXIT_FAILED);
        if (!mentions(err.what, rows[i].named)) fail_msg("'%s' lacks '%s'", err.what, rows[i].named);
        if (rows[i].named[0] == 'J') assert_null(strstr(err.what, " file")); /* of no known kind */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(images_equal_pil),
                                       cmocka_unit_test(what_ends_too_early_is_refused),
                                       cmocka_unit_test(a_frame_outside_its_canvas_is_refused),
                                       cmocka_unit_test(other_file_types_are_reported_by_name)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
