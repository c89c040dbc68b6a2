/* Checkpoints of several ranks: saved by any number of ranks, complete or sharded, they resume on any other
 * number and are bit-identical to one rank. A rank that cannot write its part is named, and the last good
 * checkpoint stays. */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/run/checkpoint.h"
#include "tests/ranks/ranks.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <sys/stat.h>

/* In front of the C library's: no room for a file that is called so. */
static const char *full;
/* One rank has a disk of its own: there a file that is called so cannot be opened, or is that other one. */
static struct {
    int rank;
    const char *denied, *file, *other;
} disk;

/* Files of records of this checkpoint that were opened for reading, by all ranks. */
static const char *counted;
static atomic_int opened;

static int open_as(int at, const char *path, int flags, mode_t mode)
{
    static int (*real)(int, const char *, int, ...);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "openat");
    if (counted && strstr(path, counted)) opened++;
    if (full && flags & O_CREAT && strstr(path, full)) {
        errno = ENOSPC;
        return -1;
    }
    bool own = disk.rank == this_rank;
    if (own && disk.denied && strstr(path, disk.denied)) {
        errno = EACCES;
        return -1;
    }
    if (own && disk.file && strstr(path, disk.file)) return real(AT_FDCWD, disk.other, flags, mode);
    return real(at, at == AT_FDCWD ? path : path_basename(path), flags, mode);
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    return open_as(AT_FDCWD, path, flags, mode);
}

int openat(int at, const char *name, int flags, ...)
{
    char descriptor[64], path[PATH_MAX];
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (at == AT_FDCWD || name[0] == '/' || strchr(name, '/')) return open_as(at, name, flags, mode);
    snprintf(descriptor, sizeof descriptor, "/proc/self/fd/%d", at);
    ssize_t n = readlink(descriptor, path, sizeof path / 2);
    snprintf(path + (n > 0 ? n : 0), sizeof path / 2, "/%s", name);
    return open_as(at, path, flags, mode);
}

/* Reads a checkpoint: its weight file, and the complete state of each tensor, whichever rank wrote it. */
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
    if (checkpoint_records(&saved, tensors, NULL, take_whole, c, &err)) fail_msg("%s", err.what);
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
    static const char *const settings[] = {"optim.state_m=4bit optim.state_v=4bit",
                                           "optim.clip_mode=previous",
                                           "optim.name=lamb optim.use_meopt=false optim.gradients=keep"};
    static const int moves[][STEPS] = {{4, 3, 8}, {3, 1, 4}, {1, 8, 2}, {4, 3, 1}};
    static const char *const shards[] = {"optimizer", "none", "parameters"};
    enum { MOVES = sizeof moves / sizeof *moves };
    bool thorough = getenv("MEOPT_LONG") != NULL;
    for (int w = 0; w < 3; w++) {
        char alone[] = "/tmp/meopt-ranks-XXXXXX";
        assert_non_null(mkdtemp(alone));
        run_directory = alone;
        struct rank *one = as_ranks(1, settings[w]);
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
                struct rank *ranks = as_ranks(size, all);
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
    char directory[] = "/tmp/meopt-ranks-XXXXXX";
    assert_non_null(mkdtemp(directory));
    run_directory = directory;
    run_last_step = 1;
    ranks_free(as_ranks(3, "dist.shard=optimizer"), 3);
    run_last_step = 2;
    full = "/optimizer.1-of-3.bin";
    struct rank *ranks = as_ranks(3, "dist.shard=optimizer");
    full = NULL;
    for (int r = 0; r < 3; r++) {
        assert_int_equal(ranks[r].code, EXIT_DISK);
        if (!strstr(ranks[r].err.what, "rank 1 (host ")) fail_msg("%s", ranks[r].err.what);
        assert_non_null(strstr(ranks[r].err.what, strerror(ENOSPC)));
    }
    ranks_free(ranks, 3);
    assert_true(exists(directory, "ckpt/step-00000001"));
    assert_false(exists(directory, "ckpt/step-00000002"));
    assert_false(exists(directory, "ckpt/step-00000002.partial"));
    run_last_step = STEPS;
    ranks = as_ranks(2, "dist.shard=parameters"); /* from step 1 */
    for (int r = 0; r < 2; r++) assert_int_equal(ranks[r].code, 0);
    int64_t tensors = ranks->tensors;
    ranks_free(ranks, 2);
    run_directory = NULL;
    run_last_step = 0;
    char alone[] = "/tmp/meopt-ranks-XXXXXX";
    assert_non_null(mkdtemp(alone));
    run_directory = alone;
    ranks_free(as_ranks(1, ""), 1);
    run_directory = NULL;
    same_content("after a full disk", alone, directory, 2, tensors);
    file_remove_tree(directory, NULL);
    file_remove_tree(alone, NULL);
}

