/* Ranks of one run as threads of a test. */
#ifndef MEOPT_TESTS_RANKS_THREADS_H
#define MEOPT_TESTS_RANKS_THREADS_H

#include "core/base/memory.h"
#include "core/comm/comm.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

/* Runs `size` ranks to their end: `run` gets the rank's item, of `each` bytes, whose struct comm_options at
 * options_at is joined to the others. */
static inline void run_ranks(int size, void *items, size_t each, size_t options_at, void *(*run)(void *))
{
    pthread_t *threads = xcalloc((size_t)size, sizeof *threads);
    int shared = -1;
    struct error err = {0};
    if (size > 1 && comm_local_create(size, &shared, &err)) fail_msg("%s", err.what);
    for (int r = 0; r < size; r++) {
        char *item = (char *)items + (size_t)r * each;
        struct comm_options *options = (struct comm_options *)(void *)(item + options_at);
        options->rank = r;
        options->size = size;
        options->shared = shared;
    }
    for (int r = 0; r < size; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, run, (char *)items + (size_t)r * each), 0);
    for (int r = 0; r < size; r++) pthread_join(threads[r], NULL);
    if (shared >= 0) close(shared);
    free(threads);
}

#endif
