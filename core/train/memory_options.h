/* Memory options: combinations of the keys that trade time for memory. Returned are the combinations on the
 * Pareto frontier of peak memory and step time.
 *
 *     struct memory_options l;
 *     if (memory_options_find(&l, path, overrides, count, ranks, limit, &speed, &err) == 0) ...
 *     l.options, most memory first; l.chosen: the fastest that fits
 *     memory_options_free(&l);
 *
 * The predicted time of an option is the larger of compute, at speed.gflops, and of the transfers that
 * overlap with it: the teacher's forward pass overlaps with reading its weights, the student's passes with
 * its own weights and with optim.offload. 5 % of the transfer time is assumed not to overlap. Each halving of
 * the micro-batch makes the student's GEMMs 2 % slower. A cached teacher is computed once per train.epochs.
 */
#ifndef MEOPT_TRAIN_MEMORY_OPTIONS_H
#define MEOPT_TRAIN_MEMORY_OPTIONS_H

#include "core/train/plan.h"

struct memory_options_speed {
    double gflops, carried_gb_per_s; /* compute; transfers of weights and states to a file or host memory */
    bool assumed;                    /* gflops was not measured */
    enum { CARRY_ASSUMED, CARRY_GIVEN, CARRY_MEASURED } carry;
    const char *carried_by; /* description of the measurement */
};
/* Returns typical speeds of a card, or of a CPU and a disk, for use without a measurement. */
struct memory_options_speed memory_options_assumed(const struct config *config);

struct memory_option {
    char keys[256]; /* key=value words that differ from the experiment as configured; "": none */
    size_t peak_bytes;
    double step_s;
};

struct memory_options {
    struct memory_option *options;
    int count, chosen;        /* chosen: the fastest that fits; -1: none fits */
    struct memory_option now; /* the experiment as configured */
    size_t limit_bytes;
    struct memory_options_speed speed;
};

/* Finds the memory options of the experiment of a file with overrides. A key set by an override is not
 * varied. ranks NULL: one rank. limit_bytes 0: everything fits. */
int memory_options_find(struct memory_options *options, const char *path, char **overrides, int count,
                        const struct comm_options *ranks, size_t limit_bytes,
                        const struct memory_options_speed *speed, struct error *err);
/* Returns a note in parentheses if the option changes the numbers of a run, else "". */
const char *memory_options_note(const struct memory_option *option);
/* Returns whether memory options vary this key. */
bool memory_options_has_key(const char *key);
void memory_options_free(struct memory_options *options);

#endif
