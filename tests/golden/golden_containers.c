/* Every file and directory of tests/data/containers has the result in its row of index.json. The real
 * libraries wrote them (tests/make/containers.py), each with one small tower. It loads bit-identically
 * under the prefix and the entry of the row, or is refused with the row's exit code and message. */
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/weights/weights_internal.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static char *directory(void)
{
    const char *fixtures = getenv("MEOPT_FIXTURES");
    return path_join(fixtures && *fixtures ? fixtures : MEOPT_SOURCE_DIR "/tests/data", "containers");
}

static const char *text(const json_t *row, const char *key, const char *otherwise)
{
    const char *value = json_string_value(json_object_get(row, key));
    return value ? value : otherwise;
}

static bool same_tensor(const struct weights *a, int64_t i, const struct weights *b, int64_t j)
{
    const struct weights_tensor *t = weights_tensor(a, i), *u = weights_tensor(b, j);
    size_t bytes = (size_t)u->count * dtype_bytes(u->dtype);
    if (t->dtype != u->dtype || t->ndim != u->ndim || memcmp(t->shape, u->shape, sizeof t->shape) != 0)
        return false;
    uint8_t *x = xmalloc(bytes), *y = xmalloc(bytes);
    bool same = weights_read(a, i, x, t->dtype, NULL) == 0 && weights_read(b, j, y, u->dtype, NULL) == 0 &&
                memcmp(x, y, bytes) == 0;
    free(x), free(y);
    return same;
}

/* NULL when all tensors of the tower but `missing` are there. */
static const char *compare_tower(const struct weights *w, const struct weights *tower, const json_t *row)
{
    struct weights_prefix prefix;
    const char *missing = text(row, "missing", "");
    if (weights_find_suffix(w, "visual.conv1.weight", false, &prefix) < 0) return "the tower is not found";
    if (strcmp(prefix.add, text(row, "prefix", "")) != 0) return "found under another prefix";
    if (prefix.drop != strlen(text(row, "dropped", ""))) return "found as a bare tower, or not";
    for (int64_t i = 0; i < weights_count(tower); i++) {
        const char *name = weights_tensor(tower, i)->name;
        int64_t j = weights_find_under(w, &prefix, name);
        if (j < 0 && strcmp(name, missing) != 0) return "a tensor is missing";
        if (j >= 0 && !same_tensor(w, j, tower, i)) return "other values";
    }
    return NULL;
}

/* What is said of the tensor that is there and not read. */
static const char *check_unread(const struct weights *w, const json_t *row)
{
    struct error err = {0};
    const char *name = text(row, "unread", NULL), *kind = text(row, "kind", "");
    if (!name) return NULL;
    if (!weights_unread(w, name) || !strstr(weights_unread(w, name), kind)) return "is not known by its kind";
    if (weights_refuse_missing(w, name, "hint", &err) != EXIT_CONFIG) return "another exit code";
    if (!strstr(err.what, kind)) return "is said to be missing";
    if (weights_refuse_missing(w, "visual.nothing", "hint", &err) != EXIT_CONFIG) return "another exit code";
    return strstr(err.what, "visual.nothing") && !strstr(err.what, kind) ? NULL
                                                                         : "what is missing is not named";
}

static const char *check_opened(const struct weights *w, const struct weights *tower, const json_t *row)
{
    const char *metadata = text(row, "metadata", NULL), *format = text(row, "format", weights_format(w));
    const char *wrong = compare_tower(w, tower, row);
    if (!wrong && strcmp(w->entry, text(row, "entry", "")) != 0) wrong = "another entry";
    if (!wrong && strcmp(w->others, text(row, "others", "")) != 0) wrong = "other entries next to it";
    if (!wrong && strcmp(weights_format(w), format) != 0) wrong = "another format";
    if (!wrong && metadata && strcmp(metadata, weights_metadata(w, "format")) != 0) wrong = "other metadata";
    return wrong ? wrong : check_unread(w, row);
}

static const char *check_refusal(int code, const struct error *err, const json_t *row)
{
    if (code != json_integer_value(json_object_get(row, "code"))) return "another exit code";
    if (!err->file[0]) return "the file has no name";
    if (strpbrk(err->what, "\033\n")) return "control characters are printed";
    if (!strstr(err->what, text(row, "says", ""))) return "another name in the message";
    return strstr(err->hint, text(row, "hint", "")) ? NULL : "another hint";
}

static void every_container_opens_or_says_what_it_is(void **state)
{
    char *dir = directory(), *index = path_join(dir, "index.json"),
         *tower_path = path_join(dir, "tower.safetensors");
    json_t *rows = json_load_file(index, 0, NULL), *row;
    struct weights *tower;
    size_t i;
    int failed = 0;
    assert_true(json_array_size(rows) > 100);
    assert_int_equal(weights_open(&tower, tower_path, NULL), 0);
    json_array_foreach(rows, i, row)
    {
        struct error err = {0};
        struct weights *w;
        char *path = path_join(dir, text(row, "file", ""));
        int code = weights_open(&w, path, &err);
        const char *wrong = code ? check_refusal(code, &err, row)
                            : json_integer_value(json_object_get(row, "code"))
                                ? "is opened, expected a refusal"
                                : check_opened(w, tower, row);
        if (wrong || getenv("MEOPT_VERBOSE"))
            print_message("%s (%s): %s [%d %s | %s]\n", text(row, "file", ""), text(row, "what", ""),
                          wrong ? wrong : "as expected", code, err.what, err.hint);
        failed += wrong != NULL;
        if (!code) weights_close(w);
        free(path);
    }
    print_message("%zu rows, %d wrong\n", i, failed);
    weights_close(tower);
    json_decref(rows);
    free(dir), free(index), free(tower_path);
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_container_opens_or_says_what_it_is)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
