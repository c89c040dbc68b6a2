/* Drivers by dlopen: see driver.h. */
#include "core/device/driver.h"
#include "core/base/library.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const driver_names[DRIVER_KINDS] = {"hip", "cuda"};
static const enum library_id library_ids[DRIVER_KINDS] = {LIBRARY_HIP, LIBRARY_CUDA};

/* One row an entry point: place in struct driver, its two names (NULL:
 * that vendor has none or needs none), optional. */
static const struct entry {
    size_t at;
    const char *names[DRIVER_KINDS];
    int optional;
} entries[] = {
    {offsetof(struct driver, init), {"hipInit", "cuInit"}, 0},
    {offsetof(struct driver, version), {"hipDriverGetVersion", "cuDriverGetVersion"}, 0},
    {offsetof(struct driver, count), {"hipGetDeviceCount", "cuDeviceGetCount"}, 0},
    {offsetof(struct driver, get), {"hipDeviceGet", "cuDeviceGet"}, 0},
    {offsetof(struct driver, name), {"hipDeviceGetName", "cuDeviceGetName"}, 0},
    {offsetof(struct driver, attribute), {"hipDeviceGetAttribute", "cuDeviceGetAttribute"}, 0},
    {offsetof(struct driver, total), {"hipDeviceTotalMem", "cuDeviceTotalMem_v2"}, 0},
    {offsetof(struct driver, bus_id), {"hipDeviceGetPCIBusId", "cuDeviceGetPCIBusId"}, 0},
    {offsetof(struct driver, set_device), {"hipSetDevice", NULL}, 0},
    {offsetof(struct driver, get_device), {"hipGetDevice", NULL}, 0},
    {offsetof(struct driver, retain), {NULL, "cuDevicePrimaryCtxRetain"}, 0},
    {offsetof(struct driver, release), {NULL, "cuDevicePrimaryCtxRelease_v2"}, 0},
    {offsetof(struct driver, set_context), {NULL, "cuCtxSetCurrent"}, 0},
    {offsetof(struct driver, get_context), {NULL, "cuCtxGetCurrent"}, 0},
    {offsetof(struct driver, memory_info), {"hipMemGetInfo", "cuMemGetInfo_v2"}, 0},
    {offsetof(struct driver, allocate), {"hipMalloc", "cuMemAlloc_v2"}, 0},
    {offsetof(struct driver, deallocate), {"hipFree", "cuMemFree_v2"}, 0},
    {offsetof(struct driver, host_allocate), {"hipHostMalloc", "cuMemHostAlloc"}, 0},
    {offsetof(struct driver, host_deallocate), {"hipHostFree", "cuMemFreeHost"}, 0},
    {offsetof(struct driver, to_device), {"hipMemcpyHtoDAsync", "cuMemcpyHtoDAsync_v2"}, 0},
    {offsetof(struct driver, to_host), {"hipMemcpyDtoHAsync", "cuMemcpyDtoHAsync_v2"}, 0},
    {offsetof(struct driver, copy), {"hipMemcpyDtoDAsync", "cuMemcpyDtoDAsync_v2"}, 0},
    {offsetof(struct driver, fill), {"hipMemsetD8Async", "cuMemsetD8Async"}, 0},
    {offsetof(struct driver, stream_create), {"hipStreamCreateWithFlags", "cuStreamCreate"}, 0},
    {offsetof(struct driver, stream_destroy), {"hipStreamDestroy", "cuStreamDestroy_v2"}, 0},
    {offsetof(struct driver, stream_sync), {"hipStreamSynchronize", "cuStreamSynchronize"}, 0},
    {offsetof(struct driver, stream_wait), {"hipStreamWaitEvent", "cuStreamWaitEvent"}, 0},
    {offsetof(struct driver, event_create), {"hipEventCreateWithFlags", "cuEventCreate"}, 0},
    {offsetof(struct driver, event_destroy), {"hipEventDestroy", "cuEventDestroy_v2"}, 0},
    {offsetof(struct driver, event_record), {"hipEventRecord", "cuEventRecord"}, 0},
    {offsetof(struct driver, event_sync), {"hipEventSynchronize", "cuEventSynchronize"}, 0},
    {offsetof(struct driver, event_query), {"hipEventQuery", "cuEventQuery"}, 0},
    {offsetof(struct driver, module_load), {"hipModuleLoadData", "cuModuleLoadData"}, 0},
    {offsetof(struct driver, module_unload), {"hipModuleUnload", "cuModuleUnload"}, 0},
    {offsetof(struct driver, function), {"hipModuleGetFunction", "cuModuleGetFunction"}, 0},
    {offsetof(struct driver, launch), {"hipModuleLaunchKernel", "cuLaunchKernel"}, 0},
    {offsetof(struct driver, capture_begin), {"hipStreamBeginCapture", "cuStreamBeginCapture_v2"}, 1},
    {offsetof(struct driver, capture_end), {"hipStreamEndCapture", "cuStreamEndCapture"}, 1},
    {offsetof(struct driver, graph_create),
     {"hipGraphInstantiateWithFlags", "cuGraphInstantiateWithFlags"},
     1},
    {offsetof(struct driver, graph_launch), {"hipGraphLaunch", "cuGraphLaunch"}, 1},
    {offsetof(struct driver, graph_destroy), {"hipGraphDestroy", "cuGraphDestroy"}, 1},
    {offsetof(struct driver, graph_release), {"hipGraphExecDestroy", "cuGraphExecDestroy"}, 1},
    {offsetof(struct driver, hip_error), {"hipGetErrorString", NULL}, 0},
    {offsetof(struct driver, cuda_error), {NULL, "cuGetErrorString"}, 0},
};

