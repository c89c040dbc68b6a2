/* A step over several ranks is bit-identical to one rank with the same micro-batches: losses, norms and
 * weights, for every variant of a step, rule, format and shard, on 1, 2, 3, 4 and 8 ranks. The ranks are
 * threads with their own device and trainer, joined by shared memory; ranks.sh tests processes and MPI. */
#include "core/train/partition.h"
#include "tests/ranks/ranks.h"

#include <math.h>

static void same(const char *what, const struct rank *one, const struct rank *ranks, int size)
{
    for (int r = 0; r < size; r++) {
        if (ranks[r].code) fail_msg("%s, rank %d of %d: %s", what, r, size, ranks[r].err.what);
        for (int s = 0; s < STEPS; s++) {
            const struct step_result *a = &one->results[s], *b = &ranks[r].results[s];
            if (a->loss != b->loss || a->metrics[0].value != b->metrics[0].value ||
                a->grad_norm != b->grad_norm)
                fail_msg("%s, rank %d of %d, step %d: loss %.17g, norm %.17g; alone %.17g, %.17g", what, r,
                         size, s + 1, b->loss, b->grad_norm, a->loss, a->grad_norm);
        }
        assert_int_equal(one->count, ranks[r].count);
        if (memcmp(one->weights, ranks[r].weights, (size_t)one->count * sizeof(float)))
            fail_msg("%s: rank %d of %d has other weights", what, r, size);
    }
}

enum { WHOLE = 1, STATES = 2, WEIGHTS = 4, EVERY = 7 }; /* dist.shard none, optimizer, parameters */

/* settings alone, and on this many ranks, with these shards. */
static void compare(const char *settings, int shards, const int *sizes)
{
    static const char *const names[] = {"none", "optimizer", "parameters"};
    struct rank *one = as_ranks(1, settings, -1);
    if (one->code) fail_msg("%s: %s", settings, one->err.what);
    for (; *sizes; sizes++)
        for (int shard = 0; shard < 3; shard++) {
            if (!(shards & 1 << shard)) continue;
            char *all = xasprintf("%s dist.shard=%s", settings, names[shard]);
            struct rank *ranks = as_ranks(*sizes, all, -1);
            same(all, one, ranks, *sizes);
            ranks_free(ranks, *sizes);
            free(all);
        }
    ranks_free(one, 1);
}

static void every_way_of_a_step_has_the_bits_of_one_rank(void **state)
{
    (void)state;
    static const char *const ways[] = {
        "optim.gradients=release optim.clip_mode=previous",
        "optim.gradients=release optim.clip_mode=block",
        "optim.gradients=release optim.clip_mode=exact",
        "optim.gradients=release optim.clip_grad_norm=0",
        "optim.gradients=keep",
        "optim.gradients=keep optim.use_meopt=false",
        "optim.gradients=keep train.precision=fp32",
        "optim.gradients=release optim.clip_mode=exact train.micro_batch=4 train.recompute=block",
        "optim.gradients=release train.batch_size=5 train.micro_batch=5 " /* the last is shorter */
        "train.save_activations=8bit",
    };
    static const int all[] = {2, 3, 4, 8, 0}, few[] = {2, 3, 0}, some[] = {3, 8, 0};
    bool thorough = getenv("MEOPT_LONG") != NULL;
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
        compare(ways[w],
                thorough || w == 0 ? EVERY
                : w % 2            ? WHOLE | WEIGHTS
                                   : STATES | WEIGHTS,
                strstr(ways[w], "micro_batch") ? few
                : thorough || w == 0           ? all
                                               : some);
}

