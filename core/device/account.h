/* Accounting of a device's memory, allocation by allocation. */
#ifndef MEOPT_DEVICE_ACCOUNT_H
#define MEOPT_DEVICE_ACCOUNT_H

#include "core/device/device.h"

void device_each(struct device *device,
                 void (*take)(void *context, enum memory_class class, const char *name, size_t bytes),
                 void *context);

#endif
