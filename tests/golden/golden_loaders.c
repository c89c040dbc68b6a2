/* Every file of loaders/index.json does what is expected of it: loads with exactly the values that PyTorch
 * saw, or is refused within 2 s and 256 MiB, and nothing in it is ever executed. The files are read from
 * $MEOPT_FIXTURES/loaders when it is set, else from tests/data/loaders; `meaning` in the index defines the
 * expectations. */
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/weights/weights.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

enum { REFUSAL_MS = 2000, REFUSAL_KIB = 256 << 10 };

static char *directory(void)
{
    const char *fixtures = getenv("MEOPT_FIXTURES");
    return path_join(fixtures && *fixtures ? fixtures : MEOPT_SOURCE_DIR "/tests/data", "loaders");
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static long peak_kib(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return use.ru_maxrss;
}

/* Bit-exact in the stored type, and the same bits again after F32 where that is exact. */
static const char *compare_tensor(const struct weights *got, int64_t i, const struct weights *want)
{
    struct error err;
    const struct weights_tensor *t = weights_tensor(got, i), *u;
    int64_t j = weights_find(want, t->name);
    if (j < 0) return "a tensor that should not be there";
    u = weights_tensor(want, j);
    if (t->dtype != u->dtype || t->ndim != u->ndim || t->count != u->count ||
        memcmp(t->shape, u->shape, sizeof t->shape) != 0)
        return "another type or shape";
    size_t bytes = (size_t)t->count * dtype_bytes(t->dtype);
    uint8_t *a = xmalloc(bytes), *b = xmalloc(bytes);
    float *x = xmalloc((size_t)t->count * 4), *y = xmalloc((size_t)t->count * 4);
    const char *what = NULL;
    if (weights_read(got, i, a, t->dtype, &err) || weights_read(got, i, x, DTYPE_F32, &err))
        what = "unreadable";
    else if (weights_read(want, j, b, t->dtype, &err) || weights_read(want, j, y, DTYPE_F32, &err))
        what = "golden values unreadable";
    else if (memcmp(a, b, bytes) != 0 || memcmp(x, y, (size_t)t->count * 4) != 0) what = "other values";
    free(a), free(b), free(x), free(y);
    return what;
}

static const char *compare_all(const struct weights *got, const char *values)
{
    struct error err;
    struct weights *want;
    if (weights_open(&want, values, &err)) return "golden values do not open";
    const char *what = weights_count(got) == weights_count(want) ? NULL : "another number of tensors";
    for (int64_t i = 0; i < weights_count(got) && !what; i++) what = compare_tensor(got, i, want);
    weights_close(want);
    return what;
}

/* NULL when the case behaved, else what went wrong. */
static const char *run_case(const json_t *item, const char *dir, char *detail, size_t detail_bytes)
{
    const char *file = json_string_value(json_object_get(item, "file")),
               *expect = json_string_value(json_object_get(item, "expect"));
    const char *values = json_string_value(json_object_get(item, "values")),
               *pwned = json_string_value(json_object_get(item, "must_not_exist"));
    char *path = path_join(dir, file);
    if (pwned) unlink(pwned);
    struct error err = {0};
    struct weights *w;
    const char *wrong = NULL;
    long before_kib = peak_kib();
    double start = now_ms();
    int code = weights_open(&w, path, &err);
    double ms = now_ms() - start;
    snprintf(detail, detail_bytes, "exit %d, %s", code, code ? err.what : "loaded");
    if (code == 0) {
        if (strcmp(expect, "refuse") == 0) wrong = "loaded, expected a refusal";
        else if (values) {
            char *golden = path_join(dir, values);
            wrong = compare_all(w, golden);
            free(golden);
        }
        weights_close(w);
    } else if (strcmp(expect, "ok") == 0)
        wrong = "refused, expected to load"; /* the optional ones too: they are supported here */
    else if (code != EXIT_INTEGRITY) wrong = "refused with another exit code than 3";
    else if (!err.what[0] || !err.file[0] || strchr(err.what, '\033'))
        wrong = "refused without a printable message that names the file";
    if (!wrong && ms > REFUSAL_MS) wrong = "took more than 2 s";
    if (!wrong && code && peak_kib() - before_kib > REFUSAL_KIB) wrong = "took more than 256 MiB";
    if (!wrong && pwned && access(pwned, F_OK) == 0) wrong = "code in the file was executed";
    free(path);
    return wrong;
}

static void every_case_loads_or_is_refused(void **state)
{
    char *dir = directory(), *index = path_join(dir, "index.json"), detail[1024];
    json_error_t where;
    json_t *root = json_load_file(index, 0, &where), *cases = json_object_get(root, "cases");
    if (!json_array_size(cases)) fail_msg("%s: no cases (%s)", index, where.text);
    int failed = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *item = json_array_get(cases, i);
        const char *wrong = run_case(item, dir, detail, sizeof detail);
        if (wrong || getenv("MEOPT_VERBOSE"))
            print_message("%s (%s, %s): %s [%s]\n", json_string_value(json_object_get(item, "file")),
                          json_string_value(json_object_get(item, "expect")),
                          json_string_value(json_object_get(item, "note")), wrong ? wrong : "as expected",
                          detail);
        failed += wrong != NULL;
    }
    print_message("%zu cases, %d wrong\n", json_array_size(cases), failed);
    json_decref(root);
    free(index), free(dir);
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_case_loads_or_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
