/* The hub of ranks with a simulated clock: which ranks are accepted, which are lost and how that is
 * reported. No unknown peer ends a run. No sockets, no waiting. */
#include "core/comm/hub.h"
#include "tests/mentions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { LOADING, STEPPING, SAVING, PHASES };
static const struct hub_phase phases[PHASES] = {
    {"loading", 600, false, false}, {"computing a step", 600, true, false}, {"saving", 0, false, true}};
enum { MOST = 8 };

static struct hub *hub;
static int peers[MOST], size;
static struct comm_layout layout;
static double now;
static struct rank_beat beats[MOST];

static struct rank_facts facts_of(int rank)
{
    struct rank_facts f = {.rank = rank,
                           .size = size,
                           .pid = 100 + rank,
                           .program_crc = 7,
                           .config_hash = 9,
                           .version = "1",
                           .host = "n1"};
    snprintf(f.card, sizeof f.card, "0000:4%d:00.0", rank);
    return f;
}

static void open_hub(int ranks)
{
    struct hub_options o = {.size = ranks, .join_seconds = 60, .phases = phases, .phase_count = PHASES};
    o.layout = layout;
    size = ranks, now = 1000;
    memset(o.key, 5, sizeof o.key);
    o.expected = facts_of(0);
    memset(beats, 0, sizeof beats);
    hub = hub_create(&o, now);
}

static int say(int peer, struct wire_bytes *out)
{
    hub_receive(hub, peer, out->data, out->bytes, now);
    wire_free(out);
    return peer;
}

static int hello_with(uint8_t key, const struct rank_facts *f)
{
    uint8_t bytes[WIRE_KEY_BYTES];
    struct wire_bytes out = {0};
    memset(bytes, key, sizeof bytes);
    wire_put_hello(&out, bytes, f);
    return say(hub_peer(hub, now), &out);
}

static int hello(const struct rank_facts *f) { return hello_with(5, f); }

static void join_all(int ranks)
{
    open_hub(ranks);
    for (int r = 0; r < ranks; r++) {
        struct rank_facts f = facts_of(r);
        assert_false(hub_complete(hub));
        peers[r] = hello(&f);
    }
    assert_true(hub_complete(hub));
}

static void beat(int r)
{
    struct wire_bytes out = {0};
    wire_put_beat(&out, &beats[r]);
    say(peers[r], &out);
}

/* A second goes by: all but `silent` beat, all but `still` have done something. */
static void second(int silent, int still)
{
    now += 1;
    for (int r = 0; r < size; r++) {
        if (r != still && !beats[r].wait) beats[r].marks++;
        if (r != silent) beat(r);
    }
    hub_tick(hub, now);
}

static void wait_in(int r, int64_t collective, const char *name)
{
    beats[r].collective = collective;
    beats[r].wait = RANK_WAITS;
    snprintf(beats[r].name, sizeof beats[r].name, "%s", name);
}

static int judged(char *what, size_t bytes)
{
    struct error err = {0};
    int code = hub_diagnosis(hub, NULL, &err);
    snprintf(what, bytes, "%s", err.what);
    return code;
}

static void expect(int code, const char *said)
{
    char what[640];
    int found = judged(what, sizeof what);
    if (found != code) fail_msg("code %d, expected %d: %s", found, code, what);
    if (said && !mentions(what, said)) fail_msg("'%s' lacks '%s'", what, said);
}

static void close_hub(void)
{
    hub_free(hub);
    hub = NULL;
}

/* The type of the first message that is to be sent to this one; 0: none. */
static int received(int peer)
{
    struct wire_bytes *out = hub_output(hub, peer);
    struct wire_message m;
    size_t taken;
    return wire_next(out->data, out->bytes, WIRE_TO_RANK_BYTES, &m, &taken) == 1 ? (int)m.type : 0;
}

/* ---- letting in ---- */

static void ranks_are_welcome_when_all_are_there(void **state)
{
    join_all(4);
    for (int r = 0; r < 4; r++) assert_int_equal(received(peers[r]), WIRE_WELCOME);
    expect(0, NULL);
    close_hub();
}

