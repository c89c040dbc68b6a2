/* The metrics of one optimizer step for exporters: TensorBoard, Prometheus. NAN is unknown and omitted. */
#ifndef MEOPT_RUN_SCALARS_H
#define MEOPT_RUN_SCALARS_H

#include "core/run/scores.h"

#include <stdint.h>

struct scalar_memory {
    const char *class; /* "weights", ...; one row may be "total" */
    double bytes;
};

struct scalars {
    int64_t step;
    double time_s; /* seconds since 1970 when the step ended; 0 or NAN: now */
    double epoch, loss, lr, grad_norm, images_per_s, step_ms, data_wait_ms;
    double scores[SCORE_COUNT];
    const struct scalar_memory *memory;
    int memory_count;
};

#endif
