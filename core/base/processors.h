/* Number of useful threads, and their placement. root: "", or the prefix of another /sys and /proc. */
#ifndef MEOPT_BASE_PROCESSORS_H
#define MEOPT_BASE_PROCESSORS_H

/* Number of physical cores on which this process may run; at least 1. Two processors of one core share its
 * arithmetic units, so that a second thread there only waits. The limits are the affinity mask (set by Slurm,
 * taskset, cpusets), SLURM_CPUS_PER_TASK (for a Slurm without CPU binding), and the CPU quota of the control
 * group, rounded up. It is rounded up because two threads that are each stopped for a quarter of the time do
 * more work than one that never stops. */
int processors_cores(const char *root);

/* CPU quota of this process's control group and those above it: 1.5 is one and a half processors; 0: no
 * limit. */
double processors_quota(const char *root);

/* NUMA node on which thread i of `threads` should stay. Memory is fastest for processors of its own node, and
 * a page is placed on the node of the thread that writes it first. Neighbouring threads share a node, and
 * each node gets its share of threads. -1: one node only, or unknown. */
int processors_node_of(const char *root, int thread, int threads);

/* Pins the calling thread to the processors of that node, or (-1) restores the affinity mask that the process
 * had at its start. */
void processors_stay(const char *root, int node);

#endif
