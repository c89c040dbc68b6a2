/* Physical cores, quotas and NUMA nodes from /sys: see processors.h. */
#include "core/base/processors.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH = 8192, PROCESSORS = 8192, NODES = 1024 };

/* Affinity mask of the process before one of its threads was pinned. */
static cpu_set_t *before;
static pthread_once_t before_once = PTHREAD_ONCE_INIT;
static size_t mask_bytes(void) { return CPU_ALLOC_SIZE(PROCESSORS); }
static void before_find(void)
{
    before = CPU_ALLOC(PROCESSORS);
    if (!before || sched_getaffinity(0, mask_bytes(), before) == 0) return;
    CPU_FREE(before);
    before = NULL;
}

/* Affinity mask of this process, to be freed with CPU_FREE; NULL: unknown */
static cpu_set_t *mask_new(void)
{
    cpu_set_t *mask = CPU_ALLOC(PROCESSORS);
    if (mask && before) memcpy(mask, before, mask_bytes());
    else if (mask && sched_getaffinity(0, mask_bytes(), mask)) {
        CPU_FREE(mask);
        mask = NULL;
    }
    return mask;
}

/* reads the first numbers of a file; returns how many it has */
static int numbers(const char *path, double *first, double *second)
{
    FILE *f = fopen(path, "re");
    int count = f ? fscanf(f, "%lf %lf", first, second) : 0;
    if (f) fclose(f);
    return count;
}

/* ---- Quota --------------------------------------------------------------------------------------------- */

static double less(double quota, double other)
{
    return other > 0 && (quota <= 0 || other < quota) ? other : quota;
}

/* cgroup v2: "QUOTA PERIOD", or "max PERIOD" */
static double quota_here(const char *directory)
{
    char path[PATH];
    double quota = 0, period = 0;
    snprintf(path, sizeof path, "%s/cpu.max", directory);
    if (numbers(path, &quota, &period) == 2) return period > 0 ? quota / period : 0;
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", directory); /* cgroup v1; -1: none */
    if (numbers(path, &quota, &period) < 1 || quota <= 0) return 0;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", directory);
    return numbers(path, &period, &quota) >= 1 && period > 0 ? quota / period : 0;
}

/* Quota of a group and all groups above it. In a container the path is the host's and does not exist there,
 * so that only the groups above count. */
static double quota_of(const char *mount, const char *group)
{
    char path[PATH];
    double least = quota_here(mount);
    snprintf(path, sizeof path, "%s%s", mount, group);
    for (size_t top = strlen(mount); strlen(path) > top; *strrchr(path, '/') = 0)
        least = less(least, quota_here(path));
    return least;
}

double processors_quota(const char *root)
{
    char path[PATH], line[PATH / 2], mount[PATH / 2];
    double least = 0;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    snprintf(mount, sizeof mount, "%s/sys/fs/cgroup", root);
    least = quota_of(mount, "");
    while (f && fgets(line, sizeof line, f)) { /* "0::/group", or "4:cpu,cpuacct:/group" */
        char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;
        if (!group || group[1] != '/') continue;
        *group++ = 0;
        group[strcspn(group, "\n")] = 0;
        names++;
        bool unified = !*names, cpu = false;
        char copy[256], *rest = copy;
        snprintf(copy, sizeof copy, "%s", names);
        for (char *name; (name = strsep(&rest, ",")) != NULL;) cpu = cpu || strcmp(name, "cpu") == 0;
        if (!unified && !cpu) continue;
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s%.200s", root, unified ? "" : "/", names);
        least = less(least, quota_of(mount, group));
    }
    if (f) fclose(f);
    return least;
}

/* ---- Cores --------------------------------------------------------------------------------------------- */

/* Package and core of a processor; a unique core if the system does not report it. */
static void core_of(const char *root, int processor, double core[2])
{
    static const char *const keys[] = {"physical_package_id", "core_id"};
    char path[PATH];
    double none;
    for (int k = 0; k < 2; k++) {
        snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d/topology/%s", root, processor, keys[k]);
        if (numbers(path, &core[k], &none) >= 1) continue;
        core[0] = -1;
        core[1] = processor;
        return;
    }
}

/* Counts the cores of the marked processors (NULL: of all); 0: unknown */
static int count_cores(const char *root, const char *of)
{
    cpu_set_t *mask = mask_new();
    double(*core)[2] = malloc(PROCESSORS * sizeof *core);
    int cores = 0;
    for (int i = 0; mask && core && i < PROCESSORS; i++) {
        if (!CPU_ISSET_S((size_t)i, mask_bytes(), mask) || (of && !of[i])) continue;
        core_of(root, i, core[cores]);
        int j = 0;
        while (core[j][0] != core[cores][0] || core[j][1] != core[cores][1]) j++;
        cores += j == cores;
    }
    free(core);
    if (mask) CPU_FREE(mask);
    return cores;
}

int processors_cores(const char *root)
{
    double quota = processors_quota(root);
    const char *slurm = getenv("SLURM_CPUS_PER_TASK");
    int cores = count_cores(root, NULL), task = slurm ? atoi(slurm) : 0;
    if (task > 0 && task < cores) cores = task;
    if (quota > 0 && ceil(quota) < cores) cores = (int)ceil(quota);
    return cores > 0 ? cores : 1;
}

/* ---- Nodes --------------------------------------------------------------------------------------------- */

/* Reads the processors of a node, from "0-15,32-47"; false: no such node */
static bool node_read(const char *root, int node, char *of)
{
    char path[PATH];
    int from, to;
    snprintf(path, sizeof path, "%s/sys/devices/system/node/node%d/cpulist", root, node);
    FILE *f = fopen(path, "re");
    memset(of, 0, PROCESSORS);
    if (!f) return false;
    while (fscanf(f, "%d", &from) == 1) {
        to = from;
        int next = fgetc(f);
        if (next == '-') {
            if (fscanf(f, "%d", &to) != 1) break;
            next = fgetc(f);
        }
        for (int i = from; i >= 0 && i <= to && i < PROCESSORS; i++) of[i] = 1;
        if (next != ',') break;
    }
    fclose(f);
    return true;
}

int processors_node_of(const char *root, int thread, int threads)
{
    char of[PROCESSORS];
    int nodes[NODES], cores[NODES], count = 0, all = 0;
    for (int node = 0, missing = 0; node < NODES && missing < 64; node++) {
        if (!node_read(root, node, of)) {
            missing++; /* numbers may have gaps */
            continue;
        }
        cores[count] = count_cores(root, of);
        all += cores[count];
        nodes[count] = node;
        count += cores[count] > 0;
    }
    if (count < 2 || threads < 1) return -1;
    /* The core at the middle of the thread's share, among all cores in the order of nodes. */
    double core = ((double)thread + 0.5) / (double)threads * (double)all;
    int at = 0;
    while (at + 1 < count && core >= cores[at]) core -= cores[at++];
    return nodes[at];
}

void processors_stay(const char *root, int node)
{
    char of[PROCESSORS];
    pthread_once(&before_once, before_find);
    cpu_set_t *mask = before ? mask_new() : NULL;
    if (!mask) return;
    if (node >= 0 && node_read(root, node, of))
        for (int i = 0; i < PROCESSORS; i++)
            if (!of[i]) CPU_CLR_S((size_t)i, mask_bytes(), mask);
    if (CPU_COUNT_S(mask_bytes(), mask) > 0) (void)!sched_setaffinity(0, mask_bytes(), mask);
    CPU_FREE(mask);
}
