/* Card memory by class: one arena per class, made of chunks that the driver allocates. Small blocks share
 * chunks; large blocks have their own and are freed at once. Drivers allocate slowly and round up to
 * megabytes, while an allocation here walks a list. All uses of a block are on one stream, so a freed block
 * may be reused at once. */
#ifndef MEOPT_DEVICE_ARENA_H
#define MEOPT_DEVICE_ARENA_H

#include "core/device/device.h"

struct arena {
    struct chunk *chunks[MEMORY_CLASS_COUNT];
    size_t driver_bytes; /* allocated from the driver */
    int (*take)(void *context, size_t bytes, void **p);
    void (*give)(void *context, void *p);
    void *context;
};

/* Returns 0 or the driver's error. bytes is a multiple of 64; blocks are aligned to 256 bytes, as the
 * vendors' GEMMs prefer. */
int arena_take(struct arena *arena, enum memory_class class, size_t bytes, void **p);
void arena_give(struct arena *arena, void *p);
void arena_close(struct arena *arena);

#endif
