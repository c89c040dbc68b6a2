/* Trainings of tiny models with random weights on ranks that are threads. */
#ifndef MEOPT_TESTS_TRAIN_EQUAL_H
#define MEOPT_TESTS_TRAIN_EQUAL_H

#include "core/base/memory.h"
#include "core/plan/plan.h"
#include "core/step/step.h"
#include "core/step/trainer.h"
#include "core/train/trainer_checkpoint.h"
#include "core/step/weight_stream.h"
#include "tests/card.h"
#include "tests/ranks/threads.h"

#include <math.h>
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

enum { STEPS = 3, SAMPLES = 8, SIDE = 28, PIXELS = 3 * SIDE * SIDE, CONTEXT = 24, VOCABULARY = 97 };

static float images[STEPS][SAMPLES * PIXELS], share[SAMPLES];
static int32_t tokens[STEPS][SAMPLES * CONTEXT], labels[STEPS][SAMPLES * CONTEXT],
    masked[STEPS][SAMPLES * CONTEXT], begins[STEPS][SAMPLES * CONTEXT], ends[STEPS][SAMPLES * CONTEXT],
    classes[STEPS][SAMPLES], classes2[SAMPLES];
static int64_t ids[SAMPLES];

static inline const char *spec(void)
{
    return getenv("MEOPT_TEST_DEVICE") ? getenv("MEOPT_TEST_DEVICE") : "cpu";
}

static inline bool on_a_card(void) { return strcmp(spec(), "cpu") != 0; }

/* Labels of tokens are missing unevenly, one to four of a text are masked, every third text is two documents,
 * as every third image is mixed. */
static inline void make_data(void)
{
    uint32_t random = 1;
    for (int s = 0; s < STEPS; s++) {
        for (int i = 0; i < SAMPLES * PIXELS; i++) {
            random = random * 1664525u + 1013904223u;
            images[s][i] = (float)(random >> 16) / 32768.0f - 1.0f;
        }
        for (int i = 0; i < SAMPLES * CONTEXT; i++) {
            int sample = i / CONTEXT, at = i % CONTEXT, cut = sample % 3 ? 0 : 5 + sample + s;
            random = random * 1664525u + 1013904223u;
            tokens[s][i] = (int32_t)(random >> 16) % VOCABULARY;
            labels[s][i] = at < 3 * sample ? -1 : (int32_t)(random >> 8 & 0xff) % VOCABULARY;
            masked[s][i] = at % 6 == 1 && at / 6 <= sample % 4 ? labels[s][i] & 0x3f : -1;
            begins[s][i] = at < cut ? 0 : cut;
            ends[s][i] = at < cut ? cut : CONTEXT;
        }
        for (int i = 0; i < SAMPLES; i++) classes[s][i] = (i * 3 + s) % 5;
    }
    for (int i = 0; i < SAMPLES; i++) {
        classes2[i] = (i + 1) % 5;
        share[i] = i % 3 ? 1 : 0.3f + 0.05f * (float)i;
        ids[i] = i;
    }
}

/* GPT-2 has a tied table and biases; llama few key heads, wide heads, gates and a matrix of the head's own;
 * Qwen also norms of heads. */
