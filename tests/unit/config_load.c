/* core/config: accepted and refused documents, and their messages. */
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/config/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static struct config config;
static struct error err;

static int load_with(const char *text, char **overrides, int count)
{
    memset(&err, 0, sizeof err);
    return config_load_text(&config, "/data/x/exp.yaml", text, strlen(text), overrides, count, &err);
}

static int load(const char *text) { return load_with(text, NULL, 0); }

static void the_originals_files_are_valid(void **state)
{
    assert_int_equal(load("# EVA\r\nmodel:\r\n  weight_t: ../ModelWeight/EVA-CLIP/a.pt  # 教师\r\n  "
                          "weight_s: b.pt\r\ndata:\r\n"
                          "  root: /coco\r\noptim:\r\n  use_meopt: true\r\n  pure_bf16: false\r\n"),
                     0);
    assert_string_equal(config.model_t[0].weight, "/data/x/../ModelWeight/EVA-CLIP/a.pt");
    assert_string_equal(config.model_s.weight, "/data/x/b.pt");
    assert_string_equal(config.data.root, "/coco");
    assert_true(config.optim.use_meopt);
    assert_string_equal(config.stem, "exp");
    config_free(&config);
    assert_int_equal(load("\xEF\xBB\xBFmodel_t: {weight: t.pth}\nmodel_s:\n  weight: 's.pth'\n"), 0);
    assert_string_equal(config.model_s.weight, "/data/x/s.pth");
    config_free(&config);
    assert_int_equal(load(""), 0);
    config_free(&config);
    assert_int_equal(load("# nothing\noptim:\n"), 0);
    config_free(&config);
}

static void defaults_are_those_of_the_table(void **state)
{
    assert_int_equal(load(""), 0);
    assert_int_equal(config.train.batch_size, 32);
    assert_int_equal(config.train.epochs, 10);
    assert_true(config.optim.lr == 2e-5 && config.optim.beta2 == 0.98 && config.optim.eps == 1e-6);
    assert_true(config.optim.name == MEOPT_APADAMW);
    assert_int_equal(config.model_t[0].dtype, TOWER_DTYPE_BF16);
    assert_int_equal(config.loss[0].normalize, -1);
    for (int key = 0; key < config_key_count;
         key++) { /* a run's config.yaml, which has all, differs in none */
        char *text = config_value_text(&config, key);
        if (config_keys[key].type == CONFIG_REAL) assert_string_equal(text, config_keys[key].standard);
        free(text);
    }
    assert_int_equal(config_resolve(&config, FAMILY_EVA, &err), 0);
    assert_int_equal(config.loss[0].normalize, 1);
    assert_int_equal(config.data.pipeline, DATA_PIPELINE_CLIP);
    assert_int_equal(config_resolve(&config, FAMILY_DINOV2, &err), EXIT_CONFIG);
    config_free(&config);
    for (int key = 0; key < config_key_count; key++) {
        assert_int_equal(config_key_index(config_keys[key].name), key);
        assert_true(strlen(config_keys[key].help) > 5);
        assert_int_not_equal(config_keys[key].help[strlen(config_keys[key].help) - 1], '.');
    }
    assert_int_equal(config_key_index("model.weight_t"), config_key_index("model_t.weight"));
}

static void values_of_the_original_are_taken(void **state)
{
    assert_int_equal(load("model_s:\n  dtype: bf16\n  drop_path: 0\n  width: 64\n"), 0);
    assert_int_equal(config.model_s.width, 64);
    config_free(&config);
}

static void values_have_types_and_ranges(void **state)
{
    char *overrides[] = {
        "optim.lr=1e-3",  "train.batch_size=8",    "optim.name=adam", "device.memory_limit=1.5G",
        "data.flip=auto", "optim.weights=bf16_c8", "data.root=~other"};
    assert_int_equal(load_with("optim:\n  lr: 0.5\n", overrides, 7), 0);
    assert_true(config.optim.lr == 1e-3);
    assert_int_equal(config.train.batch_size, 8);
    assert_int_equal(config.optim.name, MEOPT_APADAM);
    assert_int_equal(config.optim.weights, OPTIM_WEIGHTS_BF16_8);
    assert_int_equal(config.device.memory_limit, 3LL << 29);
    assert_string_equal(path_basename(config.data.root), "~other");
    config_free(&config);
    static const char *const bad[] = {
        "train: {batch_size: 0}",     "train: {batch_size: 1.5}",
        "train: {batch_size: '8'}",   "train: {batch_size: 99999999999999999999}",
        "optim: {beta1: 1}",          "optim: {lr: .nan}",
        "optim: {lr: fast}",          "optim: {lr: }",
        "optim: {use_meopt: 1}",      "optim: {name: [adam]}",
        "device: {memory_limit: 5Q}", "run: {name: a/b}",
        "device: {cards: 1-2}",       "device: {cards: [[0], 1]}",
        "device: {cards: [a]}",       "device: {cards: {a: 0}}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(load(bad[i]), EXIT_CONFIG);
        assert_int_equal(err.line, 1);
    }
}

