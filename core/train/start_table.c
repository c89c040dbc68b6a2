/* The start table: see start_table.h. */
#include "core/train/start_table.h"
#include "core/base/memory.h"
#include "core/base/log.h"
#include "core/base/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void start_table(const struct trainer *t, const char *telemetry, struct device_fact rows[START_ROWS])
{
    bool card = t->device->kind != DEVICE_CPU;
    memset(rows, 0, START_ROWS * sizeof *rows);
    device_facts(t->device, rows);
    comm_fact(&t->ranks, &rows[START_COLLECTIVES]);
    struct device_fact *watch = &rows[START_TELEMETRY];
    watch->name = N_("telemetry");
    snprintf(watch->is, sizeof watch->is, "%s", telemetry && *telemetry ? telemetry : "none");
    if (!card || (telemetry && *telemetry && strcmp(telemetry, "proc") != 0)) return;
    snprintf(watch->cost, sizeof watch->cost,
             N_("the dashboard shows neither the card's temperature and power nor how busy it is"));
    snprintf(watch->remedy, sizeof watch->remedy, N_("'meopt doctor' says what is missing"));
}

/* Rows that affect rounding. */
static const int rounding[] = {FACT_KERNELS, FACT_GEMM, FACT_ATTENTION};
enum { ROUNDING = sizeof rounding / sizeof *rounding };

/* What each rank reports. */
struct rank_rows {
    char host[64];
    uint32_t cpu_sets;
    char is[ROUNDING][sizeof((struct device_fact *)0)->is],
        cost[START_ROWS][sizeof((struct device_fact *)0)->cost];
};

static void warn_differences(const struct trainer *t, const struct rank_rows *all, int row, int other,
                             int count)
{
    char more[48] = "", advice[128] = "", theirs[sizeof all->is[0]], ours[sizeof all->is[0]];
    uint32_t sets = ~0u;
    for (int r = 0; r < t->ranks.size; r++) sets &= all[r].cpu_sets;
    const char *best = facts_best_cpu_isa(sets);
    if (count > 1) snprintf(more, sizeof more, _(" and %d more"), count - 1);
    bool sets_differ = row == 0 || strstr(all[0].is[row], "AMX") || strstr(all[other].is[row], "AMX");
    if (t->device->kind == DEVICE_CPU && best && sets_differ) /* otherwise a library differs */
        snprintf(advice, sizeof advice, _("; for results that repeat: MEOPT_CPU_ISA=%s on all ranks"), best);
    log_warn(
        "ranks compute differently: rank %d (host %s)%s has %s, rank 0 (host %s) has %s; results are rounded "
        "differently than by equal ranks%s",
        other, all[other].host, more, message_translated(theirs, sizeof theirs, all[other].is[row]),
        all[0].host, message_translated(ours, sizeof ours, all[0].is[row]), advice);
}

/* Returns the ranks whose row differs from rank 0's; NULL: none. Rank 0 warns about the first such row. */
static json_t *differences(const struct trainer *t, const struct rank_rows *all, int row, bool *warned)
{
    json_t *ranks = NULL;
    int first = 0;
    for (int r = t->ranks.size - 1; r > 0; r--) {
        char number[16];
        if (strcmp(all[r].is[row], all[0].is[row]) == 0) continue;
        if (!ranks) ranks = json_object();
        snprintf(number, sizeof number, "%d", r);
        json_object_set_new(ranks, number, json_string(all[r].is[row]));
        first = r;
    }
    if (first && !*warned && t->ranks.rank == 0) {
        warn_differences(t, all, row, first, (int)json_object_size(ranks));
        *warned = true;
    }
    return ranks;
}

static json_t *start_json(const struct device_fact rows[START_ROWS])
{
    json_t *table = json_array();
    char is[sizeof rows->is];
    for (const struct device_fact *r = rows; r < rows + START_ROWS; r++)
        json_array_append_new(table, json_pack("{s:s, s:s, s:s?, s:s?}", "name", r->name, "is",
                                               message_english(is, sizeof is, r->is), "cost",
                                               r->cost[0] ? r->cost : NULL, "mend",
                                               r->remedy[0] ? r->remedy : NULL));
    return table;
}

int start_table_gather(struct trainer *t, struct device_fact rows[START_ROWS], json_t **table,
                       struct error *err)
{
    struct comm *ranks = &t->ranks;
    bool warned = false;
    *table = start_json(rows);
    if (ranks->size == 1) return 0;
    struct rank_rows *all = xcalloc((size_t)ranks->size, sizeof *all), *own = &all[ranks->rank];
    gethostname(own->host, sizeof own->host - 1);
    own->cpu_sets = facts_cpu_sets();
    for (int i = 0; i < ROUNDING; i++) memcpy(own->is[i], rows[rounding[i]].is, sizeof own->is[i]);
    for (int i = 0; i < START_ROWS; i++) memcpy(own->cost[i], rows[i].cost, sizeof own->cost[i]);
    int code = comm_gather_each(ranks, all, sizeof *all, err);
    for (int i = 0; i < START_ROWS && !code && ranks->rank > 0; i++)
        if (strcmp(rows[i].cost, all[0].cost[i]) == 0) rows[i].cost[0] = 0;
    for (int i = 0; i < ROUNDING && !code; i++) {
        json_t *different = differences(t, all, i, &warned);
        if (different) json_object_set_new(json_array_get(*table, (size_t)rounding[i]), "ranks", different);
    }
    free(all);
    return code;
}

json_t *start_differences(const json_t *table)
{
    json_t *names = NULL, *row;
    size_t i;
    json_array_foreach(table, i, row)
    {
        if (!json_object_get(row, "ranks")) continue;
        if (!names) names = json_array();
        json_array_append(names, json_object_get(row, "name"));
    }
    return names;
}
