/* Provider sysfs: AMD and Hygon cards through the files of their kernel driver, without a library. Also reads
 * the memory of the watched processes for the rsmi provider.
 *
 * Cards are found by directory entry, so that gaps in their numbers (a boot VGA as card0, one headless card)
 * lose no card. */
#include "core/monitor/monitor_internal.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/kfd.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HOLDERS_SEEN = 256 };

struct sysfs {
    int number[MONITOR_CARDS]; /* N of /sys/class/drm/cardN */
};

/* Returns the PCI address in the last path component that is one. */
static bool pci_of_link(char pci[16], const struct monitor *m, const char *what, int number)
{
    char *path = xasprintf("%s/sys/class/drm/card%d%s", m->options.root, number, what), target[1024],
         found[16], *rest = target, *part;
    ssize_t n = readlink(path, target, sizeof target - 1);
    free(path);
    target[n > 0 ? n : 0] = 0;
    pci[0] = 0;
    while ((part = strsep(&rest, "/"))) {
        monitor_pci(found, part);
        if (found[0]) memcpy(pci, found, sizeof found);
    }
    return pci[0] != 0;
}

static void card_identify(struct monitor *m, struct monitor_card *card, int number, double vendor)
{
    char text[1024], *slot;
    card->pci[0] = 0;
    if (read_text(m, text, sizeof text, "/sys/class/drm/card%d/device/uevent", number) > 0 &&
        (slot = strstr(text, "PCI_SLOT_NAME="))) {
        slot += strlen("PCI_SLOT_NAME=");
        slot[strcspn(slot, "\n")] = 0;
        monitor_pci(card->pci, slot);
    }
    if (!card->pci[0] && !pci_of_link(card->pci, m, "/device", number)) pci_of_link(card->pci, m, "", number);
    if (read_text(m, text, sizeof text, "/sys/class/drm/card%d/device/product_name", number) > 0 && text[0]) {
        card_name(card, text);
        return;
    }
    char device[16];
    if (read_text(m, device, sizeof device, "/sys/class/drm/card%d/device/device", number) <= 0)
        device[0] = 0;
    const char *known = pci_card_name((unsigned)vendor, (unsigned)strtoul(device, NULL, 16));
    snprintf(text, sizeof text, "%s %s", vendor == PCI_HYGON ? "Hygon" : "AMD", known ? known : device);
    card_name(card, text);
}

static int by_number(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

int sysfs_cards(const struct monitor *m, int numbers[MONITOR_CARDS], bool *memory)
{
    char *path = path_join(m->options.root, "sys/class/drm");
    if (!m->options.root[0]) {
        free(path);
        path = xstrdup("/sys/class/drm");
    }
    DIR *dir = opendir(path);
    free(path);
    int count = 0;
    *memory = false;
    for (struct dirent *e; dir && (e = readdir(dir)) && count < MONITOR_CARDS;) {
        if (strncmp(e->d_name, "card", 4) != 0 || !isdigit((unsigned char)e->d_name[4])) continue;
        char *end, text[16];
        long number = strtol(e->d_name + 4, &end, 10);
        if (*end || number > 100000) continue; /* skip cardN-CONNECTOR */
        if (read_text(m, text, sizeof text, "/sys/class/drm/card%ld/device/vendor", number) <= 0) continue;
        long vendor = strtol(text, NULL, 16);
        if (vendor != PCI_AMD && vendor != PCI_HYGON) continue;
        double used;
        if (read_number(m, &used, "/sys/class/drm/card%ld/device/mem_info_vram_used", number) > 0)
            *memory = true;
        numbers[count++] = (int)number;
    }
    if (dir) closedir(dir);
    qsort(numbers, (size_t)count, sizeof *numbers, by_number);
    return count;
}

/* Finds hwmonK of the card: its number changes when the driver is loaded again. */
static int card_hwmon(const struct monitor *m, int number)
{
    char *path = xasprintf("%s/sys/class/drm/card%d/device/hwmon", m->options.root, number);
    DIR *dir = opendir(path);
    free(path);
    int found = -1;
    for (struct dirent *e; dir && found < 0 && (e = readdir(dir));)
        if (strncmp(e->d_name, "hwmon", 5) == 0 && isdigit((unsigned char)e->d_name[5]))
            found = atoi(e->d_name + 5);
    if (dir) closedir(dir);
    return found;
}

/* The hot spot (junction), else edge, else the first sensor. */
static int card_temperature(const struct monitor *m, int number, int hwmon, double *milli)
{
    static const char *const labels[] = {"junction", "edge"};
    char label[32];
    for (size_t k = 0; k < sizeof labels / sizeof *labels; k++)
        for (int i = 1; i <= 8; i++) {
            if (read_text(m, label, sizeof label, "/sys/class/drm/card%d/device/hwmon/hwmon%d/temp%d_label",
                          number, hwmon, i) <= 0)
                continue;
            if (strcmp(label, labels[k]) != 0) continue;
            int result = read_number(m, milli, "/sys/class/drm/card%d/device/hwmon/hwmon%d/temp%d_input",
                                     number, hwmon, i);
            if (result) return result;
        }
    return read_number(m, milli, "/sys/class/drm/card%d/device/hwmon/hwmon%d/temp1_input", number, hwmon);
}

/* Reads pp_dpm_sclk, whose lines are "1: 1700Mhz *", the star at the clock of now. */
static void card_clocks(struct monitor *m, struct monitor_card *card, int number)
{
    char text[1024], *rest = text, *line;
    double now = -1, most = -1, mhz;
    int result = read_text(m, text, sizeof text, "/sys/class/drm/card%d/device/pp_dpm_sclk", number);
    while (result > 0 && (line = strsep(&rest, "\n"))) {
        if (sscanf(line, "%*[^:]: %lfM", &mhz) != 1) continue;
        if (mhz > most) most = mhz;
        if (strchr(line, '*')) now = mhz;
    }
    card_take(card, MONITOR_CLOCK, result, now);
    card_take(card, MONITOR_CLOCK_MOST, result, most);
}

/* ECC from the driver's RAS files ("ue: 0", "ce: 0"), which only a card with ECC has; clocks; power caps. */
static void card_health(struct monitor *m, struct monitor_card *card, int number, int hwmon)
{
    static const struct {
        int field;
        const char *name;
    } caps[] = {{MONITOR_CAP, "power1_cap"}, {MONITOR_CAP_DEFAULT, "power1_cap_default"}};
    static const int none[] = {MONITOR_THROTTLE, MONITOR_MIG, MONITOR_INDEX};
    char text[256];
    double errors = -1, value = 0;
    int result = read_text(m, text, sizeof text, "/sys/class/drm/card%d/device/ras/umc_err_count", number);
    if (result > 0 && sscanf(text, "ue: %lf", &errors) != 1) result = -1;
    card_take(card, MONITOR_ECC_ERRORS, result, errors);
    card_take(card, MONITOR_ECC, result, 1);
    card_clocks(m, card, number);
    for (int i = 0; i < 2 && m->options.health; i++) {
        result = hwmon < 0 ? 0
                           : read_number(m, &value, "/sys/class/drm/card%d/device/hwmon/hwmon%d/%s", number,
                                         hwmon, caps[i].name);
        card_take(card, caps[i].field, result, value * 1e-6);
    }
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) card_take(card, none[i], 0, 0);
}

