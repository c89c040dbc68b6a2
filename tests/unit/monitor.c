/* core/monitor: every provider over sources that the test makes. `test_monitor print PROVIDER ROOT SAMPLES
 * PERIOD` prints its readings, for tests/cli/monitor_rsmi.sh and for a person at a machine with cards;
 * `test_monitor lease FILE` makes a file on which every open hangs. */
#include "tests/unit/monitor_root.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

static void fake_follows_its_file(void **state)
{
    put("cards.json",
        "{\"note\": \"a\\u0007b\", \"cards\": [{\"name\": \"Z100\\u001b[2J\", \"pci\": \"00000000:C1:00.0\", "
        "\"mem_used_bytes\": 5e9,"
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
    put("proc/cpuinfo", "processor\t: 0\nmodel name\t: Fast CPU\nflags: x\n");
    put("proc/meminfo",
        "MemTotal:       16000000 kB\nMemFree:         1000 kB\nMemAvailable:    4000000 kB\n");
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
    static const char *const version[2][4] = {
        {"0::/job/7\n", "sys/fs/cgroup/job/7/memory.max", "sys/fs/cgroup/job/7/memory.current",
         "sys/fs/cgroup/job/7/memory.stat"},
        {"4:cpu,memory:/job/7\n0::/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes",
         "sys/fs/cgroup/memory/memory.usage_in_bytes", "sys/fs/cgroup/memory/memory.stat"},
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
        assert_false(s.cards[0].busy_percent.valid);     /* needs two samples */
        put("sys/fs/cgroup/job/memory.max", "800000\n"); /* the job allows less than its step */
        put("sys/fs/cgroup/job/memory.current", "750000\n");
        monitor_sample(m);
        monitor_read(m, &s);
        assert_value(s.cards[0].mem_total_bytes, v ? 1000000 : 800000);
        assert_value(s.cards[0].mem_used_bytes, v ? 700000 : 750000);
        put("sys/fs/cgroup/job/memory.max", "max\n");
        put(version[v][1], "max\n");
        monitor_sample(m);
        monitor_read(m, &s);
        assert_value(s.cards[0].mem_total_bytes, 16000000 * 1024.0);
        monitor_close(m);
    }
}

static void this_machine_is_sampled_by_the_thread(void **state)
{
    struct error err;
    struct monitor *m = opened("proc", NULL);
    monitor_watch(m, (pid_t[]){getpid()}, 1);
    assert_int_equal(monitor_start(m, 0.05, &err), 0);
    struct monitor_snapshot s = {0};
    for (int i = 0; i < 200 && s.samples < 3; i++) {
        monitor_read(m, &s);
        if (s.samples == 1) puts("sampled");
        fflush(stdout);
        nanosleep(&(struct timespec){0, 50000000}, NULL);
    }
    assert_true(s.samples >= 3);
    assert_true(s.cards[0].mem_total_bytes.value > s.cards[0].mem_used_bytes.value);
    assert_true(s.cards[0].process_bytes.value > 100000);
    monitor_close(m);
    monitor_close(NULL);
}

static void link_to(const char *path, const char *target)
{
    char *full = xasprintf("%s/%s", root, path);
    assert_int_equal(symlink(target, full), 0);
    free(full);
}

static void put_card(int number, const char *vendor, const char *file, const char *text)
{
    char *path = xasprintf("sys/class/drm/card%d/device/%s", number, file);
    if (vendor) {
        char *other = xasprintf("sys/class/drm/card%d/device/vendor", number);
        put(other, vendor);
        free(other);
    }
    put(path, text);
    free(path);
}

static void sysfs_knows_cards_of_hygon_by_their_number(void **state)
{
    static const char *const cards[][2] = {
        {"0x6210\n", "Hygon K100 AI"},        {"0x62b7\n", "Hygon K100"},      {"0x54b7\n", "Hygon Z100L"},
        {"0x6212\n", "Hygon K100 AI Liquid"}, {"0x62b0\n", "Hygon K500SM AI"}, {"0x6310\n", "Hygon BW200"},
        {"0x6430\n", "Hygon BW1100"},         {"0x7777\n", "Hygon 0x7777"}};
    enum { CARDS = sizeof cards / sizeof *cards };
    struct monitor_snapshot s;
    for (int i = 0; i < CARDS; i++) {
        put_card(i, "0x1d94\n", "device", cards[i][0]);
        put_card(i, NULL, "mem_info_vram_used", "1\n");
    }
    struct monitor *m = opened("auto", root);
    monitor_sample(m);
    monitor_read(m, &s);
    assert_int_equal(s.card_count, CARDS);
    for (int i = 0; i < CARDS; i++) assert_string_equal(s.cards[i].name, cards[i][1]);
    monitor_close(m);
}

static void sysfs_reads_amd_and_hygon_cards(void **state)
{
    put_card(0, "0x1a03\n", "device", "0x2000\n"); /* boot VGA */
    put_card(1, "0x1002\n", "device", "0x66a1\n");
    put("sys/class/drm/card1-DP-1/status", "connected\n");
    put_card(1, NULL, "uevent", "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:03:00.0\nMODALIAS=x\n");
    put_card(1, NULL, "mem_info_vram_total", "17163091968\n");
    put_card(1, NULL, "mem_info_vram_used", "4294967296\n");
    put_card(1, NULL, "gpu_busy_percent", "87\n");
    put_card(1, NULL, "hwmon/hwmon7/temp1_label", "edge\n");
    put_card(1, NULL, "hwmon/hwmon7/temp1_input", "50000\n");
    put_card(1, NULL, "hwmon/hwmon7/temp2_label", "junction\n");
    put_card(1, NULL, "hwmon/hwmon7/temp2_input", "61500\n");
    put_card(1, NULL, "hwmon/hwmon7/power1_average", "221000000\n");
    put_card(1, NULL, "hwmon/hwmon7/power1_cap", "250000000\n");
    put_card(1, NULL, "hwmon/hwmon7/power1_cap_default", "300000000\n");
    put_card(1, NULL, "pp_dpm_sclk", "0: 500Mhz\n1: 800Mhz *\n2: 1700Mhz\n");
    put_card(1, NULL, "ras/umc_err_count", "ue: 2\nce: 7\n");
    put("sys/devices/pci0000:80/0000:83:00.0/vendor",
        "0x1d94\n"); /* Hygon: an address from the link, no busy file, power1_input */
    put("sys/devices/pci0000:80/0000:83:00.0/product_name", "BW\033[1000\n");
    put("sys/devices/pci0000:80/0000:83:00.0/mem_info_vram_total", "68702699520\n");
    put("sys/devices/pci0000:80/0000:83:00.0/mem_info_vram_used", "what\n");
    put("sys/devices/pci0000:80/0000:83:00.0/hwmon/hwmon9/power1_input", "99000000\n");
    put("sys/class/drm/card12/dev", "226:12\n");
    link_to("sys/class/drm/card12/device", "../../../devices/pci0000:80/0000:83:00.0");
    put("sys/class/kfd/kfd/topology/nodes/0/gpu_id", "0\n");
    put("sys/class/kfd/kfd/topology/nodes/1/gpu_id", "4711\n");
    put("sys/class/kfd/kfd/topology/nodes/1/properties", "cpu_cores_count 0\nlocation_id 768\ndomain 0\n");
    put("sys/class/kfd/kfd/proc/77/vram_4711", "123456\n");
    put("sys/class/kfd/kfd/proc/78/vram_4711", "1000000\n");
    put("sys/class/kfd/kfd/proc/79/vram_4712", "5\n"); /* of another card */
    for (int i = 0; i < 6; i++) {
        char path[64], bytes[32];
        snprintf(path, sizeof path, "sys/class/kfd/kfd/proc/%d/vram_4711", 900 + i);
        snprintf(bytes, sizeof bytes, "%d\n", i == 4 ? 0 : 1000 * (i + 1));
        put(path, bytes);
    }
    put("proc/905/comm", "py\033thon\n");
    struct monitor *m = opened("auto", root);
    monitor_watch(m, (pid_t[]){77, 78, 79}, 3);
    monitor_sample(m);
    struct monitor_snapshot s;
    monitor_read(m, &s);
    assert_string_equal(s.provider, "sysfs");
    assert_int_equal(s.card_count, 2);
    assert_string_equal(s.cards[0].name, "AMD 0x66a1");
    assert_string_equal(s.cards[0].pci, "0000:03:00.0");
    assert_value(s.cards[0].mem_total_bytes, 17163091968.0);
    assert_value(s.cards[0].mem_used_bytes, 4294967296.0);
    assert_value(s.cards[0].busy_percent, 87);
    assert_value(s.cards[0].temp_c, 61.5);
    assert_value(s.cards[0].power_w, 221);
    assert_value(s.cards[0].clock_mhz, 800);
    assert_value(s.cards[0].clock_most, 1700);
    assert_value(s.cards[0].ecc, 1);
    assert_value(s.cards[0].ecc_errors, 2);
    assert_value(s.cards[0].cap_w, 250);
    assert_value(s.cards[0].cap_default_w, 300);
    assert_true(s.cards[0].throttle.absent && s.cards[1].ecc.absent && s.cards[1].clock_mhz.absent);
    assert_value(s.cards[0].process_bytes, 1123456);
    static const int holders[MONITOR_HOLDERS] = {905, 903, 902, 901}; /* not ours, the largest first */
    assert_int_equal(s.cards[0].holder_count, MONITOR_HOLDERS);
    for (int i = 0; i < MONITOR_HOLDERS; i++) assert_int_equal(s.cards[0].holders[i].pid, holders[i]);
    assert_string_equal(s.cards[0].holders[0].name, "py\\x1bthon");
    assert_true(s.cards[0].holders[0].bytes == 6000 && s.cards[0].holders[1].name[0] == 0);
    assert_int_equal(s.cards[1].holder_count, 0);
    assert_string_equal(s.cards[1].name, "BW\\x1b[1000");
    assert_string_equal(s.cards[1].pci, "0000:83:00.0");
    assert_value(s.cards[1].mem_total_bytes, 68702699520.0);
    assert_false(s.cards[1].mem_used_bytes.valid);
    assert_false(s.cards[1].busy_percent.valid);
    assert_false(s.cards[1].temp_c.valid);
    assert_value(s.cards[1].power_w, 99);
    put_card(1, NULL, "gpu_busy_percent",
             "4294967295\n"); /* what no card can mean: the value before grows old */
    put_card(1, NULL, "hwmon/hwmon7/temp2_input", "");
    monitor_sample(m);
    monitor_read(m, &s);
    assert_value(s.cards[0].busy_percent, 87);
    monitor_close(m);
}

static void what_cannot_be_read_any_more_turns_stale(void **state)
{
    struct error err;
    put("sys/class/drm/card0/device/vendor", "0x1002\n");
    put("sys/class/drm/card0/device/mem_info_vram_used", "1000\n");
    put("sys/class/drm/card0/device/mem_info_vram_total", "2000\n");
    struct monitor *m = opened("sysfs", root);
    assert_int_equal(monitor_start(m, 0.05, &err), 0);
    struct monitor_snapshot s = {0};
    for (int i = 0; i < 6000 && s.samples < 1; i++) {
        nanosleep(&(struct timespec){0, 10000000}, NULL);
        monitor_read(m, &s);
    }
    put("sys/class/drm/card0/device/mem_info_vram_used", "-5\n");
    bool apart = false; /* under load both may be old for a while */
    for (int i = 0; i < 600 && !apart; i++) {
        nanosleep(&(struct timespec){0, 100000000}, NULL);
        monitor_read(m, &s);
        apart = s.cards[0].mem_used_bytes.stale && !s.cards[0].mem_total_bytes.stale;
    }
    assert_true(apart);
    assert_value(s.cards[0].mem_used_bytes, 1000);
    assert_true(s.cards[0].mem_used_bytes.age_s > 1);
    monitor_close(m);
}

/* A driver, a container or a simulator may put anything there. */
static void files_of_any_content_do_no_harm(void **state)
{
    static const char *const files[] = {"proc/cpuinfo",
                                        "proc/meminfo",
                                        "proc/stat",
                                        "proc/self/cgroup",
                                        "proc/77/statm",
                                        "sys/class/hwmon/hwmon0/name",
                                        "sys/class/hwmon/hwmon0/temp1_input",
                                        "sys/class/drm/card0/device/uevent",
                                        "sys/class/drm/card0/device/product_name",
                                        "sys/class/drm/card0/device/mem_info_vram_total",
                                        "sys/class/drm/card0/device/hwmon/hwmon1/temp1_label",
                                        "sys/class/drm/card0/device/hwmon/hwmon1/temp1_input",
                                        "sys/class/kfd/kfd/topology/nodes/0/gpu_id",
                                        "sys/class/kfd/kfd/topology/nodes/0/properties",
                                        "fake.json"};
    static const char *const words[] = {"cpu ",
                                        "cpu0 1 2 3 4 5 6 7 8\n",
                                        "MemTotal: ",
                                        "MemAvailable:",
                                        "model name",
                                        ":",
                                        "\n",
                                        "0::/",
                                        "4:memory:/a/b",
                                        "-",
                                        "9999999999999999999999",
                                        "1e999",
                                        "nan",
                                        "0x",
                                        "/../..",
                                        "PCI_SLOT_NAME=",
                                        "0000:03:00.0",
                                        "location_id ",
                                        "domain ",
                                        "junction",
                                        "{\"cards\":[",
                                        "{}",
                                        "]}",
                                        "\"pci\":",
                                        "\xff\033",
                                        "k10temp",
                                        " "};
    static const char *const provider[] = {"proc", "sysfs", "proc", "fake"};
    put("sys/class/drm/card0/device/vendor", "0x1002\n");
    unsigned seed = 1;
    int rounds = getenv("MEOPT_LONG") ? 5000 : 100, opens = 0;
    for (int i = 0; i < rounds; i++) {
        for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
            char text[600] = "";
            for (int n = rand_r(&seed) % 20; n > 0; n--)
                strcat(text, words[(size_t)rand_r(&seed) % (sizeof words / sizeof *words)]);
            put(files[f], text);
        }
        struct error err;
        struct monitor *m;
        struct monitor_snapshot s;
        char *path = xasprintf("%s%s", root, i % 4 == 3 ? "/fake.json" : "");
        if (monitor_open(&m, &(struct monitor_options){.provider = provider[i % 4], .root = path}, &err) ==
            0) {
            opens++;
            monitor_watch(m, (pid_t[]){77}, 1);
            monitor_sample(m);
            monitor_sample(m);
            monitor_read(m, &s);
            for (int c = 0; c < s.card_count; c++)
                for (const char *p = s.cards[c].name; *p; p++) assert_true((unsigned char)*p >= ' ');
            monitor_close(m);
        }
        free(path);
    }
    assert_true(opens > rounds / 2);
}

