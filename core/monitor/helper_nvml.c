/* libnvidia-ml in the helper: nvml_api.h. */
#include "core/monitor/helper.h"
#include "core/monitor/nvml_api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENTRY(name, required, arguments) static int(*name) arguments;
NVML_ENTRIES(ENTRY)
static const char *(*nvmlErrorString)(int);

static const struct {
    const char *name;
    void **to;
    bool required;
} symbols[] = {
#define ROW(name, required, arguments) {#name, (void **)&name, required},
    NVML_ENTRIES(ROW){"nvmlErrorString", (void **)&nvmlErrorString, false}};

static void *handles[MONITOR_CARDS];

static int nvml_open(void *library, char *why, size_t size)
{
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        *symbols[i].to = dlsym(library, symbols[i].name);
        if (symbols[i].required && !*symbols[i].to) {
            snprintf(why, size, _("the library has no %s"), symbols[i].name);
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
         i++) /* skip a card that fell off the bus or belongs to other users */
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

static struct nvml_process list[HELPER_HOLDERS];
static unsigned listed;

static int processes(void *handle, const struct helper_request *request, double *value)
{
    unsigned n = HELPER_HOLDERS;
    int (*get)(void *, unsigned *, struct nvml_process *) = nvmlDeviceGetComputeRunningProcesses_v3
                                                                ? nvmlDeviceGetComputeRunningProcesses_v3
                                                                : nvmlDeviceGetComputeRunningProcesses_v2;
    listed = 0;
    if (!get) return NVML_NOT_SUPPORTED;
    int status = get(handle, &n, list);
    if (status != 0) return status;
    listed = n < HELPER_HOLDERS ? n : HELPER_HOLDERS;
    bool any = false;
    for (unsigned i = 0; i < listed; i++)
        for (int k = 0; k < request->pid_count; k++)
            if (list[i].pid == (unsigned)request->pids[k] && list[i].used != ~0ull) {
                *value += (double)list[i].used;
                any = true;
            }
    return any ? 0 : NVML_NOT_SUPPORTED;
}

static int holders(struct monitor_holder out[HELPER_HOLDERS])
{
    int n = 0;
    for (unsigned i = 0; i < listed; i++)
        if (list[i].used != ~0ull)
            out[n++] = (struct monitor_holder){.pid = (int)list[i].pid, .bytes = (double)list[i].used};
    return n;
}

static int nvml_read(int card, int field, const struct helper_request *request, double *value,
                     const char **why)
{
    void *handle = handles[card];
    struct nvml_memory memory = {0};
    struct nvml_utilization utilization = {0};
    unsigned number = 0;
    int status = NVML_NOT_SUPPORTED;
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
        if (nvmlDeviceGetTemperature) status = nvmlDeviceGetTemperature(handle, NVML_CELSIUS_OF_GPU, &number);
        *value = number;
        break;
    case MONITOR_POWER:
        if (nvmlDeviceGetPowerUsage) status = nvmlDeviceGetPowerUsage(handle, &number);
        *value = number * 1e-3;
        break;
    case MONITOR_PROCESS: status = processes(handle, request, value); break;
    }
    if (status == NVML_GPU_IS_LOST) *why = _("the driver has lost the card");
    if (status == NVML_NO_PERMISSION) *why = _("no permission");
    if (status == 0) return 1;
    return status == NVML_NOT_SUPPORTED || status == NVML_NO_PERMISSION || status == NVML_NOT_FOUND ? 0 : -1;
}

const struct helper_library helper_nvml = {"nvml", LIBRARY_NVML, nvml_open, nvml_card, nvml_read, holders};
