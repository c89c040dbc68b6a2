/* Choices of the configuration and their counterparts: libmeopt's rules, formats and presets, the towers'
 * families and published shapes. The test iterates over both lists, so that neither can be extended alone. */
#include "core/step/step.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static int key_of(const char *name)
{
    int key = config_key_index(name);
    assert_true(key >= 0);
    return key;
}

static int rule(int choice) { return choice; }
static int weight_format(int choice) { return trainer_weight_format((enum optim_weights)choice); }
static int state_format(int choice) { return trainer_state_format((enum optim_state)choice); }

/* Every choice but auto is libmeopt's number and libmeopt's name; and libmeopt has no more. */
static void is_libmeopts(const char *name, int (*number)(int), const char *(*spelling)(int))
{
    int key = key_of(name), count = 0;
    const char *choice;
    for (int i = 0; (choice = config_choice(key, i)) != NULL; i++) {
        if (strcmp(choice, "auto") == 0) {
            assert_int_equal(number(i), -1);
            continue;
        }
        assert_non_null(spelling(number(i)));
        assert_string_equal(spelling(number(i)), choice);
        count++;
    }
    assert_non_null(spelling(count - 1));
    assert_null(spelling(count));
}

static void rules_and_formats_are_libmeopts(void **state)
{
    is_libmeopts("optim.name", rule, meopt_rule_name);
    is_libmeopts("optim.weights", weight_format, meopt_weight_format_name);
    is_libmeopts("optim.state_m", state_format, meopt_state_format_name);
    is_libmeopts("optim.state_v", state_format, meopt_state_format_name);
}

static void presets_are_libmeopts(void **state)
{
    struct meopt_options options;
    const char *choice;
    meopt_options_init(&options, sizeof options, MEOPT_APADAMW);
    for (int i = 0; (choice = config_choice(key_of("optim.preset"), i)) != NULL; i++)
        assert_int_equal(meopt_options_preset(&options, choice, NULL), MEOPT_OK);
}

static void families_and_geometries_are_the_towers(void **state)
{
    const char *choice;
    struct model_shape model_shape;
    int key = key_of("model.family");
    for (int i = 1; (choice = config_choice(key, i)) != NULL; i++)
        assert_string_equal(family_name((enum family)i), choice);
    key = key_of("model_s.arch");
    for (int i = 1; (choice = config_choice(key, i)) != NULL; i++) {
        char text[128], *arch = text;
        struct config config;
        assert_int_equal(model_shape_preset(choice, &model_shape, NULL), 0);
        snprintf(text, sizeof text, "model_s.arch=%s", choice);
        assert_int_equal(config_load_text(&config, "x.yaml", "", 0, &arch, 1, NULL), 0);
        assert_int_equal(config.model_s.arch, i);
        assert_int_equal(config.model.family, model_shape.family);
        config_free(&config);
    }
}

static void a_choice_is_stored_as_its_number_and_printed_by_name(void **state)
{
    for (int key = 0; key < config_key_count; key++) {
        if (config_keys[key].type != CONFIG_CHOICE) continue;
        const char *choice;
        for (int i = 0; (choice = config_choice(key, i)) != NULL; i++) {
            struct config config;
            assert_int_equal(config_load_text(&config, "x.yaml", "", 0, NULL, 0, NULL), 0);
            assert_int_equal(config_assign(&config, config_keys[key].name, choice, NULL), 0);
            assert_int_equal(*(unsigned *)((char *)&config + config_keys[key].offset), i);
            char *text = config_value_text(&config, key);
            assert_string_equal(text, choice);
            free(text);
            config_free(&config);
        }
    }
}

/* Neither tower's dtype touches the other's, and without one both are train.precision. */
static void a_towers_dtype_is_its_own(void **state)
{
    static char *const small[] = {"model.family=dinov2", "data.image_size=28", "train.batch_size=2",
                                  "model_t.width=128",   "model_t.depth=1",    "model_t.hidden=256",
                                  "model_t.patch=14",    "model_t.pos_grid=2", "model_t.ffn=mlp",
                                  "model_s.width=64",    "model_s.depth=1",    "model_s.hidden=128",
                                  "model_s.patch=14",    "model_s.pos_grid=2", "model_s.ffn=mlp"};
    static const struct {
        const char *more[2];
        enum dtype teacher, student;
    } rows[] = {{{"train.precision=bf16", "model_t.dtype=auto"}, DTYPE_BF16, DTYPE_BF16},
                {{"train.precision=fp32", "model_t.dtype=auto"}, DTYPE_F32, DTYPE_F32},
                {{"train.precision=bf16", "model_t.dtype=fp32"}, DTYPE_F32, DTYPE_BF16},
                {{"train.precision=bf16", "model_s.dtype=fp32"}, DTYPE_BF16, DTYPE_F32}};
    enum { SMALL = sizeof small / sizeof *small };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct config config;
        struct device *device = NULL;
        struct trainer *t = NULL;
        struct error err = {0};
        char *overrides[SMALL + 2];
        memcpy(overrides, small, sizeof small);
        for (int k = 0; k < 2; k++) overrides[SMALL + k] = (char *)(uintptr_t)rows[i].more[k];
        int code = config_load_text(&config, "x.yaml", "", 0, overrides, SMALL + 2, &err);
        if (!code) code = device_open(&device, "dry", 0, &err);
        if (!code) code = trainer_create(&t, &config, device, true, NULL, NULL, &err);
        if (code) fail_msg("%s", err.what);
        assert_int_equal(t->teachers[0].tower->options.compute, rows[i].teacher);
        assert_int_equal(t->teachers[0].tower->options.weight_type, rows[i].teacher);
        assert_int_equal(t->student->options.compute, rows[i].student);
        assert_int_equal(t->student->options.weight_type, rows[i].student);
        trainer_close(t);
        device_close(device);
        config_free(&config);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_and_formats_are_libmeopts), cmocka_unit_test(presets_are_libmeopts),
        cmocka_unit_test(a_towers_dtype_is_its_own), cmocka_unit_test(families_and_geometries_are_the_towers),
        cmocka_unit_test(a_choice_is_stored_as_its_number_and_printed_by_name)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
