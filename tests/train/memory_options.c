/* The memory options: the printed keys of an option plan to its bytes, no option is worse than another in
 * both time and memory, the fastest that fits is chosen, and overrides stay. One configuration;
 * MEOPT_LONG=1: three. */
#include "core/base/memory.h"
#include "core/base/log.h"
#include "core/plan/memory_options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const char *const configs[] = {"dinov2", "eva_clip", "open_clip"};
enum { CONFIGS = sizeof configs / sizeof *configs };

static size_t config_count(void) { return getenv("MEOPT_LONG") ? CONFIGS : 1; }

static struct memory_options options_of(const char *name, char **overrides, int count,
                                        const struct comm_options *ranks, double gib)
{
    struct memory_planner p;
    struct memory_options l;
    struct error err = {0};
    char *path = xasprintf("%s/configs/%s.yaml", MEOPT_SOURCE_DIR, name);
    if (memory_planner_open(&p, path, overrides, count, ranks, &err)) fail_msg("%s", err.what);
    memory_options_find(&l, &p, (size_t)(gib * (1 << 30)));
    memory_planner_close(&p);
    free(path);
    return l;
}

static size_t planned(const char *name, const char *keys, const struct comm_options *ranks)
{
    char *all[32] = {(char[]){"device.type=cpu"}}, *copy = xstrdup(keys), *at;
    int count = 1;
    struct config config;
    struct plan plan;
    struct error err = {0};
    char *path = xasprintf("%s/configs/%s.yaml", MEOPT_SOURCE_DIR, name);
    for (char *word = strtok_r(copy, " ", &at); word; word = strtok_r(NULL, " ", &at)) all[count++] = word;
    if (config_load(&config, path, all, count, &err) || plan_make_distributed(&plan, &config, ranks, &err))
        fail_msg("%s: %s", keys, err.what);
    config_free(&config);
    free(copy);
    free(path);
    return plan.use.peak_total_bytes;
}

static void the_keys_of_an_option_plan_to_its_bytes(void **state)
{
    char *cpu[] = {"device.type=cpu"};
    struct comm_options four = {.size = 4, .shared = -1};
    for (size_t i = 0; i < config_count(); i++)
        for (int many = 0; many < 1 + (i == 0); many++) {
            const struct comm_options *ranks = many ? &four : NULL;
            struct memory_options l = options_of(configs[i], cpu, 1, ranks, 0);
            assert_true(l.count > 3);
            for (int k = 0; k < l.count; k++)
                assert_int_equal(planned(configs[i], l.options[k].keys, ranks), l.options[k].peak_bytes);
            memory_options_free(&l);
        }
}

static void options_are_ordered_and_the_fastest_that_fits_is_chosen(void **state)
{
    char *given[] = {"device.type=cpu", "optim.offload=none", "train.cache_teacher=false"};
    int count = getenv("MEOPT_LONG") ? 1 : 3; /* the fewer free settings, the shorter the search */
    for (size_t i = 0; i < config_count(); i++) {
        struct memory_options all = options_of(configs[i], given, count, NULL, 0);
        size_t limit = all.options[all.count / 2].peak_bytes + 5;
        memory_options_free(&all);
        struct memory_options l = options_of(configs[i], given, count, NULL, (double)limit / (1 << 30));
        for (int k = 1; k < l.count; k++)
            assert_true(l.options[k].peak_bytes < l.options[k - 1].peak_bytes &&
                        l.options[k].step_s > l.options[k - 1].step_s);
        assert_true(l.chosen > 0);
        assert_true(l.options[l.chosen].peak_bytes <= limit && l.options[l.chosen - 1].peak_bytes > limit);
        memory_options_free(&l);
    }
    struct memory_options l = options_of("dinov2", given, count, NULL, 0.01);
    assert_int_equal(l.chosen, -1);
    memory_options_free(&l);
}

static void what_an_override_says_stays(void **state)
{
    char *given[] = {"device.type=cpu", "train.cache_teacher=false", "train.recompute=none"};
    struct memory_options l = options_of("dinov2", given, 3, NULL, 0);
    bool streamed = false;
    for (int k = 0; k < l.count; k++) {
        assert_null(strstr(l.options[k].keys, "cache_teacher"));
        assert_null(strstr(l.options[k].keys, "recompute"));
        streamed = streamed || strstr(l.options[k].keys, "model_t.place=streamed");
    }
    assert_true(streamed);
    memory_options_free(&l);
    char *fixed[] = {"device.type=cpu", "train.micro_batch=1"}; /* not among the choices of the search */
    l = options_of("dinov2", fixed, 2, NULL, 0);
    assert_true(l.count > 1);
    for (int k = 0; k < l.count; k++) assert_null(strstr(l.options[k].keys, "micro_batch"));
    memory_options_free(&l);
}

