/* Contracts of every back end (core/comm/comm.h). Ranks are threads, each with its own device, which share
 * memory like processes; those that die are processes. With MEOPT_TEST_DEVICE hip or cuda each has a card,
 * joined by its library of collectives (tests/gpu/fake_nccl.cc). */
#include "tests/ranks/dist.h"

#include <math.h>

/* VALUES: more than a window has room for; LONG_PART: one part of them, and more than a card's slice of eight
 */
enum { VALUES = 3000017, LONG_PART = 1200017 };

/* Of any rank's array, from its number and place: sums whose order shows in their bits. */
static float value_of(int rank, int64_t i)
{
    uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)rank * 40503u;
    x ^= x >> 15;
    return (float)(int32_t)(x * 2246822519u) * 0x1p-31f * (rank % 3 ? 1.0f : 1000.0f);
}
static uint16_t bf16_of(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, 4);
    return (uint16_t)(bits >> 16);
}
static float of_bf16(uint16_t b)
{
    uint32_t bits = (uint32_t)b << 16;
    float v;
    memcpy(&v, &bits, 4);
    return v;
}

static void unequal_parts(int size, int64_t count, int64_t *offsets)
{
    offsets[0] = 0;
    for (int q = 1; q < size; q++) offsets[q] = q == 1 ? 7 : count * q / size;
    for (int q = 2; q < size && count == LONG_PART; q++) offsets[q] = count - 11 * (size - q);
    offsets[size] = count;
}

/* Any order of n + 1 additions rounds by at most n u / (1 - n u) of the sum of the magnitudes, u = 2^-24
 * (Higham, Accuracy and Stability of Numerical Algorithms, 4.2). */
static bool near(float found, double sum, double magnitudes, int additions)
{
    double u = additions * 0x1p-24;
    return fabs((double)found - sum) <= u / (1 - u) * magnitudes;
}

static bool by_library; /* comm_reduce has the library's sums */

static void reduce_one(struct rank *r, enum dtype type, int64_t count, int contributors, bool before)
{
    int size = r->comm.size, first = before ? 100 : 0;
    int64_t offsets[MOST + 1];
    unequal_parts(size, count, offsets);
    int64_t begin = offsets[r->comm.rank], own = offsets[r->comm.rank + 1] - begin;
    void *send = malloc((size_t)count * 4);
    float *sum = malloc((size_t)own * 4 + 4);
    for (int64_t i = 0; i < count; i++) {
        float v = value_of(r->comm.rank, i);
        if (type == DTYPE_F32) ((float *)send)[i] = v;
        else ((uint16_t *)send)[i] = bf16_of(v);
    }
    for (int64_t i = 0; i < own; i++) sum[i] = value_of(first, begin + i);
    float *receive = on_device(r, sum, (size_t)own * 4);
    void *given = r->comm.rank < contributors ? on_device(r, send, (size_t)count * dtype_bytes(type)) : NULL;
    struct comm_sum s = {.send = given,
                         .type = type,
                         .offsets = offsets,
                         .contributors = contributors,
                         .before = before ? receive : NULL,
                         .receive = receive};
    CHECK(r, comm_reduce(&r->comm, &s, &r->err) == 0);
    from_device(r, sum, receive, (size_t)own * 4);
    device_free(r->device, receive);
    device_free(r->device, given);
    int64_t wrong = 0;
    for (int64_t i = 0; i < own; i++) {
        float expected = before ? value_of(first, begin + i) : 0.0f;
        double exact = (double)expected, magnitudes = fabs(exact);
        for (int q = 0; q < contributors; q++) {
            float v = value_of(q, begin + i);
            volatile uint16_t half = bf16_of(v); /* gcc 12 makes `c ? v : v without its low bits` to v */
            float given_of = type == DTYPE_F32 ? v : of_bf16(half);
            expected += given_of;
            exact += (double)given_of;
            magnitudes += fabs((double)given_of);
        }
        bool same = memcmp(&expected, &sum[i], 4) == 0;
        wrong += by_library ? !near(sum[i], exact, magnitudes, size + 1) : !same;
    }
    CHECK(r, wrong == 0);
    CHECK(r, by_library == comm_sums_by_library(&r->comm));
    free(send);
    free(sum);
}

