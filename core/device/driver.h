/* The card's driver: one table of entry points, filled by dlopen from libamdhip64 (AMD), libgalaxyhip (Hygon
 * DCU) or libcuda (NVIDIA), so that one binary runs on machines with either, both or none. HIP copied CUDA's
 * driver interface function by function: the signatures below serve both, the names differ (driver.c). Every
 * function returns 0 or the driver's error number.
 *
 * Vendor structures change between releases and are never used: attributes are queried one by one.
 */
#ifndef MEOPT_DEVICE_DRIVER_H
#define MEOPT_DEVICE_DRIVER_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum driver_kind { DRIVER_HIP, DRIVER_CUDA, DRIVER_KINDS };
extern const char *const driver_names[DRIVER_KINDS]; /* "hip", "cuda" */

/* Entry points: member of struct driver, HIP's name, CUDA's, arguments. Handles and addresses on the card are
 * void pointers, enumerations ints. The test vendor_api compares them with the vendors' headers. */
#define DRIVER_ENTRIES(X)                                                                                    \
    X(init, hipInit, cuInit, (unsigned flags))                                                               \
    X(version, hipDriverGetVersion, cuDriverGetVersion, (int *version))                                      \
    X(count, hipGetDeviceCount, cuDeviceGetCount, (int *count))                                              \
    X(get, hipDeviceGet, cuDeviceGet, (int *device, int ordinal))                                            \
    X(name, hipDeviceGetName, cuDeviceGetName, (char *name, int size, int device))                           \
    X(attribute, hipDeviceGetAttribute, cuDeviceGetAttribute, (int *value, int attribute, int device))       \
    X(total, hipDeviceTotalMem, cuDeviceTotalMem_v2, (size_t * bytes, int device))                           \
    X(bus_id, hipDeviceGetPCIBusId, cuDeviceGetPCIBusId, (char *text, int size, int device))                 \
    X(memory_info, hipMemGetInfo, cuMemGetInfo_v2, (size_t * available, size_t * total))                     \
    X(allocate, hipMalloc, cuMemAlloc_v2, (void **p, size_t bytes))                                          \
    X(deallocate, hipFree, cuMemFree_v2, (void *p))                                                          \
    X(host_allocate, hipHostMalloc, cuMemHostAlloc, (void **p, size_t bytes, unsigned flags))                \
    X(host_deallocate, hipHostFree, cuMemFreeHost, (void *p))                                                \
    X(to_device, hipMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2,                                                   \
      (void *dst, const void *src, size_t bytes, void *stream))                                              \
    X(to_host, hipMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2,                                                     \
      (void *dst, const void *src, size_t bytes, void *stream))                                              \
    X(copy, hipMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2,                                                        \
      (void *dst, const void *src, size_t bytes, void *stream))                                              \
    X(fill, hipMemsetD8Async, cuMemsetD8Async, (void *p, unsigned char byte, size_t bytes, void *stream))    \
    X(stream_create, hipStreamCreateWithFlags, cuStreamCreate, (void **stream, unsigned flags))              \
    X(stream_destroy, hipStreamDestroy, cuStreamDestroy_v2, (void *stream))                                  \
    X(stream_sync, hipStreamSynchronize, cuStreamSynchronize, (void *stream))                                \
    X(stream_wait, hipStreamWaitEvent, cuStreamWaitEvent, (void *stream, void *event, unsigned flags))       \
    X(event_create, hipEventCreateWithFlags, cuEventCreate, (void **event, unsigned flags))                  \
    X(event_destroy, hipEventDestroy, cuEventDestroy_v2, (void *event))                                      \
    X(event_record, hipEventRecord, cuEventRecord, (void *event, void *stream))                              \
    X(event_sync, hipEventSynchronize, cuEventSynchronize, (void *event))                                    \
    X(event_query, hipEventQuery, cuEventQuery, (void *event)) /* DRIVER_NOT_READY: not yet */               \
    X(module_load, hipModuleLoadData, cuModuleLoadData, (void **module, const void *image))                  \
    X(module_unload, hipModuleUnload, cuModuleUnload, (void *module))                                        \
    X(function, hipModuleGetFunction, cuModuleGetFunction,                                                   \
      (void **function, void *module, const char *name))                                                     \
    X(launch, hipModuleLaunchKernel, cuLaunchKernel,                                                         \
      (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,         \
       unsigned shared, void *stream, void **arguments, void **extra))