static void every_rule_and_format_has_the_bits_of_one_rank(void **state)
{
    (void)state;
    static const char *const formats[] = {"optim.use_meopt=false optim.gradients=keep",
                                          "train.precision=fp32",
                                          "optim.preset=quality",
                                          "optim.preset=balanced",
                                          "optim.preset=minimal",
                                          "optim.state_m=4bit optim.state_v=4bit"};
    static const int all[] = {2, 3, 4, 8, 0}, few[] = {3, 0};
    bool thorough = getenv("MEOPT_LONG") != NULL;
    for (int rule = 0; optim_name_names[rule]; rule++)
        for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
            char *settings =
                xasprintf("optim.name=%s optim.beta2=0.98 %s", optim_name_names[rule], formats[f]);
            compare(settings, thorough ? EVERY : f % 2 ? STATES : WEIGHTS, thorough ? all : few);
            free(settings);
        }
}

/* Of what one rank holds of a class: an N-th, give or take the cuts at 32768 elements. */
static void holds_a_part(const char *settings, const struct rank *one, const struct rank *r, int size,
                         enum memory_class class)
{
    double share = (double)r->classes[class] * size / (double)one->classes[class];
    if (share < 0.6 || share > 1.5)
        fail_msg("%s, rank %d of %d: %s holds %.2f of its part", settings, r->options.rank, size,
                 memory_class_names[class], share);
}

static void a_rank_holds_its_part_and_what_was_planned(void **state)
{
    (void)state;
    static const char *const shards[] = {"none", "optimizer", "gradients", "parameters"};
    enum { SHARDS = 4 };
    plan_too = true;
    run_last_step = 1;
    for (int keep = 0; keep < 2; keep++) {
        struct rank *one = NULL;
        size_t whole = 0;
        for (int size = 1; size <= 4; size *= 2)
            for (int shard = 0; shard < SHARDS; shard++) {
                char *all = xasprintf("model_s.depth=8 optim.gradients=%s dist.shard=%s",
                                      keep ? "keep" : "release", shards[shard]);
                struct rank *ranks = as_ranks(size, all, -1);
                for (int r = 0; r < size; r++) {
                    const struct rank *it = &ranks[r];
                    if (it->code) fail_msg("%s, rank %d of %d: %s", all, r, size, it->err.what);
                    double planned = (double)it->planned_bytes / (double)it->peak_bytes;
                    if (planned < 0.99 || planned > 1.01)
                        fail_msg("%s, rank %d of %d: %zu bytes planned, %zu held", all, r, size,
                                 it->planned_bytes, it->peak_bytes);
                    /* not 16 MiB, whatever the student: what its largest group sends and receives */
                    if (size > 1) assert_in_range(it->classes[MEMORY_COMM], 1, 4 << 20);
                    if (size == 1 || shard == 0) continue;
                    holds_a_part(all, one, it, size, MEMORY_OPTIMIZER);
                    if (keep && size > 2) holds_a_part(all, one, it, size, MEMORY_GRADIENTS);
                    if (shard == 3 && size > 2) assert_true(it->classes[MEMORY_WEIGHTS] < whole * 6 / 10);
                }
                if (!one) {
                    one = ranks;
                    whole = one->classes[MEMORY_WEIGHTS];
                } else ranks_free(ranks, size);
                free(all);
            }
        ranks_free(one, 1);
    }
    plan_too = false;
    run_last_step = 0;
}

static void what_is_not_finite_ends_all_ranks_alike(void **state)
{
    (void)state;
    float kept = images[1][3 * PIXELS];
    images[1][3 * PIXELS] = NAN; /* of one rank's micro-batch */
    for (int shard = 0; shard < 2; shard++) {
        struct rank *ranks = as_ranks(3, shard ? "dist.shard=optimizer" : "", -1);
        for (int r = 0; r < 3; r++) assert_int_equal(ranks[r].code, EXIT_DIVERGED);
        ranks_free(ranks, 3);
    }
    images[1][3 * PIXELS] = kept;
}

