/* Batches of token files in tests: what fails ends the test. */
#ifndef MEOPT_TESTS_UNIT_TOKEN_BATCHES_H
#define MEOPT_TESTS_UNIT_TOKEN_BATCHES_H

#include "core/data/data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Opens the data; the next batch is that of `step`. */
static inline struct data *open_data(const struct data_options *o, int64_t step)
{
    struct data *d;
    struct error err;
    if (data_open(&d, o, &err)) fail_msg("%s: %s", err.file, err.what);
    assert_int_equal(data_start(d, step, &err), 0);
    return d;
}

static inline struct data_batch next(struct data *d)
{
    struct data_batch b;
    struct error err;
    if (data_next(d, &b, &err)) fail_msg("%s: %s", err.file, err.what);
    return b;
}

#endif
