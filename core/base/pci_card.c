/* Names of Hygon's cards by PCI device, as Hygon's own tool has them (HYGON-AI/hcu-dcgm,
 * pkg/dcgm/structs.go): the kernel's pci.ids say "Device 6210". */
#include "core/base/pci_card.h"

#include <stddef.h>

static const struct {
    unsigned first, last, step;
    const char *name;
} hygon[] = {{0x66a1, 0x66a1, 1, "WK100"},
             {0x51b7, 0x57b7, 0x100, "Z100L"},
             {0x61b7, 0x67b7, 0x100, "K100"},
             {0x6210, 0x6210, 1, "K100 AI"},
             {0x6211, 0x6212, 1, "K100 AI Liquid"}};

const char *pci_card_name(unsigned vendor, unsigned device)
{
    for (size_t i = 0; vendor == PCI_HYGON && i < sizeof hygon / sizeof *hygon; i++)
        if (device >= hygon[i].first && device <= hygon[i].last &&
            (device - hygon[i].first) % hygon[i].step == 0)
            return hygon[i].name;
    return NULL;
}