#define TEXT      "model.vocabulary=97 model.context=24 model.width=64 model.depth=2 model.heads=4 "
#define BERT_TEXT TEXT "model.family=bert "
static const struct {
    const char *config, *keys;
    bool teacher, tokens, classes;
} models[] = {
    {"eva_clip",
     "model_t.arch=custom model_s.arch=custom data.image_size=28 model_t.width=176 model_t.depth=2 "
     "model_t.hidden=352 model_t.out=64 model_t.patch=14 model_s.width=88 model_s.depth=3 "
     "model_s.hidden=176 model_s.out=64 model_s.patch=14",
     .teacher = true},
    {"dinov2",
     "model_t.arch=custom model_s.arch=custom data.image_size=28 model_t.width=192 model_t.depth=3 "
     "model_t.hidden=128 model_t.ffn=swiglu model_t.patch=14 model_t.pos_grid=5 model_s.width=128 "
     "model_s.depth=2 model_s.hidden=512 model_s.patch=14 model_s.pos_grid=5 loss.tokens=cls+patch",
     .teacher = true},
    {"bytes", TEXT, .tokens = true},
    {"bytes",
     TEXT "model.family=llama model.hidden=96 model.kv_heads=2 model.head_dim=32 model.tied=false "
          "train.label_smoothing=0.1",
     .tokens = true},
    {"bytes", BERT_TEXT "train.objective=masked data.mask_token=96", .tokens = true},
    {"digits",
     "model.arch=custom model.family=dinov2 model.width=64 model.depth=3 model.heads=4 model.hidden=96 "
     "model.patch=14 model.pos_grid=2 model.classes=5 data.image_size=28 data.mixup=0.4 "
     "data.cutmix=0.5",
     .classes = true},
    {"bytes", BERT_TEXT "train.objective=classify model.classes=5", .tokens = true, .classes = true},
    {"bytes",
     TEXT "model.family=llama model.arch=qwen3_0_6b model.hidden=96 model.kv_heads=1 model.head_dim=32",
     .tokens = true},
    {"dinov2",
     "model_t.arch=custom model_s.arch=custom data.image_size=28 model_t.width=128 model_t.depth=3 "
     "model_t.hidden=128 model_t.patch=14 model_t.pos_grid=2 model_t2.family=dinov2 model_t2.width=64 "
     "model_t2.depth=2 model_t2.patch=7 model_t2.pos_grid=4 model_s.width=64 model_s.depth=2 "
     "model_s.hidden=128 model_s.patch=14 model_s.pos_grid=2 loss.teacher=1 loss.head=mlp "
     "loss2.teacher=2 loss2.tokens=patch loss2.type=cosine loss3.tokens=avg loss3.weight=0.5",
     .teacher = true},
};
enum { EVA, DINOV2, GPT2, LLAMA, BERT, CLASSIFIER, TEXTS, QWEN, TEACHERS, MODELS };

struct run {
    int model;
    const char *settings, *directory; /* directory: resume from its checkpoint, if there is one, and save */
    int last_step;                    /* 0: STEPS, on an emulated card, which is slow, 2; -1: none */
    int lost_step;                    /* before which rank 1 gives up; 0: none */
    int expected;                     /* exit code of all ranks; -1: any */
    double lr;                        /* 0: 1e-3 */
    void (*prepare)(struct run *run, struct trainer *trainer); /* may be NULL */
    struct comm_options options;
    bool breadth, shorter; /* the rounds were; the last micro-batch is */
    int code;
    struct error err;
    struct step_result results[STEPS];
    float *weights;
    int64_t count;
    size_t peak_bytes, peaks[MEMORY_CLASS_COUNT];
    int64_t student_bytes, teacher_bytes; /* streamed in the last step */
    int64_t gathered_bytes;               /* of sharded weights, in the last step */
};

struct feed {
    const struct run *run;
    const struct trainer *trainer;
    int step;
};

static inline int give(void *context, int64_t index, struct batch *batch, const int64_t **image_ids,
                       struct error *err)
{
    const struct feed *f = context;
    int64_t at = (index * f->trainer->data->size + f->trainer->data->rank) * f->trainer->micro, place = at;
    bool plain = true; /* samples that are not a multiple of three are not mixed, and are one document */
    (void)err;
    for (int64_t i = at; i < at + batch->count; i++) plain &= i % 3 != 0;
    *image_ids = ids + at;
    batch->input = images[f->step] + at * PIXELS;
    batch->labels = classes[f->step] + at;
    batch->labels2 = plain ? NULL : classes2 + at;
    batch->share = plain ? NULL : share + at;
    if (!models[f->run->model].tokens) return 0;
    place *= CONTEXT;
    batch->input = tokens[f->step] + place;
    if (!models[f->run->model].classes)
        batch->labels = (f->run->model == BERT ? masked : labels)[f->step] + place;
    batch->labels2 = NULL;
    batch->begins = plain ? NULL : begins[f->step] + place;
    batch->ends = plain ? NULL : ends[f->step] + place;
    return 0;
}

