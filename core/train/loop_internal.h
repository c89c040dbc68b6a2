/* The state of the training loop, shared by loop.c and loop_load.c. */
#ifndef MEOPT_TRAIN_LOOP_INTERNAL_H
#define MEOPT_TRAIN_LOOP_INTERNAL_H

#include "core/device/gemm_choices.h"
#include "core/run/checkpoint.h"
#include "core/train/advice.h"
#include "core/experiment/experiment.h"
#include "core/train/loop.h"
#include "core/train/trainer_checkpoint.h"

/* The batch of a step, as micro-batches. */
struct feed {
    struct data *data;
    struct validation_data validation;
    struct data_batch batch;
    bool last_step;
    int64_t micro, chunk; /* images and floats of a micro-batch */
    int64_t context;      /* tokens of a sample; 0: images */
    int64_t labels_each;  /* of a sample of tokens */
};

/* Files of the run whose write failures never end it: each is warned about once. */
enum report_file { REPORT_METRICS, REPORT_EVENTS, REPORT_STATE, REPORT_FILES };

struct train_loop {
    struct run *run;
    struct trainer *t;
    struct config *config; /* the trainer's */
    const struct train_listener *listener;
    struct feed feed;
    struct train_progress p;
    int64_t from, last, saved_step; /* this process trains steps from + 1 to last */
    struct train_health health;
    double saved_at, state_at; /* clock_seconds() of the last checkpoint and the last state.json */
    double save_failed_at;     /* clock_seconds() of the last save, which failed; 0: saving is not paused */
    bool warned[REPORT_FILES];
    bool mid_step;     /* the weights may be partly updated */
    bool same_failure; /* all ranks failed for one reason, and each knows it */
    double data_ms;    /* duration of the last data_next */
    int rank, ranks;
    double peak_flops;       /* of all ranks (device.h); 0: unknown */
    bool stop, save, change; /* agreed by all ranks for this step */
    struct save_reservation reservation;
    struct gemm_choices *gemms;             /* used after the first step; NULL: none */
    bool try_gemms;                         /* rank 0 tries algorithms in the first step */
    struct checkpoint_best best, candidate; /* the best checkpoint; a better evaluation, until it is saved */
};

static inline bool is_rank0(const struct train_loop *w) { return w->rank == 0; }

static inline void enter_phase(const struct train_listener *listener, enum train_phase phase)
{
    if (listener->phase) listener->phase(listener->context, phase);
}

/* Algorithms of GEMMs (gemm_choices.h): those of gemm.json are used from the start of a resume, or, before
 * the run's first step, after it. Without that file, or on another card or library, rank 0 tries them in the
 * first step, and all ranks use its choices from then on. Collective calls. */
int loop_gemms_begin(struct train_loop *w, struct error *err);
int loop_gemms_stepped(struct train_loop *w, struct error *err);

/* Evaluates on data.val after a step at which it is due (train.eval_every, and the last one): sets
 * w->p.evaluation, and w->candidate if the result is better than the best. Collective call. */
int loop_evaluate(struct train_loop *w, struct error *err);
/* Before a save: names the checkpoint of this step as the best, if it is. */
void loop_name_best(struct train_loop *w);
/* After a save that failed: forgets that this step would be the best, and reports that it is lost. */
void loop_forget_best(struct train_loop *w);
/* Reads the best evaluation before a resume from w->from. changed: differences that the resume accepts;
 * scores of another data.val are not compared. An error: the best cannot be read now. */
int loop_read_best(struct train_loop *w, json_t *changed, struct error *err);

/* Loads trainer and data at the step from which this process trains, w->from. how: resume or begin. *device:
 * opened here, closed by the caller. *changed: keys that differ from the run's last start. */
int loop_load(struct train_loop *w, struct config *c, const struct train_resume *how,
              const struct comm_options *ranks, struct device **device, json_t **changed, struct error *err);

#endif
