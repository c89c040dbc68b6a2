/* Messages between two ranks and groups of ranks, with every back end (core/comm/comm.h). Ranks as in dist.c;
 * "as LIST" as the first argument: one of the ranks that mpirun has started. */
#include "core/base/clock.h"
#include "tests/ranks/dist.h"

enum { MESSAGE = 3000017, GROUPED = 6 };

static int send_one(struct comm *comm, const void *p, size_t bytes, int peer, int tag, struct error *err)
{
    return comm_transfer(comm, &(struct comm_message){(void *)(uintptr_t)p, bytes, peer, tag, false}, 1, err);
}

static int receive_one(struct comm *comm, void *p, size_t bytes, int peer, int tag, struct error *err)
{
    return comm_transfer(comm, &(struct comm_message){p, bytes, peer, tag, true}, 1, err);
}

static unsigned char byte_of(int from, int tag, int64_t i)
{
    return (unsigned char)(i * 31 + from * 7 + tag + 1);
}

/* An array of the device with the bytes of a message; tag -1: zeros. */
static void *message_of(struct rank *r, int from, int tag, int64_t bytes)
{
    unsigned char *host = calloc((size_t)bytes, 1);
    for (int64_t i = 0; i < bytes && tag >= 0; i++) host[i] = byte_of(from, tag, i);
    void *p = on_device(r, host, (size_t)bytes);
    free(host);
    return p;
}
static bool is_message(struct rank *r, const void *p, int from, int tag, int64_t bytes)
{
    unsigned char *host = malloc((size_t)bytes);
    int64_t wrong = 0;
    from_device(r, host, p, (size_t)bytes);
    for (int64_t i = 0; i < bytes; i++) wrong += host[i] != byte_of(from, tag, i);
    free(host);
    return wrong == 0;
}

/* Each rank sends to the next one and receives from the one before, all at once. */
static void around(struct rank *r)
{
    static const int64_t sizes[] = {1, 4099, MESSAGE};
    int me = r->comm.rank, n = r->comm.size, next = (me + 1) % n, before = (me + n - 1) % n;
    for (int s = 0; s < 3; s++) {
        void *out = message_of(r, me, s, sizes[s]), *in = message_of(r, 0, -1, sizes[s]);
        struct comm_message both[] = {{out, (size_t)sizes[s], next, s, false},
                                      {in, (size_t)sizes[s], before, s, true}};
        if (me % 2) { /* in any order, where they go in different directions */
            struct comm_message first = both[0];
            both[0] = both[1];
            both[1] = first;
        }
        CHECK(r, comm_transfer(&r->comm, both, 2, &r->err) == 0);
        CHECK(r, is_message(r, in, before, s, sizes[s]));
        device_free(r->device, out);
        device_free(r->device, in);
    }
    int64_t number = r->comm.header.number;
    CHECK(r, comm_barrier(&r->comm, &r->err) == 0 && (n == 1 || r->comm.header.number == number + 1));
}

static void neighbours_exchange_at_once(void **state)
{
    for (int size = card ? 2 : 1; size <= 4; size++) as_ranks(size, around);
}

/* ---- a pipeline of jobs ---- */

struct step {
    struct comm_message messages[2];
    int count;
};
static int step_run(struct comm *comm, void *context, struct error *err)
{
    const struct step *s = context;
    return comm_transfer(comm, s->messages, s->count, err);
}

/* Micro-batches go from rank to rank: a stage receives one while it sends the one before. */
static void pass_on(struct rank *r)
{
    enum { MICRO = 6, BYTES = 70001 };
    int me = r->comm.rank, last = r->comm.size - 1;
    void *p[MICRO];
    struct step steps[MICRO + 1];
    struct comm_job jobs[MICRO + 1];
    for (int j = 0; j < MICRO; j++) p[j] = message_of(r, 0, me ? -1 : j, BYTES);
    for (int j = 0; j <= MICRO; j++) {
        steps[j].count = 0;
        if (me && j < MICRO)
            steps[j].messages[steps[j].count++] = (struct comm_message){p[j], BYTES, me - 1, j, true};
        if (me < last && j)
            steps[j].messages[steps[j].count++] =
                (struct comm_message){p[j - 1], BYTES, me + 1, j - 1, false};
        jobs[j] = (struct comm_job){.run = step_run, .context = &steps[j]};
        comm_begin(&r->comm, &jobs[j]);
    }
    for (int j = 0; j <= MICRO; j++) CHECK(r, comm_end(&r->comm, &jobs[j], &r->err) == 0);
    for (int j = 0; j < MICRO; j++) {
        CHECK(r, is_message(r, p[j], 0, j, BYTES));
        device_free(r->device, p[j]);
    }
}

