/* What a run is, told once at its start: meta.json (program, host, data, sizes), and plan.json: the memory
 * that this run is planned to take, and that of the same experiment without MEOpt, which nobody runs beside
 * it. A plan that cannot be made is no reason not to train. */
#ifndef MEOPT_TRAIN_META_H
#define MEOPT_TRAIN_META_H

#include "core/data/data.h"
#include "core/run/run.h"
#include "core/train/trainer.h"

/* total: the steps of the whole run. start: of start_table.h. Both JSON objects stay the caller's; identity:
 * identity_config. Of several ranks all make this call, and rank 0 writes: the plan of the rank that holds
 * the most, with that of each where they differ, and where each is. */
int meta_write(const struct run *run, struct trainer *trainer, const struct data *data, int64_t total,
               json_t *start, json_t *identity, struct error *err);

/* Which program this is: its version, and the CRC-32C of its file, 0 when it cannot be read. */
const char *meta_version(void);
uint32_t meta_program_crc(void);

#endif
