/* Which token files of a directory are read: those for training or for validation, and not data.val. */
#include "core/base/file.h"
#include "core/base/path.h"
#include "core/data/labels.h"
#include "tests/mentions.h"
#include "tests/work_directory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <stdlib.h>
#include <cmocka.h>

static void put(const char *directory, const char *name)
{
    char *below = path_join(work, directory), *path = path_join(below, name);
    assert_int_equal(file_make_dirs(below, NULL), 0);
    assert_int_equal(file_write_atomic(path, "xx", 2, NULL), 0);
    free(path);
    free(below);
}

/* names: those expected, each followed by a blank. */
static void expect(const struct data_options *o, const char *names)
{
    struct image_list list;
    struct error err = {0};
    char found[256] = "";
    if (image_list_open(&list, o, &err)) fail_msg("%s: %s", err.file, err.what);
    for (int64_t i = 0; i < list.count; i++) strcat(strcat(found, list.names[i]), " ");
    assert_string_equal(found, names);
    image_list_free(&list);
}

static void validation_is_not_trained_on(void **state)
{
    static const struct {
        const char *root, *files[4], *apart, *train, *val;
    } rows[] = {
        {"plain",
         {"train.bin", "train.idx", "val.bin", "val.labels"},
         NULL,
         "train.bin train.idx ",
         "val.bin val.labels "},
        {"same", {"train.bin", "val.bin"}, "same/val.bin", "train.bin ", "val.bin "},
        {"llmc",
         {"t_train_000001.bin", "t_train_000002.bin", "t_val_000000.bin"},
         NULL,
         "t_train_000001.bin t_train_000002.bin ",
         "t_val_000000.bin "},
        {"test", {"train.bin", "test.bin", "books.bin"}, NULL, "train.bin ", "test.bin "},
        {"free", {"a.bin", "b.bin", "b.idx"}, "free/b.bin", "a.bin ", "a.bin b.bin b.idx "},
        {"words",
         {"train_val.bin", "test_train.bin"},
         NULL,
         "test_train.bin train_val.bin ",
         "test_train.bin train_val.bin "},
        {"one", {"val.bin", "more.bin"}, NULL, "more.bin val.bin ", "more.bin val.bin "},
        {"share",
         {"chats.bin", "chats-val.bin", "chats-val.idx", "more.bin"},
         NULL,
         "chats.bin more.bin ",
         "chats-val.bin chats-val.idx "},
        {"both", {"train.bin", "train-val.bin"}, NULL, "train.bin ", "train-val.bin "},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *root = path_join(work, rows[i].root),
             *apart = path_join(work, rows[i].apart ? rows[i].apart : "-");
        for (int k = 0; k < 4 && rows[i].files[k]; k++) put(rows[i].root, rows[i].files[k]);
        struct data_options o = {.root = root, .tokens = TOKENS_AUTO, .apart = apart};
        expect(&o, rows[i].train);
        o.include = "*val*";
        if (i == 0) expect(&o, "val.bin val.labels "); /* patterns choose alone */
        o.include = NULL;
        o.apart = NULL;
        o.validation = true;
        expect(&o, rows[i].val);
        free(root);
        free(apart);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(validation_is_not_trained_on, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
