/* A tower with random weights on a device, and arrays there. */
#ifndef MEOPT_TESTS_TRAIN_RANDOM_TOWER_H
#define MEOPT_TESTS_TRAIN_RANDOM_TOWER_H

#include "core/base/memory.h"
#include "core/nn/tower.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static inline const char *device_spec(void)
{
    return getenv("MEOPT_TEST_DEVICE") ? getenv("MEOPT_TEST_DEVICE") : "cpu";
}

static inline void *upload(struct device *device, const void *host, size_t bytes)
{
    struct error err = {0};
    void *p = device_alloc(device, MEMORY_DATA, bytes, "test", &err);
    assert_non_null(p);
    device->upload(device, p, host, bytes);
    return p;
}

/* `count` values between -1 and 1. */
static inline float *noise(struct device *device, int64_t count, uint32_t seed)
{
    float *host = xmalloc((size_t)count * sizeof *host);
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        host[i] = (float)(seed >> 16) / 32768.0f - 1.0f;
    }
    float *p = upload(device, host, (size_t)count * sizeof *p);
    free(host);
    return p;
}

static inline void *downloaded(struct device *device, const void *p, size_t bytes)
{
    void *host = xmalloc(bytes + 1);
    device->sync(device);
    device->download(device, host, p, bytes);
    return host;
}

/* Opens the device and creates the tower. Returns false on device "dry", where there are no values. */
static inline bool random_tower(struct device **device, struct tower **tower, const char *spec,
                                struct model_shape shape, struct tower_options options)
{
    struct error err = {0};
    options.activations_class = MEMORY_ACTIVATIONS;
    if (device_open(device, spec, 0, &err) || model_shape_check(&shape, 0, &err) ||
        tower_create(tower, *device, &shape, &options, &err))
        fail_msg("%s", err.what);
    tower_bind_scratch(*tower,
                       device_alloc(*device, MEMORY_WORKSPACE, (*tower)->scratch_bytes, "scratch", &err));
    if (strncmp(spec, "dry", 3) == 0) return false;
    if (tower_init_random(*tower, 7, false, NULL, NULL, &err)) fail_msg("%s", err.what);
    return true;
}

#endif