static void card_sample(struct monitor *m, struct monitor_card *card, int number)
{
    double value = 0;
    int result = read_number(m, &value, "/sys/class/drm/card%d/device/mem_info_vram_total", number);
    card_take(card, MONITOR_MEM_TOTAL, result, value);
    result = read_number(m, &value, "/sys/class/drm/card%d/device/mem_info_vram_used", number);
    card_take(card, MONITOR_MEM_USED, result, value);
    result = read_number(m, &value, "/sys/class/drm/card%d/device/gpu_busy_percent", number);
    card_take(card, MONITOR_BUSY, result, value);
    int hwmon = card_hwmon(m, number);
    result = hwmon < 0 ? 0 : card_temperature(m, number, hwmon, &value);
    card_take(card, MONITOR_TEMP, result, value * 1e-3);
    result = hwmon < 0 ? 0
                       : read_number(m, &value, "/sys/class/drm/card%d/device/hwmon/hwmon%d/power1_average",
                                     number, hwmon);
    if (result == 0 && hwmon >= 0)
        result =
            read_number(m, &value, "/sys/class/drm/card%d/device/hwmon/hwmon%d/power1_input", number, hwmon);
    card_take(card, MONITOR_POWER, result, value * 1e-6);
    card_health(m, card, number, hwmon);
}

void kfd_process_bytes(struct monitor *m)
{
    pid_t watched[MONITOR_PIDS];
    int pids[HOLDERS_SEEN], n = kfd_processes(m->options.root, pids, HOLDERS_SEEN),
                            ours = watched_pids(m, watched);
    for (int i = 0; i < m->work.card_count; i++) {
        struct monitor_card *card = &m->work.cards[i];
        long id = n > 0 ? kfd_card(m->options.root, card->pci) : 0;
        double sum = 0, bytes;
        bool any = false;
        card->holder_count = 0;
        for (int k = 0; id && k < n; k++) {
            if (!kfd_bytes(m->options.root, pids[k], id, &bytes)) continue;
            card_holder(m, card, pids[k], bytes, NULL);
            for (int w = 0; w < ours; w++)
                if (watched[w] == pids[k]) {
                    sum += bytes;
                    any = true;
                }
        }
        card_take(card, MONITOR_PROCESS, any, sum);
    }
}

static void sysfs_sample(struct monitor *m)
{
    struct sysfs *s = m->state;
    for (int i = 0; i < m->work.card_count; i++) card_sample(m, &m->work.cards[i], s->number[i]);
    kfd_process_bytes(m);
}

static int sysfs_open(struct monitor *m, struct error *err)
{
    struct sysfs *s = xcalloc(1, sizeof *s);
    bool memory;
    int count = sysfs_cards(m, s->number, &memory);
    if (count == 0) {
        free(s);
        return error_set(err, EXIT_NO_CARD, "is the card's kernel driver loaded?",
                         "no AMD or Hygon card in %s/sys/class/drm", m->options.root);
    }
    m->state = s;
    m->work.card_count = count;
    for (int i = 0; i < count; i++) {
        char text[16];
        read_text(m, text, sizeof text, "/sys/class/drm/card%d/device/vendor", s->number[i]);
        card_identify(m, &m->work.cards[i], s->number[i], (double)strtol(text, NULL, 16));
    }
    return 0;
}

static void sysfs_close(struct monitor *m) { free(m->state); }

const struct monitor_provider monitor_sysfs = {"sysfs", sysfs_open, sysfs_sample, sysfs_close};
