/* The settings of a run for a comparison: config.yaml, corrected by the values that the run was trained
 * with (meta.json), and the changes in events.jsonl. */
#ifndef MEOPT_COMPARE_SETTINGS_H
#define MEOPT_COMPARE_SETTINGS_H

#include "core/compare/record.h"

/* Fills settings, history and edited of a record whose path and steps are known. */
int settings_read(struct record *record, struct error *err);
void settings_free(struct record *record);

#endif