static void a_missing_rank_is_named(void **state)
{
    open_hub(5);
    for (int r = 0; r < 5; r += 2) {
        struct rank_facts f = facts_of(r);
        peers[r] = hello(&f);
    }
    now += 59;
    hub_tick(hub, now);
    expect(0, NULL);
    now += 2; /* a hub that itself was away for long gives them the time again */
    hub_tick(hub, now);
    expect(EXIT_RANK_LOST, "1 and 3 of 5|60 s");
    assert_int_equal(received(peers[2]), WIRE_ABORT);
    close_hub();
}

static void ranks_that_are_not_alike_are_named(void **state)
{
    static const struct {
        int what;
        const char *said;
    } trials[] = {{0, "rank 1 (host n1, pid 101, card 0000:41:00.0)| 3 | 2"},
                  {1, "rank 1|meopt 1|00000008|rank 0|00000007"},
                  {2, "rank 1|000000000000000a|rank 0|0000000000000009"},
                  {3, "ranks 0 and 1|n1|0000:40:00.0"},
                  {4, "rank 1|meopt 2"}};
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++) {
        open_hub(2);
        struct rank_facts first = facts_of(0), other = facts_of(1);
        if (trials[i].what == 0) other.size = 3;
        if (trials[i].what == 1) other.program_crc++;
        if (trials[i].what == 2) other.config_hash++;
        if (trials[i].what == 3) snprintf(other.card, sizeof other.card, "%s", first.card);
        if (trials[i].what == 4) snprintf(other.version, sizeof other.version, "2");
        int a = hello(&first), b = hello(&other);
        expect(EXIT_CONFIG, trials[i].said);
        assert_int_equal(received(a), WIRE_ABORT);
        assert_int_equal(received(b), WIRE_ABORT);
        close_hub();
    }
    open_hub(2); /* the same card of another host is another card; a processor may be shared */
    struct rank_facts first = facts_of(0), other = facts_of(1);
    snprintf(other.card, sizeof other.card, "%s", first.card);
    snprintf(other.host, sizeof other.host, "n2");
    hello(&first);
    hello(&other);
    assert_true(hub_complete(hub));
    close_hub();
}

/* The coordinator rejects a second rank of the same number, and the run continues, also when the coordinator
 * is complete. */
static void a_rank_that_was_started_twice_ends_nothing(void **state)
{
    open_hub(2);
    struct rank_facts f = facts_of(0);
    peers[0] = hello(&f);
    f.pid = 999;
    int twice = hello(&f);
    assert_int_equal(received(twice), WIRE_ABORT);
    assert_true(hub_closing(hub, twice) || hub_output(hub, twice)->bytes > 0);
    hub_ended(hub, twice, now);
    f = facts_of(1);
    peers[1] = hello(&f);
    assert_true(hub_complete(hub));
    f.config_hash = 1;
    hub_ended(hub, hello(&f), now);
    f = facts_of(1);
    hub_ended(hub, hello(&f), now);
    f.rank = 77; /* beyond the last */
    hub_ended(hub, hello(&f), now);
    f.size = 78;
    hub_ended(hub, hello(&f), now);
    expect(0, NULL);
    close_hub();
}

/* ---- strangers ---- */

static void no_stranger_ends_a_run(void **state)
{
    join_all(2);
    struct rank_facts f = facts_of(1);
    int wrong = hello_with(6, &f);
    assert_true(hub_closing(hub, wrong)); /* nothing is said to it */
    struct rank_bye bye = {.code = 13, .what = "diverged"};
    struct wire_bytes out = {0};
    wire_put_bye(&out, WIRE_BYE, &bye); /* without a hello */
    int rude = say(hub_peer(hub, now), &out);
    assert_true(hub_closing(hub, rude));
    int http = hub_peer(hub, now);
    hub_receive(hub, http, "GET / HTTP/1.1\r\n\r\n", 18, now);
    assert_true(hub_closing(hub, http));
    int quiet = hub_peer(hub, now);
    for (int i = 0; i <= HUB_HELLO_SECONDS; i++) second(-1, -1);
    assert_true(hub_closing(hub, quiet));
    const int all[] = {wrong, rude, http, quiet};
    for (int i = 0; i < 4; i++) hub_ended(hub, all[i], now);
    srand(1);
    for (int trial = 0; trial < 2000; trial++) { /* beginnings of ours, and then anything */
        uint8_t bytes[256] = {'M', 'E', 'O', 'R', 1, 1};
        for (size_t i = (size_t)trial % 20; i < sizeof bytes; i++) bytes[i] = (uint8_t)rand();
        int peer = hub_peer(hub, now);
        hub_receive(hub, peer, bytes, sizeof bytes, now);
        hub_ended(hub, peer, now);
    }
    expect(0, NULL);
    int most = 0;
    for (int i = 0; i < 1000; i++) {
        int peer = hub_peer(hub, now += 1e-3);
        if (peer > most) most = peer;
    }
    assert_true(most < 100); /* and no more than that many at once */
    second(-1, -1);
    expect(0, NULL);
    close_hub();
}

