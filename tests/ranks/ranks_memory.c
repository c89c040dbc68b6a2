/* An allocation of one rank fails during save or resume, at every call site. All ranks then fail with the
 * name of that rank, or the operation succeeds, or that rank's process ends (file.h, xmalloc) and the
 * others name it. The next step of the same ranks is bit-identical to that of undisturbed ranks. Ranks are
 * processes that share memory.
 *
 * Each call site fails once; MEOPT_LONG=1: every single allocation. */
#include "core/run/checkpoint.h"
#include "core/train/trainer_checkpoint.h"
#include "tests/train/tiny.h"

#include <errno.h>
#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { REFERENCE_STEPS = 256, SITES = 512, RANKS = 3, PIXELS = 3 * 28 * 28, IMAGES = 5 };

/* ---- allocations that fail, below the whole program (--wrap) ---- */

static atomic_bool armed, hit;
static atomic_long seen; /* since armed */

/* Of all processes of a case. */
static struct common {
    bool every; /* allocation, by number: `next`; else each place once: `sites` */
    long next;
    void *sites[SITES];
    int site_count;
    bool hit; /* a failure in this turn */
    struct {
        int code;
        char what[640];
    } ranks[RANKS];
    int64_t turns, failed,
        survived; /* turns with a failure: failed on all ranks, or succeeded nevertheless */
    char wrong[1024];
    double loss[REFERENCE_STEPS + 1], norm[REFERENCE_STEPS + 1];
} * common;

static bool fails(void *site)
{
    if (!armed) return false;
    long number = atomic_fetch_add(&seen, 1) + 1;
    if (hit) return false;
    if (common->every) hit = number == common->next;
    else {
        int i = 0;
        while (i < common->site_count && common->sites[i] != site) i++;
        hit = i == common->site_count && i < SITES;
        if (hit) common->sites[common->site_count++] = site;
    }
    if (hit) common->hit = true;
    return hit;
}

#define SITE __builtin_return_address(0)
void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes) { return fails(SITE) ? NULL : __real_malloc(bytes); }
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes) { return fails(SITE) ? NULL : __real_calloc(count, bytes); }
void *__real_realloc(void *p, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes) { return fails(SITE) ? NULL : __real_realloc(p, bytes); }
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return fails(SITE) ? NULL : __real_aligned_alloc(alignment, bytes);
}
int __real_posix_memalign(void **p, size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **p, size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **p, size_t alignment, size_t bytes)
{
    return fails(SITE) ? ENOMEM : __real_posix_memalign(p, alignment, bytes);
}
char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
char *__wrap_strdup(const char *text) { return fails(SITE) ? NULL : __real_strdup(text); }
static void *of_jansson(size_t bytes) { return fails(SITE) ? NULL : __real_malloc(bytes); }

/* ---- ranks ---- */

/* One image a micro-batch, one micro-batch a rank. */
static float images[IMAGES * PIXELS];
struct feed {
    const struct comm *ranks;
    int64_t step;
};
static int give(void *context, int64_t index, struct batch *batch, const int64_t **ids, struct error *err)
{
    static const int64_t none[1];
    const struct feed *feed = context;
    int64_t piece = index * feed->ranks->size + feed->ranks->rank;
    (void)err;
    batch->input = images + (feed->step + piece) % IMAGES * PIXELS;
    *ids = none;
    return 0;
}

struct trial {
    const char *settings;
    int size, victim;
    bool resume;
    const char *directory;
};

/* A step, and whether it has the bits that the reference has. */
static int step(struct trainer *t, int64_t number, struct error *err)
{
    struct feed feed = {&t->ranks, number};
    struct step_result result;
    int code =
        trainer_step(t, number, 1e-3, &(struct batch_source){.fetch = give, .context = &feed}, &result, err);
    if (code || t->ranks.rank) return code;
    if (t->ranks.size == 1) {
        common->loss[number] = result.loss;
        common->norm[number] = result.grad_norm;
    } else if (result.loss != common->loss[number] || result.grad_norm != common->norm[number])
        snprintf(common->wrong, sizeof common->wrong,
                 "step %d: loss %.17g, norm %.17g, expected %.17g, %.17g", (int)number, result.loss,
                 result.grad_norm, common->loss[number], common->norm[number]);
    return code;
}

