/* Ranks as one: what every back end promises (core/dist/dist.h). The ranks here are threads, each with a
 * device of its own, which share memory as processes do; those that die are processes. */
#include "core/dist/dist.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { MOST = 8, VALUES = 3000017 }; /* more than a window has room for */

struct rank {
    struct dist dist;
    struct dist_options options;
    struct device *device;
    int code;
    struct error err;
    void (*work)(struct rank *);
};

static void *rank_main(void *context)
{
    struct rank *r = context;
    r->code = device_open(&r->device, "cpu", 0, &r->err);
    if (!r->code) r->code = dist_open(&r->dist, &r->options, r->device, &r->err);
    if (!r->code) {
        r->work(r);
        dist_close(&r->dist);
    }
    for (int c = 0; c < MEMORY_CLASS_COUNT && !r->code; c++)
        if (r->device->use.current_bytes[c]) r->code = -1;
    device_close(r->device);
    return NULL;
}

static void as_ranks(int size, void (*work)(struct rank *))
{
    static struct rank ranks[MOST];
    pthread_t threads[MOST];
    int shared = -1;
    struct error err = {0};
    if (size > 1 && dist_local_create(size, &shared, &err)) fail_msg("%s", err.what);
    for (int r = 0; r < size; r++) {
        ranks[r] = (struct rank){.options = {.rank = r, .size = size, .shared = shared}, .work = work};
        assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &ranks[r]), 0);
    }
    for (int r = 0; r < size; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < size; r++)
        if (ranks[r].code) fail_msg("rank %d of %d: %d: %s", r, size, ranks[r].code, ranks[r].err.what);
    if (shared >= 0) close(shared);
}

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

#define CHECK(rank, condition)                                                                               \
    do                                                                                                       \
        if (!(condition) && !(rank)->code) {                                                                 \
            (rank)->code = -2;                                                                               \
            error_set(&(rank)->err, EXIT_FAILED, NULL, "line %d: not %s (%s)", __LINE__, #condition,         \
                      (rank)->err.what);                                                                     \
        }                                                                                                    \
    while (0)

static void unequal_parts(int size, int64_t count, int64_t *offsets)
{
    offsets[0] = 0;
    for (int q = 1; q < size; q++) offsets[q] = q == 1 ? 7 : count * q / size;
    offsets[size] = count;
}

static void reduce_one(struct rank *r, enum dtype type, int64_t count, int givers, bool before)
{
    int size = r->dist.size, first = before ? 100 : 0;
    int64_t offsets[MOST + 1];
    unequal_parts(size, count, offsets);
    int64_t begin = offsets[r->dist.rank], own = offsets[r->dist.rank + 1] - begin;
    void *send = malloc((size_t)count * 4);
    float *sum = malloc((size_t)own * 4 + 4);
    for (int64_t i = 0; i < count; i++) {
        float v = value_of(r->dist.rank, i);
        if (type == DTYPE_F32) ((float *)send)[i] = v;
        else ((uint16_t *)send)[i] = bf16_of(v);
    }
    for (int64_t i = 0; i < own; i++) sum[i] = value_of(first, begin + i);
    struct dist_sum s = {.send = r->dist.rank < givers ? send : NULL,
                         .type = type,
                         .offsets = offsets,
                         .givers = givers,
                         .before = before ? sum : NULL,
                         .receive = sum};
    CHECK(r, dist_reduce(&r->dist, &s, &r->err) == 0);
    int64_t wrong = 0;
    for (int64_t i = 0; i < own; i++) {
        float expected = before ? value_of(first, begin + i) : 0.0f;
        for (int q = 0; q < givers; q++) {
            float v = value_of(q, begin + i);
            expected += type == DTYPE_F32 ? v : of_bf16(bf16_of(v));
        }
        wrong += memcmp(&expected, &sum[i], 4) != 0;
    }
    CHECK(r, wrong == 0);
    free(send);
    free(sum);
}