static void reduce_all(struct rank *r)
{
    int size = r->comm.size;
    int64_t counts[] = {100, !card ? VALUES : size == MOST ? LONG_PART : 1001};
    CHECK(r, size == 1 || strcmp(r->comm.ops->name, card ? "nccl" : "local") == 0);
    for (int c = 0; c < 2; c++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            enum dtype type = bf16 ? DTYPE_BF16 : DTYPE_F32;
            if (!bf16 || counts[c] != LONG_PART) reduce_one(r, type, counts[c], size, false);
            if (c == 0 || bf16) reduce_one(r, type, counts[c], (size + 1) / 2, true);
        }
}

static void a_sum_is_made_in_rank_order_in_fp32(void **state)
{
    static const int sizes[] = {1, 2, 3, 4, 8};
    for (size_t s = card ? 1 : 0; s < sizeof sizes / sizeof *sizes; s++) as_ranks(sizes[s], reduce_all);
}

/* Values whose sums show their order, some of them NaN, infinite or -0. */
static float tree_value(int rank, int64_t i)
{
    switch (i % 97) {
    case 5: return rank == 1 ? NAN : 1.0f;
    case 11: return rank == 1 ? INFINITY : 2.0f;
    case 17: return rank % 2 ? INFINITY : -INFINITY;
    case 23: return -0.0f;
    default: return value_of(rank, i);
    }
}

/* The sum of ranks from `first` on. */
static float tree_of(int first, int ranks, int64_t i)
{
    volatile float left = ranks == 1 ? tree_value(first, i) : tree_of(first, ranks / 2, i);
    return ranks == 1 ? left : left + tree_of(first + ranks / 2, ranks / 2, i);
}

static void tree_one(struct rank *r, int64_t count, bool later)
{
    float *values = malloc((size_t)count * 4 + 4);
    for (int64_t i = 0; i < count; i++) values[i] = tree_value(r->comm.rank, i);
    struct comm_tree tree = {on_device(r, values, (size_t)count * 4), count};
    struct comm_job job = {.run = comm_tree_job, .context = &tree};
    if (later) {
        comm_begin(&r->comm, &job);
        CHECK(r, comm_end(&r->comm, &job, &r->err) == 0);
    } else CHECK(r, comm_tree_sum(&r->comm, tree.p, count, &r->err) == 0);
    from_device(r, values, tree.p, (size_t)count * 4);
    device_free(r->device, tree.p);
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; i++) {
        float expected = tree_of(0, r->comm.size, i);
        wrong += isnan(expected) ? !isnan(values[i]) : memcmp(&expected, &values[i], 4) != 0;
    }
    CHECK(r, wrong == 0);
    free(values);
}

/* The parts of a reduce-scatter. */
static void tree_part(struct rank *r)
{
    int size = r->comm.size, me = r->comm.rank;
    int64_t offsets[MOST + 1];
    unequal_parts(size, 1001, offsets);
    float values[1001], sums[1001];
    for (int64_t i = 0; i < 1001; i++) values[i] = tree_value(me, i);
    int64_t begin = offsets[me], own = offsets[me + 1] - begin, wrong = 0;
    float *send = on_device(r, values, sizeof values), *receive = on_device(r, values, (size_t)own * 4);
    struct comm_sum s = {
        .send = send, .type = DTYPE_F32, .offsets = offsets, .receive = receive, .tree = true};
    CHECK(r, comm_reduce(&r->comm, &s, &r->err) == 0);
    from_device(r, sums, receive, (size_t)own * 4);
    for (int64_t i = 0; i < own; i++) {
        float expected = tree_of(0, size, begin + i);
        wrong += isnan(expected) ? !isnan(sums[i]) : memcmp(&expected, &sums[i], 4) != 0;
    }
    CHECK(r, wrong == 0);
    device_free(r->device, send);
    device_free(r->device, receive);
}

static void tree_all(struct rank *r)
{
    static const int64_t counts[] = {0, 1, 7, 64, 1001};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) tree_one(r, counts[c], c % 2);
    CHECK(r, comm_tree_part(8, 1001) == 128 * 4 && comm_tree_part(4, 7) == 7 * 4);
    tree_one(r, !card ? VALUES : r->comm.size == MOST ? LONG_PART * 2 : 4099, true);
    tree_part(r);
}

