/* A step over several ranks has the bits of one rank that takes the same micro-batches: losses, norms and
 * weights, for every way a step runs, every rule, format and shard, on 1, 2, 3, 4 and 8 ranks. The ranks are
 * threads here, each with its own device and trainer, joined by shared memory; ranks.sh has processes, and
 * MPI. */
#include "core/base/file.h"
#include "core/run/checkpoint.h"
#include "core/train/cut.h"
#include "core/train/snapshot.h"
#include "core/train/trainer.h"
#include "tests/tiny.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
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

/* In front of the C library's: no room for a file that is called so. */
static const char *full;

int open(const char *path, int flags, ...)
{
    static int (*real)(const char *, int, ...);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "open");
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (full && flags & O_CREAT && strstr(path, full)) {
        errno = ENOSPC;
        return -1;
    }
    return real(path, flags, mode);
}

enum { STEPS = 3, IMAGES = 12, MOST = 8, PIXELS = 3 * 28 * 28 };

static float images[STEPS][IMAGES * PIXELS];
static int64_t ids[IMAGES];

struct rank {
    const char *settings;
    struct dist_options options;
    const char *directory; /* of the run: go on from its checkpoint, and save; NULL: neither */
    int64_t last_step;     /* 0: STEPS */
    int nan_step;          /* the loss of which is not finite; 0: none */
    int64_t lost_step;     /* before which this rank gives up; 0: none */
    int code;
    struct error err;
    struct step_result results[STEPS];
    float *weights;
    int64_t count, tensors;
    size_t peak_bytes, planned_bytes, classes[MEMORY_CLASS_COUNT];
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

static void train(struct rank *r, struct trainer *t)
{
    struct feed feed = {.rank = r, .trainer = t};
    int64_t from = 0, last = r->last_step ? r->last_step : STEPS;
    if (r->directory) r->code = trainer_resume(t, r->directory, &from, &r->err);
    for (feed.step = from > 0 ? (int)from : 0; feed.step < last && !r->code; feed.step++) {
        if (feed.step + 1 == r->lost_step) {
            r->code = EXIT_DISK;
            dist_abort(&t->ranks, r->code);
            return;
        }
        r->code = trainer_step(t, feed.step + 1, 1e-3, &(struct batch_source){.give = give, .context = &feed},
                               &r->results[feed.step], &r->err);
    }
    if (r->directory && !r->code) r->code = trainer_save(t, r->directory, last, 1, &r->err);
    for (int i = 0; i < t->student->parameter_count; i++) r->count += t->student->parameters[i].count;
    r->tensors = t->tensor_count;
    r->weights = xmalloc((size_t)r->count * sizeof *r->weights);
    int64_t at = 0;
    for (int i = 0; i < t->student->parameter_count && (!r->code || r->code == EXIT_DIVERGED); i++) {
        int code = trainer_export(t, i, r->weights + at, &r->err);
        if (code) r->code = code;
        at += t->student->parameters[i].count;
    }
}

static bool plan_too;

/* Without the operations' scratch: that is known when a step has run, and the dry one takes none. */
static size_t held_by_trainer(const struct device *device)
{
    return device->use.peak_total_bytes - device->use.peak_bytes[MEMORY_WORKSPACE];
}

static void *rank_main(void *context)
{
    struct rank *r = context;
    struct tiny tiny, plan;
#ifdef _OPENMP
    omp_set_num_threads(1);
#endif
    r->code = make(&tiny, r, "cpu", &r->err);
    if (!r->code) train(r, tiny.trainer);
    if (tiny.device) {
        memcpy(r->classes, tiny.device->use.peak_bytes, sizeof r->classes);
        r->peak_bytes = held_by_trainer(tiny.device);
    }
    tiny_close(&tiny);
    struct error ignored;
    if (!plan_too) return NULL;
    if (make(&plan, r, "dry", &ignored) == 0) r->planned_bytes = held_by_trainer(plan.device);
    tiny_close(&plan);
    return NULL;
}

static const char *run_directory;
static int64_t run_last_step;

static struct rank *as_ranks(int size, const char *settings, int lost_rank)
{
    pthread_t threads[MOST];
    int shared = -1;
    struct error err = {0};
    struct rank *ranks = xcalloc((size_t)size, sizeof *ranks);
    if (size > 1 && dist_local_create(size, &shared, &err)) fail_msg("%s", err.what);
    for (int r = 0; r < size; r++) {
        ranks[r] = (struct rank){.settings = settings,
                                 .options = {.rank = r, .size = size, .shared = shared},
                                 .directory = run_directory,
                                 .last_step = run_last_step,
                                 .lost_step = r == lost_rank ? 2 : 0};
        assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &ranks[r]), 0);
    }
    for (int r = 0; r < size; r++) pthread_join(threads[r], NULL);
    if (shared >= 0) close(shared);
    return ranks;
}

