/* Ranks as threads, each with its own device and trainer of a tiny experiment, joined by shared memory. */
#ifndef MEOPT_TESTS_RANKS_RANKS_H
#define MEOPT_TESTS_RANKS_RANKS_H

#include "core/train/trainer_checkpoint.h"
#include "core/base/memory.h"
#include "core/step/trainer.h"
#include "tests/ranks/threads.h"
#include "tests/train/tiny.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { STEPS = 3, IMAGES = 12, MOST = 8, PIXELS = 3 * 28 * 28 };

static float images[STEPS][IMAGES * PIXELS];
static int64_t ids[IMAGES];

struct rank {
    const char *settings;
    struct comm_options options;
    const char *directory; /* directory of the run: resume from its checkpoint, and save; NULL: neither */
    int64_t last_step;     /* 0: STEPS */
    int code;
    struct error err;
    struct step_result results[STEPS];
    float *weights;
    int64_t count, tensors;
    int64_t resume_bytes; /* bytes read to resume */
};

struct feed {
    const struct rank *rank;
    const struct trainer *trainer;
    int step;
};

static int give(void *context, int64_t index, struct batch *batch, const int64_t **image_ids,
                struct error *err)
{
    const struct feed *feed = context;
    int64_t piece = index * feed->rank->options.size + feed->rank->options.rank;
    (void)err;
    batch->input = images[feed->step] + piece * feed->trainer->micro * PIXELS;
    *image_ids = ids;
    return 0;
}

static int make(struct tiny *tiny, const struct rank *r, const char *device, struct error *err)
{
    char *all = xasprintf("model_t.width=88 model_t.hidden=176 model_s.width=192 model_s.hidden=384 "
                          "train.global_batch=12 train.micro_batch=1 train.batch_size=4 %s",
                          r->settings);
    *tiny = (struct tiny){.directory = "/nowhere"};
    int code = tiny_join(tiny, device, &r->options, all, NULL, NULL, err);
    free(all);
    return code;
}

/* What this thread has read so far, from wherever. */
static int64_t thread_read(void)
{
    long long bytes = 0;
    FILE *f = fopen("/proc/thread-self/io", "r");
    if (f && fscanf(f, "rchar: %lld", &bytes) != 1) bytes = 0;
    if (f) fclose(f);
    return bytes;
}

static void train(struct rank *r, struct trainer *t)
{
    struct feed feed = {.rank = r, .trainer = t};
    int64_t from = 0, last = r->last_step ? r->last_step : STEPS;
    int64_t before = thread_read();
    if (r->directory) r->code = trainer_resume(t, r->directory, &from, &r->err);
    r->resume_bytes = thread_read() - before;
    for (feed.step = from > 0 ? (int)from : 0; feed.step < last && !r->code; feed.step++) {
        r->code =
            trainer_step(t, feed.step + 1, 1e-3, &(struct batch_source){.fetch = give, .context = &feed},
                         &r->results[feed.step], &r->err);
    }
    if (r->directory && !r->code) r->code = trainer_save(t, r->directory, last, 1, &r->err);
    for (int i = 0; i < t->student->parameter_count; i++) r->count += t->student->parameters[i].count;
    r->tensors = t->tensors.count;
    r->weights = xmalloc((size_t)r->count * sizeof *r->weights);
    int64_t at = 0;
    for (int i = 0; i < t->student->parameter_count && (!r->code || r->code == EXIT_DIVERGED); i++) {
        int code = trainer_export(t, i, r->weights + at, &r->err);
        if (code) r->code = code;
        at += t->student->parameters[i].count;
    }
}

static _Thread_local int this_rank;

static void *rank_main(void *context)
{
    struct rank *r = context;
    struct tiny tiny;
    this_rank = r->options.rank;
#ifdef _OPENMP
    omp_set_num_threads(1);
#endif
    r->code = make(&tiny, r, "cpu", &r->err);
    if (!r->code) train(r, tiny.trainer);
    tiny_close(&tiny);
    return NULL;
}

static const char *run_directory;
static int64_t run_last_step;

static struct rank *as_ranks(int size, const char *settings)
{
    struct rank *ranks = xcalloc((size_t)size, sizeof *ranks);
    for (int r = 0; r < size; r++)
        ranks[r] =
            (struct rank){.settings = settings, .directory = run_directory, .last_step = run_last_step};
    run_ranks(size, ranks, sizeof *ranks, offsetof(struct rank, options), rank_main);
    return ranks;
}

static void ranks_free(struct rank *ranks, int size)
{
    for (int r = 0; r < size; r++) free(ranks[r].weights);
    free(ranks);
}

/* What a test that failed has left set. */
static int fresh(void **state)
{
    run_directory = NULL;
    run_last_step = 0;
    return 0;
}

static void make_images(void)
{
    uint32_t random = 1;
    for (int s = 0; s < STEPS; s++)
        for (int i = 0; i < IMAGES * PIXELS; i++) {
            random = random * 1664525u + 1013904223u;
            images[s][i] = (float)(int32_t)random * 0x1p-31f;
        }
}

#endif
