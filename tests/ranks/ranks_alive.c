/* Ranks as processes with a real hub on loopback. They connect through a file or the environment and
 * exchange data. If one dies, the others end within seconds and name it. */
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/comm/heartbeat.h"
#include "core/comm/serve.h"
#include "tests/mentions.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { RANKS = 3, PHASES = 1 };
static const struct hub_phase phases[PHASES] = {{"working", 600, false, false}};
static struct hub_server *server;
static char directory[] = "/tmp/meopt-ranks-XXXXXX", file[64];

static void begin(bool by_file, double seconds)
{
    struct hub_options o = {.size = RANKS,
                            .expected = {.program_crc = 1, .version = "1"},
                            .join_seconds = seconds,
                            .phases = phases,
                            .phase_count = PHASES};
    struct error err;
    snprintf(file, sizeof file, "%s/ranks", directory);
    assert_int_equal(hub_server_start(&server, &o, true, by_file ? file : NULL, "/a run", true, &err), 0);
}

/* ---- a rank ---- */

static void fill_beat(void *context, struct rank_beat *beat) { beat->marks = ++*(int64_t *)context; }

static void lost(void *context, const struct error *why)
{
    (void)context;
    _exit(why->code);
}

static void lost_but_hangs(void *context, const struct error *why)
{
    (void)context;
    (void)why;
    for (;;) pause();
}

/* Of a callback whose rank leaves meanwhile. */
static _Atomic int called, returned;

static void lost_and_slow(void *context, const struct error *why)
{
    (void)context;
    (void)why;
    called = 1;
    usleep(100000);
    returned = 1;
}

enum fate { ENDS, WAITS, DIES, STOPS, DIFFERS, HANGS, LEAVES };

static double patience = 20; /* of a rank, until all are there */

static int live(int rank, enum fate fate, bool by_file)
{
    int64_t marks = 0, all[RANKS], own = 100 + rank;
    char text[RENDEZVOUS_TEXT];
    rendezvous_text(hub_server_rendezvous(server), text);
    struct heartbeat *h;
    struct error err = {0};
    struct heartbeat_options o = {.facts = {.rank = rank,
                                            .size = RANKS,
                                            .pid = (int)getpid(),
                                            .program_crc = 1,
                                            .version = "1",
                                            .host = "here"},
                                  .variable = by_file ? NULL : text,
                                  .file = file,
                                  .seconds = patience,
                                  .beat = fill_beat,
                                  .lost = fate == HANGS    ? lost_but_hangs
                                          : fate == LEAVES ? lost_and_slow
                                                           : lost,
                                  .context = &marks};
    int code = heartbeat_join(&h, &o, &err);
    if (code) return code;
    if (heartbeat_exchange(h, "number", &own, sizeof own, all, &err)) return 90;
    for (int r = 0; r < RANKS; r++)
        if (all[r] != 100 + r) return 91;
    if (strcmp(heartbeat_run(h), by_file ? "/a run" : "") != 0 || heartbeat_resumes(h) != by_file) return 93;
    code = heartbeat_agree(h, "list of images", fate == DIFFERS ? 8 : 7, &err);
    if (code) {
        heartbeat_leave(h, code, &err);
        return mentions(err.what, "rank 1|list of images|rank 0") ? code : 92;
    }
    if (fate == DIES) raise(SIGKILL);
    if (fate == STOPS) raise(SIGSTOP);
    while (fate != ENDS && fate != LEAVES) pause();
    while (fate == LEAVES && !called) usleep(1000);
    heartbeat_leave(h, 0, NULL);
    return called == returned ? 0 : 94;
}

static pid_t start(int rank, enum fate fate, bool by_file)
{
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(live(rank, fate, by_file));
    }
    assert_true(pid > 0);
    return pid;
}

