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
static int numbers[MONITOR_CARDS]; /* of the handles in nvidia-smi */
/* Of a card that is divided (MIG): the instance whose memory and processes are read, which is the one that
 * CUDA_VISIBLE_DEVICES names, or the only one. NULL with divided set: not known which. */
static void *instances[MONITOR_CARDS];
static bool divided[MONITOR_CARDS];

/* Whether CUDA_VISIBLE_DEVICES has this UUID, or its beginning: MIG-... */
static bool is_visible(const char *uuid)
{
    const char *all = getenv("CUDA_VISIBLE_DEVICES");
    for (size_t n; all && *all; all += n + (all[n] == ','))
        if ((n = strcspn(all, ",")) > 4 && strncmp(all, uuid, n) == 0) return true;
    return false;
}

static void find_instance(int card)
{
    unsigned now = 0, next, most = 0, seen = 0;
    instances[card] = handles[card];
    divided[card] = nvmlDeviceGetMigMode && nvmlDeviceGetMigMode(handles[card], &now, &next) == 0 && now == 1;
    if (!divided[card]) return;
    void *only = instances[card] = NULL;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (!nvmlDeviceGetMaxMigDeviceCount || !nvmlDeviceGetMigDeviceHandleByIndex) return;
    if (nvmlDeviceGetMaxMigDeviceCount(handles[card], &most) != 0) return;
    for (unsigned i = 0; i < most && !instances[card]; i++) {
        char uuid[96] = "";
        void *handle;
        if (nvmlDeviceGetMigDeviceHandleByIndex(handles[card], i, &handle) != 0) continue;
        seen++;
        only = handle;
        if (nvmlDeviceGetUUID && nvmlDeviceGetUUID(handle, uuid, sizeof uuid) == 0 && is_visible(uuid))
            instances[card] = handle;
    }
    if (seen == 1 && !(visible && strstr(visible, "MIG-"))) instances[card] = only;
}

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
        if (nvmlDeviceGetHandleByIndex_v2(i, &handles[count]) == 0) {
            numbers[count] = (int)i;
            find_instance(count++);
        }
    return count;
}

static void nvml_card(int card, char *name, size_t size, char pci[16])
{
    struct nvml_pci info = {0};
    void *named = instances[card] ? instances[card] : handles[card];
    if (!nvmlDeviceGetName || nvmlDeviceGetName(named, name, (unsigned)size) != 0)
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

static int throttle(void *handle, double *value)
{
    static const struct {
        unsigned long long theirs;
        int ours;
    } rows[] = {{NVML_SW_POWER_CAP, THROTTLE_CAP},        {NVML_SW_THERMAL, THROTTLE_HEAT},
                {NVML_HW_THERMAL, THROTTLE_HEAT},         {NVML_HW_SLOWDOWN, THROTTLE_HARDWARE},
                {NVML_HW_POWER_BRAKE, THROTTLE_HARDWARE}, {NVML_APPLICATION_CLOCKS, THROTTLE_SETTING}};
    unsigned long long reasons = 0;
    int found = 0, status = nvmlDeviceGetCurrentClocksThrottleReasons(handle, &reasons);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (reasons & rows[i].theirs) found |= rows[i].ours;
    *value = reasons == ~0ull ? -1 : found;
    return status;
}

/* A call that the library lacks leaves its reading unknown. */
static int health(int card, int field, double *value)
{
    void *handle = handles[card];
    unsigned number = 0;
    unsigned long long errors = 0;
    int status = NVML_UNKNOWN, now = -1, next;
    switch (field) {
    case MONITOR_ECC:
        if (nvmlDeviceGetEccMode) status = nvmlDeviceGetEccMode(handle, &now, &next);
        *value = now;
        break;
    case MONITOR_ECC_ERRORS:
        if (nvmlDeviceGetTotalEccErrors)
            status = nvmlDeviceGetTotalEccErrors(handle, NVML_UNCORRECTED, NVML_SINCE_LOADED, &errors);
        *value = (double)errors;
        break;
    case MONITOR_CLOCK:
        if (nvmlDeviceGetClockInfo) status = nvmlDeviceGetClockInfo(handle, NVML_MULTIPROCESSORS, &number);
        *value = number;
        break;
    case MONITOR_CLOCK_MOST:
        if (nvmlDeviceGetMaxClockInfo)
            status = nvmlDeviceGetMaxClockInfo(handle, NVML_MULTIPROCESSORS, &number);
        *value = number;
        break;
    case MONITOR_THROTTLE:
        if (nvmlDeviceGetCurrentClocksThrottleReasons) status = throttle(handle, value);
        break;
    case MONITOR_CAP:
        if (nvmlDeviceGetPowerManagementLimit) status = nvmlDeviceGetPowerManagementLimit(handle, &number);
        *value = number * 1e-3;
        break;
    case MONITOR_CAP_DEFAULT:
        if (nvmlDeviceGetPowerManagementDefaultLimit)
            status = nvmlDeviceGetPowerManagementDefaultLimit(handle, &number);
        *value = number * 1e-3;
        break;
    case MONITOR_MIG:
        if (nvmlDeviceGetMigMode) status = nvmlDeviceGetMigMode(handle, &number, &(unsigned){0});
        *value = number;
        break;
    case MONITOR_INDEX:
        status = 0;
        *value = numbers[card];
        break;
    }
    return status;
}

static int nvml_read(int card, int field, const struct helper_request *request, double *value,
                     const char **why)
{
    void *handle = handles[card], *own = instances[card];
    struct nvml_memory memory = {0};
    struct nvml_utilization utilization = {0};
    unsigned number = 0;
    int status = NVML_NOT_SUPPORTED;
    switch (field) {
    case MONITOR_MEM_USED:
    case MONITOR_MEM_TOTAL:
        if (own) status = nvmlDeviceGetMemoryInfo(own, &memory);
        else *why = _("the card is divided (MIG): CUDA_VISIBLE_DEVICES=MIG-... names the instance");
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
    case MONITOR_PROCESS:
        if (own) status = processes(own, request, value);
        else listed = 0;
        break;
    default: status = health(card, field, value);
    }
    if (status == NVML_GPU_IS_LOST)
        *why = _("the driver has lost the card; the kernel's log has the reason: dmesg | grep Xid");
    if (status == NVML_NO_PERMISSION) *why = _("no permission");
    if (status == 0) return 1;
    if (status == NVML_NO_PERMISSION) return field <= MONITOR_PROCESS ? 0 : -1;
    return status == NVML_NOT_SUPPORTED || status == NVML_NOT_FOUND ? 0 : -1;
}

const struct helper_library helper_nvml = {"nvml", LIBRARY_NVML, nvml_open, nvml_card, nvml_read, holders};
