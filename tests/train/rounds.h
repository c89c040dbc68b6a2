/* Trainings of tiny models with random weights on ranks that are threads. */
#ifndef MEOPT_TESTS_TRAIN_ROUNDS_H
#define MEOPT_TESTS_TRAIN_ROUNDS_H

#include "core/base/file.h"
#include "core/train/plan.h"
#include "core/train/train_internal.h"
#include "core/train/trainer.h"
#include "core/train/trainer_checkpoint.h"
#include "core/train/weight_stream.h"
#include "tests/ranks/threads.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { STEPS = 3, IMAGES = 8, SIDE = 28, PIXELS = 3 * SIDE * SIDE, CONTEXT = 24, VOCABULARY = 97 };

static float images[STEPS][IMAGES * PIXELS], share[IMAGES];
static int32_t tokens[STEPS][IMAGES * CONTEXT], labels[STEPS][IMAGES * CONTEXT], begins[IMAGES * CONTEXT],
    ends[IMAGES * CONTEXT], classes[STEPS][IMAGES], classes2[IMAGES];
static int64_t ids[IMAGES];

static const char *spec(void) { return getenv("MEOPT_TEST_DEVICE") ? getenv("MEOPT_TEST_DEVICE") : "cpu"; }

static void make_data(void)
{
    uint32_t random = 1;
    for (int s = 0; s < STEPS; s++) {
        for (int i = 0; i < IMAGES * PIXELS; i++) {
            random = random * 1664525u + 1013904223u;
            images[s][i] = (float)(random >> 16) / 32768.0f - 1.0f;
        }
        for (int i = 0; i < IMAGES * CONTEXT; i++) {
            int at = i % CONTEXT;
            random = random * 1664525u + 1013904223u;
            tokens[s][i] = (int32_t)(random >> 16) % VOCABULARY;
            labels[s][i] = at < 3 * (i / CONTEXT) ? -1 : (int32_t)(random >> 8 & 0xff) % VOCABULARY;
            begins[i] = at < 7 ? 0 : 7;
            ends[i] = at < 7 ? 7 : CONTEXT;
        }
        for (int i = 0; i < IMAGES; i++) classes[s][i] = (i * 3 + s) % 5;
    }
    for (int i = 0; i < IMAGES; i++) {
        classes2[i] = (i + 1) % 5;
        share[i] = 0.3f + 0.05f * (float)i;
        ids[i] = i;
    }
}

static const struct {
    const char *config, *keys;
    int language;
} models[] = {
    {"eva_clip",
     "model_t.arch=custom model_s.arch=custom data.image_size=28 model_t.width=176 model_t.depth=2 "
     "model_t.hidden=352 model_t.out=64 model_t.patch=14 model_s.width=88 model_s.depth=3 "
     "model_s.hidden=176 model_s.out=64 model_s.patch=14",
     0},
    {"dinov2",
     "model_t.arch=custom model_s.arch=custom data.image_size=28 model_t.width=192 model_t.depth=3 "
     "model_t.hidden=128 model_t.ffn=swiglu model_t.patch=14 model_t.pos_grid=5 model_s.width=128 "
     "model_s.depth=2 model_s.hidden=512 model_s.patch=14 model_s.pos_grid=5 loss.tokens=cls+patch",
     0},
    {"bytes", "model.vocabulary=97 model.context=24 model.width=64 model.depth=2 model.heads=4", 1},
    {"bytes",
     "model.vocabulary=97 model.context=24 model.width=64 model.depth=2 model.heads=4 model.family=llama "
     "model.hidden=96 model.kv_heads=2 model.tied=false train.label_smoothing=0.1",
     1},
    {"bytes",
     "model.vocabulary=97 model.context=24 model.width=64 model.depth=2 model.heads=4 model.family=bert "
     "train.objective=masked data.mask_token=96",
     1},
    {"digits",
     "model.arch=custom model.family=dinov2 model.width=64 model.depth=3 model.heads=4 model.hidden=96 "
     "model.patch=14 model.pos_grid=2 model.classes=5 data.image_size=28 data.mixup=0.4 "
     "data.cutmix=0.5",
     0},
};
enum { EVA, DINOV2, GPT2, LLAMA, BERT, CLASSIFIER, MODELS };