static int ended(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- */

static void ranks_meet_and_part(void **state)
{
    for (int by_file = 0; by_file < 2; by_file++) {
        pid_t pids[RANKS];
        struct stat status;
        begin(by_file, 20);
        if (by_file) {
            assert_int_equal(stat(file, &status), 0);
            assert_int_equal(status.st_mode & 07777, 0600);
        }
        for (int r = RANKS - 1; r >= 0; r--) pids[r] = start(r, ENDS, by_file);
        for (int r = 0; r < RANKS; r++) assert_int_equal(ended(pids[r]), 0);
        struct hub_rank rank;
        double silent, still;
        assert_true(hub_server_rank(server, 1, &rank, &silent, &still));
        assert_string_equal(rank.facts.host, "here");
        assert_int_equal(rank.facts.pid, pids[1]);
        assert_int_equal(hub_server_diagnosis(server, NULL, NULL), 0);
        for (int i = 0; i < 100 && !hub_server_all_left(server); i++) usleep(20000);
        assert_true(hub_server_all_left(server));
        if (by_file)
            assert_int_equal(access(file, F_OK), 0); /* the file shows late ranks that all are there */
        hub_server_stop(server);
        assert_int_not_equal(access(file, F_OK), 0);
    }
}

static void a_file_that_is_another_runs_by_now_stays(void **state)
{
    struct error err;
    begin(true, 20);
    struct rendezvous other = *hub_server_rendezvous(server);
    assert_int_equal(rendezvous_write(&other, file, &err), 0);
    hub_server_stop(server);
    assert_int_equal(unlink(file), 0);
}

static void the_death_of_one_ends_the_others_by_name(void **state)
{
    struct error err = {0};
    pid_t pids[RANKS];
    char who[32];
    int rank;
    begin(false, 20);
    pids[0] = start(0, WAITS, false);
    pids[1] = start(1, WAITS, false);
    double t = clock_seconds();
    pids[2] = start(2, DIES, false);
    assert_int_equal(ended(pids[2]), 128 + SIGKILL);
    assert_int_equal(ended(pids[0]), EXIT_RANK_LOST);
    assert_int_equal(ended(pids[1]), EXIT_RANK_LOST);
    assert_true(clock_seconds() - t < 10);
    assert_int_equal(hub_server_diagnosis(server, &rank, &err), EXIT_RANK_LOST);
    assert_int_equal(rank, 2);
    snprintf(who, sizeof who, "pid %d", (int)pids[2]);
    assert_non_null(strstr(err.what, who));
    hub_server_stop(server);
}

static void a_rank_that_hangs_is_killed_by_its_own_watchdog(void **state)
{
    begin(false, 20);
    pid_t hangs = start(0, HANGS, false), waits = start(1, WAITS, false), dies = start(2, DIES, false);
    double t = clock_seconds();
    assert_int_equal(ended(dies), 128 + SIGKILL);
    assert_int_equal(ended(waits), EXIT_RANK_LOST);
    assert_int_equal(ended(hangs), 128 + SIGKILL);
    assert_true(clock_seconds() - t < HEARTBEAT_GRACE_SECONDS + 6);
    hub_server_stop(server);
}

/* The caller frees what `lost` uses. */
static void nothing_is_called_after_leaving(void **state)
{
    begin(false, 20);
    pid_t leaves = start(0, LEAVES, false), waits = start(1, WAITS, false), dies = start(2, DIES, false);
    assert_int_equal(ended(dies), 128 + SIGKILL);
    assert_int_equal(ended(waits), EXIT_RANK_LOST);
    assert_int_equal(ended(leaves), 0);
    hub_server_stop(server);
}

static void a_dead_hub_ends_the_ranks(void **state)
{
    pid_t pids[RANKS];
    begin(false, 20);
    for (int r = 0; r < RANKS; r++) pids[r] = start(r, WAITS, false);
    struct hub_rank rank;
    double silent, still;
    for (int i = 0, r = 0; i < 200 && r < RANKS; i++)
        if (hub_server_rank(server, r, &rank, &silent, &still)) r++;
        else usleep(20000);
    usleep(200000);
    hub_server_stop(server);
    for (int r = 0; r < RANKS; r++) assert_int_equal(ended(pids[r]), EXIT_RANK_LOST);
}

static void other_images_are_named_on_every_rank(void **state)
{
    begin(false, 20);
    pid_t a = start(0, WAITS, false), b = start(1, DIFFERS, false), c = start(2, WAITS, false);
    assert_int_equal(ended(a), EXIT_CONFIG);
    assert_int_equal(ended(b), EXIT_CONFIG);
    assert_int_equal(ended(c), EXIT_CONFIG);
    hub_server_stop(server);
}

static void a_rank_that_does_not_come_is_named(void **state)
{
    struct error err = {0};
    begin(false, 1);
    patience =
        0.7; /* what it has for the others, the hub has too: that it names them is what a rank waits for */
    pid_t a = start(0, WAITS, false), b = start(2, WAITS, false);
    patience = 20;
    assert_int_equal(ended(a), EXIT_RANK_LOST);
    assert_int_equal(ended(b), EXIT_RANK_LOST);
    assert_int_equal(hub_server_diagnosis(server, NULL, &err), EXIT_RANK_LOST);
    assert_true(mentions(err.what, "rank 1|3|1 s"));
    hub_server_stop(server);
}

/* Garbage on the port: unknown bytes, and hundreds of connections. */
static void strangers_at_the_port_end_nothing(void **state)
{
    pid_t pids[RANKS];
    struct error err;
    int fds[200];
    begin(false, 20);
    for (int i = 0; i < 200; i++) {
        assert_int_equal(rendezvous_connect(hub_server_rendezvous(server), 2, &fds[i], &err), 0);
        if (i % 2) (void)!write(fds[i], "\x16\x03\x01 hello? MEOR", 16);
    }
    for (int i = 0; i < 200; i++) close(fds[i]);
    for (int r = 0; r < RANKS; r++) pids[r] = start(r, ENDS, false);
    for (int r = 0; r < RANKS; r++) assert_int_equal(ended(pids[r]), 0);
    assert_int_equal(hub_server_diagnosis(server, NULL, NULL), 0);
    hub_server_stop(server);
}

/* The file of an earlier run, whose hub is gone, is read until rank 0 has written the new one; what others
 * may read or have written is no place. */
static void a_stale_or_planted_file_is_no_place(void **state)
{
    struct rendezvous old = {.address = "127.0.0.1", .port = 1}, found;
    struct error err = {0};
    pid_t pids[RANKS];
    snprintf(file, sizeof file, "%s/ranks", directory);
    assert_int_equal(rendezvous_write(&old, file, &err), 0);
    assert_int_equal(rendezvous_read(&found, file, &err), 0);
    assert_int_equal(chmod(file, 0644), 0);
    assert_int_equal(rendezvous_read(&found, file, &err), EXIT_FAILED);
    assert_non_null(strstr(err.what, "0644"));
    assert_int_equal(chmod(file, 0600), 0);
    begin(false, 20);
    for (int r = 1; r < RANKS; r++) pids[r] = start(r, ENDS, true);
    usleep(400000);
    assert_int_equal(rendezvous_write(hub_server_rendezvous(server), file, &err), 0);
    pids[0] = start(0, ENDS, true);
    for (int r = 0; r < RANKS; r++) assert_int_equal(ended(pids[r]), 0);
    hub_server_stop(server);
    unlink(file);
    assert_int_equal(rendezvous_parse(&found, "127.0.0.1 70000 00", &err), EXIT_FAILED);
    assert_int_equal(rendezvous_parse(&found, "", &err), EXIT_FAILED);
}

/* Ten seconds and more. */
static void a_stopped_rank_is_named_within_fifteen_seconds(void **state)
{
    struct error err = {0};
    const char *lengthy = getenv("MEOPT_LONG");
    int rank;
    if (!lengthy || strcmp(lengthy, "1") != 0) skip();
    begin(false, 20);
    pid_t a = start(0, WAITS, false), b = start(1, STOPS, false), c = start(2, WAITS, false);
    double t = clock_seconds();
    assert_int_equal(ended(a), EXIT_RANK_LOST);
    assert_int_equal(ended(c), EXIT_RANK_LOST);
    assert_true(clock_seconds() - t < 15);
    assert_int_equal(hub_server_diagnosis(server, &rank, &err), EXIT_RANK_LOST);
    assert_int_equal(rank, 1);
    assert_non_null(strstr(err.what, "rank 1"));
    kill(b, SIGKILL);
    ended(b);
    hub_server_stop(server);
}

static int make_directory(void **state) { return mkdtemp(directory) == NULL; }

static int remove_directory(void **state) { return file_remove_tree(directory, NULL); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_meet_and_part),
        cmocka_unit_test(a_file_that_is_another_runs_by_now_stays),
        cmocka_unit_test(the_death_of_one_ends_the_others_by_name),
        cmocka_unit_test(a_rank_that_hangs_is_killed_by_its_own_watchdog),
        cmocka_unit_test(nothing_is_called_after_leaving),
        cmocka_unit_test(a_dead_hub_ends_the_ranks),
        cmocka_unit_test(other_images_are_named_on_every_rank),
        cmocka_unit_test(a_rank_that_does_not_come_is_named),
        cmocka_unit_test(strangers_at_the_port_end_nothing),
        cmocka_unit_test(a_stale_or_planted_file_is_no_place),
        cmocka_unit_test(a_stopped_rank_is_named_within_fifteen_seconds),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
