/* The monitor: provider selection, the sampling thread, the newest snapshot. */
#include "core/monitor/monitor_internal.h"
#include "core/base/clock.h"
#include "core/base/memory.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const struct monitor_provider *const providers[] = {&monitor_fake, &monitor_proc, &monitor_sysfs,
                                                           &monitor_rsmi, &monitor_nvml};

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
    m->options.health = options->health;
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
