/* The table of a run's start: what computes it, who carries its gradients, who watches its cards; with every
 * fallback and what that costs. On stderr (cli/commands/cmd_worker.c) and in meta.json. */
#ifndef MEOPT_TRAIN_START_TABLE_H
#define MEOPT_TRAIN_START_TABLE_H

#include "core/device/facts.h"
#include "core/train/trainer.h"

#include <jansson.h>

enum { START_COLLECTIVES = DEVICE_FACTS, START_TELEMETRY, START_ROWS };

/* telemetry: the provider of monitor.h, "" for none. */
void start_table(const struct trainer *trainer, const char *telemetry, struct device_fact rows[START_ROWS]);
/* Compares the rows of all ranks, which make this call together. A row of another rank than 0 keeps its cost
 * only where rank 0 has not the same, so that each fallback is reported once. Ranks whose kernels, products
 * or attention differ round differently: rank 0 warns and names them. *table: [{"name": "products", "is":
 * "...", "cost": "..." or null, "mend": "..." or null}], where ranks differ with "ranks": {"1": {"host":
 * "...", "is": "..."}} for each that differs from rank 0; the caller frees. */
int start_table_gather(struct trainer *trainer, struct device_fact rows[START_ROWS], json_t **table,
                       struct error *err);
/* ["kernels", ...]: the rows in which ranks differ; NULL: none */
json_t *start_differences(const json_t *table);

#endif