/* Settings of a teacher are left out where there is none. */
static inline int load(struct config *config, const struct run *r, struct error *err)
{
    char *words = xasprintf("data.root=/nowhere data.val= train.scratch_dir=/tmp optim.warmup_steps=0 "
                            "train.batch_size=8 device.type=cpu %s %s",
                            models[r->model].keys, r->settings),
         *overrides[60], *at,
         *path = xasprintf("%s/%s.yaml", source_file("configs"), models[r->model].config);
    int count = 0;
    for (char *word = strtok_r(words, " ", &at); word && count < 60; word = strtok_r(NULL, " ", &at))
        if (models[r->model].teacher || strncmp(word, "model_t.", 8) != 0) overrides[count++] = word;
    int code = config_load(config, path, overrides, count, err);
    free(path);
    free(words);
    return code;
}

/* The teacher's outputs of all images, which are the same in each step here. */
static inline int fill(void *context, struct trainer *t, struct error *err)
{
    (void)context;
    int64_t row = targets_values(t);
    int code = 0;
    t->cache.images = SAMPLES;
    t->cache.rows = xcalloc((size_t)(SAMPLES * row), sizeof(float));
    t->cache.known = memset(xmalloc(SAMPLES), 1, SAMPLES);
    for (int64_t i = 0; i < SAMPLES && !code; i++)
        code = trainer_embed_teacher(t, &(struct batch){.input = images[0] + i * PIXELS, .count = 1},
                                     (float *)t->cache.rows + i * row, err);
    return code;
}

static inline void export_weights(struct run *r, const struct trainer *t)
{
    for (int i = 0; i < t->student->parameter_count; i++) r->count += t->student->parameters[i].count;
    r->weights = xmalloc((size_t)r->count * sizeof *r->weights);
    int64_t at = 0;
    for (int i = 0; i < t->student->parameter_count; i++) {
        int code = trainer_export(t, i, r->weights + at, &r->err);
        if (code) r->code = code;
        at += t->student->parameters[i].count;
    }
}

static inline void train(struct run *r, struct trainer *t)
{
    struct feed feed = {.run = r, .trainer = t};
    int64_t from = 0, last = r->last_step ? r->last_step : on_a_card() ? 2 : STEPS;
    r->breadth = t->schedule.breadth;
    r->shorter = t->images % t->micro;
    if (r->prepare) r->prepare(r, t);
    if (r->directory) r->code = trainer_resume(t, r->directory, &from, &r->err);
    for (feed.step = from > 0 ? (int)from : 0; feed.step < last && !r->code; feed.step++) {
        int64_t student = weight_stream_moved_bytes(t->student_stream),
                teacher = weight_stream_moved_bytes(t->teachers[0].stream), gathered = dp_gathered_bytes(t);
        if (feed.step + 1 == r->lost_step && r->options.rank == 1) {
            r->code = EXIT_DISK;
            comm_abort(&t->ranks, r->code);
            return;
        }
        r->code = trainer_step(t, feed.step + 1, r->lr > 0 ? r->lr : 1e-3,
                               &(struct batch_source){.fetch = give, .context = &feed},
                               &r->results[feed.step], &r->err);
        r->student_bytes = weight_stream_moved_bytes(t->student_stream) - student;
        r->teacher_bytes = weight_stream_moved_bytes(t->teachers[0].stream) - teacher;
        r->gathered_bytes = dp_gathered_bytes(t) - gathered;
    }
    if (r->directory && !r->code) r->code = trainer_save(t, r->directory, last, 1, &r->err);
    if (!r->code || r->code == EXIT_DIVERGED) export_weights(r, t);
}

/* A plan is what training holds, in all and of each class of memory. It does not know the scratch memory of a
 * shorter micro-batch, which may be a little more. */
