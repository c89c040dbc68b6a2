/* The run as Prometheus text, for node_exporter's textfile collector (--collector.textfile.directory): a file
 * NAME.prom, replaced as a whole, never seen half. It is not synced to disk: after a power cut it is of no
 * interest. Its name should end in .prom, or the collector passes over it.
 *
 * Every sample has the label run. What is NAN is left out.
 */
#ifndef MEOPT_RUN_PROMETHEUS_H
#define MEOPT_RUN_PROMETHEUS_H

#include "core/base/error.h"
#include "core/run/scalars.h"

struct prometheus_card {
    const char *card;       /* the label: "0", "1", ... */
    const char *name, *pci; /* labels too; NULL or "" is left out */
    double mem_used_bytes, mem_total_bytes, busy_percent, temp_c, power_w;
    double age_s; /* of these values */
};

struct prometheus_run {
    const char *run;            /* label */
    const char *state;          /* "running", "stopped", ...: as in state.json */
    int64_t total_steps;        /* 0: unknown */
    const struct scalars *last; /* the newest step; NULL before the first */
    const struct prometheus_card *cards;
    int card_count;
};

/* The text, malloc'ed. */
char *prometheus_text(const struct prometheus_run *run);

/* The text into the file, atomically; mode 0644, as the collector is another user. */
int prometheus_write(const char *path, const struct prometheus_run *run, struct error *err);

#endif