static void ranks_free(struct rank *ranks, int size)
{
    for (int r = 0; r < size; r++) free(ranks[r].weights);
    free(ranks);
}

static void same(const char *what, const struct rank *one, const struct rank *ranks, int size)
{
    for (int r = 0; r < size; r++) {
        if (ranks[r].code) fail_msg("%s, rank %d of %d: %s", what, r, size, ranks[r].err.what);
        for (int s = 0; s < STEPS; s++) {
            const struct step_result *a = &one->results[s], *b = &ranks[r].results[s];
            if (a->loss != b->loss || a->cosine != b->cosine || a->grad_norm != b->grad_norm)
                fail_msg("%s, rank %d of %d, step %d: loss %.17g, norm %.17g; alone %.17g, %.17g", what, r,
                         size, s + 1, b->loss, b->grad_norm, a->loss, a->grad_norm);
        }
        assert_int_equal(one->count, ranks[r].count);
        if (memcmp(one->weights, ranks[r].weights, (size_t)one->count * sizeof(float)))
            fail_msg("%s: rank %d of %d has other weights", what, r, size);
    }
}

enum { WHOLE = 1, STATES = 2, WEIGHTS = 4, EVERY = 7 }; /* dist.shard none, optimizer, parameters */

/* settings alone, and on so many ranks, with these shards. */
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
        "optim.gradients=release train.batch_size=5 train.micro_batch=5", /* the last is shorter */
        "optim.gradients=release optim.adaptive=true optim.adaptive_every=1 optim.adaptive_threshold=0.001",
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

/* What is in a checkpoint: its weights' file, and each tensor's whole state, whoever has written parts of it.
 */
struct content {
    char *weights, **records;
    size_t weight_bytes, *record_bytes;
    int64_t count;
    int writers;
};

static int take_whole(void *context, int64_t index, const void *const *parts, const size_t *bytes,
                      struct error *err)
{
    struct content *c = context;
    size_t count = (size_t)c->writers;
    struct meopt_error library;
    (void)err;
    if (meopt_state_join(parts, bytes, count, NULL, &c->record_bytes[index], &library))
        fail_msg("%s", library.message);
    c->records[index] = xmalloc(c->record_bytes[index]);
    assert_int_equal(
        meopt_state_join(parts, bytes, count, c->records[index], &c->record_bytes[index], &library), 0);
    return 0;
}

static void content_read(struct content *c, const char *directory, int64_t tensors)
{
    struct checkpoint saved;
    struct error err = {0};
    char *path = xasprintf("%s/ckpt/step-%08d/model.safetensors", directory, STEPS);
    *c = (struct content){.count = tensors,
                          .records = xcalloc((size_t)tensors, sizeof *c->records),
                          .record_bytes = xcalloc((size_t)tensors, sizeof *c->record_bytes)};
    if (file_read(path, 1 << 28, &c->weights, &c->weight_bytes, &err)) fail_msg("%s", err.what);
    if (checkpoint_newest(&saved, directory, false, &err)) fail_msg("%s", err.what);
    assert_int_equal(saved.step, STEPS);
    c->writers = saved.writers;
    if (checkpoint_records(&saved, tensors, take_whole, c, &err)) fail_msg("%s", err.what);
    checkpoint_close(&saved);
    free(path);
}

static void content_free(struct content *c)
{
    for (int64_t i = 0; i < c->count; i++) free(c->records[i]);
    free(c->records);
    free(c->record_bytes);
    free(c->weights);
}

