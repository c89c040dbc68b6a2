/* How many threads are worth starting. */
#ifndef MEOPT_BASE_PROCESSORS_H
#define MEOPT_BASE_PROCESSORS_H

/* Physical cores on which this process may run: two processors of one core share its arithmetic, so that a
 * second thread there only waits. Of its affinity mask, which Slurm, taskset and control groups' sets of
 * processors make, and no more than the quota of its control group. At least 1. sys: "/sys". */
int processors_cores(const char *sys);

#endif
