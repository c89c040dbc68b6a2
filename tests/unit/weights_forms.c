/* core/weights: the forms of a state dict that torch writes seldom, or wrote long ago. Each pickle is put
 * into the legacy container with one storage of the four floats 1 2 3 4. */
#include "core/weights/weights.h"
#include "tests/mentions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define TEXT(length, text) "X" length "\0\0\0" text
#define STORAGE_OPEN                                                                                         \
    "(" TEXT("\7", "storage") "ctorch\nFloatStorage\n" TEXT("\1", "0") TEXT("\3", "cpu") "K\4"
#define STORAGE STORAGE_OPEN "tQ"
#define REST    "K\0K\2\x85K\1\x85\x89}t" /* offset 0, size (2,), stride (1,), requires_grad, hooks */
#define REBUILD "ctorch._utils\n_rebuild_tensor_v2\n"
#define TENSOR  REBUILD "(" STORAGE REST "R"
#define CASE(name, pickle, ...)                                                                              \
    {                                                                                                        \
        name, "\x80\2" pickle ".", sizeof("\x80\2" pickle ".") - 1, __VA_ARGS__                              \
    }

static const struct {
    const char *name, *pickle;
    size_t bytes;
    int64_t count; /* elements of the tensor "w"; -1: to be refused */
    float values[4];
} cases[] = {
    CASE("a tensor", "}" TEXT("\1", "w") TENSOR "s", 2, {1, 2}),
    CASE("Python 2's OrderedDict of pairs", "ccollections\nOrderedDict\n(](](" TEXT("\1", "w") TENSOR "eetR",
         2, {1, 2}),
    CASE("a pair of one", "ccollections\nOrderedDict\n(](](" TENSOR "eetR", -1, {0}),
    CASE("a tensor with attributes",
         "}" TEXT("\1", "w") "ctorch._tensor\n_rebuild_from_type_v2\n(" REBUILD
                             "ctorch\nTensor\n(" STORAGE REST "}tRs",
         2, {1, 2}),
    CASE("a tensor subclass of too few parts",
         "}" TEXT("\1", "w") "ctorch._tensor\n_rebuild_from_type_v2\n(" REBUILD "tRs", -1, {0}),
    CASE("a parameter with state",
         "}" TEXT("\1", "w") "ctorch._utils\n_rebuild_parameter_with_state\n(" TENSOR "\x88}}tRs", 2, {1, 2}),
    CASE("torch.Size",
         "}" TEXT("\1", "w") REBUILD "(" STORAGE "K\0ctorch\nSize\nK\2K\2\x86\x85RK\1K\2\x86\x89}tRs", 4,
         {1, 3, 2, 4}),
    CASE("a view of a storage",
         "}" TEXT("\1", "w") REBUILD "(" STORAGE_OPEN "(" TEXT("\1", "v") "K\1K\2ttQ" REST "Rs", 2, {2, 3}),
    CASE("a view outside its storage",
         "}" TEXT("\1", "w") REBUILD "(" STORAGE_OPEN "(" TEXT("\1", "v") "K\3K\2ttQ" REST "Rs", -1, {0}),
    CASE("two wrappers and a prefix",
         "}" TEXT("\5", "model") "}(" TEXT("\5", "epoch") "K\3" TEXT("\12", "state_dict") "}" TEXT(
             "\10", "module.w") TENSOR "sus",
         2, {1, 2}),
    CASE("timm's model_ema", "}" TEXT("\11", "model_ema") "}" TEXT("\1", "w") TENSOR "ss", 2, {1, 2}),
    CASE("a tensor called module", "}(" TEXT("\6", "module") TENSOR TEXT("\1", "w") TENSOR "u", 2, {1, 2}),
    CASE("one name with and without prefix", "}(" TEXT("\1", "w") TENSOR TEXT("\10", "module.w") TENSOR "u",
         -1, {0}),
    CASE("a wrapper that wraps itself", "}q\0" TEXT("\5", "model") "h\0s", -1, {0}),
    CASE("a tensor without a name", "}K\1" TENSOR "s", -1, {0}),
    CASE("an empty name", "}" TEXT("\0", "") TENSOR "s", -1, {0}),
    CASE("a name with a NUL", "}" TEXT("\3", "w\0x") TENSOR "s", -1, {0}),
    CASE("a call of a tensor", "}" TEXT("\1", "w") TENSOR ")Rs", -1, {0}),
};

static void every_form_of_a_state_dict_is_understood(void **state)
{
    static const char header[] =
        "\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\2M\xe9\3.\x80\2}.";
    static const char keys[] = "\x80\2](" TEXT("\1", "0") "e.\4\0\0\0\0\0\0\0";
    static const float storage[] = {1, 2, 3, 4};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[] = "/tmp/meopt-forms-XXXXXX";
        struct error err = {0};
        struct weights *w;
        int fd = mkstemp(path);
        assert_int_equal(write(fd, header, sizeof header - 1), sizeof header - 1);
        assert_int_equal(write(fd, cases[i].pickle, cases[i].bytes), cases[i].bytes);
        assert_int_equal(write(fd, keys, sizeof keys - 1), sizeof keys - 1);
        assert_int_equal(write(fd, storage, sizeof storage), sizeof storage);
        close(fd);
        int code = weights_open(&w, path, &err);
        unlink(path);
        if (code != (cases[i].count < 0 ? EXIT_INTEGRITY : 0))
            fail_msg("%s: exit %d %s", cases[i].name, code, err.what);
        if (code) continue;
        int64_t index = weights_find(w, "w");
        float values[4];
        if (index < 0 || weights_tensor(w, index)->count != cases[i].count)
            fail_msg("%s: no tensor w of %lld", cases[i].name, (long long)cases[i].count);
        assert_string_equal(weights_format(w), "pytorch legacy");
        assert_string_equal(weights_path(w), path);
        assert_int_equal(weights_read(w, index, values, DTYPE_F32, &err), 0);
        assert_memory_equal(values, cases[i].values, (size_t)cases[i].count * sizeof *values);
        assert_int_equal(weights_read(w, index, values, DTYPE_I32, &err), EXIT_FAILED);
        assert_true(mentions(err.what, "tensor w|F32|I32"));
        weights_close(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_form_of_a_state_dict_is_understood)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