static int64_t size_of(const char *directory, const char *name)
{
    char *path = path_join(directory, name);
    struct stat st;
    if (stat(path, &st)) fail_msg("%s: %s", path, strerror(errno));
    free(path);
    return (int64_t)st.st_size;
}

/* Each rank reads a quarter of the checksummed bytes, and its own part of weights and states, in blocks of a
 * MiB, which count for much in so small a checkpoint. Without sharing each would read everything twice. */
static void each_rank_reads_its_part(void **state)
{
    char directory[] = "/tmp/meopt-ranks-XXXXXX";
    assert_non_null(mkdtemp(directory));
    run_directory = directory;
    static const char wide[] = "dist.shard=parameters model_s.width=384 model_s.hidden=1536";
    run_last_step = 1;
    ranks_free(as_ranks(4, wide), 4);
    int64_t all = size_of(directory, "ckpt/step-00000001/model.safetensors");
    for (int r = 0; r < 4; r++) {
        char name[80];
        snprintf(name, sizeof name, "ckpt/step-00000001/optimizer.%d-of-4.bin", r);
        all += size_of(directory, name);
    }
    run_last_step = 2;
    counted = "step-00000001/optimizer.";
    opened = 0;
    struct rank *ranks = as_ranks(4, wide);
    assert_int_equal(opened, 4); /* each its own */
    for (int r = 0; r < 4; r++) {
        if (ranks[r].code) fail_msg("%s", ranks[r].err.what);
        if (ranks[r].resume_bytes < all / 4 || ranks[r].resume_bytes > all / 5 * 4)
            fail_msg("rank %d read %lld of %lld bytes", r, (long long)ranks[r].resume_bytes, (long long)all);
    }
    ranks_free(ranks, 4);
    run_last_step = STEPS;
    counted = "step-00000002/optimizer.";
    opened = 0;
    ranks = as_ranks(3, wide); /* each what overlaps its own part, and what it checks */
    counted = NULL;
    for (int r = 0; r < 3; r++)
        if (ranks[r].code) fail_msg("%s", ranks[r].err.what);
    print_message("3 ranks opened %d times a file of 4\n", opened);
    assert_true(opened >= 4 && opened < 12);
    ranks_free(ranks, 3);
    file_remove_tree(directory, NULL);
}

/* A byte is another, in the middle of a file or at the begin of the header, or the end is gone. */
enum damage { MIDDLE, HEADER, END_GONE };

static void damage(const char *directory, const char *name, enum damage how)
{
    char *path = path_join(directory, name);
    int64_t bytes = size_of(directory, name);
    int64_t at = how == HEADER ? 8 : bytes / 2;
    bool cut = how == END_GONE;
    unsigned char byte;
    if (cut) assert_int_equal(truncate(path, bytes / 2), 0);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    if (!cut) {
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
    free(path);
}

/* Damage in a part that no rank resumes from: one rank reads each byte, reports it to the others, and all
 * reject the checkpoint. */
static void a_damaged_file_is_noticed_whoever_reads_it(void **state)
{
    static const struct {
        const char *name;
        enum damage how;
        int ranks;
    } cases[] = {{"optimizer.2-of-4.bin", MIDDLE, 4},   {"optimizer.3-of-4.bin", MIDDLE, 2},
                 {"optimizer.1-of-4.bin", END_GONE, 4}, {"model.safetensors", MIDDLE, 4},
                 {"model.safetensors", END_GONE, 3},    {"optimizer.0-of-4.bin", MIDDLE, 1},
                 {"model.safetensors", HEADER, 8}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char directory[] = "/tmp/meopt-ranks-XXXXXX";
        assert_non_null(mkdtemp(directory));
        run_directory = directory;
        run_last_step = 1;
        ranks_free(as_ranks(4, "dist.shard=optimizer"), 4);
        char *name = path_join("ckpt/step-00000001", cases[i].name);
        damage(directory, name, cases[i].how);
        run_last_step = 2;
        struct rank *ranks = as_ranks(cases[i].ranks, "dist.shard=optimizer");
        for (int r = 0; r < cases[i].ranks; r++) {
            if (ranks[r].code != EXIT_INTEGRITY || !strstr(ranks[r].err.what, cases[i].name))
                fail_msg("%s, rank %d: %d: %s", cases[i].name, r, ranks[r].code, ranks[r].err.what);
        }
        ranks_free(ranks, cases[i].ranks);
        free(name);
        file_remove_tree(directory, NULL);
    }
}

static void a_rank_that_cannot_read_what_others_can_is_named(void **state)
{
    static const struct {
        int rank;
        const char *name;
    } cases[] = {{1, "/optimizer.1-of-3.bin"}, {2, "/MANIFEST.json"}, {0, "/model.safetensors"}};
    char directory[] = "/tmp/meopt-ranks-XXXXXX";
    assert_non_null(mkdtemp(directory));
    run_directory = directory;
    run_last_step = 1;
    ranks_free(as_ranks(3, "dist.shard=optimizer"), 3);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        disk.rank = cases[i].rank;
        disk.denied = cases[i].name;
        struct rank *ranks = as_ranks(3, "dist.shard=optimizer");
        disk.denied = NULL;
        char *named = xasprintf("rank %d (host ", cases[i].rank);
        for (int r = 0; r < 3; r++)
            if (ranks[r].code != EXIT_FAILED || !strstr(ranks[r].err.what, named) ||
                !strstr(ranks[r].err.file, cases[i].name) || !strstr(ranks[r].err.what, strerror(EACCES)))
                fail_msg("%s, rank %d: %d: %s: %s", cases[i].name, r, ranks[r].code, ranks[r].err.file,
                         ranks[r].err.what);
        free(named);
        ranks_free(ranks, 3);
        assert_true(exists(directory, "ckpt/step-00000001"));
    }
    struct rank *ranks = as_ranks(3, "dist.shard=optimizer"); /* all can read it again */
    for (int r = 0; r < 3; r++) assert_int_equal(ranks[r].code, 0);
    ranks_free(ranks, 3);
    file_remove_tree(directory, NULL);
}