static int not_loaded(enum driver_kind kind, const struct library *l, struct error *err)
{
    const char *variable = library_variable(library_ids[kind]), *own = getenv(variable);
    if (own && *own)
        return error_set(err, EXIT_NO_CARD, NULL, "%s=%s does not load: %s", variable, l->path, l->why);
    return error_set(err, EXIT_NO_CARD,
                     kind == DRIVER_HIP ? "install the AMD or DTK driver, or 'module load' it (source "
                                          "/opt/dtk/env.sh); see meopt-devices(7)"
                                        : "install the NVIDIA driver; see meopt-devices(7)",
                     "no %s driver: %s is not on this machine (%s)", driver_names[kind],
                     kind == DRIVER_HIP ? "libgalaxyhip.so.5 or libamdhip64.so[.5|.6|.7]" : "libcuda.so.1",
                     l->why);
}

int driver_open(struct driver *d, enum driver_kind kind, struct error *err)
{
    struct library library;
    memset(d, 0, sizeof *d);
    d->kind = kind;
    d->handle = library_open(library_ids[kind], &library);
    snprintf(d->path, sizeof d->path, "%s", library.path);
    if (!d->handle) return not_loaded(kind, &library, err);
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        const char *name = entries[i].names[kind];
        void *p = name ? dlsym(d->handle, name) : NULL;
        if (name && !p && !entries[i].optional)
            return error_set(err, EXIT_NO_CARD, "a newer driver is needed; see meopt-devices(7)",
                             "%s has no %s", d->path, name);
        memcpy((char *)d + entries[i].at, &p, sizeof p);
    }
    char text[160];
    int code = d->init(0), count = 0;
    if (!code) code = d->count(&count);
    if (code == DRIVER_NO_DEVICE || code == DRIVER_INVALID_DEVICE || (!code && count == 0))
        return error_set(err, EXIT_NO_CARD,
                         "see 'meopt doctor': no card, no permission on /dev/kfd or /dev/nvidia*, or hidden "
                         "by *_VISIBLE_DEVICES",
                         "the driver %s sees no card", d->path);
    if (code)
        return error_set(err, EXIT_NO_CARD, "see 'meopt doctor'", "the driver %s does not start: %s", d->path,
                         driver_text(d, code, text, sizeof text));
    return 0;
}

