/* Nothing in libmeopt ends the process: the k-th allocation fails, for every k, once or for good. Every call
 * returns a status, nothing leaks, and a repeated call does what it would have done. The linker puts the
 * functions below between the library and libc (--wrap). $MEOPT_TEST_DEVICE: the optimizer on a card. */
#include "core/device/device.h"
#include "tests/optim/optim_table.h"

#include <errno.h>
#include <stdatomic.h>

static atomic_int fail_at; /* the how-many-th from now fails; 0: none */
static atomic_bool for_good, failed;
static atomic_long live; /* blocks */

static bool fails(void)
{
    if (failed && for_good) return true;
    if (!fail_at || --fail_at) return false;
    failed = true;
    return true;
}
static void *kept(void *p)
{
    if (p) live++;
    return p;
}

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes) { return fails() ? NULL : kept(__real_malloc(bytes)); }
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes) { return fails() ? NULL : kept(__real_calloc(count, bytes)); }
void *__real_realloc(void *p, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes)
{
    void *q = fails() ? NULL : __real_realloc(p, bytes);
    return p ? q : kept(q);
}
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return fails() ? NULL : kept(__real_aligned_alloc(alignment, bytes));
}
int __real_posix_memalign(void **p, size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **p, size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **p, size_t alignment, size_t bytes)
{
    int code = fails() ? ENOMEM : __real_posix_memalign(p, alignment, bytes);
    if (!code) kept(*p);
    return code;
}
char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
char *__wrap_strdup(const char *text) { return fails() ? NULL : kept(__real_strdup(text)); }
void __real_free(void *p);
void __wrap_free(void *p);
void __wrap_free(void *p)
{
    if (p) live--;
    __real_free(p);
}

/* Everything that an optimizer does in its life. */
static unsigned char stream[1 << 20];
static size_t stream_bytes;
static int stream_write(void *context, const void *data, size_t bytes)
{
    (void)context;
    if (bytes > sizeof stream - stream_bytes) return -1;
    memcpy(stream + stream_bytes, data, bytes);
    stream_bytes += bytes;
    return 0;
}

static int onto_card(struct meopt_device *device, void **p, size_t bytes, struct meopt_error *err)
{
    *p = gradient;
    int status = device ? meopt_device_allocate(device, bytes, p, err) : MEOPT_OK;
    return status || !device ? status : meopt_device_upload(device, *p, gradient, bytes, err);
}

