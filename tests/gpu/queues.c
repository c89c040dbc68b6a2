/* Streams and events of a device ($MEOPT_TEST_DEVICE, else the CPU). Work that waits for an event starts
 * after it, and other work does not wait, whichever stream is slow (FAKE_LATE of
 * tests/gpu/fake_driver.cc). Copies work in both directions. A device works from every thread, in parallel
 * with a second device. A card reports its index and count. */
#include "core/device/driver.h"
#include "core/device/side_stream.h"
#include "tests/card.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { BYTES = 20 << 20, QUEUES = 4 }; /* more than what is staged at a time */

static const char *spec(void)
{
    const char *wanted = getenv("MEOPT_TEST_DEVICE");
    return wanted ? wanted : "cpu";
}
static struct device *opened(const char *which)
{
    struct device *device;
    struct error err = {0};
    if (device_open(&device, which, 0, &err)) fail_msg("%s", err.what);
    return device;
}
static void checked(struct device *device)
{
    struct error err = {0};
    if (device_check(device, &err)) fail_msg("%s", err.what);
}

/* The device's own stream fills x with 1, 2, ..., a second one sends x to the host each time, and the own one
 * continues after that; then the other way round, from host to x. */
static void ping_pong(struct device *device)
{
    const struct device_streams *q = device->streams;
    struct device_stream *queue;
    struct device_event *there, *gone;
    struct error err;
    assert_int_equal(q->create(device, &queue, &err), 0);
    assert_int_equal(q->event_create(device, &there, &err), 0);
    assert_int_equal(q->event_create(device, &gone, &err), 0);
    char *x = device_alloc(device, MEMORY_DATA, BYTES, "x", &err), *y = malloc(BYTES),
         *host = q->host_allocate(device, BYTES);
    assert_true(x && y && host);
    for (int turn = 1; turn < 4; turn++) {
        device->ops->fill(device, x, turn, BYTES);
        q->record(device, there, NULL);
        q->wait(device, queue, there);
        q->download(device, queue, host, x, BYTES);
        q->record(device, gone, queue);
        q->wait(device, NULL, gone);
        device->ops->fill(device, x, 100, BYTES);
        q->finish_event(device, gone);
        for (size_t i = 0; i < BYTES; i += 4095) assert_int_equal(host[i], turn);

        memset(y, 10 + turn, BYTES);
        q->record(device, there, NULL);
        q->wait(device, queue, there);
        q->upload(device, queue, x, y, BYTES);
        memset(y, 0, BYTES); /* the source is the caller's again */
        q->record(device, gone, queue);
        q->wait(device, NULL, gone);
        device->download(device, y, x, BYTES);
        for (size_t i = 0; i < BYTES; i += 4095) assert_int_equal(y[i], 10 + turn);
    }
    q->finish(device, queue);
    checked(device);
    q->host_free(device, host);
    q->event_destroy(device, there);
    q->event_destroy(device, gone);
    q->destroy(device, queue);
    device_free(device, x);
    free(y);
}

static void what_waits_for_an_event_begins_after_it(void **state)
{
    for (int late = 0; late < 3; late++) {
        char text[8];
        snprintf(text, sizeof text, "%d", late);
        setenv("FAKE_LATE", text, 1);
        struct device *device = opened(spec());
        ping_pong(device);
        device_close(device);
    }
    unsetenv("FAKE_LATE");
}

static void a_device_has_any_number_of_queues(void **state)
{
    for (int late = 1; late < QUEUES + 2; late++) {
        char text[8];
        snprintf(text, sizeof text, "%d", late);
        setenv("FAKE_LATE", text, 1);
        struct device *device = opened(spec());
        const struct device_streams *q = device->streams;
        struct device_stream *queues[QUEUES];
        struct device_event *done[QUEUES];
        struct error err;
        int64_t *x = device_alloc(device, MEMORY_DATA, 64, "x", &err), *host = q->host_allocate(device, 64);
        assert_true(x && host);
        for (int i = 0; i < QUEUES; i++) {
            assert_int_equal(q->create(device, &queues[i], &err), 0);
            assert_int_equal(q->event_create(device, &done[i], &err), 0);
        }
        for (int64_t i = 0; i < 3 * QUEUES; i++) { /* each overwrites what the one before wrote */
            int at = (int)(i % QUEUES);
            if (i) q->wait(device, queues[at], done[(i - 1) % QUEUES]);
            q->upload(device, queues[at], x, &i, sizeof i);
            q->record(device, done[at], queues[at]);
        }
        q->wait(device, queues[0], done[QUEUES - 1]);
        q->download(device, queues[0], host, x, sizeof *host);
        q->finish(device, queues[0]);
        assert_int_equal(*host, 3 * QUEUES - 1);
        checked(device);
        for (int i = 0; i < QUEUES; i++) {
            q->event_destroy(device, done[i]);
            q->destroy(device, queues[i]);
        }
        q->host_free(device, host);
        device_close(device);
    }
    unsetenv("FAKE_LATE");
}

