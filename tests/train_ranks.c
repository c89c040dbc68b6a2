/* What a step asks of the ranks: each group's gradients summed once, behind its backward and before it is
 * measured or stepped, losses and norms over all; and a rank that is lost moves no weight. The other rank is
 * a mirror: it has this one's images, so every sum is twice this one's value, and since halves and doubles of
 * floats are exact the weights must be those of one rank alone, to the bit. */
#include "core/train/trainer.h"
#include "tests/tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

enum { STEPS = 3, BATCH = 2, PIXELS = 3 * 28 * 28, LOG = 4096 };

/* What was asked of the mirror, in order. */
static struct {
    int reduced, gathered, all_reduced; /* calls */
    const void *spans[LOG];             /* of reduce_scatter */
    int lost_at;                        /* the reduce_scatter that fails, from 1; 0: none */
} asked;

static int mirror_reduce_scatter(struct dist *dist, const void *send, void *receive, int64_t count,
                                 enum dtype type, struct error *err)
{
    (void)receive;
    char *p = (char *)(uintptr_t)send;
    if (asked.reduced < LOG) asked.spans[asked.reduced] = send;
    if (++asked.reduced == asked.lost_at)
        return error_set(err, EXIT_RANK_LOST, NULL, "rank 1 is missing in reduce_scatter");
    for (int64_t i = 0; i < count * dist->size; i++) {
        float value;
        uint16_t half;
        uint32_t bits;
        if (type == DTYPE_F32) {
            memcpy(&value, p + i * 4, 4);
            value *= 2;
            memcpy(p + i * 4, &value, 4);
        } else {
            memcpy(&half, p + i * 2, 2);
            bits = (uint32_t)half << 16;
            memcpy(&value, &bits, 4);
            value *= 2;
            memcpy(&bits, &value, 4);
            half = (uint16_t)(bits >> 16);
            memcpy(p + i * 2, &half, 2);
        }
    }
    return 0;
}

static int mirror_all_gather(struct dist *dist, const void *send, void *receive, int64_t count,
                             enum dtype type, struct error *err)
{
    (void)dist, (void)send, (void)receive, (void)count, (void)type, (void)err;
    asked.gathered++; /* the mirror's part has been doubled already */
    return 0;
}

static int mirror_all_reduce(struct dist *dist, enum dist_operation operation, double *values, int64_t count,
                             struct error *err)
{
    (void)dist, (void)err;
    asked.all_reduced++;
    for (int64_t i = 0; i < count && operation == DIST_SUM; i++) values[i] *= 2;
    return 0;
}

static const struct dist_ops mirror = {.name = "mirror",
                                       .reduce_scatter = mirror_reduce_scatter,
                                       .all_gather = mirror_all_gather,
                                       .all_reduce = mirror_all_reduce};

static float images[STEPS][BATCH * PIXELS];
static const int64_t ids[BATCH] = {0, 1};

struct feed {
    int step;
    int64_t micro;
};

static int give(void *context, int64_t index, struct batch *batch, const int64_t **image_ids,
                struct error *err)
{
    const struct feed *feed = context;
    (void)err;
    batch->input = images[feed->step] + index * feed->micro * PIXELS;
    *image_ids = ids + index * feed->micro;
    return 0;
}

/* STEPS steps alone or beside the mirror; all weights, and what the steps said. The caller frees. */
static float *trained(const char *settings, bool mirrored, struct step_result results[STEPS], int64_t *count,
                      int *groups)
{
    struct error err = {0};
    struct tiny tiny = {.directory = "/nowhere"};
    struct feed feed = {0};
    if (tiny_open(&tiny, settings, NULL, NULL, &err)) fail_msg("%s: %s", settings, err.what);
    struct trainer *t = tiny.trainer;
    if (mirrored) t->ranks = (struct dist){.ops = &mirror, .rank = 0, .size = 2, .device = tiny.device};
    feed.micro = t->micro;
    *groups = t->student->group_count;
    for (feed.step = 0; feed.step < STEPS; feed.step++)
        if (trainer_step(t, feed.step + 1, 1e-3, &(struct batch_source){.give = give, .context = &feed},
                         &results[feed.step], &err))
            fail_msg("%s: %s", settings, err.what);
    *count = 0;
    for (int i = 0; i < t->student->parameter_count; i++) *count += t->student->parameters[i].count;
    float *weights = xmalloc((size_t)*count * sizeof *weights);
    int64_t at = 0;
    for (int i = 0; i < t->student->parameter_count; at += t->student->parameters[i++].count)
        assert_int_equal(trainer_export(t, i, weights + at, &err), 0);
    tiny_close(&tiny);
    return weights;
}