struct run {
    int model;
    const char *settings, *directory; /* directory: resume from its checkpoint, if there is one, and save */
    int last_step;                    /* 0: STEPS */
    struct comm_options options;
    void (*prepare)(const struct comm_options *options, struct device *device); /* may be NULL */
    bool breadth;                                                               /* the rounds were */
    int code;
    struct error err;
    struct step_result results[STEPS];
    float *weights;
    int64_t count;
    size_t peak_bytes, planned_bytes;
    int64_t student_bytes, teacher_bytes; /* streamed in the last step */
    int64_t gathered_bytes;               /* of sharded weights, in the last step */
};

struct feed {
    const struct run *run;
    const struct trainer *trainer;
    int step;
};

static int give(void *context, int64_t index, struct batch *batch, const int64_t **image_ids,
                struct error *err)
{
    const struct feed *f = context;
    int64_t place = index * f->trainer->data->size + f->trainer->data->rank, at = place * f->trainer->micro;
    bool plain = place % 2;
    (void)err;
    *image_ids = ids + at;
    batch->input = images[f->step] + at * PIXELS;
    batch->labels = classes[f->step] + at;
    batch->labels2 = plain ? NULL : classes2 + at;
    batch->share = plain ? NULL : share + at;
    if (!models[f->run->model].language) return 0;
    at *= CONTEXT;
    batch->input = tokens[f->step] + at;
    batch->labels = labels[f->step] + at;
    batch->labels2 = NULL;
    batch->begins = plain ? NULL : begins + at;
    batch->ends = plain ? NULL : ends + at;
    return 0;
}

static int load(struct config *config, const struct run *r, struct error *err)
{
    char *words = xasprintf("data.root=/nowhere data.val= train.scratch_dir=/tmp optim.warmup_steps=0 "
                            "train.batch_size=8 device.type=cpu %s %s",
                            models[r->model].keys, r->settings),
         *overrides[60], *at, path[1024];
    int count = 0;
    for (char *word = strtok_r(words, " ", &at); word && count < 60; word = strtok_r(NULL, " ", &at))
        overrides[count++] = word;
    snprintf(path, sizeof path, "%s/configs/%s.yaml", MEOPT_SOURCE_DIR, models[r->model].config);
    int code = config_load(config, path, overrides, count, err);
    free(words);
    return code;
}

/* The teacher's outputs of all images, which are the same in each step here. */
static int fill(void *context, struct trainer *t, struct error *err)
{
    (void)context;
    int64_t row = t->teacher->out_rows * t->teacher->out_width;
    int code = 0;
    t->cache_images = IMAGES;
    t->cache = xcalloc((size_t)(IMAGES * row), sizeof *t->cache);
    t->cached = memset(xmalloc(IMAGES), 1, IMAGES);
    for (int64_t i = 0; i < IMAGES && !code; i++)
        code = trainer_embed_teacher(t, &(struct batch){.input = images[0] + i * PIXELS, .count = 1},
                                     t->cache + i * row, err);
    return code;
}

static void train(struct run *r, struct trainer *t)
{
    struct feed feed = {.run = r, .trainer = t};
    int64_t from = 0, last = r->last_step ? r->last_step : STEPS;
    r->breadth = t->breadth;
    if (r->directory) r->code = trainer_resume(t, r->directory, &from, &r->err);
    for (feed.step = from > 0 ? (int)from : 0; feed.step < last && !r->code; feed.step++) {
        int64_t student = weight_stream_moved_bytes(t->student_stream),
                teacher = weight_stream_moved_bytes(t->teacher_stream), gathered = dp_gathered_bytes(t);
        r->code =
            trainer_step(t, feed.step + 1, 1e-3, &(struct batch_source){.fetch = give, .context = &feed},
                         &r->results[feed.step], &r->err);
        r->student_bytes = weight_stream_moved_bytes(t->student_stream) - student;
        r->teacher_bytes = weight_stream_moved_bytes(t->teacher_stream) - teacher;
        r->gathered_bytes = dp_gathered_bytes(t) - gathered;
    }
    if (r->directory && !r->code) r->code = trainer_save(t, r->directory, last, 1, &r->err);
    for (int i = 0; i < t->student->parameter_count; i++) r->count += t->student->parameters[i].count;
    r->weights = xmalloc((size_t)r->count * sizeof *r->weights);
    int64_t at = 0;
    for (int i = 0; i < t->student->parameter_count && !r->code; i++) {
        r->code = trainer_export(t, i, r->weights + at, &r->err);
        at += t->student->parameters[i].count;
    }
}

