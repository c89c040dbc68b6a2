/* The card's driver: one table of entry points, filled by dlopen from libamdhip64 (AMD), libgalaxyhip (Hygon
 * DCU) or libcuda (NVIDIA), so that one binary runs on machines with either, both or none. HIP took CUDA's
 * driver interface function by function: the signatures below serve both, the names differ (driver.c). Every
 * function returns 0 or the driver's error number.
 *
 * Structures of the vendors change between releases and are never used: attributes are asked for one by one.
 */
#ifndef MEOPT_DEVICE_DRIVER_H
#define MEOPT_DEVICE_DRIVER_H

#include "core/base/error.h"

#include <stddef.h>
#include <stdint.h>

enum driver_kind { DRIVER_HIP, DRIVER_CUDA, DRIVER_KINDS };
extern const char *const driver_names[DRIVER_KINDS]; /* "hip", "cuda" */

struct driver {
    enum driver_kind kind;
    void *handle;
    char path[4096]; /* the library that was loaded */
    int (*init)(unsigned flags);
    int (*version)(int *version);
    int (*count)(int *count);
    int (*get)(int *device, int ordinal);
    int (*name)(char *name, int size, int device);
    int (*attribute)(int *value, int attribute, int device);
    int (*total)(size_t *bytes, int device);
    int (*bus_id)(char *text, int size, int device);
    int (*set_device)(int device); /* HIP */
    int (*get_device)(int *device);
    int (*retain)(void **context, int device); /* CUDA */
    int (*release)(int device);
    int (*set_context)(void *context);
    int (*get_context)(void **context);
    int (*memory_info)(size_t *available, size_t *total);
    int (*allocate)(void **p, size_t bytes);
    int (*deallocate)(void *p);
    int (*host_allocate)(void **p, size_t bytes, unsigned flags);
    int (*host_deallocate)(void *p);
    int (*to_device)(void *dst, const void *src, size_t bytes, void *stream);
    int (*to_host)(void *dst, const void *src, size_t bytes, void *stream);
    int (*copy)(void *dst, const void *src, size_t bytes, void *stream);
    int (*fill)(void *p, unsigned char byte, size_t bytes, void *stream);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_sync)(void *stream);
    int (*stream_wait)(void *stream, void *event, unsigned flags);
    int (*event_create)(void **event, unsigned flags);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_sync)(void *event);
    int (*event_query)(void *event); /* DRIVER_NOT_READY: not yet */
    int (*module_load)(void **module, const void *image);
    int (*module_unload)(void *module);
    int (*function)(void **function, void *module, const char *name);
    int (*launch)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                  unsigned bz, unsigned shared, void *stream, void **arguments, void **extra);
    /* optional, NULL where the driver is older */
    int (*capture_begin)(void *stream, int mode);
    int (*capture_end)(void *stream, void **graph);
    int (*graph_create)(void **executable, void *graph, unsigned long long flags);
    int (*graph_launch)(void *executable, void *stream);
    int (*graph_destroy)(void *graph);
    int (*graph_release)(void *executable);
    const char *(*hip_error)(int error);
    int (*cuda_error)(int error, const char **text);
};

/* Load and initialise. EXIT_NO_CARD with what was tried and the loader's or the driver's words.
 * Where they lie: core/base/library.c. */
int driver_open(struct driver *driver, enum driver_kind kind, struct error *err);

/* "invalid device ordinal (101)" */
const char *driver_text(const struct driver *driver, int error, char *text, size_t size);

/* What one card is. */
struct card_info {
    char name[128], arch[32], bus_id[32]; /* arch: "gfx90a", "sm_90", "" when the system does not say */
    size_t total_bytes;
    int units; /* compute units, multiprocessors */
};
int driver_card(const struct driver *driver, int ordinal, struct card_info *info, struct error *err);

enum {
    DRIVER_OUT_OF_MEMORY = 2,
    DRIVER_NO_DEVICE = 100,
    DRIVER_INVALID_DEVICE = 101,
    DRIVER_NOT_READY = 600,
    DRIVER_STREAM_NON_BLOCKING = 1,
    DRIVER_EVENT_NO_TIMING = 2
};

#endif
