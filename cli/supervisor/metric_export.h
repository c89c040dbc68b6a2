/* What a supervisor hands on of a run besides the run directory:
 * TensorBoard's event files, Prometheus' text. */
#ifndef MEOPT_CLI_SUPERVISOR_METRIC_EXPORT_H
#define MEOPT_CLI_SUPERVISOR_METRIC_EXPORT_H

#include "core/monitor/monitor.h"

#include <stdint.h>

struct outlets;

/* Lines of metrics.jsonl behind `from` are handed on. metrics_file may be NULL. */
int outlets_open(struct outlets **out, const char *directory, int64_t from, bool tensorboard,
                 const char *metrics_file, struct error *err);
/* Take in what is new; the text is written every few seconds, and at the end. cards may be NULL. */
void outlets_update(struct outlets *o, const char *state, int64_t total, const struct monitor_snapshot *cards,
                    bool end);
void outlets_close(struct outlets *o); /* NULL is nothing */

#endif
