/* Bytes are tokens of a vocabulary of 256 alone, unless data.tokens says so; files that are something else,
 * and tokens whose index is lost, are refused. */
#include "core/base/file.h"
#include "core/base/path.h"
#include "core/data/data.h"
#include "tests/mentions.h"
#include "tests/work_directory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { TOKENS = 1000, VOCABULARY = 997 };
/* Opens a file as tokens of a vocabulary; code 0: it has some, else the error mentions what is named. */
static void check(const char *name, const void *bytes, size_t size, enum token_form form, int64_t vocabulary,
                  int code, const char *named)
{
    char *path = path_join(work, name);
    const struct data_options o = {.root = path,
                                   .tokens = form,
                                   .context = 16,
                                   .vocabulary = vocabulary,
                                   .end = -1,
                                   .batch = 4,
                                   .ranks = 1};
    struct data *d = NULL;
    struct error err = {0};
    assert_int_equal(file_write_atomic(path, bytes, size, NULL), 0);
    int found = data_open(&d, &o, &err);
    if (found != code || (code && !mentions(err.what, named)))
        fail_msg("%s: %d, expected %d: %s", name, found, code, err.what);
    data_close(d);
    free(path);
}

static void test_kinds(void **state)
{
    static const char weights[] = "\x10\0\0\0\0\0\0\0{\"a\":1234567890}", zip[] = "PK\x03\x04 and so on";
    int32_t wide[TOKENS];
    char text[TOKENS];
    for (int i = 0; i < TOKENS; i++) wide[i] = i * 7919 % VOCABULARY;
    memset(text, 'a', sizeof text);
    check("a.txt", text, sizeof text, TOKENS_AUTO, 256, 0, "");
    check("a.txt", text, sizeof text, TOKENS_AUTO, VOCABULARY, EXIT_CONFIG, "256|997");
    check("a.txt", text, sizeof text, TOKENS_BYTES, VOCABULARY, 0, "");
    check("model.safetensors", weights, sizeof weights - 1, TOKENS_AUTO, VOCABULARY, EXIT_INTEGRITY,
          "safetensors");
    check("pytorch_model.bin", zip, sizeof zip, TOKENS_AUTO, VOCABULARY, EXIT_INTEGRITY, "zip");
    check("lost.bin", wide, sizeof wide, TOKENS_AUTO, VOCABULARY, EXIT_INTEGRITY, "32|16");
    check("lost.bin", wide, sizeof wide, TOKENS_UINT16, VOCABULARY, 0, "");
    check("lost.bin", wide, sizeof wide, TOKENS_UINT32, VOCABULARY, 0, "");
    check("narrow.bin", text, sizeof text, TOKENS_AUTO, 65536, 0, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kinds)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