static void *run_main(void *context)
{
    struct run *r = context;
    struct config config;
    struct device *device = NULL;
    struct trainer *trainer = NULL;
    const struct comm_options *ranks = r->options.size > 1 ? &r->options : NULL;
#ifdef _OPENMP
    omp_set_num_threads(1);
#endif
    r->code = load(&config, r, &r->err);
    if (!r->code) r->code = device_open(&device, spec(), 0, &r->err);
    if (!r->code && r->prepare) r->prepare(&r->options, device);
    if (!r->code)
        r->code = trainer_create_distributed(&trainer, &config, device, true, ranks, fill, NULL, &r->err);
    if (!r->code) train(r, trainer);
    trainer_close(trainer);
    if (device) r->peak_bytes = device->use.peak_total_bytes;
    if (device) device_close(device);
    struct plan plan;
    struct error err;
    if (!r->code && plan_make_distributed(&plan, &config, ranks, &err) == 0)
        r->planned_bytes = plan.use.peak_total_bytes;
    config_free(&config);
    return NULL;
}

/* The ranks of one training are threads. */
static struct run *as_ranks(int size, struct run like)
{
    struct run *runs = xcalloc((size_t)size, sizeof *runs);
    for (int r = 0; r < size; r++) runs[r] = like;
    run_ranks(size, runs, sizeof *runs, offsetof(struct run, options), run_main);
    for (int r = 0; r < size; r++)
        if (runs[r].code && runs[r].code != EXIT_CONFIG && !like.prepare)
            fail_msg("%s %s: %s", models[like.model].config, like.settings, runs[r].err.what);
    return runs;
}

static void runs_free(struct run *runs, int size)
{
    for (int r = 0; r < size; r++) free(runs[r].weights);
    free(runs);
}

static void same(const char *what, const struct run *one, const struct run *runs, int size)
{
    for (int r = 0; r < size; r++) {
        if (runs[r].code) fail_msg("%s, rank %d of %d: %s", what, r, size, runs[r].err.what);
        for (int s = 0; s < STEPS; s++) {
            const struct step_result *a = &one->results[s], *b = &runs[r].results[s];
            if (a->loss != b->loss || a->metrics[0].value != b->metrics[0].value ||
                a->grad_norm != b->grad_norm || a->wide_groups != b->wide_groups)
                fail_msg("%s, rank %d of %d, step %d: loss %.17g, norm %.17g; not %.17g, %.17g", what, r,
                         size, s + 1, b->loss, b->grad_norm, a->loss, a->grad_norm);
        }
        assert_int_equal(one->count, runs[r].count);
        if (memcmp(one->weights, runs[r].weights, (size_t)one->count * sizeof(float)))
            fail_msg("%s: rank %d of %d has other weights", what, r, size);
    }
}

/* Runs the settings depth-first, then breadth-first with `more`; both are what was planned. */
static void compare(int model, const char *settings, const char *more, int size)
{
    char *deep = xasprintf("%s train.rounds=depth", settings),
         *wide = xasprintf("%s train.rounds=breadth %s", settings, more);
    struct run *depth = as_ranks(1, (struct run){.model = model, .settings = deep});
    struct run *breadth = as_ranks(size, (struct run){.model = model, .settings = wide});
    char *what = xasprintf("%s %s", models[model].config, wide);
    same(what, depth, breadth, size);
    for (int r = 0; r < size; r++) {
        double planned = (double)breadth[r].planned_bytes / (double)breadth[r].peak_bytes;
        assert_true(breadth[r].breadth && !depth->breadth);
        if (planned < 0.99 || planned > 1.01)
            fail_msg("%s: %zu bytes planned, %zu held", what, breadth[r].planned_bytes,
                     breadth[r].peak_bytes);
    }
    runs_free(depth, 1);
    runs_free(breadth, size);
    free(what);
    free(wide);
    free(deep);
}

static const char *const clips[] = {"optim.clip_grad_norm=0.05", "optim.clip_grad_norm=0"};

#endif