/* A device next to the first; false: the machine has one card. */
static bool has_second(void)
{
    if (!strchr(spec(), ':') || card_is_emulated()) return true;
    struct device *device = opened(spec());
    int count = device_count(device);
    device_close(device);
    return count > 1;
}

static void *work(void *context)
{
    ping_pong(context);
    return NULL;
}
static void a_device_works_from_every_thread_in_parallel_with_another(void **state)
{
    char second[16];
    snprintf(second, sizeof second, "%s", spec());
    char *colon = strchr(second, ':');
    if (!has_second()) skip();
    setenv("FAKE_CARDS", "2", 1);
    if (colon) strcpy(colon, ":1");
    struct device *first = opened(spec()), *other = opened(second);
    pthread_t threads[2];
    ping_pong(first); /* the card that was opened last is current */
    assert_int_equal(pthread_create(&threads[0], NULL, work, first), 0);
    assert_int_equal(pthread_create(&threads[1], NULL, work, other), 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    ping_pong(other);
    checked(first);
    checked(other);
    device_close(first);
    device_close(other);
    unsetenv("FAKE_CARDS");
}

struct side_stream_use {
    struct device *device;
    struct side_stream *lane;
};
static void *use_side_stream(void *context)
{
    const struct side_stream_use *use = context;
    struct device *device = use->device;
    struct side_stream *lane = use->lane;
    char *host = device->streams->host_allocate(device, 64);
    void *x = device_alloc(device, MEMORY_DATA, 64, "x", NULL);
    int64_t failed = !host || !x;
    if (!failed) {
        memset(host, 7, 64);
        failed = side_stream_follow(lane, side_stream_mark(lane)) || side_stream_upload(lane, x, host, 64);
        memset(host, 0, 64);
        failed = failed || side_stream_download(lane, host, x, 64) || side_stream_end(lane);
        while (!failed && side_stream_ended(lane) == SIDE_STREAM_BUSY) usleep(100);
        failed = failed || side_stream_ended(lane) || host[63] != 7;
    }
    device_free(device, x);
    device->streams->host_free(device, host);
    return (void *)(intptr_t)failed;
}
/* The card of a thread is what it used last: another one, or none. */
static void a_lane_works_from_a_thread_that_had_another_card(void **state)
{
    char second[16];
    void *failed;
    struct side_stream *lane;
    struct error err = {0};
    pthread_t thread;
    snprintf(second, sizeof second, "%s", spec());
    if (!strchr(second, ':') || !has_second()) skip();
    strcpy(strchr(second, ':'), ":1");
    setenv("FAKE_CARDS", "2", 1);
    struct device *other = opened(second), *first = opened(spec());
    if (side_stream_open(&lane, other, &err)) fail_msg("%s", err.what);
    struct side_stream_use use = {other, lane};
    first->sync(first);
    assert_null(use_side_stream(&use));
    assert_int_equal(pthread_create(&thread, NULL, use_side_stream, &use), 0);
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
    side_stream_close(lane);
    device_close(first);
    device_close(other);
    unsetenv("FAKE_CARDS");
}

static void a_card_is_asked_for_what_its_maker_numbered(void **state)
{
    struct error err = {0};
    struct driver driver;
    struct card_info card;
    if (!card_is_emulated()) skip();
    setenv("FAKE_UNITS", "72", 1);
    if (driver_open(&driver, strncmp(spec(), "cuda", 4) ? DRIVER_HIP : DRIVER_CUDA, &err) ||
        driver_card(&driver, 0, &card, &err))
        fail_msg("%s", err.what);
    assert_int_equal(card.units, 72);
    assert_string_equal(card.arch, strncmp(spec(), "cuda", 4) ? card.arch : "sm_90");
    unsetenv("FAKE_UNITS");
}

static void a_card_says_its_address_and_how_many_there_are(void **state)
{
    setenv("FAKE_CARDS", "3", 1);
    struct device *device = opened(spec());
    bool card = device->kind == DEVICE_HIP || device->kind == DEVICE_CUDA;
    unsigned domain, bus, slot, function;
    char again[sizeof device->pci];
    if (card) {
        assert_int_equal(sscanf(device->pci, "%x:%x:%x.%x", &domain, &bus, &slot, &function), 4);
        snprintf(again, sizeof again, "%04x:%02x:%02x.%x", domain & 0xffff, bus & 0xff, slot & 0xff,
                 function & 0xf);
        assert_string_equal(device->pci, again);
    } else assert_string_equal(device->pci, "");
    int count = device_count(device);
    device_close(device);
    if (!card) assert_int_equal(count, 1);
    else if (card_is_emulated()) assert_int_equal(count, 3);
    else assert_true(count >= 1);
    unsetenv("FAKE_CARDS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_waits_for_an_event_begins_after_it),
        cmocka_unit_test(a_device_has_any_number_of_queues),
        cmocka_unit_test(a_device_works_from_every_thread_in_parallel_with_another),
        cmocka_unit_test(a_lane_works_from_a_thread_that_had_another_card),
        cmocka_unit_test(a_card_is_asked_for_what_its_maker_numbered),
        cmocka_unit_test(a_card_says_its_address_and_how_many_there_are)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
