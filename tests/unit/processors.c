/* core/base/processors: threads are as many as cores, whatever a core has of processors, and as a control
 * group and Slurm allow; on several NUMA nodes they stay on one each. */
#include "core/base/processors.h"
#include "core/device/threads.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <cmocka.h>
#ifdef _OPENMP
#include <omp.h>
#endif

static char root[] = "/tmp/meopt-processors-XXXXXX";

static void put(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *p = path + sizeof root; *p; p++)
        if (*p == '/') {
            *p = 0;
            mkdir(path, 0777);
            *p = '/';
        }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* processor i of the mask is on core i / each of package 0 */
static int cores_with(int each)
{
    cpu_set_t set;
    int n = 0;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, &set)) continue;
        char name[128], core[16];
        snprintf(core, sizeof core, "%d\n", n++ / each);
        snprintf(name, sizeof name, "sys/devices/system/cpu/cpu%d/topology/core_id", i);
        put(name, core);
        snprintf(name, sizeof name, "sys/devices/system/cpu/cpu%d/topology/physical_package_id", i);
        put(name, "0\n");
    }
    return processors_cores(root);
}

static void threads_are_as_many_as_cores(void **state)
{
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    int all = CPU_COUNT(&set);
    assert_int_equal(processors_cores("/nowhere"), all); /* nothing told: each processor is a core */
    assert_int_equal(cores_with(1), all);
    assert_int_equal(cores_with(2), (all + 1) / 2);
    put("sys/fs/cgroup/cpu.max", "max 100000\n");
    assert_int_equal(cores_with(1), all);
    put("sys/fs/cgroup/cpu.max", "100000 100000\n");
    assert_int_equal(cores_with(1), 1);
    put("sys/fs/cgroup/cpu.max", "110000 100000\n");
    assert_int_equal(cores_with(1), all < 2 ? all : 2);
    put("sys/fs/cgroup/cpu.max", "max 100000\n");
    setenv("SLURM_CPUS_PER_TASK", "1", 1);
    assert_int_equal(cores_with(1), 1);
    setenv("SLURM_CPUS_PER_TASK", "999", 1);
    assert_int_equal(cores_with(1), all);
    unsetenv("SLURM_CPUS_PER_TASK");
    cpu_set_t one = set;
    for (int i = 0; CPU_COUNT(&one) > 1; i++) CPU_CLR(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(cores_with(1), 1);
    assert_int_equal(sched_setaffinity(0, sizeof set, &set), 0);
}

static void the_quota_is_the_least_of_the_groups_above(void **state)
{
    put("sys/fs/cgroup/cpu.max", "max 100000\n");
    assert_float_equal(processors_quota(root), 0, 0);
    put("proc/self/cgroup", "0::/slice/job\n");
    put("sys/fs/cgroup/slice/job/cpu.max", "max 100000\n");
    assert_float_equal(processors_quota(root), 0, 0);
    put("sys/fs/cgroup/slice/cpu.max", "150000 100000\n");
    assert_float_equal(processors_quota(root), 1.5, 0);
    put("sys/fs/cgroup/slice/job/cpu.max", "50000 100000\n");
    assert_float_equal(processors_quota(root), 0.5, 0);
    /* version 1; of a container, whose path is the host's */
    put("proc/self/cgroup", "5:memory:/elsewhere\n4:cpu,cpuacct:/job\n1:cpuset:/job\n0::/\n");
    put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
    assert_float_equal(processors_quota(root), 0, 0);
    put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "250000\n");
    assert_float_equal(processors_quota(root), 2.5, 0);
    put("proc/self/cgroup", "4:cpu,cpuacct:/docker/0123\n");
    assert_float_equal(processors_quota(root), 0, 0);
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    assert_float_equal(processors_quota(root), 0.5, 0);
    assert_int_equal(processors_cores(root), 1);
    put("proc/self/cgroup", "");
}

/* Two processors of this machine are two nodes. */
static void threads_stay_on_their_node(void **state)
{
    cpu_set_t set;
    int own[2], found = 0;
    char text[2][16];
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    for (int i = 0; i < CPU_SETSIZE && found < 2; i++)
        if (CPU_ISSET(i, &set)) own[found++] = i;
    assert_int_equal(processors_node_of(root, 0, 4), -1); /* nothing told */
    if (found < 2) skip();
    cores_with(1);
    for (int i = 0; i < 2; i++) snprintf(text[i], sizeof text[i], "%d\n", own[i]);
    put("sys/devices/system/node/node0/cpulist", text[0]);
    assert_int_equal(processors_node_of(root, 0, 4), -1); /* one node */
    put("sys/devices/system/node/node3/cpulist", text[1]);
    put("sys/devices/system/node/node5/cpulist", "7000-7003\n"); /* not ours */
    static const int of[4] = {0, 0, 3, 3};
    for (int i = 0; i < 4; i++) assert_int_equal(processors_node_of(root, i, 4), of[i]);
    assert_int_equal(processors_node_of(root, 1, 2), 3);
    for (int node = 0; node < 6; node += 3) {
        processors_stay(root, node);
        assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
        assert_int_equal(CPU_COUNT(&set), 1);
        assert_true(CPU_ISSET(own[node / 3], &set));
    }
    assert_int_equal(processors_node_of(root, 1, 2), 3); /* of the process's, not of this thread's */
    processors_stay(root, -1);
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    assert_true(CPU_ISSET(own[0], &set) && CPU_ISSET(own[1], &set));
#ifdef _OPENMP
    int wrong = 0;
    omp_set_num_threads(4);
    assert_false(threads_settled());
    threads_settle(root);
    assert_true(threads_settled());
#pragma omp parallel reduction(+ : wrong)
    {
        cpu_set_t mine;
        wrong += sched_getaffinity(0, sizeof mine, &mine) != 0 || CPU_COUNT(&mine) != 1 ||
                 !CPU_ISSET(own[omp_get_thread_num() / 2], &mine);
    }
    assert_int_equal(wrong, 0);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_are_as_many_as_cores),
                                       cmocka_unit_test(the_quota_is_the_least_of_the_groups_above),
                                       cmocka_unit_test(threads_stay_on_their_node)};
    if (!mkdtemp(root)) return 1;
    static const char *const said[] = {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY",
                                       "SLURM_CPUS_PER_TASK"};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) unsetenv(said[i]);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command) ? 1 : failed;
}