/* Two tensors of one shape change their places in a copy, in the header alone: the first block, in which no
 * tensor of the last rank lies and which others read when they look whether all is whole. */
static void exchange_places(const char *from, const char *to, const char *a, const char *b)
{
    char *text, *places[2];
    size_t bytes, lengths[2];
    struct error err = {0};
    const char *names[2] = {a, b};
    if (file_read(from, 1 << 28, &text, &bytes, &err)) fail_msg("%s", err.what);
    uint64_t header;
    memcpy(&header, text, sizeof header);
    for (int i = 0; i < 2; i++) {
        char *name = memmem(text + 8, header, names[i], strlen(names[i]));
        assert_non_null(name);
        places[i] = strstr(name, "\"data_offsets\":[");
        assert_non_null(places[i]);
        lengths[i] = (size_t)(strchr(places[i], ']') - places[i]);
    }
    assert_int_equal(lengths[0], lengths[1]);
    for (size_t i = 0; i < lengths[0]; i++) {
        char kept = places[0][i];
        places[0][i] = places[1][i];
        places[1][i] = kept;
    }
    if (file_write_atomic(to, text, bytes, &err)) fail_msg("%s", err.what);
    free(text);
}

static void a_rank_that_reads_another_header_is_named(void **state)
{
    static const char wide[] = "dist.shard=parameters model_s.width=384 model_s.hidden=1536";
    char directory[] = "/tmp/meopt-ranks-XXXXXX";
    assert_non_null(mkdtemp(directory));
    run_directory = directory;
    run_last_step = 1;
    ranks_free(as_ranks(4, wide), 4);
    char *model = path_join(directory, "ckpt/step-00000001/model.safetensors"),
         *other = path_join(directory, "other");
    exchange_places(model, other, "blocks.1.norm1.weight\":", "blocks.1.norm1.bias\":");
    run_last_step = 2;
    disk.rank = 3;
    disk.file = "/model.safetensors";
    disk.other = other;
    struct rank *ranks = as_ranks(4, wide);
    disk.file = NULL;
    for (int r = 0; r < 4; r++)
        if (ranks[r].code != EXIT_INTEGRITY || !strstr(ranks[r].err.what, "rank 3 (host "))
            fail_msg("rank %d: %d: %s", r, ranks[r].code, ranks[r].err.what);
    ranks_free(ranks, 4);
    assert_true(exists(directory, "ckpt/step-00000001"));
    free(model);
    free(other);
    file_remove_tree(directory, NULL);
}

static void a_save_that_fails_fails_on_every_rank(void **state)
{
    run_directory = "/proc/no-run"; /* nothing can be made there */
    struct rank *ranks = as_ranks(3, "dist.shard=optimizer");
    run_directory = NULL;
    for (int r = 0; r < 3; r++) {
        assert_int_not_equal(ranks[r].code, 0);
        assert_string_equal(ranks[r].err.what, ranks[0].err.what);
    }
    ranks_free(ranks, 3);
}

static int begin(void **state)
{
    full = NULL;
    disk.denied = disk.file = NULL;
    return fresh(state);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, begin)
    const struct CMUnitTest tests[] = {
        TEST(a_checkpoint_goes_from_any_number_of_ranks_to_any),
        TEST(a_save_that_fails_fails_on_every_rank),
        TEST(each_rank_reads_its_part),
        TEST(a_rank_that_cannot_read_what_others_can_is_named),
        TEST(a_rank_that_reads_another_header_is_named),
        TEST(a_damaged_file_is_noticed_whoever_reads_it),
        TEST(a_rank_that_cannot_write_its_part_is_named_and_the_last_good_stays)};
    make_images();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