/* Every way in which a step runs, and how many backward passes it makes. */
static const struct {
    const char *settings;
    int passes;
} ways[] = {
    {"optim.gradients=keep", 1},
    {"optim.gradients=keep optim.use_meopt=false", 1},
    {"optim.gradients=release optim.clip_mode=previous", 1},
    {"optim.gradients=release optim.clip_mode=block", 1},
    {"optim.gradients=release optim.clip_mode=exact", 2},
    {"optim.gradients=release optim.clip_grad_norm=0", 1},
    {"optim.gradients=release train.micro_batch=1", 2},
    {"optim.gradients=release optim.name=lamb", 1},
};

static void two_ranks_of_the_same_images_train_as_one(void **state)
{
    (void)state;
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        struct step_result alone[STEPS], both[STEPS];
        int64_t count, again;
        int groups;
        memset(&asked, 0, sizeof asked);
        float *one = trained(ways[w].settings, false, alone, &count, &groups);
        assert_int_equal(asked.reduced, 0);
        float *two = trained(ways[w].settings, true, both, &again, &groups);
        assert_int_equal(count, again);
        if (memcmp(one, two, (size_t)count * sizeof *one)) fail_msg("%s: other weights", ways[w].settings);
        for (int i = 0; i < STEPS; i++)
            if (alone[i].loss != both[i].loss || alone[i].grad_norm != both[i].grad_norm ||
                alone[i].cosine != both[i].cosine)
                fail_msg("%s, step %d: loss %.17g and %.17g, norm %.17g and %.17g", ways[w].settings, i + 1,
                         alone[i].loss, both[i].loss, alone[i].grad_norm, both[i].grad_norm);
        /* a group has one span of F32 values, and one of its matrices unless it has none */
        int least = STEPS * ways[w].passes * groups, most = 2 * least;
        if (asked.reduced < least || asked.reduced > most)
            fail_msg("%s: %d sums for %d groups", ways[w].settings, asked.reduced, least);
        assert_int_equal(asked.gathered, asked.reduced);
        int forwards = strstr(ways[w].settings, "micro_batch") ? BATCH : 1;
        assert_int_equal(asked.all_reduced, STEPS * forwards); /* losses; norms are of whole gradients */
        free(one);
        free(two);
    }
}

static void kept_gradients_are_summed_from_the_last_block_to_the_first(void **state)
{
    (void)state;
    struct step_result results[STEPS];
    int64_t count;
    int groups;
    memset(&asked, 0, sizeof asked);
    free(trained("optim.gradients=keep", true, results, &count, &groups));
    int each = asked.reduced / STEPS;
    for (int i = 2; i < each; i += 2) /* spans lie in the order of groups */
        assert_true((uintptr_t)asked.spans[i] < (uintptr_t)asked.spans[i - 2]);
    for (int i = 0; i < each; i++)
        for (int k = 0; k < i; k++) assert_ptr_not_equal(asked.spans[i], asked.spans[k]);
}

static void a_lost_rank_ends_the_step_and_moves_nothing(void **state)
{
    (void)state;
    struct error err = {0};
    struct tiny tiny = {.directory = "/nowhere"};
    struct feed feed = {.micro = BATCH};
    struct step_result result;
    static const char *const settings[] = {"optim.gradients=keep",
                                           "optim.gradients=release optim.clip_mode=exact"};
    for (size_t w = 0; w < sizeof settings / sizeof *settings; w++) {
        memset(&asked, 0, sizeof asked);
        asked.lost_at = 3;
        if (tiny_open(&tiny, settings[w], NULL, NULL, &err)) fail_msg("%s", err.what);
        struct trainer *t = tiny.trainer;
        const struct parameter *p = &t->student->parameters[t->student->parameter_count - 1];
        size_t bytes = (size_t)p->count * sizeof(float);
        float *before = xmalloc(bytes), *after = xmalloc(bytes);
        t->ranks = (struct dist){.ops = &mirror, .rank = 0, .size = 2, .device = tiny.device};
        assert_int_equal(trainer_export(t, t->student->parameter_count - 1, before, &err), 0);
        int code =
            trainer_step(t, 1, 1e-3, &(struct batch_source){.give = give, .context = &feed}, &result, &err);
        assert_int_equal(code, EXIT_RANK_LOST);
        assert_non_null(strstr(err.what, "rank 1 is missing in reduce_scatter"));
        assert_int_equal(trainer_export(t, t->student->parameter_count - 1, after, &err), 0);
        assert_memory_equal(before, after, bytes);
        free(before);
        free(after);
        tiny_close(&tiny);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_ranks_of_the_same_images_train_as_one),
        cmocka_unit_test(kept_gradients_are_summed_from_the_last_block_to_the_first),
        cmocka_unit_test(a_lost_rank_ends_the_step_and_moves_nothing)};
    uint32_t random = 1;
    for (int s = 0; s < STEPS; s++)
        for (int i = 0; i < BATCH * PIXELS; i++) {
            random = random * 1664525u + 1013904223u;
            images[s][i] = (float)(int32_t)random * 0x1p-31f;
        }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
