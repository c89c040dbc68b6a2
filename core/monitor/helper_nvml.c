/* libnvidia-ml in the helper. Layouts are those of nvml.h,
 * whose versioned names (_v2, _v3) never change theirs. */
#include "core/monitor/helper.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct nvml_memory {
    unsigned long long total, free, used;
};
struct nvml_utilization {
    unsigned gpu, memory;
};
struct nvml_pci {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
    char reserve[64]; /* not the library's: room in case it ever writes more */
};
struct nvml_process { /* _v2 and _v3 */
    unsigned pid;
    unsigned long long used;
    unsigned instance, compute_instance;
};

static int (*nvmlInit_v2)(void);
static int (*nvmlDeviceGetCount_v2)(unsigned *);
static int (*nvmlDeviceGetHandleByIndex_v2)(unsigned, void **);
static int (*nvmlDeviceGetName)(void *, char *, unsigned);
static int (*nvmlDeviceGetPciInfo_v3)(void *, struct nvml_pci *);
static int (*nvmlDeviceGetMemoryInfo)(void *, struct nvml_memory *);
static int (*nvmlDeviceGetUtilizationRates)(void *, struct nvml_utilization *);
static int (*nvmlDeviceGetTemperature)(void *, int sensor, unsigned *);
static int (*nvmlDeviceGetPowerUsage)(void *, unsigned *);
static int (*nvmlDeviceGetComputeRunningProcesses_v3)(void *, unsigned *, struct nvml_process *);
static int (*nvmlDeviceGetComputeRunningProcesses_v2)(void *, unsigned *, struct nvml_process *);
static const char *(*nvmlErrorString)(int);

static const struct {
    const char *name;
    void **to;
    bool required;
} symbols[] = {
#define SYMBOL(name, required)                                                                               \
    {                                                                                                        \
#name, (void **)&name, required                                                                      \
    }
    SYMBOL(nvmlInit_v2, true),
    SYMBOL(nvmlDeviceGetCount_v2, true),
    SYMBOL(nvmlDeviceGetHandleByIndex_v2, true),
    SYMBOL(nvmlDeviceGetName, false),
    SYMBOL(nvmlDeviceGetPciInfo_v3, false),
    SYMBOL(nvmlDeviceGetMemoryInfo, true),
    SYMBOL(nvmlDeviceGetUtilizationRates, false),
    SYMBOL(nvmlDeviceGetTemperature, false),
    SYMBOL(nvmlDeviceGetPowerUsage, false),
    SYMBOL(nvmlDeviceGetComputeRunningProcesses_v3, false),
    SYMBOL(nvmlDeviceGetComputeRunningProcesses_v2, false),
    SYMBOL(nvmlErrorString, false),
#undef SYMBOL
};

enum { NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };

static void *handles[MONITOR_CARDS];

static int nvml_open(void *library, char *why, size_t size)
{
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        *symbols[i].to = dlsym(library, symbols[i].name);
        if (symbols[i].required && !*symbols[i].to) {
            snprintf(why, size, "the library has no %s", symbols[i].name);
            return -1;
        }
    }
    unsigned devices = 0;
    int status = nvmlInit_v2();
    if (status == 0) status = nvmlDeviceGetCount_v2(&devices);
    if (status != 0) {
        snprintf(why, size, "nvmlInit: %d %s", status, nvmlErrorString ? nvmlErrorString(status) : "");
        return -1;
    }
    int count = 0;
    for (unsigned i = 0; i < devices && count < MONITOR_CARDS;
         i++) /* a card that fell off the bus or belongs to others is left out */
        if (nvmlDeviceGetHandleByIndex_v2(i, &handles[count]) == 0) count++;
    return count;
}

static void nvml_card(int card, char *name, size_t size, char pci[16])
{
    struct nvml_pci info = {0};
    if (!nvmlDeviceGetName || nvmlDeviceGetName(handles[card], name, (unsigned)size) != 0)
        snprintf(name, size, "nvml %d", card);
    name[size - 1] = 0;
    if (nvmlDeviceGetPciInfo_v3 && nvmlDeviceGetPciInfo_v3(handles[card], &info) == 0) {
        info.bus_id[sizeof info.bus_id - 1] = 0;
        monitor_pci(pci, info.bus_id);
    }
}

static int processes(void *handle, const struct helper_request *request, double *value)
{
    struct nvml_process list[256];
    unsigned n = sizeof list / sizeof *list;
    int (*get)(void *, unsigned *, struct nvml_process *) = nvmlDeviceGetComputeRunningProcesses_v3
                                                                ? nvmlDeviceGetComputeRunningProcesses_v3
                                                                : nvmlDeviceGetComputeRunningProcesses_v2;
    if (!get || request->pid_count == 0) return NOT_SUPPORTED;
    int status = get(handle, &n, list);
    if (status != 0) return status;
    bool any = false;
    for (unsigned i = 0; i < n && i < sizeof list / sizeof *list; i++)
        for (int k = 0; k < request->pid_count; k++)
            if (list[i].pid == (unsigned)request->pids[k] && list[i].used != ~0ull) {
                *value += (double)list[i].used;
                any = true;
            }
    return any ? 0 : NOT_SUPPORTED;
}

static int nvml_read(int card, int field, const struct helper_request *request, double *value,
                     const char **why)
{
    void *handle = handles[card];
    struct nvml_memory memory = {0};
    struct nvml_utilization utilization = {0};
    unsigned number = 0;
    int status = NOT_SUPPORTED;
    switch (field) {
    case MONITOR_MEM_USED:
    case MONITOR_MEM_TOTAL:
        status = nvmlDeviceGetMemoryInfo(handle, &memory);
        *value = (double)(field == MONITOR_MEM_USED ? memory.used : memory.total);
        break;
    case MONITOR_BUSY:
        if (nvmlDeviceGetUtilizationRates) status = nvmlDeviceGetUtilizationRates(handle, &utilization);
        *value = utilization.gpu;
        break;
    case MONITOR_TEMP:
        if (nvmlDeviceGetTemperature) status = nvmlDeviceGetTemperature(handle, 0, &number);
        *value = number;
        break;
    case MONITOR_POWER:
        if (nvmlDeviceGetPowerUsage) status = nvmlDeviceGetPowerUsage(handle, &number);
        *value = number * 1e-3;
        break;
    case MONITOR_PROCESS: status = processes(handle, request, value); break;
    }
    if (status == GPU_IS_LOST) *why = "the driver has lost the card";
    if (status == NO_PERMISSION) *why = "no permission";
    if (status == 0) return 1;
    return status == NOT_SUPPORTED || status == NO_PERMISSION || status == NOT_FOUND ? 0 : -1;
}

const struct helper_library helper_nvml = {"nvml", LIBRARY_NVML, nvml_open, nvml_card, nvml_read};
