/* What the cards are doing: memory, busy, temperature, power.
 *
 * For the dashboard, `meopt doctor` and the metrics. A provider reads one kind of source, and all of them
 * fill the same snapshot:
 *
 *   fake   a JSON file, read again at each sample: tests and demonstrations drive every screen with it
 *   proc   the CPU as one card: memory of the machine or the control group, busy, temperature, power
 *   sysfs  AMD and Hygon cards through the kernel's files alone, no library
 *   rsmi   AMD and Hygon cards through librocm_smi64, in a watched helper process
 *   nvml   NVIDIA cards through libnvidia-ml, likewise
 *   auto   sysfs where it finds cards with memory files, else rsmi, nvml, proc, by what the machine has
 *
 * A monitor samples on its own thread, because every one of these sources can hang: a driver in trouble holds
 * a reader for seconds or for ever. monitor_read copies the newest snapshot and never waits for a source. A
 * field that was never read is not valid (N/A, never 0); one that was read but not lately keeps its value,
 * its age grows, and after a while it is `stale`. "Busy" means something else with each vendor: show it
 * beside the provider's name, never compare vendors.
 *
 *     struct monitor *m;
 *     if ((code = monitor_open(&m, &(struct monitor_options){.provider = "auto"}, &err))) return code;
 *     if ((code = monitor_start(m, 0.5, &err))) ...
 *     struct monitor_snapshot now;
 *     monitor_read(m, &now);
 *     for (int i = 0; i < now.card_count; i++) if (now.cards[i].temp_c.valid) ...
 *     monitor_close(m);
 *
 * The rsmi and nvml helpers are this same program, started again as
 * `PROGRAM monitor-helper PROVIDER LIBRARY`: a program that opens those providers hands such a command line
 * to monitor_helper() before anything else (cli/commands/cmd_monitor_helper.c). One monitor for a run: the
 * controller's. Workers never open one (rsmi takes a machine-wide lock).
 */
#ifndef MEOPT_MONITOR_H
#define MEOPT_MONITOR_H

#include "core/base/error.h"

#include <stdbool.h>
#include <sys/types.h>

#define MONITOR_CARDS 64 /* at most; further ones are left out and `note` says so */

struct monitor_value {
    double value;
    double time_s; /* CLOCK_MONOTONIC when it was read */
    double age_s;  /* how long ago that was, at monitor_read */
    bool valid;    /* ever read; false is N/A */
    bool stale;    /* valid, but older than two periods and a second */
};

enum monitor_field {
    MONITOR_MEM_USED,
    MONITOR_MEM_TOTAL,
    MONITOR_BUSY,
    MONITOR_TEMP,
    MONITOR_POWER,
    MONITOR_PROCESS,
    MONITOR_FIELDS
};

enum { MONITOR_HOLDERS = 4 };

/* A process that holds memory of a card. */
struct monitor_holder {
    int pid;
    char name[32]; /* printable; "" not known */
    double bytes;
};

struct monitor_card {
    char name[64]; /* printable */
    char pci[16];  /* "0000:c1:00.0", lower case; "" where there is none (the CPU) */
    union {
        struct {
            struct monitor_value mem_used_bytes, mem_total_bytes;
            struct monitor_value busy_percent; /* 0 to 100 */
            struct monitor_value temp_c;       /* hottest sensor that the vendor calls the chip's */
            struct monitor_value power_w;
            struct monitor_value process_bytes; /* of mem_used_bytes, what the watched processes hold */
        };
        struct monitor_value field[MONITOR_FIELDS];
    };
    /* Of those that are not watched, as far as the provider tells, the ones that hold most, the largest
     * first. */
    struct monitor_holder holders[MONITOR_HOLDERS];
    int holder_count;
};

struct monitor_snapshot {
    double time_s; /* CLOCK_MONOTONIC at monitor_read */
    long samples;  /* complete samples so far; 0: nothing was read yet */
    int card_count;
    char provider[8];  /* the one in use: "auto" has become one of the others */
    char library[256]; /* the file that rsmi or nvml loaded; "" */
    char note[256];    /* why something is missing, one printable line; "" */
    struct monitor_card cards[MONITOR_CARDS];
};

struct monitor_options {
    const char *provider; /* one of the names above; NULL is auto; "fake:FILE" is fake with that root */
    const char *root;     /* in front of every path that is read ("" or NULL is /); for fake, the JSON file */
    const char *rsmi_library; /* NULL: $MEOPT_RSMI_LIB, else where Debian, ROCm and DTK put it */
    const char *nvml_library; /* NULL: $MEOPT_NVML_LIB, else libnvidia-ml.so.1 */
    const char *helper;       /* program to start as the helper; NULL: this one, /proc/self/exe */
    double deadline_s;        /* a library call that takes longer is given up; 0: 3 s */
};

struct monitor;

/* Choose and open the provider; nothing is sampled yet and no library is loaded. An unknown provider is
 * EXIT_USAGE, a source that is not there EXIT_NO_CARD. Open before other threads exist where you can. */
int monitor_open(struct monitor **out, const struct monitor_options *options, struct error *err);

/* Whose memory process_bytes counts (the workers of the run);
 * at most 64 are kept. May be called at any time. */
void monitor_watch(struct monitor *m, const pid_t *pids, int count);

/* Sample every period_s (0.05 to 3600) on a thread of its own; the first sample begins at once. */
int monitor_start(struct monitor *m, double period_s, struct error *err);

/* One sample on the caller's thread, which it may hold up; for programs that never call monitor_start. */
void monitor_sample(struct monitor *m);

/* Copy the newest snapshot, ages and staleness as of now. Never waits for a source. */
void monitor_read(struct monitor *m, struct monitor_snapshot *out);

/* Stop the thread, end the helper. Bounded in time: a thread that hangs in the kernel is left behind with its
 * memory. NULL is nothing. */
void monitor_close(struct monitor *m);

/* PCI addresses as people and libraries write them ("C1:00.0", "00000000:C1:00.0") into the form of
 * monitor_card; "" when it is none. */
void monitor_pci(char dst[16], const char *text);

/* The card at this PCI address (in any spelling), or -1. */
int monitor_find(const struct monitor_snapshot *s, const char *pci);

/* The helper's side, see above; returns only when it was not a monitor that started it. */
#define MONITOR_HELPER "monitor-helper"
int monitor_helper(const char *provider, const char *library);

#endif
