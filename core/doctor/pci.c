/* Cards on the PCI bus: see cards.h. */
#include "core/base/pci_card.h"
#include "core/doctor/cards.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct doctor_vendor doctor_vendors[VENDORS] = {
    {PCI_AMD, "AMD", DRIVER_HIP},
    {PCI_HYGON, N_("Hygon (DCU, by its newer name HCU)"), DRIVER_HIP},
    {PCI_NVIDIA, "NVIDIA", DRIVER_CUDA}};

/* Returns a number from a device's file on the PCI bus; 0 if there is none. */
static unsigned long pci_number(const struct doctor *d, const char *device, const char *file)
{
    char path[400];
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%.200s/%s", device, file);
    char *text = doctor_read(d, path);
    unsigned long number = text ? strtoul(text, NULL, 16) : 0;
    free(text);
    return number;
}

/* Returns the vendor's index for displays, 3D controllers and accelerators; -1 for other devices. */
static int vendor_of_card(const struct doctor *d, const char *device)
{
    unsigned long vendor = pci_number(d, device, "vendor"), kind = pci_number(d, device, "class") >> 8;
    for (int i = 0; i < VENDORS; i++)
        if (vendor == doctor_vendors[i].id && (kind >> 8 == 0x03 || kind >> 8 == 0x12 || kind == 0x0b40))
            return i;
    return -1;
}

static DIR *pci_devices(const struct doctor *d)
{
    char *path = doctor_path(d, "/sys/bus/pci/devices");
    DIR *dir = opendir(path);
    free(path);
    return dir;
}

/* Counts cards on the PCI bus by vendor. devices: a device number of each. */
static void count_cards_of(const struct doctor *d, int count[VENDORS], unsigned devices[VENDORS])
{
    DIR *dir = pci_devices(d);
    memset(count, 0, VENDORS * sizeof *count);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        int i = vendor_of_card(d, e->d_name);
        if (i < 0) continue;
        count[i]++;
        devices[i] = (unsigned)pci_number(d, e->d_name, "device");
    }
    if (dir) closedir(dir);
}

void doctor_count_cards(const struct doctor *d, int count[VENDORS])
{
    unsigned devices[VENDORS];
    count_cards_of(d, count, devices);
}

int doctor_card_count(const struct doctor *d, unsigned vendor)
{
    int count[VENDORS], found = 0;
    doctor_count_cards(d, count);
    for (int i = 0; i < VENDORS; i++)
        if (doctor_vendors[i].id == vendor) found = count[i];
    return found;
}

void doctor_card_name(const struct doctor *d, unsigned vendor, char *name, size_t size)
{
    int count[VENDORS];
    unsigned devices[VENDORS] = {0};
    const char *known = NULL;
    count_cards_of(d, count, devices);
    for (int i = 0; i < VENDORS; i++)
        if (doctor_vendors[i].id == vendor) known = pci_card_name(vendor, devices[i]);
    snprintf(name, size, "%s", known ? known : "");
}

bool doctor_iommu_type(const struct doctor *d, char type[32])
{
    DIR *dir = pci_devices(d);
    bool found = false;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char path[300];
        if (vendor_of_card(d, e->d_name) < 0) continue;
        snprintf(path, sizeof path, "/sys/bus/pci/devices/%.200s/iommu_group/type", e->d_name);
        char *text = doctor_read(d, path);
        if (text && (!found || strcmp(type, "identity") == 0)) snprintf(type, 32, "%s", text);
        found = found || text;
        free(text);
    }
    if (dir) closedir(dir);
    return found;
}