static void reduce_all(struct rank *r)
{
    int64_t counts[] = {100, VALUES};
    for (int c = 0; c < 2; c++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            enum dtype type = bf16 ? DTYPE_BF16 : DTYPE_F32;
            reduce_one(r, type, counts[c], r->dist.size, false);
            if (c == 0 || bf16) reduce_one(r, type, counts[c], (r->dist.size + 1) / 2, true);
        }
}

static void a_sum_is_made_in_rank_order_in_fp32(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 3, 4, 8};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) as_ranks(sizes[s], reduce_all);
}

static void gather_all(struct rank *r)
{
    int size = r->dist.size, me = r->dist.rank;
    int64_t offsets[MOST + 1];
    unequal_parts(size, VALUES, offsets);
    unsigned char *bytes = calloc(VALUES, 1);
    for (int64_t i = offsets[me]; i < offsets[me + 1]; i++) bytes[i] = (unsigned char)(i * 7 + me + 1);
    CHECK(r, dist_gather(&r->dist, bytes, offsets, &r->err) == 0);
    int64_t wrong = 0;
    for (int q = 0; q < size; q++)
        for (int64_t i = offsets[q]; i < offsets[q + 1]; i++)
            wrong += bytes[i] != (unsigned char)(i * 7 + q + 1);
    CHECK(r, wrong == 0);
    free(bytes);
    double values[3] = {me + 0.1, -me, 1e17 * (me % 2 ? 1 : -1)}, sums[3] = {0};
    for (int q = 0; q < size; q++) {
        sums[0] = q ? sums[0] + (q + 0.1) : 0.1;
        sums[2] = q ? sums[2] + 1e17 * (q % 2 ? 1 : -1) : -1e17;
    }
    CHECK(r, dist_all_reduce(&r->dist, DIST_SUM, values, 3, &r->err) == 0);
    CHECK(r, values[0] == sums[0] && values[2] == sums[2]);
    double most = me, least = me;
    CHECK(r, dist_all_reduce(&r->dist, DIST_MAX, &most, 1, &r->err) == 0 && most == size - 1);
    CHECK(r, dist_all_reduce(&r->dist, DIST_MIN, &least, 1, &r->err) == 0 && least == 0);
    char text[16] = "";
    if (me == size - 1) strcpy(text, "from the last");
    CHECK(r, dist_broadcast(&r->dist, text, sizeof text, size - 1, &r->err) == 0);
    CHECK(r, strcmp(text, "from the last") == 0);
    CHECK(r, dist_barrier(&r->dist, &r->err) == 0);
}

static void every_rank_has_what_each_had(void **state)
{
    (void)state;
    for (int size = 1; size <= 4; size++) as_ranks(size, gather_all);
}

struct later {
    double value;
    int order;
};
static int sum_later(struct dist *dist, void *context, struct error *err)
{
    struct later *l = context;
    static _Atomic int counter;
    l->order = ++counter;
    return dist_all_reduce(dist, DIST_SUM, &l->value, 1, err);
}
static void begin_and_end(struct rank *r)
{
    struct later work[3] = {{1, 0}, {2, 0}, {3, 0}};
    struct dist_job jobs[3];
    for (int i = 0; i < 3; i++) {
        jobs[i] = (struct dist_job){.run = sum_later, .context = &work[i]};
        dist_begin(&r->dist, &jobs[i]);
    }
    double direct = 10; /* behind those that were begun */
    CHECK(r, dist_all_reduce(&r->dist, DIST_SUM, &direct, 1, &r->err) == 0);
    for (int i = 0; i < 3; i++) CHECK(r, dist_end(&r->dist, &jobs[i], &r->err) == 0);
    CHECK(r, direct == 10 * r->dist.size);
    for (int i = 0; i < 3; i++) CHECK(r, work[i].value == (i + 1) * r->dist.size);
    CHECK(r, work[0].order < work[1].order && work[1].order < work[2].order);
}

