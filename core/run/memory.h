/* Memory by class in metrics.jsonl (per card) and plan.json: writer and reader. */
#ifndef MEOPT_RUN_MEMORY_H
#define MEOPT_RUN_MEMORY_H

#include "core/device/device.h"

#include <jansson.h>

/* Returns {"mem_bytes", "peak_bytes", "classes": {NAME: bytes}, "host_classes": {...}, "file_classes":
 * {...}}. Classes have their peaks; those outside device memory are listed if they are not empty. */
json_t *memory_json(const struct memory_use *use);
/* Returns its "host_classes" or "file_classes". */
json_t *memory_offloaded_json(const struct memory_use *use, enum memory_place place);

struct run_memory { /* -1: unknown */
    int64_t now_bytes, peak_bytes, class_bytes[MEMORY_CLASS_COUNT];
    int64_t offloaded_bytes[PLACE_COUNT][MEMORY_CLASS_COUNT]; /* 0: unknown */
};
struct run_memory memory_parse(const json_t *object);

#endif
