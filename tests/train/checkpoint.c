/* Checkpoints on disk: saved data is restored, a damaged checkpoint is skipped, a failed save leaves
 * existing ones, and the configured number is kept. No model and no optimizer: tensors and records are
 * made here. */
#include "core/base/json.h"
#include "core/base/path.h"
#include "tests/train/checkpoint.h"

static void what_was_saved_comes_back(void **state)
{
    struct checkpoint c;
    struct error err = {0};
    assert_int_equal(checkpoint_newest(&c, directory, false, &err), 0);
    assert_int_equal(c.step, -1); /* none */
    assert_int_equal(save(7, 2, 1, &err), 0);
    expect(7, 1);
    assert_int_equal(save(7, 2, 2, &err), 0); /* there and whole: no work */
    expect(7, 1);
    char *latest = path_join(directory, "ckpt/LATEST"), *text = NULL;
    size_t bytes;
    assert_int_equal(file_read(latest, 100, &text, &bytes, NULL), 0);
    assert_string_equal(text, "step-00000007");
    free(text);
    free(latest);
}

static void a_damaged_one_is_passed_over(void **state)
{
    static const char *const files[] = {"model.safetensors", "optimizer.bin"};
    struct error err = {0};
    struct checkpoint c;
    for (int64_t step = 1; step <= 4; step++) assert_int_equal(save(step, 9, (int)step, &err), 0);
    for (int i = 0; i < 2; i++) {
        damage(4 - i, files[i]);
        expect(3 - i, 3 - i);
    }
    char *manifest = within(2, "MANIFEST.json");
    assert_int_equal(unlink(manifest), 0);
    free(manifest);
    expect(1, 1);
    char *cut = within(1, "optimizer.bin");
    assert_int_equal(truncate(cut, 100), 0);
    free(cut);
    assert_int_equal(checkpoint_newest(&c, directory, false, &err), EXIT_INTEGRITY);
}

static void a_save_that_fails_leaves_what_was_there(void **state)
{
    struct error err = {0};
    assert_int_equal(save(1, 1, 1, &err), 0);
    refused_record = 2;
    assert_int_equal(save(2, 1, 2, &err), EXIT_HOST_MEMORY);
    assert_string_equal(err.what, "record refused");
    refused_record = -1;
    for (record_more = -1; record_more <= 1; record_more += 2)
        assert_int_equal(save(2, 1, 2, &err), EXIT_FAILED);
    char *partial = xasprintf("%s/ckpt/step-00000002.partial", directory);
    assert_int_not_equal(access(partial, F_OK), 0);
    free(partial);
    assert_int_equal(count_steps(), 1);
    expect(1, 1);
}

static void a_removed_run_stays_removed(void **state)
{
    struct error err = {0};
    assert_int_equal(file_remove_tree(directory, &err), 0);
    assert_int_not_equal(save(1, 1, 1, &err), 0);
    assert_int_not_equal(access(directory, F_OK), 0);
    assert_int_equal(mkdir(directory, 0700), 0);
}

