/* core/base/processors: threads are as many as cores, whatever a core has of processors, and as a control
 * group allows. */
#include "core/base/processors.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <cmocka.h>

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
        snprintf(name, sizeof name, "devices/system/cpu/cpu%d/topology/core_id", i);
        put(name, core);
        snprintf(name, sizeof name, "devices/system/cpu/cpu%d/topology/physical_package_id", i);
        put(name, "0\n");
    }
    return processors_cores(root);
}

static void threads_are_as_many_as_cores(void **state)
{
    cpu_set_t set;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    int all = CPU_COUNT(&set);
    assert_int_equal(processors_cores("/nowhere"), all); /* nothing told: each processor is a core */
    assert_int_equal(cores_with(1), all);
    assert_int_equal(cores_with(2), (all + 1) / 2);
    put("fs/cgroup/cpu.max", "max 100000\n");
    assert_int_equal(cores_with(1), all);
    put("fs/cgroup/cpu.max", "100000 100000\n");
    assert_int_equal(cores_with(1), 1);
    put("fs/cgroup/cpu.max", "110000 100000\n");
    assert_int_equal(cores_with(1), all < 2 ? all : 2);
    put("fs/cgroup/cpu.max", "max 100000\n");
    for (int i = 0; CPU_COUNT(&set) > 1; i++) CPU_CLR(i, &set);
    assert_int_equal(sched_setaffinity(0, sizeof set, &set), 0);
    assert_int_equal(cores_with(1), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_are_as_many_as_cores)};
    if (!mkdtemp(root)) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command) ? 1 : failed;
}
