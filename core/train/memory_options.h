/* The memory ladder: every way that saves memory is a key with a price in time, and of all their combinations
 * those are told that no other one beats in both.
 *
 *     struct memory_options l;
 *     if (memory_options_find(&l, path, overrides, count, ranks, limit, &speed, &err) == 0) ...
 *     l.options, most memory first; l.chosen: the fastest that fits
 *     memory_options_free(&l);
 *
 * The time of a rung is that of its operations at speed.gflops, or of what is carried meanwhile where that
 * takes longer: the teacher's forward pass beside the reading of its weights, the student's passes beside its
 * own and what optim.offload moves. A twentieth of what is carried is taken to be beside nothing; each
 * halving of the micro-batch makes the student's products 2 % slower; a cached teacher is computed once in
 * train.epochs.
 */
#ifndef MEOPT_TRAIN_MEMORY_OPTIONS_H
#define MEOPT_TRAIN_MEMORY_OPTIONS_H

#include "core/train/plan.h"

struct memory_options_speed {
    double gflops, carried_gb_per_s; /* of weights and states, from and to a file or the host's memory */
    bool assumed;                    /* nobody measured the first */
    enum { CARRY_ASSUMED, CARRY_GIVEN, CARRY_MEASURED } carry;
    const char *carried_by; /* what was measured, in words */
};
/* Where nothing was measured: of a card, or of a CPU and a disk. */
struct memory_options_speed memory_options_assumed(const struct config *config);

struct memory_option {
    char keys[256]; /* what differs from the experiment as it is: key=value words; "": nothing */
    size_t peak_bytes;
    double step_s;
};

struct memory_options {
    struct memory_option *options;
    int count, chosen;        /* -1: none fits */
    struct memory_option now; /* the experiment as it is */
    size_t limit_bytes;
    struct memory_options_speed speed;
};

/* Of the experiment of a file with overrides. A key that an override gives stays as it is; so does every key
 * but those of the rungs. ranks NULL: one alone. limit_bytes 0: everything fits. */
int memory_options_find(struct memory_options *ladder, const char *path, char **overrides, int count,
                        const struct comm_options *ranks, size_t limit_bytes,
                        const struct memory_options_speed *speed, struct error *err);
/* A sentence in brackets where the keys of a rung change the numbers of a run, else "". */
const char *memory_options_note(const struct memory_option *rung);
/* Is that a key of the rungs? */
bool memory_options_has_key(const char *key);
void memory_options_free(struct memory_options *ladder);

#endif