static void refuse_tree(struct rank *r)
{
    float values[8] = {0};
    int64_t offsets[] = {0, 4, 6, 8};
    struct comm_sum s = {.send = values, .type = DTYPE_F32, .offsets = offsets, .receive = values};
    s.tree = true;
    CHECK(r, comm_tree_sum(&r->comm, values, 8, &r->err) == EXIT_FAILED && strstr(r->err.what, "3"));
    CHECK(r, comm_reduce(&r->comm, &s, &r->err) == EXIT_FAILED);
}

static void a_tree_of_sums_has_its_order_whoever_adds(void **state)
{
    static const int sizes[] = {1, 2, 4, 8};
    for (int library = 0; library < 2; library++) {
        as_library = library; /* the same tree */
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            if (!library || sizes[s] == 4) as_ranks(sizes[s], tree_all);
    }
    as_library = false;
    as_ranks(3, refuse_tree);
}

/* The emulated library adds in another order, so its sums have other bits, within the bound of rounding. */
static void a_library_adds_in_its_own_order(void **state)
{
    static const int sizes[] = {2, 3, 8};
    as_library = true;
    by_library = card != NULL;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) as_ranks(sizes[s], reduce_all);
    as_library = by_library = false;
}

static void gather_all(struct rank *r)
{
    int size = r->comm.size, me = r->comm.rank;
    int64_t offsets[MOST + 1];
    unequal_parts(size, VALUES, offsets);
    unsigned char *bytes = calloc(VALUES, 1);
    for (int64_t i = offsets[me]; i < offsets[me + 1]; i++) bytes[i] = (unsigned char)(i * 7 + me + 1);
    void *held = on_device(r, bytes, VALUES);
    CHECK(r, comm_gather(&r->comm, held, offsets, &r->err) == 0);
    from_device(r, bytes, held, VALUES);
    device_free(r->device, held);
    int64_t wrong = 0;
    for (int q = 0; q < size; q++)
        for (int64_t i = offsets[q]; i < offsets[q + 1]; i++)
            wrong += bytes[i] != (unsigned char)(i * 7 + q + 1);
    CHECK(r, wrong == 0);
    if (size > 1) { /* the same again, from a part that lies elsewhere */
        int64_t mine = offsets[me + 1] - offsets[me];
        unsigned char *all = calloc(VALUES, 1);
        void *own = on_device(r, bytes + offsets[me], (size_t)mine), *whole = on_device(r, all, VALUES);
        CHECK(r, comm_gather_from(&r->comm, own, whole, offsets, &r->err) == 0);
        from_device(r, all, whole, VALUES);
        CHECK(r, memcmp(all, bytes, VALUES) == 0);
        device_free(r->device, own);
        device_free(r->device, whole);
        free(all);
    }
    free(bytes);
    double values[3] = {me + 0.1, -me, 1e17 * (me % 2 ? 1 : -1)}, sums[3] = {0};
    for (int q = 0; q < size; q++) {
        sums[0] = q ? sums[0] + (q + 0.1) : 0.1;
        sums[2] = q ? sums[2] + 1e17 * (q % 2 ? 1 : -1) : -1e17;
    }
    CHECK(r, comm_all_reduce(&r->comm, COMM_SUM, values, 3, &r->err) == 0);
    CHECK(r, values[0] == sums[0] && values[2] == sums[2]);
    double most = me, least = me;
    CHECK(r, comm_all_reduce(&r->comm, COMM_MAX, &most, 1, &r->err) == 0 && most == size - 1);
    CHECK(r, comm_all_reduce(&r->comm, COMM_MIN, &least, 1, &r->err) == 0 && least == 0);
    char text[16] = "";
    if (me == size - 1) strcpy(text, "from the last");
    CHECK(r, comm_broadcast(&r->comm, text, sizeof text, size - 1, &r->err) == 0);
    CHECK(r, strcmp(text, "from the last") == 0);
    CHECK(r, comm_barrier(&r->comm, &r->err) == 0);
}

static void every_rank_has_what_each_had(void **state)
{
    for (int size = card ? 2 : 1; size <= 4; size++) as_ranks(size, gather_all);
}

