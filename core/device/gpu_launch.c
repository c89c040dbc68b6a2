/* What every file of the card's operations uses: the current context, errors, kernels by name, launches and
 * scratch memory. See gpu.h. */
#include "core/device/gpu.h"
#include "core/base/hash.h"

#include <stdio.h>
#include <string.h>

int gpu_fail(struct device *dev, int code, const char *what)
{
    char text[160];
    if (code && !dev->pending.code)
        error_set(&dev->pending, EXIT_FAILED,
                  driver_remedy(&gpu_of(dev)->driver, code,
                                N_("see 'meopt doctor'; the kernel's log (dmesg) says more about a card that "
                                   "was lost")),
                  "%s on %s: %s", what, dev->name,
                  driver_text(&gpu_of(dev)->driver, code, text, sizeof text));
    return code;
}

int gpu_current(struct device *dev)
{
    const struct gpu *gpu = gpu_of(dev);
    if (gpu->dry) return 0;
    return gpu->driver.kind == DRIVER_HIP ? gpu->driver.set_device(gpu->ordinal)
                                          : gpu->driver.set_context(gpu->context);
}

void *gpu_function(struct device *dev, const char *name)
{
    struct gpu *gpu = gpu_of(dev);
    uint32_t hash = fnv1a(name);
    for (uint32_t i = 0; i < 256; i++) {
        struct gpu_kernel *k = &gpu->kernels[(hash + i) & 255];
        if (k->name && strcmp(k->name, name) == 0) return k->function;
        if (k->name) continue;
        int code = gpu->driver.function(&k->function, gpu->module, name);
        if (code) {
            gpu_fail(dev, code, name);
            return NULL;
        }
        k->name = name;
        return k->function;
    }
    return NULL;
}

void gpu_launch_block(struct device *dev, const char *name, int threads, int64_t blocks_x, int64_t blocks_y,
                      void **arguments)
{
    struct gpu *gpu = gpu_of(dev);
    if (dev->pending.code || gpu->dry || blocks_x <= 0 || blocks_y <= 0) return;
    gpu_current(dev);
    void *function = gpu_function(dev, name);
    if (!function) return;
    if (blocks_x > INT32_MAX || blocks_y > GPU_GRID_Y) {
        error_set(&dev->pending, EXIT_FAILED, "reduce train.micro_batch",
                  "%s: a grid of %lld x %lld blocks exceeds the cards' limit", name, (long long)blocks_x,
                  (long long)blocks_y);
        return;
    }
    gpu_fail(dev,
             gpu->driver.launch(function, (unsigned)blocks_x, (unsigned)blocks_y, 1, (unsigned)threads, 1, 1,
                                0, gpu->stream, arguments, NULL),
             name);
}
void gpu_launch(struct device *dev, const char *name, int64_t blocks_x, int64_t blocks_y, void **arguments)
{
    gpu_launch_block(dev, name, GPU_THREADS, blocks_x, blocks_y, arguments);
}

int64_t gpu_blocks(const struct device *dev, int64_t n)
{
    const struct gpu *gpu = dev->state;
    int64_t need = (n + GPU_THREADS - 1) / GPU_THREADS, most = (int64_t)gpu->card.units * 16;
    return need < most ? need : most;
}

void *gpu_reserve(struct device *dev, size_t bytes)
{
    struct gpu *gpu = gpu_of(dev);
    if (dev->pending.code) return NULL;
    if (bytes > gpu->workspace_bytes) {
        dev->sync(dev);
        if (dev->pending.code) return NULL;
        device_free(dev, gpu->workspace);
        gpu->workspace_bytes = 0;
        gpu->workspace = device_alloc(dev, MEMORY_WORKSPACE, bytes, "scratch of operations", &dev->pending);
        if (!gpu->workspace) return NULL;
        gpu->workspace_bytes = bytes;
    }
    return gpu->dry ? NULL : gpu->workspace;
}

char *gpu_version_text(const struct driver *driver, char *text, size_t size)
{
    int v = 0;
    if (driver->version(&v)) snprintf(text, size, N_("of unknown version"));
    else if (driver->kind == DRIVER_HIP)
        snprintf(text, size, "HIP %d.%d.%d", v / 10000000, v / 100000 % 100, v % 100000);
    else snprintf(text, size, "CUDA %d.%d", v / 1000, v % 1000 / 10);
    return text;
}
