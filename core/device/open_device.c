/* Opens a device by its specification: see device.h. Depends on every back end; device.c depends on none. */
#include "core/base/log.h"
#include "core/device/cpu.h"
#include "core/device/gpu.h"
#include "kernels/cpu/select.h"

#include <stdlib.h>
#include <string.h>

int device_count(const struct device *device) { return gpu_is(device) ? gpu_count(device) : 1; }
const char *device_driver(const struct device *device)
{
    return gpu_is(device) ? ((const struct gpu *)device->state)->driver.path : NULL;
}

/* Parses "hip", "hip:3": the ordinal; -1: a different kind. */
static int ordinal_of(const char *spec, const char *kind)
{
    size_t n = strlen(kind);
    char *end;
    if (strncmp(spec, kind, n) != 0) return -1;
    if (!spec[n]) return 0;
    if (spec[n] != ':' || spec[n + 1] < '0' || spec[n + 1] > '9') return -1;
    long ordinal = strtol(spec + n + 1, &end, 10);
    return *end || ordinal > 1023 ? -1 : (int)ordinal;
}

bool device_is_card(const char *type)
{
    struct driver driver;
    struct error absent;
    for (int kind = 0; kind < DRIVER_KINDS; kind++)
        if (strcmp(type, driver_names[kind]) == 0 ||
            (strcmp(type, "auto") == 0 && driver_open(&driver, (enum driver_kind)kind, &absent) == 0))
            return true;
    return false;
}

int device_open(struct device **device, const char *spec, size_t limit_bytes, struct error *err)
{
    struct cpu_refusal refusal;
    *device = NULL;
    if (cpu_isa_refused(true, &refusal)) /* images and optimizers use the CPU also with a card */
        return error_set(err, EXIT_USAGE, refusal.hint, "%s", refusal.why);
    if (strcmp(spec, "cpu") == 0) return cpu_device_open(device, false, limit_bytes, err);
    if (strcmp(spec, "dry") == 0) return cpu_device_open(device, true, limit_bytes, err);
    if (strncmp(spec, "dry:", 4) == 0)
        return device_is_card(spec + 4) ? gpu_device_dry(device, spec + 4, limit_bytes, err)
                                        : cpu_device_open(device, true, limit_bytes, err);
    bool any = ordinal_of(spec, "auto") >= 0;
    for (int kind = 0; kind < DRIVER_KINDS; kind++) {
        int ordinal = ordinal_of(spec, any ? "auto" : driver_names[kind]);
        if (ordinal < 0) continue;
        struct error why = {0};
        int code = gpu_device_open(device, (enum driver_kind)kind, ordinal, limit_bytes, NULL, &why);
        if (!code) return 0;
        if (!any) {
            if (err) *err = why;
            return code;
        }
        struct driver driver; /* warn about an existing card that cannot be used */
        struct error absent;
        if (driver_open(&driver, (enum driver_kind)kind, &absent) == 0)
            log_warn("%s (%s)", why.what, why.hint);
        else log_debug("device auto: %s", why.what);
    }
    if (any) return cpu_device_open(device, false, limit_bytes, err);
    return error_set(err, EXIT_NO_CARD, "auto, cpu, hip:N or cuda:N", "no device '%s'", spec);
}

int device_adopt(struct device **device, enum device_kind kind, int ordinal, void *context, void *stream,
                 struct error *err)
{
    *device = NULL;
    if (kind == DEVICE_CPU) return cpu_device_open(device, false, 0, err);
    if (kind != DEVICE_HIP && kind != DEVICE_CUDA)
        return error_set(err, EXIT_NO_CARD, NULL, "unknown device kind %d", (int)kind);
    return gpu_device_open(device, kind == DEVICE_HIP ? DRIVER_HIP : DRIVER_CUDA, ordinal, 0,
                           &(struct gpu_callers){context, stream}, err);
}

int device_restream(struct device *device, void *stream, struct error *err)
{
    if (gpu_is(device)) return gpu_restream(device, stream, err);
    return stream ? error_set(err, EXIT_USAGE, NULL, "a %s device takes no stream",
                              device_kind_names[device->kind])
                  : 0;
}
