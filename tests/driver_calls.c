/* What a step asks of a card's driver, counted by the stand-in (tests/fake_driver.cc): the host waits for the
 * card three times at most, whatever the way of the step, the number of tensors, blocks and micro-batches.
 * `driver_calls --table` prints all counts of a step. */
#include "tests/tiny.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

enum { LAUNCHES, GRAPHS, SYNCS, WAITS, UPLOADS, DOWNLOADS, COPIES, FILLS, CALLS };
enum { MOST_SYNCS = 3, PIXELS = 3 * 28 * 28, BATCH = 2 };

/* Each step measures, and promotes nothing. */
#define ADAPTIVE                                                                                             \
    "optim.preset=minimal optim.adaptive=true optim.adaptive_every=1 optim.adaptive_threshold=1000"

static const struct way {
    const char *name, *settings;
    bool first; /* tried without MEOPT_LONG, too: these wait for all that the others wait for */
} ways[] = {
    {"kept", "optim.gradients=keep", false},
    {"kept, micro-batches", "optim.gradients=keep train.micro_batch=1", false},
    {"kept, lamb", "optim.gradients=keep optim.name=lamb optim.use_meopt=false", false},
    {"kept, adaptive, measured", "optim.gradients=keep " ADAPTIVE, false},
    {"kept, micro-batches, adaptive lamb, measured",
     "optim.gradients=keep optim.name=lamb train.micro_batch=1 " ADAPTIVE, true},
    {"released", "optim.gradients=release optim.clip_grad_norm=0", false},
    {"released, clipped by the previous norm", "optim.gradients=release optim.clip_mode=previous", false},
    {"the same, adaptive, measured", "optim.gradients=release optim.clip_mode=previous " ADAPTIVE, true},
    {"released, clipped exactly", "optim.gradients=release optim.clip_mode=exact", false},
    {"the same, adaptive, measured", "optim.gradients=release optim.clip_mode=exact " ADAPTIVE, true},
    {"released, clipped by block", "optim.gradients=release optim.clip_mode=block", false},
    {"released, lamb", "optim.gradients=release optim.name=lamb optim.clip_mode=previous", false},
    {"the same, clipped by block, adaptive, measured",
     "optim.gradients=release optim.name=lamb optim.clip_mode=block " ADAPTIVE, true},
    {"accumulated", "optim.gradients=release train.micro_batch=1", false},
    {"accumulated, lion", "optim.gradients=release train.micro_batch=1 optim.name=lion", false},
    {"accumulated, adaptive lamb, measured",
     "optim.gradients=release train.micro_batch=1 optim.name=lamb " ADAPTIVE, true},
    {"cached teacher", "optim.gradients=release train.cache_teacher=true", true},
};

static float pixels[BATCH * PIXELS];
static int64_t ids[BATCH];

static int give(void *context, int64_t index, struct batch *batch, const int64_t **image_ids,
                struct error *err)
{
    const struct trainer *t = context;
    (void)err;
    batch->input = pixels + index * t->micro * PIXELS;
    *image_ids = ids + index * t->micro;
    return 0;
}

static int fill(void *context, struct trainer *t, struct error *err)
{
    int64_t row = t->teacher->out_rows * t->teacher->out_width;
    (void)context;
    t->cache_images = BATCH;
    t->cached = xcalloc(BATCH, 1);
    memset(t->cached, 1, BATCH);
    t->cache = xmalloc((size_t)(BATCH * row) * sizeof *t->cache);
    return trainer_embed_teacher(t, &(struct batch){pixels, t->micro}, t->cache, err);
}

static void (*driver_calls)(long long calls[CALLS]);

/* Calls of the last step of so many; by the third graphs have been recorded. */
static void count(const struct way *way, int64_t steps, long long calls[CALLS])
{
    const char *device = getenv("MEOPT_TEST_DEVICE"), *driver = getenv("MEOPT_HIP_LIBRARY");
    struct tiny tiny;
    struct error err = {0};
    long long before[CALLS] = {0}, after[CALLS];
    if (!device) skip();
    if (strncmp(device, "cuda", 4) == 0) driver = getenv("MEOPT_CUDA_LIBRARY");
    void *library = dlopen(driver, RTLD_NOW), *entry = library ? dlsym(library, "fake_driver_calls") : NULL;
    assert_non_null(entry);
    memcpy(&driver_calls, &entry, sizeof entry);
    for (int i = 0; i < BATCH; i++) ids[i] = i;
    for (int i = 0; i < BATCH * PIXELS; i++) pixels[i] = (float)(i % 251) / 125.0f - 1.0f;
    tiny = (struct tiny){.directory = "/nowhere"};
    char *settings = xasprintf("train.batch_size=%d model_t.width=64 model_t.hidden=64 "
                               "model_t.depth=1 model_s.width=64 model_s.hidden=128 model_s.depth=2 %s",
                               BATCH, way->settings);
    int code = tiny_join(&tiny, device, NULL, settings, fill, NULL, &err);
    if (code) fail_msg("%s: %s", way->name, err.what);
    for (int64_t step = 1; step <= steps; step++) {
        struct step_result result;
        if (step == steps) driver_calls(before);
        code = trainer_step(tiny.trainer, step, 1e-3,
                            &(struct batch_source){.give = give, .context = tiny.trainer}, &result, &err);
        if (code) fail_msg("%s, step %lld: %s", way->name, (long long)step, err.what);
    }
    driver_calls(after);
    for (int i = 0; i < CALLS; i++) calls[i] = after[i] - before[i];
    tiny_close(&tiny);
    free(settings);
}

static void the_host_waits_at_most_three_times_a_step(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        long long calls[CALLS];
        bool all = getenv("MEOPT_LONG") != NULL;
        if (!all && !ways[i].first) continue;
        count(&ways[i], all ? 3 : 2, calls);
        if (calls[SYNCS] > MOST_SYNCS)
            fail_msg("%s: the host waits %lld times a step", ways[i].name, calls[SYNCS]);
    }
}

static void print_table(void **state)
{
    (void)state;
    printf("| way | launches | graphs | syncs | event waits | uploads | downloads | copies, fills |\n");
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        long long c[CALLS];
        count(&ways[i], 3, c);
        printf("| %s | %lld | %lld | %lld | %lld | %lld | %lld | %lld |\n", ways[i].name, c[LAUNCHES],
               c[GRAPHS], c[SYNCS], c[WAITS], c[UPLOADS], c[DOWNLOADS], c[COPIES] + c[FILLS]);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_host_waits_at_most_three_times_a_step)},
                            table[] = {cmocka_unit_test(print_table)};
    if (argc > 1 && strcmp(argv[1], "--table") == 0) return cmocka_run_group_tests(table, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