/* Of connections that say nothing the oldest goes: a rank is let in however many come. */
static void strangers_hold_up_no_rank(void **state)
{
    open_hub(3);
    for (int r = 0; r < 3; r++) {
        for (int i = 0; i < 500; i++) (void)hub_peer(hub, now += 1e-3);
        struct rank_facts f = facts_of(r);
        peers[r] = hello(&f);
        assert_false(hub_closing(hub, peers[r]));
    }
    assert_true(hub_complete(hub));
    for (int i = 0; i < 500; i++) { /* and no rank is forgotten for them */
        int peer = hub_peer(hub, now += 1e-3);
        for (int r = 0; r < 3; r++) assert_int_not_equal(peer, peers[r]);
    }
    second(-1, -1);
    expect(0, NULL);
    close_hub();
    open_hub(2); /* who has another key is known before its message is whole */
    struct wire_bytes out = {0};
    uint8_t key[WIRE_KEY_BYTES];
    struct rank_facts f = facts_of(1);
    memset(key, 6, sizeof key);
    wire_put_hello(&out, key, &f);
    int wrong = hub_peer(hub, now);
    hub_receive(hub, wrong, out.data, WIRE_HEADER_BYTES + WIRE_KEY_BYTES, now);
    assert_true(hub_closing(hub, wrong));
    wire_free(&out);
    close_hub();
}

/* ---- lost ranks ---- */

static void a_dead_rank_is_reported_at_once(void **state)
{
    join_all(4);
    for (int i = 0; i < 5; i++) second(-1, -1);
    for (int r = 0; r < 4; r++) beats[r].step = 12, beats[r].phase = STEPPING;
    for (int r = 0; r < 3; r++) wait_in(r, 103, "reduce_scatter");
    beats[3].collective = 102;
    second(-1, -1);
    hub_ended(hub, peers[3], now);
    hub_tick(hub, now + 0.3);
    expect(0, NULL); /* the others are asked for a beat, which may say more */
    hub_tick(hub, now + 0.7);
    expect(EXIT_RANK_LOST,
           "rank 3 (host n1, pid 103, card 0000:43:00.0)|step 12|103 (reduce_scatter)|ranks 0, 1 and 2");
    for (int r = 0; r < 3; r++) {
        wire_drop(hub_output(hub, peers[r]), WIRE_HEADER_BYTES); /* the welcome */
        assert_int_equal(received(peers[r]), WIRE_ASK);
        wire_drop(hub_output(hub, peers[r]), 2 * WIRE_HEADER_BYTES);
        assert_int_equal(received(peers[r]), WIRE_ABORT);
    }
    close_hub();
}

static void a_silent_rank_is_unreachable_within_eleven_seconds(void **state)
{
    join_all(3);
    for (int i = 0; i < 5; i++) second(-1, -1);
    for (int i = 0; i < 9; i++) second(1, -1);
    expect(0, NULL);
    second(1, -1);
    second(1, -1);
    expect(EXIT_RANK_LOST, "rank 1 (host n1, pid 101, card 0000:41:00.0)|11 s");
    close_hub();
}

