/* librocm_smi64 in the helper, from AMD or from Hygon (same calls). Uses only calls that return scalars,
 * because the structs changed their sizes under the same names (rsmi_gpu_metrics_t: 96 bytes in 5.2, 1832 in
 * 6.3). watch.c reads the memory of processes from KFD's files instead. */
#include "core/monitor/helper.h"
#include "core/monitor/rsmi_api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENTRY(name, required, arguments) static int(*name) arguments;
RSMI_ENTRIES(ENTRY)
RSMI_NEWER_ENTRIES(ENTRY)
RSMI_HYGON_ENTRIES(ENTRY)

static const struct {
    const char *name;
    void **to;
    bool required;
} symbols[] = {
#define ROW(name, required, arguments) {#name, (void **)&name, required},
    RSMI_ENTRIES(ROW) RSMI_NEWER_ENTRIES(ROW) RSMI_HYGON_ENTRIES(ROW)};

enum { BUSY_MS = 50 };

static uint32_t indices[MONITOR_CARDS]; /* our cards as indices of the library's devices */

static int rsmi_open(void *library, char *why, size_t size)
{
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        *symbols[i].to = dlsym(library, symbols[i].name);
        if (symbols[i].required && !*symbols[i].to) {
            snprintf(why, size, _("the library has no %s"), symbols[i].name);
            return -1;
        }
    }
    /* Without the flag the upstream library hides all vendors except AMD, Hygon included. With the flag it
     * also
     * lists the boot VGA. */
    int status = rsmi_init(RSMI_ALL_GPUS);
    uint32_t devices = 0;
    if (status == 0) status = rsmi_num_monitor_devices(&devices);
    if (status != 0) {
        const char *text = NULL;
        if (rsmi_status_string) rsmi_status_string(status, &text);
        snprintf(why, size, "rsmi_init: %d %s", status, text ? text : "");
        return -1;
    }
    int count = 0;
    for (uint32_t i = 0; i < devices && count < MONITOR_CARDS; i++) {
        uint16_t vendor;
        if (rsmi_dev_vendor_id_get && rsmi_dev_vendor_id_get(i, &vendor) == 0 && vendor != PCI_AMD &&
            vendor != PCI_HYGON)
            continue;
        indices[count++] = i;
    }
    return count;
}

static void rsmi_card(int card, char *name, size_t size, char pci[16])
{
    uint64_t id;
    uint16_t vendor = 0;
    if (!rsmi_dev_name_get || rsmi_dev_name_get(indices[card], name, size) != 0)
        snprintf(name, size, "rsmi %u", indices[card]);
    name[size - 1] = 0;
    if (rsmi_dev_vendor_id_get) rsmi_dev_vendor_id_get(indices[card], &vendor);
    const char *known = strncmp(name, "0x", 2) == 0 /* the library has only the number */
                            ? pci_card_name(vendor, (unsigned)strtoul(name, NULL, 16))
                            : NULL;
    if (known) snprintf(name, size, "Hygon %s", known);
    if (rsmi_dev_pci_id_get(indices[card], &id) == 0)
        snprintf(pci, 16, "%04x:%02x:%02x.%x", (unsigned)(id >> 32 & 0xfffff), (unsigned)(id >> 8 & 255),
                 (unsigned)(id >> 3 & 31), (unsigned)(id & 7));
}

static int rsmi_read(int card, int field, const struct helper_request *request, double *value,
                     const char **why)
{
    (void)request;
    uint32_t i = indices[card], percent = 0;
    uint64_t u = 0;
    int64_t milli = 0;
    float share = 0;
    struct rsmi_errors errors = {0};
    int status = RSMI_NOT_SUPPORTED;
    switch (field) {
    case MONITOR_MEM_USED:
        status = rsmi_dev_memory_usage_get(i, RSMI_VRAM, &u);
        *value = (double)u;
        break;
    case MONITOR_MEM_TOTAL:
        status = rsmi_dev_memory_total_get(i, RSMI_VRAM, &u);
        *value = (double)u;
        break;
    case MONITOR_BUSY:
        /* Hygon's drivers block for this long to measure; their counter returns success without a number */
        if (rsmi_dev_hcu_util_get) status = rsmi_dev_hcu_util_get(i, BUSY_MS, &share);
        *value = (double)share;
        if (status != 0 && rsmi_dev_busy_percent_get) {
            status = rsmi_dev_busy_percent_get(i, &percent);
            *value = percent;
        }
        if (status == 0 && !(*value >= 0 && *value <= 100)) status = RSMI_NOT_SUPPORTED;
        break;
    case MONITOR_TEMP:
        if (!rsmi_dev_temp_metric_get) break;
        status = rsmi_dev_temp_metric_get(i, RSMI_JUNCTION, RSMI_CURRENT, &milli);
        if (status != 0) status = rsmi_dev_temp_metric_get(i, RSMI_EDGE, RSMI_CURRENT, &milli);
        *value = (double)milli * 1e-3;
        break;
    case MONITOR_POWER:
        if (rsmi_dev_power_ave_get) status = rsmi_dev_power_ave_get(i, 0, &u);
        if (status != 0 && rsmi_dev_current_socket_power_get)
            status = rsmi_dev_current_socket_power_get(i, &u);
        *value = (double)u * 1e-6;
        break;
    case MONITOR_ECC:
        if (rsmi_dev_ecc_enabled_get) status = rsmi_dev_ecc_enabled_get(i, &u);
        *value = (double)(u & RSMI_UMC);
        break;
    case MONITOR_ECC_ERRORS:
        if (rsmi_dev_ecc_count_get) status = rsmi_dev_ecc_count_get(i, RSMI_UMC, &errors);
        *value = (double)errors.uncorrected;
        break;
    case MONITOR_CAP:
        if (rsmi_dev_power_cap_get) status = rsmi_dev_power_cap_get(i, 0, &u);
        *value = (double)u * 1e-6;
        break;
    case MONITOR_CAP_DEFAULT:
        if (rsmi_dev_power_cap_default_get) status = rsmi_dev_power_cap_default_get(i, &u);
        *value = (double)u * 1e-6;
        break;
    default: return 0;
    }
    if (status == RSMI_PERMISSION && field > MONITOR_PROCESS) return -1;
    if (status == RSMI_PERMISSION) *why = _("no permission: is this user in the groups render and video?");
    if (status == 0) return 1;
    return status == RSMI_NOT_SUPPORTED || status == RSMI_FILE_ERROR || status == RSMI_PERMISSION ||
                   status == RSMI_NOT_YET_IMPLEMENTED || status == RSMI_NOT_FOUND
               ? 0
               : -1;
}

const struct helper_library helper_rsmi = {"rsmi", LIBRARY_ROCM_SMI, rsmi_open, rsmi_card, rsmi_read, NULL};
