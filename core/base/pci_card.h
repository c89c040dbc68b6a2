/* Names of cards whose kernel driver reports a number instead of a name. */
#ifndef MEOPT_BASE_PCI_CARD_H
#define MEOPT_BASE_PCI_CARD_H

enum { PCI_AMD = 0x1002, PCI_HYGON = 0x1d94, PCI_NVIDIA = 0x10de };

/* Returns "K100 AI" for Hygon's 0x6210; NULL: unknown. */
const char *pci_card_name(unsigned vendor, unsigned device);

#endif
