/* Token files that megatron-core's builder wrote (tests/make/token_files.py): the tokens and the ends of
 * documents that its own reader finds, in every type of integers; floating-point numbers and the modes of a
 * multimodal dataset are refused. */
#include "core/data/token_file.h"
#include "tests/golden/golden.h"

static void read_pair(const char *name, const json_t *expected)
{
    struct error err = {0};
    struct token_file f;
    char *file = xasprintf("%s.bin", name), *path = golden_path("megatron", file, NULL);
    const json_t *tokens = json_object_get(expected, "tokens"), *ends = json_object_get(expected, "ends");
    int code = token_file_open(&f, path, TOKENS_AUTO, &err);
    if (json_is_null(expected)) {
        assert_int_equal(code, EXIT_INTEGRITY);
        assert_non_null(strstr(err.file, ".idx"));
        assert_non_null(strstr(err.what, strcmp(name, "modes") == 0 ? "modes" : "type"));
    } else if (code) fail_msg("%s: %s", err.file, err.what);
    size_t document = 0, count = json_array_size(tokens);
    int32_t *values = xcalloc(count + 1, sizeof *values);
    if (!code) assert_int_equal(f.count, count);
    if (!code) assert_int_equal(token_file_read(&f, 0, f.count, INT32_MAX, values), -1);
    for (size_t i = 0; i < count; i++) {
        json_int_t end = json_integer_value(json_array_get(ends, document));
        assert_int_equal(values[i], json_integer_value(json_array_get(tokens, i)));
        assert_int_equal(token_file_document_end(&f, (int64_t)i), end);
        document += (json_int_t)i + 1 == end;
    }
    if (!code) assert_int_equal(document, json_array_size(ends));
    if (!code) token_file_close(&f);
    free(values);
    free(file);
    free(path);
}

static void tokens_and_documents_are_megatron_s(void **state)
{
    json_t *found = golden_json("megatron", "tokens.json", NULL), *expected;
    const char *name;
    assert_true(json_object_size(found) == 9);
    json_object_foreach(found, name, expected) read_pair(name, expected);
    json_decref(found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokens_and_documents_are_megatron_s)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