static void same_content(const char *what, const char *one_directory, const char *other_directory,
                         int writers, int64_t tensors)
{
    struct content one, other;
    content_read(&one, one_directory, tensors);
    content_read(&other, other_directory, tensors);
    assert_int_equal(one.writers, 1);
    assert_int_equal(other.writers, writers);
    if (one.weight_bytes != other.weight_bytes || memcmp(one.weights, other.weights, one.weight_bytes))
        fail_msg("%s: other bytes in model.safetensors", what);
    for (int64_t i = 0; i < tensors; i++)
        if (one.record_bytes[i] != other.record_bytes[i] ||
            memcmp(one.records[i], other.records[i], one.record_bytes[i]))
            fail_msg("%s: another state of tensor %d", what, (int)i);
    content_free(&one);
    content_free(&other);
}

/* A step on each of these numbers of ranks, in this mode of dist.shard: the checkpoint has what that of one
 * rank's steps has, its files by who held what. */
static void a_checkpoint_goes_from_any_number_of_ranks_to_any(void **state)
{
    (void)state;
    static const char *const settings[] = {"optim.clip_mode=previous",
                                           "optim.state_m=4bit optim.state_v=4bit optim.adaptive=true "
                                           "optim.adaptive_every=1 optim.adaptive_threshold=0.05",
                                           "optim.name=lamb optim.use_meopt=false optim.gradients=keep"};
    static const int moves[][STEPS] = {{4, 3, 8}, {3, 1, 4}, {1, 8, 2}, {4, 3, 1}};
    static const char *const shards[] = {"optimizer", "none", "parameters"};
    enum { MOVES = sizeof moves / sizeof *moves };
    bool thorough = getenv("MEOPT_LONG") != NULL;
    for (int w = 0; w < 3; w++) {
        char alone[] = "/tmp/meopt-ranks-XXXXXX";
        assert_non_null(mkdtemp(alone));
        run_directory = alone;
        struct rank *one = as_ranks(1, settings[w], -1);
        int64_t tensors = one->tensors;
        ranks_free(one, 1);
        for (int k = 0; k < 3 * MOVES; k++) {
            int m = k / 3, shift = k % 3, last = 0;
            if (!thorough && (m != w || shift != w)) continue;
            char moved[] = "/tmp/meopt-ranks-XXXXXX";
            assert_non_null(mkdtemp(moved));
            run_directory = moved;
            for (run_last_step = 1; run_last_step <= STEPS; run_last_step++) {
                int size = moves[m][run_last_step - 1], shard = (int)((shift + run_last_step) % 3);
                char *all = xasprintf("%s dist.shard=%s", settings[w], shards[shard]);
                struct rank *ranks = as_ranks(size, all, -1);
                for (int r = 0; r < size; r++)
                    if (ranks[r].code) fail_msg("%s, rank %d of %d: %s", all, r, size, ranks[r].err.what);
                ranks_free(ranks, size);
                free(all);
                last = shard == 1 ? 1 : size;
            }
            run_last_step = 0;
            same_content(settings[w], alone, moved, last, tensors);
            file_remove_tree(moved, NULL);
        }
        file_remove_tree(alone, NULL);
    }
    run_directory = NULL;
}

static bool exists(const char *directory, const char *name)
{
    char *path = path_join(directory, name);
    bool there = !file_absent(path);
    free(path);
    return there;
}

