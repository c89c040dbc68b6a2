/* Choices of the experiment and what they name elsewhere: libmeopt's rules, formats and presets, the towers'
 * families and published geometries. Both lists are walked, so neither can grow alone. */
#include "core/train/internal.h"

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

static int rule(int choice) { return trainer_rule((enum optim_name)choice); }
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
    (void)state;
    is_libmeopts("optim.name", rule, meopt_rule_name);
    is_libmeopts("optim.weights", weight_format, meopt_weight_format_name);
    is_libmeopts("optim.state_m", state_format, meopt_state_format_name);
    is_libmeopts("optim.state_v", state_format, meopt_state_format_name);
}

static void presets_are_libmeopts(void **state)
{
    (void)state;
    struct meopt_options options;
    const char *choice;
    meopt_options_init(&options, sizeof options, MEOPT_APADAMW);
    for (int i = 0; (choice = config_choice(key_of("optim.preset"), i)) != NULL; i++)
        assert_int_equal(meopt_options_preset(&options, choice, NULL), MEOPT_OK);
}

static void families_and_geometries_are_the_towers(void **state)
{
    (void)state;
    const char *choice;
    struct geometry geometry;
    int key = key_of("model.family"), presets = 0;
    for (int i = 1; (choice = config_choice(key, i)) != NULL; i++)
        assert_string_equal(family_name((enum family)i), choice);
    key = key_of("model_s.arch");
    for (int i = 1; (choice = config_choice(key, i)) != NULL; i++, presets++) {
        char text[128], *arch = text;
        struct config config;
        assert_int_equal(geometry_preset(choice, &geometry, NULL), 0);
        snprintf(text, sizeof text, "model_s.arch=%s", choice);
        assert_int_equal(config_load_text(&config, "x.yaml", "", 0, &arch, 1, NULL), 0);
        assert_int_equal(config.model_s.arch, i);
        assert_int_equal(config.model.family, geometry.family);
        config_free(&config);
    }
    assert_non_null(geometry_preset_name(presets - 1));
    assert_null(geometry_preset_name(presets));
}

static void a_choice_is_stored_as_its_number_and_told_as_its_spelling(void **state)
{
    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_and_formats_are_libmeopts), cmocka_unit_test(presets_are_libmeopts),
        cmocka_unit_test(families_and_geometries_are_the_towers),
        cmocka_unit_test(a_choice_is_stored_as_its_number_and_told_as_its_spelling)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
