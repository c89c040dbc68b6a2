/* A card whose caller has several streams ($MEOPT_TEST_DEVICE, with the driver of tests/gpu): work goes to
 * the stream that is set, after all earlier work, whichever stream is the slow one (FAKE_LATE). */
#include "core/device/driver.h"
#include "tests/optim/optim_table.h"

#include <stdio.h>

enum { STREAMS = 4, STEPS = 6 };

static struct driver driver;
static float gradients[STEPS][COUNT][A];

/* A card by its driver's functions, with memory and streams that the library does not know. */
struct card {
    struct meopt_device *device;
    void *streams[STREAMS], *gradients[COUNT];
};

static void current_card(void)
{
    void *context = NULL;
    if (driver.kind == DRIVER_HIP) assert_int_equal(driver.set_device(0), 0);
    else assert_int_equal(driver.retain(&context, 0) || driver.set_context(context), 0);
}

static void card_open(struct card *c)
{
    struct meopt_error err;
    current_card();
    for (int i = 0; i < 2; i++)
        assert_int_equal(driver.stream_create(&c->streams[i], DRIVER_STREAM_NON_BLOCKING), 0);
    c->streams[2] = MEOPT_STREAM_DEFAULT;
    c->streams[3] = NULL;
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(driver.allocate(&c->gradients[i], sizeof gradients[0][0]), 0);
    int kind = driver.kind == DRIVER_HIP ? MEOPT_DEVICE_HIP : MEOPT_DEVICE_CUDA;
    if (meopt_device_open(&c->device, kind, 0, NULL, c->streams[0], &err)) fail_msg("%s", err.message);
}

static void card_close(struct card *c)
{
    meopt_device_close(c->device);
    current_card();
    for (int i = 0; i < COUNT; i++) driver.deallocate(c->gradients[i]);
    for (int i = 0; i < 2; i++) driver.stream_destroy(c->streams[i]);
    if (driver.kind == DRIVER_CUDA) driver.release(0);
}

static struct meopt *optimizer(struct meopt_device *device)
{
    struct meopt_options o;
    struct meopt_error err;
    struct meopt *opt;
    meopt_options_init(&o, sizeof o, MEOPT_LAMB);
    meopt_options_preset(&o, "balanced", &err);
    o.weight_decay = 0.01;
    o.device = device;
    if (meopt_create(&opt, &o, table, COUNT, &err)) fail_msg("%s", err.message);
    fill(start, A, 1, 1);
    assert_int_equal(meopt_import(opt, 0, 0, A, start, &err), 0);
    assert_int_equal(meopt_import(opt, 1, 0, B, start, &err), 0);
    return opt;
}

/* Each tensor's step on a stream of its own, where its gradient arrives; own: the library's stream has no
 * handle, so the gradient has to be there before. */
static void step_on_streams(struct card *c, struct meopt *opt, int step)
{
    struct meopt_error err;
    assert_int_equal(meopt_step_begin(opt, step, 1e-3, 0, &err), 0);
    for (int i = 0; i < COUNT; i++) {
        void *stream = c->streams[(step * COUNT + i) % STREAMS];
        assert_int_equal(meopt_device_stream(c->device, stream, &err), 0);
        current_card();
        assert_int_equal(driver.to_device(c->gradients[i], gradients[step - 1][i], sizeof gradients[0][0],
                                          stream == MEOPT_STREAM_DEFAULT ? NULL
                                          : stream                       ? stream
                                                                         : c->streams[0]),
                         0);
        if (!stream) assert_int_equal(driver.stream_sync(c->streams[0]), 0);
        if (meopt_step_tensor(opt, (size_t)i, c->gradients[i], MEOPT_F32, 1, &err))
            fail_msg("%s", err.message);
    }
    assert_int_equal(meopt_device_stream(c->device, c->streams[step % STREAMS], &err), 0);
    assert_int_equal(meopt_step_end(opt, NULL, &err), 0);
}

static void later_work_follows_the_work_on_the_former_stream(void **state)
{
    struct meopt_error err;
    struct meopt *here = optimizer(NULL);
    for (int step = 1; step <= STEPS; step++) {
        struct meopt_gradient g[COUNT];
        for (int i = 0; i < COUNT; i++) {
            fill(gradients[step - 1][i], A, (uint32_t)(step * COUNT + i), 0.1f);
            g[i] = (struct meopt_gradient){gradients[step - 1][i], MEOPT_F32};
        }
        assert_int_equal(meopt_step(here, step, 1e-3, 1, g, NULL, &err), 0);
    }
    struct buffer expected = saved(here);
    for (int late = -1; late <= STREAMS; late++) {
        char text[8];
        snprintf(text, sizeof text, "%d", late);
        setenv("FAKE_LATE", text, 1);
        struct card c;
        card_open(&c);
        struct meopt *opt = optimizer(c.device);
        for (int step = 1; step <= STEPS; step++) step_on_streams(&c, opt, step);
        struct buffer found = saved(opt);
        assert_int_equal(found.bytes, expected.bytes);
        assert_memory_equal(found.data, expected.data, found.bytes);
        free(found.data);
        meopt_destroy(opt);
        card_close(&c);
    }
    unsetenv("FAKE_LATE");
    free(expected.data);
    meopt_destroy(here);
}

static void a_device_without_streams_refuses_one(void **state)
{
    struct meopt_error err;
    struct meopt_device *device;
    assert_int_equal(meopt_device_open(&device, MEOPT_DEVICE_CPU, 0, NULL, NULL, &err), 0);
    assert_int_equal(meopt_device_stream(device, NULL, &err), 0);
    assert_int_equal(meopt_device_stream(device, MEOPT_STREAM_DEFAULT, &err), MEOPT_BAD_ARGUMENT);
    assert_int_equal(meopt_device_stream(NULL, NULL, &err), MEOPT_BAD_ARGUMENT);
    meopt_device_close(device);
}

int main(void)
{
    const char *spec = getenv("MEOPT_TEST_DEVICE");
    struct error why = {0};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_without_streams_refuses_one),
        cmocka_unit_test(later_work_follows_the_work_on_the_former_stream),
    };
    if (!spec)
        return cmocka_run_group_tests_name("without a card", (const struct CMUnitTest[]){tests[0]}, NULL,
                                           NULL);
    if (driver_open(&driver, strncmp(spec, "cuda", 4) == 0 ? DRIVER_CUDA : DRIVER_HIP, &why)) {
        error_print(&why);
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
