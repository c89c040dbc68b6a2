/* The used part of libnvidia-ml. Layouts are those of nvml.h. Versioned names (_v2, _v3) never change their
 * layout; enumerations are ints. The test vendor_api compares this file with nvml.h. */
#ifndef MEOPT_MONITOR_NVML_API_H
#define MEOPT_MONITOR_NVML_API_H

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
    char reserve[64]; /* padding, in case a later library writes more */
};
struct nvml_process { /* _v2 and _v3 */
    unsigned pid;
    unsigned long long used;
    unsigned instance, compute_instance;
};

/* name, required, arguments */
#define NVML_ENTRIES(X)                                                                                      \
    X(nvmlInit_v2, true, (void))                                                                             \
    X(nvmlDeviceGetCount_v2, true, (unsigned *))                                                             \
    X(nvmlDeviceGetHandleByIndex_v2, true, (unsigned, void **))                                              \
    X(nvmlDeviceGetName, false, (void *, char *, unsigned))                                                  \
    X(nvmlDeviceGetPciInfo_v3, false, (void *, struct nvml_pci *))                                           \
    X(nvmlDeviceGetMemoryInfo, true, (void *, struct nvml_memory *))                                         \
    X(nvmlDeviceGetUtilizationRates, false, (void *, struct nvml_utilization *))                             \
    X(nvmlDeviceGetTemperature, false, (void *, int sensor, unsigned *))                                     \
    X(nvmlDeviceGetPowerUsage, false, (void *, unsigned *))                                                  \
    X(nvmlDeviceGetComputeRunningProcesses_v3, false, (void *, unsigned *, struct nvml_process *))           \
    X(nvmlDeviceGetComputeRunningProcesses_v2, false, (void *, unsigned *, struct nvml_process *))           \
    X(nvmlDeviceGetEccMode, false, (void *, int *now, int *next))                                            \
    X(nvmlDeviceGetTotalEccErrors, false, (void *, int kind, int counter, unsigned long long *))             \
    X(nvmlDeviceGetClockInfo, false, (void *, int clock, unsigned *mhz))                                     \
    X(nvmlDeviceGetMaxClockInfo, false, (void *, int clock, unsigned *mhz))                                  \
    X(nvmlDeviceGetCurrentClocksThrottleReasons, false, (void *, unsigned long long *))                      \
    X(nvmlDeviceGetPowerManagementLimit, false, (void *, unsigned *milliwatt))                               \
    X(nvmlDeviceGetPowerManagementDefaultLimit, false, (void *, unsigned *milliwatt))                        \
    X(nvmlDeviceGetMigMode, false, (void *, unsigned *now, unsigned *next))                                  \
    X(nvmlDeviceGetMaxMigDeviceCount, false, (void *, unsigned *))                                           \
    X(nvmlDeviceGetMigDeviceHandleByIndex, false, (void *, unsigned, void **))                               \
    X(nvmlDeviceGetUUID, false, (void *, char *, unsigned))
/* and const char *nvmlErrorString(int) */

enum { NVML_CELSIUS_OF_GPU = 0, NVML_UNCORRECTED = 1, NVML_SINCE_LOADED = 0, NVML_MULTIPROCESSORS = 1 };
enum { /* clocks throttle reasons */
       NVML_APPLICATION_CLOCKS = 0x2,
       NVML_SW_POWER_CAP = 0x4,
       NVML_HW_SLOWDOWN = 0x8,
       NVML_SW_THERMAL = 0x20,
       NVML_HW_THERMAL = 0x40,
       NVML_HW_POWER_BRAKE = 0x80
};
enum {
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_GPU_IS_LOST = 15,
    NVML_UNKNOWN = 999
};

#endif