/* Rank 0, after a step: the reports of all ranks on this round. */
static void judge(const struct trial *trial, int64_t saved)
{
    char named[32];
    int code = common->ranks[0].code;
    struct error err = {0};
    snprintf(named, sizeof named, "rank %d (host ", trial->victim);
    for (int r = 0; r < trial->size && !common->wrong[0]; r++) {
        const char *what = common->ranks[r].what;
        bool same = common->ranks[r].code == code && strcmp(what, common->ranks[0].what) == 0;
        if (!same || (code && !strstr(what, named)) ||
            (code && code != EXIT_HOST_MEMORY && code != EXIT_FAILED))
            snprintf(common->wrong, sizeof common->wrong, "rank %d: %d, %.400s; rank 0: %d, %.400s", r,
                     common->ranks[r].code, what, code, common->ranks[0].what);
    }
    if (!code && !trial->resume) { /* then it is there */
        struct checkpoint c;
        if (checkpoint_newest(&c, trial->directory, false, &err) || c.step != saved)
            snprintf(common->wrong, sizeof common->wrong, "step %d was saved: %.400s", (int)saved, err.what);
        checkpoint_close(&c);
    }
    common->turns++;
    common->failed += common->hit && code;
    common->survived += common->hit && !code;
}

/* Saves or resumes, each time with the next failure, until none is left: 0. */
static int turns(struct trainer *t, const struct trial *trial, struct error *err)
{
    int rank = t->ranks.rank;
    bool victim = rank == trial->victim;
    int64_t made = 0;
    int code = 0;
    for (bool more = true; more && !code && !common->wrong[0];) {
        if (!trial->resume) code = step(t, ++made, err);
        if (victim) common->hit = false;
        if (!code) code = comm_barrier(&t->ranks, err);
        if (code) break;
        *err = (struct error){0};
        seen = 0;
        hit = false;
        armed = victim;
        int result = trial->resume ? trainer_resume(t, trial->directory, &made, err)
                                   : trainer_save(t, trial->directory, made, 1, err);
        armed = false;
        if (victim && common->every) common->next++;
        common->ranks[rank].code = result;
        snprintf(common->ranks[rank].what, sizeof common->ranks[0].what, "%s", result ? err->what : "");
        if (result == EXIT_RANK_LOST) return result;
        if ((code = comm_barrier(&t->ranks, err)) != 0) break;
        if (rank == 0) judge(trial, made);
        more = common->hit && made < REFERENCE_STEPS - 1;
        if (trial->resume && !result) code = step(t, made + 1, err);
        if (!code) code = comm_barrier(&t->ranks, err);
    }
    return code;
}

/* trial NULL: the steps of the reference, by one rank */
static int rank_process(const struct comm_options *ranks, const char *settings, const struct trial *trial)
{
    struct tiny tiny = {.directory = "/nowhere"};
    struct error err = {0};
#ifdef _OPENMP
    omp_set_num_threads(1);
#endif
    json_set_alloc_funcs(of_jansson, free);
    int code = tiny_join(&tiny, "cpu", ranks, settings, NULL, NULL, &err);
    for (int64_t s = 1; s <= REFERENCE_STEPS && !code && !trial; s++) code = step(tiny.trainer, s, &err);
    if (!code && trial) code = turns(tiny.trainer, trial, &err);
    if (code) snprintf(common->ranks[ranks->rank].what, sizeof common->ranks[0].what, "%s", err.what);
    tiny_close(&tiny);
    return code;
}

