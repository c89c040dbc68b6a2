/* What tests/gpu/fake_nccl.cc asks the driver of the cards (tests/gpu/fake_driver.cc), which the program has
 * loaded. */
#ifndef MEOPT_TESTS_GPU_FAKE_NCCL_DRIVER_H
#define MEOPT_TESTS_GPU_FAKE_NCCL_DRIVER_H

#include <cstddef>
#include <cstdlib>
#include <dlfcn.h>

static void *driver(const char *name)
{
#ifdef FAKE_CUDA
    static void *library = dlopen(getenv("MEOPT_CUDA_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
#else
    static void *library = dlopen(getenv("MEOPT_HIP_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
#endif
    return dlsym(library, name);
}
static int current_card()
{
    static auto f = (int (*)())driver("fake_driver_card");
    return f();
}
static int stream_card(void *stream)
{
    static auto f = (int (*)(void *))driver("fake_driver_stream_card");
    return f(stream);
}
static bool inside(const void *p, size_t bytes)
{
    static auto f = (int (*)(const void *, size_t))driver("fake_driver_inside");
    return f(p, bytes);
}
static int give(void *stream, void (*begin)(void *), int (*ended)(void *), void *context)
{
    static auto f = (int (*)(void *, void (*)(void *), int (*)(void *), void *))driver("fake_driver_give");
    return f(stream, begin, ended, context);
}

#endif
