/* The targets of a distillation: each is one output of a teacher, the student's output that is compared with
 * it, and the form and weight of their distance. They follow from the keys of loss: one target for each part
 * and each of its teachers, in this order. */
#ifndef MEOPT_EXPERIMENT_TARGETS_H
#define MEOPT_EXPERIMENT_TARGETS_H

#include "core/config/config.h"
#include "core/model/outputs.h"

struct target {
    int loss, teacher; /* indices in struct config */
    int shares;        /* the target whose outputs it compares again (loss.head previous); else its own */
    int output;        /* of that teacher */
    struct output student, of_teacher;
    int64_t rows_t, rows_s; /* patches per image of each, 0 without patch tokens */
};
struct targets {
    int count;
    struct target of[MOST_OUTPUTS];
};

/* Whether a target has outputs of its own. */
static inline bool target_owns(const struct targets *targets, int i) { return targets->of[i].shares == i; }
/* Lists them; without a teacher there are none. Returns EXIT_CONFIG for more than MOST_OUTPUTS. */
int targets_list(struct targets *targets, const struct config *config, const struct model_shape *teachers,
                 const struct model_shape *student, struct error *err);
/* Return the outputs of the student, and of a teacher: one of each target that has its own. */
struct outputs targets_of_student(const struct targets *targets);
struct outputs targets_of_teacher(const struct targets *targets, int teacher);

#endif