static void as_processes(int size, const char *settings, const struct trial *trial, int codes[RANKS])
{
    pid_t pids[RANKS];
    struct error err = {0};
    int shared = -1, status;
    if (size > 1) assert_int_equal(comm_local_create(size, &shared, &err), 0);
    fflush(NULL);
    for (int r = 0; r < size; r++) {
        if ((pids[r] = fork()) != 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(300);
        _exit(
            rank_process(&(struct comm_options){.rank = r, .size = size, .shared = shared}, settings, trial));
    }
    for (int r = 0; r < size; r++) {
        assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
        codes[r] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    if (shared >= 0) close(shared);
}

static int64_t all_failed, all_survived, all_died;

/* Only the victim has ended its process; every other rank names it. */
static void check_death(const struct trial *trial, const int codes[RANKS])
{
    char gone[32];
    snprintf(gone, sizeof gone, "rank %d ", trial->victim);
    for (int r = 0; r < trial->size; r++)
        if (codes[r] != (r == trial->victim ? EXIT_HOST_MEMORY : EXIT_RANK_LOST) ||
            (r != trial->victim && !strstr(common->ranks[r].what, gone)))
            fail_msg("%s, rank %d of %d, failure %ld: rank %d ended with %d: %s", trial->settings,
                     trial->victim, trial->size, common->next, r, codes[r], common->ranks[r].what);
    all_died++;
}

static void try_all(const struct trial *trial)
{
    int codes[RANKS] = {0}, left = 1;
    bool every = getenv("MEOPT_LONG") != NULL;
    common->every = every;
    common->next = 1;
    common->site_count = 0;
    char *saved = path_join(trial->directory, "ckpt");
    while (left) {
        if (!trial->resume) file_remove_tree(saved, NULL);
        common->turns = common->failed = common->survived = 0;
        common->hit = false;
        as_processes(trial->size, trial->settings, trial, codes);
        if (common->wrong[0])
            fail_msg("%s, %s, rank %d of %d, failure %ld: %s", trial->settings,
                     trial->resume ? "resume" : "save", trial->victim, trial->size, common->next,
                     common->wrong);
        all_failed += common->failed;
        all_survived += common->survived;
        left = 0;
        for (int r = 0; r < trial->size; r++) left |= codes[r];
        if (left) {
            check_death(trial, codes);
            common->next++;
        } else left = common->hit; /* the reference's steps are over */
    }
    free(saved);
}

static const char tiny_steps[] = "train.global_batch=3 train.micro_batch=1 train.batch_size=1";

/* With this mode of dist.shard and offload, on `ranks` ranks: each, or from `first` on all but those between
 * the first and the last. */
static void sweep(const char *shard, bool offload, int size, int first, bool resume, const char *directory)
{
    char *settings =
        xasprintf("%s dist.shard=%s%s%s", tiny_steps, shard,
                  offload ? " optim.offload=nvme optim.offload_dir=" : "", offload ? directory : "");
    bool every = getenv("MEOPT_LONG") != NULL;
    for (int victim = every ? 0 : first; victim < size; victim++)
        if (every || victim == 0 || victim == size - 1)
            try_all(&(struct trial){settings, size, victim, resume, directory});
    free(settings);
}

static void make_reference(void)
{
    int codes[RANKS];
    static bool made;
    if (!made) as_processes(1, tiny_steps, NULL, codes);
    if (!made && codes[0]) fail_msg("%s", common->ranks[0].what);
    made = true;
}

static void counted(const char *what)
{
    print_message("%s: %lld failures reported by all ranks, %lld without effect, %lld ended the rank\n", what,
                  (long long)all_failed, (long long)all_survived, (long long)all_died);
    assert_true(all_failed > 0);
    all_failed = all_survived = all_died = 0;
}

static const struct {
    const char *shard;
    bool offload;
    int size;
    bool always; /* else with MEOPT_LONG */
} rows[] = {
    {"optimizer", false, 2, true},   {"parameters", true, 3, true},  {"none", true, 2, true},
    {"optimizer", true, 2, false},   {"optimizer", false, 3, false}, {"optimizer", true, 3, false},
    {"parameters", false, 2, false}, {"parameters", true, 2, false}, {"parameters", false, 3, false},
    {"none", false, 2, false},       {"none", false, 3, false},      {"none", true, 3, false},
};
enum { ROWS = sizeof rows / sizeof *rows };

static void a_save(void **state)
{
    make_reference();
    for (int i = 0; i < ROWS; i++) {
        if (!rows[i].always && !getenv("MEOPT_LONG")) continue;
        char directory[] = "/tmp/meopt-ranks-XXXXXX";
        assert_non_null(mkdtemp(directory));
        sweep(rows[i].shard, rows[i].offload, rows[i].size, 0, false, directory);
        file_remove_tree(directory, NULL);
    }
    counted("save");
}

/* From a checkpoint that as many ranks have written, or others: states are joined and cut again. */
static void a_resume(void **state)
{
    make_reference();
    for (int i = 0; i < ROWS; i++) {
        for (int other = 0; other < 2; other++) {
            if (!getenv("MEOPT_LONG") && i != other) continue; /* the first row, and the second with others */
            int codes[RANKS], writers = other ? 5 - rows[i].size : rows[i].size;
            char directory[] = "/tmp/meopt-ranks-XXXXXX";
            assert_non_null(mkdtemp(directory));
            char *settings = xasprintf("%s dist.shard=%s", tiny_steps, rows[i].shard);
            common->every = true;
            common->next = 0; /* none fails */
            as_processes(writers, settings, &(struct trial){settings, writers, 0, false, directory}, codes);
            for (int r = 0; r < writers; r++)
                if (codes[r]) fail_msg("%s", common->ranks[r].what);
            free(settings);
            sweep(rows[i].shard, rows[i].offload, rows[i].size, i, true, directory);
            file_remove_tree(directory, NULL);
        }
    }
    counted("resume");
}

/* One argument: the name of the test. */
int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_save), cmocka_unit_test(a_resume)};
    common = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (common == MAP_FAILED) return 1;
    for (uint32_t i = 0, random = 1; i < IMAGES * PIXELS; i++) {
        random = random * 1664525u + 1013904223u;
        images[i] = (float)(int32_t)random * 0x1p-31f;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
