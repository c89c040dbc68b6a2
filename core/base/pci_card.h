/* Cards whose kernel driver gives a number where others give a name. */
#ifndef MEOPT_BASE_PCI_CARD_H
#define MEOPT_BASE_PCI_CARD_H

enum { PCI_AMD = 0x1002, PCI_HYGON = 0x1d94, PCI_NVIDIA = 0x10de };

/* "K100 AI" of Hygon's 0x6210; NULL: not known. */
const char *pci_card_name(unsigned vendor, unsigned device);

#endif
