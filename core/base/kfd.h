/* What KFD, the kernel's driver of AMD's and Hygon's cards, tells of who holds their memory. root: in front
 * of every path, "" for /. */
#ifndef MEOPT_BASE_KFD_H
#define MEOPT_BASE_KFD_H

#include <stdbool.h>

/* The number by which it knows the card at this PCI address ("0000:c1:00.0"); 0 when it does not. */
long kfd_card(const char *root, const char *pci);

/* All processes that it knows, as the kernel lists them: how many, `most` at most; -1: there is no list. */
int kfd_processes(const char *root, int *pids, int most);

/* How much of that card's memory a process holds; false: that is not told. */
bool kfd_bytes(const char *root, int pid, long card, double *bytes);

#endif
