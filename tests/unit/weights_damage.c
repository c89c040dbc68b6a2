/* core/weights: damaged and hostile files are refused, in bounded time and memory.
 *
 * `test_weights_damage same A B` compares two files of tensors, for tests/cli/weights_torch.sh. */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/weights/weights_internal.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED
#endif
#endif

static char directory[] = "/tmp/meopt-damage-XXXXXX";

static char *in_directory(const char *name) { return path_join(directory, name); }

static char *small_file(const char *name, char **data, size_t *bytes)
{
    char *path;
    struct error err = {0};
    static const float values[] = {1, 2, 3, 4, 5, 6};
    static const uint16_t half[] = {0x3c00, 0x4000};
    const struct weights_row rows[] = {
        {.name = "a.weight", .dtype = DTYPE_F32, .ndim = 2, .shape = {2, 3}, .data = values},
        {.name = "b", .dtype = DTYPE_F16, .ndim = 1, .shape = {2}, .data = half}};
    if (strcmp(name, "small.legacy") == 0)
        path = path_join(MEOPT_SOURCE_DIR, "tests/data/loaders/ok_legacy_views.pt");
    else {
        path = in_directory(name);
        if ((strcmp(name, "small.pt") == 0 ? weights_write_pt(path, rows, 2, NULL, &err)
                                           : weights_write_safetensors(path, rows, 2, NULL, &err)))
            fail_msg("%s", err.what);
    }
    if (file_read(path, 1 << 20, data, bytes, &err)) fail_msg("%s", err.what);
    return path;
}

/* 0 refused, 1 loaded with the values of `want`, -1 loaded with others. */
static int open_and_compare(const char *path, const struct weights *want)
{
    struct error err = {0};
    struct weights *w;
    int code = weights_open(&w, path, &err), result = 1;
    if (code) {
        assert_int_equal(code, EXIT_INTEGRITY);
        assert_true(err.what[0] && err.file[0]);
        return 0;
    }
    for (int64_t i = 0; i < weights_count(w) && result == 1; i++) {
        const struct weights_tensor *t = weights_tensor(w, i);
        int64_t j = weights_find(want, t->name);
        const struct weights_tensor *u = j < 0 ? NULL : weights_tensor(want, j);
        uint8_t *a = xmalloc((size_t)t->count * 8), *b = xmalloc(u ? (size_t)u->count * 8 : 1);
        if (weights_read(w, i, a, t->dtype, &err)) result = 0;
        else if (!u || u->dtype != t->dtype || u->ndim != t->ndim ||
                 memcmp(t->shape, u->shape, sizeof t->shape) != 0 ||
                 weights_read(want, j, b, u->dtype, NULL) ||
                 memcmp(a, b, (size_t)t->count * dtype_bytes(t->dtype)) != 0)
            result = -1;
        free(a), free(b);
    }
    if (result == 1 && weights_count(w) != weights_count(want)) result = -1;
    weights_close(w);
    return result;
}

static void overwrite(const char *path, const void *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    struct error err;
    assert_int_equal(file_write_all(fd, data, bytes, path, &err), 0);
    close(fd);
}

static void a_file_cut_at_any_length_is_refused(void **state)
{
    static const char *const names[] = {"small.pt", "small.safetensors", "small.legacy"};
    for (int i = 0; i < 3; i++) {
        char *data;
        size_t bytes;
        char *path = small_file(names[i], &data, &bytes), *cut = in_directory("cut");
        struct weights *whole;
        struct error err = {0};
        assert_int_equal(weights_open(&whole, path, &err), 0);
        overwrite(cut, data, bytes);
        for (size_t length = bytes; length-- > 0;) {
            assert_int_equal(truncate(cut, (off_t)length), 0);
            if (open_and_compare(cut, whole) != 0)
                fail_msg("%s cut at %zu of %zu bytes is not refused", names[i], length, bytes);
        }
        weights_close(whole);
        free(data), free(path), free(cut);
    }
}

/* One bit wrong anywhere: in a .pt, whose parts all have checksums, it is noticed or does no harm. The other
 * two formats have none, so there the values, types or names may differ, but nothing worse may happen. */
static void a_single_wrong_bit_is_noticed_in_a_pt_and_harmless_elsewhere(void **state)
{
    static const char *const names[] = {"small.pt", "small.safetensors", "small.legacy"};
    for (int i = 0; i < 3; i++) {
        char *data;
        size_t bytes, refused = 0, same = 0, other = 0;
        char *path = small_file(names[i], &data, &bytes), *flipped = in_directory("flipped");
        struct weights *whole;
        struct error err = {0};
        assert_int_equal(weights_open(&whole, path, &err), 0);
        overwrite(flipped, data, bytes);
        int fd = open(flipped, O_WRONLY);
        for (size_t bit = 0; bit < bytes * 8; bit++) {
            char wrong = (char)(data[bit / 8] ^ 1 << bit % 8);
            assert_int_equal(pwrite(fd, &wrong, 1, (off_t)(bit / 8)), 1);
            int result = open_and_compare(flipped, whole);
            assert_int_equal(pwrite(fd, &data[bit / 8], 1, (off_t)(bit / 8)), 1);
            if (i == 0 && result < 0)
                fail_msg("bit %zu of byte %zu of %s changes the values unnoticed", bit % 8, bit / 8,
                         names[i]);
            refused += result == 0, same += result == 1, other += result < 0;
        }
        print_message("%s: %zu bits: %zu refused, %zu without effect, %zu with other values\n", names[i],
                      bytes * 8, refused, same, other);
        close(fd);
        weights_close(whole);
        free(data), free(path), free(flipped);
    }
}

