/* A plan equals the memory that training then uses, class by class, within 1 %: every format, recompute,
 * cached teacher and micro-batch, three families, random weights; the form's plan is the same. Small models;
 * with MEOPT_LONG=1 the published widths at two blocks, and the whole of DINOv2. On a card:
 * MEOPT_TEST_DEVICE=hip:0, fewer combinations. */
#include "core/base/memory.h"
#include "core/base/log.h"
#include "core/config/config.h"
#include "core/plan/plan.h"
#include "core/step/step.h"
#include "tests/card.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static float *pixels;
static int64_t ids[64];

static int some_images(void *context, int64_t index, struct batch *batch, const int64_t **image_ids,
                       struct error *err)
{
    const struct trainer *t = context;
    int64_t count = batch->count;
    (void)err;
    int64_t side = t->student_shape.image;
    pixels = realloc(pixels, (size_t)(count * 3 * side * side) * sizeof *pixels);
    for (int64_t i = 0; i < count * 3 * side * side; i++)
        pixels[i] = (float)((i * 7919 + index) % 512) / 256.0f - 1.0f;
    for (int64_t i = 0; i < count; i++) ids[i] = index * count + i;
    batch->input = pixels;
    *image_ids = ids;
    return 0;
}

static int fill(void *context, struct trainer *t, struct error *err)
{
    (void)context;
    int64_t width = targets_values(t);
    const int64_t *image_ids;
    t->cache.images = t->batch;
    t->cache.rows = malloc((size_t)(t->batch * width) * sizeof(float));
    t->cache.known = memset(malloc((size_t)t->batch), 1, (size_t)t->batch);
    for (int64_t i = 0; i < t->batch; i += t->micro) {
        struct batch batch = {.count = t->micro};
        int code = some_images(t, i / t->micro, &batch, &image_ids, err);
        if (code == 0) code = trainer_embed_teacher(t, &batch, (float *)t->cache.rows + i * width, err);
        if (code) return code;
    }
    return 0;
}

static int compared;
static const char *spec = "cpu";

static void plan_is_measurement(const char *name, char **overrides, int count)
{
    char *path = xasprintf("%s/%s.yaml", source_file("configs"), name);
    struct config config;
    struct error err = {0};
    struct plan plan;
    struct device *device = NULL;
    struct trainer *trainer;
    struct step_result result;
    int code = config_load(&config, path, overrides, count, &err);
    if (code == 0) code = plan_make(&plan, &config, &err);
    if (code == 0) code = device_open(&device, spec, 0, &err);
    if (code) fail_msg("%s", err.what);
    code = trainer_create(&trainer, &config, device, true, fill, NULL, &err);
    for (int step = 1; step <= 2 && code == 0; step++)
        code = trainer_step(trainer, step, 1e-5,
                            &(struct batch_source){.fetch = some_images, .context = trainer}, &result, &err);
    if (code) fail_msg("%s", err.what);
    /* What is kept in 8 bits is planned to the byte. */
    double tolerance = config.train.save_activations == TRAIN_SAVE_ACTIVATIONS_8BIT ? 0 : 0.01;
    bool good = true;
    for (int c = 0; c <= MEMORY_CLASS_COUNT; c++) {
        double planned =
            c < MEMORY_CLASS_COUNT ? (double)plan.use.peak_bytes[c] : (double)plan.use.peak_total_bytes;
        double measured =
            c < MEMORY_CLASS_COUNT ? (double)device->use.peak_bytes[c] : (double)device->use.peak_total_bytes;
        double gap = planned > measured ? planned - measured : measured - planned;
        if (gap <= tolerance * measured) continue;
        good = false;
        fprintf(stderr, "%s", name);
        for (int i = 0; i < count; i++) fprintf(stderr, " %s", overrides[i]);
        fprintf(stderr, ": %s planned %.0f, measured %.0f\n",
                c < MEMORY_CLASS_COUNT ? memory_class_names[c] : "peak", planned, measured);
    }
    assert_memory_equal(plan.use.offloaded_peak_bytes, device->use.offloaded_peak_bytes,
                        sizeof plan.use.offloaded_peak_bytes);
    assert_true(good);
    compared++;
    trainer_close(trainer);
    device_close(device);
    config_free(&config);
    free(path);
}

