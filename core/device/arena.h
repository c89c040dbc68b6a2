/* Card memory by class: one arena for each, of chunks that the driver gives. Small blocks share
 * chunks, large ones have their own and go back to the driver when they are freed. Drivers are
 * slow to allocate and round up to megabytes; here a block costs a walk over a list. All uses
 * of a block are on one stream, so a freed block may be given out again at once. */
#ifndef MEOPT_DEVICE_ARENA_H
#define MEOPT_DEVICE_ARENA_H

#include "core/device/device.h"

struct arena {
    struct chunk *chunks[MEMORY_CLASS_COUNT];
    size_t driver_bytes; /* taken from the driver */
    int (*take)(void *context, size_t bytes, void **p);
    void (*give)(void *context, void *p);
    void *context;
};

/* 0 or the driver's error. bytes is a multiple of 64;
 * blocks are aligned to 256 bytes, as vendors' matrix products like. */
int arena_take(struct arena *arena, enum memory_class class, size_t bytes, void **p);
void arena_give(struct arena *arena, void *p);
void arena_close(struct arena *arena);

#endif
