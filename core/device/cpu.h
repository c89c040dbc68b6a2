/* The CPU as a device, and the dry device that only counts. */
#ifndef MEOPT_DEVICE_CPU_H
#define MEOPT_DEVICE_CPU_H

#include "core/device/device.h"

int cpu_device_open(struct device **device, bool dry, size_t limit_bytes, struct error *err);

#endif
