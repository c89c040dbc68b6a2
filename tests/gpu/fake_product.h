/* Shared by the stand-ins for GEMM libraries: values of two types, and the driver's way to wait for a stream.
 * The includer names its number of fp32 F32. */
#ifndef MEOPT_TESTS_GPU_FAKE_PRODUCT_H
#define MEOPT_TESTS_GPU_FAKE_PRODUCT_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static int (*wait_for)(void *stream);

/* 0 when the driver that the variable names, or else DTK's, is not loaded, or has no such entry */
static int find_wait(const char *variable, const char *name)
{
    const char *named = getenv(variable);
    void *driver = dlopen(named ? named : "libgalaxyhip.so.5", RTLD_NOW | RTLD_NOLOAD),
         *entry = driver ? dlsym(driver, name) : 0;
    memcpy(&wait_for, &entry, sizeof entry);
    return entry != 0;
}

static float load(const void *p, int type, int64_t at)
{
    if (type == F32) return ((const float *)p)[at];
    uint32_t bits = (uint32_t)((const uint16_t *)p)[at] << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static void store(void *p, int type, int64_t at, float x)
{
    uint32_t bits;
    if (type == F32) {
        ((float *)p)[at] = x;
        return;
    }
    memcpy(&bits, &x, sizeof bits);
    ((uint16_t *)p)[at] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
