/* The CPU as a device, and the dry device that only counts. */
#ifndef MEOPT_DEVICE_CPU_H
#define MEOPT_DEVICE_CPU_H

#include "core/device/device.h"

/* An empty device with state_bytes of state. NULL and err: no memory. */
struct device *device_new(size_t state_bytes, struct error *err);

/* Operations are on F32 and BF16: with another type false, and device_check tells. */
bool device_has_type(struct device *device, enum dtype type);

/* Memory of this machine without operations, and state_bytes of state. */
int host_device_open(struct device **device, bool dry, size_t limit_bytes, size_t state_bytes,
                     struct error *err);
int cpu_device_open(struct device **device, bool dry, size_t limit_bytes, struct error *err);

extern const struct device_optim cpu_optim;

/* Memory of every dry device: addresses without access. */
int dry_allocate(struct device *device, enum memory_class class, size_t bytes, void **p);
/* Queues whose work is done when it is given, and those that `overlap` on a card that only counts. */
extern const struct device_queues queues_at_once, queues_of_dry_card;
void dry_release(struct device *device, void *p, size_t bytes);

#endif
