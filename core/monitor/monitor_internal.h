/* Shared by the files of core/monitor: the monitor, the provider table, readers of small kernel files. */
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
    /* Updates m->work. A value that cannot be read now stays and grows old. A value that does not exist is
     * cleared. */
    void (*sample)(struct monitor *m);
    void (*close)(struct monitor *m); /* (optional) */
};
extern const struct monitor_provider monitor_fake, monitor_proc, monitor_sysfs, monitor_rsmi, monitor_nvml;

struct monitor {
    const struct monitor_provider *provider;
    struct monitor_options options; /* strings are owned; none is NULL except helper and the libraries */
    bool chosen;                    /* chosen by auto: may fall back to another provider */
    void *state;                    /* the provider's state */
    struct monitor_snapshot work;   /* used by the sampling thread only */
    double period_s;

    pthread_mutex_t mutex; /* protects the fields below; held only while copying */
    pthread_cond_t wake;
    pthread_t thread;
    bool started, stop, done, abandoned;
    struct monitor_snapshot newest;
    pid_t pids[MONITOR_PIDS];
    int pid_count;
};

void monitor_sleep(double seconds);

void value_set(struct monitor_value *v, double value);
/* Sets the field if `result` is 1, clears it if 0 (no such field), keeps it if -1 (cannot be read now). */
void value_take(struct monitor_value *v, int result, double value);

/* The same for a field of a card. An impossible value (all bits set, 6000 degrees) counts as unreadable now.
 */
void card_take(struct monitor_card *card, int field, int result, double value);

/* Read small files of the kernel. Each path is a format, with the monitor's root in front. Return 1: read, 0:
 * no such file, -1: the file exists but could not be read now. Trailing white space is removed. */
int read_text(const struct monitor *m, char *dst, size_t size, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
int read_number(const struct monitor *m, double *value, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Returns the host memory of the watched processes; false if all of them have ended. */
bool watched_resident_bytes(struct monitor *m, double *bytes);
int watched_pids(struct monitor *m, pid_t pids[MONITOR_PIDS]);

/* Adds a process that uses memory of the card, unless it is watched or MONITOR_HOLDERS others use more. name
 * NULL: the name from the kernel. */
void card_holder(struct monitor *m, struct monitor_card *card, int pid, double bytes, const char *name);

/* Lists cards of AMD and Hygon in /sys/class/drm, ascending. `memory`: whether a card has the memory file. */
int sysfs_cards(const struct monitor *m, int numbers[MONITOR_CARDS], bool *memory);
/* Fills in process_bytes and holders of all cards, from KFD's files. */
void kfd_process_bytes(struct monitor *m);

/* Copies an external name, made printable, into the card or the note. */
void card_name(struct monitor_card *card, const char *name);
void monitor_note(struct monitor *m, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
