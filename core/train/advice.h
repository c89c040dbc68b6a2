/* Hints after a failure. A diverged run: the command that resumes from the newest checkpoint before the loss
 * rose, with a tenth of the learning rate. Out of device memory: settings that need less. */
#ifndef MEOPT_TRAIN_ADVICE_H
#define MEOPT_TRAIN_ADVICE_H

#include "core/comm/comm.h"
#include "core/run/run.h"

enum { ADVICE_SAVES = 16 };

/* The losses of a run at its last ADVICE_SAVES checkpoints. Initialized as {0}. */
struct train_health {
    struct {
        int64_t step;
        double loss; /* NAN: saved by an earlier process */
    } saves[ADVICE_SAVES];
    int count; /* of all saves so far */
    double lowest;
    bool stepped;
};
void advice_stepped(struct train_health *health, double loss);
void advice_saved(struct train_health *health, int64_t step, double loss);
/* Sets err's hint. step: the last finished step. */
void advice_diverged(const struct train_health *health, const struct run *run, const struct config *config,
                     int64_t step, struct error *err);

/* Logs the settings that need less memory than the run is planned to need. Sets err's hint to the fastest of
 * them that fits into `available` bytes. */
void advice_memory(const struct run *run, const struct comm_options *ranks, size_t available,
                   struct error *err);

#endif
