/* Readings: values of a snapshot, small files of the kernel, watched processes; for all providers. */
#include "core/monitor/monitor_internal.h"
#include "core/base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *const monitor_throttle_names[THROTTLES] = {"power_cap", "heat", "hardware", "setting"};

void monitor_sleep(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
    nanosleep(&t, NULL);
}

void value_set(struct monitor_value *v, double value)
{
    *v = (struct monitor_value){.value = value, .valid = isfinite(value), .time_s = clock_seconds()};
}

void value_take(struct monitor_value *v, int result, double value)
{
    if (result > 0) value_set(v, value);
    if (result == 0) *v = (struct monitor_value){.absent = true};
}

void card_take(struct monitor_card *card, int field, int result, double value)
{
    static const struct {
        double least, most;
    } range[MONITOR_FIELDS] = {[MONITOR_MEM_USED] = {0, 1e15},
                               [MONITOR_MEM_TOTAL] = {1, 1e15},
                               [MONITOR_BUSY] = {0, 100},
                               [MONITOR_TEMP] = {-60, 250},
                               [MONITOR_POWER] = {0, 10000},
                               [MONITOR_PROCESS] = {0, 1e15},
                               [MONITOR_ECC] = {0, 1},
                               [MONITOR_ECC_ERRORS] = {0, 1e15},
                               [MONITOR_CLOCK] = {0, 1e5},
                               [MONITOR_CLOCK_MOST] = {1, 1e5},
                               [MONITOR_THROTTLE] = {0, 15},
                               [MONITOR_CAP] = {0, 10000},
                               [MONITOR_CAP_DEFAULT] = {1, 10000},
                               [MONITOR_MIG] = {0, 1},
                               [MONITOR_INDEX] = {0, 1e4}};
    if (result > 0 && !(value >= range[field].least && value <= range[field].most)) result = -1;
    value_take(&card->field[field], result, value);
}

static int read_path(char *dst, size_t size, const char *path)
{
    dst[0] = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd < 0 ? -1 : read(fd, dst, size - 1);
    int e = errno;
    if (fd >= 0) close(fd);
    if (n < 0)
        return e == EBUSY || e == EAGAIN || e == EINTR || e == EIO || e == ETIMEDOUT || e == EMFILE ? -1 : 0;
    while (n > 0 && strchr(" \t\r\n", dst[n - 1])) n--;
    dst[n] = 0;
    return 1;
}

static void rooted_path(char path[1024], const struct monitor *m, const char *format, va_list args)
{
    size_t n = (size_t)snprintf(path, 1024, "%s", m->options.root);
    if (n >= 1024) n = 1023;
    vsnprintf(path + n, 1024 - n, format, args);
}

int read_text(const struct monitor *m, char *dst, size_t size, const char *format, ...)
{
    char path[1024];
    va_list args;
    va_start(args, format);
    rooted_path(path, m, format, args);
    va_end(args);
    return read_path(dst, size, path);
}

int read_number(const struct monitor *m, double *value, const char *format, ...)
{
    char path[1024], text[64], *end;
    va_list args;
    va_start(args, format);
    rooted_path(path, m, format, args);
    va_end(args);
    int result = read_path(text, sizeof text, path);
    if (result <= 0) return result;
    *value = strtod(text, &end);
    return end != text && *end == 0 && isfinite(*value);
}

int watched_pids(struct monitor *m, pid_t pids[MONITOR_PIDS])
{
    pthread_mutex_lock(&m->mutex);
    int n = m->pid_count;
    memcpy(pids, m->pids, sizeof m->pids);
    pthread_mutex_unlock(&m->mutex);
    return n;
}

bool watched_resident_bytes(struct monitor *m, double *bytes)
{
    pid_t pids[MONITOR_PIDS];
    int n = watched_pids(m, pids);
    bool any = false;
    *bytes = 0;
    for (int i = 0; i < n; i++) {
        char text[128];
        double pages;
        if (read_text(m, text, sizeof text, "/proc/%d/statm", (int)pids[i]) <= 0 ||
            sscanf(text, "%*s %lf", &pages) != 1)
            continue;
        *bytes += pages * (double)sysconf(_SC_PAGESIZE);
        any = true;
    }
    return any;
}

void card_holder(struct monitor *m, struct monitor_card *card, int pid, double bytes, const char *name)
{
    pid_t pids[MONITOR_PIDS];
    char text[64] = "";
    int n = watched_pids(m, pids), at = card->holder_count;
    for (int i = 0; i < n; i++)
        if (pids[i] == pid) return;
    while (at > 0 && card->holders[at - 1].bytes < bytes) at--;
    if (at == MONITOR_HOLDERS || !(bytes > 0)) return;
    if (card->holder_count < MONITOR_HOLDERS) card->holder_count++;
    for (int i = card->holder_count - 1; i > at; i--) card->holders[i] = card->holders[i - 1];
    if (!name && read_text(m, text, sizeof text, "/proc/%d/comm", pid) > 0) name = text;
    card->holders[at] = (struct monitor_holder){.pid = pid, .bytes = bytes};
    name_printable(card->holders[at].name, sizeof card->holders[at].name, name ? name : "");
}

void card_name(struct monitor_card *card, const char *name)
{
    name_printable(card->name, sizeof card->name, name);
}

void monitor_note(struct monitor *m, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    text_format(text, sizeof text, format, args);
    va_end(args);
    name_printable(m->work.note, sizeof m->work.note, text);
}

void monitor_pci(char dst[16], const char *text)
{
    unsigned domain = 0, bus, device, function;
    int end = 0;
    dst[0] = 0;
    if (!text) return;
    if (!(sscanf(text, "%8x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &end) == 4 &&
          text[end] == 0)) {
        domain = 0;
        if (!(sscanf(text, "%2x:%2x.%1x%n", &bus, &device, &function, &end) == 3 && text[end] == 0)) return;
    }
    snprintf(dst, 16, "%04x:%02x:%02x.%x", domain, bus & 255, device & 31, function & 7);
}
