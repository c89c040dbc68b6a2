/* The driver calls of a step, counted by the simulated driver (tests/gpu/fake_driver.cc). The host waits
 * for the card at most three times, for every variant of the step and any number of tensors, blocks and
 * micro-batches, also with several ranks and their library of collectives (tests/gpu/fake_nccl.cc).
 * `driver_calls --table` prints all counts of a step. */
#include "core/step/step.h"
#include "tests/ranks/hand_round.h"
#include "tests/train/tiny.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

enum { LAUNCHES, GRAPHS, SYNCS, WAITS, UPLOADS, DOWNLOADS, COPIES, FILLS, CALLS };
enum { MOST_SYNCS = 3, PIXELS = 3 * 28 * 28, BATCH = 2 };

/* Micro-batches that ranks take in turns; of one alone, too. */
#define LARGE                                                                                                \
    MANY "model_s.width=192 model_s.hidden=384 model_s.depth=1 optim.gradients=release optim.name=lamb "     \
         "optim.clip_mode=block optim.weight_decay=0.1 "
#define MANY "train.global_batch=2 train.micro_batch=1 train.batch_size=1 "

static const struct way {
    const char *name, *settings;
    bool first; /* tried without MEOPT_LONG, too: these wait for all that the others wait for */
} ways[] = {
    {"kept", "optim.gradients=keep", false},
    {"kept, micro-batches", "optim.gradients=keep train.micro_batch=1", false},
    {"kept, lamb", "optim.gradients=keep optim.name=lamb optim.use_meopt=false", false},
    {"kept, micro-batches, lamb", "optim.gradients=keep optim.name=lamb train.micro_batch=1", true},
    {"released", "optim.gradients=release optim.clip_grad_norm=0", false},
    {"released, clipped by the previous norm", "optim.gradients=release optim.clip_mode=previous", true},
    {"released, clipped exactly", "optim.gradients=release optim.clip_mode=exact", true},
    {"released, clipped by block", "optim.gradients=release optim.clip_mode=block", false},
    {"released, lamb", "optim.gradients=release optim.name=lamb optim.clip_mode=previous", false},
    {"the same, clipped by block", "optim.gradients=release optim.name=lamb optim.clip_mode=block", true},
    {"accumulated", "optim.gradients=release train.micro_batch=1", false},
    {"accumulated, lion", "optim.gradients=release train.micro_batch=1 optim.name=lion", false},
    {"accumulated, lamb", "optim.gradients=release train.micro_batch=1 optim.name=lamb", true},
    {"cached teacher", "optim.gradients=release train.cache_teacher=true", true},
    {"in turns, released", MANY "optim.gradients=release optim.clip_mode=previous", false},
    {"in turns, kept", MANY "optim.gradients=keep", true},
    {"in turns, clipped exactly", MANY "optim.gradients=release optim.clip_mode=exact", false},
    {"in turns, clipped by block, lamb", MANY "optim.gradients=release optim.clip_mode=block optim.name=lamb",
     true},
};

/* Of each of RANKS. */
static const struct {
    const char *name, *settings;
    bool first;
} ways_of_ranks[] = {
    {"released", MANY "optim.gradients=release optim.clip_mode=previous", false},
    {"kept", MANY "optim.gradients=keep", false},
    {"clipped exactly", MANY "optim.gradients=release optim.clip_mode=exact", false},
    {"clipped by block, lamb", MANY "optim.gradients=release optim.clip_mode=block optim.name=lamb", false},
    {"parts, released", MANY "dist.shard=optimizer optim.gradients=release optim.clip_mode=previous", false},
    {"parts, kept", MANY "dist.shard=optimizer optim.gradients=keep", false},
    {"parts of all, clipped exactly",
     MANY "dist.shard=parameters optim.gradients=release optim.clip_mode=exact", true},
    {"parts, clipped by block", MANY "dist.shard=optimizer optim.gradients=release optim.clip_mode=block",
     false},
    {"parts, lamb",
     MANY "dist.shard=optimizer optim.gradients=release optim.name=lamb optim.clip_mode=previous", false},
    {"parts, clipped by block, lamb",
     MANY "dist.shard=optimizer optim.gradients=release optim.name=lamb optim.clip_mode=block", true},
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
    int64_t row = targets_values(t);
    (void)context;
    t->cache.images = BATCH;
    t->cache.known = xcalloc(BATCH, 1);
    memset(t->cache.known, 1, BATCH);
    t->cache.rows = xmalloc((size_t)(BATCH * row) * sizeof(float));
    return trainer_embed_teacher(t, &(struct batch){.input = pixels, .count = t->micro}, t->cache.rows, err);
}