static void cards_are_a_list_or_text(void **state)
{
    static const char *const files[] = {"device: {cards: [0, 1, 2, 3]}",
                                        "device:\n  cards:\n  - 0\n  - 1\n  - 2\n  - 3\n",
                                        "device:\n  cards: 0,1,2,3\n"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        assert_int_equal(load(files[i]), 0);
        assert_string_equal(config.device.cards, "0,1,2,3");
        config_free(&config);
    }
    char *override[] = {"device.cards=[0, 1,2,3]"};
    assert_int_equal(load_with("device: {cards: [7]}", override, 1), 0);
    assert_string_equal(config.device.cards, "0,1,2,3");
    config_free(&config);
}

static void an_error_shows_the_place_and_the_nearest_key(void **state)
{
    assert_int_equal(load("# 中文注释\noptim:\n  名: 1\n"), EXIT_CONFIG);
    assert_int_equal(err.line, 3);
    assert_int_equal(err.column, 3);
    assert_int_equal(load("optim: # 学习率\n  wieght_decay: 0.1\n"), EXIT_CONFIG);
    assert_int_equal(strncmp(err.what, "optim.wieght_decay ", 19), 0);
    assert_non_null(strstr(err.what, "\n    2 |   wieght_decay: 0.1\n      |   ^~~~~~~~~~~~"));
    assert_non_null(strstr(err.hint, "optim.weight_decay"));
    assert_int_equal(load("train:\n  lr: 1\n"), EXIT_CONFIG);
    assert_non_null(strstr(err.hint, "optim.lr"));
    assert_int_equal(load("optm:\n  lr: 1\n"), EXIT_CONFIG);
    assert_non_null(strstr(err.hint, "optim"));
    assert_int_equal(load("optim: {name: '中', lr: x}\n"), EXIT_CONFIG);
    assert_int_equal(err.column, 15);
    assert_non_null(strstr(err.what, "\n      |               ^~~~"));
    assert_int_equal(load("optim:\n  lr: 1\n  lr: 2\n"), EXIT_CONFIG);
    assert_int_equal(err.line, 3);
    assert_int_equal(load("model: {weight_t: a}\nmodel_t: {weight: a}\n"), EXIT_CONFIG);
    assert_int_equal(err.line, 2);
}