static void a_rank_that_gives_up_ends_the_others(void **state)
{
    (void)state;
    struct rank *ranks = as_ranks(3, "", 1);
    assert_int_equal(ranks[1].code, EXIT_DISK);
    for (int r = 0; r < 3; r += 2) {
        assert_int_equal(ranks[r].code, EXIT_RANK_LOST);
        assert_non_null(strstr(ranks[r].err.what, "rank"));
    }
    ranks_free(ranks, 3);
}

static void more_ranks_than_micro_batches_are_refused(void **state)
{
    (void)state;
    struct rank *ranks = as_ranks(4, "train.micro_batch=6 train.batch_size=6", -1);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(ranks[r].code, EXIT_CONFIG);
        assert_true(strstr(ranks[r].err.what, "4 ranks") && strstr(ranks[r].err.what, " 2 "));
    }
    ranks_free(ranks, 4);
}

static void parts_are_consecutive_and_complete(void **state)
{
    (void)state;
    struct rank alone = {.settings = "model_s.width=256 model_s.hidden=1024", .options = {.size = 1}};
    struct tiny tiny;
    struct error err;
    assert_int_equal(make(&tiny, &alone, "dry", &err), 0);
    const struct tower *s = tiny.trainer->student;
    for (int ranks = 1; ranks <= 8; ranks++) {
        int64_t most = 0, all = 0, *next = xcalloc((size_t)s->parameter_count, sizeof *next);
        for (int r = 0; r < ranks; r++) {
            struct partition *cut = partition_make(s, ranks, r, false);
            int64_t own = 0;
            for (int i = 0; i < s->parameter_count; i++) {
                if (!cut->count[i]) continue;
                assert_int_equal(cut->first[i], next[i]);
                assert_int_equal(cut->first[i] % CUT_ELEMENTS, 0);
                next[i] += cut->count[i];
                own += cut->count[i];
            }
            if (own > most) most = own;
            all += own;
            partition_free(cut);
        }
        for (int i = 0; i < s->parameter_count; i++)
            if (s->parameters[i].trained) assert_int_equal(next[i], s->parameters[i].count);
        assert_true(most <= all / ranks + s->group_count * CUT_ELEMENTS);
        free(next);
    }
    tiny_close(&tiny);
}

/* One rank among processes that mpirun has started: its weights and losses, as a file. */
static int mpi_rank(const char *out)
{
    struct rank r = {.settings = getenv("MEOPT_TEST_SETTINGS"),
                     .options = {.kind = COMM_MPI,
                                 .rank = atoi(getenv("OMPI_COMM_WORLD_RANK")),
                                 .size = atoi(getenv("OMPI_COMM_WORLD_SIZE")),
                                 .shared = -1}};
    rank_main(&r);
    if (r.code) fprintf(stderr, "rank %d: %s\n", r.options.rank, r.err.what);
    if (r.code || r.options.rank != r.options.size - 1) return r.code;
    FILE *f = fopen(out, "wb");
    bool good = f && fwrite(r.weights, sizeof *r.weights, (size_t)r.count, f) == (size_t)r.count;
    for (int s = 0; s < STEPS && good; s++) {
        const struct step_result *is = &r.results[s];
        good = fprintf(f, "%a %a %a\n", is->loss, is->metrics[0].value, is->grad_norm) > 0;
    }
    free(r.weights);
    return f && fclose(f) == 0 && good ? 0 : EXIT_FAILED;
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup(name, fresh)
    const struct CMUnitTest tests[] = {TEST(parts_are_consecutive_and_complete),
                                       TEST(every_way_of_a_step_has_the_bits_of_one_rank),
                                       TEST(every_rule_and_format_has_the_bits_of_one_rank),
                                       TEST(a_rank_holds_its_part_and_what_was_planned),
                                       TEST(what_is_not_finite_ends_all_ranks_alike),
                                       TEST(a_rank_that_gives_up_ends_the_others),
                                       TEST(more_ranks_than_micro_batches_are_refused)};
    make_images();
    if (argc > 1) return mpi_rank(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
