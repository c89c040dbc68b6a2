/* What to type when a run has diverged: the newest checkpoint that was made before its loss rose, and a tenth
 * of the learning rate. */
#ifndef MEOPT_TRAIN_ADVICE_H
#define MEOPT_TRAIN_ADVICE_H

#include "core/comm/comm.h"
#include "core/run/run.h"

enum { ADVICE_SAVES = 16 };

/* How the run fared, as far back as its last saves. Starts as {0}. */
struct train_health {
    struct {
        int64_t step;
        double loss; /* NAN: of an earlier process */
    } saves[ADVICE_SAVES];
    int count; /* ever */
    double lowest;
    bool stepped;
};
void advice_stepped(struct train_health *health, double loss);
void advice_saved(struct train_health *health, int64_t step, double loss);
/* Into err's hint; `step`: the last one that was made. */
void advice_diverged(const struct train_health *health, const struct run *run, const struct config *config,
                     int64_t step, struct error *err);

/* What to type when a device had no room: the settings that make the run smaller are told, and the cheapest
 * one that needs no more than `held` bytes, which were there, is err's hint. */
void advice_memory(const struct run *run, const struct comm_options *ranks, size_t held, struct error *err);

#endif
