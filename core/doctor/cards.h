/* Shared by the checks of cards (cards.c, pci.c, site.c). */
#ifndef MEOPT_DOCTOR_CARDS_H
#define MEOPT_DOCTOR_CARDS_H

#include "core/device/driver.h"
#include "core/doctor/doctor.h"

/* ---- pci.c ---- */

enum { VENDORS = 3 };
extern const struct doctor_vendor {
    unsigned id;
    const char *name;
    enum driver_kind driver;
} doctor_vendors[VENDORS];

/* Counts the cards of each vendor on the PCI bus. */
void doctor_count_cards(const struct doctor *doctor, int count[VENDORS]);

/* Return the number of a vendor's cards (pci_card.h) on the PCI bus, and the name of the first, "" if
 * unknown. */
int doctor_card_count(const struct doctor *doctor, unsigned vendor);
void doctor_card_name(const struct doctor *doctor, unsigned vendor, char *name, size_t size);

/* Returns the IOMMU mode of cards, as the kernel reports it: "identity" (pass-through), else the type of the
 * first translating group ("DMA", "DMA-FQ"). false: no card is in a group, or the kernel is too old to report
 * it. */
bool doctor_iommu_type(const struct doctor *doctor, char type[32]);

/* ---- site.c ---- */

bool doctor_in_container(const struct doctor *doctor);

/* Checks. */
void doctor_dtk(struct doctor *doctor);
void doctor_settings(struct doctor *doctor);

#endif
