/* Streamed weights are bit-identical to resident ones: for every tower, key mapping and container of
 * tests/data/towers, and in training. A scratch file that is changed or truncated meanwhile is refused with
 * its name and offset. On a card: MEOPT_TEST_DEVICE=hip:0. */
#include "core/base/log.h"
#include "core/base/crc32c.h"
#include "core/step/weight_stream.h"
#include "core/train/teacher_cache.h"
#include "tests/golden/golden.h"
#include "tests/train/tiny.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *spec = "cpu";
static char scratch[64];

/* ---- one tower ---- */

static struct weights *tower_file(const char *name)
{
    static const char *const files[] = {"model.safetensors", "model.pth", "model.pt", "model.bin"};
    struct weights *w = NULL;
    for (size_t i = 0; i < 4 && !w; i++) {
        char *path = golden_path("towers", name, files[i]);
        if (access(path, F_OK) == 0 && weights_open(&w, path, NULL)) fail_msg("%s", path);
        free(path);
    }
    if (!w) fail_msg("no model in %s", name);
    return w;
}

/* The output (batch * out_rows * out_width) of two passes, of the second one. */
static float *output(const struct model_shape *g, const struct weights *file, bool streamed, size_t *count)
{
    enum { IMAGES = 2 };
    struct error err = {0};
    struct device *dev;
    struct tower *t;
    struct weight_stream *stream = NULL;
    struct tower_options o = {.batch = IMAGES,
                              .compute = DTYPE_BF16,
                              .weight_type = DTYPE_BF16,
                              .weight_buffers = streamed ? 2 : 0,
                              .weights_class = MEMORY_TEACHER,
                              .activations_class = MEMORY_TEACHER};
    size_t bytes = model_shape_input_bytes(g, IMAGES);
    if (device_open(&dev, spec, 0, &err) || tower_create(&t, dev, g, &o, &err)) fail_msg("%s", err.what);
    if (streamed && weight_stream_open(&stream, t, scratch, false, &err)) fail_msg("%s", err.what);
    if (tower_load(t, file, streamed ? weight_stream_write : NULL, stream, &err)) fail_msg("%s", err.what);
    void *place = device_alloc(dev, MEMORY_WORKSPACE, t->scratch_bytes, "scratch", &err),
         *input = device_alloc(dev, MEMORY_DATA, bytes, "input", &err);
    float *images = xmalloc(bytes);
    for (size_t i = 0; i < bytes / sizeof *images; i++) images[i] = (float)(i * 7919 % 512) / 256.0f - 1.0f;
    dev->upload(dev, input, images, bytes);
    tower_bind_scratch(t, place);
    for (int pass = 0; pass < 2; pass++)
        if (tower_forward_bound(t, &(struct batch){.input = input, .count = IMAGES}, &err))
            fail_msg("%s", err.what);
    *count = (size_t)(IMAGES * t->out_rows * t->out_width);
    float *out = xmalloc(*count * sizeof *out);
    dev->sync(dev);
    dev->download(dev, out, t->out, *count * sizeof *out);
    assert_int_equal(device_check(dev, &err), 0);
    weight_stream_close(stream);
    tower_close(t);
    device_close(dev);
    free(images);
    return out;
}

static int towers;

/* Of many: every one on a CPU, few where a card is emulated. */
static bool chosen(int which, int few) { return strcmp(spec, "cpu") == 0 || which % few == 0; }

static void same_output(const char *name)
{
    if (!chosen(towers++, 16)) return;
    struct weights *file = tower_file(name);
    json_t *json = golden_json("towers", name, "geometry.json");
    struct model_shape g = {.image = json_integer_value(json_object_get(json, "image")),
                            .heads = json_integer_value(json_object_get(json, "heads"))};
    struct error err = {0};
    if (model_shape_infer(&g, file, 0, &err)) fail_msg("%s: %s", name, err.what);
    size_t n, m;
    float *held = output(&g, file, false, &n), *streamed = output(&g, file, true, &m);
    assert_int_equal(n, m);
    if (memcmp(held, streamed, n * sizeof *held) != 0) fail_msg("%s: other bits", name);
    free(held);
    free(streamed);
    json_decref(json);
    weights_close(file);
}

static void every_tower_has_the_same_output(void **state)
{
    golden_each("towers", same_output);
    assert_true(towers > 10);
}

/* ---- training ---- */

enum { STEPS = 3, PIXELS = 3 * 28 * 28 };

static int some_images(void *context, int64_t index, struct batch *batch, const int64_t **ids,
                       struct error *err)
{
    static float pixels[4 * PIXELS];
    static const int64_t numbers[4] = {0, 1, 2, 3};
    (void)context;
    (void)err;
    for (int64_t i = 0; i < batch->count * PIXELS; i++)
        pixels[i] = (float)((i * 7919 + index * 31) % 512) / 256.0f - 1.0f;
    batch->input = pixels;
    *ids = numbers;
    return 0;
}

static const struct batch_source source = {.fetch = some_images};

struct outcome {
    double loss[STEPS], norm[STEPS];
    uint32_t crc; /* of all parameters */
};

static uint32_t hash(const struct trainer *t)
{
    uint32_t crc = 0;
    struct error err = {0};
    for (int i = 0; i < t->student->parameter_count; i++) {
        size_t bytes = (size_t)t->student->parameters[i].count * sizeof(float);
        float *values = xmalloc(bytes);
        if (trainer_export(t, i, values, &err)) fail_msg("%s", err.what);
        crc = crc32c(crc, values, bytes);
        free(values);
    }
    return crc;
}

