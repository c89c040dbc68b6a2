/* Shared by the checks of cards (cards.c, site.c). */
#ifndef MEOPT_DOCTOR_CARDS_H
#define MEOPT_DOCTOR_CARDS_H

#include "core/doctor/doctor.h"

/* Return the number of a vendor's cards (pci_card.h) on the PCI bus, and the name of the first, "" if
 * unknown. */
int doctor_card_count(const struct doctor *doctor, unsigned vendor);
void doctor_card_name(const struct doctor *doctor, unsigned vendor, char *name, size_t size);

/* Returns the IOMMU mode of cards, as the kernel reports it: "identity" (pass-through), else the type of the
 * first translating group ("DMA", "DMA-FQ"). false: no card is in a group, or the kernel is too old to report
 * it. */
bool doctor_iommu_type(const struct doctor *doctor, char type[32]);

bool doctor_exists(const struct doctor *doctor, const char *path);
bool doctor_in_container(const struct doctor *doctor);

/* Checks. */
void doctor_dtk(struct doctor *doctor);
void doctor_settings(struct doctor *doctor);

#endif
