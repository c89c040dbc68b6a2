/* The used part of librocm_smi64. Handles are numbers, enumerations ints. The test vendor_api compares this
 * file with rocm_smi.h. */
#ifndef MEOPT_MONITOR_RSMI_API_H
#define MEOPT_MONITOR_RSMI_API_H

#include <stddef.h>
#include <stdint.h>

struct rsmi_errors {
    uint64_t corrected, uncorrected;
    uint64_t reserve[6]; /* padding: later libraries also count deferred errors */
};

/* name, required, arguments */
#define RSMI_ENTRIES(X)                                                                                      \
    X(rsmi_init, true, (uint64_t flags))                                                                     \
    X(rsmi_num_monitor_devices, true, (uint32_t *))                                                          \
    X(rsmi_dev_vendor_id_get, false, (uint32_t, uint16_t *))                                                 \
    X(rsmi_dev_pci_id_get, true, (uint32_t, uint64_t *))                                                     \
    X(rsmi_dev_name_get, false, (uint32_t, char *, size_t))                                                  \
    X(rsmi_dev_memory_usage_get, true, (uint32_t, int type, uint64_t *))                                     \
    X(rsmi_dev_memory_total_get, true, (uint32_t, int type, uint64_t *))                                     \
    X(rsmi_dev_busy_percent_get, false, (uint32_t, uint32_t *))                                              \
    X(rsmi_dev_temp_metric_get, false, (uint32_t, uint32_t sensor, int metric, int64_t *milli_celsius))      \
    X(rsmi_dev_power_ave_get, false, (uint32_t, uint32_t sensor, uint64_t * microwatt))                      \
    X(rsmi_dev_ecc_enabled_get, false, (uint32_t, uint64_t * blocks))                                        \
    X(rsmi_dev_ecc_count_get, false, (uint32_t, uint64_t block, struct rsmi_errors *))                       \
    X(rsmi_dev_power_cap_get, false, (uint32_t, uint32_t sensor, uint64_t * microwatt))                      \
    X(rsmi_dev_power_cap_default_get, false, (uint32_t, uint64_t * microwatt))                               \
    X(rsmi_status_string, false, (int, const char **))
/* ROCm 6 and later (not in Debian 12): include/rocm_smi/rocm_smi.h of ROCm/rocm_smi_lib */
#define RSMI_NEWER_ENTRIES(X) X(rsmi_dev_current_socket_power_get, false, (uint32_t, uint64_t * microwatt))
/* Hygon only: its rocm_smi.h 2.8 in /opt/hyhal/include/rocm_smi, which no package contains, as called by
 * hcu-dcgm
 * (HYGON-AI, pkg/dcgm) and dcutop (ffi/rsmi.py, tried on cards) */
#define RSMI_HYGON_ENTRIES(X) X(rsmi_dev_hcu_util_get, false, (uint32_t, int milliseconds, float *percent))

enum { RSMI_UMC = 1 /* memory controllers, also their bit */ };
enum { RSMI_ALL_GPUS = 1, RSMI_JUNCTION = 1, RSMI_EDGE = 0, RSMI_VRAM = 0, RSMI_CURRENT = 0 };
enum {
    RSMI_NOT_SUPPORTED = 2,
    RSMI_FILE_ERROR = 3,
    RSMI_PERMISSION = 4,
    RSMI_NOT_YET_IMPLEMENTED = 9,
    RSMI_NOT_FOUND = 10
};

#endif
