/* How a device takes operations, for tests/unit/ops.c: work that is issued again, and types that it has
 * not. */
#ifndef MEOPT_TESTS_UNIT_OPS_ISSUE_H
#define MEOPT_TESTS_UNIT_OPS_ISSUE_H

#include "tests/unit/ops_trial.h"

/* The same work issued again: a card keeps it as a graph. */
struct again {
    struct device *device;
    const float *x;
    float *sums, *host;
    int64_t rows, columns;
    bool reads; /* what no graph can hold */
};
static void sum_again(void *context)
{
    const struct again *a = context;
    a->device->ops->fill(a->device, a->sums, 0, (size_t)a->columns * sizeof *a->sums);
    a->device->ops->column_sums(a->device, F32, a->x, a->sums, a->rows, a->columns);
    if (a->reads) a->device->download(a->device, a->host, a->sums, (size_t)a->columns * sizeof *a->sums);
}
static void again_once(struct again *a, int32_t part, float first)
{
    for (int64_t i = 0; i < a->columns; i++) a->host[i] = -1;
    device_issue(a->device, &(struct device_work){.owner = a, .count = a->rows, .part = part}, sum_again, a);
    if (!a->reads) a->device->download(a->device, a->host, a->sums, (size_t)a->columns * sizeof *a->sums);
    for (int64_t i = 0; i < a->columns; i++)
        assert_float_equal(a->host[i], (float)a->rows * (first + (float)i), 0);
}
static void work_issued_again_is_done_again(void **state)
{
    enum { ROWS = 70, COLUMNS = 300, LARGE = 3 };
    const char *spec = getenv("MEOPT_TEST_DEVICE") ? getenv("MEOPT_TEST_DEVICE") : "cpu";
    struct device *device;
    struct error err;
    assert_int_equal(device_open(&device, spec, 0, &err), 0);
    size_t count = ROWS * COLUMNS;
    float *values = malloc(LARGE * count * sizeof *values), *host = malloc(COLUMNS * sizeof *host);
    float *x = device_alloc(device, MEMORY_ACTIVATIONS, LARGE * count * sizeof *x, "x", &err);
    float *sums = device_alloc(device, MEMORY_ACTIVATIONS, LARGE * COLUMNS * sizeof *sums, "sums", &err);
    struct again a = {device, x, sums, host, ROWS, COLUMNS, false};
    for (int turn = 0; turn < 6; turn++) { /* as is, recorded, started; then with other values */
        for (size_t i = 0; i < count; i++) values[i] = (float)turn + (float)(i % COLUMNS);
        device->upload(device, x, values, count * sizeof *values);
        again_once(&a, 1, (float)turn);
    }
    /* more scratch is taken, and the place of the old is given away */
    size_t scratch = device->use.current_bytes[MEMORY_WORKSPACE];
    device->ops->column_sums(device, F32, x, sums, ROWS, LARGE * COLUMNS);
    uint8_t *others = device_alloc(device, MEMORY_WORKSPACE, scratch ? scratch : 64, "others", &err),
            *kept = malloc(scratch ? scratch : 64);
    device->ops->fill(device, others, 0x55, scratch ? scratch : 64);
    for (int turn = 0; turn < 3; turn++) again_once(&a, 1, 5);
    device->download(device, kept, others, scratch ? scratch : 64);
    for (size_t i = 0; i < (scratch ? scratch : 64); i++) assert_int_equal(kept[i], 0x55);
    a.reads = true;
    for (int turn = 0; turn < 3; turn++) again_once(&a, 2, 5);
    a.reads = false;
    for (int turn = 0; turn < 3; turn++) again_once(&a, 3, 5);
    assert_int_equal(device_check(device, &err), 0);
    free(kept);
    free(values);
    free(host);
    device_close(device);
}

static void a_type_without_operations_is_reported_and_nothing_is_done(void **state)
{
    enum { N = 64 };
    const char *spec = getenv("MEOPT_TEST_DEVICE") ? getenv("MEOPT_TEST_DEVICE") : "cpu";
    float host[N];
    for (int what = 0; what < 5; what++) {
        struct device *device;
        struct error err;
        assert_int_equal(device_open(&device, spec, 0, &err), 0);
        float *x = device_alloc(device, MEMORY_DATA, sizeof host, "x", &err),
              *y = device_alloc(device, MEMORY_DATA, sizeof host, "y", &err);
        for (int i = 0; i < N; i++) host[i] = 7;
        device->upload(device, y, host, sizeof host);
        device->sync(device);
        struct gemm g = {.m = 4, .n = 4, .k = 4, .a = x, .b = x, .c = y, .lda = 4, .ldb = 4, .ldc = 4};
        g.ab_type = what ? DTYPE_F32 : DTYPE_F16;
        g.c_type = DTYPE_F64;
        struct layernorm norm = {DTYPE_F16,   .x_type = DTYPE_F16, .x = x, .x_stride = 8,
                                 .weight = x, .bias = x,           .y = y, .R = 1,
                                 .D = 8};
        struct attention attention = {DTYPE_I8, .qkv = x, .out = y, .lse = y, .B = 1,
                                      .N = 2,   .H = 1,   .G = 1,   .dh = 4};
        if (what < 2) device->ops->gemm(device, &g);
        if (what == 2) device->ops->cast(device, x, F32, y, DTYPE_F16, N);
        if (what == 3) device->ops->layernorm_apply(device, &norm);
        if (what == 4) device->ops->attention_forward(device, &attention);
        assert_int_equal(device_check(device, &err), EXIT_CONFIG);
        assert_non_null(strstr(err.what, dtype_name(what == 1   ? DTYPE_F64
                                                    : what == 4 ? DTYPE_I8
                                                                : DTYPE_F16)));
        memset(&device->pending, 0, sizeof device->pending);
        device->download(device, host, y, sizeof host);
        for (int i = 0; i < N; i++) assert_float_equal(host[i], 7, 0);
        device_close(device);
    }
}

#endif
