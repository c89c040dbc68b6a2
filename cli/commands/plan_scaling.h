/* meopt plan --bandwidth: the table of steps on many ranks (core/train/scaling.h). */
#ifndef MEOPT_CLI_COMMANDS_PLAN_SCALING_H
#define MEOPT_CLI_COMMANDS_PLAN_SCALING_H

#include "cli/command.h"
#include "core/config/config.h"
#include "core/train/plan.h"
#include "core/train/scaling.h"

#include <jansson.h>

enum { SCALING_ROWS = 18, PLAN_NODE_RANKS = 8 /* default of --node-ranks */ };

struct scaling_table {
    struct scaling how;
    int count;
    int64_t sample_tokens; /* 0: the samples are images */
    struct scaling_row {
        int ranks;
        double sums_s, step_s, images_per_s, efficiency;
    } rows[SCALING_ROWS]; /* 1, 2, 4 ... ranks; the last row has --ranks */
};

/* Computes the table from --bandwidth, --latency, --step-ms, --network and --node-ranks; gflops 0: unknown.
 * Without --bandwidth, count is 0. EXIT_USAGE if the time of a step is unknown. */
int scaling_table_make(struct scaling_table *table, const struct arguments *args, const struct config *config,
                       const struct plan *plan, int ranks, double gflops, struct error *err);
void scaling_table_print(const struct scaling_table *table);
json_t *scaling_table_json(const struct scaling_table *table);

#endif