static void open_tiny(struct tiny *tiny, const char *more, const char *place)
{
    struct error err = {0};
    char *all = xasprintf("%s %s train.scratch_dir=%s", more, place, scratch);
    if (tiny_join(tiny, spec, NULL, all, NULL, NULL, &err)) fail_msg("%s: %s", all, err.what);
    free(all);
}

static struct outcome train(const char *more, const char *place)
{
    struct tiny tiny = {0};
    struct outcome o = {0};
    struct error err = {0};
    open_tiny(&tiny, more, place);
    for (int step = 1; step <= STEPS; step++) {
        struct step_result r;
        if (trainer_step(tiny.trainer, step, 1e-3, &source, &r, &err)) fail_msg("%s", err.what);
        o.loss[step - 1] = r.loss;
        o.norm[step - 1] = r.grad_norm;
    }
    o.crc = hash(tiny.trainer);
    tiny_close(&tiny);
    return o;
}

static void same_training(const char *more, const char *place)
{
    struct outcome held = train(more, ""), streamed = train(more, place);
    if (memcmp(&held, &streamed, sizeof held) != 0)
        fail_msg("%s %s: losses %.9g %.9g, weights %08x %08x", more, place, held.loss[STEPS - 1],
                 streamed.loss[STEPS - 1], held.crc, streamed.crc);
}

/* Other variants of a step: test_equal. */
static void streamed_towers_take_the_same_steps(void **state)
{
    same_training("", "model_t.place=streamed");
    same_training("train.recompute=block optim.clip_mode=block",
                  "model_s.place=streamed model_t.place=streamed");
}

/* ---- the file ---- */

/* Of this process, without a name. */
static int working_file(char *path, size_t size)
{
    char target[256];
    for (int fd = 3; fd < 256; fd++) {
        snprintf(path, size, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, target, sizeof target - 1);
        if (n <= 0) continue;
        target[n] = 0;
        if (strstr(target, ".meopt-") || strstr(target, "/#")) return fd; /* a file without a name */
    }
    return -1;
}

static void what_was_changed_meanwhile_is_refused(void **state)
{
    struct tiny tiny = {0};
    struct error err = {0};
    struct step_result r;
    char path[64], byte;
    if (strcmp(spec, "cpu") != 0) skip(); /* a card's weights are in memory */
    open_tiny(&tiny, "", "model_t.place=streamed");
    assert_int_equal(trainer_step(tiny.trainer, 1, 1e-3, &source, &r, &err), 0);
    int fd = working_file(path, sizeof path);
    assert_true(fd >= 0);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_nlink, 0); /* what a killed process leaves is nothing */
    off_t at = st.st_size / 2 / 4096 * 4096;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    assert_int_equal(trainer_step(tiny.trainer, 2, 1e-3, &source, &r, &err), EXIT_INTEGRITY);
    if (!strstr(err.what, "blocks.") || !strstr(err.file, scratch)) fail_msg("%s", err.what);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    err = (struct error){0};
    assert_int_equal(trainer_step(tiny.trainer, 2, 1e-3, &source, &r, &err), 0); /* nothing else is lost */
    assert_int_equal(ftruncate(fd, at + 100), 0);
    assert_int_equal(trainer_step(tiny.trainer, 3, 1e-3, &source, &r, &err), EXIT_INTEGRITY);
    snprintf(path, sizeof path, " %lld", (long long)at + 100);
    if (!strstr(err.what, path)) fail_msg("%s", err.what);
    tiny_close(&tiny);
}

/* In the middle of a step, after later blocks were updated: the run ends, and nothing of the step is
 * saved. */
static void a_changed_student_is_refused(void **state)
{
    struct tiny tiny = {0};
    struct error err = {0};
    struct step_result r;
    char path[64];
    if (strcmp(spec, "cpu") != 0) skip();
    open_tiny(&tiny, "model_s.depth=5", "model_s.place=streamed");
    assert_int_equal(trainer_step(tiny.trainer, 1, 1e-3, &source, &r, &err), 0);
    int fd = working_file(path, sizeof path);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(pwrite(fd, "changed", 7, st.st_size / 2 / 4096 * 4096), 7);
    assert_int_equal(trainer_step(tiny.trainer, 2, 1e-3, &source, &r, &err), EXIT_INTEGRITY);
    if (!strstr(err.what, "blocks.") || !strstr(err.hint, "--resume")) fail_msg("%s", err.what);
    tiny_close(&tiny);
}

static void a_directory_that_cannot_hold_it_is_named(void **state)
{
    struct tiny tiny = {0};
    struct error err = {0};
    if (strcmp(spec, "cpu") != 0) skip();
    assert_int_not_equal(tiny_join(&tiny, spec, NULL,
                                   "model_t.place=streamed train.scratch_dir=/nowhere/at/all", NULL, NULL,
                                   &err),
                         0);
    assert_string_equal(err.file, "/nowhere/at/all");
    assert_non_null(strstr(err.hint, "train.scratch_dir"));
    tiny_close(&tiny);
}

static int begin(void **state)
{
    strcpy(scratch, "/tmp/meopt-streamed-XXXXXX");
    return mkdtemp(scratch) == NULL;
}
static int end(void **state) { return rmdir(scratch); /* nothing is left in it */ }

int main(void)
{
    log_level = LOG_QUIET;
    if (getenv("MEOPT_TEST_DEVICE")) spec = getenv("MEOPT_TEST_DEVICE");
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_tower_has_the_same_output),
                                       cmocka_unit_test(streamed_towers_take_the_same_steps),
                                       cmocka_unit_test(what_was_changed_meanwhile_is_refused),
                                       cmocka_unit_test(a_changed_student_is_refused),
                                       cmocka_unit_test(a_directory_that_cannot_hold_it_is_named)};
    return cmocka_run_group_tests(tests, begin, end);
}