struct later {
    double value;
    int order;
};
static int sum_later(struct comm *comm, void *context, struct error *err)
{
    struct later *l = context;
    static _Atomic int counter;
    l->order = ++counter;
    return comm_all_reduce(comm, COMM_SUM, &l->value, 1, err);
}
static void begin_and_end(struct rank *r)
{
    struct later work[3] = {{1, 0}, {2, 0}, {3, 0}};
    struct comm_job jobs[3];
    for (int i = 0; i < 3; i++) {
        jobs[i] = (struct comm_job){.run = sum_later, .context = &work[i]};
        comm_begin(&r->comm, &jobs[i]);
    }
    double direct = 10; /* after those that were begun */
    CHECK(r, comm_all_reduce(&r->comm, COMM_SUM, &direct, 1, &r->err) == 0);
    for (int i = 0; i < 3; i++) CHECK(r, comm_end(&r->comm, &jobs[i], &r->err) == 0);
    CHECK(r, direct == 10 * r->comm.size);
    for (int i = 0; i < 3; i++) CHECK(r, work[i].value == (i + 1) * r->comm.size);
    CHECK(r, work[0].order < work[1].order && work[1].order < work[2].order);
}

static void what_is_begun_is_done_in_order_and_waited_for_later(void **state)
{
    if (!card) as_ranks(1, begin_and_end);
    as_ranks(3, begin_and_end);
}

/* Rank 1 of 3 ends as `how` says; the others return their error. */
static void lose_one(void (*how)(struct comm *), const char *expected)
{
    int shared, status;
    struct error err = {0};
    pid_t pids[3];
    assert_int_equal(comm_local_create(3, &shared, &err), 0);
    for (int r = 0; r < 3; r++) {
        if ((pids[r] = fork()) != 0) continue;
        struct comm comm;
        struct device *device;
        double one = 1;
        alarm(60);
        int code = device_open(&device, "cpu", 0, &err);
        if (!code)
            code = comm_open(&comm, &(struct comm_options){.rank = r, .size = 3, .shared = shared}, device,
                             &err);
        if (!code) code = comm_barrier(&comm, &err);
        if (!code && r == 1) how(&comm);
        if (!code) code = comm_all_reduce(&comm, COMM_SUM, &one, 1, &err);
        if (!mentions(err.what, expected)) code = 99;
        _exit(code);
    }
    for (int r = 0; r < 3; r++) {
        assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
        if (r == 1) continue;
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), EXIT_RANK_LOST);
    }
    close(shared);
}
static void be_killed(struct comm *comm)
{
    (void)comm;
    raise(SIGKILL);
}
static void give_up(struct comm *comm)
{
    comm_abort(comm, EXIT_DISK);
    _exit(EXIT_DISK);
}

static void a_rank_that_is_killed_is_named(void **state) { lose_one(be_killed, "rank 1|all_reduce"); }

static void a_rank_that_fails_ends_the_others(void **state)
{
    lose_one(give_up, ""); /* either may be seen first: that it is gone, or what it said */
}

static void what_ranks_could_not_do_together_is_refused(void **state)
{
    struct comm comm;
    struct device *device;
    struct error err = {0};
    float values[4] = {0};
    int shared;
    assert_int_equal(device_open(&device, "cpu", 0, &err), 0);
    comm_self(&comm, device);
    int64_t falling[] = {0, -4};
    struct comm_sum s = {.send = values, .type = DTYPE_F32, .offsets = falling, .receive = values};
    assert_int_equal(comm_reduce(&comm, &s, &err), EXIT_FAILED);
    s.type = DTYPE_I32;
    s.offsets = (int64_t[]){0, 4};
    assert_int_equal(comm_reduce(&comm, &s, &err), EXIT_FAILED);
    assert_non_null(strstr(err.what, "I32"));
    assert_int_equal(comm_broadcast(&comm, values, sizeof values, 1, &err), EXIT_FAILED);
    assert_non_null(strstr(err.what, "rank 1"));
    comm_close(&comm);
    struct comm_options o = {.rank = 3, .size = 3, .shared = -1};
    assert_int_equal(comm_open(&comm, &o, device, &err), EXIT_FAILED);
    o.rank = 0;
    setenv("MEOPT_MPI_MODULE", "/nowhere/libmeopt_mpi.so", 1);
    assert_int_equal(comm_open(&comm, &o, device, &err), EXIT_FAILED); /* no shared memory: MPI */
    assert_non_null(strstr(err.what, "/nowhere/libmeopt_mpi.so"));
    assert_int_equal(comm_local_create(2, &shared, &err), 0);
    o.shared = shared;
    assert_int_equal(comm_open(&comm, &o, device, &err), EXIT_FAILED); /* memory of two, for three */
    close(shared);
    assert_int_equal(device->use.current_bytes[MEMORY_COMM], 0);
    device_close(device);
}