static void a_stage_receives_while_it_sends(void **state)
{
    for (int size = 2; size <= 4; size++) as_ranks(size, pass_on);
}

/* ---- groups ---- */

static void check_group(struct rank *r, struct comm *part, int first, int stride)
{
    int n = part->size, me = part->rank;
    float values[GROUPED * 4], sums[4] = {0};
    int64_t offsets[GROUPED + 1];
    double least = 100.0 + r->comm.rank, sum = r->comm.rank;
    for (int q = 0; q < n; q++) CHECK(r, comm_world_rank(part, q) == first + q * stride);
    for (int q = 0; q <= n; q++) offsets[q] = 4 * q;
    for (int i = 0; i < 4 * n; i++) values[i] = 1.0f / (float)(1 + i + 10 * r->comm.rank);
    void *given = on_device(r, values, sizeof(float) * 4 * (size_t)n), *own = on_device(r, sums, sizeof sums);
    struct comm_sum s = {.send = given, .type = DTYPE_F32, .offsets = offsets, .receive = own};
    CHECK(r, comm_reduce(part, &s, &r->err) == 0);
    from_device(r, sums, own, sizeof sums);
    for (int i = 0; i < 4; i++) {
        float expected = 0;
        for (int q = 0; q < n; q++) expected += 1.0f / (float)(1 + 4 * me + i + 10 * (first + q * stride));
        CHECK(r, memcmp(&expected, &sums[i], sizeof expected) == 0);
    }
    int64_t bytes[GROUPED + 1] = {0};
    for (int q = 0; q <= n; q++) bytes[q] = 1000 * q;
    void *all = message_of(r, 0, -1, sizeof bytes / sizeof *bytes * 1000),
         *mine = message_of(r, first, me, 1000);
    if (n > 1) CHECK(r, comm_gather_from(part, mine, all, bytes, &r->err) == 0);
    for (int q = 0; q < n && n > 1; q++) CHECK(r, is_message(r, (char *)all + bytes[q], first, q, 1000));
    char text[8] = "";
    if (me == n - 1) strcpy(text, "last");
    CHECK(r, comm_broadcast(part, text, sizeof text, n - 1, &r->err) == 0 && strcmp(text, "last") == 0);
    CHECK(r, comm_all_reduce(part, COMM_MIN, &least, 1, &r->err) == 0 && least == 100.0 + first);
    CHECK(r, comm_all_reduce(part, COMM_SUM, &sum, 1, &r->err) == 0);
    CHECK(r, sum == first * n + stride * n * (n - 1) / 2);
    CHECK(r, comm_barrier(part, &r->err) == 0);
    struct error failed = {0}, agreed = {0};
    error_set(&failed, EXIT_DISK, NULL, "no room");
    int code = comm_agree(part, me == n - 1 ? EXIT_DISK : 0, &failed, "cannot", &agreed);
    CHECK(r, code == EXIT_DISK);
    char name[32];
    snprintf(name, sizeof name, "rank %d ", first + (n - 1) * stride);
    CHECK(r, n == 1 || mentions(agreed.what, name));
    device_free(r->device, given);
    device_free(r->device, own);
    device_free(r->device, all);
    device_free(r->device, mine);
}