const char *driver_text(const struct driver *d, int error, char *text, size_t size)
{
    const char *words = NULL;
    if (d->hip_error) words = d->hip_error(error);
    else if (d->cuda_error && d->cuda_error(error, &words)) words = NULL;
    snprintf(text, size, "%s (%d)", words && *words ? words : "unknown error", error);
    return text;
}

/* The KFD's node of a card says its arch as 10000 major + 100 minor + stepping: 90010 is gfx90a. */
static void kfd_arch(const char *bus_id, char *arch, size_t size)
{
    static const char nodes[] = "/sys/class/kfd/kfd/topology/nodes";
    unsigned domain = 0, bus = 0, device = 0, function = 0;
    DIR *dir = opendir(nodes);
    if (!dir) return;
    int known = sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &device, &function) == 4;
    for (struct dirent *e; known && (e = readdir(dir));) {
        char path[400], key[64];
        unsigned long long value, location = 0, target = 0, node_domain = 0;
        snprintf(path, sizeof path, "%s/%.64s/properties", nodes, e->d_name);
        FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "re");
        if (!f) continue;
        while (fscanf(f, "%63s %llu", key, &value) == 2) {
            if (strcmp(key, "location_id") == 0) location = value;
            if (strcmp(key, "domain") == 0) node_domain = value;
            if (strcmp(key, "gfx_target_version") == 0) target = value;
        }
        fclose(f);
        if (target && node_domain == domain && location == (bus << 8 | device << 3 | function))
            snprintf(arch, size, "gfx%llu%llx%llx", target / 10000, target / 100 % 100, target % 100);
    }
    closedir(dir);
}

int driver_card(const struct driver *d, int ordinal, struct card_info *info, struct error *err)
{
    /* numbers of the attributes, the same in all releases of each vendor since HIP 5 */
    enum { CUDA_UNITS = 16, CUDA_MAJOR = 75, CUDA_MINOR = 76, HIP_UNITS = 63 };
    char text[160];
    int device = 0, count = 0, code = d->count(&count), major = 0, minor = 0;
    memset(info, 0, sizeof *info);
    if (!code && (ordinal < 0 || ordinal >= count))
        return error_set(err, EXIT_NO_CARD, "see 'meopt doctor'; *_VISIBLE_DEVICES hide cards",
                         "no card %s:%d: the driver sees %d", driver_names[d->kind], ordinal, count);
    if (!code) code = d->get(&device, ordinal);
    if (!code) code = d->name(info->name, (int)sizeof info->name, device);
    if (!code) code = d->total(&info->total_bytes, device);
    if (code)
        return error_set(err, EXIT_NO_CARD, "see 'meopt doctor'", "card %s:%d does not answer: %s",
                         driver_names[d->kind], ordinal, driver_text(d, code, text, sizeof text));
    char name[sizeof info->name];
    memcpy(name, info->name, sizeof name);
    name[sizeof name - 1] = 0;
    name_printable(info->name, sizeof info->name, name);
    if (d->bus_id(info->bus_id, (int)sizeof info->bus_id, device)) info->bus_id[0] = 0;
    if (d->attribute(&info->units, d->kind == DRIVER_CUDA ? CUDA_UNITS : HIP_UNITS, device) ||
        info->units < 1)
        info->units = 64;
    if (d->kind == DRIVER_CUDA && !d->attribute(&major, CUDA_MAJOR, device) &&
        !d->attribute(&minor, CUDA_MINOR, device))
        snprintf(info->arch, sizeof info->arch, "sm_%d%d", major, minor);
    if (d->kind == DRIVER_HIP) kfd_arch(info->bus_id, info->arch, sizeof info->arch);
    const char *own = getenv("MEOPT_GPU_ARCH");
    if (own && *own) snprintf(info->arch, sizeof info->arch, "%s", own);
    return 0;
}