static void a_rank_without_progress_is_stuck(void **state)
{
    join_all(3);
    for (int step = 1; step <= 3; step++) {
        for (int r = 0; r < 3; r++) beats[r].step = step, beats[r].phase = STEPPING;
        second(-1, -1);
    }
    for (int r = 0; r < 2; r++) wait_in(r, 9, "all_gather");
    for (int i = 0; i < 20; i++) second(-1, 2);
    expect(0, NULL);
    second(-1, 2);
    expect(EXIT_RANK_LOST,
           "rank 2 (host n1, pid 102, card 0000:42:00.0)|21 s|step 3|9 (all_gather)|ranks 0 and 1");
    close_hub();
}

static void slow_steps_loading_and_saving_are_no_hang(void **state)
{
    join_all(2);
    for (int r = 0; r < 2; r++) beats[r].phase = LOADING;
    for (int i = 0; i < 500; i++) second(-1, 1);
    expect(0, NULL);
    for (int r = 0; r < 2; r++) beats[r].phase = STEPPING;
    for (int step = 1; step <= 3; step++) { /* 15 s a step */
        beats[0].step = beats[1].step = step;
        second(-1, -1);
        for (int i = 0; i < 14; i++) second(-1, 1);
    }
    for (int i = 0; i < 60; i++) second(-1, 1); /* up to five times as long */
    expect(0, NULL);
    beats[0].phase = beats[1].phase = SAVING;
    second(-1, -1);
    for (int i = 0; i < 4000; i++) second(-1, 1);
    expect(0, NULL);
    beats[0].phase = beats[1].phase = STEPPING;
    for (int i = 0; i < 78; i++) second(-1, 1);
    expect(EXIT_RANK_LOST, "rank 1");
    close_hub();
}

static void time_in_which_nobody_listened_is_no_silence(void **state)
{
    join_all(2);
    for (int i = 0; i < 3; i++) second(-1, -1);
    now += 300; /* this machine slept: beats that wait in the sockets are read first, others come soon */
    hub_tick(hub, now);
    expect(0, NULL);
    for (int i = 0; i < 3; i++) second(-1, -1);
    expect(0, NULL);
    close_hub();
}

static void a_collective_without_progress_is_reported(void **state)
{
    join_all(3);
    for (int step = 1; step <= 3; step++) {
        for (int r = 0; r < 3; r++) beats[r].step = step, beats[r].phase = STEPPING;
        second(-1, -1);
    }
    for (int r = 0; r < 3; r++) wait_in(r, 5, "gather");
    for (int i = 0; i < 22; i++) second(-1, -1);
    expect(EXIT_RANK_LOST, "all ranks|20 s|5 (gather)");
    close_hub();
}

/* Rank 0 waits for a message of rank 1, rank 3 in a collective of another group. */
static void set_stages(void)
{
    layout = (struct comm_layout){.stages = 2}, join_all(4), layout = (struct comm_layout){0};
    for (int i = 0; i < 20; i++) {
        beats[i % 4] = (struct rank_beat){.step = i / 4 + 1, .phase = STEPPING, .marks = i, .peer = -1};
        if (i % 4 == 3) second(-1, -1);
    }
    beats[0] = (struct rank_beat){.step = 5, .message = true, .peer = 1, .group = "pipeline 0"};
    wait_in(0, 17, "receive");
    wait_in(3, 903, "reduce");
    strcpy(beats[3].group, "data 1");
}

static void a_lost_stage_is_named_with_the_message_that_it_misses(void **state)
{
    set_stages();
    second(-1, -1);
    hub_ended(hub, peers[1], now);
    hub_tick(hub, now + 0.7);
    expect(EXIT_RANK_LOST, "rank 1 (host n1|1 of replica 0)|message 17 (receive of pipeline 0)|rank 0 wait");
    close_hub();
    set_stages(); /* ranks that wait for one another */
    for (int r = 1; r < 3; r++) wait_in(r, 4, "gather");
    for (int i = 0; i < 30; i++) second(-1, -1);
    expect(EXIT_RANK_LOST, "all ranks|rank 0 in message 17 (receive of pipeline 0)|rank 1 in collective 4 "
                           "(gather)|rank 3 in collective 903 (reduce of data 1)");
    close_hub();
}