static void a_rank_that_cannot_write_its_part_is_named_and_the_last_good_stays(void **state)
{
    (void)state;
    char directory[] = "/tmp/meopt-ranks-XXXXXX";
    assert_non_null(mkdtemp(directory));
    run_directory = directory;
    run_last_step = 1;
    ranks_free(as_ranks(3, "dist.shard=optimizer", -1), 3);
    run_last_step = 2;
    full = "/optimizer.1-of-3.bin";
    struct rank *ranks = as_ranks(3, "dist.shard=optimizer", -1);
    full = NULL;
    for (int r = 0; r < 3; r++) {
        assert_int_equal(ranks[r].code, EXIT_DISK);
        if (!strstr(ranks[r].err.what, "rank 1 (host ")) fail_msg("%s", ranks[r].err.what);
        assert_non_null(strstr(ranks[r].err.what, "No space left"));
    }
    ranks_free(ranks, 3);
    assert_true(exists(directory, "ckpt/step-00000001"));
    assert_false(exists(directory, "ckpt/step-00000002"));
    assert_false(exists(directory, "ckpt/step-00000002.partial"));
    run_last_step = STEPS;
    ranks = as_ranks(2, "dist.shard=parameters", -1); /* from step 1 */
    for (int r = 0; r < 2; r++) assert_int_equal(ranks[r].code, 0);
    int64_t tensors = ranks->tensors;
    ranks_free(ranks, 2);
    run_directory = NULL;
    run_last_step = 0;
    char alone[] = "/tmp/meopt-ranks-XXXXXX";
    assert_non_null(mkdtemp(alone));
    run_directory = alone;
    ranks_free(as_ranks(1, "", -1), 1);
    run_directory = NULL;
    same_content("behind a full disk", alone, directory, 2, tensors);
    file_remove_tree(directory, NULL);
    file_remove_tree(alone, NULL);
}

static void a_save_that_fails_fails_on_every_rank(void **state)
{
    (void)state;
    run_directory = "/proc/no-run"; /* nothing can be made there */
    struct rank *ranks = as_ranks(3, "dist.shard=optimizer", -1);
    run_directory = NULL;
    for (int r = 0; r < 3; r++) {
        assert_int_not_equal(ranks[r].code, 0);
        assert_string_equal(ranks[r].err.what, ranks[0].err.what);
    }
    ranks_free(ranks, 3);
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
        assert_non_null(strstr(ranks[r].err.what, "4 ranks for 2 micro-batches"));
    }
    ranks_free(ranks, 4);
}

static void parts_are_one_behind_the_other_and_all(void **state)
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
            struct cut *cut = cut_make(s, ranks, r);
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
            cut_free(cut);
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
                     .options = {.kind = DIST_MPI,
                                 .rank = atoi(getenv("OMPI_COMM_WORLD_RANK")),
                                 .size = atoi(getenv("OMPI_COMM_WORLD_SIZE")),
                                 .shared = -1}};
    rank_main(&r);
    if (r.code) fprintf(stderr, "rank %d: %s\n", r.options.rank, r.err.what);
    if (r.code || r.options.rank != r.options.size - 1) return r.code;
    FILE *f = fopen(out, "wb");
    bool good = f && fwrite(r.results, sizeof r.results, 1, f) == 1 &&
                fwrite(r.weights, sizeof *r.weights, (size_t)r.count, f) == (size_t)r.count;
    free(r.weights);
    return f && fclose(f) == 0 && good ? 0 : EXIT_FAILED;
}

/* What a test that failed has left set. */
static int fresh(void **state)
{
    (void)state;
    run_directory = full = NULL;
    run_last_step = 0;
    plan_too = false;
    return 0;
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup(name, fresh)
    const struct CMUnitTest tests[] = {
        TEST(parts_are_one_behind_the_other_and_all),
        TEST(every_way_of_a_step_has_the_bits_of_one_rank),
        TEST(every_rule_and_format_has_the_bits_of_one_rank),
        TEST(a_checkpoint_goes_from_any_number_of_ranks_to_any),
        TEST(a_save_that_fails_fails_on_every_rank),
        TEST(a_rank_that_cannot_write_its_part_is_named_and_the_last_good_stays),
        TEST(a_rank_holds_its_part_and_what_was_planned),
        TEST(what_is_not_finite_ends_all_ranks_alike),
        TEST(a_rank_that_gives_up_ends_the_others),
        TEST(more_ranks_than_micro_batches_are_refused)};
    uint32_t random = 1;
    for (int s = 0; s < STEPS; s++)
        for (int i = 0; i < IMAGES * PIXELS; i++) {
            random = random * 1664525u + 1013904223u;
            images[s][i] = (float)(int32_t)random * 0x1p-31f;
        }
    if (argc > 1) return mpi_rank(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