/* Stages within replicas, as a pipeline of 2 has them: both kinds of groups and all ranks. */
static void in_groups(struct rank *r)
{
    int n = r->comm.size, me = r->comm.rank, pipeline[MOST], data[MOST], odd[MOST];
    struct comm stages, replicas, rest;
    for (int q = 0; q < n; q++) pipeline[q] = q / 2, data[q] = q % 2, odd[q] = q > 0;
    CHECK(r, comm_split(&r->comm, pipeline, "pipeline", &stages, &r->err) == 0);
    CHECK(r, comm_split(&r->comm, data, "data", &replicas, &r->err) == 0);
    CHECK(r, comm_split(&r->comm, odd, "rest", &rest, &r->err) == 0);
    CHECK(r, comm_split(&stages, data, "part of a part", &rest, &r->err) == EXIT_FAILED);
    CHECK(r, stages.size == (me / 2 * 2 + 1 < n ? 2 : 1) && rest.size == (me ? n - 1 : 1));
    for (int turn = 0; turn < 3 && !r->code; turn++) {
        CHECK(r, comm_barrier(&r->comm, &r->err) == 0);
        check_group(r, &stages, me / 2 * 2, 1);
        check_group(r, &replicas, me % 2, 2);
        check_group(r, &rest, me > 0, 1);
        if (stages.size == 2) {
            void *p = message_of(r, me, stages.rank ? -1 : turn, 5001);
            if (stages.rank == 0) CHECK(r, send_one(&stages, p, 5001, 1, turn, &r->err) == 0);
            else CHECK(r, receive_one(&stages, p, 5001, 0, turn, &r->err) == 0);
            CHECK(r, is_message(r, p, me / 2 * 2, turn, 5001));
            device_free(r->device, p);
        }
        CHECK(r, comm_reserve(turn ? &r->comm : &replicas, 5000 << turn, &r->err) == 0);
    }
    comm_close(&rest);
    comm_close(&replicas);
    comm_close(&stages);
}

static void groups_and_all_ranks_call_by_turns(void **state)
{
    as_ranks(2, in_groups);
    as_ranks(GROUPED, in_groups);
    if (!card) return;
    setenv("FAKE_NCCL_VERSION", "21400", 1); /* without ncclCommSplit */
    as_ranks(4, in_groups);
    unsetenv("FAKE_NCCL_VERSION");
}

/* ---- ends that differ ---- */

static const struct difference {
    const char *name, *said;
    size_t bytes[2];
    int tags[2];
    bool sends[2]; /* ranks 0 and 1 */
} differences[] = {
    {"size", "rank 0|send|64|tag 3|#2|rank 1|receive|32|tag 3|#2", {64, 32}, {3, 3}, {true, false}},
    {"tag", "rank 0|send|64|tag 3|rank 1|receive|64|tag 4", {64, 64}, {3, 4}, {true, false}},
    {"both", "rank 0|send|64|tag 3|rank 1|send|64|tag 3", {64, 64}, {3, 3}, {true, true}},
    {"neither", "rank 0|receive|64|rank 1|receive|64", {64, 64}, {3, 3}, {false, false}},
    {"number", "rank 0|send|64|#3|rank 1|receive|64|#2", {64, 64}, {3, 3}, {true, false}},
    {"group", "rank 0|send|64|rank 1|receive|64|tag 3|pipeline 0", {64, 64}, {3, 3}, {true, false}},
};
enum { DIFFERENCES = sizeof differences / sizeof *differences };
static const struct difference *difference;

static void ends_differ(struct rank *r)
{
    const struct difference *d = difference;
    int me = r->comm.rank, colors[MOST] = {0};
    double one = 1;
    struct comm part, *comm = &r->comm;
    void *p = message_of(r, me, 0, 64), *early = message_of(r, me, 0, 64);
    CHECK(r, comm_split(&r->comm, colors, "pipeline", &part, &r->err) == 0);
    if (me == 0) CHECK(r, send_one(comm, early, 64, 1, 0, &r->err) == 0);
    if (me == 1) CHECK(r, receive_one(comm, early, 64, 0, 0, &r->err) == 0);
    if (me < 2) {
        if (strcmp(d->name, "group") == 0 && me == 1) comm = &part;
        if (strcmp(d->name, "number") == 0 && me == 0) r->comm.met[1]++;
        int code = (d->sends[me] ? send_one(comm, p, d->bytes[me], 1 - me, d->tags[me], &r->err)
                                 : receive_one(comm, p, d->bytes[me], 1 - me, d->tags[me], &r->err));
        CHECK(r, code == EXIT_RANK_LOST && mentions(r->err.what, d->said));
        if (!card) CHECK(r, is_message(r, p, me, 0, 64)); /* nothing of the other's */
        CHECK(r, comm_all_reduce(&r->comm, COMM_SUM, &one, 1, &r->err) == EXIT_RANK_LOST && one == 1);
        CHECK(r, comm_barrier(&part, &r->err) == EXIT_RANK_LOST && mentions(r->err.what, d->said));
    }
    device_free(r->device, p);
    device_free(r->device, early);
    comm_close(&part);
}

