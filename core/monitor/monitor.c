/* The monitor: provider selection, the sampling thread, the newest snapshot. */
#include "core/monitor/monitor_internal.h"
#include "core/base/clock.h"
#include "core/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const struct monitor_provider *const providers[] = {&monitor_fake, &monitor_proc, &monitor_sysfs,
                                                           &monitor_rsmi, &monitor_nvml};

void monitor_sleep(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
    nanosleep(&t, NULL);
}

void value_set(struct monitor_value *v, double value)
{
    *v = (struct monitor_value){.value = value, .valid = isfinite(value), .time_s = clock_seconds()};
}

void value_clear(struct monitor_value *v) { *v = (struct monitor_value){0}; }

void value_take(struct monitor_value *v, int result, double value)
{
    if (result > 0) value_set(v, value);
    if (result == 0) value_clear(v);
}

void card_take(struct monitor_card *card, int field, int result, double value)
{
    static const struct {
        double least, most;
    } range[MONITOR_FIELDS] = {
        [MONITOR_MEM_USED] = {0, 1e15}, [MONITOR_MEM_TOTAL] = {1, 1e15}, [MONITOR_BUSY] = {0, 100},
        [MONITOR_TEMP] = {-60, 250},    [MONITOR_POWER] = {0, 10000},    [MONITOR_PROCESS] = {0, 1e15}};
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
    vsnprintf(text, sizeof text, format, args);
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

int monitor_find(const struct monitor_snapshot *s, const char *pci)
{
    char wanted[16];
    monitor_pci(wanted, pci);
    for (int i = 0; wanted[0] && i < s->card_count; i++)
        if (strcmp(s->cards[i].pci, wanted) == 0) return i;
    return -1;
}

static const struct monitor_provider *provider_find(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof providers / sizeof *providers; i++)
        if (strlen(providers[i]->name) == length && memcmp(providers[i]->name, name, length) == 0)
            return providers[i];
    return NULL;
}

static bool exists(const struct monitor *m, const char *path)
{
    char *full = xasprintf("%s%s", m->options.root, path);
    bool there = access(full, F_OK) == 0;
    free(full);
    return there;
}

/* NVIDIA before the kernel's files: where both exist, the AMD card is the CPU's integrated graphics. */
static const struct monitor_provider *provider_choose(const struct monitor *m)
{
    int numbers[MONITOR_CARDS];
    bool memory;
    if (exists(m, "/proc/driver/nvidia/version") || exists(m, "/dev/nvidiactl")) return &monitor_nvml;
    int count = sysfs_cards(m, numbers, &memory);
    if (memory) return &monitor_sysfs;
    return count > 0 || exists(m, "/dev/kfd") ? &monitor_rsmi : &monitor_proc;
}

static char *copy_or_null(const char *given, const char *variable)
{
    if (!given && variable) given = getenv(variable);
    return given && given[0] ? xstrdup(given) : NULL;
}

static void monitor_free(struct monitor *m)
{
    if (m->provider && m->provider->close && m->state) m->provider->close(m);
    free((char *)m->options.root);
    free((char *)m->options.rsmi_library);
    free((char *)m->options.nvml_library);
    free((char *)m->options.helper);
    pthread_cond_destroy(&m->wake);
    pthread_mutex_destroy(&m->mutex);
    free(m);
}

