/* Devices of the public library, and memory on them: see core/meopt.h. A struct meopt_device is a struct
 * device. */
#include "core/optim/optim.h"
#include "core/base/memory.h"

#include <stdlib.h>
#include <string.h>

struct device *optim_enter(struct device *device)
{
    if (device && device->enter) device->enter(device);
    return device;
}

void optim_leave(struct device **device)
{
    if (*device && (*device)->leave) (*device)->leave(*device);
}

struct device *optim_device_of(const struct meopt_options *o)
{
    return o->device ? (struct device *)o->device : device_host();
}

static const enum memory_class classes[MEOPT_MEMORY_KINDS] = {
    [MEOPT_MEMORY_WEIGHTS] = MEMORY_WEIGHTS,       [MEOPT_MEMORY_COPY] = MEMORY_WEIGHTS,
    [MEOPT_MEMORY_CORRECTION] = MEMORY_WEIGHTS,    [MEOPT_MEMORY_MOMENTS] = MEMORY_OPTIMIZER,
    [MEOPT_MEMORY_ACCUMULATOR] = MEMORY_GRADIENTS, [MEOPT_MEMORY_WORKSPACE] = MEMORY_WORKSPACE};

void *memory_allocate(const struct meopt_options *o, int kind, size_t bytes, const char *tensor)
{
    if (o->allocate) return o->allocate(o->context, kind, bytes, tensor);
    if (o->device) return device_alloc(optim_device_of(o), classes[kind], bytes, "optimizer", NULL);
    void *p = aligned_alloc(64, rounded(bytes));
    memory_large_pages(p, bytes);
    return p;
}

void memory_release(const struct meopt_options *o, int kind, void *p, size_t bytes)
{
    if (!p) return;
    if (o->release) o->release(o->context, kind, p, bytes);
    else if (o->device) device_free(optim_device_of(o), p);
    else free(p);
}

void *host_allocate(const struct meopt *opt, int kind, size_t bytes, const char *name)
{
    if (device_counts_host_memory(opt->device)) return memory_allocate(&opt->options, kind, bytes, name);
    void *p = aligned_alloc(64, opt->options.dry ? 64 : rounded(bytes));
    if (p) device_offloaded(opt->device, PLACE_HOST, classes[kind], (int64_t)bytes);
    return p;
}

void host_release(const struct meopt *opt, int kind, void *p, size_t bytes)
{
    if (device_counts_host_memory(opt->device)) memory_release(&opt->options, kind, p, bytes);
    else if (p) {
        device_offloaded(opt->device, PLACE_HOST, classes[kind], -(int64_t)bytes);
        free(p);
    }
}

static struct device *of(struct meopt_device *device) { return (struct device *)device; }

static int failed(const struct error *why, struct meopt_error *err)
{
    bool memory = why->code == EXIT_CARD_MEMORY || why->code == EXIT_HOST_MEMORY;
    return optim_fail(err, memory ? MEOPT_NO_MEMORY : MEOPT_DEVICE_FAILED, "%.250s", why->what);
}

int meopt_device_open(struct meopt_device **device, int kind, int ordinal, void *context, void *stream,
                      struct meopt_error *err)
{
    static const enum device_kind kinds[] = {
        [MEOPT_DEVICE_CPU] = DEVICE_CPU, [MEOPT_DEVICE_HIP] = DEVICE_HIP, [MEOPT_DEVICE_CUDA] = DEVICE_CUDA};
    struct error why = {0};
    struct device *open_record;
    if (!device) return optim_fail(err, MEOPT_BAD_ARGUMENT, "device is NULL");
    *device = NULL;
    if (kind < 0 || kind > MEOPT_DEVICE_CUDA || ordinal < 0)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "no device of kind %d, number %d", kind, ordinal);
    if ((kind == MEOPT_DEVICE_CPU && (context || stream)) || (kind == MEOPT_DEVICE_HIP && context))
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "a %s device takes no %s", device_kind_names[kinds[kind]],
                          context ? "context" : "stream");
    if (device_adopt(&open_record, kinds[kind], ordinal, context, stream, &why)) return failed(&why, err);
    *device = (struct meopt_device *)open_record;
    return MEOPT_OK;
}

int meopt_device_stream(struct meopt_device *device, void *stream, struct meopt_error *err)
{
    struct error why = {0};
    if (!device) return optim_fail(err, MEOPT_BAD_ARGUMENT, "no device");
    struct device *entered __attribute__((cleanup(optim_leave), unused)) = optim_enter(of(device));
    int code = device_restream(of(device), stream, &why);
    if (code == EXIT_USAGE) return optim_fail(err, MEOPT_BAD_ARGUMENT, "%.250s", why.what);
    return code ? failed(&why, err) : MEOPT_OK;
}

void meopt_device_close(struct meopt_device *device) { device_close(of(device)); }

const char *meopt_device_name(const struct meopt_device *device)
{
    return ((const struct device *)device)->name;
}

int meopt_device_count(const struct meopt_device *device)
{
    return device_count((const struct device *)device);
}

const char *meopt_device_driver(const struct meopt_device *device)
{
    return device_driver((const struct device *)device);
}

int meopt_device_allocate(struct meopt_device *device, size_t bytes, void **p, struct meopt_error *err)
{
    struct error why = {0};
    if (!device || !p) return optim_fail(err, MEOPT_BAD_ARGUMENT, "device or p is NULL");
    struct device *entered __attribute__((cleanup(optim_leave), unused)) = optim_enter(of(device));
    *p = device_alloc(of(device), MEMORY_DATA, bytes, "the caller's", &why);
    return *p ? MEOPT_OK : failed(&why, err);
}

void meopt_device_release(struct meopt_device *device, void *p)
{
    if (!device) return;
    struct device *entered __attribute__((cleanup(optim_leave), unused)) = optim_enter(of(device));
    device_free(of(device), p);
}

int meopt_device_upload(struct meopt_device *device, void *to, const void *host, size_t bytes,
                        struct meopt_error *err)
{
    struct error why = {0};
    if (!device || (bytes && (!to || !host)))
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "no device, or nothing to copy");
    struct device *entered __attribute__((cleanup(optim_leave), unused)) = optim_enter(of(device));
    of(device)->upload(of(device), to, host, bytes);
    of(device)->sync(of(device));
    return device_check(of(device), &why) ? failed(&why, err) : MEOPT_OK;
}