static void ends_that_differ_are_reported(void **state)
{
    for (int i = 0; i < DIFFERENCES; i++) {
        difference = &differences[i];
        as_ranks(2, ends_differ);
    }
}

static void two_orders(struct rank *r)
{
    int me = r->comm.rank;
    void *p[2] = {message_of(r, me, 0, 64), message_of(r, me, 1, 64)};
    struct comm_message messages[2];
    for (int i = 0; i < 2; i++) messages[i] = (struct comm_message){p[i ^ me], 64, 1 - me, i ^ me, me == 1};
    CHECK(r, comm_transfer(&r->comm, messages, 2, &r->err) == EXIT_RANK_LOST);
    CHECK(r, mentions(r->err.what, "rank 0|send|128|tag 0|rank 1|receive|128|tag 1"));
    for (int i = 0; i < 2; i++) device_free(r->device, p[i]);
}

static void messages_in_another_order_are_reported(void **state) { as_ranks(2, two_orders); }

static void colors_differ(struct rank *r)
{
    int colors[MOST] = {0, r->comm.rank, 1};
    struct comm part;
    CHECK(r, comm_split(&r->comm, colors, "data", &part, &r->err) == EXIT_RANK_LOST);
    CHECK(r, mentions(r->err.what, "rank 0|split|rank 1|split|arguments"));
}

static void groups_that_differ_are_reported(void **state) { as_ranks(3, colors_differ); }

/* ---- lost ranks ---- */

/* The peer never comes: a rank waits until the run is ended. */
static void wait_for_nobody(struct rank *r)
{
    pthread_t other;
    CHECK(r, pthread_create(&other, NULL, tear_down, r) == 0);
    if (r->comm.rank == 0) {
        void *p = message_of(r, 0, 0, 64);
        CHECK(r, receive_one(&r->comm, p, 64, 1, 0, &r->err) == EXIT_RANK_LOST);
        CHECK(r, mentions(r->err.what, "receive 1"));
        device_free(r->device, p);
    }
    pthread_join(other, NULL);
}

static void a_missing_peer_is_waited_for_until_the_limit(void **state) { as_ranks(2, wait_for_nobody); }

/* Rank 1 of 3 is killed. Rank 0 waits for its message, rank 2 in a collective of their group. */
static int live_on(int rank, int shared)
{
    struct comm comm, part;
    struct device *device;
    struct error err = {0};
    int colors[] = {0, 1, 1};
    char bytes[64];
    double one = 1;
    if (device_open(&device, "cpu", 0, &err) ||
        comm_open(&comm, &(struct comm_options){.rank = rank, .size = 3, .shared = shared}, device, &err) ||
        comm_split(&comm, colors, "data", &part, &err))
        return 98;
    if (rank == 1) raise(SIGKILL);
    int code = rank == 0 ? receive_one(&comm, bytes, sizeof bytes, 1, 0, &err)
                         : comm_all_reduce(&part, COMM_SUM, &one, 1, &err);
    return mentions(err.what, rank ? "rank 1|all_reduce 1|data 1" : "rank 1|receive 1") ? code : 99;
}

static void a_peer_that_is_killed_is_named(void **state)
{
    int shared, status;
    struct error err = {0};
    pid_t pids[3];
    assert_int_equal(comm_local_create(3, &shared, &err), 0);
    for (int r = 0; r < 3; r++) {
        if ((pids[r] = fork()) != 0) continue;
        alarm(60);
        _exit(live_on(r, shared));
    }
    for (int r = 0; r < 3; r++) {
        assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
        if (r == 1) continue;
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), EXIT_RANK_LOST);
    }
    close(shared);
}

/* ---- one rank, dry ranks, status ---- */

