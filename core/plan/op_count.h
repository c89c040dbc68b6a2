/* Counts the floating point operations and the bytes that operations move, from their shapes, and the time
 * that they take at least on a card of given peaks (roofline: Williams et al. 2009, doi
 * 10.1145/1498765.1498785). */
#ifndef MEOPT_PLAN_OP_COUNT_H
#define MEOPT_PLAN_OP_COUNT_H

#include "core/device/card_peak.h"
#include "core/device/device.h"

struct op_count {
    struct card_peaks peaks; /* set by the caller */
    double flops, bytes;
    double compute_s, memory_s; /* of operations that are bound by compute, by memory */
    int64_t calls;
    const struct device_ops *inner;
};

/* Counts the operations of this device until op_count_end. Each tensor counts once: neither caches that hold
 * a tensor nor kernels that read it twice are modelled. Only one device of a thread counts at a time. */
void op_count_begin(struct op_count *count, struct device *device);
void op_count_end(struct op_count *count, struct device *device);

#endif
