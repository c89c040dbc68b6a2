/* The run as Prometheus text, for node_exporter's textfile collector (--collector.textfile.directory): a
 * file NAME.prom, replaced atomically. It is not synced to disk, because it is useless after a power
 * failure. The collector ignores files without the ending .prom.
 *
 * Every sample has the label run. NAN values are omitted.
 */
#ifndef MEOPT_RUN_PROMETHEUS_H
#define MEOPT_RUN_PROMETHEUS_H

#include "core/base/error.h"
#include "core/run/scalars.h"

struct prometheus_card {
    const char *card;       /* the label: "0", "1", ... */
    const char *name, *pci; /* labels, too; NULL or "" is omitted */
    double mem_used_bytes, mem_total_bytes, busy_percent, temp_c, power_w;
    double age_s; /* of these values */
};

struct prometheus_run {
    const char *run;            /* label */
    const char *state;          /* "running", "stopped", ...: see state.json */
    int64_t total_steps;        /* 0: unknown */
    const struct scalars *last; /* the newest step; NULL before the first */
    const struct prometheus_card *cards;
    int card_count;
};

/* Returns the text, malloc'ed. */
char *prometheus_text(const struct prometheus_run *run);

/* Writes the text to the file, atomically; mode 0644, because the collector is a different user. */
int prometheus_write(const char *path, const struct prometheus_run *run, struct error *err);

#endif
