/* The settings of a run as a comparison sees them: config.yaml, corrected by what the run was trained with
 * (meta.json), and the changes that events.jsonl reports. */
#ifndef MEOPT_COMPARE_SETTINGS_H
#define MEOPT_COMPARE_SETTINGS_H

#include "core/compare/record.h"

/* Fills settings, history and edited of a record whose path and steps are known. */
int settings_read(struct record *record, struct error *err);
void settings_free(struct record *record);

#endif
