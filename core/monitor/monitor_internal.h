/* What the files of core/monitor share: the monitor,
 * the provider table, and reading of small kernel files. */
#ifndef MEOPT_MONITOR_MONITOR_INTERNAL_H
#define MEOPT_MONITOR_MONITOR_INTERNAL_H

#include "core/base/pci_card.h"
#include "core/monitor/monitor.h"

#include <pthread.h>
#include <stddef.h>

#define MONITOR_PIDS 64

struct monitor_provider {
    const char *name;
    int (*open)(struct monitor *m, struct error *err);
    /* Bring m->work up to date. What could not be read now is left alone and so grows old; what is not there
     * at all is cleared. */
    void (*sample)(struct monitor *m);
    void (*close)(struct monitor *m); /* (optional) */
};
extern const struct monitor_provider monitor_fake, monitor_proc, monitor_sysfs, monitor_rsmi, monitor_nvml;

struct monitor {
    const struct monitor_provider *provider;
    struct monitor_options options; /* strings owned, none NULL but helper and the libraries */
    bool chosen;                    /* by auto: may fall back to another */
    void *state;                    /* the provider's */
    struct monitor_snapshot work;   /* the sampling thread's */
    double period_s;

    pthread_mutex_t mutex; /* below: held for copies only */
    pthread_cond_t wake;
    pthread_t thread;
    bool started, stop, done, abandoned;
    struct monitor_snapshot newest;
    pid_t pids[MONITOR_PIDS];
    int pid_count;
};

void monitor_sleep(double seconds);

void value_set(struct monitor_value *v, double value);
void value_clear(struct monitor_value *v);
/* Set when `result` is 1, clear when 0 (not there), leave alone when -1 (cannot be read now). */
void value_take(struct monitor_value *v, int result, double value);

/* The same for a field of a card; what no card could mean
 * (all bits set, 6000 degrees) counts as unreadable now. */
void card_take(struct monitor_card *card, int field, int result, double value);

/* Small files of the kernel. Each path is a format behind the monitor's root. Results: 1 read, 0 there is no
 * such thing, -1 it is there but could not be read now. The text loses its trailing white space. */
int read_text(const struct monitor *m, char *dst, size_t size, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
int read_number(const struct monitor *m, double *value, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Memory that the watched processes hold in host memory; false when none of them lives. */
bool watched_resident_bytes(struct monitor *m, double *bytes);
int watched_pids(struct monitor *m, pid_t pids[MONITOR_PIDS]);

/* A process that holds memory of the card: kept unless it is watched, or MONITOR_HOLDERS hold more. name
 * NULL: what the kernel says. */
void card_holder(struct monitor *m, struct monitor_card *card, int pid, double bytes, const char *name);

/* Cards of AMD and Hygon in /sys/class/drm, ascending; `memory`: whether any of them has the file for it. */
int sysfs_cards(const struct monitor *m, int numbers[MONITOR_CARDS], bool *memory);
/* process_bytes and holders of all cards, from KFD's files. */
void kfd_process_bytes(struct monitor *m);

/* A name from outside, printable, into the card or the note. */
void card_name(struct monitor_card *card, const char *name);
void monitor_note(struct monitor *m, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