int monitor_open(struct monitor **out, const struct monitor_options *options, struct error *err)
{
    *out = NULL;
    const char *name = options->provider && options->provider[0] ? options->provider : "auto",
               *colon = strchr(name, ':');
    const struct monitor_provider *provider =
        provider_find(name, colon ? (size_t)(colon - name) : strlen(name));
    if (!provider && strcmp(name, "auto") != 0)
        return error_set(err, EXIT_USAGE, "one of auto, fake, proc, sysfs, rsmi, nvml",
                         "no monitor provider '%s'", name);
    struct monitor *m = xcalloc(1, sizeof *m);
    pthread_mutex_init(&m->mutex, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&m->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    m->options.root = xstrdup(colon ? colon + 1 : options->root ? options->root : "");
    m->options.rsmi_library = copy_or_null(options->rsmi_library, "MEOPT_RSMI_LIB");
    m->options.nvml_library = copy_or_null(options->nvml_library, "MEOPT_NVML_LIB");
    m->options.helper = xstrdup(options->helper ? options->helper : "/proc/self/exe");
    m->options.deadline_s = options->deadline_s > 0 ? options->deadline_s : 3;
    m->period_s = 1;
    m->chosen = !provider;
    m->provider = provider ? provider : provider_choose(m);
    snprintf(m->work.provider, sizeof m->work.provider, "%s", m->provider->name);
    m->newest = m->work;
    int code = m->provider->open(m, err);
    if (code) monitor_free(m);
    else *out = m;
    return code;
}

void monitor_watch(struct monitor *m, const pid_t *pids, int count)
{
    if (count > MONITOR_PIDS) count = MONITOR_PIDS;
    pthread_mutex_lock(&m->mutex);
    if (count > 0) memcpy(m->pids, pids, (size_t)count * sizeof *pids);
    m->pid_count = count > 0 ? count : 0;
    pthread_mutex_unlock(&m->mutex);
}

void monitor_publish(struct monitor *m)
{
    pthread_mutex_lock(&m->mutex);
    m->newest = m->work;
    pthread_mutex_unlock(&m->mutex);
}

void monitor_sample(struct monitor *m)
{
    m->provider->sample(m);
    m->work.samples++;
    monitor_publish(m);
}

static void *sampling(void *argument)
{
    struct monitor *m = argument;
    double next = clock_seconds();
    for (;;) {
        monitor_sample(m);
        next += m->period_s;
        double now = clock_seconds();
        if (next < now) next = now; /* skip missed samples */
        struct timespec until = {(time_t)next, (long)((next - floor(next)) * 1e9)};
        pthread_mutex_lock(&m->mutex);
        while (!m->stop && pthread_cond_timedwait(&m->wake, &m->mutex, &until) == 0) continue;
        bool stop = m->stop;
        m->done = stop;
        bool abandoned = m->abandoned;
        pthread_mutex_unlock(&m->mutex);
        if (stop) {
            if (abandoned) monitor_free(m);
            return NULL;
        }
    }
}

int monitor_start(struct monitor *m, double period_s, struct error *err)
{
    if (m->started) return error_set(err, EXIT_FAILED, NULL, "the monitor is already running");
    m->period_s = !(period_s > 0.05) ? 0.05 : period_s > 3600 ? 3600 : period_s;
    sigset_t all, before; /* the program's own threads handle signals */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&m->thread, NULL, sampling, m);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code)
        return error_set(err, EXIT_HOST_MEMORY, "free some memory or raise the process limit",
                         "cannot start the sampling thread: %s", strerror(code));
    m->started = true;
    return 0;
}

void monitor_read(struct monitor *m, struct monitor_snapshot *out)
{
    pthread_mutex_lock(&m->mutex);
    *out = m->newest;
    pthread_mutex_unlock(&m->mutex);
    out->time_s = clock_seconds();
    for (int i = 0; i < out->card_count; i++)
        for (int f = 0; f < MONITOR_FIELDS; f++) {
            struct monitor_value *v = &out->cards[i].field[f];
            v->age_s = v->valid && out->time_s > v->time_s ? out->time_s - v->time_s : 0;
            v->stale = v->age_s > 2 * m->period_s + 1;
        }
}

void monitor_close(struct monitor *m)
{
    if (!m) return;
    if (m->started) {
        pthread_mutex_lock(&m->mutex);
        m->stop = true;
        pthread_cond_signal(&m->wake);
        pthread_mutex_unlock(&m->mutex);
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 2;
        if (pthread_timedjoin_np(m->thread, NULL, &until) != 0) {
            pthread_mutex_lock(&m->mutex);
            bool done = m->done;
            m->abandoned = !done;
            pthread_mutex_unlock(&m->mutex);
            if (!done) {
                pthread_detach(m->thread);
                return;
            }
            pthread_join(m->thread, NULL);
        }
    }
    monitor_free(m);
}