static void a_lost_rank_of_a_tensor_group_is_named(void **state)
{
    static const struct {
        struct comm_layout layout;
        const char *said;
    } rows[] = {{{2, 2}, "rank 5 (host n1|, tensor 1 of stage 0 of replica 1)"},
                {{1, 2}, "rank 5 (host n1|, tensor 1 of replica 2)"},
                {{2, 1}, "rank 5 (host n1|, stage 1 of replica 2)"},
                {{1, 1}, "rank 5 (host n1|:00.0)"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        layout = rows[i].layout, join_all(8), layout = (struct comm_layout){0};
        second(-1, -1);
        hub_ended(hub, peers[5], now);
        hub_tick(hub, now + 0.7);
        expect(EXIT_RANK_LOST, rows[i].said);
        close_hub();
    }
}

static void sign_off(int r, int code, const char *what)
{
    struct rank_bye bye = {.code = code};
    struct wire_bytes out = {0};
    snprintf(bye.what, sizeof bye.what, "%s", what);
    wire_put_bye(&out, WIRE_BYE, &bye);
    say(peers[r], &out);
    hub_ended(hub, peers[r], now);
}

static void an_exit_message_has_file_and_hint(void **state)
{
    struct error why, err = {0};
    struct rank_bye bye;
    struct wire_bytes out = {0};
    struct wire_message m;
    size_t taken;
    join_all(2);
    error_set(&why, EXIT_INTEGRITY, "fetch it again", "the checksum of block 3 differs");
    error_at(&why, "/models/t.safetensors", 4, 2);
    wire_bye_of(&bye, &why);
    wire_put_bye(&out, WIRE_BYE, &bye);
    say(peers[1], &out);
    assert_int_equal(hub_diagnosis(hub, NULL, &err), EXIT_INTEGRITY);
    assert_string_equal(err.file, "/models/t.safetensors");
    assert_true(err.line == 4 && err.column == 2);
    assert_string_equal(err.hint, "fetch it again");
    assert_true(mentions(err.what, "rank 1|block 3"));
    struct wire_bytes *abort = hub_output(hub, peers[0]); /* the other rank gets the same message */
    wire_drop(abort, WIRE_HEADER_BYTES);
    assert_int_equal(wire_next(abort->data, abort->bytes, WIRE_TO_RANK_BYTES, &m, &taken), 1);
    assert_true(m.type == WIRE_ABORT && wire_get_bye(&m, &bye));
    assert_int_equal(wire_bye_error(&bye, &err), EXIT_INTEGRITY);
    assert_string_equal(err.file, "/models/t.safetensors");
    assert_string_equal(err.hint, "fetch it again");
    close_hub();
}

static void a_rank_that_signed_off_is_not_lost(void **state)
{
    join_all(2);
    sign_off(0, 0, "");
    for (int i = 0; i < 30; i++) { /* the other one still writes its part */
        now += 1;
        beats[1].marks++;
        beat(1);
        hub_tick(hub, now);
    }
    sign_off(1, EXIT_STOPPED, "");
    expect(0, NULL);
    close_hub();

    join_all(2);
    sign_off(1, EXIT_DISK, "cannot write ckpt: No space left on device");
    expect(EXIT_DISK, "rank 1 (host n1, pid 101, card 0000:41:00.0)| 5|ckpt");
    assert_true(hub_output(hub, peers[0])->bytes > WIRE_HEADER_BYTES);
    close_hub();

    join_all(3); /* all agree on the rank that failed, no matter which rank reports first */
    sign_off(2, EXIT_FAILED, "rank 1 (host n1) cannot continue: bad images");
    int lost;
    struct error err = {0};
    assert_int_equal(hub_diagnosis(hub, &lost, &err), EXIT_FAILED);
    assert_int_equal(lost, 1);
    assert_string_equal(err.what, "rank 1 (host n1) cannot continue: bad images");
    close_hub();

    join_all(3); /* who watches over the processes knows that one has ended */
    error_set(&err, EXIT_RANK_LOST, NULL, "rank 1 was ended by signal 9");
    hub_end(hub, 1, &err);
    expect(EXIT_RANK_LOST, "rank 1|signal 9");
    wire_drop(hub_output(hub, peers[0]), WIRE_HEADER_BYTES); /* the welcome */
    assert_int_equal(received(peers[0]), WIRE_ABORT);
    close_hub();

    join_all(3); /* who ends because it misses another one is not the lost one, if that one shows */
    sign_off(0, EXIT_RANK_LOST, "rank 2 is missing");
    expect(0, NULL);
    hub_ended(hub, peers[2], now);
    hub_tick(hub, now + 1.5);
    expect(EXIT_RANK_LOST, "rank 2 (host n1, pid 102, card 0000:42:00.0)|step 0|rank 0|rank 2 is missing");
    close_hub();
    join_all(3);
    sign_off(0, EXIT_RANK_LOST, "rank 2 is missing");
    for (int i = 0; i < 4; i++) second(0, -1);
    expect(EXIT_RANK_LOST,
           "rank 0 (host n1, pid 100, card 0000:40:00.0) ended with exit code 14: rank 2 is missing");
    close_hub();

    join_all(2); /* one has left, the other one waits for it for ever */
    sign_off(1, 0, "");
    wait_in(0, 3, "gather");
    for (int i = 0; i < 200; i++) {
        now += 1;
        beat(0);
        hub_tick(hub, now);
    }
    expect(EXIT_RANK_LOST, "rank 1");
    close_hub();
}

static void small_things_go_round(void **state)
{
    join_all(3);
    for (int r = 0; r < 3; r++) {
        struct wire_bytes out = {0};
        char mine[16];
        snprintf(mine, sizeof mine, "of %d", r);
        wire_drop(hub_output(hub, peers[r]), hub_output(hub, peers[r])->bytes);
        wire_put_offer(&out, "id", mine, sizeof mine);
        assert_int_equal(received(peers[0]), 0);
        say(peers[r], &out);
    }
    for (int r = 0; r < 3; r++) {
        struct wire_bytes *out = hub_output(hub, peers[r]);
        struct wire_message m;
        struct wire_offer offers[3];
        char name[32];
        size_t taken;
        assert_int_equal(wire_next(out->data, out->bytes, WIRE_TO_RANK_BYTES, &m, &taken), 1);
        assert_int_equal(m.type, WIRE_ALL);
        assert_true(wire_get_all(&m, name, offers, 3));
        assert_false(wire_get_all(&m, name, offers, 2));
        assert_string_equal(name, "id");
        assert_string_equal((const char *)offers[2].data, "of 2");
    }
    struct wire_bytes out = {0};
    wire_put_offer(&out, "a", "", 0);
    say(peers[0], &out);
    wire_put_offer(&out, "b", "", 0);
    say(peers[1], &out);
    wire_put_offer(&out, "a", "", 0);
    say(peers[2], &out);
    expect(EXIT_RANK_LOST, "rank 1|b|rank 0|a");
    close_hub();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_welcome_when_all_are_there),
        cmocka_unit_test(a_missing_rank_is_named),
        cmocka_unit_test(ranks_that_are_not_alike_are_named),
        cmocka_unit_test(a_rank_that_was_started_twice_ends_nothing),
        cmocka_unit_test(no_stranger_ends_a_run),
        cmocka_unit_test(strangers_hold_up_no_rank),
        cmocka_unit_test(a_dead_rank_is_reported_at_once),
        cmocka_unit_test(a_silent_rank_is_unreachable_within_eleven_seconds),
        cmocka_unit_test(a_rank_without_progress_is_stuck),
        cmocka_unit_test(slow_steps_loading_and_saving_are_no_hang),
        cmocka_unit_test(time_in_which_nobody_listened_is_no_silence),
        cmocka_unit_test(a_collective_without_progress_is_reported),
        cmocka_unit_test(a_lost_stage_is_named_with_the_message_that_it_misses),
        cmocka_unit_test(a_lost_rank_of_a_tensor_group_is_named),
        cmocka_unit_test(an_exit_message_has_file_and_hint),
        cmocka_unit_test(a_rank_that_signed_off_is_not_lost),
        cmocka_unit_test(small_things_go_round),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