static void as_many_stay_as_are_kept(void **state)
{
    struct error err = {0};
    int count;
    for (int64_t step = 5; step <= 30; step += 5) assert_int_equal(save(step, 3, (int)step, &err), 0);
    int64_t *steps = list_steps(&count);
    assert_int_equal(count, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(steps[i], 30 - 5 * i);
    free(steps);
    assert_int_equal(save(35, 0, 7, &err), 0); /* none cannot be kept: the one just written stays */
    steps = list_steps(&count);
    assert_int_equal(count, 1);
    free(steps);
    expect(35, 7);
}

static void the_newest_of_thousands_is_found(void **state)
{
    struct error err = {0};
    int count;
    assert_int_equal(save(5000, 9999, 3, &err), 0);
    for (int step = 1; step <= 3000; step++) {
        char *empty = within(step, "");
        assert_int_equal(mkdir(empty, 0777), 0);
        free(empty);
    }
    int64_t *steps = list_steps(&count);
    assert_int_equal(count, 3001);
    assert_int_equal(steps[0], 5000);
    for (int i = 1; i < count; i++) assert_int_equal(steps[i], 3001 - i);
    free(steps);
    expect(5000, 3);
}

static void another_shape_is_refused(void **state)
{
    struct error err = {0};
    struct checkpoint c;
    int seed = 1;
    struct weights_row other[2] = {rows[0], rows[1]};
    assert_int_equal(save(1, 1, 1, &err), 0);
    assert_int_equal(checkpoint_newest(&c, directory, false, &err), 0);
    other[1].shape[0]++;
    assert_int_equal(checkpoint_tensors(&c, other, 2, NULL, same_tensor, &seed, &err), EXIT_INTEGRITY);
    other[1] = (struct weights_row){.name = "head", .ndim = 1, .shape = {VALUES}};
    assert_int_equal(checkpoint_tensors(&c, other, 2, NULL, same_tensor, &seed, &err), EXIT_INTEGRITY);
    assert_non_null(strstr(err.what, "head"));
    checkpoint_close(&c);
}

static void what_several_have_written_comes_back(void **state)
{
    struct error err = {0};
    writers = 3;
    assert_int_equal(save(7, 2, 1, &err), 0);
    expect(7, 1);
    assert_int_equal(save(7, 2, 2, &err), 0); /* there and whole: no work */
    expect(7, 1);
    char **names = checkpoint_files(directory, 7, &err);
    static const char *const all[] = {"model.safetensors", "optimizer.0-of-3.bin", "optimizer.1-of-3.bin",
                                      "optimizer.2-of-3.bin", "MANIFEST.json"};
    for (int i = 0; i < 5; i++) {
        assert_string_equal(names[i], all[i]);
        free(names[i]);
    }
    assert_null(names[5]);
    free(names);
    failing = 2;
    assert_int_equal(save(8, 1, 2, &err), EXIT_DISK);
    assert_string_equal(err.what, "writer 2 has no room");
    failing = -1;
    assert_int_equal(count_steps(), 1);
    expect(7, 1);
    writers = 1; /* and by one again */
    assert_int_equal(save(8, 1, 3, &err), 0);
    expect(8, 3);
}

/* As when files of two runs are mixed, or a disk of one host is away. */
static void a_part_that_is_missing_or_of_another_save_is_passed_over(void **state)
{
    struct error err = {0};
    struct checkpoint c;
    writers = 3;
    for (int64_t step = 1; step <= 4; step++) assert_int_equal(save(step, 9, (int)step, &err), 0);
    char *gone = within(4, "optimizer.1-of-3.bin"), *from = within(2, "optimizer.2-of-3.bin"),
         *to = within(3, "optimizer.2-of-3.bin");
    assert_int_equal(unlink(gone), 0);
    expect(3, 3);
    assert_int_equal(unlink(to), 0);
    assert_int_equal(link(from, to), 0);
    expect(2, 2);
    assert_int_equal(checkpoint_newest(&c, directory, true, &err), 0);
    checkpoint_close(&c);
    char *aside = xasprintf("%s/ckpt/step-00000004.damaged", directory);
    assert_int_equal(access(aside, F_OK), 0);
    damage(2, "optimizer.0-of-3.bin");
    damage(1, "optimizer.2-of-3.bin");
    assert_int_equal(checkpoint_newest(&c, directory, false, &err), EXIT_INTEGRITY);
    assert_non_null(strstr(err.what, "optimizer.0-of-3.bin"));
    free(aside);
    free(gone);
    free(from);
    free(to);
}

static int write_elsewhere(void *context, struct checkpoint_written *all, struct error *err)
{
    int code = write_all(context, all, err);
    char *path = xasprintf("%s/ckpt/step-00000002.partial/optimizer.1-of-2.bin", directory);
    assert_int_equal(unlink(path), 0); /* as if on a disk of its own */
    free(path);
    return code;
}

static void a_part_that_is_on_another_hosts_disk_is_no_part(void **state)
{
    struct error err = {0};
    struct others others = {2, 2};
    writers = 2;
    assert_int_equal(save(1, 9, 1, &err), 0);
    struct checkpoint_content content = {
        .tensors = rows, .tensor_count = 2, .writers = 2, .gather = write_elsewhere, .context = &others};
    assert_int_equal(checkpoint_save(directory, 2, 9, &content, &err), EXIT_FAILED);
    assert_non_null(strstr(err.what, "optimizer.1-of-2.bin"));
    expect(1, 1);
}

static void one_of_another_version_is_neither_read_nor_renamed(void **state)
{
    struct error err = {0};
    struct checkpoint c;
    assert_int_equal(save(1, 9, 1, &err), 0);
    assert_int_equal(save(2, 9, 2, &err), 0);
    char *path = within(2, "MANIFEST.json"), *text = NULL;
    size_t bytes;
    assert_int_equal(file_read(path, 4096, &text, &bytes, NULL), 0);
    char *version = strstr(text, "\"version\": 1");
    assert_non_null(version);
    for (const char *other = "90"; *other; other++) {
        version[strlen("\"version\": ")] = *other;
        assert_int_equal(file_write_atomic(path, text, bytes, &err), 0);
        assert_int_equal(checkpoint_newest(&c, directory, true, &err), EXIT_FAILED);
        assert_non_null(strstr(err.what, "step 2"));
        assert_non_null(strchr(err.what, *other));
        assert_int_equal(count_steps(), 2);
    }
    free(text);
    free(path);
}

static void want_all(void *context, int64_t index, int64_t *first, int64_t *count)
{
    (void)context, (void)index, (void)first, (void)count;
}

/* The manifest of step 1, with this JSON in place of a member of a file's entry; NULL: without it. */
static void say(const char *file, const char *key, const char *json)
{
    struct error err = {0};
    char *path = within(1, "MANIFEST.json");
    json_t *manifest = json_read(path, 1 << 20, &err),
           *entry = json_object_get(json_object_get(manifest, "files"), file);
    assert_non_null(entry);
    json_object_del(entry, key);
    if (json) assert_int_equal(json_object_set_new(entry, key, json_loads(json, JSON_DECODE_ANY, NULL)), 0);
    assert_int_equal(json_dump_file(manifest, path, JSON_INDENT(1)), 0);
    json_decref(manifest);
    free(path);
}

static const char *blocks_of(const char *file)
{
    static char text[2][40];
    static int at;
    struct error err = {0};
    char *path = within(1, "MANIFEST.json");
    json_t *manifest = json_read(path, 1 << 20, &err),
           *entry = json_object_get(json_object_get(manifest, "files"), file);
    at = !at;
    snprintf(text[at], sizeof text[at], "\"%s\"", json_string_value(json_object_get(entry, "blocks_crc32c")));
    json_decref(manifest);
    free(path);
    return text[at];
}

/* What one that reads alone (-1) or of three that share it finds; what it takes is what was written. */
static int read_as(int index, struct error *err)
{
    struct checkpoint c;
    int seed = 1;
    struct checkpoint_share share = {.index = index, .count = 3};
    int code = index < 0 ? checkpoint_newest(&c, directory, false, err)
                         : checkpoint_scan(&c, directory, 1, &share, err);
    if (!code) code = checkpoint_tensors(&c, rows, 2, index < 0 ? NULL : want_all, same_tensor, &seed, err);
    if (!code) code = checkpoint_records(&c, RECORDS, NULL, same_record, &seed, err);
    checkpoint_close(&c);
    return code;
}

/* Damage that one of them finds goes before what another cannot make use of. */
static int worst(struct error *err)
{
    int code = 0;
    for (int r = 0; r < 3 && code != EXIT_INTEGRITY; r++) {
        int found = read_as(r, err);
        if (found) code = found;
    }
    return code;
}

/* Files count as whole by what their bytes are: a list of checksums that says nothing is passed over for the
 * file's own, one that says otherwise refuses, with the place. */
static void whatever_the_manifest_says_of_blocks_no_wrong_byte_is_taken(void **state)
{
    static const struct {
        const char *key, *json;
        int code; /* of those that share it */
    } cases[] = {{"blocks_crc32c", "\"\"", 0},
                 {"blocks_crc32c", "\"0000000\"", 0},
                 {"blocks_crc32c", "\"0000000000000000\"", 0},
                 {"blocks_crc32c", "[1, 2]", 0},
                 {"blocks_crc32c", "-1", 0},
                 {"blocks_crc32c", NULL, 0},
                 {"blocks_crc32c", "\"-0000001\"", EXIT_INTEGRITY},
                 {"blocks_crc32c", "\"zzzzzzzz\"", EXIT_INTEGRITY},
                 {"blocks_crc32c", "\"        \"", EXIT_INTEGRITY},
                 {"block_bytes", "-1048576", 0},
                 {"block_bytes", "9223372036854775807", 0},
                 {"block_bytes", "\"1048576\"", 0},
                 {"block_bytes", NULL, 0}};
    struct error err = {0};
    char *text, *path = within(1, "MANIFEST.json");
    size_t bytes;
    assert_int_equal(save(1, 1, 1, &err), 0);
    assert_int_equal(file_read(path, 1 << 20, &text, &bytes, &err), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        FILE *f = fopen(path, "w");
        assert_int_equal(fwrite(text, 1, bytes, f), bytes);
        fclose(f);
        say("model.safetensors", cases[i].key, cases[i].json);
        for (int bad = 0; bad < 2; bad++) {
            int alone = read_as(-1, &err), shared = worst(&err);
            if (alone != (bad ? EXIT_INTEGRITY : 0) || shared != (bad ? EXIT_INTEGRITY : cases[i].code))
                fail_msg("%s %s: alone %d, shared %d", cases[i].key, cases[i].json, alone, shared);
            damage(1, "model.safetensors"); /* and back again */
        }
    }
    free(text);
    free(path);
}

static void wrong_bytes_are_reported_with_file_and_offset(void **state)
{
    struct error err = {0};
    assert_int_equal(save(1, 1, 1, &err), 0);
    const char *model = blocks_of("model.safetensors"), *records = blocks_of("optimizer.bin");
    say("model.safetensors", "blocks_crc32c", records); /* exchanged */
    say("optimizer.bin", "blocks_crc32c", model);
    assert_int_equal(worst(&err), EXIT_INTEGRITY);
    assert_true(strstr(err.what, "model.safetensors") && strstr(err.what, " 0 "));
    say("model.safetensors", "blocks_crc32c", model);
    say("optimizer.bin", "blocks_crc32c", records);
    assert_int_equal(worst(&err), 0);
    damage(1, "model.safetensors");
    assert_int_equal(read_as(-1, &err), EXIT_INTEGRITY);
    assert_true(strstr(err.what, "model.safetensors") && strstr(err.what, " 0 ")); /* alone, too */
    say("model.safetensors", "bytes", "9223372036854775807");
    assert_int_equal(worst(&err), EXIT_INTEGRITY);
    assert_non_null(strstr(err.what, "9223372036854775807"));
    assert_non_null(strstr(err.file, "model.safetensors"));
}

/* One of two entries would be taken, whichever. */
static void a_manifest_that_names_a_file_twice_is_damaged(void **state)
{
    struct error err = {0};
    char *text, *path = within(1, "MANIFEST.json");
    size_t bytes;
    assert_int_equal(save(1, 1, 1, &err), 0);
    assert_int_equal(file_read(path, 1 << 20, &text, &bytes, &err), 0);
    char *files = strstr(text, "\"files\": {") + strlen("\"files\": {"),
         *twice = xasprintf("%.*s\"model.safetensors\": {}, %s", (int)(files - text), text, files);
    assert_int_equal(file_write_atomic(path, twice, strlen(twice), &err), 0);
    assert_int_equal(read_as(-1, &err), EXIT_INTEGRITY);
    assert_int_equal(worst(&err), EXIT_INTEGRITY);
    free(twice);
    free(text);
    free(path);
}

static void a_syntax_error_in_the_manifest_is_reported_with_its_position(void **state)
{
    struct error err = {0};
    const char *text = "{\n \"step\": 1,\n \"files\" 2}";
    char *path = within(1, "MANIFEST.json");
    assert_int_equal(save(1, 1, 1, &err), 0);
    assert_int_equal(file_write_atomic(path, text, strlen(text), &err), 0);
    assert_int_equal(read_as(-1, &err), EXIT_INTEGRITY);
    assert_non_null(strstr(err.what, "line 3, column 10"));
    assert_int_equal(worst(&err), EXIT_INTEGRITY);
    assert_non_null(strstr(err.what, "line 3, column 10"));
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_saved_comes_back, setup, teardown),
        cmocka_unit_test_setup_teardown(a_damaged_one_is_passed_over, setup, teardown),
        cmocka_unit_test_setup_teardown(a_save_that_fails_leaves_what_was_there, setup, teardown),
        cmocka_unit_test_setup_teardown(a_removed_run_stays_removed, setup, teardown),
        cmocka_unit_test_setup_teardown(as_many_stay_as_are_kept, setup, teardown),
        cmocka_unit_test_setup_teardown(the_newest_of_thousands_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(another_shape_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(what_several_have_written_comes_back, setup, teardown),
        cmocka_unit_test_setup_teardown(a_part_that_is_missing_or_of_another_save_is_passed_over, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_part_that_is_on_another_hosts_disk_is_no_part, setup, teardown),
        cmocka_unit_test_setup_teardown(whatever_the_manifest_says_of_blocks_no_wrong_byte_is_taken, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(wrong_bytes_are_reported_with_file_and_offset, setup, teardown),
        cmocka_unit_test_setup_teardown(a_manifest_that_names_a_file_twice_is_damaged, setup, teardown),
        cmocka_unit_test_setup_teardown(a_syntax_error_in_the_manifest_is_reported_with_its_position, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(one_of_another_version_is_neither_read_nor_renamed, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