static void what_is_begun_is_done_in_order_and_waited_for_later(void **state)
{
    (void)state;
    as_ranks(1, begin_and_end);
    as_ranks(3, begin_and_end);
}

/* Rank 1 of 3 ends as `how` says, the others tell what they hear. */
static void lose_one(void (*how)(struct dist *), const char *expected)
{
    int shared, status;
    struct error err = {0};
    pid_t pids[3];
    assert_int_equal(dist_local_create(3, &shared, &err), 0);
    for (int r = 0; r < 3; r++) {
        if ((pids[r] = fork()) != 0) continue;
        struct dist dist;
        struct device *device;
        double one = 1;
        alarm(60);
        int code = device_open(&device, "cpu", 0, &err);
        if (!code)
            code = dist_open(&dist, &(struct dist_options){.rank = r, .size = 3, .shared = shared}, device,
                             &err);
        if (!code) code = dist_barrier(&dist, &err);
        if (!code && r == 1) how(&dist);
        if (!code) code = dist_all_reduce(&dist, DIST_SUM, &one, 1, &err);
        if (!strstr(err.what, expected)) code = 99;
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
static void be_killed(struct dist *dist)
{
    (void)dist;
    raise(SIGKILL);
}
static void give_up(struct dist *dist)
{
    dist_abort(dist, EXIT_DISK);
    _exit(EXIT_DISK);
}

static void a_rank_that_is_killed_is_named(void **state)
{
    (void)state;
    lose_one(be_killed, "rank 1 is gone, and is missing in all_reduce");
}

static void a_rank_that_fails_ends_the_others(void **state)
{
    (void)state;
    lose_one(give_up, ""); /* either may be seen first: that it is gone, or what it said */
}

static void what_ranks_could_not_do_together_is_refused(void **state)
{
    struct dist dist;
    struct device *device;
    struct error err = {0};
    float values[4] = {0};
    int shared;
    (void)state;
    assert_int_equal(device_open(&device, "cpu", 0, &err), 0);
    dist_self(&dist, device);
    int64_t falling[] = {0, -4};
    struct dist_sum s = {.send = values, .type = DTYPE_F32, .offsets = falling, .receive = values};
    assert_int_equal(dist_reduce(&dist, &s, &err), EXIT_FAILED);
    s.type = DTYPE_I32;
    s.offsets = (int64_t[]){0, 4};
    assert_int_equal(dist_reduce(&dist, &s, &err), EXIT_FAILED);
    assert_non_null(strstr(err.what, "I32"));
    assert_int_equal(dist_broadcast(&dist, values, sizeof values, 1, &err), EXIT_FAILED);
    assert_non_null(strstr(err.what, "rank 1 of 1"));
    dist_close(&dist);
    struct dist_options o = {.rank = 3, .size = 3, .shared = -1};
    assert_int_equal(dist_open(&dist, &o, device, &err), EXIT_FAILED);
    o.rank = 0;
    setenv("MEOPT_MPI_MODULE", "/nowhere/libmeopt_mpi.so", 1);
    assert_int_equal(dist_open(&dist, &o, device, &err), EXIT_FAILED); /* no shared memory: MPI */
    assert_non_null(strstr(err.what, "/nowhere/libmeopt_mpi.so"));
    assert_int_equal(dist_local_create(2, &shared, &err), 0);
    o.shared = shared;
    assert_int_equal(dist_open(&dist, &o, device, &err), EXIT_FAILED); /* memory of two, for three */
    close(shared);
    assert_int_equal(device->use.current_bytes[MEMORY_COMM], 0);
    device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_rank_that_is_killed_is_named),
                                       cmocka_unit_test(a_rank_that_fails_ends_the_others),
                                       cmocka_unit_test(a_sum_is_made_in_rank_order_in_fp32),
                                       cmocka_unit_test(every_rank_has_what_each_had),
                                       cmocka_unit_test(what_is_begun_is_done_in_order_and_waited_for_later),
                                       cmocka_unit_test(what_ranks_could_not_do_together_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
