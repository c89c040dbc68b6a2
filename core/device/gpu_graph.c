/* Operations as graphs: see device.h's issue.
 * The driver records what a stream is given and starts all of it at once.
 *
 * The first time operations are issued as they are: libraries choose, scratch grows. The second time they are
 * recorded, from then on the graph is started. Memory that comes or goes makes every graph void. A recording
 * that fails has done nothing: the operations are issued one by one then, and from then on all are.
 */
#include "core/device/gpu.h"
#include "core/base/log.h"

#include <stdlib.h>
#include <string.h>

enum {
    THREAD_LOCAL = 1,
    MOST = 4096
}; /* capture: forbidden calls fail in this thread, other threads are let be */

struct graph {
    struct device_work work;
    bool issued;
    void *executable;
};
struct graphs {
    struct graph *list;
    size_t count;
    bool off;
};

struct graphs *graphs_open(struct device *dev)
{
    const struct driver *d = &gpu_of(dev)->driver;
    const char *wanted = getenv("MEOPT_GRAPHS");
    if (!d->capture_begin || !d->capture_end || !d->graph_create || !d->graph_launch || !d->graph_destroy ||
        !d->graph_release || (wanted && strcmp(wanted, "none") == 0))
        return NULL;
    return calloc(1, sizeof(struct graphs));
}

static void forget(struct gpu *gpu)
{
    struct graphs *all = gpu->graphs;
    bool waited = false;
    for (size_t i = 0; i < all->count; i++) {
        if (!all->list[i].executable) continue;
        if (!waited) gpu->driver.stream_sync(gpu->stream);
        waited = true;
        gpu->driver.graph_release(all->list[i].executable);
    }
    all->count = 0;
    gpu->stale = false;
}

void graphs_close(struct gpu *gpu)
{
    if (!gpu->graphs) return;
    forget(gpu);
    free(gpu->graphs->list);
    free(gpu->graphs);
}

static struct graph *find(struct graphs *all, const struct device_work *work)
{
    for (size_t i = 0; i < all->count; i++)
        if (memcmp(&all->list[i].work, work, sizeof *work) == 0) return &all->list[i];
    if (all->count == MOST) return NULL;
    if ((all->count & (all->count - 1)) == 0) {
        struct graph *list = realloc(all->list, (all->count ? 2 * all->count : 1) * sizeof *list);
        if (!list) return NULL;
        all->list = list;
    }
    all->list[all->count] = (struct graph){.work = *work};
    return &all->list[all->count++];
}

bool gpu_unrecordable(struct device *dev)
{
    if (gpu_of(dev)->recording && !dev->pending.code)
        error_set(&dev->pending, EXIT_FAILED, NULL, "not everything can be recorded");
    return gpu_of(dev)->recording;
}

/* Record; what was recorded has not begun. */
static void *record(struct device *dev, void (*run)(void *), void *context)
{
    struct gpu *gpu = gpu_of(dev);
    const struct driver *d = &gpu->driver;
    void *graph = NULL, *executable = NULL;
    char text[160];
    int code = d->capture_begin(gpu->stream, THREAD_LOCAL);
    if (!code) {
        gpu->recording = true;
        run(context);
        gpu->recording = false;
        code = d->capture_end(gpu->stream, &graph);
    }
    if (!code && !dev->pending.code && graph) code = d->graph_create(&executable, graph, 0);
    if (graph) d->graph_destroy(graph);
    if (code || dev->pending.code || !executable) {
        log_debug("%s: no graphs, operations are issued one by one: %s", dev->name,
                  dev->pending.code ? dev->pending.what : driver_text(d, code, text, sizeof text));
        if (executable) d->graph_release(executable);
        executable = NULL;
        dev->pending.code = 0;
        gpu->graphs->off = true;
    }
    return executable;
}

void gpu_issue(struct device *dev, const struct device_work *work, void (*run)(void *), void *context)
{
    struct gpu *gpu = gpu_of(dev);
    struct graphs *all = gpu->graphs;
    if (dev->pending.code) return;
    gpu_current(dev);
    if (all && gpu->stale) forget(gpu);
    struct graph *g = all && !all->off ? find(all, work) : NULL;
    if (g && g->issued && !g->executable) g->executable = record(dev, run, context);
    if (g && g->executable) {
        gpu_fail(dev, gpu->driver.graph_launch(g->executable, gpu->stream), "starting a graph");
        return;
    }
    if (g) g->issued = true;
    run(context);
}
