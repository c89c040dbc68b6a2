/* Stand-ins for librocm_smi64 and libnvidia-ml, in one file, as awkward as the real ones: what they do is
 * said in $FAKE_SMI, words of cards=N  hygon  init=STATUS  init_hang  hang=CARD.FIELD  abort=CARD.FIELD
 * status=CARD.FIELD.STATUS  value=CARD.FIELD.NUMBER  garbage=CARD.FIELD  slow=MS  instances=N  holds=BYTES
 * (of process 88) with FIELD 0 to 14 as in enum monitor_field. Values are (CARD + 1) times a number of the
 * field; those of health are of a card that is well. A card with value=CARD.13.1 is divided into N instances
 * (2). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int nvmlInit_v2(void), nvmlDeviceGetCount_v2(unsigned *), nvmlDeviceGetHandleByIndex_v2(unsigned, void **),
    nvmlDeviceGetName(void *, char *, unsigned);
int nvmlDeviceGetPciInfo_v3(void *, void *), nvmlDeviceGetMemoryInfo(void *, unsigned long long[3]),
    nvmlDeviceGetUtilizationRates(void *, unsigned[2]);
int nvmlDeviceGetTemperature(void *, int, unsigned *), nvmlDeviceGetPowerUsage(void *, unsigned *),
    nvmlDeviceGetComputeRunningProcesses_v3(void *, unsigned *, void *);
const char *nvmlErrorString(int);
int nvmlDeviceGetEccMode(void *, int *, int *),
    nvmlDeviceGetTotalEccErrors(void *, int, int, unsigned long long *),
    nvmlDeviceGetClockInfo(void *, int, unsigned *), nvmlDeviceGetMaxClockInfo(void *, int, unsigned *),
    nvmlDeviceGetCurrentClocksThrottleReasons(void *, unsigned long long *),
    nvmlDeviceGetPowerManagementLimit(void *, unsigned *),
    nvmlDeviceGetPowerManagementDefaultLimit(void *, unsigned *),
    nvmlDeviceGetMigMode(void *, unsigned *, unsigned *), nvmlDeviceGetMaxMigDeviceCount(void *, unsigned *),
    nvmlDeviceGetMigDeviceHandleByIndex(void *, unsigned, void **),
    nvmlDeviceGetUUID(void *, char *, unsigned);
int rsmi_dev_ecc_enabled_get(uint32_t, uint64_t *), rsmi_dev_ecc_count_get(uint32_t, uint64_t, uint64_t[2]),
    rsmi_dev_power_cap_get(uint32_t, uint32_t, uint64_t *),
    rsmi_dev_power_cap_default_get(uint32_t, uint64_t *);
int rsmi_init(uint64_t), rsmi_num_monitor_devices(uint32_t *), rsmi_dev_vendor_id_get(uint32_t, uint16_t *),
    rsmi_dev_pci_id_get(uint32_t, uint64_t *);
int rsmi_dev_memory_usage_get(uint32_t, int, uint64_t *),
    rsmi_dev_memory_total_get(uint32_t, int, uint64_t *), rsmi_dev_busy_percent_get(uint32_t, uint32_t *);
int rsmi_dev_temp_metric_get(uint32_t, uint32_t, int, int64_t *),
    rsmi_dev_current_socket_power_get(uint32_t, uint64_t *), rsmi_status_string(int, const char **);
int rsmi_dev_name_get(uint32_t, char *, size_t), rsmi_dev_hcu_util_get(uint32_t, int, float *);

static const char *word(const char *key)
{
    const char *all = getenv("FAKE_SMI"), *at = all ? strstr(all, key) : NULL;
    return at ? at + strlen(key) : NULL;
}

static int cards(void)
{
    const char *n = word("cards=");
    return n ? atoi(n) : 2;
}

static int is(const char *key, int card, int field, int *status)
{
    char text[32];
    snprintf(text, sizeof text, "%s=%d.%d", key, card, field);
    const char *rest = word(text);
    if (rest && *rest >= '0' && *rest <= '9') rest = word(strcat(text, ".")); /* field 1, not 14 */
    else if (rest) rest += *rest == '.';
    if (rest && status) *status = atoi(rest);
    return rest != NULL;
}

static int init(void)
{
    const char *status = word("init=");
    if (word("init_hang")) pause();
    if (getenv("RSMI_DEBUG_INFINITE_LOOP")) pause();
    return status ? atoi(status) : 0;
}

