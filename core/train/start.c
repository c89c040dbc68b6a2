/* The table of a run's start: see start.h. */
#include "core/train/start.h"
#include "core/base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void start_table(const struct trainer *t, const char *telemetry, struct device_fact rows[START_ROWS])
{
    bool card = t->device->kind != DEVICE_CPU;
    memset(rows, 0, START_ROWS * sizeof *rows);
    device_facts(t->device, rows);
    dist_fact(&t->ranks, &rows[START_COLLECTIVES]);
    struct device_fact *watch = &rows[START_TELEMETRY];
    watch->name = "telemetry";
    snprintf(watch->is, sizeof watch->is, "%s", telemetry && *telemetry ? telemetry : "none");
    if (!card || (telemetry && *telemetry && strcmp(telemetry, "proc") != 0)) return;
    snprintf(watch->cost, sizeof watch->cost,
             "the dashboard shows neither the card's temperature and power nor how busy it is");
    snprintf(watch->mend, sizeof watch->mend, "'meopt doctor' says what is missing");
}

int start_among(struct dist *ranks, struct device_fact rows[START_ROWS], struct error *err)
{
    enum { TEXT = sizeof rows->cost, BYTES = START_ROWS * TEXT };
    if (ranks->size == 1) return 0;
    char *costs = xcalloc((size_t)ranks->size, BYTES);
    for (int i = 0; i < START_ROWS; i++) memcpy(costs + ranks->rank * BYTES + i * TEXT, rows[i].cost, TEXT);
    int code = dist_gather_each(ranks, costs, BYTES, err);
    for (int i = 0; i < START_ROWS && !code && ranks->rank > 0; i++)
        if (strcmp(rows[i].cost, costs + i * TEXT) == 0) rows[i].cost[0] = 0;
    free(costs);
    return code;
}

json_t *start_json(const struct device_fact rows[START_ROWS])
{
    json_t *table = json_array();
    for (const struct device_fact *r = rows; r < rows + START_ROWS; r++)
        json_array_append_new(table,
                              json_pack("{s:s, s:s, s:s?, s:s?}", "name", r->name, "is", r->is, "cost",
                                        r->cost[0] ? r->cost : NULL, "mend", r->mend[0] ? r->mend : NULL));
    return table;
}
