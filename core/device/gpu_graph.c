/* Operations as graphs: see device.h's issue. The driver records a stream's work and launches it as a whole.
 *
 * The first time operations are issued directly: libraries choose algorithms, scratch grows. The second time
 * they are recorded; from then on the graph is launched. Allocating or freeing memory invalidates every
 * graph. A failed recording has executed nothing: its operations are issued one by one, and so is everything
 * later.
 */
#include "core/device/gpu.h"
#include "core/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4096, TRIAL_BYTES = 64 };

struct graph {
    struct device_work work;
    bool issued;
    void *executable;
};
struct graphs {
    struct graph *list;
    size_t count;
    bool off;
    char why[200];
};

static bool graphs_unwanted(void)
{
    const char *wanted = getenv("MEOPT_GRAPHS");
    return wanted && strcmp(wanted, "none") == 0;
}
static bool graphs_known(const struct driver *d)
{
    return d->capture_begin && d->capture_end && d->graph_create && d->graph_launch && d->graph_destroy &&
           d->graph_release;
}

const char *graphs_off(const struct gpu *gpu)
{
    if (gpu->graphs) return gpu->graphs->off ? gpu->graphs->why : NULL;
    return graphs_unwanted() ? "MEOPT_GRAPHS=none" : N_("the driver has none");
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

bool gpu_refused(struct device *dev, const struct gemm *g, const char *library, int code)
{
    struct gpu *gpu = gpu_of(dev);
    log_warn("%s: %s refuses a GEMM of %lld x %lld x %lld in %s with error %d: this shape now uses "
             "the next implementation, in the end MEOpt's own kernel",
             dev->name, library, (long long)g->m, (long long)g->n, (long long)g->k, dtype_name(g->ab_type),
             code);
    gpu->anew = gpu->recording;
    return gpu_unrecordable(dev);
}

static void turn_off(struct graphs *all, const char *why)
{
    all->off = true;
    snprintf(all->why, sizeof all->why, "%.190s", why);
}

/* Records the operations, which do not start. NULL: graphs are off from now on. */
static void *record(struct device *dev, void (*run)(void *), void *context)
{
    struct gpu *gpu = gpu_of(dev);
    const struct driver *d = &gpu->driver;
    void *graph = NULL, *executable = NULL;
    char text[160];
    int code = d->capture_begin(gpu->stream, DRIVER_CAPTURE_THREAD_LOCAL);
    if (!code) {
        gpu->recording = true;
        run(context);
        gpu->recording = false;
        code = d->capture_end(gpu->stream, &graph);
    }
    if (!code && !dev->pending.code && graph) code = d->graph_create(&executable, graph, 0);
    if (graph) d->graph_destroy(graph);
    if (code || dev->pending.code || !executable) {
        if (!gpu->anew)
            turn_off(gpu->graphs,
                     dev->pending.code ? dev->pending.what : driver_text(d, code, text, sizeof text));
        gpu->anew = false;
        if (executable) d->graph_release(executable);
        executable = NULL;
        dev->pending.code = 0;
    }
    return executable;
}

/* A trial with as many operations as a pass over a large tower, because some drivers accept only small
 * recordings (DTK 26.04 on a K100 AI: hipErrorInvalidValue). */
struct trial {
    struct device *device;
    void *p;
};
static void try_out(void *context)
{
    enum { OPERATIONS = 512 };
    const struct trial *t = context;
    struct gpu *gpu = gpu_of(t->device);
    for (int i = 0; i < OPERATIONS; i++)
        if (gpu_fail(t->device, gpu->driver.fill(t->p, 0, TRIAL_BYTES, gpu->stream), "filling")) return;
}

struct graphs *graphs_open(struct device *dev)
{
    struct gpu *gpu = gpu_of(dev);
    const struct driver *d = &gpu->driver;
    struct trial trial = {.device = dev};
    char text[160];
    if (!graphs_known(d) || graphs_unwanted()) return NULL;
    struct graphs *all = gpu->graphs = calloc(1, sizeof *all);
    if (!all || d->allocate(&trial.p, TRIAL_BYTES)) return all;
    void *executable = record(dev, try_out, &trial);
    int code = executable ? d->graph_launch(executable, gpu->stream) : 0;
    if (!code) code = d->stream_sync(gpu->stream);
    if (executable) d->graph_release(executable);
    if (code) turn_off(all, driver_text(d, code, text, sizeof text));
    d->deallocate(trial.p);
    return all;
}

void gpu_issue(struct device *dev, const struct device_work *work, void (*run)(void *), void *context)
{
    struct gpu *gpu = gpu_of(dev);
    struct graphs *all = gpu->graphs;
    if (dev->pending.code) return;
    gpu_current(dev);
    if (all && gpu->stale) forget(gpu);
    struct graph *g = all && !all->off ? find(all, work) : NULL;
    if (g && g->issued && !g->executable) {
        g->executable = record(dev, run, context);
        if (!g->executable && all->off)
            log_warn("%s: graphs are off from now on, the host launches each operation: %s", dev->name,
                     all->why);
    }
    if (g && g->executable) {
        gpu_fail(dev, gpu->driver.graph_launch(g->executable, gpu->stream), "starting a graph");
        return;
    }
    if (g) g->issued = true;
    run(context);
}