static bool searched(const struct memory_options *l, const char *keys)
{
    bool found = false;
    for (int k = 0; k < l->count; k++) found = found || strstr(l->options[k].keys, keys);
    return found;
}

/* loss.chunk: of the frontier for language models, with its bytes and its note. Slabs need a fourth GEMM. */
static void sizes_of_logits_are_searched(void **state)
{
    char *given[] = {"device.type=cpu", "optim.offload=none", "model.place=resident",
                     "train.save_activations=minimal"},
         *fixed[] = {"device.type=cpu", "loss.chunk=64M"};
    struct memory_options l = options_of("gpt_1_3b", given, 4, NULL, 0);
    assert_true(searched(&l, "loss.chunk=1G") && searched(&l, "loss.chunk=32M"));
    for (int k = 0; k < l.count; k++) {
        assert_int_equal(planned("gpt_1_3b", l.options[k].keys, NULL), l.options[k].peak_bytes);
        assert_int_equal(memory_option_note(&l.options[k])[0] != 0,
                         strstr(l.options[k].keys, "loss.chunk") != NULL);
    }
    memory_options_free(&l);
    l = options_of("gpt_1_3b", fixed, 2, NULL, 0);
    assert_false(searched(&l, "loss.chunk"));
    memory_options_free(&l);
    l = options_of("dinov2", given, 1, NULL, 0);
    assert_false(searched(&l, "loss.chunk"));
    memory_options_free(&l);
    struct memory_planner p;
    struct memory_option whole, rows, slabs;
    struct error err = {0};
    if (memory_planner_open(&p, MEOPT_SOURCE_DIR "/configs/qwen3_8b.yaml", given, 1, NULL, &err))
        fail_msg("%s", err.what);
    memory_option_plan(&whole, &p, "loss.chunk=100G", NULL, NULL);
    memory_option_plan(&rows, &p, "loss.chunk=1G", NULL, NULL);
    memory_option_plan(&slabs, &p, "loss.chunk=128M", NULL, NULL);
    assert_true(whole.peak_bytes > rows.peak_bytes && rows.peak_bytes > slabs.peak_bytes);
    assert_true(whole.step_s < rows.step_s && rows.step_s < slabs.step_s &&
                slabs.step_s < 1.03 * whole.step_s);
    assert_string_equal(slabs.keys, "");
    memory_planner_close(&p);
}

/* Waves, where activations of all micro-batches do not fit, and loading weights for each one takes long. */
static void waves_are_chosen_between_depth_and_breadth(void **state)
{
    char *given[] = {"device.type=cpu",          "train.batch_size=256",   "train.micro_batch=4",
                     "model_s.place=streamed",   "model_t.place=streamed", "optim.offload=none",
                     "train.cache_teacher=false"};
    struct memory_planner p;
    struct memory_options l;
    struct memory_option depth, breadth, chosen;
    struct error err = {0};
    if (memory_planner_open(&p, MEOPT_SOURCE_DIR "/configs/eva_clip.yaml", given, 7, NULL, &err))
        fail_msg("%s", err.what);
    p.speed.gflops = 100000;
    memory_option_plan(&depth, &p, "train.rounds=depth", NULL, NULL);
    memory_option_plan(&breadth, &p, "train.rounds=breadth", NULL, NULL);
    assert_true(depth.possible && breadth.possible && depth.peak_bytes < breadth.peak_bytes);
    memory_options_find(&l, &p, depth.peak_bytes + (breadth.peak_bytes - depth.peak_bytes) / 4);
    assert_true(l.chosen >= 0);
    chosen = l.options[l.chosen];
    assert_non_null(strstr(chosen.keys, "train.wave"));
    assert_true(chosen.step_s < depth.step_s / 2 && chosen.step_s > breadth.step_s);
    memory_options_free(&l);
    memory_option_plan(&depth, &p, "train.rounds=depth train.wave=2", NULL, NULL);
    assert_false(depth.possible);
    if (memory_planner_apply(&p, &chosen, &err)) fail_msg("%s", err.what);
    assert_int_equal(p.plan.use.peak_total_bytes, chosen.peak_bytes);
    assert_true(p.plan.breadth && p.plan.wave < p.plan.batch / p.plan.micro);
    memory_planner_close(&p);
}

int main(void)
{
    log_level = LOG_QUIET;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_keys_of_an_option_plan_to_its_bytes),
        cmocka_unit_test(options_are_ordered_and_the_fastest_that_fits_is_chosen),
        cmocka_unit_test(what_an_override_says_stays), cmocka_unit_test(sizes_of_logits_are_searched),
        cmocka_unit_test(waves_are_chosen_between_depth_and_breadth)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
