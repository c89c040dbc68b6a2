/* Processes that hold card memory, as reported by KFD, the kernel driver of AMD's and Hygon's cards. root:
 * prefix of every path, "" for /. */
#ifndef MEOPT_BASE_KFD_H
#define MEOPT_BASE_KFD_H

#include <stdbool.h>

/* Number of the card at this PCI address ("0000:c1:00.0") in KFD; 0 if KFD does not know it. */
long kfd_card(const char *root, const char *pci);

/* Lists all processes that KFD knows, in the kernel's order: their number, at most `most`; -1: no list. */
int kfd_processes(const char *root, int *pids, int most);

/* Bytes of that card's memory that a process holds; false: KFD does not report it. */
bool kfd_bytes(const char *root, int pid, long card, double *bytes);

#endif