/* Returns the status; does what is to go wrong. */
static int at(int card, int field, uint64_t *value)
{
    int status = 0;
    const char *ms = word("slow=");
    if (ms) usleep(1000u * (unsigned)atoi(ms));
    if (is("hang", card, field, NULL)) pause();
    if (is("abort", card, field, NULL)) {
        fprintf(stderr, "first line\nassertion of card %d failed \033[2J\n", card);
        abort();
    }
    int number = 0;
    is("status", card, field, &status);
    if (is("value", card, field, &number)) *value = (uint64_t)number;
    if (is("garbage", card, field, NULL)) *value = UINT64_MAX;
    return status;
}

int nvmlInit_v2(void) { return init(); }
const char *nvmlErrorString(int status) { return status ? "Driver Not Loaded" : "Success"; }

int nvmlDeviceGetCount_v2(unsigned *n)
{
    *n = (unsigned)cards();
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **handle)
{
    *handle = (void *)(uintptr_t)(i + 1);
    return 0;
}

enum { INSTANCE = 1000 }; /* handles of instances: 1000 + 10 CARD + NUMBER */
static int index_of(void *handle) { return (int)(uintptr_t)handle - 1; }
static int instance_of(void *handle)
{
    return (uintptr_t)handle < INSTANCE ? -1 : (int)(uintptr_t)handle % 10;
}

int nvmlDeviceGetName(void *handle, char *name, unsigned size)
{
    snprintf(name, size, "NVIDIA H%d", 100 * (index_of(handle) + 1));
    return 0;
}

int nvmlDeviceGetPciInfo_v3(void *handle, void *info)
{
    memset(info, 0, 68);
    snprintf((char *)info + 36, 32, "00000000:%02X:00.0", 0xC1 + index_of(handle));
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long memory[3])
{
    int card = index_of(handle), instance = instance_of(handle);
    if (instance >= 0) {
        memory[0] = 10000000000ull * (unsigned)(instance + 1), memory[2] = 1000000000, memory[1] = 0;
        return 0;
    }
    uint64_t used = 10000000000ull * (unsigned)(card + 1);
    int status = at(card, 0, &used);
    memory[0] = 150000000000ull, memory[1] = memory[0] - used, memory[2] = used;
    return status;
}

int nvmlDeviceGetUtilizationRates(void *handle, unsigned rates[2])
{
    uint64_t busy = 40u * (unsigned)(index_of(handle) + 1);
    int status = at(index_of(handle), 2, &busy);
    rates[0] = (unsigned)busy, rates[1] = 1;
    return status;
}

int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *celsius)
{
    uint64_t value = 30u * (unsigned)(index_of(handle) + 1);
    int status = sensor ? 2 : at(index_of(handle), 3, &value);
    *celsius = (unsigned)value;
    return status;
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatt)
{
    uint64_t value = 300500u * (unsigned)(index_of(handle) + 1);
    int status = at(index_of(handle), 4, &value);
    *milliwatt = (unsigned)value;
    return status;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *n, void *list)
{
    struct {
        unsigned pid;
        unsigned long long used;
        unsigned a, b;
    } *p = list;
    int status = instance_of(handle) >= 0 ? 0 : at(index_of(handle), 5, &(uint64_t){0});
    if (*n < 3) return 7;
    *n = 3;
    p[0].pid = 77, p[0].used = 1000;
    p[1].pid = 88, p[1].used = word("holds=") ? (unsigned long long)atoll(word("holds=")) : 5000;
    p[2].pid = 77, p[2].used = ~0ull;
    return status;
}

/* ---- health ---- */

static int small(void *handle, int field, unsigned usual, unsigned *value)
{
    uint64_t found = usual;
    int status = at(index_of(handle), field, &found);
    *value = (unsigned)found;
    return status;
}
int nvmlDeviceGetEccMode(void *handle, int *now, int *next)
{
    *next = 1;
    return small(handle, 9, 1, (unsigned *)now);
}
int nvmlDeviceGetTotalEccErrors(void *handle, int kind, int counter, unsigned long long *count)
{
    unsigned found = 0;
    int status = kind == 1 && counter == 0 ? small(handle, 6, 0, &found) : 2;
    *count = found;
    return status;
}
int nvmlDeviceGetClockInfo(void *handle, int clock, unsigned *mhz)
{
    return clock == 1 ? small(handle, 7, 1980, mhz) : 2;
}
int nvmlDeviceGetMaxClockInfo(void *handle, int clock, unsigned *mhz)
{
    return clock == 1 ? small(handle, 10, 1980, mhz) : 2;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons)
{
    unsigned found = 1; /* idle */
    int status = small(handle, 8, 1, &found);
    *reasons = found;
    return status;
}
int nvmlDeviceGetPowerManagementLimit(void *handle, unsigned *milliwatt)
{
    return small(handle, 11, 700000, milliwatt);
}
int nvmlDeviceGetPowerManagementDefaultLimit(void *handle, unsigned *milliwatt)
{
    return small(handle, 12, 700000, milliwatt);
}
int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *next)
{
    *next = 0;
    return small(handle, 13, 0, now);
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count)
{
    *count = 7;
    return handle == NULL;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned i, void **instance)
{
    const char *n = word("instances=");
    *instance = (void *)(uintptr_t)(INSTANCE + 10 * index_of(handle) + (int)i);
    return i < (unsigned)(n ? atoi(n) : 2) ? 0 : 6;
}
int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned size)
{
    int i = instance_of(handle), card = ((int)(uintptr_t)handle - INSTANCE) / 10;
    snprintf(uuid, size, i < 0 ? "GPU-%d" : "MIG-c7384736-%d-%d", i < 0 ? index_of(handle) : card, i);
    return 0;
}

