/* meopt plan --grid: memory and time of a step for each division of N ranks into tensor groups, stages and
 * replicas, next to a published grid of the same model. */
#ifndef MEOPT_CLI_PLAN_GRID_H
#define MEOPT_CLI_PLAN_GRID_H

#include "cli/plan/plan_scaling.h"

enum { GRID_ROWS = 64 };

struct plan_grid {
    struct plan_speed how;
    int64_t images, slices; /* of a step of all ranks; model_s.slices of all rows */
    bool tokens;            /* the images are samples of tokens */
    int count, chosen;      /* chosen: the fastest that fits; -1: none fits */
    struct grid_row {
        int tensor, replicas;
        enum train_rounds rounds; /* AUTO: one micro-batch per replica */
        struct advice_row choice;
        double published_bytes, published_rate; /* peak of a card, images per second; NAN: not published */
    } rows[GRID_ROWS];
};

/* Plans and simulates the rows. dist.tensor and dist.pipeline are varied unless overrides give them, and
 * train.rounds where a replica has several micro-batches, unless it is set; the images of a step and
 * dist.shard stay. step_s: of the experiment as configured on one rank; 0: by the speeds that are given or
 * assumed. */
void plan_grid_make(struct plan_grid *grid, const struct arguments *args,
                    const struct memory_planner *planner, size_t card_bytes, int ranks, double gflops,
                    double step_s);
void plan_grid_print(const struct plan_grid *grid);
json_t *plan_grid_json(const struct plan_grid *grid);

#endif
