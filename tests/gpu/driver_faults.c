/* The simulated driver (tests/gpu/fake_driver.cc) detects misuse. This test commits each error that a real
 * driver answers with an error, undefined results or nothing, and expects it to be detected. Otherwise the
 * tests on the simulated driver would not prove that the code avoids these errors. */
#include "core/device/device.h"
#include "core/device/gpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { INVALID_VALUE = 1, ILLEGAL_ADDRESS = 700, COUNT = 256 };

static bool cuda(void) { return strncmp(getenv("MEOPT_TEST_DEVICE"), "cuda", 4) == 0; }

static struct device *opened(int ordinal)
{
    struct device *device;
    struct error err = {0};
    char text[16];
    if (!getenv("MEOPT_TEST_DEVICE")) skip();
    snprintf(text, sizeof text, "%s:%d", cuda() ? "cuda" : "hip", ordinal);
    if (device_open(&device, text, 0, &err)) fail_msg("%s", err.what);
    return device;
}

/* One operation of a kernel; "": all is well. */
static const char *cast(struct device *device, char *p, struct error *err)
{
    *err = (struct error){0};
    device->ops->cast(device, p, DTYPE_F32, p + COUNT * 4, DTYPE_BF16, COUNT);
    device->sync(device);
    return device_check(device, err) ? err->what : "";
}

static void an_image_that_is_freed_while_its_module_is_loaded_is_found(void **state)
{
    struct device *device = opened(0);
    struct error err;
    char *image = gpu_of(device)->image, kept[9];
    char *p = device_alloc(device, MEMORY_DATA, COUNT * 6, "x", &err);
    assert_non_null(image); /* kept as long as the module is */
    assert_string_equal(cast(device, p, &err), "");
    memcpy(kept, image, sizeof kept);
    memset(image, 0xDD, sizeof kept); /* as memory that others have by now */
    assert_non_null(strstr(cast(device, p, &err), "illegal memory access"));
    memcpy(image, kept, sizeof kept);
    device_free(device, p);
    device_close(device);
}

static int launch(struct device *device, void *p, unsigned threads, unsigned rows)
{
    uint32_t seed = 7;
    int64_t n = COUNT;
    void *function = gpu_function(device, "sentinel");
    gpu_current(device);
    return gpu_of(device)->driver.launch(function, 1, 1, 1, threads, rows, 1, 0, gpu_of(device)->stream,
                                         (void *[]){&p, &seed, &n}, NULL);
}

static void more_threads_than_kernels_are_bound_to_are_refused(void **state)
{
    struct device *device = opened(0);
    uint32_t zero[COUNT] = {0}, found[COUNT];
    void *p = device_alloc(device, MEMORY_DATA, sizeof zero, "x", NULL);
    assert_true(GPU_THREADS <= 256);
    device->upload(device, p, zero, sizeof zero);
    assert_int_equal(launch(device, p, 512, 1), INVALID_VALUE);
    assert_int_equal(launch(device, p, 256, 2), INVALID_VALUE);
    device->download(device, found, p, sizeof found);
    assert_memory_equal(found, zero, sizeof zero);
    assert_int_equal(launch(device, p, 256, 1), 0);
    device->download(device, found, p, sizeof found);
    assert_int_not_equal(found[COUNT - 1], 0);
    device_free(device, p);
    device_close(device);
}

static void work_for_a_card_that_is_not_this_threads_is_refused(void **state)
{
    setenv("FAKE_CARDS", "2", 1);
    struct device *first = opened(0), *other = opened(1);
    struct driver *d = &gpu_of(first)->driver;
    char *p = device_alloc(first, MEMORY_DATA, 64, "x", NULL);
    gpu_current(other); /* and not back to the first */
    assert_int_not_equal(d->fill(p, 0, 64, gpu_of(first)->stream), 0);
    assert_int_not_equal(d->stream_sync(gpu_of(first)->stream), 0);
    gpu_current(first);
    assert_int_equal(d->fill(p, 0, 64, gpu_of(first)->stream), 0);
    assert_int_equal(d->stream_sync(gpu_of(first)->stream), 0);
    device_free(first, p);
    device_close(other);
    device_close(first);
    unsetenv("FAKE_CARDS");
}

static void a_number_that_no_maker_gave_is_no_attribute(void **state)
{
    struct device *device = opened(0);
    struct driver *d = &gpu_of(device)->driver;
    int units = cuda() ? DRIVER_CUDA_UNITS : DRIVER_HIP_UNITS, value;
    assert_int_equal(d->attribute(&value, units, gpu_of(device)->handle), 0);
    assert_int_not_equal(
        d->attribute(&value, cuda() ? DRIVER_HIP_UNITS : DRIVER_CUDA_UNITS, gpu_of(device)->handle), 0);
    assert_int_not_equal(d->attribute(&value, 9999, gpu_of(device)->handle), 0);
    device_close(device);
}

/* What one queue writes and another reads, with and without the wait between them, when the first is slow. */
static int64_t read_sidecar(bool wait)
{
    setenv("FAKE_LATE", "2", 1); /* the first stream next to the device's own */
    struct device *device = opened(0);
    const struct device_streams *q = device->streams;
    struct device_stream *writes, *reads;
    struct device_event *written;
    struct error err;
    int64_t *x = device_alloc(device, MEMORY_DATA, 64, "x", &err), *host = q->host_allocate(device, 64),
            value = 7;
    assert_true(x && host);
    assert_int_equal(q->create(device, &writes, &err) || q->create(device, &reads, &err) ||
                         q->event_create(device, &written, &err),
                     0);
    device->ops->fill(device, x, 0, 64);
    device->sync(device);
    q->upload(device, writes, x, &value, sizeof value);
    q->record(device, written, writes);
    if (wait) q->wait(device, reads, written);
    q->download(device, reads, host, x, sizeof *host);
    q->finish(device, reads);
    value = *host;
    q->event_destroy(device, written);
    q->destroy(device, writes);
    q->destroy(device, reads);
    q->host_free(device, host);
    device_free(device, x);
    device_close(device);
    unsetenv("FAKE_LATE");
    return value;
}
static void a_missing_wait_between_two_queues_is_found(void **state)
{
    assert_int_equal(read_sidecar(true), 7);
    assert_int_equal(read_sidecar(false), 0);
}

static void a_driver_with_no_cards_opens_none(void **state)
{
    struct device *device;
    struct error err = {0};
    if (!getenv("MEOPT_TEST_DEVICE")) skip();
    setenv("FAKE_CARDS", "0", 1);
    for (int empty = 0; empty < 2; empty++) { /* an error of the driver's, or success and 0 */
        if (empty) setenv("FAKE_EMPTY", "1", 1);
        assert_int_equal(device_open(&device, getenv("MEOPT_TEST_DEVICE"), 0, &err), EXIT_NO_CARD);
        assert_true(err.what[0]);
    }
    unsetenv("FAKE_EMPTY");
    unsetenv("FAKE_CARDS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_image_that_is_freed_while_its_module_is_loaded_is_found),
        cmocka_unit_test(more_threads_than_kernels_are_bound_to_are_refused),
        cmocka_unit_test(work_for_a_card_that_is_not_this_threads_is_refused),
        cmocka_unit_test(a_number_that_no_maker_gave_is_no_attribute),
        cmocka_unit_test(a_missing_wait_between_two_queues_is_found),
        cmocka_unit_test(a_driver_with_no_cards_opens_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