static void what_cannot_stand_together_is_refused(void **state)
{
    static const char *const bad[] = {"train: {cache_teacher: true}\ndata: {augment: true}",
                                      "train: {micro_batch: 3}",
                                      "optim: {pure_bf16: true}\ntrain: {precision: fp32}",
                                      "model_s: {arch: dinov2_vitl14, family: eva}",
                                      "model: {family: eva}\nmodel_t: {arch: dinov2_vitl14}",
                                      "optim: {min_lr: 1}",
                                      "model_s: {width: 64, heads: 3}",
                                      "data: {flip: true}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(load(bad[i]), EXIT_CONFIG);
    char *off[] = {"optim.use_meopt=false"};
    assert_int_equal(load_with("optim: {preset: minimal, gradients: auto}", off, 1), 0);
    assert_int_equal(config.optim.gradients, OPTIM_GRADIENTS_KEEP);
    config_free(&config);
}

static void anchors_merges_and_extension_keys(void **state)
{
    assert_int_equal(
        load("x-base: &base {lr: 3.0e-4, beta1: 0.8}\nx-b: &b 16\noptim:\n  <<: *base\n  beta1: 0.7\n"
             "train:\n  batch_size: *b\n"),
        0);
    assert_true(config.optim.lr == 3e-4 && config.optim.beta1 == 0.7);
    assert_int_equal(config.train.batch_size, 16);
    config_free(&config);
    assert_int_equal(load("optim: &o\n  <<: *o\n  lr: 1.0\n"), EXIT_CONFIG); /* endless */
}

static void hostile_text_is_refused_at_once(void **state)
{
    size_t n = 5 << 20;
    char *text = malloc(n);
    memset(text, '#', n);
    assert_int_equal(config_load_text(&config, "big.yaml", text, n, NULL, 0, &err), EXIT_CONFIG);
    n = 1 << 20;
    memset(text, '[', n);
    assert_int_equal(config_load_text(&config, "deep.yaml", text, n, NULL, 0, &err), EXIT_CONFIG);
    assert_non_null(strstr(err.what, "64"));
    for (size_t i = 0; i < n; i += 2) memcpy(text + i, "- ", 2);
    assert_int_equal(config_load_text(&config, "deep.yaml", text, n, NULL, 0, &err), EXIT_CONFIG);
    assert_int_equal(config_load_text(&config, "nul.yaml", "run:\n  name: a\0b\n", 17, NULL, 0, &err),
                     EXIT_CONFIG);
    assert_int_equal(err.line, 2);
    assert_int_equal(err.column, 10);
    assert_int_equal(load("run:\n  name: \"a\\0b\"\n"), EXIT_CONFIG);
    assert_int_equal(load("run:\n  name: \xff\n"), EXIT_CONFIG);
    size_t used = 0;
    for (int i = 0; i < 90000; i++)
        used += (size_t)sprintf(text + used, "k%05d: 1\n", i); /* minutes when each is looked up and shown */
    assert_int_equal(load(text), EXIT_CONFIG);
    char *laughs = text;
    laughs += sprintf(laughs, "x-a: &a [x,x,x,x,x,x,x,x,x]\n");
    for (char c = 'b'; c < 'z'; c++)
        laughs += sprintf(laughs, "x-%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n", c, c, c - 1, c - 1,
                          c - 1, c - 1, c - 1, c - 1, c - 1, c - 1, c - 1);
    sprintf(laughs, "optim: *y\n");
    assert_int_equal(load(text), EXIT_CONFIG);
    assert_int_equal(load("a: 1\n---\nb: 2\n"), EXIT_CONFIG);
    assert_int_equal(load("optim:\n\tlr: 1\n"), EXIT_CONFIG);
    assert_int_equal(err.line, 2);
    assert_int_equal(load("optim: *nothing\n"), EXIT_CONFIG);
    free(text);
}

static void the_resolved_file_loads_to_the_same_config(void **state)
{
    assert_int_equal(load("model: {family: dinov2, weight_t: 'a b#c: d.pth'}\nrun: {name: \"no\"}\noptim: "
                          "{lr: 3.0e-7, weights: bf16+8}\n"
                          "data: {augment: true, root: \"\\u4e2d \\x07\"}\n"),
                     0);
    char *text = config_resolved_text(&config);
    uint64_t hash = config_hash(&config);
    struct config again;
    assert_int_equal(config_load_text(&again, "/data/x/exp.yaml", text, strlen(text), NULL, 0, &err), 0);
    char *second = config_resolved_text(&again);
    assert_string_equal(text, second);
    assert_true(config_hash(&again) == hash);
    assert_true(again.optim.lr == 3e-7);
    assert_string_equal(again.data.root, "/data/x/中 \a");
    assert_int_equal(config_assign(&again, "train.workers", "3", &err), EXIT_CONFIG);
    assert_int_equal(config_assign(&again, "data.workers", "3", &err), 0);
    assert_true(config_hash(&again) == hash); /* workers do not change the numbers */
    assert_int_equal(config_assign(&again, "train.seed", "3", &err), 0);
    assert_true(config_hash(&again) != hash);
    free(text);
    free(second);
    config_free(&again);
    config_free(&config);
}

static void teachers_have_families_and_sizes_of_their_own(void **state)
{
    assert_int_equal(load("model_t:\n  - {arch: dinov3_vitl16, image_size: 256}\n"
                          "  - {arch: openclip_vit_l14, patch: 14, image_size: 224}\n"
                          "model_s: {arch: dinov3_vits16}\ndata: {image_size: 256}\n"),
                     0);
    assert_int_equal(config.model.family, FAMILY_DINOV3);
    config_free(&config);
}

static void shipped_files_load(void **state)
{
    static const char *const names[] = {
        "eva_clip",         "open_clip",  "dinov2",     "dinov3_vits_from_vitl",
        "eupe_student",     "radio_like", "quickstart", "quickstart_openclip",
        "quickstart_dinov2"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/configs/%s.yaml", MEOPT_SOURCE_DIR, names[i]);
        assert_int_equal(config_load(&config, path, NULL, 0, &err), 0);
        assert_string_equal(config.stem, names[i]);
        assert_int_equal(config.train.batch_size, i < 6 ? 32 : 16);
        config_free(&config);
    }
}

static void the_warm_up_scales_with_the_run(void **state)
{
    static const struct {
        const char *text, *override;
        int64_t total, steps; /* -1: refused */
    } rows[] = {
        {"", NULL, 60, 6},
        {"", NULL, 100000, 500},
        {"", NULL, 3, 0},
        {"optim: {warmup_steps: 500}", NULL, 60, 60},
        {"optim: {warmup_steps: 0}", NULL, 60, 0},
        {"optim: {warmup_ratio: 0.5}", NULL, 6000, 3000},
        {"optim: {warmup_ratio: 0.5, warmup_steps: 5}", NULL, 60, -1},
        {"optim: {warmup_ratio: 0.5}", "optim.warmup_steps=5", 60, 5},
        {"optim: {warmup_steps: 5}", "optim.warmup_ratio=0.25", 60, 15},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *override = rows[i].override ? xstrdup(rows[i].override) : NULL;
        int code = load_with(rows[i].text, &override, override != NULL);
        assert_int_equal(code, rows[i].steps < 0 ? EXIT_CONFIG : 0);
        if (!code) assert_int_equal(config_warmup(&config, rows[i].total), rows[i].steps);
        free(override);
        config_free(&config);
    }
}

static void adapters_have_a_learning_rate_of_their_own(void **state)
{
    assert_int_equal(load("lora: {rank: 8}\ntrain: {objective: language}\n"), 0);
    assert_true(config.optim.lr == 2e-4);
    char *text = config_resolved_text(&config);
    config_free(&config);
    assert_int_equal(load(text), 0); /* a run's */
    assert_true(config.optim.lr == 2e-4);
    config_free(&config);
    free(text);
    assert_int_equal(load("lora: {rank: 8}\noptim: {lr: 2.0e-5}\ntrain: {objective: language}\n"), 0);
    assert_true(config.optim.lr == 2e-5);
    config_free(&config);
}

/* Paths of the file are relative to it, those of the command line to the working directory. */
static void paths_are_relative_to_where_they_are_written(void **state)
{
    char here[512],
        *overrides[] = {(char *)(uintptr_t) "data.val=images", (char *)(uintptr_t) "model_s.weight=/a.pt"};
    assert_non_null(getcwd(here, sizeof here - 8));
    assert_int_equal(load_with("data: {root: images}", overrides, 2), 0);
    assert_string_equal(config.data.root, "/data/x/images");
    assert_string_equal(config.data.val, strcat(here, "/images"));
    assert_string_equal(config.model_s.weight, "/a.pt");
    config_free(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_originals_files_are_valid),
        cmocka_unit_test(defaults_are_those_of_the_table),
        cmocka_unit_test(values_of_the_original_are_taken),
        cmocka_unit_test(values_have_types_and_ranges),
        cmocka_unit_test(cards_are_a_list_or_text),
        cmocka_unit_test(an_error_shows_the_place_and_the_nearest_key),
        cmocka_unit_test(what_cannot_stand_together_is_refused),
        cmocka_unit_test(anchors_merges_and_extension_keys),
        cmocka_unit_test(hostile_text_is_refused_at_once),
        cmocka_unit_test(the_resolved_file_loads_to_the_same_config),
        cmocka_unit_test(teachers_have_families_and_sizes_of_their_own),
        cmocka_unit_test(shipped_files_load),
        cmocka_unit_test(the_warm_up_scales_with_the_run),
        cmocka_unit_test(adapters_have_a_learning_rate_of_their_own),
        cmocka_unit_test(paths_are_relative_to_where_they_are_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
