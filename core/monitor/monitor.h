/* State of the cards: memory, utilization, temperature, power.
 *
 * Used by the dashboard, `meopt doctor` and the metrics. A provider reads one kind of source. All providers
 * fill the same snapshot:
 *
 *   fake   a JSON file, read again at each sample: tests and demonstrations drive every screen with it
 *   proc   the CPU as one card: memory of the machine or the control group, busy, temperature, power
 *   sysfs  AMD and Hygon cards through the kernel's files alone, no library
 *   rsmi   AMD and Hygon cards through librocm_smi64, in a watched helper process
 *   nvml   NVIDIA cards through libnvidia-ml, likewise
 *   auto   sysfs if it finds cards with memory files, else rsmi, nvml or proc, depending on the hardware
 *
 * A monitor samples on its own thread, because every source can hang: a failing driver blocks a reader for
 * seconds or for ever. monitor_read copies the newest snapshot and never waits for a source. A field that was
 * never read is not valid (N/A, never 0). A field that was not read lately keeps its value, its age grows,
 * and after a while it is `stale`. Vendors define "busy" differently: show the provider's name with it, never
 * compare vendors.
 *
 *     struct monitor *m;
 *     if ((code = monitor_open(&m, &(struct monitor_options){.provider = "auto"}, &err))) return code;
 *     if ((code = monitor_start(m, 0.5, &err))) ...
 *     struct monitor_snapshot now;
 *     monitor_read(m, &now);
 *     for (int i = 0; i < now.card_count; i++) if (now.cards[i].temp_c.valid) ...
 *     monitor_close(m);
 *
 * The rsmi and nvml helpers are this program, started as `PROGRAM monitor-helper PROVIDER LIBRARY`. A program
 * that opens those providers passes such a command line to monitor_helper() before anything else
 * (cli/commands/cmd_monitor_helper.c). One monitor per run: the controller's. Workers never open one (rsmi
 * takes a machine-wide lock). */
#ifndef MEOPT_MONITOR_H
#define MEOPT_MONITOR_H

#include "core/base/error.h"

#include <stdbool.h>
#include <sys/types.h>

#define MONITOR_CARDS 64 /* maximum; further cards are dropped, and `note` reports it */

struct monitor_value {
    double value;
    double time_s; /* CLOCK_MONOTONIC at the time of reading */
    double age_s;  /* age at the time of monitor_read */
    bool valid;    /* false: never read (N/A) */
    bool stale;    /* valid, but older than two periods and a second */
    bool absent;   /* the source has no such reading, as opposed to one that could not be read */
};

enum monitor_field {
    MONITOR_MEM_USED,
    MONITOR_MEM_TOTAL,
    MONITOR_BUSY,
    MONITOR_TEMP,
    MONITOR_POWER,
    MONITOR_PROCESS,
    MONITOR_ECC_ERRORS,
    MONITOR_CLOCK,
    MONITOR_THROTTLE,
    MONITOR_HEALTH, /* fields from here on are read with options.health only */
    MONITOR_ECC = MONITOR_HEALTH,
    MONITOR_CLOCK_MOST,
    MONITOR_CAP,
    MONITOR_CAP_DEFAULT,
    MONITOR_MIG,
    MONITOR_INDEX,
    MONITOR_FIELDS
};

/* Why a card runs below its clocks: bits of throttle, and their names in JSON in the order of the bits. */
enum {
    THROTTLE_CAP = 1,      /* the power cap */
    THROTTLE_HEAT = 2,     /* temperature */
    THROTTLE_HARDWARE = 4, /* the board: power brake, or a fault */
    THROTTLE_SETTING = 8,  /* clocks set by an administrator */
    THROTTLES = 4
};
extern const char *const monitor_throttle_names[THROTTLES];

enum { MONITOR_HOLDERS = 4 };

/* A process that uses memory of a card. */
struct monitor_holder {
    int pid;
    char name[32]; /* printable; "" if unknown */
    double bytes;
};

