/* Exports metrics of a run as TensorBoard event files and Prometheus text. */
#ifndef MEOPT_CLI_SUPERVISOR_METRIC_EXPORT_H
#define MEOPT_CLI_SUPERVISOR_METRIC_EXPORT_H

#include "core/monitor/monitor.h"

#include <stdint.h>

struct metric_export;

/* Exports lines of metrics.jsonl after step `from`. metrics_file may be NULL. */
int metric_export_open(struct metric_export **out, const char *directory, int64_t from, bool tensorboard,
                       const char *metrics_file, struct error *err);
/* Exports new lines. Writes the text every few seconds, and at the end. cards may be NULL. */
void metric_export_update(struct metric_export *o, const char *state, int64_t total,
                          const struct monitor_snapshot *cards, bool end);
void metric_export_close(struct metric_export *o); /* accepts NULL */

#endif
