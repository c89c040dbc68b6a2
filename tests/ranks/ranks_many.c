/* More connections to a real hub than it has descriptors: thousands of ranks, hundreds of unknown peers,
 * and a limit that is too low. */
#include "core/base/clock.h"
#include "core/base/platform.h"
#include "core/comm/heartbeat.h"
#include "core/comm/serve.h"
#include "core/comm/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

enum { MANY = 1100 };
static const struct hub_phase phases[] = {{"working", 600, false, false}};
static struct hub_server *server;

static int start(int size, struct error *err)
{
    struct hub_options o = {.size = size,
                            .expected = {.program_crc = 1, .version = "1"},
                            .join_seconds = 120,
                            .phases = phases,
                            .phase_count = 1};
    return hub_server_start(&server, &o, true, NULL, "/a run", false, err);
}

static int connection(void)
{
    struct error err;
    int fd;
    if (rendezvous_connect(hub_server_rendezvous(server), 20, &fd, &err)) fail_msg("%s", err.what);
    return fd;
}

static int join(int rank, int size)
{
    struct rank_facts f = {
        .rank = rank, .size = size, .pid = rank + 1, .program_crc = 1, .version = "1", .host = "here"};
    struct wire_bytes hello = {0};
    int fd = connection();
    wire_put_hello(&hello, hub_server_rendezvous(server)->key, &f);
    assert_int_equal(send(fd, hello.data, hello.bytes, MSG_NOSIGNAL), hello.bytes);
    wire_free(&hello);
    return fd;
}

static bool is_welcome(int fd)
{
    uint8_t bytes[4096];
    struct wire_message m;
    size_t taken, held = 0;
    for (double until = clock_seconds() + 60; clock_seconds() < until;) {
        struct pollfd wait = {fd, POLLIN, 0};
        poll(&wait, 1, 1000);
        ssize_t n = recv(fd, bytes + held, sizeof bytes - held, MSG_DONTWAIT);
        if (n == 0) return false;
        held += n > 0 ? (size_t)n : 0;
        if (wire_next(bytes, held, WIRE_TO_RANK_BYTES, &m, &taken) == 1) return m.type == WIRE_WELCOME;
    }
    return false;
}

/* In a child, whose limits are its own: 0, or why not. */
static int in_child(int (*what)(void))
{
    int status;
    pid_t pid = fork();
    if (pid == 0) _exit(what());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 200;
}

static int limit_to(rlim_t soft, rlim_t hard)
{
    return setrlimit(RLIMIT_NOFILE, &(struct rlimit){soft, hard});
}

static int join_many(void)
{
    struct rlimit limit;
    struct error err = {0};
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_max < 2 * MANY + 200) return 77;
    if (limit_to(256, limit.rlim_max)) return 1;
    if (start(MANY, &err)) return 2;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur < MANY + 64) return 3; /* it was raised */
    descriptors_allow(2 * MANY + 200);                                            /* for our own ends */
    int *fds = calloc(MANY, sizeof *fds);
    for (int r = 0; r < MANY; r++) fds[r] = join(r, MANY);
    for (int r = 0; r < MANY; r++)
        if (!is_welcome(fds[r])) return 4;
    struct hub_rank rank;
    double silent, still;
    for (int r = 0; r < MANY; r++)
        if (!hub_server_rank(server, r, &rank, &silent, &still)) return 5;
    for (int r = 0; r < MANY; r++) close(fds[r]);
    hub_server_stop(server);
    free(fds);
    return 0;
}

static void eleven_hundred_ranks_join(void **state)
{
    double begin = clock_seconds();
    int code = in_child(join_many);
    if (code == 77) skip();
    assert_int_equal(code, 0);
    print_message("%d ranks joined within %.2f s\n", MANY, clock_seconds() - begin);
}

static int start_many_with_few(void)
{
    struct error err = {0};
    if (limit_to(128, 128)) return 1;
    if (start(MANY, &err) != EXIT_FAILED) return 2;
    return strstr(err.what, "1100") && strstr(err.what, "128") && strstr(err.hint, "ulimit -n") ? 0 : 3;
}

static void too_low_a_limit_is_reported_with_both_numbers(void **state)
{
    assert_int_equal(in_child(start_many_with_few), 0);
}

/* Connections that say nothing, hundreds at once and again and again, while ranks join. */
static int join_among_strangers(void)
{
    enum { STRANGERS = 400, RANKS = 4 };
    struct error err = {0};
    int silent[STRANGERS], fds[RANKS];
    if (descriptors_allow(4 * STRANGERS) < 3 * STRANGERS) return 77;
    if (start(RANKS, &err)) return 1;
    double begin = clock_seconds();
    for (int r = 0; r < RANKS; r++) {
        for (int i = 0; i < STRANGERS; i++) {
            if (r) close(silent[i]);
            silent[i] = connection();
        }
        fds[r] = join(r, RANKS);
    }
    for (int r = 0; r < RANKS; r++)
        if (!is_welcome(fds[r])) return 2;
    if (clock_seconds() - begin > 30) return 3; /* and not after their time is over, again and again */
    hub_server_stop(server);
    return 0;
}

