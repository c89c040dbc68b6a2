/* Memory by class as a run tells it in metrics.jsonl (of each card)
 * and plan.json, and as its readers take it. */
#ifndef MEOPT_RUN_MEMORY_H
#define MEOPT_RUN_MEMORY_H

#include "core/device/device.h"

#include <jansson.h>

/* {"mem_bytes", "peak_bytes", "classes": {NAME: bytes}, "host_classes": {...}, "file_classes": {...}}, the
 * classes by their peak; of those beside the device's memory what holds something. */
json_t *memory_json(const struct memory_use *use);
/* "host_classes" or "file_classes" of it */
json_t *memory_offloaded_json(const struct memory_use *use, enum memory_place place);

struct run_memory { /* -1: not told */
    int64_t now_bytes, peak_bytes, class_bytes[MEMORY_CLASS_COUNT];
    int64_t offloaded_bytes[PLACE_COUNT][MEMORY_CLASS_COUNT]; /* 0: not told */
};
struct run_memory memory_parse(const json_t *object);

#endif
