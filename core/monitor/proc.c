/* Provider proc: the CPU as one card, from /proc and /sys.
 *
 * Memory is the machine's, or that of the control group with the lowest limit (ours or one above it): the OOM
 * killer acts at that limit. Used memory is memory that cannot be reclaimed at once: MemTotal - MemAvailable,
 * or usage minus inactive file pages. Busy is the utilization of this process's cores (as a batch system
 * allots them) since the last sample. Power comes from RAPL's package counters, which most kernels show to
 * root only. */
#include "core/monitor/monitor_internal.h"
#include "core/base/clock.h"
#include "core/base/memory.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

struct proc {
    char group[2][512]; /* directories of the memory control group: version 2, version 1; "" */
    bool some_cores;    /* CPUs that this process may use */
    cpu_set_t cores;
    char stat[65536];
    double busy_ticks, all_ticks;
    double energy_uj[8], energy_s[8];
    char temperature[128]; /* file with the CPU temperature in milli-Celsius; "" */
};

/* Returns the first number after `key` in a text of lines. */
static bool number_after(const char *text, const char *key, double *value)
{
    size_t n = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n'), line += line != NULL) {
        if (strncmp(line, key, n) == 0 && (line[n] == ' ' || line[n] == ':'))
            return sscanf(line + n + 1, "%lf", value) == 1;
    }
    return false;
}

static void find_name(struct monitor *m)
{
    char text[4096], *name;
    struct monitor_card *card = &m->work.cards[0];
    card_name(card, "CPU");
    if (read_text(m, text, sizeof text, "/proc/cpuinfo") <= 0 || !(name = strstr(text, "model name")) ||
        !(name = strchr(name, ':')))
        return;
    name[1 + strcspn(name + 1, "\n")] = 0;
    card_name(card, name + 1 + strspn(name + 1, " \t"));
}

static void find_group(struct monitor *m, struct proc *p)
{
    char text[4096], *rest = text, *line;
    if (read_text(m, text, sizeof text, "/proc/self/cgroup") <= 0) return;
    while ((line = strsep(&rest, "\n"))) {
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *path++ = 0;
        if (strcmp(controllers, ":") == 0)
            snprintf(p->group[0], sizeof p->group[0], "/sys/fs/cgroup%s", path);
        else if (strstr(controllers, "memory"))
            snprintf(p->group[1], sizeof p->group[1], "/sys/fs/cgroup/memory%s", path);
    }
    /* In a container the path may be the host's, with only the container's part mounted, at the top. */
    double any;
    if (p->group[0][0] && read_number(m, &any, "%s/memory.current", p->group[0]) == 0)
        snprintf(p->group[0], sizeof p->group[0], "/sys/fs/cgroup");
    if (p->group[1][0] && read_number(m, &any, "%s/memory.usage_in_bytes", p->group[1]) == 0)
        snprintf(p->group[1], sizeof p->group[1], "/sys/fs/cgroup/memory");
}

static void find_temperature(struct monitor *m, struct proc *p)
{
    static const char *const drivers[] = {"coretemp", "k10temp", "zenpower", "cpu_thermal"};
    char name[64];
    double value;
    for (int i = 0; i < 32; i++) {
        if (read_text(m, name, sizeof name, "/sys/class/hwmon/hwmon%d/name", i) <= 0) continue;
        for (size_t k = 0; k < sizeof drivers / sizeof *drivers; k++) {
            if (strcmp(name, drivers[k]) != 0 ||
                read_number(m, &value, "/sys/class/hwmon/hwmon%d/temp1_input", i) <= 0)
                continue;
            snprintf(p->temperature, sizeof p->temperature, "/sys/class/hwmon/hwmon%d/temp1_input", i);
            return;
        }
    }
    for (int i = 0; i < 32; i++) {
        if (read_text(m, name, sizeof name, "/sys/class/thermal/thermal_zone%d/type", i) <= 0) continue;
        if (strcmp(name, "x86_pkg_temp") != 0 && strncasecmp(name, "cpu", 3) != 0 &&
            strncmp(name, "soc", 3) != 0)
            continue;
        snprintf(p->temperature, sizeof p->temperature, "/sys/class/thermal/thermal_zone%d/temp", i);
        return;
    }
}

/* Finds the control group at or above `group` with the lowest limit below *total. Stores its limit and usage.
 */
