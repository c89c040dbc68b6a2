/* What a step asks of a card's driver, counted by the stand-in (tests/fake_driver.cc): in no way of stepping
 * does the host wait for the card more than three times, whatever the number of tensors, blocks and
 * micro-batches. `driver_calls --table` prints all counts of a step. */
#include "tests/tiny.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

enum { LAUNCHES, GRAPHS, SYNCS, WAITS, UPLOADS, DOWNLOADS, COPIES, FILLS, CALLS };
enum { MOST_SYNCS = 3, STEPS = 3, FROM = 3, PIXELS = 3 * 28 * 28, BATCH = 2 };

static const struct way {
    const char *name, *settings;
} ways[] = {
    {"kept", "optim.gradients=keep"},
    {"kept, micro-batches", "optim.gradients=keep train.micro_batch=1"},
    {"kept, lamb", "optim.gradients=keep optim.name=lamb optim.use_meopt=false"},
    {"released", "optim.gradients=release optim.clip_grad_norm=0"},
    {"released, clipped by the previous norm", "optim.gradients=release optim.clip_mode=previous"},
    {"released, clipped exactly", "optim.gradients=release optim.clip_mode=exact"},
    {"accumulated", "optim.gradients=release train.micro_batch=1"},
    {"accumulated, lion", "optim.gradients=release train.micro_batch=1 optim.name=lion"},
    {"cached teacher", "optim.gradients=release train.cache_teacher=true"},
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

/* Calls of one step, when graphs have been recorded. */
static void count(const struct way *way, double calls[CALLS])
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
    char *settings = xasprintf("train.batch_size=%d model_t.width=88 model_t.hidden=176 "
                               "model_t.depth=1 model_s.depth=3 %s",
                               BATCH, way->settings);
    int code = tiny_join(&tiny, device, NULL, settings, fill, NULL, &err);
    if (code) fail_msg("%s: %s", way->name, err.what);
    for (int64_t step = 1; step <= STEPS; step++) {
        struct step_result result;
        if (step == FROM) driver_calls(before);
        code = trainer_step(tiny.trainer, step, 1e-3,
                            &(struct batch_source){.give = give, .context = tiny.trainer}, &result, &err);
        if (code) fail_msg("%s, step %lld: %s", way->name, (long long)step, err.what);
    }
    driver_calls(after);
    for (int i = 0; i < CALLS; i++) calls[i] = (double)(after[i] - before[i]) / (STEPS - FROM + 1);
    tiny_close(&tiny);
    free(settings);
}

static void the_host_waits_at_most_three_times_a_step(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        double calls[CALLS];
        count(&ways[i], calls);
        if (calls[SYNCS] > MOST_SYNCS)
            fail_msg("%s: the host waits %.1f times a step", ways[i].name, calls[SYNCS]);
    }
}

static void print_table(void **state)
{
    (void)state;
    printf("| way | launches | graphs | syncs | event waits | uploads | downloads | copies, fills |\n");
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        double c[CALLS];
        count(&ways[i], c);
        printf("| %s | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f |\n", ways[i].name, c[LAUNCHES],
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