struct monitor_card {
    char name[64]; /* printable */
    char pci[16];  /* "0000:c1:00.0", lower case; "" if there is none (the CPU) */
    union {
        struct {
            struct monitor_value mem_used_bytes, mem_total_bytes;
            struct monitor_value busy_percent; /* 0 to 100 */
            struct monitor_value temp_c;       /* the hottest sensor of the chip */
            struct monitor_value power_w;
            struct monitor_value process_bytes; /* part of mem_used_bytes: memory of the watched processes */
            struct monitor_value ecc_errors;    /* uncorrected, since the driver was loaded */
            struct monitor_value clock_mhz;     /* of the multiprocessors */
            struct monitor_value throttle;      /* THROTTLE_ bits */
            /* health */
            struct monitor_value ecc;                  /* 1: on, 0: off */
            struct monitor_value clock_most;           /* MHz */
            struct monitor_value cap_w, cap_default_w; /* power cap: as it is set, and the maker's */
            struct monitor_value mig;                  /* 1: the card is divided */
            struct monitor_value index;                /* number in nvidia-smi */
        };
        struct monitor_value field[MONITOR_FIELDS];
    };
    /* The other processes with the most memory, as far as the provider reports them, largest first. */
    struct monitor_holder holders[MONITOR_HOLDERS];
    int holder_count;
};

struct monitor_snapshot {
    double time_s; /* CLOCK_MONOTONIC at monitor_read */
    long samples;  /* complete samples so far; 0: none yet */
    int card_count;
    char provider[8];  /* the provider in use; never "auto" */
    char library[256]; /* the library loaded by rsmi or nvml; "" */
    char note[256];    /* why a value is missing, one printable line; "" */
    struct monitor_card cards[MONITOR_CARDS];
};

struct monitor_options {
    const char *provider;     /* a name from the list above; NULL: auto; "fake:FILE": fake with that root */
    const char *root;         /* prefix of every path that is read ("" or NULL: /); for fake, the JSON file */
    const char *rsmi_library; /* NULL: $MEOPT_RSMI_LIB, else the paths of Debian, ROCm and DTK */
    const char *nvml_library; /* NULL: $MEOPT_NVML_LIB, else libnvidia-ml.so.1 */
    const char *helper;       /* program to start as the helper; NULL: this program, /proc/self/exe */
    double deadline_s;        /* time limit of a library call; 0: 3 s */
    bool health;              /* read the fields of health as well */
};

struct monitor;

/* Chooses and opens the provider, without sampling and without loading a library. Returns EXIT_USAGE for an
 * unknown provider, EXIT_NO_CARD if the source does not exist. Call it before other threads exist, if
 * possible. */
int monitor_open(struct monitor **out, const struct monitor_options *options, struct error *err);

/* Sets the processes whose memory process_bytes counts (the workers of the run), at most 64. May be called at
 * any time. */
void monitor_watch(struct monitor *m, const pid_t *pids, int count);

/* Samples every period_s (0.05 to 3600) on a separate thread; the first sample begins at once. */
int monitor_start(struct monitor *m, double period_s, struct error *err);

/* Takes one sample on the caller's thread, which it may block. For programs that never call monitor_start. */
void monitor_sample(struct monitor *m);

/* Copies the newest snapshot, with ages and staleness as of now. Never waits for a source. */
void monitor_read(struct monitor *m, struct monitor_snapshot *out);

/* Stops the thread and ends the helper, in bounded time: a thread that hangs in the kernel is abandoned with
 * its memory. NULL does nothing. */
void monitor_close(struct monitor *m);

/* Normalizes PCI addresses ("C1:00.0", "00000000:C1:00.0") to the form of monitor_card. Returns "" for an
 * invalid address. */
void monitor_pci(char dst[16], const char *text);

/* Returns the card at this PCI address (in any notation), or -1. */
int monitor_find(const struct monitor_snapshot *s, const char *pci);

/* The helper's main function, see above. Returns only if the caller was not a monitor. */
#define MONITOR_HELPER "monitor-helper"
int monitor_helper(const char *provider, const char *library);

#endif
