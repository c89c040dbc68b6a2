/* The start table of a run: kernels, libraries, collectives and telemetry in use, with the cost of every
 * fallback. Printed to stderr (cli/train/cmd_worker.c) and stored in meta.json. */
#ifndef MEOPT_TRAIN_START_TABLE_H
#define MEOPT_TRAIN_START_TABLE_H

#include "core/device/facts.h"
#include "core/step/trainer.h"

#include <jansson.h>

enum { START_COLLECTIVES = DEVICE_FACTS, START_TELEMETRY, START_ROWS };

/* Fills the rows of this rank. telemetry: the provider of monitor.h, "" for none. */
void start_table(const struct trainer *trainer, const char *telemetry, struct device_fact rows[START_ROWS]);
/* Gathers the rows of all ranks and compares them (collective call). A rank above 0 drops the cost of a
 * row if rank 0 has the same, so that each fallback is reported once. Ranks whose kernels, GEMMs or
 * attention differ round differently: rank 0 warns about them. *table: the rows as in meta.json, "start"
 * (man meopt-run); the caller frees. */
int start_table_gather(struct trainer *trainer, struct device_fact rows[START_ROWS], json_t **table,
                       struct error *err);
/* Returns the names of the rows in which ranks differ, as a JSON array; NULL: none. */
json_t *start_differences(const json_t *table);

#endif
