/* core/weights: finding a tower under names that wrappers changed, and values that are no numbers. */
#include "core/weights/weights.h"
#include "tests/mentions.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { MAX_NAMES = 4 };

/* A file whose tensors have these names, each the values 1 and 2. */
static struct weights *file_of(const char *const *names, const float *values)
{
    char path[] = "/tmp/meopt-names-XXXXXX";
    struct weights_row rows[MAX_NAMES];
    struct error err = {0};
    struct weights *w = NULL;
    int count = 0;
    close(mkstemp(path));
    for (; count < MAX_NAMES && names[count]; count++)
        rows[count] = (struct weights_row){.name = names[count], .ndim = 1, .shape = {2}, .data = values};
    if (weights_write_safetensors(path, rows, count, NULL, &err) || weights_open(&w, path, &err))
        fail_msg("%s", err.what);
    unlink(path);
    return w;
}

static const struct {
    const char *names[MAX_NAMES + 1];
    int found; /* index in names, -1: none */
    const char *add;
    size_t drop;
    const char *other;
} cases[] = {
    {{"visual.conv1.weight"}, 0, "", 0, ""},
    {{"module.visual.conv1.weight"}, 0, "module.", 0, ""},
    {{"_orig_mod.module.model.visual.conv1.weight"}, 0, "_orig_mod.module.model.", 0, ""},
    {{"module._orig_mod.visual.conv1.weight"}, 0, "module._orig_mod.", 0, ""},
    {{"encoder.backbone.visual.conv1.weight"}, 0, "encoder.backbone.", 0, ""},
    {{"conv1.weight"}, 0, "", 7, ""},
    {{"model.conv1.weight"}, 0, "model.", 7, ""},
    /* the fewest words, then the table's order, whatever the order in the file */
    {{"module.visual.conv1.weight", "visual.conv1.weight"}, 1, "", 0, "module."},
    {{"student.visual.conv1.weight", "teacher.visual.conv1.weight"}, 1, "teacher.", 0, "student."},
    {{"ema.visual.conv1.weight", "student.visual.conv1.weight", "teacher.visual.conv1.weight"},
     2,
     "teacher.",
     0,
     "student."},
    {{"teacher.backbone.visual.conv1.weight", "student.visual.conv1.weight"},
     1,
     "student.",
     0,
     "teacher.backbone."},
    /* a whole name is better than a bare one, as a bare one is than none */
    {{"conv1.weight", "model.visual.conv1.weight"}, 1, "model.", 0, ""},
    /* an unknown word is no prefix */
    {{"text.visual.conv1.weight"}, -1, "", 0, ""},
    {{"xmodule.visual.conv1.weight"}, -1, "", 0, ""},
    {{"modulevisual.conv1.weight", "visual.conv1.weight2"}, -1, "", 0, ""},
    {{"layer1.0.conv1.weight"}, -1, "", 0, ""},
    {{"model.model.model.model.model.model.model.visual.conv1.weight"}, -1, "", 0, ""},
};

static void a_tower_is_found_under_the_prefixes_of_wrappers(void **state)
{
    static const float values[] = {1, 2};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct weights *w = file_of(cases[i].names, values);
        struct weights_prefix prefix;
        int64_t found = weights_find_suffix(w, "visual.conv1.weight", false, &prefix);
        const char *first = cases[i].names[0];
        if (cases[i].found < 0) {
            if (found >= 0) fail_msg("%s: found", first);
        } else {
            if (found < 0) fail_msg("%s: not found", first);
            assert_string_equal(weights_tensor(w, found)->name, cases[i].names[cases[i].found]);
            assert_string_equal(prefix.add, cases[i].add);
            assert_string_equal(prefix.other, cases[i].other);
            assert_int_equal(prefix.drop, cases[i].drop);
            assert_int_equal(weights_find_under(w, &prefix, "visual.conv1.weight"), found);
            assert_int_equal(weights_find_under(w, &prefix, "visual.conv2.weight"), -1);
            assert_int_equal(weights_find_under(w, &prefix, "x"), -1);
        }
        weights_close(w);
    }
}

static void nan_and_infinity_are_reported_with_name_count_and_index(void **state)
{
    static const char *const names[] = {"visual.proj", NULL};
    static const struct {
        float values[2];
        const char *what; /* name, count and index; NULL: finite */
    } rows[] = {
        {{1, 2}, NULL},
        {{-3e38f, 1e-45f}, NULL},
        {{0, NAN}, "visual.proj| 1 | 2 |NaN|element 1"},
        {{-NAN, INFINITY}, "visual.proj| 2 | 2 |NaN|element 0"},
        {{-INFINITY, 0}, "visual.proj| 1 | 2 |NaN|element 0"},
    };
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct weights *w = file_of(names, rows[i].values);
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            struct error err = {0};
            float values[2];
            if (types[t] == DTYPE_F16 && rows[i].values[0] == -3e38f) continue; /* too large for a half */
            assert_int_equal(weights_read(w, 0, values, types[t], &err), 0);
            int code = weights_check_finite(w, 0, values, types[t], &err);
            assert_int_equal(code, rows[i].what ? EXIT_INTEGRITY : 0);
            if (!code) assert_string_equal(err.what, "");
            else if (!mentions(err.what, rows[i].what)) fail_msg("'%s' lacks '%s'", err.what, rows[i].what);
            if (code) assert_string_equal(err.file, weights_path(w));
        }
        weights_close(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tower_is_found_under_the_prefixes_of_wrappers),
        cmocka_unit_test(nan_and_infinity_are_reported_with_name_count_and_index)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