static void (*driver_calls)(long long calls[CALLS]);

static const char *find_driver(void)
{
    const char *device = getenv("MEOPT_TEST_DEVICE"), *driver = getenv("MEOPT_HIP_LIBRARY");
    if (!device) skip();
    if (strncmp(device, "cuda", 4) == 0) driver = getenv("MEOPT_CUDA_LIBRARY");
    void *library = dlopen(driver, RTLD_NOW), *entry = library ? dlsym(library, "fake_driver_calls") : NULL;
    assert_non_null(entry);
    memcpy(&driver_calls, &entry, sizeof entry);
    return device;
}

static char *all_settings(const char *settings)
{
    return xasprintf("train.batch_size=%d model_t.width=64 model_t.hidden=64 model_t.depth=1 "
                     "model_s.width=64 model_s.hidden=128 model_s.depth=2 %s",
                     BATCH, settings);
}

/* Counts the driver calls of the last of several steps; by the third graphs have been recorded. */
static void count(const struct way *way, int64_t steps, long long calls[CALLS])
{
    const char *device = find_driver();
    struct tiny tiny;
    struct error err = {0};
    long long before[CALLS] = {0}, after[CALLS];
    for (int i = 0; i < BATCH; i++) ids[i] = i;
    for (int i = 0; i < BATCH * PIXELS; i++) pixels[i] = (float)(i % 251) / 125.0f - 1.0f;
    tiny = (struct tiny){.directory = "/nowhere"};
    char *settings = all_settings(way->settings);
    int code = tiny_join(&tiny, device, NULL, settings, fill, NULL, &err);
    if (code) fail_msg("%s: %s", way->name, err.what);
    for (int64_t step = 1; step <= steps; step++) {
        struct step_result result;
        if (step == steps) driver_calls(before);
        code = trainer_step(tiny.trainer, step, 1e-3,
                            &(struct batch_source){.fetch = give, .context = tiny.trainer}, &result, &err);
        if (code) fail_msg("%s, step %lld: %s", way->name, (long long)step, err.what);
    }
    driver_calls(after);
    for (int i = 0; i < CALLS; i++) calls[i] = after[i] - before[i];
    tiny_close(&tiny);
    free(settings);
}

/* ---- ranks, as threads ---- */

struct rank {
    struct comm_options options;
    const char *settings;
    int64_t steps;
    long long before[CALLS], after[CALLS];
    struct step_result result; /* of the last step */
    double weights;            /* after it: their sum, each at its index */
    int code;
    struct error err;
};

static void add_weights(struct rank *r, struct trainer *t)
{
    for (int i = 0; i < t->student->parameter_count && !r->code; i++) {
        int64_t count = t->student->parameters[i].count;
        float *values = xmalloc((size_t)count * sizeof *values);
        r->code = trainer_export(t, i, values, &r->err);
        for (int64_t k = 0; k < count && !r->code; k++) r->weights += values[k] * (double)(k % 1000 + 1);
        free(values);
    }
}

static void *rank_main(void *context)
{
    struct rank *r = context;
    struct tiny tiny = {.directory = "/nowhere"};
    char device[] = {'h', 'i', 'p', ':', (char)('0' + r->options.rank), 0},
         *settings = all_settings(r->settings);
    r->code = tiny_join(&tiny, device, &r->options, settings, NULL, NULL, &r->err);
    for (int64_t step = 1; step <= r->steps && !r->code; step++) {
        pthread_barrier_wait(&all_here);
        driver_calls(r->before);
        pthread_barrier_wait(&all_here);
        r->code =
            trainer_step(tiny.trainer, step, 1e-3,
                         &(struct batch_source){.fetch = give, .context = tiny.trainer}, &r->result, &r->err);
        pthread_barrier_wait(&all_here);
        driver_calls(r->after);
        pthread_barrier_wait(&all_here);
    }
    if (!r->code) add_weights(r, tiny.trainer);
    tiny_close(&tiny);
    free(settings);
    return NULL;
}

