/* The files that describe a run, written at its start: meta.json (program, host, data, sizes) and plan.json
 * (the planned memory of this run, and of the same experiment without MEOpt). A plan that cannot be made does
 * not prevent training. */
#ifndef MEOPT_TRAIN_META_H
#define MEOPT_TRAIN_META_H

#include "core/data/data.h"
#include "core/run/run.h"
#include "core/step/trainer.h"

/* Writes both files (collective call; rank 0 writes). total: steps of the whole run. peak_flops: of all
 * cards, 0 if unknown. start: from start_table.h; identity: from resume_check_config; both remain the
 * caller's. plan.json has the plan of the rank with the most memory, and those of all ranks if they differ.
 */
int meta_write(const struct run *run, struct trainer *trainer, const struct data *data, int64_t total,
               double peak_flops, json_t *start, json_t *identity, struct error *err);

/* Return the version of this program, and the CRC-32C of its file (0: it cannot be read). */
const char *meta_version(void);
uint32_t meta_program_crc(void);

#endif