/* ---- ranks that have cards ---- */

static int gather_later(struct comm *comm, void *context, struct error *err)
{
    return comm_gather(comm, context, (int64_t[]){0, 32, 64}, err);
}

/* The device computes during the collective. Work queued before the collective is sent, work queued after it
 * is not. */
static void compute_meanwhile(struct rank *r)
{
    unsigned char bytes[64] = {0}, *p = on_device(r, bytes, sizeof bytes);
    unsigned char *other = on_device(r, bytes, sizeof bytes);
    for (int turn = 1; turn <= 3; turn++) {
        r->device->ops->fill(r->device, p + 32 * r->comm.rank, 16 * turn + r->comm.rank, 32);
        struct comm_job job = {.run = gather_later, .context = p};
        comm_begin(&r->comm, &job);
        r->device->ops->fill(r->device, other, turn, sizeof bytes);
        from_device(r, bytes, other, sizeof bytes);
        CHECK(r, bytes[0] == turn && bytes[63] == turn);
        CHECK(r, !job.done); /* FAKE_NCCL_DELAY */
        CHECK(r, comm_end(&r->comm, &job, &r->err) == 0);
        from_device(r, bytes, p, sizeof bytes);
        CHECK(r, bytes[0] == 16 * turn && bytes[31] == 16 * turn && bytes[32] == 16 * turn + 1);
    }
    device_free(r->device, p);
    device_free(r->device, other);
}

static void a_device_computes_while_ranks_exchange(void **state)
{
    setenv("FAKE_NCCL_DELAY", "30", 1);
    for (int late = 0; late < 4; late++) { /* a missing event shows as another result, or as waiting */
        char text[16];
        snprintf(text, sizeof text, "%d", late);
        setenv("FAKE_LATE", text, 1);
        as_ranks(2, compute_meanwhile);
    }
    unsetenv("FAKE_LATE");
    unsetenv("FAKE_NCCL_DELAY");
}

static void fail_once(struct rank *r)
{
    double one = 1;
    int code = 0, calls = 0;
    while (!code && calls++ < 5) code = comm_all_reduce(&r->comm, COMM_SUM, &one, 1, &r->err);
    CHECK(r, code == EXIT_RANK_LOST && calls > 1);
    CHECK(r, mentions(r->err.what, "all_reduce|(6)"));
    CHECK(r, comm_barrier(&r->comm, &r->err) == EXIT_RANK_LOST);
}

static void an_error_of_the_library_is_reported(void **state)
{
    setenv("FAKE_NCCL_FAIL", "3", 1);
    as_ranks(2, fail_once);
    unsetenv("FAKE_NCCL_FAIL");
}

/* As when a rank has died: the library waits for ever, the heartbeat does not. */
static void wait_for_nobody(struct rank *r)
{
    pthread_t other;
    double one = 1;
    CHECK(r, pthread_create(&other, NULL, tear_down, r) == 0);
    if (r->comm.rank == 0) {
        CHECK(r, comm_all_reduce(&r->comm, COMM_SUM, &one, 1, &r->err) == EXIT_RANK_LOST);
        CHECK(r, strstr(r->err.what, "all_reduce"));
    }
    pthread_join(other, NULL);
}

static void a_missing_rank_is_waited_for_until_the_limit(void **state) { as_ranks(3, wait_for_nobody); }