/* Their second step; what came of it in `ranks`. */
static void step_ranks(const char *settings, struct rank ranks[RANKS])
{
    pthread_t threads[RANKS];
    find_driver();
    if (!getenv("MEOPT_RCCL_LIBRARY")) skip();
    setenv("MEOPT_GRAPHS", "none", 1); /* recording is of one thread in the stand-in */
    pthread_barrier_init(&all_here, NULL, RANKS);
    for (int r = 0; r < RANKS; r++) {
        ranks[r] = (struct rank){.settings = settings, .steps = 2};
        ranks[r].options = (struct comm_options){.kind = COMM_NCCL, .rank = r, .size = RANKS, .shared = -1};
        ranks[r].options.exchange = hand_round;
        ranks[r].options.context = &ranks[r].options;
        assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &ranks[r]), 0);
    }
    for (int r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&all_here);
    unsetenv("MEOPT_GRAPHS");
    for (int r = 0; r < RANKS; r++)
        if (ranks[r].code) fail_msg("%s, rank %d: %s", settings, r, ranks[r].err.what);
}

/* Calls of all ranks together in that step. */
static void count_ranks(const char *settings, long long calls[CALLS])
{
    struct rank ranks[RANKS];
    step_ranks(settings, ranks);
    for (int i = 0; i < CALLS; i++) calls[i] = ranks[0].after[i] - ranks[0].before[i];
}

/* Tensors of several chunks, which two ranks hold parts of. */
static void norms_that_stay_on_the_cards_are_those_of_whole_tensors(void **state)
{
    struct rank whole[RANKS], parts[RANKS];
    step_ranks(LARGE "dist.shard=none", whole);
    step_ranks(LARGE "dist.shard=optimizer", parts);
    for (int r = 0; r < RANKS; r++) {
        const struct step_result *a = &whole[r].result, *b = &parts[r].result;
        if (a->loss != b->loss || a->grad_norm != b->grad_norm || whole[r].weights != parts[r].weights)
            fail_msg("rank %d: loss %.17g, norm %.17g, weights %.17g; in parts %.17g, %.17g, %.17g", r,
                     a->loss, a->grad_norm, whole[r].weights, b->loss, b->grad_norm, parts[r].weights);
    }
}

static void the_host_of_each_rank_waits_at_most_three_times_a_step(void **state)
{
    for (size_t i = 0; i < sizeof ways_of_ranks / sizeof *ways_of_ranks; i++) {
        long long calls[CALLS];
        if (!getenv("MEOPT_LONG") && !ways_of_ranks[i].first) continue;
        count_ranks(ways_of_ranks[i].settings, calls);
        if (calls[SYNCS] > RANKS * MOST_SYNCS)
            fail_msg("%s: the hosts of %d ranks wait %lld times a step", ways_of_ranks[i].name, RANKS,
                     calls[SYNCS]);
    }
}

static void the_host_waits_at_most_three_times_a_step(void **state)
{
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        long long calls[CALLS];
        bool all = getenv("MEOPT_LONG") != NULL;
        if (!all && !ways[i].first) continue;
        count(&ways[i], all ? 3 : 2, calls);
        if (calls[SYNCS] > MOST_SYNCS)
            fail_msg("%s: the host waits %lld times a step", ways[i].name, calls[SYNCS]);
    }
}

static void print_row(const char *name, const long long c[CALLS])
{
    printf("| %s | %lld | %lld | %lld | %lld | %lld | %lld | %lld |\n", name, c[LAUNCHES], c[GRAPHS],
           c[SYNCS], c[WAITS], c[UPLOADS], c[DOWNLOADS], c[COPIES] + c[FILLS]);
}

static void print_table(void **state)
{
    long long c[CALLS];
    printf("| way | launches | graphs | syncs | event waits | uploads | downloads | copies, fills |\n");
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        count(&ways[i], 3, c);
        print_row(ways[i].name, c);
    }
    for (size_t i = 0; i < sizeof ways_of_ranks / sizeof *ways_of_ranks && getenv("MEOPT_RCCL_LIBRARY");
         i++) {
        count_ranks(ways_of_ranks[i].settings, c);
        print_row(ways_of_ranks[i].name, c);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_host_waits_at_most_three_times_a_step),
                                       cmocka_unit_test(
                                           the_host_of_each_rank_waits_at_most_three_times_a_step),
                                       cmocka_unit_test(
                                           norms_that_stay_on_the_cards_are_those_of_whole_tensors)},
                            table[] = {cmocka_unit_test(print_table)};
    if (argc > 1 && strcmp(argv[1], "--table") == 0) return cmocka_run_group_tests(table, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