/* The source blocks the sampling thread (here: a FIFO without a writer). Readers continue, closing is
 * bounded, and the thread cleans up later. */
static void a_hanging_thread_is_abandoned(void **state)
{
    struct error err;
    char *path = xasprintf("%s/fifo", root);
    assert_int_equal(mkfifo(path, 0600), 0);
    struct monitor *m = opened("fake", path);
    assert_int_equal(monitor_start(m, 0.05, &err), 0);
    nanosleep(&(struct timespec){0, 100000000}, NULL);
    struct monitor_snapshot s;
    monitor_read(m, &s);
    assert_int_equal(s.samples, 0);
    struct timespec t[2];
    clock_gettime(CLOCK_MONOTONIC, &t[0]);
    monitor_close(m);
    clock_gettime(CLOCK_MONOTONIC, &t[1]);
    assert_true(t[1].tv_sec - t[0].tv_sec <= 4);
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    close(fd);
    nanosleep(&(struct timespec){0, 200000000}, NULL);
    free(path);
}

static void pci_addresses_have_one_form(void **state)
{
    static const char *const same[][2] = {{"0000:C1:00.0", "0000:c1:00.0"},
                                          {"00000000:0A:1f.7", "0000:0a:1f.7"},
                                          {"c1:00.0", "0000:c1:00.0"},
                                          {"10001:02:00.0", "10001:02:00.0"},
                                          {"", ""},
                                          {"c1:00", ""},
                                          {"0000:c1:00.0x", ""}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        char text[16];
        monitor_pci(text, same[i][0]);
        assert_string_equal(text, same[i][1]);
    }
}