/* Ranks in different collectives: one row per difference. */
static const struct difference {
    const char *name, *said;
} differences[] = {
    {"size", "#|rank 0|broadcast|64|rank 1|broadcast|32"},
    {"root", "#|rank 0|broadcast|64|rank 2|broadcast|64|arguments"},
    {"call", "#|rank 0|reduce|1200|rank 1|gather|4096"},
    {"left", "#|rank 0|all_reduce|8|rank 2|all_reduce|8|#"},
    {"parts", "#|rank 0|reduce|1200|rank 1|reduce|1200|arguments"},
    {"library", "#|rank 0|reduce|1200|rank 1|reduce|1200|arguments"},
    {"tree", "#|rank 0|reduce|800|rank 1|reduce|800|arguments"},
    {"tree_sum", "#|rank 0|tree_sum|64|rank 1|tree_sum|128"},
};
enum { DIFFERENCES = sizeof differences / sizeof *differences };
static const struct difference *difference;

static int make_a_different_call(struct rank *r, void *array)
{
    int me = r->comm.rank;
    int64_t offsets[] = {0, 100, 200, 300}, bytes[] = {0, 1024, 2048, 4096};
    double one = 1;
    struct comm_sum sum = {.send = array, .type = DTYPE_F32, .offsets = offsets, .receive = array};
    if (strcmp(difference->name, "size") == 0)
        return comm_broadcast(&r->comm, array, me == 1 ? 32 : 64, 0, &r->err);
    if (strcmp(difference->name, "root") == 0) return comm_broadcast(&r->comm, array, 64, me == 2, &r->err);
    if (strcmp(difference->name, "left") == 0) { /* rank 2 is one call ahead, of the same size */
        r->comm.header.number += me == 2;
        return comm_all_reduce(&r->comm, COMM_SUM, &one, 1, &r->err);
    }
    if (strcmp(difference->name, "call") == 0 && me == 1) return comm_gather(&r->comm, array, bytes, &r->err);
    if (strcmp(difference->name, "parts") == 0 && me == 1) offsets[1] = 99;
    if (strcmp(difference->name, "library") == 0) r->comm.options.library = me == 1;
    if (strcmp(difference->name, "tree") == 0) sum.tree = me == 1;
    if (strcmp(difference->name, "tree_sum") == 0)
        return comm_tree_sum(&r->comm, array, me ? 32 : 16, &r->err);
    return comm_reduce(&r->comm, &sum, &r->err);
}

static void differ(struct rank *r)
{
    char before[4096], after[4096];
    double value = r->comm.rank;
    memset(before, 7 + r->comm.rank, sizeof before);
    bool broadcasts = strstr(difference->said, "broadcast") != NULL;
    void *array = broadcasts ? before : on_device(r, before, sizeof before);
    int code = make_a_different_call(r, array);
    CHECK(r, code == EXIT_RANK_LOST && mentions(r->err.what, difference->said));
    if (broadcasts) memcpy(after, before, sizeof after);
    else from_device(r, after, array, sizeof after);
    memset(before, 7 + r->comm.rank, sizeof before);
    CHECK(r, card || memcmp(before, after, sizeof after) == 0); /* nothing of another rank's */
    if (!broadcasts) device_free(r->device, array);
    CHECK(r, comm_all_reduce(&r->comm, COMM_SUM, &value, 1, &r->err) == EXIT_RANK_LOST);
    CHECK(r, value == r->comm.rank && mentions(r->err.what, difference->said)); /* no further call works */
}

static void ranks_that_differ_are_reported(void **state)
{
    for (int i = 0; i < DIFFERENCES; i++) {
        difference = &differences[i];
        as_ranks(strncmp(difference->name, "tree", 4) == 0 ? 2 : 3, differ);
    }
}

/* As one of three ranks that mpirun has started. */
static int differ_by_mpi(const char *name)
{
    struct rank r = {.options = {.kind = COMM_MPI, .size = 3, .shared = -1}, .work = differ};
    r.options.rank = atoi(getenv("OMPI_COMM_WORLD_RANK"));
    for (int i = 0; i < DIFFERENCES; i++)
        if (strcmp(differences[i].name, name) == 0) difference = &differences[i];
    if (!difference) return 2;
    rank_main(&r);
    if (r.code) fprintf(stderr, "rank %d: %d: %s\n", r.options.rank, r.code, r.err.what);
    return r.code != 0;
}

static void reduce_by_mpi(struct rank *r)
{
    int size = r->comm.size;
    if (comm_adds_by_tree(size)) tree_all(r);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        reduce_one(r, bf16 ? DTYPE_BF16 : DTYPE_F32, 100, size, false);
        reduce_one(r, bf16 ? DTYPE_BF16 : DTYPE_F32, 1001003, (size + 1) / 2, true);
    }
}

