/* The order of work in a step, without the work: a trainer computes it, and a simulation times it
 * (core/plan/simulate.c). */
#ifndef MEOPT_STEP_SCHEDULE_H
#define MEOPT_STEP_SCHEDULE_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* How a step is divided, and where it is. */
struct schedule {
    int last, lowest;     /* groups of a backward pass: from `last` down to `lowest` */
    int64_t rounds;       /* micro-batches of a step for each rank; in the last ones a rank may have none */
    int64_t wave;         /* of them in a wave: depth-first 1, breadth-first all or train.wave */
    int64_t slots;        /* micro-batches in memory at once: those of a wave that this rank has */
    bool breadth;         /* train.rounds: a group for all micro-batches of the wave before the next group */
    bool twice;           /* the last wave has two backward passes: the first measures, the second applies */
    bool at_end;          /* its backward pass measures, and weights are updated afterwards */
    int64_t first, count; /* rounds of the current wave */
};

struct step;

/* Where a gradient goes: how it is taken from its buffer, measured and applied. NULL: nothing is to be
 * done. Each returns an exit code. */
struct sink {
    /* Takes the gradient of a group for the micro-batch of a round, or begins to. A rank without a
     * micro-batch in this round has no gradient, but makes the same collective calls. */
    int (*take)(struct step *s, int group, int64_t round, struct error *err);
    int (*wait)(struct step *s, int group, struct error *err); /* until it is taken */
    /* After the last round of a group: */
    int (*measure)(struct step *s, int group, struct error *err);
    int (*apply)(struct step *s, int group, struct error *err);
    int (*measured)(struct step *s, struct error *err); /* all groups; before the first update */
    int (*begin)(struct step *s, struct error *err);    /* the updates */
    int (*end)(struct step *s, int code, struct error *err);
    bool whole;        /* gradients of all groups are kept: a backward pass is one call */
    bool reads_losses; /* in `measured`, together with the norm */
};

/* A gradient that is being taken while the next one is computed; group -1: none. */
struct in_flight {
    int group;
    bool last; /* it is of the last round */
};

/* One step. */
struct step {
    struct schedule *order;
    const struct sink *sink;
    bool overlaps; /* a gradient may be taken while the next one is computed: there are two buffers */
    int (*forward)(struct step *s, struct error *err);   /* all towers and losses of the wave */
    int (*backward)(struct step *s, struct error *err);  /* calls schedule_take for each gradient */
    int (*read_loss)(struct step *s, struct error *err); /* before the first update; may be NULL */
    bool loss_late;                                      /* the head's backward computes it */
    bool measures, unread;                               /* set by schedule_run */

    struct stages *simulation; /* core/plan/simulate.c */

    struct trainer *t;
    int64_t step;
    double lr;
    const struct batch_source *source; /* NULL: of a plan, which computes without data */
    struct step_result *result;
    double scale, squares; /* of all gradients; squares: of their norm, so far */
    bool by_group;         /* instead of by `scale` each group is clipped by its own norm */
    bool normed;           /* result->grad_norm is set */
    bool moved;            /* a group was updated */
    struct tower *tower;   /* of the current pass */
    int teacher;           /* its number, of a teacher */
    struct in_flight flight;
};
int schedule_run(struct step *s, struct error *err);

/* Called when a backward pass has computed a group for the micro-batch of a slot; own: on this rank, else on
 * another stage. */
int schedule_take(struct step *s, struct in_flight *flight, int group, int64_t slot, bool own,
                  struct error *err);
/* Waits for the gradient in flight, at the end of a backward pass. */
int schedule_wait(struct step *s, struct in_flight *flight, struct error *err);

/* A pass over groups `from` to `to`, by 1 or -1, and in each over the micro-batches of `count` slots. */
struct group_pass {
    int from, to, by;
    int64_t count;
    bool whole;               /* `compute` is called once, and computes all groups */
    struct tower *tower;      /* NULL: of a simulation */
    const struct batch *only; /* its micro-batch; NULL: those of the step */
    void *context;
    int (*need)(void *context, int group, int next, struct error *err); /* weights; may be NULL */
    int (*compute)(void *context, int64_t slot, int group, struct error *err);
    /* The group was computed; own: on this rank, else on another stage. May be NULL. */
    int (*computed)(void *context, int64_t slot, int group, bool own, struct error *err);
};
int group_pass_run(const struct group_pass *pass, struct error *err);

/* Returns the waves of a step, and the passes of a wave of which the last one has one or two backwards. */
static inline int64_t schedule_waves(const struct schedule *s) { return (s->rounds + s->wave - 1) / s->wave; }
static inline int schedule_passes(const struct schedule *s) { return s->twice ? 3 : 2; }

#endif
