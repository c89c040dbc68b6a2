/* Memory by class, for every device: see device.h. */
#include "core/device/account.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t dtype_bytes(enum dtype dtype)
{
    static const uint8_t bytes[] = {
        [DTYPE_F32] = 4, [DTYPE_BF16] = 2, [DTYPE_F16] = 2, [DTYPE_F64] = 8, [DTYPE_I64] = 8,
        [DTYPE_I32] = 4, [DTYPE_I16] = 2,  [DTYPE_I8] = 1,  [DTYPE_U8] = 1,  [DTYPE_BOOL] = 1};
    return bytes[dtype];
}

const char *dtype_name(enum dtype dtype)
{
    static const char *const names[] = {
        [DTYPE_F32] = "F32", [DTYPE_BF16] = "BF16", [DTYPE_F16] = "F16", [DTYPE_F64] = "F64",
        [DTYPE_I64] = "I64", [DTYPE_I32] = "I32",   [DTYPE_I16] = "I16", [DTYPE_I8] = "I8",
        [DTYPE_U8] = "U8",   [DTYPE_BOOL] = "BOOL"};
    return names[dtype];
}

const char *const memory_class_names[MEMORY_CLASS_COUNT] = {
    N_("weights"), N_("gradients"), N_("optimizer"), N_("activations"),
    N_("teacher"), N_("workspace"), N_("comm"),      N_("data")};

const char *const device_kind_names[DEVICE_KIND_COUNT] = {"cpu", "dry", "hip", "cuda"};

struct allocation {
    void *p;
    size_t bytes;
    enum memory_class class;
    const char *name;
    struct allocation *next;
};

static int out_of_memory(struct device *device, int code, enum memory_class class, size_t bytes,
                         const char *name, struct error *err)
{
    char table[512] = "";
    size_t used = 0;
    for (int c = 0; c < MEMORY_CLASS_COUNT; c++)
        if (device->use.current_bytes[c] && used < sizeof table) {
            int n = snprintf(table + used, sizeof table - used, "%s%s %.1f MiB", used ? ", " : "",
                             memory_class_names[c], (double)device->use.current_bytes[c] / 1048576.0);
            if (n > 0) used += (size_t)n;
        }
    error_set(&device->memory_error, code, "see 'meopt plan CONFIG --what-if' for settings that fit",
              "out of memory on %s: no room for %.1f MiB of %s (%s); held: %s%s%s", device->name,
              (double)bytes / 1048576.0, memory_class_names[class], name, used ? table : "nothing",
              device->memory_note[0] ? "; " : "", device->memory_note);
    if (err) *err = device->memory_error;
    return code;
}

static void *allocate(struct device *device, enum memory_class class, size_t bytes, const char *name,
                      struct error *err)
{
    size_t rounded = (bytes + 63) & ~(size_t)63;
    if (rounded < bytes) {
        out_of_memory(device, EXIT_HOST_MEMORY, class, bytes, name, err);
        return NULL;
    }
    if (!rounded) rounded = 64;
    struct memory_use *use = &device->use;
    void *p = NULL;
    int code = 0;
    if (device->limit_bytes && use->current_total_bytes + rounded > device->limit_bytes)
        code = device->kind == DEVICE_CPU ? EXIT_HOST_MEMORY : EXIT_CARD_MEMORY;
    struct allocation *a = code ? NULL : malloc(sizeof *a);
    if (!code) code = a ? device->allocate(device, class, rounded, &p) : EXIT_HOST_MEMORY;
    if (code) {
        free(a);
        out_of_memory(device, code, class, bytes, name, err);
        return NULL;
    }
    *a = (struct allocation){p, rounded, class, name, device->allocations};
    device->allocations = a;
    use->current_bytes[class] += rounded;
    use->current_total_bytes += rounded;
    if (use->current_bytes[class] > use->peak_bytes[class])
        use->peak_bytes[class] = use->current_bytes[class];
    if (use->current_total_bytes > use->peak_total_bytes) use->peak_total_bytes = use->current_total_bytes;
    return p;
}

void *device_alloc(struct device *device, enum memory_class class, size_t bytes, const char *name,
                   struct error *err)
{
    pthread_mutex_lock(&device->lock);
    void *p = allocate(device, class, bytes, name, err);
    pthread_mutex_unlock(&device->lock);
    return p;
}

void device_free(struct device *device, void *p)
{
    if (!p) return;
    pthread_mutex_lock(&device->lock);
    for (struct allocation **link = &device->allocations; *link; link = &(*link)->next) {
        struct allocation *a = *link;
        if (a->p != p) continue;
        *link = a->next;
        device->use.current_bytes[a->class] -= a->bytes;
        device->use.current_total_bytes -= a->bytes;
        device->release(device, p, a->bytes);
        free(a);
        break;
    }
    pthread_mutex_unlock(&device->lock);
}

void device_offloaded(struct device *device, enum memory_place place, enum memory_class class, int64_t bytes)
{
    pthread_mutex_lock(&device->lock);
    size_t *now = &device->use.offloaded_bytes[place][class],
           *peak = &device->use.offloaded_peak_bytes[place][class];
    *now = (size_t)((int64_t)*now + bytes);
    if (*now > *peak) *peak = *now;
    pthread_mutex_unlock(&device->lock);
}

void device_each(struct device *device,
                 void (*take)(void *context, enum memory_class class, const char *name, size_t bytes),
                 void *context)
{
    pthread_mutex_lock(&device->lock);
    for (const struct allocation *a = device->allocations; a; a = a->next)
        take(context, a->class, a->name, a->bytes);
    pthread_mutex_unlock(&device->lock);
}

int device_check(struct device *device, struct error *err)
{
    if (!device->pending.code) return 0;
    if (err) *err = device->pending;
    return device->pending.code;
}

void device_close(struct device *device)
{
    if (!device) return;
    while (device->allocations) device_free(device, device->allocations->p);
    if (device->close) device->close(device);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

struct device *device_new(size_t state_bytes, struct error *err)
{
    pthread_mutexattr_t recursive;
    struct device *device = calloc(1, sizeof *device);
    void *state = calloc(1, state_bytes);
    if (!device || !state) {
        free(device);
        free(state);
        error_set(err, EXIT_HOST_MEMORY, NULL, "no memory for a device");
        return NULL;
    }
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&device->lock, &recursive);
    pthread_mutexattr_destroy(&recursive);
    device->state = state;
    return device;
}

bool device_has_type(struct device *device, enum dtype type)
{
    if (type == DTYPE_F32 || type == DTYPE_BF16) return true;
    if (!device->pending.code)
        error_set(&device->pending, EXIT_CONFIG, "train.precision: fp32 or bf16",
                  "an operation on %s was asked of %s", dtype_name(type), device->name);
    return false;
}