/* As one of `size` ranks that mpirun has started. */
static int sums_of_mpi(int size)
{
    struct rank r = {.options = {.kind = COMM_MPI, .size = size, .shared = -1, .library = true},
                     .work = reduce_by_mpi};
    r.options.rank = atoi(getenv("OMPI_COMM_WORLD_RANK"));
    by_library = true;
    rank_main(&r);
    if (r.code) fprintf(stderr, "rank %d: %d: %s\n", r.options.rank, r.code, r.err.what);
    return r.code != 0;
}

/* A heartbeat reads number and call of one moment. */
static atomic_bool reading;
static void *read_on(void *context)
{
    int64_t *torn = context;
    while (reading) {
        struct comm_status status = comm_status();
        *torn += status.number > 2 && (status.call == COMM_ALL_REDUCE) != (status.number % 2 == 1);
    }
    return NULL;
}

static void what_a_heartbeat_reads_is_of_one_collective(void **state)
{
    struct comm comm = {.size = 2};
    struct error err;
    pthread_t reader;
    int64_t torn = 0;
    reading = true;
    for (int i = 0; i < 2; i++) {
        comm_enter(&comm, COMM_ALL_REDUCE, 8, 0, &err);
        comm_enter(&comm, COMM_GATHER, 8, 0, &err);
    }
    assert_int_equal(pthread_create(&reader, NULL, read_on, &torn), 0);
    for (int i = 0; i < 2000000; i++) comm_enter(&comm, i % 2 ? COMM_GATHER : COMM_ALL_REDUCE, 8, 0, &err);
    reading = false;
    pthread_join(reader, NULL);
    assert_int_equal(torn, 0);
}

static void sum_through_host(struct rank *r)
{
    CHECK(r, strcmp(r->comm.ops->name, "local") == 0 && r->comm.overlaps == r->device->host_memory);
    reduce_one(r, DTYPE_BF16, 100, r->comm.size, true);
}

static void with_a_rank_on_the_processor_the_host_carries(void **state)
{
    processors_from = 2;
    as_ranks(3, sum_through_host);
    processors_from = MOST;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "differ") == 0) return differ_by_mpi(argv[2]);
    if (argc == 3 && strcmp(argv[1], "sums") == 0) return sums_of_mpi(atoi(argv[2]));
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_rank_that_is_killed_is_named),
                                       cmocka_unit_test(a_rank_that_fails_ends_the_others),
                                       cmocka_unit_test(a_sum_is_made_in_rank_order_in_fp32),
                                       cmocka_unit_test(a_tree_of_sums_has_its_order_whoever_adds),
                                       cmocka_unit_test(a_library_adds_in_its_own_order),
                                       cmocka_unit_test(every_rank_has_what_each_had),
                                       cmocka_unit_test(what_is_begun_is_done_in_order_and_waited_for_later),
                                       cmocka_unit_test(ranks_that_differ_are_reported),
                                       cmocka_unit_test(what_a_heartbeat_reads_is_of_one_collective),
                                       cmocka_unit_test(what_ranks_could_not_do_together_is_refused)};
    const struct CMUnitTest of_cards[] = {
        cmocka_unit_test(a_sum_is_made_in_rank_order_in_fp32),
        cmocka_unit_test(a_tree_of_sums_has_its_order_whoever_adds),
        cmocka_unit_test(a_library_adds_in_its_own_order),
        cmocka_unit_test(every_rank_has_what_each_had),
        cmocka_unit_test(what_is_begun_is_done_in_order_and_waited_for_later),
        cmocka_unit_test(a_device_computes_while_ranks_exchange),
        cmocka_unit_test(an_error_of_the_library_is_reported),
        cmocka_unit_test(a_missing_rank_is_waited_for_until_the_limit),
        cmocka_unit_test(ranks_that_differ_are_reported),
        cmocka_unit_test(with_a_rank_on_the_processor_the_host_carries)};
    if ((card = getenv("MEOPT_TEST_DEVICE")) == NULL) return cmocka_run_group_tests(tests, NULL, NULL);
    return cmocka_run_group_tests(of_cards, NULL, NULL);
}