static void one_rank_receives_what_it_sends(void **state)
{
    struct comm comm, part;
    struct device *device;
    struct error err = {0};
    char from[8] = "message", to[8] = "";
    int color = 0;
    assert_int_equal(device_open(&device, "cpu", 0, &err), 0);
    comm_self(&comm, device);
    assert_int_equal(comm_split(&comm, &color, "pipeline", &part, &err), 0);
    assert_int_equal(part.size, 1);
    struct comm_message messages[] = {{to, 8, 0, 5, true}, {from, 8, 0, 5, false}};
    assert_int_equal(comm_transfer(&part, messages, 2, &err), 0);
    assert_string_equal(to, "message");
    messages[0].tag = 6;
    assert_int_equal(comm_transfer(&part, messages, 2, &err), EXIT_FAILED);
    assert_true(mentions(err.what, "rank 0|8 bytes|tag 5|8|tag 6"));
    assert_int_equal(send_one(&comm, from, 8, 1, 0, &err), EXIT_FAILED);
    assert_int_equal(send_one(&comm, from, 0, 0, 0, &err), EXIT_FAILED);
    comm_close(&part);
    comm_close(&comm);
    device_close(device);
}

static void dry_ranks_count_the_same_memory(void **state)
{
    struct comm comm, part;
    struct device *device;
    struct error err = {0};
    int colors[] = {0, 1, 0, 1};
    char bytes[8];
    assert_int_equal(device_open(&device, "dry", 0, &err), 0);
    assert_int_equal(comm_dry(&comm, 3, 4, device, &err), 0);
    assert_int_equal(comm_split(&comm, colors, "data", &part, &err), 0);
    assert_int_equal(part.rank, 1);
    assert_int_equal(comm_world_rank(&part, 0), 1);
    assert_int_equal(comm_reserve(&part, 1 << 20, &err), 0);
    assert_true(device->use.current_bytes[MEMORY_COMM] >= 4 << 20);
    assert_int_equal(send_one(&part, bytes, sizeof bytes, 0, 0, &err), 0);
    comm_close(&part);
    comm_close(&comm);
    assert_int_equal(device->use.current_bytes[MEMORY_COMM], 0);
    device_close(device);
}

static void a_heartbeat_reads_call_peer_and_group(void **state)
{
    struct error err;
    struct comm whole = {.size = 4}, part = {.whole = &whole, .size = 2, .group = 3, .name = "data 1"};
    struct comm_message message = {.bytes = 8, .peer = 2, .receive = true};
    struct comm_exchange e = {.comm = &part, .messages = &message, .count = 1, .peer_count = 1};
    e.peers[0] = (struct comm_peer){.rank = 2, .own = {.number = 9}};
    comm_name_group(&part);
    comm_enter(&part, COMM_GATHER, 8, 0, &err);
    struct comm_status s = comm_status();
    assert_true(s.inside && s.number == 1 && s.call == COMM_GATHER && s.peer == -1);
    assert_string_equal(s.group, "data 1");
    comm_leave(&part, 0, &err);
    comm_enter_messages(&e, &err);
    s = comm_status();
    assert_true(s.inside && s.number == 9 && s.call == COMM_RECEIVE && s.peer == 2);
    comm_leave_messages(&e, 0, &err);
    comm_enter(&whole, COMM_BARRIER, 0, 0, &err);
    s = comm_status();
    assert_true(s.inside && s.number == 1 && s.call == COMM_BARRIER && s.peer == -1);
    assert_string_equal(s.group, "");
}

/* ---- bytes per rank ---- */

enum { FOLDS = 50, SUMS = 4, LARGE = 1 << 20, LITTLE = 600 }; /* LITTLE: most bytes of headers per call */
static double fold_seconds;

static void fold_sums(void *context, const void *all, void *result)
{
    const double(*sums)[SUMS] = all;
    double sum = 0;
    for (int q = 0; q < *(int *)context; q++) sum = sum + sums[q][0];
    *(double *)result = sum;
}

