/* Timing of a device's operations: see profile.h. */
#include "core/device/profile.h"
#include "core/base/clock.h"
#include "core/base/translate.h"

#include <string.h>

const char *const work_kind_names[WORK_KINDS] = {N_("products"),  N_("attention"),  N_("elementwise"),
                                                 N_("optimizer"), N_("orthogonal"), N_("data")};

static _Thread_local int depth; /* depth of timed calls: time of nested calls counts for the outer one */

static double start(void)
{
    depth++;
    return clock_seconds();
}
static void stop(struct device *dev, enum work_kind kind, double began)
{
    struct device_profile *p = dev->profile;
    if (--depth) return;
    p->inner.sync(dev);
    double seconds = clock_seconds() - began;
    pthread_mutex_lock(&dev->lock);
    p->seconds[kind] += seconds;
    p->calls[kind]++;
    pthread_mutex_unlock(&dev->lock);
}

#define TIMED(kind, call)                                                                                    \
    double began = start();                                                                                  \
    dev->profile->inner.call;                                                                                \
    stop(dev, kind, began)
#define TIMED_OPERATION(name, kind, parameters, arguments, ...)                                              \
    static void timed_##name(struct device *dev, OPERATION_LIST parameters)                                  \
    {                                                                                                        \
        TIMED(WORK_##kind, ops->name(dev, OPERATION_LIST arguments));                                        \
    }
OPERATIONS(TIMED_OPERATION)

static void timed_step(struct device *dev, struct optim_work *work, struct optim_sweep *sweep)
{
    TIMED(WORK_OPTIMIZER, optim->step(dev, work, sweep));
}
static void timed_squares(struct device *dev, struct optim_work *work, struct optim_sweep *sweep)
{
    TIMED(WORK_OPTIMIZER, optim->squares(dev, work, sweep));
}
static void timed_results(struct device *dev, struct optim_work *work, struct optim_partial *partials,
                          size_t count)
{
    TIMED(WORK_OPTIMIZER, optim->results(dev, work, partials, count));
}
static void timed_clear(struct device *dev, void *block, size_t bytes, int64_t chunks, int threads)
{
    TIMED(WORK_OPTIMIZER, optim->clear(dev, block, bytes, chunks, threads));
}

static void timed_orthogonalizing(struct device *dev, bool begins)
{
    struct device_profile *p = dev->profile;
    if (begins) p->orthogonal_began = start();
    else stop(dev, WORK_ORTHOGONAL, p->orthogonal_began);
}

static void timed_upload(struct device *dev, void *dst, const void *src, size_t bytes)
{
    TIMED(WORK_DATA, upload(dev, dst, src, bytes));
}
static void timed_download(struct device *dev, void *dst, const void *src, size_t bytes)
{
    TIMED(WORK_DATA, download(dev, dst, src, bytes));
}

static int supports(const struct device *dev, const struct operation_shape *shape, struct error *err)
{
    return dev->profile->inner.ops->supports(dev, shape, err);
}

#define ROW(name, ...) .name = timed_##name,
static const struct device_ops timed_ops = {.supports = supports, OPERATIONS(ROW)};

void profile_begin(struct device_profile *p, struct device *dev)
{
    profile_clear(p);
    p->inner = (struct device){.ops = dev->ops,
                               .optim = dev->optim,
                               .upload = dev->upload,
                               .download = dev->download,
                               .sync = dev->sync};
    p->optim = *dev->optim;
    p->optim.step = timed_step;
    p->optim.squares = timed_squares;
    p->optim.results = timed_results;
    p->optim.clear = timed_clear;
    p->optim.orthogonalizing = timed_orthogonalizing;
    dev->profile = p;
    dev->ops = &timed_ops;
    dev->optim = &p->optim;
    dev->upload = timed_upload;
    dev->download = timed_download;
    dev->issue = NULL;
}

void profile_clear(struct device_profile *p)
{
    memset(p->seconds, 0, sizeof p->seconds);
    memset(p->calls, 0, sizeof p->calls);
}