/* NULL with older drivers */
#define DRIVER_GRAPH_ENTRIES(X)                                                                              \
    X(capture_begin, hipStreamBeginCapture, cuStreamBeginCapture_v2, (void *stream, int mode))               \
    X(capture_end, hipStreamEndCapture, cuStreamEndCapture, (void *stream, void **graph))                    \
    X(graph_create, hipGraphInstantiateWithFlags, cuGraphInstantiateWithFlags,                               \
      (void **executable, void *graph, unsigned long long flags))                                            \
    X(graph_launch, hipGraphLaunch, cuGraphLaunch, (void *executable, void *stream))                         \
    X(graph_destroy, hipGraphDestroy, cuGraphDestroy, (void *graph))                                         \
    X(graph_release, hipGraphExecDestroy, cuGraphExecDestroy, (void *executable))
/* Entry points of one vendor; NULL for the other. */
#define DRIVER_HIP_ENTRIES(X)                                                                                \
    X(set_device, hipSetDevice, (int device))                                                                \
    X(get_device, hipGetDevice, (int *device))
#define DRIVER_CUDA_ENTRIES(X)                                                                               \
    X(retain, cuDevicePrimaryCtxRetain, (void **context, int device))                                        \
    X(release, cuDevicePrimaryCtxRelease_v2, (int device))                                                   \
    X(set_context, cuCtxSetCurrent, (void *context))                                                         \
    X(get_context, cuCtxGetCurrent, (void **context))                                                        \
    X(cuda_error, cuGetErrorString, (int error, const char **text))

struct driver {
    enum driver_kind kind;
    void *handle;
    char path[4096]; /* the library that was loaded */
#define DRIVER_MEMBER(member, hip, cuda, arguments)  int(*member) arguments;
#define DRIVER_ONE_MEMBER(member, symbol, arguments) int(*member) arguments;
    DRIVER_ENTRIES(DRIVER_MEMBER)
    DRIVER_GRAPH_ENTRIES(DRIVER_MEMBER)
    DRIVER_HIP_ENTRIES(DRIVER_ONE_MEMBER)
    DRIVER_CUDA_ENTRIES(DRIVER_ONE_MEMBER)
#undef DRIVER_MEMBER
#undef DRIVER_ONE_MEMBER
    const char *(*hip_error)(int error); /* hipGetErrorString */
};

/* Loads and initialises the driver. EXIT_NO_CARD with the files tried and the loader's or the driver's
 * message. Search paths: core/base/library.c. */
int driver_open(struct driver *driver, enum driver_kind kind, struct error *err);

/* "invalid device ordinal (101)" */
const char *driver_text(const struct driver *driver, int error, char *text, size_t size);

/* Returns what to do about an error; `otherwise` if nothing is known of it. A hint for error_set. */
const char *driver_remedy(const struct driver *driver, int error, const char *otherwise);

/* Returns whether a code object of NVIDIA was compiled by a toolkit of a later major version than the driver
 * supports, which the driver refuses with 200, 209, 218 or 222. The text names both versions and the driver
 * that is needed. */
bool driver_too_old(const struct driver *driver, const void *image, size_t bytes, char *text, size_t size);

/* Properties of one card. */
struct card_info {
    char name[128], arch[32], bus_id[32]; /* arch: "gfx90a", "sm_90", "" if the system does not report it */
    size_t total_bytes;
    int units; /* compute units, multiprocessors */
};
int driver_card(const struct driver *driver, int ordinal, struct card_info *info, struct error *err);

/* Queries the card's free memory; 0 or the driver's error. Creates the card's context and restores the
 * current one. */
int driver_card_free(const struct driver *driver, int ordinal, size_t *bytes);

enum {
    DRIVER_OUT_OF_MEMORY = 2,
    DRIVER_NO_DEVICE = 100,
    DRIVER_INVALID_DEVICE = 101,
    DRIVER_NOT_READY = 600,
    DRIVER_STREAM_NON_BLOCKING = 1,
    DRIVER_EVENT_NO_TIMING = 2,
    DRIVER_CAPTURE_THREAD_LOCAL = 1, /* forbidden calls fail in this thread only */
    /* attributes: the same numbers in all releases of each vendor since HIP 5 */
    DRIVER_CUDA_UNITS = 16,
    DRIVER_CUDA_MAJOR = 75,
    DRIVER_CUDA_MINOR = 76,
    DRIVER_HIP_UNITS = 63
};

#endif
