/* What the checks of cards share (cards.c, site.c). */
#ifndef MEOPT_DOCTOR_CARDS_H
#define MEOPT_DOCTOR_CARDS_H

#include "core/doctor/doctor.h"

/* Cards of a vendor (pci_card.h) on the PCI bus, and what the first of them is called, "" if that is not
 * known. */
int doctor_card_count(const struct doctor *doctor, unsigned vendor);
void doctor_card_name(const struct doctor *doctor, unsigned vendor, char *name, size_t size);

/* How the IOMMU treats cards, by the kernel: "identity" where it lets them through, else the type of a card's
 * group for which it does not ("DMA", "DMA-FQ"). false: no card is in a group, or the kernel is too old to
 * say. */
bool doctor_iommu_type(const struct doctor *doctor, char type[32]);

bool doctor_exists(const struct doctor *doctor, const char *path);
bool doctor_in_container(const struct doctor *doctor);

/* Checks. */
void doctor_dtk(struct doctor *doctor);
void doctor_settings(struct doctor *doctor);

#endif