static void least_group(struct monitor *m, const char *group, bool version1, double *total, double *used)
{
    const char *limit_file = version1 ? "memory.limit_in_bytes" : "memory.max",
               *used_file = version1 ? "memory.usage_in_bytes" : "memory.current";
    const char *inactive_key = version1 ? "total_inactive_file" : "inactive_file";
    size_t top = strlen(version1 ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup");
    char path[512], text[8192];
    for (snprintf(path, sizeof path, "%s", group); strlen(path) >= top; *strrchr(path, '/') = 0) {
        double limit, current, inactive = 0;
        if (read_number(m, &limit, "%s/%s", path, limit_file) <= 0 || !(limit > 0 && limit < *total))
            continue;
        if (read_number(m, &current, "%s/%s", path, used_file) <= 0) continue;
        if (read_text(m, text, sizeof text, "%s/memory.stat", path) > 0 &&
            number_after(text, inactive_key, &inactive) && inactive < current)
            current -= inactive;
        *total = limit, *used = current;
    }
}

static void sample_memory(struct monitor *m, struct proc *p, struct monitor_card *card)
{
    char text[8192];
    double total = 0, available = 0;
    int result = read_text(m, text, sizeof text, "/proc/meminfo");
    if (result > 0) {
        result = number_after(text, "MemTotal", &total) && number_after(text, "MemAvailable", &available);
        total *= 1024, available *= 1024;
    }
    double used = total - available;
    for (int v = 0; result > 0 && v < 2; v++)
        if (p->group[v][0]) least_group(m, p->group[v], v == 1, &total, &used);
    value_take(&card->mem_total_bytes, result, total);
    value_take(&card->mem_used_bytes, result, used);
}

/* Sums the ticks of a line of /proc/stat: user nice system idle iowait irq softirq steal. */
static bool add_ticks(const char *line, double *all, double *busy)
{
    double t[8] = {0};
    if (sscanf(line, "%*s %lf %lf %lf %lf %lf %lf %lf %lf", t, t + 1, t + 2, t + 3, t + 4, t + 5, t + 6,
               t + 7) < 4)
        return false;
    for (int i = 0; i < 8; i++) {
        *all += t[i];
        if (i != 3 && i != 4) *busy += t[i];
    }
    return true;
}

static void sample_busy(struct monitor *m, struct proc *p, struct monitor_card *card)
{
    char *line;
    double all = 0, busy = 0;
    int number, result = read_text(m, p->stat, sizeof p->stat, "/proc/stat");
    if (result > 0 && strncmp(p->stat, "cpu ", 4) != 0) result = 0;
    if (result > 0 && p->some_cores) {
        for (line = strchr(p->stat, '\n'); line && sscanf(++line, "cpu%d", &number) == 1;
             line = strchr(line, '\n'))
            if (number >= 0 && number < CPU_SETSIZE && CPU_ISSET(number, &p->cores))
                add_ticks(line, &all, &busy);
    } else if (result > 0) result = add_ticks(p->stat, &all, &busy);
    if (result <= 0) {
        value_take(&card->busy_percent, result, 0);
        return;
    }
    double passed = all - p->all_ticks, share = busy - p->busy_ticks;
    if (p->all_ticks > 0 && passed > 0)
        value_set(&card->busy_percent, share < 0 ? 0 : share > passed ? 100 : 100 * share / passed);
    p->all_ticks = all, p->busy_ticks = busy;
}

static void sample_power(struct monitor *m, struct proc *p, struct monitor_card *card)
{
    double watts = 0, energy;
    bool any = false;
    for (int i = 0; i < 8; i++) {
        if (read_number(m, &energy, "/sys/class/powercap/intel-rapl:%d/energy_uj", i) <= 0) break;
        double now = clock_seconds();
        if (p->energy_s[i] > 0 && energy >= p->energy_uj[i] &&
            now > p->energy_s[i]) { /* the counter wraps around after minutes to hours */
            watts += (energy - p->energy_uj[i]) * 1e-6 / (now - p->energy_s[i]);
            any = true;
        }
        p->energy_uj[i] = energy, p->energy_s[i] = now;
    }
    if (any) value_set(&card->power_w, watts);
}

static void proc_sample(struct monitor *m)
{
    struct proc *p = m->state;
    struct monitor_card *card = &m->work.cards[0];
    double value = 0;
    sample_memory(m, p, card);
    sample_busy(m, p, card);
    sample_power(m, p, card);
    if (p->temperature[0]) {
        int result = read_number(m, &value, "%s", p->temperature);
        value_take(&card->temp_c, result, value * 1e-3);
    }
    bool lives = watched_resident_bytes(m, &value);
    value_take(&card->process_bytes, lives, value);
}

static int proc_open(struct monitor *m, struct error *err)
{
    char text[64];
    if (read_text(m, text, sizeof text, "/proc/stat") <= 0)
        return error_set(err, EXIT_NO_CARD, "is /proc mounted?", "cannot read %s/proc/stat", m->options.root);
    struct proc *p = xcalloc(1, sizeof *p);
    m->state = p;
    m->work.card_count = 1;
    find_name(m);
    find_group(m, p);
    find_temperature(m, p);
    /* (Affinity of this machine: unknown under a test's root. More than 1024 cores: all of them.) */
    p->some_cores = !m->options.root[0] && sched_getaffinity(0, sizeof p->cores, &p->cores) == 0 &&
                    CPU_COUNT(&p->cores) < sysconf(_SC_NPROCESSORS_ONLN);
    return 0;
}

static void proc_close(struct monitor *m) { free(m->state); }

const struct monitor_provider monitor_proc = {"proc", proc_open, proc_sample, proc_close};
