/* Physical cores from /sys: see processors.h. */
#include "core/base/processors.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>

/* the first numbers in a file of /sys; how many there were */
static int numbers(const char *path, double *first, double *second)
{
    FILE *f = fopen(path, "re");
    int count = f ? fscanf(f, "%lf %lf", first, second) : 0;
    if (f) fclose(f);
    return count;
}

/* Package and core of a processor; one of its own where nothing is told. */
static void core_of(const char *sys, int processor, double core[2])
{
    static const char *const keys[] = {"physical_package_id", "core_id"};
    char path[512];
    double none;
    for (int k = 0; k < 2; k++) {
        snprintf(path, sizeof path, "%s/devices/system/cpu/cpu%d/topology/%s", sys, processor, keys[k]);
        if (numbers(path, &core[k], &none) >= 1) continue;
        core[0] = -1;
        core[1] = processor;
        return;
    }
}

int processors_cores(const char *sys)
{
    cpu_set_t allowed;
    double core[CPU_SETSIZE][2], quota, period;
    char path[512];
    int cores = 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return 1;
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, &allowed)) continue;
        core_of(sys, i, core[cores]);
        int j = 0;
        while (core[j][0] != core[cores][0] || core[j][1] != core[cores][1]) j++;
        cores += j == cores;
    }
    snprintf(path, sizeof path, "%s/fs/cgroup/cpu.max", sys);
    if (numbers(path, &quota, &period) == 2 && period > 0 && ceil(quota / period) < cores)
        cores = (int)ceil(quota / period);
    return cores > 0 ? cores : 1;
}