int rsmi_dev_ecc_enabled_get(uint32_t i, uint64_t *blocks)
{
    *blocks = 5;
    return at((int)i - 1, 9, blocks);
}
int rsmi_dev_ecc_count_get(uint32_t i, uint64_t block, uint64_t errors[2])
{
    errors[0] = 9, errors[1] = 0;
    return block == 1 ? at((int)i - 1, 6, &errors[1]) : 2;
}
int rsmi_dev_power_cap_get(uint32_t i, uint32_t sensor, uint64_t *microwatt)
{
    *microwatt = 350000000;
    return sensor ? 2 : at((int)i - 1, 11, microwatt);
}
int rsmi_dev_power_cap_default_get(uint32_t i, uint64_t *microwatt)
{
    *microwatt = 350000000;
    return at((int)i - 1, 12, microwatt);
}

int rsmi_init(uint64_t flags) { return flags == 1 ? init() : 1; }

int rsmi_status_string(int status, const char **text)
{
    *text = status == 8 ? "RSMI_STATUS_INIT_ERROR" : "other";
    return 0;
}

int rsmi_num_monitor_devices(uint32_t *n)
{
    *n = (uint32_t)cards() + 1;
    return 0;
}

/* Device 0 is the boot VGA, not a card for computing. */
int rsmi_dev_vendor_id_get(uint32_t i, uint16_t *vendor)
{
    *vendor = i == 0 ? 0x1a03 : i % 2 ? 0x1d94 : 0x1002;
    return 0;
}

int rsmi_dev_pci_id_get(uint32_t i, uint64_t *id)
{
    *id = 1ull << 32 | (0xC0ull + i) << 8 | 2u << 3 | 1u;
    return 0;
}

static int scaled(uint32_t i, int field, uint64_t unit, uint64_t *value)
{
    *value = unit * i;
    return at((int)i - 1, field, value);
}

int rsmi_dev_memory_usage_get(uint32_t i, int type, uint64_t *value)
{
    return type ? 1 : scaled(i, 0, 10000000000ull, value);
}
int rsmi_dev_memory_total_get(uint32_t i, int type, uint64_t *value)
{
    return type ? 1 : scaled(i, 1, 20000000000ull, value);
}

int rsmi_dev_busy_percent_get(uint32_t i, uint32_t *percent)
{
    uint64_t value;
    int status = scaled(i, 2, 40, &value);
    *percent = word("hygon") ? UINT32_MAX : (uint32_t)value;
    return word("hygon") && i % 2 == 0 ? 2 : status;
}

/* As DTK's library: the number in place of a name, and who is busy only where it is measured; else an error,
 * or no percentage with success. */
int rsmi_dev_name_get(uint32_t i, char *name, size_t size)
{
    snprintf(name, size, "0x%x", i % 2 ? 0x6210 : 0x66a1);
    return word("hygon") ? 0 : 2;
}
int rsmi_dev_hcu_util_get(uint32_t i, int milliseconds, float *percent)
{
    *percent = 12.5f * (float)i;
    return word("hygon") && milliseconds > 0 && milliseconds <= 100 ? 0 : 2;
}

int rsmi_dev_temp_metric_get(uint32_t i, uint32_t sensor, int metric, int64_t *milli)
{
    uint64_t value = 0;
    if (sensor == 1 || metric != 0) return 2; /* no junction sensor: the edge it is */
    int status = scaled(i, 3, 30250, &value);
    *milli = (int64_t)value;
    return status;
}

int rsmi_dev_current_socket_power_get(uint32_t i, uint64_t *microwatt)
{
    return scaled(i, 4, 200500000, microwatt);
}