static void send_little(struct rank *r)
{
    int n = r->comm.size, me = r->comm.rank;
    double own[SUMS] = {1.0 / (3 + me)}, sum = 0, expected = 0;
    struct comm_fold fold = {own, sizeof own, fold_sums, &n, &sum, sizeof sum};
    for (int q = 0; q < n; q++) expected += 1.0 / (3 + q);
    CHECK(r, comm_barrier(&r->comm, &r->err) == 0);
    int64_t sent = r->comm.sent, received = r->comm.received;
    double begin = clock_seconds();
    for (int i = 0; i < FOLDS; i++) {
        sum = 0;
        CHECK(r, comm_fold(&r->comm, &fold, &r->err) == 0 && sum == expected);
    }
    if (!me) fold_seconds = (clock_seconds() - begin) / FOLDS;
    sent = r->comm.sent - sent;
    received = r->comm.received - received;
    CHECK(r, sent <= FOLDS * (int64_t)(sizeof own + sizeof sum + LITTLE));
    CHECK(r, me == 0 || received <= FOLDS * (int64_t)(sizeof sum + LITTLE));
    CHECK(r, me || received <= FOLDS * ((n - 1) * (int64_t)sizeof own + LITTLE)); /* those of all */
    char *p = calloc(LARGE, 1);
    if (me == n - 1) memset(p, 7, LARGE);
    sent = r->comm.sent, received = r->comm.received;
    CHECK(r, comm_broadcast(&r->comm, p, LARGE, n - 1, &r->err) == 0 && p[0] == 7 && p[LARGE - 1] == 7);
    CHECK(r, r->comm.sent - sent <= LITTLE + (me == n - 1 ? LARGE : 0));
    CHECK(r, r->comm.received - received <= LITTLE + (me == n - 1 ? 0 : LARGE));
    free(p);
}

static void losses_and_broadcasts_take_the_same_bytes_of_each_rank(void **state)
{
    for (int size = 2; size <= (card ? MOST : MANY); size *= card ? 4 : 2) {
        as_ranks(size, send_little);
        print_message("%d ranks: %.3f ms per fold\n", size, 1e3 * fold_seconds);
    }
}

/* ---- as one of the ranks that mpirun has started ---- */

static int by_mpi(const char *name)
{
    static const struct {
        const char *name;
        void (*work)(struct rank *);
    } works[] = {{"around", around},
                 {"pass_on", pass_on},
                 {"groups", in_groups},
                 {"order", two_orders},
                 {"little", send_little}};
    struct rank r = {.options = {.kind = COMM_MPI, .shared = -1}, .work = ends_differ};
    r.options.rank = atoi(getenv("OMPI_COMM_WORLD_RANK"));
    r.options.size = atoi(getenv("OMPI_COMM_WORLD_SIZE"));
    for (size_t i = 0; i < sizeof works / sizeof *works; i++)
        if (strcmp(works[i].name, name) == 0) r.work = works[i].work;
    for (int i = 0; i < DIFFERENCES; i++)
        if (strcmp(differences[i].name, name) == 0) difference = &differences[i];
    rank_main(&r);
    if (r.code) fprintf(stderr, "rank %d: %d: %s\n", r.options.rank, r.code, r.err.what);
    return r.code != 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "as") == 0) return by_mpi(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_peer_that_is_killed_is_named),
        cmocka_unit_test(neighbours_exchange_at_once),
        cmocka_unit_test(a_stage_receives_while_it_sends),
        cmocka_unit_test(groups_and_all_ranks_call_by_turns),
        cmocka_unit_test(ends_that_differ_are_reported),
        cmocka_unit_test(messages_in_another_order_are_reported),
        cmocka_unit_test(groups_that_differ_are_reported),
        cmocka_unit_test(a_missing_peer_is_waited_for_until_the_limit),
        cmocka_unit_test(losses_and_broadcasts_take_the_same_bytes_of_each_rank),
        cmocka_unit_test(one_rank_receives_what_it_sends),
        cmocka_unit_test(dry_ranks_count_the_same_memory),
        cmocka_unit_test(a_heartbeat_reads_call_peer_and_group),
    };
    card = getenv("MEOPT_TEST_DEVICE");
    if (!card) return cmocka_run_group_tests(tests, NULL, NULL);
    const struct CMUnitTest of_cards[] = {
        cmocka_unit_test(neighbours_exchange_at_once),
        cmocka_unit_test(a_stage_receives_while_it_sends),
        cmocka_unit_test(groups_and_all_ranks_call_by_turns),
        cmocka_unit_test(ends_that_differ_are_reported),
        cmocka_unit_test(messages_in_another_order_are_reported),
        cmocka_unit_test(groups_that_differ_are_reported),
        cmocka_unit_test(a_missing_peer_is_waited_for_until_the_limit),
        cmocka_unit_test(losses_and_broadcasts_take_the_same_bytes_of_each_rank),
    };
    return cmocka_run_group_tests(of_cards, NULL, NULL);
}