/* A failure of a call, and whether it is done when it is made again. */
static void check_status(int status, const char *call, const struct meopt_error *err)
{
    if (!failed) fail_msg("%s: status %d without a failure: %s", call, status, err->message);
    if (status != MEOPT_NO_MEMORY && status != MEOPT_DEVICE_FAILED)
        fail_msg("%s: status %d (%s), not that there is no memory", call, status, err->message);
    assert_true(strlen(err->message) > 4);
}
#define TRY(call)                                                                                            \
    do {                                                                                                     \
        int status = call;                                                                                   \
        if (status) check_status(status, #call, &err);                                                       \
        if (status && for_good) goto done;                                                                   \
        if (status && (status = call)) fail_msg("again: %s: %d, %s", #call, status, err.message);            \
    } while (0)

static void life(int kind)
{
    struct meopt_error err = {0};
    struct meopt_options o;
    struct meopt_device *device = NULL;
    struct meopt *opt = NULL;
    void *g = NULL;
    double norm;
    int finite;
    static unsigned char record[1 << 17];
    meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
    meopt_options_preset(&o, "balanced", &err);
    o.accumulator = MEOPT_STATE_BF16;
    if (kind != MEOPT_DEVICE_CPU) TRY(meopt_device_open(&device, kind, 0, NULL, NULL, &err));
    o.device = device;
    fill(gradient, A, 3, 0.1f);
    TRY(meopt_create(&opt, &o, table, COUNT, &err));
    TRY(meopt_import(opt, 0, 0, A, gradient, &err));
    TRY(meopt_import(opt, 1, 0, B, gradient, &err));
    TRY(onto_card(device, &g, sizeof gradient, &err));
    struct meopt_gradient both[COUNT] = {{g, MEOPT_F32}, {g, MEOPT_F32}};
    TRY(meopt_step(opt, 1, 1e-3, 1, both, NULL, &err));
    TRY(meopt_accumulate(opt, 0, g, MEOPT_F32, 0.5, &err));
    both[0].data = NULL;
    TRY(meopt_gradient_norm(opt, both, &norm, &finite, &err));
    TRY(meopt_step_begin(opt, 2, 1e-3, 0, &err));
    TRY(meopt_step_tensors(opt, (size_t[]){0, 1}, both, 2, 1, &err));
    TRY(meopt_step_end(opt, NULL, &err));
    TRY((stream_bytes = 0, meopt_save(opt, stream_write, NULL, &err)));
    TRY(meopt_load(opt, stream, stream_bytes, &err));
    assert_true(meopt_state_bytes(opt, 0) <= sizeof record);
    TRY(meopt_state_save(opt, 0, record, meopt_state_bytes(opt, 0), &err));
    TRY(meopt_state_load(opt, 0, record, meopt_state_bytes(opt, 0), &err));
    TRY(meopt_export(opt, 0, 0, A, start, &err));
    both[0].data = g;
    TRY(meopt_step(opt, 3, 1e-3, 1, both, NULL, &err));
done:
    meopt_destroy(opt);
    if (device) meopt_device_release(device, g);
    if (device) meopt_device_close(device);
}

static int device_kind(void)
{
    const char *device = getenv("MEOPT_TEST_DEVICE");
    return !device ? MEOPT_DEVICE_CPU : strncmp(device, "hip", 3) == 0 ? MEOPT_DEVICE_HIP : MEOPT_DEVICE_CUDA;
}

static void an_optimizer_reports_every_failed_allocation(void **state)
{
    static unsigned char undisturbed[sizeof stream];
    int kind = device_kind(), seen = 0;
    life(kind);
    size_t bytes = stream_bytes;
    memcpy(undisturbed, stream, bytes);
    for (int good = 0; good < 2; good++)
        for (int k = 1;; k++) {
            long before = live;
            for_good = good;
            failed = false;
            fail_at = k;
            life(kind);
            bool was = failed;
            fail_at = 0;
            failed = false;
            if (live != before) fail_msg("allocation %d fails: %ld blocks are left", k, live - before);
            if (!was) break;
            seen++;
            if (good) continue;
            assert_int_equal(stream_bytes, bytes);
            if (memcmp(stream, undisturbed, bytes) != 0)
                fail_msg("allocation %d failed once: the state is another", k);
        }
    print_message("%d failures\n", seen);
    assert_true(seen > 40);
}

/* GEMMs of the CPU with their scratch memory; returns 0, or the code that the device reports. */
static int products(struct error *err)
{
    enum { N = 24 };
    static float x[N * N], y[N * N], bias[N];
    struct device *device;
    int code = device_open(&device, "cpu", 0, err);
    if (code) return code;
    for (int i = 0; i < N * N; i++) x[i] = (float)(i % 5);
    for (int i = 0; i < 3; i++) {
        struct gemm g = {.m = N, .n = N, .k = N, .a = x, .b = x, .c = y, .lda = N, .ldb = N, .ldc = N};
        g.ab_type = g.c_type = DTYPE_F32;
        g.alpha = i ? 0.5f : 1;
        g.beta = i == 2 ? 1.0f : 0;
        g.bias = i ? bias : NULL;
        device->ops->gemm(device, &g);
    }
    device->ops->column_sums(device, DTYPE_F32, x, bias, N, N);
    code = device_check(device, err);
    device_close(device);
    return code;
}

static void a_failed_gemm_is_reported_by_the_device(void **state)
{
    struct error err = {0};
    int seen = 0;
    assert_int_equal(products(&err), 0);
    for (int k = 1;; k++) {
        long before = live;
        for_good = failed = false;
        fail_at = k;
        memset(&err, 0, sizeof err);
        int code = products(&err);
        bool was = failed;
        fail_at = 0;
        if (live != before) fail_msg("allocation %d fails: %ld blocks are left", k, live - before);
        if (!was) break;
        seen++;
        if (code != EXIT_HOST_MEMORY)
            fail_msg("allocation %d fails, the device reports %d %s", k, code, err.what);
        assert_true(strlen(err.what) > 8);
    }
    print_message("%d failures\n", seen);
    assert_true(seen >= 3); /* the device, its state, its scratch */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_optimizer_reports_every_failed_allocation),
        cmocka_unit_test(a_failed_gemm_is_reported_by_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
