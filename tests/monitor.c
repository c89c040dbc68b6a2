/* core/monitor: every provider over sources that the test makes. `test_monitor print PROVIDER ROOT SAMPLES PERIOD` prints what one sees, for
 * tests/monitor_rsmi.sh and for a person at a machine with cards. */
#include "core/monitor/monitor.h"
#include "core/base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

static char root[64];

static int setup(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/meopt_monitor_XXXXXX");
    return mkdtemp(root) == NULL;
}

static int teardown(void **state)
{
    (void)state;
    struct error err;
    return file_remove_tree(root, &err);
}

static void put(const char *path, const char *text)
{
    struct error err;
    char *full = xasprintf("%s/%s", root, path), *dir = path_dirname(full);
    assert_int_equal(file_make_dirs(dir, &err), 0);
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    free(dir);
    free(full);
}

static struct monitor *opened(const char *provider, const char *where)
{
    struct error err = {0};
    struct monitor *m;
    if (monitor_open(&m, &(struct monitor_options){.provider = provider, .root = where}, &err)) fail_msg("%s", err.what);
    return m;
}

static void assert_value(struct monitor_value v, double expected)
{
    if (!v.valid || !(v.value > expected - 1e-3 && v.value < expected + 1e-3)) fail_msg("%s%.12g, not %.12g", v.valid ? "" : "N/A, had ", v.value, expected);
}

static void fake_follows_its_file(void **state)
{
    (void)state;
    put("cards.json", "{\"note\": \"a\\u0007b\", \"cards\": [{\"name\": \"Z100\\u001b[2J\", \"pci\": \"00000000:C1:00.0\", \"mem_used_bytes\": 5e9,"
                      "\"busy_percent\": 97, \"temp_c\": null, \"power_w\": {\"value\": 210, \"age_s\": 12}}, {}]}");
    char *path = xasprintf("fake:%s/cards.json", root);
    struct monitor *m = opened(path, NULL);
    struct monitor_snapshot s;
    monitor_read(m, &s);
    assert_int_equal(s.samples, 0);
    monitor_sample(m);
    monitor_read(m, &s);
    assert_int_equal(s.card_count, 2);
    assert_string_equal(s.cards[0].name, "Z100\\x1b[2J");
    assert_string_equal(s.cards[0].pci, "0000:c1:00.0");
    assert_string_equal(s.note, "a\\x07b");
    assert_int_equal(monitor_find(&s, "c1:00.0"), 0);
    assert_int_equal(monitor_find(&s, "c2:00.0"), -1);
    assert_value(s.cards[0].mem_used_bytes, 5e9);
    assert_false(s.cards[0].mem_used_bytes.stale);
    assert_false(s.cards[0].temp_c.valid);
    assert_value(s.cards[0].power_w, 210);
    assert_true(s.cards[0].power_w.stale);
    assert_true(s.cards[0].power_w.age_s >= 12);
    assert_false(s.cards[1].busy_percent.valid);
    put("cards.json", "{\"cards\": [{\"temp_c\": 55, \"busy_percent\": null}]}");
    monitor_sample(m);
    monitor_read(m, &s);
    assert_int_equal(s.card_count, 1);
    assert_value(s.cards[0].temp_c, 55);
    assert_value(s.cards[0].mem_used_bytes, 5e9);
    assert_false(s.cards[0].busy_percent.valid);
    put("cards.json", "{");
    monitor_sample(m);
    monitor_read(m, &s);
    assert_value(s.cards[0].temp_c, 55);
    assert_non_null(strstr(s.note, "cards.json"));
    monitor_close(m);
    free(path);
}

static void proc_reads_the_machine(void **state)
{
    (void)state;
    put("proc/cpuinfo", "processor\t: 0\nmodel name\t: Fast CPU\nflags: x\n");
    put("proc/meminfo", "MemTotal:       16000000 kB\nMemFree:         1000 kB\nMemAvailable:    4000000 kB\n");
    put("proc/stat", "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 2 3 4\n");
    put("sys/class/hwmon/hwmon3/name", "k10temp\n");
    put("sys/class/hwmon/hwmon3/temp1_input", "61250\n");
    put("proc/77/statm", "1000 256 1 1 0 1 0\n");
    put("sys/class/powercap/intel-rapl:0/energy_uj", "1000000\n");
    struct monitor *m = opened("proc", root);
    monitor_watch(m, (pid_t[]){77, 78}, 2);
    monitor_sample(m);
    put("proc/stat", "cpu  150 0 125 825 0 0 0 0 0 0\n");
    put("sys/class/powercap/intel-rapl:0/energy_uj", "3000000\n");
    monitor_sample(m);
    struct monitor_snapshot s;
    monitor_read(m, &s);
    assert_int_equal(s.card_count, 1);
    assert_string_equal(s.provider, "proc");
    assert_string_equal(s.cards[0].name, "Fast CPU");
    assert_string_equal(s.cards[0].pci, "");
    assert_value(s.cards[0].mem_total_bytes, 16000000 * 1024.0);
    assert_value(s.cards[0].mem_used_bytes, 12000000 * 1024.0);
    assert_value(s.cards[0].busy_percent, 75);
    assert_value(s.cards[0].temp_c, 61.25);
    assert_value(s.cards[0].process_bytes, 256.0 * (double)sysconf(_SC_PAGESIZE));
    assert_true(s.cards[0].power_w.valid && s.cards[0].power_w.value > 0);
    monitor_close(m);
}