static const struct shape {
    const char *config;
    const char *small[16], *wide[8];
} shapes[] = {
    {"eva_clip",
     {"model_t.arch=custom", "model_s.arch=custom", "data.image_size=28", "model_t.width=176",
      "model_t.depth=3", "model_t.hidden=352", "model_t.out=64", "model_t.patch=14", "model_s.width=88",
      "model_s.depth=2", "model_s.hidden=176", "model_s.out=64", "model_s.patch=14"},
     {"model_t.depth=2", "model_s.depth=2"}},
    {"open_clip",
     {"model_t.arch=custom", "model_s.arch=custom", "data.image_size=28", "model_t.width=176",
      "model_t.depth=3", "model_t.hidden=352", "model_t.out=64", "model_t.patch=14", "model_s.width=160",
      "model_s.depth=2", "model_s.hidden=320", "model_s.out=64", "model_s.patch=14"},
     {"model_t.depth=2", "model_s.depth=2"}},
    {"dinov2",
     {"model_t.arch=custom", "model_s.arch=custom", "data.image_size=28", "model_t.width=192",
      "model_t.depth=3", "model_t.hidden=128", "model_t.ffn=swiglu", "model_t.patch=14", "model_t.pos_grid=5",
      "model_s.width=128", "model_s.depth=2", "model_s.hidden=512", "model_s.patch=14", "model_s.pos_grid=5"},
     {"model_t.depth=2", "model_s.depth=2"}},
};

static const char *const formats[][2] = {
    {"optim.use_meopt=false", "optim.pure_bf16=false"},  {"optim.use_meopt=false", "optim.pure_bf16=true"},
    {"optim.preset=quality", "optim.clip_mode=exact"},   {"optim.preset=balanced", "optim.name=lion"},
    {"optim.preset=minimal", "optim.name=lamb"},         {"optim.preset=balanced", "optim.gradients=keep"},
    {"optim.preset=balanced", "train.precision=fp32"},   {"optim.preset=balanced", "model_t.dtype=fp32"},
    {"optim.use_meopt=false", "model_s.dtype=fp32"},     {"optim.preset=balanced", "model_t.place=streamed"},
    {"optim.preset=balanced", "model_s.place=streamed"},
};

/* What is enough on a card, where the emulated ones are slow: with MEOpt and without, recomputing and not;
 * every family; accumulated, with a cached teacher. */
static bool on_a_card(size_t shape, size_t format, int k)
{
    static const struct {
        size_t shape, format;
        int k;
    } chosen[] = {{0, 0, 0}, {0, 0, 1}, {0, 3, 0}, {0, 3, 1}, {0, 4, 6},
                  {1, 1, 1}, {1, 6, 0}, {2, 2, 0}, {2, 5, 5}, {2, 9, 1}};
    for (size_t i = 0; i < sizeof chosen / sizeof *chosen; i++)
        if (chosen[i].shape == shape && chosen[i].format == format && chosen[i].k == k) return true;
    return false;
}

static void every_combination(bool wide)
{
    bool card = strcmp(spec, "cpu") != 0;
    char type[32];
    snprintf(type, sizeof type, "device.type=%.*s", (int)strcspn(spec, ":"), spec);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
            for (int k = 0; k < 8; k++) {
                char *o[32];
                int n = 0;
                const char *const *shape = wide ? shapes[s].wide : shapes[s].small;
                while (*shape) o[n++] = (char *)(uintptr_t)*shape++;
                o[n++] = (char *)(uintptr_t)formats[f][0];
                o[n++] = (char *)(uintptr_t)formats[f][1];
                o[n++] = wide || card ? "train.batch_size=2" : "train.batch_size=4";
                o[n++] = !(k & 1)                  ? "train.recompute=none"
                         : ((size_t)k / 2 + s) % 2 ? "train.save_activations=8bit"
                                                   : "train.recompute=block";
                o[n++] = k & 2 ? "train.cache_teacher=true" : "train.cache_teacher=false";
                o[n++] = k & 4 ? wide || card ? "train.micro_batch=1" : "train.micro_batch=2"
                               : "train.micro_batch=0";
                o[n++] = type;
                o[n++] = "train.scratch_dir=/tmp";
                if (card && !wide) o[n++] = "model_t.depth=1";
                if (!wide && !getenv("MEOPT_LONG") &&
                    (card ? !on_a_card(s, f, k) : (5 * s + 3 * f) % 8 != (size_t)k))
                    continue; /* CPU: each format with each shape once; test_equal compares its runs, too */
                plan_is_measurement(shapes[s].config, o, n);
            }
}

static void plans_equal_measurements(void **state)
{
    every_combination(false);
    printf("%d experiments\n", compared);
    if (getenv("MEOPT_LONG") && strcmp(spec, "cpu") == 0) {
        every_combination(true);
        char *one[] = {"train.batch_size=1", "device.type=cpu"},
             *base[] = {"train.batch_size=1", "device.type=cpu", "optim.use_meopt=false"};
        plan_is_measurement("dinov2", one, 2);
        plan_is_measurement("dinov2", base, 3);
    }
}

