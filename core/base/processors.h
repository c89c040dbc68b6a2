/* How many threads are worth starting, and where. root: "", or the place of another /sys and /proc. */
#ifndef MEOPT_BASE_PROCESSORS_H
#define MEOPT_BASE_PROCESSORS_H

/* Physical cores on which this process may run: two processors of one core share its arithmetic, so that a
 * second thread there only waits. Of its affinity mask, which Slurm, taskset and control groups' sets of
 * processors make; no more than SLURM_CPUS_PER_TASK, which counts where Slurm binds nobody; and no more than
 * the quota of its control group, rounded up: two threads of which each is stopped for a quarter of the time
 * do more than one that is never. At least 1. */
int processors_cores(const char *root);

/* Processors' time that the control group of this process, and those above it, allow: 1.5 is one and a half;
 * 0 without a limit. */
double processors_quota(const char *root);

/* Memory is nearest to the processors of its NUMA node, and a page comes to the node of the thread that first
 * writes it: where this process may run on several nodes, thread i of so many is to stay on one of them,
 * neighbours together, each node with its share of them. -1: there is one node, or nothing is told. */
int processors_node_of(const char *root, int thread, int threads);

/* The calling thread stays on the processors of that node, or (-1) may run wherever the process might when it
 * began. */
void processors_stay(const char *root, int node);

#endif