static void unknown_providers_are_usage_errors(void **state)
{
    struct error err;
    struct monitor *m;
    assert_int_equal(monitor_open(&m, &(struct monitor_options){.provider = "smoke"}, &err), EXIT_USAGE);
    assert_int_equal(monitor_open(&m, &(struct monitor_options){.provider = "fake"}, &err), EXIT_USAGE);
    assert_int_equal(
        monitor_open(&m, &(struct monitor_options){.provider = "proc", .root = "/nonexistent"}, &err),
        EXIT_NO_CARD);
    assert_null(m);
}

static int print(int argc, char **argv)
{
    struct error err = {0};
    struct monitor *m;
    int samples = argc > 4 ? atoi(argv[4]) : 2;
    double period_s = argc > 5 ? atof(argv[5]) : 0.3;
    if (monitor_open(
            &m,
            &(struct monitor_options){.provider = argv[2], .root = argc > 3 ? argv[3] : "", .deadline_s = 1},
            &err) ||
        monitor_start(m, period_s, &err)) {
        error_print(&err);
        return err.code;
    }
    struct monitor_snapshot s = {0};
    for (int i = 0; i < 600 && s.samples < samples; i++) {
        monitor_read(m, &s);
        if (s.samples == 1) puts("sampled");
        fflush(stdout);
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
    struct rusage self, helper;
    getrusage(RUSAGE_SELF, &self);
    getrusage(RUSAGE_CHILDREN, &helper);
    double cpu_s = 0;
    const struct timeval *t[] = {&self.ru_utime, &self.ru_stime, &helper.ru_utime, &helper.ru_stime};
    for (int i = 0; i < 4; i++) cpu_s += (double)t[i]->tv_sec + 1e-6 * (double)t[i]->tv_usec;
    printf("cost %.3f ms of CPU a sample with helper and start, %ld KiB + %ld KiB\n",
           1e3 * cpu_s / (double)s.samples, self.ru_maxrss, helper.ru_maxrss);
    return 0;
}

/* Holds a write lease: every open of the file waits until the kernel takes the lease away (45 s), as with a
 * driver in trouble. */
static int lease(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    signal(SIGIO, SIG_IGN);
    if (fd < 0 || fcntl(fd, F_SETLEASE, F_WRLCK) != 0) return 1;
    puts("held");
    fflush(stdout);
    for (;;) pause();
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "lease") == 0) return lease(argv[2]);
    if (argc > 2 && strcmp(argv[1], "print") == 0) return print(argc, argv);
    if (argc > 3 && strcmp(argv[1], MONITOR_HELPER) == 0) return monitor_helper(argv[2], argv[3]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(fake_follows_its_file, setup, teardown),
        cmocka_unit_test_setup_teardown(proc_reads_the_machine, setup, teardown),
        cmocka_unit_test_setup_teardown(proc_shows_the_control_groups_limit, setup, teardown),
        cmocka_unit_test(this_machine_is_sampled_by_the_thread),
        cmocka_unit_test_setup_teardown(sysfs_knows_cards_of_hygon_by_their_number, setup, teardown),
        cmocka_unit_test_setup_teardown(sysfs_reads_amd_and_hygon_cards, setup, teardown),
        cmocka_unit_test_setup_teardown(what_cannot_be_read_any_more_turns_stale, setup, teardown),
        cmocka_unit_test_setup_teardown(files_of_any_content_do_no_harm, setup, teardown),
        cmocka_unit_test_setup_teardown(a_hanging_thread_is_abandoned, setup, teardown),
        cmocka_unit_test(pci_addresses_have_one_form),
        cmocka_unit_test(unknown_providers_are_usage_errors),
    };
    return cmocka_run_group_tests_name("monitor", tests, NULL, NULL);
}
