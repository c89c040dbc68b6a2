/* meopt plan with many ranks (core/plan/simulate.h): --bandwidth prints a table of steps on 1, 2, 4 ... N
 * ranks, --advise compares the forms of sharding and pipelines on N ranks. */
#ifndef MEOPT_CLI_PLAN_SCALING_H
#define MEOPT_CLI_PLAN_SCALING_H

#include "cli/command.h"
#include "core/plan/memory_options.h"
#include "core/plan/simulate.h"

#include <jansson.h>

enum {
    SCALING_ROWS = 18,
    ADVICE_ROWS = 96,
    ADVICE_KEYS = 160,
    PLAN_NODE_RANKS = 8 /* default of --node-ranks */
};

/* The speeds of a plan, and the sources of those that no option gives. */
struct plan_speed {
    struct simulated_speed speed;
    int ranks, threads,
        cores;     /* of the CPU: threads of a rank, and processors that the ranks of a node share */
    double gflops; /* of which the time of a step was computed; 0: --step-ms */
    bool gflops_assumed, bandwidth_assumed, network_assumed, latency_assumed;
};

struct scaling_table {
    struct plan_speed how;
    int count;
    int64_t sample_tokens; /* 0: the samples are images */
    struct scaling_row {
        int ranks;
        double sums_s, step_s, images_per_s, efficiency;
    } rows[SCALING_ROWS]; /* 1, 2, 4 ... ranks; the last row has --ranks */
};

/* An experiment with other keys, simulated on the nodes as they are. */
struct advice_row {
    char keys[ADVICE_KEYS];
    int stages; /* dist.pipeline */
    bool apart; /* faster with the stages of a replica on different nodes */
    bool possible, fits;
    char why[200]; /* the reason if it is not possible */
    size_t peak_bytes;
    struct simulated_step step;
    double efficiency;
};

struct scaling_advice {
    struct plan_speed how;
    size_t card_bytes; /* 0: unknown */
    int count, chosen; /* chosen: the fastest that fits; -1: none fits */
    struct advice_row rows[ADVICE_ROWS];
};

/* Reads the speeds that are given, and assumes the others. */
struct plan_speed plan_speed_read(const struct arguments *args, const struct memory_planner *planner,
                                  int ranks, double gflops);
/* Assumes a network if the ranks are on several nodes and none is given. */
void plan_speed_assume_network(struct plan_speed *how);
void plan_speed_print(const struct plan_speed *how);
/* Returns an object with the speeds, and `rows` as its options. */
json_t *plan_speed_json(const struct plan_speed *how, json_t *rows);
/* Plans and simulates how->ranks ranks with these keys. card_bytes 0: unknown */
void plan_choice(struct advice_row *row, const struct plan_speed *how, const struct memory_planner *planner,
                 size_t card_bytes, int stages, const char *keys);
json_t *plan_choice_json(const struct advice_row *row);

/* Returns the number of ranks per node, by --nodes or --node-ranks. */
int plan_node_ranks(const struct arguments *args, int ranks);

/* Computes the table from --bandwidth, --latency, --step-ms, --network, --nodes, --node-ranks and --cores;
 * gflops 0: unknown. Without --bandwidth, count is 0. EXIT_USAGE if the time of a step is unknown. */
int scaling_table_make(struct scaling_table *table, const struct arguments *args,
                       const struct memory_planner *planner, int ranks, double gflops, struct error *err);
void scaling_table_print(const struct scaling_table *table);
json_t *scaling_table_json(const struct scaling_table *table);

/* Plans and simulates each form of sharding, and pipelines that divide a node or consist of whole ones.
 * Speeds that are not given are assumed. */
void scaling_advise(struct scaling_advice *advice, const struct arguments *args,
                    const struct memory_planner *planner, size_t card_bytes, int ranks, double gflops);
void scaling_advice_print(const struct scaling_advice *advice);
json_t *scaling_advice_json(const struct scaling_advice *advice);

#endif