static void strangers_hold_up_nobody(void **state)
{
    int code = in_child(join_among_strangers);
    if (code == 77) skip();
    assert_int_equal(code, 0);
}

static double processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* No descriptor is left in the hub's process: it waits, and lets the ranks in when there are some again. */
static int wait_for_descriptors(void)
{
    struct error err = {0};
    int used[400], count = 0, fds[2];
    if (limit_to(300, 300) || start(2, &err)) return 1;
    fds[0] = join(0, 2); /* our end is there before there is none */
    while (count < 400 && (used[count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) count++;
    close(used[--count]);
    fds[1] = join(1, 2); /* which takes the last one */
    double begin = processor_seconds();
    sleep(2);
    if (processor_seconds() - begin > 1) return 2;
    while (count > 0) close(used[--count]);
    if (!is_welcome(fds[0]) || !is_welcome(fds[1])) return 3;
    hub_server_stop(server);
    return 0;
}

static void without_descriptors_the_hub_waits(void **state)
{
    assert_int_equal(in_child(wait_for_descriptors), 0);
}

/* ---- ranks with all of their protocol, as threads of a few processes ---- */

enum { PER_PROCESS = 100, OFFER_BYTES = 136 /* the id of an NCCL communicator and two numbers */ };

static void fill_beat(void *context, struct rank_beat *beat) { beat->marks = ++*(int64_t *)context; }

static void lost(void *context, const struct error *why)
{
    (void)context;
    _exit(why->code);
}

/* Returns 0 in *arg, a rank's number, if the rank has joined, exchanged, agreed and left. */
static void *live(void *arg)
{
    int *rank = arg, own[OFFER_BYTES / sizeof(int)] = {*rank}, (*all)[OFFER_BYTES / sizeof(int)];
    int64_t marks = 0;
    char text[RENDEZVOUS_TEXT];
    struct heartbeat *h;
    struct error err = {0};
    rendezvous_text(hub_server_rendezvous(server), text);
    struct heartbeat_options o = {
        .facts = {.rank = *rank, .size = MANY, .pid = *rank + 1, .program_crc = 1, .version = "1"},
        .variable = text,
        .seconds = 120,
        .beat = fill_beat,
        .lost = lost,
        .context = &marks};
    int code = heartbeat_join(&h, &o, &err);
    if (!code) {
        all = calloc(MANY, sizeof *all);
        code = heartbeat_exchange(h, "library", own, sizeof own, all, &err);
        for (int r = 0; r < MANY && !code; r++)
            if (all[r][0] != r) code = 1;
        free(all);
        if (!code) code = heartbeat_agree(h, "list of images", 7, &err);
        sleep(2); /* heartbeats */
        heartbeat_leave(h, code, code ? &err : NULL);
    }
    *rank = code;
    return NULL;
}

/* One process of PER_PROCESS ranks. */
static int live_all(int first)
{
    pthread_t threads[PER_PROCESS];
    int numbers[PER_PROCESS];
    for (int i = 0; i < PER_PROCESS; i++) {
        numbers[i] = first + i;
        if (pthread_create(&threads[i], NULL, live, &numbers[i])) return 99;
    }
    for (int i = 0; i < PER_PROCESS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < PER_PROCESS; i++)
        if (numbers[i]) return numbers[i];
    return 0;
}

static int live_many(void)
{
    struct rlimit limit;
    struct rusage usage;
    struct error err = {0};
    pid_t pids[MANY / PER_PROCESS];
    int status, bad = 0;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_max < MANY + 200) return 77;
    if (limit_to(256, limit.rlim_max) || start(MANY, &err)) return 1;
    double begin = clock_seconds();
    for (int i = 0; i < MANY / PER_PROCESS; i++)
        if ((pids[i] = fork()) == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit(live_all(i * PER_PROCESS));
        }
    for (int i = 0; i < MANY / PER_PROCESS; i++)
        if (waitpid(pids[i], &status, 0) != pids[i] || status) bad = 2;
    for (int i = 0; i < 500 && !hub_server_all_left(server); i++) usleep(20000);
    if (bad || !hub_server_all_left(server) || hub_server_diagnosis(server, NULL, &err)) return 2;
    hub_server_stop(server);
    getrusage(RUSAGE_SELF, &usage);
    print_message("%d ranks: %.2f s, the hub: %.2f s of processor time, %ld MiB\n", MANY,
                  clock_seconds() - begin, processor_seconds(), usage.ru_maxrss / 1024);
#ifdef __SANITIZE_ADDRESS__
    return 0;
#else
    return usage.ru_maxrss / 1024 > 50 ? 3 : 0;
#endif
}

static void many_ranks_exchange_beat_and_leave(void **state)
{
    int code = in_child(live_many);
    if (code == 77) skip();
    assert_int_equal(code, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_ranks_exchange_beat_and_leave), cmocka_unit_test(eleven_hundred_ranks_join),
        cmocka_unit_test(too_low_a_limit_is_reported_with_both_numbers),
        cmocka_unit_test(strangers_hold_up_nobody), cmocka_unit_test(without_descriptors_the_hub_waits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