/* Bytes on which a trusting reader would allocate without end: `count` times `unit` after `begin`. */
static const struct bomb {
    const char *name, *begin, *unit, *end;
    int begin_bytes, unit_bytes, end_bytes;
    bool json;
} bombs[] = {
    {"nested lists", "\x80\2", "]", "", 2, 1, 0, false},
    {"nested tuples", "\x80\2N", "\x85", ".", 3, 1, 1, false},
    {"marks", "\x80\2", "(", "", 2, 1, 0, false},
    {"copies", "\x80\2N", "2", ".", 3, 1, 1, false},
    {"dictionaries", "\x80\2ccollections\nOrderedDict\nq\0)q\1", "h\0h\1R", ".", 32, 5, 1, false},
    {"keys", "\x80\2}(X\1\0\0\0kq\0N", "h\0N", "u.", 13, 3, 2, false},
    {"json arrays", "{\"a\":[", "[],", "[]]}", 6, 3, 4, true},
    {"json numbers", "{\"a\":[", "0,", "0]}", 6, 2, 3, true},
};

static void write_bomb(const char *path, const struct bomb *bomb)
{
    size_t most = bomb->json ? SAFETENSORS_MAX_HEADER_BYTES - 64 : PICKLE_MAX_BYTES - 64,
           count = most / (size_t)bomb->unit_bytes;
    uint8_t *text = xmalloc(most + 256), *p = text;
    memcpy(p, bomb->begin, (size_t)bomb->begin_bytes), p += bomb->begin_bytes;
    for (size_t i = 0; i < count; i++, p += bomb->unit_bytes) memcpy(p, bomb->unit, (size_t)bomb->unit_bytes);
    memcpy(p, bomb->end, (size_t)bomb->end_bytes), p += bomb->end_bytes;
    uint64_t bytes = (uint64_t)(p - text);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    struct error err;
    if (bomb->json) {
        assert_int_equal(file_write_all(fd, &bytes, 8, path, &err), 0);
        assert_int_equal(file_write_all(fd, text, bytes, path, &err), 0);
    } else { /* the legacy stream needs no container: magic number, version and facts before the object */
        static const char header[] =
            "\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\2M\xe9\3.\x80\2}.";
        assert_int_equal(file_write_all(fd, header, sizeof header - 1, path, &err), 0);
        assert_int_equal(file_write_all(fd, text, bytes, path, &err), 0);
        assert_int_equal(file_write_all(fd, "\x80\2].", 4, path, &err), 0);
    }
    close(fd);
    free(text);
}

/* The whole promise - 2 s and 256 MiB - for each, in a process of its own, whose peak is its own too. */
static void what_wants_to_grow_is_refused_in_2_s_and_256_mib(void **state)
{
    char *path = in_directory("bomb");
    for (size_t i = 0; i < sizeof bombs / sizeof *bombs; i++) {
        write_bomb(path, &bombs[i]);
        pid_t child = fork();
        if (child == 0) {
            struct error err = {0};
            struct weights *w;
            _exit(weights_open(&w, path, &err));
        }
        int status;
        struct rusage use;
        assert_int_equal(wait4(child, &status, 0, &use), child);
        double s = (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
                   (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
        print_message("%s: %.2f s, %ld MiB\n", bombs[i].name, s, use.ru_maxrss >> 10);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), EXIT_INTEGRITY);
#ifndef SANITIZED
        assert_true(s < 2);
        assert_true(use.ru_maxrss < 256 << 10);
#endif
    }
    free(path);
}

static int clean(void **state)
{
    struct error err;
    return file_remove_tree(directory, &err);
}

static int compare_files(const char *a, const char *b)
{
    struct error err = {0};
    struct weights *want;
    if (weights_open(&want, b, &err)) {
        error_print(&err);
        return 1;
    }
    int same = open_and_compare(a, want) == 1;
    weights_close(want);
    return !same;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "same") == 0) return compare_files(argv[2], argv[3]);
    if (!mkdtemp(directory)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_cut_at_any_length_is_refused),
        cmocka_unit_test(a_single_wrong_bit_is_noticed_in_a_pt_and_harmless_elsewhere),
        cmocka_unit_test(what_wants_to_grow_is_refused_in_2_s_and_256_mib),
    };
    return cmocka_run_group_tests(tests, NULL, clean);
}