static void plans_of_the_published_workloads(void **state)
{
    static const struct {
        const char *name;
        int64_t teacher, student;
        double teraflops; /* forward of the teacher, forward and backward of the student, 32 images */
    } known[] = {{"eva_clip", 1012588928, 1012588928, 68.4},
                 {"open_clip", 1012645632, 632076800, 49.2},
                 {"dinov2", 1136480768, 305943040, 34.7}};
    for (size_t i = 0; i < 3; i++) {
        char *path = xasprintf("%s/%s.yaml", source_file("configs"), known[i].name);
        struct config config;
        struct plan plan;
        struct error err = {0};
        assert_int_equal(config_load(&config, path, NULL, 0, &err), 0);
        if (plan_make(&plan, &config, &err)) fail_msg("%s", err.what);
        assert_true(plan.from_checkpoints || plan.teacher_parameters == known[i].teacher);
        assert_true(plan.from_checkpoints || plan.student_parameters == known[i].student);
        assert_true(plan.from_checkpoints || (plan.step_flops / 1e12 > known[i].teraflops * 0.995 &&
                                              plan.step_flops / 1e12 < known[i].teraflops * 1.005));
        assert_true(plan_largest_batch(&config, NULL, plan.use.peak_total_bytes, &err) == 32);
        assert_true(plan_largest_batch(&config, NULL, 1 << 20, &err) == 0);
        config_free(&config);
        free(path);
    }
}

/* What fits into the memory of one rank, with one image more not, and with the weights in parts more. */
static void the_largest_micro_batch_is_that_of_a_rank(void **state)
{
    char *shards[] = {"dist.shard=none", "dist.shard=parameters"};
    struct comm_options eight = {.size = 8, .shared = -1};
    struct error err = {0};
    int64_t largest[2];
    for (int sharded = 0; sharded < 2; sharded++) {
        struct config config;
        struct plan plan;
        size_t card = (size_t)12 << 30;
        assert_int_equal(
            config_load(&config, source_file("configs/eva_clip.yaml"), &shards[sharded], 1, &err), 0);
        config.train.global_batch = 512;
        largest[sharded] = plan_largest_batch(&config, &eight, card, &err);
        for (int more = 0; more < 2; more++) {
            config.train.batch_size = config.train.micro_batch = largest[sharded] + more;
            if (plan_make_distributed(&plan, &config, &eight, &err)) fail_msg("%s", err.what);
            assert_true((plan.use.peak_total_bytes <= card) == !more);
        }
        config_free(&config);
    }
    if (!(largest[0] > 0 && largest[1] > largest[0]))
        fail_msg("whole %lld, in parts %lld images", (long long)largest[0], (long long)largest[1]);
}

/* Parts are equal to within what a tensor may be cut at: the plan of many is that of the one with the most.
 */
static void the_plan_of_many_ranks_is_that_of_the_largest(void **state)
{
    char *settings[][2] = {{"dist.shard=none", "train.global_batch=0"},
                           {"dist.shard=none", "train.global_batch=250"},
                           {"dist.shard=optimizer", "optim.gradients=release"},
                           {"dist.shard=gradients", "optim.gradients=keep"},
                           {"dist.shard=parameters", "train.micro_batch=4"},
                           {"dist.shard=optimizer", "lora.rank=64"},
                           {"dist.shard=parameters", "lora.rank=64"}};
    static const int sizes[] = {2, 3, 7};
    int other = 0;
    for (size_t i = 0; i < sizeof settings / sizeof *settings * 3; i++) {
        struct config config;
        struct plan plan, largest;
        struct error err = {0};
        struct comm_options ranks = {.rank = PLAN_LARGEST, .size = sizes[i % 3], .shared = -1};
        size_t most = 0, first = 0;
        assert_int_equal(config_load(&config, source_file("configs/dinov2.yaml"), settings[i / 3], 2, &err),
                         0);
        if (plan_make_distributed(&largest, &config, &ranks, &err)) fail_msg("%s", err.what);
        for (ranks.rank = 0; ranks.rank < ranks.size; ranks.rank++) {
            if (plan_make_distributed(&plan, &config, &ranks, &err)) fail_msg("%s", err.what);
            if (plan.use.peak_total_bytes > most) most = plan.use.peak_total_bytes;
            if (!ranks.rank) first = most;
            if (ranks.rank == largest.rank)
                assert_int_equal(plan.use.peak_total_bytes, largest.use.peak_total_bytes);
        }
        if (largest.use.peak_total_bytes != most)
            fail_msg("%s %s, %d ranks: rank %d of %zu bytes, the largest has %zu", settings[i / 3][0],
                     settings[i / 3][1], ranks.size, largest.rank, largest.use.peak_total_bytes, most);
        other += most > first;
        config_free(&config);
    }
    assert_true(other > 0); /* else the first rank's would do */
}

int main(void)
{
    log_level = LOG_QUIET;
    if (getenv("MEOPT_TEST_DEVICE")) spec = getenv("MEOPT_TEST_DEVICE");
    const struct CMUnitTest tests[] = {cmocka_unit_test(plans_of_the_published_workloads),
                                       cmocka_unit_test(the_largest_micro_batch_is_that_of_a_rank),
                                       cmocka_unit_test(the_plan_of_many_ranks_is_that_of_the_largest),
                                       cmocka_unit_test(plans_equal_measurements)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(pixels);
    return failed;
}
