/* The table of a run's start: what computes it, who carries its gradients, who watches its cards; with every
 * fallback and what that costs. On stderr (cli/cmd_worker.c) and in meta.json. */
#ifndef MEOPT_TRAIN_START_H
#define MEOPT_TRAIN_START_H

#include "core/device/facts.h"
#include "core/train/trainer.h"

#include <jansson.h>

enum { START_COLLECTIVES = DEVICE_FACTS, START_TELEMETRY, START_ROWS };

/* telemetry: the provider of monitor.h, "" for none. */
void start_table(const struct trainer *trainer, const char *telemetry, struct device_fact rows[START_ROWS]);
/* Among several ranks: a row of another rank than 0 keeps its cost only where rank 0 has not the same, so
 * that each fallback is told once. Every rank calls it. */
int start_among(struct dist *ranks, struct device_fact rows[START_ROWS], struct error *err);
/* [{"name": "products", "is": "...", "cost": "..." or null, "mend": "..." or null}] */
json_t *start_json(const struct device_fact rows[START_ROWS]);

#endif