static inline void check_plan(struct run *r, const struct config *config, const struct comm_options *ranks)
{
    struct plan plan;
    r->code = plan_make_distributed(&plan, config, ranks, &r->err);
    for (int c = -1; c < MEMORY_CLASS_COUNT && !r->code; c++) {
        double planned = (double)(c < 0 ? plan.use.peak_total_bytes : plan.use.peak_bytes[c]),
               held = (double)(c < 0 ? r->peak_bytes : r->peaks[c]);
        bool scratch = r->shorter && (c < 0 || c == MEMORY_WORKSPACE);
        if (fabs(planned - held) > (scratch ? 0.02 : 0.01) * held)
            r->code = error_set(&r->err, EXIT_FAILED, NULL, "%s: %.0f bytes planned, %.0f held",
                                c < 0 ? "all" : memory_class_names[c], planned, held);
    }
}

static inline void *run_main(void *context)
{
    struct run *r = context;
    struct config config;
    struct device *device = NULL;
    struct trainer *trainer = NULL;
    const struct comm_options *ranks =
        r->options.size > 1 || r->options.kind == COMM_MPI ? &r->options : NULL;
#ifdef _OPENMP
    omp_set_num_threads(1);
#endif
    r->code = load(&config, r, &r->err);
    if (!r->code) r->code = device_open(&device, spec(), 0, &r->err);
    if (!r->code)
        r->code = trainer_create_distributed(&trainer, &config, device, true, ranks, fill, NULL, &r->err);
    if (!r->code) train(r, trainer);
    trainer_close(trainer);
    if (device) {
        r->peak_bytes = device->use.peak_total_bytes;
        memcpy(r->peaks, device->use.peak_bytes, sizeof r->peaks);
        device_close(device);
    }
    if (!r->code && r->last_step >= 0 && !r->directory && !on_a_card() && r->options.kind != COMM_MPI)
        check_plan(r, &config, ranks);
    config_free(&config);
    return NULL;
}

/* The ranks of one training are threads. */
static inline struct run *as_ranks(int size, struct run like)
{
    struct run *runs = xcalloc((size_t)size, sizeof *runs);
    for (int r = 0; r < size; r++) runs[r] = like;
    run_ranks(size, runs, sizeof *runs, offsetof(struct run, options), run_main);
    for (int r = 0; r < size; r++)
        if (runs[r].code != like.expected && like.expected >= 0)
            fail_msg("%s %s, rank %d of %d: %d, %s", models[like.model].config, like.settings, r, size,
                     runs[r].code, runs[r].err.what);
    return runs;
}

static inline void runs_free(struct run *runs, int size)
{
    for (int r = 0; r < size; r++) free(runs[r].weights);
    free(runs);
}

/* The losses, metrics, norms and weights. */
static inline void same(const struct run *one, const struct run *runs, int size)
{
    for (int r = 0; r < size; r++) {
        const char *what = runs[r].settings, *name = models[one->model].config;
        for (int s = 0; s < STEPS; s++) {
            const struct step_result *a = &one->results[s], *b = &runs[r].results[s];
            if (a->loss != b->loss || a->metrics[0].value != b->metrics[0].value ||
                a->grad_norm != b->grad_norm || a->wide_groups != b->wide_groups)
                fail_msg("%s %s, rank %d of %d, step %d: loss %.17g, norm %.17g; not %.17g, %.17g", name,
                         what, r, size, s + 1, b->loss, b->grad_norm, a->loss, a->grad_norm);
        }
        assert_int_equal(one->count, runs[r].count);
        if (memcmp(one->weights, runs[r].weights, (size_t)one->count * sizeof(float)))
            fail_msg("%s %s: rank %d of %d has other weights", name, what, r, size);
    }
}

/* A run of one rank, trained once for all that are compared with it. */
static inline const struct run *reference(int model, const char *settings)
{
    static struct known {
        struct run *run;
        struct known *next;
    } * first;
    for (struct known *k = first; k; k = k->next)
        if (k->run->model == model && strcmp(k->run->settings, settings) == 0) return k->run;
    struct known *k = xmalloc(sizeof *k);
    *k = (struct known){as_ranks(1, (struct run){.model = model, .settings = xasprintf("%s", settings)}),
                        first};
    first = k;
    return k->run;
}

#endif
