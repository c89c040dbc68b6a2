/* Ranks as threads, each with its own device, for the tests of core/comm. */
#ifndef MEOPT_TESTS_RANKS_DIST_H
#define MEOPT_TESTS_RANKS_DIST_H

#include "core/comm/comm_internal.h"
#include "tests/mentions.h"
#include "tests/ranks/threads.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { MOST = 8, MANY = 64 };

static const char *card;           /* "hip", "cuda", or NULL: the processor */
static bool as_library;            /* comm_options.library */
static int processors_from = MOST; /* ranks from this one on have no card */

struct rank {
    struct comm comm;
    struct comm_options options;
    struct device *device;
    int code;
    struct error err;
    void (*work)(struct rank *);
};

/* What a heartbeat does for ranks that are processes. */
static pthread_barrier_t all_here;
static char handed_round[MANY][512];
static inline int exchange(void *context, const char *name, const void *own, size_t bytes, void *all,
                           struct error *err)
{
    const struct rank *r = context;
    (void)name;
    if (bytes > sizeof handed_round[0]) return error_set(err, EXIT_FAILED, NULL, "%zu bytes", bytes);
    memcpy(handed_round[r->options.rank], own, bytes);
    pthread_barrier_wait(&all_here);
    for (int q = 0; q < r->options.size; q++) memcpy((char *)all + (size_t)q * bytes, handed_round[q], bytes);
    pthread_barrier_wait(&all_here);
    return 0;
}

static inline void *rank_main(void *context)
{
    struct rank *r = context;
    char spec[32];
    snprintf(spec, sizeof spec, card && r->options.rank < processors_from ? "%s:%d" : "cpu", card,
             r->options.rank);
    r->code = device_open(&r->device, spec, 0, &r->err);
    if (!r->code) r->code = comm_open(&r->comm, &r->options, r->device, &r->err);
    if (!r->code) r->code = comm_reserve(&r->comm, 300001, &r->err);
    if (!r->code) {
        r->work(r);
        comm_close(&r->comm);
    }
    for (int c = 0; c < MEMORY_CLASS_COUNT && !r->code; c++)
        if (r->device->use.current_bytes[c]) r->code = -1;
    device_close(r->device);
    return NULL;
}

static inline void as_ranks(int size, void (*work)(struct rank *))
{
    static struct rank ranks[MANY];
    pthread_barrier_init(&all_here, NULL, (unsigned)size);
    for (int r = 0; r < size; r++) {
        ranks[r] = (struct rank){.work = work, .options.library = as_library};
        if (card) ranks[r].options.exchange = exchange, ranks[r].options.context = &ranks[r];
    }
    run_ranks(size, ranks, sizeof *ranks, offsetof(struct rank, options), rank_main);
    for (int r = 0; r < size; r++)
        if (ranks[r].code) fail_msg("rank %d of %d: %d: %s", r, size, ranks[r].code, ranks[r].err.what);
    pthread_barrier_destroy(&all_here);
}

/* An array of the device with these values, and back. */
static inline void *on_device(struct rank *r, const void *values, size_t bytes)
{
    void *p = device_alloc(r->device, MEMORY_GRADIENTS, bytes + 4, "test", &r->err);
    r->device->upload(r->device, p, values, bytes);
    return p;
}
static inline void from_device(struct rank *r, void *values, const void *p, size_t bytes)
{
    r->device->sync(r->device);
    r->device->download(r->device, values, p, bytes);
}

#define CHECK(rank, condition)                                                                               \
    do                                                                                                       \
        if (!(condition) && !(rank)->code) {                                                                 \
            (rank)->code = -2;                                                                               \
            fprintf(stderr, "line %d: not %s (%s)\n", __LINE__, #condition, (rank)->err.what);               \
        }                                                                                                    \
    while (0)

/* As when a rank has died: ends the run soon, from another thread. */
static inline void *tear_down(void *context)
{
    struct rank *r = context;
    usleep(100000);
    comm_abort(&r->comm, EXIT_RANK_LOST);
    return NULL;
}

#endif