static void proc_shows_the_control_groups_limit(void **state)
{
    (void)state;
    static const char *const version[2][4] = {
        {"0::/job/7\n", "sys/fs/cgroup/job/7/memory.max", "sys/fs/cgroup/job/7/memory.current", "sys/fs/cgroup/job/7/memory.stat"},
        {"4:cpu,memory:/job/7\n0::/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes", "sys/fs/cgroup/memory/memory.stat"},
    };
    for (int v = 0; v < 2; v++) {
        put("proc/meminfo", "MemTotal: 16000000 kB\nMemAvailable: 4000000 kB\n");
        put("proc/stat", "cpu  1 0 1 8\n");
        put("proc/self/cgroup", version[v][0]);
        put(version[v][1], "1000000\n");
        put(version[v][2], "900000\n");
        put(version[v][3], v ? "cache 5\ntotal_inactive_file 200000\n" : "anon 5\ninactive_file 200000\n");
        struct monitor *m = opened("proc", root);
        monitor_sample(m);
        struct monitor_snapshot s;
        monitor_read(m, &s);
        assert_value(s.cards[0].mem_total_bytes, 1000000);
        assert_value(s.cards[0].mem_used_bytes, 700000);
        assert_false(s.cards[0].temp_c.valid);
        assert_false(s.cards[0].process_bytes.valid);
        assert_false(s.cards[0].busy_percent.valid); /* needs two samples */
        put(version[v][1], "max\n");
        monitor_sample(m);
        monitor_read(m, &s);
        assert_value(s.cards[0].mem_total_bytes, 16000000 * 1024.0);
        monitor_close(m);
    }
}

static void this_machine_is_sampled_by_the_thread(void **state)
{
    (void)state;
    struct error err;
    struct monitor *m = opened("proc", NULL);
    monitor_watch(m, (pid_t[]){getpid()}, 1);
    assert_int_equal(monitor_start(m, 0.05, &err), 0);
    struct monitor_snapshot s = {0};
    for (int i = 0; i < 200 && s.samples < 3; i++) {
        monitor_read(m, &s);
        nanosleep(&(struct timespec){0, 50000000}, NULL);
    }
    assert_true(s.samples >= 3);
    assert_true(s.cards[0].mem_total_bytes.value > s.cards[0].mem_used_bytes.value);
    assert_true(s.cards[0].process_bytes.value > 100000);
    monitor_close(m);
    monitor_close(NULL);
}

static void pci_addresses_have_one_form(void **state)
{
    (void)state;
    static const char *const same[][2] = {{"0000:C1:00.0", "0000:c1:00.0"}, {"00000000:0A:1f.7", "0000:0a:1f.7"}, {"c1:00.0", "0000:c1:00.0"},
                                          {"10001:02:00.0", "10001:02:00.0"}, {"", ""}, {"c1:00", ""}, {"0000:c1:00.0x", ""}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        char text[16];
        monitor_pci(text, same[i][0]);
        assert_string_equal(text, same[i][1]);
    }
}

static void unknown_providers_are_usage_errors(void **state)
{
    (void)state;
    struct error err;
    struct monitor *m;
    assert_int_equal(monitor_open(&m, &(struct monitor_options){.provider = "smoke"}, &err), EXIT_USAGE);
    assert_int_equal(monitor_open(&m, &(struct monitor_options){.provider = "fake"}, &err), EXIT_USAGE);
    assert_int_equal(monitor_open(&m, &(struct monitor_options){.provider = "proc", .root = "/nonexistent"}, &err), EXIT_NO_CARD);
    assert_null(m);
}

static int print(int argc, char **argv)
{
    struct error err = {0};
    struct monitor *m;
    int samples = argc > 4 ? atoi(argv[4]) : 2;
    double period_s = argc > 5 ? atof(argv[5]) : 0.3;
    if (monitor_open(&m, &(struct monitor_options){.provider = argv[2], .root = argc > 3 ? argv[3] : "", .deadline_s = 1}, &err) ||
        monitor_start(m, period_s, &err)) {
        error_print(&err);
        return err.code;
    }
    struct monitor_snapshot s = {0};
    for (int i = 0; i < 300 && s.samples < samples; i++) {
        monitor_read(m, &s);
        nanosleep(&(struct timespec){0, 50000000}, NULL);
    }
    printf("provider %s library %s note %s\n", s.provider, s.library, s.note);
    static const char *const names[] = {"used", "total", "busy", "temp", "power", "process"};
    for (int i = 0; i < s.card_count; i++) {
        printf("card %d %s [%s]", i, s.cards[i].pci, s.cards[i].name);
        for (int f = 0; f < MONITOR_FIELDS; f++) {
            const struct monitor_value *v = &s.cards[i].field[f];
            if (v->valid) printf(" %s=%.12g%s", names[f], v->value, v->stale ? "(stale)" : "");
            else printf(" %s=N/A", names[f]);
        }
        puts("");
    }
    monitor_close(m);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "print") == 0) return print(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(fake_follows_its_file, setup, teardown),
        cmocka_unit_test_setup_teardown(proc_reads_the_machine, setup, teardown),
        cmocka_unit_test_setup_teardown(proc_shows_the_control_groups_limit, setup, teardown),
        cmocka_unit_test(this_machine_is_sampled_by_the_thread),
        cmocka_unit_test(pci_addresses_have_one_form),
        cmocka_unit_test(unknown_providers_are_usage_errors),
    };
    return cmocka_run_group_tests_name("monitor", tests, NULL, NULL);
}
