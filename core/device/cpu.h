/* The CPU as a device, and the dry device, which only counts memory. */
#ifndef MEOPT_DEVICE_CPU_H
#define MEOPT_DEVICE_CPU_H

#include "core/device/device.h"

/* Allocates an empty device with state_bytes of state. NULL and err: no memory. */
struct device *device_new(size_t state_bytes, struct error *err);

/* Returns whether operations support `type` (F32 and BF16). If not, device_check reports the error. */
bool device_has_type(struct device *device, enum dtype type);

/* Opens a device with host memory, without operations, with state_bytes of state. */
int host_device_open(struct device **device, bool dry, size_t limit_bytes, size_t state_bytes,
                     struct error *err);
int cpu_device_open(struct device **device, bool dry, size_t limit_bytes, struct error *err);

extern const struct device_optim cpu_optim;

/* Allocates memory of a dry device: addresses without access. */
int dry_allocate(struct device *device, enum memory_class class, size_t bytes, void **p);
/* Streams of the CPU, whose work is done on return, and streams of a dry card, which count as overlapping. */
extern const struct device_streams streams_at_once, streams_of_dry_card;
void dry_release(struct device *device, void *p, size_t bytes);

#endif
