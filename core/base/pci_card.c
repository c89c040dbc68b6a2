/* Names of Hygon's cards by PCI device, from Hygon's own tool (HYGON-AI/hcu-dcgm, pkg/dcgm/structs.go, the
 * names of 2026 first). The kernel's pci.ids has only "Device 6210". */
#include "core/base/pci_card.h"

#include <stddef.h>

static const struct {
    unsigned first, last, step;
    const char *name;
} hygon[] = {{0x6210, 0x6210, 1, "K100 AI"},        {0x6211, 0x6212, 1, "K100 AI Liquid"},
             {0x6213, 0x6213, 1, "K100 AI i"},      {0x62a0, 0x62b0, 0x10, "K500SM AI"},
             {0x62c7, 0x62c7, 1, "K100 Liquid"},    {0x6310, 0x6310, 1, "BW200"},
             {0x6311, 0x6311, 1, "BW200 Liquid"},   {0x631a, 0x631a, 1, "BW1000 H"},
             {0x6320, 0x6320, 1, "BW150"},          {0x6321, 0x6321, 1, "BW100 Liquid"},
             {0x632a, 0x632a, 1, "BW151"},          {0x6330, 0x6330, 1, "BW500SM"},
             {0x6360, 0x6360, 1, "BW10"},           {0x636a, 0x636a, 1, "BW11"},
             {0x6370, 0x6370, 1, "BW100"},          {0x637a, 0x637a, 1, "BW101"},
             {0x6423, 0x6423, 1, "BW1500B"},        {0x6430, 0x6430, 1, "BW1100"},
             {0x6431, 0x6431, 1, "BW1000 Liquid"},  {0x6436, 0x6436, 1, "BW3000B"},
             {0x6437, 0x6437, 1, "BW3000B Liquid"}, {0x66a1, 0x66a1, 1, "WK100"},
             {0x51b7, 0x57b7, 0x100, "Z100L"},      {0x61b7, 0x67b7, 0x100, "K100"}};

const char *pci_card_name(unsigned vendor, unsigned device)
{
    for (size_t i = 0; vendor == PCI_HYGON && i < sizeof hygon / sizeof *hygon; i++)
        if (device >= hygon[i].first && device <= hygon[i].last &&
            (device - hygon[i].first) % hygon[i].step == 0)
            return hygon[i].name;
    return NULL;
}
